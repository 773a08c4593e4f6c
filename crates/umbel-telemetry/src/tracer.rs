//! Which trace work is a part of, for those who ask and those who are asked.

use std::any::Any;
use std::sync::Arc;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use umbel_core::{SpanContent, TraceContext, Tracer};

use crate::content::ContentCapture;
use crate::measure::Measure;

/// What knows of spans what `tracing` does not. It has nothing of its own: all that counts is the span that is entered, and the
/// subscriber that it is told to.
pub(crate) struct OpenTelemetry;

impl Tracer for OpenTelemetry {
    fn current(&self) -> Option<TraceContext> {
        let context = Context::current();
        let span = context.span();
        let here = Some(span.span_context()).filter(|here| here.is_valid())?;
        let flags = here.trace_flags().to_u8();
        let parent = format!("00-{}-{}-{flags:02x}", here.trace_id(), here.span_id());
        TraceContext::parse(&parent, Some(&here.trace_state().header()))
    }

    fn enter(&self, context: &TraceContext) -> Box<dyn Any> {
        let current = Context::current();
        // Whoever began a span here knows better what it is part of.
        match remote(context).filter(|_| !current.span().span_context().is_valid()) {
            Some(parent) => Box::new(current.with_remote_span_context(parent).attach()),
            None => Box::new(()),
        }
    }

    fn link(&self, earlier: &TraceContext) {
        if let Some(earlier) = remote(earlier) {
            Span::current().add_link(earlier);
        }
    }

    fn wants_content(&self) -> bool {
        capture().is_some()
    }

    fn take(&self, content: SpanContent<'_>) {
        let Some(capture) = capture() else { return };
        let context = Context::current();
        let span = context.span();
        if span.is_recording() {
            span.set_attributes(capture.attributes(content));
        }
    }
}

/// What is told of content to the subscriber of this thread, if anything is.
fn capture() -> Option<Arc<ContentCapture>> {
    tracing::dispatcher::get_default(|dispatch| dispatch.downcast_ref::<Measure>().and_then(Measure::capture))
}

/// The span that a request is part of.
fn remote(context: &TraceContext) -> Option<SpanContext> {
    let mut fields = context.traceparent().split('-').skip(1);
    let trace = TraceId::from_hex(fields.next()?).ok()?;
    let span = SpanId::from_hex(fields.next()?).ok()?;
    let flags = u8::from_str_radix(fields.next()?, 16).ok()?;
    let state: TraceState = context.tracestate().and_then(|state| state.parse().ok()).unwrap_or_default();
    // Later versions have more flags; what they mean is not known.
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}
