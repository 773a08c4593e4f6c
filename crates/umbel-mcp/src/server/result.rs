//! What a client gets of a run: words, media, structures, and what went wrong.

use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, MetaObject, Resource as McpResource, ResourceContents};
use serde_json::{Value, json};
use umbel_core::{Blob, Error, ErrorKind, Event, Interrupt, Object, Part, Payload};

use super::offer::{Kind, Offered};
use super::questions;
use super::resources::artifact_uri;

/// Under which key of a result's metadata its session is named.
const SESSION_META: &str = "umbel/session";

/// What a run said, as far as its caller is told.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The last of its last words.
    last: Option<Arc<Event>>,
    /// What went wrong with the model.
    error: bool,
    /// Artifacts that it saved.
    saved: Vec<String>,
}

impl Said {
    /// Takes note of a whole event.
    pub(super) fn hear(&mut self, event: &Arc<Event>) {
        if event.error_code().is_some_and(|code| !code.is_empty()) {
            self.error = true;
        }
        let saved = event.actions.iter().filter_map(|actions| actions.artifact_delta.as_ref());
        for name in saved.flat_map(|saved| saved.keys()) {
            if !self.saved.contains(name) {
                self.saved.push(name.clone());
            }
        }
        if event.is_final() && event.content.is_some() {
            self.last = Some(event.clone());
            self.error = false;
        }
    }

    /// The result of a run that is over.
    pub(super) fn result(self, offer: &Offered, session: &str) -> CallToolResult {
        let mut result = match offer.kind {
            Kind::Tool => self.of_tool(offer.name()),
            Kind::Agent { has_output, wraps_output, .. } => self.of_agent(has_output, wraps_output),
        };
        for name in &self.saved {
            let uri = artifact_uri(offer.runner.app(), session, name);
            result.content.push(ContentBlock::ResourceLink(McpResource::new(uri, name.clone())));
        }
        if let Kind::Agent { conversations, .. } = offer.kind {
            if conversations {
                result.content.push(ContentBlock::text(format!("session: {session}")));
            }
            name_session(&mut result, session);
        }
        result
    }

    fn of_agent(&self, has_output: bool, wraps_output: bool) -> CallToolResult {
        let Some(last) = &self.last else {
            return match self.error {
                true => failed("the model could not answer"),
                false => CallToolResult::success(vec![ContentBlock::text("(no answer)")]),
            };
        };
        let parts = last.content.iter().flat_map(|content| content.parts.iter());
        let mut content: Vec<ContentBlock> = parts.filter_map(block).collect();
        if let Some(answer) = last.direct_answer() {
            if let Some(error) = answer.error() {
                return CallToolResult::error(vec![ContentBlock::text(umbel_core::json::render(error))]);
            }
            content = vec![ContentBlock::text(last.answer_text())];
        }
        if !has_output {
            if content.is_empty() {
                content.push(ContentBlock::text("(no answer)"));
            }
            return CallToolResult::success(content);
        }
        let text = last.answer_text();
        match serde_json::from_str::<Value>(without_fence(&text)) {
            Ok(value) => {
                let value = if wraps_output { json!({"result": value}) } else { value };
                let mut result = CallToolResult::success(vec![ContentBlock::text(value.to_string())]);
                result.structured_content = Some(value);
                result
            }
            Err(_) => failed("the agent's answer is not what it should be"),
        }
    }

    fn of_tool(&self, name: &str) -> CallToolResult {
        let responses = self.last.iter().flat_map(|last| last.responses());
        let Some(response) = responses.filter(|response| response.name == name).last() else {
            return failed("the tool gave no result");
        };
        let value = response.response.clone().unwrap_or_default();
        if let Some(error) = value.get("error") {
            return CallToolResult::error(vec![ContentBlock::text(umbel_core::json::render(error))]);
        }
        let media = response.unknown.get("parts").cloned().unwrap_or_default();
        let media: Vec<Part> = serde_json::from_value(media).unwrap_or_default();
        let mut content = Vec::new();
        // Anything but an object was wrapped, so that it could be a response.
        let only = if value.len() == 1 { value.get("result") } else { None };
        match only {
            Some(Value::Null) => {}
            Some(only) => content.push(ContentBlock::text(umbel_core::json::render(only))),
            None if value.is_empty() => {}
            None => content.push(ContentBlock::text(Value::Object(value.clone()).to_string())),
        }
        content.extend(media.iter().filter_map(block));
        if content.is_empty() {
            content.push(ContentBlock::text("done"));
        }
        let mut result = CallToolResult::success(content);
        if only.is_none() && !value.is_empty() {
            result.structured_content = Some(Value::Object(value));
        }
        result
    }
}

/// Names the session of a result, for programs.
fn name_session(result: &mut CallToolResult, session: &str) {
    let mut meta = Object::new();
    meta.insert(SESSION_META.to_owned(), session.into());
    result.meta = Some(MetaObject(meta));
}

/// A part as clients know it. Thoughts are nobody's business.
pub(super) fn block(part: &Part) -> Option<ContentBlock> {
    if part.is_thought() {
        return None;
    }
    match &part.payload {
        Payload::Text(text) if !text.is_empty() => Some(ContentBlock::text(text.clone())),
        Payload::CodeResult(result) => result.output.clone().map(ContentBlock::text),
        Payload::InlineData(blob) => {
            let mime = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
            let data = base64(&blob.data);
            Some(match mime.split('/').next() {
                Some("image") => ContentBlock::image(data, mime),
                Some("audio") => ContentBlock::audio(data, mime),
                _ => ContentBlock::resource(embedded(blob, mime, data)),
            })
        }
        Payload::FileData(file) => {
            let uri = file.file_uri.clone()?;
            let name = file.display_name.clone().unwrap_or_else(|| uri.clone());
            let mut link = McpResource::new(uri, name);
            link.mime_type = file.mime_type.clone();
            Some(ContentBlock::ResourceLink(link))
        }
        _ => None,
    }
}

/// Bytes that are no medium, by the address that they were given as a name.
fn embedded(blob: &Blob, mime: &str, data: String) -> ResourceContents {
    let uri = match &blob.display_name {
        Some(uri) if uri.contains("://") => uri.clone(),
        Some(name) => format!("attachment:{name}"),
        None => "attachment:file".to_owned(),
    };
    let text = is_text(mime).then(|| String::from_utf8(blob.data.clone()).ok()).flatten();
    let contents = match text {
        Some(text) => ResourceContents::text(text, uri),
        None => ResourceContents::blob(data, uri),
    };
    contents.with_mime_type(mime)
}

/// Whether bytes of that type can be read as text.
pub(super) fn is_text(mime: &str) -> bool {
    mime.starts_with("text/") || mime == "application/json"
}

pub(super) fn base64(data: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(data)
}

/// A text without the marks that models put around JSON.
fn without_fence(text: &str) -> &str {
    let text = text.trim();
    let inner = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    inner.and_then(|inner| inner.strip_suffix("```")).map_or(text, str::trim)
}

/// A result that says what went wrong.
pub(super) fn failed(message: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(message)])
}

/// A result that says what is asked, for whoever cannot show it to people.
pub(super) fn waits(
    offer: &Offered,
    session: &str,
    open: &[Interrupt],
    callers_confirm: bool,
) -> CallToolResult {
    let mut text = String::from("This waits for an answer before it goes on.\n");
    for asked in open {
        text = format!("{text}\n{}\n", questions::words(asked));
    }
    let answerable =
        |asked: &Interrupt| questions::can_be_shown(asked) && (callers_confirm || !questions::decides(asked));
    let next = match open {
        [asked] if offer.takes_answers() && answerable(asked) => format!(
            "To answer, call `{}` again with `session` \"{session}\" and with the answer as `answer`, {}.",
            offer.name(),
            questions::how(asked)
        ),
        several if offer.takes_answers() && several.iter().all(answerable) => {
            let ids: Vec<&str> = several.iter().map(|asked| asked.id.as_str()).collect();
            format!(
                "To answer, call `{}` again with `session` \"{session}\" and with all answers as `answer`: a JSON object \
                 with these keys, in this order: {}.",
                offer.name(),
                ids.join(", ")
            )
        }
        _ if offer.takes_answers() => format!(
            "Only a person can answer this, and this client cannot ask one (it has no elicitation). It can be answered \
             where the agent's other conversations are seen to, in session \"{session}\"."
        ),
        _ => "Only a person can answer this, and this client cannot ask one (it has no elicitation)."
            .to_owned(),
    };
    let mut result = CallToolResult::error(vec![ContentBlock::text(format!("{text}\n{next}"))]);
    name_session(&mut result, session);
    result
}

/// What a caller is told of an error: words of ours, unless it did something wrong itself and is told what.
pub(super) fn told(error: &Error) -> CallToolResult {
    let words = match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::InvalidConfirmation => return failed(error.message()),
        ErrorKind::SessionNotFound => {
            return failed("there is no such session: leave `session` out to begin anew");
        }
        ErrorKind::SessionBusy | ErrorKind::StaleSession | ErrorKind::SessionAbandoned => {
            return failed("another call has this session: try again when it is done");
        }
        ErrorKind::Cancelled => return failed("the run was cancelled"),
        ErrorKind::ModelCallLimit => "the run used up its model calls",
        ErrorKind::Timeout => "the run took too long",
        ErrorKind::StreamCut => "the model's answer broke off",
        kind if kind.code().starts_with("MODEL_") => "the model could not answer",
        _ => "the run failed",
    };
    let reference = umbel_core::Ids::mint(&umbel_core::RandomIds, umbel_core::IdKind::Session);
    let reference = reference.get(..10).unwrap_or(&reference);
    tracing::error!(%reference, code = error.kind().code(), "{error}");
    failed(format!("{words} (reference {reference})"))
}
