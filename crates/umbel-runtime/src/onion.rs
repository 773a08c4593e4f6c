//! The handlers of one agent, sorted by hook once, so that a hook nobody has costs nothing.

use std::fmt;
use std::sync::Arc;

use umbel_core::onion::named;
use umbel_core::{
    AfterOrder, AgentTurn, Content, Error, ErrorKind, Event, Extending, Guarded, Handler, Hooks, ModelTurn,
    Outcome, Result, Run, Step, Work,
};

use crate::configure::refuse_doubles;
use crate::detailed::detailed;
use crate::text;

/// Handlers that have a hook, in the order in which they are asked.
pub(crate) type HookList = Box<[Arc<dyn Handler>]>;

/// The handlers of one agent by hook: its runner's, then its own.
#[derive(Default)]
pub(crate) struct Onion {
    pub(crate) before_agent: HookList,
    pub(crate) before_model: HookList,
    pub(crate) after_model: HookList,
    pub(crate) wrap_model: HookList,
    pub(crate) wrap_tool: HookList,
    pub(crate) on_event: HookList,
    pub(crate) on_output: HookList,
    pub(crate) on_error: HookList,
    pub(crate) after_agent: HookList,
}

impl Onion {
    /// Sorts handlers by hook. `stage` is the innermost of them.
    pub(crate) fn new(
        runner: &[Arc<dyn Handler>],
        agent: Extending<'_>,
        stage: Option<&Arc<dyn Handler>>,
    ) -> Self {
        let all: Vec<&Arc<dyn Handler>> =
            runner.iter().chain(agent.legacy).chain(agent.handlers).chain(stage).collect();
        let list = |hook: Hooks| -> HookList { having(all.iter().copied(), hook) };
        let after = |hook: Hooks| -> HookList {
            match agent.after_order {
                AfterOrder::Forward => list(hook),
                AfterOrder::Reverse => having(all.iter().copied().rev(), hook),
            }
        };
        let around_tools = runner.iter().chain(agent.tool_layers).chain(agent.legacy).chain(agent.handlers);
        Self {
            before_agent: list(Hooks::BEFORE_AGENT),
            before_model: list(Hooks::BEFORE_MODEL),
            after_model: after(Hooks::AFTER_MODEL),
            wrap_model: list(Hooks::WRAP_MODEL),
            wrap_tool: having(around_tools.chain(stage), Hooks::WRAP_TOOL),
            on_event: list(Hooks::ON_EVENT),
            on_output: list(Hooks::ON_OUTPUT),
            on_error: list(Hooks::ON_ERROR),
            after_agent: after(Hooks::AFTER_AGENT),
        }
    }

    /// Whether a handler works on the conversation.
    pub(crate) fn works_on_history(&self) -> bool {
        !self.before_model.is_empty() || !self.after_model.is_empty()
    }

    /// The lists with the names of their hooks.
    pub(crate) fn lists(&self) -> [(&'static str, &HookList); 9] {
        [
            ("before_agent", &self.before_agent),
            ("before_model", &self.before_model),
            ("wrap_model", &self.wrap_model),
            ("after_model", &self.after_model),
            ("wrap_tool", &self.wrap_tool),
            ("on_event", &self.on_event),
            ("on_output", &self.on_output),
            ("on_error", &self.on_error),
            ("after_agent", &self.after_agent),
        ]
    }
}

/// Those of the handlers that have a hook.
pub(crate) fn having<'a>(handlers: impl Iterator<Item = &'a Arc<dyn Handler>>, hook: Hooks) -> HookList {
    handlers.filter(|handler| handler.hooks().contains(hook)).cloned().collect()
}

impl fmt::Debug for Onion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            |list: &HookList| list.iter().map(|handler| handler.name().to_owned()).collect::<Vec<_>>();
        f.debug_map().entries(self.lists().iter().map(|(hook, list)| (*hook, names(list)))).finish()
    }
}

/// Calls one hook: a panic is an error, an error names handler and hook, and a cancelled run does not wait for it.
async fn ask<'a, T>(
    run: &Run,
    handler: &'a dyn Handler,
    hook: &'static str,
    call: impl FnOnce() -> Work<'a, Result<T>>,
) -> Result<T> {
    let result = match Guarded::new(handler, hook, call).try_now() {
        Ok(result) => result,
        Err(work) => run.cancel_token().guard(work).await?,
    };
    result.map_err(|error| named(handler, hook, error))
}

/// Asks each handler before a turn, until one does not simply go on. With `strict_tools` none may add a tool whose name
/// is taken.
pub(crate) async fn before_agent(
    handlers: &HookList,
    turn: &mut AgentTurn<'_>,
    strict_tools: bool,
) -> Result<Step> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    for handler in handlers {
        let (run, before) = (turn.run(), strict_tools.then(|| turn.plan.tools.clone()));
        let step = ask(run, &**handler, "before_agent", || handler.before_agent(turn)).await?;
        if let Some(before) = before {
            refuse_doubles(&before, &turn.plan.tools)
                .map_err(|error| named(&**handler, "before_agent", error))?;
        }
        if step != Step::Continue {
            return Ok(step);
        }
    }
    Ok(Step::Continue)
}

/// What came of the handlers before or after a model call.
#[derive(Default)]
pub(crate) struct Passed {
    pub(crate) step: Step,
    /// Who gave that step, if it is not simply to go on.
    pub(crate) by: Option<Arc<dyn Handler>>,
    /// Who made each change to the conversation.
    pub(crate) changed_by: Vec<Arc<dyn Handler>>,
}

impl Passed {
    /// Takes in what a handler did. Gives whether it does not simply go on.
    fn take(&mut self, handler: &Arc<dyn Handler>, step: Step, changes: usize) -> bool {
        if changes > self.changed_by.len() {
            self.changed_by.resize(changes, handler.clone());
        }
        let special = step != Step::Continue;
        if special {
            self.by = Some(handler.clone());
            self.step = step;
        }
        special
    }
}

/// Asks each handler before a model call, until one does not simply go on.
pub(crate) async fn before_model(handlers: &[Arc<dyn Handler>], turn: &mut ModelTurn<'_>) -> Result<Passed> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    let (mut passed, before) = (Passed::default(), turn.history.changes());
    for handler in handlers {
        let run = turn.run();
        let step = ask(run, &**handler, "before_model", || handler.before_model(turn)).await?;
        if passed.take(handler, step, turn.history.changes() - before) {
            break;
        }
    }
    Ok(passed)
}

/// Asks each handler after a model call, until one does not simply go on.
pub(crate) async fn after_model(handlers: &HookList, turn: &mut ModelTurn<'_>) -> Result<Passed> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    let (mut passed, before) = (Passed::default(), turn.history.changes());
    for handler in handlers {
        let run = turn.run();
        let step = ask(run, &**handler, "after_model", || handler.after_model(turn)).await?;
        if passed.take(handler, step, turn.history.changes() - before) {
            break;
        }
    }
    Ok(passed)
}

/// Lets each handler see what the user said.
pub(crate) async fn on_input(
    handlers: &HookList,
    run: &Run,
    mut input: Arc<Content>,
) -> Result<Arc<Content>> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    for handler in handlers {
        input = ask(run, &**handler, "on_input", || handler.on_input(run, input)).await?;
    }
    Ok(input)
}

/// The first answer in the place of all agents.
pub(crate) async fn before_run(handlers: &HookList, run: &Run) -> Result<Option<Content>> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    for handler in handlers {
        let given = ask(run, &**handler, "before_run", || handler.before_run(run)).await?;
        if given.is_some() {
            return Ok(given);
        }
    }
    Ok(None)
}

/// Lets each handler change an event before it is stored.
pub(crate) async fn on_event(handlers: &HookList, run: &Run, mut event: Event) -> Result<Event> {
    // There are many previews, and each alone tells nothing.
    let detailed = if event.is_partial() { None } else { detailed(handlers) };
    let handlers = detailed.as_deref().unwrap_or(handlers);
    for handler in handlers {
        let before = Fixed::of(&event);
        event = ask(run, &**handler, "on_event", || handler.on_event(run, event)).await?;
        if !before.holds(&event) {
            let error = Error::new(ErrorKind::Handler, text::FIXED_IN_EVENTS);
            return Err(named(&**handler, "on_event", error));
        }
    }
    Ok(event)
}

/// What of an event must stay as it is: others have acted on it, or will.
struct Fixed {
    id: umbel_core::EventId,
    run: umbel_core::RunId,
    is_partial: bool,
    waiting: Vec<umbel_core::CallId>,
    content: Option<Arc<Content>>,
    control: Option<Box<umbel_core::Actions>>,
}

impl Fixed {
    fn of(event: &Event) -> Self {
        let acts = |content: &Arc<Content>| {
            content.has_calls()
                || content.has_responses()
                || content.answered().next().is_some()
                || content.code_id().is_some()
        };
        let content = event.content.clone().filter(acts);
        let control = event.actions.clone().filter(|actions| !actions.is_plain());
        Self {
            id: event.id.clone(),
            run: event.run.clone(),
            is_partial: event.is_partial(),
            waiting: event.long_running().to_vec(),
            content,
            control,
        }
    }

    fn holds(&self, event: &Event) -> bool {
        let calls = match (&self.content, &event.content) {
            (None, None) => true,
            (Some(before), Some(now)) if Arc::ptr_eq(before, now) => true,
            (before, now) => {
                let calls = |content: &Option<Arc<Content>>| -> Vec<umbel_core::FunctionCall> {
                    let calls = content.iter().flat_map(|content| content.calls().cloned());
                    calls.chain(content.as_ref().and_then(|content| content.code_call())).collect()
                };
                let ids = |content: &Option<Arc<Content>>| -> (usize, Vec<umbel_core::CallId>) {
                    let responses = content.iter().flat_map(|content| content.responses()).count();
                    let ids = content.iter().flat_map(|content| content.answered().cloned());
                    (responses, ids.collect())
                };
                calls(before) == calls(now) && ids(before) == ids(now)
            }
        };
        let control = event.actions.as_ref().filter(|actions| !actions.is_plain());
        let steers = match (&self.control, control) {
            (None, None) => true,
            (Some(before), Some(now)) => before.steers_like(now),
            _ => false,
        };
        let same = self.id == event.id && self.run == event.run && self.is_partial == event.is_partial();
        same && self.waiting == event.long_running() && calls && steers
    }
}

/// What readers see of an event; `None` if nothing.
pub(crate) async fn on_output(
    handlers: &HookList,
    run: &Run,
    event: Arc<Event>,
) -> Result<Option<Arc<Event>>> {
    // There are many previews, and each alone tells nothing.
    let detailed = if event.is_partial() { None } else { detailed(handlers) };
    on_output_again(detailed.as_deref().unwrap_or(handlers), run, event).await
}

/// The same for an event of a run that is read later. That is no part of the run, so it leaves no spans in its trace.
pub(crate) async fn on_output_again(
    handlers: &[Arc<dyn Handler>],
    run: &Run,
    mut event: Arc<Event>,
) -> Result<Option<Arc<Event>>> {
    for handler in handlers {
        match ask(run, &**handler, "on_output", || handler.on_output(run, event)).await? {
            Some(seen) => event = seen,
            None => return Ok(None),
        }
    }
    Ok(Some(event))
}

/// The first answer in the place of an agent that failed.
pub(crate) async fn on_error(handlers: &HookList, run: &Run, error: &Error) -> Result<Option<Content>> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    for handler in handlers {
        let given = ask(run, &**handler, "on_error", || handler.on_error(run, error)).await?;
        if given.is_some() {
            return Ok(given);
        }
    }
    Ok(None)
}

/// Tells each handler how an agent's turn ended. All are told, also in a cancelled run; the first error counts.
pub(crate) async fn after_agent(handlers: &HookList, run: &Run, outcome: &Outcome) -> Result<()> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    let mut result = Ok(());
    for handler in handlers {
        let told = told(&**handler, "after_agent", || handler.after_agent(run, outcome)).await;
        result = result.and(told);
    }
    result
}

/// Tells each handler how a run ended. All are told; the first error counts.
pub(crate) async fn after_run(handlers: &HookList, run: &Run, outcome: &Outcome) -> Result<()> {
    let detailed = detailed(handlers);
    let handlers = detailed.as_deref().unwrap_or(handlers);
    let mut result = Ok(());
    for handler in handlers {
        let told = told(&**handler, "after_run", || handler.after_run(run, outcome)).await;
        result = result.and(told);
    }
    result
}

/// Closes each handler. All are closed; the first error counts.
pub(crate) async fn close(handlers: &HookList) -> Result<()> {
    let mut result = Ok(());
    for handler in handlers {
        let told = told(&**handler, "close", || handler.close()).await;
        result = result.and(told);
    }
    result
}

/// Calls a hook that comes when a run is over: it is waited for though the run was cancelled.
async fn told<'a>(
    handler: &'a dyn Handler,
    hook: &'static str,
    call: impl FnOnce() -> Work<'a, Result<()>>,
) -> Result<()> {
    Guarded::new(handler, hook, call).await.map_err(|error| named(handler, hook, error))
}
