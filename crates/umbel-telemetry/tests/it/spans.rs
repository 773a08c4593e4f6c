//! Spans: their names, kinds and attributes, and that their tree is the tree of the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry::{Array, Value};
use serde_json::{Value as Json, json};
use umbel_core::conventions::attribute;
use umbel_core::{
    BoxStream, Chunk, Confirm, ErrorKind, FunctionTool, GenerateConfig, Model, ModelRequest, Outcome,
    Provider, Response, Result, RunConfig, RunLimits, ToolError, Usage,
};
use umbel_runtime::backoff::Backoff;
use umbel_runtime::handlers::ModelRetry;
use umbel_runtime::layers::ToolRetry;
use umbel_runtime::{AgentTool, LlmAgent, LoopAgent, Parallel, Runner, ScriptedModel, Sequential};

use crate::support::{attributes, begin, echo, listen, listen_with, read, run, text};

fn named(list: &[&str]) -> Value {
    Value::Array(Array::String(list.iter().map(|text| (*text).to_owned().into()).collect()))
}

fn full() -> Response {
    let mut answer = Response::text("Done.");
    let meta = answer.meta_mut();
    meta.model_version = Some("m-1".into());
    meta.finish_reason = Some("STOP".into());
    meta.unknown.insert("responseId".to_owned(), "r-7".into());
    meta.usage_metadata = Some(Usage {
        prompt_token_count: Some(10),
        candidates_token_count: Some(3),
        cached_content_token_count: Some(2),
        cache_write_token_count: Some(4),
        thoughts_token_count: Some(1),
        ..Usage::default()
    });
    answer
}

#[tokio::test]
async fn a_run_is_told_by_the_names_of_the_conventions() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({"text": "a"})).response(full());
    let config = GenerateConfig {
        temperature: Some(0.5),
        top_p: Some(0.9),
        top_k: Some(40),
        max_output_tokens: Some(100),
        seed: Some(7),
        stop_sequences: vec!["END".to_owned(), "a \"quote\"".to_owned()],
        presence_penalty: Some(0.1),
        frequency_penalty: Some(0.2),
        ..GenerateConfig::default()
    };
    let agent = LlmAgent::new("a").description("Says it.").model(model).generate(config).tool(echo());
    let (runner, key) = begin(agent).await;
    let stream = runner.run(&key, "hi");
    let id = stream.id().clone();
    assert_eq!(read(stream).await.outcome, Outcome::Finished);

    assert_eq!(
        listening.tree(),
        ["invocation", "  invoke_agent a", "    chat m", "    execute_tool echo", "    chat m"]
    );
    let invocation = listening.one("invocation");
    let told = attributes(&invocation);
    assert_eq!((&invocation.span_kind, &invocation.status), (&SpanKind::Internal, &Status::Unset));
    assert_eq!(told[attribute::RUN], id.as_str().to_owned().into());
    assert_eq!(told[attribute::CONVERSATION], key.id().to_owned().into());
    assert!(!told.contains_key(attribute::RESUMES));

    let agent = listening.one("invoke_agent a");
    assert_eq!(agent.span_kind, SpanKind::Internal);
    let told = attributes(&agent);
    for (name, value) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.provider.name", "umbel"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.agent.name", "a"),
        ("gen_ai.agent.id", "app/a"),
        ("gen_ai.agent.description", "Says it."),
        ("gen_ai.conversation.id", key.id()),
    ] {
        assert_eq!(told[name], value.to_owned().into(), "{name}");
    }

    let chats = listening.of_name("chat m");
    assert!(chats.iter().all(|chat| chat.span_kind == SpanKind::Client && chat.status == Status::Unset));
    let told = attributes(&chats[1]);
    for (name, value) in [
        ("gen_ai.operation.name", "chat".into()),
        ("gen_ai.provider.name", "umbel".into()),
        ("gen_ai.request.model", "m".into()),
        ("gen_ai.request.temperature", 0.5.into()),
        ("gen_ai.request.top_p", 0.9.into()),
        ("gen_ai.request.top_k", 40.0.into()),
        ("gen_ai.request.max_tokens", 100_i64.into()),
        ("gen_ai.request.seed", 7_i64.into()),
        ("gen_ai.request.stop_sequences", named(&["END", "a \"quote\""])),
        ("gen_ai.request.presence_penalty", 0.1.into()),
        ("gen_ai.request.frequency_penalty", 0.2.into()),
        ("gen_ai.agent.name", "a".into()),
        ("gen_ai.conversation.id", key.id().to_owned().into()),
        ("gen_ai.response.id", "r-7".into()),
        ("gen_ai.response.model", "m-1".into()),
        ("gen_ai.response.finish_reasons", named(&["stop"])),
        ("gen_ai.usage.input_tokens", 10_i64.into()),
        ("gen_ai.usage.output_tokens", 4_i64.into()),
        ("gen_ai.usage.cache_read.input_tokens", 2_i64.into()),
        ("gen_ai.usage.cache_creation.input_tokens", 4_i64.into()),
        ("gen_ai.usage.reasoning.output_tokens", 1_i64.into()),
    ] {
        assert_eq!(told[name], value, "{name}");
    }
    for unsaid in ["gen_ai.output.type", "server.address", "gen_ai.request.stream"] {
        assert!(!told.contains_key(unsaid), "{unsaid}");
    }

    let tool = listening.one("execute_tool echo");
    assert_eq!(tool.span_kind, SpanKind::Internal);
    let told = attributes(&tool);
    for (name, value) in [
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "echo"),
        ("gen_ai.tool.type", "function"),
        ("gen_ai.tool.description", "Says it again."),
        ("gen_ai.agent.name", "a"),
    ] {
        assert_eq!(told[name], value.to_owned().into(), "{name}");
    }
    assert!(told.contains_key("gen_ai.tool.call.id"));
}

#[tokio::test]
async fn an_answer_that_is_to_be_json_says_so() {
    let listening = listen();
    let model = ScriptedModel::new("m").text("{\"n\": 1}");
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    run(LlmAgent::new("a").model(model).output_schema(schema)).await;
    assert_eq!(text(&listening.one("chat m"), attribute::OUTPUT_TYPE).as_deref(), Some("json"));
}

#[tokio::test]
async fn who_hands_over_stands_beside_who_goes_on() {
    let listening = listen();
    let child = LlmAgent::new("b").model(ScriptedModel::new("m2").text("Here."));
    let model = ScriptedModel::new("m1").call("transfer_to_agent", json!({"agent_name": "b"}));
    run(LlmAgent::new("a").model(model).sub_agent(child)).await;
    assert_eq!(
        listening.tree(),
        [
            "invocation",
            "  invoke_agent a",
            "    chat m1",
            "    execute_tool transfer_to_agent",
            "  invoke_agent b",
            "    chat m2",
        ]
    );
}

#[tokio::test]
async fn agents_side_by_side_are_parts_of_their_workflow() {
    let listening = listen();
    let agent = |name: &'static str, model: &'static str| {
        LlmAgent::new(name)
            .model(ScriptedModel::new(model).call("echo", json!({})).text("Done."))
            .tool(echo())
    };
    let both = Parallel::new("both").agent(agent("a", "m1")).agent(agent("b", "m2"));
    let last = LoopAgent::new("again").max_iterations(1).agent(agent("c", "m3"));
    run(Sequential::new("all").agent(both).agent(last)).await;
    let (tree, spans) = (listening.tree(), listening.spans());
    assert_eq!(
        tree.iter().filter(|line| line.contains("workflow")).collect::<Vec<_>>(),
        ["  invoke_workflow all", "    invoke_workflow both", "    invoke_workflow again"]
    );
    // Side by side they begin in any order; who is part of whom is certain.
    for (agent, model, workflow) in [("a", "m1", "both"), ("b", "m2", "both"), ("c", "m3", "again")] {
        let agent = listening.one(&format!("invoke_agent {agent}"));
        let workflow = listening.one(&format!("invoke_workflow {workflow}"));
        assert_eq!(agent.parent_span_id, workflow.span_context.span_id());
        let inside: Vec<_> =
            spans.iter().filter(|span| span.parent_span_id == agent.span_context.span_id()).collect();
        let names: Vec<_> = inside.iter().map(|span| span.name.to_string()).collect();
        let chat = format!("chat {model}");
        assert_eq!(names, [chat.as_str(), "execute_tool echo", chat.as_str()]);
    }
    let told = attributes(&listening.one("invoke_workflow both"));
    assert_eq!(told["gen_ai.operation.name"], "invoke_workflow".into());
    assert_eq!(told["gen_ai.workflow.name"], "both".into());
    assert!(text(&listening.one("invoke_agent a"), attribute::BRANCH).unwrap().ends_with("both.a"));
}

#[tokio::test]
async fn the_run_of_an_agent_that_is_called_is_part_of_the_call() {
    let listening = listen();
    let inner = LlmAgent::new("b").description("Helps.").model(ScriptedModel::new("m2").text("42"));
    let model = ScriptedModel::new("m1").call("b", json!({"request": "?"})).text("It is 42.");
    run(LlmAgent::new("a").model(model).tool(AgentTool::new(inner))).await;
    assert_eq!(
        listening.tree(),
        [
            "invocation",
            "  invoke_agent a",
            "    chat m1",
            "    execute_tool b",
            "      invocation",
            "        invoke_agent b",
            "          chat m2",
            "    chat m1",
        ]
    );
}

#[tokio::test]
async fn a_failure_is_named_in_all_that_failed_by_it() {
    let listening = listen();
    let model = ScriptedModel::new("m").fail("out of order");
    let ended = run(LlmAgent::new("a").model(model)).await;
    let code = ended.error.unwrap().kind().code();
    for name in ["chat m", "invoke_agent a", "invocation"] {
        let span = listening.one(name);
        assert_eq!(text(&span, attribute::ERROR).as_deref(), Some(code), "{name}");
        assert_eq!(span.status, Status::error(""), "{name}");
    }
}

#[tokio::test]
async fn a_tool_that_fails_fails_by_itself() {
    let listening = listen();
    let broken =
        FunctionTool::new("broken", "", |_: Json| async { Err::<(), _>(ToolError::new("no such thing")) });
    let model = ScriptedModel::new("m").calls([("broken", json!({})), ("missing", json!({}))]).text("Oh.");
    run(LlmAgent::new("a").model(model).tool(broken)).await;
    for name in ["execute_tool broken", "execute_tool missing"] {
        let span = listening.one(name);
        assert_eq!(text(&span, attribute::ERROR).as_deref(), Some(ErrorKind::Tool.code()), "{name}");
    }
    assert_eq!(text(&listening.one("execute_tool missing"), attribute::TOOL_TYPE), None);
    assert_eq!(listening.one("invocation").status, Status::Unset);
}

/// A model that says a word and then nothing more.
#[derive(Debug)]
struct Silent;

impl Model for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn provider(&self) -> Provider<'_> {
        Provider { name: "openai", server: Some(("api.example", 443)) }
    }

    fn generate(&self, _: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let first = futures::stream::iter([Ok(Chunk::Text("Well".to_owned()))]);
        Box::pin(first.chain(futures::stream::pending()))
    }
}

#[tokio::test]
async fn a_run_that_is_cancelled_closes_its_spans() {
    let listening = listen();
    let (runner, key) = begin(LlmAgent::new("a").model(Silent)).await;
    let mut stream = runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() });
    stream.next().await.unwrap().unwrap();
    stream.cancel();
    assert!(matches!(read(stream).await.outcome, Outcome::Cancelled));
    assert_eq!(listening.tree(), ["invocation", "  invoke_agent a", "    chat silent"]);
    for span in listening.spans() {
        assert_eq!(text(&span, attribute::ERROR).as_deref(), Some("CANCELLED"), "{}", span.name);
    }
    let told = attributes(&listening.one("chat silent"));
    assert_eq!(told["server.address"], "api.example".into());
    assert_eq!(told["server.port"], 443_i64.into());
    assert_eq!(told["gen_ai.provider.name"], "openai".into());
    assert_eq!(told["gen_ai.request.stream"], true.into());
    assert!(matches!(told["gen_ai.response.time_to_first_chunk"], Value::F64(seconds) if seconds >= 0.0));
}

#[tokio::test]
async fn a_run_that_does_not_stop_in_time_closes_its_spans_all_the_same() {
    let listening = listen();
    let stuck = FunctionTool::new("stuck", "", |_: Json| async {
        std::future::pending::<()>().await;
        Ok(())
    });
    let model = ScriptedModel::new("m").call("stuck", json!({}));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(stuck)).await;
    let limits = RunLimits {
        run_time: Duration::from_millis(20),
        grace: Duration::from_millis(20),
        ..RunLimits::default()
    };
    read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await;
    assert_eq!(listening.tree(), ["invocation", "  invoke_agent a", "    chat m", "    execute_tool stuck"]);
    assert!(text(&listening.one("invocation"), attribute::ERROR).is_some());
}

#[tokio::test]
async fn each_try_of_a_model_is_a_span() {
    let listening = listen();
    let model = ScriptedModel::new("m").fail("busy").text("Now.");
    let retry = ModelRetry::new().backoff(Backoff::new().initial(Duration::ZERO)).retry_on(|_| true);
    run(LlmAgent::new("a").model(model).handler(retry)).await;
    let chats = listening.of_name("chat m");
    let failed: Vec<bool> = chats.iter().map(|chat| text(chat, attribute::ERROR).is_some()).collect();
    assert_eq!(failed, [true, false]);
    assert_eq!(listening.tree(), ["invocation", "  invoke_agent a", "    chat m", "    chat m"]);
}

#[tokio::test]
async fn each_new_try_of_a_tool_is_a_span_in_its_own() {
    let listening = listen();
    let tries = Arc::new(AtomicUsize::new(0));
    let flaky = FunctionTool::new("flaky", "", move |_: Json| {
        let nth = tries.fetch_add(1, Ordering::Relaxed);
        async move { if nth < 2 { Err(ToolError::new("not yet")) } else { Ok("there") } }
    });
    let model = ScriptedModel::new("m").call("flaky", json!({})).text("Done.");
    let retry = ToolRetry::new().backoff(Backoff::new().initial(Duration::ZERO));
    run(LlmAgent::new("a").model(model).tool(flaky).handler(retry)).await;
    assert_eq!(
        listening.tree(),
        [
            "invocation",
            "  invoke_agent a",
            "    chat m",
            "    execute_tool flaky",
            "      retry",
            "      retry",
            "    chat m",
        ]
    );
    let told: Vec<_> = listening
        .of_name("retry")
        .iter()
        .map(|span| (text(span, attribute::ATTEMPT).unwrap(), text(span, attribute::ERROR).is_some()))
        .collect();
    assert_eq!(told, [("2".to_owned(), true), ("3".to_owned(), false)]);
    assert_eq!(text(&listening.one("execute_tool flaky"), attribute::ERROR), None);
}

#[tokio::test]
async fn a_run_that_goes_on_names_the_one_it_goes_on_with() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({})).text("Done.");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo().confirm(Confirm::Always))).await;
    let stream = runner.run(&key, "hi");
    let first = stream.id().clone();
    let Outcome::Interrupted { interrupts } = read(stream).await.outcome else { panic!("not asked") };
    let waiting = listening.one("execute_tool echo");
    assert_eq!(waiting.status, Status::Unset, "who waits has not failed");

    let second = runner.resume(&key, [(&interrupts[0], umbel_core::Answer::approve())]);
    let second_id = second.id().clone();
    assert_eq!(read(second).await.outcome, Outcome::Finished);
    let told: Vec<_> = listening
        .of_name("invocation")
        .iter()
        .map(|span| (text(span, attribute::RUN).unwrap(), text(span, attribute::RESUMES)))
        .collect();
    assert_eq!(
        told,
        [(first.as_str().to_owned(), None), (second_id.as_str().to_owned(), Some(first.as_str().to_owned()))]
    );
}

#[tokio::test]
async fn the_next_turn_of_a_conversation_goes_on_with_nothing() {
    let listening = listen();
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("1").text("2"))).await;
    for _ in 0..2 {
        read(runner.run(&key, "hi")).await;
    }
    let invocations = listening.of_name("invocation");
    assert_eq!(invocations.len(), 2);
    assert!(invocations.iter().all(|span| text(span, attribute::RESUMES).is_none()));
    assert_ne!(invocations[0].span_context.trace_id(), invocations[1].span_context.trace_id());
}

#[tokio::test]
async fn spans_of_the_program_stand_in_the_tree_if_they_are_asked_for() {
    let traced = || {
        FunctionTool::new("look", "", |_: Json| async {
            let span = tracing::info_span!(target: "my_app::tools", "query", rows = 3);
            span.in_scope(|| tracing::info_span!(target: "other", "inner").in_scope(|| {}));
            Ok(())
        })
    };
    let agent = || {
        let model = ScriptedModel::new("m").call("look", json!({})).text("Done.");
        LlmAgent::new("a").model(model).tool(traced())
    };
    let listening = listen_with(|telemetry| telemetry.spans_of("my_app"));
    run(agent()).await;
    let tool = listening.one("execute_tool look");
    assert_eq!(listening.one("query").parent_span_id, tool.span_context.span_id());
    assert!(listening.of_name("inner").is_empty());
    drop(listening);

    let listening = listen();
    run(agent()).await;
    assert!(listening.of_name("query").is_empty());
}

#[tokio::test]
async fn a_span_of_the_program_is_what_a_run_is_part_of() {
    let listening = listen_with(|telemetry| telemetry.spans_of("my_app"));
    let runner = Runner::new("app", LlmAgent::new("a").model(ScriptedModel::new("m").text("Hi."))).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let span = tracing::info_span!(target: "my_app", "job");
    tracing::Instrument::instrument(async { read(runner.run(&key, "hi")).await }, span).await;
    assert_eq!(listening.tree(), ["job", "  invocation", "    invoke_agent a", "      chat m"]);
    assert_eq!(listening.one("job").parent_span_id, SpanId::INVALID);
}
