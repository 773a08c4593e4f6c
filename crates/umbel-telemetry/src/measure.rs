//! Metrics, from the same spans as traces: how long they took, and what models used.
//!
//! What a metric is split by is known beforehand: models, agents, tools, errors. Users and sessions are in no metric.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::metrics::{Counter, Histogram, Meter};
use opentelemetry::{Key, KeyValue, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use umbel_core::conventions::{OTHER, TARGET, attribute, metric, span};

use crate::content::ContentCapture;
use crate::telemetry::Conventions;

/// Seconds of model and tool calls, as the conventions cut them up.
const CALL_SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Those of agents.
const AGENT_SECONDS: [f64; 13] = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6];

/// Those of workflows.
const WORKFLOW_SECONDS: [f64; 11] = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];

/// Tokens, as the conventions cut them up.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// The layer that measures. It also holds what is told of content, so that whoever has the subscriber finds it.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    instruments: Arc<Instruments>,
    capture: Option<Arc<ContentCapture>>,
}

#[derive(Debug)]
struct Instruments {
    operation: Histogram<f64>,
    first_chunk: Histogram<f64>,
    per_chunk: Histogram<f64>,
    agent: Histogram<f64>,
    tool: Histogram<f64>,
    workflow: Histogram<f64>,
    tokens: TokenCount,
}

#[derive(Debug)]
enum TokenCount {
    Released(Histogram<u64>),
    Latest(Counter<u64>),
}

/// A span under way.
#[derive(Debug)]
struct Watched {
    name: &'static str,
    began: Instant,
    /// When it was last left: who holds on to a span does not make it longer.
    left: Option<Instant>,
    /// When the last piece of an answer came.
    piece: Option<Instant>,
    first_chunk: Option<f64>,
    /// Tokens in and out.
    tokens: [Option<u64>; 2],
    attributes: Vec<KeyValue>,
}

impl Measure {
    pub(crate) fn new(meter: &Meter, conventions: Conventions, capture: Option<Arc<ContentCapture>>) -> Self {
        let seconds = |buckets: &[f64], name: &'static str, description: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
            histogram.with_boundaries(buckets.to_vec()).build()
        };
        let calls = |name, description| seconds(&CALL_SECONDS, name, description);
        let tokens = match conventions {
            Conventions::Released => TokenCount::Released(
                meter
                    .u64_histogram(metric::TOKEN_USAGE)
                    .with_unit("{token}")
                    .with_description("Tokens that a model call took.")
                    .with_boundaries(TOKENS.to_vec())
                    .build(),
            ),
            Conventions::Latest => TokenCount::Latest(
                meter
                    .u64_counter(metric::INFERENCE_TOKENS)
                    .with_unit("{token}")
                    .with_description("Tokens that model calls took.")
                    .build(),
            ),
        };
        let instruments = Instruments {
            operation: calls(metric::OPERATION_DURATION, "How long model calls take."),
            first_chunk: calls(metric::FIRST_CHUNK, "How long it takes until an answer begins."),
            per_chunk: calls(metric::PER_CHUNK, "How long it takes until the next piece of an answer."),
            agent: seconds(&AGENT_SECONDS, metric::AGENT_DURATION, "How long agents work."),
            tool: calls(metric::TOOL_DURATION, "How long tool calls take."),
            workflow: seconds(
                &WORKFLOW_SECONDS,
                metric::WORKFLOW_DURATION,
                "How long agents work that run others.",
            ),
            tokens,
        };
        Self { instruments: Arc::new(instruments), capture }
    }

    /// What is told of content, if anything is.
    pub(crate) fn capture(&self) -> Option<Arc<ContentCapture>> {
        self.capture.clone()
    }

    /// Whether it is measured: the spans below, and the pieces of answers.
    pub(crate) fn wants(metadata: &Metadata<'_>) -> bool {
        let is_piece = metadata.is_event() && *metadata.level() == Level::TRACE;
        metadata.target() == TARGET
            && (is_piece || metadata.is_span() && !split_by(metadata.name()).is_empty())
    }
}

/// What the metrics of a span are split by; nothing if it is not measured.
fn split_by(name: &str) -> &'static [&'static str] {
    match name {
        span::CHAT => &[
            attribute::OPERATION,
            attribute::PROVIDER,
            attribute::REQUEST_MODEL,
            attribute::RESPONSE_MODEL,
            attribute::SERVER_ADDRESS,
            attribute::SERVER_PORT,
            attribute::ERROR,
        ],
        span::INVOKE_AGENT => &[attribute::AGENT, attribute::REQUEST_MODEL, attribute::ERROR],
        span::INVOKE_WORKFLOW => &[attribute::WORKFLOW, attribute::ERROR],
        span::EXECUTE_TOOL => &[attribute::TOOL, attribute::TOOL_TYPE, attribute::AGENT, attribute::ERROR],
        _ => &[],
    }
}

impl Watched {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            began: Instant::now(),
            left: None,
            piece: None,
            first_chunk: None,
            tokens: [None; 2],
            attributes: Vec::new(),
        }
    }

    fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if !split_by(self.name).contains(&name) {
            return;
        }
        let value = value.into();
        match self.attributes.iter_mut().find(|attribute| attribute.key.as_str() == name) {
            Some(attribute) => attribute.value = value,
            None => self.attributes.push(KeyValue::new(Key::from_static_str(name), value)),
        }
    }

    /// A piece of the answer came. Gives how long after the one before it.
    fn next_piece(&mut self) -> Option<Duration> {
        let now = Instant::now();
        self.piece.replace(now).map(|last| now - last)
    }

    fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|attribute| attribute.key.as_str() == name)
    }

    /// What it came to, once it is over.
    fn record(mut self, instruments: &Instruments) {
        let end = self.left.unwrap_or_else(Instant::now);
        let seconds = end.saturating_duration_since(self.began).as_secs_f64();
        match self.name {
            span::CHAT => self.record_model_call(instruments, seconds),
            span::INVOKE_AGENT => instruments.agent.record(seconds, &self.attributes),
            span::INVOKE_WORKFLOW => instruments.workflow.record(seconds, &self.attributes),
            _ => {
                if !self.has(attribute::TOOL_TYPE) {
                    self.set(attribute::TOOL, OTHER);
                }
                instruments.tool.record(seconds, &self.attributes);
            }
        }
    }

    fn record_model_call(mut self, instruments: &Instruments, seconds: f64) {
        instruments.operation.record(seconds, &self.attributes);
        // How a call ended is no part of the rest.
        self.attributes.retain(|attribute| attribute.key.as_str() != attribute::ERROR);
        if let Some(first) = self.first_chunk {
            instruments.first_chunk.record(first, &self.attributes);
        }
        let [input, output] = self.tokens;
        for (kind, count) in [("input", input), ("output", output)] {
            let Some(count) = count else { continue };
            let mut attributes = self.attributes.clone();
            attributes.push(KeyValue::new(attribute::TOKEN_TYPE, kind));
            match &instruments.tokens {
                TokenCount::Released(histogram) => histogram.record(count, &attributes),
                TokenCount::Latest(counter) => counter.add(count, &attributes),
            }
        }
    }
}

impl Visit for Watched {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        let [input, output] = &mut self.tokens;
        match field.name() {
            attribute::INPUT_TOKENS => *input = u64::try_from(value).ok(),
            attribute::OUTPUT_TOKENS => *output = u64::try_from(value).ok(),
            name => self.set(name, value),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == attribute::FIRST_CHUNK {
            self.first_chunk = Some(value);
            self.next_piece();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Measure {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let mut watched = Watched::new(attributes.metadata().name());
        attributes.record(&mut watched);
        span.extensions_mut().replace(watched);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        if let Some(watched) = span.extensions_mut().get_mut::<Watched>() {
            values.record(watched);
        }
    }

    fn on_event(&self, event: &Event<'_>, cx: Context<'_, S>) {
        let Some(span) = cx.event_span(event) else { return };
        let mut extensions = span.extensions_mut();
        // Lines about tool calls may be as detailed as pieces of answers.
        let Some(watched) = extensions.get_mut::<Watched>().filter(|watched| watched.name == span::CHAT)
        else {
            return;
        };
        if let Some(pause) = watched.next_piece() {
            self.instruments.per_chunk.record(pause.as_secs_f64(), &watched.attributes);
        }
    }

    fn on_exit(&self, id: &Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        if let Some(watched) = span.extensions_mut().get_mut::<Watched>() {
            watched.left = Some(Instant::now());
        }
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        let watched = cx.span(&id).and_then(|span| span.extensions_mut().remove::<Watched>());
        if let Some(watched) = watched {
            watched.record(&self.instruments);
        }
    }
}
