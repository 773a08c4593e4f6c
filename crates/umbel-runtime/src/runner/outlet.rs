//! Where events leave a run: one at a time, each waiting to be taken.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use umbel_core::Event;

/// Hands events from a run to its reader. A run waits until its event is taken, so a slow reader slows it down.
#[derive(Debug, Default)]
pub(crate) struct Outlet(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    event: Option<Arc<Event>>,
    /// How many events were taken so far.
    taken: u64,
    waiting: Vec<Waker>,
    /// Nobody reads any more.
    closed: bool,
}

impl Outlet {
    /// Offers an event and waits until it is taken.
    pub(crate) async fn send(&self, event: Arc<Event>) {
        let mut event = Some(event);
        let mut ticket = 0;
        poll_fn(|cx| {
            let mut inner = self.lock();
            if inner.closed {
                return Poll::Ready(());
            }
            if event.is_none() && inner.taken > ticket {
                return Poll::Ready(());
            }
            if event.is_some() && inner.event.is_none() {
                inner.event = event.take();
                ticket = inner.taken;
            }
            if !inner.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                inner.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// The event on offer.
    pub(crate) fn take(&self) -> Option<Arc<Event>> {
        let mut inner = self.lock();
        let event = inner.event.take()?;
        inner.taken += 1;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        for waker in waiting {
            waker.wake();
        }
        Some(event)
    }

    /// Whether an event is on offer.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().event.is_some()
    }

    /// Nobody reads any more: events are dropped from now on.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.event = None;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        for waker in waiting {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
