//! Where events leave a run: one at a time, each waiting to be taken.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use umbel_core::Event;

/// How many previews a run may be ahead of its reader. A model that has its next pieces ready then does not go through
/// the whole run for each of them.
pub(crate) const AHEAD: usize = 5;

/// Events on their way to the reader. Seldom more than there is room for: whoever offers one waits until it is taken, but
/// for a few previews.
pub(crate) type Offers = SmallVec<[Arc<Event>; AHEAD + 1]>;

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
    events: Offers,
    /// How many events were offered so far.
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
    pub(crate) fn offer_preview(&self, event: Arc<Event>) -> Option<u64> {
        let mut inner = self.lock();
        if inner.closed {
            return None;
        }
        self.push(&mut inner, event);
        let ticket = inner.offered.saturating_sub(AHEAD as u64);
        (inner.taken < ticket).then_some(ticket)
    }

    /// Puts an event on offer, behind others that are. Gives the number by which to ask whether it was taken.
    pub(crate) fn offer(&self, event: Arc<Event>) -> u64 {
        let mut inner = self.lock();
        if !inner.closed {
            self.push(&mut inner, event);
        }
        inner.offered
    }

    #[inline]
    fn push(&self, inner: &mut Inner, event: Arc<Event>) {
        inner.events.push(event);
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

    /// All that is on offer, oldest first.
    pub(crate) fn take(&self) -> Offers {
        let mut inner = self.lock();
        let events = std::mem::take(&mut inner.events);
        self.full.store(false, Ordering::Release);
        inner.taken = inner.offered;
        inner.wake();
        events
    }

    /// Whether an event is on offer.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Nobody reads any more: events are dropped from now on.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.events.clear();
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
