//! Files that are read again when they change.

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

/// What files say together, read again when one of them changes. A change that cannot be read
/// leaves things as they were, and is told in the log: a slip of the pen must not lock everybody
/// out.
pub(crate) struct Watched<T> {
    paths: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<T> + Send + Sync>,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
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
    /// Reads a file for the first time. `parse` makes something of its text.
    pub(crate) fn open(path: PathBuf, parse: fn(&str) -> Result<T>) -> Result<Arc<Self>> {
        let file = path.clone();
        Self::open_all(vec![path], move || read_file(&file, parse))
    }

    /// Reads files that belong together for the first time.
    pub(crate) fn open_all(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let (stamps, value) = load(&paths, &read)?;
        let held = Held { value: Arc::new(value), stamps, looked: Instant::now() };
        Ok(Arc::new(Self { paths, read: Box::new(read), held: Mutex::new(held) }))
    }

    /// What the files say, as of a second ago at most.
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
            tracing::error!(files = ?self, "files could not be looked at");
        }
        self.now()
    }

    /// What it said when it was last looked at.
    pub(crate) fn now(&self) -> Arc<T> {
        self.lock().value.clone()
    }

    fn look(&self) {
        let held = self.lock().stamps.clone();
        let is_same = |(path, held): (&PathBuf, &Stamp)| {
            fs::metadata(path).is_ok_and(|metadata| {
                let now = Stamp::of(&metadata);
                held.is_settled && now.modified == held.modified && now.bytes == held.bytes
            })
        };
        if self.paths.iter().zip(&held).all(is_same) {
            return;
        }
        match load(&self.paths, &self.read) {
            Ok((stamps, value)) => {
                let mut held = self.lock();
                (held.stamps, held.value) = (stamps, Arc::new(value));
            }
            Err(error) => tracing::error!("{error}; what it said before still counts"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads files, and what tells this state of them from others.
fn load<T>(paths: &[PathBuf], read: impl Fn() -> Result<T>) -> Result<(Vec<Stamp>, T)> {
    // Their state is taken first: what changes while they are read is read again.
    let stamp = |path: &PathBuf| {
        fs::metadata(path).map(|metadata| Stamp::of(&metadata)).map_err(|error| unreadable(path, error))
    };
    let stamps = paths.iter().map(stamp).collect::<Result<_>>()?;
    Ok((stamps, read()?))
}

/// Reads a file. An error of `parse` gets its name.
pub(crate) fn read_file<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
    parse(&text).map_err(|error| Error::new(error.kind(), format!("{}: {}", path.display(), error.message())))
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let message = format!("{} cannot be read: {error}", path.display());
    Error::new(ErrorKind::Build, message).with_source(error)
}

/// Whether others on this machine may read a file, the members of its group among them.
#[cfg(unix)]
pub(crate) fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o044 != 0)
}

#[cfg(not(unix))]
pub(crate) fn others_may_read(_path: &Path) -> bool {
    false
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.paths).finish()
    }
}
