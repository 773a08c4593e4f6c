//! Sessions that are looked after: found or made, changed, swept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use umbel::memory::MemoryEntry;
use umbel::{
    Clock, Confirm, Error, ErrorKind, EventFilter, FunctionTool, InMemoryMemory, LlmAgent, MemoryStore,
    NewSession, Result, Runner, RunnerBuilder, ScriptedModel, Session, SessionKey, SessionManager,
    SessionStore, Swept, SystemClock, Work,
};

use crate::support::{Spy, answer, fine, object, read, stored};

/// A clock that goes when it is told to.
#[derive(Clone, Debug)]
struct Hands(Arc<Mutex<f64>>);

impl Hands {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(SystemClock.now())))
    }

    fn forward(&self, seconds: f64) {
        *self.0.lock().unwrap() += seconds;
    }
}

impl Clock for Hands {
    fn now(&self) -> f64 {
        *self.0.lock().unwrap()
    }
}

/// A memory store that can fail, panic, and write to the session that it is given.
#[derive(Clone, Debug, Default)]
struct Moody(Arc<MoodyInner>);

#[derive(Debug, Default)]
struct MoodyInner {
    store: InMemoryMemory,
    fails: AtomicBool,
    panics: AtomicBool,
    asked: AtomicUsize,
    meddles: Mutex<Option<SessionManager>>,
}

impl MemoryStore for Moody {
    fn add<'a>(&'a self, session: &'a Session) -> Work<'a, Result<()>> {
        Work::later(async move {
            self.0.asked.fetch_add(1, Ordering::SeqCst);
            assert!(!self.0.panics.load(Ordering::SeqCst), "this store is in a mood");
            if self.0.fails.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Store, "nothing can be remembered now"));
            }
            let meddler = self.0.meddles.lock().unwrap().clone();
            if let Some(manager) = meddler {
                manager.set(&session.key, "back", true).await?;
            }
            self.0.store.add(session).await
        })
    }

    fn search<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        query: &'a str,
    ) -> Work<'a, Result<Vec<MemoryEntry>>> {
        self.0.store.search(app, user, query)
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.0.store.erase_user(app, user)
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        self.0.store.delete_older_than(app, time)
    }
}

/// Hears warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.target().starts_with("umbel")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Words(BTreeMap<&'static str, String>);
        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
        }
        let mut words = Words(BTreeMap::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(format!("{:?}", words.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn builder() -> (RunnerBuilder, Hands) {
    let clock = Hands::new();
    (Runner::builder("app", LlmAgent::new("a").model(fine())).clock(clock.clone()), clock)
}

fn runner() -> (Runner, Hands) {
    let (builder, clock) = builder();
    (builder.build().unwrap(), clock)
}

async fn exists(runner: &Runner, key: &SessionKey) -> bool {
    runner.sessions().get(key, EventFilter::default()).await.unwrap().is_some()
}

async fn ids(runner: &Runner, user: &str) -> String {
    let sessions = runner.sessions().list("app", user).await.unwrap();
    let mut ids: Vec<_> = sessions.iter().map(|session| session.key.id().to_owned()).collect();
    ids.sort();
    ids.join(" ")
}

fn swept(deleted: u64, kept: u64, failed: u64) -> Swept {
    Swept { deleted, kept, failed }
}

const HOUR: f64 = 3_600.0;

#[tokio::test]
async fn a_session_is_found_or_made() {
    let (runner, _) = runner();
    let manager = SessionManager::new(&runner);
    let first = object(json!({"k": 1, "user:u": 2}));
    let made = manager.get_or_create_with("ann", "s1", first).await.unwrap();
    assert_eq!((made.key.app(), made.key.user(), made.key.id()), ("app", "ann", "s1"));
    read(runner.run(&made.key, "hi")).await.assert_finished();
    let found = manager.get_or_create_with("ann", "s1", object(json!({"k": 9}))).await.unwrap();
    assert_eq!(found.state.get("k"), Some(&json!(1)), "the first state is for new ones");
    assert!(found.events.is_empty() && found.versions.session > 0, "it is read without events");
    let other = manager.get_or_create("ann", "s2").await.unwrap();
    assert_eq!(other.state.get("user:u"), Some(&json!(2)));
    assert_eq!(ids(&runner, "ann").await, "s1 s2");
    assert_eq!(manager.get_or_create("ann", " ").await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// A runner on a store that can be meddled with.
fn spied() -> (Runner, Hands, Spy) {
    let ((builder, clock), spy) = (builder(), Spy::default());
    (builder.sessions(spy.clone()).build().unwrap(), clock, spy)
}

#[tokio::test]
async fn a_session_that_someone_else_makes_at_the_same_time_is_found() {
    let (runner, _, spy) = spied();
    let manager = SessionManager::new(&runner);
    let key = SessionKey::new("app", "ann", "s1").unwrap();
    spy.after_next_read(move |store| {
        let theirs = NewSession::new(key).state(object(json!({"by": "them"})));
        store.create(theirs).try_now().unwrap().unwrap();
    });
    let found = manager.get_or_create_with("ann", "s1", object(json!({"by": "us"}))).await.unwrap();
    assert_eq!(found.state.get("by"), Some(&json!("them")));
}

#[tokio::test]
async fn state_is_set_read_removed_and_cleared() {
    let (runner, clock) = runner();
    let manager = SessionManager::new(&runner);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    manager.set(&key, "a", 1).await.unwrap();
    manager
        .set_all(&key, object(json!({"b": [2], "user:u": "x", "app:p": true, "ui:c": 3, "z": null})))
        .await
        .unwrap();
    assert_eq!(manager.get(&key, "a").await.unwrap(), Some(json!(1)));
    assert_eq!(manager.get(&key, "user:u").await.unwrap(), Some(json!("x")));
    assert_eq!(manager.get(&key, "never").await.unwrap(), None);
    let all = manager.state(&key).await.unwrap();
    assert_eq!(Value::Object(all), json!({"a": 1, "b": [2], "user:u": "x", "app:p": true, "ui:c": 3}));

    assert_eq!(manager.remove(&key, "a").await.unwrap(), Some(json!(1)));
    assert_eq!(manager.remove(&key, "a").await.unwrap(), None, "it is gone");
    assert_eq!(manager.remove(&key, "user:u").await.unwrap(), Some(json!("x")));
    assert_eq!(manager.get(&key, "a").await.unwrap(), None);
    manager.set(&key, "a", 4).await.unwrap();
    assert_eq!(manager.clear(&key, &["ui:", "b"]).await.unwrap(), 1);
    let left = manager.state(&key).await.unwrap();
    assert_eq!(Value::Object(left), json!({"b": [2], "ui:c": 3, "app:p": true}));
    assert_eq!(manager.clear(&key, &[]).await.unwrap(), 2);
    assert_eq!(manager.clear(&key, &[]).await.unwrap(), 0);

    // Each change is an event; what changes nothing is none.
    let events = stored(&runner, &key).await;
    assert_eq!(events.len(), 7);
    assert!(events.iter().all(|event| event.timestamp == clock.now() && !event.id.as_str().is_empty()));
    manager.set_all(&key, object(json!({}))).await.unwrap();
    assert_eq!(stored(&runner, &key).await.len(), 7);
    // A removed key is null for those who look at the state itself, as google-adk has it.
    let session = runner.sessions().get(&key, EventFilter::default()).await.unwrap().unwrap();
    assert_eq!(session.state.get("a"), Some(&Value::Null));
    // Models see nothing of it.
    read(runner.run(&key, "hi")).await.assert_finished();
}

#[tokio::test]
async fn changes_of_state_that_cannot_be_are_refused() {
    let wait = Arc::new(tokio::sync::Notify::new());
    let go_on = wait.clone();
    let slow = FunctionTool::new("slow", "", move |_: Value| {
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok(Value::Null)
        }
    });
    let model = ScriptedModel::new("m").call("slow", json!({})).text("done");
    let runner = Runner::new("app", LlmAgent::new("a").model(model).tool(slow)).unwrap();
    let manager = SessionManager::new(&runner).timeout(Duration::ZERO).max_wait(Duration::ZERO);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(manager.set(&key, "temp:x", 1).await), ErrorKind::InvalidInput);
    assert_eq!(kind(manager.set(&key, "a\0b", 1).await), ErrorKind::InvalidInput);
    let unknown = SessionKey::new("app", "ann", "nope").unwrap();
    assert_eq!(kind(manager.set(&unknown, "k", 1).await), ErrorKind::SessionNotFound);
    assert_eq!(manager.get(&unknown, "k").await.unwrap_err().kind(), ErrorKind::SessionNotFound);
    assert_eq!(manager.remove(&unknown, "k").await.unwrap_err().kind(), ErrorKind::SessionNotFound);

    let mut run = runner.run(&key, "hi");
    run.next().await.unwrap().unwrap();
    assert_eq!(kind(manager.set(&key, "k", 1).await), ErrorKind::SessionBusy);
    assert_eq!(manager.sweep().await.unwrap(), swept(0, 1, 0), "a run under way always protects");
    go_on.notify_one();
    while let Some(event) = run.next().await {
        event.unwrap();
    }
    manager.set(&key, "k", 1).await.unwrap();
}

#[tokio::test]
async fn a_change_that_is_overtaken_is_made_anew() {
    let (runner, _, spy) = spied();
    let manager = SessionManager::new(&runner);
    let first = object(json!({"a": 1, "b": 2}));
    let key = manager.get_or_create_with("ann", "s1", first).await.unwrap().key;
    let (before, theirs) = (spy.writes(), key.clone());
    spy.after_next_read(move |store| {
        let entry = umbel::LogEntry::from(umbel::RunStep::Recovered);
        store.commit(&theirs, None, [entry].into_iter().collect()).try_now().unwrap().unwrap();
    });
    assert_eq!(manager.remove(&key, "a").await.unwrap(), Some(json!(1)));
    assert_eq!(spy.writes() - before, 2, "the first was refused");
    assert_eq!(Value::Object(manager.state(&key).await.unwrap()), json!({"b": 2}));
}

#[tokio::test]
async fn idle_sessions_are_deleted_after_the_timeout() {
    let (runner, clock) = runner();
    let manager = SessionManager::new(&runner);
    let old = manager.get_or_create("ann", "old").await.unwrap().key;
    read(runner.run(&old, "hi")).await.assert_finished();
    clock.forward(1_000.0);
    let new = manager.get_or_create("bob", "new").await.unwrap().key;
    manager.set(&new, "k", 1).await.unwrap();
    assert_eq!(manager.sweep().await.unwrap(), swept(0, 0, 0), "20 minutes");
    clock.forward(201.0);
    assert_eq!(manager.sweep().await.unwrap(), swept(1, 0, 0));
    assert!(!exists(&runner, &old).await && exists(&runner, &new).await);
    let brief = SessionManager::new(&runner).timeout(Duration::from_secs(100));
    assert_eq!(brief.sweep().await.unwrap(), swept(1, 0, 0));
    assert!(!exists(&runner, &new).await);
}

#[tokio::test]
async fn a_sweep_gets_past_pages_of_protected_sessions() {
    let (builder, clock) = builder();
    let runner = builder.build().unwrap();
    let manager = SessionManager::new(&runner);
    for n in 0..2_500 {
        let key = manager.get_or_create("ann", n.to_string()).await.unwrap().key;
        if n < 1_500 {
            let known = umbel::Versions::default();
            let (owner, ttl, entries) = ("run".into(), Duration::from_secs(600), Default::default());
            runner
                .sessions()
                .acquire(umbel::store::Acquire {
                    known,
                    entries,
                    ..umbel::store::Acquire::new(key, owner, ttl)
                })
                .await
                .unwrap();
        }
    }
    clock.forward(HOUR);
    assert_eq!(manager.sweep().await.unwrap(), swept(1_000, 1_500, 0));
}

/// A runner whose agent asks before it pays, or orders what comes later.
fn waiting(model: ScriptedModel, builder: impl FnOnce(RunnerBuilder) -> RunnerBuilder) -> (Runner, Hands) {
    let pay = FunctionTool::new("pay", "", |_: Value| async { Ok(json!("paid")) }).confirm(Confirm::Always);
    let order = FunctionTool::new("order", "", |_: Value| async { Ok(Value::Null) }).long_running();
    let clock = Hands::new();
    let agent = LlmAgent::new("a").model(model).tool(pay).tool(order);
    let runner = builder(Runner::builder("app", agent).clock(clock.clone())).build().unwrap();
    (runner, clock)
}

#[tokio::test]
async fn sessions_that_wait_are_protected_for_a_time() {
    for tool in ["pay", "order"] {
        let model = ScriptedModel::new("m").call(tool, json!({}));
        let (runner, clock) = waiting(model, |builder| builder);
        let manager = SessionManager::new(&runner);
        let key = manager.get_or_create("ann", "s1").await.unwrap().key;
        read(runner.run(&key, "hi")).await;
        clock.forward(6.0 * 86_400.0);
        assert_eq!(manager.sweep().await.unwrap(), swept(0, 1, 0), "{tool}");
        clock.forward(2.0 * 86_400.0);
        let patient = manager.clone().max_wait(None);
        assert_eq!(patient.sweep().await.unwrap(), swept(0, 1, 0), "{tool}");
        assert_eq!(manager.sweep().await.unwrap(), swept(1, 0, 0), "{tool}: a week is over");
        assert!(!exists(&runner, &key).await);
    }
}

#[tokio::test]
async fn sessions_whose_question_was_answered_are_no_longer_protected() {
    for tool in ["pay", "order"] {
        let model = ScriptedModel::new("m").call(tool, json!({})).text("done");
        let (runner, clock) = waiting(model, |builder| builder);
        let manager = SessionManager::new(&runner).max_wait(None);
        let key = manager.get_or_create("ann", "s1").await.unwrap().key;
        let seen = read(runner.run(&key, "hi")).await;
        let asked =
            seen.whole().iter().rev().find_map(|event| event.long_running().first().cloned()).unwrap();
        clock.forward(HOUR);
        assert_eq!(manager.sweep().await.unwrap(), swept(0, 1, 0));
        let name = if tool == "pay" { umbel::interrupt::REQUEST_CONFIRMATION } else { tool };
        read(runner.run(&key, answer(asked.as_str(), name, json!({"confirmed": true}))))
            .await
            .assert_finished();
        clock.forward(HOUR);
        assert_eq!(manager.sweep().await.unwrap(), swept(1, 0, 0), "{tool}");
    }
}

#[tokio::test]
async fn a_run_that_stopped_in_the_middle_is_protected_for_a_time() {
    let (runner, clock) = runner();
    let manager = SessionManager::new(&runner).max_wait(Duration::from_secs(7_200));
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    let (owner, ttl, known) = ("run".into(), Duration::ZERO, umbel::Versions::default());
    let acquire = umbel::store::Acquire { known, ..umbel::store::Acquire::new(key, owner, ttl) };
    runner.sessions().acquire(acquire).await.unwrap();
    clock.forward(HOUR);
    assert_eq!(manager.sweep().await.unwrap(), swept(0, 1, 0));
    clock.forward(2.0 * HOUR);
    assert_eq!(manager.sweep().await.unwrap(), swept(1, 0, 0));
}

#[tokio::test]
async fn a_session_is_remembered_before_it_is_deleted() {
    let (builder, clock) = builder();
    let memory = Moody::default();
    let runner = builder.memory(memory.clone()).build().unwrap();
    let manager = SessionManager::new(&runner);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    read(runner.run(&key, "the blue door")).await.assert_finished();
    manager.get_or_create("ann", "empty").await.unwrap();
    clock.forward(HOUR);
    assert_eq!(manager.sweep().await.unwrap(), swept(2, 0, 0));
    let found = memory.search("app", "ann", "door").await.unwrap();
    assert_eq!(found[0].content.text(), "the blue door");
    assert_eq!(memory.0.asked.load(Ordering::SeqCst), 1, "there is nothing to remember of an empty one");

    let key = manager.get_or_create("ann", "s2").await.unwrap().key;
    read(runner.run(&key, "the red door")).await.assert_finished();
    clock.forward(HOUR);
    assert_eq!(manager.clone().remember(false).sweep().await.unwrap(), swept(1, 0, 0));
    assert_eq!(memory.search("app", "ann", "red").await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_session_that_cannot_be_remembered_stays_and_it_is_said() {
    let (builder, clock) = builder();
    let memory = Moody::default();
    let runner = builder.memory(memory.clone()).build().unwrap();
    let manager = SessionManager::new(&runner);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    read(runner.run(&key, "hi")).await.assert_finished();
    clock.forward(HOUR);
    memory.0.fails.store(true, Ordering::SeqCst);
    let warnings = Warnings::default();
    let result = manager.sweep().with_subscriber(warnings.clone()).await;
    assert_eq!(result.unwrap(), swept(0, 0, 1));
    assert!(exists(&runner, &key).await);
    let said = warnings.0.lock().unwrap().join("\n");
    assert!(said.contains("app/ann/s1") && said.contains("nothing can be remembered now"), "{said}");
    memory.0.fails.store(false, Ordering::SeqCst);
    assert_eq!(manager.sweep().await.unwrap(), swept(1, 0, 0));
}

#[tokio::test]
async fn a_session_that_someone_comes_back_to_stays() {
    let (builder, clock) = builder();
    let memory = Moody::default();
    let runner = builder.memory(memory.clone()).build().unwrap();
    let manager = SessionManager::new(&runner);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    read(runner.run(&key, "hi")).await.assert_finished();
    clock.forward(HOUR);
    *memory.0.meddles.lock().unwrap() = Some(manager.clone());
    assert_eq!(manager.sweep().await.unwrap(), swept(0, 1, 0));
    assert_eq!(manager.get(&key, "back").await.unwrap(), Some(json!(true)));
}

#[tokio::test]
async fn a_user_keeps_the_newest_sessions() {
    let (builder, clock) = builder();
    let memory = Moody::default();
    let runner = builder.memory(memory.clone()).build().unwrap();
    let manager = SessionManager::new(&runner).sessions_per_user(2);
    for id in ["s1", "s2", "s3"] {
        let key = manager.get_or_create("ann", id).await.unwrap().key;
        read(runner.run(&key, id)).await.assert_finished();
        clock.forward(1.0);
    }
    assert_eq!(ids(&runner, "ann").await, "s2 s3");
    assert_eq!(memory.search("app", "ann", "s1").await.unwrap().len(), 1, "it was remembered");
    manager.get_or_create("ann", "s2").await.unwrap();
    manager.get_or_create("bob", "b1").await.unwrap();
    assert_eq!(
        ids(&runner, "ann").await,
        "s2 s3",
        "what is there already takes no place, and others none of hers"
    );
    let key = SessionKey::new("app", "ann", "s2").unwrap();
    manager.set(&key, "k", 1).await.unwrap();
    clock.forward(1.0);
    let made = manager.get_or_create("ann", "s4").await.unwrap().key;
    manager.set(&made, "k", 1).await.unwrap();
    assert_eq!(ids(&runner, "ann").await, "s2 s4", "the one that is idle for longest goes");
    manager.clone().sessions_per_user(None).get_or_create("ann", "s5").await.unwrap();
    assert_eq!(ids(&runner, "ann").await, "s2 s4 s5");
}

#[tokio::test]
async fn the_limit_of_a_user_spares_what_waits() {
    let model = ScriptedModel::new("m").call("pay", json!({})).call("pay", json!({})).text("fine");
    let (runner, clock) = waiting(model, |builder| builder);
    let manager = SessionManager::new(&runner).sessions_per_user(2);
    for id in ["s1", "s2", "s3"] {
        let key = manager.get_or_create("ann", id).await.unwrap().key;
        read(runner.run(&key, "hi")).await;
        clock.forward(1.0);
    }
    assert_eq!(ids(&runner, "ann").await, "s1 s2 s3", "nobody loses an open question");
    manager.get_or_create("ann", "s4").await.unwrap();
    assert_eq!(ids(&runner, "ann").await, "s1 s2 s4");
}

/// Until something is so; a test that waits for ever fails.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3_600), waiting).await.expect("it comes to pass");
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_sweeps_now_and_then_and_survives_what_goes_wrong() {
    let (builder, clock) = builder();
    let memory = Moody::default();
    let runner = builder.memory(memory.clone()).build().unwrap();
    let manager = SessionManager::new(&runner).sweep_every(Duration::from_secs(60));
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    read(runner.run(&key, "hi")).await.assert_finished();
    clock.forward(HOUR);
    memory.0.panics.store(true, Ordering::SeqCst);
    let (started, asked) = (tokio::time::Instant::now(), || memory.0.asked.load(Ordering::SeqCst));
    let sweeper = manager.start().unwrap();
    until(async || asked() == 1).await;
    memory.0.panics.store(false, Ordering::SeqCst);
    memory.0.fails.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(asked(), 2);
    assert!(exists(&runner, &key).await);
    memory.0.fails.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!exists(&runner, &key).await);
    assert_eq!(asked(), 3);
    sweeper.stop().await;
    assert!(started.elapsed() < Duration::from_secs(180));
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_tries_again_when_the_store_is_back() {
    let (runner, clock, spy) = spied();
    let manager = SessionManager::new(&runner);
    let key = manager.get_or_create("ann", "s1").await.unwrap().key;
    clock.forward(HOUR);
    spy.fail_next_idle();
    assert_eq!(manager.sweep().await.unwrap_err().kind(), ErrorKind::Store);
    spy.fail_next_idle();
    let sweeper = manager.start().unwrap();
    until(async || spy.idle_has_failed()).await;
    assert!(exists(&runner, &key).await);
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert!(!exists(&runner, &key).await, "five minutes later");
    sweeper.stop().await;
}

#[tokio::test]
async fn a_session_is_made_even_if_no_room_can_be() {
    let (runner, _, spy) = spied();
    let manager = SessionManager::new(&runner).sessions_per_user(1);
    manager.get_or_create("ann", "s1").await.unwrap();
    spy.fail_next_idle();
    manager.get_or_create("ann", "s2").await.unwrap();
    assert_eq!(ids(&runner, "ann").await, "s1 s2");
    manager.get_or_create("ann", "s3").await.unwrap();
    assert_eq!(ids(&runner, "ann").await, "s3");
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_leaves_nothing_behind() {
    for drops in [true, false] {
        let (runner, clock) = runner();
        let manager = SessionManager::new(&runner);
        let before = Arc::strong_count(runner.services());
        let sweeper = manager.start().unwrap();
        let key = manager.get_or_create("ann", "s1").await.unwrap().key;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(runner.services()), before + 1);
        if drops {
            drop(sweeper);
            until(async || Arc::strong_count(runner.services()) == before).await;
        } else {
            sweeper.stop().await;
            assert_eq!(Arc::strong_count(runner.services()), before);
        }
        clock.forward(HOUR);
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(exists(&runner, &key).await, "nobody sweeps any more");
    }
}

#[test]
fn a_sweeper_needs_a_runtime() {
    let (runner, _) = runner();
    let error = SessionManager::new(&runner).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.message().contains("tokio"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_sweeps_what_this_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let open = async || {
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        let model = ScriptedModel::new("m").call("pay", json!({})).text("fine");
        waiting(model, |builder| builder.sessions(store.clone()).memory(store))
    };
    let (first, _) = open().await;
    let manager = SessionManager::new(&first);
    let asks = manager.get_or_create("ann", "asks").await.unwrap().key;
    let quiet = manager.get_or_create("ann", "quiet").await.unwrap().key;
    read(first.run(&asks, "please pay")).await;
    read(first.run(&quiet, "good morning")).await.assert_finished();
    drop((manager, first));

    let (second, clock) = open().await;
    clock.forward(HOUR);
    let manager = SessionManager::new(&second);
    // What the index of the store tells is what the log tells.
    let inbox = second.sessions().open_questions("app", Some("ann")).await.unwrap();
    let open: Vec<_> = inbox.iter().map(|open| open.interrupt.clone()).collect();
    assert_eq!(inbox[0].key, asks);
    assert_eq!(open, second.open_questions(&asks).await.unwrap());
    assert_eq!(manager.sweep().await.unwrap(), swept(1, 1, 0));
    assert!(exists(&second, &asks).await && !exists(&second, &quiet).await);
    let memory = second.services().memory.clone().unwrap();
    assert_eq!(memory.search("app", "ann", "morning").await.unwrap().len(), 1);
}
