//! The threads that talk to the database: one that writes, and some that read beside it.
//!
//! The writer takes whatever waits into one transaction. So many sessions share one fsync, and nobody waits for more
//! than the group in front of them and their own. Within a group each write stands in a savepoint: one that is refused
//! leaves the others as they are. Where another process writes to the same file, the two take turns.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use rusqlite::{Connection, ErrorCode};
use umbel_core::{Error, ErrorKind, Result};

use super::fault::fault;

/// Writes that share a transaction at most, so that the first of them does not wait for ever.
const LARGEST_GROUP: usize = 512;

/// How often the writer looks whether another process is done. SQLite itself soon looks every 100 ms only, and would
/// hardly ever find the short time between two groups of a busy process.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long the writer leaves the file to a process it had to wait for not long ago: that one looks in this time.
const GIVE_WAY: Duration = Duration::from_millis(2);

/// What is not long ago.
const RECENTLY: Duration = Duration::from_secs(1);

/// Does its work on a connection.
type Read = Box<dyn FnOnce(&mut Connection) + Send>;

/// A write that waits for its turn.
trait Write: Send {
    /// Does it, within the transaction of its group.
    fn run(&mut self, connection: &Connection);

    /// What went wrong with it.
    fn failure(&self) -> Option<&Error>;

    /// Tells whoever waits how it went. If the group failed, so did this.
    fn tell(self: Box<Self>, failed: Option<&Error>);
}

/// A write that gives a value.
struct Writing<T, F> {
    work: Option<F>,
    result: Option<Result<T>>,
    tell: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnOnce(&Connection) -> Result<T> + Send> Write for Writing<T, F> {
    fn run(&mut self, connection: &Connection) {
        self.result = self.work.take().map(|work| in_savepoint(connection, work));
    }

    fn failure(&self) -> Option<&Error> {
        self.result.as_ref().and_then(|result| result.as_ref().err())
    }

    fn tell(self: Box<Self>, failed: Option<&Error>) {
        let result = match (self.result, failed) {
            // What went wrong with this very write says more than what it did to the others.
            (Some(Err(error)), _) => Err(error),
            (_, Some(failed)) => Err(Error::new(failed.kind(), failed.message())),
            (Some(result), None) => result,
            (None, None) => Err(ended()),
        };
        // Nobody waits any more; what was written is written.
        drop(self.tell.send(result));
    }
}

/// The threads of one database. They end when this is dropped.
pub(super) struct Threads {
    // Options, so that they can be closed before the threads are waited for.
    writer: Option<Sender<Box<dyn Write>>>,
    readers: Option<Sender<Read>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them; the first connection writes, the others read. Another process that writes is waited for so long.
    pub(super) fn start(
        writer: Connection,
        readers: Vec<Connection>,
        wait_for_lock: Duration,
    ) -> Result<Self> {
        let (write, writes) = mpsc::channel::<Box<dyn Write>>();
        let (read, reads) = mpsc::channel::<Read>();
        let reads = Arc::new(Mutex::new(reads));
        let mut writer = Writer { connection: writer, wait_for_lock, waited: None };
        let mut threads = vec![start(move || writer.write_all(&writes))?];
        for mut connection in readers {
            let reads = reads.clone();
            threads.push(start(move || {
                loop {
                    // A statement of its own: the lock must be free while the work is done.
                    let next = reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(work) = next else { return };
                    work(&mut connection);
                }
            })?);
        }
        Ok(Self { writer: Some(write), readers: Some(read), threads })
    }

    /// Reads something on another thread.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let work: Read = Box::new(move |connection| drop(tell.send(work(connection))));
        send(self.readers.as_ref(), work)?;
        told.await.map_err(|_| ended())?
    }

    /// Writes something on another thread. It is durable once this is done.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let write: Box<dyn Write> = Box::new(Writing { work: Some(work), result: None, tell });
        send(self.writer.as_ref(), write)?;
        told.await.map_err(|_| ended())?
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.writer = None;
        self.readers = None;
        for thread in self.threads.drain(..) {
            // One that panicked has nothing more to say.
            drop(thread.join());
        }
    }
}

fn start(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name("umbel-sqlite".to_owned()).spawn(work).map_err(|error| {
        let message = format!("a thread for the database cannot be started: {error}");
        Error::new(ErrorKind::Store, message).with_source(error)
    })
}

fn send<T>(thread: Option<&Sender<T>>, work: T) -> Result<()> {
    thread.and_then(|thread| thread.send(work).ok()).ok_or_else(ended)
}

fn ended() -> Error {
    Error::new(ErrorKind::Store, "the thread of the database has ended: open the database again")
}

/// What the work gives; what it wrote is undone if it fails.
fn in_savepoint<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let run = |sql| run(connection, sql).map_err(|error| fault(&path_of(connection), error));
    run("SAVEPOINT one")?;
    let result = work(connection);
    // Where the disk failed, SQLite has undone the whole transaction itself.
    if connection.is_autocommit() {
        return result;
    }
    if result.is_err() {
        run("ROLLBACK TO one")?;
    }
    run("RELEASE one")?;
    result
}

/// What the writing thread has.
struct Writer {
    connection: Connection,
    wait_for_lock: Duration,
    /// When another process was last waited for.
    waited: Option<Instant>,
}

impl Writer {
    /// Writes what comes, in groups.
    fn write_all(&mut self, writes: &Receiver<Box<dyn Write>>) {
        while let Ok(first) = writes.recv() {
            let waiting = || writes.try_iter().take(LARGEST_GROUP - 1);
            match self.begin() {
                Ok(()) => self.write_group(std::iter::once(first).chain(waiting())),
                // Whoever came in the meantime would wait as long, one after the other, for the same.
                Err(error) => {
                    let error = fault(&path_of(&self.connection), error);
                    std::iter::once(first).chain(waiting()).for_each(|write| write.tell(Some(&error)));
                }
            }
            if self.waited.is_some_and(|at| at.elapsed() < RECENTLY) {
                sleep(GIVE_WAY);
            }
        }
    }

    /// Begins a transaction, as soon as no other process writes.
    fn begin(&mut self) -> rusqlite::Result<()> {
        let started = Instant::now();
        self.connection.busy_timeout(Duration::ZERO)?;
        loop {
            match run(&self.connection, "BEGIN IMMEDIATE") {
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                        && started.elapsed() < self.wait_for_lock =>
                {
                    self.waited = Some(Instant::now());
                    sleep(LOOK_EVERY);
                }
                begun => return begun.map(drop),
            }
        }
    }

    /// Writes what waits, in one transaction.
    fn write_group(&self, writes: impl Iterator<Item = Box<dyn Write>>) {
        let (connection, path) = (&self.connection, path_of(&self.connection));
        let mut group = Vec::new();
        for mut write in writes {
            write.run(connection);
            group.push(write);
            if connection.is_autocommit() {
                break;
            }
        }
        let committed = if connection.is_autocommit() {
            Err(given_up(&path, &group))
        } else {
            run(connection, "COMMIT").map(drop).map_err(|error| fault(&path, error))
        };
        if committed.is_err() && !connection.is_autocommit() {
            // If even that fails, the next group will say why.
            drop(run(connection, "ROLLBACK"));
        }
        for write in group {
            write.tell(committed.as_ref().err());
        }
    }
}

/// SQLite undid the whole group, since the last of it failed: what the others are told.
fn given_up(path: &Path, group: &[Box<dyn Write>]) -> Error {
    let why = group.last().and_then(|write| write.failure());
    let (kind, why) =
        why.map_or((ErrorKind::Store, "for a reason it did not give"), |why| (why.kind(), why.message()));
    Error::new(kind, format!("the database {} gave up a group of writes: {why}", path.display()))
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute([])
}

fn path_of(connection: &Connection) -> PathBuf {
    PathBuf::from(connection.path().unwrap_or_default())
}
