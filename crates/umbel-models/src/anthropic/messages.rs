//! Blocks put into messages, and the marks of the provider's cache.
//!
//! The provider keeps what it has read up to a mark, and finds it again if a later request begins with the same blocks;
//! marks themselves do not count. A request has up to four of them: at the end of the tools, of the system prompt, and of
//! the user's last two messages. The last one is what this request adds. The one before stands where the request before
//! ended, since a request ends with the user's message: from its own mark the provider looks back over some twenty blocks
//! only, and one turn with many calls has more.
//!
//! Marks are put between bytes that are kept without them. So two requests of a conversation that grows have the same bytes
//! but for the marks, and nothing is written anew because a mark has moved.

use serde_json::Value;
use umbel_core::history::{BEGIN_TURN, CONTINUE_TURN};

use super::blocks;
use crate::conversation::{NO_ANSWER, Next, orphan_words};
use crate::json;

/// The messages of a request as they are written. Turns alternate and the user has the first and the last one; blocks of the
/// same side run together.
pub(super) struct Messages<'a> {
    out: &'a mut Vec<u8>,
    /// Whose message is open: the model's or the user's.
    by_model: Option<bool>,
    /// The ends of the user's last two messages.
    ends: [Option<usize>; 2],
}

impl<'a> Messages<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, by_model: None, ends: [None, None] }
    }

    /// Writes what stands next.
    pub(super) fn add(&mut self, next: &Next<'_>) {
        match next {
            Next::Piece(fragment, piece) => {
                self.block(fragment.by_model, |out| out.extend_from_slice(fragment.bytes(piece)));
            }
            Next::Unanswered(id, _) => {
                self.block(false, |out| blocks::tool_result(out, id, NO_ANSWER, &[], true));
            }
            Next::Orphan(response) => self.say(&orphan_words(response)),
        }
    }

    fn say(&mut self, words: &str) {
        self.block(false, |out| blocks::text(out, words));
    }

    fn block(&mut self, by_model: bool, write: impl FnOnce(&mut Vec<u8>)) {
        if self.by_model.is_none() && by_model {
            self.say(BEGIN_TURN);
        }
        let same = self.by_model == Some(by_model);
        if same {
            self.out.push(b',');
        } else {
            if self.by_model.is_some() {
                self.out.extend_from_slice(b"]},");
            }
            let role: &[u8] = if by_model { b"assistant" } else { b"user" };
            self.out.extend_from_slice(b"{\"role\":\"");
            self.out.extend_from_slice(role);
            self.out.extend_from_slice(b"\",\"content\":[");
            self.by_model = Some(by_model);
        }
        write(self.out);
        if !by_model {
            let [before, last] = self.ends;
            self.ends = [if same { before } else { last }, Some(self.out.len())];
        }
    }

    /// All is written. A turn of the model that the provider paused is left as the last one: it goes on there.
    pub(super) fn end(mut self, paused: bool, cache: Option<&Value>) {
        match self.by_model {
            None => self.say(BEGIN_TURN),
            Some(true) if !paused => self.say(CONTINUE_TURN),
            Some(_) => {}
        }
        self.out.extend_from_slice(b"]}]");
        for end in self.ends.into_iter().rev().flatten() {
            mark(self.out, end, cache);
        }
    }
}

/// Marks the block that ends there.
pub(super) fn mark(out: &mut Vec<u8>, end: usize, cache: Option<&Value>) {
    let (Some(cache), Some(brace)) = (cache, end.checked_sub(1)) else { return };
    let mut field = b",\"cache_control\":".to_vec();
    json::write(&mut field, cache);
    if out.get(brace) == Some(&b'}') {
        out.splice(brace..brace, field);
    }
}
