//! Rules 6 to 9: every response stands right behind its call.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use smol_str::SmolStr;
use umbel_core::{CallId, FunctionResponse, Part, Role};

use super::item::Item;

/// Rule 6: a response without an earlier call goes; without ids, calls and responses match by name.
pub(crate) fn drop_orphan_responses(items: Vec<Item>) -> Vec<Item> {
    let mut ids: HashSet<CallId> = HashSet::new();
    let mut names: HashSet<SmolStr> = HashSet::new();
    let mut result = Vec::with_capacity(items.len());
    for item in items {
        let matched = |response: &FunctionResponse| match &response.id {
            Some(id) if !id.is_empty() => ids.contains(id),
            _ => !response.name.is_empty() && names.contains(&response.name),
        };
        let orphan = |part: &Part| part.as_response().is_some_and(|response| !matched(response));
        let kept = keep_parts(&item, |part| !orphan(part));
        for call in item.calls() {
            match &call.id {
                Some(id) if !id.is_empty() => ids.insert(id.clone()),
                _ => names.insert(call.name.clone()),
            };
        }
        result.extend(kept);
    }
    result
}

/// The item with the parts that `keep` says yes to; `None` if it had some and none is left.
fn keep_parts(item: &Item, keep: impl Fn(&Part) -> bool) -> Option<Item> {
    let parts = item.parts();
    if parts.iter().all(&keep) {
        return Some(item.clone());
    }
    let kept: Vec<Part> = parts.iter().filter(|part| keep(part)).cloned().collect();
    (!kept.is_empty()).then(|| item.with_parts(kept))
}

/// The nearest item before `end` that holds the call of this response.
fn owner(items: &[Item], end: usize, response: &FunctionResponse) -> Option<usize> {
    let has_id = response.id.as_ref().is_some_and(|id| !id.is_empty());
    items.get(..end)?.iter().rposition(|item| {
        item.calls().any(|call| {
            let idless = call.id.as_ref().is_none_or(CallId::is_empty);
            if has_id {
                call.id == response.id
            } else {
                idless && !response.name.is_empty() && call.name == response.name
            }
        })
    })
}

/// Rule 7: if the last item answers earlier calls, what stands between is out of date and goes.
pub(crate) fn settle_latest(items: Vec<Item>) -> Vec<Item> {
    let Some(last) = items.len().checked_sub(1).filter(|last| *last > 0) else { return items };
    let Some(trailing) = items.last().filter(|item| item.has_responses()) else { return items };
    let mut by_call: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
    let mut other: Vec<Part> = Vec::new();
    for part in trailing.parts() {
        match part.as_response() {
            None => other.push(part.clone()),
            Some(response) => {
                if let Some(call) = owner(&items, last, response) {
                    by_call.entry(call).or_default().push(part.clone());
                }
            }
        }
    }
    let Some(newest) = by_call.keys().next_back().copied() else { return items };
    if newest + 1 == last && by_call.len() == 1 {
        return items;
    }
    by_call.entry(newest).or_default().extend(other);
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate().take(newest + 1) {
        let mut kept = Some(item.clone());
        if item.has_responses() {
            // Earlier answers to these calls are part of the merged ones.
            let keep = |part: &Part| {
                part.as_response()
                    .is_none_or(|response| owner(&items, index, response).is_none_or(|call| !by_call.contains_key(&call)))
            };
            kept = keep_parts(item, keep).filter(|item| item.has_responses() || item.has_calls());
        }
        let Some(kept) = kept else { continue };
        result.push(kept);
        if let Some(parts) = by_call.get(&index) {
            result.push(merged_answer(&items, index, parts));
        }
    }
    result
}

/// All answers to the calls at `call`: those in between, then the last item's share.
fn merged_answer(items: &[Item], call: usize, parts: &[Part]) -> Item {
    let between = items.iter().enumerate().skip(call + 1).take(items.len().saturating_sub(call + 2));
    let mut answers: Vec<Item> = Vec::new();
    for (index, item) in between {
        if !item.has_responses() {
            continue;
        }
        let is_call = item.has_calls();
        let ours = |part: &Part| match part.as_response() {
            Some(response) => owner(items, index, response) == Some(call),
            None => !is_call,
        };
        answers.extend(keep_parts(item, ours).filter(Item::has_responses));
    }
    answers.extend(items.last().map(|trailing| trailing.with_parts(parts.iter().cloned())));
    merge(&answers)
}

/// Several answers as one: a later one replaces an earlier one of the same id, other parts are added.
fn merge(answers: &[Item]) -> Item {
    let mut parts: Vec<Part> = Vec::new();
    let mut places: HashMap<Option<&CallId>, usize> = HashMap::new();
    for (number, answer) in answers.iter().enumerate() {
        for part in answer.parts() {
            let Some(response) = part.as_response() else {
                parts.push(part.clone());
                continue;
            };
            let id = response.id.as_ref();
            // Within the first answer every part stays, even if ids repeat.
            match places.get(&id).and_then(|place| parts.get_mut(*place)).filter(|_| number > 0) {
                Some(place) => *place = part.clone(),
                None => {
                    places.insert(id, parts.len());
                    parts.push(part.clone());
                }
            }
        }
    }
    answers.first().map_or_else(
        || Item { event: std::sync::Arc::default(), content: None, kind: super::item::Kind::Plain },
        |first| first.with_parts(parts),
    )
}

/// Which items answer which call: the id and the item of the call, then the items of its responses.
type Answers = BTreeMap<(Option<CallId>, usize), Vec<usize>>;

fn answers(items: &[Item]) -> Answers {
    let mut calls: HashMap<Option<CallId>, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate().filter(|(_, item)| !item.has_responses()) {
        for call in item.calls() {
            calls.entry(call.id.clone()).or_default().push(index);
        }
    }
    let mut answers = Answers::new();
    for (index, item) in items.iter().enumerate() {
        for response in item.responses() {
            let Some(places) = calls.get(&response.id) else { continue };
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
    let answers = answers(&items);
    let stale = stale_replies(&items, &answers, agent);
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if stale.contains(&index) || item.has_responses() {
            continue;
        }
        result.push(item.clone());
        let last = item.calls().filter_map(|call| answers.get(&(call.id.clone(), index))?.last().copied());
        let last: BTreeSet<usize> = last.collect();
        let found: Vec<Item> = last.iter().filter_map(|index| items.get(*index)).cloned().collect();
        match found.as_slice() {
            [] => {}
            [only] => result.push(only.clone()),
            several => result.push(merge(several)),
        }
    }
    result
}

/// Replies that the model gave between two updates of one call, in one run: the later update makes them stale.
fn stale_replies(items: &[Item], answers: &Answers, agent: &str) -> HashSet<usize> {
    let mut stale = HashSet::new();
    for updates in answers.values() {
        for pair in updates.windows(2) {
            let [first, second] = pair else { continue };
            let (Some(before), Some(after)) = (items.get(*first), items.get(*second)) else { continue };
            if before.event.run != after.event.run || before.author(agent) != after.author(agent) || asks(before) {
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
        && item.author(agent) != umbel_core::event::USER
        && item.content.as_ref().is_some_and(|content| content.role == Some(Role::Model))
        && !item.has_calls()
        && item.event.compaction().is_none()
        && item.parts().iter().any(|part| part.as_text().is_some_and(|text| !text.is_empty()))
}

/// Rule 9: a call that nobody answered goes, unless its answer comes later or it has no id.
pub(crate) fn drop_orphan_calls(items: Vec<Item>) -> Vec<Item> {
    if !items.iter().any(Item::has_calls) {
        return items;
    }
    let answered: HashSet<CallId> =
        items.iter().flat_map(Item::responses).filter_map(|response| response.id.clone()).collect();
    let pending: HashSet<CallId> = items
        .iter()
        .filter(|item| item.kind != super::item::Kind::Quoted)
        .flat_map(|item| item.event.long_running().iter().cloned())
        .collect();
    let keep = |part: &Part| {
        let id = part.as_call().and_then(|call| call.id.as_ref()).filter(|id| !id.is_empty());
        id.is_none_or(|id| answered.contains(id) || pending.contains(id))
    };
    items.iter().filter_map(|item| keep_parts(item, keep)).collect()
}
