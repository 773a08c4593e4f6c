//! The contract of an artifact store.

use std::collections::HashSet;

use serde_json::json;
use umbel_core::{ErrorKind, Part};

use super::{Artifacts, fresh_app, key, later, now, odd_names, odd_value, refused};

pub async fn versions_count_from_zero(store: &Artifacts) {
    let key = key(&fresh_app(), "ann", "s1");
    assert_eq!(store.load(&key, "a.txt", None).await.unwrap(), None);
    assert!(store.versions(&key, "a.txt").await.unwrap().is_empty());
    assert!(store.names(&key).await.unwrap().is_empty());
    for n in 0..3 {
        assert_eq!(store.save(&key, "a.txt", Part::text(n.to_string())).await.unwrap(), n);
    }
    assert_eq!(store.versions(&key, "a.txt").await.unwrap(), [0, 1, 2]);
    for (version, text) in [(None, "2"), (Some(0), "0"), (Some(1), "1")] {
        let part = store.load(&key, "a.txt", version).await.unwrap().unwrap();
        assert_eq!(part.as_text(), Some(text));
    }
    for missing in [3, u64::MAX] {
        assert_eq!(store.load(&key, "a.txt", Some(missing)).await.unwrap(), None);
    }
}

pub async fn a_user_shares_what_is_named_so(store: &Artifacts) {
    let app = fresh_app();
    let (first, second) = (key(&app, "ann", "s1"), key(&app, "ann", "s2"));
    store.save(&first, "user:me.txt", Part::text("one")).await.unwrap();
    assert_eq!(store.save(&second, "user:me.txt", Part::text("two")).await.unwrap(), 1);
    store.save(&second, "b.txt", Part::text("own")).await.unwrap();
    store.save(&second, "B.txt", Part::text("own")).await.unwrap();
    assert_eq!(store.names(&first).await.unwrap(), ["user:me.txt"]);
    assert_eq!(
        store.names(&second).await.unwrap(),
        ["B.txt", "b.txt", "user:me.txt"],
        "sorted by code points"
    );
    let part = store.load(&first, "user:me.txt", None).await.unwrap().unwrap();
    assert_eq!(part.as_text(), Some("two"));
    store.delete(&first, "user:me.txt").await.unwrap();
    assert_eq!(store.load(&second, "user:me.txt", None).await.unwrap(), None);
}

pub async fn users_and_sessions_are_kept_apart(store: &Artifacts) {
    let (a, b) = (fresh_app(), fresh_app());
    let keys = [key(&a, "ann", "s1"), key(&a, "ann", "s2"), key(&a, "bob", "s1"), key(&b, "ann", "s1")];
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(store.save(key, "x", Part::text(n.to_string())).await.unwrap(), 0);
        store.save(key, "user:x", Part::text(n.to_string())).await.unwrap();
    }
    store.delete(&keys[0], "x").await.unwrap();
    assert_eq!(store.load(&keys[0], "x", None).await.unwrap(), None);
    for (n, key) in keys.iter().enumerate().skip(1) {
        assert_eq!(store.load(key, "x", None).await.unwrap().unwrap().as_text(), Some(&*n.to_string()));
        assert_eq!(store.names(key).await.unwrap(), ["user:x", "x"]);
    }
    assert_eq!(store.versions(&keys[0], "user:x").await.unwrap(), [0, 1], "both sessions of one user");
    assert_eq!(store.versions(&keys[2], "user:x").await.unwrap(), [0]);
}

pub async fn a_deleted_artifact_starts_anew(store: &Artifacts) {
    let key = key(&fresh_app(), "ann", "s1");
    store.delete(&key, "never").await.unwrap();
    store.save(&key, "x", Part::text("old")).await.unwrap();
    store.delete(&key, "x").await.unwrap();
    assert!(store.names(&key).await.unwrap().is_empty());
    assert_eq!(store.save(&key, "x", Part::text("new")).await.unwrap(), 0);
    assert_eq!(store.load(&key, "x", None).await.unwrap().unwrap().as_text(), Some("new"));
}

pub async fn every_kind_of_part_is_kept(store: &Artifacts) {
    let key = key(&fresh_app(), "ann", "s1");
    let bytes: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 253) as u8).collect();
    let foreign = json!({"inlineData": {"data": "AAEC", "mimeType": "image/png", "displayName": "å", "own": 1},
                         "videoMetadata": odd_value()});
    let parts = [
        Part::text("å\0\n\""),
        Part::text(""),
        Part::data("application/octet-stream", bytes),
        Part::data("text/plain", Vec::new()),
        serde_json::from_value(foreign).unwrap(),
        serde_json::from_value(json!({"fileData": {"fileUri": "gs://x", "mimeType": "a/b"}})).unwrap(),
    ];
    for (version, part) in parts.iter().enumerate() {
        assert_eq!(store.save(&key, "x", part.clone()).await.unwrap(), version as u64);
    }
    for (version, part) in parts.iter().enumerate() {
        let kept = store.load(&key, "x", Some(version as u64)).await.unwrap().unwrap();
        assert!(*kept == *part, "version {version} came back changed");
    }
}

pub async fn odd_artifact_names_are_kept(store: &Artifacts) {
    let app = fresh_app();
    let key = key(&app, "bö\"b", "s\n'1");
    let mut names = odd_names();
    names.push(String::new());
    for name in &names {
        store.save(&key, name, Part::text(name.clone())).await.unwrap();
    }
    for name in &names {
        let part = store.load(&key, name, None).await.unwrap().unwrap();
        assert_eq!(part.as_text(), Some(name.as_str()));
    }
    names.sort();
    assert_eq!(store.names(&key).await.unwrap(), names);
}

pub async fn a_nul_in_an_artifact_name_is_refused(store: &Artifacts) {
    let key = key(&fresh_app(), "ann", "s1");
    refused(store.save(&key, "a\0b", Part::text("x")).await, ErrorKind::InvalidInput);
    assert!(store.names(&key).await.unwrap().is_empty());
}

pub async fn concurrent_saves_get_a_version_each(store: &Artifacts) {
    let key = key(&fresh_app(), "ann", "s1");
    let tasks = (0..32).map(|n| {
        let (store, key) = (store.clone(), key.clone());
        tokio::spawn(async move { store.save(&key, "x", Part::text(n.to_string())).await.unwrap() })
    });
    let versions: HashSet<u64> =
        futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(versions, (0..32).collect());
}

pub async fn artifacts_of_an_erased_user_are_gone(store: &Artifacts) {
    let (a, b) = (fresh_app(), fresh_app());
    let keys = [key(&a, "ann", "s1"), key(&a, "ann", "s2"), key(&a, "bob", "s1"), key(&b, "ann", "s1")];
    for key in &keys {
        store.save(key, "x", Part::text("x")).await.unwrap();
        store.save(key, "user:x", Part::text("x")).await.unwrap();
    }
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 4);
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(store.names(key).await.unwrap().len(), if n < 2 { 0 } else { 2 }, "{key}");
    }
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 0);
    assert_eq!(store.save(&keys[0], "x", Part::text("new")).await.unwrap(), 0);
}

pub async fn old_artifacts_go_and_others_keep_their_version(store: &Artifacts) {
    let (app, other) = (fresh_app(), fresh_app());
    let (mine, foreign) = (key(&app, "ann", "s1"), key(&other, "ann", "s1"));
    for key in [&mine, &mine, &foreign] {
        store.save(key, "x", Part::text("old")).await.unwrap();
    }
    store.save(&mine, "user:y", Part::text("old")).await.unwrap();
    assert_eq!(store.delete_older_than(&app, now() - 60.0).await.unwrap(), 0);
    let time = later().await;
    assert_eq!(store.save(&mine, "x", Part::text("new")).await.unwrap(), 2);
    assert_eq!(store.delete_older_than(&app, time).await.unwrap(), 3);
    assert_eq!(store.versions(&mine, "x").await.unwrap(), [2]);
    assert_eq!(store.load(&mine, "x", Some(2)).await.unwrap().unwrap().as_text(), Some("new"));
    assert_eq!(store.load(&mine, "x", Some(0)).await.unwrap(), None);
    assert_eq!(store.names(&mine).await.unwrap(), ["x"]);
    assert_eq!(store.save(&mine, "x", Part::text("next")).await.unwrap(), 3);
    assert_eq!(store.versions(&foreign, "x").await.unwrap(), [0], "another app has its own ages");
}
