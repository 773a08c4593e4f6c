//! Rule 3: summaries take the place of what they cover.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use umbel_core::{CallId, Event};

use super::item::{Item, Kind};

/// The stretches of time that summaries cover, merged and sorted.
#[derive(Debug, Default)]
pub(crate) struct Coverage(Vec<(f64, f64)>);

impl Coverage {
    fn new(ranges: &[Range]) -> Self {
        let mut sorted: Vec<_> = ranges.iter().filter(|r| r.start <= r.end).map(|r| (r.start, r.end)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut merged: Vec<(f64, f64)> = Vec::new();
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    fn covers(&self, time: f64) -> bool {
        self.0.iter().any(|(start, end)| *start <= time && time <= *end)
    }

    /// The last covered moment.
    pub(crate) fn end(&self) -> f64 {
        self.0.last().map_or(f64::NEG_INFINITY, |(_, end)| *end)
    }
}

#[derive(Clone, Copy)]
struct Range {
    index: usize,
    start: f64,
    end: f64,
}

/// The summaries that no other one contains; of equal ones the latest.
fn surviving(events: &[Arc<Event>]) -> Vec<Range> {
    let ranges = events.iter().enumerate().filter_map(|(index, event)| {
        let compaction = event.compaction()?;
        compaction.compacted_content.as_ref()?;
        Some(Range { index, start: compaction.start_timestamp?, end: compaction.end_timestamp? })
    });
    let (mut ranges, odd): (Vec<_>, Vec<_>) = ranges.partition(|r| !r.start.is_nan() && !r.end.is_nan());
    // A containing range sorts before what it contains, so one running maximum is enough.
    ranges.sort_by(|a, b| {
        a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)).then(b.index.cmp(&a.index))
    });
    let mut furthest = None;
    ranges.retain(|range| {
        let survives = furthest.is_none_or(|end| range.end > end);
        if survives {
            furthest = Some(range.end);
        }
        survives
    });
    ranges.extend(odd);
    ranges
}

/// Puts summaries in place of what they cover, in order of time, and brings back calls that are still needed.
pub(crate) fn apply(events: &[Arc<Event>]) -> (Vec<Item>, Coverage) {
    let ranges = surviving(events);
    let coverage = Coverage::new(&ranges);
    let mut placed: Vec<(f64, usize, Item)> = Vec::with_capacity(events.len());
    for range in &ranges {
        let Some(event) = events.get(range.index) else { continue };
        let content = event.compaction().and_then(|compaction| compaction.compacted_content.clone());
        placed.push((range.end, range.index, Item { event: event.clone(), content, kind: Kind::Summary }));
    }
    for (index, event) in events.iter().enumerate() {
        if event.compaction().is_none() && !coverage.covers(event.timestamp) {
            placed.push((event.timestamp, index, Item::plain(event.clone())));
        }
    }
    placed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let items = placed.into_iter().map(|(_, _, item)| item).collect();
    (recover(items, events), coverage)
}

/// Identity of an event: ids may be missing or repeat.
fn address(event: &Arc<Event>) -> *const Event {
    Arc::as_ptr(event)
}

/// Which call each response answers, by the order of the log.
#[derive(Default)]
struct Owners {
    /// The call event of a response event and id.
    of_response: HashMap<(*const Event, CallId), Arc<Event>>,
    /// The newest response to a call event and id.
    newest: HashMap<(*const Event, CallId), Arc<Event>>,
    /// Calls that have a response which no summary covers.
    answered: HashSet<(*const Event, CallId)>,
}

fn owners(source: &[Arc<Event>], present: &HashSet<*const Event>) -> Owners {
    let mut owners = Owners::default();
    let mut latest: HashMap<CallId, Arc<Event>> = HashMap::new();
    for event in source {
        for id in event.calls().filter_map(|call| call.id.clone()) {
            latest.insert(id, event.clone());
        }
        for id in event.responses().filter_map(|response| response.id.clone()) {
            let Some(call) = latest.get(&id) else { continue };
            owners.of_response.insert((address(event), id.clone()), call.clone());
            let key = (address(call), id);
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
fn recover(items: Vec<Item>, source: &[Arc<Event>]) -> Vec<Item> {
    if !items.iter().any(Item::has_responses) {
        return items;
    }
    let present: HashSet<_> = items.iter().filter(|i| i.kind == Kind::Plain).map(|i| address(&i.event)).collect();
    let owners = owners(source, &present);
    let mut result = Vec::with_capacity(items.len());
    let mut back: HashSet<*const Event> = HashSet::new();
    for item in items {
        let ids: Vec<CallId> = item.responses().filter_map(|response| response.id.clone()).collect();
        for id in ids {
            let Some(call) = owners.of_response.get(&(address(&item.event), id)) else { continue };
            if present.contains(&address(call)) || !back.insert(address(call)) {
                continue;
            }
            result.push(Item::plain(call.clone()));
            for sibling in call.calls().filter_map(|call| call.id.clone()) {
                let key = (address(call), sibling);
                if owners.answered.contains(&key) {
                    continue;
                }
                if let Some(answer) = owners.newest.get(&key)
                    && back.insert(address(answer))
                {
                    result.push(Item::plain(answer.clone()));
                }
            }
        }
        result.push(item);
    }
    result
}
