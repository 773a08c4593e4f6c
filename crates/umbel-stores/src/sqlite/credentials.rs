//! Credentials in SQLite, encrypted.

use rusqlite::{Connection, OptionalExtension, params};
use umbel_core::{Clock, Credential, CredentialStore, Result, SystemClock, Work};

use super::{Sqlite, Trouble};
use crate::seal::{Keys, Owner, Sealed, keys_or_refuse};

impl Sqlite {
    fn keys(&self) -> Result<&Keys> {
        keys_or_refuse(self.inner.keys.as_ref())
    }

    /// Encrypts every credential anew that another key than today's protects. Tells how many there were.
    pub async fn rotate_credentials(&self) -> Result<u64> {
        let today = self.keys()?.current()?.id().to_owned();
        let old = self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT app, user, name, key_id, sealed FROM credentials WHERE key_id <> ?1",
            )?;
            let rows = select.query_map([today], |row| {
                let owner = Owner { app: row.get(0)?, user: row.get(1)?, name: row.get(2)? };
                Ok((owner, Sealed { key_id: row.get(3)?, bytes: row.get(4)? }))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?)
        });
        let mut count = 0;
        for (owner, before) in old.await? {
            let after = self.keys()?.seal(&owner, &self.keys()?.open(&owner, &before)?)?;
            let changed = self.write(move |connection| {
                // Whoever stored another one in the meantime used today's key.
                let mut update = connection.prepare_cached(
                    "UPDATE credentials SET key_id = ?1, sealed = ?2
                     WHERE app = ?3 AND user = ?4 AND name = ?5 AND sealed = ?6",
                )?;
                let Owner { app, user, name } = owner;
                Ok(update.execute(params![after.key_id, after.bytes, app, user, name, before.bytes])?)
            });
            count += changed.await? as u64;
        }
        Ok(count)
    }
}

impl Sqlite {
    /// The credential as it is kept.
    async fn sealed(&self, owner: &Owner) -> Result<Option<Sealed>> {
        let Owner { app, user, name } = owner.clone();
        let found = self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT key_id, sealed FROM credentials WHERE app = ?1 AND user = ?2 AND name = ?3",
            )?;
            let found = select
                .query_row([app, user, name], |row| Ok(Sealed { key_id: row.get(0)?, bytes: row.get(1)? }));
            Ok(found.optional()?)
        });
        found.await
    }

    /// Puts one in the place of the other, if that is still there to the byte.
    async fn swap(&self, owner: &Owner, before: Option<Sealed>, after: Option<Sealed>) -> Result<bool> {
        let Owner { app, user, name } = owner.clone();
        let swapped = self.write(move |connection| {
            let changed = match (before, after) {
                (None, None) => return Ok(true),
                (None, Some(new)) => connection
                    .prepare_cached(
                        "INSERT INTO credentials (app, user, name, key_id, sealed, saved_at)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (app, user, name) DO NOTHING",
                    )?
                    .execute(params![app, user, name, new.key_id, new.bytes, SystemClock.now()])?,
                (Some(old), Some(new)) => connection
                    .prepare_cached(
                        "UPDATE credentials SET key_id = ?4, sealed = ?5, saved_at = ?6
                         WHERE app = ?1 AND user = ?2 AND name = ?3 AND sealed = ?7",
                    )?
                    .execute(params![app, user, name, new.key_id, new.bytes, SystemClock.now(), old.bytes])?,
                (Some(old), None) => connection
                    .prepare_cached(
                        "DELETE FROM credentials WHERE app = ?1 AND user = ?2 AND name = ?3 AND sealed = ?4",
                    )?
                    .execute(params![app, user, name, old.bytes])?,
            };
            Ok(changed > 0)
        });
        swapped.await
    }
}

/// Stores a credential, in the place of an older one.
pub(super) fn save(
    connection: &Connection,
    owner: &Owner,
    sealed: &Sealed,
    saved_at: f64,
) -> Result<(), Trouble> {
    let mut save = connection.prepare_cached(
        "INSERT INTO credentials (app, user, name, key_id, sealed, saved_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (app, user, name) DO UPDATE
         SET key_id = excluded.key_id, sealed = excluded.sealed, saved_at = excluded.saved_at",
    )?;
    save.execute(params![owner.app, owner.user, owner.name, sealed.key_id, sealed.bytes, saved_at])?;
    Ok(())
}

impl CredentialStore for Sqlite {
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        credential: Credential,
    ) -> Work<'a, Result<()>> {
        Work::later(async move {
            let owner = Owner::new(app, user, name)?;
            let sealed = self.keys()?.seal(&owner, &credential)?;
            self.write_together(move |connection| save(connection, &owner, &sealed, SystemClock.now())).await
        })
    }

    fn load<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
    ) -> Work<'a, Result<Option<Credential>>> {
        Work::later(async move {
            let owner = Owner::new(app, user, name)?;
            let Some(sealed) = self.sealed(&owner).await? else { return Ok(None) };
            Ok(Some(self.keys()?.open(&owner, &sealed)?))
        })
    }

    fn replace<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        before: Option<&'a Credential>,
        after: Option<Credential>,
    ) -> Work<'a, Result<bool>> {
        Work::later(async move {
            let (owner, keys) = (Owner::new(app, user, name)?, self.keys()?);
            loop {
                let sealed = self.sealed(&owner).await?;
                let there = sealed.as_ref().map(|sealed| keys.open(&owner, sealed)).transpose()?;
                if there.as_ref() != before {
                    return Ok(there == after);
                }
                let new = after.as_ref().map(|after| keys.seal(&owner, after)).transpose()?;
                if self.swap(&owner, sealed, new).await? {
                    return Ok(true);
                }
                // It was replaced or sealed anew in between.
            }
        })
    }

    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>> {
        let owner = [app, user, name].map(str::to_owned);
        Work::later(self.write(move |connection| {
            let mut delete = connection
                .prepare_cached("DELETE FROM credentials WHERE app = ?1 AND user = ?2 AND name = ?3")?;
            delete.execute(owner)?;
            Ok(())
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        Work::later(self.write(move |connection| {
            let mut delete =
                connection.prepare_cached("DELETE FROM credentials WHERE app = ?1 AND user = ?2")?;
            Ok(delete.execute([app, user])? as u64)
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        let app = app.to_owned();
        Work::later(self.write(move |connection| {
            let mut delete =
                connection.prepare_cached("DELETE FROM credentials WHERE app = ?1 AND saved_at < ?2")?;
            Ok(delete.execute(params![app, time])? as u64)
        }))
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::later(self.scrub_files())
    }
}
