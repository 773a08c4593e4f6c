//! The conversation as a front end has it, made from the log.
//!
//! It is folded from what the [`Translator`] says, in the way clients do it: what was streamed and what is told later is
//! the same by construction.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use umbel_core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use umbel_core::{Event, EventId, FunctionResponse, LogEntry, Part, Payload, RunId, live_entries};

use crate::cast::Cast;
use crate::event::{AguiEvent, EncryptedSubtype, EventKind, ToolResultContent};
use crate::mark::InputMark;
use crate::media;
use crate::message::{
    AssistantMessage, ContentPart, Message, MessageContent, ReasoningMessage, TextPart, ToolCall,
    ToolMessage, UserMessage,
};
use crate::translate::Translator;

/// The id of the thoughts of an event.
pub(crate) fn reasoning_id(event: &EventId) -> SmolStr {
    format_smolstr!("{event}:thoughts")
}

/// The id of a result in an event.
pub(crate) fn result_id(event: &EventId, index: usize) -> SmolStr {
    format_smolstr!("{event}:{index}")
}

/// The event that a message id of ours was made from.
pub fn event_of(message: &str) -> &str {
    message.split_once(':').map_or(message, |(event, _)| event)
}

/// The ids that a client may know an event by: those of its messages, and that of the event itself.
pub fn ids(event: &Event) -> impl Iterator<Item = SmolStr> {
    let mark = if event.is_user() { InputMark::of(event) } else { None };
    let marked = mark.into_iter().flat_map(|mark| mark.messages).map(|(id, _)| id);
    let thoughts = (!event.is_user()).then(|| reasoning_id(&event.id));
    let parts = event.content.iter().flat_map(|content| content.parts.iter().enumerate());
    let results =
        parts.filter(|(_, part)| matches!(part.payload, Payload::Response(_) | Payload::CodeResult(_)));
    let results = results.map(|(index, _)| result_id(&event.id, index));
    marked.chain([SmolStr::new(event.id.as_str())]).chain(thoughts).chain(results)
}

/// The events that no rewind made void.
pub fn live<'a>(events: impl IntoIterator<Item = &'a Arc<Event>>) -> Vec<&'a Arc<Event>> {
    let events: Vec<&Arc<Event>> = events.into_iter().collect();
    if events.iter().all(|event| event.rewinds_to().is_none()) {
        return events;
    }
    let entries: Vec<LogEntry> = events.iter().map(|event| LogEntry::Event(Arc::clone(event))).collect();
    let live = live_entries(&entries).unwrap_or_default();
    events.into_iter().zip(live).filter_map(|(event, is_live)| is_live.then_some(event)).collect()
}

/// The conversation in the log. `knows_interrupts` is whether the client knows of interrupts; one that does not gets
/// them as calls.
pub fn messages<'a>(
    cast: &Arc<Cast>,
    events: impl IntoIterator<Item = &'a Arc<Event>>,
    knows_interrupts: bool,
) -> Vec<Message> {
    let mut conversation = Conversation::default();
    let mut speaking: Option<(RunId, Translator)> = None;
    for event in live(events) {
        if event.is_user() {
            conversation.user(event);
            continue;
        }
        if speaking.as_ref().is_none_or(|(run, _)| *run != event.run) {
            let translator = Translator::new(cast.clone(), "", "", knows_interrupts);
            speaking = Some((event.run.clone(), translator));
        }
        if let Some((_, translator)) = &mut speaking {
            translator.event(event, &mut |event| conversation.apply(&event));
        }
    }
    conversation.into_messages()
}

/// A conversation as clients fold it.
#[derive(Debug, Default)]
pub struct Conversation {
    turns: Vec<SpokenTurn>,
    /// Where messages of assistants and thoughts are, by their ids; the last ones of these ids.
    assistants: HashMap<SmolStr, usize>,
    thoughts: HashMap<SmolStr, usize>,
    /// Where calls are: the turn, and the place in its message.
    calls: HashMap<SmolStr, (usize, usize)>,
}

/// A message, and the results of its calls.
#[derive(Debug)]
struct SpokenTurn {
    message: Message,
    results: Vec<Message>,
}

impl Conversation {
    /// Takes in an event that says something. Others change nothing.
    pub fn apply(&mut self, event: &AguiEvent<'_>) {
        let owner = event.owner().map(SmolStr::new);
        match &event.kind {
            EventKind::TextMessageStart { message_id, .. } => {
                self.assistant(message_id, owner, |_| {});
            }
            EventKind::TextMessageContent { message_id, delta } => {
                let add = |message: &mut AssistantMessage| {
                    message.content.get_or_insert_default().push_str(delta);
                };
                self.assistant(message_id, owner, add);
            }
            EventKind::ToolCallStart { tool_call_id, tool_call_name, parent_message_id } => {
                let parent = parent_message_id.as_ref().unwrap_or(tool_call_id);
                let call = ToolCall::new(&**tool_call_id, &**tool_call_name, String::new());
                let mut place = 0;
                let turn = self.assistant(parent, owner, |message| {
                    place = message.tool_calls.len();
                    message.tool_calls.push(call);
                });
                self.calls.insert((&**tool_call_id).into(), (turn, place));
            }
            EventKind::ToolCallArgs { tool_call_id, delta } => {
                if let Some(call) = self.call(tool_call_id) {
                    call.function.arguments.push_str(delta);
                }
            }
            EventKind::ToolCallResult { message_id, tool_call_id, content, .. } => {
                self.result(message_id, tool_call_id, content, owner);
            }
            EventKind::ReasoningMessageStart { message_id, .. } => self.reasoning(message_id, owner, ""),
            EventKind::ReasoningMessageContent { message_id, delta } => {
                self.reasoning(message_id, owner, delta);
            }
            EventKind::ReasoningEncryptedValue { subtype, entity_id, encrypted_value } => {
                self.encrypted(*subtype, entity_id, encrypted_value);
            }
            EventKind::MessagesSnapshot { messages } => *self = messages.iter().cloned().collect(),
            _ => {}
        }
    }

    /// The messages so far.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.turns.iter().flat_map(|turn| std::iter::once(&turn.message).chain(&turn.results))
    }

    /// The same, to be kept.
    pub fn into_messages(self) -> Vec<Message> {
        self.turns.into_iter().flat_map(|turn| std::iter::once(turn.message).chain(turn.results)).collect()
    }

    /// Adds a message, and tells where.
    fn push(&mut self, message: Message) -> usize {
        self.turns.push(SpokenTurn { message, results: Vec::new() });
        self.turns.len() - 1
    }

    /// Changes the message of an assistant, which is made if there is none. Tells where it is.
    fn assistant(
        &mut self,
        id: &str,
        owner: Option<SmolStr>,
        change: impl FnOnce(&mut AssistantMessage),
    ) -> usize {
        let place = self.assistants.get(id).copied().unwrap_or_else(|| {
            let message = AssistantMessage { id: id.into(), subagent_run_id: owner, ..Default::default() };
            let place = self.push(Message::Assistant(message));
            self.assistants.insert(id.into(), place);
            place
        });
        if let Some(SpokenTurn { message: Message::Assistant(message), .. }) = self.turns.get_mut(place) {
            change(message);
        }
        place
    }

    fn reasoning(&mut self, id: &str, owner: Option<SmolStr>, text: &str) {
        let place = self.thoughts.get(id).copied().unwrap_or_else(|| {
            let message =
                ReasoningMessage { id: id.into(), subagent_run_id: owner, ..ReasoningMessage::default() };
            let place = self.push(Message::Reasoning(message));
            self.thoughts.insert(id.into(), place);
            place
        });
        if let Some(SpokenTurn { message: Message::Reasoning(message), .. }) = self.turns.get_mut(place) {
            message.content.push_str(text);
        }
    }

    fn call(&mut self, id: &str) -> Option<&mut ToolCall> {
        let (turn, place) = self.calls.get(id)?;
        match &mut self.turns.get_mut(*turn)?.message {
            Message::Assistant(message) => message.tool_calls.get_mut(*place),
            _ => None,
        }
    }

    /// A result stands behind the message that called, and behind results that came before it.
    fn result(&mut self, id: &str, call: &str, content: &ToolResultContent<'_>, owner: Option<SmolStr>) {
        let content = match content {
            ToolResultContent::Text(text) => MessageContent::Text(text.clone().into_owned()),
            ToolResultContent::Parts(parts) => MessageContent::Parts(parts.clone()),
        };
        let message = Message::Tool(ToolMessage {
            id: id.into(),
            content,
            tool_call_id: call.into(),
            subagent_run_id: owner,
            ..ToolMessage::default()
        });
        let caller = self.calls.get(call).and_then(|(turn, _)| self.turns.get_mut(*turn));
        match caller {
            Some(caller) => caller.results.push(message),
            None => {
                self.push(message);
            }
        }
    }

    fn encrypted(&mut self, subtype: EncryptedSubtype, entity: &str, value: &str) {
        let value = Some(value.to_owned());
        match subtype {
            EncryptedSubtype::ToolCall => {
                if let Some(call) = self.call(entity) {
                    call.encrypted_value = value;
                }
            }
            EncryptedSubtype::Message => {
                let place = self.assistants.get(entity).max(self.thoughts.get(entity)).copied();
                match place.and_then(|place| self.turns.get_mut(place)).map(|turn| &mut turn.message) {
                    Some(Message::Assistant(message)) => message.encrypted_value = value,
                    Some(Message::Reasoning(message)) => message.encrypted_value = value,
                    _ => {}
                }
            }
        }
    }

    /// Takes in what the user said, under the names that the client gave it.
    fn user(&mut self, event: &Event) {
        let Some(content) = &event.content else { return };
        let mut rest = content.parts.as_slice();
        let mark = InputMark::of(event).unwrap_or_default();
        for (id, parts) in mark.messages {
            let (these, others) = rest.split_at(parts.min(rest.len()));
            rest = others;
            self.said(id, these);
        }
        let (results, words): (Vec<_>, Vec<_>) =
            rest.iter().cloned().enumerate().partition(|(_, part)| part.as_response().is_some());
        for (index, part) in results {
            // What people said to a question is told with the interrupt, not as a message.
            let Some(response) = part.as_response().filter(|response| !is_question(&response.name)) else {
                continue;
            };
            let at = content.parts.len() - rest.len() + index;
            let (id, content) = (result_id(&event.id, at), result_content(response));
            let call = response.id.as_ref().map(umbel_core::CallId::as_str).unwrap_or_default();
            self.result(&id, call, &ToolResultContent::from(content), None);
        }
        if !words.is_empty() {
            let words: Vec<Part> = words.into_iter().map(|(_, part)| part).collect();
            self.said(event.id.as_str().into(), &words);
        }
    }

    fn said(&mut self, id: SmolStr, parts: &[Part]) {
        let Some(first) = parts.first() else { return };
        if let Some(response) = first.as_response() {
            let call = response.id.as_ref().map(umbel_core::CallId::as_str).unwrap_or_default();
            return self.result(&id, call, &ToolResultContent::from(result_content(response)), None);
        }
        let content = content_of(parts);
        self.push(Message::User(UserMessage { id, content, ..UserMessage::default() }));
    }
}

impl FromIterator<Message> for Conversation {
    /// A conversation of messages, as it is.
    fn from_iter<T: IntoIterator<Item = Message>>(messages: T) -> Self {
        let mut conversation = Self::default();
        for message in messages {
            let place = conversation.turns.len();
            match &message {
                Message::Assistant(said) => {
                    conversation.assistants.insert(said.id.clone(), place);
                    let calls = said.tool_calls.iter().enumerate();
                    conversation.calls.extend(calls.map(|(at, call)| (call.id.clone(), (place, at))));
                }
                Message::Reasoning(thought) => {
                    conversation.thoughts.insert(thought.id.clone(), place);
                }
                _ => {}
            }
            conversation.push(message);
        }
        conversation
    }
}

fn is_question(name: &str) -> bool {
    [REQUEST_CONFIRMATION, REQUEST_INPUT, REQUEST_CREDENTIAL].contains(&name)
}

/// Parts of ours as the content of a message.
fn content_of(parts: &[Part]) -> MessageContent {
    if let [part] = parts
        && let Some(text) = part.as_text()
    {
        return MessageContent::Text(text.to_owned());
    }
    MessageContent::Parts(parts.iter().filter_map(media::to_wire).collect())
}

/// A tool's result as a front end reads it: JSON text, or the text itself if it is one; with media as parts.
pub(crate) fn result_content(response: &FunctionResponse) -> MessageContent {
    let empty = umbel_core::Object::new();
    let given = response.response.as_ref().unwrap_or(&empty);
    let text = match given.get("result").filter(|_| given.len() == 1) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => serde_json::to_string(given).unwrap_or_default(),
    };
    let media = response.unknown.get("parts").and_then(|parts| serde_json::from_value(parts.clone()).ok());
    let media: Vec<Part> = media.unwrap_or_default();
    if media.is_empty() {
        return MessageContent::Text(text);
    }
    let words = ContentPart::Text(TextPart { text, ..TextPart::default() });
    MessageContent::Parts(std::iter::once(words).chain(media.iter().filter_map(media::to_wire)).collect())
}
