//! What `#[handler]` makes of hooks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::{FutureExt, StreamExt};
use serde_json::json;
use umbel::{
    AgentPlan, AgentTurn, Chunk, ChunkStream, Content, Context, Error, ErrorKind, Event, Extensions, Handler,
    Hooks, Jump, Model, ModelCall, ModelEnd, ModelRequest, ModelTurn, NextModel, NextTool, Object, Outcome,
    Result, Run, ScriptedModel, Step, ToolCall, ToolContext, ToolEnd, ToolOutput, ToolResult, ToolSet,
    Transcript, Work, handler,
};

fn run() -> Run {
    Run::detached(Extensions::new()).unwrap()
}

/// Every hook, as `async fn`.
#[derive(Default)]
struct Waiting {
    seen: Mutex<Vec<&'static str>>,
}

impl Waiting {
    /// Waits once, so that the hook cannot be done at once.
    async fn note(&self, hook: &'static str) {
        tokio::task::yield_now().await;
        self.seen.lock().unwrap().push(hook);
    }
}

#[handler]
impl Handler for Waiting {
    fn name(&self) -> &str {
        "waiting"
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        plan.instruction.push("waiting", "Wait.");
        Ok(())
    }

    async fn on_input(&self, run: &Run, input: Arc<Content>) -> Result<Arc<Content>> {
        self.note("on_input").await;
        Ok(Content::user(format!("{}: {}", run.id(), input.text()).as_str()).into())
    }

    async fn before_run(&self, _run: &Run) -> Result<Option<Content>> {
        self.note("before_run").await;
        Ok(None)
    }

    async fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        self.note("before_agent").await;
        turn.plan.instruction.push("waiting", "Wait here.");
        Ok(Step::Jump(Jump::End))
    }

    async fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("before_model").await;
        turn.history.push(Content::user("and?"));
        if turn.history.len() > 1 {
            return Ok(Step::Jump(Jump::Model));
        }
        Ok(Step::Continue)
    }

    async fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("after_model").await;
        turn.run().cancel_token().check()?;
        Ok(Step::Continue)
    }

    async fn wrap_model(&self, mut call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.note("wrap_model").await;
        call.request.model = "other".into();
        let chunks = next.call(call).await?;
        Ok(chunks.chain(futures::stream::once(async { Ok(Chunk::Text("!".to_owned())) })).boxed())
    }

    // The lifetimes of what is taken by value may be left out.
    async fn wrap_tool(&self, call: ToolCall, next: NextTool) -> ToolResult {
        self.note("wrap_tool").await;
        let cx = call.cx.with(7_u8);
        let inner = call.clone().with_context(&cx);
        next.call(inner).await?;
        next.call(call).await
    }

    async fn on_event(&self, _run: &Run, mut event: Event) -> Result<Event> {
        self.note("on_event").await;
        event.partial = Some(true);
        Ok(event)
    }

    async fn on_output(&self, _run: &Run, _event: Arc<Event>) -> Result<Option<Arc<Event>>> {
        self.note("on_output").await;
        Ok(None)
    }

    async fn on_error(&self, _run: &Run, error: &Error) -> Result<Option<Content>> {
        self.note("on_error").await;
        Ok(Some(Content::user(error.message())))
    }

    async fn after_agent(&self, _run: &Run, _outcome: &Outcome) -> Result<()> {
        self.note("after_agent").await;
        Ok(())
    }

    async fn after_run(&self, _run: &Run, _outcome: &Outcome) -> Result<()> {
        self.note("after_run").await;
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.note("close").await;
        Err(Error::new(ErrorKind::Other, "closed"))
    }
}

struct Asks;

impl ModelEnd for Asks {
    fn call<'a>(&'a self, call: ModelCall<'a>) -> Work<'a, Result<ChunkStream<'a>>> {
        let name = call.request.model.to_string();
        Work::done(Ok(futures::stream::iter([Ok(Chunk::Text(name))]).boxed()))
    }
}

#[derive(Default)]
struct Counts(AtomicUsize);

impl ToolEnd for Counts {
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult> {
        let calls = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let extra = call.cx.extension::<u8>().map(|extra| *extra);
        Work::done(Ok(ToolOutput::from(json!({"calls": calls, "extra": extra}))))
    }
}

async fn words(layer: &Arc<dyn Handler>, cx: &Context) -> Result<Vec<Chunk>> {
    let model: Arc<dyn Model> = Arc::new(ScriptedModel::new("first"));
    let request = ModelRequest::new("first");
    let call = ModelCall { cx, model, request, extensions: Extensions::new() };
    let layers = [layer.clone()];
    let chunks = NextModel::new(&layers, &Asks).call(call).await?;
    chunks.collect::<Vec<_>>().await.into_iter().collect()
}

#[tokio::test]
async fn every_hook_can_be_an_async_fn() {
    let waiting = Arc::new(Waiting::default());
    let layer: Arc<dyn Handler> = waiting.clone();
    let (run, outcome) = (run(), Outcome::Finished);
    assert_eq!(layer.hooks(), Hooks::ALL);

    let input = layer.on_input(&run, Arc::new(Content::user("hi"))).await.unwrap();
    assert_eq!(input.text(), "run: hi");
    assert_eq!(layer.before_run(&run).await.unwrap(), None);

    let cx = Context::new(run.clone());
    let mut turn = AgentTurn::new(&cx, AgentPlan::default());
    assert_eq!(layer.before_agent(&mut turn).await.unwrap(), Step::Jump(Jump::End));
    assert_eq!(turn.plan.instruction.parts().len(), 1);

    let (mut history, tools) = (Transcript::default(), Arc::new(ToolSet::new()));
    let mut turn = ModelTurn::new(&cx, &mut history, &tools);
    assert_eq!(layer.before_model(&mut turn).await.unwrap(), Step::Continue);
    assert_eq!(layer.before_model(&mut turn).await.unwrap(), Step::Jump(Jump::Model));
    assert_eq!(turn.history.len(), 2);
    assert_eq!(layer.after_model(&mut turn).await.unwrap(), Step::Continue);

    let said = words(&layer, &cx).await.unwrap();
    assert_eq!(said, [Chunk::Text("other".to_owned()), Chunk::Text("!".to_owned())]);

    let (cx, end) = (ToolContext::detached("t").unwrap(), Counts::default());
    let layers = [layer.clone()];
    let call = ToolCall::new(&cx, None, Arc::new(Object::new()));
    let ToolOutput::Value(value) = NextTool::new(&layers, &end).call(call).await.unwrap() else { panic!() };
    assert_eq!(value.value, json!({"calls": 2, "extra": null}));

    let event = layer.on_event(&run, run.event()).await.unwrap();
    assert!(event.is_partial());
    assert_eq!(layer.on_output(&run, Arc::new(event)).await.unwrap(), None);
    let error = Error::new(ErrorKind::Other, "oh");
    assert_eq!(layer.on_error(&run, &error).await.unwrap().unwrap().text(), "oh");
    layer.after_agent(&run, &outcome).await.unwrap();
    layer.after_run(&run, &outcome).await.unwrap();
    assert_eq!(layer.close().await.unwrap_err().message(), "closed");

    let seen = waiting.seen.lock().unwrap().clone();
    let expected: Vec<&str> = [
        "on_input",
        "before_run",
        "before_agent",
        "before_model",
        "before_model",
        "after_model",
        "wrap_model",
        "wrap_tool",
        "on_event",
        "on_output",
        "on_error",
        "after_agent",
        "after_run",
        "close",
    ]
    .into();
    assert_eq!(seen, expected);
}

/// Hooks as plain `fn`, of a generic handler.
struct Ready<'n, T: ?Sized>
where
    T: Send,
{
    name: &'n str,
    value: Mutex<Box<T>>,
}

#[handler]
impl<'n, T> Handler for Ready<'n, T>
where
    T: Send + AsRef<str> + ?Sized,
{
    fn name(&self) -> &str {
        self.name
    }

    fn before_run(&self, run: &Run) -> Result<Option<Content>> {
        run.cancel_token().check()?;
        let value = self.value.lock().unwrap();
        if (**value).as_ref().is_empty() {
            return Ok(None);
        }
        Ok(Some(Content::user((**value).as_ref())))
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        turn.history.push(Content::user("more"));
        Err(Error::new(ErrorKind::Blocked, "no"))
    }

    fn wrap_model(&self, _: ModelCall<'_>, _: NextModel<'_>) -> Result<ChunkStream<'_>> {
        let chunk = Ok(Chunk::Text(self.name.to_owned()));
        Ok(futures::stream::once(async move { chunk }).boxed())
    }

    fn on_event(&self, _: &Run, event: Event) -> Result<Event> {
        Ok(event)
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_plain_fn_is_done_at_once() {
    let name = String::from("ready");
    let ready = Ready { name: &name, value: Mutex::new(Box::<str>::from("done")) };
    let run = run();
    let hooks = [Hooks::BEFORE_RUN, Hooks::BEFORE_MODEL, Hooks::WRAP_MODEL, Hooks::ON_EVENT, Hooks::CLOSE];
    assert_eq!(ready.hooks(), hooks.into_iter().fold(Hooks::NONE, Hooks::union));
    assert_eq!(ready.name(), "ready");

    let answer = ready.before_run(&run).try_now().unwrap().unwrap();
    assert_eq!(answer.unwrap().text(), "done");
    *ready.value.lock().unwrap() = Box::from("");
    assert_eq!(ready.before_run(&run).try_now().unwrap().unwrap(), None);
    run.cancel_token().cancel(umbel::CancelReason::Asked);
    let error = ready.before_run(&run).try_now().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let cx = Context::new(run.clone());
    let (mut history, tools) = (Transcript::default(), Arc::new(ToolSet::new()));
    let mut turn = ModelTurn::new(&cx, &mut history, &tools);
    let error = ready.before_model(&mut turn).try_now().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Blocked);
    assert_eq!(history.len(), 1);
    assert!(ready.on_event(&run, run.event()).try_now().is_ok());
    assert!(ready.close().try_now().is_ok());

    let ready: Arc<dyn Handler> =
        Arc::new(Ready::<String> { name: "static", value: Mutex::new(Box::new(String::new())) });
    assert_eq!(words(&ready, &cx).await.unwrap(), [Chunk::Text("static".to_owned())]);
}

/// A hook in the trait's own form, `hooks` by hand, and hooks under conditions.
struct Mixed;

#[handler(crate = umbel::core)]
impl Handler for Mixed {
    fn name(&self) -> &str {
        "mixed"
    }

    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        if run.is_top() {
            return Work::done(Ok(None));
        }
        Work::later(async { Ok(Some(Content::user("later"))) })
    }

    #[cfg(not(test))]
    async fn on_event(&self, _: &Run, event: Event) -> Result<Event> {
        Ok(event)
    }

    #[cfg(test)]
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

struct ByHand;

#[handler]
impl Handler for ByHand {
    fn name(&self) -> &str {
        "by-hand"
    }

    fn hooks(&self) -> Hooks {
        Hooks::NONE
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

struct Nothing;

#[handler]
impl Handler for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }
}

#[test]
fn hooks_says_what_is_there() {
    assert_eq!(Mixed.hooks(), Hooks::BEFORE_RUN | Hooks::CLOSE);
    assert_eq!(ByHand.hooks(), Hooks::NONE);
    assert_eq!(Nothing.hooks(), Hooks::NONE);
    assert!(Mixed.before_run(&run()).try_now().is_ok());
    assert!(Mixed.close().now_or_never().unwrap().is_ok());
}
