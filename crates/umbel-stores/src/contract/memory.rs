//! The contract of a memory store.

use std::sync::Arc;

use umbel_core::{Content, Event, List, Part, RunId, Session, SessionKey, Source, State, Versions};

use super::{Memory, fresh_app, key, odd_names};

/// A session in which these things were said, one second after the other.
pub(super) fn session(key: &SessionKey, said: &[&str]) -> Session {
    let event = |(n, text): (usize, &&str)| {
        let mut event = Event::new(RunId::from("e-1"), Source::user());
        event.content = Some(Arc::new(Content::user(*text)));
        event.timestamp = 1_000.0 + n as f64;
        Arc::new(event)
    };
    let events: List<Arc<Event>> = said.iter().enumerate().map(event).collect();
    let (state, versions) = (State::default(), Versions::default());
    Session { key: key.clone(), state, events, updated_at: 1_000.0, versions }
}

pub(super) async fn found(store: &Memory, app: &str, user: &str, query: &str) -> Vec<String> {
    let entries = store.search(app, user, query).await.unwrap();
    entries.iter().map(|entry| entry.content.text()).collect()
}

pub async fn the_best_memory_comes_first(store: &Memory) {
    let key = key(&fresh_app(), "ann", "s1");
    let said = ["My dog is called Rex", "I like tea", "The dog, Rex, likes my tea!", "rex"];
    store.add(&session(&key, &said)).await.unwrap();
    let expected = ["The dog, Rex, likes my tea!", "My dog is called Rex", "rex", "I like tea"];
    assert_eq!(found(store, key.app(), "ann", "REX the dog's tea?").await, expected);
    let entries = store.search(key.app(), "ann", "called").await.unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].author, "user");
    assert_eq!(entries[0].session, "s1");
    assert!((entries[0].timestamp - 1_000.0).abs() < 0.001);
    assert_eq!(*entries[0].content, Content::user("My dog is called Rex"));
}

pub async fn adding_a_session_again_replaces_it(store: &Memory) {
    let (first, second) = (key(&fresh_app(), "ann", "s1"), "s2");
    let second = key(first.app(), "ann", second);
    store.add(&session(&first, &["old tea"])).await.unwrap();
    store.add(&session(&second, &["other tea"])).await.unwrap();
    store.add(&session(&first, &["new tea", "more tea"])).await.unwrap();
    let mut texts = found(store, first.app(), "ann", "tea").await;
    texts.sort();
    assert_eq!(texts, ["more tea", "new tea", "other tea"]);
    store.add(&session(&first, &[])).await.unwrap();
    assert_eq!(found(store, first.app(), "ann", "tea").await, ["other tea"]);
}

pub async fn a_session_that_is_added_many_times_at_once_is_remembered_once(store: &Memory) {
    let key = key(&fresh_app(), "ann", "s1");
    store.add(&session(&key, &["old tea", "old dog"])).await.unwrap();
    for _ in 0..5 {
        let adds = (0..8).map(|_| {
            let (store, session) = (Arc::clone(store), session(&key, &["new tea", "new dog"]));
            tokio::spawn(async move { store.add(&session).await.unwrap() })
        });
        for add in adds.collect::<Vec<_>>() {
            add.await.unwrap();
        }
        let mut texts = found(store, key.app(), "ann", "tea dog").await;
        texts.sort();
        assert_eq!(texts, ["new dog", "new tea"]);
    }
}

pub async fn memories_are_their_users_alone(store: &Memory) {
    let (a, b) = (fresh_app(), fresh_app());
    for (app, user) in [(&a, "ann"), (&a, "bob"), (&b, "ann")] {
        store.add(&session(&key(app, user, "s1"), &[&format!("secret of {user} in {app}")])).await.unwrap();
    }
    assert_eq!(found(store, &a, "ann", "secret").await, [format!("secret of ann in {a}")]);
    assert_eq!(found(store, &b, "ann", "secret").await, [format!("secret of ann in {b}")]);
    assert!(found(store, &b, "bob", "secret").await.is_empty());
    assert!(found(store, &a, "Ann", "secret").await.is_empty());
}

pub async fn a_search_gives_the_best_ten(store: &Memory) {
    let key = key(&fresh_app(), "ann", "s1");
    let said: Vec<String> = (0..50).map(|n| format!("tea number {n}")).collect();
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    store.add(&session(&key, &said)).await.unwrap();
    let texts = found(store, key.app(), "ann", "tea 7").await;
    assert_eq!(texts.len(), 10);
    assert_eq!(texts[0], "tea number 7");
}

pub async fn odd_queries_find_or_find_nothing(store: &Memory) {
    let key = key(&fresh_app(), "ann", "s1");
    store.add(&session(&key, &["plain words", "Umeå är kallt", "naïve ⅷ", "NUL\0inside"])).await.unwrap();
    for query in ["", " ", "\0", "\"", "'", "(", "AND", "NEAR(", "*", "a:b", "-", "missing"] {
        assert!(found(store, key.app(), "ann", query).await.is_empty(), "{query:?} found something");
    }
    for query in odd_names() {
        found(store, key.app(), "ann", &query).await;
    }
    assert_eq!(found(store, key.app(), "ann", "UMEÅ?").await, ["Umeå är kallt"]);
    assert!(found(store, key.app(), "ann", "Umea").await.is_empty());
    assert_eq!(found(store, key.app(), "ann", "plain' OR \"x").await, ["plain words"]);
    assert_eq!(found(store, key.app(), "ann", "inside").await, ["NUL\0inside"]);
}

pub async fn only_what_was_said_is_remembered(store: &Memory) {
    let key = key(&fresh_app(), "ann", "s1");
    let mut silent = session(&key, &["said tea"]);
    let mut thought = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    thought.content = Some(Arc::new(Content::model(Part::thought("thought of tea"))));
    silent.events.push(Arc::new(thought));
    silent.events.push(Arc::new(Event::new(RunId::from("e-1"), Source::user())));
    store.add(&silent).await.unwrap();
    assert_eq!(found(store, key.app(), "ann", "tea thought").await, ["said tea"]);
}

pub async fn an_erased_user_is_forgotten(store: &Memory) {
    let (a, b) = (fresh_app(), fresh_app());
    for (app, user, id) in [(&a, "ann", "s1"), (&a, "ann", "s2"), (&a, "bob", "s1"), (&b, "ann", "s1")] {
        store.add(&session(&key(app, user, id), &["the blue door", "and the key"])).await.unwrap();
    }
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 4);
    assert!(found(store, &a, "ann", "blue door key").await.is_empty());
    assert_eq!(found(store, &a, "bob", "blue").await, ["the blue door"]);
    assert_eq!(found(store, &b, "ann", "blue").await, ["the blue door"]);
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 0);
    store.add(&session(&key(&a, "ann", "s3"), &["a red door"])).await.unwrap();
    assert_eq!(found(store, &a, "ann", "blue red door").await, ["a red door"]);
}

pub async fn old_memories_go(store: &Memory) {
    let (app, other) = (fresh_app(), fresh_app());
    let said = ["door one", "door two", "door three"];
    for app in [&app, &other] {
        store.add(&session(&key(app, "ann", "s1"), &said)).await.unwrap();
    }
    assert_eq!(store.delete_older_than(&app, 1_000.0).await.unwrap(), 0);
    assert_eq!(store.delete_older_than(&app, 1_002.0).await.unwrap(), 2);
    assert_eq!(found(store, &app, "ann", "door").await, ["door three"]);
    assert_eq!(found(store, &other, "ann", "door").await.len(), 3, "another app has its own ages");
}
