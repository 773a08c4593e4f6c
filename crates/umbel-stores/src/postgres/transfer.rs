//! What is in PostgreSQL as JSON lines, and back.

use std::future::ready;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Transaction;
use tokio_postgres::IsolationLevel;
use tokio_postgres::types::ToSql;
use umbel_core::memory::MemoryEntry;
use umbel_core::{Error, ErrorKind, Result, SessionKey};

use super::credentials::save;
use super::fault::Trouble;
use super::memory::{Row as MemoryRow, replace};
use super::sessions::{import_session, set_shared_state, shared_state, stored_session};
use super::within::{self, answered};
use super::{Postgres, query, signed, unsigned};
use crate::entries::{from_json, join_part, split_part};
use crate::refusal::artifact_exists;
use crate::seal::{Owner, Sealed};
use crate::transfer::{Lines, Piece, read_pieces};

impl Postgres {
    /// Writes everything as JSON lines, as it was at one moment. Tells how many pieces there were.
    pub async fn export(&self, out: impl Write + Send) -> Result<u64> {
        let mut lines = Lines::new(out)?;
        // Not tried again if the connection breaks: some lines are written already.
        self.export_to(&mut lines).await?;
        lines.end()
    }

    async fn export_to<W: Write + Send>(&self, lines: &mut Lines<W>) -> Result<(), Trouble> {
        let mut client = self.client().await?;
        let moment = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let moment = moment.read_only(true).start().await?;
        // All there is takes as long as it takes.
        moment.batch_execute("SET LOCAL statement_timeout = 0").await?;
        export_state(&moment, lines).await?;
        export_sessions(&moment, lines).await?;
        export_artifacts(&moment, lines).await?;
        export_memories(&moment, lines).await?;
        export_credentials(&moment, lines).await
    }

    /// Takes in JSON lines, all or none. What is there already is refused. Tells how many pieces there were.
    pub async fn import(&self, input: impl BufRead) -> Result<u64> {
        let mut pieces = Vec::new();
        let count = read_pieces(input, |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        let pieces = &pieces;
        let imported = self.write_once(
            move |change, _| Box::pin(import_all(change, pieces)),
            |_, (), _| Box::pin(ready(Err(perhaps_imported().into()))),
        );
        imported.await?;
        Ok(count)
    }
}

async fn import_all(change: &Transaction<'_>, pieces: &[Piece]) -> Result<(), Trouble> {
    answered(change.batch_execute("SET LOCAL statement_timeout = 0")).await?;
    let import_each = async {
        for piece in pieces {
            import(change, piece).await?;
        }
        Ok(())
    };
    within::scope(Duration::MAX, import_each).await
}

/// Too much to look through.
fn perhaps_imported() -> Error {
    let message = "the connection to PostgreSQL broke before it said whether the lines were taken in: look whether one \
        of their sessions is there, and import them again if not";
    Error::new(ErrorKind::Store, message)
}

async fn export_state<W: Write>(moment: &Transaction<'_>, lines: &mut Lines<W>) -> Result<(), Trouble> {
    for row in query(moment, "SELECT app, user_id FROM umbel_scopes ORDER BY id", &[]).await? {
        let (app, user): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let state = Arc::unwrap_or_clone(shared_state(moment, &app, &user).await?);
        if !state.is_empty() {
            lines.write(Piece::State { app, user: (!user.is_empty()).then_some(user), state })?;
        }
    }
    Ok(())
}

async fn export_sessions<W: Write>(moment: &Transaction<'_>, lines: &mut Lines<W>) -> Result<(), Trouble> {
    // In the order they were made, so that a parent comes before its children.
    let select = "SELECT s.app, s.user_id, s.name, p.user_id, p.name, s.owner
        FROM umbel_sessions s LEFT JOIN umbel_sessions p ON p.id = s.parent ORDER BY s.id";
    for row in query(moment, select, &[]).await? {
        let app: &str = row.try_get(0)?;
        let parent = match (row.try_get::<_, Option<&str>>(3)?, row.try_get::<_, Option<&str>>(4)?) {
            (Some(user), Some(name)) => Some(SessionKey::new(app, user, name)?),
            _ => None,
        };
        let key = SessionKey::new(app, row.try_get::<_, &str>(1)?, row.try_get::<_, &str>(2)?)?;
        let (session, entries) = stored_session(moment, key, parent, row.try_get(5)?).await?;
        lines.stored_session(session, entries)?;
    }
    Ok(())
}

async fn export_artifacts<W: Write>(moment: &Transaction<'_>, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let keys = "SELECT app, user_id, session, name, version FROM umbel_artifacts ORDER BY 1, 2, 3, 4, 5";
    // One by one: all of them together may be more than fits into memory.
    for row in query(moment, keys, &[]).await? {
        let place: [String; 4] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?];
        let version: i64 = row.try_get(4)?;
        let select = "SELECT part, data, saved_at FROM umbel_artifacts
            WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4 AND version = $5";
        let [app, user, session, name] = &place;
        let found = query(moment, select, &[app, user, session, name, &version]).await?;
        let Some(found) = found.first() else { continue };
        let part = join_part(found.try_get(0)?, found.try_get(1)?)?;
        let (version, saved_at) = (unsigned(version), found.try_get(2)?);
        lines.write(Piece::Artifact { place, version, part, saved_at })?;
    }
    Ok(())
}

async fn export_memories<W: Write>(moment: &Transaction<'_>, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let select = "SELECT app, user_id, session, author, time, content FROM umbel_memories
        ORDER BY app, user_id, session, id";
    for row in query(moment, select, &[]).await? {
        let place: [String; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
        let (content, session) = (from_json("a memory", row.try_get(5)?)?, row.try_get(2)?);
        let entry = MemoryEntry { content, author: row.try_get(3)?, session, timestamp: row.try_get(4)? };
        lines.write(Piece::Memories { place, entries: vec![entry] })?;
    }
    Ok(())
}

async fn export_credentials<W: Write>(moment: &Transaction<'_>, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let select = "SELECT app, user_id, name, key_id, sealed, saved_at FROM umbel_credentials
        ORDER BY app, user_id, name";
    for row in query(moment, select, &[]).await? {
        let owner = Owner { app: row.try_get(0)?, user: row.try_get(1)?, name: row.try_get(2)? };
        let sealed = Sealed { key_id: row.try_get(3)?, bytes: row.try_get(4)? };
        lines.write(Piece::Credential { owner, sealed, saved_at: row.try_get(5)? })?;
    }
    Ok(())
}

async fn import(change: &Transaction<'_>, piece: &Piece) -> Result<(), Trouble> {
    match piece {
        Piece::State { app, user, state } => {
            set_shared_state(change, app, user.as_deref().unwrap_or_default(), state).await?;
        }
        Piece::Session(session) => import_session(change, session).await?,
        Piece::Artifact { place: [app, user, session, name], version, part, saved_at } => {
            let (part, data) = split_part(part.clone())?;
            let insert =
                "INSERT INTO umbel_artifacts (app, user_id, session, name, version, part, data, saved_at)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING version";
            let version = signed(*version);
            let values: [&(dyn ToSql + Sync); 8] =
                [app, user, session, name, &version, &part, &data, saved_at];
            let made = query(change, insert, &values).await?;
            if made.is_empty() {
                return Err(artifact_exists(name).into());
            }
        }
        Piece::Memories { place, entries } => {
            let rows = entries.iter().map(MemoryRow::new).collect::<Result<Vec<_>>>()?;
            replace(change, place, &rows).await?;
        }
        Piece::Credential { owner, sealed, saved_at } => save(change, owner, sealed, *saved_at).await?,
    }
    Ok(())
}
