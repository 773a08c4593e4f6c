//! Layers around one tool.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use umbel_core::{
    Agent, Asker, BoxFuture, Error, Handler, Hooks, ModelRequest, NextTool, Object, Result, Run, Tool,
    ToolCall, ToolContext, ToolEnd, ToolError, ToolOutput, ToolResult, ToolSpec, Work,
};

use crate::configure::check_handlers;

/// Puts layers around one tool. What the tool is and what it does to requests stays as it is.
///
/// ```
/// use std::sync::Arc;
/// use serde_json::json;
/// use umbel_core::{FunctionTool, Tool, ToolContext, ToolOutput};
/// use umbel_runtime::layers::{CacheStatus, Caching, Layered, Logging, RateLimit};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> umbel_core::Result<()> {
/// let double = FunctionTool::new("double", "Doubles.", |n: i64| async move { Ok(n * 2) }).read_only();
/// # let double = FunctionTool::new("double", "Doubles.", |_: serde_json::Value| async { Ok(8) }).read_only();
/// let double = double.layered_with([
///     Arc::new(Logging::new()), // outermost
///     Arc::new(Caching::new()),
///     Arc::new(RateLimit::default()),
/// ]);
/// let cx = ToolContext::detached("double")?;
/// for expected in [CacheStatus::Stored, CacheStatus::Hit] {
///     let Ok(ToolOutput::Value(result)) = double.call(&cx, Arc::default()).await else { panic!() };
///     assert_eq!(result.value, json!(8));
///     assert_eq!(CacheStatus::of(&result.metadata), Some(expected));
/// }
/// # Ok(())
/// # }
/// ```
///
/// What is no handler does not compile:
///
/// ```compile_fail
/// use umbel_runtime::layers::Layered;
/// let tool = umbel_core::FunctionTool::new("t", "", |_: serde_json::Value| async { Ok(1) });
/// let tool = tool.layered("logging");
/// ```
pub trait Layered: Tool + Sized + 'static {
    /// The tool inside one more layer, which goes around those it has already.
    fn layered(self, layer: impl Handler + 'static) -> Arc<dyn Tool> {
        self.layered_with([Arc::new(layer) as Arc<dyn Handler>])
    }

    /// The tool inside these layers, the first one outermost. Without a layer it is the very same tool.
    fn layered_with<const N: usize>(self, layers: [Arc<dyn Handler>; N]) -> Arc<dyn Tool> {
        let shared = (&self as &dyn Any).downcast_ref::<Arc<dyn Tool>>().cloned();
        let tool = shared.unwrap_or_else(|| Arc::new(self));
        // One that says nothing about its hooks may well have no other.
        let has_others = |layer: &&Arc<dyn Handler>| ![Hooks::WRAP_TOOL, Hooks::ALL].contains(&layer.hooks());
        for layer in layers.iter().filter(has_others) {
            let (layer, tool) = (layer.name(), tool.spec().name.as_str());
            tracing::warn!(layer, tool, "around one tool a handler has its `wrap_tool` only");
        }
        let layers: Vec<_> =
            layers.into_iter().filter(|layer| layer.hooks().contains(Hooks::WRAP_TOOL)).collect();
        if layers.is_empty() { tool } else { Arc::new(LayeredTool { layers, tool: Centre(tool) }) }
    }
}

impl<T: Tool + 'static> Layered for T {}

struct LayeredTool {
    layers: Vec<Arc<dyn Handler>>,
    tool: Centre,
}

/// The tool in the middle. A panic in it is an error to the layers.
struct Centre(Arc<dyn Tool>);

impl ToolEnd for Centre {
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            call.cx.show(&call.args);
            let work = async { self.0.call(call.cx, call.args).await };
            AssertUnwindSafe(work)
                .catch_unwind()
                .await
                .unwrap_or_else(|panic| {
                    let name = &self.0.spec().name;
                    Err(Error::from_panic(&format!("tool `{name}`"), panic.as_ref()).into())
                })
                .map_err(|error| ToolError::from(error.into_error().asked_by(|| Asker::Itself)))
        })
    }
}

impl Tool for LayeredTool {
    fn spec(&self) -> &ToolSpec {
        self.tool.0.spec()
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let _inside = cx.inner_layers();
            NextTool::new(&self.layers, &self.tool).call(ToolCall::new(cx, Some(&self.tool.0), args)).await
        })
    }

    fn prepare<'a>(
        &'a self,
        run: &'a Run,
        request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        self.tool.0.prepare(run, request)
    }

    fn agent(&self) -> Option<&Arc<dyn Agent>> {
        self.tool.0.agent()
    }

    fn check(&self) -> Result<()> {
        self.tool.0.check()?;
        check_handlers(&self.layers)
    }
}
