//! The messages of a request in the order in which a provider takes them.
//!
//! Providers refuse a call that is not answered right behind it, and an answer to a call that nobody made. Conversations
//! that were cut down, cut short or brought along from elsewhere have both. They are repaired here, as they are written:
//! the log stays as it is.

use smol_str::SmolStr;
use std::borrow::Cow;
use umbel_core::{CallId, Content, FunctionResponse, History, Part, Payload};

use crate::fragments::{Fragment, Piece, Writing};

/// What a call is answered that has no answer.
pub(crate) const NO_ANSWER: &str =
    "This call has no answer: it was cut short, or its answer is still to come.";

/// What stands next in a conversation.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// A value of a message.
    Piece(&'a Fragment, &'a Piece),
    /// A call that nobody answered.
    Unanswered(&'a CallId, &'a SmolStr),
    /// An answer to a call that is not there. It can be told as words.
    Orphan(&'a FunctionResponse),
}

/// Goes through a conversation, repaired. `write` makes the fragment of a message that was not sent before.
pub(crate) fn walk(
    history: &History,
    writing: &mut Writing<'_>,
    write: impl Fn(&Content) -> Fragment,
    mut next: impl FnMut(Next<'_>),
) {
    let mut state = Walk::default();
    for content in history {
        let fragment = writing.message(content, &write);
        if fragment.by_model {
            state.close(&mut next);
        }
        let is_answer = |piece: &&Piece| piece.answers.is_some();
        for (piece, response) in fragment.pieces.iter().filter(is_answer).zip(content.responses()) {
            let answered = state.open.iter().position(|(id, _)| Some(id) == piece.answers.as_ref());
            match answered {
                Some(at) => {
                    state.open.remove(at);
                    next(Next::Piece(&fragment, piece));
                }
                None => state.orphans.push(response.clone()),
            }
        }
        for piece in fragment.pieces.iter().filter(|piece| !is_answer(piece)) {
            if !fragment.by_model {
                state.close(&mut next);
            }
            next(Next::Piece(&fragment, piece));
            state.open.extend(piece.calls.iter().cloned());
        }
    }
    state.close(&mut next);
}

/// What is still to be settled.
#[derive(Default)]
struct Walk {
    open: Vec<(CallId, SmolStr)>,
    /// Nothing may stand between a call and its answer, so these wait until all calls are answered.
    orphans: Vec<FunctionResponse>,
}

impl Walk {
    /// Says of each open call that it has no answer, and tells the answers that belong to none.
    fn close(&mut self, next: &mut impl FnMut(Next<'_>)) {
        for (id, name) in self.open.drain(..) {
            next(Next::Unanswered(&id, &name));
        }
        for response in self.orphans.drain(..) {
            next(Next::Orphan(&response));
        }
    }
}

/// An answer whose call is not there, in words.
pub(crate) fn orphan_words(response: &FunctionResponse) -> String {
    format!("The tool `{}` answered: {}", response.name, crate::json::text(&response.response))
}

/// Media that a tool answered with. Where an answer is text, they follow it as a message.
pub(crate) fn response_media(response: &FunctionResponse) -> Vec<Part> {
    let parts = response.unknown.get("parts").cloned().unwrap_or_default();
    serde_json::from_value(parts).unwrap_or_default()
}

/// A part as words, if that is what it is or can be.
pub(crate) fn words(part: &Part) -> Option<Cow<'_, str>> {
    match &part.payload {
        Payload::Text(text) => Some(Cow::Borrowed(text)),
        Payload::Code(code) => {
            let language = code.language.as_deref().unwrap_or_default().to_lowercase();
            let code = code.code.as_deref().unwrap_or_default();
            Some(Cow::Owned(format!("\n```{language}\n{code}\n```\n")))
        }
        Payload::CodeResult(result) => {
            let output = result.output.as_deref().unwrap_or_default();
            Some(Cow::Owned(format!("\n```\n{output}\n```\n")))
        }
        _ => None,
    }
}
