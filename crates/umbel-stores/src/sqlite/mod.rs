//! Everything in one file, without a server.
//!
//! One thread writes, in groups that share an fsync; others read beside it, and one takes in what was written. A write is done when it is on the disk:
//! with a write-ahead log and `synchronous = FULL`, SQLite syncs that log with every commit, so what was acknowledged
//! survives a loss of power. `NORMAL` would sync at checkpoints only and lose what came after the last one; with
//! groups, `FULL` costs little more. Several processes may use one file.

mod artifacts;
mod checkpoints;
mod credentials;
mod fault;
mod memory;
mod schema;
mod scrub;
mod sessions;
mod threads;
mod transfer;
mod upkeep;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use rusqlite::{Connection, OpenFlags};
use umbel_core::{Clock, Error, ErrorKind, Result, SystemClock};

pub use self::schema::SCHEMA_VERSION;

use self::fault::{fault, read_only};
use self::scrub::Scrubs;
use self::threads::Threads;
use crate::seal::Keys;

/// The longest that SQLite itself waits for a lock: it counts milliseconds in 32 bits, which are 24 days.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// A SQLite database: a store of sessions, artifacts, memories and credentials. Clones share it.
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

struct Inner {
    path: Arc<Path>,
    threads: Threads,
    keys: Option<Keys>,
    scrubs: Scrubs,
    clock: Arc<dyn Clock>,
}

/// How a database is opened.
#[derive(Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    keys: Option<Keys>,
    readers: usize,
    wait_for_lock: Duration,
    max_bytes: Option<u64>,
    clock: Arc<dyn Clock>,
}

impl SqliteOptions {
    /// The keys that credentials are encrypted with. Without them none are stored.
    pub fn keys(mut self, keys: impl Into<Option<Keys>>) -> Self {
        self.keys = keys.into();
        self
    }

    /// How many threads read; 2 unless told otherwise.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// How long to wait for another process that writes; 10 seconds unless told otherwise. What is to be written fails
    /// together when that time is over: at once with zero, never with [`Duration::MAX`].
    pub fn wait_for_lock(mut self, wait: Duration) -> Self {
        self.wait_for_lock = wait;
        self
    }

    /// How large the file may grow. What does not fit is refused as if the disk were full.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// The clock that leases go by, which all processes of the file must share; the machine's unless told otherwise.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Opens the database, and makes it or brings it up to date where needed.
    pub async fn open(self) -> Result<Sqlite> {
        // On a thread of its own: it waits for the disk, and perhaps for another process.
        let (tell, told) = oneshot::channel();
        let opened = std::thread::Builder::new().name("umbel-sqlite-open".to_owned());
        let started = opened.spawn(move || drop(tell.send(self.open_here())));
        let ended =
            |what: String| Error::new(ErrorKind::Store, format!("the database cannot be opened: {what}"));
        started.map_err(|error| ended(error.to_string()))?;
        told.await.map_err(|error| ended(error.to_string()))?
    }

    fn open_here(self) -> Result<Sqlite> {
        let path = &self.path;
        let say = |error| fault(path, error);
        let mut writer = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        // SQLite would open it for reading, and stay with that when the file may be written again.
        if writer.is_readonly("main").map_err(say)? {
            return Err(read_only(path));
        }
        writer.pragma_update(None, "journal_mode", "WAL").map_err(say)?;
        writer.pragma_update(None, "synchronous", "FULL").map_err(say)?;
        // What is deleted must not be found in the file; see also scrub.rs.
        writer.pragma_update(None, "secure_delete", "ON").map_err(say)?;
        writer.pragma_update(None, "journal_size_limit", checkpoints::KEPT_BYTES).map_err(say)?;
        schema::migrate(&mut writer, path)?;
        if let Some(bytes) = self.max_bytes {
            let page: i64 = writer.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(say)?;
            let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
            writer.pragma_update(None, "max_page_count", pages).map_err(say)?;
        }
        let checkpoints = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let readers = (0..self.readers).map(|_| self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE));
        let (path, readers) = (Arc::<Path>::from(self.path.as_path()), readers.collect::<Result<_>>()?);
        let threads = Threads::start(path.clone(), writer, checkpoints, readers, self.wait_for_lock)?;
        let (keys, clock, scrubs) = (self.keys, self.clock, Scrubs::default());
        Ok(Sqlite { inner: Arc::new(Inner { path, threads, keys, scrubs, clock }) })
    }

    fn connect(&self, flags: OpenFlags) -> Result<Connection> {
        let say = |error| fault(&self.path, error);
        let connection =
            Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(say)?;
        connection.busy_timeout(self.wait_for_lock.min(LONGEST_WAIT)).map_err(say)?;
        connection.pragma_update(None, "temp_store", "MEMORY").map_err(say)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }
}

impl Sqlite {
    /// How to open the database at a path.
    pub fn options(path: impl AsRef<Path>) -> SqliteOptions {
        SqliteOptions {
            path: path.as_ref().to_owned(),
            keys: None,
            readers: 2,
            wait_for_lock: Duration::from_secs(10),
            max_bytes: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// Opens the database at a path, and makes it where there is none.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options(path).open().await
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The clock that leases go by.
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock.clone()
    }

    /// Reads something, all of it from one moment.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        self.inner.threads.read(move |connection| work(&*connection.transaction()?)).await
    }

    /// Writes something, all of it or nothing, in a transaction of its own.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        self.inner.threads.write(work).await
    }

    /// The same in one transaction with whatever else waits, for what is small and often. The work may be done twice.
    async fn write_together<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        self.inner.threads.write_together(work).await
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.inner.path.display())
    }
}

/// What may go wrong in a piece of work.
enum Trouble {
    /// The database failed.
    Sqlite(rusqlite::Error),
    /// The contract forbids it, or something cannot be read.
    Refused(Error),
}

impl Trouble {
    fn at(self, path: &Path) -> Error {
        match self {
            Self::Sqlite(error) => fault(path, error),
            Self::Refused(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Numbers that SQLite keeps signed and Umbel counts up from 0.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The other way; a number that no database can hold is larger than any in it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
