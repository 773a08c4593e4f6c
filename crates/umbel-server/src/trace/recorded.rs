//! Traces that are recorded while runs happen.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;
use smol_str::SmolStr;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use umbel_core::RunId;

use super::{Kind, Span};

/// Where the runtime makes its spans.
const TARGET: &str = "umbel_runtime::spans";

/// How much is kept of what runs did. The run that began first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// Runs.
    pub runs: usize,
    /// Spans of one run. Those that come later are left out.
    pub spans: usize,
    /// Bytes of all of them, more or less.
    pub bytes: usize,
}

impl Default for TraceLimits {
    fn default() -> Self {
        Self { runs: 500, spans: 2_000, bytes: 16 * 1024 * 1024 }
    }
}

/// Records where the time of runs goes, for the [`trace`](crate::Server::traces) of a server. Clones share what is recorded.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// use umbel_server::{Server, Traces};
///
/// let traces = Traces::new();
/// let subscriber = tracing_subscriber::registry().with(traces.layer());
/// // With `subscriber.init()` all that the process does is recorded.
/// let server = Server::new().traces(traces);
/// # let _ = (subscriber, server);
/// ```
#[derive(Clone)]
pub struct Traces {
    kept: Arc<Mutex<Kept>>,
    limits: TraceLimits,
    /// One moment on both clocks.
    since: (Instant, f64),
}

#[derive(Default)]
struct Kept {
    runs: HashMap<SmolStr, Recorded>,
    /// The same, in the order in which they began.
    order: VecDeque<SmolStr>,
    bytes: usize,
}

#[derive(Default)]
struct Recorded {
    spans: Vec<Span>,
    bytes: usize,
}

/// Where a span is recorded.
#[derive(Clone)]
struct Place {
    run: SmolStr,
    index: usize,
    /// It stands there itself, and not one that it is a part of.
    is_own: bool,
    /// When it was last left.
    left: Option<f64>,
}

/// Where a span is recorded, by who records it: there may be several.
#[derive(Default)]
struct Places(SmallVec<[(usize, Place); 1]>);

impl Traces {
    /// Records with the usual limits.
    pub fn new() -> Self {
        Self::with_limits(TraceLimits::default())
    }

    /// Records with other limits.
    pub fn with_limits(limits: TraceLimits) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self { kept: Arc::default(), limits, since: (Instant::now(), unix) }
    }

    /// The layer that records, for a subscriber that is a registry of spans. It asks for the spans of runs alone, so that
    /// nothing else costs more than before.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let is_ours = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == TARGET;
        self.clone().with_filter(filter_fn(is_ours).with_max_level_hint(LevelFilter::DEBUG))
    }

    /// The spans of a run, as the log calls it; `None` if it was not recorded.
    pub(super) fn of_run(&self, run: &RunId) -> Option<Vec<Span>> {
        self.lock().runs.get(run.as_str()).map(|recorded| recorded.spans.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it from others.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.kept) as usize
    }

    /// Where a span is recorded here.
    fn place<'a, S: LookupSpan<'a>>(&self, span: &SpanRef<'a, S>) -> Option<Place> {
        let (extensions, id) = (span.extensions(), self.id());
        let places = extensions.get::<Places>()?;
        places.0.iter().find(|(of, _)| *of == id).map(|(_, place)| place.clone())
    }

    fn now(&self) -> f64 {
        self.since.1 + self.since.0.elapsed().as_secs_f64()
    }

    /// Records a span that begins, as part of another. Gives where it stands, or where the one stands that it is part of.
    fn begin(&self, above: Option<Place>, mut span: Span, run: Option<SmolStr>) -> Option<Place> {
        let run = above.as_ref().map(|above| above.run.clone()).or(run)?;
        let mut kept = self.lock();
        let recorded = kept.run(&run);
        if recorded.spans.len() >= self.limits.spans {
            if let Some(first) = recorded.spans.first_mut() {
                let left_out = first.attributes.get("leftOut").and_then(serde_json::Value::as_u64);
                first.set("leftOut", left_out.unwrap_or_default() + 1);
            }
            return above.map(|above| Place { is_own: false, ..above });
        }
        let is_root = |span: &Span| span.kind == Kind::Run && span.parent.is_none();
        // A hook may be called before the run's own span begins, and after it has ended.
        let root = || recorded.spans.iter().rposition(is_root).filter(|_| span.kind != Kind::Run);
        span.parent = above.map(|above| above.index).or_else(root);
        let (index, bytes) = (recorded.spans.len(), size(&span));
        recorded.spans.push(span);
        recorded.bytes += bytes;
        kept.bytes += bytes;
        while kept.order.len() > self.limits.runs || kept.bytes > self.limits.bytes && kept.order.len() > 1 {
            kept.forget_first();
        }
        Some(Place { run, index, is_own: true, left: None })
    }

    /// Changes a span that is recorded.
    fn change(&self, place: &Place, change: impl FnOnce(&mut Span)) {
        if !place.is_own {
            return;
        }
        let mut kept = self.lock();
        let Some(recorded) = kept.runs.get_mut(&place.run) else { return };
        let Some(span) = recorded.spans.get_mut(place.index) else { return };
        let before = size(span);
        change(span);
        let more = size(span).saturating_sub(before);
        recorded.bytes += more;
        kept.bytes += more;
    }
}

impl Traces {
    /// Ends a span. A run is not over before the last hook was called.
    fn end(&self, place: &Place, end: f64) {
        if !place.is_own {
            return;
        }
        let mut kept = self.lock();
        let Some(Recorded { spans, .. }) = kept.runs.get_mut(&place.run) else { return };
        let Some(span) = spans.get_mut(place.index) else { return };
        span.end = Some(end);
        let run =
            span.parent.and_then(|parent| spans.get_mut(parent)).filter(|above| above.kind == Kind::Run);
        if let Some(last) = run.and_then(|run| run.end.as_mut()) {
            *last = last.max(end);
        }
    }
}

impl Default for Traces {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        write!(f, "Traces({} runs, {} bytes)", kept.runs.len(), kept.bytes)
    }
}

impl Kept {
    fn run(&mut self, run: &SmolStr) -> &mut Recorded {
        if !self.runs.contains_key(run) {
            self.order.push_back(run.clone());
        }
        self.runs.entry(run.clone()).or_default()
    }

    fn forget_first(&mut self) {
        let first = self.order.pop_front().and_then(|run| self.runs.remove(&run));
        self.bytes = self.bytes.saturating_sub(first.map_or(0, |first| first.bytes));
    }
}

/// About how many bytes a span takes.
fn size(span: &Span) -> usize {
    let attributes = span.attributes.iter().map(|(key, value)| 64 + key.len() + value.to_string().len());
    size_of::<Span>() + span.name.len() + attributes.sum::<usize>()
}

/// What a span of the runtime stands for.
fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "invocation" => Kind::Run,
        "invoke_agent" => Kind::Agent,
        "chat" => Kind::Model,
        "execute_tool" => Kind::Tool,
        "handle" => Kind::Handler,
        _ => return None,
    })
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let (Some(kind), Some(span)) = (kind(attributes.metadata().name()), cx.span(id)) else { return };
        let above = span.scope().skip(1).find_map(|above| self.place(&above));
        let place = match above {
            // A run that works for a call is part of that call.
            Some(above) if kind == Kind::Run => Some(Place { is_own: false, ..above }),
            above => {
                let mut new = Span::new(kind, "", self.now());
                let mut filling = Filling { now: new.start, span: &mut new, run: None };
                attributes.record(&mut filling);
                let run = filling.run.take();
                self.begin(above, new, run)
            }
        };
        let Some(place) = place else { return };
        let mut extensions = span.extensions_mut();
        let mut places = extensions.remove::<Places>().unwrap_or_default();
        places.0.push((self.id(), place));
        extensions.replace(places);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, cx: Context<'_, S>) {
        let Some(place) = cx.span(id).and_then(|span| self.place(&span)) else { return };
        let now = self.now();
        self.change(&place, |span| values.record(&mut Filling { now, span, run: None }));
    }

    fn on_exit(&self, id: &Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let places = extensions.get_mut::<Places>().into_iter().flat_map(|places| &mut places.0);
        for (_, place) in places.filter(|(of, _)| *of == self.id()) {
            place.left = Some(self.now());
        }
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        let Some(place) = cx.span(&id).and_then(|span| self.place(&span)) else { return };
        // Who holds on to a span does not make it longer: what it stands for ended when it was last left.
        let end = place.left.unwrap_or_else(|| self.now());
        self.end(&place, end);
    }
}

/// Takes the fields of a span of the runtime.
struct Filling<'a> {
    now: f64,
    span: &'a mut Span,
    run: Option<SmolStr>,
}

impl Visit for Filling<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let span = &mut *self.span;
        match (field.name(), span.kind) {
            ("umbel.run.id", _) => self.run = Some(value.into()),
            ("gen_ai.agent.name", Kind::Agent)
            | ("gen_ai.request.model", _)
            | ("gen_ai.tool.name", _)
            | ("umbel.handler", _) => span.name = value.into(),
            ("gen_ai.agent.name", _) => span.set("agent", value),
            ("gen_ai.response.model", _) => {
                span.model = Some(value.into());
                span.set("model", value);
            }
            ("gen_ai.response.finish_reasons", _) => span.set("finishReason", value),
            ("gen_ai.tool.call.id", _) => span.set("callId", value),
            ("umbel.hook", _) => span.set("hook", value),
            ("umbel.branch", _) => span.set("branch", value),
            ("umbel.event.id", _) => span.event = Some(value.into()),
            ("error.type", _) => span.error = Some(value.into()),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let count = |usage: &mut umbel_core::Usage| match field.name() {
            "gen_ai.usage.input_tokens" => usage.prompt_token_count = Some(value),
            "gen_ai.usage.output_tokens" => usage.candidates_token_count = Some(value),
            "gen_ai.usage.cache_read.input_tokens" => usage.cached_content_token_count = Some(value),
            "gen_ai.usage.cache_creation.input_tokens" => usage.cache_write_token_count = Some(value),
            "gen_ai.usage.reasoning.output_tokens" => usage.thoughts_token_count = Some(value),
            _ => {}
        };
        if field.name().starts_with("gen_ai.usage.") {
            count(self.span.usage.get_or_insert_default());
        }
    }

    fn record_bool(&mut self, field: &Field, _: bool) {
        if field.name() == "umbel.first_piece" && !self.span.attributes.contains_key("firstToken") {
            let millis = ((self.now - self.span.start) * 1e6).round() / 1e3;
            self.span.set("firstToken", millis);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
