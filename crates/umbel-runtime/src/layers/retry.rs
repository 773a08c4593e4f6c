//! Another try for a call that failed.

use std::fmt;
use std::sync::Arc;

use futures::TryFutureExt;
use serde_json::json;
use smol_str::SmolStr;
use tracing::Instrument;
use umbel_core::{
    Error, ErrorKind, Guarded, Handler, Hooks, ModelErrorKind, NextTool, Result, Run, ToolCall, ToolOutput,
    ToolResult, ToolValue, Work,
};

use super::is_control;
use crate::backoff::{Backoff, pause};
use crate::{spans, text};

/// Tries a call again that failed.
///
/// By default twice, after one and two seconds, and whatever the failure is, except what no new try can change: arguments
/// that do not fit, refusals, wrong credentials, sizes beyond a limit, spent limits and mistakes in the set-up, be it of an
/// agent that is called as a tool. An error that says when to try again is believed; if that is longer than the longest wait, there
/// is no new try. When all tries are used up the model is told, as the result of the call.
///
/// A streamed result is tried again only if it could not be begun: what it gave before it broke off was seen. A question
/// to a person and the end of a run are not failures. A call of a tool that does not exist is not tried again.
#[derive(Clone)]
pub struct ToolRetry {
    max_retries: u32,
    backoff: Backoff,
    tools: Option<Vec<SmolStr>>,
    retry_on: Arc<dyn Fn(&Error) -> bool + Send + Sync>,
    on_failure: OnFailure,
}

/// What becomes of a call whose tries are used up.
#[derive(Clone)]
enum OnFailure {
    /// The model is told, in words that are made here.
    Continue(Arc<dyn Fn(&str, u32, &Error) -> String + Send + Sync>),
    /// The last error is the call's.
    Error,
}

impl Default for ToolRetry {
    fn default() -> Self {
        let words = |tool: &str, attempts, error: &Error| {
            text::tool_failed(tool, attempts, error.kind().code(), error.message())
        };
        Self {
            max_retries: 2,
            backoff: Backoff::default(),
            tools: None,
            retry_on: Arc::new(is_worth_a_retry),
            on_failure: OnFailure::Continue(Arc::new(words)),
        }
    }
}

/// Whether a new try may end otherwise. Of what a handler made of another error, that one counts.
fn is_worth_a_retry(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Handler => {
            let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
            source.is_none_or(is_worth_a_retry)
        }
        // Of these nothing is known that speaks against it.
        ErrorKind::Tool
        | ErrorKind::Timeout
        | ErrorKind::Model(ModelErrorKind::Other)
        | ErrorKind::InvalidOutput
        | ErrorKind::Panic
        | ErrorKind::Store
        | ErrorKind::Other => true,
        _ => error.is_retryable(),
    }
}

impl ToolRetry {
    /// Two new tries.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many new tries.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// How long to wait before each. It is checked when a runner is built.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Only these tools are tried again; the others' failures pass.
    pub fn tools<N: Into<SmolStr>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Which failures are worth a new try; the others pass.
    pub fn retry_on(mut self, decide: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.retry_on = Arc::new(decide);
        self
    }

    /// When all tries are used up the last error is the call's.
    pub fn or_fail(mut self) -> Self {
        self.on_failure = OnFailure::Error;
        self
    }

    /// When all tries are used up the model is told this.
    pub fn or_say(mut self, words: impl Fn(&Error) -> String + Send + Sync + 'static) -> Self {
        self.on_failure = OnFailure::Continue(Arc::new(move |_, _, error| words(error)));
        self
    }

    fn give_up(&self, tool: &str, attempts: u32, error: Error) -> ToolResult {
        match &self.on_failure {
            OnFailure::Error => Err(error.into()),
            OnFailure::Continue(words) => {
                let value = json!({"error": words(tool, attempts, &error)});
                Ok(ToolOutput::from(ToolValue { is_error: true, ..value.into() }))
            }
        }
    }
}

impl Handler for ToolRetry {
    fn name(&self) -> &str {
        "tool_retry"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn check(&self) -> Result<()> {
        self.backoff.check()
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let (tool, run) = (call.name(), call.run());
        let covered = self.tools.as_ref().is_none_or(|names| names.iter().any(|name| name == tool));
        if !covered || call.tool.is_none() {
            return Work::later(next.call(call));
        }
        Work::later(async move {
            let mut retry = 0;
            loop {
                let made = match retry {
                    0 => next.call(call.clone()).await,
                    again => again_in_span(run, again, next.call(call.clone())).await,
                };
                let error = match made {
                    Ok(output) => return Ok(output),
                    Err(error) => error.into_error(),
                };
                if is_control(run, &error) || !(self.retry_on)(&error) {
                    return Err(error.into());
                }
                let delay =
                    if retry < self.max_retries { self.backoff.delay_after(retry, &error) } else { None };
                let Some(delay) = delay else { return self.give_up(tool, retry + 1, error) };
                pause(delay, run.cancel_token()).await?;
                retry += 1;
            }
        })
    }
}

/// A new try, in a span of its own.
async fn again_in_span(run: &Run, retry: u32, made: Guarded<'_, ToolResult>) -> ToolResult {
    let work = made.inspect_err(|error| {
        // Who asks a person has not failed.
        if !is_control(run, error.error()) {
            spans::record_error(error.error().kind().code());
        }
    });
    work.instrument(spans::retry(retry.saturating_add(1))).await
}

impl fmt::Debug for ToolRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolRetry")
            .field("max_retries", &self.max_retries)
            .field("backoff", &self.backoff)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
