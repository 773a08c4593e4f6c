//! Where the events of a run become frames.

use std::sync::Arc;

use bytes::Bytes;
use umbel_agui::{AguiEvent, Guard, sse};
use umbel_core::EventId;

use crate::live::LiveRun;
use crate::place::Place;

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
    handed_on: bool,
}

/// Frames in the making.
#[derive(Debug)]
struct Frames {
    out: Vec<u8>,
    place: Place,
    /// The event of the log that is told of, and whether it is there as a whole.
    of: Option<EventId>,
    whole: bool,
    /// What the client has seen is not written again.
    seen: Option<Place>,
}

impl Emitter {
    pub(crate) fn new(live: Arc<LiveRun>) -> Self {
        let place = Place { stream: live.stream, ..Place::default() };
        let frames = Frames { out: Vec::with_capacity(1024), place, of: None, whole: true, seen: None };
        Self { live, guard: Guard::new(), frames, flushed: 0, handed_on: false }
    }

    /// One for a client that has seen the frames up to that place.
    pub(crate) fn behind(live: Arc<LiveRun>, seen: Option<Place>) -> Self {
        let mut emitter = Self::new(live);
        emitter.frames.seen = seen;
        emitter
    }

    /// What is said from now on is part of an event of the log, or a preview of it; without one, of the run itself.
    pub(crate) fn begin(&mut self, of: Option<&EventId>, whole: bool) {
        if self.frames.of.as_ref() != of {
            self.frames.of = of.cloned();
        }
        self.frames.whole = whole;
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
            self.handed_on = true;
        }
    }

    /// Whether frames were handed on since this was last asked, since there were many.
    pub(crate) fn was_full(&mut self) -> bool {
        std::mem::take(&mut self.handed_on)
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
        self.place.pass(event, self.of.as_ref(), self.whole);
        // Previews are not in the log: where they are said again, they were seen.
        let is_before =
            |seen: &Place| !self.whole || self.place.is_before(seen, &event.kind, self.of.as_ref());
        if self.seen.as_ref().is_some_and(is_before) {
            self.place.frame -= 1;
            return;
        }
        let before = self.out.len();
        if let Err(error) = sse::write_frame(&mut self.out, &self.place, event) {
            // Nothing of ours cannot be written; whatever it is, half a frame must not go out.
            tracing::error!("an event cannot be written: {error}");
            self.out.truncate(before);
        }
    }
}
