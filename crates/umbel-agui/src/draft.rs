//! An event in the making: what a front end has seen of it, and how it is said piece by piece.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use smallvec::SmallVec;
use smol_str::SmolStr;
use umbel_core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use umbel_core::{CallId, EventId, FunctionCall, Part, Source};

use crate::arguments::ArgumentText;
use crate::cast::Cast;
use crate::event::{AguiEvent, EncryptedSubtype, EventKind, ReasoningRole};
use crate::messages::reasoning_id;
use crate::preview::Preview;
use crate::translate::SET_MODEL_RESPONSE;

/// How far the preview of an event has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The event.
    pub event: EventId,
    /// Bytes of its text.
    pub text: usize,
    /// Bytes of its thoughts.
    pub thoughts: usize,
    /// Whether there is a message with thoughts, be it empty.
    pub thinks: bool,
    /// What was left open.
    pub open: Open,
    /// Calls whose arguments come piece by piece, in order, with how many bytes of them.
    pub calls: SmallVec<[(CallId, usize); 1]>,
    /// Whose it is.
    pub by: By,
    /// In how many events it was told with it that this one speaks now: who is done by that, and that it begins.
    pub announced: u32,
}

/// Who says something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// The agent; empty for the one at the top.
    pub author: SmolStr,
    /// Its branch.
    pub branch: Option<SmolStr>,
}

/// What is being said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    /// Nothing.
    #[default]
    Nothing,
    /// Text.
    Text,
    /// Thoughts, between two messages of them.
    Span,
    /// A thought.
    Thought,
}

/// An event in the making.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) shown: Shown,
    pub(crate) source: Arc<Source>,
    pub(crate) owner: Option<SmolStr>,
    pub(crate) calls: SmallVec<[DraftCall; 1]>,
    /// What was previewed here, to be held against the whole.
    pub(crate) preview: Preview,
    /// How many messages it has, and as which of all that the front end saw begin its first and its last began.
    pub(crate) messages: u32,
    pub(crate) first: Option<u32>,
    pub(crate) last: u32,
}

impl Draft {
    /// Takes in what messages it has by now. `begun` counts all that began.
    pub(crate) fn count_messages(&mut self, calls: bool, begun: &mut u32) {
        let Shown { text, thinks, open, .. } = &self.shown;
        let speaks = *text > 0 || *open == Open::Text || calls || !self.calls.is_empty();
        let messages = u32::from(*thinks) + u32::from(speaks);
        if messages > self.messages {
            *begun += 1;
            self.messages = messages;
            self.first.get_or_insert(*begun);
            self.last = *begun;
        }
    }
}

/// A call whose arguments come piece by piece.
#[derive(Debug)]
pub(crate) struct DraftCall {
    pub(crate) id: CallId,
    pub(crate) text: ArgumentText,
}

/// Whether all that was previewed of an event is in it. A model may take back what it said, and so may a handler.
pub(crate) fn is_preview_of(draft: &Draft, parts: &[Part]) -> bool {
    let fits = |streamed: &DraftCall| {
        let mut calls = parts.iter().filter_map(Part::as_call);
        let call = calls.find(|call| call.id.as_ref() == Some(&streamed.id));
        call.is_some_and(|call| streamed.text.begins(call.args.as_deref()))
    };
    draft.preview.begins(parts) && draft.calls.iter().all(fits)
}

/// Whether more of a call's arguments is to come.
pub(crate) fn streams(call: &FunctionCall) -> bool {
    call.id.is_some() && (call.partial_args.is_some() || call.will_continue.is_some())
}

pub(crate) fn owned_by<'a>(draft: &'a Draft, kind: EventKind<'a>) -> AguiEvent<'a> {
    AguiEvent { subagent_run_id: draft.owner.as_deref().map(Cow::Borrowed), ..AguiEvent::from(kind) }
}

pub(crate) fn new_draft(event: &EventId, source: &Arc<Source>, owner: Option<SmolStr>) -> Draft {
    Draft {
        shown: Shown { event: event.clone(), ..Shown::default() },
        source: source.clone(),
        owner,
        calls: SmallVec::new(),
        preview: Preview::default(),
        messages: 0,
        first: None,
        last: 0,
    }
}

/// Brings a draft to where a front end stopped reading. Says how what is open began.
pub(crate) fn reopen(draft: &mut Draft, shown: Shown, sink: &mut impl FnMut(AguiEvent<'_>)) {
    let calls = shown
        .calls
        .iter()
        .map(|(id, bytes)| DraftCall { id: id.clone(), text: ArgumentText::written(*bytes) });
    draft.calls = calls.collect();
    match shown.open {
        Open::Nothing => {}
        Open::Text => open_text(draft, sink),
        Open::Span => open_span(draft, sink),
        Open::Thought => open_thought(draft, sink),
    }
    for call in &draft.calls {
        sink(owned_by(draft, call_start(draft, &call.id, "")));
    }
    draft.shown = shown;
}

pub(crate) fn open_text(draft: &mut Draft, sink: &mut impl FnMut(AguiEvent<'_>)) {
    if draft.shown.open != Open::Text {
        close(draft, sink);
        draft.shown.open = Open::Text;
        let message_id = Cow::Borrowed(draft.shown.event.as_str());
        sink(owned_by(draft, EventKind::TextMessageStart { message_id, role: None, name: None }));
    }
}

pub(crate) fn open_span(draft: &mut Draft, sink: &mut impl FnMut(AguiEvent<'_>)) {
    if draft.shown.open != Open::Span {
        close(draft, sink);
        draft.shown.open = Open::Span;
        let id = reasoning_id(&draft.shown.event);
        sink(owned_by(draft, EventKind::ReasoningStart { message_id: Cow::Borrowed(&id) }));
    }
}

pub(crate) fn open_thought(draft: &mut Draft, sink: &mut impl FnMut(AguiEvent<'_>)) {
    if draft.shown.open != Open::Thought {
        open_span(draft, sink);
        draft.shown.open = Open::Thought;
        draft.shown.thinks = true;
        let (id, role) = (reasoning_id(&draft.shown.event), ReasoningRole::Reasoning);
        sink(owned_by(draft, EventKind::ReasoningMessageStart { message_id: Cow::Borrowed(&id), role }));
    }
}

pub(crate) fn say_text(draft: &mut Draft, text: &str, sink: &mut impl FnMut(AguiEvent<'_>)) {
    open_text(draft, sink);
    draft.shown.text += text.len();
    let message_id = Cow::Borrowed(draft.shown.event.as_str());
    sink(owned_by(draft, EventKind::TextMessageContent { message_id, delta: Cow::Borrowed(text) }));
}

pub(crate) fn say_thought(draft: &mut Draft, text: &str, sink: &mut impl FnMut(AguiEvent<'_>)) {
    open_thought(draft, sink);
    draft.shown.thoughts += text.len();
    let id = reasoning_id(&draft.shown.event);
    let (message_id, delta) = (Cow::Borrowed(id.as_str()), Cow::Borrowed(text));
    sink(owned_by(draft, EventKind::ReasoningMessageContent { message_id, delta }));
}

/// Ends what is being said.
pub(crate) fn close(draft: &mut Draft, sink: &mut impl FnMut(AguiEvent<'_>)) {
    let open = std::mem::take(&mut draft.shown.open);
    if open == Open::Text {
        let message_id = Cow::Borrowed(draft.shown.event.as_str());
        sink(owned_by(draft, EventKind::TextMessageEnd { message_id }));
    }
    if matches!(open, Open::Thought | Open::Span) {
        let id = reasoning_id(&draft.shown.event);
        let message_id = || Cow::Borrowed(id.as_str());
        if open == Open::Thought {
            sink(owned_by(draft, EventKind::ReasoningMessageEnd { message_id: message_id() }));
        }
        sink(owned_by(draft, EventKind::ReasoningEnd { message_id: message_id() }));
    }
}

pub(crate) fn encrypted(
    draft: &Draft,
    part: &Part,
    subtype: EncryptedSubtype,
    entity: &str,
    sink: &mut impl FnMut(AguiEvent<'_>),
) {
    let Some(signature) = part.signature() else { return };
    let (entity_id, encrypted_value) = (Cow::Borrowed(entity), Cow::Borrowed(signature));
    sink(owned_by(draft, EventKind::ReasoningEncryptedValue { subtype, entity_id, encrypted_value }));
}

pub(crate) fn start_call(
    draft: &Draft,
    call: &FunctionCall,
    id: &CallId,
    cast: &Cast,
    sink: &mut impl FnMut(AguiEvent<'_>),
) {
    let foretold = cast.predictions.iter().filter(|one| one.tool == call.name);
    let foretold: Vec<Value> = foretold
        .map(|one| {
            serde_json::json!({"state_key": one.state_key, "tool": one.tool, "tool_argument": one.argument})
        })
        .collect();
    if !foretold.is_empty() {
        let value = Cow::Owned(Value::Array(foretold));
        sink(EventKind::Custom { name: Cow::Borrowed("PredictState"), value }.into());
    }
    sink(owned_by(draft, call_start(draft, id, &call.name)));
}

pub(crate) fn call_start<'a>(draft: &'a Draft, id: &'a CallId, name: &'a str) -> EventKind<'a> {
    EventKind::ToolCallStart {
        tool_call_id: Cow::Borrowed(id.as_str()),
        tool_call_name: Cow::Borrowed(name),
        parent_message_id: Some(Cow::Borrowed(draft.shown.event.as_str())),
    }
}

/// Says a call, or what was not said of it yet.
pub(crate) fn say_call(
    draft: &Draft,
    call: &FunctionCall,
    id: &CallId,
    cast: &Cast,
    sink: &mut impl FnMut(AguiEvent<'_>),
) {
    let args = call.args.as_deref().and_then(|args| serde_json::to_string(args).ok());
    let args = args.unwrap_or_else(|| "{}".to_owned());
    let tool_call_id = || Cow::Borrowed(id.as_str());
    let rest = match draft.calls.iter().find(|streamed| streamed.id == *id) {
        Some(streamed) => Cow::Owned(streamed.text.rest(call.args.as_deref())),
        None => {
            start_call(draft, call, id, cast, sink);
            Cow::Borrowed(args.as_str())
        }
    };
    if !rest.is_empty() {
        sink(owned_by(draft, EventKind::ToolCallArgs { tool_call_id: tool_call_id(), delta: rest }));
    }
    sink(owned_by(draft, EventKind::ToolCallEnd { tool_call_id: tool_call_id() }));
}

/// Says more of the arguments of a call.
pub(crate) fn stream_call(
    draft: &mut Draft,
    call: &FunctionCall,
    cast: &Cast,
    knows_interrupts: bool,
    sink: &mut impl FnMut(AguiEvent<'_>),
) {
    let Some(id) = &call.id else { return };
    let asks = [REQUEST_CONFIRMATION, REQUEST_INPUT, REQUEST_CREDENTIAL].contains(&call.name.as_str());
    if (asks && knows_interrupts) || call.name == SET_MODEL_RESPONSE {
        return;
    }
    close(draft, sink);
    let at = match draft.calls.iter().position(|streamed| streamed.id == *id) {
        Some(at) => at,
        // Until it has a name there is nothing to show.
        None if call.name.is_empty() => return,
        None => {
            start_call(draft, call, id, cast, sink);
            draft.calls.push(DraftCall { id: id.clone(), text: ArgumentText::default() });
            draft.calls.len() - 1
        }
    };
    let mut delta = String::new();
    if let Some(streamed) = draft.calls.get_mut(at) {
        for piece in call.partial_args.iter().flatten() {
            streamed.text.add(piece, &mut delta);
        }
    }
    if !delta.is_empty() {
        let (tool_call_id, delta) = (Cow::Borrowed(id.as_str()), Cow::Owned(delta));
        sink(owned_by(draft, EventKind::ToolCallArgs { tool_call_id, delta }));
    }
}

/// Ends calls that never came whole.
pub(crate) fn end_calls(draft: &Draft, sink: &mut impl FnMut(AguiEvent<'_>)) {
    for call in &draft.calls {
        sink(owned_by(draft, EventKind::ToolCallEnd { tool_call_id: Cow::Borrowed(call.id.as_str()) }));
    }
}
