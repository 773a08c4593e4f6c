//! What goes over the wire to a collector, and what a collector can do to a run: nothing.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use umbel_core::conventions::metric;
use umbel_core::{ErrorKind, Outcome};
use umbel_runtime::{LlmAgent, ScriptedModel};
use umbel_telemetry::{ContentCapture, Exporting, Telemetry};

use crate::stub::{Answer, Stub};
use crate::support::{Logged, PATIENCE, echo, run, use_credentials};

/// The log of the process: what exporters say comes from threads of their own.
fn process_log() -> Logged {
    static LOG: OnceLock<Logged> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let logged = Logged::default();
        let lines = logged.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || lines.clone());
        let layer = layer.with_filter(LevelFilter::WARN);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
        logged
    });
    log.clone()
}

fn to(address: &str) -> Telemetry {
    Telemetry::new("desk").otlp(address).timeout(PATIENCE)
}

/// A run that is told of.
async fn run_told(exporting: &Exporting) -> Outcome {
    let subscriber = tracing_subscriber::registry().with(exporting.layer());
    let _guard = tracing::subscriber::set_default(subscriber);
    let model =
        ScriptedModel::new("m").call("echo", json!({"text": "canary-argument"})).text("canary-answer");
    run(LlmAgent::new("a").model(model).tool(echo())).await.outcome
}

fn complaints(log: &Logged, place: &str) -> usize {
    log.text().lines().filter(|line| line.contains("cannot be delivered") && line.contains(place)).count()
}

/// Whether the same was sent twice.
fn is_asked_again(stub: &Stub) -> bool {
    let asked = stub.asked();
    let bodies: HashSet<&[u8]> = asked.iter().map(|asked| asked.body.as_slice()).collect();
    bodies.len() < asked.len()
}

#[tokio::test]
async fn a_collector_gets_spans_and_metrics_as_protobuf() {
    let stub = Stub::start(Answer::Say(200, "application/x-protobuf", String::new()));
    let exporting = to(&format!("{}/", stub.url())).header("x-key", "canary-header").build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(exporting.shutdown(PATIENCE));

    let asked = stub.asked();
    assert!(asked.iter().all(|asked| asked.header("content-type") == Some("application/x-protobuf")));
    assert!(asked.iter().all(|asked| asked.header("x-key") == Some("canary-header")));
    let bodies = |path: &str| {
        asked.iter().filter(|asked| asked.path == path).map(|asked| asked.body.as_slice()).collect::<Vec<_>>()
    };
    let traces = bodies("/v1/traces");
    let (mut names, mut services) = (Vec::new(), Vec::new());
    for body in traces {
        for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
            for attribute in resource.resource.unwrap().attributes {
                if attribute.key == "service.name"
                    && let Some(Value::StringValue(name)) = attribute.value.and_then(|value| value.value)
                {
                    services.push(name);
                }
            }
            let scopes = resource.scope_spans;
            assert!(scopes.iter().all(|scope| scope.scope.as_ref().unwrap().name == "umbel"));
            names.extend(scopes.into_iter().flat_map(|scope| scope.spans).map(|span| span.name));
        }
    }
    names.sort();
    assert_eq!(names, ["chat m", "chat m", "execute_tool echo", "invocation", "invoke_agent a"]);
    assert!(services.iter().all(|service| service == "desk") && !services.is_empty());
    let metrics: Vec<String> = bodies("/v1/metrics")
        .into_iter()
        .flat_map(|body| ExportMetricsServiceRequest::decode(body).unwrap().resource_metrics)
        .flat_map(|resource| resource.scope_metrics)
        .flat_map(|scope| scope.metrics)
        .map(|metric| metric.name)
        .collect();
    assert!(metrics.contains(&metric::OPERATION_DURATION.to_owned()), "{metrics:?}");
    for asked in asked {
        let text = String::from_utf8_lossy(&asked.body).into_owned();
        assert!(!text.contains("canary"), "{} has content in it", asked.path);
    }
}

/// The spans that came over the wire.
fn spans_of(stub: &Stub) -> Vec<Span> {
    let asked = stub.asked();
    let traces = asked.iter().filter(|asked| asked.path == "/v1/traces");
    traces
        .flat_map(|asked| ExportTraceServiceRequest::decode(asked.body.as_slice()).unwrap().resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

#[tokio::test]
async fn a_collector_gets_the_links_of_runs_that_go_on() {
    let stub = Stub::start(Answer::Say(200, "application/x-protobuf", String::new()));
    let exporting = to(&stub.url()).build().unwrap();
    {
        let subscriber = tracing_subscriber::registry().with(exporting.layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        use_credentials().await;
    }
    assert!(exporting.shutdown(PATIENCE));
    let mut invocations: Vec<Span> =
        spans_of(&stub).into_iter().filter(|span| span.name == "invocation").collect();
    invocations.sort_by_key(|span| span.start_time_unix_nano);
    let [first, second] = &*invocations else { panic!("{invocations:?}") };
    assert!(first.links.is_empty());
    let [link] = &*second.links else { panic!("{:?}", second.links) };
    assert_eq!((&link.trace_id, &link.span_id), (&first.trace_id, &first.span_id));
}

#[tokio::test]
async fn a_collector_that_is_busy_is_asked_again() {
    let stub = Stub::start(Answer::Say(503, "text/plain", String::new()));
    let exporting = to(&stub.url()).without_metrics().build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(!exporting.flush(PATIENCE));
    assert!(is_asked_again(&stub));
}

#[tokio::test]
async fn no_credential_goes_to_a_collector() {
    let stub = Stub::start(Answer::Say(200, "application/x-protobuf", String::new()));
    let exporting = to(&stub.url()).content(ContentCapture::new()).build().unwrap();
    {
        let subscriber = tracing_subscriber::registry().with(exporting.layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        use_credentials().await;
    }
    assert!(exporting.shutdown(PATIENCE));
    let asked = stub.asked();
    assert!(asked.iter().any(|asked| String::from_utf8_lossy(&asked.body).contains("execute_tool keyed")));
    for asked in asked {
        assert!(!String::from_utf8_lossy(&asked.body).contains("s3cret"), "{}", asked.path);
    }
}

#[tokio::test]
async fn traces_and_metrics_can_each_be_left_out() {
    for (leave_out, left) in [
        (Telemetry::without_traces as fn(Telemetry) -> Telemetry, "/v1/metrics"),
        (Telemetry::without_metrics, "/v1/traces"),
    ] {
        let stub = Stub::start(Answer::Say(200, "application/x-protobuf", String::new()));
        let exporting = leave_out(to(&stub.url())).build().unwrap();
        assert_eq!(run_told(&exporting).await, Outcome::Finished);
        assert!(exporting.shutdown(PATIENCE));
        let asked = stub.asked();
        assert!(!asked.is_empty() && asked.iter().all(|asked| asked.path == left), "{left}");
    }
}

#[tokio::test]
async fn a_collector_that_is_down_is_complained_about_once_and_stops_nobody() {
    let log = process_log();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let exporting = to(&format!("http://{free}")).build().unwrap();
    for _ in 0..3 {
        assert_eq!(run_told(&exporting).await, Outcome::Finished);
        assert!(!exporting.flush(PATIENCE));
    }
    let begun = Instant::now();
    exporting.shutdown(Duration::from_secs(1));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(complaints(&log, &free.to_string()), 1, "{}", log.text());
}

#[tokio::test]
async fn a_collector_that_fails_is_complained_about_once() {
    let log = process_log();
    let page = "<html>canary-page</html>".to_owned();
    for (answer, why) in [
        (Answer::Say(500, "text/plain", "canary-page".to_owned()), "status 500"),
        (Answer::Say(400, "text/html", page.clone()), "status 400"),
        (Answer::Say(200, "text/html", page), "web page"),
    ] {
        let stub = Stub::start(answer);
        let exporting = to(&stub.url()).build().unwrap();
        for _ in 0..2 {
            assert_eq!(run_told(&exporting).await, Outcome::Finished);
            assert!(!exporting.flush(PATIENCE), "{why}");
        }
        assert!(stub.asked().len() >= 2);
        if why.starts_with("status") {
            assert!(!is_asked_again(&stub), "what is not worth another try is not tried again: {why}");
        }
        let lines = log.text();
        let place = stub.address.to_string();
        assert_eq!(complaints(&log, &place), 1, "{lines}");
        let line = lines.lines().find(|line| line.contains(&place)).unwrap();
        assert!(line.contains(why), "{line}");
        assert!(!line.contains("canary-page"), "{line}");
    }
}

#[tokio::test]
async fn a_collector_that_hangs_holds_up_nobody() {
    let stub = Stub::start(Answer::Hang);
    let exporting = to(&stub.url()).timeout(Duration::from_secs(60)).build().unwrap();
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(run_told(&exporting).await, Outcome::Finished);
    }
    assert!(!exporting.shutdown(Duration::from_millis(300)), "nothing was delivered");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_a_hint() {
    for wrong in ["localhost:4318", "ftp://localhost", "", "http://"] {
        let error = Telemetry::new("desk").otlp(wrong).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build, "{wrong}");
        assert!(error.message().contains("http://localhost:4318"), "{}", error.message());
    }
}
