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

/// How often each is measured.
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
        let taken = store.acquire(Acquire { known, entries, ..Acquire::new(key, owner, ttl) }).await.unwrap();
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

/// How long each of some things took.
#[derive(Default)]
struct Waits {
    each: Vec<Duration>,
    /// From the first to the last, while several may be under way.
    all: Duration,
}

impl Waits {
    fn add(&mut self, each: Vec<Duration>, all: Duration) {
        self.each.extend(each);
        self.all += all;
    }

    fn told(&mut self) -> Value {
        self.each.sort();
        let at = |part: usize| self.each[(self.each.len() - 1) * part / 100].as_micros() as u64;
        let rate = self.each.len() as f64 / self.all.as_secs_f64();
        json!({ "p50": at(50), "p99": at(99), "per_second": rate as u64 })
    }
}

/// Waits in microseconds and rates: of 64 sessions together, of one alone, and of syncs on the disk of a folder. They take
/// turns, since a disk is not the same at all times.
pub fn rate(url: &str, folder: &str) -> Value {
    const EACH: usize = 100;
    const ALONE: usize = 300;
    let file = File::create(Path::new(folder).join("sync")).unwrap();
    file.write_all_at(&vec![b'x'; 4096 * ALONE], 0).unwrap();
    file.sync_all().unwrap();
    let (mut syncs, mut grouped, mut single, mut commits) =
        (Waits::default(), Waits::default(), Waits::default(), 0);
    runtime().block_on(async {
        let store = umbel_stores::open(url).await.unwrap().sessions;
        let mut alone = Writer::open(&store, "alone".to_owned()).await;
        let mut writers = writers(&store).await;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            syncs.add(sync(&file, ALONE), started.elapsed());
            let before = commits::so_far(url).await;
            let waits;
            let started = Instant::now();
            (writers, waits) = together(writers, EACH).await;
            grouped.add(waits, started.elapsed());
            commits += commits::so_far(url).await - before;
            let started = Instant::now();
            let waits = alone.append(ALONE).await;
            single.add(waits, started.elapsed());
        }
    });
    let events_per_commit = grouped.each.len() as u64 / commits.max(1);
    json!({
        "sync": syncs.told(), "together": grouped.told(), "alone": single.told(),
        "events_per_commit": events_per_commit,
    })
}
