//! What was said, as attributes of spans, if it is to be told.

use std::fmt;
use std::sync::Arc;

use opentelemetry::KeyValue;
use serde_json::{Value, json};
use umbel_core::conventions::attribute;
use umbel_core::{Content, FunctionCall, Part, Payload, Role, SpanContent, ToolSpec};

/// Takes out what nobody is to see.
type Redact = dyn Fn(&str) -> String + Send + Sync;

/// Puts content into spans: what models are asked and answer, what tools are called with and give. Nothing of it is told
/// unless this is given to [`Telemetry::content`](crate::Telemetry::content).
///
/// It is told as it is sent and as it is stored: what handlers took out, such as the one for personal data, is not in it.
/// Arguments are those that the tool gets. Bytes of media are never told.
///
/// ```
/// use umbel_runtime::handlers::pii::PiiRule;
/// use umbel_telemetry::ContentCapture;
///
/// let emails = PiiRule::email();
/// let capture = ContentCapture::new()
///     .redact(move |text| emails.apply(text).unwrap_or_default())
///     .text_bytes(2_000)
///     .total_bytes(20_000);
/// # let _ = capture;
/// ```
#[derive(Clone)]
pub struct ContentCapture {
    redact: Option<Arc<Redact>>,
    text_bytes: usize,
    total_bytes: usize,
}

impl Default for ContentCapture {
    fn default() -> Self {
        Self::new()
    }
}

impl ContentCapture {
    /// All of it, up to the usual sizes.
    pub fn new() -> Self {
        Self { redact: None, text_bytes: 8 << 10, total_bytes: 64 << 10 }
    }

    /// Each text passes through this first: those in arguments and results, too.
    pub fn redact(mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.redact = Some(Arc::new(redact));
        self
    }

    /// So many bytes of one text; 8 KiB unless told. The rest is cut off.
    pub fn text_bytes(mut self, bytes: usize) -> Self {
        self.text_bytes = bytes;
        self
    }

    /// So many bytes of one attribute, more or less; 64 KiB unless told. Of a conversation the last messages are told, and the
    /// others are left out.
    pub fn total_bytes(mut self, bytes: usize) -> Self {
        self.total_bytes = bytes;
        self
    }

    /// The attributes for something that is said.
    pub(crate) fn attributes(&self, content: SpanContent<'_>) -> Vec<KeyValue> {
        let told = match content {
            SpanContent::Request(request) => {
                let instruction = request.instruction.text();
                let parts = Some(instruction).filter(|text| !text.is_empty());
                let parts = parts.map(|text| vec![json!({"type": "text", "content": self.text(&text)})]);
                let messages = request.contents.iter().rev().map(|content| self.message(content));
                vec![
                    (attribute::INPUT_MESSAGES, Some(self.last_of(messages))),
                    (attribute::SYSTEM_INSTRUCTIONS, parts.map(Value::from)),
                    (attribute::TOOL_DEFINITIONS, self.definitions(request.tools.specs())),
                ]
            }
            SpanContent::Answer { content, finish_reason } => {
                let mut message = self.message(content);
                if let Some(message) = message.as_object_mut() {
                    message.insert("finish_reason".to_owned(), reason(content, finish_reason).into());
                }
                vec![(attribute::OUTPUT_MESSAGES, Some(Value::from(vec![message])))]
            }
            SpanContent::Arguments(args) => {
                vec![(attribute::CALL_ARGUMENTS, Some(self.value(&Value::Object(args.clone()))))]
            }
            SpanContent::Result(value) => vec![(attribute::CALL_RESULT, Some(self.value(&value.value)))],
            _ => Vec::new(),
        };
        let written =
            |(name, value): (&'static str, Option<Value>)| Some(KeyValue::new(name, self.whole(&value?)));
        told.into_iter().filter_map(written).collect()
    }

    /// JSON that is not too long. What still is after its texts were cut is a text itself.
    fn whole(&self, value: &Value) -> String {
        let text = value.to_string();
        if text.len() <= self.total_bytes {
            text
        } else {
            Value::from(cut(&text, self.total_bytes)).to_string()
        }
    }

    /// The last of these messages, which come last first, as many as there is room for.
    fn last_of(&self, messages: impl Iterator<Item = Value>) -> Value {
        let mut room = self.total_bytes;
        let mut told: Vec<Value> = messages
            .take_while(|message| {
                let bytes = message.to_string().len() + 2;
                let fits = bytes <= room;
                room = room.saturating_sub(bytes);
                fits
            })
            .collect();
        told.reverse();
        Value::from(told)
    }

    fn definitions<'a>(&self, specs: impl Iterator<Item = &'a ToolSpec>) -> Option<Value> {
        let tools: Vec<Value> = specs
            .map(|spec| {
                let description = self.text(&spec.description);
                let parameters = self.value(&spec.parameters);
                json!({"type": "function", "name": spec.name, "description": description, "parameters": parameters})
            })
            .collect();
        Some(tools).filter(|tools| !tools.is_empty()).map(Value::from)
    }

    fn message(&self, content: &Content) -> Value {
        let is_tools = content.parts.iter().any(|part| matches!(part.payload, Payload::Response(_)));
        let role = match &content.role {
            _ if is_tools => "tool",
            Some(Role::Model) => "assistant",
            Some(Role::Other(other)) => other,
            _ => "user",
        };
        let parts: Vec<Value> = content.parts.iter().filter_map(|part| self.part(part)).collect();
        json!({"role": role, "parts": parts})
    }

    fn part(&self, part: &Part) -> Option<Value> {
        Some(match &part.payload {
            Payload::Text(text) => {
                let kind = if part.is_thought() { "reasoning" } else { "text" };
                json!({"type": kind, "content": self.text(text)})
            }
            Payload::Call(call) => {
                let FunctionCall { id, name, args, .. } = &**call;
                let arguments = args.as_ref().map(|args| self.value(&Value::Object((**args).clone())));
                json!({"type": "tool_call", "id": id, "name": name, "arguments": arguments})
            }
            Payload::Response(answer) => {
                let response = answer.response.clone().map(|response| self.value(&Value::Object(response)));
                json!({"type": "tool_call_response", "id": answer.id, "response": response})
            }
            Payload::InlineData(blob) => {
                let words = format!("({} bytes)", blob.data.len());
                json!({"type": "blob", "mime_type": blob.mime_type, "content": words})
            }
            Payload::FileData(file) => {
                let uri = file.file_uri.as_deref().map(|uri| self.text(uri));
                json!({"type": "uri", "mime_type": file.mime_type, "uri": uri})
            }
            Payload::Code(code) => {
                let text = code.code.as_deref().map(|code| self.text(code));
                json!({"type": "executable_code", "language": code.language, "content": text})
            }
            Payload::CodeResult(result) => {
                let text = result.output.as_deref().map(|output| self.text(output));
                json!({"type": "code_result", "outcome": result.outcome, "content": text})
            }
            _ => return None,
        })
    }

    /// A value with each of its texts, names of fields apart, redacted and cut.
    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::from(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                Value::Object(fields.iter().map(|(name, field)| (name.clone(), self.value(field))).collect())
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        match &self.redact {
            Some(redact) => cut(&redact(text), self.text_bytes),
            None => cut(text, self.text_bytes),
        }
    }
}

impl fmt::Debug for ContentCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentCapture")
            .field("redacts", &self.redact.is_some())
            .field("text_bytes", &self.text_bytes)
            .field("total_bytes", &self.total_bytes)
            .finish()
    }
}

/// Why an answer ended, in the words of the conventions.
fn reason(content: &Content, finish_reason: Option<&str>) -> String {
    let is_calling = content.parts.iter().any(|part| matches!(part.payload, Payload::Call(_)));
    if is_calling { "tool_call".to_owned() } else { in_words(finish_reason.unwrap_or("STOP")) }
}

/// A reason of an event, in the words of the conventions.
pub(crate) fn in_words(finish_reason: &str) -> String {
    match finish_reason {
        "MAX_TOKENS" => "length".to_owned(),
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" => "content_filter".to_owned(),
        other => other.to_ascii_lowercase(),
    }
}

/// The beginning of a text, as many bytes as whole characters have room in.
fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let kept = text.get(..text.floor_char_boundary(bytes)).unwrap_or_default();
    format!("{kept}…")
}
