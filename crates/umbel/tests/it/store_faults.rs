//! Runs on real databases that fill up, are damaged or go away.

use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    Chunk, Clock, Content, ErrorKind, Event, FunctionTool, LlmAgent, LogEntry, ModelRequest, NewSession,
    Outcome, Response, Runner, RunnerBuilder, ScriptedModel, SessionKey, SessionStore, Source,
};
use umbel_stores::{Postgres, Sqlite};

use self::server::Server;
use crate::support::{
    Notes, assert_ended, call_with_id, calls, fine, log, outcomes, read, said, state, stored,
};

#[path = "../../../umbel-stores/tests/it/server.rs"]
mod server;

/// Calls its tool once, then says its last word. What it has done it sees by what it is sent.
fn caller(tool: FunctionTool) -> LlmAgent {
    let model = ScriptedModel::from_fn("caller", |request: &ModelRequest| {
        let has_called = request.contents.iter().rev().any(|content| content.responses().next().is_some());
        let response =
            if has_called { Response::text("done") } else { calls([call_with_id("c1", "work", json!({}))]) };
        vec![Ok(Chunk::Complete(response))]
    });
    LlmAgent::new("agent").model(model).tool(tool)
}

/// A tool that does something on the way.
fn work<F: Future<Output = Value> + Send + 'static>(
    act: impl Fn() -> F + Send + Sync + 'static,
) -> FunctionTool {
    let act = Arc::new(act);
    FunctionTool::new("work", "Works.", move |_: Value| {
        let act = act.clone();
        async move { Ok(act().await) }
    })
}

fn runner(store: impl SessionStore + 'static, agent: LlmAgent) -> RunnerBuilder {
    Runner::builder("app", agent).sessions(store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_no_longer_fits_on_the_disk_fails_with_words_and_the_next_one_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = Sqlite::options(folder.path().join("umbel.db")).max_bytes(500_000);
    let store = options.open().await.unwrap();
    let big = work(|| async { json!({"text": "x".repeat(600_000)}) });
    let runner = runner(store.clone(), caller(big)).build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let seen = read(runner.run(&key, "go")).await;
    assert_eq!(seen.kind(), ErrorKind::Store);
    assert!(seen.message().contains("disk is full"), "{}", seen.message());
    assert_eq!(seen.code(), "STORE_FAILED");
    // Of what did not fit nothing is there, and what did fit is: the reader saw the same.
    assert_ended(&runner, &key, &seen).await;
    assert_eq!(stored(&runner, &key).await[1..], seen.whole());

    let small = self::runner(store.clone(), LlmAgent::new("agent").model(fine())).build().unwrap();
    let other = small.create_session("bob").await.unwrap().key;
    for key in [&key, &other] {
        read(small.run(key, "hi")).await.assert_finished();
    }

    // So full that not even the question fits.
    let filler =
        store.create(NewSession::new(SessionKey::new("app", "filler", "s").unwrap())).await.unwrap().key;
    for size in [50_000, 5_000, 500] {
        let event = Event::new("e".into(), Arc::new(Source::new("filler")))
            .with_content(Content::user(&*"x".repeat(size)));
        let entry = || LogEntry::Event(Arc::new(event.clone()));
        while store.commit(&filler, None, [entry()].into_iter().collect()).await.is_ok() {}
    }
    let before = log(&small, &key).await;
    let question = "long ".repeat(5_000);
    let seen = read(small.run(&key, question.as_str())).await;
    assert_eq!(seen.kind(), ErrorKind::Store);
    assert!(seen.whole().is_empty());
    assert_eq!(log(&small, &key).await, before, "nothing was written");
    SessionStore::delete(&store, &filler).await.unwrap();
    read(small.run(&key, question.as_str())).await.assert_finished();
}

/// Runs until the tool works, then stops as a process does that dies: nobody winds it up.
async fn run_and_die(runner: &Runner, key: &SessionKey, notes: &Notes) {
    let mut stream = runner.run(key, "go");
    while notes.take().is_empty() {
        drop(tokio::time::timeout(Duration::from_millis(1), stream.next()).await);
    }
    std::mem::forget(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let store = Sqlite::open(&path).await.unwrap();
    let notes = Notes::default();
    let begun = notes.clone();
    let stuck = work(move || {
        begun.add("begun");
        std::future::pending()
    });
    let dying = runner(store.clone(), caller(stuck)).lease(Duration::from_millis(50)).build().unwrap();
    let [damaged, whole] = [dying.create_session("ann").await, dying.create_session("bob").await];
    let [damaged, whole] = [damaged.unwrap().key, whole.unwrap().key];
    run_and_die(&dying, &damaged, &notes).await;
    run_and_die(&dying, &whole, &notes).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    let cut_off = "UPDATE log SET body = substr(body, 1, length(body) - 5) WHERE session = 1 AND version = 2";
    assert_eq!(other.execute(cut_off, []).unwrap(), 1);

    let agent = || caller(work(|| async { json!({"worked": true}) }));
    let next = runner(store.clone(), agent()).build().unwrap();
    while store.abandoned("app").await.unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let mut recovered = next.recover().await.unwrap();
    recovered.sort_by_key(|one| one.key.user().to_owned());
    let [bad, good] = &recovered[..] else { panic!("{recovered:?}") };
    assert_eq!((&bad.key, &good.key), (&damaged, &whole));
    assert_eq!(bad.outcome.as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(*good.outcome.as_ref().unwrap(), Outcome::Finished);
    assert_eq!(outcomes(&log(&next, &whole).await), [Outcome::Finished]);

    let seen = read(next.run(&damaged, "hello?")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Corrupt, "CORRUPT"));
    assert!(seen.message().contains("entry 2 of session"), "{}", seen.message());
    read(next.run(&whole, "hello?")).await.assert_finished();
    next.delete_session(&damaged).await.unwrap();
    assert!(next.recover().await.unwrap().is_empty());
}

/// A clock that goes back an hour whenever it is looked at.
#[derive(Debug)]
struct Backwards(AtomicI64);

impl Clock for Backwards {
    fn now(&self) -> f64 {
        self.0.fetch_sub(3_600, Ordering::SeqCst) as f64
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_keep_their_order_when_the_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("umbel.db")).await.unwrap();
    let model = ScriptedModel::from_fn("counts", |request: &ModelRequest| {
        vec![Ok(Chunk::Complete(Response::text(format!("after {:?}", said(request)))))]
    });
    let make = || {
        let agent = LlmAgent::new("agent").model(model.clone());
        runner(store.clone(), agent).clock(Backwards(AtomicI64::new(1_700_000_000))).build().unwrap()
    };
    let (hot, key) = crate::support::with_session(make()).await;
    for n in 0..3 {
        read(hot.run(&key, format!("question {n}"))).await.assert_finished();
    }
    // A runner that has to read it all says the same.
    read(make().run(&key, "question 3")).await.assert_finished();
    let events = stored(&hot, &key).await;
    assert!(events.windows(2).filter(|pair| pair[0].timestamp > pair[1].timestamp).count() >= 6);
    let questions: Vec<String> =
        events.iter().filter(|event| event.is_user()).map(|event| event.text()).collect();
    assert_eq!(questions, ["question 0", "question 1", "question 2", "question 3"]);
    let last = events.last().unwrap().text();
    let mut rest = &last[..];
    for n in 0..4 {
        rest = rest.split_once(&format!("\"question {n}\"")).expect("in the order of the log").1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_may_restart_in_the_middle_of_a_run() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let store = Postgres::options(&server.url()).patience(Duration::from_secs(30)).open().await.unwrap();
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    for how in ["fast", "immediate"] {
        let restarts = server.clone();
        let restart = work(move || {
            let server = restarts.clone();
            let restart = move || {
                let _turn = ONE_AT_A_TIME.lock().unwrap();
                server.stop(how);
                server.go_on();
            };
            async move {
                tokio::task::spawn_blocking(restart).await.unwrap();
                json!({"restarted": how})
            }
        });
        let runner = runner(store.clone(), caller(restart)).build().unwrap();
        // What one of them does is done to the other.
        let keys = [runner.create_session("ann").await, runner.create_session("bob").await];
        let keys = keys.map(|session| session.unwrap().key);
        let runs = keys.iter().map(|key| read(runner.run(key, "go")));
        for (key, seen) in keys.iter().zip(futures::future::join_all(runs).await) {
            seen.assert_finished();
            assert_eq!(seen.responses(), [json!({"restarted": how})]);
            assert_eq!(stored(&runner, key).await[1..], seen.whole());
            assert_ended(&runner, key, &seen).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_away_for_long_fails_the_run_and_it_is_gone_on_with_later() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let options = Postgres::options(&server.url()).patience(Duration::from_millis(300));
    let store = options.open().await.unwrap();
    let stops = server.clone();
    let stop = work(move || {
        let server = stops.clone();
        async move {
            tokio::task::spawn_blocking(move || server.stop("fast")).await.unwrap();
            json!({"worked": 1})
        }
    });
    let first = runner(store.clone(), caller(stop)).lease(Duration::from_millis(500)).build().unwrap();
    let key = first.create_session("ann").await.unwrap().key;
    let seen = read(first.run(&key, "go")).await;
    assert_eq!(seen.kind(), ErrorKind::Store);
    assert!(seen.message().contains("PostgreSQL"), "{}", seen.message());
    server.go_on();
    let again = || caller(work(|| async { json!({"worked": 2}) }));
    let second = runner(store.clone(), again()).build().unwrap();
    let recovered = loop {
        let recovered = second.recover().await.unwrap();
        if !recovered.is_empty() {
            break recovered;
        }
    };
    assert_eq!(recovered.len(), 1);
    assert_eq!(*recovered[0].outcome.as_ref().unwrap(), Outcome::Finished);
    assert_eq!(outcomes(&log(&second, &key).await), [Outcome::Finished]);
    let events = stored(&second, &key).await;
    assert_eq!(events.iter().flat_map(|event| event.responses()).count(), 1, "the call has one answer");
    assert_eq!(state(&second, &key).await, json!({}));
    read(second.run(&key, "and now?")).await.assert_finished();
}
