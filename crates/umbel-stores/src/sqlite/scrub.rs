//! Nothing of what was deleted stays in the files.
//!
//! `secure_delete` overwrites what is deleted where it stands. That is not enough: when SQLite moves rows to another
//! page, copies of them stay in what is free of the old one, the index of words keeps those of deleted memories until
//! it is merged, and the write-ahead log has old pages until it is cut. So the index is merged, the whole file is
//! written anew, and the log is cut to nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::lock::Mutex;
use rusqlite::Connection;
use umbel_core::{Error, ErrorKind, Result};

use super::{Sqlite, Trouble};

/// Who asked for a scrub, so that those who ask at the same time share one.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    asked: Arc<AtomicU64>,
    /// All that had asked when the last scrub began.
    done: Mutex<u64>,
}

impl Sqlite {
    pub(super) async fn scrub_files(&self) -> Result<()> {
        let scrubs = &self.inner.scrubs;
        let mine = scrubs.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut done = scrubs.done.lock().await;
        if *done >= mine {
            return Ok(());
        }
        let asked = scrubs.asked.clone();
        let scrubbed = self.inner.threads.alone(move |connection| {
            let began = asked.load(Ordering::SeqCst);
            scrub(connection)?;
            Ok(began)
        });
        *done = scrubbed.await?;
        Ok(())
    }
}

fn scrub(connection: &Connection) -> Result<(), Trouble> {
    connection.execute("INSERT INTO memory_words (memory_words) VALUES ('optimize')", [])?;
    // The copy that is made on the way may be larger than memory.
    connection.pragma_update(None, "temp_store", "FILE")?;
    let vacuumed = connection.execute_batch("VACUUM");
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    vacuumed?;
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy {
        let message = "what was deleted may still stand in the write-ahead log, since someone reads the database all \
                       the while: try again";
        return Err(Error::new(ErrorKind::Store, message).into());
    }
    Ok(())
}
