//! A run as an agent sees it: a cheap handle to what is shared, and to the place it works at.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context as TaskContext, Poll};

use serde::Serialize;
use serde::de::DeserializeOwned;
use smol_str::{SmolStr, format_smolstr};

use crate::agent::{AgentNode, AgentTree, NodeId};
use crate::artifact::ArtifactStore;
use crate::cancel::CancelToken;
use crate::clock::Clock;
use crate::config::RunConfig;
use crate::content::Content;
use crate::credential_manager::CredentialManager;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Source};
use crate::extensions::Extensions;
use crate::history::History;
use crate::id::{CallId, EventId, Ids, RunId};
use crate::interrupt::{Address, Answer, Interrupt, Question};
use crate::list::List;
use crate::log::{AgentDone, Kept, RunStep};
use crate::memory::MemoryStore;
use crate::part::FunctionCall;
use crate::piece::Piece;
use crate::response::Response;
use crate::session::SessionKey;
use crate::state::State;
use crate::store::SessionStore;
use crate::tool_context::ABOUT;
use crate::values::RunValues;
use crate::view::ContentsView;
use crate::work::Work;

/// What a runner lends to its runs.
#[derive(Clone, Debug)]
pub struct Services {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Mints ids.
    pub ids: Arc<dyn Ids>,
    /// Keeps sessions.
    pub sessions: Arc<dyn SessionStore>,
    /// Keeps artifacts.
    pub artifacts: Option<Arc<dyn ArtifactStore>>,
    /// Keeps memories.
    pub memory: Option<Arc<dyn MemoryStore>>,
    /// Keeps credentials, renews them, and asks for them.
    pub credentials: Arc<CredentialManager>,
    /// What tools need, by type.
    pub dependencies: Extensions,
}

/// The way from a run to its session: what was said is read here, what happens is written here.
///
/// Implemented by the runtime; agents use it through [`Run`].
pub trait Journal: Send + Sync {
    /// Writes an event and what the run must remember with it, and hands the event on.
    fn emit<'a>(&'a self, run: &'a Run, event: Event, steps: Vec<RunStep>) -> Work<'a, Result<Emitted>>;

    /// Shows a piece of text. Waits if the run is too far ahead of its reader.
    fn show<'a>(&'a self, run: &'a Run, piece: Piece) -> Work<'a, Result<()>>;

    /// Ready once the event with that ticket was taken.
    fn poll_taken(&self, ticket: u64, cx: &mut TaskContext<'_>) -> Poll<()>;

    /// Writes what the run must remember, without an event.
    fn record(&self, steps: Vec<RunStep>) -> Work<'_, Result<()>>;

    /// Writes and hands on an event that was held back.
    fn flush(&self) -> Work<'_, Result<()>>;

    /// Notes what the run must remember, to be written with what is written next.
    fn note(&self, step: RunStep);

    /// What the run carries along.
    fn values(&self) -> &RunValues;

    /// The questions that are open: those of this run, and of the one it goes on with.
    fn open_questions(&self) -> Vec<Interrupt>;

    /// Whether people were asked about a call of this id, and have not answered yet, be it in this run or in an earlier one.
    fn is_asked_about(&self, call: &CallId) -> bool;

    /// Counts a model call of the run, or rather of the one that all began with. Gives how many there were before.
    fn count_model_call(&self) -> u32;

    /// The state now.
    fn state(&self) -> State;

    /// The events so far.
    fn events(&self) -> List<Arc<Event>>;

    /// What a model is sent of them.
    fn contents(&self, view: &ContentsView, input: Option<&Arc<Content>>) -> History;
}

/// An event that was emitted.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// As it was written.
    pub event: Arc<Event>,
    /// By which to ask whether it was taken; absent if there is nothing to wait for.
    pub ticket: Option<u64>,
}

impl From<Arc<Event>> for Emitted {
    fn from(event: Arc<Event>) -> Self {
        Self { event, ticket: None }
    }
}

/// What all clones of a [`Run`] share.
#[derive(Clone)]
pub struct RunParts {
    /// The session.
    pub key: SessionKey,
    /// The run's id.
    pub id: RunId,
    /// What the user said.
    pub input: Option<Arc<Content>>,
    /// How it is to be done.
    pub config: Arc<RunConfig>,
    /// What the runner lends.
    pub services: Arc<Services>,
    /// Tells it to stop.
    pub cancel: CancelToken,
    /// Its way to the session.
    pub journal: Arc<dyn Journal>,
    /// Its agents.
    pub tree: Arc<AgentTree>,
    /// How many runs stand above it.
    pub depth: u32,
    /// Values of the runtime and of handlers, by type.
    pub extensions: Arc<Extensions>,
}

/// A run, seen from the place of one agent. Cloning it is cheap.
#[derive(Clone)]
pub struct Run {
    core: Arc<Core>,
    /// Absent at the place where the run began: that one stands in the core, since many runs have no other.
    scope: Option<Arc<Scope>>,
}

struct Core {
    parts: RunParts,
    first: Scope,
}

/// The place of one agent in a run.
struct Scope {
    node: NodeId,
    source: Arc<Source>,
    depth: u32,
    above: Above,
    /// An event of this very agent asked to end what encloses it.
    escalates: AtomicBool,
    /// An event from here or below did.
    escalated: AtomicBool,
    paused: AtomicBool,
    ended: AtomicBool,
    /// Whether what is emitted from here was emitted before, as far as it goes.
    repeats: AtomicBool,
    said: Mutex<VecDeque<Arc<Event>>>,
    transfer: Mutex<Option<SmolStr>>,
    /// What the runtime keeps for this turn of the agent.
    turn: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// What encloses an agent.
#[derive(Clone)]
enum Above {
    Nothing,
    /// The place where the run began.
    First,
    Scope(Arc<Scope>),
}

impl Scope {
    fn new(node: NodeId, source: Arc<Source>, depth: u32, above: Above) -> Self {
        Self {
            node,
            source,
            depth,
            above,
            escalates: AtomicBool::new(false),
            escalated: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            repeats: AtomicBool::new(false),
            said: Mutex::default(),
            transfer: Mutex::new(None),
            turn: OnceLock::new(),
        }
    }
}

impl Run {
    /// A run at the place of one agent, on the trunk.
    pub fn new(parts: RunParts, node: NodeId) -> Result<Self> {
        let source = parts.tree.node(node)?.source.clone();
        let first = Scope::new(node, source, parts.depth, Above::Nothing);
        Ok(Self { core: Arc::new(Core { parts, first }), scope: None })
    }

    /// The same run at another place.
    fn at(&self, node: NodeId, source: Arc<Source>, depth: u32, above: Above) -> Self {
        Self { core: self.core.clone(), scope: Some(Arc::new(Scope::new(node, source, depth, above))) }
    }

    #[inline]
    fn parts(&self) -> &RunParts {
        &self.core.parts
    }

    #[inline]
    fn scope(&self) -> &Scope {
        self.scope.as_deref().unwrap_or(&self.core.first)
    }

    /// The same run for another agent on this branch, after a transfer: it takes the place of this one.
    pub fn hand_over(&self, node: NodeId) -> Result<Self> {
        self.resume(node, self.scope().source.branch.clone())
    }

    /// The same run for an agent that goes on where it stopped, on the branch it was on.
    pub fn resume(&self, node: NodeId, branch: Option<SmolStr>) -> Result<Self> {
        let scope = self.scope();
        Ok(self.at(node, self.source_of(node, branch)?, scope.depth, scope.above.clone()))
    }

    /// The same run for an agent one level below, on this branch.
    pub fn enter(&self, node: NodeId) -> Result<Self> {
        self.below(node, self.scope().source.branch.clone())
    }

    /// The same run for an agent one level below, on a branch of its own.
    pub fn fork(&self, node: NodeId) -> Result<Self> {
        let (parent, child) = (self.agent_name(), self.parts().tree.node(node)?.agent.name());
        let branch = match self.branch() {
            Some(branch) => format_smolstr!("{branch}.{parent}.{child}"),
            None => format_smolstr!("{parent}.{child}"),
        };
        self.below(node, Some(branch))
    }

    /// The same run for an agent that works under a call, out of sight of the others.
    pub fn isolate(&self, node: NodeId, scope: impl Into<SmolStr>) -> Result<Self> {
        let run = self.below(node, self.scope().source.branch.clone())?;
        let below = run.scope();
        let source = Source { isolation_scope: Some(scope.into()), ..(*below.source).clone() };
        Ok(run.at(node, Arc::new(source), below.depth, below.above.clone()))
    }

    /// An error if nobody may work below this agent any more.
    pub fn check_depth(&self) -> Result<()> {
        let (depth, limit) = (self.scope().depth + 1, self.parts().config.limits.depth);
        if depth > limit {
            let message = format!(
                "agents call agents {depth} levels deep, and {limit} are allowed: \
                 flatten the team or raise `RunLimits::depth`"
            );
            return Err(Error::new(ErrorKind::DepthLimit, message));
        }
        Ok(())
    }

    fn below(&self, node: NodeId, branch: Option<SmolStr>) -> Result<Self> {
        self.check_depth()?;
        let above = self.scope.as_ref().map_or(Above::First, |scope| Above::Scope(scope.clone()));
        Ok(self.at(node, self.source_of(node, branch)?, self.scope().depth + 1, above))
    }

    fn source_of(&self, node: NodeId, branch: Option<SmolStr>) -> Result<Arc<Source>> {
        let trunk = &self.parts().tree.node(node)?.source;
        let isolation_scope = self.scope().source.isolation_scope.clone();
        if branch.is_none() && isolation_scope.is_none() {
            return Ok(trunk.clone());
        }
        Ok(Arc::new(Source { author: trunk.author.clone(), branch, isolation_scope }))
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.parts().id
    }

    /// The session's address.
    pub fn session_key(&self) -> &SessionKey {
        &self.parts().key
    }

    /// What the user said.
    pub fn input(&self) -> Option<&Arc<Content>> {
        self.parts().input.as_ref()
    }

    /// How it is to be done.
    pub fn config(&self) -> &Arc<RunConfig> {
        &self.parts().config
    }

    /// What the runner lends.
    pub fn services(&self) -> &Arc<Services> {
        &self.parts().services
    }

    /// The store for artifacts, or an error that says how to get one.
    pub fn artifacts(&self) -> Result<&Arc<dyn ArtifactStore>> {
        let hint = "no artifact store is configured: give the runner one with `.artifacts(…)`";
        self.parts().services.artifacts.as_ref().ok_or_else(|| Error::new(ErrorKind::NoArtifactStore, hint))
    }

    /// The store for memories, or an error that says how to get one.
    pub fn memory(&self) -> Result<&Arc<dyn MemoryStore>> {
        let hint = "no memory store is configured: give the runner one with `.memory(…)`";
        self.parts().services.memory.as_ref().ok_or_else(|| Error::new(ErrorKind::Build, hint))
    }

    /// Tells the run to stop.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.parts().cancel
    }

    /// A value of the runtime or of a handler, by type.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.parts().extensions.get::<T>().or_else(|| self.values().extension::<T>())
    }

    /// Puts a value in for the whole run: agents, model calls and tool calls find it by its type.
    pub fn insert<T: Send + Sync + 'static>(&self, value: T) {
        self.values().insert(Arc::new(value));
    }

    /// What the run carries along.
    pub fn values(&self) -> &RunValues {
        self.parts().journal.values()
    }

    /// A value that was kept in the run's state. It is an error if it has another form.
    pub fn kept<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let read = |value| {
            serde_json::from_value(value).map_err(|e| {
                let message = format!("the value `{key}` that the run keeps cannot be read: {e}");
                Error::new(ErrorKind::Corrupt, message).with_source(e)
            })
        };
        self.values().kept(key).map(read).transpose()
    }

    /// Keeps a value in the run's state: it survives an interrupt and a crash, and ends with the run.
    pub fn keep<T: Serialize>(&self, key: impl Into<SmolStr>, value: &T) -> Result<()> {
        let key = key.into();
        let value = serde_json::to_value(value).map_err(|e| {
            let message = format!("the value `{key}` cannot be kept: it has no JSON form: {e}");
            Error::new(ErrorKind::InvalidInput, message).with_source(e)
        })?;
        self.values().keep(key.clone(), value.clone());
        self.parts().journal.note(RunStep::Kept { kept: Box::new(Kept { key, value }) });
        Ok(())
    }

    /// Notes what the run must remember, to be written with what is written next.
    pub fn note_step(&self, step: RunStep) {
        self.parts().journal.note(step);
    }

    /// What the runtime keeps for this turn of the agent, by type.
    pub fn turn_value<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.scope().turn.get().cloned().and_then(|value| value.downcast().ok())
    }

    /// Sets that, once.
    pub fn set_turn_value<T: Send + Sync + 'static>(&self, value: Arc<T>) {
        let _ = self.scope().turn.set(value);
    }

    /// The run's agents.
    pub fn tree(&self) -> &Arc<AgentTree> {
        &self.parts().tree
    }

    /// The place of the agent that this handle belongs to.
    pub fn node_id(&self) -> NodeId {
        self.scope().node
    }

    /// The agent that this handle belongs to.
    pub fn node(&self) -> Result<&AgentNode> {
        self.parts().tree.node(self.scope().node)
    }

    /// Its name.
    pub fn agent_name(&self) -> &SmolStr {
        &self.scope().source.author
    }

    /// Its branch.
    pub fn branch(&self) -> Option<&SmolStr> {
        self.scope().source.branch.as_ref()
    }

    /// The source of its events.
    pub fn source(&self) -> &Arc<Source> {
        &self.scope().source
    }

    /// How deep it works below the user.
    pub fn depth(&self) -> u32 {
        self.scope().depth
    }

    /// Whether nothing of this run stands above it.
    pub fn is_top(&self) -> bool {
        matches!(self.scope().above, Above::Nothing)
    }

    /// Counts a model call; an error if none is left.
    #[inline]
    pub fn count_model_call(&self) -> Result<()> {
        let limit = self.parts().config.limits.model_calls;
        let used = self.parts().journal.count_model_call();
        if limit > 0 && used >= limit {
            return Err(Error::new(ErrorKind::ModelCallLimit, model_call_limit(limit)));
        }
        Ok(())
    }

    /// The run's way to its session.
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.parts().journal
    }

    /// The session's state now.
    pub fn state(&self) -> State {
        self.parts().journal.state()
    }

    /// The session's events so far.
    pub fn events(&self) -> List<Arc<Event>> {
        self.parts().journal.events()
    }

    /// What a model is sent of them.
    pub fn contents(&self, view: &ContentsView) -> History {
        self.parts().journal.contents(view, self.input())
    }

    /// An event of this agent, with nothing in it yet.
    pub fn event(&self) -> Event {
        Event::new(self.parts().id.clone(), self.scope().source.clone())
    }

    /// An event of this agent that says what a model answered.
    #[inline]
    pub fn event_of(&self, id: EventId, response: Response) -> Event {
        Event {
            id,
            run: self.parts().id.clone(),
            source: self.scope().source.clone(),
            timestamp: 0.0,
            content: response.content,
            partial: response.partial,
            turn_complete: response.turn_complete,
            actions: None,
            long_running_tool_ids: None,
            meta: response.meta,
        }
    }

    /// Emits an event: it is on its way at once, and the future is done when it is stored and taken. A preview is not
    /// stored, and a run may be a few of them ahead of its reader.
    #[inline]
    pub fn emit(&self, event: Event) -> Emit<'_> {
        self.emit_with(event, Vec::new())
    }

    /// Emits an event together with what the run must remember.
    #[inline]
    pub fn emit_with(&self, event: Event, steps: Vec<RunStep>) -> Emit<'_> {
        if self.scope().repeats.load(Ordering::Relaxed)
            && let Some(said) = self.said_before(&event)
        {
            return Emit { run: self, stage: Stage::Taken(said) };
        }
        let stage = match self.parts().journal.emit(self, event, steps).try_now() {
            Ok(emitted) => emitted.map_or_else(Stage::Failed, Stage::from),
            Err(work) => Stage::Written(work),
        };
        Emit { run: self, stage }
    }

    /// Shows more words of an event in the making, which are neither stored nor acted on. A run may be a few of them ahead
    /// of its reader.
    #[inline]
    pub fn show(&self, event: EventId, text: String, is_thought: bool) -> Work<'_, Result<()>> {
        if self.scope().repeats.load(Ordering::Relaxed) && self.is_repeating() {
            return Work::done(Ok(()));
        }
        let source = self.scope().source.clone();
        self.parts().journal.show(self, Piece { event, source, text, is_thought })
    }

    /// For an agent that is run again from its top: what it emits is what it emitted before, as far as that goes.
    pub fn repeat(&self, said: impl IntoIterator<Item = Arc<Event>>) {
        let scope = self.scope();
        scope.said.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
        scope.repeats.store(true, Ordering::Relaxed);
    }

    /// What was emitted in the place of that event before. Nobody needs a preview of it.
    fn said_before(&self, event: &Event) -> Option<Arc<Event>> {
        if !self.is_repeating() {
            return None;
        }
        if event.is_partial() {
            return Some(Arc::new(event.clone()));
        }
        self.scope().said.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Whether something is left of what was emitted before.
    fn is_repeating(&self) -> bool {
        let scope = self.scope();
        let repeats = !scope.said.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        scope.repeats.store(repeats, Ordering::Relaxed);
        repeats
    }

    /// Writes what the run must remember, without an event.
    pub async fn record(&self, steps: Vec<RunStep>) -> Result<()> {
        self.parts().journal.record(steps).await
    }

    /// Writes and hands on an event that was held back to share the next write.
    pub async fn flush(&self) -> Result<()> {
        self.parts().journal.flush().await
    }

    /// What people said to this question of the agent. If nobody was asked yet, the error ends the run as *interrupted*,
    /// and the agent is run again, from its top, with the answer.
    pub fn interrupt(&self, question: impl Into<Question>) -> Result<Answer> {
        self.ask(None, question.into())
    }

    /// Like [`interrupt`](Self::interrupt), for questions that come in no certain order or whose words are another's: an
    /// answer counts for a question about the same, such as a digest of its words, and for no other.
    pub fn interrupt_about(&self, what: &str, question: impl Into<Question>) -> Result<Answer> {
        self.ask(Some(format_smolstr!("{ABOUT}{what}")), question.into())
    }

    /// What people said to this question of the agent or one of its handlers.
    pub(crate) fn ask(&self, layer: Option<SmolStr>, question: Question) -> Result<Answer> {
        self.values().ask(Address { layer, ..Address::new(self.source(), None) }, question, None)
    }

    /// The questions that this run, or the one it goes on with, left open.
    pub fn open_questions(&self) -> Vec<Interrupt> {
        self.parts().journal.open_questions()
    }

    /// Marks this agent, and those above it, as waiting for an answer.
    pub fn pause(&self) {
        self.mark(false, true);
    }

    /// How this agent's turn ended, for those who go on with the run.
    pub fn done(&self) -> AgentDone {
        let Source { author, branch, isolation_scope } = (**self.source()).clone();
        let (escalated, escalates) = (self.is_escalated(), self.has_escalated());
        AgentDone { agent: author, branch, isolation_scope, escalated, escalates }
    }

    /// Marks this agent's turn as having ended like that.
    pub fn mark_done(&self, done: &AgentDone) {
        self.scope().escalates.fetch_or(done.escalates, Ordering::Relaxed);
        self.mark(done.escalated, false);
    }

    /// Lets the agents above know what the event asks of them. Gives whether it asks to end what encloses its agent.
    fn tell(&self, event: &Event) -> bool {
        if event.is_partial() {
            return false;
        }
        let escalates = event.actions.as_ref().is_some_and(|actions| actions.escalate == Some(true));
        let waiting = event.long_running();
        // A task that another agent works on answers its call by itself.
        let waits = |call: &FunctionCall| {
            call.id.as_ref().is_some_and(|id| waiting.contains(id))
                && self.parts().tree.find(&call.name).is_none()
        };
        let pauses = !waiting.is_empty() && event.calls().any(waits);
        if !escalates && !pauses {
            return false;
        }
        self.scope().escalates.fetch_or(escalates, Ordering::Relaxed);
        self.mark(escalates, pauses);
        escalates
    }

    fn mark(&self, escalates: bool, pauses: bool) {
        let mut here = self.scope();
        loop {
            here.escalated.fetch_or(escalates, Ordering::Relaxed);
            here.paused.fetch_or(pauses, Ordering::Relaxed);
            here = match &here.above {
                Above::Nothing => return,
                Above::First => &self.core.first,
                Above::Scope(scope) => scope,
            };
        }
    }

    /// Whether an event of this agent itself asked to end what encloses it.
    pub fn has_escalated(&self) -> bool {
        self.scope().escalates.load(Ordering::Relaxed)
    }

    /// Whether an event from here or below asked the enclosing loop to end.
    pub fn is_escalated(&self) -> bool {
        self.scope().escalated.load(Ordering::Relaxed)
    }

    /// Whether a call was made from here or below whose answer comes later: from a person, or from work elsewhere.
    pub fn is_paused(&self) -> bool {
        self.scope().paused.load(Ordering::Relaxed)
    }

    /// Ends this agent's work after the present step.
    pub fn end(&self) {
        self.scope().ended.store(true, Ordering::Relaxed);
    }

    /// Whether someone asked to end this agent's work.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.scope().ended.load(Ordering::Relaxed)
    }

    /// Asks that another agent goes on once this one returns.
    pub fn transfer_to(&self, agent: impl Into<SmolStr>) {
        *self.scope().transfer.lock().unwrap_or_else(PoisonError::into_inner) = Some(agent.into());
    }

    /// The agent that is to go on, taken out.
    pub fn take_transfer(&self) -> Option<SmolStr> {
        self.scope().transfer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An event on its way: done once it is stored and taken. See [`Run::emit`].
#[must_use = "an event may not be stored yet: await it"]
pub struct Emit<'a> {
    run: &'a Run,
    stage: Stage<'a>,
}

enum Stage<'a> {
    /// The journal has it.
    Written(Work<'a, Result<Emitted>>),
    Failed(Error),
    /// It is stored, but not taken.
    Offered(Arc<Event>, u64),
    Taken(Arc<Event>),
    /// Its agent waits once: whoever encloses it may end it before it goes on.
    Paused(Arc<Event>),
    Over,
}

impl From<Emitted> for Stage<'_> {
    fn from(Emitted { event, ticket }: Emitted) -> Self {
        match ticket {
            Some(ticket) => Self::Offered(event, ticket),
            None => Self::Taken(event),
        }
    }
}

impl Future for Emit<'_> {
    type Output = Result<Arc<Event>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::Written(work) = &mut this.stage {
            let Poll::Ready(written) = Pin::new(work).poll(cx) else { return Poll::Pending };
            this.stage = written.map_or_else(Stage::Failed, Stage::from);
        }
        if let Stage::Offered(_, ticket) = &this.stage
            && this.run.parts().journal.poll_taken(*ticket, cx).is_pending()
        {
            return Poll::Pending;
        }
        match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::Failed(error) => Poll::Ready(Err(error)),
            Stage::Offered(event, _) | Stage::Taken(event) => {
                if this.run.tell(&event) && !this.run.is_top() {
                    this.stage = Stage::Paused(event);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(event))
            }
            Stage::Paused(event) => Poll::Ready(Ok(event)),
            Stage::Written(_) | Stage::Over => Poll::Pending,
        }
    }
}

impl fmt::Debug for Emit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Emit")
    }
}

/// What a run is told that used up its model calls.
pub fn model_call_limit(limit: u32) -> String {
    format!("the run used up its {limit} model calls: raise `RunLimits::model_calls` if it needs more")
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} of {}, agent {})", self.parts().id, self.parts().key, self.agent_name())
    }
}

impl fmt::Debug for RunParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunParts({} of {})", self.id, self.key)
    }
}
