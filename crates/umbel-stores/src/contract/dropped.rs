//! Work whose future is dropped after its first poll, its second, and so on: it happened as a whole or not at all, and the store
//! goes on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use serde_json::json;
use umbel_core::store::{Entries, IdleFilter};
use umbel_core::{Credential, Error, ErrorKind, EventFilter, NewSession, Part, SessionKey, Versions};

use super::memory::{found, session};
use super::{
    Artifacts, Credentials, LONG, Memory, Sessions, acquire, entries, finished, fresh_app, key, lease,
    new_session, object, read, said, sets, texts,
};

/// More polls than any work needs.
const MOST_POLLS: u32 = 200;

/// Polls work so many times, each when it is woken, and drops it. Whether it was done.
async fn is_done_after<T>(polls: u32, work: impl Future<Output = T>) -> bool {
    let (mut work, mut left) = (pin!(work), polls);
    poll_fn(|cx| {
        left -= 1;
        match work.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Tries a case with 1, 2, … polls, until its work is done after as many.
async fn at_each_poll(mut case: impl AsyncFnMut(u32) -> bool) {
    for polls in 1..=MOST_POLLS {
        if case(polls).await {
            return;
        }
    }
    panic!("not done after {MOST_POLLS} polls");
}

fn three() -> Entries {
    entries([said("1"), sets(json!({"k": 1, "user:u": 1})), said("2")])
}

/// What was written before, or again: it is there once, whichever of the two did it.
async fn assert_written_once(store: &Sessions, key: &SessionKey, again: Option<Error>, late: ErrorKind) {
    if let Some(error) = again {
        assert_eq!(error.kind(), late, "{error}");
    }
    assert_eq!(texts(store, key).await, ["1", "state", "2"]);
    let session = read(store, key).await;
    assert_eq!(session.versions.session, 3);
    assert_eq!(session.state.to_object(), object(json!({"k": 1, "user:u": 1})));
}

pub async fn a_dropped_append_is_whole_or_nothing(store: &Sessions) {
    at_each_poll(async |polls| {
        let key = new_session(store).await.key;
        let taken = lease(store, &key, LONG).await.unwrap();
        let write = || store.append(&taken.lease, taken.versions, three());
        let is_done = is_done_after(polls, write()).await;
        assert_written_once(store, &key, write().await.err(), ErrorKind::StaleSession).await;
        let versions = read(store, &key).await.versions;
        store.release(&taken.lease, versions, entries([finished()])).await.unwrap();
        is_done
    })
    .await;
}

pub async fn a_dropped_release_is_whole_or_nothing(store: &Sessions) {
    at_each_poll(async |polls| {
        let key = new_session(store).await.key;
        let taken = lease(store, &key, LONG).await.unwrap();
        let write = || store.release(&taken.lease, taken.versions, three());
        let is_done = is_done_after(polls, write()).await;
        assert_written_once(store, &key, write().await.err(), ErrorKind::Fenced).await;
        lease(store, &key, LONG).await.unwrap();
        is_done
    })
    .await;
}

pub async fn a_dropped_commit_is_whole_or_nothing(store: &Sessions) {
    at_each_poll(async |polls| {
        let session = new_session(store).await;
        let write = || store.commit(&session.key, Some(session.versions), three());
        let is_done = is_done_after(polls, write()).await;
        assert_written_once(store, &session.key, write().await.err(), ErrorKind::StaleSession).await;
        is_done
    })
    .await;
}

pub async fn a_dropped_acquire_is_whole_or_nothing(store: &Sessions) {
    at_each_poll(async |polls| {
        let session = new_session(store).await;
        let write = || acquire(store, &session.key, LONG, session.versions, three());
        let is_done = is_done_after(polls, write()).await;
        assert_written_once(store, &session.key, write().await.err(), ErrorKind::SessionBusy).await;
        is_done
    })
    .await;
}

pub async fn a_dropped_heartbeat_leaves_the_lease_as_it_was(store: &Sessions) {
    at_each_poll(async |polls| {
        let key = new_session(store).await.key;
        let taken = lease(store, &key, LONG).await.unwrap();
        let is_done = is_done_after(polls, store.heartbeat(&taken.lease, LONG)).await;
        store.heartbeat(&taken.lease, LONG).await.unwrap();
        store.release(&taken.lease, taken.versions, entries([finished()])).await.unwrap();
        is_done
    })
    .await;
}

pub async fn a_session_whose_making_is_dropped_is_there_or_not(store: &Sessions) {
    at_each_poll(async |polls| {
        let key = key(&fresh_app(), "ann", "s1");
        let state = object(json!({"k": 1, "user:u": 2, "app:a": 3}));
        let make = || store.create(NewSession::new(key.clone()).state(state.clone()));
        let is_done = is_done_after(polls, make()).await;
        if let Err(error) = make().await {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
        assert_eq!(read(store, &key).await.state.to_object(), state);
        is_done
    })
    .await;
}

pub async fn a_dropped_deletion_is_whole_or_nothing(store: &Sessions) {
    at_each_poll(async |polls| {
        let mut are_done = Vec::new();
        for unchanged in [false, true] {
            let parent = new_session(store).await.key;
            let child = key(parent.app(), parent.user(), "s1/child");
            let new = NewSession { parent: Some(parent.clone()), ..NewSession::new(child.clone()) };
            store.create(new).await.unwrap();
            let versions = store.commit(&parent, None, three()).await.unwrap();
            let work = match unchanged {
                true => store.delete_unchanged(&parent, versions),
                false => store.delete(&parent),
            };
            are_done.push(is_done_after(polls, work).await);
            let left = |key: SessionKey| async move {
                store.get(&key, EventFilter::default()).await.unwrap().map(|session| session.events.len())
            };
            let (above, below) = (left(parent.clone()).await, left(child.clone()).await);
            // It may happen between the two looks.
            assert!(above == Some(3) || (above, below) == (None, None), "{above:?} {below:?}");
            store.delete(&parent).await.unwrap();
            assert_eq!((left(parent).await, left(child).await), (None, None));
        }
        are_done.iter().all(|is_done| *is_done)
    })
    .await;
}

pub async fn a_user_whose_erasing_is_dropped_is_erased_whole_or_not(store: &Sessions) {
    at_each_poll(async |polls| {
        let first = new_session(store).await.key;
        store.create(NewSession::new(key(first.app(), "ann", "s2"))).await.unwrap();
        store.commit(&first, None, three()).await.unwrap();
        let is_done = is_done_after(polls, store.erase_user(first.app(), "ann")).await;
        let left = store.erase_user(first.app(), "ann").await.unwrap();
        assert!(left == 0 || left == 2, "{left} of two sessions were left");
        assert!(store.list(first.app(), "ann").await.unwrap().is_empty());
        assert!(store.user_state(first.app(), "ann").await.unwrap().is_empty());
        is_done
    })
    .await;
}

pub async fn a_dropped_reading_does_no_harm(store: &Sessions) {
    at_each_poll(async |polls| {
        let key = new_session(store).await.key;
        store.commit(&key, None, three()).await.unwrap();
        let (app, user) = (key.app(), key.user());
        let are_done = [
            is_done_after(polls, store.get(&key, EventFilter::default())).await,
            is_done_after(polls, store.news(&key, Versions::default())).await,
            is_done_after(polls, store.list(app, user)).await,
            is_done_after(polls, store.user_state(app, user)).await,
            is_done_after(polls, store.abandoned(app)).await,
            is_done_after(polls, store.open_questions(app, None)).await,
            is_done_after(polls, store.idle(app, IdleFilter::before(f64::MAX))).await,
        ];
        assert_written_once(store, &key, None, ErrorKind::Other).await;
        are_done.iter().all(|is_done| *is_done)
    })
    .await;
}

pub async fn a_dropped_save_of_an_artifact_is_whole_or_nothing(store: &Artifacts) {
    at_each_poll(async |polls| {
        let key = key(&fresh_app(), "ann", "s1");
        let part = || Part::text("x".repeat(50_000));
        let is_done = is_done_after(polls, store.save(&key, "a.txt", part())).await;
        store.save(&key, "a.txt", part()).await.unwrap();
        let versions = store.versions(&key, "a.txt").await.unwrap();
        assert!(versions == [0] || versions == [0, 1], "{versions:?}");
        for version in versions {
            assert_eq!(store.load(&key, "a.txt", Some(version)).await.unwrap().as_deref(), Some(&part()));
        }
        let is_deleted = is_done_after(polls, store.delete(&key, "a.txt")).await;
        store.delete(&key, "a.txt").await.unwrap();
        is_done && is_deleted
    })
    .await;
}

pub async fn a_session_whose_adding_is_dropped_is_remembered_whole_or_not(store: &Memory) {
    at_each_poll(async |polls| {
        let key = key(&fresh_app(), "ann", "s1");
        let (old, new) = (session(&key, &["old tea", "old dog"]), session(&key, &["new tea", "new dog"]));
        store.add(&old).await.unwrap();
        let is_done = is_done_after(polls, store.add(&new)).await;
        let mut known = found(store, key.app(), "ann", "tea dog").await;
        known.sort();
        assert!(known == ["new dog", "new tea"] || known == ["old dog", "old tea"], "{known:?}");
        store.add(&new).await.unwrap();
        assert_eq!(found(store, key.app(), "ann", "tea dog").await.len(), 2);
        is_done
    })
    .await;
}

pub async fn a_dropped_change_of_a_credential_is_whole_or_nothing(store: &Credentials) {
    at_each_poll(async |polls| {
        let app = fresh_app();
        let (old, new) = (Credential::new("old"), Credential::new(json!({"token": "new"})));
        store.save(&app, "ann", "mail", old.clone()).await.unwrap();
        let replace = || store.replace(&app, "ann", "mail", Some(&old), Some(new.clone()));
        let is_replaced = is_done_after(polls, replace()).await;
        assert!(replace().await.unwrap());
        assert_eq!(store.load(&app, "ann", "mail").await.unwrap().as_ref(), Some(&new));
        let is_saved = is_done_after(polls, store.save(&app, "ann", "mail", old.clone())).await;
        let kept = store.load(&app, "ann", "mail").await.unwrap().unwrap();
        assert!(kept == old || kept == new, "{:?}", kept.expose());
        let is_deleted = is_done_after(polls, store.delete(&app, "ann", "mail")).await;
        store.delete(&app, "ann", "mail").await.unwrap();
        is_replaced && is_saved && is_deleted
    })
    .await;
}
