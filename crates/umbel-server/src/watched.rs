//! A file that is read again when it changes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use umbel_core::{Error, ErrorKind, Result};

/// How often a file is looked at, at most.
const LOOK: Duration = Duration::from_secs(1);

/// How old a change must be for its time to tell it from the next one: file systems count time in steps.
const SETTLED: Duration = Duration::from_secs(2);

/// What a file says, read again when it changes. A change that cannot be read leaves things as they were, and is told in
/// the log: a slip of the pen must not lock everybody out.
pub(crate) struct Watched<T> {
    path: PathBuf,
    read: fn(&str) -> Result<T>,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    value: Arc<T>,
    stamp: Stamp,
    looked: Instant,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    /// Whether a change after this one would show.
    is_settled: bool,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        let modified = metadata.modified().ok();
        let age = modified.and_then(|modified| modified.elapsed().ok());
        Self { modified, bytes: metadata.len(), is_settled: age.is_some_and(|age| age > SETTLED) }
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads a file for the first time. `read` makes something of its text.
    pub(crate) fn open(path: PathBuf, read: fn(&str) -> Result<T>) -> Result<Arc<Self>> {
        let (stamp, value) = load(&path, read)?;
        let held = Held { value: Arc::new(value), stamp, looked: Instant::now() };
        Ok(Arc::new(Self { path, read, held: Mutex::new(held) }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says, as of a second ago at most.
    pub(crate) async fn get(self: &Arc<Self>) -> Arc<T> {
        {
            let mut held = self.lock();
            if held.looked.elapsed() < LOOK {
                return held.value.clone();
            }
            held.looked = Instant::now();
        }
        let watched = self.clone();
        // Files can take their time.
        let looked = tokio::task::spawn_blocking(move || watched.look()).await;
        if looked.is_err() {
            tracing::error!(path = %self.path.display(), "a file could not be looked at");
        }
        self.now()
    }

    /// What it said when it was last looked at.
    pub(crate) fn now(&self) -> Arc<T> {
        self.lock().value.clone()
    }

    fn look(&self) {
        let stamp = self.lock().stamp;
        let same = fs::metadata(&self.path).is_ok_and(|metadata| {
            let now = Stamp::of(&metadata);
            stamp.is_settled && now.modified == stamp.modified && now.bytes == stamp.bytes
        });
        if same {
            return;
        }
        match load(&self.path, self.read) {
            Ok((stamp, value)) => {
                let mut held = self.lock();
                (held.stamp, held.value) = (stamp, Arc::new(value));
            }
            Err(error) => tracing::error!("{error}; what it said before still counts"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a file, and what tells this state of it from others.
fn load<T>(path: &Path, read: fn(&str) -> Result<T>) -> Result<(Stamp, T)> {
    let wrong = |error: io::Error| {
        let message = format!("{} cannot be read: {error}", path.display());
        Error::new(ErrorKind::Build, message).with_source(error)
    };
    // Its state is taken first: what changes while it is read is read again.
    let stamp = Stamp::of(&fs::metadata(path).map_err(wrong)?);
    let text = fs::read_to_string(path).map_err(wrong)?;
    let value = read(&text)
        .map_err(|error| Error::new(error.kind(), format!("{}: {}", path.display(), error.message())))?;
    Ok((stamp, value))
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}
