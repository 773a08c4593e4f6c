//! No call for longer than it may take.

use std::time::Duration;

use futures::StreamExt;
use smol_str::SmolStr;
use tokio::time::Instant;
use umbel_core::{
    Error, ErrorKind, Handler, Hooks, NextTool, ToolCall, ToolError, ToolOutput, ToolResult, ToolStream, Work,
};

use crate::text;

/// Ends a call that takes too long with [`ErrorKind::Timeout`]. All that is further in counts: waiting for a limit, each
/// try of a retry, and a streamed result up to its last item.
///
/// Every tool has a limit of its own anyway, which counts the tool alone: its `timeout`, or the run's `tool_time`.
#[derive(Clone, Debug)]
pub struct Timeout {
    limit: Duration,
    tools: Vec<(SmolStr, Duration)>,
}

impl Timeout {
    /// A limit for each call.
    pub fn new(limit: Duration) -> Self {
        Self { limit, tools: Vec::new() }
    }

    /// Another limit for one tool.
    pub fn tool(mut self, name: impl Into<SmolStr>, limit: Duration) -> Self {
        self.tools.push((name.into(), limit));
        self
    }

    fn limit_of(&self, name: &str) -> Duration {
        self.tools.iter().rev().find(|(tool, _)| tool == name).map_or(self.limit, |(_, limit)| *limit)
    }
}

fn too_long(tool: &str, limit: Duration) -> ToolError {
    Error::new(ErrorKind::Timeout, text::tool_timeout(tool, limit)).into()
}

/// The stream, ended with an error at the deadline.
fn until(items: ToolStream, deadline: Instant, tool: SmolStr, limit: Duration) -> ToolStream {
    Box::pin(futures::stream::unfold(Some(items), move |items| {
        let tool = tool.clone();
        async move {
            let mut items = items?;
            match tokio::time::timeout_at(deadline, items.next()).await {
                Ok(item) => Some((item?, Some(items))),
                Err(_) => Some((Err(too_long(&tool, limit)), None)),
            }
        }
    }))
}

impl Handler for Timeout {
    fn name(&self) -> &str {
        "timeout"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let (tool, limit) = (call.name(), self.limit_of(call.name()));
        Work::later(async move {
            let Some(deadline) = Instant::now().checked_add(limit) else { return next.call(call).await };
            match tokio::time::timeout_at(deadline, next.call(call)).await {
                Err(_) => Err(too_long(tool, limit)),
                Ok(Ok(ToolOutput::Stream(items))) => {
                    Ok(ToolOutput::Stream(until(items, deadline, tool.into(), limit)))
                }
                Ok(result) => result,
            }
        })
    }
}
