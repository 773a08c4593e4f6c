//! Moving everything elsewhere, and taking over what google-adk wrote.

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use umbel_core::store::Acquire;
use umbel_core::{
    ArtifactStore, Credential, CredentialStore, ErrorKind, EventFilter, MemoryStore, NewSession, Part,
    Session, SessionKey, SessionStore,
};
use umbel_stores::{Key, Keys, Sqlite, adk};

/// Bytes that are still there after the one who wrote them is gone.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) async fn exported(store: &Sqlite) -> String {
    let out = Shared::default();
    store.export(out.clone()).await.unwrap();
    let bytes = out.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A session as google-adk shows it.
fn shown(session: &Session) -> Value {
    let events: Vec<Value> =
        session.events.iter().map(|event| serde_json::to_value(&**event).unwrap()).collect();
    json!({"id": session.key.id(), "appName": session.key.app(), "userId": session.key.user(),
           "state": session.state.to_object(), "events": events, "lastUpdateTime": session.updated_at})
}

#[tokio::test]
async fn both_kinds_of_google_adks_databases_are_taken_over_as_it_reads_them() {
    let expected = std::fs::read_to_string(data("adk-sessions.expect.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (file, kind) in [("adk-sessions.db", "sqlite"), ("adk-sessions-alchemy.db", "alchemy")] {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(folder.path().join("umbel.db")).await.unwrap();
        let mut lines = Vec::new();
        adk::export(data(file), &mut lines).unwrap();
        store.import(Cursor::new(lines)).await.unwrap();
        let sessions = expected[kind].as_array().unwrap();
        assert!(!sessions.is_empty());
        for expected in sessions {
            let part = |name: &str| expected[name].as_str().unwrap();
            let key = SessionKey::new(part("appName"), part("userId"), part("id")).unwrap();
            let session = store.get(&key, EventFilter::default()).await.unwrap().unwrap();
            assert_eq!(shown(&session), *expected, "{kind}");
        }
    }
}

#[test]
fn what_google_adk_never_wrote_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    for sql in ["CREATE TABLE other (x)", ""] {
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let error = adk::export(&path, Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(
        adk::export(folder.path().join("missing.db"), Vec::new()).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

/// Everything a store can hold.
pub(crate) async fn fill(store: &Sqlite) {
    let key = |id: &str| SessionKey::new("app", "bö\"b", id).unwrap();
    let mut lines = Vec::new();
    adk::export(data("adk-sessions.db"), &mut lines).unwrap();
    store.import(Cursor::new(lines)).await.unwrap();
    let state =
        json!({"k": [1, null, 0.1], "user:u": "å\n", "app:a": {"x": 1}}).as_object().cloned().unwrap();
    store.create(NewSession::new(key("s1")).state(state)).await.unwrap();
    store.create(NewSession::new(key("child")).parent(key("s1"))).await.unwrap();
    let step = umbel_core::RunStep::Started { fingerprint: u64::MAX };
    let acquire = Acquire {
        entries: [step.into()].into_iter().collect(),
        ..Acquire::new(key("child"), "run".into(), Duration::from_secs(60))
    };
    store.acquire(acquire).await.unwrap();
    for part in [Part::data("image/png", vec![0, 1, 2]), Part::text("two")] {
        ArtifactStore::save(store, &key("s1"), "a.bin", part).await.unwrap();
    }
    ArtifactStore::save(store, &key("s1"), "user:me", Part::text("mine")).await.unwrap();
    let ann = SessionKey::new("travel", "ann", "s-ann-1").unwrap();
    store.add(&store.get(&ann, EventFilter::default()).await.unwrap().unwrap()).await.unwrap();
    CredentialStore::save(store, "app", "ann", "mail", Credential::new("s3cret")).await.unwrap();
}

#[tokio::test]
async fn an_export_comes_back_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    let open = |name: &str| Sqlite::options(folder.path().join(name)).keys(keys.clone()).open();
    let (first, second) = (open("1.db").await.unwrap(), open("2.db").await.unwrap());
    fill(&first).await;
    let lines = exported(&first).await;
    assert!(!lines.contains("s3cret"), "a secret left the store");
    second.import(Cursor::new(lines.clone())).await.unwrap();
    assert_eq!(exported(&second).await, lines);
    let secret = CredentialStore::load(&second, "app", "ann", "mail").await.unwrap();
    assert_eq!(secret, Some(Credential::new("s3cret")));
    assert_eq!(second.search("travel", "ann", "hello").await.unwrap().len(), 1);
    let abandoned = second.abandoned("app").await.unwrap();
    assert_eq!(abandoned.len(), 1, "the run that was under way is to be recovered");
    assert_eq!(abandoned[0].parent.as_ref().map(SessionKey::id), Some("s1"));
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_is_exported_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1.db");
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    let store = Sqlite::options(&file).keys(keys.clone()).open().await.unwrap();
    fill(&store).await;
    let whole = exported(&store).await;
    let damage =
        "UPDATE log SET body = '{\"damaged' WHERE session = (SELECT min(session) FROM log) AND version = 1";
    assert_eq!(rusqlite::Connection::open(&file).unwrap().execute(damage, []).unwrap(), 1);
    let lines = exported(&store).await;
    let differing: Vec<_> = lines.lines().zip(whole.lines()).filter(|(now, then)| now != then).collect();
    assert_eq!(lines.lines().count(), whole.lines().count());
    assert_eq!(differing.len(), 1, "{differing:?}");
    assert_eq!(differing[0].0, r#"{"line":"unreadable","body":"{\"damaged"}"#);
    let second = Sqlite::options(folder.path().join("2.db")).keys(keys).open().await.unwrap();
    let error = second.import(Cursor::new(lines.clone())).await.unwrap_err();
    assert!(error.message().contains("delete the line"), "{error}");
    let rest: Vec<&str> = lines.lines().filter(|line| !line.contains("unreadable")).collect();
    second.import(Cursor::new(rest.join("\n"))).await.unwrap();
    assert_eq!(exported(&second).await.lines().count(), rest.len());
}

#[tokio::test]
async fn an_import_is_taken_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("umbel.db")).await.unwrap();
    let head = "{\"line\": \"umbel\", \"format\": 1}\n";
    let session =
        "{\"line\": \"session\", \"app\": \"a\", \"user\": \"u\", \"id\": \"s\", \"updatedAt\": 1.0}\n";
    for (lines, number) in [
        (format!("{head}{session}{{\"line\": \"event\", \"ev"), "line 3"),
        (format!("{head}{session}{{\"line\": \"nonsense\"}}"), "line 3"),
        (format!("{head}{session}{session}"), "exists already"),
        (format!("{head}{{\"line\": \"event\", \"event\": {{}}}}"), "line 2"),
        (session.to_owned(), "line 1"),
        ("{\"line\": \"umbel\", \"format\": 99}".to_owned(), "newer"),
        (format!("{head}{}", session.replace("\"s\"", "\"\"")), "line 2"),
    ] {
        let error = store.import(Cursor::new(lines.clone())).await.unwrap_err();
        assert!(error.message().contains(number), "{lines}: {error}");
        let key = SessionKey::new("a", "u", "s").unwrap();
        assert!(store.get(&key, EventFilter::default()).await.unwrap().is_none(), "{lines}");
    }
    assert_eq!(store.import(Cursor::new(format!("{head}\n{session}"))).await.unwrap(), 1);
}
