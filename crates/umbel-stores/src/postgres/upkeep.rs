//! What looks after sessions in PostgreSQL: which of them wait, which are idle, and what is left of a user.

use deadpool_postgres::Transaction;
use umbel_core::store::{Idle, IdleFilter, OpenQuestion, StoredUsage};
use umbel_core::{SessionKey, Versions};

use super::fault::Trouble;
use super::sessions::{NOW, delete_rows};
use super::{query, signed, unsigned};
use crate::entries::from_json;
use crate::refusal::busy;

/// The open questions of an app, or of one of its users.
pub(super) async fn open_questions(
    moment: &Transaction<'_>,
    app: &str,
    user: Option<&str>,
) -> Result<Vec<OpenQuestion>, Trouble> {
    let select = "SELECT user_id, name, updated_at, questions FROM umbel_sessions
        WHERE app = $1 AND ($2::text IS NULL OR user_id = $2) AND questions IS NOT NULL AND parent IS NULL
        ORDER BY updated_at, id";
    let mut found = Vec::new();
    for row in query(moment, select, &[&app, &user]).await? {
        let key = SessionKey::new(app, row.try_get::<_, &str>(0)?, row.try_get::<_, &str>(1)?)?;
        let updated_at = row.try_get(2)?;
        for json in row.try_get::<_, Vec<&str>>(3)? {
            let interrupt = from_json("an open question", json)?;
            found.push(OpenQuestion { key: key.clone(), interrupt, updated_at });
        }
    }
    Ok(found)
}

/// The columns of an [`Idle`].
fn columns() -> String {
    format!(
        "SELECT id, user_id, name, version, updated_at, lease_until > {NOW},
            cardinality(questions)::bigint, cardinality(awaited_calls)::bigint,
            (SELECT version FROM umbel_scopes WHERE app = s.app AND user_id = s.user_id),
            (SELECT version FROM umbel_scopes WHERE app = s.app AND user_id = ''), title, bytes
         FROM umbel_sessions s WHERE app = $1"
    )
}

/// Reads [`columns`].
fn idle_of(app: &str, row: &tokio_postgres::Row) -> Result<Idle, Trouble> {
    let number = |at| Ok::<_, Trouble>(unsigned(row.try_get::<_, Option<i64>>(at)?.unwrap_or(0)));
    let held: Option<bool> = row.try_get(5)?;
    Ok(Idle {
        key: SessionKey::new(app, row.try_get::<_, &str>(1)?, row.try_get::<_, &str>(2)?)?,
        updated_at: row.try_get(4)?,
        versions: Versions {
            incarnation: number(0)?,
            session: number(3)?,
            user: number(8)?,
            app: number(9)?,
        },
        held: held == Some(true),
        abandoned: held == Some(false),
        questions: number(6)?,
        awaited_calls: number(7)?,
        title: row.try_get(10)?,
        bytes: number(11)?,
    })
}

/// One session as a list has it.
pub(super) async fn summary(moment: &Transaction<'_>, key: &SessionKey) -> Result<Option<Idle>, Trouble> {
    let select = format!("{} AND user_id = $2 AND name = $3", columns());
    let rows = query(moment, &select, &[&key.app(), &key.user(), &key.id()]).await?;
    rows.first().map(|row| idle_of(key.app(), row)).transpose()
}

/// What is stored for a user.
pub(super) async fn usage(moment: &Transaction<'_>, app: &str, user: &str) -> Result<StoredUsage, Trouble> {
    let select = "SELECT count(*) FILTER (WHERE parent IS NULL), coalesce(sum(bytes), 0)::bigint
        FROM umbel_sessions WHERE app = $1 AND user_id = $2";
    let rows = query(moment, select, &[&app, &user]).await?;
    let Some(row) = rows.first() else { return Ok(StoredUsage::default()) };
    Ok(StoredUsage { sessions: unsigned(row.try_get(0)?), bytes: unsigned(row.try_get(1)?) })
}

/// The sessions of an app that last changed before a time.
pub(super) async fn idle(
    moment: &Transaction<'_>,
    app: &str,
    filter: IdleFilter<'_>,
) -> Result<Vec<Idle>, Trouble> {
    let (is_behind, order) = match filter.newest_first {
        true => ("<", "updated_at DESC, id DESC"),
        false => (">", "updated_at, id"),
    };
    let select = format!(
        "{} AND parent IS NULL AND updated_at < $2
            AND ($3::text IS NULL OR user_id = $3)
            AND ($4::float8 IS NULL OR (updated_at, id) {is_behind} ($4, $5::bigint))
         ORDER BY {order} LIMIT $6",
        columns()
    );
    let updated_at = filter.after.map(|last| last.updated_at);
    let id = filter.after.map(|last| signed(last.versions.incarnation));
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    let rows =
        query(moment, &select, &[&app, &filter.before, &filter.user, &updated_at, &id, &limit]).await?;
    rows.iter().map(|row| idle_of(app, row)).collect()
}

/// Deletes the sessions of a user with those that work for them, and the user's state, unless one of them is held.
pub(super) async fn erase_user(change: &Transaction<'_>, app: &str, user: &str) -> Result<u64, Trouble> {
    // Nobody takes a lease while these are looked at. In the order of ids, so that two never wait for each other.
    let family = format!(
        "WITH RECURSIVE family AS (
            SELECT id FROM umbel_sessions WHERE app = $1 AND user_id = $2
            UNION SELECT s.id FROM umbel_sessions s JOIN family f ON s.parent = f.id)
         SELECT s.id, s.user_id, s.name, s.lease_until > {NOW} FROM umbel_sessions s
         WHERE s.id IN (SELECT id FROM family) ORDER BY s.id FOR UPDATE OF s"
    );
    let mut ids = Vec::new();
    for row in query(change, &family, &[&app, &user]).await? {
        if row.try_get::<_, Option<bool>>(3)? == Some(true) {
            let held = SessionKey::new(app, row.try_get::<_, &str>(1)?, row.try_get::<_, &str>(2)?)?;
            return Err(busy(&held).into());
        }
        ids.push(row.try_get(0)?);
    }
    let count = ids.len() as u64;
    delete_rows(change, ids).await?;
    let state = "WITH gone AS (DELETE FROM umbel_scopes WHERE app = $1 AND user_id = $2 RETURNING id)
        DELETE FROM umbel_shared_state WHERE scope IN (SELECT id FROM gone)";
    query(change, state, &[&app, &user]).await?;
    Ok(count)
}
