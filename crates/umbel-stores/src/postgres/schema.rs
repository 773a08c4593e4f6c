//! The tables of the database, and how older ones become today's.

use std::time::Duration;

use deadpool_postgres::Transaction;
use umbel_core::{Error, ErrorKind};

use super::fault::Trouble;
use super::within::{self, answered};
use super::{query, sessions};

/// Each takes a database one version further. What was released is never changed, only added to.
pub(super) const MIGRATIONS: [&str; 4] = [
    include_str!("migrations/1_sessions.sql"),
    include_str!("migrations/2_artifacts_memory_credentials.sql"),
    include_str!("migrations/3_waits_and_ages.sql"),
    include_str!("migrations/4_titles_and_sizes.sql"),
];

/// The version from which on a session's row tells what it waits for.
const WAITS: usize = 3;

/// The version from which on a session's row has its title.
const TITLES: usize = 4;

/// Whoever migrates holds this lock ("umbl"), so that servers that start together do it once.
const LOCK: i64 = 0x756d_626c;

/// Brings the tables to today's version.
pub(super) async fn migrate(change: &Transaction<'_>) -> Result<(), Trouble> {
    // However long it takes, once the server answers at all.
    answered(change.batch_execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")).await?;
    within::scope(Duration::MAX, migrate_at_leisure(change)).await
}

async fn migrate_at_leisure(change: &Transaction<'_>) -> Result<(), Trouble> {
    query(change, "SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    change.batch_execute("CREATE TABLE IF NOT EXISTS umbel_schema (version bigint NOT NULL)").await?;
    let found = query(change, "SELECT coalesce(max(version), 0) FROM umbel_schema", &[]).await?;
    let found: i64 = found.first().map_or(Ok(0), |row| row.try_get(0))?;
    let known = MIGRATIONS.len();
    let from = usize::try_from(found).ok().filter(|found| *found <= known).ok_or_else(|| {
        let message = format!(
            "the database was written by a newer version of Umbel (schema {found}, this one knows {known}): use that version"
        );
        Error::new(ErrorKind::Store, message)
    })?;
    for (before, migration) in MIGRATIONS.iter().enumerate().skip(from) {
        change.batch_execute(migration).await?;
        let version = i64::try_from(before + 1).unwrap_or(i64::MAX);
        query(change, "INSERT INTO umbel_schema (version) VALUES ($1)", &[&version]).await?;
    }
    if from < WAITS {
        sessions::fill_in_waits(change).await?;
    }
    if from < TITLES {
        sessions::fill_in_titles(change).await?;
    }
    Ok(())
}
