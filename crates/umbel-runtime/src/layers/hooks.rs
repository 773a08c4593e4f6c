//! Layers from functions: one around a call, or some before and behind it.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    Handler, Hooks, NextTool, Result, Tool, ToolCall, ToolContext, ToolError, ToolResult, ToolValue, Work,
};

use super::{at_end, is_control};

/// A layer from a function that gets the call and what is `next`.
///
/// ```
/// use umbel_core::{ToolValue, Work};
/// use umbel_runtime::layers::layer_fn;
///
/// let curfew = layer_fn("curfew", |call, next| {
///     Work::later(async move {
///         if call.name() == "ring_bell" {
///             return Err(umbel_core::ToolError::new("not at night"));
///         }
///         next.call(call).await
///     })
/// });
/// ```
///
/// A function of another form does not compile:
///
/// ```compile_fail
/// let wrong = umbel_runtime::layers::layer_fn("wrong", |text: String| text);
/// ```
pub fn layer_fn<F>(name: impl Into<SmolStr>, call: F) -> LayerFn<F>
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> Work<'a, ToolResult> + Send + Sync,
{
    LayerFn { name: name.into(), call }
}

/// A layer from a function; see [`layer_fn`].
#[derive(Clone)]
pub struct LayerFn<F> {
    name: SmolStr,
    call: F,
}

impl<F> Handler for LayerFn<F>
where
    F: for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> Work<'a, ToolResult> + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        (self.call)(call, next)
    }
}

impl<F> fmt::Debug for LayerFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerFn({})", self.name)
    }
}

/// What happens before and behind a call. [`hooks`] makes a layer of it.
///
/// ```
/// use umbel_core::{Result, ToolCall, ToolError, ToolValue, Work};
/// use umbel_runtime::layers::{ToolHooks, hooks};
///
/// struct Apologise;
///
/// impl ToolHooks for Apologise {
///     fn name(&self) -> &str {
///         "apologise"
///     }
///
///     fn on_error<'a>(
///         &'a self,
///         call: &'a ToolCall<'_>,
///         error: ToolError,
///     ) -> Work<'a, Result<ToolValue, ToolError>> {
///         let words = format!("{} is out of order: {error}", call.name());
///         Work::done(Ok(serde_json::json!(words).into()))
///     }
/// }
///
/// let layer = hooks(Apologise);
/// ```
#[allow(unused_variables)]
pub trait ToolHooks: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Before a call: may change its arguments, or answer in the tool's place. Nothing further in is asked then, and
    /// `after` is not either.
    fn before<'a>(&'a self, call: &'a mut ToolCall<'_>) -> Work<'a, Result<Option<ToolValue>, ToolError>> {
        Work::done(Ok(None))
    }

    /// Behind a call that gave a value: gives what it makes of it. A streamed result comes here with its last item.
    fn after<'a>(
        &'a self,
        call: &'a ToolCall<'_>,
        value: ToolValue,
    ) -> Work<'a, Result<ToolValue, ToolError>> {
        Work::done(Ok(value))
    }

    /// Behind a call that failed, in `before`, further in or in `after`: gives a value in its place, or an error. Never
    /// asked about a question to a person or the end of a run.
    fn on_error<'a>(
        &'a self,
        call: &'a ToolCall<'_>,
        error: ToolError,
    ) -> Work<'a, Result<ToolValue, ToolError>> {
        Work::done(Err(error))
    }
}

/// A layer from what happens before and behind a call.
pub fn hooks<T: ToolHooks + 'static>(hooks: T) -> impl Handler + fmt::Debug {
    HooksLayer(Arc::new(hooks))
}

struct HooksLayer<T>(Arc<T>);

/// A call that outlives the layers it passes: a streamed result comes to its end behind them.
struct OwnedCall {
    cx: ToolContext,
    tool: Option<Arc<dyn Tool>>,
    args: Arc<umbel_core::Object>,
}

impl OwnedCall {
    fn of(call: &ToolCall<'_>) -> Self {
        Self { cx: call.cx.clone(), tool: call.tool.cloned(), args: call.args.clone() }
    }

    fn borrow(&self) -> ToolCall<'_> {
        ToolCall::new(&self.cx, self.tool.as_ref(), self.args.clone())
    }
}

/// How a call ends, seen by the hooks behind it.
async fn finish<T: ToolHooks>(
    hooks: &T,
    call: &ToolCall<'_>,
    end: Result<ToolValue, ToolError>,
) -> Result<ToolValue, ToolError> {
    let end = match end {
        Ok(value) => hooks.after(call, value).await,
        Err(error) => Err(error),
    };
    match end {
        Err(error) if !is_control(call.run(), error.error()) => hooks.on_error(call, error).await,
        end => end,
    }
}

impl<T: ToolHooks + 'static> Handler for HooksLayer<T> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, mut call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            let result = match self.0.before(&mut call).await {
                Ok(Some(answer)) => return Ok(umbel_core::ToolOutput::from(answer)),
                Ok(None) => next.call(call.clone()).await,
                Err(error) if is_control(call.run(), error.error()) => return Err(error),
                Err(error) => {
                    let value = self.0.on_error(&call, error).await?;
                    return Ok(umbel_core::ToolOutput::from(value));
                }
            };
            let (hooks, call) = (self.0.clone(), OwnedCall::of(&call));
            at_end(result, move |end| async move { finish(&*hooks, &call.borrow(), end).await }).await
        })
    }
}

impl<T: ToolHooks> fmt::Debug for HooksLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HooksLayer({})", self.0.name())
    }
}
