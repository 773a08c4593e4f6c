//! Agents whose models say what tests tell them to, and short ways to ask for runs.

use std::fmt;
use std::sync::Arc;

use futures::{StreamExt, stream};
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use umbel::{
    Agent, BoxFuture, BoxStream, Chunk, Content, FunctionCall, LlmAgent, Model, ModelRequest, Part, Response,
    Result, Role, Runner, ScriptedModel,
};
use umbel_server::{AgentEndpoint, Auth, Principal, Problem, Server};

use crate::support::{Host, Reply, SseFrame, within};

/// A model that answers by what it is asked.
pub(crate) fn answers(
    answer: impl Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync + 'static,
) -> ScriptedModel {
    ScriptedModel::from_fn("script", answer).recorded()
}

/// An agent that always says the same.
pub(crate) fn talker(text: &'static str) -> LlmAgent {
    LlmAgent::new("talker").model(answers(move |_| say(text)))
}

/// Text, a word at a time.
pub(crate) fn say(text: &str) -> Vec<Result<Chunk>> {
    text.split_inclusive(' ').map(|word| Ok(Chunk::Text(word.to_owned()))).collect()
}

/// Calls of tools, all at once.
pub(crate) fn call<const N: usize>(calls: [(&str, Value); N]) -> Vec<Result<Chunk>> {
    let parts = calls.map(|(name, args)| {
        Part::call(FunctionCall::new(name, args.as_object().cloned().unwrap_or_default()))
    });
    vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, parts))))]
}

/// What tools answered to the last calls, by tool.
pub(crate) fn results(request: &ModelRequest) -> Vec<(String, Value)> {
    let Some(last) = request.contents.last() else { return Vec::new() };
    last.responses().map(|response| (response.name.to_string(), json!(response.response))).collect()
}

/// All that was said, by whom: `user: …`, `model: …`.
pub(crate) fn said(request: &ModelRequest) -> Vec<String> {
    let spoken = request.contents.iter().filter(|content| !content.text().is_empty());
    spoken
        .map(|content| {
            let role = if content.role == Some(Role::Model) { "model" } else { "user" };
            format!("{role}: {}", content.text())
        })
        .collect()
}

/// A model that says its first word, and each of the others when it is let.
#[derive(Clone)]
pub(crate) struct Slowly {
    text: &'static str,
    pub(crate) go: Arc<Semaphore>,
}

impl Slowly {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, go: Arc::new(Semaphore::new(0)) }
    }

    /// Lets it say all it has, now and later.
    pub(crate) fn go_on(&self) {
        self.go.add_permits(1_000_000);
    }
}

impl Model for Slowly {
    fn name(&self) -> &str {
        "slowly"
    }

    fn generate(&self, _: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let go = self.go.clone();
        let words = stream::iter(say(self.text).into_iter().enumerate());
        Box::pin(words.then(move |(index, word)| {
            let go = go.clone();
            async move {
                if index > 0 {
                    go.acquire().await.unwrap().forget();
                }
                word
            }
        }))
    }
}

impl fmt::Debug for Slowly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slowly")
    }
}

/// An agent as it is offered.
pub(crate) fn offered(agent: impl Agent + 'static) -> AgentEndpoint {
    AgentEndpoint::new(Runner::new("desk", agent).unwrap())
}

/// A server with one agent, at `/agent`.
pub(crate) async fn desk(agent: impl Agent + 'static) -> Host {
    serve(Server::new().agent("/agent", offered(agent))).await
}

pub(crate) async fn serve(server: Server) -> Host {
    Host::start(server.build().unwrap()).await
}

/// Whoever names themselves in the header `x-name`; nobody else may ask.
#[derive(Debug)]
pub(crate) struct ByName;

impl Auth for ByName {
    fn principal<'a>(
        &'a self,
        head: &'a http::request::Parts,
    ) -> BoxFuture<'a, std::result::Result<Principal, Problem>> {
        let name = head.headers.get("x-name").and_then(|name| name.to_str().ok());
        let told = name
            .map(Principal::new)
            .ok_or_else(|| Problem::new(http::StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "say who you are"));
        Box::pin(async move { told })
    }
}

impl Host {
    /// A request of somebody who names themselves.
    pub(crate) async fn ask(&self, name: &str, method: Method, path: &str, body: &Value) -> Reply {
        let request = Request::builder().method(method).uri(path).header("x-name", name);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(request.header("content-type", "application/json"), body).await
    }

    /// A run to its end.
    pub(crate) async fn run(&self, input: &Value) -> Vec<SseFrame> {
        self.post("/agent", input).await.frames().await
    }

    /// A figure of the metrics.
    pub(crate) async fn figure(&self, name: &str) -> u64 {
        let request = Request::builder().uri("/metrics").header("x-name", "metrics");
        let text = self.send(request, "").await.text().await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    }

    /// Waits until no run is under way.
    pub(crate) async fn idle(&self) {
        within(async {
            while self.figure("umbel_runs_active").await > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Bytes as they are, and all that comes back until the connection ends.
    pub(crate) async fn exchange(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let (mut read, mut write) = stream.split();
        let mut answer = Vec::new();
        // Whoever is refused early may not get all of it out.
        let (_, _) =
            within(async { tokio::join!(write.write_all(request), read.read_to_end(&mut answer)) }).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A request for a run with these messages.
pub(crate) fn ask(thread: &str, run: &str, messages: &[Value]) -> Value {
    json!({"threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": messages})
}

/// A message of the user.
pub(crate) fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "content": text})
}

/// An answer to a call.
pub(crate) fn tool(id: &str, call: &str, content: impl Into<Value>) -> Value {
    json!({"id": id, "role": "tool", "toolCallId": call, "content": content.into()})
}

/// The same input with another field.
pub(crate) fn with(mut input: Value, field: &str, value: Value) -> Value {
    input[field] = value;
    input
}

/// The kinds of events of a stream.
pub(crate) fn kinds(frames: &[SseFrame]) -> Vec<&str> {
    frames.iter().map(SseFrame::kind).collect()
}

/// All that the agents said in a stream.
pub(crate) fn text(frames: &[SseFrame]) -> String {
    let deltas = frames.iter().filter(|frame| frame.kind() == "TEXT_MESSAGE_CONTENT");
    deltas.map(|frame| frame.event["delta"].as_str().unwrap()).collect()
}

/// The events of one kind.
pub(crate) fn of_kind<'a>(frames: &'a [SseFrame], kind: &str) -> Vec<&'a Value> {
    frames.iter().filter(|frame| frame.kind() == kind).map(|frame| &frame.event).collect()
}

/// How a stream ended: the one terminal event, which is the last.
pub(crate) fn end(frames: &[SseFrame]) -> &Value {
    let terminal = frames.iter().filter(|frame| ["RUN_FINISHED", "RUN_ERROR"].contains(&frame.kind()));
    assert_eq!(terminal.count(), 1, "one terminal event: {:?}", kinds(frames));
    let last = &frames.last().unwrap().event;
    assert!(["RUN_FINISHED", "RUN_ERROR"].contains(&last["type"].as_str().unwrap()), "{last}");
    last
}
