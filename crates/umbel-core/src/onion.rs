//! Calls that pass through the layers of an onion: of a tool, and of a model.
//!
//! A layer gets the call and what is `next`; it may change the call, ask `next` once, several times or not at all, and
//! change what comes back. A panic in a layer is caught and names it.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use smol_str::{SmolStr, format_smolstr};

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::extensions::Extensions;
use crate::handler::Handler;
use crate::id::CallId;
use crate::interrupt::{Address, Answer, Asker, Question};
use crate::json::Object;
use crate::model::{Chunk, Model, ModelRequest};
use crate::run::Run;
use crate::tool::{Tool, ToolError, ToolOutput};
use crate::tool_context::ToolContext;
use crate::work::{BoxStream, Work};

/// What a tool call gives.
pub type ToolResult = Result<ToolOutput, ToolError>;

/// What a model call gives, piece by piece.
pub type ChunkStream<'a> = BoxStream<'a, Result<Chunk>>;

/// One call of a tool, on its way through the layers.
#[derive(Clone)]
pub struct ToolCall<'a> {
    /// The context that the tool will get. [`ToolContext::with`] puts a value in for those further in.
    pub cx: &'a ToolContext,
    /// The tool; absent if the model asked for one that does not exist.
    pub tool: Option<&'a Arc<dyn Tool>>,
    /// The arguments.
    pub args: Arc<Object>,
    /// Where among the layers it has come to.
    pub place: LayerPlace<'a>,
}

/// Where among the layers a call has come to: by that a layer is told from others of its name.
#[derive(Clone, Copy, Default)]
pub struct LayerPlace<'a> {
    /// The layers that stand further in.
    behind: &'a [Arc<dyn Handler>],
    /// How many tools with layers of their own stand around these layers.
    chain: u32,
}

impl<'a> ToolCall<'a> {
    /// A call on its way in.
    pub fn new(cx: &'a ToolContext, tool: Option<&'a Arc<dyn Tool>>, args: Arc<Object>) -> Self {
        let place = LayerPlace { behind: &[], chain: cx.chain() };
        Self { cx, tool, args, place }
    }

    /// The name under which a layer asks about this call.
    fn layer(&self, layer: &dyn Handler) -> SmolStr {
        let name = layer.name();
        let LayerPlace { behind, chain } = self.place;
        match (chain, behind.iter().filter(|other| other.name() == name).count()) {
            (0, 0) => name.into(),
            (chain, same) => format_smolstr!("{name}#{chain}.{same}"),
        }
    }

    /// The tool's name, as the model gave it.
    pub fn name(&self) -> &'a str {
        self.cx.tool_name()
    }

    /// The call's id.
    pub fn id(&self) -> Option<&'a CallId> {
        self.cx.call_id()
    }

    /// The run that the call belongs to.
    pub fn run(&self) -> &'a Run {
        self.cx.run()
    }

    /// What people said to this question of a layer: pass the layer itself. If nobody was asked yet, the error ends the
    /// run as *interrupted*, and the call is made again, from its outermost layer, with the answer. A layer may ask
    /// several questions one after the other.
    pub fn interrupt(&self, layer: &dyn Handler, question: impl Into<Question>) -> Result<Answer> {
        self.cx.show(&self.args);
        self.cx.ask(Some(self.layer(layer)), question.into())
    }

    /// What people said to the first question of that layer about this call with these arguments, if they did.
    pub fn answer(&self, layer: &dyn Handler) -> Option<Answer> {
        let place = Address { layer: Some(self.layer(layer)), ..self.cx.address() };
        self.run().values().answer(&place, 0, Some(&self.args))
    }

    /// Whether that layer asked about another call of this batch, and has its answer.
    pub fn is_batch_answered(&self, layer: &dyn Handler) -> bool {
        let place = Address { layer: Some(self.layer(layer)), ..self.cx.address() };
        self.run().values().is_batch_answered(&place)
    }

    /// The same call with other arguments.
    pub fn with_args(mut self, args: Object) -> Self {
        self.args = Arc::new(args);
        self
    }

    /// The same call seen with another context.
    pub fn with_context<'b>(self, cx: &'b ToolContext) -> ToolCall<'b>
    where
        'a: 'b,
    {
        ToolCall { cx, tool: self.tool, args: self.args, place: self.place }
    }
}

impl fmt::Debug for LayerPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerPlace({} further in)", self.behind.len())
    }
}

impl fmt::Debug for ToolCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolCall({})", self.name())
    }
}

/// What stands at the centre of the layers around a tool.
pub trait ToolEnd: Send + Sync {
    /// Makes the call.
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult>;
}

/// What is further in than a layer around a tool. It may be asked as often as the layer likes.
#[derive(Clone, Copy)]
pub struct NextTool<'a> {
    layers: &'a [Arc<dyn Handler>],
    end: &'a dyn ToolEnd,
}

impl<'a> NextTool<'a> {
    /// All layers, outermost first, with the end in the middle.
    pub fn new(layers: &'a [Arc<dyn Handler>], end: &'a dyn ToolEnd) -> Self {
        Self { layers, end }
    }

    /// Makes the call.
    pub fn call(self, call: ToolCall<'a>) -> Guarded<'a, ToolResult> {
        let Some((layer, layers)) = self.layers.split_first() else {
            return Guarded::bare(self.end.call(call));
        };
        let rest = Self { layers, ..self };
        let call = ToolCall { place: LayerPlace { behind: layers, ..call.place }, ..call };
        Guarded::new(&**layer, WRAP_TOOL, || layer.wrap_tool(call, rest))
    }
}

impl fmt::Debug for NextTool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextTool({} layers)", self.layers.len())
    }
}

/// One call of a model, on its way through the layers.
#[derive(Clone)]
pub struct ModelCall<'a> {
    /// Where to leave state and other actions for the answer's event.
    pub cx: &'a Context,
    /// The model that will be asked; another one can be put in its place.
    pub model: Arc<dyn Model>,
    /// What it will be asked. Changes hold for this call alone.
    pub request: ModelRequest,
    /// Values for those further in.
    pub extensions: Extensions,
}

impl<'a> ModelCall<'a> {
    /// The run that the call belongs to.
    pub fn run(&self) -> &'a Run {
        self.cx.run()
    }

    /// A value that someone further out put in, or that the run has.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions.get::<T>().or_else(|| self.cx.run().extension::<T>())
    }

    /// What people said to this question of a layer: pass the layer itself. If nobody was asked yet, the error ends the
    /// run as *interrupted*, and the model is asked again, through all layers, with the answer.
    pub fn interrupt(&self, layer: &dyn Handler, question: impl Into<Question>) -> Result<Answer> {
        self.run().ask(Some(layer_name(layer, WRAP_MODEL)), question.into())
    }
}

impl fmt::Debug for ModelCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelCall({}, {} messages)", self.request.model, self.request.contents.len())
    }
}

/// What stands at the centre of the layers around a model.
pub trait ModelEnd: Send + Sync {
    /// Makes the call.
    fn call<'a>(&'a self, call: ModelCall<'a>) -> Work<'a, Result<ChunkStream<'a>>>;
}

/// What is further in than a layer around a model. It may be asked as often as the layer likes.
#[derive(Clone, Copy)]
pub struct NextModel<'a> {
    layers: &'a [Arc<dyn Handler>],
    end: &'a dyn ModelEnd,
}

impl<'a> NextModel<'a> {
    /// All layers, outermost first, with the end in the middle.
    pub fn new(layers: &'a [Arc<dyn Handler>], end: &'a dyn ModelEnd) -> Self {
        Self { layers, end }
    }

    /// Makes the call.
    pub fn call(self, call: ModelCall<'a>) -> Guarded<'a, Result<ChunkStream<'a>>> {
        let Some((layer, layers)) = self.layers.split_first() else {
            return Guarded::bare(self.end.call(call));
        };
        let rest = Self { layers, ..self };
        Guarded::new(&**layer, WRAP_MODEL, || layer.wrap_model(call, rest))
    }
}

impl fmt::Debug for NextModel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextModel({} layers)", self.layers.len())
    }
}

/// The work of one hook. A panic in it is an error that names the handler and the hook.
#[must_use = "futures do nothing unless awaited"]
pub struct Guarded<'a, T> {
    work: Work<'a, T>,
    /// Who works; absent at the centre of an onion, where the runtime has a guard of its own.
    hook: Option<Hook<'a>>,
}

/// A handler, and which of its hooks.
type Hook<'a> = (&'a dyn Handler, &'static str);

/// The name under which a handler asks people: each of its hooks has its own.
pub(crate) fn layer_name(handler: &dyn Handler, hook: &str) -> SmolStr {
    if hook == WRAP_TOOL { handler.name().into() } else { format_smolstr!("{}.{hook}", handler.name()) }
}

/// An error of a hook, with the names of handler and hook. Its kind stays, unless it is none in particular.
pub fn named(handler: &dyn Handler, hook: &str, error: Error) -> Error {
    // One that carries another of ours has its names: of a plugin, or of whoever panicked.
    let is_named = error.kind() == ErrorKind::Handler
        && std::error::Error::source(&error).is_some_and(|source| source.is::<Error>());
    if error.is_control() {
        return error.asked_by(|| Asker::Layer(layer_name(handler, hook)));
    }
    if is_named {
        return error;
    }
    let kind = if error.kind() == ErrorKind::Other { ErrorKind::Handler } else { error.kind() };
    let message = format!("handler `{}` failed in {hook}: {}", handler.name(), error.message());
    let wrapped = Error::new(kind, message);
    let wrapped = match error.retry_after() {
        Some(after) => wrapped.with_retry_after(after),
        None => wrapped,
    };
    wrapped.with_source(error)
}

const WRAP_TOOL: &str = "wrap_tool";
const WRAP_MODEL: &str = "wrap_model";

/// An error of a layer with its names, if it can only be the layer's: any other may be the tool's or the model's. Other
/// hooks are named by who calls them.
fn own<E: From<Error> + Into<Error>>((handler, hook): Hook<'_>, error: E) -> E {
    let error: Error = error.into();
    let is_own = error.kind() == ErrorKind::Interrupted
        || match hook {
            WRAP_TOOL => error.kind() == ErrorKind::Handler,
            WRAP_MODEL => matches!(error.kind(), ErrorKind::Handler | ErrorKind::Other),
            _ => false,
        };
    if is_own { named(handler, hook, error).into() } else { error.into() }
}

impl<'a, T> Guarded<'a, T> {
    fn bare(work: Work<'a, T>) -> Self {
        Self { work, hook: None }
    }
}

impl<'a, T, E: From<Error> + Into<Error>> Guarded<'a, Result<T, E>> {
    /// Calls a hook. It may panic before there is a future.
    pub fn new(
        handler: &'a dyn Handler,
        hook: &'static str,
        call: impl FnOnce() -> Work<'a, Result<T, E>>,
    ) -> Self {
        let work = catch_unwind(AssertUnwindSafe(call))
            .unwrap_or_else(|panic| Work::done(Err(panicked(handler, hook, panic.as_ref()).into())));
        Self { hook: Some((handler, hook)), ..Self::bare(work) }
    }

    /// The value, if it is there already.
    pub fn try_now(self) -> Result<Result<T, E>, Self> {
        let Self { work, hook } = self;
        match (work.try_now(), hook) {
            (Ok(Err(error)), Some(hook)) => Ok(Err(own(hook, error))),
            (Ok(value), _) => Ok(value),
            (Err(work), hook) => Err(Self { work, hook }),
        }
    }
}

impl<T, E: From<Error> + Into<Error>> Future for Guarded<'_, Result<T, E>> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self { work, hook } = &mut *self;
        let Some((handler, hook)) = *hook else { return Pin::new(work).poll(cx) };
        catch_unwind(AssertUnwindSafe(|| Pin::new(work).poll(cx)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panicked(handler, hook, panic.as_ref()).into())))
            .map_err(|error| own((handler, hook), error))
    }
}

impl<T> fmt::Debug for Guarded<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hook {
            Some((handler, hook)) => write!(f, "Guarded({}.{hook})", handler.name()),
            None => f.write_str("Guarded"),
        }
    }
}

fn panicked(handler: &dyn Handler, hook: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let error = Error::from_panic(&format!("handler `{}` in {hook}", handler.name()), panic);
    Error::new(ErrorKind::Handler, error.message()).with_source(error)
}
