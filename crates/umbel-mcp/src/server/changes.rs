//! Who watches what is offered, and how they hear that it changed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{Peer, SubscriptionSink};
use tokio::time::timeout;
use umbel_core::Caller;

use super::McpLimits;

/// How many things one client may watch.
const WATCHED: usize = 100;
/// How long a client may take to hear that something changed.
const HEARS: Duration = Duration::from_secs(5);

/// Tells clients that something they watch has changed. Clones tell the same clients, and so do those of a server that took
/// the place of another.
#[derive(Clone, Default)]
pub struct Changes(Arc<Mutex<Arc<Watchers>>>);

/// The clients that watch.
type Watchers = Mutex<Vec<Watcher>>;

/// A client that watches, as long as it is there.
struct Watcher {
    watched: Weak<Watched>,
    ear: Ear,
}

/// How a client hears of changes.
#[derive(Clone)]
enum Ear {
    /// Over its session: of everything, and of what it watches.
    Session(Peer<RoleServer>),
    /// Over a stream that it asked for, of what it asked for; and whose it is.
    Stream(SubscriptionSink, Caller),
}

impl Watcher {
    fn is_there(&self) -> bool {
        let is_open = match &self.ear {
            Ear::Session(peer) => !peer.is_transport_closed(),
            Ear::Stream(..) => true,
        };
        self.watched.strong_count() > 0 && is_open
    }
}

/// What has changed.
#[derive(Clone, Copy)]
pub(super) enum News<'a> {
    /// What is at that address.
    Resource(&'a str),
    /// Which tools there are.
    Tools,
    /// Which prompts there are.
    Prompts,
}

impl Ear {
    /// Tells it, if it is asked for here. Who is gone does not care.
    async fn tell(self, news: News<'_>) {
        match (self, news) {
            (Self::Session(peer), News::Resource(uri)) => {
                let _ = peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await;
            }
            (Self::Session(peer), News::Tools) => drop(peer.notify_tool_list_changed().await),
            (Self::Session(peer), News::Prompts) => drop(peer.notify_prompt_list_changed().await),
            (Self::Stream(sink, _), News::Resource(uri)) => drop(sink.notify_resource_updated(uri).await),
            (Self::Stream(sink, _), News::Tools) => drop(sink.notify_tool_list_changed().await),
            (Self::Stream(sink, _), News::Prompts) => drop(sink.notify_prompt_list_changed().await),
        }
    }
}

/// What one client watches.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<BTreeSet<String>>);

impl Watched {
    fn has(&self, uri: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(uri)
    }

    /// Whether there was room for it.
    pub(super) fn add(&self, uri: String) -> bool {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = watched.len() < WATCHED || watched.contains(&uri);
        if has_room {
            watched.insert(uri);
        }
        has_room
    }

    pub(super) fn remove(&self, uri: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uri);
    }
}

impl Changes {
    fn watchers(&self) -> Arc<Watchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the clients of another one from now on.
    pub(super) fn join(&self, other: &Self) {
        let watchers = other.watchers();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = watchers;
    }

    /// Tells all who watch it that what is at an address has changed. They read it again, if they like.
    pub async fn tell(&self, uri: &str) {
        self.tell_news(News::Resource(uri)).await;
    }

    /// Tells all whom it concerns. Nobody waits for a client that does not read.
    pub(super) async fn tell_news(&self, news: News<'_>) {
        let concerns = |watcher: &&Watcher| match news {
            News::Resource(uri) => watcher.watched.upgrade().is_some_and(|watched| watched.has(uri)),
            News::Tools | News::Prompts => watcher.is_there(),
        };
        let ears: Vec<Ear> = {
            let watchers = self.watchers();
            let watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.iter().filter(concerns).map(|watcher| watcher.ear.clone()).collect()
        };
        futures::future::join_all(ears.into_iter().map(|ear| timeout(HEARS, ear.tell(news)))).await;
    }

    /// Takes note of a client with a session.
    pub(super) fn watch(&self, watched: &Arc<Watched>, peer: &Peer<RoleServer>) {
        let watchers = self.watchers();
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(Watcher::is_there);
        if !watchers.iter().any(|watcher| watcher.watched.as_ptr() == Arc::as_ptr(watched)) {
            watchers.push(Watcher { watched: Arc::downgrade(watched), ear: Ear::Session(peer.clone()) });
        }
    }

    /// Takes note of a stream that a client asked for, as long as what this gives is kept. `None` if there are too many.
    pub(super) fn listen(
        &self,
        sink: &SubscriptionSink,
        caller: &Caller,
        limits: &McpLimits,
    ) -> Option<Arc<Watched>> {
        let watchers = self.watchers();
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(Watcher::is_there);
        let callers = || {
            watchers.iter().filter_map(|watcher| match &watcher.ear {
                Ear::Stream(_, caller) => Some(caller),
                Ear::Session(_) => None,
            })
        };
        let own = callers().filter(|other| *other == caller).count();
        if callers().count() >= limits.sessions || own >= limits.sessions_per_user {
            return None;
        }
        let uris = sink.accepted().resource_subscriptions.clone().unwrap_or_default();
        let watched = Arc::new(Watched(Mutex::new(uris.into_iter().collect())));
        let ear = Ear::Stream(sink.clone(), caller.clone());
        watchers.push(Watcher { watched: Arc::downgrade(&watched), ear });
        Some(watched)
    }
}

/// Of what a client wants to hear, that of which it can be told: not which resources there are, and of so many resources.
pub(super) fn heard(wanted: &SubscriptionFilter) -> SubscriptionFilter {
    let mut heard = wanted.clone();
    heard.resources_list_changed = None;
    if let Some(uris) = &mut heard.resource_subscriptions {
        uris.truncate(WATCHED);
    }
    heard
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({})", self.watchers().lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}
