//! Parts as blocks.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use umbel_core::{
    Blob, CallId, Content, FileData, FunctionCall, FunctionResponse, History, Part, Payload, Role,
};

use super::OWN;
use crate::conversation::words;
use crate::fragments::{Fragment, Piece, call_key};
use crate::json::{self, Fields, array};

/// The blocks of a message, to be sent to this model.
pub(super) fn message(content: &Content, model: &str) -> Fragment {
    let mut fragment = Fragment::of(content);
    for part in &content.parts {
        match &part.payload {
            Payload::Response(response) => {
                fragment.add(Piece::answering(response), |out| tool_answer(out, response));
            }
            _ if fragment.by_model => model_block(&mut fragment, part, model),
            _ => {
                if let Some(block) = user_block(part) {
                    fragment.add(Piece::default(), |out| json::write(out, &block));
                }
            }
        }
    }
    fragment
}

/// Whether the provider paused the last turn in the middle of what it does itself. It goes on if it sees it again.
pub(super) fn is_paused(history: &History) -> bool {
    let last = history.last().filter(|content| content.role == Some(Role::Model));
    let block = last.and_then(|content| content.parts.last()).and_then(|part| own(part, "block"));
    block.and_then(|block| block.get("type")).is_some_and(|kind| kind == "server_tool_use")
}

/// A text.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    let mut block = Fields::new(out);
    block.set("type", "text");
    block.set("text", text);
}

/// What a part carries for this format alone.
fn own<'a>(part: &'a Part, key: &str) -> Option<&'a Value> {
    part.unknown(OWN)?.get(key)
}

/// Adds what the model said. Thoughts of others are left out, and so are those of another model: nobody else can read them,
/// and some refuse them.
fn model_block(fragment: &mut Fragment, part: &Part, model: &str) {
    if own(part, "model").and_then(Value::as_str).is_some_and(|by| !is_same_model(by, model)) {
        return;
    }
    match &part.payload {
        Payload::Call(call) => {
            let id = call_key(call.id.as_ref(), &call.name);
            fragment.add(Piece::with_calls([&**call]), |out| tool_use(out, &id, call, own(part, "caller")));
        }
        Payload::Empty => {
            if let Some(block) = own(part, "block") {
                fragment.add(Piece::default(), |out| json::write(out, block));
            }
        }
        Payload::Text(thought) if part.is_thought() => {
            if let (Some(_), Some(signature)) = (part.unknown(OWN), part.signature()) {
                fragment.add(Piece::default(), |out| {
                    let mut block = Fields::new(out);
                    block.set("type", "thinking");
                    block.set("thinking", thought);
                    block.set("signature", signature);
                });
            }
        }
        _ => {
            let said = words(part).unwrap_or_else(|| unseen(part));
            if !said.trim().is_empty() {
                fragment.add(Piece::default(), |out| {
                    let mut block = Fields::new(out);
                    block.set("type", "text");
                    block.set("text", &said);
                    block.maybe("citations", own(part, "citations"));
                });
            }
        }
    }
}

/// Whether two names are of one model: it may be asked for without the date that its answers name it with, and under the
/// name of who passes requests on.
fn is_same_model(by: &str, model: &str) -> bool {
    fn bare(name: &str) -> &str {
        let name = name.rsplit('/').next().unwrap_or_default();
        name.strip_suffix("-latest").unwrap_or(name)
    }
    let (by, model) = (bare(by), bare(model));
    let is_date = |rest: &str| {
        rest.is_empty()
            || rest.strip_prefix(['-', '@']).is_some_and(|date| {
                date.len() == "20260101".len() && date.bytes().all(|byte| byte.is_ascii_digit())
            })
    };
    let longer = [by.strip_prefix(model), model.strip_prefix(by)];
    by.is_empty() || longer.into_iter().flatten().any(is_date)
}

/// An id as it may be written here: other providers use signs in theirs that are refused.
fn plain_id(id: &CallId) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    match id.as_str() {
        "" => Cow::Borrowed("_"),
        id if id.chars().all(plain) => Cow::Borrowed(id),
        id => Cow::Owned(id.chars().map(|c| if plain(c) { c } else { '_' }).collect()),
    }
}

fn tool_use(out: &mut Vec<u8>, id: &CallId, call: &FunctionCall, caller: Option<&Value>) {
    let mut block = Fields::new(out);
    block.set("type", "tool_use");
    block.set("id", &plain_id(id));
    block.set("name", &call.name);
    match (call.unreadable_args(), &call.args) {
        // Only an object may stand here.
        (Some(text), _) => block.set("input", &json!({"INVALID_JSON": text})),
        (None, Some(args)) => block.set("input", args),
        (None, None) => block.set("input", &json!({})),
    }
    block.maybe("caller", caller);
}

fn tool_answer(out: &mut Vec<u8>, response: &FunctionResponse) {
    let id = call_key(response.id.as_ref(), &response.name);
    let is_error = response.response.as_ref().and_then(|answer| answer.get("error"));
    let is_error = is_error.is_some_and(|error| !error.is_null());
    let parts = response.unknown.get("parts").cloned().unwrap_or_default();
    let media: Vec<Part> = serde_json::from_value(parts).unwrap_or_default();
    tool_result(out, &id, &json::text(&response.response), &media, is_error);
}

/// What a tool answered. An error is told in words alone.
pub(super) fn tool_result(out: &mut Vec<u8>, id: &CallId, answer: &str, media: &[Part], is_error: bool) {
    let mut block = Fields::new(out);
    block.set("type", "tool_result");
    block.set("tool_use_id", &plain_id(id));
    let media: Vec<Value> = media.iter().filter_map(user_block).filter(|_| !is_error).collect();
    if media.is_empty() {
        block.set("content", answer);
    } else {
        let answer = json!({"type": "text", "text": answer});
        array(block.key("content"), std::iter::once(&answer).chain(&media), |out, part| {
            json::write(out, part);
        });
    }
    if is_error {
        block.set("is_error", &true);
    }
}

/// What the user said or gave, if there is anything to it.
fn user_block(part: &Part) -> Option<Value> {
    match &part.payload {
        Payload::Text(_) if part.is_thought() => None,
        Payload::InlineData(blob) => Some(blob_block(blob).unwrap_or_else(|| text_value(&unseen(part)))),
        Payload::FileData(file) => Some(file_block(file)),
        _ => words(part).filter(|words| !words.trim().is_empty()).map(|words| text_value(&words)),
    }
}

fn text_value(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// What stands in the place of something that cannot be shown.
fn unseen(part: &Part) -> Cow<'static, str> {
    let (kind, name) = match &part.payload {
        Payload::InlineData(blob) => (blob.mime_type.as_deref(), blob.display_name.as_deref()),
        Payload::FileData(file) => (file.mime_type.as_deref(), file.file_uri.as_deref()),
        _ => return Cow::Borrowed(""),
    };
    let kind = kind.unwrap_or("application/octet-stream");
    Cow::Owned(match name {
        Some(name) => format!("[file that cannot be shown: {name}, {kind}]"),
        None => format!("[file that cannot be shown: {kind}]"),
    })
}

fn is_image(kind: &str) -> bool {
    matches!(kind, "image/jpeg" | "image/png" | "image/gif" | "image/webp")
}

/// Bytes, if they are of a kind that can be shown. Whatever is text is a document.
fn blob_block(blob: &Blob) -> Option<Value> {
    let kind = blob.mime_type.as_deref().unwrap_or_default();
    let kind = if kind == "image/jpg" { "image/jpeg" } else { kind };
    let base64 = || json!({"type": "base64", "media_type": kind, "data": STANDARD.encode(&blob.data)});
    let (block, source) = match kind {
        kind if is_image(kind) => ("image", base64()),
        "application/pdf" => ("document", base64()),
        _ => {
            let text = std::str::from_utf8(&blob.data).ok().filter(|text| !text.trim().is_empty())?;
            ("document", json!({"type": "text", "media_type": "text/plain", "data": text}))
        }
    };
    let mut value = json!({"type": block, "source": source});
    if let (Value::Object(value), "document", Some(name)) = (&mut value, block, &blob.display_name) {
        value.insert("title".to_owned(), json!(name));
    }
    Some(value)
}

/// A file elsewhere: at an address from which the provider takes it, or one that it keeps itself.
fn file_block(file: &FileData) -> Value {
    let uri = file.file_uri.as_deref().unwrap_or_default();
    let path = uri.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| path.ends_with(ending));
    let kind = file.mime_type.as_deref();
    let image = kind
        .map_or_else(|| ends(&[".png", ".jpg", ".jpeg", ".gif", ".webp"]), |kind| kind.starts_with("image/"));
    let pdf = kind.map_or_else(|| ends(&[".pdf"]), |kind| kind == "application/pdf");
    let is_address = uri.starts_with("https://") || uri.starts_with("http://");
    match uri.contains(':') {
        true if is_address && image => json!({"type": "image", "source": {"type": "url", "url": uri}}),
        true if is_address && pdf => json!({"type": "document", "source": {"type": "url", "url": uri}}),
        true => text_value(&format!("[file: {uri}]")),
        false => {
            let block = if image { "image" } else { "document" };
            json!({"type": block, "source": {"type": "file", "file_id": uri}})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_the_same_with_a_date_and_without() {
        for (by, model, same) in [
            ("claude-opus-5", "claude-opus-5", true),
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5", true),
            ("claude-sonnet-4-5", "claude-sonnet-4-5@20250929", true),
            ("claude-3-7-sonnet-20250219", "claude-3-7-sonnet-latest", true),
            ("claude-opus-5", "anthropic/claude-opus-5", true),
            ("", "claude-opus-5", true),
            ("claude-opus-5", "claude-opus-5-5", false),
            ("claude-opus-5-5", "claude-opus-5", false),
            ("claude-opus-5", "claude-sonnet-5", false),
        ] {
            assert_eq!(is_same_model(by, model), same, "{by} and {model}");
        }
    }
}
