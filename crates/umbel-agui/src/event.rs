//! Events: what a server says while an agent runs.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::Object;

use crate::input::RunAgentInput;
use crate::message::{ContentPart, Message, MessageContent};
use crate::owned::IntoOwned;
use crate::patch::PatchOp;

/// One event, with what every event may carry.
///
/// Its strings may borrow from where they are kept, so that saying them costs no allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct AguiEvent<'a> {
    /// What happened.
    pub kind: EventKind<'a>,
    /// The sub-agent whose work this is; none is the agent itself. Events of the run as a whole and
    /// [`EventKind::MessagesSnapshot`] carry none on the wire, and the events of a sub-agent's own life carry the one
    /// of their kind.
    pub subagent_run_id: Option<Cow<'a, str>>,
    /// Milliseconds since 1970, by convention.
    pub timestamp: Option<i64>,
    /// What the event was made from. Null is not sent.
    pub raw_event: Option<Cow<'a, Value>>,
    /// Anything else; the key `ag-ui` belongs to the protocol. That of events about a message or a tool call is merged
    /// into it, the last one wins.
    pub metadata: Option<Cow<'a, Object>>,
}

/// What happened: the 31 kinds of event of protocol 1.0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
pub enum EventKind<'a> {
    /// A run begins. The first event of every stream, unless it fails before.
    RunStarted {
        /// The conversation.
        thread_id: Cow<'a, str>,
        /// The run.
        run_id: Cow<'a, str>,
        /// The version the server speaks. One of 1.0 must say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        protocol_version: Option<Cow<'a, str>>,
        /// The run this one comes from.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_run_id: Option<Cow<'a, str>>,
        /// What was asked for. The client adds messages it does not know.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_input")]
        input: Option<Box<RunAgentInput<'a>>>,
    },
    /// The run ended without a failure. Nothing may be open then.
    RunFinished {
        /// The conversation.
        thread_id: Cow<'a, str>,
        /// The run.
        run_id: Cow<'a, str>,
        /// What came of it. Null is not sent.
        #[serde(skip_serializing_if = "crate::is_absent")]
        result: Option<Cow<'a, Value>>,
        /// Why it ended; none is success.
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<RunOutcome>,
        /// What it cost: an entry per provider and model, sub-agents included, of this run alone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        usage: Vec<TokenUsage>,
    },
    /// The run failed. It may come at any time; what is open need not be closed.
    RunError {
        /// What happened, for people.
        message: Cow<'a, str>,
        /// What happened, for programs. The protocol has no list of codes.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Cow<'a, str>>,
        /// What it cost until then.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        usage: Vec<TokenUsage>,
    },
    /// A named step begins.
    StepStarted {
        /// Its name, unique among the open steps of one owner.
        step_name: Cow<'a, str>,
    },
    /// A named step ends. It has the owner that it began with.
    StepFinished {
        /// Its name.
        step_name: Cow<'a, str>,
    },
    /// A text message begins. One of an id that is there already goes on with that message.
    TextMessageStart {
        /// The message.
        message_id: Cow<'a, str>,
        /// Who speaks; none is the assistant.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<TextRole>,
        /// The speaker's name.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
    },
    /// More text of an open message.
    TextMessageContent {
        /// The message.
        message_id: Cow<'a, str>,
        /// The text to add; it may be empty.
        delta: Cow<'a, str>,
    },
    /// A text message is complete.
    TextMessageEnd {
        /// The message.
        message_id: Cow<'a, str>,
    },
    /// Start, content and end of a text message in one. Any other event but [`EventKind::Raw`], activities and
    /// [`EventKind::ReasoningEncryptedValue`] ends the message.
    TextMessageChunk {
        /// The message; the first chunk must name it.
        #[serde(skip_serializing_if = "Option::is_none")]
        message_id: Option<Cow<'a, str>>,
        /// Who speaks.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<TextRole>,
        /// The text to add.
        #[serde(skip_serializing_if = "Option::is_none")]
        delta: Option<Cow<'a, str>>,
        /// The speaker's name.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
    },
    /// A tool call begins.
    ToolCallStart {
        /// The call.
        tool_call_id: Cow<'a, str>,
        /// The tool.
        tool_call_name: Cow<'a, str>,
        /// The assistant message it belongs to, which must have the same owner. Without one, or if there is no such
        /// message, the client makes one.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_message_id: Option<Cow<'a, str>>,
    },
    /// More of the arguments of an open call. All of them together are JSON text.
    ToolCallArgs {
        /// The call.
        tool_call_id: Cow<'a, str>,
        /// The text to add.
        delta: Cow<'a, str>,
    },
    /// The arguments of a call are complete.
    ToolCallEnd {
        /// The call.
        tool_call_id: Cow<'a, str>,
    },
    /// Start, arguments and end of a tool call in one.
    ToolCallChunk {
        /// The call; the first chunk must name it.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_call_id: Option<Cow<'a, str>>,
        /// The tool; the first chunk must name it.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_call_name: Option<Cow<'a, str>>,
        /// The assistant message it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_message_id: Option<Cow<'a, str>>,
        /// The text to add to the arguments.
        #[serde(skip_serializing_if = "Option::is_none")]
        delta: Option<Cow<'a, str>>,
    },
    /// What a tool returned. It makes a new tool message.
    ToolCallResult {
        /// The new message.
        message_id: Cow<'a, str>,
        /// The call it answers.
        tool_call_id: Cow<'a, str>,
        /// The answer.
        content: ToolResultContent<'a>,
        /// Always `tool`, and may be left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<ToolRole>,
    },
    /// The whole state, in place of what the client has.
    StateSnapshot {
        /// Any JSON, null too.
        snapshot: Cow<'a, Value>,
    },
    /// A change of the state. A client that cannot apply it goes on without it, so the base has to be certain.
    StateDelta {
        /// The change.
        delta: Cow<'a, [PatchOp]>,
    },
    /// The whole conversation. Messages that are not in it are removed; activities and reasoning stay if there is
    /// none of their kind in it.
    MessagesSnapshot {
        /// The messages, in order.
        messages: Cow<'a, [Message]>,
    },
    /// Progress that is not said, such as a search under way, as a message of its own.
    ActivitySnapshot {
        /// The message.
        message_id: Cow<'a, str>,
        /// What it is about.
        activity_type: Cow<'a, str>,
        /// What there is to show.
        content: Cow<'a, Object>,
        /// Whether it takes the place of one of the same id; none is yes.
        #[serde(skip_serializing_if = "Option::is_none")]
        replace: Option<bool>,
    },
    /// A change of an activity.
    ActivityDelta {
        /// The message.
        message_id: Cow<'a, str>,
        /// What it is about.
        activity_type: Cow<'a, str>,
        /// The change of its content.
        patch: Cow<'a, [PatchOp]>,
    },
    /// A span of reasoning begins; it may hold several messages.
    ReasoningStart {
        /// The span. A message within may have the same id.
        message_id: Cow<'a, str>,
    },
    /// A message of reasoning begins.
    ReasoningMessageStart {
        /// The message.
        message_id: Cow<'a, str>,
        /// Always `reasoning`, and must be said.
        role: ReasoningRole,
    },
    /// More text of an open message of reasoning.
    ReasoningMessageContent {
        /// The message.
        message_id: Cow<'a, str>,
        /// The text to add.
        delta: Cow<'a, str>,
    },
    /// A message of reasoning is complete.
    ReasoningMessageEnd {
        /// The message.
        message_id: Cow<'a, str>,
    },
    /// Start, content and end of a message of reasoning in one.
    ReasoningMessageChunk {
        /// The message; the first chunk must name it.
        #[serde(skip_serializing_if = "Option::is_none")]
        message_id: Option<Cow<'a, str>>,
        /// The text to add.
        #[serde(skip_serializing_if = "Option::is_none")]
        delta: Option<Cow<'a, str>>,
    },
    /// A span of reasoning ends.
    ReasoningEnd {
        /// The span.
        message_id: Cow<'a, str>,
    },
    /// Reasoning that only the provider can read. The client keeps it and sends it back.
    ReasoningEncryptedValue {
        /// What it belongs to.
        subtype: EncryptedSubtype,
        /// The message or the call.
        entity_id: Cow<'a, str>,
        /// What the provider wants to see again.
        encrypted_value: Cow<'a, str>,
    },
    /// A sub-agent begins to work. What it does is marked with its id.
    SubagentStarted {
        /// This one piece of work of it, unique in the run.
        subagent_run_id: Cow<'a, str>,
        /// The sub-agent's name.
        name: Cow<'a, str>,
        /// What it is there for.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<Cow<'a, str>>,
        /// The sub-agent that called it; it must have begun in this run.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_subagent_run_id: Option<Cow<'a, str>>,
        /// The tool call by which it was called.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_tool_call_id: Option<Cow<'a, str>>,
        /// The message in which it was called.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_message_id: Option<Cow<'a, str>>,
    },
    /// A sub-agent is done, or waits for an answer.
    SubagentFinished {
        /// The sub-agent's work.
        subagent_run_id: Cow<'a, str>,
        /// What came of it. Null is not sent.
        #[serde(skip_serializing_if = "crate::is_absent")]
        result: Option<Cow<'a, Value>>,
        /// Why it ended; none is success.
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<SubagentOutcome>,
    },
    /// A sub-agent failed. The run may go on.
    SubagentError {
        /// The sub-agent's work.
        subagent_run_id: Cow<'a, str>,
        /// What happened, for people.
        message: Cow<'a, str>,
        /// What happened, for programs.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Cow<'a, str>>,
    },
    /// An event of another system, as it came.
    Raw {
        /// The event; it may be null.
        event: Cow<'a, Value>,
        /// Where it came from.
        #[serde(skip_serializing_if = "Option::is_none")]
        source: Option<Cow<'a, str>>,
    },
    /// An event of the application.
    Custom {
        /// Its name.
        name: Cow<'a, str>,
        /// What it says; it may be null.
        value: Cow<'a, Value>,
    },
}

/// Who speaks in a text message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextRole {
    /// Whoever made the application.
    Developer,
    /// The system.
    System,
    /// The agent.
    Assistant,
    /// The person.
    User,
}

impl TextRole {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Developer => "developer",
            Self::System => "system",
            Self::Assistant => "assistant",
            Self::User => "user",
        }
    }
}

/// The role of a tool's answer, of which there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolRole {
    /// A tool.
    #[default]
    Tool,
}

/// The role of a message of reasoning, of which there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningRole {
    /// Reasoning.
    #[default]
    Reasoning,
}

/// What encrypted reasoning belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncryptedSubtype {
    /// A tool call.
    ToolCall,
    /// A message, of text or of reasoning.
    Message,
}

impl EncryptedSubtype {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToolCall => "tool-call",
            Self::Message => "message",
        }
    }
}

/// What a tool returned: text, or parts of any kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, from = "MessageContent")]
pub enum ToolResultContent<'a> {
    /// Text.
    Text(Cow<'a, str>),
    /// Parts.
    Parts(Vec<ContentPart>),
}

impl From<MessageContent> for ToolResultContent<'_> {
    fn from(content: MessageContent) -> Self {
        match content {
            MessageContent::Text(text) => Self::Text(text.into()),
            MessageContent::Parts(parts) => Self::Parts(parts),
        }
    }
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum RunOutcome {
    /// It is done.
    Success {
        /// Calls of this run that the application has to answer, in order. Where none is named, the client looks for
        /// calls without a result.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pending_tool_call_ids: Vec<SmolStr>,
    },
    /// It waits for answers. The next run on the thread has to answer all of them.
    Interrupt {
        /// What is asked; at least one.
        interrupts: Vec<AguiInterrupt>,
    },
    /// It was stopped, and nothing is waited for.
    Cancelled,
}

impl<'de> Deserialize<'de> for RunOutcome {
    /// An outcome that is not known counts as success, as the protocol has it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Form {
            r#type: String,
            #[serde(default)]
            pending_tool_call_ids: Vec<SmolStr>,
            #[serde(default)]
            interrupts: Vec<AguiInterrupt>,
        }
        let form = Form::deserialize(deserializer)?;
        Ok(match form.r#type.as_str() {
            "interrupt" if form.interrupts.is_empty() => {
                return Err(serde::de::Error::custom("an interrupt outcome needs at least one interrupt"));
            }
            "interrupt" => Self::Interrupt { interrupts: form.interrupts },
            "cancelled" => Self::Cancelled,
            _ => Self::Success { pending_tool_call_ids: form.pending_tool_call_ids },
        })
    }
}

/// A question that a run waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AguiInterrupt {
    /// By which it is answered.
    pub id: SmolStr,
    /// `tool_call`, `input_required`, `confirmation`, or `FRAMEWORK:NAME`; `core:` belongs to the protocol.
    pub reason: SmolStr,
    /// The question, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The call it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<SmolStr>,
    /// JSON Schema of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Object>,
    /// Until when it can be answered, in ISO 8601; then it can only be cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// The sub-agent that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subagent_run_id: Option<SmolStr>,
}

/// Why a sub-agent ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum SubagentOutcome {
    /// It is done.
    Success,
    /// It waits for answers, and may go on in a later run.
    Suspended {
        /// The interrupts it waits for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        interrupt_ids: Vec<SmolStr>,
    },
}

/// Tokens that one model of one provider used.
///
/// Input and output are totals; reasoning, cached and written to the cache are parts of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    /// Who runs the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<SmolStr>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<SmolStr>,
    /// All that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// All that was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Both together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// What of the output was reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// What of the input came from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// What of the input was written to a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_input_tokens: Option<u64>,
}

impl TokenUsage {
    /// Adds what one call of a model used.
    pub fn add(&mut self, used: &umbel_core::Usage) {
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        };
        add(&mut self.input_tokens, used.prompt_token_count);
        add(&mut self.output_tokens, used.candidates_token_count);
        add(&mut self.total_tokens, used.total_token_count);
        add(&mut self.reasoning_tokens, used.thoughts_token_count);
        add(&mut self.cached_input_tokens, used.cached_content_token_count);
        add(&mut self.cache_write_input_tokens, used.cache_write_token_count);
    }
}

impl<'a> From<EventKind<'a>> for AguiEvent<'a> {
    fn from(kind: EventKind<'a>) -> Self {
        Self { kind, subagent_run_id: None, timestamp: None, raw_event: None, metadata: None }
    }
}

impl AguiEvent<'_> {
    /// The sub-agent as it stands on the wire: events that cannot be marked with one have none.
    pub fn owner(&self) -> Option<&str> {
        self.subagent_run_id.as_deref().filter(|_| self.kind.is_attributable())
    }

    /// The same event, borrowing from nothing.
    pub fn into_owned(self) -> AguiEvent<'static> {
        AguiEvent {
            kind: self.kind.into_owned(),
            subagent_run_id: self.subagent_run_id.into_owned(),
            timestamp: self.timestamp,
            raw_event: self.raw_event.into_owned(),
            metadata: self.metadata.into_owned(),
        }
    }
}

impl EventKind<'_> {
    /// Whether the event may be marked with the sub-agent whose work it is. Those of the run as a whole may not, and
    /// those of a sub-agent's life name it themselves.
    pub fn is_attributable(&self) -> bool {
        !matches!(
            self,
            Self::RunStarted { .. }
                | Self::RunFinished { .. }
                | Self::RunError { .. }
                | Self::MessagesSnapshot { .. }
                | Self::SubagentStarted { .. }
                | Self::SubagentFinished { .. }
                | Self::SubagentError { .. }
        )
    }

    /// Its type on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "RUN_STARTED",
            Self::RunFinished { .. } => "RUN_FINISHED",
            Self::RunError { .. } => "RUN_ERROR",
            Self::StepStarted { .. } => "STEP_STARTED",
            Self::StepFinished { .. } => "STEP_FINISHED",
            Self::TextMessageStart { .. } => "TEXT_MESSAGE_START",
            Self::TextMessageContent { .. } => "TEXT_MESSAGE_CONTENT",
            Self::TextMessageEnd { .. } => "TEXT_MESSAGE_END",
            Self::TextMessageChunk { .. } => "TEXT_MESSAGE_CHUNK",
            Self::ToolCallStart { .. } => "TOOL_CALL_START",
            Self::ToolCallArgs { .. } => "TOOL_CALL_ARGS",
            Self::ToolCallEnd { .. } => "TOOL_CALL_END",
            Self::ToolCallChunk { .. } => "TOOL_CALL_CHUNK",
            Self::ToolCallResult { .. } => "TOOL_CALL_RESULT",
            Self::StateSnapshot { .. } => "STATE_SNAPSHOT",
            Self::StateDelta { .. } => "STATE_DELTA",
            Self::MessagesSnapshot { .. } => "MESSAGES_SNAPSHOT",
            Self::ActivitySnapshot { .. } => "ACTIVITY_SNAPSHOT",
            Self::ActivityDelta { .. } => "ACTIVITY_DELTA",
            Self::ReasoningStart { .. } => "REASONING_START",
            Self::ReasoningMessageStart { .. } => "REASONING_MESSAGE_START",
            Self::ReasoningMessageContent { .. } => "REASONING_MESSAGE_CONTENT",
            Self::ReasoningMessageEnd { .. } => "REASONING_MESSAGE_END",
            Self::ReasoningMessageChunk { .. } => "REASONING_MESSAGE_CHUNK",
            Self::ReasoningEnd { .. } => "REASONING_END",
            Self::ReasoningEncryptedValue { .. } => "REASONING_ENCRYPTED_VALUE",
            Self::SubagentStarted { .. } => "SUBAGENT_STARTED",
            Self::SubagentFinished { .. } => "SUBAGENT_FINISHED",
            Self::SubagentError { .. } => "SUBAGENT_ERROR",
            Self::Raw { .. } => "RAW",
            Self::Custom { .. } => "CUSTOM",
        }
    }

    /// Whether the run ends with it.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::RunFinished { .. } | Self::RunError { .. })
    }
}

impl Serialize for AguiEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Written field by field into one object, with nothing in between.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Form<'e, 'a> {
            #[serde(flatten)]
            kind: &'e EventKind<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            subagent_run_id: Option<&'e str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            timestamp: Option<i64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            raw_event: Option<&'e Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            metadata: Option<&'e Object>,
        }
        Form {
            kind: &self.kind,
            subagent_run_id: self.owner(),
            timestamp: self.timestamp,
            raw_event: self.raw_event.as_deref().filter(|event| !event.is_null()),
            metadata: self.metadata.as_deref(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AguiEvent<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Base {
            subagent_run_id: Option<Cow<'static, str>>,
            timestamp: Option<i64>,
            raw_event: Option<Cow<'static, Value>>,
            metadata: Option<Cow<'static, Object>>,
        }
        let value = Value::deserialize(deserializer)?;
        let kind = EventKind::deserialize(&value).map_err(serde::de::Error::custom)?;
        let base = Base::deserialize(value).map_err(serde::de::Error::custom)?;
        Ok(Self {
            subagent_run_id: base.subagent_run_id.filter(|_| kind.is_attributable()),
            kind,
            timestamp: base.timestamp,
            raw_event: base.raw_event,
            metadata: base.metadata,
        })
    }
}

/// An input keeps messages as they came, which serde cannot do inside an enum.
fn read_input<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RunAgentInput<'static>>>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let input = value.map(|value| RunAgentInput::from_value(&value));
    Ok(input.transpose().map_err(serde::de::Error::custom)?.map(Box::new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_written_type_first_and_without_what_is_absent() {
        let event = AguiEvent::from(EventKind::TextMessageContent {
            message_id: "m".into(),
            delta: "hi \"there\"".into(),
        });
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"hi \"there\""}"#);
    }

    #[test]
    fn what_is_null_is_left_out_where_the_protocol_has_no_null() {
        let null = || Some(Cow::Owned(Value::Null));
        let kind = EventKind::RunFinished {
            thread_id: "t".into(),
            run_id: "r".into(),
            result: null(),
            outcome: None,
            usage: Vec::new(),
        };
        let event = AguiEvent { raw_event: null(), ..AguiEvent::from(kind) };
        let form = serde_json::to_value(&event).unwrap();
        assert_eq!(form, json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}));
        let custom = AguiEvent::from(EventKind::Custom { name: "n".into(), value: Cow::Owned(Value::Null) });
        assert_eq!(
            serde_json::to_value(&custom).unwrap(),
            json!({"type": "CUSTOM", "name": "n", "value": null})
        );
    }

    #[test]
    fn events_of_the_run_carry_no_sub_agent_and_those_of_a_sub_agent_their_own() {
        let marked = |kind| AguiEvent { subagent_run_id: Some("other".into()), ..AguiEvent::from(kind) };
        let error = marked(EventKind::RunError { message: "m".into(), code: None, usage: Vec::new() });
        assert_eq!(serde_json::to_value(&error).unwrap(), json!({"type": "RUN_ERROR", "message": "m"}));
        let done = marked(EventKind::SubagentFinished {
            subagent_run_id: "own".into(),
            result: None,
            outcome: None,
        });
        let form = json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "own"});
        assert_eq!(serde_json::to_value(&done).unwrap(), form);
        let read: AguiEvent = serde_json::from_value(form).unwrap();
        assert_eq!(read.subagent_run_id, None);
        assert_eq!(read.kind, done.kind);
    }

    #[test]
    fn an_unknown_outcome_counts_as_success_and_an_empty_interrupt_as_an_error() {
        let success = RunOutcome::Success { pending_tool_call_ids: Vec::new() };
        assert_eq!(serde_json::from_value::<RunOutcome>(json!({"type": "paused", "x": 1})).unwrap(), success);
        assert!(
            serde_json::from_value::<RunOutcome>(json!({"type": "interrupt", "interrupts": []})).is_err()
        );
    }
}
