//! One line per call, however it ended.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{Instrument, Level, Span};
use umbel_core::{
    CallId, Error, Handler, Hooks, NextTool, Object, Result, Run, ToolCall, ToolError, ToolOutput,
    ToolResult, ToolValue, Work,
};

use super::masked::{Pointer, show_object, show_value};
use super::{at_end, is_control};
use crate::spans;

/// Logs one line for each call, with `tracing`: what was called with what, what it gave, how long it took. The call runs in
/// a span of its own.
///
/// Every way out is logged: a result, a failure, a question to a person, a run that was stopped, a panic. Success is INFO
/// and failure ERROR; what is neither is INFO too. Arguments and results are cut at 1 KiB.
#[derive(Clone, Debug, Default)]
pub struct Logging {
    options: Arc<Options>,
}

#[derive(Clone)]
struct Options {
    input: bool,
    output: bool,
    max_bytes: usize,
    level: Level,
    failure_level: Level,
    masks: Vec<Pointer>,
    sink: Option<Arc<dyn Fn(&CallLog<'_>) + Send + Sync>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            input: true,
            output: true,
            max_bytes: 1 << 10,
            level: Level::INFO,
            failure_level: Level::ERROR,
            masks: Vec::new(),
            sink: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("input", &self.input)
            .field("output", &self.output)
            .field("max_bytes", &self.max_bytes)
            .field("masks", &self.masks)
            .finish_non_exhaustive()
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// With a result.
    Success,
    /// With an error, or a result that says it is one.
    Failure,
    /// With a question to a person.
    Interrupted,
    /// The run was stopped, or nobody waited for the result any more.
    Cancelled,
    /// With a panic.
    Panicked,
}

impl Ending {
    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::Panicked => "panicked",
        }
    }
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct CallLog<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// The call's id.
    pub call_id: Option<&'a CallId>,
    /// How it ended.
    pub ending: Ending,
    /// How long it took.
    pub duration: Duration,
    /// The arguments as JSON, cut and redacted.
    pub args: Option<String>,
    /// The result as JSON, cut and redacted.
    pub result: Option<String>,
    /// Why it failed.
    pub error: Option<&'a str>,
}

impl Logging {
    /// Logs everything, at INFO and ERROR.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(Arc::make_mut(&mut self.options));
        self
    }

    /// Hands each line to this, in the place of `tracing`.
    pub fn sink(self, sink: impl Fn(&CallLog<'_>) + Send + Sync + 'static) -> Self {
        self.with(|options| options.sink = Some(Arc::new(sink)))
    }

    /// Leaves the arguments out.
    pub fn without_input_logging(self) -> Self {
        self.with(|options| options.input = false)
    }

    /// Leaves the results out.
    pub fn without_output_logging(self) -> Self {
        self.with(|options| options.output = false)
    }

    /// Cuts arguments and results at so many bytes.
    pub fn max_arg_bytes(self, max: usize) -> Self {
        self.with(|options| options.max_bytes = max)
    }

    /// Masks what stands at a JSON pointer, such as `/user/password`, in arguments and results. `*` stands for any key.
    pub fn redact(self, pointer: &str) -> Self {
        self.with(|options| options.masks.push(Pointer::parse(pointer)))
    }

    /// The level of calls that did not fail.
    pub fn level(self, level: Level) -> Self {
        self.with(|options| options.level = level)
    }

    /// The level of calls that failed.
    pub fn failure_level(self, level: Level) -> Self {
        self.with(|options| options.failure_level = level)
    }
}

/// A call that is on its way. Logs its end, be it that it is dropped.
struct Log {
    options: Arc<Options>,
    span: Span,
    run: Run,
    tool: SmolStr,
    call_id: Option<CallId>,
    args: Arc<Object>,
    started: Instant,
    ended: bool,
}

impl Log {
    fn end(&mut self, end: &Result<ToolValue, ToolError>) {
        let ending = match end {
            Ok(value) if value.is_error => Ending::Failure,
            Ok(_) => Ending::Success,
            Err(error) => self.ending_of(error.error()),
        };
        self.write(ending, end.as_ref().ok(), end.as_ref().err().map(|error| error.error().message()));
    }

    fn ending_of(&self, error: &Error) -> Ending {
        match error.kind() {
            umbel_core::ErrorKind::Interrupted => Ending::Interrupted,
            _ if error.is_panic() => Ending::Panicked,
            _ if is_control(&self.run, error) => Ending::Cancelled,
            _ => Ending::Failure,
        }
    }

    fn write(&mut self, ending: Ending, value: Option<&ToolValue>, error: Option<&str>) {
        self.ended = true;
        let Options { input, output, max_bytes, level, failure_level, masks, sink } = &*self.options;
        let failed = matches!(ending, Ending::Failure | Ending::Panicked);
        let level = if failed { *failure_level } else { *level };
        // Nothing is put in words that nobody reads.
        if sink.is_none() && !spans::is_enabled(level) {
            return;
        }
        let line = CallLog {
            tool: &self.tool,
            call_id: self.call_id.as_ref(),
            ending,
            duration: self.started.elapsed(),
            args: input.then(|| show_object(&self.args, masks, *max_bytes)),
            result: value.filter(|_| *output).map(|value| show_value(&value.value, masks, *max_bytes)),
            error,
        };
        match sink {
            Some(sink) => sink(&line),
            None => self.span.in_scope(|| spans::log_call(level, &line)),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if !self.ended {
            let ending = if std::thread::panicking() { Ending::Panicked } else { Ending::Cancelled };
            self.write(ending, None, None);
        }
    }
}

impl Handler for Logging {
    fn name(&self) -> &str {
        "logging"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let span = spans::logged_call(&call);
        let mut log = Log {
            options: self.options.clone(),
            span: span.clone(),
            run: call.run().clone(),
            tool: call.name().into(),
            call_id: call.id().cloned(),
            args: call.args.clone(),
            started: Instant::now(),
            ended: false,
        };
        Work::later(async move {
            let result = match next.call(call).instrument(span.clone()).await {
                // What the stream does belongs to the span too.
                Ok(ToolOutput::Stream(mut items)) => {
                    let items =
                        futures::stream::poll_fn(move |cx| span.in_scope(|| items.poll_next_unpin(cx)));
                    Ok(ToolOutput::Stream(Box::pin(items)))
                }
                result => result,
            };
            at_end(result, move |end| {
                log.end(&end);
                ready(end)
            })
            .await
        })
    }
}
