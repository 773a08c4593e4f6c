//! Places in a run's stream: the ids of its frames.
//!
//! An id says which frame it is, and what of the log was told when it was sent. While a run's frames are at hand, the first
//! is enough to go on; later the second is, since what was told can be made from the log again.

use std::io::Write;
use std::str::FromStr;

use smallvec::SmallVec;
use umbel_agui::{AguiEvent, EventKind, Open, Shown, event_of};
use umbel_core::EventId;

/// What a frame tells of an event of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A part of it as it is there.
    Whole,
    /// A part of it before it is there.
    Preview,
    /// Nothing: it stands for itself, and may come again.
    Aside,
}

/// A place in a run's stream, behind one of its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Tells the streams of one run id apart.
    pub(crate) stream: u32,
    /// The frame's number.
    pub(crate) frame: u64,
    /// Whole events that were told to their end; the beginning of the run counts as one.
    pub(crate) events: u32,
    /// Frames of the next one.
    pub(crate) frames: u32,
    /// How much was previewed of events that are still to come.
    pub(crate) shown: SmallVec<[Shown; 1]>,
}

impl Place {
    /// Takes in that a frame follows. `of` is the event of the log that it tells of.
    pub(crate) fn pass(&mut self, event: &AguiEvent<'_>, of: Option<&EventId>, part: Part) {
        self.frame += 1;
        if part == Part::Aside {
            return;
        }
        if let (Some(of), true) = (of, announces(&event.kind)) {
            return self.announce(of, &event.kind);
        }
        if part == Part::Whole {
            self.frames += 1;
            return;
        }
        let open = |shown: &mut Shown, open: Open| shown.open = open;
        match &event.kind {
            EventKind::TextMessageStart { message_id, .. } => {
                self.shown_of(message_id, |shown| open(shown, Open::Text));
            }
            EventKind::TextMessageContent { message_id, delta } => {
                self.shown_of(message_id, |shown| shown.text += delta.len());
            }
            EventKind::ReasoningStart { message_id } | EventKind::ReasoningMessageEnd { message_id } => {
                self.shown_of(message_id, |shown| open(shown, Open::Span));
            }
            EventKind::ReasoningMessageStart { message_id, .. } => {
                self.shown_of(message_id, |shown| open(shown, Open::Thought));
            }
            EventKind::ReasoningMessageContent { message_id, delta } => {
                self.shown_of(message_id, |shown| shown.thoughts += delta.len());
            }
            EventKind::TextMessageEnd { message_id } | EventKind::ReasoningEnd { message_id } => {
                self.shown_of(message_id, |shown| open(shown, Open::Nothing));
            }
            EventKind::ToolCallStart { tool_call_id, parent_message_id: Some(parent), .. } => {
                self.shown_of(parent, |shown| shown.calls.push(((&**tool_call_id).into(), 0)));
            }
            EventKind::ToolCallEnd { tool_call_id } => {
                // It will never be there.
                let shown = self.shown.iter_mut();
                shown.for_each(|shown| shown.calls.retain(|(id, _)| *id != **tool_call_id));
            }
            EventKind::ToolCallArgs { tool_call_id, delta } => {
                let mut calls = self.shown.iter_mut().rev().flat_map(|shown| shown.calls.iter_mut().rev());
                if let Some((_, bytes)) = calls.find(|(id, _)| *id == **tool_call_id) {
                    *bytes += delta.len();
                }
            }
            _ => {}
        }
    }

    /// Whether a client that has come to `seen` has seen the frame that was passed last.
    pub(crate) fn is_before(&self, seen: &Self, event: &EventKind<'_>, of: Option<&EventId>) -> bool {
        if self.events != seen.events {
            return self.events < seen.events;
        }
        match of.filter(|_| announces(event)) {
            Some(of) => {
                let count = |place: &Self| place.find(of).and_then(|shown| Some(shown.announced.as_ref()?.1));
                count(self) <= count(seen)
            }
            None => self.frames <= seen.frames,
        }
    }

    fn announce(&mut self, of: &EventId, event: &EventKind<'_>) {
        let name = match event {
            EventKind::SubagentStarted { name, .. } => Some(&**name),
            EventKind::StepStarted { step_name } => Some(&**step_name),
            _ => None,
        };
        self.shown_of(of.as_str(), |shown| {
            let (known, count) = shown.announced.get_or_insert_default();
            *count += 1;
            if let Some(name) = name {
                *known = name.into();
            }
        });
    }

    fn find(&self, event: &EventId) -> Option<&Shown> {
        self.shown.iter().find(|shown| shown.event == *event)
    }

    /// Takes in that a whole event was told to its end.
    pub(crate) fn told(&mut self, event: Option<&EventId>) {
        self.events += 1;
        self.frames = 0;
        if let Some(event) = event {
            self.shown.retain(|shown| shown.event != *event);
        }
    }

    fn shown_of(&mut self, message: &str, change: impl FnOnce(&mut Shown)) {
        let is_of = |shown: &&mut Shown| {
            let rest = message.strip_prefix(shown.event.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        if let Some(shown) = self.shown.iter_mut().find(is_of) {
            return change(shown);
        }
        let mut shown = Shown { event: event_of(message).into(), ..Shown::default() };
        change(&mut shown);
        self.shown.push(shown);
    }
}

/// Whether an event tells that a sub-agent or a step begins or ends: these come with whatever comes next, a preview or
/// a whole event.
fn announces(event: &EventKind<'_>) -> bool {
    matches!(
        event,
        EventKind::SubagentStarted { .. }
            | EventKind::SubagentFinished { .. }
            | EventKind::StepStarted { .. }
            | EventKind::StepFinished { .. }
    )
}

fn letter(open: Open) -> u8 {
    match open {
        Open::Nothing => b'n',
        Open::Text => b't',
        Open::Span => b's',
        Open::Thought => b'r',
    }
}

fn from_letter(letter: &str) -> Option<Open> {
    let all = [Open::Nothing, Open::Text, Open::Span, Open::Thought];
    all.into_iter().find(|open| [self::letter(*open)] == letter.as_bytes())
}

impl Place {
    /// Adds it as text. Every frame has one, so it does without the machinery of formatting.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_number(out, u64::from(self.stream));
        for number in [self.frame, u64::from(self.events), u64::from(self.frames)] {
            out.push(b'.');
            write_number(out, number);
        }
        for shown in &self.shown {
            out.push(b'.');
            out.extend_from_slice(shown.event.as_str().as_bytes());
            for bytes in [shown.text, shown.thoughts] {
                out.push(b'~');
                write_number(out, bytes as u64);
            }
            out.extend_from_slice(&[b'~', letter(shown.open)]);
            if let Some((name, count)) = &shown.announced {
                out.push(b'~');
                write_number(out, u64::from(*count));
                out.push(b'@');
                write_plain(out, name);
            }
            for (id, bytes) in &shown.calls {
                out.push(b'~');
                write_number(out, *bytes as u64);
                out.push(b':');
                write_plain(out, id.as_str());
            }
        }
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// An id of anybody's, in characters that can stand in an id of ours and in a header.
fn write_plain(out: &mut Vec<u8>, id: &str) {
    for byte in id.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => out.push(byte),
            // Writing to memory cannot fail.
            other => drop(write!(out, "%{other:02x}")),
        }
    }
}

fn read_plain(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut groups = text.split('.');
        let mut next = || groups.next().ok_or(());
        let stream = next()?.parse().map_err(drop)?;
        let frame = next()?.parse().map_err(drop)?;
        let events = next()?.parse().map_err(drop)?;
        let frames = next()?.parse().map_err(drop)?;
        let shown = groups.map(parse_shown).collect::<Option<_>>().ok_or(())?;
        Ok(Self { stream, frame, events, frames, shown })
    }
}

fn parse_shown(group: &str) -> Option<Shown> {
    let mut fields = group.split('~');
    let event = fields.next()?.into();
    let (text, thoughts) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let open = from_letter(fields.next()?)?;
    let mut shown = Shown { event, text, thoughts, open, ..Shown::default() };
    for field in fields {
        if let Some((count, name)) = field.split_once('@') {
            shown.announced = Some((read_plain(name)?.into(), count.parse().ok()?));
        } else {
            let (bytes, id) = field.split_once(':')?;
            shown.calls.push((read_plain(id)?.into(), bytes.parse().ok()?));
        }
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(place: &Place) -> String {
        let mut out = Vec::new();
        place.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_place_is_read_as_it_was_written_and_nonsense_is_refused() {
        let mut place = Place { stream: 31, frame: 7, events: 2, frames: 3, ..Place::default() };
        assert_eq!(written(&place), "31.7.2.3");
        assert_eq!("31.7.2.3".parse(), Ok(place.clone()));
        place.shown.push(Shown { event: "e-1_x".into(), text: 12, thoughts: 3, ..Shown::default() });
        assert_eq!(written(&place).parse(), Ok(place.clone()));
        place.shown[0].open = Open::Thought;
        place.shown[0].announced = Some(("left".into(), 2));
        place.shown[0].calls.push(("f.x:0".into(), 9));
        assert_eq!(written(&place), "31.7.2.3.e-1_x~12~3~r~2@left~9:f%2ex%3a0");
        assert_eq!(written(&place).parse(), Ok(place));
        for nonsense in [
            "",
            "1",
            "1.2",
            "x.1.1.1",
            "1.1.1.1.e",
            "1.1.1.1.e~1",
            "1.1.1.1.e~1~x",
            "1.-1.1.1",
            "1.1.1.1.e~1~1~x",
            "1.1.1.1.e~1~1~t~1:%",
        ] {
            assert_eq!(nonsense.parse::<Place>(), Err(()), "{nonsense}");
        }
    }

    #[test]
    fn previews_are_counted_until_their_event_was_told() {
        let mut place = Place::default();
        let text = |delta: &'static str| {
            AguiEvent::from(EventKind::TextMessageContent { message_id: "e1".into(), delta: delta.into() })
        };
        let event = EventId::from("e1");
        place.pass(&text("ab"), Some(&event), Part::Preview);
        place.pass(&text("c"), Some(&event), Part::Preview);
        assert_eq!((place.frame, place.shown[0].text), (2, 3));
        place.pass(&text("d"), Some(&event), Part::Whole);
        assert_eq!(
            (place.frames, place.shown[0].text),
            (1, 3),
            "what is part of a whole event is counted in frames"
        );
        place.told(Some(&"e1".into()));
        assert_eq!((place.events, place.frames, place.shown.len()), (1, 0, 0));
    }
}
