//! Another try for a call that failed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use smol_str::SmolStr;
use umbel_core::{
    Error, ErrorKind, Handler, Hooks, NextTool, ToolCall, ToolOutput, ToolResult, ToolValue, Work,
};

use super::limiter::seconds;
use super::{is_control, wait};
use crate::text;

/// How long to wait before each new try: longer each time, up to a bound, and never quite the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the first new try.
    pub initial: Duration,
    /// How much longer each time. Zero and one make all waits the same.
    pub factor: f64,
    /// The longest wait.
    pub max: Duration,
    /// Makes each wait up to a quarter shorter or longer, so that those who failed together do not return together.
    pub jitter: bool,
}

/// One second, twice as long each time, a minute at most, with jitter.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(60), jitter: true }
    }
}

impl Backoff {
    /// The wait before a new try, the first one being 0. `draw` is a number from 0 to 1 that decides the jitter.
    pub fn delay(&self, retry: u32, draw: f64) -> Duration {
        let growth = if self.factor == 0.0 { 1.0 } else { self.factor.powf(f64::from(retry)) };
        let delay = (self.initial.as_secs_f64() * growth).min(self.max.as_secs_f64());
        let jitter = if self.jitter { 0.25 * (2.0 * draw - 1.0) } else { 0.0 };
        seconds(delay * (1.0 + jitter))
    }
}

/// Tries a call again that failed.
///
/// By default twice, after one and two seconds, and whatever the failure is, except arguments that do not fit and what no
/// new try can change. An error that says when to try again is believed; if that is longer than the longest wait, there
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
    draw: Arc<dyn Fn() -> f64 + Send + Sync>,
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
            draw: Arc::new(fastrand::f64),
        }
    }
}

/// Whether a new try may end otherwise.
fn is_worth_a_retry(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::InvalidInput
            | ErrorKind::Build
            | ErrorKind::Unsupported
            | ErrorKind::Blocked
            | ErrorKind::ModelCallLimit
            | ErrorKind::DepthLimit
    )
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

    /// How long to wait before each.
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

    /// Where numbers from 0 to 1 come from that decide the jitter. For tests.
    pub fn draw(mut self, draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.draw = Arc::new(draw);
        self
    }

    /// How long to wait before a new try; `None` if there shall be none.
    fn delay(&self, retry: u32, error: &Error) -> Option<Duration> {
        let delay = self.backoff.delay(retry, (self.draw)());
        match error.retry_after() {
            Some(after) if after > self.backoff.max => None,
            Some(after) => Some(delay.max(after)),
            None => Some(delay),
        }
    }

    fn give_up(&self, tool: &str, attempts: u32, error: Error) -> ToolResult {
        match &self.on_failure {
            OnFailure::Error => Err(error.into()),
            OnFailure::Continue(words) => {
                let value = json!({"error": words(tool, attempts, &error)});
                Ok(ToolOutput::Value(ToolValue { is_error: true, ..value.into() }))
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

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let (tool, run) = (call.name(), call.run());
        let covered = self.tools.as_ref().is_none_or(|names| names.iter().any(|name| name == tool));
        if !covered || call.tool.is_none() {
            return Work::later(next.call(call));
        }
        Work::later(async move {
            let mut retry = 0;
            loop {
                let error = match next.call(call.clone()).await {
                    Ok(output) => return Ok(output),
                    Err(error) => error.into_error(),
                };
                if is_control(run, &error) || !(self.retry_on)(&error) {
                    return Err(error.into());
                }
                let delay = if retry < self.max_retries { self.delay(retry, &error) } else { None };
                let Some(delay) = delay else { return self.give_up(tool, retry + 1, error) };
                if !delay.is_zero() {
                    wait(run, tokio::time::sleep(delay)).await?;
                }
                retry += 1;
            }
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(backoff: Backoff, draw: f64, count: u32) -> Vec<f64> {
        (0..count).map(|retry| backoff.delay(retry, draw).as_secs_f64()).collect()
    }

    #[test]
    fn waits_grow_up_to_a_bound_and_vary_by_a_quarter() {
        let plain = Backoff { jitter: false, ..Backoff::default() };
        let seconds = Duration::from_secs_f64;
        assert_eq!(delays(plain, 0.5, 3), [1.0, 2.0, 4.0]);
        let grown = Backoff { initial: seconds(0.5), factor: 3.0, max: seconds(10.0), ..plain };
        assert_eq!(delays(grown, 0.5, 5), [0.5, 1.5, 4.5, 10.0, 10.0]);
        for factor in [0.0, 1.0] {
            assert_eq!(delays(Backoff { factor, ..plain }, 0.5, 3), [1.0; 3]);
        }
        assert_eq!(delays(Backoff { initial: seconds(5.0), max: seconds(1.5), ..plain }, 0.5, 2), [1.5, 1.5]);
        let jittered = Backoff { max: seconds(3.0), ..Backoff::default() };
        assert_eq!(delays(Backoff::default(), 0.0, 3), [0.75, 1.5, 3.0]);
        assert_eq!(delays(jittered, 1.0, 3), [1.25, 2.5, 3.75]);
    }

    #[test]
    fn numbers_that_make_no_sense_do_no_harm() {
        for factor in [-2.0, f64::NAN, f64::INFINITY, f64::MAX] {
            let backoff = Backoff { factor, max: Duration::MAX, ..Backoff::default() };
            for retry in [0, 1, 2, u32::MAX] {
                backoff.delay(retry, 2.0);
            }
        }
    }
}
