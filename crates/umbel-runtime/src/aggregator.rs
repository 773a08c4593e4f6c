//! Folds the chunks of a model's answer into one message.
//!
//! Parts keep the order they came in. Text runs together as long as it is of one kind, streamed arguments are put
//! together by their paths, and what is not text closes the text before it.

use std::sync::Arc;

use umbel_core::{CallId, Chunk, Content, FunctionCall, Ids, Meta, Object, Part, Payload, Response, Role};

/// Room for the first words of a text, in bytes: one that comes in small pieces does not have to move so often.
const FIRST_TEXT: usize = 256;

/// Folds the chunks of one answer.
#[derive(Debug, Default)]
pub struct Aggregator {
    /// A streamed call reserves its place before it is complete.
    parts: Vec<Option<Part>>,
    text: String,
    thought: Option<bool>,
    signature: Option<Box<str>>,
    open: Option<OpenCall>,
    meta: Option<Box<Meta>>,
    started: bool,
}

#[derive(Debug)]
struct OpenCall {
    place: usize,
    id: Option<CallId>,
    name: smol_str::SmolStr,
    args: Object,
    signature: Option<Box<str>>,
}

impl Aggregator {
    /// Nothing folded yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a chunk. Calls that came without an id get one, in the chunk too.
    pub fn fold(&mut self, chunk: &mut Response, ids: &dyn Ids) {
        self.started = true;
        match &chunk.meta {
            Some(meta) => self.note(meta),
            // What went wrong before is no longer what went wrong last.
            None => self.meta.iter_mut().for_each(|meta| meta.clear_error()),
        }
        let Some(content) = &mut chunk.content else { return };
        if content.parts.iter().any(|part| part.as_call().is_some()) {
            // Ids are written into the chunk, so it must be our own.
            for part in &mut Arc::make_mut(content).parts {
                self.add(part, ids);
            }
        } else {
            for part in &content.parts {
                self.add_plain(part);
            }
        }
    }

    /// Adds a chunk and gives it back as a preview, if one is wanted.
    pub(crate) fn fold_chunk(&mut self, chunk: Chunk, ids: &dyn Ids, preview: bool) -> Option<Response> {
        let mut piece = match chunk {
            Chunk::Text(text) => {
                self.fold_text(&text, false);
                preview.then(|| Response::text(text))?
            }
            Chunk::Thought(text) => {
                self.fold_text(&text, true);
                preview.then(|| Response::new(Content::model(Part::thought(text))))?
            }
            other => {
                let mut piece = other.into_delta()?;
                self.fold(&mut piece, ids);
                preview.then_some(piece)?
            }
        };
        piece.partial = Some(true);
        Some(piece)
    }

    /// Adds words, or more of a thought.
    pub fn fold_text(&mut self, text: &str, thought: bool) {
        self.started = true;
        self.add_text(text, thought.then_some(true));
    }

    /// The whole message, marked as complete. `None` if nothing came.
    pub fn close(&mut self) -> Option<Response> {
        if !self.started {
            return None;
        }
        self.close_text();
        self.close_call();
        let mut whole = std::mem::take(self);
        let parts = without_repeats(whole.parts.drain(..).flatten());
        let content = (!parts.is_empty()).then(|| Arc::new(Content { role: Some(Role::Model), parts }));
        let mut meta = whole.meta;
        if let Some(meta) = &mut meta {
            if let Some(reason) = meta.finish_reason.clone().filter(|reason| reason != "STOP") {
                meta.error_code = Some(reason);
                meta.error_message = meta.finish_message.take();
            }
            meta.finish_message = None;
        }
        let meta = meta.filter(|meta| **meta != Meta::default());
        Some(Response { content, partial: Some(false), turn_complete: None, meta })
    }

    /// What the last chunk says counts; what it does not mention stays.
    fn note(&mut self, meta: &Meta) {
        let known = self.meta.get_or_insert_default();
        macro_rules! keep {
            ($($field:ident),*) => {
                $(if meta.$field.is_some() { known.$field.clone_from(&meta.$field); })*
            };
        }
        keep!(usage_metadata, grounding_metadata, citation_metadata, finish_reason);
        known.model_version.clone_from(&meta.model_version);
        known.finish_message.clone_from(&meta.finish_message);
        known.error_code.clone_from(&meta.error_code);
        known.error_message.clone_from(&meta.error_message);
    }

    fn add(&mut self, part: &mut Part, ids: &dyn Ids) {
        let signature = part.signature().map(Box::from);
        let Some(call) = part.as_call_mut() else { return self.add_plain(part) };
        let streams = call.partial_args.as_ref().is_some_and(|args| !args.is_empty())
            || call.will_continue.is_some()
            || (self.open.is_some() && call.args.as_ref().is_none_or(|args| args.is_empty()));
        if streams {
            self.stream_call(call, signature, ids);
            return;
        }
        self.close_text();
        self.close_call();
        if call.name.is_empty() {
            return;
        }
        if call.id.as_ref().is_none_or(CallId::is_empty) {
            call.id = Some(ids.call());
        }
        self.parts.push(Some(part.clone()));
    }

    fn add_plain(&mut self, part: &Part) {
        match &part.payload {
            Payload::Text(text) if !text.is_empty() => {
                self.add_text(text, part.thought_mark());
                if self.signature.is_none() {
                    self.signature = part.signature().map(Box::from);
                }
            }
            _ => {
                self.close_text();
                self.parts.push(Some(part.clone()));
            }
        }
    }

    fn add_text(&mut self, text: &str, thought: Option<bool>) {
        if !self.text.is_empty() && self.thought != thought {
            self.close_text();
        }
        if self.text.is_empty() {
            self.thought = thought;
            self.text.reserve(FIRST_TEXT);
        }
        self.text.push_str(text);
    }

    fn close_text(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let mut text = std::mem::take(&mut self.text);
        text.shrink_to_fit();
        let mut part = if self.thought == Some(true) { Part::thought(text) } else { Part::text(text) };
        if let Some(signature) = self.signature.take() {
            part = part.with_signature(signature);
        }
        self.thought = None;
        self.parts.push(Some(part));
    }

    fn stream_call(&mut self, call: &mut FunctionCall, signature: Option<Box<str>>, ids: &dyn Ids) {
        let other_name = |open: &OpenCall| !open.name.is_empty() && open.name != call.name;
        if !call.name.is_empty() && self.open.as_ref().is_some_and(other_name) {
            self.close_text();
            self.close_call();
        }
        if self.open.is_none() {
            self.close_text();
            let id = call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| ids.call());
            let place = self.parts.len();
            self.parts.push(None);
            let name = smol_str::SmolStr::default();
            self.open = Some(OpenCall { place, id: Some(id), name, args: Object::new(), signature: None });
        }
        let Some(open) = &mut self.open else { return };
        if !call.name.is_empty() {
            open.name = call.name.clone();
        }
        if call.id.as_ref().is_none_or(CallId::is_empty) {
            call.id.clone_from(&open.id);
        }
        if open.signature.is_none() {
            open.signature = signature;
        }
        for arg in call.partial_args.iter().flatten() {
            arg.put_into(&mut open.args);
        }
        if call.will_continue != Some(true) {
            self.close_text();
            self.close_call();
        }
    }

    fn close_call(&mut self) {
        let Some(open) = self.open.take().filter(|open| !open.name.is_empty()) else { return };
        let mut call = FunctionCall::new(open.name, open.args);
        call.id = open.id;
        let mut part = Part::call(call);
        if let Some(signature) = open.signature {
            part = part.with_signature(signature);
        }
        if let Some(place) = self.parts.get_mut(open.place) {
            *place = Some(part);
        }
    }
}

/// The parts without calls that repeat an id of the model.
fn without_repeats(parts: impl Iterator<Item = Part>) -> umbel_core::Parts {
    let mut seen: Vec<CallId> = Vec::new();
    let first = |part: &Part| {
        let id = part.as_call().and_then(|call| call.id.as_ref()).filter(|id| !id.is_client());
        let repeats = id.is_some_and(|id| seen.contains(id));
        seen.extend(id.filter(|_| !repeats).cloned());
        !repeats
    };
    parts.filter(first).collect()
}
