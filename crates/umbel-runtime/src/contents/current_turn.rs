//! Only what belongs to the current turn.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::sync::Arc;

use umbel_core::{CallId, Content, ContentsView, Event, List};

use super::build_from;
use super::item::known;
use super::visible::{call_ids, is_foreign, is_on_branch, is_on_tool_branch, is_visible};

const TRANSFER: &str = "transfer_to_agent";

/// What a model is sent that gets the current turn only.
///
/// The turn begins with the last thing that the user or another agent said. A result that a client sent in is no
/// beginning: it answers a call, so the turn reaches back to before that call.
pub(super) fn build(
    view: &ContentsView,
    events: &List<Arc<Event>>,
    input: Option<&Arc<Content>>,
) -> Vec<Arc<Content>> {
    let view = ContentsView { foreign_thoughts: false, ..view.clone() };
    let concerns = |event: &&Arc<Event>| !view.single_turn || is_on_branch(&view, event);
    // Seldom needed, and the only thing here that reads the whole log.
    let calls = LazyCell::new(|| call_ids(events.iter().filter(concerns)));
    let mut unanswered: HashSet<&CallId> = HashSet::new();
    let mut turn: Vec<Arc<Event>> = Vec::new();
    for event in events.iter().rev().filter(concerns) {
        turn.push(event.clone());
        for id in event.calls().filter_map(|call| known(&call.id)) {
            unanswered.remove(id);
        }
        if event.is_user() && event.responses().next().is_some() {
            let ids = event.responses().filter_map(|response| response.id.as_ref());
            unanswered.extend(ids.filter(|id| calls.contains(*id)));
            continue;
        }
        let begins = (event.is_user() || is_foreign(&view, event)) && !is_transfer(event);
        if begins
            && unanswered.is_empty()
            && is_visible(&view, event)
            && !is_on_tool_branch(&view, event, |id| calls.contains(id))
        {
            turn.reverse();
            return build_from(&view, &turn, input);
        }
    }
    Vec::new()
}

fn is_transfer(event: &Event) -> bool {
    let target = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.as_ref());
    target.is_some_and(|target| !target.is_empty()) || event.calls().any(|call| call.name == TRANSFER)
}
