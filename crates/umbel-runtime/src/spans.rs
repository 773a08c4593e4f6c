//! Spans of a run: invocation, agent, model call, tool call, and hooks of handlers for those who want details. Their names
//! and those of their fields are in [`conventions`](umbel_core::conventions).

use std::time::Instant;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, field};
use umbel_core::conventions::{attribute, span};
use umbel_core::{
    AgentKind, Content, EventId, FunctionCall, GenerateConfig, Handler, Model, ModelRequest, Provider,
    Response, Run, RunId, SpanContent, ToolCall, ToolSpec, TraceContext, Tracer,
};

use crate::layers::{CallLog, Ending};

/// Whether anybody listens at all. It is one look at a number, so that it can be asked everywhere.
#[inline]
pub(crate) fn is_heard() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Whether anybody may want details: which handlers are asked. Nobody is asked about it: with filters for each layer that
/// would be taken for the answer about the span that comes next.
#[inline]
pub(crate) fn is_detailed() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Where a run keeps which span is its own, so that who goes on with it in another process knows. Its id follows.
pub(crate) const KEPT_TRACE: &str = "umbel.trace:";

/// A run. It is part of the trace that its configuration names, if there is one.
pub(crate) fn invocation(run: &Run) -> Span {
    if !is_heard() {
        return Span::none();
    }
    let earlier = resumed(run);
    let begin = || {
        tracing::info_span!(
            span::INVOCATION,
            { attribute::CONVERSATION } = run.session_key().id(),
            { attribute::RUN } = run.id().as_str(),
            { attribute::RESUMES } = earlier.as_ref().map(RunId::as_str),
            { attribute::ERROR } = field::Empty,
        )
    };
    let span = match run.config().extensions.get::<TraceContext>() {
        Some(context) => context.within(begin),
        None => begin(),
    };
    if let Some(tracer) = umbel_core::tracer() {
        span.in_scope(|| link(tracer, run, earlier.as_ref()));
    }
    span
}

/// Links the span of a run, which is entered, to that of the one it goes on with, and keeps which it is. A run that was cut
/// short has kept its own.
fn link(tracer: &dyn Tracer, run: &Run, earlier: Option<&RunId>) {
    for earlier in earlier.into_iter().chain([run.id()]) {
        // What nobody can read is no reason to fail.
        let kept = run.kept::<String>(&format!("{KEPT_TRACE}{earlier}")).ok().flatten();
        if let Some(context) = kept.and_then(|parent| TraceContext::parse(&parent, None)) {
            tracer.link(&context);
        }
    }
    if let Some(context) = tracer.current() {
        // A text always has a JSON form.
        let _ = run.keep(format!("{KEPT_TRACE}{}", run.id()), &context.traceparent());
    }
}

/// The run that this one goes on with under a name of its own: the one that asked what people answer now, or the last one if there
/// is no message.
fn resumed(run: &Run) -> Option<RunId> {
    let events = run.events();
    let last = events.last()?;
    if last.run != *run.id() {
        return Some(last.run.clone());
    }
    let answered = run.input()?.responses().next()?.id.as_ref();
    let asked = events.iter().rev().find(|event| event.calls().any(|call| call.id.as_ref() == answered))?;
    Some(asked.run.clone()).filter(|earlier| earlier != run.id())
}

/// An agent at work. One that runs others is a workflow.
pub(crate) fn agent(run: &Run) -> Span {
    if !is_heard() {
        return Span::none();
    }
    let Ok(node) = run.node() else { return Span::none() };
    let (branch, conversation) = (run.source().branch.as_deref(), run.session_key().id());
    if matches!(node.agent.kind(), AgentKind::Sequential | AgentKind::Parallel | AgentKind::Loop) {
        return tracing::info_span!(
            span::INVOKE_WORKFLOW,
            { attribute::OPERATION } = span::INVOKE_WORKFLOW,
            { attribute::WORKFLOW } = run.agent_name().as_str(),
            { attribute::CONVERSATION } = conversation,
            { attribute::BRANCH } = branch,
            { attribute::ERROR } = field::Empty,
        );
    }
    let description = node.agent.description();
    let model = crate::models::model_of(run).map(|model| (model.provider().name, model.name()));
    tracing::info_span!(
        span::INVOKE_AGENT,
        { attribute::OPERATION } = span::INVOKE_AGENT,
        { attribute::PROVIDER } = model.map(|(provider, _)| provider),
        { attribute::REQUEST_MODEL } = model.map(|(_, model)| model),
        { attribute::AGENT } = run.agent_name().as_str(),
        { attribute::AGENT_ID } = %format_args!("{}/{}", run.session_key().app(), run.agent_name()),
        { attribute::AGENT_DESCRIPTION } = Some(description).filter(|words| !words.is_empty()),
        { attribute::CONVERSATION } = conversation,
        { attribute::BRANCH } = branch,
        { attribute::ERROR } = field::Empty,
    )
}

/// A model call, and when it began.
#[derive(Clone)]
pub(crate) struct ModelSpan {
    span: Span,
    began: Instant,
    is_streamed: bool,
}

/// A model call; `None` if nobody wants to know.
pub(crate) fn model_call(run: &Run, model: &dyn Model, request: &ModelRequest) -> Option<ModelSpan> {
    if !is_heard() {
        return None;
    }
    let GenerateConfig { temperature, top_p, top_k, max_output_tokens, seed, .. } = &*request.config;
    let GenerateConfig { frequency_penalty, presence_penalty, stop_sequences, .. } = &*request.config;
    let Provider { name, server } = model.provider();
    let is_json = request.output_schema.is_some()
        || request.config.response_mime_type.as_deref() == Some("application/json");
    let span = tracing::info_span!(
        span::CHAT,
        { attribute::OPERATION } = span::CHAT,
        { attribute::PROVIDER } = name,
        { attribute::REQUEST_MODEL } = request.model.as_str(),
        { attribute::REQUEST_STREAM } = request.stream.then_some(true),
        { attribute::TEMPERATURE } = *temperature,
        { attribute::TOP_P } = *top_p,
        { attribute::TOP_K } = top_k.map(f64::from),
        { attribute::MAX_TOKENS } = max_output_tokens.map(i64::from),
        { attribute::SEED } = *seed,
        { attribute::STOP_SEQUENCES } = listed(stop_sequences),
        { attribute::FREQUENCY_PENALTY } = *frequency_penalty,
        { attribute::PRESENCE_PENALTY } = *presence_penalty,
        { attribute::OUTPUT_TYPE } = is_json.then_some("json"),
        { attribute::AGENT } = run.agent_name().as_str(),
        { attribute::CONVERSATION } = run.session_key().id(),
        { attribute::SERVER_ADDRESS } = server.map(|(host, _)| host),
        { attribute::SERVER_PORT } = server.map(|(_, port)| i64::from(port)),
        { attribute::RESPONSE_ID } = field::Empty,
        { attribute::RESPONSE_MODEL } = field::Empty,
        { attribute::FINISH_REASONS } = field::Empty,
        { attribute::FIRST_CHUNK } = field::Empty,
        { attribute::INPUT_TOKENS } = field::Empty,
        { attribute::OUTPUT_TOKENS } = field::Empty,
        { attribute::CACHE_READ_TOKENS } = field::Empty,
        { attribute::CACHE_CREATION_TOKENS } = field::Empty,
        { attribute::REASONING_TOKENS } = field::Empty,
        { attribute::EVENT } = field::Empty,
        { attribute::ERROR } = field::Empty,
    );
    if span.is_disabled() {
        return None;
    }
    span.in_scope(|| said(SpanContent::Request(request)));
    Some(ModelSpan { span, began: Instant::now(), is_streamed: request.stream })
}

/// A list as a field can hold it.
fn listed(texts: &[String]) -> Option<String> {
    if texts.is_empty() { None } else { serde_json::to_string(texts).ok() }
}

impl ModelSpan {
    /// The span itself.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// What happens in `work` happens in the span.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    /// Notes what a model told about its answer.
    pub(crate) fn record_response(&self, response: &Response) {
        let Some(meta) = &response.meta else { return };
        let span = &self.span;
        if let Some(id) = meta.unknown.get("responseId").and_then(serde_json::Value::as_str) {
            span.record(attribute::RESPONSE_ID, id);
        }
        if let Some(model) = &meta.model_version {
            span.record(attribute::RESPONSE_MODEL, model.as_str());
        }
        if let Some(reason) = &meta.finish_reason {
            span.record(attribute::FINISH_REASONS, reason.as_str());
        }
        if let Some(code) = &meta.error_code {
            span.record(attribute::ERROR, code.as_str());
        }
        let Some(usage) = &meta.usage_metadata else { return };
        // The conventions count thoughts as output.
        let output = [usage.candidates_token_count, usage.thoughts_token_count].into_iter().flatten();
        for (name, count) in [
            (attribute::INPUT_TOKENS, usage.prompt_token_count),
            (attribute::OUTPUT_TOKENS, output.reduce(u64::saturating_add)),
            (attribute::CACHE_READ_TOKENS, usage.cached_content_token_count),
            (attribute::CACHE_CREATION_TOKENS, usage.cache_write_token_count),
            (attribute::REASONING_TOKENS, usage.thoughts_token_count),
        ] {
            if let Some(count) = count.and_then(|count| i64::try_from(count).ok()) {
                span.record(name, count);
            }
        }
    }

    /// Notes that a piece of the answer came, if it was to come in pieces.
    pub(crate) fn record_piece(&self, is_first: bool) {
        if !self.is_streamed {
            return;
        }
        if is_first {
            self.span.record(attribute::FIRST_CHUNK, self.began.elapsed().as_secs_f64());
        } else {
            // A field that is recorded again and again would grow in every log.
            tracing::trace!(parent: &self.span, "a piece came");
        }
    }

    /// Notes which event an answer became.
    pub(crate) fn record_event(&self, event: &EventId) {
        self.span.record(attribute::EVENT, event.as_str());
    }

    /// Hands on what the model answered, if anybody takes it. Only then the span is entered once more, since that makes it
    /// longer.
    pub(crate) fn take_answer(&self, content: &Content, finish_reason: Option<&str>) {
        if umbel_core::tracer().is_some_and(|tracer| tracer.wants_content()) {
            self.within(|| said(SpanContent::Answer { content, finish_reason }));
        }
    }

    /// Notes a failure.
    pub(crate) fn record_error(&self, code: &str) {
        record_error_in(&self.span, code);
    }
}

/// Hands what is said in the span that is entered now to who was told to take it. It never is a field.
#[inline]
pub(crate) fn said(said: SpanContent<'_>) {
    if let Some(tracer) = umbel_core::tracer() {
        tracer.take(said);
    }
}

/// A hook of a handler. Some are called before a run's span begins, or after it has ended.
pub(crate) fn handler(run: &Run, handler: &dyn Handler, hook: &'static str) -> Span {
    tracing::debug_span!(
        span::HANDLE,
        { attribute::RUN } = run.id().as_str(),
        { attribute::HANDLER } = handler.name(),
        { attribute::HOOK } = hook,
        { attribute::ERROR } = field::Empty,
    )
}

/// A tool call. Arguments and results are content, and content stays out of fields.
pub(crate) fn tool_call(run: &Run, call: &FunctionCall, spec: Option<&ToolSpec>) -> Span {
    tracing::info_span!(
        span::EXECUTE_TOOL,
        { attribute::OPERATION } = span::EXECUTE_TOOL,
        { attribute::TOOL } = call.name.as_str(),
        { attribute::CALL_ID } = call.id.as_ref().map(|id| id.as_str()),
        { attribute::TOOL_TYPE } = spec.map(|_| "function"),
        { attribute::TOOL_DESCRIPTION } =
            spec.map(|spec| spec.description.as_str()).filter(|words| !words.is_empty()),
        { attribute::AGENT } = run.agent_name().as_str(),
        { attribute::ERROR } = field::Empty,
    )
}

/// Another try of a tool call.
pub(crate) fn retry(attempt: u32) -> Span {
    tracing::info_span!(
        span::RETRY,
        { attribute::ATTEMPT } = i64::from(attempt),
        { attribute::ERROR } = field::Empty
    )
}

/// Notes a failure in the current span.
pub(crate) fn record_error(code: &str) {
    record_error_in(&Span::current(), code);
}

/// Notes a failure in a span.
pub(crate) fn record_error_in(span: &Span, code: &str) {
    span.record(attribute::ERROR, code);
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
