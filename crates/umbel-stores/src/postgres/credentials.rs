//! Credentials in PostgreSQL, encrypted.

use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use umbel_core::{Clock, Credential, CredentialStore, Result, SystemClock, Work};

use super::fault::Trouble;
use super::{Postgres, execute, query};
use crate::seal::{Keys, Owner, Sealed, keys_or_refuse};

impl Postgres {
    fn keys(&self) -> Result<&Keys> {
        keys_or_refuse(self.inner.keys.as_ref())
    }

    /// Encrypts every credential anew that another key than today's protects. Tells how many there were.
    pub async fn rotate_credentials(&self) -> Result<u64> {
        let (keys, today) = (self.keys()?, &self.keys()?.current()?);
        let rotated = self.write(move |change, _| {
            Box::pin(async move {
                let select = "SELECT app, user_id, name, key_id, sealed FROM umbel_credentials
                    WHERE key_id <> $1 FOR UPDATE";
                let old = query(change, select, &[&today.id()]).await?;
                for row in &old {
                    let owner = Owner { app: row.try_get(0)?, user: row.try_get(1)?, name: row.try_get(2)? };
                    let before = Sealed { key_id: row.try_get(3)?, bytes: row.try_get(4)? };
                    let after = keys.seal(&owner, &keys.open(&owner, &before)?)?;
                    let update = "UPDATE umbel_credentials SET key_id = $1, sealed = $2
                        WHERE app = $3 AND user_id = $4 AND name = $5";
                    let Owner { app, user, name } = &owner;
                    query(change, update, &[&after.key_id, &after.bytes, app, user, name]).await?;
                }
                Ok::<_, Trouble>(old.len() as u64)
            })
        });
        rotated.await
    }
}

impl Postgres {
    /// The credential as it is kept.
    async fn sealed(&self, owner: &Owner) -> Result<Option<Sealed>> {
        let Owner { app, user, name } = owner;
        let found = self.read(move |moment, _| {
            Box::pin(async move {
                let select = "SELECT key_id, sealed FROM umbel_credentials
                    WHERE app = $1 AND user_id = $2 AND name = $3";
                let rows = query(moment, select, &[app, user, name]).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                Ok(Some(Sealed { key_id: row.try_get(0)?, bytes: row.try_get(1)? }))
            })
        });
        found.await
    }

    /// Puts one in the place of the other, if that is still there to the byte.
    async fn swap(&self, owner: &Owner, before: Option<&Sealed>, after: Option<&Sealed>) -> Result<bool> {
        let Owner { app, user, name } = owner;
        let swapped = self.write(move |change, _| {
            Box::pin(async move {
                let changed = match (before, after) {
                    (None, None) => return Ok(true),
                    (None, Some(new)) => {
                        let insert =
                            "INSERT INTO umbel_credentials (app, user_id, name, key_id, sealed, saved_at)
                            VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (app, user_id, name) DO NOTHING";
                        let now = SystemClock.now();
                        execute(change, insert, &[app, user, name, &new.key_id, &new.bytes, &now]).await?
                    }
                    (Some(old), Some(new)) => {
                        let update = "UPDATE umbel_credentials SET key_id = $4, sealed = $5, saved_at = $6
                            WHERE app = $1 AND user_id = $2 AND name = $3 AND sealed = $7";
                        let now = SystemClock.now();
                        let values: &[&(dyn ToSql + Sync)] =
                            &[app, user, name, &new.key_id, &new.bytes, &now, &old.bytes];
                        execute(change, update, values).await?
                    }
                    (Some(old), None) => {
                        let delete = "DELETE FROM umbel_credentials
                            WHERE app = $1 AND user_id = $2 AND name = $3 AND sealed = $4";
                        execute(change, delete, &[app, user, name, &old.bytes]).await?
                    }
                };
                Ok(changed > 0)
            })
        });
        swapped.await
    }
}

/// Stores a credential, in the place of an older one.
pub(super) async fn save(
    change: &Transaction<'_>,
    owner: &Owner,
    sealed: &Sealed,
    saved_at: f64,
) -> Result<(), Trouble> {
    let save = "INSERT INTO umbel_credentials (app, user_id, name, key_id, sealed, saved_at)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (app, user_id, name) DO UPDATE
        SET key_id = excluded.key_id, sealed = excluded.sealed, saved_at = excluded.saved_at";
    let (Owner { app, user, name }, Sealed { key_id, bytes }) = (owner, sealed);
    query(change, save, &[app, user, name, key_id, bytes, &saved_at]).await?;
    Ok(())
}

impl CredentialStore for Postgres {
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        credential: Credential,
    ) -> Work<'a, Result<()>> {
        Work::later(async move {
            let owner = &Owner::new(app, user, name)?;
            let sealed = &self.keys()?.seal(owner, &credential)?;
            self.write(move |change, _| Box::pin(save(change, owner, sealed, SystemClock.now()))).await
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
                // A commit whose answer is lost is done again, changes nothing then, and is found by the next look.
                if self.swap(&owner, sealed.as_ref(), new.as_ref()).await? {
                    return Ok(true);
                }
            }
        })
    }

    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let delete = "DELETE FROM umbel_credentials WHERE app = $1 AND user_id = $2 AND name = $3";
                query(change, delete, &[&app, &user, &name]).await?;
                Ok(())
            })
        }))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let erase = "DELETE FROM umbel_credentials WHERE app = $1 AND user_id = $2";
                execute(change, erase, &[&app, &user]).await
            })
        }))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        Work::later(self.write(move |change, _| {
            Box::pin(async move {
                let old = "DELETE FROM umbel_credentials WHERE app = $1 AND saved_at < $2";
                execute(change, old, &[&app, &time]).await
            })
        }))
    }
}
