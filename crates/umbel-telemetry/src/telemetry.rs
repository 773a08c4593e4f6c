//! How telemetry is set up, and what is handed to `tracing`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use http::Uri;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{InstrumentationScope, Key};
use opentelemetry_http::HttpClient;
use opentelemetry_otlp::{
    MetricExporter, Protocol, SpanExporter as OtlpSpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{MeterProviderBuilder, SdkMeterProvider};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter, TracerProviderBuilder};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use umbel_core::conventions::{HTTP_TARGET, TARGET, span};
use umbel_core::{Error, ErrorKind, Result};

use crate::collector::Collector;
use crate::content::ContentCapture;
use crate::environment;
use crate::measure::Measure;
use crate::shape::Shaped;
use crate::tracer::OpenTelemetry;

/// How long an export may take unless told.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which conventions are followed where they are about to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conventions {
    /// Those that are released: tokens are a histogram, `gen_ai.client.token.usage`.
    #[default]
    Released,
    /// Those to come: tokens are counted, as `gen_ai.client.inference.tokens`.
    Latest,
}

type MakeTracer = dyn FnOnce(TracerProviderBuilder) -> TracerProviderBuilder + Send;
type MakeMeter = dyn FnOnce(MeterProviderBuilder) -> MeterProviderBuilder + Send;

/// How traces and metrics are told, and where.
///
/// Without more they go by OTLP over HTTP (protobuf) to where `OTEL_EXPORTER_OTLP_ENDPOINT` says, or to
/// `http://localhost:4318`. The other variables of OpenTelemetry count too, where nothing else is said here:
/// `OTEL_EXPORTER_OTLP_HEADERS`, `…_TIMEOUT`, `…_COMPRESSION` and `…_CERTIFICATE`, `OTEL_SERVICE_NAME`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_SEMCONV_STABILITY_OPT_IN`, and
/// `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`. `none` in `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` leaves one
/// of them out, and `true` in `OTEL_SDK_DISABLED` all, whatever is said here.
pub struct Telemetry {
    service: String,
    endpoint: Option<String>,
    headers: HashMap<String, String>,
    timeout: Option<Duration>,
    conventions: Option<Conventions>,
    capture: Option<ContentCapture>,
    targets: Vec<String>,
    tracer: Option<Box<MakeTracer>>,
    meter: Option<Box<MakeMeter>>,
}

impl Telemetry {
    /// Of a service of that name, unless the environment has another one.
    pub fn new(service: impl Into<String>) -> Self {
        Self {
            service: service.into(),
            endpoint: None,
            headers: HashMap::new(),
            timeout: None,
            conventions: None,
            capture: None,
            targets: Vec::new(),
            tracer: None,
            meter: None,
        }
    }

    /// The same, if the environment asks for it: `None` if no variable says where a collector is, or if `OTEL_SDK_DISABLED` is
    /// `true`.
    pub fn from_env(service: impl Into<String>) -> Option<Self> {
        (environment::names_collector() && !environment::is_disabled()).then(|| Self::new(service))
    }

    /// To the collector at this address, such as `http://localhost:4318`. `/v1/traces` and `/v1/metrics` are put behind it.
    pub fn otlp(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// With this header in each request to the collector, such as a key. Its value is shown nowhere.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// How long the collector may take to answer; 10 s unless told.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// By these conventions, whatever the environment says.
    pub fn conventions(mut self, conventions: Conventions) -> Self {
        self.conventions = Some(conventions);
        self
    }

    /// With what was said. Without this nothing of it is told, unless the environment asks for it.
    pub fn content(mut self, capture: ContentCapture) -> Self {
        self.capture = Some(capture);
        self
    }

    /// With other spans of the program, too: those at `INFO` or above whose target begins like this, such as the name of your
    /// crate. Mind what is in their fields.
    pub fn spans_of(mut self, target: impl Into<String>) -> Self {
        self.targets.push(target.into());
        self
    }

    /// Spans go there, and not to a collector.
    pub fn span_exporter(mut self, exporter: impl SpanExporter + 'static) -> Self {
        self.tracer = Some(Box::new(|builder| builder.with_batch_exporter(Shaped(exporter))));
        self
    }

    /// Metrics go there, and not to a collector.
    pub fn metric_exporter(mut self, exporter: impl PushMetricExporter) -> Self {
        self.meter = Some(Box::new(|builder| builder.with_periodic_exporter(exporter)));
        self
    }

    /// Without traces.
    pub fn without_traces(mut self) -> Self {
        self.tracer = Some(Box::new(|builder| builder));
        self
    }

    /// Without metrics.
    pub fn without_metrics(mut self) -> Self {
        self.meter = Some(Box::new(|builder| builder));
        self
    }

    /// Checks the settings and begins to export. Nobody is asked yet: a collector that is down is no error.
    pub fn build(mut self) -> Result<Exporting> {
        let is_off = environment::is_disabled();
        if is_off || self.tracer.is_none() && environment::is_without_traces() {
            self = self.without_traces();
        }
        if is_off || self.meter.is_none() && environment::is_without_metrics() {
            self = self.without_metrics();
        }
        umbel_core::set_tracer(&OpenTelemetry);
        let resource = self.resource();
        let tracer = SdkTracerProvider::builder().with_resource(resource.clone());
        let meter = SdkMeterProvider::builder().with_resource(resource);
        let (make_tracer, make_meter) = (self.tracer.take(), self.meter.take());
        let mut shared = None;
        let tracer = match make_tracer {
            Some(make) => make(tracer),
            None => tracer.with_batch_exporter(Shaped(self.otlp_spans(&mut shared)?)),
        };
        let meter = match make_meter {
            Some(make) => make(meter),
            None => meter.with_periodic_exporter(self.otlp_metrics(&mut shared)?),
        };
        let (tracer, meter) = (tracer.build(), meter.build());
        let conventions = self.conventions.unwrap_or_else(environment::conventions);
        let capture = self.capture.or_else(|| environment::wants_content().then(ContentCapture::new));
        let measure = Measure::new(&meter.meter_with_scope(scope()), conventions, capture.map(Arc::new));
        Ok(Exporting { tracer, meter, measure, targets: self.targets.into(), is_off })
    }

    fn resource(&self) -> Resource {
        let told = Resource::builder().build();
        let is_named = told
            .get(&Key::from_static_str("service.name"))
            .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
        if is_named { told } else { Resource::builder().with_service_name(self.service.clone()).build() }
    }

    fn otlp_spans(&self, shared: &mut Option<Arc<dyn HttpClient>>) -> Result<OtlpSpanExporter> {
        let exporter = OtlpSpanExporter::builder().with_http();
        self.told_where(exporter, "/v1/traces", shared)?.build().map_err(refused)
    }

    fn otlp_metrics(&self, shared: &mut Option<Arc<dyn HttpClient>>) -> Result<MetricExporter> {
        let exporter = MetricExporter::builder().with_http();
        self.told_where(exporter, "/v1/metrics", shared)?.build().map_err(refused)
    }

    /// An exporter that knows where to. What is not said here it takes from the environment.
    fn told_where<E: WithExportConfig + WithHttpConfig>(
        &self,
        exporter: E,
        path: &str,
        shared: &mut Option<Arc<dyn HttpClient>>,
    ) -> Result<E> {
        let mut exporter = exporter
            .with_protocol(Protocol::HttpBinary)
            .with_headers(self.headers.clone())
            .with_shared_http_client(self.client(shared)?);
        if let Some(timeout) = self.timeout {
            exporter = exporter.with_timeout(timeout);
        }
        if let Some(address) = self.address(path)? {
            exporter = exporter.with_endpoint(address);
        }
        Ok(exporter)
    }

    /// Both speak with the collector in the same way, so that it is said once that it does not answer.
    fn client(&self, shared: &mut Option<Arc<dyn HttpClient>>) -> Result<Arc<dyn HttpClient>> {
        if let Some(client) = shared {
            return Ok(client.clone());
        }
        let timeout = self.timeout.unwrap_or_else(|| environment::timeout(PATIENCE));
        Ok(shared.insert(Arc::new(Collector::new(timeout, environment::certificate())?)).clone())
    }

    fn address(&self, path: &str) -> Result<Option<String>> {
        let Some(endpoint) = &self.endpoint else { return Ok(None) };
        let is_address =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if !endpoint.parse().is_ok_and(|uri| is_address(&uri)) {
            let message =
                format!("`{endpoint}` is no address of a collector: write it like http://localhost:4318");
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(Some(format!("{}{path}", endpoint.trim_end_matches('/'))))
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry")
            .field("service", &self.service)
            .field("endpoint", &self.endpoint)
            .field("timeout", &self.timeout)
            .field("conventions", &self.conventions)
            .field("capture", &self.capture)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

fn refused(error: impl std::error::Error) -> Error {
    Error::new(ErrorKind::Build, format!("telemetry cannot be sent: {error}"))
}

/// Who makes the spans and metrics.
fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("umbel").with_version(env!("CARGO_PKG_VERSION")).build()
}

/// Traces and metrics on their way. Clones are the same.
#[derive(Clone, Debug)]
pub struct Exporting {
    tracer: SdkTracerProvider,
    meter: SdkMeterProvider,
    measure: Measure,
    targets: Arc<[String]>,
    is_off: bool,
}

impl Exporting {
    /// The layer that tells of runs, for a subscriber that is a registry of spans. A subscriber has one of them.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        if self.is_off {
            return None;
        }
        let targets = self.targets.clone();
        let is_told = move |metadata: &Metadata<'_>| is_told(metadata, &targets);
        let traces = OpenTelemetryLayer::new(self.tracer.tracer_with_scope(scope()))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_told).with_max_level_hint(LevelFilter::INFO));
        let is_measured = filter_fn(Measure::wants).with_max_level_hint(LevelFilter::TRACE);
        Some(traces.and_then(self.measure.clone().with_filter(is_measured)))
    }

    /// Sends what was not sent yet. Gives whether that worked, within that time. It blocks the thread: async code calls it
    /// where it may wait.
    pub fn flush(&self, within: Duration) -> bool {
        let (tracer, meter) = (self.tracer.clone(), self.meter.clone());
        both(within, move || tracer.force_flush().is_ok(), move || meter.force_flush().is_ok())
    }

    /// Sends what was not sent yet, and ends. Gives whether that worked, within that time; what is left after it is lost. It
    /// blocks the thread.
    pub fn shutdown(&self, within: Duration) -> bool {
        let (tracer, meter) = (self.tracer.clone(), self.meter.clone());
        both(
            within,
            move || tracer.shutdown_with_timeout(within).is_ok(),
            move || meter.shutdown_with_timeout(within).is_ok(),
        )
    }
}

/// Whether both work within that time. Neither is trusted to keep it.
fn both(
    within: Duration,
    one: impl FnOnce() -> bool + Send + 'static,
    other: impl FnOnce() -> bool + Send + 'static,
) -> bool {
    let (told, heard) = mpsc::channel();
    let also = told.clone();
    // Whoever waited no longer is not told.
    let one = thread::Builder::new().spawn(move || told.send(one()).is_ok());
    let other = thread::Builder::new().spawn(move || also.send(other()).is_ok());
    if one.is_err() || other.is_err() {
        return false;
    }
    let begun = Instant::now();
    let mut answers =
        (0..2).map(|_| heard.recv_timeout(within.saturating_sub(begun.elapsed())).unwrap_or(false));
    answers.all(|is_done| is_done)
}

/// Whether a span is told: those of runs and of requests, and those of the program that were asked for.
fn is_told(metadata: &Metadata<'_>, targets: &[String]) -> bool {
    const RUN: [&str; 6] = [
        span::INVOCATION,
        span::INVOKE_AGENT,
        span::INVOKE_WORKFLOW,
        span::CHAT,
        span::EXECUTE_TOOL,
        span::RETRY,
    ];
    if !metadata.is_span() {
        return false;
    }
    let target = metadata.target();
    match target {
        TARGET => RUN.contains(&metadata.name()),
        HTTP_TARGET => true,
        _ => {
            *metadata.level() <= Level::INFO
                && targets.iter().any(|wanted| target.starts_with(wanted.as_str()))
        }
    }
}
