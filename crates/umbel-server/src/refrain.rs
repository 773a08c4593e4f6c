//! The frames of a text that comes piece by piece.

use umbel_agui::{AguiEvent, sse};
use umbel_core::{EventId, Piece};

use crate::place::{Number, Place, write_number};

/// How the next frame of a text is written if nothing comes between: as the last one, but for its number, the bytes that
/// were shown until then, and the words. What an event means, whether it may be said and where it stands is known then.
#[derive(Debug)]
pub(crate) struct Refrain {
    event: EventId,
    is_thought: bool,
    /// Where the place has it.
    at: usize,
    /// The frame without all that.
    frame: Vec<u8>,
    /// Where the number goes, the bytes, and the words.
    number: usize,
    bytes: usize,
    words: usize,
}

impl Refrain {
    /// What follows from a frame that was written. `None` if its event does not go on.
    pub(crate) fn of(piece: &Piece, place: &Place, event: &AguiEvent<'_>) -> Option<Self> {
        let at = place.shown.iter().position(|shown| shown.event == piece.event)?;
        let (mut number, mut bytes, mut words) = (0, 0, 0);
        let mut frame = Vec::with_capacity(192);
        let id = |out: &mut Vec<u8>| {
            place.write_with(out, |out, grows| match grows {
                Number::Frame(_) => number = out.len(),
                Number::Text(shown) if shown.event == piece.event && !piece.is_thought => bytes = out.len(),
                Number::Thoughts(shown) if shown.event == piece.event && piece.is_thought => {
                    bytes = out.len();
                }
                Number::Text(shown) => write_number(out, shown.text as u64),
                Number::Thoughts(shown) => write_number(out, shown.thoughts as u64),
            });
        };
        let goes_on = sse::write_frame_of_words(&mut frame, id, event, |out| words = out.len());
        let (event, is_thought) = (piece.event.clone(), piece.is_thought);
        goes_on.ok()?.then_some(Self { event, is_thought, at, frame, number, bytes, words })
    }

    /// Whether that piece is next.
    pub(crate) fn fits(&self, piece: &Piece) -> bool {
        self.is_thought == piece.is_thought && self.event == piece.event
    }

    /// Adds the next frame, and takes it into the place.
    pub(crate) fn write(&self, text: &str, place: &mut Place, out: &mut Vec<u8>) -> serde_json::Result<()> {
        place.frame += 1;
        let bytes = place.shown.get_mut(self.at).map_or(0, |shown| {
            let bytes = if self.is_thought { &mut shown.thoughts } else { &mut shown.text };
            *bytes += text.len();
            *bytes as u64
        });
        let part = |from: usize, to: usize| self.frame.get(from..to).unwrap_or_default();
        out.reserve(self.frame.len() + text.len() + 32);
        out.extend_from_slice(part(0, self.number));
        write_number(out, place.frame);
        out.extend_from_slice(part(self.number, self.bytes));
        write_number(out, bytes);
        out.extend_from_slice(part(self.bytes, self.words));
        sse::write_text(out, text)?;
        out.extend_from_slice(part(self.words, self.frame.len()));
        Ok(())
    }
}
