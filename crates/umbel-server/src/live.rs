//! A run that is under way or was a moment ago: what it said, kept for whoever looks.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use smol_str::SmolStr;
use tokio::sync::Notify;
use umbel_core::{CancelReason, CancelToken, SafePoint, SessionKey};

/// What becomes of a run that nobody looks at any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// It goes on.
    Continue,
    /// It is cancelled, unless someone looks again within that time.
    CancelAfter(Duration),
}

/// How a run is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At once.
    Now,
    /// Where nothing is half done.
    At(SafePoint),
}

/// A run as an object: its frames, and who looks at them.
pub(crate) struct LiveRun {
    /// The session.
    pub(crate) key: SessionKey,
    /// The client's name of the run.
    pub(crate) run: SmolStr,
    /// Tells the streams of one run id apart.
    pub(crate) stream: u32,
    /// A digest of the request that began it.
    pub(crate) digest: u64,
    disconnect: Disconnect,
    /// How many bytes of frames are kept.
    limit: usize,
    /// It is told to one viewer alone, at the pace of that one: what was read is not kept, and what was not is.
    is_for_one: bool,
    state: Mutex<State>,
    over: Notify,
    read: Notify,
}

/// The frames of a run, as many as there is room for, and who waits for more.
#[derive(Debug)]
struct State {
    /// The number of the first frame that is kept; frames count from 1.
    first: u64,
    /// The number behind the last one.
    end: u64,
    segments: VecDeque<Segment>,
    bytes: usize,
    /// When the terminal event was sent.
    over: Option<Instant>,
    viewers: usize,
    next_viewer: usize,
    waiting: Vec<(usize, Waker)>,
    /// Since when nobody looks.
    unseen: Option<Instant>,
    /// Whoever stops it while it has not begun yet is remembered.
    stop: Option<Stop>,
    token: Option<CancelToken>,
    /// It ended with questions to people.
    asks: bool,
}

impl State {
    /// Lets go of frames before that one.
    fn forget_before(&mut self, next: u64) {
        while self.segments.front().is_some_and(|segment| segment.first < next) {
            let Some(oldest) = self.segments.pop_front() else { return };
            self.bytes -= oldest.bytes.len();
        }
        self.first = next;
    }
}

/// Frames that were ready at the same time.
#[derive(Debug)]
struct Segment {
    /// The number of the first.
    first: u64,
    bytes: Bytes,
}

impl LiveRun {
    pub(crate) fn new(
        key: SessionKey,
        run: SmolStr,
        digest: u64,
        disconnect: Disconnect,
        limit: usize,
    ) -> Arc<Self> {
        Self::make(key, run, digest, disconnect, limit, false)
    }

    /// A run that is told again, to one viewer alone.
    pub(crate) fn for_one(key: SessionKey, run: SmolStr, limit: usize) -> Arc<Self> {
        Self::make(key, run, 0, Disconnect::Continue, limit, true)
    }

    fn make(
        key: SessionKey,
        run: SmolStr,
        digest: u64,
        disconnect: Disconnect,
        limit: usize,
        is_for_one: bool,
    ) -> Arc<Self> {
        let state = State {
            first: 1,
            end: 1,
            segments: VecDeque::new(),
            bytes: 0,
            over: None,
            viewers: 0,
            next_viewer: 0,
            waiting: Vec::new(),
            unseen: Some(Instant::now()),
            stop: None,
            token: None,
            asks: false,
        };
        let (stream, state) = (stream_tag(), Mutex::new(state));
        let (over, read) = (Notify::new(), Notify::new());
        Arc::new(Self { key, run, stream, digest, disconnect, limit, is_for_one, state, over, read })
    }

    /// Adds frames that are ready together, and wakes whoever waits for them.
    pub(crate) fn publish(&self, bytes: Bytes, count: u64, is_over: bool) {
        let woken = {
            let mut state = self.lock();
            if count > 0 {
                // Measured before this: one large frame must not drive out what nobody had a chance to read.
                while !self.is_for_one && state.bytes > self.limit {
                    let Some(oldest) = state.segments.pop_front() else { break };
                    state.bytes -= oldest.bytes.len();
                    state.first = state.segments.front().map_or(state.end, |segment| segment.first);
                }
                state.bytes += bytes.len();
                let first = state.end;
                state.segments.push_back(Segment { first, bytes });
                state.end += count;
            }
            if is_over {
                state.over = Some(Instant::now());
                state.token = None;
            }
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(|(_, waker)| waker.wake());
        if is_over {
            self.over.notify_waiters();
        }
    }

    /// Done once its one viewer has read enough, or is gone.
    pub(crate) async fn room(&self) {
        loop {
            let mut read = std::pin::pin!(self.read.notified());
            read.as_mut().enable();
            let is_full = {
                let state = self.lock();
                self.is_for_one && state.bytes > self.limit && state.viewers > 0
            };
            if !is_full {
                return;
            }
            read.await;
        }
    }

    /// Since when its terminal event is sent.
    pub(crate) fn over_since(&self) -> Option<Instant> {
        self.lock().over
    }

    /// Done once its terminal event was sent.
    pub(crate) async fn ended(&self) {
        let mut over = std::pin::pin!(self.over.notified());
        // Registered first: an end between the look and the wait must not be missed.
        over.as_mut().enable();
        if self.over_since().is_none() {
            over.await;
        }
    }

    /// Whether it is under way and nobody looks.
    pub(crate) fn is_unseen(&self) -> bool {
        let state = self.lock();
        state.viewers == 0 && state.over.is_none()
    }

    /// Stops it if nobody has looked for longer than it may go on so.
    pub(crate) fn stop_if_abandoned(&self) {
        let Disconnect::CancelAfter(patience) = self.disconnect else { return };
        let unseen = self.lock().unseen.filter(|since| since.elapsed() >= patience);
        if unseen.is_some() && self.is_unseen() {
            self.stop(Stop::Now);
        }
    }

    /// Tells it to stop.
    pub(crate) fn stop(&self, stop: Stop) {
        let token = {
            let mut state = self.lock();
            state.stop = Some(stop);
            state.token.clone()
        };
        if let Some(token) = token {
            tell(&token, stop);
        }
    }

    /// Takes the token by which its present work is stopped.
    pub(crate) fn hold(&self, token: &CancelToken) {
        let stop = {
            let mut state = self.lock();
            state.token = Some(token.clone());
            state.stop
        };
        if let Some(stop) = stop {
            tell(token, stop);
        }
    }

    /// Whether it has said anything.
    pub(crate) fn has_begun(&self) -> bool {
        self.lock().end > 1
    }

    /// Whether it was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stop.is_some()
    }

    /// It ends with questions to people.
    pub(crate) fn asks(&self) {
        self.lock().asks = true;
    }

    /// Whether it ended with questions to people. Once these are answered, nobody must be shown them again.
    pub(crate) fn has_asked(&self) -> bool {
        self.lock().asks
    }

    /// How many bytes of frames it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Looks at it from behind that frame on. `None` if what comes next is not at hand any more, or never was.
    pub(crate) fn view(self: &Arc<Self>, after: u64) -> Option<View> {
        let mut state = self.lock();
        let next = after.checked_add(1)?;
        if next < state.first || next > state.end {
            return None;
        }
        let id = state.next_viewer;
        state.next_viewer += 1;
        state.viewers += 1;
        state.unseen = None;
        Some(View { run: self.clone(), id, next })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(token: &CancelToken, stop: Stop) {
    match stop {
        Stop::Now => token.cancel(CancelReason::Asked),
        Stop::At(point) => token.cancel_at(point),
    }
}

/// A number that seldom repeats, in this process or another.
fn stream_tag() -> u32 {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = SEED.hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
    u32::try_from(number & 0xff_ffff).unwrap_or_default()
}

impl fmt::Debug for LiveRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveRun({} of {})", self.run, self.key)
    }
}

/// Somebody who looks at a run.
#[derive(Debug)]
pub(crate) struct View {
    run: Arc<LiveRun>,
    id: usize,
    /// The next frame.
    next: u64,
}

/// What a look gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Frames.
    Frames(Bytes),
    /// There is nothing more.
    End,
    /// What comes next is not at hand any more: the viewer was too slow.
    Lost,
}

impl View {
    /// What comes next.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Seen> {
        let mut state = self.run.lock();
        if self.next < state.first {
            return Poll::Ready(Seen::Lost);
        }
        if self.next < state.end {
            let at = state.segments.partition_point(|segment| segment.first <= self.next);
            if let Some(segment) = at.checked_sub(1).and_then(|at| state.segments.get(at)) {
                let bytes = without(&segment.bytes, self.next - segment.first);
                self.next = state.segments.get(at).map_or(state.end, |next| next.first);
                if self.run.is_for_one {
                    state.forget_before(self.next);
                    self.run.read.notify_waiters();
                }
                return Poll::Ready(Seen::Frames(bytes));
            }
        }
        if state.over.is_some() {
            return Poll::Ready(Seen::End);
        }
        match state.waiting.iter_mut().find(|(waiting, _)| *waiting == self.id) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => state.waiting.push((self.id, cx.waker().clone())),
        }
        Poll::Pending
    }
}

/// Frames without the first so many. A frame ends with an empty line, and nothing within it does.
fn without(frames: &Bytes, count: u64) -> Bytes {
    let mut rest = frames.clone();
    for _ in 0..count {
        let end = memchr::memmem::find(&rest, b"\n\n").map_or(rest.len(), |at| at + 2);
        rest = rest.slice(end..);
    }
    rest
}

impl Drop for View {
    fn drop(&mut self) {
        let is_alone = {
            let mut state = self.run.lock();
            state.waiting.retain(|(waiting, _)| *waiting != self.id);
            state.viewers = state.viewers.saturating_sub(1);
            if state.viewers == 0 {
                state.unseen = Some(Instant::now());
            }
            state.viewers == 0 && state.over.is_none()
        };
        self.run.read.notify_waiters();
        if is_alone && self.run.disconnect == Disconnect::CancelAfter(Duration::ZERO) {
            self.run.stop(Stop::Now);
        }
    }
}
