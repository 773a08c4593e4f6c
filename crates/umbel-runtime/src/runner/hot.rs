//! Sessions kept at hand, so that a turn reads only what is new.

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use umbel_core::json::empty_object;
use umbel_core::session::SessionMap;
use umbel_core::store::News;
use umbel_core::{
    Content, ContentsView, Event, History, List, LogEntry, Outcome, RunStep, SessionKey, State, StateScope,
    Versions,
};

use crate::contents::build;
use crate::contents::projection::Projection;

/// A session as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct HotSession {
    pub(crate) versions: Versions,
    pub(crate) state: State,
    pub(crate) events: List<Arc<Event>>,
    /// What models were sent, by view; most sessions have one.
    projections: SmallVec<[Projection; 1]>,
    /// What handlers left in the last run, as long as it can go on.
    left: Vec<Arc<RunStep>>,
}

/// Views of one session that are kept; a team is seldom larger.
const KEPT_VIEWS: usize = 16;

impl HotSession {
    /// Takes in what is newer.
    pub(crate) fn take_in(&mut self, news: News) {
        if news.whole {
            let state = news.session_state.unwrap_or_else(empty_object);
            self.state = State::new(state, empty_object(), empty_object());
            self.events = List::new();
            self.projections.clear();
            self.left.clear();
        }
        for entry in news.entries {
            match entry {
                LogEntry::Event(event) => {
                    self.take_in_event(&event);
                    self.events.push(event);
                }
                LogEntry::Record(step) => self.remember(&step),
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

    /// Takes in what is newer, and the event that a run begins with.
    pub(crate) fn begin(&mut self, news: News, event: Arc<Event>) {
        self.take_in(news);
        self.take_in_event(&event);
        self.events.push(event);
    }

    /// Takes in what a run must remember, as far as handlers left it.
    pub(crate) fn remember(&mut self, step: &Arc<RunStep>) {
        match &**step {
            RunStep::Started { .. } => self.go_on(),
            RunStep::Edited { .. } | RunStep::Kept { .. } => {
                self.left.push(step.clone());
            }
            RunStep::Ended { outcome } => self.ended(outcome),
            _ => {}
        }
    }

    /// A run begins: if it answers the one before, it goes on with what that one left.
    pub(crate) fn go_on(&mut self) {
        let answers = self.events.last().is_some_and(|event| event.responses().next().is_some());
        if !answers {
            self.left.clear();
        }
    }

    /// What a run ends with is gone, unless it waits for an answer.
    pub(crate) fn ended(&mut self, outcome: &Outcome) {
        if !matches!(outcome, Outcome::Interrupted { .. }) {
            self.left.clear();
        }
    }

    /// What handlers left in the run that this one goes on with.
    pub(crate) fn left(&self) -> &[Arc<RunStep>] {
        &self.left
    }

    fn take_in_event(&mut self, event: &Event) {
        if let Some(delta) = event.state_delta() {
            self.state.apply(delta);
        }
    }

    /// What a model is sent.
    pub(crate) fn contents(&mut self, view: &ContentsView, input: Option<&Arc<Content>>) -> History {
        if view.current_turn_only {
            return build(view, &self.events, input).into_iter().collect();
        }
        let kept = self.projections.iter_mut().find(|projection| projection.view() == view);
        if let Some(projection) = kept {
            return projection.contents(&self.events, input);
        }
        if self.projections.len() == KEPT_VIEWS {
            self.projections.remove(0);
        }
        let mut projection = Projection::new(view.clone());
        let contents = projection.contents(&self.events, input);
        self.projections.push(projection);
        contents
    }
}

/// Sessions kept at hand while nobody uses them, so many and no more.
#[derive(Debug)]
pub(crate) struct HotSessions {
    sessions: Mutex<SessionMap<Box<HotSession>>>,
    limit: usize,
}

impl HotSessions {
    pub(crate) fn new(limit: usize) -> Self {
        Self { sessions: Mutex::default(), limit }
    }

    /// Takes a session out, for one run.
    pub(crate) fn take(&self, key: &SessionKey) -> Option<Box<HotSession>> {
        self.lock().remove(key)
    }

    /// Puts it back.
    pub(crate) fn put(&self, key: &SessionKey, mut session: Box<HotSession>) {
        if self.limit == 0 {
            return;
        }
        session.state.replace_scope(StateScope::Temp, empty_object());
        let mut sessions = self.lock();
        if sessions.len() >= self.limit {
            // Any will do: what is dropped is read again when it is needed.
            if let Some(victim) = sessions.keys().next().cloned() {
                sessions.remove(&victim);
            }
        }
        sessions.insert(key.clone(), session);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SessionMap<Box<HotSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
