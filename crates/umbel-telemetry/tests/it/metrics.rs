//! Metrics: their names, units and buckets, and what they are split by.

use std::collections::BTreeMap;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use serde_json::json;
use umbel_core::conventions::{attribute, metric};
use umbel_core::{
    BoxStream, Chunk, Error, ErrorKind, Model, ModelRequest, Response, Result, RunConfig, Usage,
};
use umbel_runtime::layers::Logging;
use umbel_runtime::{LlmAgent, ScriptedModel, Sequential};
use umbel_telemetry::Conventions;

use crate::support::{begin, echo, listen, listen_with, read, run, run_streamed};

/// One row of a metric: what it is split by, how many, and their sum.
#[derive(Debug)]
struct Row {
    split: BTreeMap<String, String>,
    count: u64,
    sum: f64,
    buckets: Vec<f64>,
}

/// All metrics by name, with their unit.
fn told(exported: &[ResourceMetrics]) -> BTreeMap<String, (String, Vec<Row>)> {
    // Sums are told anew each time, so the last ones count.
    let last = exported.last().unwrap();
    let all = last.scope_metrics().flat_map(|scope| scope.metrics());
    all.map(|metric| (metric.name().to_owned(), (metric.unit().to_owned(), rows(metric)))).collect()
}

fn rows(metric: &Metric) -> Vec<Row> {
    let split = |all: &mut dyn Iterator<Item = &KeyValue>| {
        all.map(|one| (one.key.as_str().to_owned(), one.value.as_str().into_owned())).collect()
    };
    match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .map(|point| Row {
                split: split(&mut point.attributes()),
                count: point.count(),
                sum: point.sum(),
                buckets: point.bounds().collect(),
            })
            .collect(),
        AggregatedMetrics::U64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .map(|point| Row {
                split: split(&mut point.attributes()),
                count: point.count(),
                sum: point.sum() as f64,
                buckets: point.bounds().collect(),
            })
            .collect(),
        AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
            .data_points()
            .map(|point| Row {
                split: split(&mut point.attributes()),
                count: 1,
                sum: point.value() as f64,
                buckets: Vec::new(),
            })
            .collect(),
        other => panic!("{}: {other:?}", metric.name()),
    }
}

fn pairs(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn measured() -> Response {
    let mut answer = Response::text("Done.");
    let meta = answer.meta_mut();
    meta.model_version = Some("m-1".into());
    meta.usage_metadata = Some(Usage {
        prompt_token_count: Some(100),
        candidates_token_count: Some(5),
        thoughts_token_count: Some(2),
        ..Usage::default()
    });
    answer
}

/// A model whose answer breaks off.
#[derive(Debug)]
struct Broken;

impl Model for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn generate(&self, _: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let cut = Error::new(ErrorKind::StreamCut, "it broke off");
        Box::pin(futures::stream::iter([Ok(Chunk::Text("Well".to_owned())), Err(cut)]))
    }
}

#[tokio::test]
async fn metrics_have_the_names_units_and_buckets_of_the_conventions() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({})).response(measured());
    run(Sequential::new("w").agent(LlmAgent::new("a").model(model).tool(echo()))).await;
    let told = told(&listening.metrics());
    let names: Vec<&str> = told.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            metric::OPERATION_DURATION,
            metric::TOKEN_USAGE,
            metric::TOOL_DURATION,
            metric::AGENT_DURATION,
            metric::WORKFLOW_DURATION
        ]
    );
    for (name, (unit, rows)) in &told {
        assert_eq!(unit, if name == metric::TOKEN_USAGE { "{token}" } else { "s" }, "{name}");
        let buckets = buckets(name);
        for row in rows {
            let close = row.buckets.iter().zip(&buckets).all(|(a, b): (&f64, &f64)| (a - b).abs() < 1e-9 * b);
            assert!(close && row.buckets.len() == buckets.len(), "{name}: {:?}", row.buckets);
        }
    }
}

/// The buckets that the conventions have for a metric.
fn buckets(name: &str) -> Vec<f64> {
    let (first, factor, count) = match name {
        metric::WORKFLOW_DURATION => {
            return vec![1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0];
        }
        metric::TOKEN_USAGE => (1.0, 4.0, 14),
        metric::AGENT_DURATION => (0.1, 2.0, 13),
        _ => (0.01, 2.0, 14),
    };
    std::iter::successors(Some(first), |bound| Some(bound * factor)).take(count).collect()
}

#[tokio::test]
async fn metrics_are_split_by_what_is_known_beforehand() {
    let listening = listen();
    let model = ScriptedModel::new("m")
        .calls([("echo", json!({})), ("made_up_1", json!({})), ("made_up_2", json!({}))])
        .response(measured());
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    read(runner.run(&key, "hi")).await;
    let exported = listening.metrics();
    let told = told(&exported);
    let chat =
        [(attribute::OPERATION, "chat"), (attribute::PROVIDER, "umbel"), (attribute::REQUEST_MODEL, "m")];
    let answered = [&chat[..], &[(attribute::RESPONSE_MODEL, "m-1")]].concat();

    let rows = &told[metric::OPERATION_DURATION].1;
    assert!(rows.iter().any(|row| row.split == pairs(&chat) && row.count == 1), "{rows:?}");
    assert!(rows.iter().any(|row| row.split == pairs(&answered) && row.count == 1), "{rows:?}");
    for (kind, tokens) in [("input", 100.0), ("output", 7.0)] {
        let split = pairs(&[&answered[..], &[(attribute::TOKEN_TYPE, kind)]].concat());
        let rows = &told[metric::TOKEN_USAGE].1;
        assert!(rows.iter().any(|row| row.split == split && row.sum == tokens), "{rows:?}");
    }
    let rows = &told[metric::TOOL_DURATION].1;
    let tools: BTreeMap<&str, u64> =
        rows.iter().map(|row| (row.split[attribute::TOOL].as_str(), row.count)).collect();
    assert_eq!(tools, BTreeMap::from([("echo", 1), ("_OTHER", 2)]), "names that a model makes up are one");
    let row = rows.iter().find(|row| row.split[attribute::TOOL] == "echo").unwrap();
    let split = [(attribute::TOOL, "echo"), (attribute::TOOL_TYPE, "function"), (attribute::AGENT, "a")];
    assert_eq!(row.split, pairs(&split));
    let rows = &told[metric::AGENT_DURATION].1;
    assert_eq!(rows[0].split, pairs(&[(attribute::AGENT, "a"), (attribute::REQUEST_MODEL, "m")]));

    let all = format!("{exported:?}");
    for secret in [key.id(), "ann"] {
        assert!(!all.contains(secret), "users and sessions are in no metric: {secret}");
    }
}

#[tokio::test]
async fn a_call_that_fails_is_measured_by_its_error() {
    let listening = listen();
    let ended = run(LlmAgent::new("a").model(ScriptedModel::new("m").fail("no"))).await;
    let code = ended.error.unwrap().kind().code();
    let told = told(&listening.metrics());
    for name in [metric::OPERATION_DURATION, metric::AGENT_DURATION] {
        assert_eq!(told[name].1[0].split[attribute::ERROR], code, "{name}");
    }
    assert!(!told.contains_key(metric::TOKEN_USAGE));
}

#[tokio::test]
async fn pieces_are_measured_if_an_answer_is_streamed() {
    let agent =
        || LlmAgent::new("a").model(ScriptedModel::new("m").stream(["One, ", "two, ", "three, ", "four."]));
    let listening = listen();
    run_streamed(agent()).await;
    let streamed = told(&listening.metrics());
    assert_eq!(streamed[metric::FIRST_CHUNK].1[0].count, 1);
    assert_eq!(streamed[metric::PER_CHUNK].1[0].count, 3);
    assert_eq!(streamed[metric::PER_CHUNK].1[0].split[attribute::REQUEST_MODEL], "m");
    drop(listening);

    let listening = listen();
    run(agent()).await;
    let whole = told(&listening.metrics());
    assert!(!whole.contains_key(metric::FIRST_CHUNK) && !whole.contains_key(metric::PER_CHUNK), "{whole:?}");
}

#[tokio::test]
async fn how_a_call_ended_does_not_split_the_time_to_its_first_piece() {
    let listening = listen();
    let (runner, key) = begin(LlmAgent::new("a").model(Broken)).await;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    assert!(read(runner.run_with(&key, "hi", config)).await.error.is_some());
    let told = told(&listening.metrics());
    assert!(told[metric::OPERATION_DURATION].1[0].split.contains_key(attribute::ERROR));
    assert!(!told[metric::FIRST_CHUNK].1[0].split.contains_key(attribute::ERROR));
}

#[tokio::test]
async fn lines_about_tool_calls_are_no_pieces_of_answers() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({})).call("echo", json!({})).text("Done.");
    let logging = || Logging::new().level(tracing::Level::TRACE);
    run_streamed(LlmAgent::new("a").model(model).tool(echo()).handler(logging()).handler(logging())).await;
    assert!(listening.log().contains("tool call ended"));
    let told = told(&listening.metrics());
    assert!(!told.contains_key(metric::PER_CHUNK), "{told:?}");
}

#[tokio::test]
async fn an_answer_that_begins_anew_is_measured_on() {
    let listening = listen();
    let pieces = ["a", "b"].map(|text| Chunk::Text(text.to_owned()));
    let [a, b] = pieces;
    run_streamed(LlmAgent::new("a").model(ScriptedModel::new("m").chunks([a, Chunk::Restart, b]))).await;
    let told = told(&listening.metrics());
    assert_eq!(told[metric::FIRST_CHUNK].1[0].count, 1);
}

#[tokio::test]
async fn conventions_to_come_count_tokens() {
    let listening = listen_with(|telemetry| telemetry.conventions(Conventions::Latest));
    run(LlmAgent::new("a").model(ScriptedModel::new("m").response(measured()))).await;
    let told = told(&listening.metrics());
    assert!(!told.contains_key(metric::TOKEN_USAGE));
    let (unit, rows) = &told[metric::INFERENCE_TOKENS];
    assert_eq!(unit, "{token}");
    let sums: BTreeMap<&str, f64> =
        rows.iter().map(|row| (row.split[attribute::TOKEN_TYPE].as_str(), row.sum)).collect();
    assert_eq!(sums, BTreeMap::from([("input", 100.0), ("output", 7.0)]));
}
