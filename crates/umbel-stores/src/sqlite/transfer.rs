//! A whole SQLite database as JSON lines, and back.

use std::io::{BufRead, Write};
use std::sync::Arc;

use rusqlite::{Connection, params};
use umbel_core::memory::MemoryEntry;
use umbel_core::{Result, SessionKey};

use super::credentials::save;
use super::memory::{Row as MemoryRow, replace};
use super::sessions::{import_session, set_shared_state, shared_state, stored_session};
use super::{Sqlite, Trouble, signed, unsigned};
use crate::entries::{from_json, join_part, split_part};
use crate::refusal::artifact_exists;
use crate::seal::{Owner, Sealed};
use crate::transfer::{Lines, Piece, read_pieces};

impl Sqlite {
    /// Writes everything as JSON lines, as it was at one moment. Tells how many pieces there were.
    pub async fn export(&self, out: impl Write + Send + 'static) -> Result<u64> {
        let exported = self.read(move |connection| {
            let mut lines = Lines::new(out)?;
            export_state(connection, &mut lines)?;
            export_sessions(connection, &mut lines)?;
            export_artifacts(connection, &mut lines)?;
            export_memories(connection, &mut lines)?;
            export_credentials(connection, &mut lines)?;
            Ok(lines.end()?)
        });
        exported.await
    }

    /// Takes in JSON lines, all or none. What is there already is refused. Tells how many pieces there were.
    pub async fn import(&self, input: impl BufRead + Send + 'static) -> Result<u64> {
        let path = self.inner.path.clone();
        let imported = self.write(move |connection| {
            let take = |piece| import(connection, piece).map_err(|trouble| trouble.at(&path));
            Ok(read_pieces(input, take)?)
        });
        imported.await
    }
}

fn export_state<W: Write>(connection: &Connection, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let mut select = connection.prepare("SELECT app, user FROM scopes ORDER BY id")?;
    let scopes = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (app, user) in scopes.collect::<rusqlite::Result<Vec<(String, String)>>>()? {
        let state = Arc::unwrap_or_clone(shared_state(connection, &app, &user)?);
        if !state.is_empty() {
            lines.write(Piece::State { app, user: (!user.is_empty()).then_some(user), state })?;
        }
    }
    Ok(())
}

fn export_sessions<W: Write>(connection: &Connection, lines: &mut Lines<W>) -> Result<(), Trouble> {
    // In the order they were made, so that a parent comes before its children.
    let mut select = connection.prepare(
        "SELECT s.app, s.user, s.name, p.user, p.name, s.owner
         FROM sessions s LEFT JOIN sessions p ON p.id = s.parent ORDER BY s.id",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let app: String = row.get(0)?;
        let parent = match (row.get::<_, Option<String>>(3)?, row.get::<_, Option<String>>(4)?) {
            (Some(user), Some(name)) => Some(SessionKey::new(&app, user, name)?),
            _ => None,
        };
        let key = SessionKey::new(&app, row.get::<_, String>(1)?, row.get::<_, String>(2)?)?;
        let (session, entries) = stored_session(connection, key, parent, row.get(5)?)?;
        lines.stored_session(session, entries)?;
    }
    Ok(())
}

fn export_artifacts<W: Write>(connection: &Connection, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let mut select = connection.prepare(
        "SELECT app, user, session, name, version, part, data, saved_at FROM artifacts
         ORDER BY app, user, session, name, version",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let place = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
        let part = join_part(&row.get::<_, String>(5)?, row.get(6)?)?;
        let (version, saved_at) = (unsigned(row.get(4)?), row.get(7)?);
        lines.write(Piece::Artifact { place, version, part, saved_at })?;
    }
    Ok(())
}

fn export_memories<W: Write>(connection: &Connection, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let mut select = connection.prepare(
        "SELECT app, user, session, author, time, content FROM memories ORDER BY app, user, session, id",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let place: [String; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
        let content = from_json("a memory", &row.get::<_, String>(5)?)?;
        let session = row.get(2)?;
        let entry = MemoryEntry { content, author: row.get(3)?, session, timestamp: row.get(4)? };
        lines.write(Piece::Memories { place, entries: vec![entry] })?;
    }
    Ok(())
}

fn export_credentials<W: Write>(connection: &Connection, lines: &mut Lines<W>) -> Result<(), Trouble> {
    let mut select = connection.prepare(
        "SELECT app, user, name, key_id, sealed, saved_at FROM credentials ORDER BY app, user, name",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let owner = Owner { app: row.get(0)?, user: row.get(1)?, name: row.get(2)? };
        let sealed = Sealed { key_id: row.get(3)?, bytes: row.get(4)? };
        lines.write(Piece::Credential { owner, sealed, saved_at: row.get(5)? })?;
    }
    Ok(())
}

fn import(connection: &Connection, piece: Piece) -> Result<(), Trouble> {
    match piece {
        Piece::State { app, user, state } => {
            set_shared_state(connection, &app, user.as_deref().unwrap_or_default(), &state)?;
        }
        Piece::Session(session) => import_session(connection, &session)?,
        Piece::Artifact { place: [app, user, session, name], version, part, saved_at } => {
            let (part, data) = split_part(part)?;
            let mut insert = connection.prepare_cached(
                "INSERT INTO artifacts (app, user, session, name, version, part, data, saved_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING",
            )?;
            let version = signed(version);
            if insert.execute(params![app, user, session, name, version, part, data, saved_at])? == 0 {
                return Err(artifact_exists(&name).into());
            }
        }
        Piece::Memories { place, entries } => {
            let rows = entries.into_iter().map(MemoryRow::new).collect::<Result<Vec<_>>>()?;
            replace(connection, &place, &rows)?;
        }
        Piece::Credential { owner, sealed, saved_at } => save(connection, &owner, &sealed, saved_at)?,
    }
    Ok(())
}
