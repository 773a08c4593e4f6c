//! The threads that talk to the database: one that writes, and some that read beside it.
//!
//! The writer takes whatever waits into one transaction. So many sessions share one fsync, and nobody waits for more
//! than the group in front of them and their own. A write that is refused before it changed anything leaves the others
//! as they are. One that fails in the middle takes the whole group back, and then each is done again by itself: that is
//! seldom, while a savepoint for each would copy every page that it touches. What can be done in no transaction is done
//! between two groups, and so is what the writer has to do about checkpoints. Where another process writes to the same
//! file, the two take turns.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use rusqlite::{Connection, ErrorCode};
use umbel_core::{Error, ErrorKind, Result};

use super::checkpoints::Checkpoints;
use super::fault::fault;
use super::{LONGEST_WAIT, Trouble};

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

/// What the writer does next.
enum Job {
    /// A write, in a transaction.
    Write(Box<dyn Write>),
    /// Something that can be done in no transaction.
    Alone(Box<dyn FnOnce(&Connection) + Send>),
}

/// A write that waits for its turn.
trait Write: Send {
    /// Whether it shares its transaction with others. It may be done twice, then.
    fn is_shared(&self) -> bool;

    /// Does it within a transaction. If it tells that it failed in the middle, the transaction is to be taken back.
    fn run(&mut self, connection: &Connection) -> Result<(), FailedInTheMiddle>;

    /// Tells whoever waits how it went. If the transaction failed, so did this.
    fn tell(self: Box<Self>, path: &Path, failed: Option<&Error>);
}

/// A write failed after it had changed something, or the database did.
struct FailedInTheMiddle;

/// A write that gives a value.
struct Writing<T, F> {
    work: F,
    is_shared: bool,
    result: Option<Result<T, Trouble>>,
    tell: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&Connection) -> Result<T, Trouble> + Send> Write for Writing<T, F> {
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn run(&mut self, connection: &Connection) -> Result<(), FailedInTheMiddle> {
        let before = connection.total_changes();
        let result = (self.work)(connection);
        let unchanged = matches!(result, Err(Trouble::Refused(_))) && connection.total_changes() == before;
        let sound = result.is_ok() || unchanged;
        self.result = Some(result);
        if sound { Ok(()) } else { Err(FailedInTheMiddle) }
    }

    fn tell(self: Box<Self>, path: &Path, failed: Option<&Error>) {
        let result = match (self.result, failed) {
            // What went wrong with this very write says more than what it did to the others.
            (Some(Err(trouble)), _) => Err(trouble.at(path)),
            (_, Some(failed)) => Err(Error::new(failed.kind(), failed.message())),
            (Some(Ok(value)), None) => Ok(value),
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
    writing: Option<JoinHandle<()>>,
    reading: Vec<JoinHandle<()>>,
    path: Arc<Path>,
}

impl Threads {
    /// Starts them for the database at a path; the first connection writes, the second takes in what was written, the
    /// others read. Another process that writes is waited for so long.
    pub(super) fn start(
        path: Arc<Path>,
        mut writer: Connection,
        checkpoints: Connection,
        readers: Vec<Connection>,
        wait_for_lock: Duration,
    ) -> Result<Self> {
        let (write, writes) = mpsc::channel::<Job>();
        let (read, reads) = mpsc::channel::<Read>();
        let reads = Arc::new(Mutex::new(reads));
        let checkpoints = Checkpoints::start(&path, &mut writer, checkpoints)?;
        let mut writing = Writer {
            checkpoints,
            connection: writer,
            path: path.clone(),
            wait_for_lock,
            waited: None,
            group: 0,
        };
        let writing = Some(start(move || writing.write_all(&writes))?);
        let mut reading = Vec::with_capacity(readers.len());
        for mut connection in readers {
            let reads = reads.clone();
            reading.push(start(move || {
                loop {
                    // A statement of its own: the lock must be free while the work is done.
                    let next = reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(work) = next else { return };
                    work(&mut connection);
                }
            })?);
        }
        Ok(Self { writer: Some(write), readers: Some(read), writing, reading, path })
    }

    /// Reads something on another thread.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let work: Read = Box::new(move |connection| drop(tell.send(work(connection))));
        send(self.readers.as_ref(), work)?;
        told.await.map_err(|_| ended())?.map_err(|trouble| trouble.at(&self.path))
    }

    /// Writes something on another thread, in a transaction of its own. It is durable once this is done.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        let mut work = Some(work);
        let once = move |connection: &Connection| match work.take() {
            Some(work) => work(connection),
            None => Err(ended().into()),
        };
        self.queue(false, once).await
    }

    /// The same in one transaction with whatever else waits. The work may be done twice.
    pub(super) async fn write_together<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        self.queue(true, work).await
    }

    async fn queue<T: Send + 'static>(
        &self,
        is_shared: bool,
        work: impl FnMut(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let write = Box::new(Writing { work, is_shared, result: None, tell });
        send(self.writer.as_ref(), Job::Write(write))?;
        told.await.map_err(|_| ended())?
    }

    /// Does something on the writing thread, outside of any transaction.
    pub(super) async fn alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let work = Box::new(move |connection: &Connection| drop(tell.send(work(connection))));
        send(self.writer.as_ref(), Job::Alone(work))?;
        told.await.map_err(|_| ended())?.map_err(|trouble| trouble.at(&self.path))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The writer goes last and alone: only the last connection takes the write-ahead log into the file and removes
        // it, and of two that close at the same time neither is the last.
        self.readers = None;
        // A thread that panicked has nothing more to say.
        self.reading.drain(..).for_each(|thread| drop(thread.join()));
        self.writer = None;
        self.writing.take().map(JoinHandle::join);
    }
}

pub(super) fn start(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
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

/// The thread that writes.
struct Writer {
    // Before the connection, which has to be the last one that is closed.
    checkpoints: Checkpoints,
    connection: Connection,
    path: Arc<Path>,
    wait_for_lock: Duration,
    /// When another process was last waited for.
    waited: Option<Instant>,
    /// How many writes the last group had.
    group: usize,
}

impl Writer {
    /// Does what comes, writes in groups.
    fn write_all(&mut self, jobs: &Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
            match job {
                Job::Write(first) if first.is_shared() => next = self.write_group(first, jobs),
                Job::Write(write) => drop(self.write_alone(write)),
                Job::Alone(work) => work(&self.connection),
            }
            self.checkpoints.look(&self.connection, self.group > 1);
            if self.waited.is_some_and(|at| at.elapsed() < RECENTLY) {
                sleep(GIVE_WAY);
            }
        }
    }

    /// Writes what waits, in one transaction. Gives what waits as well and does not belong to it.
    fn write_group(&mut self, first: Box<dyn Write>, jobs: &Receiver<Job>) -> Option<Job> {
        if let Err(error) = self.begin() {
            first.tell(&self.path, Some(&error));
            // Whoever came in the meantime would wait as long, one after the other, for the same.
            while let Ok(job) = jobs.try_recv() {
                match job {
                    Job::Write(write) => write.tell(&self.path, Some(&error)),
                    other => return Some(other),
                }
            }
            return None;
        }
        let (mut group, mut next) = (Vec::new(), Some(Job::Write(first)));
        let belongs = |job: &mut Job| matches!(job, Job::Write(write) if write.is_shared());
        while group.len() < LARGEST_GROUP
            && let Some(Job::Write(mut write)) = next.take_if(belongs)
        {
            let done = write.run(&self.connection);
            group.push(write);
            if let Err(FailedInTheMiddle) = done {
                self.roll_back();
                self.write_each(group);
                return None;
            }
            next = jobs.try_recv().ok();
        }
        let failed = self.commit().err();
        self.group = group.len();
        group.into_iter().for_each(|write| write.tell(&self.path, failed.as_ref()));
        next
    }

    /// Writes each by itself, until another process does not let go of the file.
    fn write_each(&mut self, writes: Vec<Box<dyn Write>>) {
        let mut locked = Ok(());
        for write in writes {
            match &locked {
                Ok(()) => locked = self.write_alone(write),
                Err(error) => write.tell(&self.path, Some(error)),
            }
        }
    }

    /// Writes something in a transaction of its own. It is an error if there was none to be had.
    fn write_alone(&mut self, mut write: Box<dyn Write>) -> Result<()> {
        if let Err(error) = self.begin() {
            write.tell(&self.path, Some(&error));
            return Err(error);
        }
        let written = match write.run(&self.connection) {
            Ok(()) => self.commit(),
            Err(FailedInTheMiddle) => {
                self.roll_back();
                Ok(())
            }
        };
        write.tell(&self.path, written.err().as_ref());
        Ok(())
    }

    /// Begins a transaction, as soon as no other process writes.
    fn begin(&mut self) -> Result<()> {
        let say = |error| fault(&self.path, error);
        let started = Instant::now();
        self.connection.busy_timeout(Duration::ZERO).map_err(say)?;
        let begun = loop {
            let mut begin = self.connection.prepare_cached("BEGIN IMMEDIATE").map_err(say)?;
            match begin.execute([]) {
                Err(error)
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                        && started.elapsed() < self.wait_for_lock =>
                {
                    self.waited = Some(Instant::now());
                    sleep(LOOK_EVERY);
                }
                begun => break begun.map(drop).map_err(say),
            }
        };
        self.connection.busy_timeout(self.wait_for_lock.min(LONGEST_WAIT)).map_err(say)?;
        begun
    }

    fn commit(&self) -> Result<()> {
        let committed = self.run("COMMIT");
        if committed.is_err() {
            self.roll_back();
        }
        committed
    }

    /// Takes a transaction back, unless SQLite has done so itself, as it does where the disk failed.
    fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // If even that fails, the next transaction will say why.
            drop(self.run("ROLLBACK"));
        }
    }

    fn run(&self, sql: &str) -> Result<()> {
        let done = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        done.map(drop).map_err(|error| fault(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tempfile::TempDir;

    use super::*;

    fn start() -> (TempDir, Threads) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.db");
        let connect = || Connection::open(&path).unwrap();
        let writer = connect();
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE numbers (number UNIQUE)").unwrap();
        let threads = Threads::start(
            path.as_path().into(),
            writer,
            connect(),
            vec![connect(), connect()],
            Duration::from_secs(10),
        )
        .unwrap();
        (folder, threads)
    }

    fn insert(connection: &Connection, number: i64) -> Result<(), Trouble> {
        connection.execute("INSERT INTO numbers VALUES (?1)", [number])?;
        Ok(())
    }

    async fn numbers(threads: &Threads) -> Vec<i64> {
        let read = threads.read(|connection| {
            let mut select = connection.prepare("SELECT number FROM numbers ORDER BY number")?;
            Ok(select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
        });
        read.await.unwrap()
    }

    fn refusal() -> Trouble {
        Error::new(ErrorKind::StaleSession, "too late").into()
    }

    /// Does a write in a group with two others: one that begins only when all three wait, and one after it. Gives what
    /// came of it, and how often the last of them was done.
    async fn in_a_group(
        threads: &Threads,
        work: impl FnMut(&Connection) -> Result<(), Trouble> + Send + 'static,
    ) -> (Result<()>, usize) {
        let (go, gone) = mpsc::channel::<()>();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let first = threads.write_together(move |connection| {
            // The second time nobody tells any more.
            let _ = gone.recv();
            insert(connection, 1)
        });
        let last = threads.write_together(move |connection| {
            counted.fetch_add(1, Ordering::Relaxed);
            insert(connection, 3)
        });
        let (first, middle, last, ()) =
            tokio::join!(first, threads.write_together(work), last, async { drop(go) });
        first.unwrap();
        last.unwrap();
        (middle, count.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_refused_write_leaves_its_group_alone() {
        let (_folder, threads) = start();
        let (refused, count) = in_a_group(&threads, |_| Err(refusal())).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::StaleSession);
        assert_eq!((numbers(&threads).await, count), (vec![1, 3], 1));
    }

    #[tokio::test]
    async fn a_write_that_fails_in_the_middle_is_undone_and_the_others_are_written() {
        let (_folder, threads) = start();
        let refused_late = |connection: &Connection| {
            insert(connection, 2)?;
            Err(refusal())
        };
        let (failed, _) = in_a_group(&threads, refused_late).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::StaleSession);
        assert_eq!(numbers(&threads).await, [1, 3]);
    }

    #[tokio::test]
    async fn a_write_that_the_database_refuses_fails_alone() {
        let (_folder, threads) = start();
        let (failed, _) = in_a_group(&threads, |connection| insert(connection, 1)).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Store);
        assert_eq!(numbers(&threads).await, [1, 3]);
    }

    #[tokio::test]
    async fn a_write_of_its_own_is_done_between_groups_and_once() {
        let (_folder, threads) = start();
        let (go, gone) = mpsc::channel::<()>();
        let first = threads.write_together(move |connection| {
            let _ = gone.recv();
            insert(connection, 1)
        });
        let alone = threads.write(|connection| {
            insert(connection, 2)?;
            Err::<(), _>(refusal())
        });
        let last = threads.write_together(|connection| insert(connection, 3));
        let (first, alone, last, ()) = tokio::join!(first, alone, last, async { drop(go) });
        assert!(first.is_ok() && last.is_ok());
        assert_eq!(alone.unwrap_err().kind(), ErrorKind::StaleSession);
        assert_eq!(numbers(&threads).await, [1, 3]);
    }

    #[tokio::test]
    async fn a_database_that_was_closed_is_one_file() {
        for _ in 0..20 {
            let (folder, threads) = start();
            threads.write(|connection| insert(connection, 1)).await.unwrap();
            drop(threads);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
