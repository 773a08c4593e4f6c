//! Places in a run's stream: the ids of its frames.
//!
//! An id says which frame it is, and what of the log was told when it was sent. While a run's frames are at hand, the first
//! is enough to go on; later the second is, since what was told can be made from the log again.

use std::io::Write;
use std::str::FromStr;

use smallvec::SmallVec;
use smol_str::SmolStr;
use umbel_agui::{AguiEvent, By, EventKind, Open, Shown, event_of};
use umbel_core::{Event, EventId};

/// What a frame tells of an event of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A part of it as it is there.
    Whole,
    /// A part of it before it is there.
    Preview,
    /// That what was previewed will never be there.
    Void,
    /// Nothing: it stands for itself, and may come again.
    Aside,
}

/// The event of the log that frames tell of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) event: EventId,
    pub(crate) by: By,
}

impl Of {
    /// That event, in a team with that agent at the top.
    pub(crate) fn new(event: &Event, root: &str) -> Self {
        let author = if event.author() == root { SmolStr::default() } else { event.source.author.clone() };
        Self { event: event.id.clone(), by: By { author, branch: event.source.branch.clone() } }
    }
}

impl From<&Shown> for Of {
    fn from(shown: &Shown) -> Self {
        Self { event: shown.event.clone(), by: shown.by.clone() }
    }
}

/// A place in a run's stream, behind one of its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Tells the streams of one run id apart.
    pub(crate) stream: u32,
    /// How many runs of that id came before in the thread: one that was interrupted goes on under its id.
    pub(crate) round: u32,
    /// The frame's number.
    pub(crate) frame: u64,
    /// Whole events that were told to their end; the beginning of the run counts as one.
    pub(crate) events: u32,
    /// Frames of the next one.
    pub(crate) frames: u32,
    /// Messages stand in another order than in the log.
    pub(crate) is_mixed: bool,
    /// The terminal event was told.
    pub(crate) is_over: bool,
    /// How much was previewed of events that are still to come.
    pub(crate) shown: SmallVec<[Shown; 1]>,
}

impl Place {
    /// Takes in that a frame follows. `of` is the event of the log that it tells of.
    pub(crate) fn pass(&mut self, event: &AguiEvent<'_>, of: Option<&Of>, part: Part) {
        self.frame += 1;
        if event.kind.is_terminal() {
            self.is_over = true;
        }
        if part == Part::Aside {
            return;
        }
        if let (Some(of), true) = (of, announces(&event.kind)) {
            return self.announce(of);
        }
        if part == Part::Whole {
            self.frames += u32::from(counts(&event.kind));
            return;
        }
        if let Some(of) = of {
            self.shown_of(of.event.as_str(), |shown| shown.by.clone_from(&of.by));
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
                self.shown_of(message_id, |shown| {
                    open(shown, Open::Thought);
                    shown.thinks = true;
                });
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

    fn announce(&mut self, of: &Of) {
        self.shown_of(of.event.as_str(), |shown| {
            shown.by.clone_from(&of.by);
            shown.announced += 1;
        });
    }

    fn find(&self, event: &EventId) -> Option<&Shown> {
        self.shown.iter().find(|shown| shown.event == *event)
    }

    /// How many frames told with that event of agents that begin or end.
    pub(crate) fn announced(&self, event: &EventId) -> u32 {
        self.find(event).map_or(0, |shown| shown.announced)
    }

    /// An event comes, or a preview of it. If the preview of another one told that its agent speaks, that one will never
    /// come: what it told is told.
    pub(crate) fn comes(&mut self, of: &Of) {
        let is_void = |shown: &&mut Shown| shown.by == of.by && shown.announced > 0;
        if self.shown.is_empty() || self.find(&of.event).is_some() {
            return;
        }
        if let Some(void) = self.shown.iter_mut().find(is_void) {
            let announced = std::mem::take(&mut void.announced);
            self.shown.push(Shown {
                event: of.event.clone(),
                by: of.by.clone(),
                announced,
                ..Shown::default()
            });
        }
    }

    /// Takes in that the client has the conversation as the log has it: nothing of what was previewed is left, but that it
    /// was told who speaks.
    pub(crate) fn corrected(&mut self) {
        self.is_mixed = false;
        self.shown.retain(|shown| shown.announced > 0);
        for shown in &mut self.shown {
            let Shown { event, by, announced, .. } = std::mem::take(shown);
            *shown = Shown { event, by, announced, ..Shown::default() };
        }
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
pub(crate) fn announces(event: &EventKind<'_>) -> bool {
    matches!(
        event,
        EventKind::SubagentStarted { .. }
            | EventKind::SubagentFinished { .. }
            | EventKind::StepStarted { .. }
            | EventKind::StepFinished { .. }
    )
}

/// Whether an event adds words to a message.
pub(crate) fn adds_words(event: &EventKind<'_>) -> bool {
    matches!(event, EventKind::TextMessageContent { .. } | EventKind::ReasoningMessageContent { .. })
}

/// Whether an event is counted. What may be told twice is not, since it is not always told.
pub(crate) fn counts(event: &EventKind<'_>) -> bool {
    !matches!(event, EventKind::StateSnapshot { .. } | EventKind::MessagesSnapshot { .. })
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
        self.write_with(out, |out, number| match number {
            Number::Frame(number) => write_number(out, number),
            Number::Text(shown) => write_number(out, shown.text as u64),
            Number::Thoughts(shown) => write_number(out, shown.thoughts as u64),
        });
    }

    /// The same, but the numbers that grow while a text goes on are added by `grows`.
    pub(crate) fn write_with(&self, out: &mut Vec<u8>, mut grows: impl FnMut(&mut Vec<u8>, Number<'_>)) {
        write_number(out, u64::from(self.stream));
        if self.round > 0 {
            out.push(b'-');
            write_number(out, u64::from(self.round));
        }
        out.push(b'.');
        grows(out, Number::Frame(self.frame));
        out.push(b'.');
        write_number(out, u64::from(self.events));
        out.push(b'.');
        if self.is_over {
            return out.extend_from_slice(b"end");
        }
        write_number(out, u64::from(self.frames));
        if self.is_mixed {
            out.push(b'm');
        }
        for shown in &self.shown {
            out.push(b'.');
            out.extend_from_slice(shown.event.as_str().as_bytes());
            out.push(b'~');
            grows(out, Number::Text(shown));
            out.push(b'~');
            grows(out, Number::Thoughts(shown));
            let letter = letter(shown.open);
            let letter = if shown.thinks { letter.to_ascii_uppercase() } else { letter };
            out.extend_from_slice(&[b'~', letter]);
            let By { author, branch } = &shown.by;
            if shown.announced > 0 || shown.by != By::default() {
                out.push(b'~');
                write_number(out, u64::from(shown.announced));
                out.push(b'@');
                write_plain(out, author);
            }
            if let Some(branch) = branch {
                out.push(b'@');
                write_plain(out, branch);
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

/// A number in a place that grows while a text goes on.
pub(crate) enum Number<'a> {
    /// That of the frame.
    Frame(u64),
    /// Bytes of text.
    Text(&'a Shown),
    /// Bytes of thoughts.
    Thoughts(&'a Shown),
}

pub(crate) fn write_number(out: &mut Vec<u8>, number: u64) {
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
        let (stream, round) = match next()? {
            group if group.contains('-') => group.split_once('-').ok_or(())?,
            group => (group, "0"),
        };
        let stream = stream.parse().map_err(drop)?;
        let round = round.parse().map_err(drop)?;
        let frame = next()?.parse().map_err(drop)?;
        let events = next()?.parse().map_err(drop)?;
        let frames = next()?;
        let is_over = frames == "end";
        let number = frames.strip_suffix('m');
        let is_mixed = number.is_some();
        let frames = if is_over { 0 } else { number.unwrap_or(frames).parse().map_err(drop)? };
        let shown = groups.map(parse_shown).collect::<Option<_>>().ok_or(())?;
        Ok(Self { stream, round, frame, events, frames, is_mixed, is_over, shown })
    }
}

fn parse_shown(group: &str) -> Option<Shown> {
    let mut fields = group.split('~');
    let event = fields.next()?.into();
    let (text, thoughts) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let letter = fields.next()?;
    let open = from_letter(&letter.to_ascii_lowercase())?;
    let thinks = letter.starts_with(|letter: char| letter.is_ascii_uppercase());
    let mut shown = Shown { event, text, thoughts, thinks, open, ..Shown::default() };
    for field in fields {
        if let Some((events, who)) = field.split_once('@') {
            let (author, branch) = match who.split_once('@') {
                Some((author, branch)) => (author, Some(read_plain(branch)?.into())),
                None => (who, None),
            };
            shown.announced = events.parse().ok()?;
            shown.by = By { author: read_plain(author)?.into(), branch };
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
        place.shown[0].thinks = true;
        let branch = Some("both.left".into());
        place.shown[0].by = By { author: "left".into(), branch };
        place.shown[0].announced = 2;
        place.shown[0].calls.push(("f.x:0".into(), 9));
        assert_eq!(written(&place), "31.7.2.3.e-1_x~12~3~R~2@left@both%2eleft~9:f%2ex%3a0");
        assert_eq!(written(&place).parse(), Ok(place));
        let mixed = Place { stream: 31, frame: 7, frames: 2, is_mixed: true, ..Place::default() };
        assert_eq!((written(&mixed).as_str(), "31.7.0.2m".parse()), ("31.7.0.2m", Ok(mixed)));
        let over = Place { stream: 31, round: 2, frame: 9, events: 4, is_over: true, ..Place::default() };
        assert_eq!(written(&over), "31-2.9.4.end");
        assert_eq!("31-2.9.4.end".parse(), Ok(over));
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
            "1-.1.1.1",
            "1.1.1.ends",
            "1.1.1.m",
            "1.1.1.1mm",
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
        let event = Of { event: "e1".into(), by: By::default() };
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
