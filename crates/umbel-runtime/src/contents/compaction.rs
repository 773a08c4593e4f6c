//! Rule 3: summaries take the place of what they cover.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use umbel_core::{CallId, Event};

use super::item::{Item, Kind, known};

/// A summary: the stretch of time that it covers, and the place of its event.
#[derive(Clone, Copy)]
struct Range {
    index: usize,
    start: f64,
    end: f64,
}

/// The summaries that no other one contains, by time; of equal ones the latest.
fn surviving(events: &[Arc<Event>]) -> Vec<Range> {
    let ranges = events.iter().enumerate().filter_map(|(index, event)| {
        let compaction = event.compaction()?;
        compaction.compacted_content.as_ref()?;
        Some(Range { index, start: compaction.start_timestamp?, end: compaction.end_timestamp? })
    });
    let mut ranges: Vec<_> = ranges.collect();
    // A containing range sorts before what it contains, so one running maximum is enough.
    ranges.sort_by(|a, b| {
        a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)).then(b.index.cmp(&a.index))
    });
    let mut furthest = f64::NEG_INFINITY;
    ranges.retain(|range| {
        let survives = range.end > furthest;
        furthest = furthest.max(range.end);
        survives
    });
    ranges
}

/// Whether one of the surviving ranges covers a moment.
fn covers(ranges: &[Range], time: f64) -> bool {
    // Of those that begin before it, the last one ends last.
    let begun = ranges.partition_point(|range| range.start <= time);
    begun.checked_sub(1).and_then(|last| ranges.get(last)).is_some_and(|range| time <= range.end)
}

/// From where on an event just adds to a log with summaries.
#[derive(Debug)]
pub(crate) struct Frontier {
    /// The last covered moment.
    covered: f64,
    /// When the last item took place.
    last: f64,
    /// Calls that no item shows any more; an answer would bring them back.
    lost: HashSet<CallId>,
}

impl Frontier {
    /// Whether the event stands behind everything else and brings nothing back.
    pub(crate) fn admits(&mut self, event: &Event) -> bool {
        let is_behind = event.timestamp > self.covered && event.timestamp >= self.last;
        self.last = event.timestamp;
        for id in event.calls().filter_map(|call| known(&call.id)) {
            self.lost.remove(id);
        }
        is_behind
            && !event.responses().filter_map(|response| response.id.as_ref()).any(|id| self.lost.contains(id))
    }
}

/// Puts summaries in place of what they cover, in order of time, and brings back calls that are still needed.
pub(crate) fn apply(events: &[Arc<Event>]) -> (Vec<Item>, Frontier) {
    let ranges = surviving(events);
    let mut placed: Vec<(f64, usize, Item)> = Vec::with_capacity(events.len());
    for range in &ranges {
        let Some(event) = events.get(range.index) else { continue };
        let content = event.compaction().and_then(|compaction| compaction.compacted_content.clone());
        placed.push((range.end, range.index, Item { event: event.clone(), content, kind: Kind::Summary }));
    }
    for (index, event) in events.iter().enumerate() {
        if event.compaction().is_none() && !covers(&ranges, event.timestamp) {
            placed.push((event.timestamp, index, Item::plain(event.clone())));
        }
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let end = |last: Option<f64>| last.unwrap_or(f64::NEG_INFINITY);
    let covered = end(ranges.last().map(|range| range.end));
    let last = end(placed.last().map(|(time, _, _)| *time));
    let items: Vec<Item> = placed.into_iter().map(|(_, _, item)| item).collect();
    let present: HashSet<_> =
        items.iter().filter(|item| item.kind == Kind::Plain).map(|i| address(&i.event)).collect();
    let owners = owners(events, &present);
    let lost = owners.latest.iter().filter(|(_, call)| !present.contains(&address(call)));
    let lost = lost.map(|(id, _)| id.clone()).collect();
    (recover(items, &owners, &present), Frontier { covered, last, lost })
}

/// Identity of an event: ids may be missing or repeat.
fn address(event: &Arc<Event>) -> *const Event {
    Arc::as_ptr(event)
}

/// Which call each response answers, by the order of the log.
#[derive(Default)]
struct Owners {
    /// The last call event of an id.
    latest: HashMap<CallId, Arc<Event>>,
    /// The call event of a response event and id.
    of_response: HashMap<(*const Event, CallId), Arc<Event>>,
    /// The newest response to a call event and id.
    newest: HashMap<(*const Event, CallId), Arc<Event>>,
    /// Calls that have a response which no summary covers.
    answered: HashSet<(*const Event, CallId)>,
}

fn owners(source: &[Arc<Event>], present: &HashSet<*const Event>) -> Owners {
    let mut owners = Owners::default();
    for event in source {
        for id in event.calls().filter_map(|call| known(&call.id)) {
            owners.latest.insert(id.clone(), event.clone());
        }
        for id in event.responses().filter_map(|response| known(&response.id)) {
            let Some(call) = owners.latest.get(id) else { continue };
            owners.of_response.insert((address(event), id.clone()), call.clone());
            let key = (address(call), id.clone());
            if present.contains(&address(event)) {
                owners.answered.insert(key.clone());
            }
            let newer = owners.newest.get(&key).is_none_or(|old| event.timestamp >= old.timestamp);
            if newer {
                owners.newest.insert(key, event.clone());
            }
        }
    }
    owners
}

/// A response outside a summary needs its call: the call event comes back, with lost answers to its siblings.
fn recover(items: Vec<Item>, owners: &Owners, present: &HashSet<*const Event>) -> Vec<Item> {
    let mut result = Vec::with_capacity(items.len());
    let mut calls: HashSet<*const Event> = HashSet::new();
    let mut answers: HashSet<*const Event> = HashSet::new();
    for item in items {
        let responses = item.responses().filter(|_| item.kind == Kind::Plain);
        for id in responses.filter_map(|response| known(&response.id)) {
            let Some(call) = owners.of_response.get(&(address(&item.event), id.clone())) else { continue };
            if present.contains(&address(call)) || !calls.insert(address(call)) {
                continue;
            }
            result.push(Item::plain(call.clone()));
            for sibling in call.calls().filter_map(|call| known(&call.id)) {
                let key = (address(call), sibling.clone());
                let lost = owners.newest.get(&key).filter(|_| !owners.answered.contains(&key));
                result
                    .extend(lost.filter(|answer| answers.insert(address(answer))).cloned().map(Item::plain));
            }
        }
        result.push(item);
    }
    result
}
