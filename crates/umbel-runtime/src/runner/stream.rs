//! The events of a run, as its reader gets them.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use serde::de::DeserializeOwned;
use umbel_core::{
    BoxFuture, CancelReason, CancelToken, Error, ErrorKind, Event, Outcome, Piece, Result, RunId, SafePoint,
};

use super::drive::{Ended, Task, drive};
use super::journal::Recorder;
use super::outlet::{Offers, Said};
use crate::output_schema::strip_fence;

/// The events of a run. The run goes on as they are read.
///
/// If it fails, the last item is the error. Afterwards [`outcome`](Self::outcome) tells how it ended. Dropping the
/// stream early cancels the run, which then unwinds on its own.
pub struct RunStream {
    id: RunId,
    work: Option<BoxFuture<'static, Ended>>,
    recorder: Arc<Recorder>,
    /// Taken from the run, to be read before it goes on.
    taken: Offers,
    /// How many of them were read.
    read: usize,
    cancel: CancelToken,
    ended: Option<Ended>,
}

impl RunStream {
    pub(crate) fn new(task: Task) -> Self {
        let (id, recorder, cancel) = (task.id.clone(), task.recorder.clone(), task.cancel.clone());
        Self { id, work: Some(drive(task)), recorder, taken: Offers::new(), read: 0, cancel, ended: None }
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// How the run ended, once the stream is at its end.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.ended.as_ref().map(|ended| &ended.outcome)
    }

    /// Tells the run to stop.
    pub fn cancel(&self) {
        self.cancel.cancel(CancelReason::Asked);
    }

    /// Tells the run, and all that works for it, to stop at a safe point, with nothing half done. Keep reading; should it
    /// take too long, [`cancel`](Self::cancel) it. [`Runner::continue_run`](super::Runner::continue_run) goes on with it.
    pub fn cancel_at(&self, point: SafePoint) {
        self.cancel.cancel_at(point);
    }

    /// The token by which it is told to stop, to be kept elsewhere.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// What the run says next. The same as the stream gives, but pieces of text come as such, which costs less than an
    /// event for each of them.
    pub async fn said(&mut self) -> Option<Result<Said>> {
        poll_fn(|cx| self.poll_said(cx)).await
    }

    /// The same for who polls.
    #[inline]
    pub fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Said>>> {
        match self.next_taken() {
            Some(said) => Poll::Ready(Some(Ok(said))),
            None => self.poll_run(cx),
        }
    }

    fn next_taken(&mut self) -> Option<Said> {
        let said = self.taken.get_mut(self.read)?.take();
        self.read += 1;
        said
    }

    /// Lets the run go on until it says something.
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Said>>> {
        loop {
            if self.recorder.outlet.is_full() {
                self.recorder.outlet.take(&mut self.taken);
                self.read = 0;
            }
            if let Some(said) = self.next_taken() {
                return Poll::Ready(Some(Ok(said)));
            }
            let Some(work) = &mut self.work else {
                // The error comes last, behind events that nobody waited for any more.
                let error = self.ended.as_mut().and_then(|ended| ended.error.take());
                return Poll::Ready(error.map(Err));
            };
            match work.as_mut().poll(cx) {
                Poll::Ready(ended) => {
                    self.work = None;
                    self.ended = Some(ended);
                }
                Poll::Pending if self.recorder.outlet.is_full() => {}
                Poll::Pending if self.recorder.is_stalled() => self.detach(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Lets the run end by itself: the store does not answer, and the reader has waited long enough.
    fn detach(&mut self) {
        let message = "the session store did not answer in time: the outcome is written when it does, \
                       or when the run is recovered";
        let error = Error::new(ErrorKind::Store, message);
        self.let_go();
        self.ended = Some(Ended { outcome: Outcome::from_error(&error), error: Some(error) });
    }

    /// Hands the run to a task of its own.
    fn let_go(&mut self) {
        let Some(work) = self.work.take() else { return };
        self.cancel.cancel(CancelReason::Asked);
        self.recorder.outlet.close();
        // Without a runtime nobody can finish the run; its lease then expires and recovery closes it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }

    /// A piece of text as an event.
    pub fn preview(&self, piece: Piece) -> Event {
        let mut event = piece.into_event(self.id.clone());
        self.recorder.stamp(&mut event);
        event
    }

    /// Reads to the end and gives all whole events, or the error.
    pub async fn collect_events(mut self) -> Result<Vec<Arc<Event>>> {
        let mut events = Vec::new();
        while let Some(said) = self.said().await {
            match said? {
                Said::Event(event) if !event.is_partial() => events.push(event),
                _ => {}
            }
        }
        Ok(events)
    }

    /// Reads to the end and gives the text of the last answer: what was said, or what a tool gave that answers directly.
    pub async fn text(self) -> Result<String> {
        let events = self.collect_events().await?;
        let last = events.iter().rev().find(|event| event.is_final() && event.content.is_some());
        Ok(last.map(|event| event.answer_text()).unwrap_or_default())
    }

    /// Reads to the end and gives the structured answer as a value of that type.
    pub async fn output<T: DeserializeOwned>(self) -> Result<T> {
        let text = self.text().await?;
        serde_json::from_str(strip_fence(&text)).map_err(|e| {
            let message = format!("the answer cannot be read as the wanted type: {e}");
            Error::new(ErrorKind::InvalidOutput, message).with_source(e)
        })
    }
}

impl Stream for RunStream {
    type Item = Result<Arc<Event>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let said = std::task::ready!(self.poll_said(cx));
        Poll::Ready(said.map(|said| match said? {
            Said::Event(event) => Ok(event),
            Said::Piece(piece) => Ok(Arc::new(self.preview(piece))),
        }))
    }
}

impl Drop for RunStream {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl fmt::Debug for RunStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunStream({})", self.id)
    }
}
