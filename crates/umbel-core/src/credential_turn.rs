//! Whose turn it is to work on a credential: one at a time in a process, and one of the processes that share a store.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use serde_json::json;
use smol_str::{SmolStr, format_smolstr};
use tokio::time::{Instant, sleep, timeout};

use crate::credential::{Credential, CredentialStore};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{CallId, Ids, RandomIds};

/// An app, and a user of it.
pub type Whose<'a> = (&'a str, &'a str);

/// How often a process that is at work says so.
const BEAT: Duration = Duration::from_secs(2);
/// A process that has said nothing for so long has ended.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);
/// How often others look whether it is done.
const LOOK: Duration = Duration::from_millis(50);

/// One credential that is worked on.
#[derive(Default)]
struct Flight {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// When work on it failed last, and how.
    failed: Mutex<Option<(Instant, ErrorKind, String)>>,
}

/// The right to work on one credential in this process, until the last of those who have it is done.
pub(crate) struct Turn {
    flight: Arc<Flight>,
    /// Since when it was waited for.
    since: Instant,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Turn {
    /// How the same work failed while this turn was waited for: who asked at the same time gets the same answer, and does not
    /// try in its turn what just took its time to fail.
    pub(crate) fn failure(&self) -> Option<Error> {
        let failed = self.flight.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, kind, message) = failed.as_ref().filter(|(at, ..)| *at > self.since)?;
        Some(Error::new(*kind, message.clone()))
    }

    /// Notes whether the work failed, for those who wait.
    pub(crate) fn note<T>(&self, done: &Result<T>) {
        let failed =
            done.as_ref().err().map(|error| (Instant::now(), error.kind(), error.message().to_owned()));
        *self.flight.failed.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }
}

/// Who is at work on a credential in this process, by app, user and name.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<[SmolStr; 3], Weak<Flight>>>>);

impl Turns {
    /// Waits until nobody else works on it.
    pub(crate) async fn take(&self, whose: Whose<'_>, name: &SmolStr) -> Arc<Turn> {
        let flight = self.flight([whose.0.into(), whose.1.into(), name.clone()]);
        let since = Instant::now();
        let guard = flight.lock.clone().lock_owned().await;
        Arc::new(Turn { flight, since, _guard: guard })
    }

    fn flight(&self, place: [SmolStr; 3]) -> Arc<Flight> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&place).and_then(Weak::upgrade) {
            return flight;
        }
        flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = Arc::new(Flight::default());
        flights.insert(place, Arc::downgrade(&flight));
        flight
    }
}

/// Does work on a credential while no other process does. A refresh token may count once: who uses it must be alone.
///
/// A mark beside the credential says that somebody is at it, and is changed now and then. Others wait until it is gone, or until
/// it has not changed for a while. Nobody's clock is compared with another's.
pub(crate) async fn alone<T>(
    store: &dyn CredentialStore,
    whose: Whose<'_>,
    name: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut mark = Mark { store, whose, place: place(name), by: RandomIds.call(), beats: 0 };
    mark.set().await?;
    let mut work = pin!(work);
    let done = loop {
        if let Ok(done) = timeout(BEAT, work.as_mut()).await {
            break done;
        }
        // The work goes on meanwhile: it may have the connection that the beat waits for.
        if let Either::Left((done, beat)) = select(work.as_mut(), pin!(mark.beat())).await {
            // The mark can be taken away only once it is known how it looks.
            beat.await;
            break done;
        }
    };
    // If it stays, others take it for that of a process that has ended.
    _ = mark.replace(Some(&mark.written()), None).await;
    done
}

/// Where a mark stands.
pub(crate) fn place(name: &str) -> SmolStr {
    format_smolstr!("_at_work/{name}")
}

/// The mark of a process that is at work on a credential.
struct Mark<'a> {
    store: &'a dyn CredentialStore,
    whose: Whose<'a>,
    place: SmolStr,
    by: CallId,
    beats: u64,
}

impl Mark<'_> {
    fn written(&self) -> Credential {
        Credential::new(json!({"by": self.by, "beats": self.beats}))
    }

    async fn replace(&self, before: Option<&Credential>, after: Option<Credential>) -> Result<bool> {
        self.store.replace(self.whose.0, self.whose.1, &self.place, before, after).await
    }

    /// Waits until nobody else has one there.
    async fn set(&self) -> Result<()> {
        let (mut other, mut since) = (None, Instant::now());
        loop {
            let is_over = other.is_none() || since.elapsed() >= SILENCE;
            if is_over && self.replace(other.as_ref(), Some(self.written())).await? {
                return Ok(());
            }
            let seen = self.store.load(self.whose.0, self.whose.1, &self.place).await?;
            if seen != other {
                (other, since) = (seen, Instant::now());
            }
            if other.is_some() {
                sleep(LOOK).await;
            }
        }
    }

    /// Says that the process is still at it.
    async fn beat(&mut self) {
        let before = self.written();
        self.beats += 1;
        if !matches!(self.replace(Some(&before), Some(self.written())).await, Ok(true)) {
            // Next time, perhaps.
            self.beats -= 1;
        }
    }
}
