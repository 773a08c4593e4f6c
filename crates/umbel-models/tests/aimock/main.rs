//! Every provider against aimock, which speaks like all of them. `cargo xtask test models` starts it and runs these.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;
use umbel_core::{
    BoxFuture, Chunk, Content, Error, ErrorKind, FunctionTool, Model, ModelErrorKind, ModelRequest, Response,
    Result, RunConfig,
};
use umbel_models::{HttpModel, TokenSource, model_with};
use umbel_runtime::backoff::Backoff;
use umbel_runtime::handlers::{ModelRetry, OnFailure};
use umbel_runtime::{LlmAgent, Runner};

/// Where aimock is.
const VARIABLE: &str = "UMBEL_TEST_AIMOCK";

/// Every format, by the name of a model that speaks it.
const NAMES: [&str; 7] =
    ["openai/m", "openai-chat/m", "anthropic/m", "gemini/m", "vertex/m", "ollama/m", "groq/m"];

fn mock() -> Option<String> {
    let mock = std::env::var(VARIABLE).ok();
    if mock.is_none() {
        eprintln!("not run, since {VARIABLE} names no mock: use `cargo xtask test models`");
    }
    mock
}

/// A token that the mock takes as it takes any.
#[derive(Debug)]
struct Token;

impl TokenSource for Token {
    fn token(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async { Ok("token".to_owned()) })
    }
}

fn named(mock: &str, name: &str) -> HttpModel {
    let environment = |variable: &str| match variable {
        "OPENAI_BASE_URL" | "ANTHROPIC_BASE_URL" | "GROQ_BASE_URL" => Some(format!("{mock}/v1")),
        "GOOGLE_VERTEX_BASE_URL" => Some(format!("{mock}/v1")),
        "GOOGLE_CLOUD_PROJECT" => Some("p".to_owned()),
        "GEMINI_BASE_URL" => Some(format!("{mock}/v1beta")),
        "OLLAMA_HOST" => Some(mock.to_owned()),
        _ if variable.ends_with("_API_KEY") => Some("sk-test".to_owned()),
        _ => None,
    };
    let model = model_with(name, environment).unwrap_or_else(|error| panic!("{name}: {error}"));
    match name {
        "vertex/m" => model.token_source(Token).unwrap(),
        _ => model,
    }
}

async fn ask(model: &HttpModel, words: &str, stream: bool) -> Vec<Result<Chunk>> {
    let mut request = ModelRequest::new("m");
    request.contents.push(Content::user(words));
    request.stream = stream;
    model.generate(&request).collect().await
}

async fn whole(model: &HttpModel, words: &str, stream: bool) -> (String, Response) {
    let chunks = ask(model, words, stream).await;
    let mut seen = String::new();
    for chunk in &chunks {
        match chunk {
            Ok(Chunk::Text(text)) => seen.push_str(text),
            Ok(Chunk::Complete(whole)) => return (seen, whole.clone()),
            Ok(_) => {}
            Err(error) => panic!("{model:?}: {error}"),
        }
    }
    panic!("{model:?} gave no whole: {chunks:?}");
}

async fn fail(model: &HttpModel, words: &str, stream: bool) -> Error {
    match ask(model, words, stream).await.pop() {
        Some(Err(error)) => error,
        other => panic!("{model:?} did not fail: {other:?}"),
    }
}

#[tokio::test]
async fn words_and_usage_come_streamed_and_whole() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        for stream in [true, false] {
            let (seen, whole) = whole(&named(&mock, name), "hello", stream).await;
            assert_eq!(
                whole.content.as_ref().unwrap().text(),
                "Hello! I am a mock model.",
                "{name} {stream}"
            );
            assert_eq!(seen, if stream { "Hello! I am a mock model." } else { "" }, "{name}");
            assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None), "{name} {stream}");
            let usage = whole.usage().unwrap_or_else(|| panic!("{name} {stream} tells no usage"));
            // Speaking like Ollama the mock counts nothing.
            let told = if name == "ollama/m" { (0, 0) } else { (9, 7) };
            let told = (Some(told.0), Some(told.1));
            assert_eq!((usage.prompt_token_count, usage.candidates_token_count), told, "{name} {stream}");
            assert!(whole.meta.unwrap().unknown.contains_key("requestId"), "{name} {stream}");
        }
    }
}

#[tokio::test]
async fn thoughts_are_told_apart_from_words() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        for stream in [true, false] {
            let (_, whole) = whole(&named(&mock, name), "think", stream).await;
            let content = whole.content.unwrap();
            assert_eq!(content.text(), "42", "{name} {stream}");
            let thought: String = content
                .parts
                .iter()
                .filter(|part| part.is_thought())
                .filter_map(|part| part.as_text())
                .collect();
            assert_eq!(thought, "let me think hard", "{name} {stream}");
        }
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Place {
    city: String,
    unit: Option<String>,
}

#[tokio::test]
async fn an_agent_thinks_calls_a_tool_and_answers_with_what_it_said() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        for streaming in [true, false] {
            let called = Arc::new(AtomicUsize::new(0));
            let count = called.clone();
            let tool = FunctionTool::new("get_weather", "Tells the weather.", move |place: Place| {
                assert_eq!((place.city.as_str(), place.unit.as_deref()), ("Berlin", Some("celsius")));
                count.fetch_add(1, Ordering::SeqCst);
                async { Ok("21C".to_owned()) }
            });
            let agent = LlmAgent::new("guide").instruction("Help.").model(named(&mock, name)).tool(tool);
            let runner = Runner::new("demo", agent).unwrap();
            let session = runner.create_session("ann").await.unwrap();
            let config = RunConfig { streaming, ..RunConfig::default() };
            let answer = runner.run_with(&session.key, "weather?", config).text().await;
            assert_eq!(
                answer.unwrap_or_else(|error| panic!("{name}: {error}")),
                "It is 21C in Berlin.",
                "{name}"
            );
            assert_eq!(called.load(Ordering::SeqCst), 1, "{name}");
        }
    }
}

#[tokio::test]
async fn refusals_are_classed_and_say_how_long_to_wait() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        for stream in [true, false] {
            let model = named(&mock, name);
            for (words, kind, wait) in [
                ("ratelimit", ModelErrorKind::RateLimited, Some(3)),
                ("boom", ModelErrorKind::Overloaded, None),
                ("broken", ModelErrorKind::Overloaded, None),
                ("wrong", ModelErrorKind::BadRequest, None),
            ] {
                let error = fail(&model, words, stream).await;
                assert_eq!(error.kind(), ErrorKind::Model(kind), "{name} {words}: {error}");
                assert_eq!(error.retry_after(), wait.map(Duration::from_secs), "{name} {words}");
                assert!(error.message().contains("[request req-"), "{name}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn streams_that_are_truncated_or_dropped_are_cut() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        for words in ["cut", "drop"] {
            let error = fail(&named(&mock, name), words, true).await;
            assert_eq!(error.kind(), ErrorKind::StreamCut, "{name} {words}: {error}");
        }
    }
}

#[tokio::test]
async fn chaos_is_classed_too() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        let with = |header: &str| named(&mock, name).header(header, "1").unwrap();
        let kind = |header: &'static str| async move { fail(&with(header), "hello", true).await.kind() };
        assert_eq!(kind("x-aimock-chaos-drop").await, ErrorKind::Model(ModelErrorKind::Overloaded), "{name}");
        assert_eq!(
            kind("x-aimock-chaos-ratelimit").await,
            ErrorKind::Model(ModelErrorKind::RateLimited),
            "{name}"
        );
        assert_eq!(kind("x-aimock-chaos-malformed").await, ErrorKind::Model(ModelErrorKind::Other), "{name}");
        let gone = kind("x-aimock-chaos-disconnect").await;
        let cut = [ErrorKind::StreamCut, ErrorKind::Model(ModelErrorKind::Transport)].contains(&gone);
        assert!(cut, "{name}: {gone:?}");
    }
}

#[tokio::test]
async fn an_agent_that_tries_again_gets_through_chaos_and_nobody_reads_a_word_twice() {
    let Some(mock) = mock() else { return };
    for name in NAMES {
        let mut model = named(&mock, name);
        for fault in ["drop", "disconnect"] {
            model = model.header(&format!("x-aimock-chaos-{fault}"), "0.25").unwrap();
        }
        let retry = ModelRetry::new()
            .max_retries(50)
            .backoff(Backoff::new().initial(Duration::from_millis(1)).max(Duration::from_millis(1)))
            .on_failure(OnFailure::Error);
        let runner = Runner::new("demo", LlmAgent::new("guide").model(model).handler(retry)).unwrap();
        let session = runner.create_session("ann").await.unwrap();
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        for _ in 0..10 {
            let text = runner.run_with(&session.key, "long", config.clone()).text().await;
            let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(text, "one two three four five six seven eight nine ten", "{name}");
        }
    }
}
