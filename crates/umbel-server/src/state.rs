//! The state that a client sends, held against what it was last told.
//!
//! A client sends its whole state, and may not have heard of all that happened since. So what it sends is taken as changes of
//! what it was last told: what it did not touch is never overwritten, and where somebody else changed the same key
//! meanwhile, what the session has stays, and the client is told.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use umbel_agui::{AguiEvent, Cast, EventKind, InputMark, messages};
use umbel_core::{Event, List, Object, State, StateScope};

use crate::plan::has_message;

/// The name of the event that tells a client which of its changes were not taken.
const CONFLICT: &str = "StateConflict";

/// What a client's state comes to.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// The keys to be written. One that is removed becomes `null`.
    pub(crate) delta: Object,
    /// The state that the client sees then.
    pub(crate) ours: Object,
    /// What the client changed, and somebody else too.
    pub(crate) conflicts: Vec<Conflict>,
}

/// A key that a client changed, and somebody else since the client was last told of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conflict {
    key: String,
    /// What the client made of it; `None` if it removed the key.
    sent: Option<Value>,
    /// What it is.
    kept: Value,
}

/// A session's log, as far as it concerns the state of its client.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) events: &'a List<Arc<Event>>,
    /// The last message that the client has and the log too, if there is one.
    pub(crate) message: Option<&'a str>,
}

/// Holds what a client sends against the session's state. `of_request` follows from the request and counts in any case.
pub(crate) fn merge(
    cast: &Arc<Cast>,
    kept: Option<&State>,
    theirs: Option<&Value>,
    of_request: &Object,
    known: Known<'_>,
) -> Merged {
    let ours = kept.map(|state| visible(cast, state)).unwrap_or_default();
    let mut merged = Merged { ours, ..Merged::default() };
    let theirs = theirs.and_then(Value::as_object);
    if let Some(theirs) = theirs {
        merged.take(cast, theirs, known);
    }
    merged.delta.extend(of_request.clone());
    let Merged { delta, ours, .. } = &mut merged;
    let shown = || delta.iter().filter(|(key, _)| cast.shows(key));
    for (key, value) in shown().filter(|(_, value)| !value.is_null()) {
        ours.insert(key.clone(), value.clone());
    }
    if shown().any(|(_, value)| value.is_null()) {
        // All at once: what is behind a key that goes moves up each time.
        ours.retain(|key, _| !(cast.shows(key) && delta.get(key).is_some_and(Value::is_null)));
    }
    // A key that is `null` is not there. Whoever has it so may keep it so.
    for (key, _) in theirs.into_iter().flatten().filter(|(key, value)| value.is_null() && cast.shows(key)) {
        ours.entry(key.clone()).or_insert(Value::Null);
    }
    merged
}

impl Merged {
    fn take(&mut self, cast: &Arc<Cast>, theirs: &Object, known: Known<'_>) {
        let Self { delta, ours, conflicts } = self;
        let differs = |key: &str, value: &Value| ours.get(key).unwrap_or(&Value::Null) != value;
        let changed = theirs.iter().filter(|(key, value)| cast.shows(key) && differs(key, value));
        let changed = changed.map(|(key, value)| (key, Some(value)));
        // Who sends nothing of what is there removes nothing: it keeps no state.
        let keeps_some = theirs.keys().any(|key| ours.contains_key(key));
        let missing =
            ours.keys().filter(|key| keeps_some && !theirs.contains_key(*key)).map(|key| (key, None));
        let mut told: Option<Option<Told<'_>>> = None;
        let mut keeps_state = None;
        for (key, sent) in changed.chain(missing) {
            let told = told.get_or_insert_with(|| Told::of(cast, known)).as_ref();
            let kept = ours.get(key).cloned().unwrap_or_default();
            if told.is_some_and(|told| told.may_have_missed(key, sent)) {
                // It has what was there before: it did not put that back, it was not told of more.
                continue;
            }
            if is_shared(key) {
                let Some(sent) = sent else { continue };
                let had = told.and_then(|told| told.heard(key)).unwrap_or(&Value::Null);
                if *had == kept {
                    delta.insert(key.clone(), sent.clone());
                } else if had != sent {
                    // Written as it is, so that this log tells what the client hears now. If it sends its own again, it counts.
                    delta.insert(key.clone(), kept.clone());
                    conflicts.push(Conflict { key: key.clone(), sent: Some(sent.clone()), kept });
                }
                continue;
            }
            match (sent, told) {
                (Some(sent), Some(told)) if told.changed_since(key) => {
                    if told.last(key).unwrap_or(&Value::Null) != sent {
                        conflicts.push(Conflict { key: key.clone(), sent: Some(sent.clone()), kept });
                    }
                }
                (Some(sent), _) => drop(delta.insert(key.clone(), sent.clone())),
                (None, Some(told)) if told.had(key) => {
                    // Who sends nothing of what it was told has not removed it all: it keeps no state.
                    let sends = |key: &String| ours.contains_key(key) && told.had(key);
                    if !*keeps_state.get_or_insert_with(|| theirs.keys().any(sends)) {
                        continue;
                    }
                    if told.changed_since(key) {
                        conflicts.push(Conflict { key: key.clone(), sent: None, kept });
                    } else {
                        delta.insert(key.clone(), Value::Null);
                    }
                }
                // It never heard of the key, or nobody knows whether it did.
                (None, _) => {}
            }
        }
    }
}

/// Whether other sessions write a key too. What they wrote is not in this log: what a client knows of it, only an event of
/// its own session tells, and that it does not send it says nothing.
fn is_shared(key: &str) -> bool {
    StateScope::split(key).0 != StateScope::Session
}

/// How far the log was told to a client.
struct Told<'a> {
    /// So many events were told in any case.
    sure: usize,
    /// So many at most. Who saw the last message begin has it, but maybe not what came with it or right behind it.
    count: usize,
    end: usize,
    writes: RefCell<WriteIndex<'a>>,
}

impl<'a> Told<'a> {
    /// Up to the last message that the client has, with what its run had to tell behind it that is no message.
    fn of(cast: &Arc<Cast>, known: Known<'a>) -> Option<Self> {
        let Known { events, message } = known;
        let message = message?;
        let back = events.iter().rev().position(|event| has_message(event, message))?;
        let count = events.len() - back;
        let last = events.get(count.checked_sub(1)?)?;
        // What a client says itself, it knows.
        let sure = if last.is_user() { count } else { count - 1 };
        let run = &last.run;
        let is_silent = |event: &Arc<Event>| messages(cast, [event], true).is_empty();
        let behind = events.iter_from(count).take_while(|event| event.run == *run && is_silent(event));
        let count = count + behind.count();
        Some(Self { sure, count, end: events.len(), writes: RefCell::new(WriteIndex::new(events)) })
    }

    /// Whether somebody changed a key since.
    fn changed_since(&self, key: &str) -> bool {
        self.writes.borrow_mut().newest(key, self.count..self.end, |write| !write.is_of_client).is_some()
    }

    /// What the client was last told of a key, as far as an event says it.
    fn last(&self, key: &str) -> Option<&'a Value> {
        self.writes.borrow_mut().newest(key, 0..self.count, |_| true)
    }

    /// The same, with what the client wrote itself since.
    fn heard(&self, key: &str) -> Option<&'a Value> {
        let own = self.writes.borrow_mut().newest(key, self.count..self.end, |write| write.is_of_client);
        own.or_else(|| self.last(key))
    }

    /// Whether the client was told that a key is there. What no event wrote was there from the beginning, unless other
    /// sessions write it too.
    fn had(&self, key: &str) -> bool {
        match self.last(key) {
            Some(value) => !value.is_null(),
            None => !is_shared(key) && !self.changed_since(key),
        }
    }

    /// Whether what a client sends is what it had before an event of which it may not have been told.
    fn may_have_missed(&self, key: &str, sent: Option<&Value>) -> bool {
        let sent = sent.unwrap_or(&Value::Null);
        let mut writes = self.writes.borrow_mut();
        // Newest first; each of them but the newest is what the client had before the one behind it.
        let unsure = writes.within(key, self.sure..self.count);
        if unsure.is_empty() {
            return false;
        }
        unsure.iter().skip(1).any(|value| *value == sent)
            || writes.newest(key, 0..self.sure, |_| true).unwrap_or(&Value::Null) == sent
    }
}

/// A value that an event wrote.
#[derive(Clone, Copy)]
struct StateWrite<'a> {
    /// The index of the event.
    index: usize,
    is_of_client: bool,
    value: &'a Value,
}

/// The writes of each key, newest first, as far as the log was walked back: all keys share one walk.
struct WriteIndex<'a> {
    rest: Box<dyn Iterator<Item = &'a Arc<Event>> + 'a>,
    /// Events before this index were not walked yet.
    walked: usize,
    by_key: HashMap<&'a str, Vec<StateWrite<'a>>>,
}

impl<'a> WriteIndex<'a> {
    fn new(events: &'a List<Arc<Event>>) -> Self {
        let rest = Box::new(events.iter().rev());
        Self { rest, walked: events.len(), by_key: HashMap::new() }
    }

    /// The newest value of a key that an event in this range wrote.
    fn newest(
        &mut self,
        key: &str,
        range: Range<usize>,
        counts: impl Fn(&StateWrite<'_>) -> bool,
    ) -> Option<&'a Value> {
        let writes = self.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        let first = writes.partition_point(|write| write.index >= range.end);
        let mut within = writes.iter().skip(first).take_while(|write| write.index >= range.start);
        if let Some(found) = within.find(|write| counts(write)) {
            return Some(found.value);
        }
        while self.walked > range.start && self.step() {
            let oldest = self.by_key.get(key).and_then(|writes| writes.last());
            let oldest = oldest.filter(|write| write.index == self.walked && range.contains(&write.index));
            if let Some(found) = oldest.filter(|write| counts(write)) {
                return Some(found.value);
            }
        }
        None
    }

    /// All values of a key that events in this range wrote, newest first.
    fn within(&mut self, key: &str, range: Range<usize>) -> Vec<&'a Value> {
        while self.walked > range.start && self.step() {}
        let writes = self.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        let first = writes.partition_point(|write| write.index >= range.end);
        let within = writes.iter().skip(first).take_while(|write| write.index >= range.start);
        within.map(|write| write.value).collect()
    }

    /// Walks back by one event; `false` at the beginning of the log.
    fn step(&mut self) -> bool {
        let Some(event) = self.rest.next() else { return false };
        self.walked -= 1;
        let index = self.walked;
        if let Some(delta) = event.state_delta() {
            let is_of_client = is_of_client(event);
            for (key, value) in delta {
                self.by_key.entry(key).or_default().push(StateWrite { index, is_of_client, value });
            }
        }
        true
    }
}

/// Whether an event is nothing but state that a client sent: it knows of that.
fn is_of_client(event: &Event) -> bool {
    event.is_user() && event.content.is_none() && InputMark::of(event).is_some()
}

/// Tells a client which of its changes were not taken.
pub(crate) fn tell_conflicts(conflicts: &[Conflict], sink: &mut impl FnMut(&AguiEvent<'_>)) {
    if conflicts.is_empty() {
        return;
    }
    let told = conflicts.iter().map(|Conflict { key, sent, kept }| match sent {
        Some(sent) => json!({"key": key, "sent": sent, "kept": kept}),
        None => json!({"key": key, "kept": kept}),
    });
    let value = Cow::Owned(told.collect());
    sink(&EventKind::Custom { name: Cow::Borrowed(CONFLICT), value }.into());
}

/// The state as clients see it. What is `null` was removed.
pub(crate) fn visible(cast: &Cast, state: &State) -> Object {
    let mut all = Object::clone(state.scope(StateScope::Session));
    all.retain(|key, value| cast.shows(key) && !value.is_null());
    if cast.scoped_state {
        let scoped = state.to_object().into_iter();
        all.extend(scoped.filter(|(key, value)| cast.shows(key) && !value.is_null()));
    }
    all
}

#[cfg(test)]
mod tests {
    use umbel_core::{Content, RunId, Source};

    use super::*;

    /// A log of so many events, each of which writes one of the keys, the last of which the client has.
    fn log(events: usize, keys: usize) -> List<Arc<Event>> {
        let event = |index: usize| {
            let mut event = Event::new(RunId::from("r"), Arc::new(Source::new("agent")));
            event.content = Some(Arc::new(Content::model(format!("number {index}").as_str())));
            let value = json!(index);
            event.actions_mut().state_delta =
                Some(Object::from_iter([(format!("k{}", index % keys), value)]));
            Arc::new(event)
        };
        (0..events).map(event).collect()
    }

    #[test]
    fn the_newest_write_of_a_key_is_found_wherever_the_walk_stands() {
        let events = log(60, 7);
        let writes = |key: usize, range: Range<usize>| {
            range.rev().find(|index| index % 7 == key).map(|index| json!(index))
        };
        let mut index = WriteIndex::new(&events);
        for (key, range) in
            [(3, 50..60), (3, 0..40), (0, 57..60), (6, 10..30), (2, 0..60), (5, 0..5), (5, 0..6), (1, 20..20)]
        {
            let name = format!("k{key}");
            assert_eq!(
                index.newest(&name, range.clone(), |_| true).cloned(),
                writes(key, range.clone()),
                "{key} {range:?}"
            );
            let all: Vec<Value> = index.within(&name, range.clone()).into_iter().cloned().collect();
            let expected: Vec<Value> =
                range.rev().filter(|index| index % 7 == key).map(|index| json!(index)).collect();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_state_of_many_keys_walks_the_log_once() {
        let events = log(2_000, 1_000);
        let mut index = WriteIndex::new(&events);
        for key in 0..1_000 {
            assert!(index.newest(&format!("k{key}"), 0..1_990, |_| true).is_some());
            assert!(index.newest(&format!("none{key}"), 0..1_990, |_| true).is_none());
        }
        assert_eq!(index.walked, 0);
        assert_eq!(index.by_key.values().map(Vec::len).sum::<usize>(), 2_000);
    }
}
