//! What the model is told: the team's instruction, what never changes, the agent's own, and its name.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{Content, Error, ErrorKind, Instruction, InstructionPlan, Mode, Part, Result, Words, Work};

use super::RequestProcessor;
use crate::flow::Draft;
use crate::template::Template;
use crate::text;

pub(super) struct Instructions;

impl RequestProcessor for Instructions {
    fn name(&self) -> &str {
        "instructions"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let (agent, run) = (draft.agent, draft.run);
        let root = match run.tree().node(run.tree().root()) {
            Ok(node) => &node.agent,
            Err(error) => return Work::done(Err(error)),
        };
        let team = root.global_instruction(run).try_now();
        if let Some(plan) = draft.plan() {
            let plan = plan.instruction.clone();
            return Work::later(async move {
                let team = match team {
                    Ok(team) => team,
                    Err(work) => work.await,
                };
                planned(draft, team?, &plan).await
            });
        }
        let own = agent.own_instruction(run).try_now();
        // Most instructions have no holes: then there is nothing to wait for.
        match (team, own) {
            (Ok(team), Ok(own)) => Work::done(instruct(draft, team, own)),
            (team, own) => Work::later(async move {
                let team = match team {
                    Ok(team) => team,
                    Err(work) => work.await,
                };
                let own = match own {
                    Ok(own) => own,
                    Err(work) => work.await,
                };
                instruct(draft, team, own)
            }),
        }
    }
}

/// What handlers made of the agent's instruction, put in words.
async fn planned(draft: &mut Draft<'_>, team: Option<Arc<str>>, plan: &InstructionPlan) -> Result<()> {
    let mut parts = Instruction::new();
    for part in plan.parts() {
        let text: Arc<str> = match &part.words {
            Words::Verbatim(text) => text.clone(),
            Words::Template(text) => Template::new(text.clone()).render(draft.run).await?,
            Words::Provided(provider) => provider(draft.run).await?.into(),
            other => {
                let message = format!("an instruction part cannot be {other:?}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        parts.push(part.source.clone(), text);
    }
    if draft.agent.static_instruction.is_some() {
        // It travels among the messages as one.
        return instruct(draft, Ok(team), Ok(Some(parts.text().into())));
    }
    instruct(draft, Ok(team), Ok(None))?;
    for part in parts.parts() {
        draft.request.instruction.push(part.source.clone(), part.text.clone());
    }
    Ok(())
}

type Told = Result<Option<Arc<str>>>;

fn instruct(draft: &mut Draft<'_>, team: Told, own: Told) -> Result<()> {
    let (team, own) = (team?, own?);
    let instruction = &mut draft.request.instruction;
    if let Some(team) = team {
        instruction.push(SmolStr::new_static("global_instruction"), team);
    }
    match (&draft.agent.static_instruction, own) {
        (None, None) => {}
        (None, Some(own)) => instruction.push(SmolStr::new_static("instruction"), own),
        (Some(fixed), own) => {
            instruction.push(SmolStr::new_static("static_instruction"), fixed.clone());
            if let Some(own) = own.filter(|own| !own.is_empty()) {
                let content = Content::user(Part::text(text::instruction_as_content(&own)));
                draft.turn_contents.push(Arc::new(content));
            }
        }
    }
    Ok(())
}

pub(super) struct Identity;

impl RequestProcessor for Identity {
    fn name(&self) -> &str {
        "identity"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let place = match draft.team.place(draft.run.node_id()) {
            Ok(place) => place,
            Err(error) => return Work::done(Err(error)),
        };
        if let Some(given) = &draft.run.config().instruction {
            draft.request.instruction.push(SmolStr::new_static("run_instruction"), given.clone());
        }
        if draft.mode() != Mode::SingleTurn {
            draft.request.instruction.push(SmolStr::new_static("identity"), place.identity.clone());
        }
        Work::done(Ok(()))
    }
}
