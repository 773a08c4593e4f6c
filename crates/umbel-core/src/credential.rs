//! Secrets of a user, by name. They reach tools by handle and never an event or a prompt.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::store::refuse_nul;
use crate::work::Work;

/// A secret. Its debug form does not show it.
#[derive(Clone, PartialEq)]
pub struct Credential(Value);

impl Credential {
    /// Wraps a secret.
    pub fn new(secret: impl Into<Value>) -> Self {
        Self(secret.into())
    }

    /// The secret itself: look at it as late as possible.
    pub fn expose(&self) -> &Value {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// Keeps credentials, per app and user. A name with a NUL is refused with `InvalidInput`.
pub trait CredentialStore: Send + Sync + fmt::Debug {
    /// Stores a credential, in the place of an older one.
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        credential: Credential,
    ) -> Work<'a, Result<()>>;

    /// The credential of that name.
    fn load<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str)
    -> Work<'a, Result<Option<Credential>>>;

    /// Stores a credential in the place of another, only if that one is still there: of several who want to do so, in whichever
    /// process, one does. `None` as `before` is that there is none, and as `after` that there shall be none. Tells whether `after`
    /// is there now: it may have been there already.
    fn replace<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        before: Option<&'a Credential>,
        after: Option<Credential>,
    ) -> Work<'a, Result<bool>>;

    /// Forgets it.
    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>>;

    /// Forgets all credentials of a user. Tells how many there were.
    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>>;

    /// Forgets the credentials of an app that were saved before this time, seconds since 1970. Tells how many there were.
    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>>;

    /// Sees to it that nothing of what was deleted can be found in its files any more, as
    /// [`SessionStore::scrub`](crate::SessionStore::scrub) does.
    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}

/// A shared store is a store, so that several runners can use one.
impl<S: CredentialStore + ?Sized> CredentialStore for Arc<S> {
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        credential: Credential,
    ) -> Work<'a, Result<()>> {
        (**self).save(app, user, name, credential)
    }

    fn load<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
    ) -> Work<'a, Result<Option<Credential>>> {
        (**self).load(app, user, name)
    }

    fn replace<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        before: Option<&'a Credential>,
        after: Option<Credential>,
    ) -> Work<'a, Result<bool>> {
        (**self).replace(app, user, name, before, after)
    }

    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>> {
        (**self).delete(app, user, name)
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        (**self).erase_user(app, user)
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        (**self).delete_older_than(app, time)
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        (**self).scrub()
    }
}

/// Keeps credentials in memory.
#[derive(Default)]
pub struct InMemoryCredentials {
    secrets: Mutex<HashMap<[String; 3], Saved>>,
}

/// A credential, and when it was saved.
struct Saved {
    time: f64,
    credential: Credential,
}

impl Saved {
    fn now(credential: Credential) -> Self {
        Self { time: SystemClock.now(), credential }
    }
}

impl InMemoryCredentials {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<[String; 3], Saved>) -> T) -> Work<'_, Result<T>> {
        Work::done(Ok(change(&mut self.secrets.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    /// Keeps only some. Tells how many went.
    fn keep(&self, keeps: impl Fn(&[String; 3], &Saved) -> bool) -> Work<'_, Result<u64>> {
        self.with(|secrets| {
            let before = secrets.len();
            secrets.retain(|place, saved| keeps(place, saved));
            (before - secrets.len()) as u64
        })
    }
}

fn check(app: &str, user: &str, name: &str) -> Result<()> {
    let texts = [("app", app), ("user", user), ("name", name)];
    texts.into_iter().try_for_each(|(what, text)| refuse_nul(&format!("{what} of a credential"), text))
}

fn place(app: &str, user: &str, name: &str) -> [String; 3] {
    [app, user, name].map(str::to_owned)
}

impl CredentialStore for InMemoryCredentials {
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        credential: Credential,
    ) -> Work<'a, Result<()>> {
        if let Err(error) = check(app, user, name) {
            return Work::done(Err(error));
        }
        self.with(|secrets| {
            secrets.insert(place(app, user, name), Saved::now(credential));
        })
    }

    fn load<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
    ) -> Work<'a, Result<Option<Credential>>> {
        self.with(|secrets| secrets.get(&place(app, user, name)).map(|saved| saved.credential.clone()))
    }

    fn replace<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        before: Option<&'a Credential>,
        after: Option<Credential>,
    ) -> Work<'a, Result<bool>> {
        if let Err(error) = check(app, user, name) {
            return Work::done(Err(error));
        }
        self.with(|secrets| {
            let place = place(app, user, name);
            let there = secrets.get(&place).map(|saved| &saved.credential);
            if there != before {
                return there == after.as_ref();
            }
            match after {
                Some(after) => drop(secrets.insert(place, Saved::now(after))),
                None => drop(secrets.remove(&place)),
            }
            true
        })
    }

    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>> {
        self.with(|secrets| {
            secrets.remove(&place(app, user, name));
        })
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.keep(|[of_app, of_user, _], _| of_app != app || of_user != user)
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        self.keep(|[of_app, ..], saved| of_app != app || saved.time >= time)
    }
}

impl fmt::Debug for InMemoryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemoryCredentials")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_credential_is_its_users_alone_and_does_not_show_itself() {
        let store = InMemoryCredentials::new();
        store.save("app", "ann", "mail", Credential::new("s3cret")).await.unwrap();
        let mine = store.load("app", "ann", "mail").await.unwrap().unwrap();
        assert_eq!(mine.expose(), "s3cret");
        assert!(!format!("{mine:?}").contains("s3cret"));
        assert_eq!(store.load("app", "bob", "mail").await.unwrap(), None);
        store.delete("app", "ann", "mail").await.unwrap();
        assert_eq!(store.load("app", "ann", "mail").await.unwrap(), None);
    }
}
