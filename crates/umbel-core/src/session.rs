//! A session: one conversation of one user with one app.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use smallvec::smallvec;
use smol_str::SmolStr;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::list::List;
use crate::log::LogEntry;
use crate::state::State;
use crate::store::{SessionStore, Versions};

/// The address of a session. Nothing is ever addressed by less.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey(Arc<Inner>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Inner {
    /// Hashed once: a session is looked up several times in each turn.
    hash: u64,
    app: SmolStr,
    user: SmolStr,
    id: SmolStr,
}

/// A map from sessions to something. Keys bring their hash along, which is keyed by a secret of this process.
pub type SessionMap<T> = HashMap<SessionKey, T, BuildHasherDefault<KeyHasher>>;

/// Takes the hash that a [`SessionKey`] brings along.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Hash for SessionKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0.hash);
    }
}

impl SessionKey {
    /// A key of three parts, none empty, none with a NUL. White space around the id is dropped.
    pub fn new(app: impl AsRef<str>, user: impl AsRef<str>, id: impl AsRef<str>) -> Result<Self> {
        let part = |name: &str, text: &str| {
            if text.is_empty() {
                let message = format!("the {name} of a session key is empty: give one");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            if text.contains('\0') {
                let message = format!("the {name} of a session key has a NUL character: leave it out");
                return Err(Error::new(ErrorKind::InvalidInput, message));
            }
            Ok(SmolStr::new(text))
        };
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let app = part("app", app.as_ref())?;
        let user = part("user", user.as_ref())?;
        let id = part("id", id.as_ref().trim())?;
        let hash = SECRET.hash_one((&app, &user, &id));
        Ok(Self(Arc::new(Inner { hash, app, user, id })))
    }

    /// The app.
    pub fn app(&self) -> &str {
        &self.0.app
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.0.user
    }

    /// The session's own id, unique for app and user.
    pub fn id(&self) -> &str {
        &self.0.id
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.app(), self.user(), self.id())
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionKey({self})")
    }
}

/// A session as it was when it was read. It does not follow what others write.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its address.
    pub key: SessionKey,
    /// Its state, with the keys of its user and app.
    pub state: State,
    /// Its events.
    pub events: List<Arc<Event>>,
    /// When it last changed, seconds since 1970.
    pub updated_at: f64,
    /// What the reading was based on.
    pub versions: Versions,
}

impl Session {
    /// Appends one event by hand, without a run, and brings this reading up to date.
    ///
    /// A partial event changes nothing. If the session has moved on since it was read, that is
    /// [`ErrorKind::StaleSession`] and nothing is written.
    pub async fn append(&mut self, store: &dyn SessionStore, event: Event) -> Result<Arc<Event>> {
        if event.is_partial() {
            return Ok(Arc::new(event));
        }
        let mut state = self.state.clone();
        if let Some(delta) = event.state_delta() {
            state.apply(delta);
        }
        let event = Arc::new(without_temp(event));
        let entries = smallvec![LogEntry::Event(event.clone())];
        self.versions = store.commit(&self.key, Some(self.versions), entries).await?;
        self.state = state;
        self.updated_at = event.timestamp;
        self.events.push(event.clone());
        Ok(event)
    }
}

/// The event without the `temp:` keys of its delta: those live in the run only.
pub fn without_temp(mut event: Event) -> Event {
    let delta = event.actions.as_mut().and_then(|actions| actions.state_delta.as_mut());
    if let Some(delta) = delta.filter(|delta| delta.keys().any(|key| key.starts_with("temp:"))) {
        delta.retain(|key, _| !key.starts_with("temp:"));
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_an_empty_part_or_a_nul_is_refused_with_a_hint() {
        for (app, user, id, word) in [("", "u", "s", "app"), ("a", "", "s", "user"), ("a", "u", "  ", "id")] {
            let error = SessionKey::new(app, user, id).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains(word), "{error}");
        }
        assert!(SessionKey::new("a", "u", "x\0y").is_err());
        assert_eq!(SessionKey::new("a", "u", " s1\n").unwrap().id(), "s1");
    }
}
