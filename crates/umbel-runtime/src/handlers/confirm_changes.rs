//! People confirm what tools changed.

use smol_str::SmolStr;
use umbel_core::{
    Content, Event, FunctionCall, FunctionResponse, Handler, Object, Outcome, Part, Result, Role, Run,
};
use umbel_macros::handler;

/// The call by which a front end is asked whether changes may stay.
pub const CONFIRM_CHANGES: &str = "confirm_changes";

/// Asks people whether what tools changed may stay. It is for a runner.
///
/// A run that ends well, and in which one of the tools did its work, leaves a call of [`CONFIRM_CHANGES`] as its last word.
/// The front end shows it and answers it like any call that is its own, such as with `{"accepted": true}`; the agent that
/// changed something reads the answer. Whoever does not agree puts the state back and sends it along. The call is in the
/// log, so it may be answered later and in any process; a message in its place is an answer, too.
///
/// ```
/// use umbel_runtime::handlers::ConfirmChanges;
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// # fn main() -> umbel_core::Result<()> {
/// let writer = LlmAgent::new("writer").model(ScriptedModel::new("demo").text("Once upon a time."));
/// let runner = Runner::builder("desk", writer).handler(ConfirmChanges::new(["write_document"])).build()?;
/// # let _ = runner;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConfirmChanges {
    tools: Vec<SmolStr>,
}

impl ConfirmChanges {
    /// Asks about what these tools did.
    pub fn new<N: Into<SmolStr>>(tools: impl IntoIterator<Item = N>) -> Self {
        Self { tools: tools.into_iter().map(Into::into).collect() }
    }

    /// The event of the run by which one of the tools was called that did its work, unless people are asked already.
    fn change(&self, run: &Run) -> Option<Event> {
        let events = run.events();
        let of_run = || events.iter().rev().take_while(|event| event.run == *run.id());
        if of_run().any(|event| event.calls().any(|call| call.name == CONFIRM_CHANGES)) {
            return None;
        }
        let done = |response: &FunctionResponse| {
            let failed = response.response.as_ref().is_some_and(|given| given.contains_key("error"));
            !failed && self.tools.contains(&response.name)
        };
        let call =
            of_run().flat_map(|event| event.responses()).find(|response| done(response))?.id.as_ref()?;
        let made = of_run().find(|event| event.calls().any(|made| made.id.as_ref() == Some(call)))?;
        Some(Event::new(run.id().clone(), made.source.clone()))
    }
}

#[handler(crate = umbel_core)]
impl Handler for ConfirmChanges {
    fn name(&self) -> &str {
        CONFIRM_CHANGES
    }

    async fn after_run(&self, run: &Run, outcome: &Outcome) -> Result<()> {
        // What an agent does that is called as a tool is its caller's to show.
        if *outcome != Outcome::Finished || run.depth() > 0 {
            return Ok(());
        }
        let Some(mut event) = self.change(run) else { return Ok(()) };
        let id = run.services().ids.call();
        let call = FunctionCall::new(CONFIRM_CHANGES, Object::new()).with_id(id.clone());
        event.content = Some(Content::new(Role::Model, [Part::call(call)]).into());
        event.long_running_tool_ids = Some(Box::new(vec![id]));
        run.emit(event).await?;
        Ok(())
    }
}
