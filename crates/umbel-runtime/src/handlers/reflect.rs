//! Has the model think about a failing tool call before it tries again.

use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    Error, ErrorKind, Handler, NextTool, Object, Result, Run, ToolCall, ToolContext, ToolError, ToolResult,
    ToolValue,
};
use umbel_macros::handler;

use crate::layers::at_end;
use crate::text;

/// The name under which a run keeps its counts, and the mark in the metadata of guidance.
const REFLECT_RETRY: &str = "reflect_retry";

type Judge = Arc<dyn Fn(&ToolContext, &ToolValue) -> Option<String> + Send + Sync>;

/// Answers a failing tool call with guidance: what went wrong, which failure this was, what to check before the next
/// try.
///
/// An error is a failure, and so is a result by which the tool says that it failed; [`failure_if`](Self::failure_if) says
/// it of other results. Failures are counted per tool, in each run anew, and a success sets the count back. Once a tool
/// has failed more often than it may, the run fails, whatever its policy on tool errors;
/// [`stop_when_exceeded`](Self::stop_when_exceeded) tells the model instead to do without the tool.
///
/// ```
/// use umbel_runtime::handlers::ReflectRetry;
///
/// let reflect = ReflectRetry::new()
///     .max_retries(2)
///     .failure_if(|_cx, value| (value.value["status"] == "failed").then(|| "the job failed".to_owned()));
/// ```
#[derive(Clone)]
pub struct ReflectRetry {
    max_retries: u32,
    stops: bool,
    failure_if: Option<Judge>,
    /// Counts over all runs, if that is wanted.
    global: Option<Arc<Mutex<Counts>>>,
}

/// Failures in a row, by tool.
type Counts = BTreeMap<SmolStr, u32>;

/// Held while the counts of a run are changed: calls of a turn are made at once.
#[derive(Default)]
struct Counting(Mutex<()>);

impl ReflectRetry {
    /// With three failures of a tool in a row that are put up with.
    pub fn new() -> Self {
        Self { max_retries: 3, stops: false, failure_if: None, global: None }
    }

    /// How many failures of a tool in a row are put up with.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// When a tool has failed too often, the model is told to do without it.
    pub fn stop_when_exceeded(mut self) -> Self {
        self.stops = true;
        self
    }

    /// Counts over all runs that the handler serves: a tool that is out of order is known to be so in the next run too.
    pub fn global(mut self) -> Self {
        self.global = Some(Arc::default());
        self
    }

    /// Says of a result that it is a failure, and what went wrong.
    pub fn failure_if<F>(mut self, judge: F) -> Self
    where
        F: Fn(&ToolContext, &ToolValue) -> Option<String> + Send + Sync + 'static,
    {
        self.failure_if = Some(Arc::new(judge));
        self
    }

    /// What becomes of a result or an error.
    fn judge(&self, cx: &ToolContext, end: Result<ToolValue, ToolError>) -> Result<ToolValue, ToolError> {
        let error = match end {
            // Another one further in has spoken already.
            Ok(value) if value.metadata.contains_key(REFLECT_RETRY) => return Ok(value),
            Ok(value) if value.is_error && concerns_a_person(cx) => return Ok(value),
            Ok(value) => match self.problem(cx, &value) {
                Some(problem) => Error::new(ErrorKind::Tool, problem),
                None => {
                    self.forget(cx)?;
                    return Ok(value);
                }
            },
            Err(error) => error.into_error(),
        };
        if error.is_control() || cx.cancel_token().is_cancelled() {
            return Err(error.into());
        }
        let failures = self.count(cx)?;
        if failures <= self.max_retries {
            let guidance = text::reflect(cx.tool_name(), failures, self.max_retries);
            return Ok(guide(&error, &guidance, failures, self.max_retries));
        }
        if self.stops {
            let guidance = text::reflect_exceeded(cx.tool_name(), self.max_retries);
            return Ok(guide(&error, &guidance, failures, self.max_retries));
        }
        let message = text::reflect_failed(cx.tool_name(), failures, error.message());
        Err(Error::new(ErrorKind::Handler, message).with_source(error).into())
    }

    /// What is wrong with a result, if anything is.
    fn problem(&self, cx: &ToolContext, value: &ToolValue) -> Option<String> {
        let judged = self.failure_if.as_ref().and_then(|judge| judge(cx, value));
        judged.or_else(|| {
            let said = value.value.get("error").unwrap_or(&value.value);
            value.is_error.then(|| umbel_core::json::render(said))
        })
    }

    /// Counts a failure.
    fn count(&self, cx: &ToolContext) -> Result<u32> {
        let mut failures = 0;
        self.change(cx.run(), |counts| {
            let count = counts.entry(cx.tool_name().into()).or_default();
            *count = count.saturating_add(1);
            failures = *count;
            true
        })?;
        Ok(failures)
    }

    /// Sets the count back.
    fn forget(&self, cx: &ToolContext) -> Result<()> {
        self.change(cx.run(), |counts| counts.remove(cx.tool_name()).is_some())
    }

    /// Changes the counts. `change` says whether there is anything to keep.
    fn change(&self, run: &Run, change: impl FnOnce(&mut Counts) -> bool) -> Result<()> {
        if let Some(global) = &self.global {
            change(&mut lock(global));
            return Ok(());
        }
        let counting = run.values().get_or_insert_with(Counting::default);
        let _held = lock(&counting.0);
        let mut counts = run.kept::<Counts>(REFLECT_RETRY)?.unwrap_or_default();
        if change(&mut counts) {
            run.keep(REFLECT_RETRY, &counts)?;
        }
        Ok(())
    }
}

impl Default for ReflectRetry {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a call was not made because a person is asked about it or said no: that is not for the model to mend.
fn concerns_a_person(cx: &ToolContext) -> bool {
    let rejected = cx.confirmation().is_some_and(|said| !said.confirmed);
    let mut asked = false;
    cx.actions(|actions| {
        let waiting = actions.requested_tool_confirmations.iter().flat_map(|asked| asked.keys());
        asked = waiting.into_iter().any(|id| Some(id) == cx.call_id());
    });
    rejected || asked
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the model is told.
fn guide(error: &Error, guidance: &str, failures: u32, max: u32) -> ToolValue {
    let value = json!({
        "error": error.message(),
        "error_kind": error.kind().code(),
        "attempt": failures,
        "max_attempts": max,
        "guidance": guidance,
    });
    let metadata = Object::from_iter([(REFLECT_RETRY.to_owned(), Value::from(failures))]);
    ToolValue { value, is_error: true, metadata, parts: Vec::new() }
}

#[handler(crate = umbel_core)]
impl Handler for ReflectRetry {
    fn name(&self) -> &str {
        REFLECT_RETRY
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        // A stream outlives this call, so it gets a judge of its own.
        let (judge, cx) = (self.clone(), call.cx.clone());
        at_end(next.call(call).await, move |end| ready(judge.judge(&cx, end))).await
    }
}

impl fmt::Debug for ReflectRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReflectRetry")
            .field("max_retries", &self.max_retries)
            .field("stops", &self.stops)
            .field("global", &self.global.is_some())
            .finish_non_exhaustive()
    }
}
