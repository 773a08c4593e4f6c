//! What tools answer, on its way through the handler.
//!
//! A tool's answer cannot stop the run by itself: errors of tools are the model's to deal with. So what must not pass is
//! hidden here, and the handler stops the run before the model is asked again.

use futures::{StreamExt, stream};
use serde_json::Value;
use smallvec::{SmallVec, smallvec};
use umbel_core::{BoxStream, Error, Run, ToolError, ToolItem, ToolOutput, ToolResult, ToolValue};

use super::Pii;
use super::memory::remember;
use super::redact::PiiBlocked;
use super::rules::{Rules, with_text};
use super::stream::StreamRedactor;

/// Redacts what a call gave.
pub(super) fn redacted(pii: &Pii, run: &Run, result: ToolResult) -> ToolResult {
    match result {
        Ok(ToolOutput::Value(value)) => Ok(ToolOutput::from(redacted_value(pii, run, *value))),
        Ok(ToolOutput::Stream(items)) => {
            Ok(ToolOutput::Stream(redacted_items(pii.clone(), run.clone(), items)))
        }
        Err(error) => Err(redacted_error(pii, run, error)),
    }
}

/// What the rules make of something. If they say that the run must stop, that is noted, and it is hidden.
fn hidden<T>(pii: &Pii, run: &Run, change: impl Fn(&Rules) -> Result<Option<T>, PiiBlocked>) -> Option<T> {
    change(&pii.rules.tool_results).unwrap_or_else(|blocked| {
        remember(run, pii.number, |memory| memory.blocked.get_or_insert(blocked).count);
        change(&pii.hiding.tool_results).ok().flatten()
    })
}

fn redacted_value(pii: &Pii, run: &Run, mut given: ToolValue) -> ToolValue {
    if let Some(value) = hidden(pii, run, |rules| rules.value(&given.value)) {
        given.value = value;
    }
    if let Some(metadata) = hidden(pii, run, |rules| rules.object(&given.metadata)) {
        given.metadata = metadata;
    }
    for part in &mut given.parts {
        if let Some(text) = part.as_text().and_then(|text| hidden(pii, run, |rules| rules.text(text))) {
            *part = with_text(part, text);
        }
    }
    given
}

/// The error, saying no more than an answer may: it becomes one.
fn redacted_error(pii: &Pii, run: &Run, error: ToolError) -> ToolError {
    if error.error().is_control() {
        return error;
    }
    let Some(message) = hidden(pii, run, |rules| rules.text(error.error().message())) else { return error };
    let redacted = Error::new(error.error().kind(), message);
    match error.error().retry_after() {
        Some(after) => redacted.with_retry_after(after).into(),
        None => redacted.into(),
    }
}

type Items = SmallVec<[Result<ToolItem, ToolError>; 1]>;

/// Redacts news and result of a streamed answer. News that are text are pieces of one text; any other stands for itself.
fn redacted_items(
    pii: Pii,
    run: Run,
    items: BoxStream<'static, Result<ToolItem, ToolError>>,
) -> BoxStream<'static, Result<ToolItem, ToolError>> {
    let mut text: Option<StreamRedactor> = None;
    let mut redact = move |item| -> Items {
        match item {
            Ok(ToolItem::Progress(Value::String(piece))) => {
                // News are short: nothing is held back but what may become a match.
                let redactor = text.get_or_insert_with(|| pii.hiding.tool_results.stream(0));
                progress(redactor.push(&piece)).into_iter().collect()
            }
            Ok(ToolItem::Progress(value)) => {
                let changed = pii.hiding.tool_results.value(&value).ok().flatten();
                smallvec![Ok(ToolItem::Progress(changed.unwrap_or(value)))]
            }
            Ok(ToolItem::Done(value)) => {
                let rest = text.take().and_then(|redactor| progress(redactor.finish()));
                let done = Ok(ToolItem::Done(redacted_value(&pii, &run, value)));
                rest.into_iter().chain([done]).collect()
            }
            Err(error) => smallvec![Err(redacted_error(&pii, &run, error))],
        }
    };
    Box::pin(items.flat_map(move |item| stream::iter(redact(item))))
}

/// News to be shown, if there are any.
fn progress(piece: umbel_core::Result<String>) -> Option<Result<ToolItem, ToolError>> {
    match piece {
        Ok(piece) => (!piece.is_empty()).then(|| Ok(ToolItem::Progress(Value::String(piece)))),
        Err(error) => Some(Err(error.into())),
    }
}
