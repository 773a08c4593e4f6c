//! Disks that are full or must not be written, files that are damaged, and others who hold the lock.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use futures::future::join_all;
use umbel_core::store::{Acquire, Entries};
use umbel_core::{Error, ErrorKind, EventFilter, NewSession, SessionKey, SessionStore, Versions};
use umbel_stores::Sqlite;

use crate::server::is_root;
use crate::sqlite::{entries, key, new_file, new_session, texts};

/// What root mounts for a test; gone when the test is.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts something, or says that it cannot be done and the test is not run.
    // Who runs the tests is told why one is not run.
    #[allow(clippy::print_stderr)]
    fn new(place: &Path, steps: &[&[&str]]) -> Option<Self> {
        let shown = place.to_str().unwrap();
        let mount = |args: &&[&str]| {
            let args = args.iter().map(|arg| arg.replace("PLACE", shown));
            Command::new("mount").args(args).stderr(Stdio::null()).status().is_ok_and(|done| done.success())
        };
        if is_root() && steps.iter().all(mount) {
            return Some(Self(place.to_owned()));
        }
        eprintln!("not run, since only root may mount, and not in every container");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Writes to eight sessions at once until nothing fits any more. Tells which texts of each were acknowledged.
async fn fill(store: &Sqlite, round: &str) -> Vec<(SessionKey, Vec<String>)> {
    let mut written: Vec<(SessionKey, Vec<String>)> = Vec::new();
    for n in 0..8 {
        let name = format!("s{n}");
        let there = store.get(&key(&name), EventFilter::default()).await.unwrap();
        let s = if there.is_some() { key(&name) } else { new_session(store, &name).await };
        written.push((s.clone(), texts(store, &s).await));
    }
    let mut refused = 0;
    for turn in 0..10_000 {
        let writes = written.iter().enumerate().map(|(n, (s, _))| {
            // Small and large ones in the same group.
            let text = format!("{round} {turn} {}", "x".repeat(if n % 2 == 0 { 10 } else { 6_000 }));
            async move { (store.commit(s, None, entries(&[&text])).await, text) }
        });
        let results = join_all(writes).await;
        for ((_, texts), (result, text)) in written.iter_mut().zip(results) {
            match result {
                Ok(_) => texts.push(text),
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), ErrorKind::Store);
                    assert!(error.message().contains("disk is full"), "{error}");
                }
            }
        }
        if refused >= 24 {
            return written;
        }
    }
    panic!("the disk does not get full");
}

async fn assert_there(store: &Sqlite, written: &[(SessionKey, Vec<String>)]) {
    for (s, expected) in written {
        let session = store.get(s, EventFilter::default()).await.unwrap().unwrap();
        let found: Vec<String> = session.events.iter().map(|event| event.text()).collect();
        assert!(found == *expected, "{s} has {} events, acknowledged were {}", found.len(), expected.len());
        assert_eq!(session.versions.session, expected.len() as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_not_grow_keeps_what_was_acknowledged_and_goes_on_when_there_is_room() {
    let (_folder, path) = new_file();
    let store = Sqlite::options(&path).max_bytes(600_000).open().await.unwrap();
    let ballast = store.create(NewSession::new(key("ballast"))).await.unwrap().key;
    store.commit(&ballast, None, entries(&[&"b".repeat(200_000)])).await.unwrap();
    let written = fill(&store, "first").await;
    assert_there(&store, &written).await;
    SessionStore::delete(&store, &ballast).await.unwrap();
    let again = fill(&store, "second").await;
    assert!(again.iter().zip(&written).all(|((_, after), (_, before))| after.len() > before.len()));
    drop(store);
    assert_there(&Sqlite::open(&path).await.unwrap(), &again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_what_was_acknowledged_and_goes_on_when_there_is_room() {
    let (folder, path) = new_file();
    let small = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", "PLACE"];
    let Some(_disk) = Mounted::new(folder.path(), &[&small]) else { return };
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![0; 600_000]).unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let written = fill(&store, "first").await;
    assert_there(&store, &written).await;
    // To the last byte, and opened by another process.
    let rest = std::fs::File::create(folder.path().join("rest")).unwrap();
    while (&rest).write_all(&[0; 512]).is_ok() {}
    match Sqlite::open(&path).await {
        Ok(other) => assert_there(&other, &written).await,
        Err(error) => panic!("what is there can be read: {error}"),
    }
    std::fs::remove_file(&ballast).unwrap();
    let again = fill(&store, "second").await;
    assert!(again.iter().zip(&written).all(|((_, after), (_, before))| after.len() > before.len()));
    drop(store);
    assert_there(&Sqlite::open(&path).await.unwrap(), &again).await;
}

#[tokio::test]
async fn a_new_database_on_a_full_disk_says_so() {
    let (folder, path) = new_file();
    let small = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", "PLACE"];
    let Some(_disk) = Mounted::new(folder.path(), &[&small]) else { return };
    let rest = std::fs::File::create(folder.path().join("rest")).unwrap();
    while (&rest).write_all(&[0; 512]).is_ok() {}
    let error = Sqlite::open(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("disk is full"), "{error}");
    std::fs::remove_file(folder.path().join("rest")).unwrap();
}

/// What may not be written for as long as this lives.
enum ReadOnly {
    Mounted { _mounted: Mounted },
    Permissions(PathBuf, std::fs::Permissions),
}

impl ReadOnly {
    fn new(path: &Path) -> Option<Self> {
        if is_root() {
            // Permissions do not stop root; a mount does.
            let steps: [&[&str]; 2] = [&["--bind", "PLACE", "PLACE"], &["-o", "remount,ro,bind", "PLACE"]];
            return Mounted::new(path, &steps).map(|mounted| Self::Mounted { _mounted: mounted });
        }
        let before = std::fs::metadata(path).unwrap().permissions();
        let mut after = before.clone();
        after.set_readonly(true);
        std::fs::set_permissions(path, after).unwrap();
        Some(Self::Permissions(path.to_owned(), before))
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if let Self::Permissions(path, before) = self {
            drop(std::fs::set_permissions(path, before.clone()));
        }
    }
}

#[tokio::test]
async fn a_file_or_a_folder_that_may_only_be_read_is_refused_with_words_and_loses_nothing() {
    let (folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    store.commit(&s1, None, entries(&["one"])).await.unwrap();
    drop(store);
    for place in [&path, folder.path()] {
        let Some(read_only) = ReadOnly::new(place) else { return };
        let error = Sqlite::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.message().contains("written"), "{error}");
        let error = Sqlite::open(folder.path().join("new.db")).await.map(drop);
        assert_eq!(error.is_err(), place == folder.path());
        drop(read_only);
        let store = Sqlite::open(&path).await.unwrap();
        assert_eq!(texts(&store, &s1).await, ["one"]);
    }
    let store = Sqlite::open(&path).await.unwrap();
    store.commit(&s1, None, entries(&["two"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["one", "two"]);
}

#[tokio::test]
async fn a_file_of_a_format_that_is_newer_for_writers_can_still_be_read() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    store.commit(&s1, None, entries(&["one"])).await.unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[18] = 3;
    std::fs::write(&path, &bytes).unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let error = store.commit(&s1, None, entries(&["lost"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("may not be written"), "{error}");
    assert_eq!(texts(&store, &s1).await, ["one"]);
}

#[tokio::test]
async fn a_path_that_cannot_be_a_database_is_an_error_with_a_hint() {
    let (folder, path) = new_file();
    let refused = async |path: &Path, word: &str| {
        let error = Sqlite::open(path).await.unwrap_err();
        assert!(error.message().contains(word), "{error}");
        error.kind()
    };
    assert_eq!(refused(folder.path(), "it is a folder").await, ErrorKind::Store);
    assert_eq!(refused(&folder.path().join("no/such.db"), "make the folder").await, ErrorKind::Store);
    std::fs::write(&path, b"this was never a database, whatever its name may say about it".repeat(20))
        .unwrap();
    assert_eq!(refused(&path, "is no database").await, ErrorKind::Corrupt);
    std::fs::write(&path, b"short").unwrap();
    assert_eq!(refused(&path, "is no database").await, ErrorKind::Corrupt);
    assert_eq!(std::fs::read(&path).unwrap(), b"short", "it is left as it was");
    std::fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE other (x)").unwrap();
    assert_eq!(refused(&path, "another program").await, ErrorKind::Store);
    assert_eq!(foreign.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)), Ok(1));
}

/// Sessions `a` to `d`, each with entries on pages of its own that hold its name.
async fn four_sessions(path: &Path) {
    let store = Sqlite::open(path).await.unwrap();
    for name in ["a", "b", "c", "d"] {
        let s = new_session(&store, name).await;
        for n in 0..10 {
            let text = format!("{n} {}", format!("<{name}>").repeat(1_000));
            store.commit(&s, None, entries(&[&text])).await.unwrap();
        }
    }
}

#[tokio::test]
async fn damaged_pages_are_an_error_of_those_whose_they_are() {
    let (_folder, path) = new_file();
    four_sessions(&path).await;
    let mut bytes = std::fs::read(&path).unwrap();
    let mut damaged = 0;
    for page in bytes.chunks_mut(4096).skip(1) {
        if page.windows(6).filter(|part| part == b"<b><b>").count() > 100 {
            page.fill(0xa5);
            damaged += 1;
        }
    }
    assert!(damaged >= 5);
    std::fs::write(&path, bytes).unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let is_corrupt = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("restore"), "{error}");
    };
    is_corrupt(store.get(&key("b"), EventFilter::default()).await.unwrap_err());
    is_corrupt(store.news(&key("b"), Versions::default()).await.unwrap_err());
    for name in ["a", "c", "d"] {
        assert_eq!(texts(&store, &key(name)).await.len(), 10);
        store.commit(&key(name), None, entries(&["goes on"])).await.unwrap();
    }
    assert_eq!(store.list("app", "ann").await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_refused() {
    let (_folder, path) = new_file();
    four_sessions(&path).await;
    let bytes = std::fs::read(&path).unwrap();
    for length in [bytes.len() / 2, bytes.len() - 4096, 4096, 100] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let read = async {
            let store = Sqlite::open(&path).await?;
            let all = join_all(["a", "b", "c", "d"].map(|name| {
                let (store, key) = (store.clone(), key(name));
                async move { store.get(&key, EventFilter::default()).await }
            }));
            all.await.into_iter().collect::<umbel_core::Result<Vec<_>>>()
        };
        let error = read.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    std::fs::write(&path, &bytes).unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    assert_eq!(texts(&store, &key("d")).await.len(), 10);
}

#[tokio::test]
async fn a_damaged_write_ahead_log_counts_up_to_the_damage() {
    let damages: [(&str, fn(&mut Vec<u8>)); 5] = [
        ("none", |_| ()),
        ("in the middle", |log| log[60_000..60_100].fill(0xa5)),
        ("cut off", |log| log.truncate(60_000)),
        ("in its header", |log| log[..32].fill(0xa5)),
        ("everywhere", |log| log.fill(0x5a)),
    ];
    for (name, damage) in damages {
        let (folder, path) = new_file();
        let expected: Vec<String> = (0..40).map(|n| format!("{n} {}", "x".repeat(500))).collect();
        let mut s1 = key("s1");
        for half in expected.chunks(20) {
            // The first half goes to the database itself when it is closed, the second half stays in the log.
            let store = Sqlite::open(&path).await.unwrap();
            if half[0] == expected[0] {
                s1 = new_session(&store, "s1").await;
            }
            for text in half {
                store.commit(&s1, None, entries(&[text])).await.unwrap();
            }
            for ending in ["db", "db-wal"] {
                let copy = folder.path().join("copy").with_extension(ending);
                std::fs::copy(path.with_extension(ending), copy).unwrap();
            }
        }
        // As after a loss of power.
        let copy = folder.path().join("copy.db");
        let mut log = std::fs::read(copy.with_extension("db-wal")).unwrap();
        damage(&mut log);
        std::fs::write(copy.with_extension("db-wal"), log).unwrap();
        let store = Sqlite::open(&copy).await.unwrap();
        let found = texts(&store, &s1).await;
        assert_eq!(found, expected[..found.len()], "{name}: there are no holes");
        let count = if name == "none" { 40..=40 } else { 20..=39 };
        assert!(count.contains(&found.len()), "{name}: {}", found.len());
        // What a reader knew of the lost ones is of no use, and it is told so.
        let known = Versions { incarnation: 1, session: 41, user: 0, app: 0 };
        assert!(store.news(&s1, known).await.unwrap().unwrap().whole);
        store.commit(&s1, None, entries(&["goes on"])).await.unwrap();
        assert_eq!(texts(&store, &s1).await.last().unwrap(), "goes on");
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_an_error_that_names_it_and_others_go_on() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let (s1, s2) = (new_session(&store, "s1").await, new_session(&store, "s2").await);
    for s in [&s1, &s2] {
        store.commit(s, None, entries(&["one", "two", "three"])).await.unwrap();
    }
    let other = rusqlite::Connection::open(&path).unwrap();
    for (change, word) in [
        ("UPDATE log SET body = substr(body, 1, 20)", "entry 2 of session app/ann/s1"),
        ("UPDATE log SET body = '{\"author\": 7}'", "entry 2 of session app/ann/s1"),
        ("UPDATE log SET time = NULL, body = '{\"step\": \"fromTheFuture\"}'", "newer version"),
        ("UPDATE log SET body = x'ff00fe'", "restore"),
        ("UPDATE log SET body = CAST(x'7bff' AS TEXT)", "restore"),
        ("UPDATE log SET time = 'noon'", "restore"),
        ("DELETE FROM log", "are missing"),
    ] {
        other.execute(&format!("{change} WHERE session = 1 AND version = 2"), []).unwrap();
        let acquire = Acquire {
            entries: entries(&["lost"]),
            ..Acquire::new(s1.clone(), "a".into(), Duration::from_secs(60))
        };
        let errors = [
            store.news(&s1, Versions::default()).await.unwrap_err(),
            store.acquire(acquire).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}");
            assert!(error.message().contains(word), "{change}: {error}");
        }
    }
    assert!(store.abandoned("app").await.unwrap().is_empty(), "nobody got the lease");
    assert_eq!(store.list("app", "ann").await.unwrap().len(), 2);
    store.commit(&s2, None, entries(&["four"])).await.unwrap();
    assert_eq!(texts(&store, &s2).await, ["one", "two", "three", "four"]);
    SessionStore::delete(&store, &s1).await.unwrap();
}

/// Tells another process which file to lock.
const LOCKS: &str = "UMBEL_TEST_LOCKS";

/// Another process that holds the lock until its input ends, if that is what this one is.
#[test]
// The first process waits for its word.
#[allow(clippy::print_stdout)]
fn another_process_holds_the_lock() {
    let Ok(path) = std::env::var(LOCKS) else { return };
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE; UPDATE sessions SET version = 99").unwrap();
    println!("\nlocked");
    std::io::stdin().lines().for_each(drop);
}

/// That process.
struct Locker {
    child: Child,
    input: Option<ChildStdin>,
    _said: Lines<BufReader<ChildStdout>>,
}

impl Locker {
    /// It ends by itself, and gives the lock back.
    fn end(mut self) {
        self.input = None;
        self.child.wait().unwrap();
    }

    /// It dies with the lock.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn lock(path: &Path) -> Locker {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite_faults::another_process_holds_the_lock", "--nocapture"])
        .env(LOCKS, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "locked"));
    Locker { child, input, _said: said }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_waited_for_not_at_all_or_without_end() {
    let (_folder, path) = new_file();
    let hasty = Sqlite::options(&path).wait_for_lock(Duration::ZERO).open().await.unwrap();
    let patient = Sqlite::options(&path).wait_for_lock(Duration::MAX).open().await.unwrap();
    let s1 = new_session(&patient, "s1").await;
    let other = lock(&path);
    let error = hasty.commit(&s1, None, entries(&["lost"])).await.unwrap_err();
    assert!(error.message().contains("locked by another process"), "{error}");
    let (store, s2) = (patient.clone(), s1.clone());
    let waiting = tokio::spawn(async move { store.commit(&s2, None, entries(&["kept"])).await });
    // Readers do not wait for a writer.
    assert!(texts(&hasty, &s1).await.is_empty());
    assert!(!waiting.is_finished());
    other.end();
    waiting.await.unwrap().unwrap();
    assert_eq!(texts(&hasty, &s1).await, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_process_locks_is_an_error_in_time_and_the_store_goes_on() {
    let (_folder, path) = new_file();
    let wait = Duration::from_millis(300);
    let store = Sqlite::options(&path).wait_for_lock(wait).open().await.unwrap();
    let s1 = new_session(&store, "s1").await;
    store.commit(&s1, None, entries(&["one"])).await.unwrap();
    let other = lock(&path);
    let started = Instant::now();
    for result in join_all((0..50).map(|_| store.commit(&s1, None, entries(&["lost"])))).await {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.message().contains("locked by another process"), "{error}");
    }
    let waited = started.elapsed();
    assert!(waited >= wait && waited < wait * 10, "{waited:?}: they wait together, not one after the other");
    assert_eq!(texts(&store, &s1).await, ["one"], "readers do not wait for a writer");
    other.end();
    store.commit(&s1, None, entries(&["two"])).await.unwrap();

    // One that dies with the lock leaves nothing behind.
    lock(&path).kill();
    store.commit(&s1, None, entries(&["three"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_given_back_in_time_is_waited_for() {
    let (_folder, path) = new_file();
    let store = Sqlite::open(&path).await.unwrap();
    let s1 = new_session(&store, "s1").await;
    let other = lock(&path);
    let write = tokio::spawn({
        let (store, s1) = (store.clone(), s1.clone());
        async move { store.commit(&s1, None, entries(&["waited"])).await }
    });
    assert!(
        tokio::time::timeout(Duration::from_millis(50), store.commit(&s1, None, Entries::new()))
            .await
            .is_err()
    );
    other.end();
    write.await.unwrap().unwrap();
    assert_eq!(texts(&store, &s1).await, ["waited"]);
}
