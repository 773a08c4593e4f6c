//! Messages: a conversation as the client keeps it, and sends it with every run.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use smol_str::SmolStr;
use umbel_core::Object;

use crate::input::{InputError, InputLimits};

/// A message of a conversation, by who speaks.
///
/// `encrypted_value` is reasoning that only the provider can read, `subagent_run_id` the sub-agent that spoke; none is
/// the agent itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// Whoever made the application instructs the agent.
    Developer(InstructionMessage),
    /// The system instructs the agent.
    System(InstructionMessage),
    /// The agent speaks or calls tools.
    Assistant(AssistantMessage),
    /// The person speaks.
    User(UserMessage),
    /// A tool answers.
    Tool(ToolMessage),
    /// Progress that is not said. It is for people and is not sent to agents.
    Activity(ActivityMessage),
    /// The agent thinks.
    Reasoning(ReasoningMessage),
}

/// What the developer or the system says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstructionMessage {
    /// The message.
    pub id: SmolStr,
    /// What is said.
    pub content: String,
    /// The speaker's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SmolStr>,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent that spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// What the agent says and which tools it calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssistantMessage {
    /// The message.
    pub id: SmolStr,
    /// What is said; none if the message only calls tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The calls, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The agent's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SmolStr>,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent that spoke. Its calls are its own too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// What the person says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserMessage {
    /// The message.
    pub id: SmolStr,
    /// What is said.
    pub content: MessageContent,
    /// The person's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SmolStr>,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent it was said to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// What a tool answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolMessage {
    /// The message.
    pub id: SmolStr,
    /// The answer.
    pub content: MessageContent,
    /// The call it answers.
    pub tool_call_id: SmolStr,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent whose work it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// Progress that is not said, such as a search under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivityMessage {
    /// The message.
    pub id: SmolStr,
    /// What it is about.
    pub activity_type: SmolStr,
    /// What there is to show.
    pub content: Object,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent whose work it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// What the agent thinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasoningMessage {
    /// The message.
    pub id: SmolStr,
    /// The thought.
    pub content: String,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent that thought it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

impl Message {
    /// Reads a message of an input, within the usual limits.
    pub fn parse(raw: &RawValue) -> Result<Self, InputError> {
        Self::parse_within(raw, &InputLimits::default())
    }

    /// Reads a message of an input, within limits.
    pub fn parse_within(raw: &RawValue, limits: &InputLimits) -> Result<Self, InputError> {
        let message = Self::read(raw.get()).map_err(|error| InputError::invalid("", &error))?;
        limits.check_message(&message)?;
        Ok(message)
    }

    /// Reads a message. Those that nearly all are have a way of their own: to read a message of any kind, serde takes it
    /// apart before it knows what it is.
    fn read(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(borrow)]
            role: &'a str,
        }
        let known = match serde_json::from_str(text) {
            Ok(Head { role: "user" }) => serde_json::from_str(text).map(Self::User),
            Ok(Head { role: "assistant" }) => serde_json::from_str(text).map(Self::Assistant),
            _ => return serde_json::from_str(text),
        };
        // What is wrong is told in the same words for all.
        known.or_else(|_| serde_json::from_str(text))
    }

    /// Its id.
    pub fn id(&self) -> &SmolStr {
        match self {
            Self::Developer(message) | Self::System(message) => &message.id,
            Self::Assistant(message) => &message.id,
            Self::User(message) => &message.id,
            Self::Tool(message) => &message.id,
            Self::Activity(message) => &message.id,
            Self::Reasoning(message) => &message.id,
        }
    }

    /// Its role on the wire.
    pub fn role(&self) -> &'static str {
        match self {
            Self::Developer(_) => "developer",
            Self::System(_) => "system",
            Self::Assistant(_) => "assistant",
            Self::User(_) => "user",
            Self::Tool(_) => "tool",
            Self::Activity(_) => "activity",
            Self::Reasoning(_) => "reasoning",
        }
    }

    /// Anything else that is known about it.
    pub fn metadata(&self) -> Option<&Object> {
        match self {
            Self::Developer(message) | Self::System(message) => message.metadata.as_ref(),
            Self::Assistant(message) => message.metadata.as_ref(),
            Self::User(message) => message.metadata.as_ref(),
            Self::Tool(message) => message.metadata.as_ref(),
            Self::Activity(message) => message.metadata.as_ref(),
            Self::Reasoning(message) => message.metadata.as_ref(),
        }
    }

    /// The sub-agent it belongs to; none is the agent itself.
    pub fn subagent_run_id(&self) -> Option<&SmolStr> {
        match self {
            Self::Developer(message) | Self::System(message) => message.subagent_run_id.as_ref(),
            Self::Assistant(message) => message.subagent_run_id.as_ref(),
            Self::User(message) => message.subagent_run_id.as_ref(),
            Self::Tool(message) => message.subagent_run_id.as_ref(),
            Self::Activity(message) => message.subagent_run_id.as_ref(),
            Self::Reasoning(message) => message.subagent_run_id.as_ref(),
        }
    }
}

/// A call that an assistant message makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// The call.
    pub id: SmolStr,
    /// Always `function`.
    #[serde(default)]
    pub r#type: ToolCallType,
    /// What is called, and with what.
    pub function: FunctionCall,
    /// Reasoning that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_value: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
}

impl ToolCall {
    /// A call of a tool with arguments in JSON text.
    pub fn new(id: impl Into<SmolStr>, name: impl Into<SmolStr>, arguments: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            r#type: ToolCallType::Function,
            function: FunctionCall { name: name.into(), arguments: arguments.into() },
            encrypted_value: None,
            metadata: None,
        }
    }
}

/// The kind of a call, of which there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallType {
    /// A function.
    #[default]
    Function,
}

/// A tool's name and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The tool.
    pub name: SmolStr,
    /// JSON text, as the model wrote it.
    pub arguments: String,
}

/// What a message says: text, or parts of any kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum MessageContent {
    /// Text.
    Text(String),
    /// Parts.
    Parts(Vec<ContentPart>),
}

impl Default for MessageContent {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => {
                let parts = parts.into_iter().map(ContentPart::deserialize).collect::<Result<_, _>>();
                parts.map(Self::Parts).map_err(serde::de::Error::custom)
            }
            other => Err(serde::de::Error::custom(format!(
                "the content must be a string or an array of parts, but is {}",
                umbel_core::json::kind_of(&other)
            ))),
        }
    }
}

/// One part of what a message says.
///
/// Before 1.0 there was a part `binary`; it is read as what it is today, by its media type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", try_from = "PartForm")]
pub enum ContentPart {
    /// Text.
    Text(TextPart),
    /// An image.
    Image(MediaPart),
    /// Sound.
    Audio(MediaPart),
    /// A film.
    Video(MediaPart),
    /// Anything else that can be read.
    Document(MediaPart),
}

/// A part that is text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// The part's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<SmolStr>,
    /// Anything else; not null.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub metadata: Option<Value>,
}

/// A part that is bytes of some kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MediaPart {
    /// Where they are.
    pub source: PartSource,
    /// The part's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<SmolStr>,
    /// Anything else; not null.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub metadata: Option<Value>,
}

/// Where the bytes of a part are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum PartSource {
    /// Here.
    Data {
        /// The bytes in base64.
        value: String,
        /// Their media type.
        mime_type: String,
    },
    /// At an address, to be fetched by whoever needs them.
    Url {
        /// The address.
        value: String,
        /// Their media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
    /// At the provider. Only it knows what the handle means; nothing is fetched.
    File {
        /// The handle.
        value: String,
        /// Who gave it.
        #[serde(skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Their media type.
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<String>,
    },
}

/// A part as it may come, from clients of before 1.0 too.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum PartForm {
    Text(TextPart),
    Image(MediaPart),
    Audio(MediaPart),
    Video(MediaPart),
    Document(MediaPart),
    Binary(BinaryPart),
}

/// The part `binary` of before 1.0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BinaryPart {
    mime_type: String,
    id: Option<SmolStr>,
    url: Option<String>,
    data: Option<String>,
    filename: Option<String>,
}

impl TryFrom<PartForm> for ContentPart {
    type Error = &'static str;

    fn try_from(form: PartForm) -> Result<Self, Self::Error> {
        Ok(match form {
            PartForm::Text(part) => Self::Text(part),
            PartForm::Image(part) => Self::Image(part),
            PartForm::Audio(part) => Self::Audio(part),
            PartForm::Video(part) => Self::Video(part),
            PartForm::Document(part) => Self::Document(part),
            PartForm::Binary(part) => part.upgrade()?,
        })
    }
}

impl BinaryPart {
    /// The part as it is since 1.0.
    fn upgrade(self) -> Result<ContentPart, &'static str> {
        let kind: fn(MediaPart) -> ContentPart = match self.mime_type.split('/').next() {
            Some("image") => ContentPart::Image,
            Some("audio") => ContentPart::Audio,
            Some("video") => ContentPart::Video,
            _ => ContentPart::Document,
        };
        let mime_type = self.mime_type;
        let source = match (self.data, self.url, &self.id) {
            (Some(value), ..) => PartSource::Data { value, mime_type },
            (None, Some(value), _) => PartSource::Url { value, mime_type: Some(mime_type) },
            // All it has is an id at the provider.
            (None, None, Some(id)) => {
                PartSource::File { value: id.to_string(), provider: None, mime_type: Some(mime_type) }
            }
            (None, None, None) => return Err("a binary part needs `data`, `url` or `id`"),
        };
        let metadata = self.filename.map(|name| serde_json::json!({ "filename": name }));
        Ok(kind(MediaPart { source, id: self.id, metadata }))
    }
}

/// A list that is null is empty.
fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
