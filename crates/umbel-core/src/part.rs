//! One piece of a message: text, a thought, a call, a response, data, a file, code.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use smol_str::SmolStr;
use std::sync::Arc;

use crate::id::CallId;
use crate::json::{Fields, Object};
use crate::partial_arg::PartialArg;

/// One piece of a [`Content`](crate::Content).
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What the part carries.
    pub payload: Payload,
    /// Seldom there, so kept apart.
    extra: Option<Box<PartExtra>>,
}

/// What a [`Part`] carries.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Payload {
    /// Text, or a thought if the part is marked as one.
    Text(String),
    /// The model asks for a tool.
    Call(Box<FunctionCall>),
    /// What a tool answered.
    Response(Box<FunctionResponse>),
    /// Bytes with a media type.
    InlineData(Box<Blob>),
    /// A file somewhere else.
    FileData(Box<FileData>),
    /// Code that the model wants to run.
    Code(Box<ExecutableCode>),
    /// What the code printed.
    CodeResult(Box<CodeResult>),
    /// Nothing known: a bare signature, or a kind of part that came after us.
    Empty,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct PartExtra {
    thought: Option<bool>,
    signature: Option<Box<str>>,
    unknown: Object,
}

impl Part {
    /// A part that carries `payload` and nothing else.
    pub fn new(payload: Payload) -> Self {
        Self { payload, extra: None }
    }

    /// Plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Payload::Text(text.into()))
    }

    /// A thought.
    pub fn thought(text: impl Into<String>) -> Self {
        Self::text(text).with_thought(true)
    }

    /// A tool call.
    pub fn call(call: FunctionCall) -> Self {
        Self::new(Payload::Call(Box::new(call)))
    }

    /// A tool's answer.
    pub fn response(response: FunctionResponse) -> Self {
        Self::new(Payload::Response(Box::new(response)))
    }

    /// Bytes of a media type.
    pub fn data(mime_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        Self::new(Payload::InlineData(Box::new(Blob {
            mime_type: Some(mime_type.into()),
            data: data.into(),
            display_name: None,
            unknown: Object::new(),
        })))
    }

    /// Sets or clears the mark of a thought.
    pub fn with_thought(mut self, thought: bool) -> Self {
        self.extra_mut().thought = Some(thought);
        self
    }

    /// Sets the opaque signature that the model wants to see again.
    pub fn with_signature(mut self, signature: impl Into<Box<str>>) -> Self {
        self.extra_mut().signature = Some(signature.into());
        self
    }

    /// Whether the part is marked as a thought.
    pub fn is_thought(&self) -> bool {
        self.thought_mark() == Some(true)
    }

    /// The mark itself: `false` and absent are told apart on the wire.
    pub fn thought_mark(&self) -> Option<bool> {
        self.extra.as_ref()?.thought
    }

    /// Takes the thought mark away.
    pub fn clear_thought(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.thought = None;
        }
    }

    /// The model's signature, base64.
    pub fn signature(&self) -> Option<&str> {
        self.extra.as_ref()?.signature.as_deref()
    }

    /// A key of the wire form that this version does not know.
    pub fn unknown(&self, key: &str) -> Option<&Value> {
        self.extra.as_ref()?.unknown.get(key)
    }

    /// The part with a key that is none of the known ones, such as what only one provider understands.
    pub fn with_unknown(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra_mut().unknown.insert(key.into(), value.into());
        self
    }

    /// The text, if it is text (or a thought).
    pub fn as_text(&self) -> Option<&str> {
        match &self.payload {
            Payload::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The call, if it is one.
    pub fn as_call(&self) -> Option<&FunctionCall> {
        match &self.payload {
            Payload::Call(call) => Some(call),
            _ => None,
        }
    }

    /// The call to be changed, if it is one.
    pub fn as_call_mut(&mut self) -> Option<&mut FunctionCall> {
        match &mut self.payload {
            Payload::Call(call) => Some(call),
            _ => None,
        }
    }

    /// The response, if it is one.
    pub fn as_response(&self) -> Option<&FunctionResponse> {
        match &self.payload {
            Payload::Response(response) => Some(response),
            _ => None,
        }
    }

    /// Whether a model that runs tools itself put its call or its result here.
    pub fn is_server_tool(&self) -> bool {
        ["toolCall", "toolResponse"].iter().any(|key| self.unknown(key).is_some_and(|v| !v.is_null()))
    }

    fn extra_mut(&mut self) -> &mut PartExtra {
        self.extra.get_or_insert_with(Box::default)
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

/// The key of arguments that are no JSON object, in a call.
const UNREADABLE_ARGS: &str = "unreadableArgs";

/// A model's wish to have a tool called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionCall {
    /// Absent if the model gave none; the flow then mints one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// The tool's name.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub name: SmolStr,
    /// The arguments; absent and empty are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Arc<Object>>,
    /// Arguments as they stream in; only in partial events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_args: Option<Vec<PartialArg>>,
    /// Whether more of the arguments follows; only in partial events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub will_continue: Option<bool>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl FunctionCall {
    /// A call with arguments.
    pub fn new(name: impl Into<SmolStr>, args: Object) -> Self {
        Self { name: name.into(), args: Some(Arc::new(args)), ..Self::default() }
    }

    /// The same call with an id.
    pub fn with_id(mut self, id: impl Into<CallId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same call without arguments, since what the model wrote for them is no JSON object. The tool is not called; the
    /// model is told.
    pub fn with_unreadable_args(mut self, text: impl Into<String>) -> Self {
        self.args = None;
        self.unknown.insert(UNREADABLE_ARGS.to_owned(), Value::String(text.into()));
        self
    }

    /// What the model wrote for arguments, if that is no JSON object.
    pub fn unreadable_args(&self) -> Option<&str> {
        self.unknown.get(UNREADABLE_ARGS).and_then(Value::as_str)
    }
}

/// What a tool answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionResponse {
    /// The id of the call it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// The tool's name.
    #[serde(skip_serializing_if = "SmolStr::is_empty")]
    pub name: SmolStr,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Object>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl FunctionResponse {
    /// An answer to the call with that id.
    pub fn new(id: Option<CallId>, name: impl Into<SmolStr>, response: Object) -> Self {
        Self { id, name: name.into(), response: Some(response), unknown: Object::new() }
    }

    /// What the tool gave. A response is an object: anything else was put into one, under `result`.
    pub fn value(&self) -> Value {
        let Some(response) = &self.response else { return Value::Null };
        match response.get("result").filter(|_| response.len() == 1) {
            Some(only) => only.clone(),
            None => Value::Object(response.clone()),
        }
    }

    /// What went wrong, if it says so.
    pub fn error(&self) -> Option<&Value> {
        self.response.as_ref()?.get("error")
    }
}

/// Bytes with a media type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Blob {
    /// The bytes; base64 on the wire.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub data: Vec<u8>,
    /// The media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// A file somewhere else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileData {
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_uri: Option<String>,
    /// The media type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// Code that the model wants to run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecutableCode {
    /// Names it, so that its result can be told. What the flow is to run has an id of the flow's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// The source text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Its language, such as `PYTHON`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// What the code printed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CodeResult {
    /// The id of the code, if that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<CallId>,
    /// Such as `OUTCOME_OK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

fn to_base64<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(data))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|alphabet| alphabet.decode(&text).ok())
        .ok_or_else(|| serde::de::Error::custom("not base64"))
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.payload {
            Payload::Text(text) => map.serialize_entry("text", text)?,
            Payload::Call(call) => map.serialize_entry("functionCall", call)?,
            Payload::Response(response) => map.serialize_entry("functionResponse", response)?,
            Payload::InlineData(blob) => map.serialize_entry("inlineData", blob)?,
            Payload::FileData(file) => map.serialize_entry("fileData", file)?,
            Payload::Code(code) => map.serialize_entry("executableCode", code)?,
            Payload::CodeResult(result) => map.serialize_entry("codeExecutionResult", result)?,
            Payload::Empty => {}
        }
        if let Some(extra) = &self.extra {
            if let Some(thought) = extra.thought {
                map.serialize_entry("thought", &thought)?;
            }
            if let Some(signature) = &extra.signature {
                map.serialize_entry("thoughtSignature", signature)?;
            }
            for (key, value) in &extra.unknown {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

impl Part {
    fn from_json(value: Value) -> crate::Result<Self> {
        let mut fields = Fields::new("a part", value)?;
        let extra = PartExtra {
            thought: fields.take("thought")?,
            signature: fields.take("thoughtSignature")?,
            unknown: Object::new(),
        };
        // Only one payload key is ever set; should there be more, the first of this order counts and the
        // others are kept as they came.
        let payload = if let Some(call) = fields.take("functionCall")? {
            Payload::Call(call)
        } else if let Some(response) = fields.take("functionResponse")? {
            Payload::Response(response)
        } else if let Some(text) = fields.take("text")? {
            Payload::Text(text)
        } else if let Some(blob) = fields.take("inlineData")? {
            Payload::InlineData(blob)
        } else if let Some(file) = fields.take("fileData")? {
            Payload::FileData(file)
        } else if let Some(code) = fields.take("executableCode")? {
            Payload::Code(code)
        } else if let Some(result) = fields.take("codeExecutionResult")? {
            Payload::CodeResult(result)
        } else {
            Payload::Empty
        };
        let extra = PartExtra { unknown: fields.rest(), ..extra };
        let extra = (extra != PartExtra::default()).then(|| Box::new(extra));
        Ok(Self { payload, extra })
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_of_part_is_written_back_as_it_was_read() {
        for value in [
            json!({"text": "hi"}),
            json!({"text": "", "thought": false}),
            json!({"text": "hm", "thought": true, "thoughtSignature": "c2ln"}),
            json!({"functionCall": {"name": "t", "args": {}, "id": "c1"}}),
            json!({"functionCall": {"name": "t"}}),
            json!({"functionCall": {"id": "c", "partialArgs": [{"jsonPath": "$.a", "nullValue": "NULL_VALUE"}],
                   "willContinue": true}}),
            json!({"functionResponse": {"name": "t", "response": {"a": [1, null]}, "scheduling": "SILENT"}}),
            json!({"inlineData": {"data": "AAEC", "mimeType": "image/png", "displayName": "x"}}),
            json!({"fileData": {"fileUri": "gs://b/c", "mimeType": "image/png"}, "videoMetadata": {"fps": 1}}),
            json!({"executableCode": {"code": "1", "language": "PYTHON"}}),
            json!({"executableCode": {"id": "c", "code": "1"}}),
            json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
            json!({"codeExecutionResult": {"id": "c", "outcome": "OUTCOME_OK"}}),
            json!({"toolCall": {"id": "t1", "toolType": "X"}}),
            json!({"thoughtSignature": "AQID"}),
        ] {
            let part: Part = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&part).unwrap(), value);
        }
    }

    #[test]
    fn a_part_that_cannot_be_read_is_an_error_that_names_the_key() {
        let error = serde_json::from_value::<Part>(json!({"text": 3})).unwrap_err().to_string();
        assert!(error.contains("`text`"), "{error}");
        assert!(serde_json::from_value::<Part>(json!([1])).is_err());
        assert!(serde_json::from_value::<Part>(json!({"inlineData": {"data": "!!"}})).is_err());
    }

    #[test]
    fn a_part_is_small() {
        assert!(size_of::<Part>() <= 32, "{}", size_of::<Part>());
    }
}
