//! The body of a stream: what is ready goes out at once, and silence is broken now and then.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep};
use umbel_core::deadline::finite;

use crate::live::{Seen, View};

/// What a stream says when there is no news. Clients ignore it, proxies do not.
const ALIVE: Bytes = Bytes::from_static(b": alive\n\n");

/// Silence is not broken more often than this, whatever the server was told.
const SHORTEST_SILENCE: Duration = Duration::from_millis(10);

/// A viewer was too slow. The connection is cut, so that the client notices and takes the stream up again.
#[derive(Debug)]
pub(crate) struct TooSlow;

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client reads too slowly")
    }
}

impl std::error::Error for TooSlow {}

/// The frames of a run as the body of a response.
pub(crate) struct StreamBody {
    view: View,
    recode: Option<Recode>,
    /// Absent if silence is never broken.
    keep_alive: Option<Duration>,
    /// Made when there is something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
    spoke: Instant,
    is_over: bool,
}

/// Puts frames in another encoding.
pub(crate) type Recode = fn(&Bytes) -> Bytes;

impl StreamBody {
    pub(crate) fn new(view: View, keep_alive: Duration, recode: Option<Recode>) -> Self {
        let keep_alive = finite(keep_alive).map(|time| time.max(SHORTEST_SILENCE));
        Self { view, recode, keep_alive, timer: None, spoke: Instant::now(), is_over: false }
    }

    /// Ready when nothing was said for too long. The clock is looked at only when it rings, not with every frame.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(keep_alive) = self.keep_alive else { return Poll::Pending };
        let due = self.spoke + keep_alive;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= due {
                self.spoke = now;
                timer.as_mut().reset(now + keep_alive);
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = TooSlow;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TooSlow>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        match this.view.poll(cx) {
            Poll::Ready(Seen::Frames(bytes)) => {
                this.spoke = Instant::now();
                let bytes = match this.recode {
                    Some(recode) => recode(&bytes),
                    None => bytes,
                };
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Poll::Ready(Seen::End) => {
                this.is_over = true;
                Poll::Ready(None)
            }
            Poll::Ready(Seen::Lost) => {
                this.is_over = true;
                Poll::Ready(Some(Err(TooSlow)))
            }
            // There is no frame that says nothing in the binary form.
            Poll::Pending if this.recode.is_some() => Poll::Pending,
            Poll::Pending => this.poll_silence(cx).map(|()| Some(Ok(Frame::data(ALIVE)))),
        }
    }
}
