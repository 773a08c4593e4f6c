//! Handlers from closures, for what needs no type of its own.
//!
//! None of these handlers keeps anything, so one can serve any number of runs at once. Those that change what an agent
//! works with act before each of its turns, in the order in which they were added: a later one can undo an earlier one.
//!
//! ```
//! use umbel_core::{ToolOutput, template};
//! use umbel_runtime::with;
//!
//! let polite = with::instruction("Be polite.");
//! let local = with::instruction(template("The user lives in {city}."));
//! let careful = with::remove_tools(["delete_account"]);
//! let timed = with::tool_wrapper(|call, next| {
//!     Box::pin(async move {
//!         let started = std::time::Instant::now();
//!         let mut result = next.call(call).await?;
//!         if let ToolOutput::Value(value) = &mut result {
//!             value.metadata.insert("took_ms".to_owned(), (started.elapsed().as_millis() as u64).into());
//!         }
//!         Ok(result)
//!     })
//! });
//! ```

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{
    AgentTurn, BoxFuture, Handler, Hooks, InstructionPlan, ModelTurn, NextTool, Result, Run, Step, Tool,
    ToolCall, ToolItem, ToolOutput, ToolResult, ToolSet, ToolStream, ToolValue, Words, Work,
};

use crate::layers::Logging;

/// Tells the agent something more: words as they are, a [`template`](umbel_core::template), or words that are
/// [`provided`](umbel_core::provided) for each request.
pub fn instruction(words: impl Into<Words>) -> impl Handler + 'static {
    const NAME: &str = "with::instruction";
    let words = words.into();
    change(NAME, move |turn| {
        turn.plan.instruction.push(NAME, words.clone());
        Ok(())
    })
}

/// Changes what the agent is told: adds, puts before, replaces, takes away.
///
/// ```
/// let strict = umbel_runtime::with::instruction_fn(|run, instruction| {
///     if run.session_key().user() == "guest" {
///         instruction.replace("guests", "Say that an account is needed.");
///     }
///     Ok(())
/// });
/// ```
pub fn instruction_fn<F>(rewrite: F) -> impl Handler + 'static
where
    F: Fn(&Run, &mut InstructionPlan) -> Result<()> + Send + Sync + 'static,
{
    change("with::instruction_fn", move |turn| rewrite(turn.run(), &mut turn.plan.instruction))
}

/// Gives the agent more tools. One of a known name takes that one's place. Tools of several types are given as
/// `Arc<dyn Tool>`.
pub fn tools<T: Tool + 'static>(tools: impl IntoIterator<Item = T>) -> impl Handler + 'static {
    let tools: Vec<Arc<dyn Tool>> = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
    change("with::tools", move |turn| {
        for tool in &tools {
            turn.plan.add_tool(tool.clone());
        }
        Ok(())
    })
}

/// Changes the agent's tools. What is left is what the model sees and what can be called.
///
/// ```
/// let read_only = umbel_runtime::with::tools_fn(|_run, tools| {
///     tools.retain(|meta| meta.tool.spec().read_only);
///     Ok(())
/// });
/// ```
pub fn tools_fn<F>(rewrite: F) -> impl Handler + 'static
where
    F: Fn(&Run, &mut ToolSet) -> Result<()> + Send + Sync + 'static,
{
    change("with::tools_fn", move |turn| rewrite(turn.run(), turn.plan.tools_mut()))
}

/// Takes tools away. Those that are not there are no error.
pub fn remove_tools<N: Into<SmolStr>>(names: impl IntoIterator<Item = N>) -> impl Handler + 'static {
    let names: Vec<SmolStr> = names.into_iter().map(Into::into).collect();
    change("with::remove_tools", move |turn| {
        for name in &names {
            turn.plan.remove_tool(name);
        }
        Ok(())
    })
}

/// Makes the answers of these tools the agent's answer: the model is not asked to put them in words. Tools that are not
/// there are no error.
pub fn return_directly<N: Into<SmolStr>>(names: impl IntoIterator<Item = N>) -> impl Handler + 'static {
    returning("with::return_directly", names.into_iter().map(Into::into).collect(), true)
}

/// Has the model put the answers of these tools in words, whatever was said before.
pub fn return_directly_off<N: Into<SmolStr>>(names: impl IntoIterator<Item = N>) -> impl Handler + 'static {
    returning("with::return_directly_off", names.into_iter().map(Into::into).collect(), false)
}

fn returning(name: &'static str, names: Vec<SmolStr>, directly: bool) -> impl Handler + 'static {
    change(name, move |turn| {
        for name in &names {
            turn.plan.return_directly(name, directly);
        }
        Ok(())
    })
}

/// Called before each turn of the agent, as [`Handler::before_agent`] is.
pub fn before_agent<F>(hook: F) -> impl Handler + 'static
where
    F: for<'a> Fn(&'a mut AgentTurn<'_>) -> BoxFuture<'a, Result<Step>> + Send + Sync + 'static,
{
    BeforeAgent::new("with::before_agent", move |turn| Work::boxed(hook(turn)))
}

/// Called before each model call, as [`Handler::before_model`] is.
///
/// ```
/// use umbel_core::Step;
///
/// let short = umbel_runtime::with::before_model(|turn| {
///     Box::pin(async move {
///         let old = turn.history.len().saturating_sub(20);
///         turn.history.truncate_front(old);
///         Ok(Step::Continue)
///     })
/// });
/// ```
pub fn before_model<F>(hook: F) -> impl Handler + 'static
where
    F: for<'a> Fn(&'a mut ModelTurn<'_>) -> BoxFuture<'a, Result<Step>> + Send + Sync + 'static,
{
    BeforeModel(hook)
}

/// Called after each model call, as [`Handler::after_model`] is.
pub fn after_model<F>(hook: F) -> impl Handler + 'static
where
    F: for<'a> Fn(&'a mut ModelTurn<'_>) -> BoxFuture<'a, Result<Step>> + Send + Sync + 'static,
{
    AfterModel(hook)
}

/// A layer around each tool call of the agent, as [`Handler::wrap_tool`] is: streamed ones and those of unknown tools too.
pub fn tool_wrapper<F>(wrap: F) -> impl Handler + 'static
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync + 'static,
{
    WrapTool { name: "with::tool_wrapper", wrap }
}

/// The same for a runner, under a name of its own: the outermost layer around the tool calls of all its agents.
pub fn global_tool_wrapper<F>(wrap: F) -> impl Handler + 'static
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync + 'static,
{
    WrapTool { name: "with::global_tool_wrapper", wrap }
}

/// Logs a line for each tool call; [`Logging`] has more to set.
pub fn tool_logging() -> Logging {
    Logging::new()
}

/// A layer around the tool calls that answer piece by piece. It gets the pieces; others pass it by.
///
/// ```
/// use serde_json::Value;
/// use umbel_runtime::with;
///
/// let hushed = with::stream_tool_wrapper(|call, items| match call.name() {
///     "search" => with::map_tool_stream(items, |value| Value::String(value.to_string().to_lowercase())),
///     _ => items,
/// });
/// ```
pub fn stream_tool_wrapper<F>(wrap: F) -> impl Handler + 'static
where
    F: Fn(&ToolCall<'_>, ToolStream) -> ToolStream + Send + Sync + 'static,
{
    WrapStream(wrap)
}

/// Maps what a streamed result says, news and result alike. The last item stays the last, and an error, the mark of one,
/// metadata and media stay what they are. [`at_end`](crate::layers::at_end) sees how a call ends, streamed or not.
pub fn map_tool_stream(items: ToolStream, map: impl FnMut(Value) -> Value + Send + 'static) -> ToolStream {
    let mut map = map;
    Box::pin(items.map(move |item| {
        item.map(|item| match item {
            ToolItem::Progress(value) => ToolItem::Progress(map(value)),
            ToolItem::Done(done) => ToolItem::Done(ToolValue { value: map(done.value), ..done }),
        })
    }))
}

/// A handler that changes a turn and has nothing to wait for.
fn change<F>(name: &'static str, change: F) -> impl Handler + 'static
where
    F: Fn(&mut AgentTurn<'_>) -> Result<()> + Send + Sync + 'static,
{
    BeforeAgent::new(name, move |turn| Work::done(change(turn).map(|()| Step::Continue)))
}

struct BeforeAgent<F> {
    name: &'static str,
    hook: F,
}

impl<F> BeforeAgent<F>
where
    F: for<'a> Fn(&'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> + Send + Sync,
{
    // The bound is what gives closures their signature.
    fn new(name: &'static str, hook: F) -> Self {
        Self { name, hook }
    }
}

impl<F> Handler for BeforeAgent<F>
where
    F: for<'a> Fn(&'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn hooks(&self) -> Hooks {
        Hooks::BEFORE_AGENT
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        (self.hook)(turn)
    }
}

struct BeforeModel<F>(F);

impl<F> Handler for BeforeModel<F>
where
    F: for<'a> Fn(&'a mut ModelTurn<'_>) -> BoxFuture<'a, Result<Step>> + Send + Sync,
{
    fn name(&self) -> &str {
        "with::before_model"
    }

    fn hooks(&self) -> Hooks {
        Hooks::BEFORE_MODEL
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::boxed((self.0)(turn))
    }
}

struct AfterModel<F>(F);

impl<F> Handler for AfterModel<F>
where
    F: for<'a> Fn(&'a mut ModelTurn<'_>) -> BoxFuture<'a, Result<Step>> + Send + Sync,
{
    fn name(&self) -> &str {
        "with::after_model"
    }

    fn hooks(&self) -> Hooks {
        Hooks::AFTER_MODEL
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::boxed((self.0)(turn))
    }
}

struct WrapTool<F> {
    name: &'static str,
    wrap: F,
}

impl<F> Handler for WrapTool<F>
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync,
{
    fn name(&self) -> &str {
        self.name
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::boxed((self.wrap)(call, next))
    }
}

struct WrapStream<F>(F);

impl<F> Handler for WrapStream<F>
where
    F: Fn(&ToolCall<'_>, ToolStream) -> ToolStream + Send + Sync,
{
    fn name(&self) -> &str {
        "with::stream_tool_wrapper"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            Ok(match next.call(call.clone()).await? {
                ToolOutput::Stream(items) => ToolOutput::Stream((self.0)(&call, items)),
                value => value,
            })
        })
    }
}
