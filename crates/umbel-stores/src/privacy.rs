//! What people may ask of those who keep their data: to erase it, and not to keep it for longer than needed.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use umbel_core::store::{Idle, IdleFilter};
use umbel_core::{ErrorKind, Result};

use crate::Stores;

/// How many pieces were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    /// Sessions, those that worked for others included where a user was erased.
    pub sessions: u64,
    /// Versions of artifacts.
    pub artifacts: u64,
    /// Memories.
    pub memories: u64,
    /// Credentials.
    pub credentials: u64,
}

impl Erased {
    fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

impl Stores {
    /// Deletes everything of a user in an app: sessions with their logs, the user's state, artifacts, memories and
    /// credentials. Nothing of it is found in the files of the stores afterwards.
    ///
    /// Refused with `SessionBusy` while one of the user's sessions has a run: cancel it, and try again. After any other
    /// error some of it may be there still: try again.
    ///
    /// SQLite rewrites its whole file for this. To erase many users, call [`erase_user`] of each store and
    /// [`scrub`](Self::scrub) once. What PostgreSQL deletes is no longer in its tables; `docs/session-and-state.md` tells
    /// where else it may be.
    ///
    /// [`erase_user`]: umbel_core::SessionStore::erase_user
    pub async fn erase_user(&self, app: &str, user: &str) -> Result<Erased> {
        // First, since it is what may be refused, and since no run can begin without a session.
        let sessions = self.sessions.erase_user(app, user).await?;
        let artifacts = self.artifacts.erase_user(app, user).await?;
        let memories = self.memory.erase_user(app, user).await?;
        let credentials = self.credentials.erase_user(app, user).await?;
        self.scrub().await?;
        Ok(Erased { sessions, artifacts, memories, credentials })
    }

    /// Sees to it that nothing of what was deleted can be found in the files of the stores any more.
    pub async fn scrub(&self) -> Result<()> {
        // At the same time, so that stores in one file do it once.
        futures::try_join!(
            self.sessions.scrub(),
            self.artifacts.scrub(),
            self.memory.scrub(),
            self.credentials.scrub()
        )?;
        Ok(())
    }
}

/// For how long things are kept; `None` is for ever.
///
/// ```
/// # use std::time::Duration;
/// # use umbel_core::{Clock, SystemClock};
/// use umbel_stores::{Retention, Stores};
///
/// # #[tokio::main]
/// # async fn main() -> umbel_core::Result<()> {
/// # let stores = Stores::in_memory();
/// const DAY: Duration = Duration::from_secs(86_400);
/// let retention = Retention { sessions: Some(30 * DAY), credentials: Some(DAY), ..Retention::default() };
/// let gone = retention.apply(&stores, "travel", SystemClock.now()).await?;
/// assert_eq!(gone.sessions, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Sessions, from when they last changed. Those that wait for an answer go too; one that has a run stays until it is
    /// applied again.
    pub sessions: Option<Duration>,
    /// Versions of artifacts, from when they were saved.
    pub artifacts: Option<Duration>,
    /// Memories, from when it was said what they remember.
    pub memory: Option<Duration>,
    /// Credentials, from when they were saved or replaced.
    pub credentials: Option<Duration>,
}

impl Retention {
    /// Deletes what is older, in one app. `now` is in seconds since 1970. Nothing of it is found in the files of the
    /// stores afterwards.
    pub async fn apply(&self, stores: &Stores, app: &str, now: f64) -> Result<Erased> {
        let start = |kept: Duration| now - kept.as_secs_f64();
        let mut erased = Erased::default();
        if let Some(kept) = self.sessions {
            erased.sessions = delete_sessions(stores, app, start(kept)).await?;
        }
        if let Some(kept) = self.artifacts {
            erased.artifacts = stores.artifacts.delete_older_than(app, start(kept)).await?;
        }
        if let Some(kept) = self.memory {
            erased.memories = stores.memory.delete_older_than(app, start(kept)).await?;
        }
        if let Some(kept) = self.credentials {
            erased.credentials = stores.credentials.delete_older_than(app, start(kept)).await?;
        }
        if !erased.is_nothing() {
            stores.scrub().await?;
        }
        Ok(erased)
    }
}

/// Sessions that are looked at in one go. A store may have to look through all that there are for it.
const PAGE: usize = 1_000;

/// Deletes the sessions that last changed before a time, unless someone comes back to one at that moment.
async fn delete_sessions(stores: &Stores, app: &str, before: f64) -> Result<u64> {
    let (mut count, mut last) = (0, None::<Idle>);
    loop {
        let filter = IdleFilter { after: last.as_ref(), ..IdleFilter::before(before).limit(PAGE) };
        let page = stores.sessions.idle(app, filter).await?;
        last = page.last().cloned();
        // Some at the same time, so that they share commits.
        let free = stream::iter(page.into_iter().filter(|idle| !idle.held));
        let deleted = free.map(|idle| delete_idle(stores, idle)).buffer_unordered(16);
        count += deleted.try_fold(0, async |sum, one| Ok(sum + one)).await?;
        if last.is_none() {
            return Ok(count);
        }
    }
}

/// Deletes a session, unless someone came back to it. Tells how many went.
async fn delete_idle(stores: &Stores, idle: Idle) -> Result<u64> {
    match stores.sessions.delete_unchanged(&idle.key, idle.versions).await {
        Ok(()) => Ok(1),
        Err(error) if matches!(error.kind(), ErrorKind::StaleSession | ErrorKind::SessionBusy) => Ok(0),
        Err(error) => Err(error),
    }
}
