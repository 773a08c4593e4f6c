//! Memories in PostgreSQL, found by its text search.

use deadpool_postgres::Transaction;
use umbel_core::memory::{MemoryEntry, best, said_in, words};
use umbel_core::{MemoryStore, Result, Session, Work};

use super::fault::Trouble;
use super::{Postgres, execute, lock, query};
use crate::entries::{from_json, to_json};

/// What the index gives to choose the best from.
const CANDIDATES: i64 = 200;

/// Bytes of a word that the index takes; longer ones are no words.
const LONGEST: usize = 1_000;

/// Words of one memory that the index takes.
const MOST: usize = 10_000;

/// A memory as it is written.
pub(super) struct Row {
    author: String,
    time: f64,
    content: String,
    words: Vec<String>,
}

impl Row {
    pub(super) fn new(entry: &MemoryEntry) -> Result<Self> {
        let words = words(&entry.content.text()).into_iter().filter(|word| word.len() <= LONGEST);
        let (words, content) = (words.take(MOST).collect(), to_json(&*entry.content)?);
        // PostgreSQL takes no NUL, and no name needs one.
        Ok(Self { author: entry.author.replace('\0', " "), time: entry.timestamp, content, words })
    }
}

/// Puts rows in the place of what was remembered of a session.
pub(super) async fn replace(
    change: &Transaction<'_>,
    [app, user, session]: &[String; 3],
    rows: &[Row],
) -> Result<(), Trouble> {
    lock(change, &["memories", app, user, session]).await?;
    let delete = "DELETE FROM umbel_memories WHERE app = $1 AND user_id = $2 AND session = $3";
    query(change, delete, &[app, user, session]).await?;
    let insert = "INSERT INTO umbel_memories (app, user_id, session, author, time, content, words)
        VALUES ($1, $2, $3, $4, $5, $6, array_to_tsvector($7::text[]))";
    for Row { author, time, content, words } in rows {
        query(change, insert, &[app, user, session, author, time, content, words]).await?;
    }
    Ok(())
}

impl MemoryStore for Postgres {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        Work::later(async move {
            let rows = &said_in(session).map(|entry| Row::new(&entry)).collect::<Result<Vec<_>>>()?;
            let place = &[session.key.app(), session.key.user(), session.key.id()].map(str::to_owned);
            self.write(move |change, _| Box::pin(replace(change, place, rows))).await
        })
    }

    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        text: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>> {
        Work::later(async move {
            let wanted = words(text);
            // Words have no quotes in them, so they can be quoted without care.
            let any = wanted.iter().filter(|word| word.len() <= LONGEST).map(|word| format!("'{word}'"));
            let any = &any.collect::<Vec<_>>().join(" | ");
            if any.is_empty() {
                return Ok(Vec::new());
            }
            let found: Vec<MemoryEntry> = self
                .read(move |moment, _| {
                    Box::pin(async move {
                        let select = "SELECT content, author, session, time FROM umbel_memories
                            WHERE app = $1 AND user_id = $2 AND words @@ $3::text::tsquery
                            ORDER BY ts_rank(words, $3::text::tsquery) DESC, time DESC LIMIT $4";
                        let rows = query(moment, select, &[&app, &user, any, &CANDIDATES]).await?;
                        rows.iter().map(entry).collect::<Result<Vec<_>, Trouble>>()
                    })
                })
                .await?;
            Ok(best(&found, &wanted).into_iter().cloned().collect())
        })
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let erase = "DELETE FROM umbel_memories WHERE app = $1 AND user_id = $2";
                execute(change, erase, &[&app, &user]).await
            })
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let old = "DELETE FROM umbel_memories WHERE app = $1 AND time < $2";
                execute(change, old, &[&app, &time]).await
            })
        }))
    }
}

fn entry(row: &tokio_postgres::Row) -> Result<MemoryEntry, Trouble> {
    let content = from_json("a memory", row.try_get(0)?)?;
    Ok(MemoryEntry { content, author: row.try_get(1)?, session: row.try_get(2)?, timestamp: row.try_get(3)? })
}
