//! Names and values that databases have stumbled over, and whose they are.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{ErrorKind, EventFilter, LogEntry, NewSession, Object, Versions};

use super::{
    LONG, Sessions, acquire, entries, fresh_app, key, lease, log, message, new_session, object, odd_names,
    odd_value, read, refused, said, sets, texts,
};

pub async fn odd_names_are_kept_apart(store: &Sessions) {
    let app = fresh_app();
    let names = odd_names();
    for name in &names {
        let session = key(&format!("{app}{name}"), name, name);
        store.create(NewSession::new(session.clone())).await.unwrap();
        store.commit(&session, None, entries([said(name), sets(json!({"user:n": name}))])).await.unwrap();
    }
    for name in &names {
        let app = format!("{app}{name}");
        let session = key(&app, name, name);
        assert_eq!(texts(store, &session).await, [name.as_str(), "state"]);
        let listed = store.list(&app, name).await.unwrap();
        assert_eq!(listed.len(), 1, "{name:?}");
        assert_eq!(listed[0].key, session);
        assert_eq!(*store.user_state(&app, name).await.unwrap(), object(json!({"n": name})));
    }
}

pub async fn apps_and_users_do_not_see_each_other(store: &Sessions) {
    let (a, b) = (fresh_app(), fresh_app());
    // Keys that are the same once their parts are joined.
    let keys =
        [key(&a, "x/y", "z"), key(&a, "x", "y/z"), key(&b, "x", "z"), key(&a, "x", "z"), key(&a, "X", "z")];
    for (n, key) in keys.iter().enumerate() {
        let state = object(json!({"n": n, "user:n": n}));
        store.create(NewSession::new(key.clone()).state(state)).await.unwrap();
        store.commit(key, None, entries([said(&n.to_string())])).await.unwrap();
    }
    store.commit(&keys[2], None, entries([sets(json!({"app:of": "b"}))])).await.unwrap();
    lease(store, &keys[3], LONG).await.unwrap();
    for (n, key) in keys.iter().enumerate() {
        let session = read(store, key).await;
        assert_eq!(session.events.iter().next().unwrap().text(), n.to_string());
        assert_eq!(session.state.get("n"), Some(&json!(n)));
        assert_eq!(session.state.get("app:of").is_some(), n == 2);
        let user = store.user_state(key.app(), key.user()).await.unwrap();
        // The second and the fourth have a user in common, and the fourth came later.
        assert_eq!(user.get("n"), Some(&json!(if n == 1 { 3 } else { n })));
    }
    assert_eq!(store.list(&a, "x").await.unwrap().len(), 2);
    assert_eq!(store.list(&a, "X").await.unwrap().len(), 1);
    store.delete(&keys[3]).await.unwrap();
    for key in [&keys[0], &keys[1], &keys[2], &keys[4]] {
        read(store, key).await;
    }
}

pub async fn odd_state_keys_are_kept(store: &Sessions) {
    let session = new_session(store).await;
    let mut delta = Object::new();
    for name in odd_names() {
        for scope in ["", "user:", "app:"] {
            delta.insert(format!("{scope}{name}"), odd_value());
        }
    }
    store.commit(&session.key, None, entries([sets(Value::Object(delta.clone()))])).await.unwrap();
    let read = read(store, &session.key).await;
    assert_eq!(read.state.to_object(), delta);
    let news = store.news(&session.key, Versions::default()).await.unwrap().unwrap();
    assert_eq!(news.user_state.unwrap().len(), odd_names().len());
}

pub async fn a_nul_in_a_state_key_is_refused(store: &Sessions) {
    let session = new_session(store).await;
    for name in ["a\0b", "user:\0", "app:x\0"] {
        let mut delta = Object::new();
        delta.insert("good".to_owned(), json!(1));
        delta.insert(name.to_owned(), json!(1));
        let writes = || entries([said("lost"), sets(Value::Object(delta.clone()))]);
        refused(store.commit(&session.key, None, writes()).await, ErrorKind::InvalidInput);
        refused(
            acquire(store, &session.key, LONG, session.versions, writes()).await,
            ErrorKind::InvalidInput,
        );
        let taken = lease(store, &session.key, LONG).await.unwrap();
        refused(store.append(&taken.lease, taken.versions, writes()).await, ErrorKind::InvalidInput);
        refused(store.release(&taken.lease, taken.versions, writes()).await, ErrorKind::InvalidInput);
        store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
        let new = NewSession::new(key(session.key.app(), "ann", "s2")).state(delta.clone());
        refused(store.create(new).await, ErrorKind::InvalidInput);
    }
    let read = read(store, &session.key).await;
    assert!(read.events.is_empty() && read.state.to_object().is_empty(), "{read:?}");
    assert_eq!(store.list(session.key.app(), "ann").await.unwrap().len(), 1);
}

pub async fn a_nul_in_a_value_is_kept(store: &Sessions) {
    let session = new_session(store).await;
    let written = [said("a\0b"), sets(json!({"k": "\0", "user:u": ["\0"], "o": {"in\0side": 1}}))];
    store.commit(&session.key, None, entries(written.clone())).await.unwrap();
    assert_eq!(super::log(store, &session.key).await, written);
    let read = read(store, &session.key).await;
    assert_eq!(read.state.get("k"), Some(&json!("\0")));
    assert_eq!(read.state.get("o"), Some(&json!({"in\0side": 1})));
}

pub async fn events_keep_their_order_when_the_clock_goes_back(store: &Sessions) {
    let session = new_session(store).await;
    let times = [1e9, 9e8, 8e8, -5.0, 2e9, 0.0];
    let said = |(n, time): (usize, &f64)| LogEntry::Event(Arc::new(message(&n.to_string(), *time)));
    let all: Vec<LogEntry> = times.iter().enumerate().map(said).collect();
    for entry in &all {
        store.commit(&session.key, None, entries([entry.clone()])).await.unwrap();
    }
    assert_eq!(log(store, &session.key).await, all);
    assert_eq!(texts(store, &session.key).await, ["0", "1", "2", "3", "4", "5"]);
    let filtered = async |filter| {
        let session = store.get(&session.key, filter).await.unwrap().unwrap();
        session.events.iter().map(|event| event.text()).collect::<Vec<_>>()
    };
    assert_eq!(filtered(EventFilter { recent: Some(2), ..EventFilter::default() }).await, ["4", "5"]);
    assert_eq!(filtered(EventFilter { after: Some(9e8), ..EventFilter::default() }).await, ["0", "1", "4"]);
}
