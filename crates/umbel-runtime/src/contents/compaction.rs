//! Rule 3: summaries take the place of what they cover.
//!
//! What a summary covers is a range of positions in the log, and all of it stands before the summary. Clocks go back, and
//! those of several servers differ: no event is hidden or moved because of its timestamp.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{CallId, Event, EventId};

use super::item::{Item, Kind, known};

/// Where the first and the last covered event are named, in the metadata of the event that brings the summary: google-adk
/// refuses keys in `actions.compaction` that it does not know.
const KEY: &str = "compaction";

/// The first and the last event that a summary covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompactionRange {
    pub(crate) first: EventId,
    pub(crate) last: EventId,
}

impl CompactionRange {
    /// Tells the range with the event that brings the summary.
    pub(crate) fn put(&self, event: &mut Event) {
        event.set_own_metadata(KEY, json!({"first": self.first, "last": self.last}));
    }

    /// The range of an event, if it has one. Those of google-adk and of older versions have times alone.
    fn of(event: &Event) -> Option<Self> {
        let range = event.own_metadata()?.get(KEY)?;
        let id = |key: &str| range.get(key).and_then(Value::as_str).map(EventId::from);
        Some(Self { first: id("first")?, last: id("last")? })
    }
}

/// A summary: the position of its event, and of the events that it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummaryRange {
    /// The position of the event that brings it.
    pub(crate) index: usize,
    /// The position of the first covered event.
    pub(crate) start: usize,
    /// The position behind the last one. Equals `start` if this log has none of the covered events.
    pub(crate) end: usize,
    times: (f64, f64),
}

impl SummaryRange {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// What a summary names the ends of its range by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum RangeBound<'a> {
    Id(&'a str),
    /// The bits of a timestamp.
    Time(u64),
}

/// The first and the last position of each mark, as far as a log was read.
struct BoundPositions<'a>(HashMap<RangeBound<'a>, Option<(usize, usize)>>);

impl<'a> BoundPositions<'a> {
    fn see(&mut self, mark: RangeBound<'a>, position: usize) {
        if let Some(seen) = self.0.get_mut(&mark) {
            *seen = Some((seen.map_or(position, |(first, _)| first), position));
        }
    }

    fn first(&self, mark: RangeBound<'_>) -> Option<usize> {
        Some(self.0.get(&mark)?.as_ref()?.0)
    }

    fn last(&self, mark: RangeBound<'_>) -> Option<usize> {
        Some(self.0.get(&mark)?.as_ref()?.1)
    }
}

/// The summaries of a log, in its order, with what they cover.
pub(crate) fn summaries(events: &[Arc<Event>]) -> Vec<SummaryRange> {
    let bounds = |event: &Event| {
        let compaction = event.compaction().filter(|compaction| compaction.compacted_content.is_some())?;
        Some((compaction.start_timestamp?, compaction.end_timestamp?, CompactionRange::of(event)))
    };
    let brings = |(index, event): (usize, &Arc<Event>)| Some((index, bounds(event)?));
    let found: Vec<_> = events.iter().enumerate().filter_map(brings).collect();
    let mut marks = BoundPositions(HashMap::with_capacity(2 * found.len()));
    for (_, (start, end, range)) in &found {
        let ends = match range {
            Some(range) => [RangeBound::Id(range.first.as_str()), RangeBound::Id(range.last.as_str())],
            None => [RangeBound::Time(start.to_bits()), RangeBound::Time(end.to_bits())],
        };
        marks.0.extend(ends.map(|mark| (mark, None)));
    }
    let (mut summaries, mut read) = (Vec::with_capacity(found.len()), 0);
    for (index, (start, end, range)) in &found {
        for (position, event) in events.iter().enumerate().take(*index).skip(read) {
            marks.see(RangeBound::Id(event.id.as_str()), position);
            marks.see(RangeBound::Time(event.timestamp.to_bits()), position);
        }
        read = *index;
        let before = events.get(..*index).unwrap_or_default();
        let times = (*start, *end);
        let (start, end) = match range {
            Some(range) => by_ids(range, &marks),
            None => by_times(times, before, &marks),
        };
        summaries.push(SummaryRange { index: *index, start, end, times });
    }
    summaries
}

/// The positions of a range that is named by events. Events that are not there were cut off at the front.
fn by_ids(range: &CompactionRange, marks: &BoundPositions<'_>) -> (usize, usize) {
    let end = marks.last(RangeBound::Id(range.last.as_str())).map_or(0, |last| last + 1);
    let start = marks.first(RangeBound::Id(range.first.as_str())).unwrap_or(0);
    (start.min(end), end)
}

/// The positions of a range that is known by its times alone: from the first event at its start to the last one at its
/// end. Times may have been rounded where they were kept; then what lies between them counts.
fn by_times((start, end): (f64, f64), before: &[Arc<Event>], marks: &BoundPositions<'_>) -> (usize, usize) {
    let is_between = |event: &Arc<Event>| (start..=end).contains(&event.timestamp);
    let first = marks.first(RangeBound::Time(start.to_bits())).or_else(|| before.iter().position(is_between));
    let last = marks.last(RangeBound::Time(end.to_bits())).or_else(|| before.iter().rposition(is_between));
    match (first, last) {
        (Some(first), Some(last)) if first <= last => (first, last + 1),
        // It covers nothing that is here: it stands behind what took place before its end.
        _ => {
            let place = before.iter().rposition(|event| event.timestamp <= end).map_or(0, |last| last + 1);
            (place, place)
        }
    }
}

/// Drops the summaries that another one contains; of equal ones the latest stays. Leaves them in the order of their starts.
fn keep_outermost<T: Ord + Copy>(
    summaries: &mut Vec<SummaryRange>,
    bounds: impl Fn(&SummaryRange) -> (T, T),
) {
    // A containing range sorts before what it contains, so one running maximum is enough.
    summaries.sort_by_key(|summary| {
        let (start, end) = bounds(summary);
        (start, Reverse(end), Reverse(summary.index))
    });
    let mut furthest = None;
    summaries.retain(|summary| {
        let end = Some(bounds(summary).1);
        let survives = end > furthest;
        furthest = furthest.max(end);
        survives
    });
}

/// A timestamp as a number that sorts the same, whatever it is.
fn sortable(time: f64) -> i64 {
    let bits = time.to_bits().cast_signed();
    bits ^ (bits >> 63).cast_unsigned().wrapping_shr(1).cast_signed()
}

/// Whether one of the outermost summaries covers a position.
fn covers(summaries: &[SummaryRange], position: usize) -> bool {
    // Of those that begin before it, the last one ends last.
    let begun = summaries.partition_point(|summary| summary.start <= position);
    begun.checked_sub(1).and_then(|last| summaries.get(last)).is_some_and(|summary| position < summary.end)
}

/// From where on an event just adds to a log with summaries.
#[derive(Debug)]
pub(crate) struct Frontier {
    /// Calls that no item shows any more; an answer would bring them back.
    lost: HashSet<CallId>,
}

impl Frontier {
    /// Whether the event brings nothing back.
    pub(crate) fn admits(&mut self, event: &Event) -> bool {
        for id in event.calls().filter_map(|call| known(&call.id)) {
            self.lost.remove(id);
        }
        !event.responses().filter_map(|response| response.id.as_ref()).any(|id| self.lost.contains(id))
    }
}

/// Puts summaries in place of what they cover, in the order of the log, and brings back calls that are still needed.
///
/// `live` is the log without what was rewound, `seen` the positions in it of the events that the view sees.
pub(crate) fn apply(live: &[Arc<Event>], seen: &[usize]) -> (Vec<Item>, Frontier) {
    let is_seen = |summary: &SummaryRange| seen.binary_search(&summary.index).is_ok();
    let (mut empty, mut covering): (Vec<_>, Vec<_>) =
        summaries(live).into_iter().filter(is_seen).partition(SummaryRange::is_empty);
    keep_outermost(&mut covering, |summary| (summary.start, summary.end));
    // Where a log was cut off at its front, times are all that is left to go by.
    keep_outermost(&mut empty, |summary| (sortable(summary.times.0), sortable(summary.times.1)));
    // A summary stands between the last event that it covers and the one behind that.
    let mut placed: Vec<(usize, usize, Item)> = Vec::with_capacity(seen.len());
    for summary in covering.iter().chain(&empty) {
        let Some(event) = live.get(summary.index) else { continue };
        let content = event.compaction().and_then(|compaction| compaction.compacted_content.clone());
        let item = Item { event: event.clone(), content, kind: Kind::Summary };
        placed.push((2 * summary.end, summary.index, item));
    }
    let seen_events = || seen.iter().filter_map(|position| Some((*position, live.get(*position)?)));
    for (position, event) in seen_events() {
        if event.compaction().is_none() && !covers(&covering, position) {
            placed.push((2 * position + 1, position, Item::plain(event.clone())));
        }
    }
    placed.sort_by_key(|(place, index, _)| (*place, *index));
    let items: Vec<Item> = placed.into_iter().map(|(_, _, item)| item).collect();
    let present: HashSet<_> =
        items.iter().filter(|item| item.kind == Kind::Plain).map(|i| address(&i.event)).collect();
    let owners = owners(seen_events().map(|(_, event)| event), &present);
    let lost = owners.latest.iter().filter(|(_, call)| !present.contains(&address(call)));
    let lost = lost.map(|(id, _)| id.clone()).collect();
    (recover(items, &owners, &present), Frontier { lost })
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

fn owners<'a>(source: impl Iterator<Item = &'a Arc<Event>>, present: &HashSet<*const Event>) -> Owners {
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
            owners.newest.insert(key, event.clone());
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
