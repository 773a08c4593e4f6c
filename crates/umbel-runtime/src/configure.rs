//! What handlers make of an agent when its runner is built.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::onion::named;
use umbel_core::{Agent, AgentPlan, Error, ErrorKind, Guarded, Handler, Hooks, Result, Tool, ToolSet, Work};

/// What a handler changed in a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) handler: SmolStr,
    pub(crate) tools_added: Vec<SmolStr>,
    pub(crate) tools_replaced: Vec<SmolStr>,
    pub(crate) tools_removed: Vec<SmolStr>,
    pub(crate) parts_dropped: Vec<SmolStr>,
}

/// The agent's plan as its handlers leave it. `None` if none has a say.
pub(crate) fn configure(runner: &[Arc<dyn Handler>], agent: &dyn Agent) -> Result<Option<Arc<AgentPlan>>> {
    Ok(configured(runner, agent)?.map(|(plan, _)| Arc::new(plan)))
}

/// The same, with what each of them changed.
pub(crate) fn configured(
    runner: &[Arc<dyn Handler>],
    agent: &dyn Agent,
) -> Result<Option<(AgentPlan, Vec<Change>)>> {
    let own = agent.handlers();
    let handlers = runner.iter().chain(own.legacy).chain(own.handlers);
    check_handlers(handlers.clone()).map_err(|error| {
        Error::new(ErrorKind::Build, format!("agent `{}`: {}", agent.name(), error.message()))
            .with_source(error)
    })?;
    let mut handlers = handlers.filter(|handler| handler.hooks().contains(Hooks::CONFIGURE)).peekable();
    if handlers.peek().is_none() {
        return Ok(None);
    }
    let mut plan = agent.plan();
    let mut changes = Vec::new();
    for handler in handlers {
        let before = plan.clone();
        let asked = Guarded::new(&**handler, "configure", || Work::done(handler.configure(&mut plan)));
        let asked = asked.try_now().unwrap_or(Ok(()));
        asked.map_err(|error| {
            let error = named(&**handler, "configure", error);
            Error::new(ErrorKind::Build, format!("agent `{}`: {}", agent.name(), error.message()))
                .with_source(error)
        })?;
        if own.strict_tools {
            refuse_doubles(&before.tools, &plan.tools).map_err(|error| {
                let message =
                    format!("agent `{}`: handler `{}` {}", agent.name(), handler.name(), error.message());
                Error::new(ErrorKind::Build, message)
            })?;
        }
        changes.push(change(handler.name(), &before, &plan));
    }
    Ok(Some((plan, changes)))
}

/// An error if the options of a handler cannot work together.
pub(crate) fn check_handlers<'a>(handlers: impl IntoIterator<Item = &'a Arc<dyn Handler>>) -> Result<()> {
    for handler in handlers {
        let asked = Guarded::new(&**handler, "check", || Work::done(handler.check()));
        asked.try_now().unwrap_or(Ok(())).map_err(|error| named(&**handler, "check", error))?;
    }
    Ok(())
}

/// An error if a handler added a tool whose name was taken.
pub(crate) fn refuse_doubles(before: &ToolSet, after: &ToolSet) -> Result<()> {
    let Some(tool) = replaced(before, after).next() else { return Ok(()) };
    let message = format!(
        "adds a tool `{tool}`, but there is one of that name: rename it, or do without `strict_tools`"
    );
    Err(Error::new(ErrorKind::Handler, message))
}

/// Names under which there is another tool than before.
fn replaced<'a>(before: &'a ToolSet, after: &'a ToolSet) -> impl Iterator<Item = &'a SmolStr> {
    let named = after.iter().map(|meta| (&meta.tool.spec().name, &meta.tool));
    let is_other = |(name, tool): &(&SmolStr, &Arc<dyn Tool>)| {
        before.get(name).is_some_and(|old| !Arc::ptr_eq(&old.tool, tool))
    };
    named.filter(is_other).map(|(name, _)| name)
}

fn change(handler: &str, before: &AgentPlan, after: &AgentPlan) -> Change {
    let name = |meta: &umbel_core::ToolMeta| meta.tool.spec().name.clone();
    let has = |tools: &ToolSet, meta: &umbel_core::ToolMeta| tools.get(&meta.tool.spec().name).is_some();
    let (tools, old) = (&after.tools, &before.tools);
    let kept = |source: &SmolStr| after.instruction.parts().iter().any(|part| part.source == *source);
    let sources = before.instruction.parts().iter().map(|part| part.source.clone());
    Change {
        handler: handler.into(),
        tools_added: tools.iter().filter(|meta| !has(old, meta)).map(name).collect(),
        tools_replaced: replaced(old, tools).cloned().collect(),
        tools_removed: old.iter().filter(|meta| !has(tools, meta)).map(name).collect(),
        parts_dropped: sources.filter(|source| !kept(source)).collect(),
    }
}
