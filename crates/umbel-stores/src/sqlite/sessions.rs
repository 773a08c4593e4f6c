//! Sessions in SQLite.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;
use smol_str::SmolStr;
use umbel_core::json::empty_object;
use umbel_core::store::{
    Abandoned, Acquire, Acquired, Entries, EventFilter, Idle, IdleFilter, Lease, NewSession, News,
    OpenQuestion, StoredUsage, WaitChange, Waits,
};
use umbel_core::title::title_of_log;
use umbel_core::{
    Clock, Event, List, LogEntry, Object, Result, Session, SessionKey, SessionStore, State, SystemClock,
    Versions, Work,
};

use super::{Sqlite, Trouble, signed, unsigned, upkeep};
use crate::entries::{
    Prepared, Scoped, decode, decode_stored, from_json, keys_from, known_after, refuse_holes, to_json,
    together,
};
use crate::lease::ttl_millis;
use crate::refusal::{self, busy, exists, fenced, not_found, stale};
use crate::transfer::{SessionPiece, StoredEntry};

/// News that are read while the lease is taken. Whoever is further behind reads first, beside the writer.
const SMALL_GAP: u64 = 64;

/// A session's row, with the versions of its user and its app.
struct Row {
    id: i64,
    version: u64,
    epoch: u64,
    lease_until: Option<i64>,
    lease_ttl: i64,
    updated_at: f64,
    user_version: u64,
    app_version: u64,
    bytes: u64,
    has_title: bool,
    /// The title that was written and is not saved yet.
    new_title: Option<String>,
}

impl Row {
    /// The row of a session, if there is one.
    fn find(connection: &Connection, key: &SessionKey) -> Result<Option<Self>, Trouble> {
        let mut find = connection.prepare_cached(
            "SELECT id, version, epoch, lease_until, lease_ttl, updated_at,
                    (SELECT version FROM scopes WHERE app = ?1 AND user = ?2),
                    (SELECT version FROM scopes WHERE app = ?1 AND user = ''), bytes, title NOT NULL
             FROM sessions WHERE app = ?1 AND user = ?2 AND name = ?3",
        )?;
        let found = find.query_row(params![key.app(), key.user(), key.id()], |row| {
            Ok(Self {
                id: row.get(0)?,
                version: unsigned(row.get(1)?),
                epoch: unsigned(row.get(2)?),
                lease_until: row.get(3)?,
                lease_ttl: row.get::<_, Option<i64>>(4)?.unwrap_or(0),
                updated_at: row.get(5)?,
                user_version: unsigned(row.get::<_, Option<i64>>(6)?.unwrap_or(0)),
                app_version: unsigned(row.get::<_, Option<i64>>(7)?.unwrap_or(0)),
                bytes: unsigned(row.get(8)?),
                has_title: row.get(9)?,
                new_title: None,
            })
        });
        Ok(found.optional()?)
    }

    /// The row of a session that must be there.
    fn get(connection: &Connection, key: &SessionKey) -> Result<Self, Trouble> {
        Self::find(connection, key)?.ok_or_else(|| not_found(key).into())
    }

    fn check_version(&self, key: &SessionKey, expected: Versions) -> Result<(), Trouble> {
        if self.version == expected.session && unsigned(self.id) == expected.incarnation {
            return Ok(());
        }
        Err(stale(key).into())
    }

    fn versions(&self) -> Versions {
        Versions {
            incarnation: unsigned(self.id),
            session: self.version,
            user: self.user_version,
            app: self.app_version,
        }
    }

    fn is_held(&self, now: i64) -> bool {
        self.lease_until.is_some_and(|until| until > now)
    }

    /// Shortens a lease that reaches further than it can: the clock went back since it was given.
    fn shorten_lease(&self, connection: &Connection, now: i64) -> Result<(), Trouble> {
        if self.lease_until.is_some_and(|until| until > now.saturating_add(self.lease_ttl)) {
            let mut update =
                connection.prepare_cached("UPDATE sessions SET lease_until = ?1 WHERE id = ?2")?;
            update.execute(params![now.saturating_add(self.lease_ttl), self.id])?;
        }
        Ok(())
    }

    /// Appends to the log and applies deltas.
    fn write(
        &mut self,
        connection: &Connection,
        key: &SessionKey,
        entries: &Prepared,
    ) -> Result<(), Trouble> {
        let versions = write(connection, key, self.versions(), entries)?;
        let Versions { session, user, app, .. } = versions;
        (self.version, self.user_version, self.app_version) = (session, user, app);
        self.bytes += entries.bytes;
        if !self.has_title && !entries.waits.rewinds {
            self.new_title.clone_from(&entries.title);
        }
        self.updated_at = entries.updated_at.unwrap_or(self.updated_at);
        Ok(())
    }

    /// Writes how far the log has come, and nothing of the lease.
    fn save(&self, connection: &Connection) -> Result<(), Trouble> {
        let mut update = connection
            .prepare_cached("UPDATE sessions SET version = ?1, updated_at = ?2, bytes = ?3 WHERE id = ?4")?;
        update.execute(params![signed(self.version), self.updated_at, signed(self.bytes), self.id])?;
        self.save_new_title(connection)?;
        Ok(())
    }

    fn save_with_lease(
        &self,
        connection: &Connection,
        owner: Option<&str>,
        until: Option<i64>,
        ttl: Option<i64>,
    ) -> Result<(), Trouble> {
        let mut update = connection.prepare_cached(
            "UPDATE sessions SET version = ?1, updated_at = ?2, epoch = ?3, owner = ?4, lease_until = ?5,
                    lease_ttl = ?6, bytes = ?7 WHERE id = ?8",
        )?;
        let (version, epoch, bytes) = (signed(self.version), signed(self.epoch), signed(self.bytes));
        update.execute(params![version, self.updated_at, epoch, owner, until, ttl, bytes, self.id])?;
        self.save_new_title(connection)
    }

    /// Writes the title, which a session gets once.
    fn save_new_title(&self, connection: &Connection) -> Result<(), Trouble> {
        match &self.new_title {
            Some(title) => save_title(connection, self.id, Some(title)),
            None => Ok(()),
        }
    }

    /// The whole session, with the events that were asked for.
    fn session(
        &self,
        connection: &Connection,
        key: &SessionKey,
        events: List<Arc<Event>>,
    ) -> Result<Session, Trouble> {
        let state = State::new(
            session_state(connection, self.id)?,
            shared_state(connection, key.app(), key.user())?,
            shared_state(connection, key.app(), "")?,
        );
        Ok(Session {
            key: key.clone(),
            state,
            events,
            updated_at: self.updated_at,
            versions: self.versions(),
        })
    }

    /// What is newer than a reader knows.
    fn news(&self, connection: &Connection, key: &SessionKey, known: Versions) -> Result<News, Trouble> {
        let versions = self.versions();
        let whole = self.is_unknown_to(known);
        let known = if whole { Versions::default() } else { known };
        let session_state = if whole { Some(first_state(connection, self.id)?) } else { None };
        let user_state = if whole || known.user != versions.user {
            Some(shared_state(connection, key.app(), key.user())?)
        } else {
            None
        };
        let app_state = if whole || known.app != versions.app {
            Some(shared_state(connection, key.app(), "")?)
        } else {
            None
        };
        let entries = if known.session == versions.session {
            Vec::new()
        } else {
            entries_after(connection, key, self.id, known.session)?
        };
        refuse_holes(key, known.session, versions.session, &entries)?;
        Ok(News { versions, whole, entries, session_state, user_state, app_state })
    }

    /// Whether what a reader has of this session is of no use.
    fn is_unknown_to(&self, known: Versions) -> bool {
        known.incarnation != unsigned(self.id) || known.session > self.version
    }
}

/// Appends to the log and applies deltas. Gives what the writer knows then; it knew `known` of the session.
fn write(
    connection: &Connection,
    key: &SessionKey,
    mut known: Versions,
    entries: &Prepared,
) -> Result<Versions, Trouble> {
    let id = signed(known.incarnation);
    let mut insert = connection
        .prepare_cached("INSERT INTO log (session, version, time, body) VALUES (?1, ?2, ?3, ?4)")?;
    for row in &entries.rows {
        known.session += 1;
        insert.execute(params![id, signed(known.session), row.time, row.body])?;
    }
    set_session_state(connection, id, &entries.state.session)?;
    if let Some(version) = set_shared_state(connection, key.app(), key.user(), &entries.state.user)? {
        known.user = known_after(known.user, version);
    }
    if let Some(version) = set_shared_state(connection, key.app(), "", &entries.state.app)? {
        known.app = known_after(known.app, version);
    }
    if entries.waits != WaitChange::default() {
        let before = waits(connection, id)?;
        let mut after = before.clone();
        if entries.waits.rewinds {
            let log = entries_after(connection, key, id, 0)?;
            save_title(connection, id, title_of_log(&log).as_deref())?;
            after = Waits::of_log(&log);
        } else {
            after.apply(entries.waits.clone());
        }
        if after != before {
            save_waits(connection, id, &after)?;
        }
    }
    Ok(known)
}

/// Appends under a lease, and gives it back if told so.
///
/// The row is found by its id, which no two sessions ever share: texts take long to compare. One statement looks whether
/// the lease still holds and the log is as long as the writer thinks, and writes how far it has come.
fn append(
    connection: &Connection,
    lease: &Lease,
    expected: Versions,
    entries: &Prepared,
    gives_back: bool,
) -> Result<Versions, Trouble> {
    let mut update = connection.prepare_cached(if gives_back {
        "UPDATE sessions SET version = ?1, updated_at = coalesce(?2, updated_at), epoch = epoch + 1, owner = NULL,
                lease_until = NULL, lease_ttl = NULL, bytes = bytes + ?6
         WHERE id = ?3 AND epoch = ?4 AND version = ?5"
    } else {
        "UPDATE sessions SET version = ?1, updated_at = coalesce(?2, updated_at), bytes = bytes + ?6
         WHERE id = ?3 AND epoch = ?4 AND version = ?5"
    })?;
    let (id, epoch) = (signed(expected.incarnation), signed(lease.epoch));
    let (before, after) = (expected.session, expected.session + entries.rows.len() as u64);
    let bytes = signed(entries.bytes);
    if update.execute(params![signed(after), entries.updated_at, id, epoch, signed(before), bytes])? == 0 {
        let row = Row::get(connection, &lease.key)?;
        let is_ours = row.id == id && row.epoch == lease.epoch;
        return Err(if is_ours { stale(&lease.key) } else { fenced(&lease.key) }.into());
    }
    // Few messages of users come while a run goes on, and a session has a title by then.
    if let Some(title) = entries.title.as_deref().filter(|_| !entries.waits.rewinds) {
        let mut update =
            connection.prepare_cached("UPDATE sessions SET title = ?1 WHERE id = ?2 AND title IS NULL")?;
        update.execute(params![title, id])?;
    }
    write(connection, &lease.key, expected, entries)
}

/// What came of an attempt to take a lease.
enum Attempt {
    Taken(Acquired),
    /// There is much to read first.
    Behind,
    Busy,
}

fn entries_after(
    connection: &Connection,
    key: &SessionKey,
    id: i64,
    known: u64,
) -> Result<Vec<LogEntry>, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT version, time, body FROM log WHERE session = ?1 AND version > ?2 ORDER BY version",
    )?;
    let mut rows = select.query(params![id, signed(known)])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(decode(key, unsigned(row.get(0)?), row.get(1)?, text(row.get_ref(2)?)?)?);
    }
    Ok(entries)
}

fn events(
    connection: &Connection,
    key: &SessionKey,
    id: i64,
    filter: EventFilter,
) -> Result<List<Arc<Event>>, Trouble> {
    let mut select = connection.prepare_cached(match filter.first {
        Some(_) => {
            "SELECT version, time, body FROM log WHERE session = ?1 AND time >= ?2
            ORDER BY version LIMIT ?3"
        }
        None => {
            "SELECT version, time, body FROM log WHERE session = ?1 AND time >= ?2
            ORDER BY version DESC LIMIT ?3"
        }
    })?;
    let limit = filter.first.or(filter.recent);
    let limit = limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let mut rows = select.query(params![id, filter.after.unwrap_or(f64::NEG_INFINITY), limit])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let entry = decode(key, unsigned(row.get(0)?), row.get(1)?, text(row.get_ref(2)?)?)?;
        if let LogEntry::Event(event) = entry {
            events.push(event);
        }
    }
    Ok(match filter.first {
        Some(_) => events.into_iter().collect(),
        None => events.into_iter().rev().collect(),
    })
}

/// Text as SQLite lends it, without a copy.
fn text(value: rusqlite::types::ValueRef<'_>) -> Result<&str, Trouble> {
    value.as_str().map_err(|error| rusqlite::Error::from(error).into())
}

fn first_state(connection: &Connection, id: i64) -> Result<Arc<Object>, Trouble> {
    let mut select = connection.prepare_cached("SELECT first_state FROM sessions WHERE id = ?1")?;
    let json: String = select.query_row([id], |row| row.get(0))?;
    Ok(Arc::new(from_json("the first state of a session", &json)?))
}

fn session_state(connection: &Connection, id: i64) -> Result<Arc<Object>, Trouble> {
    let mut select =
        connection.prepare_cached("SELECT key, value FROM session_state WHERE session = ?1 ORDER BY id")?;
    let pairs = select.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    object(pairs.collect::<rusqlite::Result<_>>()?)
}

/// The state of a user, or of an app where the user is empty.
pub(super) fn shared_state(connection: &Connection, app: &str, user: &str) -> Result<Arc<Object>, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT key, value FROM shared_state
         WHERE scope = (SELECT id FROM scopes WHERE app = ?1 AND user = ?2) ORDER BY id",
    )?;
    let pairs = select.query_map([app, user], |row| Ok((row.get(0)?, row.get(1)?)))?;
    object(pairs.collect::<rusqlite::Result<_>>()?)
}

fn object(pairs: Vec<(String, String)>) -> Result<Arc<Object>, Trouble> {
    Ok(if pairs.is_empty() { empty_object() } else { Arc::new(keys_from(pairs)?) })
}

fn set_session_state(connection: &Connection, id: i64, keys: &Object) -> Result<(), Trouble> {
    for (key, value) in keys {
        let mut set = connection.prepare_cached(
            "INSERT INTO session_state (session, key, value) VALUES (?1, ?2, ?3)
             ON CONFLICT (session, key) DO UPDATE SET value = excluded.value",
        )?;
        set.execute(params![id, key, to_json(value)?])?;
    }
    Ok(())
}

/// Sets keys of a user, or of an app where the user is empty. Tells the new version if there was something to set.
pub(super) fn set_shared_state(
    connection: &Connection,
    app: &str,
    user: &str,
    keys: &Object,
) -> Result<Option<u64>, Trouble> {
    if keys.is_empty() {
        return Ok(None);
    }
    let (scope, version) = scope(connection, app, user, 1)?;
    for (key, value) in keys {
        let mut set = connection.prepare_cached(
            "INSERT INTO shared_state (scope, key, value) VALUES (?1, ?2, ?3)
             ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value",
        )?;
        set.execute(params![scope, key, to_json(value)?])?;
    }
    Ok(Some(version))
}

/// The id of a user's or an app's row, which is made where there is none, and its version after so many writes more.
pub(super) fn scope(
    connection: &Connection,
    app: &str,
    user: &str,
    writes: i64,
) -> Result<(i64, u64), Trouble> {
    let mut touch = connection.prepare_cached(
        "INSERT INTO scopes (app, user, version) VALUES (?1, ?2, ?3)
         ON CONFLICT (app, user) DO UPDATE SET version = version + ?3 RETURNING id, version",
    )?;
    Ok(touch.query_row(params![app, user, writes], |row| Ok((row.get(0)?, unsigned(row.get(1)?))))?)
}

/// What a session waits for, as its row tells.
fn waits(connection: &Connection, id: i64) -> Result<Waits, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT coalesce(questions, '[]'), coalesce(awaited_calls, '[]') FROM sessions WHERE id = ?1",
    )?;
    let (questions, calls) =
        select.query_row([id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let questions = from_json("the open questions of a session", &questions)?;
    Ok(Waits { questions, calls: from_json("the awaited calls of a session", &calls)? })
}

fn save_waits(connection: &Connection, id: i64, waits: &Waits) -> Result<(), Trouble> {
    let mut update =
        connection.prepare_cached("UPDATE sessions SET questions = ?1, awaited_calls = ?2 WHERE id = ?3")?;
    update.execute(params![list_column(&waits.questions)?, list_column(&waits.calls)?, id])?;
    Ok(())
}

fn save_title(connection: &Connection, id: i64, title: Option<&str>) -> Result<(), Trouble> {
    connection.prepare_cached("UPDATE sessions SET title = ?1 WHERE id = ?2")?.execute(params![title, id])?;
    Ok(())
}

/// Finds the titles of sessions that were written before their rows had them. A log that cannot be read has none.
pub(super) fn fill_in_titles(connection: &Connection) -> Result<(), Trouble> {
    let mut select = connection.prepare("SELECT id, app, user, name FROM sessions")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let key =
            SessionKey::new(row.get::<_, String>(1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?)?;
        if let Ok(log) = entries_after(connection, &key, id, 0) {
            save_title(connection, id, title_of_log(&log).as_deref())?;
        }
    }
    Ok(())
}

/// A list as a column holds it: nothing where it is empty.
fn list_column<T: Serialize>(list: &[T]) -> Result<Option<String>> {
    if list.is_empty() { Ok(None) } else { to_json(&list).map(Some) }
}

/// Finds out from the logs what sessions wait for that were written before their rows told it.
pub(super) fn fill_in_waits(connection: &Connection) -> Result<(), Trouble> {
    // Other sessions cannot wait for anything, whatever their logs say.
    let mut select = connection.prepare(
        "SELECT app, user, name FROM sessions WHERE id IN (
            SELECT session FROM log WHERE body LIKE '%longRunningToolIds%' OR body LIKE '%interrupts%')",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let key =
            SessionKey::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?)?;
        let row = Row::get(connection, &key)?;
        save_waits(connection, row.id, &Waits::of_log(&entries_after(connection, &key, row.id, 0)?))?;
    }
    Ok(())
}

/// Milliseconds since 1970, by the clock that all processes of the machine share.
pub(super) fn now(clock: &dyn Clock) -> i64 {
    (clock.now() * 1e3) as i64
}

/// Adds the row of a session. Its epoch is still to be set.
fn insert(
    connection: &Connection,
    key: &SessionKey,
    parent: Option<i64>,
    first: &str,
    updated_at: f64,
) -> Result<i64, Trouble> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO sessions (app, user, name, parent, first_state, version, updated_at, epoch, bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, 0, ?7)",
    )?;
    let bytes = signed(first.len() as u64);
    insert.execute(params![key.app(), key.user(), key.id(), parent, first, updated_at, bytes])?;
    Ok(connection.last_insert_rowid())
}

/// The epoch that a session begins with: no lease of an earlier session under its key can fit.
fn first_epoch(id: i64) -> i64 {
    id << 24
}

fn create(
    connection: &Connection,
    new: &NewSession,
    state: &Scoped,
    updated_at: f64,
) -> Result<Session, Trouble> {
    let key = &new.key;
    if Row::find(connection, key)?.is_some() {
        return Err(exists(key).into());
    }
    let parent = match &new.parent {
        Some(parent) => Some(Row::get(connection, parent)?.id),
        None => None,
    };
    let id = insert(connection, key, parent, &to_json(&state.session)?, updated_at)?;
    let mut update = connection.prepare_cached("UPDATE sessions SET epoch = ?1 WHERE id = ?2")?;
    update.execute([first_epoch(id), id])?;
    set_session_state(connection, id, &state.session)?;
    set_shared_state(connection, key.app(), key.user(), &state.user)?;
    set_shared_state(connection, key.app(), "", &state.app)?;
    Row::get(connection, key)?.session(connection, key, List::new())
}

/// Deletes a session and those that work for it.
pub(super) fn delete(connection: &Connection, id: i64) -> Result<(), Trouble> {
    let mut select = connection.prepare_cached("SELECT id FROM sessions WHERE parent = ?1")?;
    let children: Vec<i64> = select.query_map([id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for child in children {
        delete(connection, child)?;
    }
    for sql in [
        "DELETE FROM log WHERE session = ?1",
        "DELETE FROM session_state WHERE session = ?1",
        "DELETE FROM sessions WHERE id = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([id])?;
    }
    Ok(())
}

fn acquire(
    connection: &Connection,
    acquire: &Acquire,
    entries: &Prepared,
    clock: &dyn Clock,
) -> Result<Attempt, Trouble> {
    let key = &acquire.key;
    let (row, now) = (Row::find(connection, key)?, now(clock));
    let mut row = match row {
        Some(row) => row,
        None if acquire.creates && acquire.expected.is_none() => {
            // Its epoch is written with the lease.
            let epoch = unsigned(first_epoch(insert(connection, key, None, "{}", clock.now())?));
            Row { epoch, ..Row::get(connection, key)? }
        }
        None => return Err(not_found(key).into()),
    };
    if row.is_held(now) {
        row.shorten_lease(connection, now)?;
        return Ok(Attempt::Busy);
    }
    if row.lease_until.is_some() && !acquire.claims {
        return Err(refusal::abandoned(key).into());
    }
    if let Some(expected) = acquire.expected {
        row.check_version(key, expected)?;
    }
    let known = if row.is_unknown_to(acquire.known) { 0 } else { acquire.known.session };
    if row.version - known > SMALL_GAP {
        return Ok(Attempt::Behind);
    }
    let news = row.news(connection, key, acquire.known)?;
    row.write(connection, key, entries)?;
    row.epoch += 1;
    let ttl = ttl_millis(acquire.ttl);
    row.save_with_lease(connection, Some(&acquire.owner), Some(now.saturating_add(ttl)), Some(ttl))?;
    let lease = Lease { key: key.clone(), epoch: row.epoch };
    Ok(Attempt::Taken(Acquired { lease, news, versions: row.versions() }))
}

fn abandoned(connection: &Connection, app: &str, now: i64) -> Result<Vec<Abandoned>, Trouble> {
    // Leases from before the clock went back would otherwise outlive it.
    let mut shorten = connection.prepare_cached(
        "UPDATE sessions SET lease_until = ?1 + lease_ttl WHERE lease_until > ?1 AND lease_until > ?1 + lease_ttl",
    )?;
    shorten.execute([now])?;
    let mut select = connection.prepare_cached(
        "SELECT s.user, s.name, s.owner, p.user, p.name FROM sessions s LEFT JOIN sessions p ON p.id = s.parent
         WHERE s.lease_until <= ?1 AND s.app = ?2 ORDER BY s.lease_until, s.id",
    )?;
    let mut rows = select.query(params![now, app])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key = |user: String, name: String| SessionKey::new(app, user, name);
        let parent: (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
        let parent = match parent {
            (Some(user), Some(name)) => Some(key(user, name)?),
            _ => None,
        };
        let owner: String = row.get(2)?;
        found.push(Abandoned { key: key(row.get(0)?, row.get(1)?)?, parent, owner: SmolStr::from(owner) });
    }
    Ok(found)
}

fn list(connection: &Connection, app: &str, user: &str) -> Result<Vec<Session>, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT name FROM sessions WHERE app = ?1 AND user = ?2 AND parent IS NULL ORDER BY updated_at, id",
    )?;
    let names = select.query_map([app, user], |row| row.get::<_, String>(0))?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
    let user_state = shared_state(connection, app, user)?;
    let app_state = shared_state(connection, app, "")?;
    let mut sessions = Vec::with_capacity(names.len());
    for name in names {
        let key = SessionKey::new(app, user, name)?;
        let row = Row::get(connection, &key)?;
        let state = State::new(session_state(connection, row.id)?, user_state.clone(), app_state.clone());
        let (updated_at, versions) = (row.updated_at, row.versions());
        sessions.push(Session { key, state, events: List::new(), updated_at, versions });
    }
    Ok(sessions)
}

/// A session with its log, to be exported.
pub(super) fn stored_session(
    connection: &Connection,
    key: SessionKey,
    parent: Option<SessionKey>,
    owner: Option<String>,
) -> Result<(SessionPiece, Vec<StoredEntry>), Trouble> {
    let row = Row::get(connection, &key)?;
    let first: String =
        connection.query_row("SELECT first_state FROM sessions WHERE id = ?1", [row.id], |row| row.get(0))?;
    let mut select = connection.prepare("SELECT time, body FROM log WHERE session = ?1 ORDER BY version")?;
    let rows = select.query_map([row.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (state, stored) = decode_stored(&key, &first, rows.collect::<rusqlite::Result<Vec<_>>>()?);
    let piece = SessionPiece { key, parent, state, updated_at: row.updated_at, owner, entries: Vec::new() };
    Ok((piece, stored))
}

/// Makes a session with its log. What the log sets of user and app is known from elsewhere.
pub(super) fn import_session(connection: &Connection, session: &SessionPiece) -> Result<(), Trouble> {
    let SessionPiece { key, parent, state, updated_at, owner, entries } = session;
    let new = NewSession { key: key.clone(), state: Object::new(), parent: parent.clone() };
    create(connection, &new, &Scoped { session: state.clone(), ..Scoped::default() }, SystemClock.now())?;
    let mut entries = Prepared::new(entries)?;
    entries.state = Scoped { session: entries.state.session, ..Scoped::default() };
    let mut row = Row::get(connection, key)?;
    row.write(connection, key, &entries)?;
    row.updated_at = *updated_at;
    // A lease that ran out: the run was under way, and is to be recovered.
    let lease = owner.as_ref().map(|_| 0);
    row.save_with_lease(connection, owner.as_deref(), lease, lease)
}

impl Sqlite {
    async fn append_leased(
        &self,
        lease: Lease,
        expected: Versions,
        entries: Entries,
        gives_back: bool,
    ) -> Result<Versions> {
        let entries = Prepared::new(&entries)?;
        self.write_together(move |connection| append(connection, &lease, expected, &entries, gives_back))
            .await
    }
}

impl SessionStore for Sqlite {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        Work::later(async move {
            let (state, clock) = (Scoped::new(&new.state)?, self.clock());
            self.write_together(move |connection| create(connection, &new, &state, clock.now())).await
        })
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        let key = key.clone();
        Work::later(self.read(move |connection| {
            let Some(row) = Row::find(connection, &key)? else { return Ok(None) };
            let events = events(connection, &key, row.id, filter)?;
            Ok(Some(row.session(connection, &key, events)?))
        }))
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.read(move |connection| list(connection, &app, &user)))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        let key = key.clone();
        Work::later(self.write_together(move |connection| match Row::find(connection, &key)? {
            Some(row) => delete(connection, row.id),
            None => Ok(()),
        }))
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        let (key, clock) = (key.clone(), self.clock());
        Work::later(self.write(move |connection| {
            let Some(row) = Row::find(connection, &key)? else { return Ok(()) };
            if row.is_held(now(&*clock)) {
                return Err(busy(&key).into());
            }
            row.check_version(&key, expected)?;
            delete(connection, row.id)
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let (app, user, clock) = (app.to_owned(), user.to_owned(), self.clock());
        Work::later(self.write(move |connection| upkeep::erase_user(connection, &app, &user, now(&*clock))))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.read(move |connection| shared_state(connection, &app, &user)))
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        let key = key.clone();
        Work::later(self.read(move |connection| {
            let Some(row) = Row::find(connection, &key)? else { return Ok(None) };
            Ok(Some(row.news(connection, &key, known)?))
        }))
    }

    fn acquire(&self, mut wanted: Acquire) -> Work<'_, Result<Acquired>> {
        Work::later(async move {
            let key = wanted.key.clone();
            let entries = Arc::new(Prepared::new(&std::mem::take(&mut wanted.entries))?);
            let mut read = None;
            loop {
                let (owner, known) = (wanted.owner.clone(), wanted.known);
                let attempt = Acquire { key: key.clone(), owner, entries: Entries::new(), ..wanted };
                let (written, clock) = (entries.clone(), self.clock());
                let taken = self
                    .write_together(move |connection| acquire(connection, &attempt, &written, &*clock))
                    .await?;
                match taken {
                    Attempt::Taken(taken) => {
                        return Ok(Acquired { news: together(read, taken.news), ..taken });
                    }
                    Attempt::Busy => return Err(busy(&key)),
                    Attempt::Behind => {
                        let news = self.news(&key, known).await?.ok_or_else(|| not_found(&key))?;
                        wanted.known = news.versions;
                        read = Some(together(read, news));
                    }
                }
            }
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        let (lease, clock) = (lease.clone(), self.clock());
        Work::later(self.write_together(move |connection| {
            let (row, ttl) = (Row::get(connection, &lease.key)?, ttl_millis(ttl));
            if row.epoch != lease.epoch {
                return Err(fenced(&lease.key).into());
            }
            let mut keep = connection
                .prepare_cached("UPDATE sessions SET lease_until = ?1, lease_ttl = ?2 WHERE id = ?3")?;
            keep.execute(params![now(&*clock).saturating_add(ttl), ttl, row.id])?;
            Ok(())
        }))
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(self.append_leased(lease.clone(), expected, entries, false))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(self.append_leased(lease.clone(), expected, entries, true))
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        let (key, clock) = (key.clone(), self.clock());
        Work::later(async move {
            let entries = Prepared::new(&entries)?;
            let written = self.write_together(move |connection| {
                let mut row = Row::get(connection, &key)?;
                if row.is_held(now(&*clock)) {
                    return Err(busy(&key).into());
                }
                if let Some(expected) = expected {
                    row.check_version(&key, expected)?;
                    (row.user_version, row.app_version) = (expected.user, expected.app);
                }
                row.write(connection, &key, &entries)?;
                row.save(connection)?;
                Ok(row.versions())
            });
            written.await
        })
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        let (app, clock) = (app.to_owned(), self.clock());
        Work::later(self.write_together(move |connection| abandoned(connection, &app, now(&*clock))))
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        let (app, user) = (app.to_owned(), user.map(str::to_owned));
        Work::later(self.read(move |connection| upkeep::open_questions(connection, &app, user.as_deref())))
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        let (app, user, after) = (app.to_owned(), filter.user.map(str::to_owned), filter.after.cloned());
        let (before, limit, newest_first) = (filter.before, filter.limit, filter.newest_first);
        let clock = self.clock();
        Work::later(self.read(move |connection| {
            let (user, after) = (user.as_deref(), after.as_ref());
            let filter = IdleFilter { before, user, after, limit, newest_first };
            upkeep::idle(connection, &app, filter, now(&*clock))
        }))
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        let (key, clock) = (key.clone(), self.clock());
        Work::later(self.read(move |connection| upkeep::summary(connection, &key, now(&*clock))))
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.read(move |connection| upkeep::usage(connection, &app, &user)))
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::later(self.scrub_files())
    }
}
