//! Whose turn it is to work on a credential: one at a time in a process, and one of the processes that share a store.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::json;
use smol_str::{SmolStr, format_smolstr};
use tokio::time::{Instant, sleep, timeout};

use crate::credential::{Credential, CredentialStore};
use crate::error::Result;
use crate::id::{CallId, Ids, RandomIds};

/// An app, and a user of it.
pub type Whose<'a> = (&'a str, &'a str);

/// How often a process that is at work says so.
const BEAT: Duration = Duration::from_secs(2);
/// A process that has said nothing for so long has ended.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// How often others look whether it is done.
const LOOK: Duration = Duration::from_millis(50);

/// Whoever has it works on one credential.
type Flight = tokio::sync::Mutex<()>;

/// The right to work on one credential in this process, until the last of those who have it is done.
pub(crate) type Turn = Arc<tokio::sync::OwnedMutexGuard<()>>;

/// Who is at work on a credential in this process, by app, user and name.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<[SmolStr; 3], Weak<Flight>>>>);

impl Turns {
    /// Waits until nobody else works on it.
    pub(crate) async fn take(&self, whose: Whose<'_>, name: &SmolStr) -> Turn {
        let flight = self.flight([whose.0.into(), whose.1.into(), name.clone()]);
        Arc::new(flight.lock_owned().await)
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
        match timeout(BEAT, work.as_mut()).await {
            Ok(done) => break done,
            Err(_) => mark.beat().await,
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
