//! What the tests of handlers share: a handler that notes every hook, and handlers of one hook from a closure.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{
    AgentPlan, AgentTurn, BoxFuture, ChunkStream, Content, Error, ErrorKind, Event, FunctionTool, Handler,
    ModelCall, ModelRequest, ModelTurn, NextModel, NextTool, Outcome, Result, Run, Step, ToolCall, ToolItem,
    ToolOutput, ToolResult, ToolSpec, Work, handler,
};

use crate::support::Notes;

/// Has every hook, changes nothing, and notes each as `name.hook`; layers as `name.hook>` and `name.hook<`, or `!` if
/// an error came out.
pub(crate) struct Probe {
    name: &'static str,
    notes: Notes,
}

impl Probe {
    pub(crate) fn new(name: &'static str, notes: &Notes) -> Self {
        Self { name, notes: notes.clone() }
    }

    fn note(&self, hook: &str) {
        self.notes.add(format!("{}.{hook}", self.name));
    }
}

/// What an event is, in a word.
fn kind(event: &Event) -> &'static str {
    if event.is_partial() {
        "preview"
    } else if event.calls().next().is_some() {
        "calls"
    } else if event.responses().next().is_some() {
        "responses"
    } else if event.error_code().is_some() {
        "error"
    } else {
        "text"
    }
}

/// How something ended, in a word.
pub(crate) fn word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished => "finished".to_owned(),
        Outcome::Interrupted { .. } => "interrupted".to_owned(),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Failed { failure } => format!("failed {}", failure.code),
        other => format!("{other:?}"),
    }
}

#[handler]
impl Handler for Probe {
    fn name(&self) -> &str {
        self.name
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.note("configure");
        Ok(())
    }

    fn on_input(&self, _run: &Run, input: Arc<Content>) -> Result<Arc<Content>> {
        self.note("on_input");
        Ok(input)
    }

    fn before_run(&self, _run: &Run) -> Result<Option<Content>> {
        self.note("before_run");
        Ok(None)
    }

    async fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        self.note(&format!("before_agent({})", turn.run().agent_name()));
        Ok(Step::Continue)
    }

    async fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("before_model");
        Ok(Step::Continue)
    }

    async fn after_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("after_model");
        Ok(Step::Continue)
    }

    async fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.note("wrap_model>");
        let given = next.call(call).await;
        self.note(if given.is_ok() { "wrap_model<" } else { "wrap_model!" });
        given
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        self.note("wrap_tool>");
        let given = next.call(call).await;
        self.note(if given.is_ok() { "wrap_tool<" } else { "wrap_tool!" });
        given
    }

    async fn on_event(&self, _run: &Run, event: Event) -> Result<Event> {
        self.note(&format!("on_event({})", kind(&event)));
        Ok(event)
    }

    async fn on_output(&self, _run: &Run, event: Arc<Event>) -> Result<Option<Arc<Event>>> {
        self.note(&format!("on_output({})", kind(&event)));
        Ok(Some(event))
    }

    async fn on_error(&self, _run: &Run, error: &Error) -> Result<Option<Content>> {
        self.note(&format!("on_error({})", error.kind().code()));
        Ok(None)
    }

    async fn after_agent(&self, run: &Run, outcome: &Outcome) -> Result<()> {
        self.note(&format!("after_agent({}, {})", run.agent_name(), word(outcome)));
        Ok(())
    }

    async fn after_run(&self, _run: &Run, outcome: &Outcome) -> Result<()> {
        self.note(&format!("after_run({})", word(outcome)));
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.note("close");
        Ok(())
    }
}

/// Those of the notes that are about a hook.
pub(crate) fn about(notes: &Notes, hook: &str) -> Vec<String> {
    let of = |note: &String| note.split_once('.').is_some_and(|(_, rest)| rest.starts_with(hook));
    notes.all().into_iter().filter(of).collect()
}

/// A handler of one hook.
pub(crate) struct One<F> {
    name: &'static str,
    act: F,
}

macro_rules! from_closure {
    ($(#[$doc:meta])* $function:ident, $type:ident, ($($arg:ident: $of:ty),*) -> $gives:ty, $name:ident) => {
        pub(crate) struct $type<F>(One<F>);

        $(#[$doc])*
        pub(crate) fn $function<F>(name: &'static str, act: F) -> $type<F>
        where
            F: Fn($($of),*) -> $gives + Send + Sync + 'static,
        {
            $type(One { name, act })
        }

        #[handler]
        impl<F> Handler for $type<F>
        where
            F: Fn($($of),*) -> $gives + Send + Sync + 'static,
        {
            fn name(&self) -> &str {
                self.0.name
            }

            fn $name(&self, $($arg: $of),*) -> $gives {
                (self.0.act)($($arg),*)
            }
        }
    };
}

from_closure!(configure, Configure, (plan: &mut AgentPlan) -> Result<()>, configure);
from_closure!(before_agent, BeforeAgent, (turn: &mut AgentTurn<'_>) -> Result<Step>, before_agent);
from_closure!(before_model, BeforeModel, (turn: &mut ModelTurn<'_>) -> Result<Step>, before_model);
from_closure!(after_model, AfterModel, (turn: &mut ModelTurn<'_>) -> Result<Step>, after_model);
from_closure!(on_event, OnEvent, (run: &Run, event: Event) -> Result<Event>, on_event);
from_closure!(on_output, OnOutput, (run: &Run, event: Arc<Event>) -> Result<Option<Arc<Event>>>, on_output);
from_closure!(on_error, OnError, (run: &Run, error: &Error) -> Result<Option<Content>>, on_error);
from_closure!(after_agent, AfterAgent, (run: &Run, outcome: &Outcome) -> Result<()>, after_agent);
from_closure!(after_run, AfterRun, (run: &Run, outcome: &Outcome) -> Result<()>, after_run);

pub(crate) struct WrapTool<F>(One<F>);

/// A layer around tools from a closure.
pub(crate) fn wrap_tool<F>(name: &'static str, act: F) -> WrapTool<F>
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync + 'static,
{
    WrapTool(One { name, act })
}

#[handler]
impl<F> Handler for WrapTool<F>
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.0.name
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        (self.0.act)(call, next).await
    }
}

pub(crate) struct WrapModel<F>(One<F>);

/// A layer around models from a closure.
pub(crate) fn wrap_model<F>(name: &'static str, act: F) -> WrapModel<F>
where
    F: for<'a> Fn(ModelCall<'a>, NextModel<'a>) -> BoxFuture<'a, Result<ChunkStream<'a>>>
        + Send
        + Sync
        + 'static,
{
    WrapModel(One { name, act })
}

#[handler]
impl<F> Handler for WrapModel<F>
where
    F: for<'a> Fn(ModelCall<'a>, NextModel<'a>) -> BoxFuture<'a, Result<ChunkStream<'a>>>
        + Send
        + Sync
        + 'static,
{
    fn name(&self) -> &str {
        self.0.name
    }

    async fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        (self.0.act)(call, next).await
    }
}

/// A tool that streams: two pieces of news, then its arguments.
pub(crate) fn digger() -> FunctionTool {
    let spec = ToolSpec::new("dig", "Digs.", json!({"type": "object"}));
    FunctionTool::raw(spec, |_, args| {
        let done = Value::Object((*args).clone());
        let items = [ToolItem::Progress(json!(1)), ToolItem::Progress(json!(2)), ToolItem::Done(done.into())];
        Box::pin(async move { Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items.map(Ok))))) })
    })
}

/// A tool of that name which notes its calls and answers with its name.
pub(crate) fn noting(name: &'static str, notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::new(name, "", move |_: Value| {
        notes.add(name);
        async move { Ok(name) }
    })
}

/// The names of the tools that a request declares.
pub(crate) fn declared(request: &ModelRequest) -> Vec<String> {
    request.tools.specs().map(|spec| spec.name.to_string()).collect()
}

/// How a hook goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    /// It gives an error at once.
    Error,
    /// It waits, then gives an error.
    LateError,
    /// It panics before there is a future.
    EarlyPanic,
    /// It panics in its future.
    Panic,
    /// It never ends.
    Hang,
}

/// Every hook passes everything on, but one, which goes wrong. Written by hand, so that it can do so before there is a
/// future.
pub(crate) struct Fails {
    name: &'static str,
    hook: &'static str,
    how: How,
}

impl Fails {
    pub(crate) fn new(name: &'static str, hook: &'static str, how: How) -> Self {
        Self { name, hook, how }
    }

    fn or<'a, T, E>(
        &self,
        hook: &str,
        pass: impl FnOnce() -> Work<'a, Result<T, E>>,
    ) -> Work<'a, Result<T, E>>
    where
        T: Send + 'a,
        E: From<Error> + Send + 'a,
    {
        let broken = || Error::new(ErrorKind::Other, "broken");
        if hook != self.hook {
            return pass();
        }
        match self.how {
            How::Error => Work::done(Err(broken().into())),
            How::LateError => Work::later(async move {
                tokio::task::yield_now().await;
                Err(broken().into())
            }),
            How::EarlyPanic => panic!("broken"),
            How::Panic => Work::later(async {
                tokio::task::yield_now().await;
                panic!("broken")
            }),
            How::Hang => Work::later(std::future::pending()),
        }
    }
}

impl Handler for Fails {
    fn name(&self) -> &str {
        self.name
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.or("configure", || Work::done(Ok(()))).try_now().unwrap_or(Ok(()))
    }

    fn on_input<'a>(&'a self, _run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        self.or("on_input", || Work::done(Ok(input)))
    }

    fn before_run<'a>(&'a self, _run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        self.or("before_run", || Work::done(Ok(None)))
    }

    fn before_agent<'a>(&'a self, _turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        self.or("before_agent", || Work::done(Ok(Step::Continue)))
    }

    fn before_model<'a>(&'a self, _turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.or("before_model", || Work::done(Ok(Step::Continue)))
    }

    fn after_model<'a>(&'a self, _turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.or("after_model", || Work::done(Ok(Step::Continue)))
    }

    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        self.or("wrap_model", || Work::later(next.call(call)))
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        self.or("wrap_tool", || Work::later(next.call(call)))
    }

    fn on_event<'a>(&'a self, _run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        self.or("on_event", || Work::done(Ok(event)))
    }

    fn on_output<'a>(&'a self, _run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        self.or("on_output", || Work::done(Ok(Some(event))))
    }

    fn on_error<'a>(&'a self, _run: &'a Run, _error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        self.or("on_error", || Work::done(Ok(None)))
    }

    fn after_agent<'a>(&'a self, _run: &'a Run, _outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.or("after_agent", || Work::done(Ok(())))
    }

    fn after_run<'a>(&'a self, _run: &'a Run, _outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.or("after_run", || Work::done(Ok(())))
    }

    fn close(&self) -> Work<'_, Result<()>> {
        self.or("close", || Work::done(Ok(())))
    }
}
