//! No call for longer than it may take.

use std::time::Duration;

use futures::StreamExt;
use smol_str::SmolStr;
use umbel_core::{
    Deadline, Error, ErrorKind, Handler, Hooks, NextTool, ToolCall, ToolError, ToolOutput, ToolResult,
    ToolStream, Work,
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
    /// A limit for each call. With zero a call that has to wait for anything fails; [`Duration::MAX`] is no limit.
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
fn until(items: ToolStream, deadline: Deadline, tool: SmolStr, limit: Duration) -> ToolStream {
    Box::pin(futures::stream::unfold(Some(items), move |items| {
        let tool = tool.clone();
        async move {
            let mut items = items?;
            match deadline.timeout(items.next()).await {
                Some(item) => Some((item?, Some(items))),
                None => Some((Err(too_long(&tool, limit)), None)),
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
            let deadline = Deadline::after(limit);
            match deadline.timeout(next.call(call)).await {
                None => Err(too_long(tool, limit)),
                Some(Ok(ToolOutput::Stream(items))) if deadline.instant().is_some() => {
                    Ok(ToolOutput::Stream(until(items, deadline, tool.into(), limit)))
                }
                Some(result) => result,
            }
        })
    }
}
