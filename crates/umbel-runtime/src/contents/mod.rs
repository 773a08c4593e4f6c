//! From the log to what a model is sent.
//!
//! [`build`] does it from scratch, rule by rule; a `Projection` keeps the result and extends
//! it as the log grows. Both must always agree.

pub(crate) mod compaction;
mod current_turn;
mod foreign;
mod item;
pub(crate) mod pairing;
pub(crate) mod projection;
mod request;
#[cfg(test)]
mod tests;
pub(crate) mod visible;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use umbel_core::{CallId, Content, ContentsView, Event, List, Part, Role};

use self::compaction::Frontier;
use self::item::Item;
use self::request::for_request;
pub use self::request::place;
use crate::text;

/// What a model is sent of these events, built from scratch.
///
/// `input` is what the user said in this run; an agent that works under a call gets it if the log does not have
/// the call.
pub fn build(
    view: &ContentsView,
    events: &List<Arc<Event>>,
    input: Option<&Arc<Content>>,
) -> Vec<Arc<Content>> {
    if view.current_turn_only {
        return current_turn::build(view, events, input);
    }
    let events: Vec<Arc<Event>> = events.iter().cloned().collect();
    build_from(view, &events, input)
}

fn build_from(view: &ContentsView, events: &[Arc<Event>], input: Option<&Arc<Content>>) -> Vec<Arc<Content>> {
    let (items, _) = seen(view, events);
    let (items, _) = settle(view, present(view, items));
    contents(view, leading(view, events, input), items).collect()
}

/// Rules 1 to 3: the events that the view sees, with summaries in place of what they cover.
fn seen(view: &ContentsView, events: &[Arc<Event>]) -> (Vec<Item>, Option<Frontier>) {
    let live = visible::apply_rewinds(events);
    let seen = visible::visible(view, &live);
    let seen_events = || seen.iter().filter_map(|position| live.get(*position));
    if seen_events().all(|event| event.compaction().is_none()) {
        return (seen_events().cloned().map(Item::plain).collect(), None);
    }
    let (items, frontier) = compaction::apply(&live, &seen);
    (items, Some(frontier))
}

/// Rules 4 to 6: speech as text, other agents quoted, and no response without a call.
fn present(view: &ContentsView, items: Vec<Item>) -> Vec<Item> {
    pairing::drop_orphan_responses(foreign::present(view, items))
}

/// Rules 7 to 9: responses right behind their calls, and no call but those that are settled. Tells which ones are.
fn settle(view: &ContentsView, items: Vec<Item>) -> (Vec<Item>, HashSet<CallId>) {
    let items = pairing::settle_history(pairing::settle_latest(items), &view.agent);
    let settled = pairing::settled(&items);
    (
        items.iter().filter_map(|item| pairing::drop_orphan_calls(item, |id| settled.contains(id))).collect(),
        settled,
    )
}

/// The messages: the leading one, then what is left of each item.
fn contents(
    view: &ContentsView,
    leading: Option<Arc<Content>>,
    items: Vec<Item>,
) -> impl Iterator<Item = Arc<Content>> {
    let items = items.into_iter().filter_map(|item| item.content);
    leading.into_iter().chain(items.map(|content| for_request(content, view)))
}

/// Rule 11: an agent that works under a call starts from what the call asks of it.
fn leading(view: &ContentsView, events: &[Arc<Event>], input: Option<&Arc<Content>>) -> Option<Arc<Content>> {
    let scope = view.isolation_scope.as_ref()?;
    let mut content = match asked(scope, events) {
        Some(task) => Content::user(Part::text(task)),
        None => {
            let input = input.filter(|input| !input.parts.is_empty())?;
            Content { role: Some(Role::User), parts: input.parts.clone() }
        }
    };
    if view.single_turn {
        content.parts.push(Part::text(text::SINGLE_TURN_NUDGE));
    }
    // Ids in what the user said are the user's business.
    Some(for_request(Arc::new(content), &ContentsView { keep_client_ids: true, ..view.clone() }))
}

/// The arguments of the call under which an agent works.
fn asked(scope: &str, events: &[Arc<Event>]) -> Option<String> {
    let mut calls = events.iter().flat_map(|event| event.calls());
    let args = calls.find_map(|call| {
        let args = call.args.as_ref().filter(|args| !args.is_empty());
        args.filter(|_| call.id.as_ref().is_some_and(|id| id == scope))
    })?;
    Some(Value::Object((**args).clone()).to_string())
}
