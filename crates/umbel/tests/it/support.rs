//! What the tests share: reading a run to its end, reading the log, a store that can be watched.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use umbel::store::{
    Abandoned, Acquire, Acquired, Entries, Idle, IdleFilter, News, OpenQuestion, StoredUsage,
};
use umbel::{
    Agent, Content, Error, ErrorKind, Event, EventFilter, FunctionCall, FunctionResponse, FunctionTool,
    InMemorySessions, Interrupt, Lease, LogEntry, ModelRequest, NewSession, Object, Outcome, Part, Response,
    Result, Role, RunConfig, RunLimits, RunStep, RunStream, Runner, ScriptedModel, Session, SessionKey,
    SessionStore, Versions, Work,
};

/// All that a run gave.
#[derive(Debug)]
pub(crate) struct Seen {
    /// All events, previews included.
    pub(crate) events: Vec<Arc<Event>>,
    pub(crate) error: Option<Error>,
    pub(crate) outcome: Outcome,
}

impl Seen {
    /// The events without previews.
    pub(crate) fn whole(&self) -> Vec<Arc<Event>> {
        self.events.iter().filter(|event| !event.is_partial()).cloned().collect()
    }

    pub(crate) fn partial(&self) -> Vec<Arc<Event>> {
        self.events.iter().filter(|event| event.is_partial()).cloned().collect()
    }

    /// Who said what, of whole events with text.
    pub(crate) fn texts(&self) -> Vec<(String, String)> {
        let said = self.whole().into_iter().map(|event| (event.author().to_owned(), event.text()));
        said.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// What tools answered, in order.
    pub(crate) fn responses(&self) -> Vec<Value> {
        responses(&self.whole())
    }

    /// The only tool answer's error.
    pub(crate) fn tool_error(&self) -> String {
        let responses = self.responses();
        assert_eq!(responses.len(), 1, "{responses:?}");
        responses[0]["error"].as_str().expect("an error").to_owned()
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.error.as_ref().expect("an error").kind()
    }

    /// The code of a failed run.
    pub(crate) fn code(&self) -> &str {
        match &self.outcome {
            Outcome::Failed { failure } => &failure.code,
            other => panic!("not failed but {other:?}"),
        }
    }

    /// What a failed run says.
    pub(crate) fn message(&self) -> &str {
        self.error.as_ref().expect("an error").message()
    }

    /// What an interrupted run asks.
    pub(crate) fn interrupts(&self) -> &[Interrupt] {
        match &self.outcome {
            Outcome::Interrupted { interrupts } => interrupts,
            other => panic!("not interrupted but {other:?}"),
        }
    }

    pub(crate) fn assert_finished(&self) -> &Self {
        assert_eq!((&self.outcome, self.error.as_ref().map(Error::message)), (&Outcome::Finished, None));
        self
    }
}

pub(crate) fn responses(events: &[Arc<Event>]) -> Vec<Value> {
    let all = events.iter().flat_map(|event| event.responses());
    all.map(|response| Value::Object(response.response.clone().unwrap_or_default())).collect()
}

/// Reads a run to its end.
pub(crate) async fn read(mut stream: RunStream) -> Seen {
    let (mut events, mut error) = (Vec::new(), None);
    while let Some(item) = stream.next().await {
        assert!(error.is_none(), "an error is the last item");
        match item {
            Ok(event) => events.push(event),
            Err(failure) => error = Some(failure),
        }
    }
    let outcome = stream.outcome().expect("an outcome").clone();
    Seen { events, error, outcome }
}

/// A runner of that agent with a session.
pub(crate) async fn begin(agent: impl Agent + 'static) -> (Runner, SessionKey) {
    with_session(Runner::new("app", agent).unwrap()).await
}

pub(crate) async fn with_session(runner: Runner) -> (Runner, SessionKey) {
    let key = runner.create_session("ann").await.unwrap().key;
    (runner, key)
}

/// One run of a new runner, read to its end.
pub(crate) async fn run_once(agent: impl Agent + 'static) -> Seen {
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await
}

/// The session can be written to: no run holds it.
pub(crate) async fn assert_free(runner: &Runner, key: &SessionKey) {
    let entries = Default::default();
    runner.sessions().commit(key, None, entries).await.expect("the session is free");
}

/// The log has one outcome, the one that the reader got, and the session is free.
pub(crate) async fn assert_ended(runner: &Runner, key: &SessionKey, seen: &Seen) {
    assert_eq!(outcomes(&log(runner, key).await), std::slice::from_ref(&seen.outcome));
    assert_free(runner, key).await;
}

/// The whole log.
pub(crate) async fn log(runner: &Runner, key: &SessionKey) -> Vec<LogEntry> {
    runner.sessions().news(key, Versions::default()).await.unwrap().expect("a session").entries
}

pub(crate) async fn stored(runner: &Runner, key: &SessionKey) -> Vec<Arc<Event>> {
    let session = runner.sessions().get(key, EventFilter::default()).await.unwrap().expect("a session");
    session.events.iter().cloned().collect()
}

/// The stored events of one run, without the user's.
pub(crate) async fn stored_answers(runner: &Runner, key: &SessionKey) -> Vec<Arc<Event>> {
    stored(runner, key).await.into_iter().filter(|event| !event.is_user()).collect()
}

/// The outcomes in a log, in order. Each is the last record of its run, and no run has two.
pub(crate) fn outcomes(log: &[LogEntry]) -> Vec<Outcome> {
    let mut ended = Vec::new();
    let mut outcomes = Vec::new();
    let mut run = None;
    for entry in log {
        if let LogEntry::Event(event) = entry {
            run = Some(&event.run);
        }
        if let LogEntry::Record(record) = entry
            && let RunStep::Continued { continued } = &**record
        {
            run = Some(&continued.run);
        }
        let run = run.expect("a record belongs to the run of the event before it");
        assert!(!ended.contains(run), "nothing comes after the outcome of a run");
        if let LogEntry::Record(record) = entry
            && let RunStep::Ended { outcome } = &**record
        {
            ended.push(run.clone());
            outcomes.push(outcome.clone());
        }
    }
    outcomes
}

pub(crate) async fn state(runner: &Runner, key: &SessionKey) -> Value {
    let session = runner.sessions().get(key, EventFilter::default()).await.unwrap().expect("a session");
    Value::Object(session.state.to_object())
}

pub(crate) fn object(value: Value) -> Object {
    let Value::Object(object) = value else { panic!("not an object: {value}") };
    object
}

/// A model's wish to call, with an id of the model's.
pub(crate) fn call_with_id(id: &str, name: &str, args: Value) -> Part {
    Part::call(FunctionCall::new(name, object(args)).with_id(id))
}

pub(crate) fn calls(parts: impl IntoIterator<Item = Part>) -> Response {
    Response::new(Content::new(Role::Model, parts))
}

/// The user's answer to a call.
pub(crate) fn answer(id: &str, name: &str, response: Value) -> Content {
    let response = FunctionResponse::new(Some(id.into()), name, object(response));
    Content::new(Role::User, [Part::response(response)])
}

/// A tool that gives its arguments back.
pub(crate) fn echo() -> FunctionTool {
    FunctionTool::new("echo", "Says it again.", |args: Value| async move { Ok(args) })
}

/// Says "fine" to everything.
pub(crate) fn fine() -> ScriptedModel {
    ScriptedModel::from_fn("fine", |_| vec![Ok(umbel::Chunk::Complete(Response::text("fine")))]).recorded()
}

/// The texts of a request's messages.
pub(crate) fn said(request: &ModelRequest) -> Vec<String> {
    request.contents.iter().map(|content| content.text()).collect()
}

pub(crate) fn config(limits: RunLimits) -> RunConfig {
    RunConfig { limits, ..RunConfig::default() }
}

pub(crate) fn streaming() -> RunConfig {
    RunConfig { streaming: true, ..RunConfig::default() }
}

pub(crate) fn quick() -> RunLimits {
    RunLimits { grace: Duration::from_millis(30), ..RunLimits::default() }
}

/// Notes taken in callbacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// The notes so far, taken out.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A store that counts its writes, and can be slow or fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spy(Arc<SpyInner>);

#[derive(Debug, Default)]
struct SpyInner {
    store: Arc<InMemorySessions>,
    writes: AtomicUsize,
    slow: AtomicBool,
    failing: AtomicBool,
    /// The answers of so many writes are lost: they are done and fail.
    unanswered: AtomicUsize,
    /// Operations that never answer.
    hanging: Mutex<Vec<(Operation, Arc<tokio::sync::Notify>)>>,
    idle_fails: AtomicBool,
    meddler: Meddler,
    /// The write in which its process dies; the first is 1.
    last: Option<Death>,
    died: tokio::sync::Notify,
    /// What another process does just before the next lease is taken.
    meanwhile: Mutex<Option<Meanwhile>>,
}

struct Meanwhile(Box<dyn FnOnce(&InMemorySessions) + Send>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// Does something behind a reader's back, once.
#[derive(Default)]
struct Meddler(Mutex<Option<Box<dyn FnOnce(&InMemorySessions) + Send>>>);

impl std::fmt::Debug for Meddler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddler")
    }
}

/// When the process of a store dies: before that write, or when it is done and nobody knows yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Death {
    Before(usize),
    After(usize),
}

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Acquire,
    Append,
    Release,
    Heartbeat,
}

impl Spy {
    pub(crate) fn writes(&self) -> usize {
        self.0.writes.load(Ordering::SeqCst)
    }

    /// The store itself, which answers at once.
    pub(crate) fn memory(&self) -> Arc<InMemorySessions> {
        self.0.store.clone()
    }

    /// Every write waits a little, as a database does.
    pub(crate) fn slow(self) -> Self {
        self.0.slow.store(true, Ordering::SeqCst);
        self
    }

    /// The next append fails.
    pub(crate) fn fail_next_append(&self) {
        self.0.failing.store(true, Ordering::SeqCst);
    }

    /// The next writes are done, and their answers are lost.
    pub(crate) fn lose_answers(&self, count: usize) {
        self.0.unanswered.store(count, Ordering::SeqCst);
    }

    /// An operation does not answer until whoever waits for this is notified.
    pub(crate) fn hang(&self, operation: Operation) -> Arc<tokio::sync::Notify> {
        let answers = Arc::<tokio::sync::Notify>::default();
        self.0.hanging.lock().unwrap().push((operation, answers.clone()));
        answers
    }

    /// Operations answer again; those that hang already do not.
    pub(crate) fn stop_hanging(&self) {
        self.0.hanging.lock().unwrap().clear();
    }

    async fn answers(&self, operation: Operation) {
        let hanging = self.0.hanging.lock().unwrap().clone();
        if let Some((_, answers)) = hanging.iter().find(|(hanging, _)| *hanging == operation) {
            answers.notified().await;
            self.0.hanging.lock().unwrap().retain(|(hanging, _)| *hanging != operation);
        }
    }

    /// What the caller is told of a write.
    fn told<T>(&self, done: Result<T>) -> Result<T> {
        let lost =
            self.0.unanswered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if lost.is_ok() { Err(Error::new(ErrorKind::Store, "the connection broke")) } else { done }
    }

    /// The next search for idle sessions fails.
    pub(crate) fn fail_next_idle(&self) {
        self.0.idle_fails.store(true, Ordering::SeqCst);
    }

    /// Whether that came to pass.
    pub(crate) fn idle_has_failed(&self) -> bool {
        !self.0.idle_fails.load(Ordering::SeqCst)
    }

    /// Does something right after a session is read the next time.
    pub(crate) fn after_next_read(&self, work: impl FnOnce(&InMemorySessions) + Send + 'static) {
        *self.0.meddler.0.lock().unwrap() = Some(Box::new(work));
    }

    /// Another process does this just before the next lease is taken.
    pub(crate) fn meanwhile(&self, act: impl FnOnce(&InMemorySessions) + Send + 'static) {
        *self.0.meanwhile.lock().unwrap() = Some(Meanwhile(Box::new(act)));
    }

    /// Nothing happens any more.
    async fn die<T>(&self) -> T {
        self.0.died.notify_one();
        std::future::pending().await
    }

    /// The same store in a process that dies.
    pub(crate) fn dying(&self, death: Option<Death>) -> Self {
        Self(Arc::new(SpyInner { store: self.0.store.clone(), last: death, ..SpyInner::default() }))
    }

    /// Done when the process died.
    pub(crate) async fn died(&self) {
        self.0.died.notified().await;
    }

    /// Writes, unless the process died. The store in memory writes when it is asked, so it is asked here.
    async fn write<'a, T>(&self, work: impl FnOnce() -> Work<'a, T>) -> T {
        let number = self.0.writes.fetch_add(1, Ordering::SeqCst) + 1;
        match self.0.last {
            Some(Death::Before(last)) if number >= last => return self.die().await,
            Some(Death::After(last)) if number >= last => {
                if number == last {
                    work().await;
                }
                return self.die().await;
            }
            _ => {}
        }
        if self.0.slow.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        work().await
    }
}

impl SessionStore for Spy {
    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        if self.0.last.is_none() {
            return self.0.store.create(new);
        }
        Work::later(async move { self.write(|| self.0.store.create(new)).await })
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        let read = self.0.store.get(key, filter);
        let meddler = self.0.meddler.0.lock().unwrap().take();
        if let Some(meddle) = meddler {
            meddle(&self.0.store);
        }
        read
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        self.0.store.list(app, user)
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        self.0.store.delete(key)
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        self.0.store.user_state(app, user)
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        self.0.store.news(key, known)
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        let meanwhile = self.0.meanwhile.lock().unwrap().take();
        if let Some(Meanwhile(act)) = meanwhile {
            act(&self.0.store);
        }
        Work::later(async move {
            self.answers(Operation::Acquire).await;
            self.write(|| self.0.store.acquire(acquire)).await
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        if self.0.last.is_some_and(|death| {
            self.writes()
                >= match death {
                    Death::Before(last) | Death::After(last) => last,
                }
        }) {
            return Work::later(self.die());
        }
        Work::later(async move {
            self.answers(Operation::Heartbeat).await;
            self.0.store.heartbeat(lease, ttl).await
        })
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        if self.0.failing.swap(false, Ordering::SeqCst) {
            return Work::done(Err(Error::new(ErrorKind::Store, "the disk is full")));
        }
        Work::later(async move {
            self.answers(Operation::Append).await;
            self.told(self.write(|| self.0.store.append(lease, expected, entries)).await)
        })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(async move {
            self.answers(Operation::Release).await;
            self.told(self.write(|| self.0.store.release(lease, expected, entries)).await)
        })
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        Work::later(async move { self.write(|| self.0.store.commit(key, expected, entries)).await })
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        self.0.store.abandoned(app)
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        self.0.store.delete_unchanged(key, expected)
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.0.store.erase_user(app, user)
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        self.0.store.open_questions(app, user)
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        if self.0.idle_fails.swap(false, Ordering::SeqCst) {
            return Work::done(Err(Error::new(ErrorKind::Store, "the disk is gone")));
        }
        self.0.store.idle(app, filter)
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        self.0.store.summary(key)
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        self.0.store.usage(app, user)
    }
}

/// The usual processors, changed.
pub(crate) fn changed(change: impl FnOnce(&mut umbel::flow::Processors)) -> umbel::flow::Processors {
    let mut processors = umbel::flow::Processors::default();
    change(&mut processors);
    processors
}
