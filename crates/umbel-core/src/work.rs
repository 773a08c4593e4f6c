//! Futures that are stored: boxed ones, and [`Work`], which is boxed only when it has to wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A boxed stream that can move between threads.
pub type BoxStream<'a, T> = Pin<Box<dyn futures::Stream<Item = T> + Send + 'a>>;

/// The answer of a contract that often has nothing to wait for.
///
/// An in-memory store or a synchronous request processor answers with [`Work::done`] and pays neither an
/// allocation nor a suspension; a database answers with [`Work::later`]. Callers just `.await` it.
pub struct Work<'a, T>(Inner<'a, T>);

enum Inner<'a, T> {
    Done(Option<T>),
    Later(BoxFuture<'a, T>),
}

impl<'a, T> Work<'a, T> {
    /// The value is there already.
    pub fn done(value: T) -> Self {
        Self(Inner::Done(Some(value)))
    }

    /// The value comes when this future is done.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self(Inner::Later(Box::pin(future)))
    }

    /// The same for a future that is boxed already.
    pub fn boxed(future: BoxFuture<'a, T>) -> Self {
        Self(Inner::Later(future))
    }

    /// The value, if it is there already; otherwise the work itself.
    pub fn try_now(self) -> Result<T, Self> {
        match self.0 {
            Inner::Done(Some(value)) => Ok(value),
            other => Err(Self(other)),
        }
    }
}

// The value is only ever moved out, never pinned.
impl<T> Unpin for Work<'_, T> {}

impl<T> Future for Work<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Inner::Done(value) => value.take().map_or(Poll::Pending, Poll::Ready),
            Inner::Later(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Work<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self.0, Inner::Done(_)) { "Work::Done" } else { "Work::Later" })
    }
}
