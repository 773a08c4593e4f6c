//! Sessions with their logs, as they are exported and imported.

use deadpool_postgres::Transaction;
use umbel_core::store::NewSession;
use umbel_core::{Object, SessionKey};

use super::{Row, create};
use crate::entries::{Prepared, Scoped, decode_stored};
use crate::postgres::fault::Trouble;
use crate::postgres::query;
use crate::refusal::not_found;
use crate::transfer::{SessionPiece, StoredEntry};

/// A session with its log, to be exported.
pub(in super::super) async fn stored_session(
    moment: &Transaction<'_>,
    key: SessionKey,
    parent: Option<SessionKey>,
    owner: Option<String>,
) -> Result<(SessionPiece, Vec<StoredEntry>), Trouble> {
    let row = Row::find(moment, &key).await?.ok_or_else(|| not_found(&key))?;
    let first = query(moment, "SELECT first_state FROM umbel_sessions WHERE id = $1", &[&row.id]).await?;
    let first: &str = first.first().map_or(Ok("{}"), |row| row.try_get(0))?;
    let select = "SELECT time, body FROM umbel_log WHERE session = $1 ORDER BY version";
    let rows = query(moment, select, &[&row.id]).await?;
    let rows = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let (state, stored) = decode_stored(&key, first, rows.collect::<Result<Vec<_>, Trouble>>()?);
    let piece = SessionPiece { key, parent, state, updated_at: row.updated_at, owner, entries: Vec::new() };
    Ok((piece, stored))
}

/// Makes a session with its log. What the log sets of user and app is known from elsewhere.
pub(in super::super) async fn import_session(
    change: &Transaction<'_>,
    session: &SessionPiece,
) -> Result<(), Trouble> {
    let SessionPiece { key, parent, state, updated_at, owner, entries } = session;
    let new = NewSession { key: key.clone(), state: Object::new(), parent: parent.clone() };
    create(change, &new, &Scoped { session: state.clone(), ..Scoped::default() }).await?;
    let mut entries = Prepared::new(entries)?;
    entries.state = Scoped { session: entries.state.session, ..Scoped::default() };
    entries.updated_at = Some(*updated_at);
    let mut row = Row::lock(change, key).await?;
    row.write(change, key, &entries).await?;
    match owner {
        // A lease that ran out: the run was under way, and is to be recovered.
        Some(owner) => row.save_with_lease(change, Some(owner), Some(0)).await,
        None => row.save(change).await,
    }
}
