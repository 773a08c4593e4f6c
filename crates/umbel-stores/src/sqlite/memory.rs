//! Memories in SQLite, found by its full-text index.

use std::collections::HashSet;

use rusqlite::{Connection, ToSql, params};
use umbel_core::memory::{MemoryEntry, best, said_in, words};
use umbel_core::{MemoryStore, Result, Session, Work};

use super::sessions::scope;
use super::upkeep::forget_scope;
use super::{Sqlite, Trouble};
use crate::entries::{from_json, to_json};

/// What the index gives to choose the best from.
const CANDIDATES: i64 = 200;

/// A memory as it is written.
pub(super) struct Row {
    author: String,
    time: f64,
    content: String,
    words: String,
}

impl Row {
    pub(super) fn new(entry: MemoryEntry) -> Result<Self> {
        let words: Vec<String> = words(&entry.content.text()).into_iter().collect();
        let content = to_json(&*entry.content)?;
        Ok(Self { author: entry.author, time: entry.timestamp, content, words: words.join(" ") })
    }
}

/// Puts rows in the place of what was remembered of a session.
pub(super) fn replace(
    connection: &Connection,
    [app, user, session]: &[String; 3],
    rows: &[Row],
) -> Result<(), Trouble> {
    forget(connection, "app = ?1 AND user = ?2 AND session = ?3", &[app, user, session])?;
    if rows.is_empty() {
        return Ok(());
    }
    let owner = owner(scope(connection, app, user, 0)?.0);
    for row in rows {
        let mut insert = connection.prepare_cached(
            "INSERT INTO memories (app, user, session, author, time, content) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        insert.execute(params![app, user, session, row.author, row.time, row.content])?;
        let mut index = connection
            .prepare_cached("INSERT INTO memory_words (rowid, owner, words) VALUES (?1, ?2, ?3)")?;
        index.execute(params![connection.last_insert_rowid(), owner, row.words])?;
    }
    Ok(())
}

/// Deletes those memories that a condition fits. Tells how many there were.
fn forget(connection: &Connection, condition: &str, values: &[&dyn ToSql]) -> Result<u64, Trouble> {
    let words =
        format!("DELETE FROM memory_words WHERE rowid IN (SELECT id FROM memories WHERE {condition})");
    connection.prepare_cached(&words)?.execute(values)?;
    let entries = format!("DELETE FROM memories WHERE {condition}");
    Ok(connection.prepare_cached(&entries)?.execute(values)? as u64)
}

/// The word that stands for a user in the index.
fn owner(scope: i64) -> String {
    format!("o{scope}")
}

fn candidates(
    connection: &Connection,
    app: &str,
    user: &str,
    wanted: &HashSet<String>,
) -> Result<Vec<MemoryEntry>, Trouble> {
    let mut scope = connection.prepare_cached("SELECT id FROM scopes WHERE app = ?1 AND user = ?2")?;
    let mut scope = scope.query([app, user])?;
    let Some(scope) = scope.next()? else { return Ok(Vec::new()) };
    let owner = owner(scope.get(0)?);
    // Words have no quotes in them, so they can be quoted without care.
    let any: Vec<String> = wanted.iter().map(|word| format!("\"{word}\"")).collect();
    let query = format!("owner : \"{owner}\" AND words : ({})", any.join(" OR "));
    let mut select = connection.prepare_cached(
        "SELECT m.content, m.author, m.session, m.time FROM memory_words w JOIN memories m ON m.id = w.rowid
         WHERE memory_words MATCH ?1 AND m.app = ?2 AND m.user = ?3 ORDER BY bm25(memory_words, 0.0, 1.0) LIMIT ?4",
    )?;
    let mut rows = select.query(params![query, app, user, CANDIDATES])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let content = from_json("a memory", &row.get::<_, String>(0)?)?;
        found.push(MemoryEntry {
            content,
            author: row.get(1)?,
            session: row.get(2)?,
            timestamp: row.get(3)?,
        });
    }
    Ok(found)
}

impl MemoryStore for Sqlite {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        Work::later(async move {
            let rows = said_in(session).map(Row::new).collect::<Result<Vec<_>>>()?;
            let place = [session.key.app(), session.key.user(), session.key.id()].map(str::to_owned);
            self.write(move |connection| replace(connection, &place, &rows)).await
        })
    }

    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        query: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>> {
        let (app, user, wanted) = (app.to_owned(), user.to_owned(), words(query));
        Work::later(async move {
            if wanted.is_empty() {
                return Ok(Vec::new());
            }
            let found = self.read(move |connection| {
                let found = candidates(connection, &app, &user, &wanted)?;
                Ok(best(&found, &wanted).into_iter().cloned().collect())
            });
            found.await
        })
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.write(move |connection| {
            let gone = forget(connection, "app = ?1 AND user = ?2", &[&app, &user])?;
            forget_scope(connection, &app, &user)?;
            Ok(gone)
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        let app = app.to_owned();
        Work::later(
            self.write(move |connection| forget(connection, "app = ?1 AND time < ?2", &[&app, &time])),
        )
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::later(self.scrub_files())
    }
}
