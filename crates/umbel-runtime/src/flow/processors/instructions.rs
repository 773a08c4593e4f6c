//! What the model is told: the team's instruction, what never changes, the agent's own, and its name.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{Content, Mode, Part, Result, Work};

use super::RequestProcessor;
use crate::flow::Step;
use crate::text;

pub(super) struct Instructions;

impl RequestProcessor for Instructions {
    fn name(&self) -> &str {
        "instructions"
    }

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        let (agent, run) = (step.agent, step.run);
        let root = match run.tree().node(run.tree().root()) {
            Ok(node) => &node.agent,
            Err(error) => return Work::done(Err(error)),
        };
        let team = root.global_instruction(run).try_now();
        let own = agent.own_instruction(run).try_now();
        // Most instructions have no holes: then there is nothing to wait for.
        match (team, own) {
            (Ok(team), Ok(own)) => Work::done(instruct(step, team, own)),
            (team, own) => Work::later(async move {
                let team = match team {
                    Ok(team) => team,
                    Err(work) => work.await,
                };
                let own = match own {
                    Ok(own) => own,
                    Err(work) => work.await,
                };
                instruct(step, team, own)
            }),
        }
    }
}

type Told = Result<Option<Arc<str>>>;

fn instruct(step: &mut Step<'_>, team: Told, own: Told) -> Result<()> {
    let (team, own) = (team?, own?);
    let instruction = &mut step.request.instruction;
    if let Some(team) = team {
        instruction.push(SmolStr::new_static("global_instruction"), team);
    }
    match (&step.agent.static_instruction, own) {
        (None, None) => {}
        (None, Some(own)) => instruction.push(SmolStr::new_static("instruction"), own),
        (Some(fixed), own) => {
            instruction.push(SmolStr::new_static("static_instruction"), fixed.clone());
            if let Some(own) = own.filter(|own| !own.is_empty()) {
                let content = Content::user(Part::text(text::instruction_as_content(&own)));
                step.turn_contents.push(Arc::new(content));
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

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        let place = match step.team.place(step.run.node_id()) {
            Ok(place) => place,
            Err(error) => return Work::done(Err(error)),
        };
        if step.mode() != Mode::SingleTurn {
            step.request.instruction.push(SmolStr::new_static("identity"), place.identity.clone());
        }
        Work::done(Ok(()))
    }
}
