//! What the tests share: runs with somebody listening, and what was told of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use opentelemetry::{SpanId, Value};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, InMemoryMetricExporterBuilder};
use opentelemetry_sdk::trace::{InMemorySpanExporter, InMemorySpanExporterBuilder, SpanData};
use serde_json::json;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use umbel_core::{
    Agent, Answer, AuthConfig, Error, FunctionTool, Outcome, PlainAuth, RunConfig, SessionKey, ToolSpec,
};
use umbel_runtime::{LlmAgent, RunStream, Runner, ScriptedModel};
use umbel_telemetry::{Exporting, Telemetry};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Somebody who listens on this thread, and what they heard.
pub(crate) struct Listening {
    pub(crate) exporting: Exporting,
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
    logged: Logged,
    _guard: DefaultGuard,
}

/// Lines of a log.
#[derive(Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<Vec<u8>>>);

impl Logged {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Listens on this thread until what is given is dropped, with the usual settings.
pub(crate) fn listen() -> Listening {
    listen_with(|telemetry| telemetry)
}

/// The same with other settings.
pub(crate) fn listen_with(change: impl FnOnce(Telemetry) -> Telemetry) -> Listening {
    let spans = InMemorySpanExporterBuilder::new().build();
    let metrics = InMemoryMetricExporterBuilder::new().build();
    let telemetry =
        Telemetry::new("tests").span_exporter(Kept(spans.clone())).metric_exporter(metrics.clone());
    let exporting = change(telemetry).build().unwrap();
    let logged = Logged::default();
    let lines = logged.clone();
    let log = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || lines.clone());
    let subscriber = tracing_subscriber::registry().with(exporting.layer()).with(log);
    let guard = tracing::subscriber::set_default(subscriber);
    Listening { exporting, spans, metrics, logged, _guard: guard }
}

/// Keeps spans: those of the SDK forget them when they are shut down.
#[derive(Debug)]
struct Kept(InMemorySpanExporter);

impl opentelemetry_sdk::trace::SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> opentelemetry_sdk::error::OTelSdkResult {
        self.0.export(batch).await
    }
}

impl Listening {
    /// The spans that have ended, in the order in which they began.
    pub(crate) fn spans(&self) -> Vec<SpanData> {
        assert!(self.exporting.flush(PATIENCE));
        let mut spans = self.spans.get_finished_spans().unwrap();
        spans.sort_by_key(|span| span.start_time);
        spans
    }

    /// The tree of spans: a line per span, deeper ones further in.
    pub(crate) fn tree(&self) -> Vec<String> {
        fn below(spans: &[SpanData], parent: SpanId, depth: usize, lines: &mut Vec<String>) {
            for span in spans.iter().filter(|span| span.parent_span_id == parent) {
                lines.push(format!("{}{}", "  ".repeat(depth), span.name));
                below(spans, span.span_context.span_id(), depth + 1, lines);
            }
        }
        let (spans, mut lines) = (self.spans(), Vec::new());
        below(&spans, SpanId::INVALID, 0, &mut lines);
        assert_eq!(lines.len(), spans.len(), "every span has its place");
        lines
    }

    /// The spans of a name.
    pub(crate) fn of_name(&self, name: &str) -> Vec<SpanData> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    /// The one span of a name.
    pub(crate) fn one(&self, name: &str) -> SpanData {
        let mut found = self.of_name(name);
        assert_eq!(found.len(), 1, "{name} in {:?}", self.tree());
        found.remove(0)
    }

    pub(crate) fn metrics(&self) -> Vec<ResourceMetrics> {
        assert!(self.exporting.flush(PATIENCE));
        self.metrics.get_finished_metrics().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.logged.text()
    }
}

/// The attributes of a span.
pub(crate) fn attributes(span: &SpanData) -> BTreeMap<String, Value> {
    let all: BTreeMap<_, _> = span
        .attributes
        .iter()
        .map(|attribute| (attribute.key.as_str().to_owned(), attribute.value.clone()))
        .collect();
    assert_eq!(all.len(), span.attributes.len(), "an attribute has one value: {:?}", span.attributes);
    all
}

/// One attribute of a span as text.
pub(crate) fn text(span: &SpanData, name: &str) -> Option<String> {
    attributes(span).get(name).map(|value| value.as_str().into_owned())
}

/// How a run ended, and with which error.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<Error>,
}

/// A runner of that agent with a session.
pub(crate) async fn begin(agent: impl Agent + 'static) -> (Runner, SessionKey) {
    let runner = Runner::new("app", agent).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    (runner, key)
}

/// Reads a run to its end.
pub(crate) async fn read(mut stream: RunStream) -> Ended {
    let mut error = None;
    while let Some(event) = stream.next().await {
        error = event.err();
    }
    Ended { outcome: stream.outcome().unwrap().clone(), error }
}

/// One run of a new runner.
pub(crate) async fn run(agent: impl Agent + 'static) -> Ended {
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await
}

/// One run of a new runner, streamed.
pub(crate) async fn run_streamed(agent: impl Agent + 'static) -> Ended {
    let (runner, key) = begin(agent).await;
    read(runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() })).await
}

/// A tool that gives back what it is told.
pub(crate) fn echo() -> FunctionTool {
    FunctionTool::new("echo", "Says it again.", |args: serde_json::Value| async move { Ok(args) })
}

/// A run whose tools use two credentials, `s3cret-…`: one of the program, and one that a person gives.
pub(crate) async fn use_credentials() {
    let keyed = |name: &'static str, auth: AuthConfig, key: &'static str| {
        let own = auth.clone();
        let spec = ToolSpec::new(name, "", json!({"type": "object"}));
        FunctionTool::raw(spec, move |cx, _| {
            let own = own.clone();
            Box::pin(async move {
                let grant = cx.credential(&own).await?;
                assert_eq!(grant.http().unwrap().expose(), format!("Bearer {key}"));
                Ok(json!("used").into())
            })
        })
        .auth(auth)
    };
    let fixed = AuthConfig::new("fixed", PlainAuth::bearer().fixed("s3cret-fixed"));
    let asked_for = AuthConfig::new("given", PlainAuth::bearer());
    let model = ScriptedModel::new("m").call("fixed", json!({})).call("keyed", json!({})).text("Done.");
    let agent = LlmAgent::new("a").model(model).tool(keyed("fixed", fixed, "s3cret-fixed")).tool(keyed(
        "keyed",
        asked_for,
        "s3cret-given",
    ));
    let (runner, key) = begin(agent).await;
    let ended = read(runner.run(&key, "hi")).await;
    let Outcome::Interrupted { interrupts } = ended.outcome else { panic!("{:?}", ended.outcome) };
    let given = interrupts[0].answer_with(&Answer::input("s3cret-given"));
    assert_eq!(read(runner.run(&key, given)).await.outcome, Outcome::Finished);
}
