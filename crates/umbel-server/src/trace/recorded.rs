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
use umbel_core::conventions::{TARGET, attribute, span};

use super::{Kind, Span};

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
        span::INVOCATION => Kind::Run,
        span::INVOKE_AGENT | span::INVOKE_WORKFLOW => Kind::Agent,
        span::CHAT => Kind::Model,
        span::EXECUTE_TOOL => Kind::Tool,
        span::HANDLE => Kind::Handler,
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
                let mut filling = Filling { span: &mut new, run: None };
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
        self.change(&place, |span| values.record(&mut Filling { span, run: None }));
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
    span: &'a mut Span,
    run: Option<SmolStr>,
}

impl Visit for Filling<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let span = &mut *self.span;
        match (field.name(), span.kind) {
            (attribute::RUN, _) => self.run = Some(value.into()),
            (attribute::AGENT | attribute::WORKFLOW, Kind::Agent)
            | (attribute::REQUEST_MODEL, Kind::Model)
            | (attribute::TOOL, _)
            | (attribute::HANDLER, _) => span.name = value.into(),
            (attribute::AGENT, Kind::Model) => span.set("agent", value),
            (attribute::RESPONSE_MODEL, _) => {
                span.model = Some(value.into());
                span.set("model", value);
            }
            (attribute::FINISH_REASONS, _) => span.set("finishReason", value),
            (attribute::CALL_ID, _) => span.set("callId", value),
            (attribute::HOOK, _) => span.set("hook", value),
            (attribute::BRANCH, _) => span.set("branch", value),
            (attribute::EVENT, _) => span.event = Some(value.into()),
            (attribute::ERROR, _) => span.error = Some(value.into()),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        let (Kind::Model, Ok(value)) = (self.span.kind, u64::try_from(value)) else { return };
        let usage = &mut self.span.usage;
        match field.name() {
            attribute::INPUT_TOKENS => usage.get_or_insert_default().prompt_token_count = Some(value),
            attribute::OUTPUT_TOKENS => usage.get_or_insert_default().candidates_token_count = Some(value),
            attribute::CACHE_READ_TOKENS => {
                usage.get_or_insert_default().cached_content_token_count = Some(value);
            }
            attribute::CACHE_CREATION_TOKENS => {
                usage.get_or_insert_default().cache_write_token_count = Some(value);
            }
            // They come after those of the whole answer, which they are part of.
            attribute::REASONING_TOKENS => {
                let usage = usage.get_or_insert_default();
                usage.thoughts_token_count = Some(value);
                usage.candidates_token_count =
                    usage.candidates_token_count.map(|all| all.saturating_sub(value));
            }
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == attribute::FIRST_CHUNK && !self.span.attributes.contains_key("firstToken") {
            self.span.set("firstToken", (value * 1e6).round() / 1e3);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
