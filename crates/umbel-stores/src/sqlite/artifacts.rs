//! Artifacts in SQLite.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};
use umbel_core::store::refuse_nul;
use umbel_core::{ArtifactStore, Clock, Part, Result, SessionKey, SystemClock, Work};

use super::{Sqlite, signed, unsigned};
use crate::entries::{artifact_place, join_part, split_part};

impl ArtifactStore for Sqlite {
    fn save<'a>(&'a self, key: &'a SessionKey, name: &'a str, part: Part) -> Work<'a, Result<u64>> {
        Work::later(async move {
            refuse_nul("name of an artifact", name)?;
            let (part, data) = split_part(part)?;
            let [app, user, session, name] = artifact_place(key, name).map(str::to_owned);
            let saved = self.write_together(move |connection| {
                let mut insert = connection.prepare_cached(
                    "INSERT INTO artifacts (app, user, session, name, part, data, saved_at, version)
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, coalesce(max(version) + 1, 0) FROM artifacts
                     WHERE app = ?1 AND user = ?2 AND session = ?3 AND name = ?4 RETURNING version",
                )?;
                let values = params![app, user, session, name, part, data, SystemClock.now()];
                Ok(unsigned(insert.query_row(values, |row| row.get(0))?))
            });
            saved.await
        })
    }

    fn load<'a>(
        &'a self,
        key: &'a SessionKey,
        name: &'a str,
        version: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>> {
        let [app, user, session, name] = artifact_place(key, name).map(str::to_owned);
        Work::later(self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT part, data FROM artifacts
                 WHERE app = ?1 AND user = ?2 AND session = ?3 AND name = ?4 AND (?5 IS NULL OR version = ?5)
                 ORDER BY version DESC LIMIT 1",
            )?;
            let version = version.map(signed);
            let found = select.query_row(params![app, user, session, name, version], |row| {
                Ok((row.get::<_, String>(0)?, row.get(1)?))
            });
            let Some((part, data)) = found.optional()? else { return Ok(None) };
            Ok(Some(Arc::new(join_part(&part, data)?)))
        }))
    }

    fn names<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Vec<String>>> {
        let key = key.clone();
        Work::later(self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT DISTINCT name FROM artifacts WHERE app = ?1 AND user = ?2 AND session IN ('', ?3)
                 ORDER BY name",
            )?;
            let names = select.query_map([key.app(), key.user(), key.id()], |row| row.get(0))?;
            Ok(names.collect::<rusqlite::Result<_>>()?)
        }))
    }

    fn versions<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<Vec<u64>>> {
        let place = artifact_place(key, name).map(str::to_owned);
        Work::later(self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT version FROM artifacts WHERE app = ?1 AND user = ?2 AND session = ?3 AND name = ?4
                 ORDER BY version",
            )?;
            let versions = select.query_map(place, |row| Ok(unsigned(row.get(0)?)))?;
            Ok(versions.collect::<rusqlite::Result<_>>()?)
        }))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<()>> {
        let place = artifact_place(key, name).map(str::to_owned);
        Work::later(self.write(move |connection| {
            let mut delete = connection.prepare_cached(
                "DELETE FROM artifacts WHERE app = ?1 AND user = ?2 AND session = ?3 AND name = ?4",
            )?;
            delete.execute(place)?;
            Ok(())
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.write(move |connection| {
            let mut delete =
                connection.prepare_cached("DELETE FROM artifacts WHERE app = ?1 AND user = ?2")?;
            Ok(delete.execute([app, user])? as u64)
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        let app = app.to_owned();
        Work::later(self.write(move |connection| {
            let mut delete =
                connection.prepare_cached("DELETE FROM artifacts WHERE app = ?1 AND saved_at < ?2")?;
            Ok(delete.execute(params![app, time])? as u64)
        }))
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::later(self.scrub_files())
    }
}
