//! What models used in a run, as its end tells it.

use serde_json::{Value, json};
use umbel::{
    AgentTool, Chunk, Confirm, Content, FunctionCall, FunctionTool, LlmAgent, ModelRequest, Part, Response,
    Role, ScriptedModel, Usage,
};

use crate::desk::{answers, ask, desk, end, results, text, with};
use crate::support::{Host, SseFrame, input};

/// A part of an answer for which a model used that many tokens.
fn answer(model: &str, part: Part, tokens: u64) -> Vec<umbel::Result<Chunk>> {
    let mut response = Response::new(Content::new(Role::Model, [part]));
    let meta = response.meta.get_or_insert_default();
    meta.model_version = Some(model.into());
    meta.usage_metadata = Some(Usage {
        prompt_token_count: Some(tokens),
        candidates_token_count: Some(1),
        total_token_count: Some(tokens + 1),
        ..Usage::default()
    });
    vec![Ok(Chunk::Complete(response))]
}

/// A model that calls a tool for so many tokens, and says what came back for as many and one more.
fn calling(name: &'static str, tool: &'static str, tokens: u64) -> ScriptedModel {
    answers(move |request: &ModelRequest| match results(request).first() {
        None => answer(
            name,
            Part::call(FunctionCall::new(tool, json!({"request": "go"}).as_object().cloned().unwrap())),
            tokens,
        ),
        Some((_, given)) => answer(name, Part::text(given.to_string()), tokens + 1),
    })
}

fn used(frames: &[SseFrame]) -> Vec<(String, u64, u64)> {
    let usage = end(frames)["usage"].as_array().cloned().unwrap_or_default();
    let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
    let used = usage.iter().map(|one| {
        (one["model"].as_str().unwrap().to_owned(), number(one, "inputTokens"), number(one, "outputTokens"))
    });
    used.collect()
}

fn entry(model: &str, input: u64, output: u64) -> (String, u64, u64) {
    (model.to_owned(), input, output)
}

/// An agent that calls an agent that calls an agent that uses a tool.
async fn nested(tool: FunctionTool) -> Host {
    let inner = LlmAgent::new("inner").model(calling("small", "look", 1)).tool(tool);
    let middle = LlmAgent::new("middle").model(calling("medium", "inner", 10)).tool(AgentTool::new(inner));
    desk(LlmAgent::new("outer").model(calling("large", "middle", 100)).tool(AgentTool::new(middle))).await
}

fn look() -> FunctionTool {
    FunctionTool::new("look", "Looks", |_: Value| async { Ok("seen") })
}

#[tokio::test]
async fn the_end_of_a_run_tells_what_agents_used_that_were_called_as_tools() {
    let host = nested(look()).await;
    let frames = host.run(&input("t", "r", "go")).await;
    assert!(text(&frames).contains("seen"), "{}", text(&frames));
    let mut all = used(&frames);
    all.sort();
    let wanted = [entry("large", 201, 2), entry("medium", 21, 2), entry("small", 3, 2)];
    assert_eq!(all, wanted);
    host.service.forget_frames();
    let again = host.get("/agent/runs/r/events?thread=t").await.frames().await;
    assert_eq!(used(&again), used(&frames), "the log has it, too");
}

#[tokio::test]
async fn a_resumed_run_tells_what_it_used_itself_and_nothing_twice() {
    let host = nested(look().confirm(Confirm::Always)).await;
    let first = host.run(&input("t", "r", "go")).await;
    let asked = end(&first)["outcome"]["interrupts"][0]["id"].clone();
    let mut all = used(&first);
    all.sort();
    assert_eq!(all, [entry("large", 100, 1), entry("medium", 10, 1), entry("small", 1, 1)]);
    let yes = json!([{"interruptId": asked, "status": "resolved", "payload": {"approved": true}}]);
    let second = host.run(&with(ask("t", "r2", &[]), "resume", yes)).await;
    let mut all = used(&second);
    all.sort();
    assert_eq!(all, [entry("large", 101, 1), entry("medium", 11, 1), entry("small", 2, 1)]);
}
