//! One writer at a time.

use std::time::Duration;

use serde_json::json;
use umbel_core::store::{Abandoned, Acquire};
use umbel_core::{ErrorKind, NewSession, Versions};

use super::{
    LONG, Sessions, acquire, claim, entries, finished, fresh_app, key, lease, log, new_session, read,
    refused, said, sets, texts,
};

/// Runs out while a test waits.
pub(super) const SHORT: Duration = Duration::from_millis(80);
/// Longer than [`SHORT`].
pub(super) const WAIT: Duration = Duration::from_millis(200);

pub async fn a_held_session_is_busy(store: &Sessions) {
    let session = new_session(store).await;
    let taken = lease(store, &session.key, LONG).await.unwrap();
    let attempt = acquire(store, &session.key, LONG, Versions::default(), entries([said("lost")])).await;
    refused(attempt, ErrorKind::SessionBusy);
    let other = key(session.key.app(), "ann", "s2");
    store.create(NewSession::new(other.clone())).await.unwrap();
    lease(store, &other, LONG).await.unwrap();
    store.release(&taken.lease, taken.versions, entries([said("kept")])).await.unwrap();
    let again = lease(store, &session.key, LONG).await.unwrap();
    assert!(again.lease.epoch > taken.lease.epoch, "an epoch grows with each owner");
    assert_eq!(texts(store, &session.key).await, ["kept"]);
}

pub async fn a_lease_runs_out(store: &Sessions) {
    let session = new_session(store).await;
    let first = lease(store, &session.key, SHORT).await.unwrap();
    refused(lease(store, &session.key, LONG).await, ErrorKind::SessionBusy);
    tokio::time::sleep(WAIT).await;
    let second = claim(store, &session.key, entries([])).await.unwrap();
    assert!(second.lease.epoch > first.lease.epoch);
}

pub async fn an_old_lease_is_fenced_off(store: &Sessions) {
    let session = new_session(store).await;
    let old = acquire(store, &session.key, SHORT, session.versions, entries([said("1")])).await.unwrap();
    tokio::time::sleep(WAIT).await;
    let new = claim(store, &session.key, entries([])).await.unwrap();
    let writes = || entries([said("lost"), sets(json!({"k": 1, "user:u": 1}))]);
    refused(store.append(&old.lease, old.versions, writes()).await, ErrorKind::Fenced);
    refused(store.release(&old.lease, old.versions, writes()).await, ErrorKind::Fenced);
    refused(store.heartbeat(&old.lease, LONG).await, ErrorKind::Fenced);
    store.append(&new.lease, new.versions, entries([said("2")])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["1", "2"]);
    assert!(read(store, &session.key).await.state.to_object().is_empty());
}

pub async fn a_lease_given_back_is_gone(store: &Sessions) {
    let session = new_session(store).await;
    let taken = lease(store, &session.key, LONG).await.unwrap();
    store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
    refused(store.append(&taken.lease, taken.versions, entries([said("x")])).await, ErrorKind::Fenced);
    refused(store.release(&taken.lease, taken.versions, entries([said("x")])).await, ErrorKind::Fenced);
    refused(store.heartbeat(&taken.lease, LONG).await, ErrorKind::Fenced);
    store.commit(&session.key, None, entries([said("free")])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["free"]);
}

pub async fn a_heartbeat_keeps_the_lease(store: &Sessions) {
    let session = new_session(store).await;
    let taken = lease(store, &session.key, SHORT).await.unwrap();
    store.heartbeat(&taken.lease, LONG).await.unwrap();
    tokio::time::sleep(WAIT).await;
    refused(lease(store, &session.key, LONG).await, ErrorKind::SessionBusy);
    assert!(store.abandoned(session.key.app()).await.unwrap().is_empty());
    store.append(&taken.lease, taken.versions, entries([said("alive")])).await.unwrap();
}

pub async fn a_lease_that_ran_out_writes_until_it_is_taken(store: &Sessions) {
    let session = new_session(store).await;
    let taken = lease(store, &session.key, SHORT).await.unwrap();
    tokio::time::sleep(WAIT).await;
    let versions = store.append(&taken.lease, taken.versions, entries([said("late")])).await.unwrap();
    store.heartbeat(&taken.lease, LONG).await.unwrap();
    refused(lease(store, &session.key, LONG).await, ErrorKind::SessionBusy);
    store.release(&taken.lease, versions, entries([said("end")])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["late", "end"]);
}

pub async fn taking_and_giving_back_write_at_once(store: &Sessions) {
    let session = new_session(store).await;
    store.commit(&session.key, None, entries([said("before"), sets(json!({"user:u": 1}))])).await.unwrap();
    let writes = entries([said("1"), sets(json!({"user:u": 2}))]);
    let taken = acquire(store, &session.key, LONG, session.versions, writes).await.unwrap();
    assert!(!taken.news.whole);
    assert_eq!(
        taken.news.entries,
        [said("before"), sets(json!({"user:u": 1}))],
        "what it appends is no news"
    );
    assert_eq!(taken.news.versions.session, 2);
    assert_eq!(taken.news.user_state.as_deref(), Some(&super::object(json!({"u": 1}))));
    assert_eq!(taken.versions.session, 4);
    assert_ne!(taken.versions.user, taken.news.versions.user);
    let end = store.release(&taken.lease, taken.versions, entries([said("2"), finished()])).await.unwrap();
    let again = acquire(store, &session.key, LONG, end, entries([])).await.unwrap();
    assert!(again.news.entries.is_empty() && again.news.user_state.is_none() && !again.news.whole);
    assert_eq!(log(store, &session.key).await.len(), 6);
}

pub async fn a_lease_of_a_deleted_session_is_worth_nothing(store: &Sessions) {
    let session = new_session(store).await;
    let old = lease(store, &session.key, LONG).await.unwrap();
    store.delete(&session.key).await.unwrap();
    refused(store.append(&old.lease, old.versions, entries([said("x")])).await, ErrorKind::SessionNotFound);
    refused(store.heartbeat(&old.lease, LONG).await, ErrorKind::SessionNotFound);
    let anew = store.create(NewSession::new(session.key.clone())).await.unwrap();
    let new = lease(store, &session.key, LONG).await.unwrap();
    for versions in [old.versions, anew.versions] {
        refused(store.append(&old.lease, versions, entries([said("x")])).await, ErrorKind::Fenced);
        refused(store.release(&old.lease, versions, entries([said("x")])).await, ErrorKind::Fenced);
    }
    refused(store.heartbeat(&old.lease, LONG).await, ErrorKind::Fenced);
    store.release(&new.lease, new.versions, entries([said("mine")])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["mine"]);
}

pub async fn an_abandoned_session_is_found(store: &Sessions) {
    let parent = new_session(store).await.key;
    let app = parent.app();
    let child = key(app, "ann", "child");
    store.create(NewSession::new(child.clone()).parent(parent.clone())).await.unwrap();
    let (done, held) = (key(app, "bob", "done"), key(app, "bob", "held"));
    for key in [&done, &held] {
        store.create(NewSession::new(key.clone())).await.unwrap();
    }
    let finished = lease(store, &done, SHORT).await.unwrap();
    store.release(&finished.lease, finished.versions, entries([])).await.unwrap();
    lease(store, &held, LONG).await.unwrap();
    lease(store, &parent, SHORT).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    lease(store, &child, SHORT).await.unwrap();
    assert!(store.abandoned(app).await.unwrap().is_empty(), "nothing is abandoned while its lease holds");
    tokio::time::sleep(WAIT).await;
    let owner = smol_str::SmolStr::new("tester");
    let expected = [
        Abandoned { key: parent.clone(), parent: None, owner: owner.clone() },
        Abandoned { key: child, parent: Some(parent.clone()), owner },
    ];
    assert_eq!(store.abandoned(app).await.unwrap(), expected);
    assert!(store.abandoned("another app").await.unwrap().is_empty());
    let claimed = claim(store, &parent, entries([])).await.unwrap();
    assert_eq!(store.abandoned(app).await.unwrap().len(), 1, "a claimed one is nobody else's");
    store.release(&claimed.lease, claimed.versions, entries([])).await.unwrap();
    assert_eq!(store.abandoned(app).await.unwrap().len(), 1);
}

pub async fn an_abandoned_session_is_for_those_who_claim_it(store: &Sessions) {
    let session = new_session(store).await;
    let began = entries([said("cut short")]);
    let old = acquire(store, &session.key, SHORT, session.versions, began).await.unwrap();
    tokio::time::sleep(WAIT).await;
    let writes = || entries([said("lost"), sets(json!({"k": 1, "user:u": 1}))]);
    let attempt = acquire(store, &session.key, LONG, old.versions, writes()).await;
    refused(attempt, ErrorKind::SessionAbandoned);
    assert_eq!(store.abandoned(session.key.app()).await.unwrap().len(), 1, "it is still abandoned");
    assert_eq!(texts(store, &session.key).await, ["cut short"]);
    assert!(read(store, &session.key).await.state.to_object().is_empty());
    let late = store.append(&old.lease, old.versions, entries([said("late")])).await.unwrap();
    let claimed = claim(store, &session.key, entries([said("claimed")])).await.unwrap();
    assert_eq!(claimed.versions.session, late.session + 1);
    refused(claim(store, &session.key, entries([])).await, ErrorKind::SessionBusy);
    store.release(&claimed.lease, claimed.versions, entries([finished()])).await.unwrap();
    let next = acquire(store, &session.key, LONG, claimed.versions, entries([said("next")])).await.unwrap();
    store.release(&next.lease, next.versions, entries([])).await.unwrap();
    claim(store, &session.key, entries([])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["cut short", "late", "claimed", "next"]);
}

pub async fn a_session_that_moved_on_is_not_taken(store: &Sessions) {
    let session = new_session(store).await;
    let wanted = |expected, text| {
        let (key, entries) = (session.key.clone(), entries([said(text)]));
        Acquire { entries, expected: Some(expected), ..Acquire::new(key, "tester".into(), LONG) }
    };
    store.commit(&session.key, None, entries([said("first")])).await.unwrap();
    refused(store.acquire(wanted(session.versions, "lost")).await, ErrorKind::StaleSession);
    let versions = read(store, &session.key).await.versions;
    let other = Versions { incarnation: versions.incarnation + 1, ..versions };
    refused(store.acquire(wanted(other, "lost")).await, ErrorKind::StaleSession);
    let taken = store.acquire(wanted(versions, "second")).await.unwrap();
    store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["first", "second"]);
}

pub async fn a_session_is_made_with_its_lease_if_that_is_wanted(store: &Sessions) {
    let key = key(&fresh_app(), "ann", "new");
    let wanted = |creates, text| {
        let entries = entries([said(text)]);
        Acquire { entries, creates, ..Acquire::new(key.clone(), "tester".into(), LONG) }
    };
    refused(store.acquire(wanted(false, "lost")).await, ErrorKind::SessionNotFound);
    let at = Acquire { expected: Some(Versions::default()), ..wanted(true, "lost") };
    refused(store.acquire(at).await, ErrorKind::SessionNotFound);
    let first = store.acquire(wanted(true, "first")).await.unwrap();
    assert!(first.news.whole && first.news.entries.is_empty());
    refused(store.acquire(wanted(true, "lost")).await, ErrorKind::SessionBusy);
    refused(store.create(NewSession::new(key.clone())).await, ErrorKind::AlreadyExists);
    store.release(&first.lease, first.versions, entries([])).await.unwrap();
    let second = store.acquire(wanted(true, "second")).await.unwrap();
    assert_eq!(second.versions.incarnation, first.versions.incarnation, "what is there is not made again");
    refused(store.append(&first.lease, second.versions, entries([said("lost")])).await, ErrorKind::Fenced);
    store.release(&second.lease, second.versions, entries([])).await.unwrap();
    assert_eq!(texts(store, &key).await, ["first", "second"]);
    store.delete(&key).await.unwrap();
    let again = store.acquire(wanted(true, "again")).await.unwrap();
    assert_ne!(again.versions.incarnation, first.versions.incarnation);
    refused(store.append(&second.lease, again.versions, entries([said("lost")])).await, ErrorKind::Fenced);
}

pub async fn one_of_many_gets_the_lease(store: &Sessions) {
    let session = new_session(store).await;
    lease(store, &session.key, SHORT).await.unwrap();
    tokio::time::sleep(WAIT).await;
    let attempts = (0..32).map(|n| {
        let (store, key) = (store.clone(), session.key.clone());
        tokio::spawn(async move {
            let writes = entries([said(&format!("claimed by {n}"))]);
            claim(&store, &key, writes).await
        })
    });
    let results = futures::future::join_all(attempts).await.into_iter().map(Result::unwrap);
    let (won, lost): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    for attempt in lost {
        refused(attempt, ErrorKind::SessionBusy);
    }
    assert_eq!(texts(store, &session.key).await.len(), 1);
}
