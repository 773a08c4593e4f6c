//! Which tool errors the model is told about.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use umbel_core::{Error, Handler, NextTool, Result, ToolCall, ToolContext, ToolError, ToolResult, ToolValue};
use umbel_macros::handler;

use crate::layers::at_end;

type Tell = Arc<dyn Fn(&ToolContext, &Error) -> Option<String> + Send + Sync>;

/// Turns chosen tool errors into results that the model sees; the others stay errors.
///
/// For runs that fail when a tool fails ([`ToolErrors::Fail`](umbel_core::ToolErrors::Fail)) but for some errors, and for
/// better words than the error's own.
///
/// ```
/// use umbel_core::ErrorKind;
/// use umbel_runtime::handlers::ToolErrorHandler;
///
/// let slow = ToolErrorHandler::when(|_cx, error| error.kind() == ErrorKind::Timeout);
/// let kind = ToolErrorHandler::tell(|cx, error| {
///     error.is_retryable().then(|| format!("`{}` is busy. Try again in a minute.", cx.tool_name()))
/// });
/// ```
#[derive(Clone)]
pub struct ToolErrorHandler(Tell);

impl ToolErrorHandler {
    /// The model is told of errors that this says yes to, in the error's own words.
    pub fn when<F>(is_told: F) -> Self
    where
        F: Fn(&ToolContext, &Error) -> bool + Send + Sync + 'static,
    {
        Self::tell(move |cx, error| is_told(cx, error).then(|| error.message().to_owned()))
    }

    /// The model is told what this gives; of other errors it is not told.
    pub fn tell<F>(words: F) -> Self
    where
        F: Fn(&ToolContext, &Error) -> Option<String> + Send + Sync + 'static,
    {
        Self(Arc::new(words))
    }

    fn judge(&self, cx: &ToolContext, end: Result<ToolValue, ToolError>) -> Result<ToolValue, ToolError> {
        end.or_else(|error| {
            if error.error().is_control() || cx.cancel_token().is_cancelled() {
                return Err(error);
            }
            (self.0)(cx, error.error()).map(ToolValue::error).ok_or(error)
        })
    }
}

#[handler(crate = umbel_core)]
impl Handler for ToolErrorHandler {
    fn name(&self) -> &str {
        "tool_error"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        // A stream outlives this call, so it gets a judge of its own.
        let (judge, cx) = (self.clone(), call.cx.clone());
        at_end(next.call(call).await, move |end| ready(judge.judge(&cx, end))).await
    }
}

impl fmt::Debug for ToolErrorHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ToolErrorHandler")
    }
}
