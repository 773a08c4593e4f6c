//! Code that agents have run, as front ends and whoever looks into runs see it.

use serde_json::{Value, json};
use umbel::{
    BoxFuture, CodeExecution, CodeExecutor, CodeInput, CodeOutput, CodeSpec, Confirm, LlmAgent, ModelRequest,
    Result, Role, Run, Runner,
};

use crate::answers::{asked, resume, yes};
use crate::desk::{answers, desk, end, kinds, of_kind, say, talker, text};
use crate::support::{SseFrame, input};
use crate::tracing_runs::{hosts, trace, tree};

/// Prints the code that it is given.
#[derive(Clone, Debug)]
struct Echo(CodeSpec);

impl CodeExecutor for Echo {
    fn spec(&self) -> &CodeSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _: &'a Run, input: CodeInput) -> BoxFuture<'a, Result<CodeOutput>> {
        Box::pin(async move { Ok(CodeOutput::ok(format!("ran {}", input.code))) })
    }
}

/// An agent that writes code, and then says what it gave.
fn coder(confirm: Confirm) -> LlmAgent {
    let model = answers(|request: &ModelRequest| {
        let mine = request.contents.iter().filter(|content| content.role == Some(Role::Model)).count();
        match mine % 2 {
            0 => say("Let me see.\n```python\nprint(1)\n```\nIt will be 2."),
            _ => say("It is 1."),
        }
    });
    let execution = CodeExecution::new(Echo(CodeSpec::new("python"))).confirm(confirm);
    LlmAgent::new("coder").model(model).code_executor(execution)
}

/// The conversation that a front end has after these frames, as the last snapshot tells it.
fn snapshot(frames: &[SseFrame]) -> Vec<Value> {
    let snapshots = of_kind(frames, "MESSAGES_SNAPSHOT");
    snapshots.last().expect("a snapshot")["messages"].as_array().unwrap().clone()
}

#[tokio::test]
async fn code_is_a_call_to_front_ends() {
    let host = desk(coder(Confirm::Never)).await;
    let frames = host.run(&input("t", "r", "go")).await;
    let start = of_kind(&frames, "TOOL_CALL_START")[0];
    assert_eq!(start["toolCallName"], "run_code");
    assert_eq!(of_kind(&frames, "TOOL_CALL_ARGS")[0]["delta"], r#"{"code":"print(1)"}"#);
    let result = of_kind(&frames, "TOOL_CALL_RESULT")[0];
    assert_eq!((&result["toolCallId"], &result["content"]), (&start["toolCallId"], &json!("ran print(1)")));
    assert_eq!(end(&frames)["outcome"]["type"], "success");
    // The words were shown as they came. What turned out to be code is no longer among them.
    assert!(text(&frames).contains("```python"));
    let said: Vec<Value> = snapshot(&frames).iter().map(|message| message["content"].clone()).collect();
    assert_eq!(said[1], "Let me see.\n");
    let thread = host.get("/agent/threads/t").await.json().await;
    let told: Vec<Value> = thread["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!([one["role"], one["content"]]))
        .collect();
    assert_eq!(
        told,
        [
            json!(["user", "go"]),
            json!(["assistant", "Let me see.\n"]),
            json!(["tool", "ran print(1)"]),
            json!(["assistant", "It is 1."])
        ]
    );
}

#[tokio::test]
async fn code_that_waits_for_a_person_is_answered_like_any_call() {
    let host = desk(coder(Confirm::Always)).await;
    let frames = host.run(&input("t", "r", "go")).await;
    let asks = asked(&frames);
    let call = &of_kind(&frames, "TOOL_CALL_START")[0]["toolCallId"];
    assert_eq!(end(&frames)["outcome"]["interrupts"][0]["toolCallId"], *call);
    assert!(!kinds(&frames).contains(&"TOOL_CALL_RESULT"));
    let frames = host.run(&resume("t", "r2", &[(&asks[0], "resolved", yes())])).await;
    let result = of_kind(&frames, "TOOL_CALL_RESULT")[0];
    assert_eq!((&result["toolCallId"], &result["content"]), (call, &json!("ran print(1)")));
    assert_eq!(text(&frames), "It is 1.");
}

#[tokio::test]
async fn a_trace_and_the_steps_of_a_run_have_code_as_a_call() {
    let (host, other) = hosts(|| Runner::builder("desk", coder(Confirm::Never))).await;
    host.run(&input("t", "r", "go")).await;
    let lines = ["run coder", "  agent coder", "    model script", "    tool run_code", "    model script"];
    for host in [&host, &other] {
        assert_eq!(tree(&trace(host, "r").await), lines);
    }
    let steps = host.get("/agent/runs/r/steps?thread=t").await.json().await;
    let calls: Vec<&Value> =
        steps["steps"].as_array().unwrap().iter().map(|step| &step["toolCalls"]).collect();
    assert_eq!(calls, [&json!(["run_code"]), &json!([])]);
    let asked = host.get("/agent/runs/r/steps/2/request?thread=t").await.json().await;
    assert!(asked.to_string().contains("```tool_output\\nran print(1)\\n```"), "{asked}");
}

#[tokio::test]
async fn capabilities_say_whether_an_agent_runs_code() {
    for (agent, runs) in [(coder(Confirm::Never), true), (talker("hi"), false)] {
        let host = desk(agent).await;
        let told = host.get("/agent/capabilities").await.json().await;
        assert_eq!(told["execution"]["codeExecution"], runs);
    }
}
