//! Two processes that write at the same time: the tests start themselves a second time.
//!
//! Each of 64 tasks in each process appends 12 times, or as often as `UMBEL_CONTRACT_APPENDS` says.

use std::collections::{HashMap, HashSet};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_core::store::{Acquire, Acquired, Entries};
use umbel_core::{
    Content, ErrorKind, Event, LogEntry, NewSession, RunId, SessionKey, SessionStore, Source, Versions,
};
use umbel_stores::contract;

/// Tells the second process what to do: the address of the store, an app of its own and the kind of work.
const VARIABLE: &str = "UMBEL_TEST_SECOND_PROCESS";

/// Tasks of each process.
const TASKS: usize = 64;

/// Appends under one lease.
const LEASE: usize = 4;

/// What both processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All tasks append to one session, without a lease.
    Commits,
    /// All tasks have runs in one session, of which one at a time can have the lease.
    Runs,
    /// A task of each process has runs in one of 64 sessions.
    Sessions,
}

impl Kind {
    fn appends(self) -> usize {
        let appends = std::env::var("UMBEL_CONTRACT_APPENDS").ok().and_then(|text| text.parse().ok());
        let appends: usize = appends.unwrap_or(12);
        // Whoever waits for the lease of the one session asks again and again.
        if self == Self::Runs { appends.div_ceil(16).next_multiple_of(LEASE) } else { appends }
    }

    /// How long a task waits that found the lease taken: where many ask, they must not be in the way of who has it.
    fn pause(self) -> Duration {
        Duration::from_millis(if self == Self::Runs { 400 } else { 10 })
    }

    fn session(self, app: &str, task: usize) -> SessionKey {
        let name = if self == Self::Sessions { format!("s{task}") } else { "s".to_owned() };
        SessionKey::new(app, "ann", name).unwrap()
    }
}

fn said(text: &str) -> Entries {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    event.content = Some(Arc::new(Content::model(text)));
    [LogEntry::Event(Arc::new(event))].into_iter().collect()
}

/// One process's share of the work. Panics where a version is not that of what was written.
async fn work(store: Arc<dyn SessionStore>, app: &str, kind: Kind, process: &str) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, session) = (store.clone(), kind.session(app, task));
            let name = format!("{process} {task}");
            tokio::spawn(async move {
                let mut told = Vec::with_capacity(kind.appends());
                match kind {
                    Kind::Commits => {
                        for n in 0..kind.appends() {
                            let text = format!("{name} {n}");
                            let versions = store.commit(&session, None, said(&text)).await.unwrap();
                            told.push((versions.session, text));
                        }
                    }
                    Kind::Runs | Kind::Sessions => {
                        let mut known = Versions::default();
                        for first in (0..kind.appends()).step_by(LEASE) {
                            let texts = (first..first + LEASE).map(|n| format!("{name} {n}")).collect();
                            known = run(&*store, &session, known, texts, &mut told, kind.pause()).await;
                        }
                    }
                }
                (session, told)
            })
        })
        .collect();
    let mut logs: HashMap<SessionKey, Vec<String>> = HashMap::new();
    for task in futures::future::join_all(tasks).await {
        let (session, told) = task.unwrap();
        if !logs.contains_key(&session) {
            logs.insert(session.clone(), texts(&*store, &session).await);
        }
        let log = &logs[&session];
        for (version, text) in told {
            assert_eq!(log[version as usize - 1], text, "entry {version} of {session} is another");
        }
    }
}

/// Takes the lease as soon as it is free, appends each text and gives it back.
async fn run(
    store: &dyn SessionStore,
    session: &SessionKey,
    known: Versions,
    texts: Vec<String>,
    told: &mut Vec<(u64, String)>,
    pause: Duration,
) -> Versions {
    let Acquired { lease, mut versions, .. } = loop {
        let acquire = Acquire {
            known,
            entries: said(&texts[0]),
            ..Acquire::new(session.clone(), "tester".into(), Duration::from_secs(60))
        };
        match store.acquire(acquire).await {
            Ok(taken) => break taken,
            Err(error) => assert_eq!(error.kind(), ErrorKind::SessionBusy, "{error}"),
        }
        tokio::time::sleep(pause).await;
    };
    told.push((versions.session, texts[0].clone()));
    for (n, text) in texts.iter().enumerate().skip(1) {
        versions = if n + 1 < texts.len() {
            store.append(&lease, versions, said(text)).await.unwrap()
        } else {
            store.release(&lease, versions, said(text)).await.unwrap()
        };
        told.push((versions.session, text.clone()));
    }
    versions
}

async fn texts(store: &dyn SessionStore, session: &SessionKey) -> Vec<String> {
    let news = store.news(session, Versions::default()).await.unwrap().unwrap();
    let texts = news.entries.iter().map(|entry| match entry {
        LogEntry::Event(event) => event.text(),
        LogEntry::Record(record) => panic!("a record that nobody wrote: {record:?}"),
    });
    texts.collect()
}

/// The second process, if that is what this one is.
#[test]
fn a_second_process_does_its_share() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let [url, app, kind] = told.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let kinds = [Kind::Commits, Kind::Runs, Kind::Sessions];
    let kind = kinds.into_iter().find(|known| format!("{known:?}") == kind).unwrap();
    contract::block_on(async {
        let stores = umbel_stores::open(url).await.unwrap();
        work(stores.sessions, app, kind, "second").await;
    });
}

fn start_second(url: &str, app: &str, kind: Kind) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes::a_second_process_does_its_share", "--nocapture"])
        .env(VARIABLE, format!("{url} {app} {kind:?}"))
        .spawn()
        .unwrap()
}

/// Both processes at once, and what they left.
// Whoever asks for more than the usual wants to know how long it took.
#[allow(clippy::print_stderr)]
pub(crate) fn lose_nothing(url: &str) {
    contract::block_on(async {
        let store = umbel_stores::open(url).await.unwrap().sessions;
        for kind in [Kind::Commits, Kind::Runs, Kind::Sessions] {
            let app = contract::fresh_app();
            let sessions: HashSet<SessionKey> = (0..TASKS).map(|task| kind.session(&app, task)).collect();
            for session in &sessions {
                store.create(NewSession::new(session.clone())).await.unwrap();
            }
            let started = Instant::now();
            let mut second = start_second(url, &app, kind);
            work(store.clone(), &app, kind, "first").await;
            let ended = tokio::task::spawn_blocking(move || second.wait().unwrap()).await.unwrap();
            assert!(ended.success(), "the second process failed");
            let expected = 2 * TASKS * kind.appends();
            let mut found = Vec::new();
            for session in &sessions {
                // A log with a hole could not be read.
                let log = texts(&*store, session).await;
                assert_eq!(log.len(), expected / sessions.len());
                if kind != Kind::Commits {
                    // One writer at a time: what was written under a lease stands together.
                    let author = |text: &String| text.rsplit_once(' ').unwrap().0.to_owned();
                    assert!(
                        log.chunks(LEASE).all(|run| run.iter().all(|text| author(text) == author(&run[0])))
                    );
                }
                found.extend(log);
            }
            let different: HashSet<&String> = found.iter().collect();
            assert_eq!((found.len(), different.len()), (expected, expected));
            let seconds = started.elapsed().as_secs_f64();
            let each = expected as f64 / seconds;
            eprintln!(
                "{kind:?}: {expected} appends of two processes in {seconds:.1} s, {each:.0} per second"
            );
        }
    });
}
