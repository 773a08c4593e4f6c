//! How fast events are appended, beside what one fsync of the same disk takes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use umbel::store::{Acquire, Entries};
use umbel::{Content, Event, Lease, LogEntry, NewSession, RunId, SessionKey, SessionStore, Source, Versions};

use crate::commits;

/// Sessions that are busy at once.
const SESSIONS: usize = 64;

/// What is measured more than once, since the disk is not always the same.
const ROUNDS: usize = 7;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A session to append to.
struct Writer {
    store: Arc<dyn SessionStore>,
    lease: Lease,
    versions: Versions,
}

impl Writer {
    async fn open(store: &Arc<dyn SessionStore>, name: String) -> Self {
        let key = SessionKey::new("bench", "user", name).unwrap();
        store.create(NewSession::new(key.clone())).await.unwrap();
        let (owner, ttl, known, entries) =
            ("bench".into(), Duration::from_secs(600), Versions::default(), Entries::new());
        let taken = store.acquire(Acquire { key, owner, ttl, known, entries }).await.unwrap();
        Self { store: store.clone(), lease: taken.lease, versions: taken.versions }
    }

    /// Appends so many events of 1 kB one after the other, and tells how long each took.
    async fn append(&mut self, count: usize) -> Vec<Duration> {
        let mut waits = Vec::with_capacity(count);
        for _ in 0..count {
            let mut event = Event::new(RunId::from("run-1"), Source::user());
            event.id = format!("event-{}", self.versions.session).into();
            event.content = Some(Arc::new(Content::user("x".repeat(1_000).as_str())));
            let entries = [LogEntry::Event(Arc::new(event))].into_iter().collect();
            let started = Instant::now();
            self.versions = self.store.append(&self.lease, self.versions, entries).await.unwrap();
            waits.push(started.elapsed());
        }
        waits
    }
}

async fn writers(store: &Arc<dyn SessionStore>) -> Vec<Writer> {
    futures::future::join_all((0..SESSIONS).map(|n| Writer::open(store, format!("session-{n}")))).await
}

/// All at once, so many events each. Gives the writers back, and how long each append took.
async fn together(writers: Vec<Writer>, each: usize) -> (Vec<Writer>, Vec<Duration>) {
    let tasks = writers.into_iter().map(|mut writer| {
        tokio::spawn(async move {
            let waits = writer.append(each).await;
            (writer, waits)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut writers, mut all) = (Vec::new(), Vec::new());
    for task in tasks {
        let (writer, waits) = task.await.unwrap();
        writers.push(writer);
        all.extend(waits);
    }
    (writers, all)
}

/// So many appends by each of the sessions, and nothing else.
pub fn at_once(file: &str, each: usize) {
    runtime().block_on(async {
        let store = umbel_stores::open(&format!("sqlite:{file}")).await.unwrap().sessions;
        together(writers(&store).await, each).await;
    });
}

/// Writes a page into a file that is large enough and syncs it, as a commit of SQLite does at the least.
fn sync(file: &File, count: usize) -> Vec<Duration> {
    let page = [b'x'; 4096];
    let one = |index: usize| {
        file.write_all_at(&page, (index * page.len()) as u64).unwrap();
        let started = Instant::now();
        file.sync_data().unwrap();
        started.elapsed()
    };
    (0..count).map(one).collect()
}

/// At which time so much of the waiting was over, in microseconds.
fn at(waits: &mut [Duration], part: f64) -> u64 {
    waits.sort();
    waits[((waits.len() - 1) as f64 * part).round() as usize].as_micros() as u64
}

fn middle(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// One round: syncs of the disk, 64 sessions at once, one alone, and syncs again.
async fn round(writers: Vec<Writer>, alone: &mut Writer, file: &File, url: &str) -> (Vec<Writer>, Value) {
    const EACH: usize = 100;
    const ALONE: usize = 300;
    let mut syncs = sync(file, 150);
    let (before, started) = (commits::so_far(url).await, Instant::now());
    let (writers, mut waits) = together(writers, EACH).await;
    let grouped = waits.len() as f64 / started.elapsed().as_secs_f64();
    let groups = commits::so_far(url).await - before;
    let started = Instant::now();
    let mut waits_alone = alone.append(ALONE).await;
    let single = ALONE as f64 / started.elapsed().as_secs_f64();
    syncs.extend(sync(file, 150));
    let told = json!({
        "sync_p50": at(&mut syncs, 0.5), "sync_p99": at(&mut syncs, 0.99),
        "grouped_per_second": grouped as u64, "events_per_commit": waits.len() as u64 / groups.max(1),
        "grouped_p50": at(&mut waits, 0.5), "grouped_p99": at(&mut waits, 0.99),
        "alone_per_second": single as u64, "alone_p50": at(&mut waits_alone, 0.5), "alone_p99": at(&mut waits_alone, 0.99),
    });
    (writers, told)
}

/// Rates and waits in microseconds: the middle one of some rounds, and all of them.
pub fn rate(url: &str, folder: &str) -> Value {
    let file = File::create(Path::new(folder).join("sync")).unwrap();
    file.write_all_at(&vec![b'x'; 4096 * 300], 0).unwrap();
    file.sync_all().unwrap();
    let rounds = runtime().block_on(async {
        let store = umbel_stores::open(url).await.unwrap().sessions;
        let mut alone = Writer::open(&store, "alone".to_owned()).await;
        let mut writers = writers(&store).await;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let told;
            (writers, told) = round(writers, &mut alone, &file, url).await;
            rounds.push(told);
        }
        rounds
    });
    let names: Vec<String> = rounds[0].as_object().unwrap().keys().cloned().collect();
    let middles = names.into_iter().map(|name| {
        let values = rounds.iter().map(|round| round[&name].as_u64().unwrap()).collect();
        (name, json!(middle(values)))
    });
    let mut told = Value::Object(middles.collect());
    told["rounds"] = json!(rounds);
    told
}
