//! What a model is sent, kept and extended as the log grows.
//!
//! In nearly all sessions the next event just adds a message: words, or a call with its answers right behind it.
//! Those are added here at a cost that does not depend on the length of the log. Anything that makes a rule look back
//! (a rewind, a summary, an answer that comes late) has the whole built anew once, by [`build`](super::build).

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{CallId, Content, ContentsView, Event, FunctionCall, History, List, Part};

use super::foreign::{Quoted, answers_foreign_call, quote};
use super::item::{Item, Kind};
use super::visible::{has_transcription, is_foreign, is_visible, rewinds_to, sub_branch};
use super::{arrange, asked, build, for_request, leading, seen};

/// The messages of one view, kept.
#[derive(Debug)]
pub(crate) struct Projection {
    view: Arc<ContentsView>,
    /// Events of the log that `history` and `open` are made of.
    taken: usize,
    history: History,
    /// The last event, if it is a call of this agent without an answer yet.
    open: Option<Arc<Event>>,
    /// Calls that the view has seen, by id.
    calls: HashMap<CallId, Call>,
    /// With summaries in the log, what comes next must be later than these.
    compacted: Option<Times>,
    footing: Footing,
}

#[derive(Clone, Debug)]
struct Call {
    author: SmolStr,
    answered: bool,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    covered: f64,
    last: f64,
}

/// Whether the next event can be added to what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Footing {
    /// Yes.
    Firm,
    /// Not this time: build anew.
    Slipped,
    /// Never: something in this log makes the rules look back again and again.
    None,
}

impl Projection {
    pub(crate) fn new(view: Arc<ContentsView>) -> Self {
        // Work under a call starts with words from elsewhere in the log: look for them once.
        let footing = if view.isolation_scope.is_some() { Footing::Slipped } else { Footing::Firm };
        Self {
            view,
            taken: 0,
            history: History::new(),
            open: None,
            calls: HashMap::new(),
            compacted: None,
            footing,
        }
    }

    pub(crate) fn view(&self) -> &ContentsView {
        &self.view
    }

    /// The messages of the log as it is now.
    pub(crate) fn contents(&mut self, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) -> History {
        if self.footing == Footing::Firm {
            for event in events.iter_from(self.taken) {
                if !self.extend(event) {
                    self.footing = Footing::Slipped;
                    break;
                }
                self.taken += 1;
            }
        }
        match self.footing {
            Footing::Firm => {}
            Footing::Slipped if self.taken == events.len() => {}
            Footing::Slipped => self.rebuild(events),
            Footing::None => return build(&self.view, events, input).into_iter().collect(),
        }
        if self.footing == Footing::None {
            return build(&self.view, events, input).into_iter().collect();
        }
        let mut history = self.history.clone();
        if let Some(content) = self.open.as_ref().and_then(|open| self.unanswered(open)) {
            history.push(content);
        }
        history
    }

    /// Adds one event. `false` if a rule has to look back; nothing that was kept is then of use.
    fn extend(&mut self, event: &Arc<Event>) -> bool {
        if rewinds_to(event).is_some() || sub_branch(&self.view, event).is_some() {
            return false;
        }
        if !is_visible(&self.view, event) {
            return true;
        }
        let Some(content) = event.content.as_ref().filter(|_| !has_transcription(event)) else { return false };
        if event.compaction().is_some() || !self.is_in_time(event) {
            return false;
        }
        let quoted = is_foreign(&self.view, event)
            || answers_foreign_call(&self.view, Some(content), |id| Some(self.calls.get(id)?.author.clone()));
        if quoted {
            return self.close_open() && self.add_quoted(event, content);
        }
        match (content.has_calls(), content.has_responses()) {
            (true, true) => false,
            (false, true) => self.answer(content),
            (true, false) => self.close_open() && self.note_calls(event) && self.open(event),
            (false, false) => {
                let added = self.close_open() && event.long_running().is_empty();
                self.history.push(content.clone());
                added
            }
        }
    }

    fn is_in_time(&mut self, event: &Event) -> bool {
        let Some(times) = &mut self.compacted else { return true };
        let in_time = event.timestamp > times.covered && event.timestamp >= times.last;
        times.last = event.timestamp;
        in_time
    }

    fn add_quoted(&mut self, event: &Event, content: &Arc<Content>) -> bool {
        if !self.note_calls(event) {
            return false;
        }
        match quote(event, Some(content), self.view.foreign_thoughts) {
            Quoted::Empty => false,
            Quoted::Nothing => true,
            Quoted::Content(content) => {
                self.history.push(content);
                true
            }
        }
    }

    /// Remembers who made these calls. An id that comes again must be settled, and the same agent's.
    fn note_calls(&mut self, event: &Event) -> bool {
        event.calls().filter_map(|call| call.id.as_ref()).all(|id| match self.calls.get(id) {
            Some(call) => call.answered && call.author == event.author(),
            None => {
                let call = Call { author: event.source.author.clone(), answered: false };
                self.calls.insert(id.clone(), call);
                true
            }
        })
    }

    fn open(&mut self, event: &Arc<Event>) -> bool {
        self.open = Some(event.clone());
        names_only_own_calls(event) && has_distinct_ids(event)
    }

    /// Takes an answer, if it answers all calls of the event right before it and nothing else.
    fn answer(&mut self, content: &Arc<Content>) -> bool {
        let Some(open) = self.open.take() else { return false };
        if !answers_exactly(&open, content) {
            return false;
        }
        for id in content.responses().filter_map(|response| response.id.as_ref()) {
            if let Some(call) = self.calls.get_mut(id) {
                call.answered = true;
            }
        }
        if let Some(calls) = &open.content {
            self.history.push(for_request(calls.clone(), &self.view));
        }
        self.history.push(for_request(content.clone(), &self.view));
        true
    }

    /// Something else came behind calls that have no answer: what is left of them stays.
    fn close_open(&mut self) -> bool {
        if let Some(open) = self.open.take()
            && let Some(content) = self.unanswered(&open)
        {
            self.history.push(content);
        }
        true
    }

    /// What is left of a call event as long as nobody has answered it.
    fn unanswered(&self, open: &Event) -> Option<Arc<Content>> {
        let content = open.content.as_ref()?;
        let kept = |part: &Part| {
            let id = part.as_call().and_then(|call| call.id.as_ref()).filter(|id| !id.is_empty());
            let answered = |id: &CallId| self.calls.get(id).is_some_and(|call| call.answered);
            id.is_none_or(|id| open.long_running().contains(id) || answered(id))
        };
        if content.parts.iter().all(kept) {
            return Some(for_request(content.clone(), &self.view));
        }
        let parts: umbel_core::Parts = content.parts.iter().filter(|part| kept(part)).cloned().collect();
        let content = Content { role: content.role.clone(), parts };
        (!content.parts.is_empty()).then(|| for_request(Arc::new(content), &self.view))
    }

    /// Builds everything anew, and finds out from where it can be extended.
    fn rebuild(&mut self, events: &List<Arc<Event>>) {
        let all: Vec<Arc<Event>> = events.iter().cloned().collect();
        self.taken = all.len();
        let (mut items, coverage) = seen(&self.view, &all);
        if self.looks_back_again(&all, &items) {
            self.footing = Footing::None;
            return;
        }
        let last = items.last().map_or(f64::NEG_INFINITY, |item| item.event.timestamp);
        let summarised = items.iter().any(|item| item.kind == Kind::Summary);
        self.compacted = summarised.then_some(Times { covered: coverage.end(), last });
        self.calls = calls_of(&items, &self.view);
        self.open = items.pop_if(|item| is_open(&self.view, item)).map(|item| item.event);
        // A late answer rearranges what stands before it, and does so otherwise once something follows.
        let late = self.open.is_none() && items.last().is_some_and(|item| is_late(&self.view, &items, item));
        self.footing = if late { Footing::Slipped } else { Footing::Firm };
        self.history = leading(&self.view, &all, None).into_iter().chain(arrange(&self.view, items)).collect();
    }

    /// Whether there is something in this log that no extension can be sure of.
    fn looks_back_again(&self, events: &[Arc<Event>], items: &[Item]) -> bool {
        if self.view.isolation_scope.as_ref().is_some_and(|scope| asked(scope, events).is_none()) {
            return true;
        }
        if events.iter().any(|event| sub_branch(&self.view, event).is_some()) {
            return true;
        }
        let mut authors: HashMap<&CallId, &str> = HashMap::new();
        for item in items {
            let own = item.kind == Kind::Plain && !is_foreign(&self.view, &item.event);
            let odd = has_transcription(&item.event)
                || item.content.is_none()
                || (own && !names_only_own_calls(&item.event))
                || (own && item.has_calls() && (item.has_responses() || !has_distinct_ids(&item.event)));
            if odd {
                return true;
            }
            for id in item.calls().filter_map(|call| call.id.as_ref()) {
                let author = item.author(&self.view.agent);
                if *authors.entry(id).or_insert(author) != author {
                    return true;
                }
            }
            let unknown = |id: &CallId| !authors.contains_key(id);
            if own && item.responses().any(|response| response.id.as_ref().is_none_or(unknown)) {
                // Without an id, or without an earlier call: what it belongs to may yet change.
                return true;
            }
        }
        false
    }
}

fn calls_of(items: &[Item], view: &ContentsView) -> HashMap<CallId, Call> {
    let mut calls: HashMap<CallId, Call> = HashMap::new();
    for item in items {
        for id in item.calls().filter_map(|call| call.id.clone()) {
            let author = SmolStr::new(item.author(&view.agent));
            calls.entry(id).or_insert(Call { author, answered: false });
        }
        for id in item.responses().filter_map(|response| response.id.as_ref()) {
            if let Some(call) = calls.get_mut(id) {
                call.answered = true;
            }
        }
    }
    calls
}

/// Whether an item is a call event of this agent, or of the user.
fn is_open(view: &ContentsView, item: &Item) -> bool {
    item.kind == Kind::Plain && !is_foreign(view, &item.event) && item.has_calls()
}

fn is_late(view: &ContentsView, items: &[Item], item: &Item) -> bool {
    let Some(content) = item.content.as_ref().filter(|content| content.has_responses()) else { return false };
    if item.kind != Kind::Plain || is_foreign(view, &item.event) {
        return false;
    }
    let before = items.len().checked_sub(2).and_then(|index| items.get(index));
    !before.is_some_and(|before| is_open(view, before) && answers_exactly(&before.event, content))
}

/// Whether an event says of no other event's calls that their answer comes later.
fn names_only_own_calls(event: &Event) -> bool {
    event.long_running().iter().all(|id| event.calls().any(|call| call.id.as_ref() == Some(id)))
}

fn has_distinct_ids(event: &Event) -> bool {
    let mut ids: Vec<&CallId> = event.calls().filter_map(|call| call.id.as_ref()).collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    ids.len() == count
}

/// Whether each call has one answer and each answer its call.
fn answers_exactly(calls: &Event, content: &Content) -> bool {
    let same = |(call, response): (&FunctionCall, &umbel_core::FunctionResponse)| {
        call.id == response.id && (call.id.is_some() || call.name == response.name)
    };
    let (count, answers) = (calls.calls().count(), content.responses().count());
    if count != answers {
        return false;
    }
    if calls.calls().zip(content.responses()).all(same) {
        return true;
    }
    // Answers may stand in another order, if ids tell which is which.
    calls.calls().all(|call| {
        call.id.is_some() && content.responses().filter(|response| response.id == call.id).count() == 1
    })
}
