//! The messages of a request in the order in which a provider takes them.
//!
//! Providers refuse a call that is not answered right behind it, and an answer to a call that nobody made. Conversations
//! that were cut down, cut short or brought along from elsewhere have both. They are repaired here, as they are written:
//! the log stays as it is.

use std::borrow::Cow;
use std::sync::Arc;

use smol_str::SmolStr;
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
    let mut open: Vec<(CallId, SmolStr)> = Vec::new();
    for content in history {
        let fragment = writing.message(content, &write);
        if fragment.by_model {
            close(&mut open, &mut next);
        }
        let is_answer = |piece: &&Piece| piece.answers.is_some();
        for piece in fragment.pieces.iter().filter(is_answer) {
            let answered = open.iter().position(|(id, _)| Some(id) == piece.answers.as_ref());
            match answered {
                Some(at) => {
                    open.remove(at);
                    next(Next::Piece(&fragment, piece));
                }
                None => orphan(content, piece, &mut next),
            }
        }
        for piece in fragment.pieces.iter().filter(|piece| !is_answer(piece)) {
            if !fragment.by_model {
                close(&mut open, &mut next);
            }
            next(Next::Piece(&fragment, piece));
            open.extend(piece.calls.iter().cloned());
        }
    }
    close(&mut open, &mut next);
}

/// Says of each open call that it has no answer.
fn close(open: &mut Vec<(CallId, SmolStr)>, next: &mut impl FnMut(Next<'_>)) {
    for (id, name) in open.drain(..) {
        next(Next::Unanswered(&id, &name));
    }
}

fn orphan(content: &Arc<Content>, piece: &Piece, next: &mut impl FnMut(Next<'_>)) {
    let is_this = |response: &&FunctionResponse| match (&response.id, &piece.answers) {
        (Some(id), Some(answered)) => id == answered,
        // One without an id goes by the name of its tool.
        (None, Some(answered)) => response.name == answered.as_str(),
        _ => false,
    };
    let response = content.responses().find(is_this);
    if let Some(response) = response {
        next(Next::Orphan(response));
    }
}

/// An answer whose call is not there, in words.
pub(crate) fn orphan_words(response: &FunctionResponse) -> String {
    format!("The tool `{}` answered: {}", response.name, crate::json::text(&response.response))
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
