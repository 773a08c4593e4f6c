//! Sessions kept at hand, so that a turn reads only what is new.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use smallvec::SmallVec;
use smol_str::SmolStr;
use umbel_core::credential_manager::TOOLSET_AUTH;
use umbel_core::json::empty_object;
use umbel_core::session::SessionMap;
use umbel_core::store::{Acquired, News};
use umbel_core::tool_context::{ABOUT, ONCE};
use umbel_core::weight::event_bytes;
use umbel_core::{
    Address, Answer, CallId, Content, ContentsView, DecisionKind, Event, FunctionCall, History, Interrupt,
    List, LogEntry, Outcome, Question, Result, RunId, RunStep, SessionKey, SessionStore, Source, State,
    StateScope, Versions, live_entries,
};

use super::answers::digest;
use crate::contents::build;
use crate::contents::projection::Projection;
use crate::contents::visible::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use crate::flow::CONFIRM_LAYER;
use crate::spans::KEPT_TRACE;

/// How many traces of runs are known while a question is open: that of the run which asked comes first, and who never answers
/// must not make them ever more.
const TRACES: usize = 16;

/// A session as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct HotSession {
    pub(crate) versions: Versions,
    pub(crate) state: State,
    /// All events, those that a rewind made void too.
    events: List<Arc<Event>>,
    /// The events that no rewind made void, where that is not all of them. Whatever is derived goes by these.
    live: Option<List<Arc<Event>>>,
    /// What models were sent, by view; most sessions have one.
    projections: SmallVec<[Projection; 1]>,
    /// What the last runs left behind, as long as it can be gone on with.
    trail: Option<Box<Trail>>,
    /// So many events were weighed, and what they take on the heap.
    weighed: usize,
    weight: usize,
}

/// What runs left behind that can be gone on with: after an answer, a cancellation or a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trail {
    /// Where in the log the first of those runs begins.
    pub(crate) from: usize,
    /// Their records, each with how many events stood before it.
    pub(crate) records: Vec<(usize, Arc<RunStep>)>,
    /// Questions that nobody answered yet.
    pub(crate) open: Vec<Interrupt>,
    /// Questions that were answered, and where in the log.
    pub(crate) answers: Vec<(usize, Interrupt, Answer)>,
    /// The run that has not ended.
    pub(crate) running: Option<RunId>,
    /// A digest of the agents that began it.
    pub(crate) fingerprint: u64,
    /// Whether the last run was cancelled or failed.
    pub(crate) can_go_on: bool,
}

impl Trail {
    /// Takes in what a message of the user answers.
    fn take_answers(&mut self, event: &Event, at: usize) {
        for response in event.responses() {
            let place = self.open.iter().position(|open| response.id.as_ref() == Some(&open.id));
            let Some(asked) = place.map(|place| self.open.remove(place)) else { continue };
            let given = response.response.clone().unwrap_or_default();
            // What is no answer was refused, or is an older session's; then nobody was told anything.
            let Ok(answer) = Answer::from_response(&asked.reason, &given) else { continue };
            self.forget_from(&asked.address);
            self.answers.push((at, asked, answer));
        }
    }

    /// Whether an answer has not yet had its effect: the call was not made since, or waits for something else before it can
    /// be; the agent whose hook asked has said nothing since. What was said to an agent itself, before it began, or about its
    /// toolsets counts as long as its turn lasts.
    pub(crate) fn still_counts(&self, events: &List<Arc<Event>>, at: usize, asked: &Interrupt) -> bool {
        let address = &asked.address;
        let is_same = |other: &Address| other.call == address.call && other.event == address.event;
        // A call that asked several questions was made when the last of them was answered.
        let last =
            self.answers.iter().filter(|(_, asked, _)| address.call.is_some() && is_same(&asked.address));
        let at = last.map(|(at, _, _)| *at).max().unwrap_or(at);
        let mut since =
            events.iter_from(at + 1).filter(|event| !event.is_user() && address.is_of(&event.source));
        let Some(call) = &address.call else {
            let is_whole = |layer: &SmolStr| {
                layer.ends_with(".before_agent")
                    || [TOOLSET_AUTH, ABOUT].iter().any(|own| layer.starts_with(own))
            };
            let whole_turn = address.layer.as_ref().is_none_or(is_whole);
            return if whole_turn {
                !self.is_done_since(at, address)
            } else {
                since.all(|event| asks(event))
            };
        };
        let is_made = since.any(|event| {
            let mut responses = event.responses().filter(|response| response.id.as_ref() == Some(call));
            event.answered().any(|id| id == call) && !responses.any(|response| response.is_waiting())
        });
        !is_made || self.open.iter().any(|open| is_same(&open.address))
    }

    /// Forgets what nobody goes on with. A question may be answered much later: what its call did once is not done again
    /// then, and its trace is known.
    fn forget(&mut self) {
        let (is_open, mut traces) = (!self.open.is_empty(), 0);
        let mut stays = |step: &RunStep| match step {
            RunStep::Kept { kept } if kept.key.starts_with(KEPT_TRACE) => {
                traces += 1;
                traces <= TRACES
            }
            RunStep::Kept { kept } => kept.key.starts_with(ONCE),
            _ => false,
        };
        self.answers.clear();
        self.records.retain(|(_, step)| is_open && stays(step));
    }

    /// Whether the agent at that place ended a turn after so many events.
    fn is_done_since(&self, at: usize, address: &Address) -> bool {
        let Address { agent, branch, isolation_scope, .. } = address.clone();
        let source = Source { author: agent, branch, isolation_scope };
        let is_done = |step: &RunStep| matches!(step, RunStep::AgentDone { done } if done.is_of(&source));
        self.records.iter().any(|(place, step)| *place > at && is_done(step))
    }

    /// Forgets answers to this question and those after it from the same place: it is asked anew.
    fn forget_from(&mut self, address: &Address) {
        self.answers
            .retain(|(_, asked, _)| asked.address.nth < address.nth || !asked.address.is_place(address));
    }
}

/// Whether all that an event says is a question to people.
fn asks(event: &Event) -> bool {
    let mut calls = event.calls().peekable();
    calls.peek().is_some()
        && calls.all(|call| [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL].contains(&call.name.as_str()))
}

/// Whether a call from there on waits for an answer that is not there.
fn awaits(events: &List<Arc<Event>>, from: usize) -> bool {
    let mut answered: Vec<&CallId> = Vec::new();
    events.iter_from(from).rev().any(|event| {
        answered.extend(event.responses().filter_map(|response| response.id.as_ref()));
        event.long_running().iter().any(|id| !answered.contains(&id))
    })
}

/// The questions to people that an event asks.
fn questions(event: &Event) -> Vec<Interrupt> {
    let waiting = event.long_running();
    let question = |call: &FunctionCall| {
        let reason = match call.name.as_str() {
            REQUEST_CONFIRMATION => Question::CONFIRMATION,
            REQUEST_CREDENTIAL => Question::CREDENTIAL,
            REQUEST_INPUT => Question::INPUT,
            _ => return None,
        };
        let id = call.id.clone().filter(|id| waiting.contains(id))?;
        let about = |key: &str| call.args.as_ref()?.get(key).cloned();
        let shown = about("originalFunctionCall").and_then(|shown| serde_json::from_value(shown).ok());
        let asked = shown.as_ref().and_then(|shown: &FunctionCall| shown.id.clone());
        let waits = about("functionCallId").and_then(|id| Some(CallId::from(id.as_str()?)));
        let asked = asked.or(waits);
        let credential = about("authConfig").and_then(|config| config.get("credentialKey").cloned());
        let confirmation = about("toolConfirmation");
        let hint = confirmation.as_ref().and_then(|asked| Some(asked.get("hint")?.as_str()?.to_owned()));
        let message = hint.or_else(|| Some(about("message")?.as_str()?.to_owned()));
        let mut address = Address::new(&event.source, asked.or_else(|| Some(id.clone())));
        let is_gate = shown.is_some() && reason == Question::CONFIRMATION;
        address.layer = is_gate.then(|| CONFIRM_LAYER.into());
        Some(Interrupt {
            id,
            address,
            reason: reason.into(),
            message,
            response_schema: about("responseSchema"),
            expires_at: None,
            digest: shown.as_ref().map(digest),
            call: shown,
            payload: confirmation
                .and_then(|asked| asked.get("payload").cloned())
                .or_else(|| credential.map(|key| json!({"credentialKey": key}))),
            decisions: if is_gate { DecisionKind::ALL.to_vec() } else { Vec::new() },
            any_tool: false,
            together: false,
        })
    };
    event.calls().filter_map(question).collect()
}

/// Views of one session that are kept; a team is seldom larger.
const KEPT_VIEWS: usize = 16;

impl HotSession {
    /// The events that no rewind made void.
    pub(crate) fn live(&self) -> &List<Arc<Event>> {
        self.live.as_ref().unwrap_or(&self.events)
    }

    /// All events, those that a rewind made void too.
    pub(super) fn all_events(&self) -> &List<Arc<Event>> {
        &self.events
    }

    /// Weighs the events that came since the last time. Bytes on the heap, roughly.
    fn weigh(&mut self) -> usize {
        self.weight += self.events.iter_from(self.weighed).map(|event| event_bytes(event)).sum::<usize>();
        self.weighed = self.events.len();
        self.weight
    }

    /// Adds an event to the log, as far as it is known here.
    pub(super) fn push_event(&mut self, event: Arc<Event>) {
        if let Some(live) = &mut self.live {
            live.push(event.clone());
        }
        self.events.push(event);
    }

    /// Takes in what is newer. If a rewind is among it, that must be the whole log: see [`changes`].
    pub(crate) fn take_in(&mut self, news: News) {
        if news.whole {
            let state = news.session_state.unwrap_or_else(empty_object);
            self.state = State::new(state, empty_object(), empty_object());
            (self.events, self.live) = (List::new(), None);
            (self.weighed, self.weight) = (0, 0);
            self.projections.clear();
            self.trail = None;
        }
        let mut live = live_entries(&news.entries).map(Vec::into_iter);
        if live.is_some() {
            self.live.get_or_insert_with(|| self.events.clone());
        }
        for entry in news.entries {
            let is_live = live.as_mut().and_then(Iterator::next).unwrap_or(true);
            match entry {
                LogEntry::Event(event) if is_live => self.push(event),
                LogEntry::Event(event) => {
                    if let Some(delta) = event.state_delta() {
                        self.state.apply(delta);
                    }
                    self.events.push(event);
                }
                LogEntry::Record(step) if is_live => self.remember(&step, self.live().len()),
                LogEntry::Record(_) => {}
            }
        }
        // The keys of user and app include what this session wrote, so they come last.
        if let Some(user) = news.user_state {
            self.state.replace_scope(StateScope::User, user);
        }
        if let Some(app) = news.app_state {
            self.state.replace_scope(StateScope::App, app);
        }
        self.versions = news.versions;
    }

    /// Takes in an event that was stored.
    pub(crate) fn push(&mut self, event: Arc<Event>) {
        if let Some(delta) = event.state_delta() {
            self.state.apply(delta);
        }
        self.note_questions(&event);
        self.push_event(event);
    }

    /// Takes in what an event asks people, or what it answers.
    pub(crate) fn note_questions(&mut self, event: &Event) {
        if !event.long_running().is_empty() {
            let asked = questions(event);
            if !asked.is_empty() {
                self.trail().open.extend(asked);
            }
        }
        if let Some(trail) = self.trail.as_deref_mut().filter(|trail| !trail.open.is_empty())
            && event.is_user()
        {
            let at = self.live.as_ref().unwrap_or(&self.events).len();
            trail.take_answers(event, at);
        }
    }

    /// Takes in what a run must remember, written when the log had so many events.
    pub(crate) fn remember(&mut self, step: &Arc<RunStep>, at: usize) {
        match &**step {
            RunStep::Started { fingerprint } => {
                self.trail().fingerprint = *fingerprint;
                self.started();
            }
            RunStep::Continued { continued } => {
                let trail = self.trail();
                trail.running = Some(continued.run.clone());
                trail.can_go_on = false;
                trail.fingerprint = continued.fingerprint;
            }
            RunStep::Asked { interrupts } => self.asked(interrupts),
            RunStep::Ended { outcome } => self.ended(outcome),
            _ => self.trail().records.push((at, step.clone())),
        }
    }

    /// The same for what stood between the events of a run, if anybody can go on with it. Questions are known already.
    pub(crate) fn remember_all(&mut self, records: impl IntoIterator<Item = (usize, Arc<RunStep>)>) {
        let Some(trail) = &mut self.trail else { return };
        let is_known = |step: &RunStep| matches!(step, RunStep::Asked { .. });
        trail.records.extend(records.into_iter().filter(|(_, step)| !is_known(step)));
        trail.records.sort_by_key(|(at, _)| *at);
    }

    /// A run begins: if it answers the one before, it goes on with what that one left.
    pub(crate) fn started(&mut self) {
        if self.trail.is_none() {
            return;
        }
        let last = self.live().last();
        let answers = last.is_some_and(|event| event.responses().next().is_some());
        let (run, from) = (last.map(|event| event.run.clone()), self.live().len().saturating_sub(1));
        let trail = self.trail();
        trail.running = run;
        trail.can_go_on = false;
        if !answers {
            trail.from = from;
            trail.forget();
        }
    }

    /// People are asked: what is in the log for models, and now what the runtime knows besides.
    pub(crate) fn asked(&mut self, interrupts: &[Interrupt]) {
        let trail = self.trail();
        trail.open.retain(|open| interrupts.iter().all(|asked| asked.id != open.id));
        for asked in interrupts {
            trail.forget_from(&asked.address);
            trail.open.push(asked.clone());
        }
    }

    /// What a run ends with is gone, unless something can go on with it.
    pub(crate) fn ended(&mut self, outcome: &Outcome) {
        let events = self.live.as_ref().unwrap_or(&self.events);
        let Some(trail) = self.trail.as_deref_mut() else { return };
        trail.running = None;
        trail.can_go_on = matches!(outcome, Outcome::Cancelled | Outcome::Failed { .. });
        if *outcome == Outcome::Finished && !awaits(events, trail.from) {
            trail.forget();
            if trail.open.is_empty() {
                self.trail = None;
            }
        }
    }

    /// What the last runs left behind.
    pub(crate) fn trail(&mut self) -> &mut Trail {
        let events = self.live.as_ref().unwrap_or(&self.events);
        let from = events.len();
        self.trail.get_or_insert_with(|| {
            // Most runs leave nothing, so this is made when there is something: the run began before.
            let run = events.last().map(|event| event.run.clone());
            let back = events.iter().rev().take_while(|event| Some(&event.run) == run.as_ref()).count();
            Box::new(Trail { from: from - back, running: run, ..Trail::default() })
        })
    }

    /// The questions that are open.
    pub(crate) fn open(&self) -> &[Interrupt] {
        self.trail.as_deref().map(|trail| trail.open.as_slice()).unwrap_or_default()
    }

    /// The run that began and has not ended, and where in the log the first of those begins that it goes on with.
    pub(crate) fn last_run(&self) -> Option<&Trail> {
        self.trail.as_deref()
    }

    /// What a model is sent.
    pub(crate) fn contents(&mut self, view: &ContentsView, input: Option<&Arc<Content>>) -> History {
        let events = self.live.as_ref().unwrap_or(&self.events);
        if view.current_turn_only {
            return build(view, events, input).into_iter().collect();
        }
        let kept = self.projections.iter_mut().find(|projection| projection.view() == view);
        if let Some(projection) = kept {
            return projection.contents(events, input);
        }
        if self.projections.len() == KEPT_VIEWS {
            self.projections.remove(0);
        }
        let mut projection = Projection::new(view.clone());
        let contents = projection.contents(events, input);
        self.projections.push(projection);
        contents
    }
}

/// What is newer than a reader knows. That is the whole log if it was rewound since: what a rewind takes back may be
/// older than what the reader would get.
pub(super) async fn changes(
    store: &dyn SessionStore,
    key: &SessionKey,
    known: Versions,
) -> Result<Option<News>> {
    match store.news(key, known).await? {
        Some(news) if rewinds(&news) => store.news(key, Versions::default()).await,
        news => Ok(news),
    }
}

/// The same for a session that was just taken: the log before what was appended then.
pub(super) async fn changes_before(store: &dyn SessionStore, acquired: Acquired) -> Result<Acquired> {
    if !rewinds(&acquired.news) {
        return Ok(acquired);
    }
    let Acquired { lease, news, versions } = acquired;
    let Some(mut whole) = store.news(&lease.key, Versions::default()).await? else {
        return Ok(Acquired { lease, news, versions });
    };
    whole.entries.truncate(usize::try_from(news.versions.session).unwrap_or(usize::MAX));
    whole.versions = news.versions;
    Ok(Acquired { lease, news: whole, versions })
}

/// Whether a log was rewound in a part that does not show what that made void.
fn rewinds(news: &News) -> bool {
    !news.whole
        && news.entries.iter().any(|entry| entry.event().is_some_and(|event| event.rewinds_to().is_some()))
}

/// A cache of sessions that no run holds, bounded by their number and by their bytes.
#[derive(Debug)]
pub(crate) struct HotSessions {
    sessions: Mutex<Cached>,
    limit: usize,
    /// `None` where the store shares its events with the cache, so that the cache adds next to nothing.
    limit_bytes: Option<usize>,
}

#[derive(Debug, Default)]
struct Cached {
    by_key: SessionMap<Box<HotSession>>,
    bytes: usize,
}

impl Cached {
    fn remove(&mut self, key: &SessionKey) -> Option<Box<HotSession>> {
        let session = self.by_key.remove(key)?;
        self.bytes = self.bytes.saturating_sub(session.weight);
        Some(session)
    }

    /// Evicts any session: it is read from the store again when it is needed.
    fn evict(&mut self) {
        if let Some(victim) = self.by_key.keys().next().cloned() {
            self.remove(&victim);
        }
    }
}

impl HotSessions {
    pub(crate) fn new(limit: usize, limit_bytes: Option<usize>) -> Self {
        Self { sessions: Mutex::default(), limit, limit_bytes }
    }

    /// Takes a session out, for one run.
    pub(crate) fn take(&self, key: &SessionKey) -> Option<Box<HotSession>> {
        self.lock().remove(key)
    }

    /// Puts it back, and evicts others until all fit.
    pub(crate) fn put(&self, key: &SessionKey, mut session: Box<HotSession>) {
        if self.limit == 0 {
            return;
        }
        session.state.replace_scope(StateScope::Temp, empty_object());
        let most = self.limit_bytes.unwrap_or(usize::MAX);
        let bytes = if self.limit_bytes.is_some() { session.weigh() } else { 0 };
        let mut cached = self.lock();
        if bytes > most {
            cached.remove(key);
            return;
        }
        if cached.by_key.len() >= self.limit || cached.bytes > most - bytes {
            cached.remove(key);
            while cached.by_key.len() >= self.limit || cached.bytes > most - bytes {
                cached.evict();
            }
        }
        cached.bytes += bytes;
        if let Some(old) = cached.by_key.insert(key.clone(), session) {
            cached.bytes = cached.bytes.saturating_sub(old.weight);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cached> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> SessionKey {
        SessionKey::new("app", "ann", n.to_string()).unwrap()
    }

    fn session(bytes: usize) -> Box<HotSession> {
        let mut session = Box::<HotSession>::default();
        let event = Event::new(RunId::from("r"), Source::user());
        session.push(Arc::new(event.with_content(Content::user(&*"x".repeat(bytes)))));
        session
    }

    #[test]
    fn cached_sessions_are_bounded_by_bytes() {
        let cache = HotSessions::new(1_000, Some(1 << 20));
        for n in 0..100 {
            cache.put(&key(n), session(100_000));
            assert!(cache.lock().bytes <= 1 << 20);
        }
        assert_eq!(cache.lock().by_key.len(), 10);
        // One that is put again, grown, counts once.
        let last = cache.take(&key(99)).unwrap();
        cache.put(&key(99), last);
        cache.put(&key(99), session(100_000));
        assert_eq!(cache.lock().by_key.len(), 10);
        cache.put(&key(200), session(2 << 20));
        assert!(cache.take(&key(200)).is_none(), "larger than the cache");
        for n in 0..100 {
            cache.take(&key(n));
        }
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn cached_sessions_are_bounded_by_number() {
        let cache = HotSessions::new(3, None);
        (0..10).for_each(|n| cache.put(&key(n), session(100)));
        assert_eq!(cache.lock().by_key.len(), 3);
        let none = HotSessions::new(3, Some(0));
        none.put(&key(0), session(1));
        assert!(none.take(&key(0)).is_none());
    }
}
