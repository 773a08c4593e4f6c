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
}

/// How many memories a search gives.
const BEST: usize = 10;

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

fn words(text: &str) -> HashSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

impl MemoryStore for InMemoryMemory {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        let said = session.events.iter().filter_map(|event| {
            let content = event.content.as_ref()?;
            (!content.text().is_empty()).then(|| MemoryEntry {
                content: content.clone(),
                author: event.author().to_owned(),
                session: session.key.id().to_owned(),
                timestamp: event.timestamp,
            })
        });
        let said = said.collect();
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
        let mut found: Vec<(usize, &MemoryEntry)> = sessions
            .into_iter()
            .flat_map(|sessions| sessions.values().flatten())
            .map(|entry| (words(&entry.content.text()).intersection(&wanted).count(), entry))
            .filter(|(hits, _)| *hits > 0)
            .collect();
        found.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.timestamp.total_cmp(&a.1.timestamp)));
        Work::done(Ok(found.into_iter().take(BEST).map(|(_, entry)| entry.clone()).collect()))
    }
}

impl fmt::Debug for InMemoryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemoryMemory")
    }
}
