//! The events of a run, as its reader gets them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use umbel_core::{
    BoxFuture, CancelReason, CancelToken, Error, ErrorKind, Event, Outcome, Result, RunId, SafePoint,
};

use super::drive::{Ended, Task, drive};
use super::journal::Recorder;
use super::outlet::{AHEAD, Offers};
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
    taken: smallvec::IntoIter<[Arc<Event>; AHEAD + 1]>,
    cancel: CancelToken,
    ended: Option<Ended>,
}

impl RunStream {
    pub(crate) fn new(task: Task) -> Self {
        let (id, recorder, cancel) = (task.id.clone(), task.recorder.clone(), task.cancel.clone());
        Self { id, work: Some(drive(task)), recorder, taken: Offers::new().into_iter(), cancel, ended: None }
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

    /// Reads to the end and gives all whole events, or the error.
    pub async fn collect_events(mut self) -> Result<Vec<Arc<Event>>> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            let event = event?;
            if !event.is_partial() {
                events.push(event);
            }
        }
        Ok(events)
    }

    /// Reads to the end and gives the text of the last answer.
    pub async fn text(self) -> Result<String> {
        let events = self.collect_events().await?;
        let last = events.iter().rev().find(|event| event.is_final() && event.content.is_some());
        Ok(last.map(|event| event.text()).unwrap_or_default())
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
        let this = &mut *self;
        loop {
            if let Some(event) = this.taken.next() {
                return Poll::Ready(Some(Ok(event)));
            }
            if this.recorder.outlet.is_full() {
                this.taken = this.recorder.outlet.take().into_iter();
                continue;
            }
            let Some(work) = &mut this.work else {
                // The error comes last, behind events that nobody waited for any more.
                let error = this.ended.as_mut().and_then(|ended| ended.error.take());
                return Poll::Ready(error.map(Err));
            };
            match work.as_mut().poll(cx) {
                Poll::Ready(ended) => {
                    this.work = None;
                    this.ended = Some(ended);
                }
                Poll::Pending if this.recorder.outlet.is_full() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for RunStream {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        self.cancel.cancel(CancelReason::Asked);
        self.recorder.outlet.close();
        // Without a runtime nobody can finish the run; its lease then expires and recovery closes it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

impl fmt::Debug for RunStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunStream({})", self.id)
    }
}
