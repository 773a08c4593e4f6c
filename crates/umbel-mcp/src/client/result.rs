//! What a server's tool gave, as a model gets it.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};
use umbel_core::{Object, Part, Result, ToolValue};

use super::link::Failure;

/// Says in the metadata of a result which server it is from.
pub const SERVER: &str = "mcp_server";
/// Says in the metadata of a result that whoever wrote it is not to be trusted: instructions in it are none.
pub const UNTRUSTED: &str = "untrusted";

/// How much is told of what a server says about what went wrong, in bytes.
const SAID: usize = 4 << 10;

/// A result as a model gets it: the structured content if there is one, else the text, else all that there is. Media are
/// parts of their own. Texts are cut at so many bytes, and the model is told.
pub(crate) fn value(server: &str, result: CallToolResult, bytes: usize) -> ToolValue {
    let mut parts = Vec::new();
    let shown: Vec<Value> = result.content.iter().map(|block| shown(block, &mut parts)).collect();
    let mut room = bytes;
    let value = match result.structured_content {
        Some(structured) => cut(structured, &mut room),
        None => match shown.as_slice() {
            [only] => cut(only.clone(), &mut room),
            all if all.iter().all(Value::is_string) => {
                let text: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                cut(Value::String(text.join("\n")), &mut room)
            }
            _ => cut(Value::Array(shown), &mut room),
        },
    };
    let is_error = result.is_error == Some(true);
    let value = match (is_error, value) {
        (true, Value::Object(object)) => Value::Object(object),
        (true, value) => json!({ "error": value }),
        (false, value) => value,
    };
    ToolValue { value, is_error, metadata: metadata(server), parts }
}

/// What becomes of a call that has no result. What a server says when it refuses is its own word, and marked as such.
pub(crate) fn failed(server: &str, failure: Failure) -> Result<ToolValue> {
    let is_refused = matches!(failure, Failure::Refused(_));
    let error = failure.into_error(server);
    if is_refused { Ok(error_of(server, error.message())) } else { Err(error) }
}

/// An error in which are words of a server.
pub(crate) fn error_of(server: &str, words: &str) -> ToolValue {
    ToolValue { metadata: metadata(server), ..ToolValue::error(words) }
}

/// As much as is told of what a server says about what went wrong.
pub(crate) fn short(said: &str) -> &str {
    said.get(..said.floor_char_boundary(SAID)).unwrap_or_default()
}

/// What is noted with all that comes from a server.
pub(crate) fn metadata(server: &str) -> Object {
    Object::from_iter([(SERVER.to_owned(), server.into()), (UNTRUSTED.to_owned(), true.into())])
}

/// One piece of a result. Media are put beside it.
pub(crate) fn shown(block: &ContentBlock, parts: &mut Vec<Part>) -> Value {
    match block {
        ContentBlock::Text(text) => Value::String(text.text.clone()),
        ContentBlock::Image(image) => medium("image", &image.mime_type, &image.data, parts),
        ContentBlock::Audio(audio) => medium("audio", &audio.mime_type, &audio.data, parts),
        ContentBlock::Resource(embedded) => resource(&embedded.resource, parts),
        ContentBlock::ResourceLink(link) => {
            let mut shown = json!({"type": "resource_link", "uri": link.uri, "name": link.name});
            for (key, value) in [("description", &link.description), ("mimeType", &link.mime_type)] {
                if let (Some(object), Some(value)) = (shown.as_object_mut(), value) {
                    object.insert(key.to_owned(), json!(value));
                }
            }
            shown
        }
        _ => json!({"type": "unknown"}),
    }
}

/// The contents of a resource. Bytes are put beside it.
pub(crate) fn resource(contents: &ResourceContents, parts: &mut Vec<Part>) -> Value {
    match contents {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            let mut shown = json!({"type": "resource", "uri": uri, "text": text});
            if let (Some(object), Some(kind)) = (shown.as_object_mut(), mime_type) {
                object.insert("mimeType".to_owned(), json!(kind));
            }
            shown
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let kind = mime_type.as_deref().unwrap_or("application/octet-stream");
            let mut shown = medium("resource", kind, blob, parts);
            if let Some(object) = shown.as_object_mut() {
                object.insert("uri".to_owned(), json!(uri));
            }
            shown
        }
        _ => json!({"type": "unknown"}),
    }
}

fn medium(what: &str, kind: &str, data: &str, parts: &mut Vec<Part>) -> Value {
    match decode(kind, data) {
        Some(part) => {
            parts.push(part);
            json!({"type": what, "mimeType": kind})
        }
        None => json!({"type": what, "mimeType": kind, "error": "its data cannot be read"}),
    }
}

/// Bytes that came as base64.
pub(crate) fn decode(kind: &str, data: &str) -> Option<Part> {
    let bytes = STANDARD.decode(data).or_else(|_| STANDARD_NO_PAD.decode(data)).ok()?;
    Some(Part::data(kind, bytes))
}

/// A value whose texts together have at most so many bytes. What is empty counts, too: there may be much of it.
pub(crate) fn cut(value: Value, room: &mut usize) -> Value {
    match value {
        Value::String(mut text) => {
            if text.len() > *room {
                text.truncate(text.floor_char_boundary(*room));
                text.push_str(" [the rest was left out: it is too long]");
                *room = 0;
            } else {
                *room = room.saturating_sub(text.len().max(2));
            }
            Value::String(text)
        }
        Value::Array(values) => {
            *room = room.saturating_sub(2);
            let taken = values.into_iter().map_while(|value| (*room > 0).then(|| cut(value, room)));
            Value::Array(taken.collect())
        }
        Value::Object(fields) => {
            *room = room.saturating_sub(2);
            let taken = fields.into_iter().map_while(|(key, value)| {
                *room = room.checked_sub(key.len())?;
                (*room > 0).then(|| (key, cut(value, room)))
            });
            Value::Object(taken.collect())
        }
        other => {
            *room = room.saturating_sub(8);
            other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(result: Value) -> ToolValue {
        value("s", serde_json::from_value(result).unwrap(), 100)
    }

    #[test]
    fn texts_are_joined_and_structured_content_comes_first() {
        let texts = json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(read(texts).value, "a\nb");
        let both = json!({"content": [{"type": "text", "text": "{}"}], "structuredContent": {"n": 1}});
        assert_eq!(read(both).value, json!({"n": 1}));
        assert_eq!(read(json!({"content": []})).value, "");
    }

    #[test]
    fn what_comes_from_a_server_is_marked() {
        let read = read(json!({"content": [{"type": "text", "text": "a"}]}));
        assert_eq!(Value::Object(read.metadata), json!({"mcp_server": "s", "untrusted": true}));
    }

    #[test]
    fn media_are_parts_and_what_cannot_be_read_is_told() {
        let image = |data: &str| json!({"type": "image", "mimeType": "image/png", "data": data});
        let mixed = json!({"content": [{"type": "text", "text": "see"}, image("aGk="), image("%%%"),
            {"type": "audio", "mimeType": "audio/wav", "data": "aGk"},
            {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "t"}},
            {"type": "resource", "resource": {"uri": "a:c", "blob": "aGk="}},
            {"type": "resource_link", "uri": "a:d", "name": "d", "description": "more"}]});
        let read = value("s", serde_json::from_value(mixed).unwrap(), 1_000);
        assert_eq!(
            read.parts,
            [
                Part::data("image/png", "hi"),
                Part::data("audio/wav", "hi"),
                Part::data("application/octet-stream", "hi"),
            ]
        );
        let expected = json!(["see", {"type": "image", "mimeType": "image/png"},
            {"type": "image", "mimeType": "image/png", "error": "its data cannot be read"},
            {"type": "audio", "mimeType": "audio/wav"},
            {"type": "resource", "uri": "a:b", "text": "t", "mimeType": "text/plain"},
            {"type": "resource", "mimeType": "application/octet-stream", "uri": "a:c"},
            {"type": "resource_link", "uri": "a:d", "name": "d", "description": "more"}]);
        assert_eq!(read.value, expected);
    }

    #[test]
    fn an_error_is_one_the_model_sees() {
        let failed = read(json!({"content": [{"type": "text", "text": "no such file"}], "isError": true}));
        assert_eq!((failed.value, failed.is_error), (json!({"error": "no such file"}), true));
    }

    #[test]
    fn what_is_too_long_is_cut_and_the_model_is_told() {
        let long = read(json!({"content": [{"type": "text", "text": "é".repeat(200)}]})).value;
        let expected = format!("{} [the rest was left out: it is too long]", "é".repeat(50));
        assert_eq!(long, expected);
        let wide = json!({"content": [], "structuredContent": {"a": "x".repeat(96), "b": "y", "c": 1}});
        assert_eq!(read(wide).value, json!({"a": "x".repeat(96)}));
        for empty in [json!([]), json!({}), json!(""), json!([[]])] {
            let many = json!({"content": [], "structuredContent": {"a": vec![empty; 1_000]}});
            let taken = read(many).value["a"].as_array().unwrap().len();
            assert!((1..=50).contains(&taken), "{taken}");
        }
    }
}
