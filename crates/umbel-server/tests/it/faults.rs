//! What breaks inside: each run ends with one `RUN_ERROR` that has a code, plain words and a reference, and nothing of
//! what went wrong reaches the client.

use http::StatusCode;
use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Error, ErrorKind, FunctionTool, Handler, LlmAgent, Model, ModelErrorKind, ModelRequest,
    ModelTurn, Result, RunConfig, Runner, Step, ToolErrors, handler,
};
use umbel_server::{AgentEndpoint, Problem, Server};

use crate::desk::{answers, call, end, offered, results, say, serve, talker, text};
use crate::support::{Host, input};

const SECRET: &str = "secret-of-the-server";

/// A model that panics, before its first word or after it.
#[derive(Debug)]
struct Panics {
    late: bool,
}

impl Model for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn generate(&self, _: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        assert!(self.late, "{SECRET}");
        let mut words = vec!["one ", "two "].into_iter();
        Box::pin(futures::stream::iter(std::iter::from_fn(move || {
            let word = words.next().unwrap_or_else(|| panic!("{SECRET}"));
            Some(Ok(Chunk::Text(word.to_owned())))
        })))
    }
}

/// A handler that fails or panics before the model is asked.
#[derive(Debug)]
struct Breaks {
    panics: bool,
}

#[handler]
impl Handler for Breaks {
    fn name(&self) -> &str {
        "breaks"
    }

    fn before_model(&self, _: &mut ModelTurn<'_>) -> Result<Step> {
        assert!(!self.panics, "{SECRET}");
        Err(Error::new(ErrorKind::Handler, SECRET))
    }
}

fn fails() -> LlmAgent {
    LlmAgent::new("fails").model(answers(|_| {
        vec![
            Ok(Chunk::Text("I was ".into())),
            Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), SECRET)),
        ]
    }))
}

fn with_tool(tool: FunctionTool, errors: ToolErrors) -> AgentEndpoint {
    let model = answers(|request| match results(request).is_empty() {
        true => call([("tool", json!({}))]),
        false => say("Oh dear."),
    });
    let agent = LlmAgent::new("tools").model(model).tool(tool);
    let config = RunConfig { tool_errors: errors, ..RunConfig::default() };
    AgentEndpoint::new(Runner::builder("desk", agent).config(config).build().unwrap())
}

fn panicking_tool() -> FunctionTool {
    FunctionTool::new("tool", "Panics", |_: Value| async { if true { panic!("{SECRET}") } else { Ok("") } })
}

async fn host(endpoint: AgentEndpoint) -> Host {
    serve(Server::new().agent("/agent", endpoint)).await
}

#[tokio::test]
async fn whatever_breaks_gives_one_error_with_a_reference_and_nothing_of_the_inside() {
    let cases = [
        ("a model that panics", offered(LlmAgent::new("m").model(Panics { late: false }))),
        ("a model that panics in mid-stream", offered(LlmAgent::new("m").model(Panics { late: true }))),
        ("a model that fails in mid-stream", offered(fails())),
        ("a handler that panics", offered(talker("x").handler(Breaks { panics: true }))),
        ("a handler that fails", offered(talker("x").handler(Breaks { panics: false }))),
        ("a tool that panics", with_tool(panicking_tool(), ToolErrors::Fail)),
    ];
    for (name, endpoint) in cases {
        let host = host(endpoint).await;
        let mut reply = host.post("/agent", &input("t", "r", "hello")).await;
        assert_eq!(reply.status(), StatusCode::OK, "{name}");
        let mut frames = Vec::new();
        while let Some(frame) = reply.next().await {
            assert!(!frame.text.contains(SECRET), "{name}: {}", frame.text);
            frames.push(frame);
        }
        let error = end(&frames);
        assert_eq!(error["type"], "RUN_ERROR", "{name}");
        let (code, message) = (error["code"].as_str().unwrap(), error["message"].as_str().unwrap());
        assert!(code.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_'), "{name}: {code}");
        assert!(message.contains(" (reference "), "{name}: {message}");
        host.idle().await;
        for path in ["/agent/threads/t", "/agent/threads/t/runs", "/metrics"] {
            let told = host.get(path).await.text().await;
            assert!(!told.contains(SECRET), "{name}, {path}: {told}");
        }
        host.service.forget_frames();
        let again = host.get("/agent/runs/r/events").await.frames().await;
        assert_eq!(end(&again)["code"], code, "{name}: the log tells the same");
        assert!(again.iter().all(|frame| !frame.text.contains(SECRET)), "{name}");
        let next = host.post("/agent", &input("t", "r2", "again")).await;
        assert_eq!(next.status(), StatusCode::OK, "{name}: the thread is usable");
        assert_eq!(end(&next.frames().await)["type"], "RUN_ERROR");
    }
}

#[tokio::test]
async fn a_tool_that_panics_is_a_failed_call_whose_words_stay_inside() {
    let host = host(with_tool(panicking_tool(), ToolErrors::ToModel)).await;
    let frames = host.run(&input("t", "r", "hello")).await;
    assert!(frames.iter().all(|frame| !frame.text.contains(SECRET)));
    assert_eq!(text(&frames), "Oh dear.");
}

#[tokio::test]
async fn hooks_of_the_application_that_panic_or_refuse_are_answered_before_the_stream() {
    let panics = host(offered(talker("x")).request_state(|_, _| panic!("{SECRET}"))).await;
    let reply = panics.post("/agent", &input("t", "r", "hello")).await;
    assert_eq!(reply.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let told = reply.json().await;
    assert_eq!(
        (&told["error"]["code"], told["error"]["reference"].is_string()),
        (&json!("PANIC"), true),
        "{told}"
    );
    assert!(!told.to_string().contains(SECRET));

    let configured = host(offered(talker("x")).run_config(|_, _, _| panic!("{SECRET}"))).await;
    let reply = configured.post("/agent", &input("t", "r", "hello")).await;
    assert_eq!(reply.status(), StatusCode::INTERNAL_SERVER_ERROR);
    configured.idle().await;

    let refuses =
        host(offered(talker("x")).run_config(|_, _, _| {
            Err(Problem::new(StatusCode::PAYMENT_REQUIRED, "NO_CREDIT", "top up first"))
        }))
        .await;
    let reply = refuses.post("/agent", &input("t", "r", "hello")).await;
    assert_eq!(reply.status(), StatusCode::PAYMENT_REQUIRED);
    assert_eq!(reply.json().await, json!({"error": {"code": "NO_CREDIT", "message": "top up first"}}));
    refuses.idle().await;
}

#[tokio::test]
async fn a_hook_that_panics_for_a_run_that_waited_ends_its_stream_too() {
    let model = crate::desk::Slowly::new("one two");
    let agent = offered(LlmAgent::new("slow").model(model.clone())).run_config(|input, _, config| {
        assert!(input.run_id != "r2", "{SECRET}");
        Ok(config)
    });
    let host = host(agent).await;
    let mut first = host.post("/agent", &input("t", "r1", "hello")).await;
    while first.next().await.unwrap().kind() != "TEXT_MESSAGE_CONTENT" {}
    let second = host.post("/agent", &input("t", "r2", "hello")).await;
    model.go_on();
    drop(first.frames().await);
    let second = second.frames().await;
    assert_eq!(end(&second)["type"], "RUN_ERROR");
    assert!(second.iter().all(|frame| !frame.text.contains(SECRET)));
    host.idle().await;
    assert_eq!(text(&host.run(&input("t", "r3", "again")).await), "one two");
}
