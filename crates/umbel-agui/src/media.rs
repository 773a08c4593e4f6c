//! Parts of messages as parts of the log, and back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use umbel_core::{Blob, FileData, Object, Part, Payload};

use crate::message::{ContentPart, MediaPart, PartSource, TextPart};

/// The key under which the log keeps what the protocol says of a file and a model has no use for.
const KEY: &str = "agui";

/// A part of a message as a part of the log.
pub(crate) fn from_wire(part: &ContentPart) -> Part {
    let (kind, media) = match part {
        ContentPart::Text(part) => return Part::text(part.text.clone()),
        ContentPart::Image(media) => ("image", media),
        ContentPart::Audio(media) => ("audio", media),
        ContentPart::Video(media) => ("video", media),
        ContentPart::Document(media) => ("document", media),
    };
    let mut kept = Object::from_iter([("type".to_owned(), json!(kind))]);
    kept.extend(media.id.as_ref().map(|id| ("id".to_owned(), json!(id))));
    kept.extend(media.metadata.as_ref().map(|metadata| ("metadata".to_owned(), metadata.clone())));
    if let PartSource::File { provider, .. } = &media.source {
        kept.insert("provider".to_owned(), json!(provider));
    }
    let unknown = Object::from_iter([(KEY.to_owned(), Value::Object(kept))]);
    match &media.source {
        PartSource::Data { value, mime_type } => match STANDARD.decode(value) {
            Ok(data) => {
                let mime_type = Some(mime_type.clone());
                Part::new(Payload::InlineData(Box::new(Blob { data, mime_type, unknown, ..Blob::default() })))
            }
            // What cannot be read is said as it is, rather than dropped.
            Err(_) => Part::text(format!("[a file of type {mime_type} that is no base64]")),
        },
        PartSource::Url { value, mime_type } | PartSource::File { value, mime_type, .. } => {
            let (file_uri, mime_type) = (Some(value.clone()), mime_type.clone());
            let file = FileData { file_uri, mime_type, unknown, ..FileData::default() };
            Part::new(Payload::FileData(Box::new(file)))
        }
    }
}

/// A part of the log as a part of a message, if it can be one.
pub(crate) fn to_wire(part: &Part) -> Option<ContentPart> {
    let (source, mime, unknown) = match &part.payload {
        Payload::Text(text) => {
            return Some(ContentPart::Text(TextPart { text: text.clone(), ..TextPart::default() }));
        }
        Payload::InlineData(blob) => {
            let mime = blob.mime_type.clone().unwrap_or_default();
            let source = PartSource::Data { value: STANDARD.encode(&blob.data), mime_type: mime.clone() };
            (source, mime, &blob.unknown)
        }
        Payload::FileData(file) => {
            let (value, mime_type) = (file.file_uri.clone()?, file.mime_type.clone());
            let mime = mime_type.clone().unwrap_or_default();
            let provider = file.unknown.get(KEY).and_then(|kept| kept.get("provider"));
            let source = match provider {
                None => PartSource::Url { value, mime_type },
                Some(provider) => {
                    let provider = provider.as_str().map(str::to_owned);
                    PartSource::File { value, provider, mime_type }
                }
            };
            (source, mime, &file.unknown)
        }
        _ => return None,
    };
    let kept = |key: &str| unknown.get(KEY).and_then(|kept| kept.get(key));
    let id = kept("id").and_then(Value::as_str).map(Into::into);
    let media = MediaPart { source, id, metadata: kept("metadata").cloned() };
    let kind = kept("type").and_then(Value::as_str).or_else(|| mime.split('/').next());
    Some(match kind {
        Some("image") => ContentPart::Image(media),
        Some("audio") => ContentPart::Audio(media),
        Some("video") => ContentPart::Video(media),
        _ => ContentPart::Document(media),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_as_they_were_sent() {
        for form in [
            json!({"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}),
            json!({"type": "image", "source": {"type": "url", "value": "https://example.com/a"}}),
            json!({"type": "document", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}),
            json!({"type": "audio", "id": "p1", "metadata": {"x": 1},
                "source": {"type": "url", "value": "https://example.com/a", "mimeType": "audio/ogg"}}),
            json!({"type": "video", "source": {"type": "file", "value": "handle", "provider": "someone"}}),
            json!({"type": "document", "source": {"type": "file", "value": "handle", "mimeType": "text/csv"}}),
            json!({"type": "text", "text": "words"}),
        ] {
            let part: ContentPart = serde_json::from_value(form.clone()).unwrap();
            assert_eq!(to_wire(&from_wire(&part)), Some(part), "{form}");
        }
    }

    #[test]
    fn what_is_no_base64_is_said_and_not_dropped() {
        let form =
            json!({"type": "image", "source": {"type": "data", "value": "*", "mimeType": "image/png"}});
        let part = from_wire(&serde_json::from_value(form).unwrap());
        assert_eq!(part.as_text(), Some("[a file of type image/png that is no base64]"));
    }
}
