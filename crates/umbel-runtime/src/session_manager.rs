//! Looks after the sessions of an app: finds or makes them, reads and writes their state, and deletes those that nobody
//! comes back to.
//!
//! What it knows it asks the store, so it sees sessions of other processes and of the time before a restart, and any
//! number of managers may look after one app.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use serde_json::Value;
use smallvec::smallvec;
use smol_str::SmolStr;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use umbel_core::store::{Idle, IdleFilter};
use umbel_core::{
    Actions, Error, ErrorKind, Event, EventFilter, LogEntry, NewSession, Object, Result, Services, Session,
    SessionKey, Source, StateScope, Versions,
};

use crate::runner::Runner;

/// How often a change of state is tried anew if someone else writes to the session at the same time.
const ATTEMPTS: usize = 5;

/// Sessions that are looked at in one go. A store may have to look through all that there are for it.
const PAGE: usize = 1_000;

/// Sessions that are deleted at the same time, so that they share commits.
const AT_ONCE: usize = 8;

/// Nobody sweeps more often than this, whatever they were told.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Looks after the sessions of an app. Clones do the same.
///
/// ```
/// # use std::time::Duration;
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel, SessionManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> umbel_core::Result<()> {
/// let runner = Runner::new("travel", LlmAgent::new("guide").model(ScriptedModel::new("demo").text("Rome.")))?;
/// let manager = SessionManager::new(&runner).timeout(Duration::from_secs(600)).sessions_per_user(20);
/// // Deletes what is idle, now and every five minutes, until it is dropped.
/// let sweeper = manager.start()?;
///
/// let session = manager.get_or_create("ann", "trip-1").await?;
/// manager.set(&session.key, "city", "Rome").await?;
/// runner.run(&session.key, "Where shall I go?").text().await?;
/// assert_eq!(manager.get(&session.key, "city").await?, Some("Rome".into()));
/// sweeper.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SessionManager {
    app: SmolStr,
    services: Arc<Services>,
    settings: Settings,
}

/// What a manager was told.
#[derive(Clone, Copy, Debug)]
struct Settings {
    timeout: Duration,
    sweep_every: Duration,
    max_wait: Option<Duration>,
    sessions_per_user: Option<usize>,
    remember: bool,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Sessions that were deleted.
    pub deleted: u64,
    /// Sessions that stay although they are idle: they have a run, wait for an answer, or someone came back just then.
    pub kept: u64,
    /// Sessions that stay since they could not be remembered or deleted; the log tells why.
    pub failed: u64,
}

/// What became of one session.
enum Fate {
    Deleted,
    Kept,
    Failed,
}

impl Swept {
    fn count(mut self, fate: &Fate) -> Self {
        match fate {
            Fate::Deleted => self.deleted += 1,
            Fate::Kept => self.kept += 1,
            Fate::Failed => self.failed += 1,
        }
        self
    }
}

impl SessionManager {
    /// Looks after the sessions of a runner's app.
    pub fn new(runner: &Runner) -> Self {
        Self::of(runner.app(), runner.services().clone())
    }

    /// Looks after the sessions of an app that these services keep.
    pub fn of(app: impl Into<SmolStr>, services: Arc<Services>) -> Self {
        let settings = Settings {
            timeout: Duration::from_secs(1_200),
            sweep_every: Duration::from_secs(300),
            max_wait: Some(Duration::from_secs(7 * 86_400)),
            sessions_per_user: None,
            remember: true,
        };
        Self { app: app.into(), services, settings }
    }

    /// How long a session may be idle; 20 minutes unless told otherwise. With [`Duration::MAX`] none is deleted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How often idle sessions are looked for; every 5 minutes unless told otherwise, and no more often than every 10 ms.
    pub fn sweep_every(mut self, interval: Duration) -> Self {
        self.settings.sweep_every = interval;
        self
    }

    /// How long a session stays since it waits: for an answer to a question, for the result of a call, or for its run to
    /// be recovered. A week from its last change unless told otherwise; `None` is for ever.
    pub fn max_wait(mut self, wait: impl Into<Option<Duration>>) -> Self {
        self.settings.max_wait = wait.into();
        self
    }

    /// How many sessions a user may have; as many as they like unless told otherwise. Whoever makes one more loses the
    /// one that is idle for longest. Those that have a run or wait are not deleted for it, even if there are more then.
    pub fn sessions_per_user(mut self, limit: impl Into<Option<usize>>) -> Self {
        self.settings.sessions_per_user = limit.into();
        self
    }

    /// Whether a session is handed to the memory store before it is deleted, if there is one; yes unless told otherwise.
    pub fn remember(mut self, remember: bool) -> Self {
        self.settings.remember = remember;
        self
    }

    /// The session of that user and id, without its events; made where there is none.
    pub async fn get_or_create(&self, user: impl AsRef<str>, id: impl AsRef<str>) -> Result<Session> {
        self.get_or_create_with(user, id, Object::new()).await
    }

    /// The same, with a first state for one that is made.
    pub async fn get_or_create_with(
        &self,
        user: impl AsRef<str>,
        id: impl AsRef<str>,
        state: Object,
    ) -> Result<Session> {
        let key = SessionKey::new(&self.app, user, id)?;
        if let Some(session) = self.find(&key).await? {
            return Ok(session);
        }
        let session = match self.services.sessions.create(NewSession::new(key.clone()).state(state)).await {
            // Someone else was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return self.read(&key).await,
            made => made?,
        };
        if let Err(error) = self.make_room(&key).await {
            tracing::warn!(session = %key, %error, "idle sessions of the user could not be looked for");
        }
        Ok(session)
    }

    /// The value of a state key, its prefix included. `None` if it was never set, or removed.
    pub async fn get(&self, key: &SessionKey, name: &str) -> Result<Option<Value>> {
        let session = self.read(key).await?;
        Ok(session.state.get(name).filter(|value| !value.is_null()).cloned())
    }

    /// All of the state that a session sees, keys with their prefixes, without those that were removed.
    pub async fn state(&self, key: &SessionKey) -> Result<Object> {
        let mut state = self.read(key).await?.state.to_object();
        state.retain(|_, value| !value.is_null());
        Ok(state)
    }

    /// Sets a state key, its prefix included. As all of these it is an event of its own, and refused with `SessionBusy`
    /// while a run holds the session.
    pub async fn set(
        &self,
        key: &SessionKey,
        name: impl Into<String>,
        value: impl Into<Value>,
    ) -> Result<()> {
        self.set_all(key, Object::from_iter([(name.into(), value.into())])).await
    }

    /// Sets several state keys at once, all or none.
    pub async fn set_all(&self, key: &SessionKey, values: Object) -> Result<()> {
        if let Some(name) = values.keys().find(|name| StateScope::split(name).0 == StateScope::Temp) {
            let message = format!("`{name}` would be lost: `temp:` keys live in a run, so give them to that");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if values.is_empty() { Ok(()) } else { self.write(key, None, values).await }
    }

    /// Removes a state key, its prefix included, and gives what it was.
    ///
    /// It becomes `null`. The state is what the deltas of a log make of it, and google-adk's deltas can set a key and not
    /// take it away; a rewind says it with `null` too.
    pub async fn remove(&self, key: &SessionKey, name: &str) -> Result<Option<Value>> {
        self.change(key, |session| {
            let before = session.state.get(name).filter(|value| !value.is_null()).cloned();
            let delta = before.iter().map(|_| (name.to_owned(), Value::Null)).collect();
            (delta, before)
        })
        .await
    }

    /// Removes all state keys of the session but those that begin with one of these prefixes. Tells how many went. Keys
    /// of the user and the app stay: others share them.
    pub async fn clear(&self, key: &SessionKey, keep: &[&str]) -> Result<usize> {
        self.change(key, |session| {
            let own = session.state.scope(StateScope::Session).iter();
            let goes = |(name, value): &(&String, &Value)| {
                !value.is_null() && !keep.iter().any(|prefix| name.starts_with(prefix))
            };
            let delta: Object = own.filter(goes).map(|(name, _)| (name.clone(), Value::Null)).collect();
            let count = delta.len();
            (delta, count)
        })
        .await
    }

    /// Deletes the sessions of the app that are idle for longer than the timeout. Those that have a run stay; those that
    /// wait stay for as long as they may.
    ///
    /// A session is handed to the memory store first. If that fails it stays. So does one that someone comes back to in
    /// the meantime.
    pub async fn sweep(&self) -> Result<Swept> {
        let now = self.services.clock.now();
        let before = now - self.settings.timeout.as_secs_f64();
        let (mut swept, mut last) = (Swept::default(), None::<Idle>);
        loop {
            let filter = IdleFilter { after: last.as_ref(), ..IdleFilter::before(before).limit(PAGE) };
            let page = self.services.sessions.idle(&self.app, filter).await?;
            last = page.last().cloned();
            let fates = stream::iter(page).map(|idle| self.retire(idle, now)).buffer_unordered(AT_ONCE);
            swept = fates.fold(swept, async |swept, fate| swept.count(&fate)).await;
            if last.is_none() {
                return Ok(swept);
            }
        }
    }

    /// Sweeps now and then, until what this gives is dropped. Needs a runtime of tokio.
    pub fn start(&self) -> Result<Sweeper> {
        let runtime = Handle::try_current().map_err(|error| {
            let message = "sessions can only be swept within a runtime of tokio: call `start` there";
            Error::new(ErrorKind::Build, message).with_source(error)
        })?;
        Ok(Sweeper { task: runtime.spawn(self.clone().sweep_on()) })
    }

    async fn sweep_on(self) {
        loop {
            match AssertUnwindSafe(self.sweep()).catch_unwind().await {
                Ok(Ok(swept)) if swept == Swept::default() => {}
                Ok(Ok(swept)) => tracing::debug!(app = %self.app, ?swept, "idle sessions were swept"),
                Ok(Err(error)) => {
                    tracing::warn!(app = %self.app, %error, "idle sessions could not be swept; tried again later");
                }
                Err(_) => tracing::warn!(app = %self.app, "a store panicked while idle sessions were swept"),
            }
            tokio::time::sleep(self.settings.sweep_every.max(SHORTEST_PAUSE)).await;
        }
    }

    /// Deletes sessions of this key's user, longest idle first, until there are no more than allowed.
    async fn make_room(&self, key: &SessionKey) -> Result<()> {
        let Some(limit) = self.settings.sessions_per_user else { return Ok(()) };
        let all = IdleFilter::before(f64::INFINITY).user(key.user()).limit(usize::MAX);
        let sessions = self.services.sessions.idle(&self.app, all).await?;
        let (mut excess, now) = (sessions.len().saturating_sub(limit), self.services.clock.now());
        for idle in sessions.into_iter().filter(|idle| idle.key != *key) {
            if excess == 0 {
                return Ok(());
            }
            if matches!(self.retire(idle, now).await, Fate::Deleted) {
                excess -= 1;
            }
        }
        Ok(())
    }

    /// Whether a session must not be deleted now.
    fn is_protected(&self, idle: &Idle, now: f64) -> bool {
        let may_wait = |wait: Duration| now - idle.updated_at < wait.as_secs_f64();
        idle.held || (idle.is_waiting() && self.settings.max_wait.is_none_or(may_wait))
    }

    /// Hands a session to the memory store and deletes it, unless it is protected or has changed.
    async fn retire(&self, idle: Idle, now: f64) -> Fate {
        if self.is_protected(&idle, now) {
            return Fate::Kept;
        }
        if let Err(error) = self.hand_over(&idle).await {
            tracing::warn!(session = %idle.key, %error, "an idle session stays, since it could not be remembered");
            return Fate::Failed;
        }
        match self.services.sessions.delete_unchanged(&idle.key, idle.versions).await {
            Ok(()) => Fate::Deleted,
            Err(error) if matches!(error.kind(), ErrorKind::StaleSession | ErrorKind::SessionBusy) => {
                Fate::Kept
            }
            Err(error) => {
                tracing::warn!(session = %idle.key, %error, "an idle session could not be deleted");
                Fate::Failed
            }
        }
    }

    async fn hand_over(&self, idle: &Idle) -> Result<()> {
        let Some(memory) = self.services.memory.as_ref().filter(|_| self.settings.remember) else {
            return Ok(());
        };
        // What has changed since is not deleted, and what is gone need not be.
        match self.services.sessions.get(&idle.key, EventFilter::default()).await? {
            Some(session) if !session.events.is_empty() => memory.add(&session).await,
            _ => Ok(()),
        }
    }

    async fn find(&self, key: &SessionKey) -> Result<Option<Session>> {
        let no_events = EventFilter { recent: Some(0), ..EventFilter::default() };
        self.services.sessions.get(key, no_events).await
    }

    async fn read(&self, key: &SessionKey) -> Result<Session> {
        self.find(key).await?.ok_or_else(|| {
            let message = format!("there is no session {key}: create it first");
            Error::new(ErrorKind::SessionNotFound, message)
        })
    }

    /// Writes what a reading of the session asks for, from a reading that nobody has overtaken.
    async fn change<T>(&self, key: &SessionKey, plan: impl Fn(&Session) -> (Object, T)) -> Result<T> {
        let mut attempt = 1;
        loop {
            let session = self.read(key).await?;
            let (delta, result) = plan(&session);
            if delta.is_empty() {
                return Ok(result);
            }
            match self.write(key, Some(session.versions), delta).await {
                Err(error) if error.kind() == ErrorKind::StaleSession && attempt < ATTEMPTS => attempt += 1,
                written => return written.map(|()| result),
            }
        }
    }

    async fn write(&self, key: &SessionKey, expected: Option<Versions>, delta: Object) -> Result<()> {
        let services = &self.services;
        let actions = Actions { state_delta: Some(delta), ..Actions::default() };
        let mut event = Event::new(services.ids.run(), Source::user()).with_actions(actions);
        event.id = services.ids.event();
        event.timestamp = services.clock.now();
        let entries = smallvec![LogEntry::Event(Arc::new(event))];
        services.sessions.commit(key, expected, entries).await.map(drop)
    }
}

/// Sweeps now and then, until it is dropped.
#[derive(Debug)]
pub struct Sweeper {
    task: JoinHandle<()>,
}

impl Sweeper {
    /// Ends it, and waits until it has. A deletion that is under way is done or not done, never half.
    pub async fn stop(mut self) {
        self.task.abort();
        // That it was told to end is no news.
        drop((&mut self.task).await);
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
