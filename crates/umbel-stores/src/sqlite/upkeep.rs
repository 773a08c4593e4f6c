//! What looks after sessions in SQLite: which of them wait, which are idle, and what is left of a user.

use rusqlite::{Connection, OptionalExtension, ToSql, params};
use umbel_core::store::{Idle, IdleFilter, OpenQuestion, StoredUsage};
use umbel_core::{Interrupt, SessionKey, Versions};

use super::sessions::delete;
use super::{Trouble, unsigned};
use crate::entries::from_json;
use crate::refusal::busy;

/// The open questions of an app, or of one of its users.
pub(super) fn open_questions(
    connection: &Connection,
    app: &str,
    user: Option<&str>,
) -> Result<Vec<OpenQuestion>, Trouble> {
    let of_user = if user.is_some() { "AND user = ?2" } else { "AND ?2 IS NULL" };
    let mut select = connection.prepare_cached(&format!(
        "SELECT user, name, updated_at, questions FROM sessions
         WHERE app = ?1 {of_user} AND questions IS NOT NULL AND parent IS NULL ORDER BY updated_at, id"
    ))?;
    let mut rows = select.query(params![app, user])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key = SessionKey::new(app, row.get::<_, String>(0)?, row.get::<_, String>(1)?)?;
        let updated_at = row.get(2)?;
        let asked: Vec<Interrupt> = from_json("the open questions of a session", &row.get::<_, String>(3)?)?;
        let asked = asked.into_iter();
        found.extend(asked.map(|interrupt| OpenQuestion { key: key.clone(), interrupt, updated_at }));
    }
    Ok(found)
}

/// The columns of an [`Idle`].
const SUMMARY: &str = "SELECT id, user, name, version, updated_at, lease_until,
        json_array_length(questions), json_array_length(awaited_calls),
        (SELECT version FROM scopes WHERE app = s.app AND user = s.user),
        (SELECT version FROM scopes WHERE app = s.app AND user = ''), title, bytes
     FROM sessions s WHERE app = :app";

/// Reads the columns of [`SUMMARY`].
fn idle_of(app: &str, row: &rusqlite::Row<'_>, now: i64) -> Result<Idle, Trouble> {
    let number = |at| Ok::<_, Trouble>(unsigned(row.get::<_, Option<i64>>(at)?.unwrap_or(0)));
    let lease_until: Option<i64> = row.get(5)?;
    Ok(Idle {
        key: SessionKey::new(app, row.get::<_, String>(1)?, row.get::<_, String>(2)?)?,
        updated_at: row.get(4)?,
        versions: Versions {
            incarnation: number(0)?,
            session: number(3)?,
            user: number(8)?,
            app: number(9)?,
        },
        held: lease_until.is_some_and(|until| until > now),
        abandoned: lease_until.is_some_and(|until| until <= now),
        questions: number(6)?,
        awaited_calls: number(7)?,
        title: row.get(10)?,
        bytes: number(11)?,
    })
}

/// One session as a list has it.
pub(super) fn summary(connection: &Connection, key: &SessionKey, now: i64) -> Result<Option<Idle>, Trouble> {
    let sql = format!("{SUMMARY} AND user = :user AND name = :name");
    let mut select = connection.prepare_cached(&sql)?;
    let values = [(":app", key.app()), (":user", key.user()), (":name", key.id())];
    let found = select.query_row(&values, |row| Ok(idle_of(key.app(), row, now))).optional()?;
    found.transpose()
}

/// What is stored for a user.
pub(super) fn usage(connection: &Connection, app: &str, user: &str) -> Result<StoredUsage, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT count(*) FILTER (WHERE parent IS NULL), coalesce(sum(bytes), 0) FROM sessions
         WHERE app = ?1 AND user = ?2",
    )?;
    let used = select.query_row([app, user], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(StoredUsage { sessions: unsigned(used.0), bytes: unsigned(used.1) })
}

/// The sessions of an app that last changed before a time.
pub(super) fn idle(
    connection: &Connection,
    app: &str,
    filter: IdleFilter<'_>,
    now: i64,
) -> Result<Vec<Idle>, Trouble> {
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    let after = filter.after.map(|last| (last.updated_at, super::signed(last.versions.incarnation)));
    let mut sql = format!("{SUMMARY} AND parent IS NULL AND updated_at < :before");
    let mut values: Vec<(&str, &dyn ToSql)> =
        vec![(":app", &app), (":before", &filter.before), (":limit", &limit)];
    if let Some(user) = &filter.user {
        sql.push_str(" AND user = :user");
        values.push((":user", user));
    }
    if let Some((updated_at, id)) = &after {
        let is_behind = if filter.newest_first { "<" } else { ">" };
        sql.push_str(&format!(" AND (updated_at, id) {is_behind} (:updated_at, :id)"));
        values.extend([(":updated_at", updated_at as &dyn ToSql), (":id", id)]);
    }
    sql.push_str(match filter.newest_first {
        true => " ORDER BY updated_at DESC, id DESC LIMIT :limit",
        false => " ORDER BY updated_at, id LIMIT :limit",
    });
    let mut select = connection.prepare_cached(&sql)?;
    let mut rows = select.query(&*values)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(idle_of(app, row, now)?);
    }
    Ok(found)
}

/// Deletes the sessions of a user with those that work for them, and the user's state, unless one of them is held.
pub(super) fn erase_user(connection: &Connection, app: &str, user: &str, now: i64) -> Result<u64, Trouble> {
    let mut select = connection.prepare_cached(
        "WITH RECURSIVE family (id) AS (
            SELECT id FROM sessions WHERE app = ?1 AND user = ?2
            UNION SELECT s.id FROM sessions s JOIN family f ON s.parent = f.id)
         SELECT s.id, s.user, s.name, s.lease_until FROM sessions s JOIN family USING (id)",
    )?;
    let (mut rows, mut ids) = (select.query([app, user])?, Vec::new());
    while let Some(row) = rows.next()? {
        if row.get::<_, Option<i64>>(3)?.is_some_and(|until| until > now) {
            let held = SessionKey::new(app, row.get::<_, String>(1)?, row.get::<_, String>(2)?)?;
            return Err(busy(&held).into());
        }
        ids.push(row.get(0)?);
    }
    for id in &ids {
        delete(connection, *id)?;
    }
    let mut state = connection.prepare_cached(
        "DELETE FROM shared_state WHERE scope = (SELECT id FROM scopes WHERE app = ?1 AND user = ?2)",
    )?;
    state.execute([app, user])?;
    forget_scope(connection, app, user)?;
    Ok(ids.len() as u64)
}

/// Deletes the row that stands for a user, once neither state nor memories need it.
pub(super) fn forget_scope(connection: &Connection, app: &str, user: &str) -> Result<(), Trouble> {
    let mut forget = connection.prepare_cached(
        "DELETE FROM scopes WHERE app = ?1 AND user = ?2
           AND NOT EXISTS (SELECT 1 FROM shared_state WHERE scope = scopes.id)
           AND NOT EXISTS (SELECT 1 FROM memories WHERE app = ?1 AND user = ?2)",
    )?;
    forget.execute([app, user])?;
    Ok(())
}
