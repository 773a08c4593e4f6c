//! The session store that lives in this process.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::json::Object;
use crate::list::List;
use crate::log::LogEntry;
use crate::session::{Session, SessionKey, without_temp};
use crate::state::{State, StateScope};
use crate::store::{Acquire, Acquired, EventFilter, Lease, NewSession, News, SessionStore, Versions};
use crate::work::Work;

/// Keeps sessions in memory. They end with the process.
#[derive(Default)]
pub struct InMemorySessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<SessionKey, Slot>,
    users: HashMap<(SmolStr, SmolStr), Scoped>,
    apps: HashMap<SmolStr, Scoped>,
    /// Sessions that work for another one, by that one.
    children: HashMap<SessionKey, Vec<SessionKey>>,
    created: u64,
}

/// The state of a user or an app.
#[derive(Clone, Default)]
struct Scoped {
    version: u64,
    keys: Arc<Object>,
}

struct Slot {
    incarnation: u64,
    /// Works for another session, so it is not listed.
    hidden: bool,
    /// State at creation; `state` is that with all deltas applied.
    first: Arc<Object>,
    state: Arc<Object>,
    log: List<LogEntry>,
    updated_at: f64,
    epoch: u64,
    held_until: Option<Instant>,
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
}

impl Inner {
    fn slot(&mut self, key: &SessionKey) -> Result<&mut Slot> {
        self.sessions.get_mut(key).ok_or_else(|| not_found(key))
    }

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

    fn versions(&self, key: &SessionKey, slot: &Slot) -> Versions {
        Versions {
            incarnation: slot.incarnation,
            session: slot.log.len() as u64,
            user: self.user(key.app(), key.user()).version,
            app: self.app(key.app()).version,
        }
    }

    fn session(&self, key: &SessionKey, slot: &Slot, events: List<Arc<Event>>) -> Session {
        let user = self.user(key.app(), key.user()).keys;
        let state = State::new(slot.state.clone(), user, self.app(key.app()).keys);
        let versions = self.versions(key, slot);
        Session { key: key.clone(), state, events, updated_at: slot.updated_at, versions }
    }

    fn news(&self, key: &SessionKey, slot: &Slot, known: Versions) -> News {
        let whole = known.incarnation != slot.incarnation || known.session > slot.log.len() as u64;
        let known = if whole { Versions::default() } else { known };
        let versions = self.versions(key, slot);
        let start = usize::try_from(known.session).unwrap_or(usize::MAX);
        News {
            versions,
            whole,
            entries: slot.log.iter_from(start).cloned().collect(),
            session_state: whole.then(|| slot.first.clone()),
            user_state: (whole || known.user != versions.user)
                .then(|| self.user(key.app(), key.user()).keys),
            app_state: (whole || known.app != versions.app).then(|| self.app(key.app()).keys),
        }
    }

    /// Sets keys where their prefix says; `temp:` keys are nobody's.
    fn set_scoped(&mut self, key: &SessionKey, delta: &Object, state: &mut Arc<Object>) {
        for (name, value) in delta {
            let (scope, name) = StateScope::split(name);
            let keys = match scope {
                StateScope::Temp => continue,
                StateScope::Session => &mut *state,
                StateScope::User => self.users.entry((key.app().into(), key.user().into())).or_default().touch(),
                StateScope::App => self.apps.entry(key.app().into()).or_default().touch(),
            };
            Arc::make_mut(keys).insert(name.to_owned(), value.clone());
        }
    }

    fn write(&mut self, key: &SessionKey, entries: Vec<LogEntry>) -> Result<Versions> {
        let slot = self.slot(key)?;
        let mut deltas: Vec<Arc<Event>> = Vec::new();
        for entry in entries {
            let LogEntry::Event(event) = entry else {
                slot.log.push(entry);
                continue;
            };
            if event.is_partial() {
                continue;
            }
            slot.updated_at = event.timestamp;
            let event = match event.state_delta() {
                Some(delta) if delta.keys().any(|key| key.starts_with("temp:")) => {
                    Arc::new(without_temp(Arc::unwrap_or_clone(event)))
                }
                _ => event,
            };
            if event.state_delta().is_some_and(|delta| !delta.is_empty()) {
                deltas.push(event.clone());
            }
            slot.log.push(LogEntry::Event(event));
        }
        if !deltas.is_empty() {
            let mut state = std::mem::take(&mut slot.state);
            for delta in deltas.iter().filter_map(|event| event.state_delta()) {
                self.set_scoped(key, delta, &mut state);
            }
            self.slot(key)?.state = state;
        }
        let slot = self.sessions.get(key).ok_or_else(|| not_found(key))?;
        Ok(self.versions(key, slot))
    }

    /// The slot, if the lease still holds and the log is as long as the writer thinks.
    fn checked(&mut self, lease: &Lease, expected: Versions) -> Result<&mut Slot> {
        let slot = self.slot(&lease.key)?;
        if slot.epoch != lease.epoch || slot.incarnation != expected.incarnation {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!("session {} was taken over by another run; nothing was written", lease.key),
            ));
        }
        check_version(&lease.key, slot, expected)?;
        Ok(slot)
    }

    fn remove(&mut self, key: &SessionKey) {
        self.sessions.remove(key);
        for child in self.children.remove(key).unwrap_or_default() {
            self.remove(&child);
        }
    }
}

impl Scoped {
    fn touch(&mut self) -> &mut Arc<Object> {
        self.version += 1;
        &mut self.keys
    }
}

impl Slot {
    fn is_held(&self) -> bool {
        self.held_until.is_some_and(|until| until > Instant::now())
    }

    fn events(&self, filter: EventFilter) -> List<Arc<Event>> {
        let events = self.log.iter().filter_map(|entry| match entry {
            LogEntry::Event(event) => Some(event),
            LogEntry::Record(_) => None,
        });
        let after = filter.after.unwrap_or(f64::NEG_INFINITY);
        let events = events.filter(|event| event.timestamp >= after);
        match filter.recent {
            None => events.cloned().collect(),
            Some(recent) => {
                let all: Vec<_> = events.cloned().collect();
                let skip = all.len().saturating_sub(recent);
                all.into_iter().skip(skip).collect()
            }
        }
    }
}

fn not_found(key: &SessionKey) -> Error {
    Error::new(ErrorKind::SessionNotFound, format!("there is no session {key}: create it first"))
}

fn busy(key: &SessionKey) -> Error {
    let message = format!("session {key} is held by another run: wait for it to end, or cancel it");
    Error::new(ErrorKind::SessionBusy, message)
}

fn check_version(key: &SessionKey, slot: &Slot, expected: Versions) -> Result<()> {
    if slot.log.len() as u64 == expected.session && slot.incarnation == expected.incarnation {
        return Ok(());
    }
    let message = format!("session {key} has changed since it was read: read it again");
    Err(Error::new(ErrorKind::StaleSession, message))
}

impl SessionStore for InMemorySessions {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        let mut inner = self.lock();
        if inner.sessions.contains_key(&new.key) {
            let message = format!("session {} exists already: choose another id or use that one", new.key);
            return Work::done(Err(Error::new(ErrorKind::AlreadyExists, message)));
        }
        let mut state = Arc::default();
        if !new.state.is_empty() {
            inner.set_scoped(&new.key, &new.state, &mut state);
        }
        inner.created += 1;
        let slot = Slot {
            incarnation: inner.created,
            hidden: new.parent.is_some(),
            first: state.clone(),
            state,
            log: List::new(),
            updated_at: 0.0,
            epoch: 0,
            held_until: None,
        };
        let session = inner.session(&new.key, &slot, List::new());
        if let Some(parent) = new.parent {
            inner.children.entry(parent).or_default().push(new.key.clone());
        }
        inner.sessions.insert(new.key, slot);
        Work::done(Ok(session))
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        let inner = self.lock();
        let session = inner.sessions.get(key).map(|slot| inner.session(key, slot, slot.events(filter)));
        Work::done(Ok(session))
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        let inner = self.lock();
        // By time, then by key, so that the order does not depend on the map.
        let mut found = BTreeMap::new();
        for (key, slot) in &inner.sessions {
            if key.app() == app && key.user() == user && !slot.hidden {
                found.insert((slot.updated_at.to_bits(), key.clone()), inner.session(key, slot, List::new()));
            }
        }
        Work::done(Ok(found.into_values().collect()))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        self.lock().remove(key);
        Work::done(Ok(()))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        Work::done(Ok(self.lock().user(app, user).keys))
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        let inner = self.lock();
        Work::done(Ok(inner.sessions.get(key).map(|slot| inner.news(key, slot, known))))
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        let mut inner = self.lock();
        let key = acquire.key;
        let Some(slot) = inner.sessions.get(&key) else { return Work::done(Err(not_found(&key))) };
        if slot.is_held() {
            return Work::done(Err(busy(&key)));
        }
        let news = inner.news(&key, slot, acquire.known);
        let take = |inner: &mut Inner| {
            let slot = inner.slot(&key)?;
            slot.epoch += 1;
            slot.held_until = Some(Instant::now() + acquire.ttl);
            let lease = Lease { key: key.clone(), epoch: slot.epoch };
            let versions = inner.write(&key, acquire.entries)?;
            Ok(Acquired { lease, news, versions })
        };
        Work::done(take(&mut inner))
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        let mut inner = self.lock();
        let beat = inner.slot(&lease.key).and_then(|slot| {
            if slot.epoch != lease.epoch {
                let message = format!("session {} was taken over by another run", lease.key);
                return Err(Error::new(ErrorKind::Fenced, message));
            }
            slot.held_until = Some(Instant::now() + ttl);
            Ok(())
        });
        Work::done(beat)
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Vec<LogEntry>,
    ) -> Work<'a, Result<Versions>> {
        let mut inner = self.lock();
        let checked = inner.checked(lease, expected).map(|_| ());
        Work::done(checked.and_then(|()| inner.write(&lease.key, entries)))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Vec<LogEntry>,
    ) -> Work<'a, Result<Versions>> {
        let mut inner = self.lock();
        let checked = inner.checked(lease, expected).map(|slot| slot.held_until = None);
        Work::done(checked.and_then(|()| inner.write(&lease.key, entries)))
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Vec<LogEntry>,
    ) -> Work<'a, Result<Versions>> {
        let mut inner = self.lock();
        let checked = inner.slot(key).and_then(|slot| {
            if slot.is_held() {
                return Err(busy(key));
            }
            expected.map_or(Ok(()), |expected| check_version(key, slot, expected))
        });
        Work::done(checked.and_then(|()| inner.write(key, entries)))
    }
}

impl fmt::Debug for InMemorySessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemorySessions({} sessions)", self.lock().sessions.len())
    }
}
