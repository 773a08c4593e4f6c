//! The threads that talk to the database: one that writes, and some that read beside it.
//!
//! The writer takes whatever waits into one transaction. So many sessions share one fsync, and nobody waits for more
//! than the group in front of them and their own. Within a group each write stands in a savepoint: one that is refused
//! leaves the others as they are. What can be done in no transaction is done between two groups.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use futures::channel::oneshot;
use rusqlite::Connection;
use umbel_core::{Error, ErrorKind, Result};

use super::fault::fault;

/// Writes that share a transaction at most, so that the first of them does not wait for ever.
const LARGEST_GROUP: usize = 512;

/// Does its work on a connection.
type Read = Box<dyn FnOnce(&mut Connection) + Send>;

/// What the writer does next.
enum Job {
    /// A write, in the transaction of its group.
    Write(Box<dyn Write>),
    /// Something that can be done in no transaction.
    Alone(Box<dyn FnOnce(&Connection) + Send>),
}

/// A write that waits for its turn.
trait Write: Send {
    /// Does it, within the transaction of its group.
    fn run(&mut self, connection: &Connection);

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
    writer: Option<Sender<Job>>,
    readers: Option<Sender<Read>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them; the first connection writes, the others read.
    pub(super) fn start(writer: Connection, readers: Vec<Connection>) -> Result<Self> {
        let (write, writes) = mpsc::channel::<Job>();
        let (read, reads) = mpsc::channel::<Read>();
        let reads = Arc::new(Mutex::new(reads));
        let mut threads = vec![start(move || write_all(&writer, &writes))?];
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
        let write = Box::new(Writing { work: Some(work), result: None, tell });
        send(self.writer.as_ref(), Job::Write(write))?;
        told.await.map_err(|_| ended())?
    }

    /// Does something on the writing thread, outside of any transaction.
    pub(super) async fn alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let work = Box::new(move |connection: &Connection| drop(tell.send(work(connection))));
        send(self.writer.as_ref(), Job::Alone(work))?;
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

/// Does what comes, writes in groups.
fn write_all(connection: &Connection, jobs: &Receiver<Job>) {
    let mut next = jobs.recv().ok();
    while let Some(job) = next {
        let after = match job {
            Job::Write(first) => write_group(connection, first, jobs),
            Job::Alone(work) => {
                work(connection);
                None
            }
        };
        next = after.or_else(|| jobs.recv().ok());
    }
}

/// Writes what waits, in one transaction. Gives what came up that cannot be part of it.
fn write_group(connection: &Connection, first: Box<dyn Write>, jobs: &Receiver<Job>) -> Option<Job> {
    let path = path_of(connection);
    if let Err(error) = run(connection, "BEGIN IMMEDIATE") {
        first.tell(Some(&fault(&path, error)));
        return None;
    }
    let (mut group, mut next, mut after) = (Vec::new(), Some(first), None);
    while let Some(mut write) = next.take() {
        write.run(connection);
        group.push(write);
        if connection.is_autocommit() || group.len() == LARGEST_GROUP {
            break;
        }
        match jobs.try_recv() {
            Ok(Job::Write(write)) => next = Some(write),
            Ok(alone) => after = Some(alone),
            Err(_) => {}
        }
    }
    let committed = if connection.is_autocommit() {
        let message =
            format!("the database {} gave up a group of writes; nothing was written", path.display());
        Err(Error::new(ErrorKind::Store, message))
    } else {
        run(connection, "COMMIT").map_err(|error| fault(&path, error))
    };
    if committed.is_err() && !connection.is_autocommit() {
        // If even that fails, the next group will say why.
        drop(run(connection, "ROLLBACK"));
    }
    for write in group {
        write.tell(committed.as_ref().err());
    }
    after
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute([])
}

fn path_of(connection: &Connection) -> PathBuf {
    PathBuf::from(connection.path().unwrap_or_default())
}
