//! State that is foretold by arguments, and changes that people confirm.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::ConfirmChanges;
use umbel::{
    FunctionTool, InMemorySessions, LlmAgent, Runner, RunnerBuilder, ScriptedModel, Sequential, ToolError,
};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{answers, ask, call, end, kinds, of_kind, results, say, serve, text, tool, user, with};
use crate::support::{Host, SseFrame};

/// A model that writes, says that it did, and says what it hears.
fn writing() -> ScriptedModel {
    answers(|request| match results(request).first() {
        None => call([("write", json!({"text": "A new page"}))]),
        Some((name, _)) if name == "write" => say("It is written."),
        Some((name, given)) => say(&format!("{name}: {given}")),
    })
}

fn write() -> FunctionTool {
    FunctionTool::with_context("write", "Writes the document", |cx, args: Value| {
        Box::pin(async move {
            cx.set_state("document", args["text"].clone());
            Ok("written")
        })
    })
}

fn writer() -> LlmAgent {
    LlmAgent::new("writer").model(writing()).tool(write())
}

async fn host(runner: RunnerBuilder) -> Host {
    let runner = runner.handler(ConfirmChanges::new(["write"])).build().unwrap();
    let endpoint = AgentEndpoint::new(runner).predict_state("document", "write", "text");
    serve(Server::new().agent("/agent", endpoint)).await
}

fn asks(frames: &[SseFrame]) -> Vec<&Value> {
    let calls = of_kind(frames, "TOOL_CALL_START");
    calls.into_iter().filter(|call| call["toolCallName"] == "confirm_changes").collect()
}

fn pending(frames: &[SseFrame]) -> String {
    let pending = end(frames)["outcome"]["pendingToolCallIds"].as_array().unwrap();
    assert_eq!(pending.len(), 1, "{pending:?}");
    pending[0].as_str().unwrap().to_owned()
}

async fn stored(host: &Host) -> Value {
    host.get("/agent/threads/t").await.json().await
}

#[tokio::test]
async fn what_a_tool_changed_is_foretold_and_then_asked_about_at_the_very_end() {
    let host = host(Runner::builder("desk", writer())).await;
    let first =
        host.run(&with(ask("t", "r1", &[user("m1", "Write")]), "state", json!({"document": "Old"}))).await;
    let told = of_kind(&first, "CUSTOM");
    assert_eq!(
        told[0]["value"],
        json!([{"state_key": "document", "tool": "write", "tool_argument": "text"}])
    );
    let kinds = kinds(&first);
    let at = |kind: &str| kinds.iter().position(|one| *one == kind).unwrap();
    assert!(at("CUSTOM") < at("TOOL_CALL_START"), "{kinds:?}");
    let ask_at = first.iter().position(|frame| frame.event["toolCallName"] == "confirm_changes").unwrap();
    let after: Vec<&str> = kinds[ask_at..].to_vec();
    assert_eq!(
        after,
        ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "STATE_SNAPSHOT", "RUN_FINISHED"]
    );
    assert_eq!(asks(&first)[0]["toolCallId"], pending(&first).as_str());
    let last = stored(&host).await["messages"].as_array().unwrap().last().cloned().unwrap();
    assert_eq!(last["toolCalls"][0]["function"]["name"], "confirm_changes", "who comes later is asked, too");

    let yes = tool("a1", &pending(&first), "{\"accepted\": true}");
    let second = host.run(&with(ask("t", "r2", &[yes]), "state", json!({"document": "A new page"}))).await;
    assert_eq!(text(&second), "confirm_changes: {\"accepted\":true}", "the agent hears what was decided");
    assert_eq!(asks(&second).len(), 0, "nothing was changed any more");
    assert_eq!(stored(&host).await["state"], json!({"document": "A new page"}));
}

#[tokio::test]
async fn who_rejects_a_change_puts_the_state_back_and_the_agent_hears_of_it() {
    let host = host(Runner::builder("desk", writer())).await;
    let first =
        host.run(&with(ask("t", "r1", &[user("m1", "Write")]), "state", json!({"document": "Old"}))).await;
    let no = tool("a1", &pending(&first), "{\"accepted\": false}");
    let second = host.run(&with(ask("t", "r2", &[no]), "state", json!({"document": "Old"}))).await;
    assert_eq!(text(&second), "confirm_changes: {\"accepted\":false}");
    assert_eq!(stored(&host).await["state"], json!({"document": "Old"}));
}

#[tokio::test]
async fn a_change_can_be_confirmed_at_another_server_and_a_message_in_its_place_is_an_answer() {
    let sessions = Arc::new(InMemorySessions::new());
    let one = host(Runner::builder("desk", writer()).sessions(sessions.clone())).await;
    let other = host(Runner::builder("desk", writer()).sessions(sessions)).await;
    let first = one.run(&ask("t", "r1", &[user("m1", "Write")])).await;
    let yes = tool("a1", &pending(&first), "{\"accepted\": true}");
    assert_eq!(text(&other.run(&ask("t", "r2", &[yes])).await), "confirm_changes: {\"accepted\":true}");
    let again = one.run(&ask("u", "r3", &[user("m1", "Write")])).await;
    pending(&again);
    let said = other.run(&ask("u", "r4", &[user("m2", "Never mind")])).await;
    assert_eq!(end(&said)["outcome"]["type"], "success");
    assert_eq!(
        text(&said),
        "confirm_changes: {\"error\":\"The user did not answer this call and went on.\"}"
    );
}

#[tokio::test]
async fn nobody_is_asked_about_a_tool_that_failed_was_not_named_or_was_not_called() {
    let fails = FunctionTool::new("write", "Fails", |_: Value| async {
        Err::<Value, _>(ToolError::new("the disk is full"))
    });
    let failing = LlmAgent::new("writer").model(writing()).tool(fails);
    let talks = LlmAgent::new("talker").model(answers(|_| say("Hello.")));
    let model = answers(|request| match results(request).is_empty() {
        true => call([("look", json!({}))]),
        false => say("Looked."),
    });
    let look = FunctionTool::new("look", "Looks", |_: Value| async { Ok("seen") });
    for agent in [failing, talks, LlmAgent::new("looker").model(model).tool(look)] {
        let host = host(Runner::builder("desk", agent)).await;
        let frames = host.run(&ask("t", "r1", &[user("m1", "Go")])).await;
        assert_eq!((asks(&frames).len(), &end(&frames)["outcome"]), (0, &json!({"type": "success"})));
    }
}

#[tokio::test]
async fn the_agent_of_a_team_that_changed_something_is_the_one_that_asks() {
    let model = answers(|_| say("I have read it."));
    let team = Sequential::new("team").agent(writer()).agent(LlmAgent::new("reader").model(model));
    let host = host(Runner::builder("desk", team)).await;
    let frames = host.run(&ask("t", "r1", &[user("m1", "Write")])).await;
    assert_eq!(asks(&frames).len(), 1);
    let calls = of_kind(&frames, "TOOL_CALL_START");
    let name_of = |id: &Value| {
        let begun = of_kind(&frames, "SUBAGENT_STARTED");
        begun.into_iter().find(|one| one["subagentRunId"] == *id).unwrap()["name"].clone()
    };
    assert_eq!(name_of(&calls.last().unwrap()["subagentRunId"]), "writer");
    pending(&frames);
}
