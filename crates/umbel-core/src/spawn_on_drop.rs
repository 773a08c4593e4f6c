//! Work that goes on in a task of its own when its future is dropped.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::work::BoxFuture;

/// Work that must not be left half done. Who waits for it may be dropped at any await, by a timeout or since the run was
/// cancelled: then it is spawned and goes on by itself. It ends with the process, like everything.
pub struct SpawnOnDrop<F>(Option<F>)
where
    F: Future<Output: Send> + Unpin + Send + 'static;

impl<T: Send + 'static> SpawnOnDrop<BoxFuture<'static, T>> {
    /// The same for work that is not boxed yet.
    pub fn boxed(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::new(Box::pin(work))
    }
}

impl<F: Future<Output: Send> + Unpin + Send + 'static> SpawnOnDrop<F> {
    /// The work. It begins when it is first polled.
    pub fn new(work: F) -> Self {
        Self(Some(work))
    }
}

impl<F: Future<Output: Send> + Unpin + Send + 'static> Future for SpawnOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken, so that work that panics is not gone on with.
        let Some(mut work) = self.0.take() else { return Poll::Pending };
        let polled = Pin::new(&mut work).poll(cx);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        Poll::Ready(ready!(polled))
    }
}

impl<F: Future<Output: Send> + Unpin + Send + 'static> Drop for SpawnOnDrop<F> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            // What comes of it is in the store.
            drop(runtime.spawn(work));
        }
    }
}

impl<F: Future<Output: Send> + Unpin + Send + 'static> fmt::Debug for SpawnOnDrop<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpawnOnDrop")
    }
}
