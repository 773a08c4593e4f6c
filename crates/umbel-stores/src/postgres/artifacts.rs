//! Artifacts in PostgreSQL.

use std::sync::Arc;

use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use umbel_core::store::refuse_nul;
use umbel_core::{ArtifactStore, Clock, Part, Result, SessionKey, SystemClock, Work};

use super::fault::Trouble;
use super::{Postgres, execute, lock, query, signed, unsigned};
use crate::entries::{artifact_place, join_part, split_part};

/// An artifact as it is written.
struct Row<'a> {
    /// App, user, session, name.
    place: [&'a str; 4],
    part: String,
    data: Option<Vec<u8>>,
}

impl Row<'_> {
    /// Saves it under the next version. Tells which, and the number of the transaction.
    async fn save(&self, change: &Transaction<'_>) -> Result<(i64, i64), Trouble> {
        lock(change, &self.place).await?;
        let insert =
            "INSERT INTO umbel_artifacts (app, user_id, session, name, part, data, saved_at, version)
            SELECT $1, $2, $3, $4, $5, $6, $7, coalesce(max(version) + 1, 0) FROM umbel_artifacts
            WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4
            RETURNING version, xmin::text::bigint";
        let [app, user, session, name] = &self.place;
        let now = SystemClock.now();
        let rows = query(change, insert, &[app, user, session, name, &self.part, &self.data, &now]).await?;
        let saved = rows.first().map(|row| Ok::<_, Trouble>((row.try_get(0)?, row.try_get(1)?)));
        saved.unwrap_or(Ok((0, 0)))
    }

    /// Whether that transaction saved it under that version.
    async fn is_saved(
        &self,
        change: &Transaction<'_>,
        (version, writer): &(i64, i64),
    ) -> Result<bool, Trouble> {
        lock(change, &self.place).await?;
        let select =
            "SELECT 1 FROM umbel_artifacts WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4
            AND part = $5 AND data IS NOT DISTINCT FROM $6 AND version = $7 AND xmin::text::bigint = $8";
        let [app, user, session, name] = &self.place;
        let values: [&(dyn ToSql + Sync); 8] =
            [app, user, session, name, &self.part, &self.data, version, writer];
        Ok(!query(change, select, &values).await?.is_empty())
    }
}

impl ArtifactStore for Postgres {
    fn save<'a>(&'a self, key: &'a SessionKey, name: &'a str, part: Part) -> Work<'a, Result<u64>> {
        Work::later(async move {
            refuse_nul("name of an artifact", name)?;
            let (place, (part, data)) = (artifact_place(key, name), split_part(part)?);
            let row = &Row { place, part, data };
            let saved = self.write_once(
                move |change, _| Box::pin(row.save(change)),
                move |change, saved, _| Box::pin(row.is_saved(change, saved)),
            );
            let (version, _) = saved.await?;
            Ok(unsigned(version))
        })
    }

    fn load<'a>(
        &'a self,
        key: &'a SessionKey,
        name: &'a str,
        version: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>> {
        let [app, user, session, name] = artifact_place(key, name);
        Work::later(self.read(move |moment, _| {
            Box::pin(async move {
                let select = "SELECT part, data FROM umbel_artifacts
                    WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4
                      AND ($5::bigint IS NULL OR version = $5)
                    ORDER BY version DESC LIMIT 1";
                let rows =
                    query(moment, select, &[&app, &user, &session, &name, &version.map(signed)]).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                Ok(Some(Arc::new(join_part(row.try_get(0)?, row.try_get(1)?)?)))
            })
        }))
    }

    fn names<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Vec<String>>> {
        Work::later(self.read(move |moment, _| {
            Box::pin(async move {
                let select = "SELECT DISTINCT name FROM umbel_artifacts
                    WHERE app = $1 AND user_id = $2 AND session IN ('', $3) ORDER BY name";
                let rows = query(moment, select, &[&key.app(), &key.user(), &key.id()]).await?;
                Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
            })
        }))
    }

    fn versions<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<Vec<u64>>> {
        let [app, user, session, name] = artifact_place(key, name);
        Work::later(self.read(move |moment, _| {
            Box::pin(async move {
                let select = "SELECT version FROM umbel_artifacts
                    WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4 ORDER BY version";
                let rows = query(moment, select, &[&app, &user, &session, &name]).await?;
                Ok(rows
                    .iter()
                    .map(|row| Ok(unsigned(row.try_get(0)?)))
                    .collect::<Result<_, tokio_postgres::Error>>()?)
            })
        }))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<()>> {
        let [app, user, session, name] = artifact_place(key, name);
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let delete = "DELETE FROM umbel_artifacts
                    WHERE app = $1 AND user_id = $2 AND session = $3 AND name = $4";
                query(change, delete, &[&app, &user, &session, &name]).await?;
                Ok(())
            })
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let erase = "DELETE FROM umbel_artifacts WHERE app = $1 AND user_id = $2";
                execute(change, erase, &[&app, &user]).await
            })
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let old = "DELETE FROM umbel_artifacts WHERE app = $1 AND saved_at < $2";
                execute(change, old, &[&app, &time]).await
            })
        }))
    }
}
