//! Only what belongs to the current turn.

use std::collections::HashSet;
use std::sync::Arc;

use umbel_core::{CallId, Content, ContentsView, Event};

use super::build_from;
use super::visible::{call_ids, is_foreign, is_visible, on_tool_branch};

const TRANSFER: &str = "transfer_to_agent";

/// What a model is sent that gets the current turn only.
///
/// The turn begins with the last thing that the user or another agent said. A result that a client sent in is no
/// beginning: it answers a call, so the turn reaches back to before that call.
pub(super) fn build(view: &ContentsView, events: &[Arc<Event>], input: Option<&Arc<Content>>) -> Vec<Arc<Content>> {
    let calls = call_ids(events);
    let mut unanswered: HashSet<CallId> = HashSet::new();
    for (index, event) in events.iter().enumerate().rev() {
        for id in event.calls().filter_map(|call| call.id.as_ref()) {
            unanswered.remove(id);
        }
        let submitted = event.is_user() && event.responses().next().is_some();
        if submitted {
            let ids = event.responses().filter_map(|response| response.id.clone());
            unanswered.extend(ids.filter(|id| calls.contains(id)));
        }
        let begins = (event.is_user() || is_foreign(view, event)) && !submitted && !is_transfer(event);
        let quoted = ContentsView { foreign_thoughts: false, ..view.clone() };
        if unanswered.is_empty() && begins && is_visible(&quoted, event) && !on_tool_branch(view, event, &calls) {
            return build_from(&quoted, events.get(index..).unwrap_or_default(), input);
        }
    }
    Vec::new()
}

fn is_transfer(event: &Event) -> bool {
    event.actions.as_ref().is_some_and(|actions| actions.transfer_to_agent.is_some())
        || event.calls().any(|call| call.name == TRANSFER)
}
