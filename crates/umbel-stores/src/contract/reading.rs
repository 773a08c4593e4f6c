//! Sessions made, read, listed and deleted.

use serde_json::json;
use umbel_core::{ErrorKind, EventFilter, NewSession, SessionKey, StateScope, Versions};

use super::{
    LONG, Sessions, acquire, entries, finished, fresh_app, key, message, new_session, object, read, refused,
    said, sets, texts,
};

pub async fn a_new_session_is_read_back(store: &Sessions) {
    let key = key(&fresh_app(), "ann", "s1");
    let state = object(json!({"k": {"deep": [1, null]}, "user:u": 1, "app:a": 2, "temp:t": 3}));
    let created = store.create(NewSession::new(key.clone()).state(state)).await.unwrap();
    let session = read(store, &key).await;
    for session in [&created, &session] {
        assert_eq!(session.key, key);
        assert_eq!(session.state.get("k"), Some(&json!({"deep": [1, null]})));
        assert_eq!(session.state.get("user:u"), Some(&json!(1)));
        assert_eq!(session.state.get("app:a"), Some(&json!(2)));
        assert_eq!(session.state.get("temp:t"), None, "keys of a run are not stored");
        assert_eq!(session.versions.session, 0);
        assert!(session.events.is_empty());
        assert!(session.updated_at > 1.0e9, "a new session changed now: {}", session.updated_at);
    }
    assert_eq!(created.versions, session.versions);
}

pub async fn a_second_session_of_that_key_is_refused(store: &Sessions) {
    let first = new_session(store).await;
    store.commit(&first.key, None, entries([said("kept")])).await.unwrap();
    let again = NewSession::new(first.key.clone()).state(object(json!({"user:u": 1, "k": 1})));
    refused(store.create(again).await, ErrorKind::AlreadyExists);
    let session = read(store, &first.key).await;
    assert_eq!(session.events.len(), 1);
    assert_eq!(session.state.get("k"), None);
    assert_eq!(session.state.get("user:u"), None, "a refused creation sets nothing of its user either");
}

pub async fn a_missing_session_is_none(store: &Sessions) {
    let app = fresh_app();
    let missing = key(&app, "ann", "nowhere");
    assert!(store.get(&missing, EventFilter::default()).await.unwrap().is_none());
    assert!(store.news(&missing, Versions::default()).await.unwrap().is_none());
    assert!(store.list(&app, "ann").await.unwrap().is_empty());
    assert!(store.user_state(&app, "ann").await.unwrap().is_empty());
    assert!(store.abandoned(&app).await.unwrap().is_empty());
    store.delete(&missing).await.unwrap();
    refused(store.commit(&missing, None, entries([said("x")])).await, ErrorKind::SessionNotFound);
    refused(super::lease(store, &missing, super::LONG).await, ErrorKind::SessionNotFound);
}

pub async fn a_list_has_the_sessions_of_a_user_by_last_change(store: &Sessions) {
    let app = fresh_app();
    for id in ["s1", "s2", "s3"] {
        let state = object(json!({"id": id, "user:u": id}));
        let session = store.create(NewSession::new(key(&app, "ann", id)).state(state)).await.unwrap();
        let at = match id {
            "s1" => 3_000_000_000.0,
            "s2" => 1_000_000_000.5,
            _ => 2_000_000_000.0,
        };
        let event = entries([std::sync::Arc::new(message("hi", at)).into()]);
        store.commit(&session.key, None, event).await.unwrap();
    }
    store.create(NewSession::new(key(&app, "bob", "s1"))).await.unwrap();
    let listed = store.list(&app, "ann").await.unwrap();
    let ids: Vec<&str> = listed.iter().map(|session| session.key.id()).collect();
    assert_eq!(ids, ["s2", "s3", "s1"], "least recently changed first");
    for session in &listed {
        assert!(session.events.is_empty(), "a list has no events");
        assert_eq!(session.state.get("id"), Some(&json!(session.key.id())));
        assert_eq!(session.state.get("user:u"), Some(&json!("s3")));
        assert_eq!(session.versions.session, 1);
    }
    assert!((listed[0].updated_at - 1_000_000_000.5).abs() < 0.001);
}

pub async fn a_deleted_session_is_gone(store: &Sessions) {
    let session = new_session(store).await;
    let other = key(session.key.app(), "ann", "s2");
    store.create(NewSession::new(other.clone())).await.unwrap();
    store.commit(&session.key, None, entries([sets(json!({"user:u": 1}))])).await.unwrap();
    store.delete(&session.key).await.unwrap();
    store.delete(&session.key).await.unwrap();
    assert!(store.get(&session.key, EventFilter::default()).await.unwrap().is_none());
    assert!(store.news(&session.key, session.versions).await.unwrap().is_none());
    assert_eq!(read(store, &other).await.state.get("user:u"), Some(&json!(1)), "the user's state stays");
    assert_eq!(store.list(session.key.app(), "ann").await.unwrap().len(), 1);
}

pub async fn a_session_made_anew_is_another_one(store: &Sessions) {
    let old = new_session(store).await;
    let versions = store.commit(&old.key, None, entries([said("old"), sets(json!({"k": 1}))])).await.unwrap();
    store.delete(&old.key).await.unwrap();
    let new = store.create(NewSession::new(old.key.clone())).await.unwrap();
    assert_ne!(new.versions.incarnation, versions.incarnation);
    assert_eq!(read(store, &new.key).await.state.get("k"), None);
    // As long as the old one was, so that only the incarnation tells them apart.
    store.commit(&new.key, None, entries([said("new 1"), said("new 2")])).await.unwrap();
    refused(store.commit(&new.key, Some(versions), entries([said("x")])).await, ErrorKind::StaleSession);
    let news = store.news(&new.key, versions).await.unwrap().unwrap();
    assert!(news.whole);
    assert_eq!(news.entries.len(), 2);
    assert_eq!(texts(store, &new.key).await, ["new 1", "new 2"]);
}

pub async fn recent_and_after_choose_events(store: &Sessions) {
    let session = new_session(store).await;
    for n in 1..=5 {
        let event = std::sync::Arc::new(message(&n.to_string(), 100.0 + f64::from(n) / 4.0));
        store.commit(&session.key, None, entries([event.into(), finished()])).await.unwrap();
    }
    store.commit(&session.key, None, entries([sets(json!({"k": "v"}))])).await.unwrap();
    let chosen = async |recent, after| {
        let filter = EventFilter { recent, after, first: None };
        let session = store.get(&session.key, filter).await.unwrap().unwrap();
        assert_eq!(session.state.get("k"), Some(&json!("v")), "state is whole whatever is chosen");
        assert_eq!(session.versions.session, 11);
        session.events.iter().map(|event| event.text()).collect::<Vec<_>>()
    };
    assert_eq!(chosen(None, None).await, ["1", "2", "3", "4", "5", "state"]);
    assert!(chosen(Some(0), None).await.is_empty());
    assert_eq!(chosen(Some(3), None).await, ["4", "5", "state"]);
    assert_eq!(chosen(Some(100), None).await.len(), 6);
    assert_eq!(chosen(None, Some(100.75)).await, ["3", "4", "5"], "the time itself is in");
    assert_eq!(chosen(Some(2), Some(100.0)).await, ["4", "5"]);
    assert!(chosen(None, Some(1.0e10)).await.is_empty());
    assert_eq!(chosen(None, Some(-1.0)).await.len(), 6);
}

pub async fn the_first_events_can_be_read_alone(store: &Sessions) {
    let session = new_session(store).await;
    for n in 1..=5 {
        let event = std::sync::Arc::new(message(&n.to_string(), 100.0 + f64::from(n) / 4.0));
        store.commit(&session.key, None, entries([finished(), event.into()])).await.unwrap();
    }
    store.commit(&session.key, None, entries([sets(json!({"k": "v"}))])).await.unwrap();
    let chosen = async |first, recent, after| {
        let session = store.get(&session.key, EventFilter { recent, after, first: Some(first) }).await;
        let session = session.unwrap().unwrap();
        assert_eq!(session.state.get("k"), Some(&json!("v")), "state is whole whatever is chosen");
        session.events.iter().map(|event| event.text()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(chosen(2, None, None).await, "1 2");
    assert_eq!(chosen(0, None, None).await, "");
    assert_eq!(chosen(100, None, None).await, "1 2 3 4 5 state");
    assert_eq!(chosen(2, None, Some(100.75)).await, "3 4", "the first of those that are late enough");
    assert_eq!(chosen(3, Some(1), None).await, "1 2 3", "`recent` does not count then");
}

pub async fn state_goes_where_its_prefix_says(store: &Sessions) {
    let first = new_session(store).await;
    let app = first.key.app();
    let delta = json!({"s": 1, "user:u": {"a": 1}, "app:a": [1], "sys:x": "unknown prefixes are the session's",
                       "user:": "no name", "user:app:x": 1});
    store.commit(&first.key, None, entries([sets(delta)])).await.unwrap();
    store.commit(&first.key, None, entries([sets(json!({"user:u": null, "s": {"new": 2}}))])).await.unwrap();
    let same_user = store.create(NewSession::new(key(app, "ann", "s2"))).await.unwrap();
    let other_user = store.create(NewSession::new(key(app, "bob", "s1"))).await.unwrap();
    let other_app = store.create(NewSession::new(key(&fresh_app(), "ann", "s1"))).await.unwrap();
    let first = read(store, &first.key).await;
    assert_eq!(first.state.get("s"), Some(&json!({"new": 2})), "a value replaces");
    assert_eq!(first.state.get("sys:x"), Some(&json!("unknown prefixes are the session's")));
    assert_eq!(same_user.state.get("user:u"), Some(&json!(null)), "null is a value");
    assert_eq!(same_user.state.get("user:"), Some(&json!("no name")));
    assert_eq!(same_user.state.get("user:app:x"), Some(&json!(1)));
    assert_eq!(same_user.state.get("app:a"), Some(&json!([1])));
    assert_eq!(same_user.state.get("s"), None);
    assert_eq!(other_user.state.get("app:a"), Some(&json!([1])));
    assert_eq!(other_user.state.get("user:u"), None);
    assert_eq!(other_app.state.get("app:a"), None);
    assert_eq!(other_app.state.get("user:u"), None);
    let keys = store.user_state(app, "ann").await.unwrap();
    assert_eq!(keys.keys().collect::<Vec<_>>(), ["u", "", "app:x"], "in the order they were first set");
}

pub async fn a_child_is_hidden_and_goes_with_its_parent(store: &Sessions) {
    let parent = new_session(store).await.key;
    let child = key(parent.app(), "ann", "child");
    let grandchild = key(parent.app(), "ann", "grandchild");
    store.create(NewSession::new(child.clone()).parent(parent.clone())).await.unwrap();
    store.create(NewSession::new(grandchild.clone()).parent(child.clone())).await.unwrap();
    store.commit(&grandchild, None, entries([said("deep")])).await.unwrap();
    let listed = store.list(parent.app(), "ann").await.unwrap();
    assert_eq!(listed.iter().map(|session| session.key.id()).collect::<Vec<_>>(), ["s1"]);
    assert_eq!(texts(store, &grandchild).await, ["deep"]);
    store.delete(&parent).await.unwrap();
    for gone in [&child, &grandchild] {
        assert!(store.get(gone, EventFilter::default()).await.unwrap().is_none(), "{gone} is still there");
    }
}

pub async fn a_child_needs_its_parent(store: &Sessions) {
    let app = fresh_app();
    let child = NewSession::new(key(&app, "ann", "child")).parent(key(&app, "ann", "nobody"));
    refused(store.create(child).await, ErrorKind::SessionNotFound);
    assert!(store.get(&key(&app, "ann", "child"), EventFilter::default()).await.unwrap().is_none());
}

pub async fn a_child_made_anew_is_nobodys_child(store: &Sessions) {
    let parent = new_session(store).await.key;
    let child = key(parent.app(), "ann", "child");
    store.create(NewSession::new(child.clone()).parent(parent.clone())).await.unwrap();
    store.delete(&child).await.unwrap();
    store.create(NewSession::new(child.clone())).await.unwrap();
    assert_eq!(store.list(parent.app(), "ann").await.unwrap().len(), 2);
    store.delete(&parent).await.unwrap();
    read(store, &child).await;
}

pub async fn news_are_what_is_newer(store: &Sessions) {
    let app = fresh_app();
    let state = object(json!({"k": 0, "user:u": 0}));
    let session = store.create(NewSession::new(key(&app, "ann", "s1")).state(state)).await.unwrap();
    let first = store.commit(&session.key, None, entries([said("1"), sets(json!({"k": 1}))])).await.unwrap();
    let second = store.commit(&session.key, None, entries([finished(), said("2")])).await.unwrap();
    let news = async |known| store.news(&session.key, known).await.unwrap().unwrap();

    let all = news(Versions::default()).await;
    assert!(all.whole);
    assert_eq!(all.versions, second);
    assert_eq!(all.entries.len(), 4);
    assert_eq!(all.session_state.as_deref(), Some(&object(json!({"k": 0}))), "the state it began with");
    assert_eq!(all.user_state.as_deref(), Some(&object(json!({"u": 0}))));
    assert_eq!(all.app_state.as_deref(), Some(&object(json!({}))));

    let newer = news(first).await;
    assert!(!newer.whole);
    assert_eq!(newer.entries, [finished(), said("2")]);
    assert!(newer.session_state.is_none() && newer.user_state.is_none() && newer.app_state.is_none());

    let nothing = news(second).await;
    assert!(!nothing.whole && nothing.entries.is_empty());
    assert_eq!(nothing.versions, second);

    let ahead = news(Versions { session: 99, ..second }).await;
    assert!(ahead.whole, "a reader that knows more than there is knows another session");
    assert_eq!(ahead.entries.len(), 4);
}

pub async fn what_others_share_during_a_run_is_still_news_after_it(store: &Sessions) {
    let session = new_session(store).await;
    let other = key(session.key.app(), "ann", "s2");
    store.create(NewSession::new(other.clone())).await.unwrap();
    let own = || entries([sets(json!({"user:own": 1, "app:own": 1}))]);
    for how in ["append", "commit"] {
        let taken = acquire(store, &session.key, LONG, Versions::default(), own()).await.unwrap();
        let versions = store.append(&taken.lease, taken.versions, own()).await.unwrap();
        let news = store.news(&session.key, versions).await.unwrap().unwrap();
        assert!(news.user_state.is_none() && news.app_state.is_none(), "what one wrote oneself is no news");
        store.commit(&other, None, entries([sets(json!({"user:u": how, "app:a": how}))])).await.unwrap();
        let versions = store.append(&taken.lease, versions, entries([said("1")])).await.unwrap();
        let versions = store.append(&taken.lease, versions, own()).await.unwrap();
        let mut versions = store.release(&taken.lease, versions, entries([said("2")])).await.unwrap();
        if how == "commit" {
            versions = store.commit(&session.key, Some(versions), own()).await.unwrap();
        }
        let news = store.news(&session.key, versions).await.unwrap().unwrap();
        assert!(news.entries.is_empty() && !news.whole);
        assert_eq!(news.user_state.as_deref(), Some(&object(json!({"own": 1, "u": how}))));
        assert_eq!(news.app_state.as_deref(), Some(&object(json!({"own": 1, "a": how}))));
    }
}

pub async fn news_of_shared_state_come_from_other_sessions(store: &Sessions) {
    let session = new_session(store).await;
    let other = key(session.key.app(), "ann", "s2");
    store.create(NewSession::new(other.clone())).await.unwrap();
    let bob: SessionKey = key(session.key.app(), "bob", "s1");
    store.create(NewSession::new(bob.clone())).await.unwrap();
    store.commit(&other, None, entries([sets(json!({"user:u": 1}))])).await.unwrap();
    let news = store.news(&session.key, session.versions).await.unwrap().unwrap();
    assert_eq!(news.user_state.as_deref(), Some(&object(json!({"u": 1}))));
    assert!(news.app_state.is_none() && !news.whole && news.entries.is_empty());
    store.commit(&bob, None, entries([sets(json!({"app:a": 1, "user:u": "bob's"}))])).await.unwrap();
    let later = store.news(&session.key, news.versions).await.unwrap().unwrap();
    assert_eq!(later.app_state.as_deref(), Some(&object(json!({"a": 1}))));
    assert!(later.user_state.is_none());
    let read = read(store, &session.key).await;
    assert_eq!(read.versions, later.versions);
    assert_eq!(**read.state.scope(StateScope::User), object(json!({"u": 1})));
}
