//! How often logs are read for a run that is not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use umbel::{
    EventFilter, InMemorySessions, NewSession, Object, Result, Runner, Session, SessionKey, SessionStore,
    Versions, Work,
};
use umbel_core::store::{
    Abandoned, Acquire, Acquired, Entries, Idle, IdleFilter, Lease, News, OpenQuestion, StoredUsage,
};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{serve, talker};
use crate::support::input;

/// A store that counts how often a log is read, and how often it is looked for abandoned and for idle sessions. Of those looks
/// it panics in the ones that it is told to, the first being 0.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) store: InMemorySessions,
    pub(crate) reads: AtomicUsize,
    pub(crate) abandoned: AtomicUsize,
    pub(crate) idle: AtomicUsize,
    pub(crate) panics: Vec<usize>,
}

impl Counting {
    fn look(&self, count: &AtomicUsize) {
        let look = count.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.contains(&look), "this store panics in look {look}");
    }
}

impl SessionStore for Counting {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        self.store.create(new)
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.get(key, filter)
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        self.store.list(app, user)
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        self.store.delete(key)
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        self.store.delete_unchanged(key, expected)
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.store.erase_user(app, user)
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        self.store.user_state(app, user)
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.news(key, known)
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        self.store.acquire(acquire)
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        self.store.heartbeat(lease, ttl)
    }

    fn append<'a>(&'a self, lease: &'a Lease, at: Versions, entries: Entries) -> Work<'a, Result<Versions>> {
        self.store.append(lease, at, entries)
    }

    fn release<'a>(&'a self, lease: &'a Lease, at: Versions, entries: Entries) -> Work<'a, Result<Versions>> {
        self.store.release(lease, at, entries)
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.store.commit(key, expected, entries)
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        self.look(&self.abandoned);
        self.store.abandoned(app)
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        self.store.open_questions(app, user)
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        self.look(&self.idle);
        self.store.idle(app, filter)
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        self.store.summary(key)
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        self.store.usage(app, user)
    }
}

#[tokio::test]
async fn a_run_that_is_not_there_is_looked_for_once_in_each_thread_that_does_not_change() {
    let store = Arc::new(Counting::default());
    let runner = Runner::builder("desk", talker("Hello.")).sessions(store.clone()).build().unwrap();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    let mut place = String::new();
    for thread in ["t1", "t2", "t3"] {
        let frames = host.run(&input(thread, &format!("r-{thread}"), "hello")).await;
        place = frames.last().unwrap().id.clone();
    }
    host.idle().await;
    let before = store.reads.load(Ordering::SeqCst);
    let request = http::Request::builder().uri("/agent/runs/none/events").header("last-event-id", place);
    assert_eq!(host.send(request, "").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(store.reads.load(Ordering::SeqCst) - before, 3);
}
