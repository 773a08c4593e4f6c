//! Lending a model to servers.

// Sampling is on its way out of the protocol, and in use.
#![expect(deprecated)]

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, ErrorData, Role as McpRole, SamplingMessage,
    SamplingMessageContentBlock,
};
use serde_json::json;
use umbel_core::{
    Chunk, Content, GenerateConfig, Model, ModelRequest, ModelUsage, Part, Question, Response, Result, Role,
    Run, ToolContext,
};

use super::elicitation::ask_about;
use super::listed::digest;
use super::result::decode;

/// Lets servers ask a model: the agent's own, unless another is named. The answer goes to the server, so lend it only to
/// servers that may have it.
#[derive(Clone)]
pub struct Sampling {
    model: Option<Arc<dyn Model>>,
    pub(crate) calls: u32,
    tokens: u32,
    confirm: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampling {
    /// The agent's model, as often as 3 times for each call of a tool, and for 2,000 tokens each.
    pub fn new() -> Self {
        Self { model: None, calls: 3, tokens: 2_000, confirm: false }
    }

    /// Another model than the agent's.
    pub fn model(mut self, model: impl Model + 'static) -> Self {
        self.model = Some(Arc::new(model));
        self
    }

    /// How often a server may ask during one call of a tool; 3.
    pub fn calls(mut self, calls: u32) -> Self {
        self.calls = calls;
        self
    }

    /// How long an answer may be; 2,000 tokens. A server may ask for less.
    pub fn tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens;
        self
    }

    /// Asks a person before each request of a server.
    pub fn confirm(mut self) -> Self {
        self.confirm = true;
        self
    }

    /// What the model says to a server.
    pub(crate) async fn ask(
        &self,
        cx: &ToolContext,
        server: &str,
        params: CreateMessageRequestParams,
    ) -> Result<Result<CreateMessageResult, ErrorData>> {
        let refuse = |why: &str| Ok(Err(ErrorData::invalid_params(why.to_owned(), None)));
        if params.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return refuse("models that are lent do not call tools");
        }
        let Some(model) = self.model.clone().or_else(|| model_of(cx.run())) else {
            return refuse("the agent has no model");
        };
        let Some(request) = self.request(&*model, &params) else {
            return refuse("there is something in the messages that models do not take");
        };
        if self.confirm && !ask_about(cx, question(server, &params))?.confirmed {
            return refuse("a person said no");
        }
        cx.run().count_model_call()?;
        let answer = match generate(&*model, &request).await {
            Ok(answer) => answer,
            Err(error) if error.is_control() => return Err(error),
            Err(_) => return Ok(Err(ErrorData::internal_error("the model failed", None))),
        };
        if let Some(usage) = answer.usage() {
            cx.add_usage(ModelUsage { model: Some(model.name().into()), usage: usage.clone() });
        }
        let text = answer.content.as_ref().map(|content| content.text()).unwrap_or_default();
        let message = SamplingMessage::new(McpRole::Assistant, SamplingMessageContentBlock::text(text));
        let result = CreateMessageResult::new(message, model.name().to_owned());
        Ok(Ok(result.with_stop_reason(CreateMessageResult::STOP_REASON_END_TURN)))
    }

    /// A server's messages as a request; `None` if there is something in them that is no content.
    fn request(&self, model: &dyn Model, params: &CreateMessageRequestParams) -> Option<ModelRequest> {
        let mut request = ModelRequest::new(model.name());
        if let Some(prompt) = &params.system_prompt {
            request.instruction.push("mcp", prompt.as_str());
        }
        for message in &params.messages {
            let role = match message.role {
                McpRole::User => Role::User,
                McpRole::Assistant => Role::Model,
            };
            let parts = message.content.iter().map(part).collect::<Option<Vec<Part>>>()?;
            request.contents.push(Content::new(role, parts));
        }
        request.config = Arc::new(GenerateConfig {
            temperature: params.temperature.map(f64::from),
            max_output_tokens: Some(params.max_tokens.min(self.tokens)),
            stop_sequences: params.stop_sequences.clone().unwrap_or_default(),
            ..GenerateConfig::default()
        });
        Some(request)
    }
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, calls, tokens, confirm } = self;
        write!(f, "Sampling({model:?}, calls: {calls}, tokens: {tokens}, confirm: {confirm})")
    }
}

/// What a person is asked before the model is: all that it would be told.
fn question(server: &str, params: &CreateMessageRequestParams) -> Question {
    let mut words = format!("The MCP server `{server}` wants to ask the model: ");
    let mut whole = Vec::new();
    if let Some(prompt) = &params.system_prompt {
        whole.push(format!("[as its instruction] {prompt}"));
    }
    let several = params.messages.len() > 1;
    for message in &params.messages {
        let blocks = message.content.iter().map(|block| match block {
            SamplingMessageContentBlock::Text(text) => text.text.clone(),
            SamplingMessageContentBlock::Image(image) => medium(&image.mime_type, &image.data),
            SamplingMessageContentBlock::Audio(audio) => medium(&audio.mime_type, &audio.data),
            _ => "[something else]".to_owned(),
        });
        let who = match message.role {
            McpRole::Assistant => "[as if the model had said] ",
            McpRole::User if several || params.system_prompt.is_some() => "[as the user] ",
            McpRole::User => "",
        };
        whole.push(format!("{who}{}", blocks.collect::<Vec<_>>().join("\n")));
    }
    words.push_str(&whole.join("\n"));
    // The answer is for just this request, whatever of it is not shown in words.
    let request = serde_json::to_value(params).unwrap_or_default();
    Question::confirm(words).payload(json!({"mcpServer": server, "digest": digest(&request)}))
}

/// A medium in words, with what tells it from another.
fn medium(kind: &str, data: &str) -> String {
    let short: String = digest(&json!(data)).chars().take(8).collect();
    format!("[{kind}, {} bytes, {short}]", data.len() / 4 * 3)
}

fn part(block: &SamplingMessageContentBlock) -> Option<Part> {
    match block {
        SamplingMessageContentBlock::Text(text) => Some(Part::text(text.text.as_str())),
        SamplingMessageContentBlock::Image(image) => decode(&image.mime_type, &image.data),
        SamplingMessageContentBlock::Audio(audio) => decode(&audio.mime_type, &audio.data),
        _ => None,
    }
}

/// The model that an agent thinks with: its own, or that of the next one above it that has one.
fn model_of(run: &Run) -> Option<Arc<dyn Model>> {
    let mut id = Some(run.node_id());
    while let Some(node) = id.and_then(|id| run.tree().node(id).ok()) {
        if let Some(model) = node.agent.model() {
            return Some(model.clone());
        }
        id = node.parent;
    }
    None
}

/// A model's whole answer.
async fn generate(model: &dyn Model, request: &ModelRequest) -> Result<Response> {
    let mut chunks = model.generate(request);
    let (mut text, mut last) = (String::new(), Response::default());
    while let Some(chunk) = chunks.next().await {
        match chunk? {
            Chunk::Complete(response) => return Ok(response),
            Chunk::Restart => text.clear(),
            Chunk::Thought(_) => {}
            chunk => {
                let Some(delta) = chunk.into_delta() else { continue };
                text.push_str(&delta.content.as_ref().map(|content| content.text()).unwrap_or_default());
                last.meta = delta.meta.or(last.meta);
            }
        }
    }
    last.content = Some(Arc::new(Content::model(Part::text(text))));
    Ok(last)
}
