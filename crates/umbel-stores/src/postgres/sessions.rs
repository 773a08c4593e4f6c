//! Sessions in PostgreSQL.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Client, GenericClient, Transaction};
use serde::Serialize;
use smol_str::SmolStr;
use tokio_postgres::types::ToSql;
use umbel_core::json::empty_object;
use umbel_core::store::{
    Abandoned, Acquire, Acquired, Entries, EventFilter, Idle, IdleFilter, Lease, NewSession, News,
    OpenQuestion, StoredUsage, WaitChange, Waits, refuse_nul,
};
use umbel_core::title::title_of_log;
use umbel_core::{
    Clock, Event, List, LogEntry, Object, Result, Session, SessionKey, SessionStore, State, SystemClock,
    Versions, Work,
};

use super::fault::Trouble;
use super::{Postgres, Tries, query, signed, unknown, unsigned, upkeep};
use crate::entries::{Prepared, Scoped, decode, from_json, keys_from, known_after, refuse_holes, to_json};
use crate::lease::ttl_millis;
use crate::refusal::{self, busy, exists, fenced, not_found, stale};

mod whole;

pub(super) use whole::{import_session, stored_session};

/// The server's clock, in milliseconds.
pub(super) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The columns of a [`Row`], with the versions of its user and its app, and the server's clock.
const ROW: &str = "SELECT s.id, s.version, s.epoch, s.lease_until, s.lease_ttl, s.updated_at,
    (SELECT version FROM umbel_scopes WHERE app = $1 AND user_id = $2),
    (SELECT version FROM umbel_scopes WHERE app = $1 AND user_id = ''),
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    s.questions IS NOT NULL OR s.awaited_calls IS NOT NULL, s.bytes, s.title IS NOT NULL
    FROM umbel_sessions s WHERE s.app = $1 AND s.user_id = $2 AND s.name = $3";

/// A session's row.
struct Row {
    id: i64,
    version: u64,
    epoch: u64,
    lease_until: Option<i64>,
    lease_ttl: i64,
    updated_at: f64,
    user_version: u64,
    app_version: u64,
    /// The server's clock, in milliseconds.
    now: i64,
    /// The transaction that gave the lease, once this one has.
    written_by: Option<i64>,
    /// It waits for something.
    waits: bool,
    bytes: u64,
    has_title: bool,
}

impl Row {
    async fn select(
        client: &impl GenericClient,
        key: &SessionKey,
        ending: &str,
    ) -> Result<Option<Self>, Trouble> {
        let found = query(client, &format!("{ROW}{ending}"), &[&key.app(), &key.user(), &key.id()]).await?;
        let Some(row) = found.first() else { return Ok(None) };
        Ok(Some(Self {
            id: row.try_get(0)?,
            version: unsigned(row.try_get(1)?),
            epoch: unsigned(row.try_get(2)?),
            lease_until: row.try_get(3)?,
            lease_ttl: row.try_get::<_, Option<i64>>(4)?.unwrap_or(0),
            updated_at: row.try_get(5)?,
            user_version: unsigned(row.try_get::<_, Option<i64>>(6)?.unwrap_or(0)),
            app_version: unsigned(row.try_get::<_, Option<i64>>(7)?.unwrap_or(0)),
            now: row.try_get(8)?,
            written_by: None,
            waits: row.try_get(9)?,
            bytes: unsigned(row.try_get(10)?),
            has_title: row.try_get(11)?,
        }))
    }

    /// The row of a session, if there is one.
    async fn find(client: &impl GenericClient, key: &SessionKey) -> Result<Option<Self>, Trouble> {
        Self::select(client, key, "").await
    }

    /// The row of a session that must be there, for this transaction alone.
    async fn lock(change: &Transaction<'_>, key: &SessionKey) -> Result<Self, Trouble> {
        let row = Self::select(change, key, " FOR UPDATE OF s").await?.ok_or_else(|| not_found(key))?;
        Ok(row)
    }

    /// The same, unless someone holds the lease. That is seen without waiting for who writes under it, so that those
    /// who ask again and again are not in its way.
    async fn lock_free(change: &Transaction<'_>, key: &SessionKey) -> Result<Option<Self>, Trouble> {
        let free = format!(" AND (s.lease_until > {NOW}) IS NOT TRUE FOR UPDATE OF s");
        if let Some(row) = Self::select(change, key, &free).await? {
            return Ok(Some(row));
        }
        let held = Self::find(change, key).await?.ok_or_else(|| not_found(key))?;
        let latest = held.now.saturating_add(held.lease_ttl);
        if held.lease_until.is_some_and(|until| until > latest) {
            // The clock went back since the lease was given.
            let shorten = "UPDATE umbel_sessions SET lease_until = $1 WHERE id = $2 AND lease_until = $3";
            query(change, shorten, &[&latest, &held.id, &held.lease_until]).await?;
        }
        Ok(None)
    }

    fn versions(&self) -> Versions {
        let incarnation = unsigned(self.id);
        Versions { incarnation, session: self.version, user: self.user_version, app: self.app_version }
    }

    fn is_held(&self) -> bool {
        self.lease_until.is_some_and(|until| until > self.now)
    }

    fn check_version(&self, key: &SessionKey, expected: Versions) -> Result<(), Trouble> {
        if self.version == expected.session && unsigned(self.id) == expected.incarnation {
            return Ok(());
        }
        Err(stale(key).into())
    }

    fn check_lease(&self, lease: &Lease, expected: Versions) -> Result<(), Trouble> {
        if self.epoch != lease.epoch || unsigned(self.id) != expected.incarnation {
            return Err(fenced(&lease.key).into());
        }
        self.check_version(&lease.key, expected)
    }

    /// Appends to the log and applies deltas.
    async fn write(
        &mut self,
        change: &Transaction<'_>,
        key: &SessionKey,
        entries: &Prepared,
    ) -> Result<(), Trouble> {
        let (times, bodies) = columns(entries);
        let insert = "INSERT INTO umbel_log (session, version, time, body)
            SELECT $1, $2 + r.n, r.time, r.body
            FROM unnest($3::float8[], $4::text[]) WITH ORDINALITY AS r (time, body, n)";
        if !bodies.is_empty() {
            query(change, insert, &[&self.id, &signed(self.version), &times, &bodies]).await?;
        }
        set_session_state(change, self.id, &entries.state.session).await?;
        // Always the user before the app: whoever locks in one order never waits in a circle.
        if let Some(version) = set_shared_state(change, key.app(), key.user(), &entries.state.user).await? {
            self.user_version = known_after(self.user_version, version);
        }
        if let Some(version) = set_shared_state(change, key.app(), "", &entries.state.app).await? {
            self.app_version = known_after(self.app_version, version);
        }
        self.version += entries.rows.len() as u64;
        self.updated_at = entries.updated_at.unwrap_or(self.updated_at);
        self.bytes += entries.bytes;
        if entries.title.is_some() && !self.has_title {
            save_title(change, self.id, entries.title.as_deref()).await?;
        }
        if entries.waits.rewinds {
            let log = self.news(change, key, Versions::default()).await?.entries;
            save_title(change, self.id, title_of_log(&log).as_deref()).await?;
            save_waits(change, self.id, &Waits::of_log(&log)).await?;
        } else if self.waits || entries.waits.begins_to_wait() {
            let mut waits = waits(change, self.id).await?;
            waits.apply(entries.waits.clone());
            save_waits(change, self.id, &waits).await?;
        }
        Ok(())
    }

    /// Whether a transaction that wrote these entries and left the row like this was committed. Waits for it to end.
    async fn was_written(&self, change: &Transaction<'_>, entries: &Prepared) -> Result<bool, Trouble> {
        let select = "SELECT epoch = $2 AND lease_until = $3 AND xmin::text::bigint = $4
            FROM umbel_sessions WHERE id = $1 FOR UPDATE";
        let epoch = signed(self.epoch);
        let found = query(change, select, &[&self.id, &epoch, &self.lease_until, &self.written_by]).await?;
        let bodies = columns(entries).1;
        if bodies.is_empty() {
            let is_like_this: Option<bool> = found.first().map_or(Ok(None), |row| row.try_get(0))?;
            return Ok(is_like_this.unwrap_or(false));
        }
        // The row may have changed since; the log never does, and no event is like another. That also tells it from
        // what was written after a crash of the server under the number of a transaction that was lost in it.
        let before = self.version.saturating_sub(bodies.len() as u64);
        Ok(bodies_after(change, self.id, before, bodies.len()).await? == bodies)
    }

    /// Writes how far the log has come, and nothing of the lease.
    async fn save(&self, change: &Transaction<'_>) -> Result<(), Trouble> {
        let update = "UPDATE umbel_sessions SET version = $1, updated_at = $2, bytes = $3 WHERE id = $4";
        let (version, bytes) = (signed(self.version), signed(self.bytes));
        query(change, update, &[&version, &self.updated_at, &bytes, &self.id]).await?;
        Ok(())
    }

    /// Writes how far the log has come, who has the lease, and until when.
    async fn save_with_lease(
        &mut self,
        change: &Transaction<'_>,
        owner: Option<&str>,
        ttl: Option<i64>,
    ) -> Result<(), Trouble> {
        self.epoch += 1;
        self.lease_until = ttl.map(|ttl| self.now.saturating_add(ttl));
        let update = "UPDATE umbel_sessions SET version = $1, updated_at = $2, epoch = $3, owner = $4,
            lease_until = $5, lease_ttl = $6, bytes = $7 WHERE id = $8 RETURNING xmin::text::bigint";
        let (version, epoch, bytes) = (signed(self.version), signed(self.epoch), signed(self.bytes));
        let values: [&(dyn ToSql + Sync); 8] =
            [&version, &self.updated_at, &epoch, &owner, &self.lease_until, &ttl, &bytes, &self.id];
        let updated = query(change, update, &values).await?;
        self.written_by = updated.first().map(|row| row.try_get(0)).transpose()?;
        Ok(())
    }

    /// What is newer than a reader knows.
    async fn news(
        &self,
        client: &impl GenericClient,
        key: &SessionKey,
        known: Versions,
    ) -> Result<News, Trouble> {
        let versions = self.versions();
        let whole = known.incarnation != versions.incarnation || known.session > versions.session;
        let known = if whole { Versions::default() } else { known };
        let mut news = News { versions, whole, ..News::default() };
        if whole {
            let found =
                query(client, "SELECT first_state FROM umbel_sessions WHERE id = $1", &[&self.id]).await?;
            let json: &str = found.first().map_or(Ok("{}"), |row| row.try_get(0))?;
            news.session_state = Some(Arc::new(from_json("the first state of a session", json)?));
        }
        if whole || known.user != versions.user {
            news.user_state = Some(shared_state(client, key.app(), key.user()).await?);
        }
        if whole || known.app != versions.app {
            news.app_state = Some(shared_state(client, key.app(), "").await?);
        }
        if known.session != versions.session {
            let select = "SELECT version, time, body FROM umbel_log
                WHERE session = $1 AND version > $2 AND version <= $3 ORDER BY version";
            let (from, to) = (signed(known.session), signed(versions.session));
            let rows = query(client, select, &[&self.id, &from, &to]).await?;
            news.entries = rows.iter().map(|row| entry(key, row)).collect::<Result<_, _>>()?;
        }
        refuse_holes(key, known.session, versions.session, &news.entries)?;
        Ok(news)
    }

    async fn session(
        &self,
        client: &impl GenericClient,
        key: &SessionKey,
        events: List<Arc<Event>>,
    ) -> Result<Session, Trouble> {
        let select = "SELECT key, value FROM umbel_session_state WHERE session = $1 ORDER BY id";
        let session = object(&query(client, select, &[&self.id]).await?)?;
        let user = shared_state(client, key.app(), key.user()).await?;
        let state = State::new(session, user, shared_state(client, key.app(), "").await?);
        Ok(Session {
            key: key.clone(),
            state,
            events,
            updated_at: self.updated_at,
            versions: self.versions(),
        })
    }
}

/// What a session waits for, as its row tells.
async fn waits(change: &Transaction<'_>, id: i64) -> Result<Waits, Trouble> {
    let select =
        "SELECT coalesce(questions, '{}'), coalesce(awaited_calls, '{}') FROM umbel_sessions WHERE id = $1";
    let rows = query(change, select, &[&id]).await?;
    let Some(row) = rows.first() else { return Ok(Waits::default()) };
    let (questions, calls): (Vec<&str>, Vec<&str>) = (row.try_get(0)?, row.try_get(1)?);
    let questions = questions.into_iter().map(|json| from_json("an open question", json));
    let calls = calls.into_iter().map(|json| from_json("an awaited call", json));
    Ok(Waits { questions: questions.collect::<Result<_>>()?, calls: calls.collect::<Result<_>>()? })
}

async fn save_waits(change: &Transaction<'_>, id: i64, waits: &Waits) -> Result<(), Trouble> {
    let update = "UPDATE umbel_sessions SET questions = nullif($1::text[], '{}'), awaited_calls = nullif($2::text[], '{}')
        WHERE id = $3";
    query(change, update, &[&each_to_json(&waits.questions)?, &each_to_json(&waits.calls)?, &id]).await?;
    Ok(())
}

async fn save_title(change: &Transaction<'_>, id: i64, title: Option<&str>) -> Result<(), Trouble> {
    query(change, "UPDATE umbel_sessions SET title = $1 WHERE id = $2", &[&title, &id]).await?;
    Ok(())
}

/// Finds the titles of sessions that were written before their rows had them. A log that cannot be read has none.
pub(super) async fn fill_in_titles(change: &Transaction<'_>) -> Result<(), Trouble> {
    for row in query(change, "SELECT app, user_id, name FROM umbel_sessions", &[]).await? {
        let [app, user, name]: [&str; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
        let key = SessionKey::new(app, user, name)?;
        let row = Row::lock(change, &key).await?;
        match row.news(change, &key, Versions::default()).await {
            Ok(news) => save_title(change, row.id, title_of_log(&news.entries).as_deref()).await?,
            Err(Trouble::Refused(_)) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(())
}

/// Each as JSON; ids too, since they may have a NUL.
fn each_to_json<T: Serialize>(list: &[T]) -> Result<Vec<String>> {
    list.iter().map(to_json).collect()
}

/// Finds out from the logs what sessions wait for that were written before their rows told it.
pub(super) async fn fill_in_waits(change: &Transaction<'_>) -> Result<(), Trouble> {
    // Other sessions cannot wait for anything, whatever their logs say.
    let select = "SELECT app, user_id, name FROM umbel_sessions WHERE id IN (
        SELECT session FROM umbel_log WHERE body LIKE '%longRunningToolIds%' OR body LIKE '%interrupts%')";
    for row in query(change, select, &[]).await? {
        let [app, user, name]: [&str; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
        let key = SessionKey::new(app, user, name)?;
        let row = Row::lock(change, &key).await?;
        let log = row.news(change, &key, Versions::default()).await?.entries;
        save_waits(change, row.id, &Waits::of_log(&log)).await?;
    }
    Ok(())
}

/// What an append writes, column by column.
fn columns(entries: &Prepared) -> (Vec<Option<f64>>, Vec<&str>) {
    entries.rows.iter().map(|row| (row.time, row.body.as_str())).unzip()
}

fn entry(key: &SessionKey, row: &tokio_postgres::Row) -> Result<LogEntry, Trouble> {
    Ok(decode(key, unsigned(row.try_get(0)?), row.try_get(1)?, row.try_get(2)?)?)
}

fn object(rows: &[tokio_postgres::Row]) -> Result<Arc<Object>, Trouble> {
    if rows.is_empty() {
        return Ok(empty_object());
    }
    let pairs = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok(Arc::new(keys_from(pairs.collect::<Result<Vec<_>, tokio_postgres::Error>>()?)?))
}

/// The state of a user, or of an app where the user is empty.
pub(super) async fn shared_state(
    client: &impl GenericClient,
    app: &str,
    user: &str,
) -> Result<Arc<Object>, Trouble> {
    let select = "SELECT t.key, t.value FROM umbel_shared_state t JOIN umbel_scopes s ON s.id = t.scope
        WHERE s.app = $1 AND s.user_id = $2 ORDER BY t.id";
    object(&query(client, select, &[&app, &user]).await?)
}

/// Keys and their values as two columns.
fn pairs(keys: &Object) -> Result<(Vec<&str>, Vec<String>), Trouble> {
    let values = keys.values().map(to_json).collect::<Result<_>>()?;
    Ok((keys.keys().map(String::as_str).collect(), values))
}

async fn set_session_state(change: &Transaction<'_>, id: i64, keys: &Object) -> Result<(), Trouble> {
    if keys.is_empty() {
        return Ok(());
    }
    let (keys, values) = pairs(keys)?;
    let set = "INSERT INTO umbel_session_state (session, key, value)
        SELECT $1, k.key, k.value FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS k (key, value, n) ORDER BY k.n
        ON CONFLICT (session, key) DO UPDATE SET value = excluded.value";
    query(change, set, &[&id, &keys, &values]).await?;
    Ok(())
}

/// Sets keys of a user, or of an app where the user is empty. Tells the new version if there was something to set.
pub(super) async fn set_shared_state(
    change: &Transaction<'_>,
    app: &str,
    user: &str,
    keys: &Object,
) -> Result<Option<u64>, Trouble> {
    if keys.is_empty() {
        return Ok(None);
    }
    let touch = "INSERT INTO umbel_scopes AS s (app, user_id, version) VALUES ($1, $2, 1)
        ON CONFLICT (app, user_id) DO UPDATE SET version = s.version + 1 RETURNING id, version";
    let touched = query(change, touch, &[&app, &user]).await?;
    let Some(scope) = touched.first() else { return Ok(None) };
    let (scope, version): (i64, i64) = (scope.try_get(0)?, scope.try_get(1)?);
    let (keys, values) = pairs(keys)?;
    let set = "INSERT INTO umbel_shared_state (scope, key, value)
        SELECT $1, k.key, k.value FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS k (key, value, n) ORDER BY k.n
        ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value";
    query(change, set, &[&scope, &keys, &values]).await?;
    Ok(Some(unsigned(version)))
}

/// Adds the row of a session, unless there is one.
async fn insert(
    change: &Transaction<'_>,
    key: &SessionKey,
    parent: Option<i64>,
    first: &str,
) -> Result<Option<i64>, Trouble> {
    let insert =
        "INSERT INTO umbel_sessions (app, user_id, name, parent, first_state, version, updated_at, epoch, bytes)
        VALUES ($1, $2, $3, $4, $5, 0, $6, 0, octet_length($5)) ON CONFLICT (app, user_id, name) DO NOTHING RETURNING id";
    let now = SystemClock.now();
    let made = query(change, insert, &[&key.app(), &key.user(), &key.id(), &parent, &first, &now]).await?;
    let Some(made) = made.first() else { return Ok(None) };
    let id: i64 = made.try_get(0)?;
    // An epoch that no lease of an earlier session under this key can fit.
    query(change, "UPDATE umbel_sessions SET epoch = id << 24 WHERE id = $1", &[&id]).await?;
    Ok(Some(id))
}

async fn create(change: &Transaction<'_>, new: &NewSession, state: &Scoped) -> Result<Session, Trouble> {
    let key = &new.key;
    let parent = match &new.parent {
        Some(parent) => Some(Row::lock(change, parent).await?.id),
        None => None,
    };
    let made = insert(change, key, parent, &to_json(&state.session)?).await?;
    let Some(id) = made else { return Err(exists(key).into()) };
    set_session_state(change, id, &state.session).await?;
    set_shared_state(change, key.app(), key.user(), &state.user).await?;
    set_shared_state(change, key.app(), "", &state.app).await?;
    Row::lock(change, key).await?.session(change, key, List::new()).await
}

/// Whether this very session is there, and not another of its name.
async fn is_stored(change: &Transaction<'_>, session: &Session) -> Result<bool, Trouble> {
    let found = Row::find(change, &session.key).await?;
    let (id, at) = (session.versions.incarnation, session.updated_at.to_bits());
    Ok(found.is_some_and(|row| unsigned(row.id) == id && row.updated_at.to_bits() == at))
}

async fn delete(change: &Transaction<'_>, key: &SessionKey) -> Result<(), Trouble> {
    let family = "WITH RECURSIVE family AS (
            SELECT id FROM umbel_sessions WHERE app = $1 AND user_id = $2 AND name = $3
            UNION SELECT s.id FROM umbel_sessions s JOIN family f ON s.parent = f.id)
        SELECT id FROM family";
    let rows = query(change, family, &[&key.app(), &key.user(), &key.id()]).await?;
    delete_rows(change, rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?).await
}

pub(super) async fn delete_rows(change: &Transaction<'_>, ids: Vec<i64>) -> Result<(), Trouble> {
    // The sessions first: that waits for whoever is writing to one of them.
    for table in ["umbel_sessions WHERE id", "umbel_log WHERE session", "umbel_session_state WHERE session"] {
        query(change, &format!("DELETE FROM {table} = ANY($1)"), &[&ids]).await?;
    }
    Ok(())
}

async fn acquire(
    change: &Transaction<'_>,
    wanted: &Acquire,
    entries: &Prepared,
) -> Result<Option<(Acquired, Row)>, Trouble> {
    let key = &wanted.key;
    if wanted.creates && wanted.expected.is_none() && Row::find(change, key).await?.is_none() {
        insert(change, key, None, "{}").await?;
    }
    let Some(mut row) = Row::lock_free(change, key).await? else { return Ok(None) };
    if row.lease_until.is_some() && !wanted.claims {
        return Err(refusal::abandoned(key).into());
    }
    if let Some(expected) = wanted.expected {
        row.check_version(key, expected)?;
    }
    let news = row.news(change, key, wanted.known).await?;
    row.write(change, key, entries).await?;
    row.save_with_lease(change, Some(&wanted.owner), Some(ttl_millis(wanted.ttl))).await?;
    let lease = Lease { key: key.clone(), epoch: row.epoch };
    Ok(Some((Acquired { lease, news, versions: row.versions() }, row)))
}

async fn append(
    change: &Transaction<'_>,
    lease: &Lease,
    expected: Versions,
    entries: &Prepared,
    give_back: bool,
) -> Result<Row, Trouble> {
    let mut row = Row::lock(change, &lease.key).await?;
    row.check_lease(lease, expected)?;
    (row.user_version, row.app_version) = (expected.user, expected.app);
    row.write(change, &lease.key, entries).await?;
    if give_back {
        row.save_with_lease(change, None, None).await?;
    } else {
        row.save(change).await?;
    }
    Ok(row)
}

async fn commit(
    change: &Transaction<'_>,
    key: &SessionKey,
    expected: Option<Versions>,
    entries: &Prepared,
) -> Result<Row, Trouble> {
    let mut row = Row::lock_free(change, key).await?.ok_or_else(|| busy(key))?;
    if let Some(expected) = expected {
        row.check_version(key, expected)?;
        (row.user_version, row.app_version) = (expected.user, expected.app);
    }
    row.write(change, key, entries).await?;
    row.save(change).await?;
    Ok(row)
}

async fn abandoned(change: &Transaction<'_>, app: &str) -> Result<Vec<Abandoned>, Trouble> {
    let now = NOW;
    // Leases from before the clock went back would otherwise outlive it.
    let shorten = format!(
        "UPDATE umbel_sessions SET lease_until = {now} + lease_ttl WHERE app = $1 AND lease_until > {now} + lease_ttl"
    );
    query(change, &shorten, &[&app]).await?;
    let select = format!(
        "SELECT s.user_id, s.name, s.owner, p.user_id, p.name
         FROM umbel_sessions s LEFT JOIN umbel_sessions p ON p.id = s.parent
         WHERE s.lease_until <= {now} AND s.app = $1 ORDER BY s.lease_until, s.id"
    );
    let rows = query(change, &select, &[&app]).await?;
    let found = rows.iter().map(|row| {
        let parent = match (row.try_get::<_, Option<&str>>(3)?, row.try_get::<_, Option<&str>>(4)?) {
            (Some(user), Some(name)) => Some(SessionKey::new(app, user, name)?),
            _ => None,
        };
        let owner: Option<&str> = row.try_get(2)?;
        let key = SessionKey::new(app, row.try_get::<_, &str>(0)?, row.try_get::<_, &str>(1)?)?;
        Ok(Abandoned { key, parent, owner: SmolStr::from(owner.unwrap_or_default()) })
    });
    found.collect()
}

async fn list(moment: &Transaction<'_>, app: &str, user: &str) -> Result<Vec<Session>, Trouble> {
    let select = "SELECT name FROM umbel_sessions WHERE app = $1 AND user_id = $2 AND parent IS NULL
        ORDER BY updated_at, id";
    let mut sessions = Vec::new();
    for row in query(moment, select, &[&app, &user]).await? {
        let key = SessionKey::new(app, user, row.try_get::<_, &str>(0)?)?;
        if let Some(row) = Row::find(moment, &key).await? {
            sessions.push(row.session(moment, &key, List::new()).await?);
        }
    }
    Ok(sessions)
}

async fn get(
    moment: &Transaction<'_>,
    key: &SessionKey,
    filter: EventFilter,
) -> Result<Option<Session>, Trouble> {
    let Some(row) = Row::find(moment, key).await? else { return Ok(None) };
    let select = match filter.first {
        Some(_) => {
            "SELECT version, time, body FROM umbel_log WHERE session = $1 AND time >= $2
            ORDER BY version LIMIT $3"
        }
        None => {
            "SELECT version, time, body FROM umbel_log WHERE session = $1 AND time >= $2
            ORDER BY version DESC LIMIT $3"
        }
    };
    let after = filter.after.unwrap_or(f64::NEG_INFINITY);
    let limit = filter.first.or(filter.recent).map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let mut rows = query(moment, select, &[&row.id, &after, &limit]).await?;
    if filter.first.is_none() {
        rows.reverse();
    }
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        if let LogEntry::Event(event) = entry(key, row)? {
            events.push(event);
        }
    }
    Ok(Some(row.session(moment, key, events.into_iter().collect()).await?))
}

impl Postgres {
    /// Appends under a lease, and gives it back if told so.
    async fn append_leased(
        &self,
        lease: &Lease,
        expected: Versions,
        entries: &[LogEntry],
        give_back: bool,
    ) -> Result<Versions> {
        let entries = Prepared::new(entries)?;
        let is_shared = !entries.state.user.is_empty() || !entries.state.app.is_empty();
        let WaitChange { settled, rewinds, .. } = &entries.waits;
        if !is_shared && !entries.waits.begins_to_wait() && settled.is_empty() && !rewinds {
            return self.append_at_once(lease, expected, &entries, give_back).await;
        }
        let entries = &entries;
        let appended = self.write_once(
            move |change, _| Box::pin(append(change, lease, expected, entries, give_back)),
            move |change, row, _| Box::pin(row.was_written(change, entries)),
        );
        Ok(appended.await?.versions())
    }

    /// The same in one statement, where nothing is set that sessions share, and nobody is asked or answers.
    async fn append_at_once(
        &self,
        lease: &Lease,
        expected: Versions,
        entries: &Prepared,
        give_back: bool,
    ) -> Result<Versions> {
        let (mut tries, mut in_doubt) = (Tries::new(), false);
        loop {
            let trouble = match self.try_append(lease, expected, entries, give_back, in_doubt).await {
                Ok(versions) => return Ok(versions),
                Err(trouble) => trouble,
            };
            // Where no connection could be had, nothing was asked.
            in_doubt |= trouble.leaves_doubt();
            if !self.tries_again(&mut tries, &trouble).await {
                return Err(if in_doubt && !trouble.is_refusal() {
                    unknown(trouble)
                } else {
                    trouble.into()
                });
            }
        }
    }

    async fn try_append(
        &self,
        lease: &Lease,
        expected: Versions,
        entries: &Prepared,
        give_back: bool,
        in_doubt: bool,
    ) -> Result<Versions, Trouble> {
        self.on_client(async |client| {
            match append_statement(client, lease, expected, entries, give_back).await {
                // By what an earlier attempt wrote, perhaps, though its answer was lost.
                Err(Trouble::Refused(error)) if in_doubt => {
                    let written = written_before(client, lease, expected, entries, give_back).await?;
                    written.ok_or(Trouble::Refused(error))
                }
                other => other,
            }
        })
        .await
    }
}

async fn append_statement(
    client: &Client,
    lease: &Lease,
    expected: Versions,
    entries: &Prepared,
    give_back: bool,
) -> Result<Versions, Trouble> {
    let gives_back = ", epoch = s.epoch + 1, owner = NULL, lease_until = NULL, lease_ttl = NULL";
    let append = format!(
        "WITH s AS (
            UPDATE umbel_sessions s SET version = s.version + $7, updated_at = coalesce($8, s.updated_at),
                bytes = s.bytes + $14, title = coalesce(s.title, $15),
                awaited_calls = nullif(array(SELECT unnest(s.awaited_calls) EXCEPT SELECT unnest($13::text[])), '{{}}'){}
            WHERE s.id = $4 AND s.epoch = $5 AND s.version = $6 AND s.app = $1 AND s.user_id = $2 AND s.name = $3
            RETURNING s.id
        ), l AS (
            INSERT INTO umbel_log (session, version, time, body)
            SELECT s.id, $6 + r.n, r.time, r.body
            FROM s, unnest($9::float8[], $10::text[]) WITH ORDINALITY AS r (time, body, n)
        ), k AS (
            INSERT INTO umbel_session_state (session, key, value)
            SELECT s.id, k.key, k.value
            FROM s, unnest($11::text[], $12::text[]) WITH ORDINALITY AS k (key, value, n) ORDER BY k.n
            ON CONFLICT (session, key) DO UPDATE SET value = excluded.value
        )
        SELECT FROM s",
        if give_back { gives_back } else { "" }
    );
    let key = &lease.key;
    let (app, user, name) = (key.app(), key.user(), key.id());
    let (id, epoch, version) = (signed(expected.incarnation), signed(lease.epoch), signed(expected.session));
    let (count, at) = (signed(entries.rows.len() as u64), entries.updated_at);
    let ((times, bodies), (keys, values)) = (columns(entries), pairs(&entries.state.session)?);
    let answered = each_to_json(&entries.waits.answered)?;
    let bytes = signed(entries.bytes);
    let values: [&(dyn ToSql + Sync); 15] = [
        &app,
        &user,
        &name,
        &id,
        &epoch,
        &version,
        &count,
        &at,
        &times,
        &bodies,
        &keys,
        &values,
        &answered,
        &bytes,
        &entries.title,
    ];
    let rows = query(client, &append, &values).await?;
    if rows.is_empty() {
        // Nothing fitted; why, the row tells.
        Row::find(client, key).await?.ok_or_else(|| not_found(key))?.check_lease(lease, expected)?;
        return Err(stale(key).into());
    }
    Ok(Versions { session: expected.session + entries.rows.len() as u64, ..expected })
}

/// Where things stand, if these very entries follow what was expected.
async fn written_before(
    client: &Client,
    lease: &Lease,
    expected: Versions,
    entries: &Prepared,
    gave_back: bool,
) -> Result<Option<Versions>, Trouble> {
    let Some(row) = Row::find(client, &lease.key).await? else { return Ok(None) };
    let fits = if gave_back { row.epoch > lease.epoch } else { row.epoch == lease.epoch };
    if !fits || unsigned(row.id) != expected.incarnation {
        return Ok(None);
    }
    let found = bodies_after(client, row.id, expected.session, entries.rows.len()).await?;
    let is_there = (!found.is_empty() || gave_back) && found == columns(entries).1;
    let session = expected.session + entries.rows.len() as u64;
    Ok(is_there.then_some(Versions { session, ..expected }))
}

/// The first so many entries after a version, as they are stored.
async fn bodies_after(
    client: &impl GenericClient,
    id: i64,
    version: u64,
    count: usize,
) -> Result<Vec<String>, Trouble> {
    let select = "SELECT body FROM umbel_log WHERE session = $1 AND version > $2 ORDER BY version LIMIT $3";
    let rows = query(client, select, &[&id, &signed(version), &signed(count as u64)]).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

impl SessionStore for Postgres {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        Work::later(async move {
            let state = Scoped::new(&new.state)?;
            let (new, state) = (&new, &state);
            let created = self.write_once(
                move |change, _| Box::pin(create(change, new, state)),
                move |change, session, _| Box::pin(is_stored(change, session)),
            );
            created.await
        })
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        Work::later(self.read(move |moment, _| Box::pin(get(moment, key, filter))))
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        Work::later(self.read(move |moment, _| Box::pin(list(moment, app, user))))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        Work::later(self.write(move |change, _| Box::pin(delete(change, key))))
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let Some(row) = Row::select(change, key, " FOR UPDATE OF s").await? else { return Ok(()) };
                if row.is_held() {
                    return Err(busy(key).into());
                }
                row.check_version(key, expected)?;
                delete(change, key).await
            })
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| Box::pin(upkeep::erase_user(change, app, user))))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        Work::later(self.read(move |moment, _| Box::pin(shared_state(moment, app, user))))
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        Work::later(self.read(move |moment, _| {
            Box::pin(async move {
                let Some(row) = Row::find(moment, key).await? else { return Ok(None) };
                Ok(Some(row.news(moment, key, known).await?))
            })
        }))
    }

    fn acquire(&self, mut wanted: Acquire) -> Work<'_, Result<Acquired>> {
        Work::later(async move {
            refuse_nul("owner of a lease", &wanted.owner)?;
            let entries = Prepared::new(&std::mem::take(&mut wanted.entries))?;
            let (wanted, entries) = (&wanted, &entries);
            let taken = self.write_once(
                move |change, _| Box::pin(acquire(change, wanted, entries)),
                move |change, taken, _| match taken {
                    Some((_, row)) => Box::pin(row.was_written(change, entries)),
                    None => Box::pin(ready(Ok(true))),
                },
            );
            let (acquired, _) = taken.await?.ok_or_else(|| busy(&wanted.key))?;
            Ok(acquired)
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let (row, ttl) = (Row::lock(change, &lease.key).await?, ttl_millis(ttl));
                if row.epoch != lease.epoch {
                    return Err(fenced(&lease.key).into());
                }
                let keep = "UPDATE umbel_sessions SET lease_until = $1, lease_ttl = $2 WHERE id = $3";
                query(change, keep, &[&row.now.saturating_add(ttl), &ttl, &row.id]).await?;
                Ok(())
            })
        }))
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(async move { self.append_leased(lease, expected, &entries, false).await })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(async move { self.append_leased(lease, expected, &entries, true).await })
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(async move {
            let entries = &Prepared::new(&entries)?;
            let committed = self.write_once(
                move |change, _| Box::pin(commit(change, key, expected, entries)),
                move |change, row, _| Box::pin(row.was_written(change, entries)),
            );
            Ok(committed.await?.versions())
        })
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        Work::later(self.write(move |change, _| Box::pin(abandoned(change, app))))
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        Work::later(self.read(move |moment, _| Box::pin(upkeep::open_questions(moment, app, user))))
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        Work::later(self.read(move |moment, _| Box::pin(upkeep::idle(moment, app, filter))))
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        Work::later(self.read(move |moment, _| Box::pin(upkeep::summary(moment, key))))
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        Work::later(self.read(move |moment, _| Box::pin(upkeep::usage(moment, app, user))))
    }
}
