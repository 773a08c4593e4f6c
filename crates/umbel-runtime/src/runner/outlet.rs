//! Where events leave a run: one at a time, each waiting to be taken.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use umbel_core::{Event, Piece};

/// How many previews a run may be ahead of its reader. A model that has its next pieces ready then does not go through
/// the whole run for each of them.
const AHEAD: u64 = 15;

/// What a run says.
#[derive(Clone, Debug)]
pub enum Said {
    /// An event, or a preview of one.
    Event(Arc<Event>),
    /// More words of an event in the making. The event itself follows.
    Piece(Piece),
}

/// What is on its way to the reader, oldest first. It is taken out one by one; there is seldom more than one but for previews.
pub(crate) type Offers = SmallVec<[Option<Said>; 1]>;

/// Hands events from a run to its reader. A run waits until its event is taken, so a slow reader slows it down.
#[derive(Debug, Default)]
pub(crate) struct Outlet {
    inner: Mutex<Inner>,
    /// Whether an event is on offer; changed under the lock.
    full: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// On offer, oldest first: events leave in the order in which they were stored.
    said: Offers,
    /// How many were offered so far.
    offered: u64,
    /// How many of them were taken.
    taken: u64,
    waiting: SmallVec<[Waker; 1]>,
    /// Nobody reads any more.
    closed: bool,
}

impl Outlet {
    /// Offers an event and waits until it is taken.
    pub(crate) async fn send(&self, event: Arc<Event>) {
        let ticket = self.offer(event);
        poll_fn(|cx| self.poll_taken(ticket, cx)).await;
    }

    /// Puts a preview on offer, behind others that are. Gives the number of an older one to wait for, if the run is too
    /// far ahead of its reader.
    pub(crate) fn offer_preview(&self, preview: Said) -> Option<u64> {
        let mut inner = self.lock();
        if inner.closed {
            return None;
        }
        if inner.said.len() == inner.said.capacity() {
            inner.said.reserve_exact(AHEAD as usize);
        }
        self.push(&mut inner, preview);
        let ticket = inner.offered.saturating_sub(AHEAD);
        (inner.taken < ticket).then_some(ticket)
    }

    /// Puts an event on offer, behind others that are. Gives the number by which to ask whether it was taken.
    pub(crate) fn offer(&self, event: Arc<Event>) -> u64 {
        let mut inner = self.lock();
        if !inner.closed {
            self.push(&mut inner, Said::Event(event));
        }
        inner.offered
    }

    #[inline]
    fn push(&self, inner: &mut Inner, said: Said) {
        inner.said.push(Some(said));
        inner.offered += 1;
        self.full.store(true, Ordering::Release);
    }

    /// Ready once the event with that number was taken, or nobody reads any more.
    pub(crate) fn poll_taken(&self, ticket: u64, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.closed || inner.taken >= ticket {
            return Poll::Ready(());
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// All that is on offer, in the place of what was taken before.
    pub(crate) fn take(&self, taken: &mut Offers) {
        taken.clear();
        let mut inner = self.lock();
        std::mem::swap(&mut inner.said, taken);
        self.full.store(false, Ordering::Release);
        inner.taken = inner.offered;
        inner.wake();
    }

    /// Whether an event is on offer.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Nobody reads any more: events are dropped from now on.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.said.clear();
        self.full.store(false, Ordering::Release);
        inner.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }

    fn wake(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }
}
