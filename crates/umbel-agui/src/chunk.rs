//! Chunks: start, content and end of a message in one event, spelled out.
//!
//! A chunk may leave out which message it goes on with, and the next event may end that message without a word. Spelled
//! out, a stream means the same to every reader.

use std::borrow::Cow;

use crate::event::{AguiEvent, EventKind, ReasoningRole};
use crate::guard::{Entity, Guard};

impl Guard {
    /// Passes a chunk on as the events it stands for; false if the event is no chunk.
    pub(crate) fn take_chunk(
        &mut self,
        event: &AguiEvent<'_>,
        sink: &mut impl FnMut(&AguiEvent<'_>),
    ) -> Result<bool, String> {
        let (entity, named) = match &event.kind {
            EventKind::TextMessageChunk { message_id, .. } => (Entity::Text, message_id.as_deref()),
            EventKind::ToolCallChunk { tool_call_id, .. } => (Entity::ToolCall, tool_call_id.as_deref()),
            EventKind::ReasoningMessageChunk { message_id, .. } => {
                (Entity::ReasoningMessage, message_id.as_deref())
            }
            _ => return Ok(false),
        };
        let tag = event.owner();
        let meant = match named {
            Some(id) => self.find(entity, id),
            None => Some(self.last_chunked(entity, tag)?),
        };
        let (id, lane) = match meant.and_then(|at| self.open.get(at)) {
            Some(open) => (open.id.clone(), open.tag.clone()),
            None => {
                let id = named.unwrap_or_default();
                let start = AguiEvent { kind: start_of(&event.kind, id)?, raw_event: None, ..event.clone() };
                self.close_chunked(|lane| lane == tag, sink);
                self.verdict(&start)?;
                if let Some(open) = self.open.last_mut() {
                    open.is_chunked = true;
                }
                sink(&start);
                (id.into(), tag.map(Into::into))
            }
        };
        let is_new = meant.is_none();
        let delta = delta_of(&event.kind);
        let says_more = event.metadata.is_some() && !is_new;
        if delta.is_some() || event.raw_event.is_some() || says_more {
            let kind = content_of(entity, &id, delta.unwrap_or_default());
            let owner = tag.or(lane.as_deref()).map(Cow::Borrowed);
            let content = AguiEvent { kind, subagent_run_id: owner, ..event.clone() };
            self.verdict(&content)?;
            sink(&content);
        }
        Ok(true)
    }

    /// What a chunk goes on with that names nothing: the only thing that chunks of its sub-agent opened.
    fn last_chunked(&self, entity: Entity, tag: Option<&str>) -> Result<usize, String> {
        let open =
            || self.open.iter().enumerate().filter(|(_, open)| open.is_chunked && open.entity == entity);
        let of_lane = open().filter(|(_, open)| open.tag.as_deref() == tag).map(|(at, _)| at).next_back();
        let mut others = open().filter(|_| tag.is_none()).map(|(at, _)| at);
        match (of_lane, others.next(), others.next()) {
            (Some(at), ..) | (None, Some(at), None) => Ok(at),
            (None, None, _) => Err("the first chunk has to name what it begins".to_owned()),
            (None, Some(_), Some(_)) => Err("it names nothing, and several could be meant".to_owned()),
        }
    }

    /// An event closes what chunks of the same sub-agent opened, unless it stands aside.
    pub(crate) fn close_chunks_before(
        &mut self,
        event: &AguiEvent<'_>,
        sink: &mut impl FnMut(&AguiEvent<'_>),
    ) {
        if self.open.iter().all(|open| !open.is_chunked) {
            return;
        }
        match &event.kind {
            EventKind::Raw { .. }
            | EventKind::ActivitySnapshot { .. }
            | EventKind::ActivityDelta { .. }
            | EventKind::ReasoningEncryptedValue { .. }
            | EventKind::SubagentStarted { .. } => {}
            EventKind::MessagesSnapshot { .. } => self.close_chunked(|_| true, sink),
            EventKind::SubagentFinished { subagent_run_id, .. }
            | EventKind::SubagentError { subagent_run_id, .. } => {
                self.close_chunked(|lane| lane == Some(subagent_run_id.as_ref()), sink);
            }
            _ => self.close_chunked(|lane| lane == event.owner(), sink),
        }
    }
}

/// The start that a chunk stands for.
fn start_of<'a>(chunk: &'a EventKind<'_>, id: &'a str) -> Result<EventKind<'a>, String> {
    let text = |text: &'a Option<Cow<'_, str>>| text.as_deref().map(Cow::Borrowed);
    match chunk {
        EventKind::TextMessageChunk { role, name, .. } => {
            Ok(EventKind::TextMessageStart { message_id: id.into(), role: *role, name: text(name) })
        }
        EventKind::ToolCallChunk { tool_call_name, parent_message_id, .. } => {
            let name = text(tool_call_name).ok_or("the first chunk of a call has to name the tool")?;
            Ok(EventKind::ToolCallStart {
                tool_call_id: id.into(),
                tool_call_name: name,
                parent_message_id: text(parent_message_id),
            })
        }
        _ => Ok(EventKind::ReasoningMessageStart { message_id: id.into(), role: ReasoningRole::Reasoning }),
    }
}

fn delta_of<'a>(chunk: &'a EventKind<'_>) -> Option<&'a str> {
    match chunk {
        EventKind::TextMessageChunk { delta, .. }
        | EventKind::ToolCallChunk { delta, .. }
        | EventKind::ReasoningMessageChunk { delta, .. } => delta.as_deref(),
        _ => None,
    }
}

/// The content that a chunk stands for.
fn content_of<'a>(entity: Entity, id: &'a str, delta: &'a str) -> EventKind<'a> {
    let (id, delta) = (id.into(), delta.into());
    match entity {
        Entity::ToolCall => EventKind::ToolCallArgs { tool_call_id: id, delta },
        Entity::ReasoningMessage => EventKind::ReasoningMessageContent { message_id: id, delta },
        _ => EventKind::TextMessageContent { message_id: id, delta },
    }
}
