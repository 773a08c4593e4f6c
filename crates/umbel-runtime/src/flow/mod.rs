//! The flow of an agent that thinks with a model: make a request, ask, act on the answer, until there is nothing
//! more to do.

mod answer;
mod function_calls;
mod model_call;
mod processors;
mod step;

use std::sync::Arc;

use umbel_core::{Event, Result, Run};

pub use self::function_calls::Batch;
pub use self::processors::{Processors, RequestProcessor, ResponseProcessor};
pub use self::step::Step;

use self::answer::Answer;
use crate::agents::LlmAgent;
use crate::team::Team;
use crate::tools::delegate::resume_task;

/// What lasts over the steps of one agent's turn.
pub(crate) struct Turn<'a> {
    pub(crate) agent: &'a LlmAgent,
    pub(crate) run: &'a Run,
    pub(crate) team: Arc<Team>,
    pub(crate) answer: Answer,
}

/// Runs an agent until it has said its last word.
pub(crate) async fn run(agent: &LlmAgent, run: &Run) -> Result<()> {
    let mut turn = Turn { agent, run, team: Team::of(run)?, answer: Answer::default() };
    if turn.team.has_tasks() && resume_task(run, &turn.team.place(run.node_id())?.delegates).await? {
        return Ok(());
    }
    loop {
        run.cancel_token().check()?;
        let last = one_step(&mut turn).await?;
        // Who asks a person waits for the answer, whatever else the step gave.
        if run.is_ended() || last.is_none_or(|event| event.is_final() || event.is_partial()) {
            return Ok(());
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
    let mut turn = Turn { agent, run, team: Team::of(run)?, answer: Answer::default() };
    function_calls::follow(&mut turn, &agent.tools, &batch).await
}

/// Makes calls with an agent's tools and merges what they gave into one event, which is not emitted: neither are
/// people asked nor does anyone hand over. For agents of your own.
pub async fn merge_calls(agent: &LlmAgent, run: &Run, batch: Batch) -> Result<Option<Event>> {
    let team = Team::of(run)?;
    function_calls::execute(agent, run, &team, &agent.tools, &batch).await
}

/// One request with all that follows from its answer. Gives the last event.
async fn one_step(turn: &mut Turn<'_>) -> Result<Option<Arc<Event>>> {
    let mut step = Step::new(turn.agent, turn.run, turn.team.clone())?;
    step.ask_toolsets().await?;
    for processor in turn.agent.processors.request() {
        if processor.applies(turn.agent) {
            // Nearly all are done at once; then there is nothing to poll.
            match processor.process(&mut step).try_now() {
                Ok(done) => done?,
                Err(work) => work.await?,
            }
        }
        if step.is_stopped() || turn.run.is_ended() {
            return Ok(step.take_last());
        }
    }
    step.finish_tools().await?;
    model_call::call_model(turn, &mut step).await
}
