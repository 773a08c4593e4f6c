//! Many writers at the same time.

use std::collections::HashSet;

use futures::future::join_all;
use serde_json::json;
use umbel_core::{Error, ErrorKind, LogEntry, NewSession, SessionKey, Versions};

use super::{
    LONG, Sessions, acquire, appends_per_task, entries, finished, fresh_app, key, log, new_session, read,
    said, sets,
};

/// Tasks that work at the same time.
const TASKS: usize = 64;

/// Waits for all tasks, and fails where one failed.
async fn all<T>(tasks: impl IntoIterator<Item = tokio::task::JoinHandle<T>>) -> Vec<T> {
    join_all(tasks).await.into_iter().map(|task| task.expect("a task panicked")).collect()
}

/// Every text once, and as many as there must be.
fn assert_none_lost(entries: &[LogEntry], expected: usize) {
    let texts: Vec<String> = entries
        .iter()
        .filter_map(|entry| match entry {
            LogEntry::Event(event) => Some(event.text()),
            LogEntry::Record(_) => None,
        })
        .collect();
    let different: HashSet<&String> = texts.iter().collect();
    assert_eq!(different.len(), expected, "events are lost");
    assert_eq!(texts.len(), expected, "events are doubled");
}

pub async fn many_tasks_on_one_session_lose_nothing(store: &Sessions) {
    let session = new_session(store).await;
    let each = appends_per_task();
    let tasks = (0..TASKS).map(|task| {
        let (store, key) = (store.clone(), session.key.clone());
        tokio::spawn(async move {
            let mut versions = Vec::with_capacity(each);
            for n in 0..each {
                let written = store.commit(&key, None, entries([said(&format!("{task} {n}"))])).await;
                versions.push(written.unwrap().session);
            }
            versions
        })
    });
    let mut versions = all(tasks).await.concat();
    versions.sort_unstable();
    let expected: Vec<u64> = (1..=(TASKS * each) as u64).collect();
    assert!(versions == expected, "versions have gaps or repeat");
    assert_none_lost(&log(store, &session.key).await, TASKS * each);
}

pub async fn many_tasks_with_leases_lose_nothing(store: &Sessions) {
    let session = new_session(store).await;
    let each = appends_per_task().div_ceil(16);
    let tasks = (0..TASKS).map(|task| {
        let (store, key) = (store.clone(), session.key.clone());
        tokio::spawn(async move {
            let mut known = Versions::default();
            for n in 0..each {
                known = run(&store, &key, known, &format!("{task} {n}")).await;
            }
        })
    });
    all(tasks).await;
    let log = log(store, &session.key).await;
    assert_none_lost(&log, TASKS * each * 3);
    // One writer at a time: the entries of a run stand together.
    for run in log.chunks(4) {
        let [LogEntry::Event(first), LogEntry::Event(second), LogEntry::Event(third), LogEntry::Record(_)] =
            run
        else {
            panic!("the entries of runs are mixed: {run:?}");
        };
        assert_eq!(first.text().replace("begin", "middle"), second.text());
        assert_eq!(first.text().replace("begin", "end"), third.text());
    }
    assert_eq!(read(store, &session.key).await.versions.session, (TASKS * each * 4) as u64);
}

/// Takes the lease as soon as it is free, writes three times and gives it back.
async fn run(store: &Sessions, key: &SessionKey, known: Versions, name: &str) -> Versions {
    let part = |part: &str| said(&format!("{name} {part}"));
    let taken = loop {
        match acquire(store, key, LONG, known, entries([part("begin")])).await {
            Ok(taken) => break taken,
            Err(error) => wait_if_busy(&error).await,
        }
    };
    let versions = store.append(&taken.lease, taken.versions, entries([part("middle")])).await.unwrap();
    store.release(&taken.lease, versions, entries([part("end"), finished()])).await.unwrap()
}

async fn wait_if_busy(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::SessionBusy, "{error}");
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}

pub async fn many_sessions_at_once_lose_nothing(store: &Sessions) {
    let app = fresh_app();
    let each = appends_per_task();
    let tasks = (0..TASKS).map(|task| {
        let (store, key) = (store.clone(), key(&app, &format!("user {}", task % 8), &format!("s{task}")));
        tokio::spawn(async move {
            store.create(NewSession::new(key.clone())).await.unwrap();
            let taken = acquire(&store, &key, LONG, Versions::default(), entries([])).await.unwrap();
            let mut versions = taken.versions;
            for n in 0..each {
                let next =
                    store.append(&taken.lease, versions, entries([said(&n.to_string())])).await.unwrap();
                assert_eq!(next.session, versions.session + 1);
                versions = next;
            }
            store.release(&taken.lease, versions, entries([finished()])).await.unwrap();
            key
        })
    });
    for key in all(tasks).await {
        let log = log(store, &key).await;
        assert_eq!(log.len(), each + 1);
        assert_none_lost(&log, each);
    }
}

pub async fn shared_state_loses_no_write(store: &Sessions) {
    let app = fresh_app();
    let tasks = (0..TASKS).map(|task| {
        let (store, key) = (store.clone(), key(&app, &format!("user {}", task % 4), &format!("s{task}")));
        tokio::spawn(async move {
            store.create(NewSession::new(key.clone())).await.unwrap();
            for n in 0..4 {
                // Two scopes in both orders: stores that lock must not wait for each other for ever.
                let (user, own) = (format!("user:{task}-{n}"), format!("app:{task}-{n}"));
                let delta = if n % 2 == 0 { json!({user: n, own: n}) } else { json!({own: n, user: n}) };
                store.commit(&key, None, entries([sets(delta)])).await.unwrap();
            }
            key
        })
    });
    for key in all(tasks).await {
        let session = read(store, &key).await;
        let count =
            |prefix: &str| session.state.to_object().keys().filter(|key| key.starts_with(prefix)).count();
        assert_eq!(count("app:"), TASKS * 4);
        assert_eq!(count("user:"), TASKS);
    }
}
