//! The prompts of an MCP server: messages that it has ready.

use rmcp::model::{
    ClientRequest, GetPromptRequest, GetPromptRequestParams, ListPromptsRequest, PaginatedRequestParams,
    Role as McpRole, ServerResult,
};
use serde_json::Value;
use umbel_core::{Content, Error, ErrorKind, Object, Part, Result, Role};

use super::attend::Attendant;
use super::link::Failure;
use super::result;
use super::toolset::McpToolset;

/// A prompt that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpPrompt {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// What it takes: a name, what it is, and whether it must be given.
    pub arguments: Vec<(String, Option<String>, bool)>,
}

impl McpToolset {
    /// The prompts that the server has. Not for servers that want a credential of each user.
    pub async fn prompts(&self) -> Result<Vec<McpPrompt>> {
        let limits = &self.inner.options.limits;
        let (mut prompts, mut cursor) = (Vec::new(), None);
        for _ in 0..limits.pages.max(1) {
            let page = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let request = ListPromptsRequest::with_param(page);
            let ServerResult::ListPromptsResult(page) =
                self.ask(ClientRequest::ListPromptsRequest(request)).await?
            else {
                return Err(self.unexpected());
            };
            prompts.extend(page.prompts.into_iter().map(|prompt| {
                McpPrompt {
                    name: prompt.name,
                    description: prompt.description,
                    arguments: prompt
                        .arguments
                        .unwrap_or_default()
                        .into_iter()
                        .map(|one| (one.name, one.description, one.required == Some(true)))
                        .collect(),
                }
            }));
            match page
                .next_cursor
                .filter(|next| cursor.as_ref() != Some(next) && prompts.len() < limits.tools)
            {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        Ok(prompts)
    }

    /// The messages of a prompt, to begin a conversation with. Not for servers that want a credential of each user.
    pub async fn prompt(&self, name: &str, args: Object) -> Result<Vec<Content>> {
        let params = GetPromptRequestParams::new(name).with_arguments(args);
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        let ServerResult::GetPromptResult(prompt) = self.ask(request).await? else {
            return Err(self.unexpected());
        };
        let mut messages = Vec::new();
        for message in prompt.messages {
            let role = match message.role {
                McpRole::User => Role::User,
                McpRole::Assistant => Role::Model,
            };
            let mut media = Vec::new();
            let shown = result::shown(&message.content, &mut media);
            let text = match shown {
                Value::String(text) => Some(text),
                _ if !media.is_empty() => None,
                other => Some(other.to_string()),
            };
            let parts = text.map(Part::text).into_iter().chain(media);
            messages.push(Content::new(role, parts));
        }
        Ok(messages)
    }

    async fn ask(&self, request: ClientRequest) -> Result<ServerResult> {
        let options = &self.inner.options;
        let attendant = Attendant::new(&options.name, &options.grants);
        let answer = self.inner.shared_slot()?.ask(options, request, &attendant).await;
        answer.map_err(|failure: Failure| failure.into_error(&options.name))
    }

    fn unexpected(&self) -> Error {
        let message = format!("what the MCP server `{}` answers is something else", self.inner.options.name);
        Error::new(ErrorKind::Tool, message)
    }
}
