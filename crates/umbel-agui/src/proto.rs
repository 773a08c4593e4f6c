//! Events in protobuf: the message `ag_ui.Event` of protocol 1.0, by its field numbers.
//!
//! State, metadata and whatever else is open are `google.protobuf.Value`: numbers become doubles on their way.

use std::borrow::Cow;
use std::io;

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::Object;

use crate::event::{
    AguiEvent, AguiInterrupt, EncryptedSubtype, EventKind, RunOutcome, SubagentOutcome, TextRole, TokenUsage,
    ToolResultContent,
};
use crate::input::{ContextItem, ResumeEntry, RunAgentInput, Tool};
use crate::message::{
    ContentPart, FunctionCall, MediaPart, Message, MessageContent, PartSource, TextPart, ToolCall,
};
use crate::patch::PatchOp;

/// The media type of a stream of events in protobuf. The official client compares it letter by letter.
pub const MEDIA_TYPE: &str = "application/vnd.ag-ui.event+proto";

/// Adds a frame: the length in four bytes, the highest first, and the event.
///
/// It fails only if the event is longer than four bytes can say, or if it repeats an input with a message that cannot
/// be read. Then nothing is added.
pub fn write_frame(out: &mut Vec<u8>, event: &AguiEvent<'_>) -> io::Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let written = write_event(&mut Writer(out), event).and_then(|()| {
        let length = u32::try_from(out.len() - start - 4).map_err(io::Error::other)?;
        if let Some(bytes) = out.get_mut(start..start + 4) {
            bytes.copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    });
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Where an event stands in the message `Event`, and its number in `EventType`.
fn numbers(kind: &EventKind<'_>) -> (u32, u64) {
    match kind {
        EventKind::TextMessageStart { .. } => (1, 0),
        EventKind::TextMessageContent { .. } => (2, 1),
        EventKind::TextMessageEnd { .. } => (3, 2),
        EventKind::ToolCallStart { .. } => (4, 3),
        EventKind::ToolCallArgs { .. } => (5, 4),
        EventKind::ToolCallEnd { .. } => (6, 5),
        EventKind::StateSnapshot { .. } => (7, 6),
        EventKind::StateDelta { .. } => (8, 7),
        EventKind::MessagesSnapshot { .. } => (9, 8),
        EventKind::Raw { .. } => (10, 9),
        EventKind::Custom { .. } => (11, 10),
        EventKind::RunStarted { .. } => (12, 11),
        EventKind::RunFinished { .. } => (13, 12),
        EventKind::RunError { .. } => (14, 13),
        EventKind::StepStarted { .. } => (15, 14),
        EventKind::StepFinished { .. } => (16, 15),
        EventKind::TextMessageChunk { .. } => (17, 19),
        EventKind::ToolCallChunk { .. } => (18, 20),
        EventKind::SubagentStarted { .. } => (19, 16),
        EventKind::SubagentFinished { .. } => (20, 17),
        EventKind::SubagentError { .. } => (21, 18),
        EventKind::ToolCallResult { .. } => (22, 21),
        EventKind::ActivitySnapshot { .. } => (23, 22),
        EventKind::ActivityDelta { .. } => (24, 23),
        EventKind::ReasoningStart { .. } => (25, 24),
        EventKind::ReasoningMessageStart { .. } => (26, 25),
        EventKind::ReasoningMessageContent { .. } => (27, 26),
        EventKind::ReasoningMessageEnd { .. } => (28, 27),
        EventKind::ReasoningMessageChunk { .. } => (29, 28),
        EventKind::ReasoningEnd { .. } => (30, 29),
        EventKind::ReasoningEncryptedValue { .. } => (31, 30),
    }
}

/// Writes fields by their numbers.
macro_rules! fields {
    ($writer:expr; $($number:literal: $value:expr),* $(,)?) => {{
        $(Field::write(&$value, $number, $writer);)*
    }};
}

fn write_event(writer: &mut Writer<'_>, event: &AguiEvent<'_>) -> io::Result<()> {
    let history = match &event.kind {
        EventKind::RunStarted { input: Some(input), .. } => history(input)?,
        _ => Vec::new(),
    };
    let (number, event_type) = numbers(&event.kind);
    writer.message(number, |writer| {
        writer.message(1, |base| {
            fields!(base; 1: event_type, 2: event.timestamp, 3: unless_null(&event.raw_event), 4: event.metadata);
        });
        write_kind(writer, &event.kind, event.owner(), &history);
    });
    Ok(())
}

/// The messages of an input that is repeated.
fn history(input: &RunAgentInput<'_>) -> io::Result<Vec<Message>> {
    input.messages.iter().map(|raw| Message::parse(raw).map_err(io::Error::other)).collect()
}

/// The fields of an event, by its kind. `owner` is the sub-agent it is marked with.
fn write_kind(to: &mut Writer<'_>, kind: &EventKind<'_>, owner: Option<&str>, history: &[Message]) {
    use EventKind as E;
    match kind {
        E::RunStarted { thread_id, run_id, protocol_version, parent_run_id, input } => {
            fields!(to; 2: thread_id, 3: run_id, 4: parent_run_id, 6: protocol_version);
            if let Some(input) = input {
                to.message(5, |to| write_input(to, input, history));
            }
        }
        E::RunFinished { thread_id, run_id, result, outcome, usage } => {
            fields!(to; 2: thread_id, 3: run_id, 4: unless_null(result), 7: usage);
            write_outcome(to, outcome.as_ref());
        }
        E::RunError { message, code, usage } => fields!(to; 2: code, 3: message, 4: usage),
        E::StepStarted { step_name } | E::StepFinished { step_name } => fields!(to; 2: step_name, 3: owner),
        E::TextMessageStart { message_id, role, name } => {
            fields!(to; 2: message_id, 3: role.map(TextRole::name), 4: name, 5: owner);
        }
        E::TextMessageContent { message_id, delta } => fields!(to; 2: message_id, 3: delta, 4: owner),
        E::TextMessageEnd { message_id } => fields!(to; 2: message_id, 3: owner),
        E::TextMessageChunk { message_id, role, delta, name } => {
            fields!(to; 2: message_id, 3: role.map(TextRole::name), 4: delta, 5: name, 6: owner);
        }
        E::ToolCallStart { tool_call_id, tool_call_name, parent_message_id } => {
            fields!(to; 2: tool_call_id, 3: tool_call_name, 4: parent_message_id, 5: owner);
        }
        E::ToolCallArgs { tool_call_id, delta } => fields!(to; 2: tool_call_id, 3: delta, 4: owner),
        E::ToolCallEnd { tool_call_id } => fields!(to; 2: tool_call_id, 3: owner),
        E::ToolCallChunk { tool_call_id, tool_call_name, parent_message_id, delta } => {
            fields!(to; 2: tool_call_id, 3: tool_call_name, 4: parent_message_id, 5: delta, 6: owner);
        }
        E::ToolCallResult { message_id, tool_call_id, content, role } => {
            fields!(to; 2: owner, 3: message_id, 4: tool_call_id, 6: role.map(|_| "tool"));
            match content {
                ToolResultContent::Text(text) => fields!(to; 5: text),
                ToolResultContent::Parts(parts) => fields!(to; 7: parts),
            }
        }
        E::StateSnapshot { snapshot } => fields!(to; 2: snapshot, 3: owner),
        E::StateDelta { delta } => fields!(to; 2: delta, 3: owner),
        E::MessagesSnapshot { messages } => fields!(to; 2: messages),
        E::ActivitySnapshot { message_id, activity_type, content, replace } => {
            fields!(to; 2: owner, 3: message_id, 4: activity_type, 5: content, 6: replace);
        }
        E::ActivityDelta { message_id, activity_type, patch } => {
            fields!(to; 2: owner, 3: message_id, 4: activity_type, 5: patch);
        }
        E::ReasoningStart { message_id }
        | E::ReasoningMessageEnd { message_id }
        | E::ReasoningEnd { message_id } => fields!(to; 2: owner, 3: message_id),
        E::ReasoningMessageStart { message_id, role: _ } => {
            fields!(to; 2: owner, 3: message_id, 4: "reasoning");
        }
        E::ReasoningMessageContent { message_id, delta } => fields!(to; 2: owner, 3: message_id, 4: delta),
        E::ReasoningMessageChunk { message_id, delta } => fields!(to; 2: owner, 3: message_id, 4: delta),
        E::ReasoningEncryptedValue { subtype, entity_id, encrypted_value } => {
            fields!(to; 2: owner, 3: EncryptedSubtype::name(*subtype), 4: entity_id, 5: encrypted_value);
        }
        E::SubagentFinished { subagent_run_id, result, outcome } => {
            fields!(to; 2: subagent_run_id, 3: unless_null(result));
            match outcome {
                Some(SubagentOutcome::Success) => fields!(to; 4: "success"),
                Some(SubagentOutcome::Suspended { interrupt_ids }) => {
                    fields!(to; 4: "suspended", 5: interrupt_ids);
                }
                None => {}
            }
        }
        E::SubagentError { subagent_run_id, message, code } => {
            fields!(to; 2: subagent_run_id, 3: message, 4: code);
        }
        E::SubagentStarted { subagent_run_id, name, description, .. } => {
            fields!(to; 2: subagent_run_id, 3: name, 4: description);
            write_parents(to, kind);
        }
        E::Raw { event, source } => fields!(to; 2: event, 3: source, 4: owner),
        E::Custom { name, value } => fields!(to; 2: name, 3: value, 4: owner),
    }
}

/// Where a sub-agent was called.
fn write_parents(to: &mut Writer<'_>, kind: &EventKind<'_>) {
    if let EventKind::SubagentStarted {
        parent_subagent_run_id, parent_tool_call_id, parent_message_id, ..
    } = kind
    {
        fields!(to; 5: parent_subagent_run_id, 6: parent_tool_call_id, 7: parent_message_id);
    }
}

/// An outcome is laid flat into its event.
fn write_outcome(to: &mut Writer<'_>, outcome: Option<&RunOutcome>) {
    match outcome {
        Some(RunOutcome::Success { pending_tool_call_ids }) => {
            fields!(to; 5: "success", 8: pending_tool_call_ids);
        }
        Some(RunOutcome::Interrupt { interrupts }) => fields!(to; 5: "interrupt", 6: interrupts),
        Some(RunOutcome::Cancelled) => fields!(to; 5: "cancelled"),
        None => {}
    }
}

fn write_input(to: &mut Writer<'_>, input: &RunAgentInput<'_>, history: &[Message]) {
    fields!(to; 1: input.thread_id, 2: input.run_id, 3: input.parent_run_id, 4: unless_null(&input.state));
    fields!(to; 5: history, 6: input.tools, 7: input.context, 8: unless_null(&input.forwarded_props));
    fields!(to; 9: input.resume, 10: input.protocol_version);
}

/// Null is left out where the protocol has no null.
fn unless_null<V: std::borrow::Borrow<Value>>(value: &Option<V>) -> Option<&Value> {
    value.as_ref().map(std::borrow::Borrow::borrow).filter(|value: &&Value| !value.is_null())
}

/// Adds to the bytes of a message.
struct Writer<'o>(&'o mut Vec<u8>);

impl Writer<'_> {
    /// Seven bits to a byte, the lowest first.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    /// A message within. Its length stands first and is known last: a byte is kept for it, which most times will do.
    fn message(&mut self, number: u32, write: impl FnOnce(&mut Writer<'_>)) {
        self.tag(number, 2);
        let place = self.0.len();
        self.0.push(0);
        write(&mut Writer(self.0));
        let length = (self.0.len() - place - 1) as u64;
        match (u8::try_from(length), self.0.get_mut(place)) {
            (Ok(length), Some(byte)) if length < 0x80 => *byte = length,
            _ => {
                let mut bytes = Vec::new();
                Writer(&mut bytes).varint(length);
                self.0.splice(place..=place, bytes);
            }
        }
    }
}

/// What can be a field of a message.
trait Field {
    fn write(&self, number: u32, to: &mut Writer<'_>);
}

impl<T: Field + ?Sized> Field for &T {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        T::write(self, number, to);
    }
}

impl<T: Field + ToOwned + ?Sized> Field for Cow<'_, T> {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        self.as_ref().write(number, to);
    }
}

impl<T: Field> Field for Option<T> {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        if let Some(value) = self {
            value.write(number, to);
        }
    }
}

/// A field that is there several times.
impl<T: Field> Field for [T] {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        for value in self {
            value.write(number, to);
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        self.as_slice().write(number, to);
    }
}

impl Field for str {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.tag(number, 2);
        to.varint(self.len() as u64);
        to.0.extend_from_slice(self.as_bytes());
    }
}

impl Field for String {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        self.as_str().write(number, to);
    }
}

impl Field for SmolStr {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        self.as_str().write(number, to);
    }
}

impl Field for u64 {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.tag(number, 0);
        to.varint(*self);
    }
}

impl Field for i64 {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        self.cast_unsigned().write(number, to);
    }
}

impl Field for bool {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        u64::from(*self).write(number, to);
    }
}

impl Field for f64 {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.tag(number, 1);
        to.0.extend_from_slice(&self.to_le_bytes());
    }
}

/// `google.protobuf.Value`.
impl Field for Value {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| match self {
            Value::Null => fields!(to; 1: 0_u64),
            Value::Number(number) => fields!(to; 2: number.as_f64()),
            Value::String(text) => fields!(to; 3: text),
            Value::Bool(value) => fields!(to; 4: value),
            Value::Object(object) => fields!(to; 5: object),
            Value::Array(items) => to.message(6, |to| fields!(to; 1: items)),
        });
    }
}

/// `google.protobuf.Struct`.
impl Field for Object {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| {
            for (key, value) in self {
                to.message(1, |to| fields!(to; 1: key, 2: value));
            }
        });
    }
}

/// Messages whose fields are those of a type, by their numbers.
macro_rules! messages {
    ($($name:ty, $self:ident { $($number:literal: $value:expr),* $(,)? })*) => {
        $(impl Field for $name {
            fn write(&self, number: u32, to: &mut Writer<'_>) {
                let $self = self;
                to.message(number, |to| fields!(to; $($number: $value),*));
            }
        })*
    };
}

messages! {
    FunctionCall, it { 1: it.name, 2: it.arguments }
    ToolCall, it { 1: it.id, 2: "function", 3: it.function, 4: it.metadata, 5: it.encrypted_value }
    TextPart, it { 1: it.text, 2: it.id, 3: unless_null(&it.metadata) }
    MediaPart, it { 1: it.source, 2: unless_null(&it.metadata), 3: it.id }
    Tool, it { 1: it.name, 2: it.description, 3: unless_null(&it.parameters), 4: it.metadata }
    ContextItem, it { 1: it.description, 2: it.value }
    ResumeEntry, it { 1: it.interrupt_id, 2: it.status.name(), 3: unless_null(&it.payload), 4: it.metadata }
    AguiInterrupt, it {
        1: it.id, 2: it.reason, 3: it.message, 4: it.tool_call_id, 5: it.response_schema.as_ref().map(AsValue),
        6: it.expires_at, 7: it.metadata.as_ref().map(AsValue), 8: it.subagent_run_id,
    }
    TokenUsage, it {
        1: it.provider, 2: it.model, 3: it.input_tokens, 4: it.output_tokens, 5: it.total_tokens,
        6: it.reasoning_tokens, 7: it.cached_input_tokens, 8: it.cache_write_input_tokens,
    }
}

/// An object where the message has any value.
struct AsValue<'v>(&'v Object);

impl Field for AsValue<'_> {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| fields!(to; 5: self.0));
    }
}

impl Field for PartSource {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| match self {
            Self::Data { value, mime_type } => to.message(1, |to| fields!(to; 1: value, 2: mime_type)),
            Self::Url { value, mime_type } => to.message(2, |to| fields!(to; 1: value, 2: mime_type)),
            Self::File { value, provider, mime_type } => {
                to.message(3, |to| fields!(to; 1: value, 2: provider, 3: mime_type));
            }
        });
    }
}

impl Field for ContentPart {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| match self {
            Self::Text(part) => fields!(to; 1: part),
            Self::Image(part) => fields!(to; 2: part),
            Self::Audio(part) => fields!(to; 3: part),
            Self::Video(part) => fields!(to; 4: part),
            Self::Document(part) => fields!(to; 5: part),
        });
    }
}

impl Field for PatchOp {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| match self {
            Self::Add { path, value } => fields!(to; 1: 0_u64, 2: path, 4: value),
            Self::Remove { path } => fields!(to; 1: 1_u64, 2: path),
            Self::Replace { path, value } => fields!(to; 1: 2_u64, 2: path, 4: value),
            Self::Move { from, path } => fields!(to; 1: 3_u64, 2: path, 3: from),
            Self::Copy { from, path } => fields!(to; 1: 4_u64, 2: path, 3: from),
            Self::Test { path, value } => fields!(to; 1: 5_u64, 2: path, 4: value),
        });
    }
}

/// Text and parts are two fields.
fn write_content(to: &mut Writer<'_>, content: &MessageContent) {
    match content {
        MessageContent::Text(text) => fields!(to; 3: text),
        MessageContent::Parts(parts) => fields!(to; 8: parts),
    }
}

impl Field for Message {
    fn write(&self, number: u32, to: &mut Writer<'_>) {
        to.message(number, |to| {
            fields!(to; 1: self.id(), 2: self.role(), 9: self.metadata(), 10: self.subagent_run_id());
            match self {
                Self::Developer(it) | Self::System(it) => {
                    fields!(to; 3: it.content, 4: it.name, 11: it.encrypted_value);
                }
                Self::Assistant(it) => {
                    fields!(to; 3: it.content, 4: it.name, 5: it.tool_calls, 11: it.encrypted_value);
                }
                Self::User(it) => {
                    fields!(to; 4: it.name, 11: it.encrypted_value);
                    write_content(to, &it.content);
                }
                Self::Tool(it) => {
                    fields!(to; 6: it.tool_call_id, 7: it.error, 11: it.encrypted_value);
                    write_content(to, &it.content);
                }
                Self::Activity(it) => fields!(to; 12: it.activity_type, 13: it.content),
                Self::Reasoning(it) => fields!(to; 3: it.content, 11: it.encrypted_value),
            }
        });
    }
}
