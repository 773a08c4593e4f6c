//! Taking the write-ahead log into the database, beside the thread that writes.
//!
//! A checkpoint writes every page that changed and syncs the database, which takes many times as long as a commit. SQLite
//! does it by itself in the commit that makes the log large. Where one session writes, that is as good as any: one append in
//! some hundred waits. Where many do, a group and all who wait for the next one would, and groups make the log large soon.
//! Then a thread of its own takes the log in, while the writer goes on behind it. The log begins anew only when all of it is
//! taken in, and it would grow for ever if nobody waited for anyone; so now and then the writer itself takes in the little
//! that came meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use rusqlite::Connection;
use umbel_core::Result;

use super::fault::fault;
use super::threads::start;

/// After so many more pages in the log they are taken in: 4 MB, SQLite's own measure.
const LARGE: u32 = 1_000;

/// Pages after which the log has to begin anew, whoever waits: 32 MB.
const LARGEST: u32 = 8_000;

/// What is left of the file of the log when it begins anew: all of it, since a file that grows is slow to sync.
pub(super) const KEPT_BYTES: i64 = 34 << 20;

/// The thread that takes the log in. It ends when this is dropped.
pub(super) struct Checkpoints {
    // An option, so that it can be closed before the thread is waited for.
    ask: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Pages in the log at the last commit.
    log: Arc<AtomicU32>,
    /// The thread was asked to take the log in.
    asked: bool,
    /// It has done so.
    done: Arc<AtomicBool>,
    /// How many pages the log had when that was last asked for.
    looked_at: u32,
}

impl Checkpoints {
    /// Starts the thread, which has a connection of its own, and keeps the writer from taking the log in by itself.
    pub(super) fn start(path: &Path, writer: &mut Connection, connection: Connection) -> Result<Self> {
        let (log, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (pages, told) = (log.clone(), done.clone());
        writer
            .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count| {
                pages.store(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            }))
            .map_err(|error| fault(path, error))?;
        let (ask, asked) = mpsc::channel::<()>();
        let thread = start(move || {
            while asked.recv().is_ok() {
                // If it fails, it is tried again when there is more.
                drop(take_in(&connection));
                told.store(true, Ordering::Release);
            }
        })?;
        Ok(Self { ask: Some(ask), thread: Some(thread), log, asked: false, done, looked_at: 0 })
    }

    /// To be called by the writer between two transactions. It tells whether several share them.
    pub(super) fn look(&mut self, writer: &Connection, is_busy: bool) {
        let pages = self.log.load(Ordering::Relaxed);
        if pages < self.looked_at {
            // It has begun anew.
            self.looked_at = 0;
        }
        if self.asked && !self.done.swap(false, Ordering::Acquire) {
            return;
        }
        let was_asked = std::mem::take(&mut self.asked);
        if was_asked && pages >= LARGEST {
            // If someone reads the log it cannot begin anew; then the next time.
            drop(take_in(writer));
        } else if pages - self.looked_at >= LARGE {
            self.looked_at = pages;
            if is_busy {
                self.asked = self.ask.as_ref().is_some_and(|ask| ask.send(()).is_ok());
            } else {
                drop(take_in(writer));
            }
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.ask = None;
        // A thread that panicked has nothing more to say.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Takes in as much of the log as can be without waiting for anyone.
fn take_in(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes until the log begins anew. Gives how large it was.
    fn fill(writer: &Connection, checkpoints: &mut Checkpoints, is_busy: bool) -> u32 {
        let mut before = 0;
        loop {
            write(writer);
            let pages = checkpoints.log.load(Ordering::Relaxed);
            if pages < before {
                return before;
            }
            assert!(pages < 10 * LARGEST, "the log grows for ever: {pages}");
            before = pages;
            checkpoints.look(writer, is_busy);
        }
    }

    /// Writes some 25 pages.
    fn write(writer: &Connection) {
        writer.execute("INSERT INTO texts VALUES (?1)", ["x".repeat(100_000)]).unwrap();
    }

    fn open() -> (tempfile::TempDir, Connection, Checkpoints) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.db");
        let mut writer = Connection::open(&path).unwrap();
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE texts (text)").unwrap();
        let checkpoints = Checkpoints::start(&path, &mut writer, Connection::open(&path).unwrap()).unwrap();
        (folder, writer, checkpoints)
    }

    #[test]
    fn a_log_that_is_written_all_the_time_begins_anew_and_is_larger_while_many_write() {
        let (_folder, writer, mut checkpoints) = open();
        for _ in 0..2 {
            let alone = fill(&writer, &mut checkpoints, false);
            assert!((LARGE..LARGEST).contains(&alone), "{alone}");
        }
        let busy = fill(&writer, &mut checkpoints, true);
        assert!(busy >= LARGEST, "{busy}");
    }

    #[test]
    fn what_is_in_the_log_is_taken_in_while_it_grows() {
        let (folder, writer, mut checkpoints) = open();
        let size = || std::fs::metadata(folder.path().join("some.db")).unwrap().len();
        let before = size();
        while size() == before {
            write(&writer);
            checkpoints.look(&writer, true);
            assert!(checkpoints.log.load(Ordering::Relaxed) < LARGEST, "nobody took it in");
        }
    }

    #[test]
    fn a_log_that_someone_reads_begins_anew_when_that_is_over() {
        let (folder, writer, mut checkpoints) = open();
        let reader = Connection::open(folder.path().join("some.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM texts").unwrap();
        while checkpoints.log.load(Ordering::Relaxed) < 3 * LARGE {
            write(&writer);
            checkpoints.look(&writer, false);
        }
        reader.execute_batch("COMMIT").unwrap();
        fill(&writer, &mut checkpoints, false);
    }
}
