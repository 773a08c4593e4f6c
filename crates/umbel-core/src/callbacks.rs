//! Callbacks around agents, model calls and tool calls, in google-adk's own sequence: plugins first, then the agent; the
//! first value wins.

use std::fmt;
use std::sync::Arc;

use crate::content::Content;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::json::Object;
use crate::model::ModelRequest;
use crate::response::Response;
use crate::tool::Tool;
use crate::tool_context::ToolContext;
use crate::work::BoxFuture;

/// Called before or after an agent works.
pub type AgentCallback =
    Arc<dyn for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync>;

/// May change a request, or answer in the model's place.
pub type BeforeModel = Arc<
    dyn for<'a> Fn(&'a Context, &'a mut ModelRequest) -> BoxFuture<'a, Result<Option<Response>>>
        + Send
        + Sync,
>;

/// May put another answer in the place of the model's. In a streaming run it sees each piece, then the whole.
pub type AfterModel =
    Arc<dyn for<'a> Fn(&'a Context, &'a Response) -> BoxFuture<'a, Result<Option<Response>>> + Send + Sync>;

/// May answer in the place of a model that failed.
pub type OnModelError = Arc<
    dyn for<'a> Fn(&'a Context, &'a ModelRequest, &'a Error) -> BoxFuture<'a, Result<Option<Response>>>
        + Send
        + Sync,
>;

/// May change the arguments, or answer in the tool's place. An empty object is an answer.
pub type BeforeTool = Arc<
    dyn for<'a> Fn(
            &'a ToolContext,
            Option<&'a dyn Tool>,
            &'a mut Object,
        ) -> BoxFuture<'a, Result<Option<Object>>>
        + Send
        + Sync,
>;

/// May put another result in the place of the tool's.
pub type AfterTool = Arc<
    dyn for<'a> Fn(&'a ToolContext, &'a Object, &'a Object) -> BoxFuture<'a, Result<Option<Object>>>
        + Send
        + Sync,
>;

/// May answer in the place of a tool that failed or does not exist.
pub type OnToolError = Arc<
    dyn for<'a> Fn(&'a ToolContext, &'a Object, &'a Error) -> BoxFuture<'a, Result<Option<Object>>>
        + Send
        + Sync,
>;

/// What is called around an agent, its model calls and its tool calls.
#[derive(Clone, Default)]
pub struct Callbacks {
    /// Before the agent works; the first content answers in its place.
    pub before_agent: Vec<AgentCallback>,
    /// After it worked; the first content is added.
    pub after_agent: Vec<AgentCallback>,
    /// Before the model is asked.
    pub before_model: Vec<BeforeModel>,
    /// After it answered.
    pub after_model: Vec<AfterModel>,
    /// After it failed.
    pub on_model_error: Vec<OnModelError>,
    /// Before a tool is called.
    pub before_tool: Vec<BeforeTool>,
    /// After it answered.
    pub after_tool: Vec<AfterTool>,
    /// After it failed.
    pub on_tool_error: Vec<OnToolError>,
}

impl Callbacks {
    /// Whether any is called around model calls.
    pub fn around_models(&self) -> bool {
        !self.before_model.is_empty() || !self.after_model.is_empty() || !self.on_model_error.is_empty()
    }

    /// Whether any is called around tool calls.
    pub fn around_tools(&self) -> bool {
        !self.before_tool.is_empty() || !self.after_tool.is_empty() || !self.on_tool_error.is_empty()
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("before_agent", &self.before_agent.len())
            .field("after_agent", &self.after_agent.len())
            .field("before_model", &self.before_model.len())
            .field("after_model", &self.after_model.len())
            .field("on_model_error", &self.on_model_error.len())
            .field("before_tool", &self.before_tool.len())
            .field("after_tool", &self.after_tool.len())
            .field("on_tool_error", &self.on_tool_error.len())
            .finish()
    }
}
