//! Who answers in the place of tools and models, where nothing is to happen for real.

use std::sync::Arc;

use umbel_core::{ChunkStream, ModelRequest, Object, Run, Tool, ToolContext, ToolResult};

/// Answers in the place of tools and models: for evaluations with made-up results, and for replays.
///
/// It stands at the centre of all layers. So handlers, approvals, checks of arguments and limits are at work as ever, and
/// what it is given is what the tool or the model would have been given. Agents that are called as tools have it too.
/// Models that handlers ask by themselves, as for a summary, are not its business.
pub trait StandIn: Send + Sync {
    /// Answers a call in the place of the tool; `None` lets the tool do it.
    fn call(&self, cx: &ToolContext, tool: &Arc<dyn Tool>, args: &Arc<Object>) -> Option<ToolResult> {
        let _ = (cx, tool, args);
        None
    }

    /// Answers a request in the place of the model; `None` lets the model do it.
    fn generate(&self, run: &Run, request: &ModelRequest) -> Option<ChunkStream<'static>> {
        let _ = (run, request);
        None
    }
}

/// A shared one is one, too.
impl<S: StandIn + ?Sized> StandIn for Arc<S> {
    fn call(&self, cx: &ToolContext, tool: &Arc<dyn Tool>, args: &Arc<Object>) -> Option<ToolResult> {
        (**self).call(cx, tool, args)
    }

    fn generate(&self, run: &Run, request: &ModelRequest) -> Option<ChunkStream<'static>> {
        (**self).generate(run, request)
    }
}
