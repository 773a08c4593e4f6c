//! A conversation that is too long for its model: it is made shorter, and the model is asked again.

use umbel_core::{Error, ErrorKind, ModelErrorKind, ModelRequest, Result};

use super::Turn;
use crate::handlers::{ApproximateTokens, TokenCounter};

/// How often in a row a conversation is made shorter for one answer.
const TIMES: u32 = 3;

/// The conversation was too long for the model.
pub(crate) struct Overflow {
    /// What the model said first.
    error: Error,
    /// How long the last request was, about.
    tokens: u64,
    /// How often in a row.
    times: u32,
}

/// How often in a row the conversation of a turn was too long.
pub(super) fn times(turn: &Turn<'_>) -> u32 {
    turn.overflow.as_ref().map_or(0, |overflow| overflow.times)
}

/// Whether a failure is that the conversation is too long, and someone can make it shorter.
pub(super) fn is_curable(turn: &Turn<'_>, error: &Error) -> bool {
    error.kind() == ErrorKind::Model(ModelErrorKind::ContextTooLong)
        && (turn.shortens || turn.team.extras.compaction.as_ref().is_some_and(|one| one.watches_tokens()))
}

/// Notes that a request was too long. What the model said first is the failure if that was so too often.
pub(super) fn note(turn: &mut Turn<'_>, request: &ModelRequest, error: Error) -> Result<()> {
    let tokens = tokens_of(request);
    match turn.overflow.take() {
        Some(overflow) if overflow.times >= TIMES => return Err(overflow.error),
        Some(mut overflow) => {
            (overflow.tokens, overflow.times) = (tokens, overflow.times + 1);
            turn.overflow = Some(overflow);
        }
        None => turn.overflow = Some(Box::new(Overflow { error, tokens, times: 1 })),
    }
    Ok(())
}

/// What the model said, if a request was too long before and has not become shorter.
pub(super) fn check(turn: &mut Turn<'_>, request: &ModelRequest) -> Result<()> {
    if turn.overflow.as_ref().is_none_or(|overflow| tokens_of(request) < overflow.tokens) {
        return Ok(());
    }
    turn.overflow.take().map_or(Ok(()), |overflow| Err(overflow.error))
}

/// How long a request is, about. Instruction and tools are the same each time.
fn tokens_of(request: &ModelRequest) -> u64 {
    let counter = ApproximateTokens::default();
    request.contents.iter().map(|message| counter.count(message)).sum()
}
