//! A model that asks the client's: what MCP calls sampling.

#![expect(
    deprecated,
    reason = "clients of today lend their models; the protocol gives this up, and nothing comes in its place"
)]

use futures::StreamExt;
use rmcp::RoleServer;
use rmcp::model::{
    CreateMessageRequestParams, ImageContent, Role as McpRole, SamplingMessage, SamplingMessageContentBlock,
};
use rmcp::service::Peer;
use umbel_core::{
    BoxStream, Chunk, Content, Error, ErrorKind, Model, ModelErrorKind, ModelRequest, Part, Payload,
    Response, Result, Role,
};

use super::result::base64;

tokio::task_local! {
    /// The client that the call at work came from.
    pub(super) static CLIENT: Peer<RoleServer>;
}

/// How long an answer may be, in tokens, if the agent does not say so.
const TOKENS: u32 = 4_096;

/// A model that has the client's model answer, for agents that are called over MCP. The client may ask its user first, and
/// may have no model to offer: then the call fails. It neither calls tools nor keeps to schemas.
///
/// The protocol gives this up: clients of 2026-07-28 and later cannot be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientModel;

impl ClientModel {
    /// The model of whichever client calls.
    pub fn new() -> Self {
        Self
    }
}

impl Model for ClientModel {
    fn name(&self) -> &str {
        "client"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let client = CLIENT.try_with(Peer::clone);
        let params = params(request);
        let work = async move {
            let cannot = |why: &str| Error::new(ErrorKind::Model(ModelErrorKind::Other), why.to_owned());
            let client =
                client.map_err(|_| cannot("no MCP client waits for this run: its model cannot be asked"))?;
            let can = client.peer_info().is_some_and(|info| info.capabilities.sampling.is_some());
            if !can {
                return Err(cannot("the MCP client lets nobody ask its model (it has no sampling)"));
            }
            let asked = client.create_message(params).await;
            let answer =
                asked.map_err(|e| cannot(&format!("the MCP client's model could not answer: {e}")))?;
            let texts = answer.message.content.iter().filter_map(|block| block.as_text());
            let text: Vec<&str> = texts.map(|text| text.text.as_str()).collect();
            let mut response = Response::new(Content::model(Part::text(text.join("\n"))));
            response.meta_mut().model_version = Some(answer.model.into());
            Ok(Chunk::Complete(response))
        };
        futures::stream::once(work).boxed()
    }
}

fn params(request: &ModelRequest) -> CreateMessageRequestParams {
    // A message for each part: not every client reads messages of several.
    let messages = request.contents.iter().flat_map(|content| {
        let role = if content.role == Some(Role::Model) { McpRole::Assistant } else { McpRole::User };
        content.parts.iter().filter_map(block).map(move |block| SamplingMessage::new(role.clone(), block))
    });
    let tokens = request.config.max_output_tokens.unwrap_or(TOKENS);
    let mut params = CreateMessageRequestParams::new(messages.collect(), tokens);
    params.system_prompt = Some(request.instruction.text()).filter(|text| !text.is_empty());
    params.temperature = request.config.temperature.map(|temperature| temperature as f32);
    params.stop_sequences = Some(request.config.stop_sequences.clone()).filter(|stops| !stops.is_empty());
    params
}

fn block(part: &Part) -> Option<SamplingMessageContentBlock> {
    match &part.payload {
        Payload::Text(text) if !part.is_thought() => Some(SamplingMessageContentBlock::text(text.clone())),
        Payload::InlineData(blob) => {
            let mime = blob.mime_type.clone().filter(|mime| mime.starts_with("image/"))?;
            Some(SamplingMessageContentBlock::Image(ImageContent::new(base64(&blob.data), mime)))
        }
        _ => None,
    }
}
