//! Where the events of a run become frames.

use std::sync::Arc;

use bytes::Bytes;
use umbel_agui::{AguiEvent, Guard, sse};
use umbel_core::EventId;

use crate::live::LiveRun;
use crate::place::{Part, Place};

/// Frames that are ready are handed on when there are so many bytes of them, even if more follows at once.
const ENOUGH: usize = 16 * 1024;

/// Writes the frames of one run. The rules of the protocol hold for whatever passes it.
#[derive(Debug)]
pub(crate) struct Emitter {
    live: Arc<LiveRun>,
    guard: Guard,
    frames: Frames,
    /// Frames that are handed on already.
    flushed: u64,
}

/// Frames in the making.
#[derive(Debug)]
struct Frames {
    out: Vec<u8>,
    place: Place,
    /// The event of the log that is told of, and what is told of it.
    of: Option<EventId>,
    part: Part,
    /// What the client has seen is not written again.
    seen: Option<Place>,
}

impl Emitter {
    pub(crate) fn new(live: Arc<LiveRun>) -> Self {
        let place = Place { stream: live.stream, ..Place::default() };
        let frames = Frames { out: Vec::with_capacity(1024), place, of: None, part: Part::Whole, seen: None };
        Self { live, guard: Guard::new(), frames, flushed: 0 }
    }

    /// One for a client that has seen the frames up to that place.
    pub(crate) fn behind(live: Arc<LiveRun>, seen: Option<Place>) -> Self {
        let mut emitter = Self::new(live);
        emitter.frames.seen = seen;
        emitter
    }

    /// What is said from now on is of that event of the log; without one, of the run itself.
    pub(crate) fn begin(&mut self, of: Option<&EventId>, part: Part) {
        if self.frames.of.as_ref() != of {
            self.frames.of = of.cloned();
        }
        self.frames.part = part;
    }

    /// What was begun as a whole was told to its end.
    pub(crate) fn told(&mut self) {
        let Frames { place, of, .. } = &mut self.frames;
        place.told(of.as_ref());
    }

    pub(crate) fn say(&mut self, event: &AguiEvent<'_>) {
        let Self { guard, frames, .. } = self;
        if let Err(broken) = guard.pass(event, &mut |event| frames.write(event)) {
            tracing::warn!("an event was left out of the stream: {broken}");
        }
        if self.frames.out.len() > ENOUGH {
            self.flush();
        }
    }

    /// Says the one terminal event. What is open is closed before it.
    pub(crate) fn finish(&mut self, event: &AguiEvent<'_>) {
        let Self { guard, frames, .. } = self;
        if let Err(broken) = guard.finish(event, &mut |event| frames.write(event)) {
            tracing::error!("a run could not be ended: {broken}");
        }
    }

    /// Hands on what is ready.
    pub(crate) fn flush(&mut self) {
        self.hand_on(false);
    }

    /// Hands on what is left. Nothing comes after it.
    pub(crate) fn close(&mut self) {
        self.hand_on(true);
    }

    fn hand_on(&mut self, is_over: bool) {
        let count = self.frames.place.frame - self.flushed;
        if count == 0 && !is_over {
            return;
        }
        self.flushed = self.frames.place.frame;
        let room = if is_over { 0 } else { 256 };
        let out = std::mem::replace(&mut self.frames.out, Vec::with_capacity(room));
        self.live.publish(Bytes::from(out), count, is_over);
    }
}

impl Frames {
    fn write(&mut self, event: &AguiEvent<'_>) {
        self.place.pass(event, self.of.as_ref(), self.part);
        let is_before = |seen: &Place| match self.part {
            Part::Whole => self.place.is_before(seen, &event.kind, self.of.as_ref()),
            // Previews are not in the log: where they are said again, they were seen.
            Part::Preview => true,
            Part::Aside => false,
        };
        if self.seen.as_ref().is_some_and(is_before) {
            self.place.frame -= 1;
            return;
        }
        let before = self.out.len();
        if let Err(error) = sse::write_frame(&mut self.out, |out| self.place.write(out), event) {
            // Nothing of ours cannot be written; whatever it is, half a frame must not go out.
            tracing::error!("an event cannot be written: {error}");
            self.out.truncate(before);
        }
    }
}
