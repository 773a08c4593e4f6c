//! Erasing a user, and not keeping data for ever: shown by a search of what is left.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::json;
use umbel_core::store::{Acquire, Entries};
use umbel_core::{
    Clock, Content, Credential, ErrorKind, Event, EventFilter, Interrupt, LogEntry, NewSession, Outcome,
    Part, RunId, RunStep, Session, SessionKey, Source, SystemClock, Versions,
};
use umbel_stores::{Erased, Key, Keys, Retention, Sqlite, Stores};

/// Stands in everything of the user that is erased, in small or large letters.
pub(crate) const MARK: &str = "Zqx7Ann";
const APP: &str = "app";

fn event(text: &str, time: f64) -> Event {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    event.content = Some(Arc::new(Content::model(text)));
    event.timestamp = time;
    event
}

/// A log with all that a store keeps an index of.
fn log(mark: &str, time: f64, length: usize) -> Entries {
    let mut waiting = event(&format!("{mark} said {}", mark.repeat(length)), time);
    waiting.long_running_tool_ids = Some(Box::new(vec![format!("call of {mark}").into()]));
    waiting.actions_mut().state_delta =
        json!({(format!("key {mark}")): mark.repeat(length / 2), "user:seen": mark}).as_object().cloned();
    let question = json!({"id": mark, "address": {"agent": "clerk"}, "reason": "input", "message": mark});
    let interrupts = Box::new(vec![serde_json::from_value::<Interrupt>(question).unwrap()]);
    let asks = RunStep::Ended { outcome: Outcome::Interrupted { interrupts } };
    [LogEntry::Event(Arc::new(waiting)), asks.into()].into_iter().collect()
}

async fn read(stores: &Stores, key: &SessionKey) -> Session {
    stores.sessions.get(key, EventFilter::default()).await.unwrap().unwrap()
}

/// A session with everything that belongs to it. Their lengths differ, so that databases have to move rows around.
async fn fill_session(stores: &Stores, user: &str, mark: &str, n: usize) {
    let key = SessionKey::new(APP, user, format!("{n} of {mark}")).unwrap();
    let state = json!({(format!("first {mark}")): mark.repeat(n % 50)}).as_object().cloned().unwrap();
    stores.sessions.create(NewSession::new(key.clone()).state(state)).await.unwrap();
    for turn in 0..4 {
        stores.sessions.commit(&key, None, log(mark, 5.0, (n * 37 + turn * 101) % 500)).await.unwrap();
    }
    let data = Part::data("text/plain", mark.repeat(n % 900).into_bytes());
    stores.artifacts.save(&key, &format!("{mark}.txt"), data).await.unwrap();
    stores.artifacts.save(&key, "user:note", Part::text(mark)).await.unwrap();
    stores.memory.add(&read(stores, &key).await).await.unwrap();
    let secret = Credential::new(mark);
    stores.credentials.save(APP, user, &format!("{n} {mark}"), secret).await.unwrap();
}

/// The user that is to be erased among others, and a child session.
pub(crate) async fn fill(stores: &Stores, sessions: usize) {
    let theirs = format!("user {MARK}");
    let work = (0..sessions).map(|n| {
        let (user, mark) = if n % 3 == 0 { (theirs.as_str(), MARK) } else { ("bob", "others") };
        fill_session(stores, user, mark, n)
    });
    stream::iter(work).buffer_unordered(32).collect::<Vec<()>>().await;
    let parent = SessionKey::new(APP, &theirs, format!("0 of {MARK}")).unwrap();
    let child = SessionKey::new(APP, &theirs, format!("child of {MARK}")).unwrap();
    stores.sessions.create(NewSession::new(child.clone()).parent(parent)).await.unwrap();
    stores.sessions.commit(&child, None, log(MARK, 5.0, 100)).await.unwrap();
}

/// Erases the user, and shows that the others have all of theirs.
pub(crate) async fn erase(stores: &Stores, sessions: u64) {
    let theirs = format!("user {MARK}");
    let (erased, others) = (sessions.div_ceil(3), sessions - sessions.div_ceil(3));
    let memories = erased * 4;
    let expected = Erased { sessions: erased + 1, artifacts: erased * 2, memories, credentials: erased };
    assert_eq!(stores.erase_user(APP, &theirs).await.unwrap(), expected);
    assert_eq!(stores.erase_user(APP, &theirs).await.unwrap(), Erased::default());
    let kept = stores.sessions.list(APP, "bob").await.unwrap();
    assert_eq!(kept.len() as u64, others);
    assert_eq!(read(stores, &kept[0].key).await.events.len(), 4);
    assert_eq!(stores.sessions.open_questions(APP, None).await.unwrap().len() as u64, others);
    assert_eq!(stores.artifacts.versions(&kept[0].key, "user:note").await.unwrap().len() as u64, others);
    assert_eq!(stores.memory.search(APP, "bob", "others").await.unwrap().len(), 10);
    let name = kept[0].key.id().replace("of ", "");
    assert!(stores.credentials.load(APP, "bob", &name).await.unwrap().is_some(), "{name}");
}

/// How often a word stands in the files of a database, whatever its case.
fn count(path: &Path, word: &str) -> usize {
    let word = word.to_lowercase().into_bytes();
    let files = ["", "-wal", "-shm"].map(|ending| format!("{}{ending}", path.display()));
    let bytes =
        files.iter().flat_map(|file| std::fs::read(file).unwrap()).map(|byte| byte.to_ascii_lowercase());
    bytes.collect::<Vec<u8>>().windows(word.len()).filter(|window| *window == word).count()
}

async fn open(path: &Path) -> Sqlite {
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    Sqlite::options(path).keys(keys).wait_for_lock(Duration::from_millis(500)).open().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_erased_user_is_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let stores: Stores = open(&path).await.into();
    // Another process has the database open, and has read from it.
    let beside = open(&path).await;
    fill(&stores, 240).await;
    assert_eq!(Stores::from(beside.clone()).sessions.list(APP, "bob").await.unwrap().len(), 160);
    assert!(count(&path, MARK) > 10_000, "the search finds what is there");
    erase(&stores, 240).await;
    assert_eq!(count(&path, MARK), 0, "of the erased user");
    assert!(count(&path, "others") > 10_000);
    fill_session(&stores, "bob", "others", 1_000).await;
    assert_eq!(count(&path, MARK), 0, "what comes later brings nothing back");
}

#[tokio::test]
async fn a_user_is_erased_from_memory() {
    let stores = Stores::in_memory();
    fill(&stores, 24).await;
    erase(&stores, 24).await;
    assert!(stores.memory.search(APP, &format!("user {MARK}"), MARK).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_user_with_a_run_is_not_erased_and_keeps_everything() {
    let stores = Stores::in_memory();
    fill_session(&stores, "ann", "mark", 0).await;
    let key = SessionKey::new(APP, "ann", "0 of mark").unwrap();
    let (owner, ttl, known) = ("run".into(), Duration::from_secs(60), Versions::default());
    stores.sessions.acquire(Acquire { known, ..Acquire::new(key.clone(), owner, ttl) }).await.unwrap();
    let error = stores.erase_user(APP, "ann").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionBusy);
    assert_eq!(stores.artifacts.names(&key).await.unwrap().len(), 2);
    assert!(!stores.memory.search(APP, "ann", "mark").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_still_reads_what_was_erased_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let stores: Stores = open(&path).await.into();
    fill_session(&stores, "ann", MARK, 1).await;
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM log").unwrap();
    let error = stores.erase_user(APP, "ann").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("try again"), "{error}");
    reader.execute_batch("ROLLBACK").unwrap();
    assert_eq!(stores.erase_user(APP, "ann").await.unwrap(), Erased::default());
    assert_eq!(count(&path, MARK), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_does_not_stand_in_the_way_of_writes() {
    let folder = tempfile::tempdir().unwrap();
    let stores: Stores = open(&folder.path().join("umbel.db")).await.into();
    let scrubs = stream::iter(0..4).then(|_| stores.scrub()).collect::<Vec<_>>();
    let (scrubs, ()) = futures::join!(scrubs, fill(&stores, 60));
    assert!(scrubs.iter().all(Result::is_ok), "{scrubs:?}");
    assert_eq!(stores.sessions.list(APP, "bob").await.unwrap().len(), 40);
}

/// What of each kind is kept, when half of it is too old.
pub(crate) async fn retain(stores: &Stores) {
    let (day, now) = (Duration::from_secs(86_400), SystemClock.now());
    let said = async |id: &str, time: f64| {
        let key = SessionKey::new(APP, "ann", id).unwrap();
        stores.sessions.create(NewSession::new(key.clone())).await.unwrap();
        stores.sessions.commit(&key, None, log(id, time, 3)).await.unwrap();
        stores.memory.add(&read(stores, &key).await).await.unwrap();
        key
    };
    let save = async |key: &SessionKey, name: &str| {
        stores.artifacts.save(key, name, Part::text(name)).await.unwrap();
        stores.credentials.save(APP, "ann", name, Credential::new(name)).await.unwrap();
    };
    let (old, new) = (said(MARK, now - 90_000.0).await, said("new", now).await);
    save(&new, MARK).await;
    let mut start = SystemClock.now();
    while SystemClock.now() <= start {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    start = SystemClock.now();
    save(&new, "new").await;
    let held = said("held", now - 90_000.0).await;
    let (owner, ttl, known) = ("run".into(), day, Versions::default());
    stores.sessions.acquire(Acquire { known, ..Acquire::new(held.clone(), owner, ttl) }).await.unwrap();

    // On a task of its own, as a server does it.
    let spawned = stores.clone();
    let nothing = tokio::spawn(async move { Retention::default().apply(&spawned, APP, now + 1e9).await });
    assert_eq!(nothing.await.unwrap().unwrap(), Erased::default());
    let ten_days = Retention {
        sessions: Some(10 * day),
        artifacts: Some(10 * day),
        memory: Some(10 * day),
        credentials: Some(10 * day),
    };
    assert_eq!(ten_days.apply(stores, APP, now).await.unwrap(), Erased::default());
    let sessions = Retention { sessions: Some(day), ..Retention::default() };
    assert_eq!(sessions.apply(stores, APP, now).await.unwrap(), Erased { sessions: 1, ..Erased::default() });
    assert!(stores.sessions.get(&old, EventFilter::default()).await.unwrap().is_none());
    assert_eq!(
        stores.sessions.list(APP, "ann").await.unwrap().len(),
        2,
        "the new one, and one that has a run"
    );
    let memory = Retention { memory: Some(day), ..Retention::default() };
    assert_eq!(memory.apply(stores, APP, now).await.unwrap(), Erased { memories: 2, ..Erased::default() });
    let saved = Retention { artifacts: Some(day), credentials: Some(day), ..Retention::default() };
    assert_eq!(saved.apply(stores, "other", start + 1e9).await.unwrap(), Erased::default());
    let gone = saved.apply(stores, APP, start + day.as_secs_f64()).await.unwrap();
    assert_eq!(gone, Erased { artifacts: 1, credentials: 1, ..Erased::default() });
    assert_eq!(stores.artifacts.names(&new).await.unwrap(), ["new"]);
    assert!(stores.credentials.load(APP, "ann", "new").await.unwrap().is_some());
    assert_eq!(stores.credentials.load(APP, "ann", MARK).await.unwrap(), None);
}

#[tokio::test]
async fn what_is_too_old_goes_from_memory() {
    retain(&Stores::in_memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_what_is_too_old_is_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let stores: Stores = open(&path).await.into();
    retain(&stores).await;
    // The user's state has no age: it is set by a session, and stays when that goes.
    let key = SessionKey::new(APP, "ann", "new").unwrap();
    let sets = |value: &str| -> Entries {
        let mut event = event("", SystemClock.now());
        event.actions_mut().set_state("user:seen", value);
        [LogEntry::Event(Arc::new(event))].into_iter().collect()
    };
    stores.sessions.commit(&key, None, sets("other")).await.unwrap();
    stores.scrub().await.unwrap();
    assert_eq!(count(&path, MARK), 0);
    assert!(count(&path, "new") > 0);
}
