//! A call of a tool that no model asked for: a model that asks for it in its place, so that it is made like any other.

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::{
    BoxStream, Chunk, Content, FunctionCall, Model, ModelRequest, Object, Part, Response, Result, Role,
};

/// A call as the message that asks for it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct DirectCall {
    /// The tool.
    pub(super) tool: SmolStr,
    /// Its arguments.
    pub(super) args: Object,
}

impl DirectCall {
    /// What the agent is told.
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Asks for the call that it is told to ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectModel;

impl Model for DirectModel {
    fn name(&self) -> &str {
        "direct"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let last = request.contents.iter().next_back();
        let asked = last.filter(|content| content.role == Some(Role::User) && !content.has_responses());
        let asked = asked.and_then(|content| serde_json::from_str::<DirectCall>(&content.text()).ok());
        let part = match asked {
            Some(call) => Part::call(FunctionCall::new(call.tool, call.args)),
            // The result is the answer: there is nothing to add.
            None => Part::text(""),
        };
        let response = Response::new(Content::model(part));
        futures::stream::once(std::future::ready(Ok(Chunk::Complete(response)))).boxed()
    }
}
