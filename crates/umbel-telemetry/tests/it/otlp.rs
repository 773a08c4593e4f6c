//! What goes over the wire to a collector, and what a collector can do to a run: nothing.

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
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
async fn any_time_may_be_waited_for() {
    let stub = Stub::start(Answer::Say(200, "application/x-protobuf", "x".repeat(10)));
    let exporting = to(&stub.url()).timeout(Duration::MAX).build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(exporting.flush(Duration::MAX));
    assert!(!stub.asked().is_empty());
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
async fn a_collector_is_asked_again_when_it_says_so_and_not_before() {
    let good = || Answer::Say(200, "application/x-protobuf", String::new());
    let stub = Stub::start_by(move |nth, _| if nth == 0 { Answer::Busy(1) } else { good() });
    let exporting = to(&stub.url()).without_metrics().build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    let begun = Instant::now();
    assert!(exporting.flush(PATIENCE));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(is_asked_again(&stub));
}

#[tokio::test]
async fn what_a_collector_refuses_of_what_it_takes_is_told_once() {
    let log = process_log();
    // A partial success with 7 spans, or points, that were rejected.
    let stub = Stub::start(Answer::Say(200, "application/x-protobuf", "\n\u{2}\u{8}\u{7}".to_owned()));
    let exporting = to(&stub.url()).build().unwrap();
    for _ in 0..3 {
        assert_eq!(run_told(&exporting).await, Outcome::Finished);
        assert!(exporting.flush(PATIENCE));
    }
    assert!(!is_asked_again(&stub), "they would be refused again");
    let place = stub.address.to_string();
    assert_eq!(complaints(&log, &place), 1, "{}", log.text());
    let lines = log.text();
    let line = lines.lines().find(|line| line.contains(&place)).unwrap();
    assert!(line.contains("refuses some of it, 7"), "{line}");
}

#[tokio::test]
async fn a_collector_that_takes_no_traces_is_complained_about_once_though_it_takes_metrics() {
    let log = process_log();
    let stub = Stub::start_by(|_, path| match path {
        "/v1/metrics" => Answer::Say(200, "application/x-protobuf", String::new()),
        _ => Answer::Say(404, "text/plain", String::new()),
    });
    let exporting = to(&stub.url()).build().unwrap();
    for _ in 0..3 {
        assert_eq!(run_told(&exporting).await, Outcome::Finished);
        assert!(!exporting.flush(PATIENCE));
    }
    assert!(stub.asked().iter().any(|asked| asked.path == "/v1/metrics"));
    assert_eq!(complaints(&log, &stub.address.to_string()), 1, "{}", log.text());
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let stub = Stub::start(Answer::Flood);
    let exporting = to(&stub.url()).without_metrics().build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(exporting.flush(PATIENCE), "it was taken");
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_is_given_up() {
    let log = process_log();
    let stub = Stub::start(Answer::Drip);
    let exporting = to(&stub.url()).timeout(Duration::from_millis(200)).without_metrics().build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(!exporting.flush(Duration::from_secs(5)));
    let place = stub.address.to_string();
    let lines = log.text();
    let line = lines.lines().find(|line| line.contains(&place)).unwrap();
    assert!(line.contains("it takes too long"), "{line}");
}

#[tokio::test]
async fn a_collector_that_speaks_no_tls_is_complained_about() {
    let log = process_log();
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in plain.incoming() {
            stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }
    });
    let exporting = to(&address).build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(!exporting.flush(PATIENCE));
    assert_eq!(complaints(&log, &address), 1, "{}", log.text());
}

#[tokio::test]
async fn at_the_port_of_grpc_there_is_a_hint() {
    let log = process_log();
    let exporting = to("http://user:canary-password@127.0.0.97:4317").build().unwrap();
    assert_eq!(run_told(&exporting).await, Outcome::Finished);
    assert!(!exporting.flush(PATIENCE));
    let lines = log.text();
    let line = lines.lines().find(|line| line.contains("127.0.0.97")).unwrap();
    assert!(line.contains("port 4318") && !line.contains("canary-password"), "{line}");
}

/// An exporter that is stuck until it is let go.
#[derive(Debug)]
struct Stuck {
    go_on: Arc<(Mutex<bool>, Condvar)>,
    told: Arc<AtomicUsize>,
}

impl SpanExporter for Stuck {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (is_free, changed) = &*self.go_on;
        drop(changed.wait_while(is_free.lock().unwrap(), |is_free| !*is_free).unwrap());
        self.told.fetch_add(batch.len(), Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test]
async fn spans_for_which_there_is_no_room_are_dropped_and_nobody_waits() {
    let (go_on, told): (Arc<(Mutex<bool>, Condvar)>, Arc<AtomicUsize>) = Default::default();
    let stuck = Stuck { go_on: go_on.clone(), told: told.clone() };
    let exporting = Telemetry::new("desk").span_exporter(stuck).without_metrics().build().unwrap();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(exporting.layer()));
    let calls: Vec<_> = (0..1_000).map(|_| ("echo", json!({}))).collect();
    let begun = Instant::now();
    for _ in 0..5 {
        let model = ScriptedModel::new("m").calls(calls.clone()).text("Done.");
        assert_eq!(run(LlmAgent::new("a").model(model).tool(echo())).await.outcome, Outcome::Finished);
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    *go_on.0.lock().unwrap() = true;
    go_on.1.notify_all();
    assert!(exporting.flush(PATIENCE));
    // 5,020 spans ended: those in the queue are told, and those that were on their way.
    let told = told.load(Ordering::Relaxed);
    assert!((2_048..=2_048 + 512).contains(&told), "{told}");
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
