//! From the log to what a model is sent.
//!
//! [`build`] does it from scratch, rule by rule; a [`Projection`](projection::Projection) keeps the result and extends
//! it as the log grows. Both must always agree.

mod compaction;
mod current_turn;
mod foreign;
mod item;
mod pairing;
pub(crate) mod projection;
pub(crate) mod visible;

use std::sync::Arc;

use serde_json::Value;
use umbel_core::{CallId, Content, ContentsView, Event, History, List, Part, Payload, Role};

use self::compaction::Coverage;
use self::item::Item;
use crate::text;

/// What a model is sent of these events, built from scratch.
///
/// `input` is what the user said in this run; an agent that works under a call gets it if the log does not have
/// the call.
pub fn build(view: &ContentsView, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) -> Vec<Arc<Content>> {
    let events: Vec<Arc<Event>> = events.iter().cloned().collect();
    if view.current_turn_only {
        return current_turn::build(view, &events, input);
    }
    build_from(view, &events, input)
}

fn build_from(view: &ContentsView, events: &[Arc<Event>], input: Option<&Arc<Content>>) -> Vec<Arc<Content>> {
    let (items, _) = seen(view, events);
    let mut contents: Vec<Arc<Content>> = leading(view, events, input).into_iter().collect();
    contents.extend(arrange(view, items));
    contents
}

/// Rules 1 to 3: the events that the view sees, with summaries in place of what they cover.
fn seen(view: &ContentsView, events: &[Arc<Event>]) -> (Vec<Item>, Coverage) {
    let live = visible::apply_rewinds(events);
    let calls = live
        .iter()
        .any(|event| visible::sub_branch(view, event).is_some())
        .then(|| visible::call_ids(&live))
        .unwrap_or_default();
    let seen = live.into_iter().filter(|event| visible::is_visible(view, event));
    let seen: Vec<Arc<Event>> = seen.filter(|event| !visible::on_tool_branch(view, event, &calls)).collect();
    if seen.iter().any(|event| event.compaction().is_some()) {
        compaction::apply(&seen)
    } else {
        (seen.into_iter().map(Item::plain).collect(), Coverage::default())
    }
}

/// Rules 4 to 10: from what is seen to messages.
fn arrange(view: &ContentsView, items: Vec<Item>) -> Vec<Arc<Content>> {
    let items = foreign::present(view, items);
    let items = pairing::drop_orphan_responses(items);
    let items = pairing::settle_latest(items);
    let items = pairing::settle_history(items, &view.agent);
    let items = pairing::drop_orphan_calls(items);
    items.into_iter().filter_map(|item| item.content).map(|content| for_request(content, view)).collect()
}

/// Rule 10: ids that the flow minted mean nothing to most models.
fn for_request(content: Arc<Content>, view: &ContentsView) -> Arc<Content> {
    let minted = |part: &Part| {
        let id = match &part.payload {
            Payload::Call(call) => call.id.as_ref(),
            Payload::Response(response) => response.id.as_ref(),
            _ => None,
        };
        id.is_some_and(CallId::is_client)
    };
    if view.keep_client_ids || !content.parts.iter().any(minted) {
        return content;
    }
    let mut content = Arc::unwrap_or_clone(content);
    for part in content.parts.iter_mut().filter(|part| minted(part)) {
        match &mut part.payload {
            Payload::Call(call) => call.id = None,
            Payload::Response(response) => response.id = None,
            _ => {}
        }
    }
    Arc::new(content)
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
    Some(Arc::new(content))
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

/// Puts words that only this request has where they belong: context before what the user said, and what the turn
/// adds before the last plain messages of the user.
pub fn place(
    history: &mut History,
    context: &[Arc<Content>],
    input: Option<&Arc<Content>>,
    turn: &[Arc<Content>],
) {
    if !context.is_empty() {
        let same = |content: &Arc<Content>| input.is_some_and(|input| content == input);
        let back = history.iter().rev().position(same);
        let at = back.map_or(0, |back| history.len() - 1 - back);
        history.insert(at, context.iter().cloned());
    }
    if !turn.is_empty() {
        history.insert(history.turn_start(), turn.iter().cloned());
    }
}
