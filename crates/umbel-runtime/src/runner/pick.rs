//! Which agent answers the next turn.

use std::sync::Arc;

use umbel_core::{AgentTree, Event, List, Mode, NodeId, Result};

use crate::team::transfer_targets;

/// The agent that answers: the one whose call was just answered, else the one that has the conversation, else the root.
pub(crate) fn pick_agent(tree: &AgentTree, events: &List<Arc<Event>>) -> Result<NodeId> {
    let root = tree.root();
    if tree.ids().nth(1).is_none() {
        return Ok(root);
    }
    if let Some(node) = caller(tree, live(events)) {
        return delegator(tree, node);
    }
    // What agents say for a call, and that they hand the word to each other there, is between them and who made it.
    let is_open = |event: &&Arc<Event>| event.source.isolation_scope.is_none();
    for event in live(events).filter(is_open).filter(|event| speaks(event)) {
        if let Some(target) = handed_over(tree, event)? {
            return Ok(target);
        }
        let Some(node) = tree.find(event.author()) else { continue };
        if node == root {
            return Ok(root);
        }
        if keeps_conversation(tree, node)? {
            return delegator(tree, node);
        }
    }
    Ok(root)
}

/// The uppermost agent at or above a place that runs others by itself, not at a model's wish.
pub(crate) fn workflow_above(tree: &AgentTree, node: NodeId) -> Result<Option<NodeId>> {
    let (mut found, mut here) = (None, Some(node));
    while let Some(id) = here {
        let at = tree.node(id)?;
        if !at.agent.transfer().by_model {
            found = Some(id);
        }
        here = at.parent;
    }
    Ok(found)
}

/// The events that no rewind made void, newest first. Looks no further back than it is asked.
fn live(events: &List<Arc<Event>>) -> impl Iterator<Item = &Arc<Event>> {
    let mut end = events.len();
    std::iter::from_fn(move || {
        loop {
            end = end.checked_sub(1)?;
            let event = events.get(end)?;
            let Some(run) = event.rewinds_to() else { return Some(event) };
            end = events.iter().position(|event| event.run == *run).unwrap_or(end).min(end);
        }
    })
}

/// The agent whose call the last event answers.
fn caller<'a>(tree: &AgentTree, mut events: impl Iterator<Item = &'a Arc<Event>>) -> Option<NodeId> {
    let last = events.next().filter(|event| event.is_user())?;
    let id = last.responses().next()?.id.as_ref()?;
    let event = events.find(|event| event.calls().any(|call| call.id.as_ref() == Some(id)))?;
    tree.find(event.author())
}

/// An agent that works as a tool is spoken to through the one that called it.
fn delegator(tree: &AgentTree, node: NodeId) -> Result<NodeId> {
    let (mut result, mut here) = (node, node);
    while let Some(parent) = tree.node(here)?.parent {
        if tree.node(here)?.agent.transfer().mode != Mode::Chat {
            result = parent;
        }
        here = parent;
    }
    Ok(result)
}

/// Whether an event tells who has the conversation.
fn speaks(event: &Event) -> bool {
    let marks = event
        .actions
        .as_ref()
        .is_some_and(|actions| actions.agent_state.is_some() || actions.end_of_agent == Some(true));
    let silent = event.content.as_ref().is_none_or(|content| content.parts.is_empty());
    let failed = silent && event.error_code().is_some();
    !event.is_user() && !marks && !failed
}

/// The agent that an event handed over to, if it has the conversation since.
fn handed_over(tree: &AgentTree, event: &Event) -> Result<Option<NodeId>> {
    let Some(name) = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.as_ref()) else {
        return Ok(None);
    };
    let (Some(source), Some(target)) = (tree.find(event.author()), tree.find(name)) else { return Ok(None) };
    let allowed = transfer_targets(tree, source)?.contains(&target);
    Ok((allowed && keeps_conversation(tree, target)?).then_some(target))
}

/// Whether an agent can hand back all the way up: only then may it keep the conversation.
fn keeps_conversation(tree: &AgentTree, node: NodeId) -> Result<bool> {
    let mut here = Some(node);
    while let Some(id) = here {
        let node = tree.node(id)?;
        let policy = node.agent.transfer();
        if !policy.by_model || !policy.to_parent {
            return Ok(false);
        }
        here = node.parent;
    }
    Ok(true)
}
