//! Where sessions live: the contract of a session store.
//!
//! A session is one log with one writer at a time. A writer holds a [`Lease`]; taking it and giving it back ride
//! in its first and last append, so that a run costs no write of its own for them. Each append says which
//! version it expects, and writes all of its entries or none.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::id::CallId;
use crate::interrupt::Interrupt;
use crate::json::Object;
use crate::log::{LogEntry, Outcome, RunStep, live_entries};
use crate::session::{Session, SessionKey};
use crate::work::Work;

/// How far a session, its user and its app have come. Compared, never computed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Tells a session from a later one under the same key.
    pub incarnation: u64,
    /// Entries in the session's log.
    pub session: u64,
    /// Writes to the user's state.
    pub user: u64,
    /// Writes to the app's state.
    pub app: u64,
}

/// Entries to be appended together. A turn seldom appends more than four at once.
pub type Entries = SmallVec<[LogEntry; 4]>;

/// The right to write to a session, until it expires or is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which session.
    pub key: SessionKey,
    /// Grows with each owner: who writes with an older one is fenced off.
    pub epoch: u64,
}

/// What is newer than a reader knows.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// Where things stand now.
    pub versions: Versions,
    /// The reader knew nothing usable: `entries` is the whole log and `session_state` is set.
    pub whole: bool,
    /// Entries the reader does not have, oldest first.
    pub entries: Vec<LogEntry>,
    /// The state the session was created with. Deltas of the log come on top.
    pub session_state: Option<Arc<Object>>,
    /// The user's state, if it is newer.
    pub user_state: Option<Arc<Object>>,
    /// The app's state, if it is newer.
    pub app_state: Option<Arc<Object>>,
}

/// A session to be created.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its address.
    pub key: SessionKey,
    /// Its first state, scope prefixes included. `temp:` keys are dropped.
    pub state: Object,
    /// The session it works for. Such a session is not listed and goes when its parent goes.
    pub parent: Option<SessionKey>,
}

impl NewSession {
    /// An empty session.
    pub fn new(key: SessionKey) -> Self {
        Self { key, state: Object::new(), parent: None }
    }

    /// The same with a first state.
    pub fn state(mut self, state: Object) -> Self {
        self.state = state;
        self
    }

    /// The same, working for another session.
    pub fn parent(mut self, parent: SessionKey) -> Self {
        self.parent = Some(parent);
        self
    }
}

/// Which events to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventFilter {
    /// Only the newest so many. State is whole all the same.
    pub recent: Option<usize>,
    /// Only events at or after this time, seconds since 1970.
    pub after: Option<f64>,
    /// Only the oldest so many; `recent` does not count then.
    pub first: Option<usize>,
}

/// What is to be written when a lease is taken.
#[derive(Debug)]
pub struct Acquire {
    /// Which session.
    pub key: SessionKey,
    /// Who wants it; for people who look into the store.
    pub owner: SmolStr,
    /// How long the lease holds without a heartbeat.
    pub ttl: Duration,
    /// What the caller has of this session already.
    pub known: Versions,
    /// What to append at once.
    pub entries: Entries,
    /// Whether the caller sees to a run that was cut short in the session. Who does not is refused while there is one, so
    /// that no run begins behind one that has no outcome.
    pub claims: bool,
    /// Whether a session that is not there is made, in the same write. One that must be at some version is not.
    pub creates: bool,
    /// What the session must be at; `session` and `incarnation` are what counts. `StaleSession` if someone else wrote to
    /// it since the caller decided what to do there.
    pub expected: Option<Versions>,
}

impl Acquire {
    /// Nothing but the lease, for a caller who knows nothing of the session and claims nothing.
    pub fn new(key: SessionKey, owner: SmolStr, ttl: Duration) -> Self {
        let (known, entries) = (Versions::default(), Entries::new());
        Self { key, owner, ttl, known, entries, claims: false, creates: false, expected: None }
    }
}

/// What taking a lease gives.
#[derive(Debug)]
pub struct Acquired {
    /// The right to write.
    pub lease: Lease,
    /// What is newer than the caller knew, without the entries it just appended.
    pub news: News,
    /// Where things stand after the append.
    pub versions: Versions,
}

/// A session whose lease ran out before it was given back: its run stopped in the middle.
#[derive(Clone, Debug, PartialEq)]
pub struct Abandoned {
    /// Which session.
    pub key: SessionKey,
    /// The session it works for. Whoever goes on with that one sees to this one too.
    pub parent: Option<SessionKey>,
    /// Who held the lease.
    pub owner: SmolStr,
}

/// A question that a session waits with.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenQuestion {
    /// Which session.
    pub key: SessionKey,
    /// What is asked.
    pub interrupt: Interrupt,
    /// When the session last changed, seconds since 1970.
    pub updated_at: f64,
}

/// A session that nothing happened in for a while, and what it may be waiting for.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Which session.
    pub key: SessionKey,
    /// When it last changed, seconds since 1970.
    pub updated_at: f64,
    /// What this was read from. [`SessionStore::delete_unchanged`] compares it.
    pub versions: Versions,
    /// Someone holds its lease: a run is under way.
    pub held: bool,
    /// Its lease ran out before it was given back: a run stopped in the middle and may be gone on with.
    pub abandoned: bool,
    /// How many questions are open.
    pub questions: u64,
    /// How many calls have no answer yet of those whose answer comes later.
    pub awaited_calls: u64,
    /// The first words of its first message: [`title_of_log`](crate::title::title_of_log).
    pub title: Option<String>,
    /// Bytes of its log and its first state, as JSON.
    pub bytes: u64,
}

/// What a store holds for one user of an app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredUsage {
    /// Sessions, without those that work for another one.
    pub sessions: u64,
    /// Bytes of the logs and first states of all their sessions, as JSON.
    pub bytes: u64,
}

impl Idle {
    /// Whether a person or a later run is expected to go on with it.
    pub fn is_waiting(&self) -> bool {
        self.abandoned || self.questions > 0 || self.awaited_calls > 0
    }
}

/// Which sessions [`SessionStore::idle`] gives.
#[derive(Clone, Copy, Debug)]
pub struct IdleFilter<'a> {
    /// Those that last changed before this time, seconds since 1970.
    pub before: f64,
    /// Those of this user only.
    pub user: Option<&'a str>,
    /// Those that come after this one: the last of the page before.
    pub after: Option<&'a Idle>,
    /// So many at most.
    pub limit: usize,
    /// Those that changed last come first. What comes after one is older then.
    pub newest_first: bool,
}

impl<'a> IdleFilter<'a> {
    /// The first hundred of all users.
    pub fn before(time: f64) -> Self {
        Self { before: time, user: None, after: None, limit: 100, newest_first: false }
    }

    /// The same, of one user.
    pub fn user(mut self, user: &'a str) -> Self {
        self.user = Some(user);
        self
    }

    /// The same, from after this one on.
    pub fn after(mut self, last: &'a Idle) -> Self {
        self.after = Some(last);
        self
    }

    /// The same, so many at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The same, those that changed last first.
    pub fn newest_first(mut self) -> Self {
        self.newest_first = true;
        self
    }
}

/// What a session waits for. A store keeps it beside the log and writes it with every append: an index, so that nobody
/// reads logs to find out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// The questions that are open.
    pub questions: Vec<Interrupt>,
    /// The calls whose answer comes later and has not come yet.
    pub calls: Vec<CallId>,
}

impl Waits {
    /// Whether it waits for nothing.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty() && self.calls.is_empty()
    }

    /// What a session with this log waits for.
    pub fn of_log(entries: &[LogEntry]) -> Self {
        let mut waits = Self::default();
        match live_entries(entries) {
            None => waits.apply(WaitChange::of(entries)),
            Some(live) => {
                let live = entries.iter().zip(live).filter(|(_, live)| *live).map(|(entry, _)| entry.clone());
                waits.apply(WaitChange::of(&live.collect::<Vec<_>>()));
            }
        }
        waits
    }

    /// What is waited for after a change.
    pub fn apply(&mut self, change: WaitChange) {
        let WaitChange { asked, settled, awaited, answered, rewinds: _ } = change;
        let is_new = |id: &CallId| asked.iter().any(|question| question.id == *id);
        self.questions.retain(|open| !settled.contains(&open.id) && !is_new(&open.id));
        self.questions.extend(asked);
        self.calls.retain(|call| !answered.contains(call) && !awaited.contains(call));
        self.calls.extend(awaited);
    }
}

/// How entries change what a session waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitChange {
    /// Questions that are open afterwards.
    pub asked: Vec<Interrupt>,
    /// Questions that the user answered.
    pub settled: SmallVec<[CallId; 2]>,
    /// Calls whose answer comes later.
    pub awaited: SmallVec<[CallId; 2]>,
    /// Calls that got an answer.
    pub answered: SmallVec<[CallId; 2]>,
    /// A rewind is among the entries: what is waited for then follows from the whole log, by [`Waits::of_log`].
    pub rewinds: bool,
}

impl WaitChange {
    /// What these entries change. A question is open from when a run asks it, or ends with it, until the user's response
    /// of its id, whatever is said in between; asked again, it takes its own place. A call whose answer comes later is
    /// awaited until there is a response of its id in a later event. A rewind
    /// takes back what was asked and answered in what it makes void; see [`rewinds`](Self::rewinds).
    pub fn of(entries: &[LogEntry]) -> Self {
        let mut change = Self::default();
        for entry in entries {
            match entry {
                LogEntry::Event(event) if event.is_partial() => {}
                LogEntry::Event(event) => change.follow(event),
                LogEntry::Record(step) => match &**step {
                    RunStep::Asked { interrupts }
                    | RunStep::Ended { outcome: Outcome::Interrupted { interrupts } } => {
                        change.ask(interrupts);
                    }
                    _ => {}
                },
            }
        }
        change
    }

    /// Whether entries may make a session wait that waited for nothing before: a glance, where most do not.
    pub(crate) fn is_likely(entries: &[LogEntry]) -> bool {
        entries.iter().any(|entry| match entry {
            LogEntry::Event(event) => event.long_running_tool_ids.is_some() || event.rewinds_to().is_some(),
            LogEntry::Record(step) => matches!(
                &**step,
                RunStep::Asked { .. } | RunStep::Ended { outcome: Outcome::Interrupted { .. } }
            ),
        })
    }

    /// Whether a session waits for something afterwards that may have waited for nothing before.
    pub fn begins_to_wait(&self) -> bool {
        !self.awaited.is_empty() || !self.asked.is_empty()
    }

    fn ask(&mut self, interrupts: &[Interrupt]) {
        for question in interrupts {
            self.asked.retain(|asked| asked.id != question.id);
            self.asked.push(question.clone());
        }
    }

    fn follow(&mut self, event: &Event) {
        self.rewinds |= event.rewinds_to().is_some();
        for id in event.responses().filter_map(|response| response.id.as_ref()) {
            if event.is_user() {
                self.asked.retain(|asked| asked.id != *id);
                self.settled.push(id.clone());
            }
            self.awaited.retain(|awaited| awaited != id);
            self.answered.push(id.clone());
        }
        for id in event.long_running() {
            self.awaited.retain(|awaited| awaited != id);
            self.awaited.push(id.clone());
        }
    }
}

/// Refuses a name with a NUL character, which not every database can hold; so no store takes one.
pub fn refuse_nul(what: &str, text: &str) -> Result<()> {
    if !text.contains('\0') {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, format!("the {what} has a NUL character: leave it out")))
}

/// Refuses entries that would set a state key with a NUL character.
pub fn refuse_nul_keys(entries: &[LogEntry]) -> Result<()> {
    for entry in entries {
        let LogEntry::Event(event) = entry else { continue };
        let Some(delta) = event.state_delta() else { continue };
        delta.keys().try_for_each(|key| refuse_nul("name of a state key", key))?;
    }
    Ok(())
}

/// Keeps sessions.
///
/// Errors every store must give: `AlreadyExists`, `SessionNotFound`, `SessionBusy` (someone else's lease),
/// `SessionAbandoned` (a lease that ran out before it was given back, and who wants it does not claim it), `StaleSession`
/// (unexpected version), `Fenced` (a lease that was lost or given back), `InvalidInput` (a state key with a NUL). With any of them nothing was written. Partial events among the entries are skipped, `temp:` keys are stripped
/// from deltas. A lease that ran out still writes as long as nobody else has taken the session.
///
/// `umbel_stores::contract` has tests that show whether a store keeps to all of this.
pub trait SessionStore: Send + Sync + fmt::Debug {
    /// Whether it always answers at once, as a store in memory does. Such a store is asked without a detour.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Makes a session. A parent must exist.
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>>;

    /// Reads a session.
    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>>;

    /// The sessions of a user, without events, least recently changed first.
    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>>;

    /// Deletes a session and those that work for it. One that does not exist is fine.
    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>>;

    /// The same, if nobody has written to it since it was read (`StaleSession`) and nobody holds it (`SessionBusy`).
    /// `session` and `incarnation` of `expected` are what counts.
    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>>;

    /// Deletes all sessions of a user, those that work for them, and the user's state, in one write. Tells how many
    /// sessions there were.
    ///
    /// Refused with `SessionBusy` while someone holds one of them, and then nothing is deleted: a run that is under way
    /// would go on to write elsewhere, to artifacts for one. Cancel it first. What a run writes to a session that is
    /// gone is refused, as after [`delete`](Self::delete).
    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>>;

    /// The state of a user, keys without prefix.
    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>>;

    /// What is newer than the caller knows. `None` if there is no such session.
    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>>;

    /// Takes the lease and appends, in one write, which makes the session too if that is wanted.
    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>>;

    /// Keeps the lease for `ttl` from now.
    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>>;

    /// Appends under a lease. `session` of `expected` is what counts. What comes back is what the caller knows then:
    /// `user` and `app` have moved by its own writes only, so that what others wrote there meanwhile is still news to it.
    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>>;

    /// Appends and gives the lease back, in one write.
    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>>;

    /// Appends without a lease of one's own, in one write; refused while someone holds one.
    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>>;

    /// The sessions of an app whose lease ran out before it was given back, longest ago first. Taking the lease of
    /// one claims it: only one of those who try gets it.
    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>>;

    /// The open questions of an app, or of one of its users: those of the session that changed longest ago first, and
    /// those of one session in the order they were asked. Sessions that work for another one are left out: what they
    /// ask, that one asks. [`WaitChange::of`] tells which questions are open.
    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>>;

    /// The sessions of an app that last changed before a time, longest ago first, with what they wait for. Sessions that
    /// work for another one are left out. No log is read for it.
    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>>;

    /// One session as [`idle`](Self::idle) lists it, whether or not it works for another one. No log is read.
    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>>;

    /// What is stored for one user. It costs at most the number of their sessions, and reads no log.
    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>>;

    /// Sees to it that nothing of what was deleted can be found in its files any more. A store whose deletions leave
    /// nothing behind, as one in memory, has nothing to do. It may rewrite all that is left, so erase many users before
    /// you call it once.
    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}

/// A shared store is a store, so that several runners can use one.
impl<S: SessionStore + ?Sized> SessionStore for Arc<S> {
    fn is_immediate(&self) -> bool {
        (**self).is_immediate()
    }

    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        (**self).create(new)
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        (**self).get(key, filter)
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        (**self).list(app, user)
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        (**self).delete(key)
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        (**self).user_state(app, user)
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        (**self).news(key, known)
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        (**self).acquire(acquire)
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        (**self).heartbeat(lease, ttl)
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        (**self).append(lease, expected, entries)
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        (**self).release(lease, expected, entries)
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        (**self).commit(key, expected, entries)
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        (**self).abandoned(app)
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        (**self).open_questions(app, user)
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        (**self).idle(app, filter)
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        (**self).summary(key)
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        (**self).usage(app, user)
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        (**self).delete_unchanged(key, expected)
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        (**self).erase_user(app, user)
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        (**self).scrub()
    }
}
