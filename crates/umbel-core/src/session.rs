//! A session: one conversation of one user with one app.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::list::List;
use crate::log::LogEntry;
use crate::state::State;
use crate::store::{SessionStore, Versions};

/// The address of a session. Nothing is ever addressed by less.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(Arc<Inner>);

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Inner {
    app: SmolStr,
    user: SmolStr,
    id: SmolStr,
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
        Ok(Self(Arc::new(Inner {
            app: part("app", app.as_ref())?,
            user: part("user", user.as_ref())?,
            id: part("id", id.as_ref().trim())?,
        })))
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
        if let Some(delta) = event.state_delta() {
            self.state.apply(delta);
        }
        let event = Arc::new(without_temp(event));
        let entries = vec![LogEntry::Event(event.clone())];
        self.versions = store.commit(&self.key, Some(self.versions), entries).await?;
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
