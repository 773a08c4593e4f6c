//! The flow of an agent that thinks with a model: make a request, ask, act on the answer, until there is nothing
//! more to do.

mod answer;
mod code;
pub(crate) mod data_files;
mod direct;
mod draft;
mod function_calls;
mod handlers;
mod model_call;
mod overflow;
mod processors;
mod questions;
mod resume;
mod toolsets;

use std::sync::Arc;

use umbel_core::{Agent, Event, ModelRequest, Result, Run, SafePoint, Transcript};

pub use self::draft::Draft;
pub(crate) use self::draft::add_given;
pub use self::function_calls::{Again, Batch};
pub(crate) use self::function_calls::{CONFIRM_LAYER, INJECTED};
pub(crate) use self::function_calls::{as_object, calls_of, error_value};
pub use self::processors::{Answered, Processors, RequestProcessor, ResponseProcessor};
pub(crate) use self::questions::emit_questions;
pub(crate) use self::toolsets::{ListingOptions, ToolListing};

use self::answer::Answer;
use self::overflow::Overflow;
use crate::adk_stage::AdkStage;
use crate::agents::{LlmAgent, TurnPlan};
use crate::onion::{HookList, Onion};
use crate::team::Team;
use crate::tools::delegate::resume_task;

/// What lasts over the steps of one agent's turn.
pub(crate) struct Turn<'a> {
    pub(crate) agent: &'a LlmAgent,
    pub(crate) run: &'a Run,
    pub(crate) team: Arc<Team>,
    pub(crate) answer: Answer,
    /// What stands around calls, if it is not what the run's agent has.
    pub(crate) layers: Option<HookList>,
    /// The conversation as handlers leave it, if any of them works on it.
    pub(crate) transcript: Option<Box<Transcript>>,
    /// Changes to it since the model was asked last, by whom.
    changes: Vec<handlers::Change>,
    /// How often handlers jumped in a row.
    jumps: u32,
    /// A handler offered to make the conversation shorter, should it be too long for the model.
    shortens: bool,
    /// The conversation was too long for the model.
    overflow: Option<Box<Overflow>>,
    /// Calls that were under way when the run was cut short that this one goes on with.
    cut_short: Option<Box<Batch>>,
}

impl<'a> Turn<'a> {
    fn new(agent: &'a LlmAgent, run: &'a Run, team: Arc<Team>, layers: Option<HookList>) -> Self {
        let (answer, changes) = (Answer::default(), Vec::new());
        Self {
            agent,
            run,
            team,
            answer,
            layers,
            transcript: None,
            changes,
            jumps: 0,
            shortens: false,
            overflow: None,
            cut_short: None,
        }
    }
}

/// What comes after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// What the last event calls for: nothing more if it is final, else the next step.
    Event,
    /// The next step.
    Again,
    /// Nothing.
    End,
}

/// One step that was made.
pub(crate) struct Made {
    pub(crate) last: Option<Arc<Event>>,
    pub(crate) after: After,
}

/// Runs an agent until it has said its last word.
pub(crate) async fn run(agent: &LlmAgent, run: &Run) -> Result<()> {
    let mut turn = Turn::new(agent, run, Team::of(run)?, None);
    if turn.team.has_tasks() && resume_task(run, &turn.team.place(run.node_id())?.delegates).await? {
        return Ok(());
    }
    let result = steps(&mut turn).await;
    if let Some(transcript) = turn.transcript.take() {
        run.values().put_transcript(run.source().clone(), *transcript);
    }
    result
}

async fn steps(turn: &mut Turn<'_>) -> Result<()> {
    let run = turn.run;
    if let Some(replay) = run.values().take_up(run.source())
        && resume::is_over(turn, &replay)
    {
        return Ok(());
    }
    if let Some(plan) = run.turn_value::<TurnPlan>().filter(|plan| plan.starts_with_calls) {
        let listing = plan.listing();
        let mut draft = Draft::new(turn.agent, run, turn.team.clone())?;
        draft.ask_toolsets(true).await?;
        let made = Box::pin(handlers::pending_calls(turn, &draft.tools)).await?;
        if made.is_none() {
            // Nothing happened since that could change what toolsets give.
            plan.set_listing(listing);
        }
        if run.is_ended() || made.is_some_and(|event| event.is_final()) {
            return Ok(());
        }
    }
    loop {
        run.cancel_token().check()?;
        run.cancel_token().check_at(SafePoint::Next)?;
        let Made { last, after } = one_step(turn).await?;
        // Who asks a person waits for the answer, whatever else the step gave.
        if run.is_ended() {
            return Ok(());
        }
        match after {
            After::End => return Ok(()),
            After::Again => {}
            After::Event if last.is_none_or(|event| event.is_final() || event.is_partial()) => return Ok(()),
            After::Event => {}
        }
    }
}

/// Writes what was said in an agent's place to its output key.
pub(crate) fn save_answer(agent: &LlmAgent, event: &mut Event) -> Result<()> {
    Answer::default().save(agent, event)
}

/// Makes calls with an agent's tools and emits what follows from them: responses, questions to people, an answer. Gives
/// the last event. For agents of your own.
pub async fn make_calls(agent: &LlmAgent, run: &Run, batch: Batch) -> Result<Option<Arc<Event>>> {
    let team = Team::of(run)?;
    let layers = Some(layers_of(agent, &team));
    let mut turn = Turn::new(agent, run, team, layers);
    function_calls::follow(&mut turn, &agent.tools, &batch).await
}

/// Makes calls with an agent's tools and merges what they gave into one event, which is not emitted: neither are
/// people asked nor does anyone hand over. For agents of your own.
pub async fn merge_calls(agent: &LlmAgent, run: &Run, batch: Batch) -> Result<Option<Event>> {
    let team = Team::of(run)?;
    function_calls::execute(run, &layers_of(agent, &team), &agent.tools, &batch).await.map(|made| made.event)
}

/// What stands around the calls of an agent that need not be one of the team.
fn layers_of(agent: &LlmAgent, team: &Team) -> HookList {
    let stage = AdkStage::of(&team.extras.plugins, &agent.callbacks);
    Onion::new(&team.extras.handlers, agent.handlers(), stage.as_ref()).wrap_tool
}

/// The request that an agent would make as the log stands. Processors that do something are passed over.
pub(crate) async fn rebuild(agent: &LlmAgent, run: &Run) -> Result<ModelRequest> {
    let mut draft = Draft::new(agent, run, Team::of(run)?)?;
    draft.ask_toolsets(false).await?;
    for processor in agent.processors.request() {
        if processor.applies(agent) && !processor.acts() {
            processor.process(&mut draft).await?;
        }
    }
    draft.finish_tools().await?;
    if let (None, edits) = run.values().take_transcript(run.source())
        && !edits.is_empty()
    {
        draft.request.contents = Transcript::replay(&draft.request.contents, &edits).history().clone();
    }
    draft.place_turn();
    Ok(draft.request)
}

/// One request with all that follows from its answer.
async fn one_step(turn: &mut Turn<'_>) -> Result<Made> {
    let mut draft = Draft::new(turn.agent, turn.run, turn.team.clone())?;
    draft.overflows = overflow::times(turn);
    draft.ask_toolsets(true).await?;
    for processor in turn.agent.processors.request() {
        if processor.applies(turn.agent) {
            // Nearly all are done at once; then there is nothing to poll.
            match processor.process(&mut draft).try_now() {
                Ok(done) => done?,
                Err(work) => work.await?,
            }
        }
        if draft.is_stopped() || turn.run.is_ended() {
            return Ok(Made { last: draft.take_last(), after: After::Event });
        }
    }
    draft.finish_tools().await?;
    if let Some(batch) = turn.cut_short.take() {
        let tools = draft.request.tools.clone();
        let last = Box::pin(function_calls::follow(turn, &tools, &batch)).await?;
        return Ok(Made { last, after: After::Event });
    }
    model_call::call_model(turn, &mut draft).await
}
