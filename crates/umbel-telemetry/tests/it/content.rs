//! Content: told by nobody unless it is asked for, and then without what was taken out.

use opentelemetry_sdk::trace::SpanData;
use serde_json::{Value, json};
use umbel_core::conventions::attribute;
use umbel_core::{Capabilities, Content, FunctionTool, Outcome, Part, Role, RunConfig};
use umbel_runtime::handlers::pii::{Pii, PiiRule};
use umbel_runtime::layers::Logging;
use umbel_runtime::{LlmAgent, ScriptedModel};
use umbel_telemetry::ContentCapture;

use crate::support::{Listening, begin, echo, listen, listen_with, read, run, text, use_credentials};

/// What must not be found: in what the user says, the instruction, arguments, results, thoughts and the answer.
const CANARIES: [&str; 5] =
    ["canary-prompt", "canary-instruction", "canary-argument", "canary-result", "canary-answer"];

/// A run in which all of it is said.
async fn say_all(listening: &Listening) -> String {
    let tool = FunctionTool::new("keep", "Keeps it.", |_: Value| async { Ok("canary-result") });
    let model = ScriptedModel::new("m")
        .capabilities(Capabilities::default().pairs_calls_by_id())
        .call("keep", json!({"what": "canary-argument"}))
        .text("canary-answer");
    let agent = LlmAgent::new("a").instruction("canary-instruction").model(model).tool(tool);
    let (runner, key) = begin(agent).await;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    assert_eq!(read(runner.run_with(&key, "canary-prompt", config)).await.outcome, Outcome::Finished);
    let (spans, metrics) = (listening.spans(), listening.metrics());
    assert_eq!(spans.len(), 5);
    format!("{spans:?} {metrics:?}")
}

fn json_of(span: &SpanData, name: &str) -> Value {
    serde_json::from_str(&text(span, name).unwrap()).unwrap()
}

#[tokio::test]
async fn nothing_that_is_said_is_told_unless_asked_for() {
    let listening = listen();
    let told = say_all(&listening).await;
    for canary in CANARIES {
        assert!(!told.contains(canary), "{canary} is in what is exported");
        assert!(!listening.log().contains(canary), "{canary} is in the log");
    }
}

#[tokio::test]
async fn what_is_said_is_told_if_asked_for_and_reaches_no_log() {
    let listening = listen_with(|telemetry| telemetry.content(ContentCapture::new()));
    let told = say_all(&listening).await;
    for canary in CANARIES {
        assert!(told.contains(canary), "{canary} is not told");
        assert!(!listening.log().contains(canary), "{canary} is in the log");
    }
    let chats = listening.of_name("chat m");
    let input = json_of(&chats[1], attribute::INPUT_MESSAGES);
    let id = &input[1]["parts"][0]["id"];
    assert!(id.is_string());
    assert_eq!(
        input,
        json!([
            {"role": "user", "parts": [{"type": "text", "content": "canary-prompt"}]},
            {"role": "assistant", "parts": [
                {"type": "tool_call", "id": id, "name": "keep", "arguments": {"what": "canary-argument"}}
            ]},
            {"role": "tool", "parts": [
                {"type": "tool_call_response", "id": id, "response": {"result": "canary-result"}}
            ]},
        ])
    );
    let instructions = json_of(&chats[0], attribute::SYSTEM_INSTRUCTIONS);
    assert_eq!(instructions[0]["type"], "text");
    assert!(instructions[0]["content"].as_str().unwrap().starts_with("canary-instruction"));
    let tools = json_of(&chats[0], attribute::TOOL_DEFINITIONS);
    assert_eq!((&tools[0]["type"], &tools[0]["name"]), (&json!("function"), &json!("keep")));
    let output = json_of(&chats[0], attribute::OUTPUT_MESSAGES);
    assert_eq!(output[0]["finish_reason"], "tool_call");
    let output = json_of(&chats[1], attribute::OUTPUT_MESSAGES);
    assert_eq!(
        output,
        json!([{
            "role": "assistant",
            "parts": [{"type": "text", "content": "canary-answer"}],
            "finish_reason": "stop",
        }])
    );
    let tool = listening.one("execute_tool keep");
    assert_eq!(json_of(&tool, attribute::CALL_ARGUMENTS), json!({"what": "canary-argument"}));
    assert_eq!(json_of(&tool, attribute::CALL_RESULT), json!("canary-result"));
}

#[tokio::test]
async fn what_handlers_take_out_is_not_told() {
    let listening = listen_with(|telemetry| telemetry.content(ContentCapture::new()));
    let rule = || PiiRule::email().input(true).output(true).tool_results(true);
    let tool = FunctionTool::new("who", "", |_: Value| async { Ok("tool@example.org") });
    let model = ScriptedModel::new("m").call("who", json!({})).text("Ask answer@example.org.");
    let agent = LlmAgent::new("a").model(model).tool(tool).handler(Pii::new(rule()));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "I am prompt@example.org")).await;
    let told = format!("{:?}", listening.spans());
    assert!(told.contains("I am "), "what is left is told");
    for who in ["prompt@", "tool@", "answer@"] {
        assert!(!told.contains(who), "{who} was taken out");
    }
}

#[tokio::test]
async fn each_text_is_redacted_first() {
    let rule = PiiRule::email();
    let capture = ContentCapture::new().redact(move |text| rule.apply(text).unwrap());
    let listening = listen_with(|telemetry| telemetry.content(capture));
    let model = ScriptedModel::new("m")
        .call("echo", json!({"deep": [{"to": "args@example.org"}]}))
        .text("Ask answer@example.org.");
    let agent = LlmAgent::new("a").instruction("Write to system@example.org.").model(model).tool(echo());
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "I am prompt@example.org")).await;
    let told = format!("{:?}", listening.spans());
    assert!(told.contains("Write to ") && told.contains("deep"));
    assert!(!told.contains("@example.org"), "{told}");
}

#[tokio::test]
async fn what_is_too_long_is_cut() {
    let capture = ContentCapture::new().text_bytes(10).total_bytes(400);
    let listening = listen_with(|telemetry| telemetry.content(capture));
    let model = ScriptedModel::new("m").call("echo", json!({"text": "ü".repeat(100)})).text("x".repeat(100));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    let parts = (0..20).map(|n| Part::text(format!("part number {n}")));
    read(runner.run(&key, Content::new(Role::User, parts.collect::<umbel_core::Parts>()))).await;
    let chats = listening.of_name("chat m");
    // The first message alone is longer than all may be, so only what came after it is told.
    assert_eq!(json_of(&chats[0], attribute::INPUT_MESSAGES), json!([]));
    assert_eq!(json_of(&chats[1], attribute::INPUT_MESSAGES).as_array().unwrap().len(), 2);
    let output = json_of(&chats[1], attribute::OUTPUT_MESSAGES);
    assert_eq!(output[0]["parts"][0]["content"], format!("{}…", "x".repeat(10)));
    let tool = listening.one("execute_tool echo");
    assert_eq!(json_of(&tool, attribute::CALL_ARGUMENTS), json!({"text": "üüüüü…"}));
    for span in listening.spans() {
        for name in [attribute::INPUT_MESSAGES, attribute::CALL_RESULT, attribute::TOOL_DEFINITIONS] {
            assert!(text(&span, name).is_none_or(|text| text.len() <= 410), "{name}");
        }
    }
}

#[tokio::test]
async fn json_that_is_too_long_as_a_whole_becomes_a_text() {
    let capture = ContentCapture::new().total_bytes(100);
    let listening = listen_with(|telemetry| telemetry.content(capture));
    let many: Vec<u32> = (0..200).collect();
    let model = ScriptedModel::new("m").call("echo", json!({"many": many})).text("Done.");
    run(LlmAgent::new("a").model(model).tool(echo())).await;
    let told = json_of(&listening.one("execute_tool echo"), attribute::CALL_ARGUMENTS);
    assert!(told.as_str().unwrap().starts_with("{\"many\":[0,1,"));
}

#[tokio::test]
async fn bytes_of_media_are_not_told() {
    let listening = listen_with(|telemetry| telemetry.content(ContentCapture::new()));
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("Nice."))).await;
    let picture = Part::data("image/png", b"canary-bytes");
    read(runner.run(&key, Content::user(picture))).await;
    let input = json_of(&listening.one("chat m"), attribute::INPUT_MESSAGES);
    assert_eq!(
        input[0]["parts"][0],
        json!({"type": "blob", "mime_type": "image/png", "content": "(12 bytes)"})
    );
}

#[tokio::test]
async fn arguments_are_told_where_the_call_is_whatever_else_is_traced_around_it() {
    let listening = listen_with(|telemetry| telemetry.content(ContentCapture::new()));
    let model = ScriptedModel::new("m").call("echo", json!({"n": 1})).text("Done.");
    run(LlmAgent::new("a").model(model).tool(echo()).handler(Logging::new())).await;
    let tool = listening.one("execute_tool echo");
    assert_eq!(json_of(&tool, attribute::CALL_ARGUMENTS), json!({"n": 1}));
}

#[tokio::test]
async fn no_credential_is_told_of_even_with_content() {
    let listening = listen_with(|telemetry| telemetry.content(ContentCapture::new()));
    use_credentials().await;
    assert!(!listening.of_name("execute_tool keyed").is_empty(), "{:?}", listening.tree());
    let all = format!("{:?}{:?}{}", listening.spans(), listening.metrics(), listening.log());
    assert!(!all.contains("s3cret"), "{all}");
}
