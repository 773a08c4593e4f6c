//! The arguments of an agent that is called are held against its input schema.

use serde_json::{Value, json};
use umbel::{AgentTool, LlmAgent, Mode, ScriptedModel};

use super::support::{begin, read, said, stored};

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
           "additionalProperties": false})
}

/// What the caller is told, call by call, and what the agent was asked.
async fn asked(mode: Option<Mode>, args: &[Value]) -> (Vec<Value>, Vec<Vec<String>>) {
    let inner = ScriptedModel::new("i").recorded().text("It rains.");
    let child = LlmAgent::new("weather").model(inner.clone()).input_schema(schema());
    let calls = args.iter().fold(ScriptedModel::new("o"), |model, args| model.call("weather", args.clone()));
    let outer = LlmAgent::new("outer").model(calls.text("done"));
    let agent = match mode {
        Some(mode) => outer.sub_agent(child.mode(mode)),
        None => outer.tool(AgentTool::new(child)),
    };
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let log = stored(&runner, &key).await;
    let told = log.iter().filter(|event| event.author() == "outer").flat_map(|event| event.responses());
    let told = told.map(|response| Value::Object(response.response.clone().unwrap())).collect();
    (told, inner.requests().iter().map(said).collect())
}

#[tokio::test]
async fn arguments_that_do_not_fit_go_back_to_the_model_and_the_agent_is_not_run() {
    for mode in [None, Some(Mode::SingleTurn)] {
        let bad = [json!({"town": 7}), json!({}), json!({"city": 7}), json!({"city": "Rome", "more": 1})];
        let (told, requests) = asked(mode, &bad).await;
        assert!(requests.is_empty(), "{mode:?}: {requests:?}");
        assert_eq!(told.len(), bad.len());
        for (told, wanted) in told.iter().zip(["city", "city", "`/city`", "more"]) {
            assert!(told["error"].as_str().unwrap().contains(wanted), "{mode:?}: {told}");
        }
    }
}

#[tokio::test]
async fn a_model_can_mend_its_arguments() {
    for mode in [None, Some(Mode::SingleTurn)] {
        let (told, requests) = asked(mode, &[json!({"town": "Rome"}), json!({"city": "Rome"})]).await;
        assert!(told[0]["error"].is_string(), "{mode:?}");
        assert_eq!(told[1], json!({"result": "It rains."}), "{mode:?}");
        assert_eq!(requests.len(), 1, "{mode:?}");
        assert!(requests[0][0].contains(r#"{"city":"Rome"}"#), "{mode:?}: {requests:?}");
    }
}

#[tokio::test]
async fn a_task_is_not_begun_with_arguments_that_do_not_fit() {
    let (told, requests) = asked(Some(Mode::Task), &[json!({"town": 7})]).await;
    assert!(requests.is_empty(), "{requests:?}");
    assert!(told[0]["error"].as_str().unwrap().contains("city"), "{told:?}");
}

#[tokio::test]
async fn without_an_input_schema_an_agent_takes_any_words() {
    let inner = ScriptedModel::new("i").recorded().text("fine");
    let child = AgentTool::new(LlmAgent::new("child").model(inner.clone()));
    let model = ScriptedModel::new("o").call("child", json!({"b": 1, "a": 2})).text("done");
    let (runner, key) = begin(LlmAgent::new("outer").model(model).tool(child)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(said(&inner.requests()[0]), [r#"{"a":2,"b":1}"#]);
}
