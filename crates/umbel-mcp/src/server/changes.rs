//! Who watches what there is to read, and how they hear that it changed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rmcp::RoleServer;
use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::Peer;

/// How many things one client may watch.
const WATCHED: usize = 100;

/// Tells clients that something they watch has changed. Clones tell the same clients, and so do those of a server that took
/// the place of another.
#[derive(Clone, Default)]
pub struct Changes(Arc<Mutex<Arc<Watchers>>>);

/// The clients that watch.
type Watchers = Mutex<Vec<Watcher>>;

/// A client that watches, as long as it is there.
struct Watcher {
    watched: Weak<Watched>,
    peer: Peer<RoleServer>,
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
        let watch = |watcher: &Watcher| watcher.watched.upgrade().is_some_and(|watched| watched.has(uri));
        let peers: Vec<Peer<RoleServer>> = {
            let watchers = self.watchers();
            let watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.iter().filter(|watcher| watch(watcher)).map(|watcher| watcher.peer.clone()).collect()
        };
        for peer in peers {
            // Who is gone does not care.
            let _ = peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await;
        }
    }

    /// Takes note of a client.
    pub(super) fn watch(&self, watched: &Arc<Watched>, peer: &Peer<RoleServer>) {
        let watchers = self.watchers();
        let mut watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.watched.strong_count() > 0 && !watcher.peer.is_transport_closed());
        if !watchers.iter().any(|watcher| watcher.watched.as_ptr() == Arc::as_ptr(watched)) {
            watchers.push(Watcher { watched: Arc::downgrade(watched), peer: peer.clone() });
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({})", self.watchers().lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}
