//! The conversation of a run as its handlers leave it.

use std::ops::{Deref, Range, RangeBounds};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::history::History;

/// The conversation that a model is sent, with what handlers changed in it.
///
/// Reads like a [`History`]. Each change is recorded: it is there at the run's next step though the log below it has
/// grown, and it is there when an interrupted run goes on. It ends with the run.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    messages: History,
    /// What the log gives, without the changes.
    base: History,
    /// Where the messages come from; absent while nothing was changed.
    origin: Option<Vec<Segment>>,
    /// Not yet recorded.
    edits: Vec<Edit>,
    /// What the model was sent last.
    sent: Option<History>,
}

/// A stretch of messages.
#[derive(Clone, Debug, PartialEq)]
enum Segment {
    /// From the log. The last such stretch is open: what the log gets later belongs to it.
    Base(Range<usize>),
    /// From a handler.
    Own(Vec<Arc<Content>>),
}

/// One change: messages taken out, others put in their place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    /// How many messages the log had given.
    pub base: usize,
    /// Where, counted in messages with all earlier changes.
    pub at: usize,
    /// How many were taken out.
    #[serde(default)]
    pub removed: usize,
    /// What was put in.
    #[serde(default)]
    pub added: Vec<Arc<Content>>,
}

impl Transcript {
    /// The conversation as the log gives it.
    pub fn new(base: History) -> Self {
        Self { messages: base.clone(), base, ..Self::default() }
    }

    /// The conversation with changes that were recorded earlier in this run.
    pub fn replay(base: &History, edits: &[Edit]) -> Self {
        let mut transcript = Self::default();
        for edit in edits {
            let grown = base.iter().take(edit.base).skip(transcript.base.len());
            let grown: Vec<Arc<Content>> = grown.cloned().collect();
            transcript.grow(grown);
            transcript.apply(edit.at, edit.removed, edit.added.clone());
        }
        transcript.edits.clear();
        transcript.sync(base);
        transcript
    }

    /// The messages.
    pub fn history(&self) -> &History {
        &self.messages
    }

    /// What the log gives, without the changes.
    pub fn base(&self) -> &History {
        &self.base
    }

    /// Adds a message at the end.
    pub fn push(&mut self, content: impl Into<Arc<Content>>) {
        self.apply(self.len(), 0, vec![content.into()]);
    }

    /// Puts a message in the place of another. Returns whether there was one.
    pub fn replace(&mut self, index: usize, content: impl Into<Arc<Content>>) -> bool {
        let there = index < self.len();
        if there {
            self.apply(index, 1, vec![content.into()]);
        }
        there
    }

    /// Puts messages in the place of others. Costs what stands behind them.
    pub fn splice(
        &mut self,
        range: impl RangeBounds<usize>,
        contents: impl IntoIterator<Item = Arc<Content>>,
    ) {
        let start = match range.start_bound() {
            std::ops::Bound::Included(start) => *start,
            std::ops::Bound::Excluded(start) => start.saturating_add(1),
            std::ops::Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            std::ops::Bound::Included(end) => end.saturating_add(1),
            std::ops::Bound::Excluded(end) => *end,
            std::ops::Bound::Unbounded => self.len(),
        };
        let (start, end) = (start.min(self.len()), end.min(self.len()));
        self.apply(start, end.saturating_sub(start), contents.into_iter().collect());
    }

    /// Drops so many messages at the front. Costs what is kept.
    pub fn truncate_front(&mut self, count: usize) {
        self.apply(0, count.min(self.len()), Vec::new());
    }

    /// Makes another history of it.
    pub fn map(&mut self, change: impl FnOnce(History) -> History) {
        let changed = change(self.messages.clone());
        let same = changed.common_prefix(&self.messages);
        let added: Vec<Arc<Content>> = changed.iter_from(same).cloned().collect();
        self.apply(same, self.len() - same, added);
    }

    /// How many messages at the front are what the model was sent last time: providers keep those at hand.
    pub fn stable_prefix(&self) -> usize {
        self.sent.as_ref().map_or(0, |sent| sent.common_prefix(&self.messages))
    }

    /// Whether handlers changed anything.
    pub fn is_edited(&self) -> bool {
        self.origin.is_some()
    }

    /// How many changes there are since they were asked for last.
    pub fn changes(&self) -> usize {
        self.edits.len()
    }

    /// Notes what the model is being sent.
    pub fn mark_sent(&mut self) {
        self.sent = Some(self.messages.clone());
    }

    /// The changes since they were asked for last.
    pub fn take_edits(&mut self) -> Vec<Edit> {
        std::mem::take(&mut self.edits)
    }

    /// Takes in what the log gives now. Costs what is new.
    pub fn sync(&mut self, base: &History) {
        if self.origin.is_none() {
            self.messages = base.clone();
            self.base = base.clone();
            return;
        }
        let (old, same) = (self.base.len(), self.base.common_prefix(base));
        let open = match self.origin.as_ref().and_then(|origin| origin.last()) {
            Some(Segment::Base(range)) => range.end == old && range.start <= same,
            _ => same == old,
        };
        if !open {
            self.realign(base, same);
            return;
        }
        // Only what came last is another, or there is more of it.
        self.messages.truncate(self.messages.len() - (old - same));
        if let Some(Segment::Base(range)) = self.origin.as_mut().and_then(|origin| origin.last_mut())
            && range.end == old
        {
            range.end = same;
        }
        let grown: Vec<Arc<Content>> = base.iter_from(same).cloned().collect();
        self.extend_origin(same, grown.len());
        for content in grown {
            self.messages.push(content);
        }
        self.base = base.clone();
    }

    fn grow(&mut self, contents: Vec<Arc<Content>>) {
        self.extend_origin(self.base.len(), contents.len());
        for content in contents {
            self.base.push(content.clone());
            self.messages.push(content);
        }
    }

    /// Notes that so many messages of the log come behind the `start` there are.
    fn extend_origin(&mut self, start: usize, count: usize) {
        let Some(origin) = &mut self.origin else { return };
        match origin.last_mut() {
            Some(Segment::Base(range)) if range.end == start => range.end += count,
            _ if count > 0 => origin.push(Segment::Base(start..start + count)),
            _ => {}
        }
    }

    fn apply(&mut self, at: usize, removed: usize, added: Vec<Arc<Content>>) {
        if removed == 0 && added.is_empty() {
            return;
        }
        let origin = self.origin.take().unwrap_or_else(|| vec![Segment::Base(0..self.base.len())]);
        self.edits.push(Edit { base: self.base.len(), at, removed, added: added.clone() });
        self.origin = Some(spliced(origin, at, removed, added.clone()));
        match (removed, added.len()) {
            (1, 1) => {
                for content in added {
                    self.messages.replace(at, content);
                }
            }
            _ => self.messages.splice(at, removed, added),
        }
    }

    /// The log gives something else than before, from `same` on: a late answer was put beside its call, or old turns were
    /// summed up. What lies before and behind that keeps its changes.
    fn realign(&mut self, base: &History, same: usize) {
        let old = self.base.len();
        // What came last may have more behind it by now.
        let last = self.base.last().filter(|_| same < old);
        let new = (same..base.len()).rev().find(|at| base.get(*at) == last).map_or(base.len(), |at| at + 1);
        let longest = old.min(new) - same;
        let pairs = self.base.iter().rev().zip((0..new).rev().filter_map(|at| base.get(at))).take(longest);
        let tail = pairs.take_while(|(old, new)| old == new).count();
        let mut origin =
            realigned(self.origin.take().unwrap_or_default(), same..old - tail, same..new - tail);
        origin.extend(Some(Segment::Base(new..base.len())).filter(|_| new < base.len()));
        self.base = base.clone();
        let mut messages = History::new();
        for segment in &origin {
            match segment {
                Segment::Base(range) => {
                    base.iter_from(range.start)
                        .take(range.len())
                        .for_each(|content| messages.push(content.clone()));
                }
                Segment::Own(contents) => contents.iter().for_each(|content| messages.push(content.clone())),
            }
        }
        self.messages = messages;
        self.origin = Some(origin);
    }
}

/// The origin after the log gave other messages (`new`) in the place of some (`old`). What of the log was dropped stays
/// so; what is new is kept, once.
fn realigned(origin: Vec<Segment>, old: Range<usize>, new: Range<usize>) -> Vec<Segment> {
    let mut result = Vec::with_capacity(origin.len() + 2);
    // If all that was there is dropped, so is what took its place, but not what goes beyond it.
    let mut fresh = Some((new.start + old.len()).min(new.end)..new.end);
    let base = |range: Range<usize>| Some(range).filter(|range| !range.is_empty()).map(Segment::Base);
    for segment in origin {
        let Segment::Base(range) = segment else {
            result.push(segment);
            continue;
        };
        result.extend(base(range.start..range.end.min(old.start)));
        if range.start.max(old.start) < range.end.min(old.end) && fresh.take().is_some() {
            result.extend(base(new.clone()));
        }
        if range.end > old.end {
            result.extend(fresh.take().and_then(base));
            let start = range.start.max(old.end);
            result.extend(base(start - old.end + new.end..range.end - old.end + new.end));
        }
    }
    result.extend(fresh.and_then(base));
    result
}

/// The origin after a change.
fn spliced(origin: Vec<Segment>, at: usize, removed: usize, added: Vec<Arc<Content>>) -> Vec<Segment> {
    let mut result = Vec::with_capacity(origin.len() + 2);
    let mut added = Some(added).filter(|added| !added.is_empty());
    let mut place = 0;
    for segment in origin {
        let len = segment.len();
        let (start, end) = (place, place + len);
        place = end;
        let before = at.clamp(start, end) - start;
        let behind = at.saturating_add(removed).clamp(start, end) - start;
        if at < start || (at == start && before == 0) {
            result.extend(added.take().map(Segment::Own));
        }
        let (first, rest) = (segment.part(0..before), segment.part(behind..len));
        result.extend(first);
        if at < end {
            result.extend(added.take().map(Segment::Own));
        }
        result.extend(rest);
    }
    result.extend(added.map(Segment::Own));
    result
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Base(range) => range.len(),
            Self::Own(contents) => contents.len(),
        }
    }

    /// The part of it in that range of its own counting.
    fn part(&self, range: Range<usize>) -> Option<Self> {
        if range.is_empty() {
            return None;
        }
        Some(match self {
            Self::Base(own) => Self::Base(own.start + range.start..own.start + range.end),
            Self::Own(contents) => Self::Own(contents.get(range)?.to_vec()),
        })
    }
}

impl Deref for Transcript {
    type Target = History;

    fn deref(&self) -> &History {
        &self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(n: usize) -> Arc<Content> {
        Arc::new(Content::user(n.to_string().as_str()))
    }

    fn history(range: Range<usize>) -> History {
        range.map(message).collect()
    }

    fn words(history: &History) -> Vec<String> {
        history.iter().map(|content| content.text()).collect()
    }

    #[test]
    fn changes_stay_while_the_log_grows() {
        let mut transcript = Transcript::new(history(0..5));
        transcript.splice(0..3, [message(100)]);
        transcript.push(message(101));
        assert_eq!(words(&transcript), ["100", "3", "4", "101"]);
        transcript.mark_sent();
        transcript.sync(&history(0..7));
        assert_eq!(words(&transcript), ["100", "3", "4", "101", "5", "6"]);
        assert_eq!(transcript.stable_prefix(), 4);
        transcript.truncate_front(2);
        assert_eq!(words(&transcript), ["4", "101", "5", "6"]);
        assert_eq!(transcript.stable_prefix(), 0);
    }

    #[test]
    fn changes_find_their_place_again_when_the_log_gives_something_else_in_the_middle() {
        let mut transcript = Transcript::new(history(0..6));
        transcript.replace(0, message(100));
        transcript.replace(5, message(105));
        let mut other = history(0..6);
        other.splice(2, 1, [message(20), message(21)]);
        transcript.sync(&other);
        assert_eq!(words(&transcript), ["100", "1", "20", "21", "3", "4", "105"]);
    }

    #[test]
    fn what_came_last_can_become_another() {
        let mut transcript = Transcript::new(history(0..5));
        transcript.replace(1, message(100));
        transcript.sync(&history(0..4));
        assert_eq!(words(&transcript), ["0", "100", "2", "3"]);
        let mut other = history(0..3);
        other.push(message(30));
        other.push(message(40));
        transcript.sync(&other);
        assert_eq!(words(&transcript), ["0", "100", "2", "30", "40"]);
        transcript.sync(&history(0..2));
        assert_eq!(words(&transcript), ["0", "100"]);
    }

    #[test]
    fn a_mapped_history_is_one_change() {
        let mut transcript = Transcript::new(history(0..4));
        transcript.map(|history| history.iter().take(2).cloned().chain([message(9)]).collect());
        assert_eq!(words(&transcript), ["0", "1", "9"]);
        assert_eq!(transcript.take_edits().len(), 1);
        transcript.map(|history| history);
        assert!(transcript.take_edits().is_empty());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Grow(usize),
        Splice(prop::sample::Index, usize, usize),
        Push,
        Replace(prop::sample::Index),
        Front(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..40usize).prop_map(Op::Grow),
            (any::<prop::sample::Index>(), 0..5usize, 0..3usize).prop_map(|(i, r, a)| Op::Splice(i, r, a)),
            Just(Op::Push),
            any::<prop::sample::Index>().prop_map(Op::Replace),
            (0..4usize).prop_map(Op::Front),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector_and_comes_back_from_its_record(
            start in 0..70usize,
            ops in prop::collection::vec(op(), 0..40),
        ) {
            let mut base = history(0..start);
            let mut model: Vec<Arc<Content>> = base.iter().cloned().collect();
            let mut transcript = Transcript::new(base.clone());
            let mut record = Vec::new();
            let mut fresh = 1_000;
            for op in ops {
                match op {
                    Op::Grow(count) => {
                        for _ in 0..count {
                            fresh += 1;
                            base.push(message(fresh));
                            model.push(message(fresh));
                        }
                        transcript.sync(&base);
                    }
                    Op::Splice(index, removed, added) => {
                        let at = index.index(model.len() + 1);
                        let end = (at + removed).min(model.len());
                        let added: Vec<_> = (0..added).map(|_| { fresh += 1; message(fresh) }).collect();
                        model.splice(at..end, added.clone());
                        transcript.splice(at..end, added);
                    }
                    Op::Push => {
                        fresh += 1;
                        model.push(message(fresh));
                        transcript.push(message(fresh));
                    }
                    Op::Replace(index) if !model.is_empty() => {
                        let at = index.index(model.len());
                        fresh += 1;
                        model[at] = message(fresh);
                        transcript.replace(at, message(fresh));
                    }
                    Op::Replace(_) => {}
                    Op::Front(count) => {
                        model.drain(..count.min(model.len()));
                        transcript.truncate_front(count);
                    }
                }
                record.extend(transcript.take_edits());
                prop_assert!(transcript.iter().eq(model.iter()));
            }
            let json = serde_json::to_string(&record).unwrap();
            let record: Vec<Edit> = serde_json::from_str(&json).unwrap();
            let again = Transcript::replay(&base, &record);
            prop_assert!(again.iter().eq(model.iter()));
        }
    }
}
