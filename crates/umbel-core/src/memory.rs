//! What an app remembers of a user beyond one session.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::content::Content;
use crate::error::Result;
use crate::session::Session;
use crate::work::Work;

/// One memory, with where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryEntry {
    /// What is remembered.
    pub content: Arc<Content>,
    /// Who said it.
    pub author: String,
    /// The session it was said in.
    pub session: String,
    /// When, seconds since 1970.
    pub timestamp: f64,
}

/// Keeps memories, per app and user.
pub trait MemoryStore: Send + Sync + fmt::Debug {
    /// Remembers what was said in a session; adding it again replaces what was there of it.
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>>;

    /// The memories that fit the query best, best first.
    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        query: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>>;

    /// Forgets all that is remembered of a user. Tells how many memories there were.
    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>>;

    /// Forgets what was said in an app before this time, seconds since 1970. Tells how many memories there were.
    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>>;

    /// Sees to it that nothing of what was deleted can be found in its files any more, as
    /// [`SessionStore::scrub`](crate::SessionStore::scrub) does.
    fn scrub(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}

/// A shared store is a store, so that several runners can use one.
impl<S: MemoryStore + ?Sized> MemoryStore for Arc<S> {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        (**self).add(session)
    }

    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        query: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>> {
        (**self).search(app, user, query)
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

/// How many memories a search gives.
pub const BEST: usize = 10;

/// Keeps memories in memory and finds them by the words they share with the query.
#[derive(Default)]
pub struct InMemoryMemory {
    entries: Mutex<BTreeMap<(String, String), BTreeMap<String, Vec<MemoryEntry>>>>,
}

impl InMemoryMemory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The words of a text, small letters, each once: what a search compares.
pub fn words(text: &str) -> HashSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

/// What is to be remembered of a session: every message with text.
pub fn said_in(session: &Session) -> impl Iterator<Item = MemoryEntry> {
    session.events.iter().filter_map(|event| {
        let content = event.content.as_ref()?;
        (!content.text().is_empty()).then(|| MemoryEntry {
            content: content.clone(),
            author: event.author().to_owned(),
            session: session.key.id().to_owned(),
            timestamp: event.timestamp,
        })
    })
}

/// The [`BEST`] of some memories: those that share most words with the query, newer ones first.
pub fn best<'a>(
    entries: impl IntoIterator<Item = &'a MemoryEntry>,
    wanted: &HashSet<String>,
) -> Vec<&'a MemoryEntry> {
    let hits = |entry: &MemoryEntry| words(&entry.content.text()).intersection(wanted).count();
    let mut found: Vec<_> = entries.into_iter().map(|entry| (hits(entry), entry)).collect();
    found.retain(|(hits, _)| *hits > 0);
    found.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.timestamp.total_cmp(&a.1.timestamp)));
    found.into_iter().take(BEST).map(|(_, entry)| entry).collect()
}

impl MemoryStore for InMemoryMemory {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        let said = said_in(session).collect();
        let owner = (session.key.app().to_owned(), session.key.user().to_owned());
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.entry(owner).or_default().insert(session.key.id().to_owned(), said);
        Work::done(Ok(()))
    }

    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        query: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>> {
        let wanted = words(query);
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = entries.get(&(app.to_owned(), user.to_owned()));
        let entries = sessions.into_iter().flat_map(|sessions| sessions.values().flatten());
        Work::done(Ok(best(entries, &wanted).into_iter().cloned().collect()))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let sessions = entries.remove(&(app.to_owned(), user.to_owned())).unwrap_or_default();
        Work::done(Ok(sessions.values().map(|said| said.len() as u64).sum()))
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = 0;
        for (_, sessions) in entries.iter_mut().filter(|((of_app, _), _)| of_app == app) {
            sessions.retain(|_, said| {
                let before = said.len();
                said.retain(|entry| entry.timestamp >= time);
                gone += before - said.len();
                !said.is_empty()
            });
        }
        Work::done(Ok(gone as u64))
    }
}

impl fmt::Debug for InMemoryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemoryMemory")
    }
}
