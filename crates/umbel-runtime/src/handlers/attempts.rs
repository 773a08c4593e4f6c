//! A model call that may take several attempts, as one stream.

use std::time::Duration;

use futures::StreamExt;
use umbel_core::{Chunk, ChunkStream, Error, ErrorKind, ModelCall, NextModel, Response, Result, Run, Work};

use crate::aggregator::Aggregator;
use crate::backoff::pause;
use crate::text;

/// What comes after an attempt.
pub(super) enum Next<'a> {
    /// Nothing: its answer counts.
    Accept,
    /// Another attempt, after a wait.
    Again(Box<ModelCall<'a>>, Duration),
    /// This answer in its place.
    Say(Response),
    /// Its failure is the call's.
    Fail(Error),
}

/// Who decides what comes after an attempt.
pub(super) trait Judge<'a>: Send {
    /// Whether it wants to see answers, which then have to be put together for it.
    fn reads_answers(&self) -> bool;

    /// The attempt was answered; with the answer, if it wants to see it and there is one.
    fn answered<'s>(&'s mut self, answer: Option<&'s Response>) -> Work<'s, Next<'a>>;

    /// The attempt failed.
    fn failed(&mut self, error: Error) -> Work<'_, Next<'a>>;
}

/// The chunks of one attempt after another, until one counts.
///
/// They are passed on as they come. What was passed on of an attempt that does not count is made void by a
/// [`Chunk::Restart`]. A whole message is passed on only if it counts, since it is acted on at once; from then on there
/// is no other attempt.
pub(super) struct Attempts<'a, J> {
    run: &'a Run,
    next: NextModel<'a>,
    judge: J,
    /// The attempt to be made, after a wait.
    due: Option<(Box<ModelCall<'a>>, Duration)>,
    /// What the present attempt gives.
    chunks: Option<ChunkStream<'a>>,
    /// What is said in the place of all attempts.
    words: Option<Response>,
    /// The present attempt's answer so far, if the judge wants to see it.
    fold: Option<Aggregator>,
    /// Something of the present attempt was passed on.
    shown: bool,
    /// A whole message was passed on.
    settled: bool,
    /// The last piece was the preview of a whole message that has to follow.
    cut: bool,
}

impl<'a, J: Judge<'a> + 'a> Attempts<'a, J> {
    /// The stream that begins with that call.
    pub(super) fn stream(call: ModelCall<'a>, next: NextModel<'a>, judge: J) -> ChunkStream<'a> {
        let attempts = Self {
            run: call.run(),
            next,
            judge,
            due: Some((Box::new(call), Duration::ZERO)),
            chunks: None,
            words: None,
            fold: None,
            shown: false,
            settled: false,
            cut: false,
        };
        // Boxed, so that little moves with each chunk.
        Box::pin(futures::stream::unfold(Box::new(attempts), |mut attempts| async move {
            let item = attempts.item().await?;
            Some((item, attempts))
        }))
    }

    /// The next item, from whichever attempt it comes.
    async fn item(&mut self) -> Option<Result<Chunk>> {
        loop {
            if let Some(words) = self.words.take() {
                return Some(Ok(Chunk::Complete(words)));
            }
            let item = match self.due.take() {
                Some((call, delay)) => match self.ask(*call, delay).await {
                    Ok(chunks) => {
                        self.chunks = Some(chunks);
                        continue;
                    }
                    Err(error) => Some(Err(error)),
                },
                None => self.chunks.as_mut()?.next().await,
            };
            let next = match item {
                Some(Ok(chunk)) => match self.pass(chunk).await {
                    Ok(chunk) => return Some(Ok(chunk)),
                    Err(next) => next,
                },
                Some(Err(error)) => self.failed(error).await,
                None if self.cut => self.failed(Error::new(ErrorKind::StreamCut, text::STREAM_CUT)).await,
                None if self.settled => return None,
                None => {
                    let answer = self.fold.take().and_then(|mut fold| fold.close());
                    self.judge.answered(answer.as_ref()).await
                }
            };
            // What is still open of the attempt ends here.
            self.chunks = None;
            match next {
                Next::Accept => return None,
                Next::Fail(error) => return Some(Err(error)),
                Next::Again(call, delay) => self.due = Some((call, delay)),
                Next::Say(words) => self.words = Some(words),
            }
            if std::mem::take(&mut self.shown) {
                return Some(Ok(Chunk::Restart));
            }
        }
    }

    async fn ask(&mut self, call: ModelCall<'a>, delay: Duration) -> Result<ChunkStream<'a>> {
        self.cut = false;
        self.fold = self.judge.reads_answers().then(Aggregator::new);
        pause(delay, self.run.cancel_token()).await?;
        self.next.call(call).await
    }

    /// Gives a chunk to be passed on, or what comes in the place of this attempt.
    async fn pass(&mut self, chunk: Chunk) -> Result<Chunk, Next<'a>> {
        let partial = matches!(&chunk, Chunk::Complete(whole) if whole.partial == Some(true));
        if let Chunk::Complete(whole) = &chunk
            && !partial
            && !self.settled
        {
            match self.judge.answered(Some(whole)).await {
                Next::Accept => self.settled = true,
                next => return Err(next),
            }
        }
        self.cut = partial;
        self.shown = chunk != Chunk::Restart;
        Ok(self.fold(chunk))
    }

    /// Keeps a piece for the judge.
    fn fold(&mut self, mut chunk: Chunk) -> Chunk {
        let Some(fold) = &mut self.fold else { return chunk };
        match &mut chunk {
            Chunk::Text(text) => fold.fold_text(text, false),
            Chunk::Thought(text) => fold.fold_text(text, true),
            Chunk::Delta(piece) => fold.fold(piece, self.run.services().ids.as_ref()),
            // Takes the place of what came before.
            _ => *fold = Aggregator::new(),
        }
        chunk
    }

    async fn failed(&mut self, error: Error) -> Next<'a> {
        if self.settled { Next::Fail(error) } else { self.judge.failed(error).await }
    }
}
