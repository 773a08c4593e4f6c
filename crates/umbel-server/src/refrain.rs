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
        let (mut number, mut bytes, mut words) = (0, 0, None);
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
        sse::write_frame_of_words(&mut frame, id, event, |out| words = Some(out.len())).ok()?;
        let (event, is_thought) = (piece.event.clone(), piece.is_thought);
        words.map(|words| Self { event, is_thought, at, frame, number, bytes, words })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use umbel_agui::{By, EventKind};
    use umbel_core::Source;

    use super::*;
    use crate::place::{Of, Part};

    fn event(is_thought: bool, words: &str) -> AguiEvent<'_> {
        let delta = words.into();
        let kind = match is_thought {
            true => EventKind::ReasoningMessageContent { message_id: "e1:thoughts".into(), delta },
            false => EventKind::TextMessageContent { message_id: "e1".into(), delta },
        };
        AguiEvent { subagent_run_id: Some("sub".into()), ..AguiEvent::from(kind) }
    }

    fn piece(is_thought: bool, text: &str) -> Piece {
        let source = Arc::new(Source::new("a"));
        Piece { event: "e1".into(), source, text: text.to_owned(), is_thought }
    }

    #[test]
    fn a_frame_of_a_text_that_goes_on_is_written_as_any_frame() {
        for is_thought in [false, true] {
            let of = Of { event: "e1".into(), by: By { author: "a".into(), branch: Some("b.c".into()) } };
            let mut place = Place { stream: 7, round: 2, events: 3, ..Place::default() };
            let other = Of { event: "e0".into(), by: By::default() };
            place.pass(&event(false, "other"), Some(&other), Part::Preview);
            place.pass(&event(is_thought, "first"), Some(&of), Part::Preview);
            let first = piece(is_thought, "first");
            let refrain = Refrain::of(&first, &place, &event(is_thought, "first")).unwrap();
            let mut same = place.clone();
            for words in [" more", "\"quoted\"\n", "", "ä", &"long ".repeat(300)] {
                let (mut quick, mut plain) = (Vec::new(), Vec::new());
                refrain.write(words, &mut place, &mut quick).unwrap();
                same.pass(&event(is_thought, words), Some(&of), Part::Preview);
                sse::write_frame(&mut plain, |out| same.write(out), &event(is_thought, words)).unwrap();
                assert_eq!(String::from_utf8(quick).unwrap(), String::from_utf8(plain).unwrap());
                assert_eq!(place, same);
            }
        }
    }

    #[test]
    fn only_more_of_the_same_goes_on() {
        let mut place = Place::default();
        let of = Of { event: "e1".into(), by: By::default() };
        let end = EventKind::TextMessageEnd { message_id: "e1".into() }.into();
        assert!(
            Refrain::of(&piece(false, "a"), &place, &event(false, "a")).is_none(),
            "nothing was shown of it"
        );
        place.pass(&event(false, "a"), Some(&of), Part::Preview);
        assert!(Refrain::of(&piece(false, "a"), &place, &end).is_none(), "an end adds no words");
        let refrain = Refrain::of(&piece(false, "a"), &place, &event(false, "a")).unwrap();
        assert!(refrain.fits(&piece(false, "b")) && !refrain.fits(&piece(true, "b")));
        assert!(!refrain.fits(&Piece { event: "e2".into(), ..piece(false, "b") }));
    }
}
