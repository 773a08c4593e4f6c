//! Cuts what comes over the line into frames: server-sent events, or one JSON value to a line.

use memchr::memchr2;
use umbel_core::{Error, ErrorKind, ModelErrorKind, Result};

/// How frames stand in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value to a line.
    Lines,
}

/// The most bytes that one frame may have: an image comes as one.
const MOST: usize = 64 << 20;

/// Cuts a stream into frames, in whatever pieces it comes. What was looked at once is not looked at again, so a frame that
/// comes in many pieces costs what it is long.
#[derive(Debug)]
pub(crate) struct Frames {
    framing: Framing,
    /// The line that is still coming.
    line: Vec<u8>,
    /// The last byte was the first half of a line end.
    after_return: bool,
    event: String,
    data: Vec<u8>,
    has_data: bool,
}

impl Frames {
    /// Nothing came yet.
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            framing,
            line: Vec::new(),
            after_return: false,
            event: String::new(),
            data: Vec::new(),
            has_data: false,
        }
    }

    /// Takes more bytes, and hands on each frame that is complete: the name of its event, and its data.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut frame: impl FnMut(&str, &str) -> Result<()>,
    ) -> Result<()> {
        if std::mem::take(&mut self.after_return) {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (head, rest) = bytes.split_at(end);
            if self.line.is_empty() {
                self.take_line(head, &mut frame)?;
            } else {
                self.line.extend_from_slice(head);
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, &mut frame)?;
                self.line = line;
                self.line.clear();
            }
            bytes = match rest {
                [b'\r'] => {
                    self.after_return = true;
                    &[]
                }
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > MOST {
            return Err(unreadable("a frame of the answer is too long"));
        }
        Ok(())
    }

    /// The stream has ended: a last line without an end is a frame too, if lines are frames. Of server-sent events an
    /// unfinished one is none.
    pub(crate) fn end(&mut self, mut frame: impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
        let line = std::mem::take(&mut self.line);
        match self.framing {
            Framing::Lines => self.take_line(&line, &mut frame),
            Framing::Sse => Ok(()),
        }
    }

    fn take_line(&mut self, line: &[u8], frame: &mut impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
        if self.framing == Framing::Lines {
            let line = line.trim_ascii();
            return if line.is_empty() { Ok(()) } else { frame("", text(line)?) };
        }
        if line.is_empty() {
            // A frame without data is none: such as a comment that keeps the line open.
            if std::mem::take(&mut self.has_data) {
                frame(&self.event, text(&self.data)?)?;
            }
            self.event.clear();
            self.data.clear();
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(at) => line.split_at(at),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.event.clear();
                self.event.push_str(text(value)?);
            }
            _ => {}
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| unreadable("the answer is not UTF-8").with_source(error))
}

/// What a provider sent cannot be read.
pub(crate) fn unreadable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Model(ModelErrorKind::Other), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(framing: Framing, pieces: &[&[u8]]) -> Vec<(String, String)> {
        let (mut cut, mut seen) = (Frames::new(framing), Vec::new());
        let mut keep = |event: &str, data: &str| {
            seen.push((event.to_owned(), data.to_owned()));
            Ok(())
        };
        for piece in pieces {
            cut.feed(piece, &mut keep).unwrap();
        }
        cut.end(&mut keep).unwrap();
        seen
    }

    #[test]
    fn a_stream_gives_the_same_frames_wherever_it_is_split() {
        let sse = "\u{feff}: hi\r\n\r\nevent: a\ndata: 1\n\ndata:{\"x\":\r\ndata: \"ü\"}\r\n\r\nevent: b\r\rdata\r\rdata: open\n";
        let sse = sse.trim_start_matches('\u{feff}').as_bytes();
        let whole = frames(Framing::Sse, &[sse]);
        let frame = |event: &str, data: &str| (event.to_owned(), data.to_owned());
        assert_eq!(whole, [frame("a", "1"), frame("", "{\"x\":\n\"ü\"}"), frame("", "")]);
        let lines = "{\"a\":1}\n\n  {\"b\":\"ü\"}\r\n{\"c\":2}".as_bytes();
        for (framing, bytes) in [(Framing::Sse, sse), (Framing::Lines, lines)] {
            let whole = frames(framing, &[bytes]);
            assert_eq!(whole.len(), 3);
            for at in 0..=bytes.len() {
                let (head, rest) = bytes.split_at(at);
                assert_eq!(frames(framing, &[head, rest]), whole, "split at {at}");
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(frames(framing, &single), whole);
        }
    }

    #[test]
    fn bytes_that_are_no_text_and_frames_without_end_are_errors() {
        let feed = |bytes: &[u8]| Frames::new(Framing::Sse).feed(bytes, |_, _| Ok(()));
        assert!(feed(b"data: \xff\n\n").unwrap_err().message().contains("UTF-8"));
        let mut cut = Frames::new(Framing::Lines);
        let piece = vec![b'a'; MOST / 2 + 1];
        cut.feed(&piece, |_, _| Ok(())).unwrap();
        assert!(cut.feed(&piece, |_, _| Ok(())).unwrap_err().message().contains("too long"));
    }
}
