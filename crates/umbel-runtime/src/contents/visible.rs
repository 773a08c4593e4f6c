//! Rules 1 and 2: which events a view sees at all.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use umbel_core::{CallId, ContentsView, Event, Part, Payload, RunId};

use super::item::known;

/// Names of calls by which the flow talks with the client; models never see them.
pub(crate) use umbel_core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
const FRAMEWORK: &str = "adk_framework";

/// The positions of the events that the view sees, among those that no rewind made void: no rule hides them.
pub(crate) fn visible(view: &ContentsView, live: &[Arc<Event>]) -> Vec<usize> {
    let calls = LazyCell::new(|| call_ids(live));
    let on_tool_branch = |event: &Event| is_on_tool_branch(view, event, |id| calls.contains(id));
    let is_seen = |event: &Event| is_visible(view, event) && !on_tool_branch(event);
    live.iter().enumerate().filter(|(_, event)| is_seen(event)).map(|(position, _)| position).collect()
}

/// The events that no rewind made void.
pub(crate) fn apply_rewinds(events: &[Arc<Event>]) -> Vec<Arc<Event>> {
    if events.iter().all(|event| event.rewinds_to().is_none()) {
        return events.to_vec();
    }
    let mut first: HashMap<&RunId, usize> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        first.entry(&event.run).or_insert(index);
    }
    let mut kept = Vec::new();
    let mut end = events.len();
    while let Some(event) = end.checked_sub(1).and_then(|last| events.get(last)) {
        end -= 1;
        match event.rewinds_to() {
            None => kept.push(event.clone()),
            Some(run) => end = first.get(run).copied().filter(|start| *start < end).unwrap_or(end),
        }
    }
    kept.reverse();
    kept
}

/// The ids of all calls.
pub(crate) fn call_ids<'a>(events: impl IntoIterator<Item = &'a Arc<Event>>) -> HashSet<CallId> {
    events.into_iter().flat_map(|event| event.calls()).filter_map(|call| known(&call.id).cloned()).collect()
}

/// Whether the view sees this event, as far as the event alone tells: see [`is_on_tool_branch`] for the rest.
pub(crate) fn is_visible(view: &ContentsView, event: &Event) -> bool {
    event.source.isolation_scope == view.isolation_scope
        && !is_of_other_node(event)
        && !is_empty(event, view.foreign_thoughts && is_foreign(view, event))
        && is_on_branch(view, event)
        && !is_framework(event)
}

/// Whether another agent speaks. In a spoken conversation even the agent's own words are quoted to it.
pub(crate) fn is_foreign(view: &ContentsView, event: &Event) -> bool {
    if event.is_user() {
        return false;
    }
    let live = event.meta.as_ref().and_then(|meta| meta.live_session_id.as_ref());
    live.is_some_and(|id| !id.is_empty()) || (!view.agent.is_empty() && event.author() != view.agent)
}

/// What a user said to one node of a workflow graph is for that node only.
fn is_of_other_node(event: &Event) -> bool {
    let info = event.meta.as_ref().and_then(|meta| meta.node_info.as_ref());
    let path = info.and_then(|info| info.get("path")).and_then(Value::as_str);
    path.is_some_and(|path| !path.is_empty()) && event.is_user() && event.responses().next().is_none()
}

fn is_empty(event: &Event, with_thoughts: bool) -> bool {
    if event.compaction().is_some() {
        return false;
    }
    let said = event.content.as_ref().is_some_and(|content| {
        content.role.as_ref().is_some_and(|role| !role.as_str().is_empty())
            && content.parts.iter().any(|part| is_part_visible(part, with_thoughts))
    });
    !said && !has_transcription(event)
}

pub(crate) fn has_transcription(event: &Event) -> bool {
    event
        .meta
        .as_ref()
        .is_some_and(|meta| meta.input_transcription.is_some() || meta.output_transcription.is_some())
}

fn is_part_visible(part: &Part, with_thoughts: bool) -> bool {
    if matches!(part.payload, Payload::Call(_) | Payload::Response(_))
        || part.signature().is_some_and(|signature| !signature.is_empty())
        || part.is_server_tool()
    {
        return true;
    }
    if part.is_thought() && !with_thoughts {
        return false;
    }
    match &part.payload {
        Payload::Text(text) => !text.is_empty(),
        Payload::Empty => false,
        _ => true,
    }
}

/// Whether an event stands on the view's branch or on one that it grew from, segment by segment.
pub(crate) fn is_on_branch(view: &ContentsView, event: &Event) -> bool {
    match (view.branch.as_deref(), event.branch()) {
        (None | Some(""), _) | (_, None | Some("")) => true,
        (Some(view), Some(event)) => {
            view.strip_prefix(event).is_some_and(|below| below.is_empty() || below.starts_with('.'))
        }
    }
}

fn is_framework(event: &Event) -> bool {
    let Some(content) = &event.content else { return false };
    content.parts.iter().any(|part| {
        let name = match &part.payload {
            Payload::Call(call) => &call.name,
            Payload::Response(response) => &response.name,
            _ => return false,
        };
        [REQUEST_CREDENTIAL, REQUEST_CONFIRMATION, FRAMEWORK].contains(&name.as_str())
    })
}

/// The calls on whose branches `tool@call` an event may stand.
///
/// Only a view from the trunk has to ask: any other does not see what is below its branch anyway.
pub(crate) fn tool_branches<'a>(view: &ContentsView, event: &'a Event) -> impl Iterator<Item = &'a str> {
    let from_trunk = view.branch.as_ref().is_none_or(|branch| branch.is_empty());
    let segments = event.branch().filter(|_| from_trunk).into_iter().flat_map(|branch| branch.split('.'));
    segments
        .filter_map(|segment| segment.rsplit_once('@').filter(|(name, _)| *name != view.agent))
        .map(|(_, id)| id)
}

/// Whether an event is news of a tool, published on a branch of its own: for people only.
pub(crate) fn is_on_tool_branch(view: &ContentsView, event: &Event, is_call: impl Fn(&str) -> bool) -> bool {
    tool_branches(view, event).any(is_call)
}
