//! A session store in which a process dies before or after a write.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use umbel::store::{
    Abandoned, Acquire, Acquired, Entries, EventFilter, Idle, IdleFilter, Lease, News, OpenQuestion,
    StoredUsage,
};
use umbel::{NewSession, Object, Result, Session, SessionKey, SessionStore, Versions, Work};

use super::files;
use super::killer::{Killer, Kind};

/// Another store, with the killer at each of its writes. Heartbeats are not counted: when they come is chance.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) inner: Arc<dyn SessionStore>,
    pub(super) killer: Arc<Killer>,
    /// Where the sessions are noted that work for others: no list of a store has them.
    pub(super) children: PathBuf,
}

impl Watched {
    /// Does a write, unless this is where the process is to die.
    fn write<'a, T: Send + 'a>(&'a self, session: String, write: Work<'a, Result<T>>) -> Work<'a, Result<T>> {
        Work::later(async move {
            let number = self.killer.begin(&session, Kind::Write);
            let written = write.await;
            self.killer.end(Kind::Write, number);
            written
        })
    }
}

impl SessionStore for Watched {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        let Some(parent) = &new.parent else { return self.inner.create(new) };
        let (parent, id) = (parent.id().to_owned(), new.key.id().to_owned());
        // Noted before it is made: whoever reads this looks whether it is there.
        if let Err(error) = files::append(&self.children, &json!({"parent": parent, "id": id})) {
            let error = umbel::Error::new(umbel::ErrorKind::Store, error.to_string());
            return Work::done(Err(error));
        }
        self.killer.follow(&parent, &id);
        self.write(id, self.inner.create(new))
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        self.inner.get(key, filter)
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        self.inner.list(app, user)
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        self.write(key.id().to_owned(), self.inner.delete(key))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        self.inner.user_state(app, user)
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        self.inner.news(key, known)
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        self.write(acquire.key.id().to_owned(), self.inner.acquire(acquire))
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        self.inner.heartbeat(lease, ttl)
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.write(lease.key.id().to_owned(), self.inner.append(lease, expected, entries))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.write(lease.key.id().to_owned(), self.inner.release(lease, expected, entries))
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        self.write(key.id().to_owned(), self.inner.commit(key, expected, entries))
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        self.inner.abandoned(app)
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        self.write(key.id().to_owned(), self.inner.delete_unchanged(key, expected))
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.inner.erase_user(app, user)
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        self.inner.open_questions(app, user)
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        self.inner.idle(app, filter)
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        self.inner.summary(key)
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        self.inner.usage(app, user)
    }

    fn scrub(&self) -> Work<'_, Result<()>> {
        self.inner.scrub()
    }
}
