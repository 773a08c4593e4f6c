//! How fast 64 busy sessions append, in groups and one at a time: `cargo run --release --example append_rate [URL]`.
//!
//! Without an address it makes a SQLite file in the working folder and removes it afterwards.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_core::store::{Acquire, Entries};
use umbel_core::{Content, Event, LogEntry, NewSession, RunId, SessionKey, SessionStore, Source, Versions};

const SESSIONS: usize = 64;
const FILE: &str = "append_rate.db";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| format!("sqlite:{FILE}"));
    let each: usize = args.next().and_then(|text| text.parse().ok()).unwrap_or(500);
    let alone = args.next().is_none_or(|text| text != "grouped");
    let store = umbel_stores::open(&url).await.unwrap().sessions;
    let run = format!("rate {}", std::process::id());

    let started = Instant::now();
    let tasks = (0..SESSIONS).map(|n| {
        let (store, key) = (store.clone(), SessionKey::new(&run, "ann", format!("s{n}")).unwrap());
        tokio::spawn(async move { append(&*store, &key, each).await })
    });
    let mut waits: Vec<Duration> = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        waits.extend(task.await.unwrap());
    }
    say("64 sessions at once", started.elapsed(), &mut waits);

    if alone {
        let started = Instant::now();
        let key = SessionKey::new(&run, "ann", "alone").unwrap();
        let mut waits = append(&*store, &key, each.min(1_000)).await;
        say("one commit per event", started.elapsed(), &mut waits);
    }
    drop(store);
    for ending in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(format!("{FILE}{ending}")));
    }
}

fn say(what: &str, took: Duration, waits: &mut [Duration]) {
    waits.sort();
    let rate = waits.len() as f64 / took.as_secs_f64();
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).copied().unwrap_or_default();
    println!("{what}: {} events, {rate:.0}/s, median {:?}, p99 {:?}", waits.len(), at(0.5), at(0.99));
}

/// Appends so many events of 1 kB one after the other, and tells how long each took.
async fn append(store: &dyn SessionStore, key: &SessionKey, count: usize) -> Vec<Duration> {
    store.create(NewSession::new(key.clone())).await.unwrap();
    let (owner, ttl, known) = ("rate".into(), Duration::from_secs(600), Versions::default());
    let entries = Entries::new();
    let taken = store.acquire(Acquire { key: key.clone(), owner, ttl, known, entries }).await.unwrap();
    let (mut versions, mut waits) = (taken.versions, Vec::with_capacity(count));
    for n in 0..count {
        let mut event = Event::new(RunId::from("e-1"), Source::user());
        event.id = format!("{n}").into();
        event.content = Some(Arc::new(Content::user("x".repeat(1_000).as_str())));
        let started = Instant::now();
        let entries = [LogEntry::Event(Arc::new(event))].into_iter().collect();
        versions = store.append(&taken.lease, versions, entries).await.unwrap();
        waits.push(started.elapsed());
    }
    waits
}
