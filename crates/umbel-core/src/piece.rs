//! A piece of text on its way to readers.

use std::sync::Arc;

use crate::content::Content;
use crate::event::{Event, Source};
use crate::id::{EventId, RunId};
use crate::part::Part;

/// More words of an event in the making: what a preview says, without an event around it. An answer comes in many of them,
/// and most readers need nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The event in the making.
    pub event: EventId,
    /// Who speaks.
    pub source: Arc<Source>,
    /// The words.
    pub text: String,
    /// Whether they are part of a thought.
    pub is_thought: bool,
}

impl Piece {
    /// The same as a preview.
    pub fn into_event(self, run: RunId) -> Event {
        let part = if self.is_thought { Part::thought(self.text) } else { Part::text(self.text) };
        let content = Some(Arc::new(Content::model(part)));
        Event { id: self.event, content, partial: Some(true), ..Event::new(run, self.source) }
    }
}
