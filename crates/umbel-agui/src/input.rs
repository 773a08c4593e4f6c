//! What a client asks for: a run on a thread.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use smol_str::SmolStr;
use umbel_core::Object;
use umbel_core::json::{MAX_DEPTH, is_within};

use crate::message::{ContentPart, Message, MessageContent};

/// What a client asks for.
///
/// Messages are kept as they came: of a history that is known already none has to be parsed. [`Message::parse`] reads
/// those that are new.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunAgentInput<'a> {
    /// The conversation.
    pub thread_id: Cow<'a, str>,
    /// The run, named by the client.
    pub run_id: Cow<'a, str>,
    /// The version the client speaks, such as `1.0`. One that cannot be read counts as a newer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<Cow<'a, str>>,
    /// The run this one comes from: a branch, or an agent that calls this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<Cow<'a, str>>,
    /// The state as the client has it. Null is absent.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub state: Option<Value>,
    /// The whole conversation, in order.
    pub messages: Vec<Cow<'a, RawValue>>,
    /// Tools of the client, for this run.
    pub tools: Vec<Tool>,
    /// What the agent should know besides the conversation.
    pub context: Vec<ContextItem>,
    /// What is handed through untouched.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub forwarded_props: Option<Value>,
    /// Answers to the interrupts that the run before ended with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resume: Vec<ResumeEntry>,
}

/// A tool of the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: SmolStr,
    /// What it is for.
    pub description: String,
    /// JSON Schema of its arguments.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub parameters: Option<Value>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
}

/// Something that the agent should know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextItem {
    /// What it is.
    pub description: String,
    /// What is to be known.
    pub value: String,
}

/// The answer to an interrupt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeEntry {
    /// The interrupt.
    pub interrupt_id: SmolStr,
    /// Whether it was answered.
    pub status: ResumeStatus,
    /// The answer.
    #[serde(skip_serializing_if = "crate::is_absent")]
    pub payload: Option<Value>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
}

/// Whether an interrupt was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResumeStatus {
    /// It was; the payload is the answer.
    Resolved,
    /// It will not be.
    Cancelled,
}

impl ResumeStatus {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How much an input may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLimits {
    /// Most tools; 128 by default.
    pub tools: usize,
    /// Most messages; 100,000 by default.
    pub messages: usize,
    /// Longest id or name, in bytes; 256 by default.
    pub id_bytes: usize,
    /// How deep values may be nested that are kept; 64 by default. What is kept stands within other things in the log, and
    /// must be read from there again.
    pub depth: usize,
}

impl Default for InputLimits {
    fn default() -> Self {
        Self { tools: 128, messages: 100_000, id_bytes: 256, depth: MAX_DEPTH }
    }
}

/// Why an input cannot be used. Its text is for the client: it names the field and says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// What kind of problem it is.
    pub kind: InputErrorKind,
    /// The field, such as `tools[3].name`; empty for the input as a whole.
    pub path: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What kind of problem an input has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputErrorKind {
    /// It is not JSON, or nested too deep.
    NotJson,
    /// It is JSON, but not an input of the protocol.
    Invalid,
    /// There is more of something than the limits allow.
    TooMuch,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "the input: {}", self.message),
            path => write!(f, "`{path}` of the input: {}", self.message),
        }
    }
}

impl std::error::Error for InputError {}

impl InputError {
    fn new(kind: InputErrorKind, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, path: path.into(), message: message.into() }
    }

    /// What serde says about a field.
    pub(crate) fn invalid(path: impl Into<String>, error: &serde_json::Error) -> Self {
        if error.is_data() {
            Self::new(InputErrorKind::Invalid, path, error.to_string())
        } else {
            Self::new(InputErrorKind::NotJson, path, format!("cannot be read as JSON: {error}"))
        }
    }

    /// The same error of something that is part of something else, such as `messages[3]`.
    pub fn within(self, path: &str) -> Self {
        let path = if self.path.is_empty() { path.to_owned() } else { format!("{path}.{}", self.path) };
        Self { path, ..self }
    }
}

impl<'a> RunAgentInput<'a> {
    /// Reads an input, within the usual limits.
    pub fn parse(body: &'a [u8]) -> Result<Self, InputError> {
        Self::parse_within(body, &InputLimits::default())
    }

    /// Reads an input, within limits.
    pub fn parse_within(body: &'a [u8], limits: &InputLimits) -> Result<Self, InputError> {
        let mut place = Place::default();
        let mut json = serde_json::Deserializer::from_slice(body);
        let read = InputSeed { limits, place: &mut place }.deserialize(&mut json);
        let input = read.and_then(|input| json.end().map(|()| input));
        let input = input.map_err(|error| place.error(&error))?;
        limits.check_input(&input)?;
        Ok(input)
    }

    /// The same input, borrowing from nothing. It copies the messages as they came.
    pub fn into_owned(self) -> RunAgentInput<'static> {
        let owned = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        RunAgentInput {
            thread_id: owned(self.thread_id),
            run_id: owned(self.run_id),
            protocol_version: self.protocol_version.map(owned),
            parent_run_id: self.parent_run_id.map(owned),
            state: self.state,
            messages: self.messages.into_iter().map(|raw| Cow::Owned(raw.into_owned())).collect(),
            tools: self.tools,
            context: self.context,
            forwarded_props: self.forwarded_props,
            resume: self.resume,
        }
    }
}

impl RunAgentInput<'static> {
    /// Reads an input that was parsed already, such as the one a run's first event repeats.
    pub fn from_value(value: &Value) -> Result<Self, InputError> {
        let body = value.to_string();
        RunAgentInput::parse(body.as_bytes()).map(RunAgentInput::into_owned)
    }
}

/// Messages are compared as they are written.
impl PartialEq for RunAgentInput<'_> {
    fn eq(&self, other: &Self) -> bool {
        let messages =
            |input: &Self| input.messages.iter().map(|raw| raw.get().to_owned()).collect::<Vec<_>>();
        self.thread_id == other.thread_id
            && self.run_id == other.run_id
            && self.protocol_version == other.protocol_version
            && self.parent_run_id == other.parent_run_id
            && self.state == other.state
            && messages(self) == messages(other)
            && self.tools == other.tools
            && self.context == other.context
            && self.forwarded_props == other.forwarded_props
            && self.resume == other.resume
    }
}

/// Where the reader is, so that an error can say so.
#[derive(Default)]
struct Place {
    field: &'static str,
    index: Option<usize>,
    is_too_much: bool,
}

impl Place {
    fn at(&mut self, field: &'static str) {
        *self = Self { field, ..Self::default() };
    }

    fn error(&self, error: &serde_json::Error) -> InputError {
        let path = match self.index {
            Some(index) => format!("{}[{index}]", self.field),
            None => self.field.to_owned(),
        };
        let error = InputError::invalid(path, error);
        if self.is_too_much { InputError { kind: InputErrorKind::TooMuch, ..error } } else { error }
    }
}

/// Reads the object that an input is.
struct InputSeed<'r> {
    limits: &'r InputLimits,
    place: &'r mut Place,
}

impl<'de> DeserializeSeed<'de> for InputSeed<'_> {
    type Value = RunAgentInput<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for InputSeed<'_> {
    type Value = RunAgentInput<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with `threadId`, `runId` and `messages`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { limits, place } = self;
        let mut input = RunAgentInput::default();
        let (mut thread_id, mut run_id, mut messages) = (None, None, None);
        while let Some(field) = map.next_key::<Field>()? {
            place.at(field.name());
            match field {
                Field::ThreadId => thread_id = Some(map.next_value::<Text>()?.0),
                Field::RunId => run_id = Some(map.next_value::<Text>()?.0),
                Field::ProtocolVersion => {
                    input.protocol_version = map.next_value::<Option<Text>>()?.map(|text| text.0);
                }
                Field::ParentRunId => {
                    input.parent_run_id = map.next_value::<Option<Text>>()?.map(|text| text.0);
                }
                Field::State => input.state = map.next_value()?,
                Field::Messages => {
                    messages = Some(map.next_value_seed(Items::required(place, limits.messages))?);
                }
                Field::Tools => input.tools = map.next_value_seed(Items::optional(place, limits.tools))?,
                Field::Context => {
                    input.context = map.next_value_seed(Items::optional(place, usize::MAX))?;
                }
                Field::ForwardedProps => input.forwarded_props = map.next_value()?,
                Field::Resume => input.resume = map.next_value_seed(Items::optional(place, usize::MAX))?,
                Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            place.at("");
        }
        let required = |field: Field| A::Error::custom(format!("`{}` is missing: send it", field.name()));
        input.thread_id = thread_id.ok_or_else(|| required(Field::ThreadId))?;
        input.run_id = run_id.ok_or_else(|| required(Field::RunId))?;
        let messages: Vec<&'de RawValue> = messages.ok_or_else(|| required(Field::Messages))?;
        input.messages = messages.into_iter().map(Cow::Borrowed).collect();
        Ok(input)
    }
}

/// The fields of an input.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Field {
    ThreadId,
    RunId,
    ProtocolVersion,
    ParentRunId,
    State,
    Messages,
    Tools,
    Context,
    ForwardedProps,
    Resume,
    #[serde(other)]
    Other,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::ThreadId => "threadId",
            Self::RunId => "runId",
            Self::ProtocolVersion => "protocolVersion",
            Self::ParentRunId => "parentRunId",
            Self::State => "state",
            Self::Messages => "messages",
            Self::Tools => "tools",
            Self::Context => "context",
            Self::ForwardedProps => "forwardedProps",
            Self::Resume => "resume",
            Self::Other => "",
        }
    }
}

/// Text that borrows from the body where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads an array, and knows which item it is at.
struct Items<'r, T> {
    place: &'r mut Place,
    most: usize,
    is_required: bool,
    item: PhantomData<T>,
}

impl<'r, T> Items<'r, T> {
    fn required(place: &'r mut Place, most: usize) -> Self {
        Self { place, most, is_required: true, item: PhantomData }
    }

    /// Null is none at all.
    fn optional(place: &'r mut Place, most: usize) -> Self {
        Self { is_required: false, ..Self::required(place, most) }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Items<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        if self.is_required { Err(E::invalid_type(Unexpected::Unit, &self)) } else { Ok(Vec::new()) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        self.place.index = Some(0);
        while let Some(item) = seq.next_element()? {
            if items.len() == self.most {
                self.place.index = None;
                self.place.is_too_much = true;
                return Err(A::Error::custom(format!("there may be at most {}: send fewer", self.most)));
            }
            items.push(item);
            self.place.index = Some(items.len());
        }
        Ok(items)
    }
}

impl InputLimits {
    /// What can be checked only once it was read.
    fn check_input(&self, input: &RunAgentInput<'_>) -> Result<(), InputError> {
        self.check_id(|| "threadId".to_owned(), &input.thread_id)?;
        self.check_id(|| "runId".to_owned(), &input.run_id)?;
        if let Some(id) = &input.parent_run_id {
            self.check_id(|| "parentRunId".to_owned(), id)?;
        }
        for (index, tool) in input.tools.iter().enumerate() {
            self.check_id(|| format!("tools[{index}].name"), &tool.name)?;
            self.check_depth(|| format!("tools[{index}].parameters"), tool.parameters.as_ref())?;
            self.check_fields(|| format!("tools[{index}].metadata"), tool.metadata.as_ref())?;
        }
        for (index, entry) in input.resume.iter().enumerate() {
            self.check_id(|| format!("resume[{index}].interruptId"), &entry.interrupt_id)?;
            self.check_depth(|| format!("resume[{index}].payload"), entry.payload.as_ref())?;
            self.check_fields(|| format!("resume[{index}].metadata"), entry.metadata.as_ref())?;
        }
        self.check_depth(|| "state".to_owned(), input.state.as_ref())
    }

    fn check_depth(&self, path: impl Fn() -> String, value: Option<&Value>) -> Result<(), InputError> {
        if value.is_none_or(|value| is_within(value, self.depth)) {
            return Ok(());
        }
        let message = format!("has more than {} levels: send flatter values", self.depth);
        Err(InputError::new(InputErrorKind::TooMuch, path(), message))
    }

    fn check_fields(&self, path: impl Fn() -> String, fields: Option<&Object>) -> Result<(), InputError> {
        fields.into_iter().flat_map(Object::values).try_for_each(|value| self.check_depth(&path, Some(value)))
    }

    /// The ids and names of a message.
    pub(crate) fn check_message(&self, message: &Message) -> Result<(), InputError> {
        self.check_id(|| "id".to_owned(), message.id())?;
        match message {
            Message::Assistant(message) => {
                for (index, call) in message.tool_calls.iter().enumerate() {
                    self.check_id(|| format!("toolCalls[{index}].id"), &call.id)?;
                    self.check_id(|| format!("toolCalls[{index}].function.name"), &call.function.name)?;
                }
                Ok(())
            }
            Message::Tool(message) => {
                self.check_id(|| "toolCallId".to_owned(), &message.tool_call_id)?;
                self.check_content(&message.content)
            }
            Message::User(message) => self.check_content(&message.content),
            _ => Ok(()),
        }
    }

    /// What is attached to the parts of a message.
    fn check_content(&self, content: &MessageContent) -> Result<(), InputError> {
        let MessageContent::Parts(parts) = content else { return Ok(()) };
        for (index, part) in parts.iter().enumerate() {
            let metadata = match part {
                ContentPart::Text(part) => &part.metadata,
                ContentPart::Image(part)
                | ContentPart::Audio(part)
                | ContentPart::Video(part)
                | ContentPart::Document(part) => &part.metadata,
            };
            self.check_depth(|| format!("content[{index}].metadata"), metadata.as_ref())?;
        }
        Ok(())
    }

    /// An id or a name: something, not too long, and nothing that disturbs a terminal or a log.
    pub fn check_id(&self, path: impl Fn() -> String, id: &str) -> Result<(), InputError> {
        let (kind, message) = if id.len() > self.id_bytes {
            (InputErrorKind::TooMuch, format!("has {} bytes, and may have {}", id.len(), self.id_bytes))
        } else if id.chars().any(char::is_control) {
            (InputErrorKind::Invalid, "has control characters: leave them out".to_owned())
        } else if id.trim().is_empty() {
            (InputErrorKind::Invalid, "must not be empty".to_owned())
        } else {
            return Ok(());
        };
        Err(InputError::new(kind, path(), message))
    }
}
