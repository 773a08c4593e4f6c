//! Handlers that are made anew for each run, where their state must not be shared.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smol_str::SmolStr;
use umbel_core::{
    AgentTurn, ChunkStream, Content, Error, Event, Handler, Hooks, ModelCall, ModelTurn, NextModel, NextTool,
    Outcome, Result, Run, Step, ToolCall, ToolResult, Work,
};

/// Makes a handler for a run.
pub type HandlerFactory = dyn Fn(&Run) -> Arc<dyn Handler> + Send + Sync;

/// A handler that is made anew for each run; see [`per_run`].
pub struct PerRun {
    name: SmolStr,
    hooks: Hooks,
    make: Box<HandlerFactory>,
    number: u64,
}

/// A handler that is made anew for each run and asked for `hooks` of it. `configure` and `close` belong to no run and are
/// not among them.
pub fn per_run<F>(name: impl Into<SmolStr>, hooks: Hooks, make: F) -> PerRun
where
    F: Fn(&Run) -> Arc<dyn Handler> + Send + Sync + 'static,
{
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    PerRun { name: name.into(), hooks, make: Box::new(make), number }
}

impl PerRun {
    /// The handler of that run.
    fn of<'a>(&self, run: &'a Run) -> &'a dyn Handler {
        run.values().handler(self.number, || (self.make)(run))
    }
}

impl Handler for PerRun {
    fn name(&self) -> &str {
        &self.name
    }

    fn hooks(&self) -> Hooks {
        self.hooks
    }

    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        self.of(run).on_input(run, input)
    }

    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        self.of(run).before_run(run)
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        self.of(turn.run()).before_agent(turn)
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.of(turn.run()).before_model(turn)
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.of(turn.run()).after_model(turn)
    }

    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        self.of(call.run()).wrap_model(call, next)
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        self.of(call.run()).wrap_tool(call, next)
    }

    fn on_event<'a>(&'a self, run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        self.of(run).on_event(run, event)
    }

    fn on_output<'a>(&'a self, run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        self.of(run).on_output(run, event)
    }

    fn on_error<'a>(&'a self, run: &'a Run, error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        self.of(run).on_error(run, error)
    }

    fn after_agent<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.of(run).after_agent(run, outcome)
    }

    fn after_run<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.of(run).after_run(run, outcome)
    }
}

impl fmt::Debug for PerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerRun({})", self.name)
    }
}
