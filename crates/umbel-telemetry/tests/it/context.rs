//! Which trace work is part of: of who asks, and for who is asked.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use umbel_core::conventions::attribute;
use umbel_core::{BoxStream, Chunk, FunctionTool, Model, ModelRequest, Result, RunConfig, TraceContext};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_server::{AgentEndpoint, BearerTokens, Server};
use umbel_tools::{Guard, HttpGet};

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::SpanData;

use crate::served::{CLOSE, Served};
use crate::stub::{Answer, Stub};
use crate::support::{attributes, begin, listen, read, run};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What a request that is made within a span says.
fn parent(span: &SpanData) -> String {
    format!("00-{}-{}-01", span.span_context.trace_id(), span.span_context.span_id())
}

#[tokio::test]
async fn a_run_is_part_of_the_trace_that_it_is_given() {
    let listening = listen();
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("Hi."))).await;
    let mut config = RunConfig::default();
    config.extensions.insert(TraceContext::parse(PARENT, Some("vendor=1")).unwrap());
    read(runner.run_with(&key, "hi", config)).await;
    let invocation = listening.one("invocation");
    assert_eq!(invocation.parent_span_id.to_string(), "00f067aa0ba902b7");
    assert!(invocation.parent_span_is_remote);
    assert_eq!(invocation.span_context.trace_state().header(), "vendor=1");
    assert!(listening.spans().iter().all(|span| span.span_context.trace_id().to_string() == TRACE));
}

#[tokio::test]
async fn a_trace_that_is_not_to_be_kept_is_not() {
    let listening = listen();
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("Hi."))).await;
    let mut config = RunConfig::default();
    let unsampled = PARENT.replace("-01", "-00");
    config.extensions.insert(TraceContext::parse(&unsampled, None).unwrap());
    read(runner.run_with(&key, "hi", config)).await;
    assert!(listening.spans().is_empty());
}

#[tokio::test]
async fn models_are_told_which_trace_a_request_is_part_of() {
    let stub = Stub::start(Answer::Say(
        200,
        "application/json",
        json!({"id": "c-1", "model": "m-1", "choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]})
            .to_string(),
    ));
    let listening = listen();
    let model = umbel_models::model(&format!("{}/v1#m", stub.url())).unwrap().api_key("canary-key").unwrap();
    run(LlmAgent::new("a").model(model)).await;
    let chat = listening.one("chat m");
    let asked = stub.asked();
    assert_eq!(asked[0].header("traceparent"), Some(parent(&chat).as_str()));
    assert_eq!(asked[0].header("baggage"), None);
    let told = attributes(&chat);
    assert_eq!(told[attribute::PROVIDER], "openai".into());
    assert_eq!(told[attribute::SERVER_ADDRESS], "127.0.0.1".into());
    assert_eq!(told[attribute::SERVER_PORT], i64::from(stub.address.port()).into());
    let all = format!("{:?}{:?}{}", listening.spans(), listening.metrics(), listening.log());
    assert!(!all.contains("canary-key"));
}

#[tokio::test]
async fn services_behind_tools_are_told_which_trace_a_request_is_part_of() {
    let stub = Stub::start(Answer::Say(200, "text/plain", "Hello.".to_owned()));
    let listening = listen();
    let url = format!("{}/page", stub.url());
    let guard = Guard::new(Vec::<String>::new()).allow_private("127.0.0.1");
    let model = ScriptedModel::new("m").call("http_get", json!({"url": url})).text("Done.");
    run(LlmAgent::new("a").model(model).tool(HttpGet::new(guard).unwrap())).await;
    let tool = listening.one("execute_tool http_get");
    assert_eq!(stub.asked()[0].header("traceparent"), Some(parent(&tool).as_str()));
}

#[tokio::test]
async fn tools_can_ask_which_trace_they_are_part_of() {
    let ask = || {
        FunctionTool::new("ask", "", |_: Value| async {
            Ok(json!(TraceContext::current().map(|context| context.traceparent().to_owned())))
        })
    };
    let agent =
        || LlmAgent::new("a").model(ScriptedModel::new("m").call("ask", json!({})).text("Done.")).tool(ask());
    let answered = async |runner: &Runner, key| {
        let events = runner.run(key, "hi").collect_events().await.unwrap();
        events[1].responses().next().unwrap().response.clone().unwrap()["result"].clone()
    };
    let listening = listen();
    let (runner, key) = begin(agent()).await;
    let told = answered(&runner, &key).await;
    assert_eq!(told, json!(parent(&listening.one("execute_tool ask"))));
    drop(listening);
    let (runner, key) = begin(agent()).await;
    assert_eq!(answered(&runner, &key).await, Value::Null, "nobody listens any more");
}

/// Reads until that word came.
async fn read_until(stream: &mut TcpStream, word: &str) {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(word) {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{}", String::from_utf8_lossy(&bytes));
    }
}

/// One request to a server; gives the whole answer.
async fn served(server: Server, headers: &str) -> String {
    let served = Served::start(server).await;
    let mut answer = String::new();
    served.run(&format!("{CLOSE}{headers}")).await.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("RUN_FINISHED") || answer.starts_with("HTTP/1.1 401"), "{answer}");
    served.stop().await;
    answer
}

fn server() -> Server {
    let runner = Runner::new("app", LlmAgent::new("a").model(ScriptedModel::new("m").text("Hi."))).unwrap();
    Server::new().agent("/agent", AgentEndpoint::new(runner))
}

#[tokio::test]
async fn a_request_is_part_of_the_trace_that_it_names_and_so_is_its_run() {
    let listening = listen();
    served(server(), &format!("traceparent: {PARENT}\r\ntracestate: vendor=1\r\n")).await;
    let request = listening.one("POST /agent");
    assert_eq!(request.span_kind, SpanKind::Server);
    assert_eq!(request.parent_span_id.to_string(), "00f067aa0ba902b7");
    let told = attributes(&request);
    assert_eq!(told[attribute::HTTP_METHOD], "POST".into());
    assert_eq!(told[attribute::HTTP_ROUTE], "/agent".into());
    assert_eq!(told[attribute::HTTP_STATUS], 200_i64.into());
    let invocation = listening.one("invocation");
    assert_eq!(invocation.parent_span_id, request.span_context.span_id());
    assert_eq!(listening.one("chat m").span_context.trace_id().to_string(), TRACE);
}

/// A model that says a word, and the next one when it is told to.
#[derive(Debug)]
struct Held(Arc<tokio::sync::Notify>);

impl Model for Held {
    fn name(&self) -> &str {
        "held"
    }

    fn generate(&self, _: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let go_on = self.0.clone();
        let rest = futures::stream::once(async move {
            go_on.notified().await;
            Ok(Chunk::Text(" then".to_owned()))
        });
        Box::pin(futures::stream::iter([Ok(Chunk::Text("Well,".to_owned()))]).chain(rest))
    }
}

fn held(go_on: &Arc<tokio::sync::Notify>) -> Server {
    let runner = Runner::new("app", LlmAgent::new("a").model(Held(go_on.clone()))).unwrap();
    Server::new().agent("/agent", AgentEndpoint::new(runner))
}

#[tokio::test]
async fn a_request_ends_with_the_stream_that_answers_it() {
    let (listening, go_on) = (listen(), Arc::default());
    let served = Served::start(held(&go_on)).await;
    let mut stream = served.run("").await;
    read_until(&mut stream, "Well,").await;
    go_on.notify_one();
    read_until(&mut stream, "RUN_FINISHED").await;
    served.stop().await;
    let (request, invocation) = (listening.one("POST /agent"), listening.one("invocation"));
    assert!(request.end_time >= invocation.end_time);
    assert_eq!(request.status, Status::Unset);
    assert_eq!(attributes(&request)[attribute::HTTP_STATUS], 200_i64.into());
}

#[tokio::test]
async fn a_request_whose_client_goes_away_ends_then_and_says_so() {
    let (listening, go_on) = (listen(), Arc::default());
    let served = Served::start(held(&go_on)).await;
    let mut stream = served.run("").await;
    read_until(&mut stream, "Well,").await;
    drop(stream);
    while !listening.log().contains("a connection ended") {
        tokio::task::yield_now().await;
    }
    // The run goes on without anybody who looks at it.
    go_on.notify_one();
    while listening.of_name("invocation").is_empty() {
        tokio::task::yield_now().await;
    }
    let (request, invocation) = (listening.one("POST /agent"), listening.one("invocation"));
    assert!(request.end_time < invocation.end_time);
    assert_eq!(invocation.status, Status::Unset);
    assert_eq!(request.status, Status::error(""));
    let told = attributes(&request);
    assert_eq!(told[attribute::ERROR], "CLIENT_GONE".into());
    assert_eq!(told[attribute::HTTP_STATUS], 200_i64.into());
    served.stop().await;
}

#[tokio::test]
async fn requests_are_named_by_what_is_known_beforehand() {
    let listening = listen();
    let served = Served::start(server()).await;
    for request in ["GET /agent/threads/t-7?token=canary", "BREW /agent", "GET /made-up/canary"] {
        served.read(request, "").await;
    }
    served.stop().await;
    let mut names: Vec<_> = listening.spans().iter().map(|span| span.name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["GET", "GET /agent/threads/{thread}", "HTTP /agent"]);
    let told = attributes(&listening.one("GET /agent/threads/{thread}"));
    assert_eq!(told["url.path"], "/agent/threads/t-7".into());
    assert_eq!(told["url.scheme"], "http".into());
    assert_eq!(attributes(&listening.one("HTTP /agent"))[attribute::HTTP_METHOD], "_OTHER".into());
    assert!(!format!("{:?}", listening.spans()).contains("canary"));
}

#[tokio::test]
async fn a_server_need_not_trust_the_traces_of_others() {
    let listening = listen();
    served(server().trust_traces(false), &format!("traceparent: {PARENT}\r\n")).await;
    let request = listening.one("POST /agent");
    assert_ne!(request.span_context.trace_id().to_string(), TRACE);
    assert_eq!(listening.one("invocation").parent_span_id, request.span_context.span_id());
}

#[tokio::test]
async fn the_trace_of_a_stranger_is_not_taken() {
    let parent = format!("traceparent: {PARENT}\r\n");
    let known = format!("{parent}authorization: Bearer 5f1c4bdb1d0a4b8f9d6a\r\n");
    let auth = || server().auth(BearerTokens::from_text("5f1c4bdb1d0a4b8f9d6a ann").unwrap());
    for (server, headers, is_taken) in [
        (auth(), &parent, false),
        (auth().trust_traces(true), &parent, false),
        (auth(), &known, true),
        (auth().trust_traces(false), &known, false),
        (server().allow_host("agents.example"), &parent, false),
        (server().allow_host("agents.example").trust_traces(true), &parent, true),
        (server(), &parent, true),
    ] {
        let listening = listen();
        served(server, headers).await;
        let request = listening.one("POST /agent");
        assert_eq!(request.span_context.trace_id().to_string() == TRACE, is_taken, "{headers}");
    }
}

#[tokio::test]
async fn the_state_of_a_trace_is_taken_only_if_the_server_is_told_to() {
    for (server, state) in [(server(), ""), (server().trust_traces(true), "vendor=1")] {
        let listening = listen();
        served(server, &format!("traceparent: {PARENT}\r\ntracestate: vendor=1\r\n")).await;
        let request = listening.one("POST /agent");
        assert_eq!(request.span_context.trace_id().to_string(), TRACE);
        assert_eq!(request.span_context.trace_state().header(), state);
    }
}

#[tokio::test]
async fn headers_that_name_no_trace_are_passed_over() {
    let twice = format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n");
    for headers in ["traceparent: nonsense\r\n", "tracestate: a=1\r\n", "", &twice] {
        let listening = listen();
        served(server(), headers).await;
        assert_ne!(listening.one("POST /agent").span_context.trace_id().to_string(), TRACE, "{headers}");
        assert_eq!(listening.of_name("invocation").len(), 1);
    }
}
