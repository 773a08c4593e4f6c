//! An answer as it comes in: what readers see of it at once, and the whole in the end.

use std::collections::VecDeque;

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{
    CallId, Chunk, Content, Error, ErrorKind, FunctionCall, Meta, Object, Part, PartialArg, Response, Result,
    Role,
};

use crate::arguments::Arguments;
use crate::frames::unreadable;

/// What ids begin with that we make up for calls that have none. Sixteen digits follow.
pub(crate) const MINTED_PREFIX: &str = "call_";

/// The most bytes that an answer may have.
const MOST: usize = 256 << 20;

/// Puts an answer together. Parts stand in the order in which they began, whatever order they end in.
///
/// Pieces are told as they come, if anyone reads along. What counts is the whole, which [`Answer::finish`] tells: pieces
/// alone could not say which signature belongs to which thought, or hold two calls apart that come in turns.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Whether anyone reads along.
    pub(crate) live: bool,
    slots: Vec<Slot>,
    ready: VecDeque<Chunk>,
    /// What is told about the answer.
    pub(crate) meta: Meta,
    bytes: usize,
    finished: bool,
}

/// Where a part stands in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(usize);

#[derive(Debug)]
enum Slot {
    Text { text: String, thought: bool, extra: Extra },
    Call { id: CallId, name: SmolStr, args: Arguments, open: bool, extra: Extra },
    Part(Part),
}

/// What a provider wants to see again with a part.
#[derive(Debug, Default)]
struct Extra {
    signature: Option<Box<str>>,
    own: Option<(&'static str, Value)>,
}

impl Extra {
    fn put(self, mut part: Part) -> Part {
        if let Some(signature) = self.signature {
            part = part.with_signature(signature);
        }
        match self.own {
            Some((wire, value)) => part.with_unknown(wire, value),
            None => part,
        }
    }
}

impl Answer {
    pub(crate) fn new(live: bool) -> Self {
        Self { live, ..Self::default() }
    }

    /// A text or a thought begins.
    pub(crate) fn begin_text(&mut self, thought: bool) -> SlotId {
        self.begin(Slot::Text { text: String::new(), thought, extra: Extra::default() })
    }

    /// A call begins. One without an id gets one, which the provider will see again.
    pub(crate) fn begin_call(&mut self, id: &str, name: &str) -> SlotId {
        let minted = || CallId::from(format!("{MINTED_PREFIX}{:016x}", fastrand::u64(..)));
        let id = if id.is_empty() { minted() } else { CallId::from(id) };
        let name = SmolStr::new(name);
        let args = Arguments::default();
        let slot = self.begin(Slot::Call { id, name, args, open: true, extra: Extra::default() });
        self.preview_call(slot, Vec::new(), true);
        slot
    }

    /// A part that is whole.
    pub(crate) fn part(&mut self, part: Part) -> SlotId {
        if self.live {
            self.ready.push_back(Chunk::Delta(Response::new(Content::model(part.clone()))));
        }
        self.begin(Slot::Part(part))
    }

    /// A part that readers have no use for: only `wire` understands it.
    pub(crate) fn opaque(&mut self, wire: &'static str, value: Value) -> SlotId {
        self.hidden(Part::new(umbel_core::Payload::Empty).with_unknown(wire, value))
    }

    /// A part that is whole, of which readers are told with the whole only.
    pub(crate) fn hidden(&mut self, part: Part) -> SlotId {
        self.begin(Slot::Part(part))
    }

    fn begin(&mut self, slot: Slot) -> SlotId {
        self.slots.push(slot);
        SlotId(self.slots.len() - 1)
    }

    /// More of a text, a thought, or the arguments of a call.
    pub(crate) fn push(&mut self, slot: SlotId, more: &str) -> Result<()> {
        self.grow(more.len())?;
        match self.slots.get_mut(slot.0) {
            Some(Slot::Text { text, thought, .. }) if !more.is_empty() => {
                text.push_str(more);
                if self.live {
                    let piece = more.to_owned();
                    self.ready.push_back(if *thought { Chunk::Thought(piece) } else { Chunk::Text(piece) });
                }
            }
            Some(Slot::Call { args, open: true, .. }) => {
                let told = args.push(more);
                if !told.is_empty() {
                    self.preview_call(slot, told, true);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// More of the arguments of a call, by their paths.
    pub(crate) fn push_args(&mut self, slot: SlotId, pieces: Vec<PartialArg>) {
        if let Some(Slot::Call { args, open: true, .. }) = self.slots.get_mut(slot.0) {
            pieces.iter().for_each(|piece| args.put(piece));
            if !pieces.is_empty() {
                self.preview_call(slot, pieces, true);
            }
        }
    }

    /// The answer becomes longer by so many bytes.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        match self.bytes > MOST {
            true => Err(unreadable("the answer is too long")),
            false => Ok(()),
        }
    }

    /// More words or thoughts, for providers that do not number their parts: what is of one kind runs together.
    pub(crate) fn say(&mut self, thought: bool, more: &str) -> Result<()> {
        if more.is_empty() {
            return Ok(());
        }
        let last = self.slots.len().wrapping_sub(1);
        let slot = match self.slots.get(last) {
            Some(Slot::Text { thought: before, extra: Extra { signature: None, .. }, .. })
                if *before == thought =>
            {
                SlotId(last)
            }
            _ => self.begin_text(thought),
        };
        self.push(slot, more)
    }

    /// More of a thought that `wire` wants to see again in this way.
    pub(crate) fn think(
        &mut self,
        more: &str,
        wire: &'static str,
        own: impl FnOnce() -> Value,
    ) -> Result<()> {
        let before = self.slots.len();
        self.say(true, more)?;
        if self.slots.len() > before {
            self.own(SlotId(before), wire, own());
        }
        Ok(())
    }

    /// The signature of a part.
    pub(crate) fn sign(&mut self, slot: SlotId, signature: &str) {
        if let Some(extra) = self.extra(slot).filter(|_| !signature.is_empty()) {
            let so_far = extra.signature.take().unwrap_or_default();
            extra.signature = Some((so_far.into_string() + signature).into());
        }
    }

    /// What `wire` wants to see again with a part, and nobody else understands.
    pub(crate) fn own(&mut self, slot: SlotId, wire: &'static str, value: Value) {
        if let Some(extra) = self.extra(slot) {
            extra.own = Some((wire, value));
        }
    }

    fn extra(&mut self, slot: SlotId) -> Option<&mut Extra> {
        match self.slots.get_mut(slot.0)? {
            Slot::Text { extra, .. } | Slot::Call { extra, .. } => Some(extra),
            Slot::Part(_) => None,
        }
    }

    /// A part is complete.
    pub(crate) fn end(&mut self, slot: SlotId) {
        if let Some(Slot::Call { open: open @ true, .. }) = self.slots.get_mut(slot.0) {
            *open = false;
            self.preview_call(slot, Vec::new(), false);
        }
    }

    fn preview_call(&mut self, slot: SlotId, args: Vec<PartialArg>, more: bool) {
        if let Some(Slot::Call { id, name, .. }) = self.slots.get(slot.0).filter(|_| self.live) {
            let call = FunctionCall {
                id: Some(id.clone()),
                name: name.clone(),
                partial_args: (!args.is_empty()).then_some(args),
                will_continue: Some(more),
                ..FunctionCall::default()
            };
            self.ready.push_back(Chunk::Delta(Response::new(Content::model(Part::call(call)))));
        }
    }

    /// Why the model stopped: in its provider's word, and in ours.
    pub(crate) fn stop(&mut self, word: &str, reason: &str) {
        self.meta.finish_reason = Some(reason.into());
        self.tell("stopReason", word);
    }

    /// Something about the answer for which there is no name of ours.
    pub(crate) fn tell(&mut self, key: &str, value: impl Into<Value>) {
        self.meta.unknown.insert(key.to_owned(), value.into());
    }

    /// A frame that this version does not know is kept as it came, as far as there is room.
    pub(crate) fn keep_unknown(&mut self, frame: &str) {
        const MOST_FRAMES: usize = 64;
        const MOST_BYTES: usize = 16 << 10;
        let Some(value) = Some(frame).filter(|frame| frame.len() <= MOST_BYTES) else { return };
        let Ok(value) = serde_json::from_str::<Value>(value) else { return };
        let kept = self.meta.unknown.entry("unknownFrames").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(kept) = kept
            && kept.len() < MOST_FRAMES
        {
            kept.push(value);
        }
    }

    /// Whether there is nothing in it yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The answer is complete.
    pub(crate) fn finish(&mut self) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        for slot in 0..self.slots.len() {
            self.end(SlotId(slot));
        }
        let parts: Vec<Part> =
            std::mem::take(&mut self.slots).into_iter().filter_map(Slot::into_part).collect();
        let mut meta = std::mem::take(&mut self.meta);
        if let Some(reason) = meta.finish_reason.clone().filter(|reason| reason != "STOP") {
            meta.error_code.get_or_insert(reason);
            if meta.error_message.is_none() {
                meta.error_message = meta.finish_message.take();
            }
        }
        let content = (!parts.is_empty()).then(|| Content::new(Role::Model, parts).into());
        let meta = (meta != Meta::default()).then(|| Box::new(meta));
        let whole = Response { content, partial: Some(false), turn_complete: None, meta };
        self.ready.push_back(Chunk::Complete(whole));
    }

    /// What can be handed on.
    pub(crate) fn take_chunk(&mut self) -> Option<Chunk> {
        self.ready.pop_front()
    }

    /// Whether all of it came. If not, the line was cut.
    pub(crate) fn check_end(&self) -> Result<()> {
        match self.finished {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::StreamCut, "the answer of the model broke off")),
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Slot {
    fn into_part(self) -> Option<Part> {
        match self {
            Self::Text { text, extra: Extra { signature: None, own: None }, .. } if text.is_empty() => None,
            Self::Text { text, thought: true, extra } => Some(extra.put(Part::thought(text))),
            Self::Text { text, extra, .. } => Some(extra.put(Part::text(text))),
            Self::Call { id, name, args, extra, .. } => {
                let call = match args.finish() {
                    Ok(args) => FunctionCall::new(name, args),
                    Err(text) => FunctionCall::new(name, Object::new()).with_unreadable_args(text),
                };
                Some(extra.put(Part::call(call.with_id(id))))
            }
            Self::Part(part) => Some(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chunks(answer: &mut Answer) -> Vec<Chunk> {
        std::iter::from_fn(|| answer.take_chunk()).collect()
    }

    fn whole(answer: &mut Answer) -> Response {
        answer.finish();
        match chunks(answer).pop() {
            Some(Chunk::Complete(whole)) => whole,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_calls_that_come_in_turns_are_held_apart_and_keep_their_order() {
        let mut answer = Answer::new(true);
        answer.say(true, "hm").unwrap();
        let first = answer.begin_call("c1", "get_weather");
        let second = answer.begin_call("c2", "get_weather");
        answer.push(second, "{\"city\":").unwrap();
        answer.push(first, "{\"city\":\"Ro").unwrap();
        answer.push(second, "\"Bern\"}").unwrap();
        answer.push(first, "me\"}").unwrap();
        answer.stop("tool_calls", "STOP");
        let whole = whole(&mut answer);
        let content = serde_json::to_value(whole.content).unwrap();
        assert_eq!(
            content["parts"],
            json!([
                {"text": "hm", "thought": true},
                {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}}},
                {"functionCall": {"id": "c2", "name": "get_weather", "args": {"city": "Bern"}}},
            ])
        );
        assert!(answer.is_finished());
        answer.finish();
        assert_eq!(answer.take_chunk(), None);
    }

    #[test]
    fn nobody_is_told_pieces_who_does_not_read_along() {
        let mut answer = Answer::new(false);
        answer.say(false, "a").unwrap();
        let call = answer.begin_call("", "t");
        answer.push(call, "{\"a\":").unwrap();
        assert_eq!(chunks(&mut answer), []);
        let content = whole(&mut answer).content.unwrap();
        let call = content.calls().next().unwrap();
        assert_eq!(call.unreadable_args(), Some("{\"a\":"));
        assert!(call.id.as_ref().unwrap().as_str().starts_with("call_"));
    }

    #[test]
    fn an_answer_that_is_not_finished_was_cut() {
        let mut answer = Answer::new(true);
        answer.say(false, "a").unwrap();
        assert_eq!(answer.check_end().unwrap_err().kind(), ErrorKind::StreamCut);
        answer.finish();
        answer.check_end().unwrap();
    }

    #[test]
    fn a_bad_end_is_an_error_next_to_what_was_said() {
        let mut answer = Answer::new(false);
        answer.say(false, "a").unwrap();
        answer.stop("length", "MAX_TOKENS");
        answer.keep_unknown("{\"type\":\"new\"}");
        let whole = whole(&mut answer);
        assert_eq!(whole.error_code(), Some("MAX_TOKENS"));
        let meta = whole.meta.unwrap();
        assert_eq!(meta.unknown["stopReason"], "length");
        assert_eq!(meta.unknown["unknownFrames"], json!([{"type": "new"}]));
    }
}
