//! Files of a session or a user, in versions.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::part::Part;
use crate::session::SessionKey;
use crate::store::refuse_nul;
use crate::work::Work;

/// Keeps artifacts. Versions count from 0; a name that begins with `user:` belongs to the user, not the session. A name
/// with a NUL is refused with `InvalidInput`.
pub trait ArtifactStore: Send + Sync + fmt::Debug {
    /// Stores a new version and returns its number.
    fn save<'a>(&'a self, key: &'a SessionKey, name: &'a str, part: Part) -> Work<'a, Result<u64>>;

    /// A version, the newest if none is named.
    fn load<'a>(
        &'a self,
        key: &'a SessionKey,
        name: &'a str,
        version: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>>;

    /// The names that this session sees, sorted.
    fn names<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Vec<String>>>;

    /// The versions of an artifact.
    fn versions<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<Vec<u64>>>;

    /// Deletes all versions.
    fn delete<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<()>>;

    /// Deletes all artifacts of a user, those of sessions included. Tells how many versions there were.
    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>>;

    /// Deletes every version of an app that was saved before this time, seconds since 1970. Others keep their numbers.
    /// Tells how many there were.
    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>>;

    /// Sees to it that nothing of what was deleted can be found in its files any more, as
    /// [`SessionStore::scrub`](crate::SessionStore::scrub) does.
    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}

/// A shared store is a store, so that several runners can use one.
impl<S: ArtifactStore + ?Sized> ArtifactStore for Arc<S> {
    fn save<'a>(&'a self, key: &'a SessionKey, name: &'a str, part: Part) -> Work<'a, Result<u64>> {
        (**self).save(key, name, part)
    }

    fn load<'a>(
        &'a self,
        key: &'a SessionKey,
        name: &'a str,
        version: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>> {
        (**self).load(key, name, version)
    }

    fn names<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Vec<String>>> {
        (**self).names(key)
    }

    fn versions<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<Vec<u64>>> {
        (**self).versions(key, name)
    }

    fn delete<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<()>> {
        (**self).delete(key, name)
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

/// Keeps artifacts in memory.
#[derive(Default)]
pub struct InMemoryArtifacts {
    files: Mutex<Files>,
}

/// Versions of each artifact, oldest first; none is empty.
type Files = BTreeMap<Place, Vec<Saved>>;

/// A version of an artifact.
struct Saved {
    version: u64,
    time: f64,
    part: Arc<Part>,
}

/// App, user, session (`None` for the user's own), name.
type Place = (String, String, Option<String>, String);

fn place(key: &SessionKey, name: &str) -> Place {
    let session = (!name.starts_with("user:")).then(|| key.id().to_owned());
    (key.app().to_owned(), key.user().to_owned(), session, name.to_owned())
}

impl InMemoryArtifacts {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, read: impl FnOnce(&mut Files) -> T) -> Work<'_, Result<T>> {
        Work::done(Ok(read(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))))
    }

    /// Keeps only some of the versions. Tells how many went.
    fn keep(&self, keeps: impl Fn(&Place, &Saved) -> bool) -> Work<'_, Result<u64>> {
        self.with(|files| {
            let mut gone = 0;
            files.retain(|place, versions| {
                let before = versions.len();
                versions.retain(|saved| keeps(place, saved));
                gone += before - versions.len();
                !versions.is_empty()
            });
            gone as u64
        })
    }
}

impl ArtifactStore for InMemoryArtifacts {
    fn save<'a>(&'a self, key: &'a SessionKey, name: &'a str, part: Part) -> Work<'a, Result<u64>> {
        if let Err(error) = refuse_nul("name of an artifact", name) {
            return Work::done(Err(error));
        }
        self.with(|files| {
            let versions = files.entry(place(key, name)).or_default();
            let version = versions.last().map_or(0, |last| last.version + 1);
            versions.push(Saved { version, time: SystemClock.now(), part: Arc::new(part) });
            version
        })
    }

    fn load<'a>(
        &'a self,
        key: &'a SessionKey,
        name: &'a str,
        version: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>> {
        self.with(|files| {
            let versions = files.get(&place(key, name))?;
            let found = match version {
                None => versions.last(),
                Some(version) => versions.iter().find(|saved| saved.version == version),
            };
            found.map(|saved| saved.part.clone())
        })
    }

    fn names<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Vec<String>>> {
        self.with(|files| {
            let visible = files.keys().filter(|(app, user, session, _)| {
                app == key.app() && user == key.user() && session.as_deref().is_none_or(|id| id == key.id())
            });
            let mut names: Vec<String> = visible.map(|(_, _, _, name)| name.clone()).collect();
            names.sort();
            names
        })
    }

    fn versions<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<Vec<u64>>> {
        self.with(|files| {
            files.get(&place(key, name)).into_iter().flatten().map(|saved| saved.version).collect()
        })
    }

    fn delete<'a>(&'a self, key: &'a SessionKey, name: &'a str) -> Work<'a, Result<()>> {
        self.with(|files| {
            files.remove(&place(key, name));
        })
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.keep(|(of_app, of_user, ..), _| of_app != app || of_user != user)
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        self.keep(|(of_app, ..), saved| of_app != app || saved.time >= time)
    }
}

impl fmt::Debug for InMemoryArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemoryArtifacts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str, id: &str) -> SessionKey {
        SessionKey::new("app", user, id).unwrap()
    }

    #[tokio::test]
    async fn versions_count_and_users_do_not_see_each_other() {
        let store = InMemoryArtifacts::new();
        let (ann, ann2, bob) = (key("ann", "s1"), key("ann", "s2"), key("bob", "s1"));
        assert_eq!(store.save(&ann, "a.txt", "one".into()).await.unwrap(), 0);
        assert_eq!(store.save(&ann, "a.txt", "two".into()).await.unwrap(), 1);
        store.save(&ann, "user:me", "x".into()).await.unwrap();
        let text = |part: Option<Arc<Part>>| part.and_then(|part| part.as_text().map(str::to_owned));
        assert_eq!(text(store.load(&ann, "a.txt", None).await.unwrap()), Some("two".into()));
        assert_eq!(text(store.load(&ann, "a.txt", Some(0)).await.unwrap()), Some("one".into()));
        assert_eq!(store.load(&ann, "a.txt", Some(9)).await.unwrap(), None);
        assert_eq!(store.names(&ann).await.unwrap(), ["a.txt", "user:me"]);
        assert_eq!(store.names(&ann2).await.unwrap(), ["user:me"]);
        assert!(store.names(&bob).await.unwrap().is_empty());
        assert_eq!(store.versions(&ann, "a.txt").await.unwrap(), [0, 1]);
        store.delete(&ann, "a.txt").await.unwrap();
        assert_eq!(store.load(&ann, "a.txt", None).await.unwrap(), None);
    }
}
