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

/// What a write was to append, to be looked for in the log. No previews are among it.
pub(super) struct WrittenEntries {
    first: Option<LogEntry>,
    count: usize,
}

impl WrittenEntries {
    pub(super) fn new(entries: &Entries) -> Self {
        Self { first: entries.first().cloned(), count: entries.len() }
    }

    /// What a writer knows once they are stored behind what it knew. Others may have written since, which is news to it.
    fn behind(&self, known: Versions) -> Versions {
        Versions { session: known.session + self.count as u64, ..known }
    }

    /// Whether they begin with an entry of the log.
    fn begin_with(&self, stored: Option<&LogEntry>) -> bool {
        match (stored, &self.first) {
            (Some(LogEntry::Event(stored)), Some(LogEntry::Event(event))) => stored.id == event.id,
            (Some(LogEntry::Record(stored)), Some(LogEntry::Record(step))) => stored == step,
            _ => false,
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
    let written = WrittenEntries::new(&entries);
    let error = match store.append(&lease, versions, entries).await {
        Ok(versions) => return Appended::Stored(versions),
        Err(error) => error,
    };
    explain(&*store, &lease, versions, &written, error).await
}

/// What became of an append that the store answered with an error.
pub(super) async fn explain(
    store: &dyn SessionStore,
    lease: &Lease,
    versions: Versions,
    written: &WrittenEntries,
    error: Error,
) -> Appended {
    let error = match verify(store, lease, versions, written, error).await {
        Ok(versions) => return Appended::Stored(versions),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::Fenced {
        return Appended::Failed(error, None);
    }
    let log = store.news(&lease.key, Versions::default()).await.ok().flatten();
    if let (false, Some(log)) = (is_refusal(&error), &log) {
        // It may not have been found only since the log could not be read the first time.
        let at = usize::try_from(versions.session).unwrap_or(usize::MAX);
        if written.begin_with(log.entries.get(at)) {
            return Appended::Stored(written.behind(versions));
        }
    }
    Appended::Failed(error, log.map(Box::new))
}

/// Where the log stands after a write whose answer is this error, if it was done all the same; else the error.
pub(super) async fn verify(
    store: &dyn SessionStore,
    lease: &Lease,
    versions: Versions,
    written: &WrittenEntries,
    error: Error,
) -> Result<Versions> {
    if !is_refusal(&error)
        && let Ok(Some(versions)) = find(store, lease, versions, written).await
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
    let written = WrittenEntries::new(&entries);
    loop {
        if !is_sure {
            if let Some(versions) = find(store, lease, versions, &written).await? {
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

/// What a writer knows after a write, if it is the one that follows what was known.
async fn find(
    store: &dyn SessionStore,
    lease: &Lease,
    known: Versions,
    written: &WrittenEntries,
) -> Result<Option<Versions>> {
    let news = store.news(&lease.key, known).await?;
    let Some(news) = news.filter(|news| !news.whole) else { return Ok(None) };
    Ok(written.begin_with(news.entries.first()).then(|| written.behind(known)))
}
