//! Asking a model again that failed, or whose answer will not do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use umbel_core::{
    AgentPlan, ChunkStream, Content, Error, ErrorKind, Handler, ModelCall, ModelErrorKind, ModelRequest,
    NextModel, Part, Response, Result, Run, Work,
};
use umbel_macros::handler;

use super::attempts::{Attempts, Judge, Next};
use crate::backoff::Backoff;
use crate::text;

/// Whether another attempt may help against an error.
type RetryOn = Arc<dyn Fn(&Error) -> bool + Send + Sync>;

/// Decides about an attempt.
type ShouldRetry = Arc<dyn for<'a> Fn(&'a Attempt<'a>) -> Work<'a, Result<Verdict>> + Send + Sync>;

/// Asks a model again that failed.
///
/// Twice at most, after one second and then two, with a little chance in it. What was shown of a failed attempt is made
/// void; a failed attempt is never stored. If all attempts fail, the agent says so instead of failing. A cancelled or
/// interrupted run is never retried.
///
/// ```
/// use umbel_runtime::handlers::{ModelRetry, OnFailure};
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let model = ScriptedModel::new("demo").fail("no connection").text("Hello.");
/// let agent = LlmAgent::new("guide").model(model).handler(ModelRetry::new().on_failure(OnFailure::Error));
/// ```
#[derive(Clone)]
pub struct ModelRetry {
    max_retries: u32,
    backoff: Backoff,
    retry_on: RetryOn,
    should_retry: Option<ShouldRetry>,
    on_failure: OnFailure,
}

/// What happens when all attempts failed.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum OnFailure {
    /// The agent says that it failed, and why.
    #[default]
    Continue,
    /// The error of the last attempt is the call's.
    Error,
    /// The agent says this. Gets the last error and how many attempts were made.
    Say(Arc<dyn Fn(&Error, u32) -> String + Send + Sync>),
}

impl OnFailure {
    /// The agent says what this makes of the last error.
    pub fn say(words: impl Fn(&Error, u32) -> String + Send + Sync + 'static) -> Self {
        Self::Say(Arc::new(words))
    }
}

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continue => "Continue",
            Self::Error => "Error",
            Self::Say(_) => "Say(…)",
        })
    }
}

/// One attempt that is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// Its number, from 1.
    pub number: u32,
    /// What the model was asked.
    pub request: &'a ModelRequest,
    /// What it answered; absent if it failed, or said nothing at all.
    pub response: Option<&'a Response>,
    /// Why it failed.
    pub error: Option<&'a Error>,
}

/// What is made of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Its answer counts; if it failed, it failed.
    Accept,
    /// Another attempt is to be made, if any is left.
    Retry(Again),
}

/// How another attempt is to be made.
#[derive(Clone, Debug, Default)]
pub struct Again {
    /// Why an answer will not do. It is told if no attempt is left.
    pub reason: Option<String>,
    /// What to ask from now on, if something else.
    pub request: Option<Box<ModelRequest>>,
    /// How long to wait, if not as long as usual.
    pub delay: Option<Duration>,
}

impl ModelRetry {
    /// Two retries.
    pub fn new() -> Self {
        Self {
            max_retries: 2,
            backoff: Backoff::new(),
            retry_on: Arc::new(may_pass),
            should_retry: None,
            on_failure: OnFailure::Continue,
        }
    }

    /// How many attempts follow the first.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// How long to wait between attempts. An error that says itself how long it takes is believed, up to the longest wait.
    /// Where the wait would last longer than the run may, no other attempt is made.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Which errors are worth another attempt. By default those that may pass, and those of which nothing is known. Any
    /// other fails the call at once.
    pub fn retry_on(mut self, retry_on: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.retry_on = Arc::new(retry_on);
        self
    }

    /// Decides about each attempt in the place of [`retry_on`](Self::retry_on): answers can be rejected too, and what is
    /// asked can be changed.
    ///
    /// ```
    /// use umbel_core::Work;
    /// use umbel_runtime::handlers::{Again, ModelRetry, Verdict};
    ///
    /// let retry = ModelRetry::new().should_retry(|attempt| {
    ///     let cut_off = attempt.response.is_some_and(|answer| answer.finish_reason() == Some("MAX_TOKENS"));
    ///     Work::done(Ok(match cut_off {
    ///         true => Verdict::Retry(Again { reason: Some("it is too long".into()), ..Again::default() }),
    ///         false => Verdict::Accept,
    ///     }))
    /// });
    /// ```
    pub fn should_retry<F>(mut self, should_retry: F) -> Self
    where
        F: for<'a> Fn(&'a Attempt<'a>) -> Work<'a, Result<Verdict>> + Send + Sync + 'static,
    {
        self.should_retry = Some(Arc::new(should_retry));
        self
    }

    /// What happens when all attempts failed.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }
}

/// Whether nothing is known against another attempt.
fn may_pass(error: &Error) -> bool {
    let unknown = [ErrorKind::Timeout, ErrorKind::Other, ErrorKind::Model(ModelErrorKind::Other)];
    error.is_retryable() || unknown.contains(&error.kind())
}

#[handler(crate = umbel_core)]
impl Handler for ModelRetry {
    fn name(&self) -> &str {
        "model-retry"
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.backoff.check()
    }

    fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        let judge = Retries { retry: self, call: call.clone(), attempt: 1 };
        Ok(Attempts::stream(call, next, judge))
    }
}

/// The attempts of one call.
struct Retries<'a> {
    retry: &'a ModelRetry,
    call: ModelCall<'a>,
    /// The number of the present attempt, from 1.
    attempt: u32,
}

impl<'a> Retries<'a> {
    /// What the user's function makes of an attempt.
    async fn verdict(
        &self,
        decide: &ShouldRetry,
        response: Option<&Response>,
        error: Option<&Error>,
    ) -> Result<Verdict> {
        decide(&Attempt { number: self.attempt, request: &self.call.request, response, error }).await
    }

    /// Another attempt, if one is left.
    fn again(&mut self, again: Again, error: Error) -> Next<'a> {
        let retry = self.retry;
        let delay = again.delay.or_else(|| retry.backoff.delay_after(self.attempt - 1, &error));
        let delay = delay.filter(|delay| *delay < time_left(self.call.run()));
        let Some(delay) = delay.filter(|_| self.attempt <= retry.max_retries) else {
            return match &retry.on_failure {
                OnFailure::Error => Next::Fail(error),
                OnFailure::Continue => say(text::model_failed(self.attempt, &error)),
                OnFailure::Say(words) => say(words(&error, self.attempt)),
            };
        };
        if let Some(request) = again.request {
            self.call.request = *request;
        }
        self.attempt += 1;
        Next::Again(Box::new(self.call.clone()), delay)
    }
}

/// How long a run may still take. Whoever waits for longer is only cancelled later.
fn time_left(run: &Run) -> Duration {
    let left = |deadline: std::time::Instant| deadline.saturating_duration_since(Instant::now().into_std());
    run.cancel_token().deadline().map_or(run.config().limits.run_time, left)
}

fn say<'a>(words: String) -> Next<'a> {
    Next::Say(Response::new(Content::model(Part::text(words))))
}

impl<'a> Judge<'a> for Retries<'a> {
    fn reads_answers(&self) -> bool {
        self.retry.should_retry.is_some()
    }

    fn answered<'s>(&'s mut self, answer: Option<&'s Response>) -> Work<'s, Next<'a>> {
        let Some(decide) = &self.retry.should_retry else { return Work::done(Next::Accept) };
        Work::later(async move {
            match self.verdict(decide, answer, None).await {
                Ok(Verdict::Accept) => Next::Accept,
                Ok(Verdict::Retry(again)) => {
                    let message = text::answer_rejected(again.reason.as_deref());
                    self.again(again, Error::new(ErrorKind::Model(ModelErrorKind::Other), message))
                }
                Err(error) => Next::Fail(error),
            }
        })
    }

    fn failed(&mut self, error: Error) -> Work<'_, Next<'a>> {
        // A run that is told to stop is not kept up by errors that come of it.
        if error.is_control() || self.call.run().cancel_token().is_cancelled() {
            return Work::done(Next::Fail(error));
        }
        let Some(decide) = &self.retry.should_retry else {
            let next = match (self.retry.retry_on)(&error) {
                true => self.again(Again::default(), error),
                false => Next::Fail(error),
            };
            return Work::done(next);
        };
        Work::later(async move {
            match self.verdict(decide, None, Some(&error)).await {
                Ok(Verdict::Accept) => Next::Fail(error),
                Ok(Verdict::Retry(again)) => self.again(again, error),
                Err(error) => Next::Fail(error),
            }
        })
    }
}

impl Default for ModelRetry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ModelRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelRetry")
            .field("max_retries", &self.max_retries)
            .field("backoff", &self.backoff)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}
