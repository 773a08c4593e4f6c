//! Where the events of a run become frames.

use std::sync::Arc;

use bytes::Bytes;
use umbel_agui::{AguiEvent, Guard, sse};
use umbel_core::Piece;

use crate::live::LiveRun;
use crate::place::{Of, Part, Place, adds_words, announces, counts};
use crate::refrain::Refrain;

/// Frames that are ready are handed on when there are so many bytes of them, even if more follows at once.
const ENOUGH: usize = 16 * 1024;

/// Room for the frames of a short run.
const ROOM: usize = 8 * 1024;

/// Room for the next frames of a run that has to wait: there may be many such runs.
const LITTLE_ROOM: usize = 256;

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
    /// The event of the log that is told of, and what is told of it.
    of: Option<Of>,
    part: Part,
    /// What the client has seen is not written again.
    seen: Option<Place>,
    /// How often that event told of agents that begin or end.
    announced: u32,
    /// Whether the last frame adds words.
    has_words: bool,
    /// That frame, if more of its text is to follow.
    refrain: Option<Refrain>,
    /// The stream ends before its run does.
    leaves: bool,
}

impl Emitter {
    pub(crate) fn new(live: Arc<LiveRun>) -> Self {
        let place = Place { stream: live.stream, ..Place::default() };
        let frames = Frames {
            out: Vec::with_capacity(ROOM),
            place,
            of: None,
            part: Part::Whole,
            seen: None,
            announced: 0,
            has_words: false,
            refrain: None,
            leaves: false,
        };
        Self { live, guard: Guard::new(), frames, flushed: 0, handed_on: false }
    }

    /// One for a client that has seen the frames up to that place.
    pub(crate) fn behind(live: Arc<LiveRun>, seen: Option<Place>) -> Self {
        let mut emitter = Self::new(live);
        if let Some(seen) = &seen {
            // What was previewed stays so until it is there, also for who stops reading before.
            emitter.frames.place.shown.clone_from(&seen.shown);
            emitter.frames.place.is_mixed = seen.is_mixed;
        }
        emitter.frames.seen = seen;
        emitter
    }

    /// How many runs of that name came before.
    pub(crate) fn round(&mut self, round: u32) {
        self.frames.place.round = round;
    }

    /// What is said from now on is of that event of the log; without one, of the run itself.
    pub(crate) fn begin(&mut self, of: Option<Of>, part: Part) {
        let frames = &mut self.frames;
        (frames.refrain, frames.has_words) = (None, false);
        frames.part = part;
        if frames.of == of {
            return;
        }
        if let Some(of) = &of {
            frames.place.comes(of);
        }
        frames.of = of;
        frames.announced = 0;
    }

    /// What was begun as a whole was told to its end.
    pub(crate) fn told(&mut self) {
        let Frames { place, of, refrain, .. } = &mut self.frames;
        *refrain = None;
        place.told(of.as_ref().map(|of| &of.event));
    }

    /// The client has messages in another order than the log, or has not.
    pub(crate) fn mixed(&mut self, is_mixed: bool) {
        self.frames.place.is_mixed = is_mixed;
    }

    /// The client has the conversation as the log has it.
    pub(crate) fn corrected(&mut self) {
        self.frames.refrain = None;
        self.frames.place.corrected();
    }

    pub(crate) fn say(&mut self, event: &AguiEvent<'_>) {
        let Self { guard, frames, .. } = self;
        if let Err(broken) = guard.pass(event, &mut |event| frames.write(event)) {
            tracing::warn!("an event was left out of the stream: {broken}");
        }
        self.hand_on_if_full();
    }

    fn hand_on_if_full(&mut self) {
        if self.frames.out.len() > ENOUGH {
            self.flush();
            self.handed_on = true;
        }
    }

    /// Whether that piece of text goes on with the last frame.
    pub(crate) fn goes_on(&self, piece: &Piece) -> bool {
        self.frames.refrain.as_ref().is_some_and(|refrain| refrain.fits(piece))
    }

    /// Says more of the text of the last frame.
    pub(crate) fn say_more(&mut self, piece: &Piece) {
        let Frames { refrain: Some(refrain), place, out, .. } = &mut self.frames else { return };
        let before = out.len();
        if let Err(error) = refrain.write(&piece.text, place, out) {
            tracing::error!("a piece of text cannot be written: {error}");
            out.truncate(before);
        }
        self.hand_on_if_full();
    }

    /// That piece of text was told by that event, unless it was left out, and more may follow.
    pub(crate) fn expect_more(&mut self, piece: &Piece, event: &AguiEvent<'_>) {
        let frames = &mut self.frames;
        if frames.has_words {
            frames.refrain = Refrain::of(piece, &frames.place, event);
        }
    }

    /// Whether that event of the log is still to be told.
    pub(crate) fn is_new(&self) -> bool {
        let Frames { place, seen, .. } = &self.frames;
        seen.as_ref().is_none_or(|seen| place.events >= seen.events)
    }

    /// Whether frames were handed on since this was last asked, since there were many.
    pub(crate) fn was_full(&mut self) -> bool {
        std::mem::take(&mut self.handed_on)
    }

    /// Waits until there is room for more.
    pub(crate) async fn room(&self) {
        self.live.room().await;
    }

    /// Says the one terminal event. What is open is closed before it.
    pub(crate) fn finish(&mut self, event: &AguiEvent<'_>) {
        let Self { guard, frames, .. } = self;
        if let Err(broken) = guard.finish(event, &mut |event| frames.write(event)) {
            tracing::error!("a run could not be ended: {broken}");
        }
    }

    /// Says a terminal event that ends the stream and not its run: who takes it up behind that misses nothing. So what is
    /// open stays open.
    pub(crate) fn leave(&mut self, event: &AguiEvent<'_>) {
        self.frames.leaves = true;
        self.begin(None, Part::Aside);
        self.frames.write(event);
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
        let out = &mut self.frames.out;
        // Frames are kept for a while, and should not keep more room than they need.
        let bytes = if out.len() * 2 > out.capacity() {
            Bytes::from(std::mem::take(out))
        } else {
            Bytes::copy_from_slice(out)
        };
        out.clear();
        if !is_over {
            out.shrink_to(LITTLE_ROOM);
            out.reserve(LITTLE_ROOM);
        }
        self.live.publish(bytes, count, is_over);
    }
}

impl Frames {
    fn write(&mut self, event: &AguiEvent<'_>) {
        (self.refrain, self.has_words) = (None, adds_words(&event.kind));
        if self.was_seen(event) {
            return;
        }
        self.place.pass(event, self.of.as_ref(), self.part);
        self.place.is_over &= !self.leaves;
        let before = self.out.len();
        if let Err(error) = sse::write_frame(&mut self.out, |out| self.place.write(out), event) {
            // Nothing of ours cannot be written; whatever it is, half a frame must not go out.
            tracing::error!("an event cannot be written: {error}");
            self.out.truncate(before);
        }
    }

    /// Whether the client has that frame already.
    fn was_seen(&mut self, event: &AguiEvent<'_>) -> bool {
        let Self { place, of, part, seen: Some(seen), announced, .. } = self else { return false };
        if event.kind.is_terminal() || seen.is_over {
            return seen.is_over;
        }
        if let (Some(of), true) = (of, announces(&event.kind)) {
            *announced += 1;
            return place.events < seen.events || *announced <= seen.announced(&of.event);
        }
        match part {
            Part::Aside | Part::Void => false,
            // Previews are not in the log: where they are said again, they were seen.
            Part::Preview => true,
            Part::Whole if !counts(&event.kind) => place.events < seen.events,
            Part::Whole => {
                let was_seen =
                    place.events < seen.events || (place.events == seen.events && place.frames < seen.frames);
                place.frames += u32::from(was_seen);
                was_seen
            }
        }
    }
}
