//! Cancellation: a token that everything in a run can see.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind};
use crate::work::BoxFuture;

/// Tells a run, and all that works for it, to stop. Clones are the same token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: AtomicU8,
    /// Where to stop, by [`SafePoint`].
    stops: AtomicU8,
    notify: Notify,
    /// When it will be cancelled, once that is known.
    deadline: OnceLock<Instant>,
    /// The token of whoever waits for this run.
    above: Option<CancelToken>,
}

/// Where a run can stop without leaving anything half done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SafePoint {
    /// When the model has answered: calls that it asks for are not begun.
    AfterModel = 1,
    /// When the calls of a step are done, before the model is asked again.
    AfterTools = 2,
    /// Whichever comes first.
    Next = 3,
}

/// Why a run was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// Someone asked for it, or the reader went away.
    Asked,
    /// The run took longer than it may.
    Deadline,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels. The first reason stays.
    pub fn cancel(&self, reason: CancelReason) {
        let code = match reason {
            CancelReason::Asked => 1,
            CancelReason::Deadline => 2,
        };
        let _ = self.0.reason.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        self.0.notify.notify_waiters();
    }

    /// A token for a run that this one waits for. It stops at safe points where this one does.
    pub fn below(&self) -> Self {
        Self(Arc::new(Inner { above: Some(self.clone()), ..Inner::default() }))
    }

    /// Says when it will be cancelled. The first word stays.
    pub fn set_deadline(&self, deadline: Instant) {
        let _ = self.0.deadline.set(deadline);
    }

    /// When it, or one above it, will be cancelled. A run's time begins when it first waits for something: before that it
    /// is not known.
    pub fn deadline(&self) -> Option<Instant> {
        let above = self.0.above.as_ref().and_then(Self::deadline);
        let own = self.0.deadline.get().copied();
        own.into_iter().chain(above).min()
    }

    /// Asks the run, and those that work for it, to stop at a safe point. One that is done before simply finishes.
    pub fn cancel_at(&self, point: SafePoint) {
        self.0.stops.fetch_or(point as u8, Ordering::AcqRel);
    }

    /// An error if the run is to stop at such a point: what a step says to itself when it has come there.
    #[inline]
    pub fn check_at(&self, point: SafePoint) -> Result<(), Error> {
        let stops = self.0.stops.load(Ordering::Acquire) & point as u8 != 0;
        match &self.0.above {
            _ if stops => Err(CancelReason::Asked.error()),
            Some(above) => above.check_at(point),
            None => Ok(()),
        }
    }

    /// Why it was cancelled, if it was.
    #[inline]
    pub fn reason(&self) -> Option<CancelReason> {
        match self.0.reason.load(Ordering::Acquire) {
            0 => None,
            2 => Some(CancelReason::Deadline),
            _ => Some(CancelReason::Asked),
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// An error if it was cancelled: what a step says to itself before it begins.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(reason.error()),
        }
    }

    /// Done once it is cancelled.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.0.notify.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }

    /// The future's value, or an error if the token is cancelled first. Pin a future that needs it with `pin!`.
    ///
    /// Waiting for the token costs nothing as long as the future is ready when asked.
    pub fn guard<F: Future + Unpin>(&self, future: F) -> Guard<'_, F> {
        Guard { token: self, future, cancelled: None }
    }
}

/// A future that ends when its token is cancelled; see [`CancelToken::guard`].
#[must_use = "futures do nothing unless awaited"]
pub struct Guard<'a, F> {
    token: &'a CancelToken,
    future: F,
    /// Made when the future first has to wait.
    cancelled: Option<BoxFuture<'a, ()>>,
}

impl<F: Future + Unpin> Future for Guard<'_, F> {
    type Output = Result<F::Output, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(value) = Pin::new(&mut this.future).poll(cx) {
            return Poll::Ready(Ok(value));
        }
        let token = this.token;
        let cancelled = this.cancelled.get_or_insert_with(|| Box::pin(token.cancelled()));
        cancelled.as_mut().poll(cx).map(|()| Err(token.reason().unwrap_or(CancelReason::Asked).error()))
    }
}

impl<F> fmt::Debug for Guard<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl CancelReason {
    /// The error that a cancelled step ends with.
    pub fn error(self) -> Error {
        match self {
            Self::Asked => Error::new(ErrorKind::Cancelled, "the run was cancelled"),
            Self::Deadline => Error::new(
                ErrorKind::Timeout,
                "the run took longer than it may: raise `RunLimits::run_time` or ask for less at once",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_told_once_and_that_of_whoever_waits_counts_too() {
        let (above, now) = (CancelToken::new(), Instant::now());
        let later = |seconds| now + std::time::Duration::from_secs(seconds);
        let below = above.below();
        assert_eq!(below.deadline(), None);
        below.set_deadline(later(5));
        below.set_deadline(later(1));
        assert_eq!((above.deadline(), below.deadline()), (None, Some(later(5))));
        above.set_deadline(later(3));
        assert_eq!(below.deadline(), Some(later(3)));
    }

    #[test]
    fn a_token_stops_at_the_points_it_was_told_and_so_do_those_below() {
        let token = CancelToken::new();
        let below = token.below().below();
        below.check_at(SafePoint::Next).unwrap();
        token.cancel_at(SafePoint::AfterTools);
        for token in [&token, &below] {
            token.check_at(SafePoint::AfterModel).unwrap();
            assert_eq!(token.check_at(SafePoint::AfterTools).unwrap_err().kind(), ErrorKind::Cancelled);
            assert!(token.check_at(SafePoint::Next).is_err() && !token.is_cancelled());
        }
        let other = CancelToken::new();
        other.below().cancel_at(SafePoint::Next);
        other.check_at(SafePoint::Next).unwrap();
    }

    #[tokio::test]
    async fn a_guarded_future_ends_when_the_token_is_cancelled() {
        let token = CancelToken::new();
        assert_eq!(token.guard(std::future::ready(1)).await.unwrap(), 1);
        let other = token.clone();
        let waiting = tokio::spawn(async move { other.guard(std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        token.cancel(CancelReason::Asked);
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        token.cancel(CancelReason::Deadline);
        assert_eq!(token.reason(), Some(CancelReason::Asked));
    }
}
