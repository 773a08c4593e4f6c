//! What a model is sent, kept and extended as the log grows.
//!
//! In nearly all sessions the next event just adds a message: words, or a call with its answers right behind it.
//! Those are added here at a cost that does not depend on the length of the log. Anything that makes a rule look back
//! (a rewind, a summary, an answer that comes late) has the whole built anew once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    CallId, Content, ContentsView, Event, FunctionCall, FunctionResponse, History, List, Part, Payload,
};

use super::compaction::Frontier;
use super::foreign::{answers_foreign_call, call_authors, quote};
use super::item::{Item, known};
use super::pairing::{drop_orphan_calls, late_answers};
use super::visible::{has_transcription, is_foreign, is_visible, tool_branches};
use super::{asked, build, contents, for_request, leading, present, seen, settle};

/// The messages of one view, kept.
#[derive(Debug)]
pub(crate) struct Projection {
    view: ContentsView,
    /// How many events of the log are taken in.
    taken: usize,
    /// Their messages, but for `open`.
    history: History,
    /// What is known of calls. Boxed, since many sessions never see one.
    calls: Option<Box<Calls>>,
    /// Present if there are summaries in the log.
    frontier: Option<Box<Frontier>>,
    /// What the user said, as far as the first message is made of it.
    input: Option<Arc<Content>>,
    /// Whether the next event can be added to what is kept.
    firm: bool,
    #[cfg(test)]
    pub(super) rebuilds: usize,
}

/// What a projection knows of calls.
#[derive(Debug, Default)]
struct Calls {
    /// The last item, if it has calls of this agent that may be answered next.
    open: Option<Item>,
    known: HashMap<CallId, Known>,
}

/// What a projection knows of one call.
#[derive(Debug, Default)]
struct Known {
    /// Who made it, if it was seen.
    author: Option<SmolStr>,
    /// It stays: see [`settled`](super::pairing::settled).
    settled: bool,
    /// Another call with this id would change what stands already: it would bring back a call or a response that was
    /// dropped, hide the branch of a tool, or be the call that this agent works under.
    watched: bool,
}

impl Projection {
    pub(crate) fn new(view: ContentsView) -> Self {
        let calls = view.isolation_scope.as_ref().map(|scope| {
            let known = HashMap::from([(scope.clone().into(), Known { watched: true, ..Known::default() })]);
            Box::new(Calls { open: None, known })
        });
        Self {
            view,
            taken: 0,
            history: History::new(),
            calls,
            frontier: None,
            input: None,
            firm: true,
            #[cfg(test)]
            rebuilds: 0,
        }
    }

    pub(crate) fn view(&self) -> &ContentsView {
        &self.view
    }

    /// The messages of the log as it is now.
    pub(crate) fn contents(&mut self, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) -> History {
        if self.view.current_turn_only {
            return build(&self.view, events, input).into_iter().collect();
        }
        if !self.extend_to(events, input) {
            self.rebuild(events, input);
        }
        let mut history = self.history.clone();
        if let Some(content) = self.calls.as_ref().and_then(|calls| calls.unanswered(calls.open.as_ref()?)) {
            history.push(for_request(content, &self.view));
        }
        history
    }

    /// Adds what is new. `false` if a rule has to look back; nothing that was kept is then of use.
    fn extend_to(&mut self, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) -> bool {
        let scope = self.view.isolation_scope.as_deref();
        let starts_from_input = scope.is_some_and(|scope| self.watches(scope));
        if starts_from_input && self.input.as_ref() != input {
            return false;
        }
        for event in events.iter_from(self.taken) {
            if !self.firm || !self.extend(event) {
                return false;
            }
            self.taken += 1;
        }
        true
    }

    fn extend(&mut self, event: &Arc<Event>) -> bool {
        let mut ids = event.calls().filter_map(|call| call.id.as_ref());
        if event.rewinds_to().is_some() || ids.any(|id| self.watches(id.as_str())) {
            return false;
        }
        if !is_visible(&self.view, event) {
            return true;
        }
        let looks_back = event.compaction().is_some()
            || has_transcription(event)
            || tool_branches(&self.view, event).next().is_some()
            || self.frontier.as_mut().is_some_and(|frontier| !frontier.admits(event))
            || !self.note_authors(event);
        let Some(content) = event.content.as_ref().filter(|_| !looks_back) else { return false };
        let calls = self.calls.as_ref();
        let answers_foreign =
            || calls.is_some_and(|calls| answers_foreign_call(&self.view, content, |id| calls.author_of(id)));
        if is_foreign(&self.view, event) || answers_foreign() {
            if let Some(content) = quote(event.author(), content, self.view.foreign_thoughts) {
                self.close();
                self.push(Arc::new(content));
            }
            return true;
        }
        if !event.long_running().iter().all(|id| event.calls().any(|call| call.id.as_ref() == Some(id))) {
            // It says of another event's calls that their answer comes later: they may have been dropped.
            return false;
        }
        match (content.has_calls(), content.has_responses()) {
            (true, true) => false,
            (false, true) => self.answer(content),
            (true, false) => {
                self.close();
                self.open(event);
                true
            }
            (false, false) => {
                self.close();
                self.push(content.clone());
                true
            }
        }
    }

    /// Remembers who made these calls. `false` if the id was another's: then its answers change sides.
    fn note_authors(&mut self, event: &Event) -> bool {
        let author = &event.source.author;
        event.calls().filter_map(|call| known(&call.id)).all(|id| {
            let call = self.calls.get_or_insert_default().known.entry(id.clone()).or_default();
            call.author.get_or_insert_with(|| author.clone()) == author
        })
    }

    /// Whether another call with this id would change what stands already.
    fn watches(&self, id: &str) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.known.get(id).is_some_and(|call| call.watched))
    }

    /// Takes calls. Until they are answered they do not stay, unless their answer comes later.
    fn open(&mut self, event: &Arc<Event>) {
        let calls = self.calls.get_or_insert_default();
        for id in event.long_running() {
            calls.get(id).settled = true;
        }
        for id in event.calls().filter_map(|call| known(&call.id)) {
            let call = calls.get(id);
            call.watched |= !call.settled;
        }
        calls.open = Some(Item::plain(event.clone()));
    }

    /// Takes an answer, if it answers all calls of the item right before it and nothing else.
    fn answer(&mut self, content: &Arc<Content>) -> bool {
        let Some(calls) = &mut self.calls else { return false };
        let Some(open) = calls.open.take().filter(|open| answers_exactly(open, content)) else {
            return false;
        };
        for id in content.responses().filter_map(|response| response.id.as_ref()) {
            let call = calls.get(id);
            call.watched = false;
            call.settled = true;
        }
        for content in open.content.iter().chain([content]) {
            self.push(content.clone());
        }
        true
    }

    /// Something else came behind calls that have no answer: what is left of them stays.
    fn close(&mut self) {
        let Some(calls) = &mut self.calls else { return };
        let Some(open) = calls.open.take() else { return };
        if let Some(content) = calls.unanswered(&open) {
            self.push(content);
        }
    }

    fn push(&mut self, content: Arc<Content>) {
        self.history.push(for_request(content, &self.view));
    }

    /// Builds everything anew, and finds out whether it can be extended from there.
    fn rebuild(&mut self, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) {
        let all: Vec<Arc<Event>> = events.iter().cloned().collect();
        let (items, frontier) = seen(&self.view, &all);
        let mut calls = Calls::default();
        let authors = call_authors(&items, &self.view.agent);
        for id in items.iter().flat_map(Item::responses).filter_map(|response| known(&response.id)) {
            calls.get(id).watched |= !authors.contains_key(id);
        }
        for (id, author) in authors {
            calls.get(&id).author = Some(author);
        }
        let items = present(&self.view, items);
        // Late answers rearrange what stands before them, and do so otherwise once something follows. An item with
        // calls and responses counts as a call for some rules and not for others.
        let mixed = items.iter().any(|item| item.has_calls() && item.has_responses());
        self.firm = !mixed && late_answers(&items).is_none();
        let called = call_ids(&items);
        let (items, settled) = settle(&self.view, items);
        let unsettled = called.into_iter().filter(|id| !settled.contains(id));
        let branches = all.iter().flat_map(|event| tool_branches(&self.view, event)).map(CallId::from);
        let scope = self.view.isolation_scope.iter().filter(|scope| asked(scope, &all).is_none());
        for id in unsettled.chain(branches).chain(scope.cloned().map(CallId::from)) {
            calls.get(&id).watched = true;
        }
        for id in &settled {
            calls.get(id).settled = true;
        }
        self.history = contents(&self.view, leading(&self.view, &all, input), items).collect();
        self.calls = Some(Box::new(calls));
        self.frontier = frontier.map(Box::new);
        self.input = input.cloned();
        self.taken = all.len();
        #[cfg(test)]
        {
            self.rebuilds += 1;
        }
    }
}

impl Calls {
    /// What is known of one call, to be changed.
    fn get(&mut self, id: &CallId) -> &mut Known {
        self.known.entry(id.clone()).or_default()
    }

    fn author_of(&self, id: &CallId) -> Option<&SmolStr> {
        self.known.get(id)?.author.as_ref()
    }

    /// What is left of a call event as long as nobody has answered it.
    fn unanswered(&self, open: &Item) -> Option<Arc<Content>> {
        drop_orphan_calls(open, |id| self.known.get(id).is_some_and(|call| call.settled))?.content
    }
}

fn call_ids(items: &[Item]) -> HashSet<CallId> {
    items.iter().flat_map(Item::calls).filter_map(|call| known(&call.id)).cloned().collect()
}

/// Whether each call has one answer and each answer its call, in whatever order.
fn answers_exactly(open: &Item, content: &Content) -> bool {
    if let (
        [Part { payload: Payload::Call(call), .. }],
        [Part { payload: Payload::Response(response), .. }],
    ) = (open.parts(), content.parts.as_slice())
    {
        return call.id == response.id && (known(&call.id).is_some() || call.name == response.name);
    }
    let key = |id: &Option<CallId>, name: &str| (id.clone(), known(id).is_none().then(|| name.to_owned()));
    let call = |call: &FunctionCall| key(&call.id, &call.name);
    let response = |response: &FunctionResponse| key(&response.id, &response.name);
    let mut calls: Vec<_> = open.calls().map(call).collect();
    let mut answers: Vec<_> = content.responses().map(response).collect();
    calls.sort();
    answers.sort();
    calls == answers
}
