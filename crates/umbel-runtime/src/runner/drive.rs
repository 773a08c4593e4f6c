//! One run from its first write to its last.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, select};
use smallvec::smallvec;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::Instrument;
use umbel_core::store::{Acquire, Entries};
use umbel_core::{
    BoxFuture, CancelReason, CancelToken, Content, Deadline, Error, ErrorKind, Event, List, LogEntry, NodeId,
    Object, Outcome, Part, Payload, Result, Role, Run, RunId, RunParts, SessionKey, Source, Versions, Work,
};

use super::Shared;
use super::hot::{changes, changes_before};
use super::journal::{Recorder, not_immediate};
use super::pick::{pick_agent, workflow_above};
use super::taking::{Patience, acquire};
use super::{answers, credential_answers, recovery};
use crate::agents::run_agent;
use crate::onion;
use crate::team::Team;
use crate::tools::delegate::open_task;
use crate::usage::book::Book;
use crate::{spans, text};

/// How often a run waits for its reader before its time is looked at.
const WAITS_PER_LOOK: u32 = 64;

/// How long the store has at least to write the outcome of a run that was told to stop.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Heartbeats come no closer than this, however short the lease.
const SHORTEST_BEAT: Duration = Duration::from_millis(1);

/// What a run is to do.
pub(crate) struct Task {
    pub(crate) key: SessionKey,
    pub(crate) id: RunId,
    pub(crate) begins: Begins,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) cancel: CancelToken,
    pub(crate) depth: u32,
}

/// What a run begins with.
pub(crate) enum Begins {
    /// A message of the user, and what is attached to it.
    Message(Content, Object),
    /// The same, to a session that must still be as it was when that was decided.
    MessageAt(Content, Versions),
    /// What the run before it left: it was cancelled or has failed.
    Again,
    /// What is in the log: the run itself was cut short.
    Recovered,
    /// The same, but the call that it worked for is over: it only has to end.
    Orphaned,
}

impl Begins {
    /// Whether it is a message, and there is nothing in it.
    fn says_nothing(&self) -> bool {
        matches!(self, Self::Message(said, _) | Self::MessageAt(said, _) if said.parts.is_empty())
    }
}

/// How a run ended, and the error it ended with.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<Error>,
}

/// Does a run, whatever comes.
///
/// Every run allocates this future, so it holds only what nearly every run needs; the rest is boxed where it is needed.
pub(crate) fn drive(task: Task) -> BoxFuture<'static, Ended> {
    Box::pin(async move {
        let recorder = task.recorder.clone();
        let cancel = task.cancel.clone();
        // When nobody waits any longer for the store of a run that was told to stop.
        let let_go = OnceLock::new();
        let started = match start(task).try_now() {
            Ok(started) => started,
            Err(start) => Box::pin(start_watched(start, &recorder, &cancel, &let_go)).await,
        };
        let run = match started {
            Ok(run) => run,
            Err(error) => return Ended { outcome: Outcome::from_error(&error), error: Some(error) },
        };
        let result = {
            let span = spans::invocation(&run);
            let mut work = pin!(caught(work(&run, &recorder)).instrument(span));
            let result = watched(work.as_mut(), &run, &recorder).await;
            if let Err(error) = &result {
                spans::record_error_in(work.span(), error.kind().code());
            }
            result
        };
        // The work is gone. What it was writing is the recorder's, which waits for it.
        let finish = pin!(finish(&run, &recorder, result));
        let limits = &recorder.config.limits;
        stall_watched(finish, &recorder, || {
            stop_waiting(&cancel, time_left(&cancel, limits.run_time), limits.grace, &let_go)
        })
        .await
    })
}

/// The start of a run that waits for its store.
async fn start_watched(
    start: Work<'static, Result<Run>>,
    recorder: &Recorder,
    cancel: &CancelToken,
    let_go: &OnceLock<Deadline>,
) -> Result<Run> {
    let config = &recorder.config;
    let time = config.wait_for_session.saturating_add(config.limits.run_time);
    stall_watched(pin!(start), recorder, || stop_waiting(cancel, time, config.limits.grace, let_go)).await
}

/// What is left of the time that a run may take.
fn time_left(cancel: &CancelToken, run_time: Duration) -> Duration {
    let left = |deadline: std::time::Instant| deadline.saturating_duration_since(Instant::now().into_std());
    cancel.deadline().map_or(run_time, left)
}

/// Does what begins or ends a run, which waits for the store alone and is never dropped. If the store does not answer in
/// time, the recorder says so: the reader is let go, and this goes on by itself.
fn stall_watched<'a, T, W>(
    mut work: Pin<&'a mut impl Future<Output = T>>,
    recorder: &'a Recorder,
    watch: impl Fn() -> W + 'a,
) -> impl Future<Output = T>
where
    W: Future<Output = ()> + Send + 'a,
{
    let mut watching: Option<BoxFuture<'a, ()>> = None;
    poll_fn(move |cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        if !recorder.outlet.is_full() && !recorder.is_stalled() {
            let watching = watching.get_or_insert_with(|| Box::pin(watch()));
            if watching.as_mut().poll(cx).is_ready() {
                recorder.set_stalled();
            }
        }
        Poll::Pending
    })
}

/// Done when nobody is to wait any longer: the time is up or the run was cancelled, and so is the time to unwind. That is
/// counted once, be it while the run begins or when it ends.
async fn stop_waiting(cancel: &CancelToken, time: Duration, grace: Duration, let_go: &OnceLock<Deadline>) {
    if tokio::time::timeout(time, cancel.cancelled()).await.is_err() {
        cancel.cancel(CancelReason::Deadline);
    }
    let_go.get_or_init(|| Deadline::after(grace.max(LAST_WRITE))).wait().await;
}

/// The work's result. A panic in it, such as one of a callback, is an error like any other.
pub(crate) fn caught<T>(work: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .map(|result| result.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::from_panic("the run", panic)
}

/// Takes the session and writes the user's message.
fn start(task: Task) -> Work<'static, Result<Run>> {
    let (shared, config) = (&task.recorder.shared, &task.recorder.config);
    let (Begins::Message(input, _) | Begins::MessageAt(input, _)) = &task.begins else {
        return Work::later(caught(recovery::start_again(task)));
    };
    let waits = !shared.team.hooks.on_input.is_empty()
        || shared.team.has_tasks()
        || input.has_responses()
        || input.parts.is_empty()
        || config.save_input_blobs
        || !config.wait_for_session.is_zero()
        || !shared.services.sessions.is_immediate();
    if waits {
        return Work::later(caught(start_later(task)));
    }
    let started = std::panic::catch_unwind(AssertUnwindSafe(|| start_now(task)));
    match started {
        Ok(Ok(run)) => run,
        Ok(Err(error)) => Work::done(Err(error)),
        Err(panic) => Work::done(Err(panicked(panic.as_ref()))),
    }
}

/// The start of a run that has nothing to wait for, unless a run was cut short in its session.
fn start_now(task: Task) -> Result<Work<'static, Result<Run>>> {
    let recorder = task.recorder.clone();
    let (mut parts, begins) = prepare(task)?;
    let Message { content, metadata, expected } = message(begins)?;
    parts.input = Some(content.clone());
    let event = Arc::new(first_event(&recorder, &parts, Source::user(), content, metadata));
    let acquire = Acquire { expected, ..acquire(&recorder, &parts, entries(&recorder, &event)) };
    let store = &recorder.shared.services.sessions;
    match store.acquire(acquire).try_now() {
        Ok(Err(error)) if error.kind() == ErrorKind::SessionAbandoned => {
            let metadata = event.meta.as_ref().and_then(|meta| meta.custom_metadata.clone());
            let attached = (metadata.unwrap_or_default(), None);
            let begun = take_session(recorder.clone(), parts, attached, expected, true);
            return Ok(Work::later(caught(begun)));
        }
        Ok(acquired) => {
            let acquired = changes_before(&**store, acquired?).now_or_never();
            recorder.begin(acquired.unwrap_or_else(|| Err(not_immediate()))?, event);
        }
        Err(_) => return Err(not_immediate()),
    }
    Run::new(parts, recorder.shared.team.tree.root()).map(|run| Work::done(Ok(run)))
}

/// The start of a run that looks at the session first, or has a store or a handler to wait for.
async fn start_later(task: Task) -> Result<Run> {
    let recorder = task.recorder.clone();
    let shared = &recorder.shared;
    let hooks = &shared.team.hooks;
    let (parts, begins) = prepare(task)?;
    if begins.says_nothing() {
        look(&recorder, &parts.key).await?;
        return Err(recorder.session(|hot| answers::nothing_said(hot.open())));
    }
    let Message { content: mut input, metadata, expected } = message(begins)?;
    let mut is_there = true;
    if !hooks.on_input.is_empty() || depends_on_log(shared, &input) {
        // Handlers may look at the session, too.
        is_there = look(&recorder, &parts.key).await?;
    }
    if input.has_responses() {
        // Boxed: few messages answer anything.
        let (seen, taken) = Box::pin(credential_answers::take_out(&recorder, &parts, input)).await?;
        if let Some(taken) = taken {
            let key = parts.key.clone();
            let begun = Box::pin(heard(recorder.clone(), parts, seen, metadata, (expected, is_there))).await;
            Box::pin(taken.settle(&recorder, &key, begun.is_ok())).await;
            return begun;
        }
        input = seen;
    }
    heard(recorder, parts, input, metadata, (expected, is_there)).await
}

/// The start of a run whose message has no secrets in it.
async fn heard(
    recorder: Arc<Recorder>,
    mut parts: RunParts,
    mut input: Arc<Content>,
    metadata: Object,
    (expected, is_there): (Option<Versions>, bool),
) -> Result<Run> {
    let shared = &recorder.shared;
    let hooks = &shared.team.hooks;
    if !hooks.on_input.is_empty() {
        let early = Run::new(parts.clone(), shared.team.tree.root())?;
        let seen = pin!(onion::on_input(&hooks.on_input, &early, input));
        let seen = tokio::time::timeout(parts.config.limits.run_time, seen).await;
        input = seen.unwrap_or_else(|_| Err(CancelReason::Deadline.error()))?;
    }
    let mut artifacts = None;
    if parts.config.save_input_blobs {
        (input, artifacts) = store_blobs(&parts, input).await?;
    }
    parts.input = Some(input);
    take_session(recorder.clone(), parts, (metadata, artifacts), expected, is_there).await
}

/// Takes the session and begins the run. If another run has the session, waits as long as it may.
///
/// `is_there` is false if the session was looked for and not found.
async fn take_session(
    recorder: Arc<Recorder>,
    parts: RunParts,
    (metadata, artifacts): (Object, Option<BTreeMap<String, u64>>),
    decided_at: Option<Versions>,
    mut is_there: bool,
) -> Result<Run> {
    let shared = &recorder.shared;
    let input = parts.input.clone().unwrap_or_default();
    let depends_on_log = depends_on_log(shared, &input);
    let mut patience = Patience::new(&parts);
    loop {
        if input.has_responses() {
            let now = shared.services.clock.now();
            recorder.session(|hot| answers::check(&shared.team, hot.open(), hot.live(), &input, now))?;
        }
        let source = source_of(&shared.team, &umbel_core::Journal::events(&*recorder), &input)?;
        let mut event = first_event(&recorder, &parts, source, input.clone(), metadata.clone());
        if artifacts.is_some() {
            event.actions_mut().artifact_delta.clone_from(&artifacts);
        }
        let event = Arc::new(event);
        // What was made of the message holds for the log as it was looked at. A session that is yet to be made has none.
        let has_log = is_there || !parts.config.create_session;
        let expected = decided_at.or_else(|| (depends_on_log && has_log).then(|| recorder.versions()));
        let acquire = Acquire { expected, ..acquire(&recorder, &parts, entries(&recorder, &event)) };
        match shared.services.sessions.acquire(acquire).await {
            Ok(acquired) => {
                let acquired = changes_before(&*shared.services.sessions, acquired).await?;
                recorder.begin(acquired, event);
                return Run::new(parts, shared.team.tree.root());
            }
            Err(error)
                if error.kind() == ErrorKind::StaleSession && depends_on_log && decided_at.is_none() => {}
            Err(error) => patience.wait(&recorder, &parts, error).await?,
        }
        if depends_on_log {
            is_there = look(&recorder, &parts.key).await?;
        }
    }
}

/// Whether it depends on the log what is made of a message: an answer belongs where its question stands.
fn depends_on_log(shared: &Shared, input: &Content) -> bool {
    input.has_responses() || shared.team.has_tasks()
}

/// Takes in what is new in the session. Whether it is there.
pub(super) async fn look(recorder: &Recorder, key: &SessionKey) -> Result<bool> {
    let news = changes(&*recorder.shared.services.sessions, key, recorder.versions()).await?;
    let is_there = news.is_some();
    match news {
        Some(news) => recorder.take_in(news),
        None => recorder.forget(),
    }
    Ok(is_there)
}

/// Checks what is to be done, and takes what is kept of the session.
pub(super) fn prepare(task: Task) -> Result<(RunParts, Begins)> {
    // Cancelled before it began, or never read: then it never was.
    task.cancel.check()?;
    task.recorder.look_at(&task.key);
    Ok(parts_of(task))
}

/// What a run is made of.
pub(super) fn parts_of(task: Task) -> (RunParts, Begins) {
    let shared = &task.recorder.shared;
    let parts = RunParts {
        key: task.key,
        id: task.id,
        input: None,
        config: task.recorder.config.clone(),
        services: shared.services.clone(),
        cancel: task.cancel,
        tree: shared.team.tree.clone(),
        depth: task.depth,
        extensions: shared.extensions.clone(),
        journal: task.recorder,
    };
    (parts, task.begins)
}

/// What the user says, and what is attached to it.
struct Message {
    content: Arc<Content>,
    metadata: Object,
    /// What the session must be at.
    expected: Option<Versions>,
}

fn message(begins: Begins) -> Result<Message> {
    let (content, metadata, expected) = match begins {
        Begins::Message(content, metadata) => (content, metadata, None),
        Begins::MessageAt(content, versions) => (content, Object::new(), Some(versions)),
        _ => return Err(Error::new(ErrorKind::Other, "a run that goes on has no message")),
    };
    Ok(Message { content: Arc::new(checked(content)?), metadata, expected })
}

/// The user's message as an event.
fn first_event(
    recorder: &Recorder,
    parts: &RunParts,
    source: Arc<Source>,
    input: Arc<Content>,
    metadata: Object,
) -> Event {
    let mut event = Event::new(parts.id.clone(), source).with_content(input);
    recorder.stamp(&mut event);
    if !parts.config.state_delta.is_empty() {
        event.actions_mut().state_delta = Some(parts.config.state_delta.clone());
    }
    if !metadata.is_empty() {
        match &mut event.meta_mut().custom_metadata {
            Some(known) => known.extend(metadata),
            none => *none = Some(metadata),
        }
    }
    event
}

fn entries(recorder: &Recorder, event: &Arc<Event>) -> Entries {
    smallvec![LogEntry::Event(event.clone()), LogEntry::Record(recorder.shared.started.clone())]
}

/// What the user said, in the user's role. A call is no message of a user.
fn checked(mut input: Content) -> Result<Content> {
    let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidInput, message));
    if input.parts.is_empty() {
        return Err(answers::nothing_said(&[]));
    }
    if input.has_calls() {
        return refuse("a user's message cannot call functions: only the model can");
    }
    input.role = Some(Role::User);
    Ok(input)
}

/// Where the user speaks: an answer stands where its call stands, and what is said while a task is open is said to
/// the agent that works on it. Anything else is said on the trunk.
fn source_of(team: &Team, events: &List<Arc<Event>>, input: &Content) -> Result<Arc<Source>> {
    let author = SmolStr::new_static(umbel_core::event::USER);
    if let Some(id) = input.responses().next().and_then(|response| response.id.as_ref()) {
        let call = events.iter().rev().find(|event| event.calls().any(|call| call.id.as_ref() == Some(id)));
        let placed =
            call.filter(|call| call.source.branch.is_some() || call.source.isolation_scope.is_some());
        return Ok(
            placed.map_or_else(Source::user, |call| Arc::new(Source { author, ..(*call.source).clone() }))
        );
    }
    if team.has_tasks() {
        let agent = &team.tree.node(pick_agent(&team.tree, events)?)?.source.author;
        if let Some((call, name)) = open_task(events, agent)
            && team.tree.find(&name).is_some()
        {
            let isolation_scope = Some(call.as_str().into());
            return Ok(Arc::new(Source { author, branch: None, isolation_scope }));
        }
    }
    Ok(Source::user())
}

/// Stores the files of a message as artifacts and names them in their place.
async fn store_blobs(
    parts: &RunParts,
    input: Arc<Content>,
) -> Result<(Arc<Content>, Option<BTreeMap<String, u64>>)> {
    let store = parts.services.artifacts.as_ref().ok_or_else(|| {
        let message = "files of the user are to be stored, but no artifact store is configured";
        Error::new(ErrorKind::NoArtifactStore, message)
    })?;
    let mut input = Arc::unwrap_or_clone(input);
    let mut stored = BTreeMap::new();
    for (index, part) in input.parts.iter_mut().enumerate() {
        if let Payload::InlineData(_) = &part.payload {
            let name = format!("artifact_{}_{index}", parts.id);
            let file = std::mem::replace(part, Part::text(text::uploaded(&name)));
            let version = store.save(&parts.key, &name, file).await?;
            stored.insert(name, version);
        }
    }
    Ok((Arc::new(input), (!stored.is_empty()).then_some(stored)))
}

/// The run itself: handlers, then the agent that has the conversation and those it hands over to.
async fn work(run: &Run, recorder: &Recorder) -> Result<()> {
    if let Some(error) = recorder.take_unrecoverable() {
        return Err(error);
    }
    let hooks = &recorder.shared.team.hooks;
    if !hooks.before_run.is_empty() && Box::pin(answered_before(run, recorder)).await? {
        return Ok(());
    }
    let other = answering(run, recorder)?;
    let Err((error, failed)) = run_agent(other.as_ref().unwrap_or(run)).await else { return Ok(()) };
    if let Some(failed) = failed.filter(|_| !recorder.is_refused()) {
        // What went wrong first counts, even if it cannot be told in the log.
        let _ = Box::pin(report(run, failed, &error)).await;
    }
    Err(error)
}

/// Whether a handler answered in the place of the agents.
async fn answered_before(run: &Run, recorder: &Recorder) -> Result<bool> {
    let before_run = &recorder.shared.team.hooks.before_run;
    if let Some(content) = onion::before_run(before_run, run).await? {
        let source = Arc::new(Source::new("model"));
        run.emit(Event::new(run.id().clone(), source).with_content(content)).await?;
        return Ok(true);
    }
    Ok(false)
}

/// The run at the place of the agent that answers, if that is not the root.
fn answering(run: &Run, recorder: &Recorder) -> Result<Option<Run>> {
    if run.tree().ids().nth(1).is_none() {
        return Ok(None);
    }
    let events = umbel_core::Journal::events(recorder);
    let node = pick_agent(run.tree(), &events)?;
    if run.values().has_replay()
        && let Some(above) = workflow_above(run.tree(), node)?
    {
        // Whoever runs other agents goes on, too; it knows which of them are done.
        return if above == run.node_id() { Ok(None) } else { run.resume(above, None).map(Some) };
    }
    if node == run.node_id() {
        return Ok(None);
    }
    // Who is answered goes on where the question was asked.
    let branch = events.last().filter(|event| event.is_user()).and_then(|event| event.source.branch.clone());
    run.resume(node, branch).map(Some)
}

/// Leaves a trace of a failure in the log, under the name of the agent that spoke last.
async fn report(run: &Run, failed: NodeId, error: &Error) -> Result<()> {
    let root = run.tree().node(run.tree().root())?;
    if error.is_control() || !root.agent.transfer().by_model {
        return Ok(());
    }
    let mut event = Event::new(run.id().clone(), blamed(run, failed)?);
    let meta = event.meta_mut();
    meta.error_code = Some(error.kind().code().into());
    meta.error_message = Some(error.message().to_owned());
    run.emit(event).await?;
    Ok(())
}

/// Whose failure it is: that of the agent that spoke last inside the one that failed. If none did, it is the one
/// above it that brought this about, if it spoke in this run, and else its own.
fn blamed(run: &Run, failed: NodeId) -> Result<Arc<Source>> {
    let (tree, events) = (run.tree(), run.events());
    let node = tree.node(failed)?;
    let mut said =
        events.iter().rev().take_while(|event| event.run == *run.id()).filter(|event| !event.is_user());
    let inside = |author: &str| {
        let mut place = tree.find(author);
        // An agent with a model speaks for itself; one that runs others speaks through them.
        while let Some(id) = place.filter(|id| *id != failed && !node.agent.transfer().by_model) {
            place = tree.node(id).ok().and_then(|node| node.parent);
        }
        place == Some(failed)
    };
    let Some(last) = said.next() else { return Ok(node.source.clone()) };
    if inside(last.author()) {
        return Ok(last.source.clone());
    }
    let above = node.parent.map(|parent| tree.node(parent)).transpose()?;
    let above = above
        .filter(|above| std::iter::once(last).chain(said).any(|event| event.author() == above.agent.name()));
    Ok(above.map_or_else(|| node.source.clone(), |above| above.source.clone()))
}

/// Does the work while keeping an eye on time, the lease, and whether it is still wanted.
///
/// Nothing of that costs anything as long as the work only waits for its reader.
fn watched<'a, T>(
    mut work: Pin<&'a mut impl Future<Output = Result<T>>>,
    run: &'a Run,
    recorder: &'a Recorder,
) -> impl Future<Output = Result<T>> {
    let mut watch = None;
    let (mut waits, mut deadline) = (0u32, None);
    poll_fn(move |cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        if recorder.outlet.is_full() && !run.cancel_token().is_cancelled() {
            // A run may wait for nothing but its reader and go on for ever: now and then its time is looked at too.
            waits = waits.wrapping_add(1);
            if waits % WAITS_PER_LOOK == 0 {
                let now = Instant::now();
                let limit = deadline.get_or_insert_with(|| now.checked_add(run.config().limits.run_time));
                if limit.is_some_and(|limit| now >= limit) {
                    run.cancel_token().cancel(CancelReason::Deadline);
                }
            }
            return Poll::Pending;
        }
        let watch = watch.get_or_insert_with(|| Box::pin(keep_watch(run, recorder)));
        watch.as_mut().poll(cx).map(Err)
    })
}

/// Begins when the run first waits for something. Ends when the run must: the lease is lost, or it was cancelled and did
/// not unwind in time.
async fn keep_watch(run: &Run, recorder: &Recorder) -> Error {
    // Neither waits for the other: a heartbeat that hangs does not stop the clock of the run.
    match select(pin!(time_limit(run)), pin!(heartbeats(run, recorder))).await {
        Either::Left((error, _)) | Either::Right((error, _)) => error,
    }
}

/// Cancels the run when its time is up. Ends when it was cancelled and did not unwind in time.
async fn time_limit(run: &Run) -> Error {
    let (limits, token) = (run.config().limits, run.cancel_token());
    if let Some(deadline) = Instant::now().checked_add(limits.run_time) {
        token.set_deadline(deadline.into_std());
    }
    if tokio::time::timeout(limits.run_time, token.cancelled()).await.is_err() {
        token.cancel(CancelReason::Deadline);
    }
    tokio::time::sleep(limits.grace).await;
    token.reason().unwrap_or(CancelReason::Asked).error()
}

/// Keeps the lease. Ends when it is lost.
async fn heartbeats(run: &Run, recorder: &Recorder) -> Error {
    let lease_time = run.config().limits.lease;
    let period = (lease_time / 3).max(SHORTEST_BEAT);
    loop {
        tokio::time::sleep(period).await;
        let Some(lease) = recorder.lease() else { continue };
        let beat = run.services().sessions.heartbeat(&lease, lease_time);
        // One that takes longer than the lease lasts comes too late: the next one may get through.
        if let Ok(Err(error)) = tokio::time::timeout(lease_time.max(period), beat).await
            && error.kind() == ErrorKind::Fenced
        {
            return error;
        }
    }
}

/// Writes the outcome, tells the handlers, and puts the session back.
async fn finish(run: &Run, recorder: &Recorder, result: Result<()>) -> Ended {
    let interrupts = recorder.take_interrupts();
    let (mut outcome, mut error) = match result {
        Ok(()) if interrupts.is_empty() => (Outcome::Finished, None),
        Ok(()) => (Outcome::Interrupted { interrupts: Box::new(interrupts) }, None),
        Err(error) => (Outcome::from_error(&error), Some(error)),
    };
    // Boxed: most runs have nothing to wind up.
    let shared = &recorder.shared;
    let extras = &shared.team.extras;
    let quiet = shared.team.hooks.after_run.is_empty() && extras.compaction.is_none();
    if !quiet
        && let Err(failure) = Box::pin(wound_up(run, recorder, &outcome)).await
        && error.is_none()
    {
        outcome = Outcome::from_error(&failure);
        error = Some(failure);
    }
    let (written, hot) = recorder.end(&mut outcome).await;
    // Who goes on with a run that did not end well looks at all that is in the log.
    if outcome.is_good() {
        if let Some(hot) = hot {
            shared.hot.put(run.session_key(), hot);
        }
    } else if error.is_none() {
        error = recorder.broken();
    }
    if let Err(failure) = written {
        // The run is not over as long as its outcome is not written: whoever recovers it goes on with it.
        outcome = Outcome::from_error(&failure);
        error = Some(match error {
            Some(error) => failure.with_source(error),
            None => failure,
        });
    }
    Ended { outcome, error }
}

/// Winds a run up with an eye on the time: it may take as long as the run, or the grace if that was told to stop.
async fn wound_up(run: &Run, recorder: &Recorder, outcome: &Outcome) -> Result<()> {
    let work = pin!(caught(wind_up(&recorder.shared, run, outcome)));
    watched(work, run, recorder).await
}

/// What comes after the last event: handlers, and a summary if one is due.
async fn wind_up(shared: &Shared, run: &Run, outcome: &Outcome) -> Result<()> {
    onion::after_run(&shared.team.hooks.after_run, run, outcome).await?;
    if let Some(compactor) = shared.team.extras.compaction.as_ref().filter(|_| outcome.is_good()) {
        let compacted = compactor.compact_by_runs(run).await;
        if let Some(book) = Book::of(run) {
            // A summary that came to nothing was paid for, too.
            book.settle(run).await?;
        }
        compacted?;
    }
    Ok(())
}
