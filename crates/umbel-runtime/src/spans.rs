//! Spans of a run: invocation, agent, model call, tool call, and hooks of handlers for those who want details. Field names
//! are those of the GenAI conventions, and they stand here and nowhere else.

use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, field};
use umbel_core::{EventId, FunctionCall, Handler, ModelRequest, Response, Run, ToolCall};

use crate::layers::{CallLog, Ending};

/// Whether anybody may want details: which handlers are asked, when a model begins to answer, and with which event. It is
/// one look at a number, so that it can be asked everywhere.
#[inline]
pub(crate) fn is_detailed() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// A run.
pub(crate) fn invocation(run: &Run) -> Span {
    tracing::info_span!(
        "invocation",
        "gen_ai.conversation.id" = run.session_key().id(),
        "umbel.run.id" = run.id().as_str(),
    )
}

/// An agent at work.
pub(crate) fn agent(run: &Run) -> Span {
    tracing::info_span!(
        "invoke_agent",
        "otel.name" = field::Empty,
        "gen_ai.operation.name" = "invoke_agent",
        "gen_ai.agent.name" = run.agent_name().as_str(),
        "gen_ai.conversation.id" = run.session_key().id(),
        "umbel.branch" = run.source().branch.as_deref(),
        "error.type" = field::Empty,
    )
}

/// A model call.
pub(crate) fn model_call(run: &Run, request: &ModelRequest) -> Span {
    tracing::info_span!(
        "chat",
        "gen_ai.operation.name" = "chat",
        "gen_ai.request.model" = request.model.as_str(),
        "gen_ai.request.stream" = request.stream,
        "gen_ai.agent.name" = run.agent_name().as_str(),
        "gen_ai.conversation.id" = run.session_key().id(),
        "gen_ai.response.model" = field::Empty,
        "gen_ai.response.finish_reasons" = field::Empty,
        "gen_ai.usage.input_tokens" = field::Empty,
        "gen_ai.usage.output_tokens" = field::Empty,
        "gen_ai.usage.cache_read.input_tokens" = field::Empty,
        "gen_ai.usage.cache_creation.input_tokens" = field::Empty,
        "gen_ai.usage.reasoning.output_tokens" = field::Empty,
        "umbel.first_piece" = field::Empty,
        "umbel.event.id" = field::Empty,
        "error.type" = field::Empty,
    )
}

/// Notes what a model told about its answer in the span of its call.
pub(crate) fn record_response(span: &Span, response: &Response) {
    let Some(meta) = &response.meta else { return };
    if span.is_disabled() {
        return;
    }
    if let Some(model) = &meta.model_version {
        span.record("gen_ai.response.model", model.as_str());
    }
    if let Some(reason) = &meta.finish_reason {
        span.record("gen_ai.response.finish_reasons", reason.as_str());
    }
    if let Some(code) = &meta.error_code {
        span.record("error.type", code.as_str());
    }
    let Some(usage) = &meta.usage_metadata else { return };
    for (name, count) in [
        ("gen_ai.usage.input_tokens", usage.prompt_token_count),
        ("gen_ai.usage.output_tokens", usage.candidates_token_count),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_content_token_count),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_token_count),
        ("gen_ai.usage.reasoning.output_tokens", usage.thoughts_token_count),
    ] {
        if let Some(count) = count {
            span.record(name, count);
        }
    }
}

/// Notes that a model has begun to answer in the span of its call.
pub(crate) fn record_first_piece(span: &Span) {
    span.record("umbel.first_piece", true);
}

/// Notes which event an answer became in the span of its call.
pub(crate) fn record_event(span: &Span, event: &EventId) {
    span.record("umbel.event.id", event.as_str());
}

/// A hook of a handler. Some are called before a run's span begins, or after it has ended.
pub(crate) fn handler(run: &Run, handler: &dyn Handler, hook: &'static str) -> Span {
    tracing::debug_span!(
        "handle",
        "umbel.run.id" = run.id().as_str(),
        "umbel.handler" = handler.name(),
        "umbel.hook" = hook,
        "error.type" = field::Empty,
    )
}

/// A tool call. Arguments and results are content, and content stays out of spans.
pub(crate) fn tool_call(call: &FunctionCall) -> Span {
    tracing::info_span!(
        "execute_tool",
        "gen_ai.operation.name" = "execute_tool",
        "gen_ai.tool.name" = call.name.as_str(),
        "gen_ai.tool.call.id" = call.id.as_ref().map_or("", |id| id.as_str()),
        "gen_ai.tool.type" = "function",
        "error.type" = field::Empty,
    )
}

/// Notes a failure in the current span.
pub(crate) fn record_error(code: &str) {
    Span::current().record("error.type", code);
}

/// A call that is logged: nothing of what it is about, only which it is.
pub(crate) fn logged_call(call: &ToolCall<'_>) -> Span {
    tracing::info_span!("tool", tool = call.name(), call_id = call.id().map_or("", |id| id.as_str()))
}

/// Whether anyone listens at that level.
pub(crate) fn is_enabled(level: Level) -> bool {
    match level {
        Level::ERROR => tracing::enabled!(Level::ERROR),
        Level::WARN => tracing::enabled!(Level::WARN),
        Level::INFO => tracing::enabled!(Level::INFO),
        Level::DEBUG => tracing::enabled!(Level::DEBUG),
        Level::TRACE => tracing::enabled!(Level::TRACE),
    }
}

/// The line of a call that is logged.
pub(crate) fn log_call(level: Level, line: &CallLog<'_>) {
    /// The level of an event is part of its place in the code, so there is one place for each.
    macro_rules! log {
        ($($level:ident),*) => {
            match level {
                $(Level::$level => tracing::event!(
                    Level::$level,
                    tool = line.tool,
                    call_id = line.call_id.map(|id| id.as_str()),
                    success = line.ending == Ending::Success,
                    ending = line.ending.name(),
                    duration_ms = u64::try_from(line.duration.as_millis()).unwrap_or(u64::MAX),
                    args = line.args.as_deref(),
                    result = line.result.as_deref(),
                    error = line.error,
                    "tool call ended"
                ),)*
            }
        };
    }
    log!(ERROR, WARN, INFO, DEBUG, TRACE);
}
