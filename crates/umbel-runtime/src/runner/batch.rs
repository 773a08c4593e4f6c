//! One append of a run: what it writes, who waits for it, and what came of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Shared;
use smallvec::SmallVec;
use umbel_core::store::{Entries, News};
use umbel_core::{
    BoxFuture, Error, ErrorKind, Event, Lease, LogEntry, Result, RunStep, SessionStore, Versions,
};

/// How often the last write of a run is tried while its store fails.
const RELEASE_ATTEMPTS: u32 = 3;

/// Events of one append; seldom more than two.
pub(super) type Events = SmallVec<[Arc<Event>; 2]>;

/// An append that several wait for.
pub(super) type SharedAppend = Shared<BoxFuture<'static, ()>>;

/// The number by which to ask whether the last event of a batch was taken, or why none of it is stored.
pub(super) type BatchResult = Result<Option<u64>, Failure>;

/// Entries that are appended together. All who queued one of them wait for the same result.
#[derive(Default)]
pub(super) struct Batch {
    appended: Mutex<Option<Appended>>,
    result: OnceLock<BatchResult>,
}

impl Batch {
    /// What came of it, once that is known.
    pub(super) fn result(&self) -> Option<Result<Option<u64>>> {
        self.result.get().map(|result| result.clone().map_err(Error::from))
    }

    pub(super) fn set_result(&self, result: BatchResult) {
        let _ = self.result.set(result);
    }

    /// What the store answered, once.
    pub(super) fn take_appended(&self) -> Option<Appended> {
        self.appended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An append that the store was given. The run owns it, not who waits for it: a branch that is dropped in the middle
/// loses nothing.
pub(super) struct InFlight {
    pub(super) batch: Arc<Batch>,
    pub(super) append: SharedAppend,
    pub(super) contents: BatchContents,
}

/// What an append writes, to be handed on or taken back.
pub(super) struct BatchContents {
    pub(super) events: Events,
    pub(super) notes: Vec<Arc<RunStep>>,
    /// Events whose `emit` has returned.
    pub(super) held: Events,
}

impl InFlight {
    /// Hands entries to the store.
    pub(super) fn new(
        batch: Arc<Batch>,
        append: impl Future<Output = Appended> + Send + 'static,
        contents: BatchContents,
    ) -> Self {
        let filled = batch.clone();
        let append = async move {
            let appended = append.await;
            *filled.appended.lock().unwrap_or_else(PoisonError::into_inner) = Some(appended);
        };
        Self { batch, append: append.boxed().shared(), contents }
    }
}

/// What became of an append.
pub(super) enum Appended {
    Stored(Versions),
    /// Nothing was stored. The log as it stands, if it could be read.
    Failed(Error, Option<Box<News>>),
}

/// Why an append failed, for each who waits for it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let (kind, message) = (error.kind(), error.message().to_owned());
        Self { kind, message, retry_after: error.retry_after() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Self::new(failure.kind, failure.message);
        match failure.retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }
}

/// Appends. If the store fails, its log tells whether the entries are in it: an answer may be lost, an event never is.
pub(super) async fn append(
    store: Arc<dyn SessionStore>,
    lease: Lease,
    versions: Versions,
    entries: Entries,
) -> Appended {
    let first = entries.first().cloned();
    let error = match store.append(&lease, versions, entries).await {
        Ok(versions) => return Appended::Stored(versions),
        Err(error) => error,
    };
    explain(&*store, &lease, versions, first.as_ref(), error).await
}

/// What became of an append that the store answered with an error.
pub(super) async fn explain(
    store: &dyn SessionStore,
    lease: &Lease,
    versions: Versions,
    first: Option<&LogEntry>,
    error: Error,
) -> Appended {
    let error = match verify(store, lease, versions, first, error).await {
        Ok(versions) => return Appended::Stored(versions),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::Fenced {
        return Appended::Failed(error, None);
    }
    let log = store.news(&lease.key, Versions::default()).await.ok().flatten();
    if let (false, Some(log), Some(first)) = (is_refusal(&error), &log, first) {
        // It may not have been found only since the log could not be read the first time.
        let at = usize::try_from(versions.session).unwrap_or(usize::MAX);
        if log.entries.get(at).is_some_and(|stored| is_same(stored, first)) {
            return Appended::Stored(Versions { session: log.versions.session, ..versions });
        }
    }
    Appended::Failed(error, log.map(Box::new))
}

/// Where the log stands after a write whose answer is this error, if it was done all the same; else the error.
pub(super) async fn verify(
    store: &dyn SessionStore,
    lease: &Lease,
    versions: Versions,
    first: Option<&LogEntry>,
    error: Error,
) -> Result<Versions> {
    if !is_refusal(&error)
        && let Some(first) = first
        && let Ok(Some(versions)) = find(store, lease, versions, first).await
    {
        return Ok(versions);
    }
    Err(error)
}

/// The last append of a run, which gives the lease back. `is_sure` is whether `versions` is where the log stands.
pub(super) async fn release(
    store: &dyn SessionStore,
    lease: &Lease,
    mut versions: Versions,
    entries: Entries,
    mut is_sure: bool,
) -> Result<Versions> {
    let mut attempt = 1;
    loop {
        if !is_sure {
            if let Some(first) = entries.first()
                && let Some(versions) = find(store, lease, versions, first).await?
            {
                return Ok(versions);
            }
            let news = store.news(&lease.key, versions).await?;
            versions = news.map_or(versions, |news| news.versions);
        }
        match store.release(lease, versions, entries.clone()).await {
            Err(error) if !is_refusal(&error) && attempt < RELEASE_ATTEMPTS => {
                (attempt, is_sure) = (attempt + 1, false);
            }
            released => return released,
        }
    }
}

/// Whether an error says that nothing was written, by the contract of stores.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Fenced
            | ErrorKind::StaleSession
            | ErrorKind::SessionNotFound
            | ErrorKind::SessionBusy
            | ErrorKind::InvalidInput
    )
}

/// Where the log stands, if this entry is the one that follows what was known.
async fn find(
    store: &dyn SessionStore,
    lease: &Lease,
    known: Versions,
    first: &LogEntry,
) -> Result<Option<Versions>> {
    let news = store.news(&lease.key, known).await?;
    let Some(news) = news.filter(|news| !news.whole) else { return Ok(None) };
    let is_it = news.entries.first().is_some_and(|stored| is_same(stored, first));
    // What others set in the state of user and app meanwhile is still news.
    Ok(is_it.then_some(Versions { session: news.versions.session, ..known }))
}

/// Whether an entry of the log is the one that was to be written.
fn is_same(stored: &LogEntry, written: &LogEntry) -> bool {
    match (stored, written) {
        (LogEntry::Event(stored), LogEntry::Event(event)) => stored.id == event.id,
        (LogEntry::Record(stored), LogEntry::Record(step)) => stored == step,
        _ => false,
    }
}
