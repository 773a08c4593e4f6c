//! Everything in one file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use umbel_core::store::{Acquire, Entries};
use umbel_core::{
    Credential, CredentialStore, ErrorKind, Event, EventFilter, LogEntry, NewSession, RunId, SessionKey,
    SessionStore, Source, Versions,
};
use umbel_stores::{Key, Keys, Sqlite};

/// A database that goes with the test.
pub(crate) fn new_file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    (folder, path)
}

/// One store for all cases of the contract: each works with an app of its own.
async fn store() -> Sqlite {
    static STORE: tokio::sync::OnceCell<Sqlite> = tokio::sync::OnceCell::const_new();
    let open = async || {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("contract.db");
        for ending in ["db", "db-wal", "db-shm"] {
            drop(std::fs::remove_file(path.with_extension(ending)));
        }
        let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
        Sqlite::options(path).keys(keys).open().await.unwrap()
    };
    STORE.get_or_init(open).await.clone()
}

mod sessions {
    umbel_stores::session_store_contract!(super::store());
}

mod artifacts {
    umbel_stores::artifact_store_contract!(super::store());
}

mod memory {
    umbel_stores::memory_store_contract!(super::store());
}

mod credentials {
    umbel_stores::credential_store_contract!(super::store());
}

pub(crate) fn key(id: &str) -> SessionKey {
    SessionKey::new("app", "ann", id).unwrap()
}

pub(crate) fn said(text: &str) -> LogEntry {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    event.content = Some(Arc::new(umbel_core::Content::model(text)));
    event.timestamp = 1.0;
    LogEntry::Event(Arc::new(event))
}

pub(crate) fn entries(texts: &[&str]) -> Entries {
    texts.iter().map(|text| said(text)).collect()
}

pub(crate) async fn texts(store: &Sqlite, key: &SessionKey) -> Vec<String> {
    let session = store.get(key, EventFilter::default()).await.unwrap().unwrap();
    session.events.iter().map(|event| event.text()).collect()
}

pub(crate) async fn new_session(store: &Sqlite, id: &str) -> SessionKey {
    store.create(NewSession::new(key(id))).await.unwrap().key
}

#[tokio::test]
async fn what_was_written_is_there_when_the_file_is_opened_again() {
    let (_folder, path) = new_file();
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    let store = Sqlite::options(&path).keys(keys.clone()).open().await.unwrap();
    let s1 = new_session(&store, "s1").await;
    let versions = store.commit(&s1, None, entries(&["one", "two"])).await.unwrap();
    store.save("app", "ann", "mail", Credential::new("s3cret")).await.unwrap();
    drop(store);
    let store = Sqlite::options(&path).keys(keys).open().await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["one", "two"]);
    let news = store.news(&s1, versions).await.unwrap().unwrap();
    assert!(!news.whole && news.entries.is_empty(), "what a reader knew before is still worth something");
    let secret = CredentialStore::load(&store, "app", "ann", "mail").await.unwrap();
    assert_eq!(secret, Some(Credential::new("s3cret")));
}

#[tokio::test]
async fn two_processes_see_and_respect_each_other() {
    let (_folder, path) = new_file();
    let (a, b) = (Sqlite::open(&path).await.unwrap(), Sqlite::open(&path).await.unwrap());
    let s1 = new_session(&a, "s1").await;
    let acquire = |known| Acquire { known, ..Acquire::new(s1.clone(), "a".into(), Duration::from_secs(60)) };
    let taken = a.acquire(acquire(Versions::default())).await.unwrap();
    assert_eq!(b.acquire(acquire(Versions::default())).await.unwrap_err().kind(), ErrorKind::SessionBusy);
    let end = a.release(&taken.lease, taken.versions, entries(&["from a"])).await.unwrap();
    let taken = b.acquire(acquire(taken.versions)).await.unwrap();
    assert_eq!(taken.news.entries, [said("from a")]);
    assert_eq!(taken.versions, end);
}

#[test]
fn two_processes_that_write_at_the_same_time_lose_nothing() {
    let (_folder, path) = new_file();
    crate::two_processes::lose_nothing(&format!("sqlite:{}", path.display()));
}

#[tokio::test]
async fn whoever_is_far_behind_gets_all_news_with_the_lease() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    let mut known = Versions::default();
    for n in 0..300 {
        let versions = store.commit(&s1, None, entries(&[&n.to_string()])).await.unwrap();
        if n == 99 {
            known = versions;
        }
    }
    for (known, expected) in [(Versions::default(), 0..300), (known, 100..300)] {
        let whole = known == Versions::default();
        let acquire = Acquire { known, ..Acquire::new(s1.clone(), "a".into(), Duration::from_secs(60)) };
        let taken = store.acquire(acquire).await.unwrap();
        assert_eq!(taken.news.whole, whole);
        assert_eq!(taken.news.session_state.is_some(), whole);
        let expected: Vec<LogEntry> = expected.map(|n: i32| said(&n.to_string())).collect();
        assert_eq!(taken.news.entries, expected);
        store.release(&taken.lease, taken.versions, Entries::new()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_from_before_the_clock_went_back_ends_all_the_same() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    let acquire =
        || Acquire { claims: true, ..Acquire::new(s1.clone(), "a".into(), Duration::from_millis(50)) };
    store.acquire(acquire()).await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    let in_a_year = "UPDATE sessions SET lease_until = lease_until + 31536000000";
    other.execute(in_a_year, []).unwrap();
    assert_eq!(store.acquire(acquire()).await.unwrap_err().kind(), ErrorKind::SessionBusy);
    tokio::time::sleep(Duration::from_millis(80)).await;
    store.acquire(acquire()).await.unwrap();
    other.execute(in_a_year, []).unwrap();
    assert!(store.abandoned("app").await.unwrap().is_empty());
    tokio::time::sleep(Duration::from_millis(80)).await;
    assert_eq!(store.abandoned("app").await.unwrap().len(), 1);
}

#[tokio::test]
async fn credentials_are_refused_without_a_key_and_encrypted_with_one() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let error = store.save("app", "ann", "mail", Credential::new("s3cret")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("UMBEL_CREDENTIAL_KEYS"), "{error}");
    drop(store);

    let (old, new) = (Key::generate("old").unwrap(), Key::generate("new").unwrap());
    let store = Sqlite::options(&path).keys(Keys::parse(&old).unwrap()).open().await.unwrap();
    for name in ["mail", "chat"] {
        store.save("app", "ann", name, Credential::new("s3cret")).await.unwrap();
    }
    drop(store);
    let both = Keys::parse(&format!("{new} {old}")).unwrap();
    let store = Sqlite::options(&path).keys(both).open().await.unwrap();
    assert_eq!(store.rotate_credentials().await.unwrap(), 2);
    assert_eq!(store.rotate_credentials().await.unwrap(), 0);
    drop(store);
    let store = Sqlite::options(&path).keys(Keys::parse(&new).unwrap()).open().await.unwrap();
    let secret = CredentialStore::load(&store, "app", "ann", "chat").await.unwrap();
    assert_eq!(secret, Some(Credential::new("s3cret")));
    drop(store);
    let store = Sqlite::options(&path).keys(Keys::parse(&old).unwrap()).open().await.unwrap();
    let error = CredentialStore::load(&store, "app", "ann", "chat").await.unwrap_err();
    assert!(error.message().contains("`new`"), "{error}");
    drop(store);
    assert!(!holds(&path, b"s3cret"), "a secret stands in the file");
}

#[tokio::test]
async fn what_is_deleted_is_not_found_in_the_file() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    store.commit(&s1, None, entries(&["needle-in-a-haystack", &"long ".repeat(5_000)])).await.unwrap();
    SessionStore::delete(&store, &s1).await.unwrap();
    drop(store);
    assert!(!holds(&path, b"needle-in-a-haystack"));
}

fn holds(path: &Path, needle: &[u8]) -> bool {
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.any(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
}

#[tokio::test]
async fn a_turn_takes_little_room_however_long_the_session_is() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    let size = || std::fs::metadata(&path).unwrap().len();
    let checkpoint = || {
        let other = rusqlite::Connection::open(&path).unwrap();
        other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    };
    let mut sizes = vec![];
    for turn in 0..1_000 {
        if turn % 250 == 0 {
            checkpoint();
            sizes.push(size());
        }
        let (question, answer) = ("q".repeat(200), "a".repeat(800));
        let acquire = Acquire {
            known: Versions { incarnation: 1, session: turn * 4, user: 0, app: 0 },
            entries: [said(&question), umbel_core::RunStep::Started { fingerprint: turn }.into()]
                .into_iter()
                .collect(),
            ..Acquire::new(s1.clone(), "run".into(), Duration::from_secs(60))
        };
        let taken = store.acquire(acquire).await.unwrap();
        let outcome = umbel_core::Outcome::Finished;
        let last = [said(&answer), umbel_core::RunStep::Ended { outcome }.into()];
        store.release(&taken.lease, taken.versions, last.into_iter().collect()).await.unwrap();
    }
    checkpoint();
    sizes.push(size());
    let per_turn: Vec<u64> = sizes.windows(2).map(|pair| (pair[1] - pair[0]) / 250).collect();
    let (least, most) = (per_turn.iter().min().unwrap(), per_turn.iter().max().unwrap());
    assert!(*most <= 4 * 1_000, "{per_turn:?} bytes per turn");
    assert!(most * 100 <= least * 105, "a turn grows with the session: {per_turn:?} bytes");
}

#[tokio::test]
async fn stores_are_found_by_their_address() {
    let (_folder, path) = new_file();
    let stores = umbel_stores::open(&format!("sqlite:{}", path.display())).await.unwrap();
    let state = json!({"user:u": 1}).as_object().cloned().unwrap();
    stores.sessions.create(NewSession::new(key("s1")).state(state)).await.unwrap();
    assert_eq!(stores.sessions.user_state("app", "ann").await.unwrap().get("u"), Some(&json!(1)));
    assert!(path.exists());
    umbel_stores::open("memory:").await.unwrap();
    for (url, word) in
        [("mysql://u:pw@host", "mysql"), ("sqlite:", "path"), ("sqlite::memory:", "memory:"), ("", "memory:")]
    {
        let error = umbel_stores::open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.message().contains(word) && !error.message().contains("pw"), "{error}");
    }
}
