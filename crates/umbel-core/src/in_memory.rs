//! The session store that lives in this process.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;

use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::interrupt::Interrupt;
use crate::json::{Object, empty_object};
use crate::list::List;
use crate::log::LogEntry;
use crate::session::{Session, SessionKey, SessionMap, without_temp};
use crate::state::{State, StateScope};
use crate::store::{
    Abandoned, Acquire, Acquired, Entries, EventFilter, Idle, IdleFilter, Lease, NewSession, News,
    OpenQuestion, SessionStore, StoredUsage, Versions, WaitChange, Waits, refuse_nul, refuse_nul_keys,
};
use crate::title::{title_of, title_of_log};
use crate::weight::json_bytes;
use crate::work::Work;

/// Keeps sessions in memory. They end with the process.
#[derive(Default)]
pub struct InMemorySessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    sessions: SessionMap<Box<Slot>>,
    shared: SharedState,
    /// Sessions that work for another one, by that one.
    children: SessionMap<Vec<SessionKey>>,
    created: u64,
}

/// State that sessions share.
#[derive(Default)]
struct SharedState {
    users: HashMap<(SmolStr, SmolStr), Scoped>,
    apps: HashMap<SmolStr, Scoped>,
}

/// The state of a user or an app.
#[derive(Clone)]
struct Scoped {
    version: u64,
    keys: Arc<Object>,
}

struct Slot {
    incarnation: u64,
    /// The session it works for. Such a session is not listed.
    parent: Option<SessionKey>,
    /// State at creation; `state` is that with all deltas applied.
    first: Arc<Object>,
    state: Arc<Object>,
    log: List<LogEntry>,
    updated_at: f64,
    epoch: u64,
    held: Option<Held>,
    /// What it waits for; most wait for nothing.
    waits: Option<Box<Waits>>,
    /// What a list tells of the log, as far as the log was measured.
    measured: Measured,
}

/// The title and the size of a log. They are measured when somebody asks, each entry once, so that a turn pays nothing.
#[derive(Default)]
struct Measured {
    entries: usize,
    title: Option<String>,
    bytes: u64,
}

/// The lease of a session.
struct Held {
    owner: SmolStr,
    /// `None` if it never expires.
    until: Option<Instant>,
}

impl Held {
    fn new(owner: SmolStr, ttl: Duration) -> Self {
        Self { owner, until: Instant::now().checked_add(ttl) }
    }

    fn has_expired(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl InMemorySessions {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    // A panic while the lock is held cannot leave a half-made entry behind: every change is one call.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a session, found once.
    fn with<T>(
        &self,
        key: &SessionKey,
        work: impl FnOnce(&mut Slot, &mut SharedState) -> Result<T>,
    ) -> Work<'static, Result<T>> {
        let inner = &mut *self.lock();
        Work::done(match inner.sessions.get_mut(key) {
            Some(slot) => work(slot, &mut inner.shared),
            None => Err(not_found(key)),
        })
    }
}

impl Inner {
    /// A session and those that work for it.
    fn family(&self, key: &SessionKey) -> Vec<SessionKey> {
        let mut family = vec![key.clone()];
        for child in self.children.get(key).into_iter().flatten() {
            family.extend(self.family(child));
        }
        family
    }

    fn remove(&mut self, key: &SessionKey) {
        let Some(slot) = self.sessions.remove(key) else { return };
        if let Some(siblings) = slot.parent.and_then(|parent| self.children.get_mut(&parent)) {
            siblings.retain(|sibling| sibling != key);
        }
        if self.children.is_empty() {
            return;
        }
        for child in self.children.remove(key).unwrap_or_default() {
            self.remove(&child);
        }
    }
}

impl SharedState {
    fn user(&self, app: &str, user: &str) -> Scoped {
        if self.users.is_empty() {
            return Scoped::default();
        }
        self.users.get(&(app.into(), user.into())).cloned().unwrap_or_default()
    }

    fn app(&self, app: &str) -> Scoped {
        if self.apps.is_empty() {
            return Scoped::default();
        }
        self.apps.get(app).cloned().unwrap_or_default()
    }

    fn user_version(&self, key: &SessionKey) -> u64 {
        if self.users.is_empty() { 0 } else { self.user(key.app(), key.user()).version }
    }

    fn app_version(&self, key: &SessionKey) -> u64 {
        if self.apps.is_empty() { 0 } else { self.apps.get(key.app()).map_or(0, |app| app.version) }
    }

    /// Sets keys where their prefix says; `temp:` keys are nobody's.
    fn set(&mut self, key: &SessionKey, delta: &Object, state: &mut Arc<Object>) {
        for (name, value) in delta {
            let (scope, name) = StateScope::split(name);
            let keys = match scope {
                StateScope::Temp => continue,
                StateScope::Session => &mut *state,
                StateScope::User => {
                    self.users.entry((key.app().into(), key.user().into())).or_default().touch()
                }
                StateScope::App => self.apps.entry(key.app().into()).or_default().touch(),
            };
            Arc::make_mut(keys).insert(name.to_owned(), value.clone());
        }
    }
}

impl Slot {
    /// A session with nothing in it but its first state.
    fn new(incarnation: u64, parent: Option<SessionKey>, state: Arc<Object>) -> Self {
        Self {
            incarnation,
            parent,
            first: state.clone(),
            state,
            log: List::new(),
            updated_at: SystemClock.now(),
            // No lease of an earlier session under this key can fit.
            epoch: incarnation << 32,
            held: None,
            waits: None,
            measured: Measured::default(),
        }
    }

    /// Brings what is measured of the log up to date.
    fn measure(&mut self) {
        if self.measured.entries == 0 {
            self.measured.bytes = json_bytes(&*self.first);
        }
        for entry in self.log.iter_from(self.measured.entries) {
            if self.measured.title.is_none() {
                self.measured.title = title_of(std::slice::from_ref(entry));
            }
            self.measured.bytes += match entry {
                LogEntry::Event(event) => json_bytes(&**event),
                LogEntry::Record(step) => json_bytes(&**step),
            };
        }
        self.measured.entries = self.log.len();
    }

    fn versions(&self, key: &SessionKey, shared: &SharedState) -> Versions {
        Versions {
            incarnation: self.incarnation,
            session: self.log.len() as u64,
            user: shared.user_version(key),
            app: shared.app_version(key),
        }
    }

    fn session(&self, key: &SessionKey, shared: &SharedState, events: List<Arc<Event>>) -> Session {
        let user = shared.user(key.app(), key.user()).keys;
        let state = State::new(self.state.clone(), user, shared.app(key.app()).keys);
        let versions = self.versions(key, shared);
        Session { key: key.clone(), state, events, updated_at: self.updated_at, versions }
    }

    fn news(&self, key: &SessionKey, shared: &SharedState, known: Versions) -> News {
        let whole = known.incarnation != self.incarnation || known.session > self.log.len() as u64;
        let known = if whole { Versions::default() } else { known };
        let versions = self.versions(key, shared);
        let start = usize::try_from(known.session).unwrap_or(usize::MAX);
        News {
            versions,
            whole,
            entries: self.log.iter_from(start).cloned().collect(),
            session_state: whole.then(|| self.first.clone()),
            user_state: (whole || known.user != versions.user)
                .then(|| shared.user(key.app(), key.user()).keys),
            app_state: (whole || known.app != versions.app).then(|| shared.app(key.app()).keys),
        }
    }

    /// Appends. The entries were looked at before, so this does not fail half-way. Gives what the writer knows then.
    fn write(
        &mut self,
        key: &SessionKey,
        shared: &mut SharedState,
        entries: Entries,
        mut known: Versions,
    ) -> Versions {
        let (mut before, mut rewinds) = (None, false);
        if self.waits.is_some() || WaitChange::is_likely(&entries) {
            let mut waits = self.waits.take().unwrap_or_default();
            let change = WaitChange::of(&entries);
            rewinds = change.rewinds;
            waits.apply(change);
            self.waits = Some(waits).filter(|waits| !waits.is_empty());
        }
        for entry in entries {
            let LogEntry::Event(mut event) = entry else {
                self.log.push(entry);
                continue;
            };
            if event.is_partial() {
                continue;
            }
            self.updated_at = event.timestamp;
            if let Some(delta) = event.state_delta().filter(|delta| !delta.is_empty()) {
                before.get_or_insert_with(|| self.versions(key, shared));
                shared.set(key, delta, &mut self.state);
                if delta.keys().any(|key| key.starts_with("temp:")) {
                    event = Arc::new(without_temp(Arc::unwrap_or_clone(event)));
                }
            }
            self.log.push(LogEntry::Event(event));
        }
        if rewinds {
            self.measure();
            let log: Vec<LogEntry> = self.log.iter().cloned().collect();
            self.measured.title = title_of_log(&log);
            let waits = Waits::of_log(&log);
            self.waits = Some(Box::new(waits)).filter(|waits| !waits.is_empty());
        }
        if let Some(before) = before {
            let after = self.versions(key, shared);
            // What others wrote before this is still news to the writer.
            known.user = if known.user == before.user { after.user } else { known.user };
            known.app = if known.app == before.app { after.app } else { known.app };
        }
        Versions { incarnation: self.incarnation, session: self.log.len() as u64, ..known }
    }

    /// Whether the lease still holds and the log is as long as the writer thinks.
    fn check(&self, lease: &Lease, expected: Versions) -> Result<()> {
        if self.epoch != lease.epoch || self.incarnation != expected.incarnation {
            return Err(fenced(&lease.key));
        }
        self.check_version(&lease.key, expected)
    }

    fn check_version(&self, key: &SessionKey, expected: Versions) -> Result<()> {
        if self.log.len() as u64 == expected.session && self.incarnation == expected.incarnation {
            return Ok(());
        }
        let message = format!("session {key} has changed since it was read: read it again");
        Err(Error::new(ErrorKind::StaleSession, message))
    }

    fn is_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.has_expired(Instant::now()))
    }

    fn idle(&mut self, key: &SessionKey, shared: &SharedState) -> Idle {
        let held = self.is_held();
        self.measure();
        Idle {
            key: key.clone(),
            updated_at: self.updated_at,
            versions: self.versions(key, shared),
            held,
            abandoned: self.held.is_some() && !held,
            questions: self.waits.as_ref().map_or(0, |waits| waits.questions.len() as u64),
            awaited_calls: self.waits.as_ref().map_or(0, |waits| waits.calls.len() as u64),
            title: self.measured.title.clone(),
            bytes: self.measured.bytes,
        }
    }

    fn events(&self, filter: EventFilter) -> List<Arc<Event>> {
        let events = self.log.iter().filter_map(|entry| match entry {
            LogEntry::Event(event) => Some(event),
            LogEntry::Record(_) => None,
        });
        let after = filter.after.unwrap_or(f64::NEG_INFINITY);
        let events = events.filter(|event| event.timestamp >= after);
        match (filter.first, filter.recent) {
            (Some(first), _) => events.take(first).cloned().collect(),
            (None, None) => events.cloned().collect(),
            (None, Some(recent)) => {
                let all: Vec<_> = events.cloned().collect();
                let skip = all.len().saturating_sub(recent);
                all.into_iter().skip(skip).collect()
            }
        }
    }
}

impl Default for Scoped {
    fn default() -> Self {
        Self { version: 0, keys: empty_object() }
    }
}

impl Scoped {
    fn touch(&mut self) -> &mut Arc<Object> {
        self.version += 1;
        &mut self.keys
    }
}

/// The order of sessions by last change; those that changed together as they were made.
fn by_change(a: &Idle, b: &Idle) -> Ordering {
    a.updated_at.total_cmp(&b.updated_at).then(a.versions.incarnation.cmp(&b.versions.incarnation))
}

fn not_found(key: &SessionKey) -> Error {
    Error::new(ErrorKind::SessionNotFound, format!("there is no session {key}: create it first"))
}

fn busy(key: &SessionKey) -> Error {
    let message = format!("session {key} is held by another run: wait for it to end, or cancel it");
    Error::new(ErrorKind::SessionBusy, message)
}

fn abandoned(key: &SessionKey) -> Error {
    let message = format!("a run was cut short in session {key}: go on with it first, with `recover`");
    Error::new(ErrorKind::SessionAbandoned, message)
}

fn fenced(key: &SessionKey) -> Error {
    let message = format!("session {key} was taken over by another run; nothing was written");
    Error::new(ErrorKind::Fenced, message)
}

impl SessionStore for InMemorySessions {
    fn is_immediate(&self) -> bool {
        true
    }

    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        if let Err(error) = new.state.keys().try_for_each(|key| refuse_nul("name of a state key", key)) {
            return Work::done(Err(error));
        }
        let inner = &mut *self.lock();
        if let Some(parent) = new.parent.as_ref().filter(|parent| !inner.sessions.contains_key(parent)) {
            return Work::done(Err(not_found(parent)));
        }
        let mut state = empty_object();
        if !new.state.is_empty() && !inner.sessions.contains_key(&new.key) {
            inner.shared.set(&new.key, &new.state, &mut state);
        }
        let Entry::Vacant(place) = inner.sessions.entry(new.key.clone()) else {
            let message = format!("session {} exists already: choose another id or use that one", new.key);
            return Work::done(Err(Error::new(ErrorKind::AlreadyExists, message)));
        };
        inner.created += 1;
        let slot = place.insert(Box::new(Slot::new(inner.created, new.parent.clone(), state)));
        let session = slot.session(&new.key, &inner.shared, List::new());
        if let Some(parent) = new.parent {
            inner.children.entry(parent).or_default().push(new.key);
        }
        Work::done(Ok(session))
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        let inner = self.lock();
        let slot = inner.sessions.get(key);
        Work::done(Ok(slot.map(|slot| slot.session(key, &inner.shared, slot.events(filter)))))
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        let inner = self.lock();
        // By time, then as they were made, so that the order does not depend on the map.
        let mut found = BTreeMap::new();
        for (key, slot) in &inner.sessions {
            if key.app() == app && key.user() == user && slot.parent.is_none() {
                let session = slot.session(key, &inner.shared, List::new());
                found.insert((slot.updated_at.to_bits(), slot.incarnation), session);
            }
        }
        Work::done(Ok(found.into_values().collect()))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        self.lock().remove(key);
        Work::done(Ok(()))
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        let inner = &mut *self.lock();
        let Some(slot) = inner.sessions.get(key) else { return Work::done(Ok(())) };
        if slot.is_held() {
            return Work::done(Err(busy(key)));
        }
        if let Err(error) = slot.check_version(key, expected) {
            return Work::done(Err(error));
        }
        inner.remove(key);
        Work::done(Ok(()))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let inner = &mut *self.lock();
        let is_theirs = |key: &SessionKey| key.app() == app && key.user() == user;
        let theirs: Vec<SessionKey> = inner.sessions.keys().filter(|key| is_theirs(key)).cloned().collect();
        let family: Vec<SessionKey> = theirs.iter().flat_map(|key| inner.family(key)).collect();
        let held = family.iter().find(|key| inner.sessions.get(key).is_some_and(|slot| slot.is_held()));
        if let Some(held) = held {
            return Work::done(Err(busy(held)));
        }
        let before = inner.sessions.len();
        for key in &theirs {
            inner.remove(key);
        }
        inner.shared.users.remove(&(app.into(), user.into()));
        Work::done(Ok((before - inner.sessions.len()) as u64))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        Work::done(Ok(self.lock().shared.user(app, user).keys))
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        let inner = self.lock();
        Work::done(Ok(inner.sessions.get(key).map(|slot| slot.news(key, &inner.shared, known))))
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        if let Err(error) = refuse_nul_keys(&acquire.entries) {
            return Work::done(Err(error));
        }
        let key = acquire.key;
        if acquire.creates && acquire.expected.is_none() {
            let inner = &mut *self.lock();
            if let Entry::Vacant(place) = inner.sessions.entry(key.clone()) {
                inner.created += 1;
                place.insert(Box::new(Slot::new(inner.created, None, empty_object())));
            }
        }
        self.with(&key.clone(), |slot, shared| {
            if slot.is_held() {
                return Err(busy(&key));
            }
            if slot.held.is_some() && !acquire.claims {
                return Err(abandoned(&key));
            }
            if let Some(expected) = acquire.expected {
                slot.check_version(&key, expected)?;
            }
            let news = slot.news(&key, shared, acquire.known);
            slot.epoch += 1;
            slot.held = Some(Held::new(acquire.owner, acquire.ttl));
            let versions = slot.write(&key, shared, acquire.entries, news.versions);
            Ok(Acquired { lease: Lease { epoch: slot.epoch, key }, news, versions })
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        self.with(&lease.key, |slot, _| {
            if slot.epoch != lease.epoch {
                return Err(fenced(&lease.key));
            }
            if let Some(held) = &mut slot.held {
                held.until = Instant::now().checked_add(ttl);
            }
            Ok(())
        })
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.with(&lease.key, |slot, shared| {
            slot.check(lease, expected)?;
            refuse_nul_keys(&entries)?;
            Ok(slot.write(&lease.key, shared, entries, expected))
        })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.with(&lease.key, |slot, shared| {
            slot.check(lease, expected)?;
            refuse_nul_keys(&entries)?;
            slot.held = None;
            slot.epoch += 1;
            Ok(slot.write(&lease.key, shared, entries, expected))
        })
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.with(key, |slot, shared| {
            if slot.is_held() {
                return Err(busy(key));
            }
            if let Some(expected) = expected {
                slot.check_version(key, expected)?;
            }
            refuse_nul_keys(&entries)?;
            let known = expected.unwrap_or_else(|| slot.versions(key, shared));
            Ok(slot.write(key, shared, entries, known))
        })
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        let now = Instant::now();
        let mut found = BTreeMap::new();
        for (key, slot) in &self.lock().sessions {
            let Some(held) = slot.held.as_ref().filter(|held| held.has_expired(now)) else { continue };
            if key.app() == app {
                let (key, parent, owner) = (key.clone(), slot.parent.clone(), held.owner.clone());
                found.insert((held.until, slot.incarnation), Abandoned { key, parent, owner });
            }
        }
        Work::done(Ok(found.into_values().collect()))
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        let Inner { sessions, shared, .. } = &mut *self.lock();
        let is_asked = |key: &SessionKey| key.app() == app && user.is_none_or(|user| user == key.user());
        let mut found = Vec::new();
        for (key, slot) in sessions.iter_mut().filter(|(key, slot)| slot.parent.is_none() && is_asked(key)) {
            let Some(waits) = slot.waits.clone() else { continue };
            found.push((slot.idle(key, shared), waits));
        }
        found.sort_by(|a, b| by_change(&a.0, &b.0));
        let questions = found.into_iter().flat_map(|(Idle { key, updated_at, .. }, waits)| {
            let question =
                move |interrupt: Interrupt| OpenQuestion { key: key.clone(), interrupt, updated_at };
            waits.questions.into_iter().map(question)
        });
        Work::done(Ok(questions.collect()))
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        let Inner { sessions, shared, .. } = &mut *self.lock();
        let of_app = sessions.iter_mut().filter(|(key, slot)| key.app() == app && slot.parent.is_none());
        let mut found: Vec<Idle> = of_app
            .filter(|(key, _)| filter.user.is_none_or(|user| user == key.user()))
            .filter(|(_, slot)| slot.updated_at < filter.before)
            .map(|(key, slot)| slot.idle(key, shared))
            .collect();
        let order = |a: &Idle, b: &Idle| match filter.newest_first {
            true => by_change(b, a),
            false => by_change(a, b),
        };
        found.retain(|idle| filter.after.is_none_or(|last| order(last, idle).is_lt()));
        found.sort_by(order);
        found.truncate(filter.limit);
        Work::done(Ok(found))
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        let Inner { sessions, shared, .. } = &mut *self.lock();
        Work::done(Ok(sessions.get_mut(key).map(|slot| slot.idle(key, shared))))
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        let mut usage = StoredUsage::default();
        for (key, slot) in &mut self.lock().sessions {
            if key.app() == app && key.user() == user {
                slot.measure();
                usage.sessions += u64::from(slot.parent.is_none());
                usage.bytes += slot.measured.bytes;
            }
        }
        Work::done(Ok(usage))
    }
}

impl fmt::Debug for InMemorySessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemorySessions({} sessions)", self.lock().sessions.len())
    }
}
