//! Rules 6 to 9: every response stands right behind its call.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use smol_str::SmolStr;
use umbel_core::event::USER;
use umbel_core::{CallId, FunctionCall, FunctionResponse, Part, Role};

use super::item::{Item, Kind, known};

/// Rule 6: a response without an earlier call goes; without ids, calls and responses match by name.
pub(crate) fn drop_orphan_responses(items: Vec<Item>) -> Vec<Item> {
    let mut ids: HashSet<CallId> = HashSet::new();
    let mut names: HashSet<SmolStr> = HashSet::new();
    let mut result = Vec::with_capacity(items.len());
    for item in items {
        let has_call = |response: &FunctionResponse| match known(&response.id) {
            Some(id) => ids.contains(id),
            None => !response.name.is_empty() && names.contains(&response.name),
        };
        result.extend(item.keep_parts(|part| part.as_response().is_none_or(has_call)));
        for call in item.calls() {
            match known(&call.id) {
                Some(id) => ids.insert(id.clone()),
                None => names.insert(call.name.clone()),
            };
        }
    }
    result
}

/// Whether a response belongs to a call: by id, or by name if neither has one.
pub(crate) fn answers(response: &FunctionResponse, call: &FunctionCall) -> bool {
    match (known(&response.id), known(&call.id)) {
        (Some(response), Some(call)) => response == call,
        (None, None) => !response.name.is_empty() && response.name == call.name,
        _ => false,
    }
}

/// The nearest item before `end` that holds the call of this response.
fn owner(items: &[Item], end: usize, response: &FunctionResponse) -> Option<usize> {
    items.get(..end)?.iter().rposition(|item| item.calls().any(|call| answers(response, call)))
}

/// The parts of the last item by the call item that they belong to, if that is not just the one before it.
pub(crate) fn late_answers(items: &[Item]) -> Option<BTreeMap<usize, Vec<Part>>> {
    let (last, rest) = items.split_last().filter(|(last, _)| last.has_responses())?;
    let mut by_call: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
    let mut other: Vec<Part> = Vec::new();
    for part in last.parts() {
        match part.as_response() {
            None => other.push(part.clone()),
            Some(response) => {
                if let Some(call) = owner(items, rest.len(), response) {
                    by_call.entry(call).or_default().push(part.clone());
                }
            }
        }
    }
    let only = by_call.len() == 1;
    let mut newest = by_call.last_entry()?;
    if only && newest.key() + 1 == rest.len() {
        return None;
    }
    newest.get_mut().extend(other);
    Some(by_call)
}

/// Rule 7: if the last item answers earlier calls, what stands between is out of date and goes.
pub(crate) fn settle_latest(items: Vec<Item>) -> Vec<Item> {
    let Some(late) = late_answers(&items) else { return items };
    let Some(newest) = late.keys().next_back() else { return items };
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate().take(newest + 1) {
        // Earlier answers to these calls are part of the merged ones.
        let stays = |part: &Part| {
            let call = part.as_response().and_then(|response| owner(&items, index, response));
            call.is_none_or(|call| !late.contains_key(&call))
        };
        if !item.has_responses() {
            result.push(item.clone());
        } else if let Some(kept) =
            item.keep_parts(stays).filter(|kept| kept.has_calls() || kept.has_responses())
        {
            result.push(kept);
        }
        if let Some(parts) = late.get(&index) {
            result.extend(merged_answer(&items, index, parts));
        }
    }
    result
}

/// All answers to the calls at `call`: those in between, then the last item's share.
fn merged_answer(items: &[Item], call: usize, share: &[Part]) -> Option<Item> {
    let (last, rest) = items.split_last()?;
    let mut answers: Vec<Item> = Vec::new();
    for (index, item) in rest.iter().enumerate().skip(call + 1).filter(|(_, item)| item.has_responses()) {
        let is_call = item.has_calls();
        let is_ours = |part: &Part| match part.as_response() {
            Some(response) => owner(items, index, response) == Some(call),
            None => !is_call,
        };
        answers.extend(item.keep_parts(is_ours).filter(Item::has_responses));
    }
    answers.push(last.with_parts(share.iter().cloned()));
    merge(&answers)
}

/// Several answers as one: a later one replaces an earlier one of the same id, other parts are added.
fn merge(answers: &[Item]) -> Option<Item> {
    let (first, later) = answers.split_first()?;
    if later.is_empty() {
        return Some(first.clone());
    }
    let mut parts: Vec<Part> = first.parts().to_vec();
    // Within the first answer every part stays, even if ids repeat.
    let mut places: HashMap<Option<&CallId>, usize> = HashMap::new();
    for (place, part) in first.parts().iter().enumerate() {
        places.extend(part.as_response().map(|response| (response.id.as_ref(), place)));
    }
    for part in later.iter().flat_map(Item::parts) {
        let id = part.as_response().map(|response| response.id.as_ref());
        match id.and_then(|id| places.get(&id)).and_then(|place| parts.get_mut(*place)) {
            Some(earlier) => *earlier = part.clone(),
            None => {
                places.extend(id.map(|id| (id, parts.len())));
                parts.push(part.clone());
            }
        }
    }
    Some(first.with_parts(parts))
}

/// Which items answer which call: the id and the item of the call, then the items of its responses.
type Answers = BTreeMap<(Option<CallId>, usize), Vec<usize>>;

fn attribute(items: &[Item]) -> Answers {
    let mut calls: HashMap<Option<&CallId>, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate().filter(|(_, item)| !item.has_responses()) {
        for call in item.calls() {
            calls.entry(call.id.as_ref()).or_default().push(index);
        }
    }
    let mut answers = Answers::new();
    for (index, item) in items.iter().enumerate() {
        for response in item.responses() {
            let Some(places) = calls.get(&response.id.as_ref()) else { continue };
            // The nearest call before it; should there be none, the first one behind it.
            let before = places.partition_point(|place| *place < index);
            if let Some(place) = places.get(before.saturating_sub(1)) {
                answers.entry((response.id.clone(), *place)).or_default().push(index);
            }
        }
    }
    answers
}

/// Rule 8: a call is followed by its last answer, wherever that came.
pub(crate) fn settle_history(items: Vec<Item>, agent: &str) -> Vec<Item> {
    if !items.iter().any(Item::has_responses) {
        return items;
    }
    let answers = attribute(&items);
    let stale = stale_replies(&items, &answers, agent);
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if stale.contains(&index) || item.has_responses() {
            continue;
        }
        result.push(item.clone());
        let last = item.calls().filter_map(|call| answers.get(&(call.id.clone(), index))?.last());
        let last: BTreeSet<usize> = last.copied().collect();
        let found: Vec<Item> = last.into_iter().filter_map(|index| items.get(index)).cloned().collect();
        result.extend(merge(&found));
    }
    result
}

/// Replies that the model gave between two updates of one call, in one run: the later update makes them stale.
fn stale_replies(items: &[Item], answers: &Answers, agent: &str) -> HashSet<usize> {
    let mut stale = HashSet::new();
    for updates in answers.values() {
        for (first, second) in updates.iter().zip(updates.iter().skip(1)) {
            let (Some(before), Some(after)) = (items.get(*first), items.get(*second)) else { continue };
            if before.event.run != after.event.run
                || before.author(agent) != after.author(agent)
                || asks(before)
            {
                continue;
            }
            let between = first + 1..*second;
            let is_reply = |index: usize| items.get(index).is_some_and(|item| is_reply(item, before, agent));
            if between.clone().all(is_reply) {
                stale.extend(between);
            }
        }
    }
    stale
}

/// Whether an answer was a question to a person: what the model said then still counts.
fn asks(item: &Item) -> bool {
    item.event.actions.as_ref().is_some_and(|actions| {
        actions.requested_tool_confirmations.as_ref().is_some_and(|asked| !asked.is_empty())
            || actions.requested_auth_configs.as_ref().is_some_and(|asked| !asked.is_empty())
    })
}

fn is_reply(item: &Item, answer: &Item, agent: &str) -> bool {
    item.event.run == answer.event.run
        && item.author(agent) != USER
        && item.content.as_ref().is_some_and(|content| content.role == Some(Role::Model))
        && !item.has_calls()
        && item.event.compaction().is_none()
        && item.parts().iter().any(|part| part.as_text().is_some_and(|text| !text.is_empty()))
}

/// Ids of calls that stay: somebody answered them, or their answer comes later.
pub(crate) fn settled(items: &[Item]) -> HashSet<CallId> {
    let answered = items.iter().flat_map(Item::responses).filter_map(|response| response.id.as_ref());
    let plain = items.iter().filter(|item| item.kind == Kind::Plain);
    let pending = plain.flat_map(|item| item.event.long_running());
    answered.chain(pending).cloned().collect()
}

/// Rule 9: a call that is not settled goes, unless it has no id.
pub(crate) fn drop_orphan_calls(item: &Item, is_settled: impl Fn(&CallId) -> bool) -> Option<Item> {
    item.keep_parts(|part| {
        let id = part.as_call().and_then(|call| known(&call.id));
        id.is_none_or(&is_settled)
    })
}
