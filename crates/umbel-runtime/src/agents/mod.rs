//! Agents: one that thinks with a model, and those that run others.

mod agent_fn;
mod group;
mod llm_agent;
mod loop_agent;
mod parallel;
mod sequential;

use std::sync::Arc;

use futures::TryFutureExt;
use tracing::Instrument;
use umbel_core::{AgentCallback, AgentCallbacks, Content, Context, Error, NodeId, Result, Run};

pub use self::agent_fn::{AgentFn, agent_fn};
pub use self::llm_agent::{IncludeContents, InstructionProvider, LlmAgent};
pub use self::loop_agent::LoopAgent;
pub use self::parallel::Parallel;
pub use self::sequential::Sequential;

use crate::spans;
use crate::team::{Team, resolve_transfer};

/// Runs the agent at the run's place, and those that it hands over to, until one keeps the word.
///
/// An error comes with the place of the agent that failed, unless it was the handing over that did.
pub(crate) async fn run_agent(run: &Run) -> Result<(), (Error, Option<NodeId>)> {
    let mut here = run.clone();
    loop {
        let failed = |error| (error, Some(here.node_id()));
        let span = spans::agent(&here);
        let worked = noted(run_one(&here)).instrument(span.clone()).await.map_err(failed)?;
        let Some(next) = here.take_transfer() else {
            if worked {
                noted(finish_one(&here)).instrument(span).await.map_err(failed)?;
            }
            break;
        };
        if here.is_top() && here.is_paused() {
            // An answer is awaited. The other agent takes over with what the user says next.
            break;
        }
        let node = resolve_transfer(here.tree(), here.node_id(), &next).map_err(|error| (error, None))?;
        let next = here.hand_over(node).map_err(failed)?;
        // Below another agent, the work of the one that goes on is part of this one's.
        if !here.is_top() && has_after(&here).map_err(failed)? {
            Box::pin(run_agent(&next)).await?;
            noted(finish_one(&here)).instrument(span).await.map_err(failed)?;
            break;
        }
        here = next;
    }
    if here.is_top() { Ok(()) } else { here.flush().await.map_err(|error| (error, Some(here.node_id()))) }
}

/// Runs a sub-agent of the run's agent, by name, and waits until it is done. For agents of your own.
pub async fn run_sub_agent(run: &Run, name: &str) -> Result<()> {
    let children = &run.node()?.children;
    let found = run.tree().find(name).filter(|node| children.contains(node));
    let node = found.ok_or_else(|| {
        let message = format!("`{}` has no sub-agent named `{name}`", run.agent_name());
        Error::new(umbel_core::ErrorKind::AgentNotFound, message)
    })?;
    run_child(&run.enter(node)?).await
}

/// Runs the agent at the run's place, below another one.
pub(crate) async fn run_child(run: &Run) -> Result<()> {
    // Boxed, since agents hold agents.
    Box::pin(run_agent(run)).await.map_err(|(error, _)| error)
}

/// The work with its failure noted in the span.
fn noted<T>(work: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    work.inspect_err(|error| spans::record_error(error.kind().code()))
}

/// One agent with what is called before it. Gives whether it worked: if it was answered in its place, what comes
/// after it does not come.
async fn run_one(run: &Run) -> Result<bool> {
    let agent = run.node()?.agent.clone();
    if around(run, &*Team::of(run)?, Hook::Before, agent.callbacks()).await? {
        return Ok(false);
    }
    agent.run(run).await?;
    Ok(true)
}

/// What is called after an agent worked.
async fn finish_one(run: &Run) -> Result<()> {
    let agent = &run.node()?.agent;
    around(run, &*Team::of(run)?, Hook::After, agent.callbacks()).await.map(|_| ())
}

/// Whether anything is called after this agent.
fn has_after(run: &Run) -> Result<bool> {
    let own = run.node()?.agent.callbacks().is_some_and(|own| !own.after.is_empty());
    Ok(own || Team::of(run)?.extras.plugins.iter().any(|plugin| !plugin.agent.after.is_empty()))
}

#[derive(Clone, Copy)]
enum Hook {
    Before,
    After,
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before_agent",
            Self::After => "after_agent",
        }
    }

    fn of(self, callbacks: &AgentCallbacks) -> &[AgentCallback] {
        match self {
            Self::Before => &callbacks.before,
            Self::After => &callbacks.after,
        }
    }
}

/// Calls plugins, then the agent's own; the first content counts and is emitted, with the state that was written.
///
/// Gives whether there was a content.
async fn around(run: &Run, team: &Team, hook: Hook, own: Option<&AgentCallbacks>) -> Result<bool> {
    let plugins = &team.extras.plugins;
    let own = own.map(|own| hook.of(own)).unwrap_or_default();
    if own.is_empty() && plugins.iter().all(|plugin| hook.of(&plugin.agent).is_empty()) {
        return Ok(false);
    }
    // Boxed, so that agents without callbacks do not carry their state around.
    Box::pin(call_back(run, plugins, hook, own)).await
}

async fn call_back(
    run: &Run,
    plugins: &[Arc<crate::Plugin>],
    hook: Hook,
    own: &[AgentCallback],
) -> Result<bool> {
    let cx = Context::new(run.clone());
    let content = first_content(&cx, plugins, hook, own).await?;
    let actions = cx.take_actions();
    let answered = content.is_some();
    if answered || actions.is_some() {
        let mut event = run.event();
        event.actions = actions;
        event.content = content.map(Arc::new);
        if let Hook::Before = hook {
            run.node()?.agent.on_answered(&mut event)?;
        }
        run.emit(event).await?;
    }
    Ok(answered)
}

async fn first_content(
    cx: &Context,
    plugins: &[Arc<crate::Plugin>],
    hook: Hook,
    own: &[AgentCallback],
) -> Result<Option<Content>> {
    for plugin in plugins {
        for callback in hook.of(&plugin.agent) {
            let given = callback(cx).await.map_err(|error| plugin.named(hook.name(), error))?;
            if given.is_some() {
                return Ok(given);
            }
        }
    }
    for callback in own {
        let given = callback(cx).await?;
        if given.is_some() {
            return Ok(given);
        }
    }
    Ok(None)
}
