//! Runs that nobody started: what tools and layers are tested with.

use std::sync::Arc;
use std::task::Poll;

use crate::agent::{Agent, AgentTree};
use crate::cancel::CancelToken;
use crate::clock::SystemClock;
use crate::content::Content;
use crate::error::Result;
use crate::event::Event;
use crate::extensions::Extensions;
use crate::history::History;
use crate::id::CountingIds;
use crate::in_memory::InMemorySessions;
use crate::interrupt::Interrupt;
use crate::list::List;
use crate::log::RunStep;
use crate::piece::Piece;
use crate::run::{Emitted, Journal, Run, RunParts, Services};
use crate::session::SessionKey;
use crate::state::State;
use crate::tool_context::{CallMade, ToolContext};
use crate::values::RunValues;
use crate::view::ContentsView;
use crate::work::{BoxFuture, Work};

impl Run {
    /// A run that nobody started, for tests: what it emits goes nowhere, and its session is empty.
    pub fn detached(dependencies: Extensions) -> Result<Self> {
        let services = Services {
            clock: Arc::new(SystemClock),
            ids: Arc::new(CountingIds::default()),
            sessions: Arc::new(InMemorySessions::new()),
            artifacts: None,
            memory: None,
            credentials: Arc::default(),
            dependencies,
        };
        let nobody: Arc<dyn Agent> = Arc::new(Nobody);
        let tree = Arc::new(AgentTree::new(&nobody)?);
        let root = tree.root();
        let parts = RunParts {
            key: SessionKey::new("app", "user", "session")?,
            id: "run".into(),
            input: None,
            config: Arc::default(),
            services: Arc::new(services),
            cancel: CancelToken::new(),
            journal: Arc::new(Nowhere::default()),
            tree,
            depth: 0,
            extensions: Arc::default(),
        };
        Self::new(parts, root)
    }
}

impl ToolContext {
    /// The context of a call that no run makes, for tests of tools and layers.
    pub fn detached(tool: &str) -> Result<Self> {
        Self::detached_with(tool, Extensions::new())
    }

    /// The same with dependencies for the tool.
    pub fn detached_with(tool: &str, dependencies: Extensions) -> Result<Self> {
        Ok(Self::new(Run::detached(dependencies)?, tool.into(), Some("call".into()), CallMade::default()))
    }
}

struct Nobody;

impl Agent for Nobody {
    fn name(&self) -> &str {
        "nobody"
    }

    fn run<'a>(&'a self, _run: &'a Run) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// A journal that keeps nothing but what the run carries along.
#[derive(Default)]
struct Nowhere(RunValues);

impl Journal for Nowhere {
    fn emit<'a>(&'a self, _: &'a Run, event: Event, _: Vec<RunStep>) -> Work<'a, Result<Emitted>> {
        Work::done(Ok(Arc::new(event).into()))
    }

    fn show<'a>(&'a self, _: &'a Run, _: Piece) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }

    fn poll_taken(&self, _: u64, _: &mut std::task::Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn record(&self, _: Vec<RunStep>) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }

    fn flush(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }

    fn note(&self, _: RunStep) {}

    fn is_asked_about(&self, _: &crate::id::CallId) -> bool {
        false
    }

    fn count_model_call(&self) -> u32 {
        0
    }

    fn open_questions(&self) -> Vec<Interrupt> {
        Vec::new()
    }

    fn values(&self) -> &RunValues {
        &self.0
    }

    fn state(&self) -> State {
        State::default()
    }

    fn events(&self) -> List<Arc<Event>> {
        List::new()
    }

    fn contents(&self, _: &ContentsView, _: Option<&Arc<Content>>) -> History {
        History::new()
    }
}
