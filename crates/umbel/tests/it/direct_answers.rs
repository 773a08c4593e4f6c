//! Tools whose result is the agent's answer: of several the last in call order, for whoever asks the agent.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use umbel::{
    AgentTool, Confirm, Content, Event, FunctionTool, LlmAgent, Mode, Part, ScriptedModel, ToolError,
    ToolValue,
};

use super::support::{begin, call_with_id, calls, echo, read, said, state, stored};

/// A tool that gives that value, whatever it is asked.
fn gives(name: &str, value: Value) -> FunctionTool {
    FunctionTool::new(name, "", move |_: Value| {
        let value = value.clone();
        async move { Ok(value) }
    })
}

/// A tool that says itself that its result is the answer.
fn skips(name: &str, value: Value) -> FunctionTool {
    FunctionTool::with_context(name, "", move |cx, _: Value| {
        let value = value.clone();
        cx.skip_summarization();
        Box::pin(async move { Ok(value) })
    })
}

fn fails(name: &str) -> FunctionTool {
    FunctionTool::new(name, "", |_: Value| async { Err::<Value, _>(ToolError::new("out of paper")) })
}

/// An agent with tools of each kind, whose model makes these calls and would say something afterwards.
fn desk(made: &[&str]) -> LlmAgent {
    let parts = made.iter().enumerate().map(|(n, name)| call_with_id(&format!("c{n}"), name, json!({})));
    let said = std::iter::once(Part::text("One moment. ")).chain(parts);
    LlmAgent::new("desk")
        .model(ScriptedModel::new("m").response(calls(said)).text("in words"))
        .tool(gives("plain", json!("plain")))
        .tool_returning_directly(gives("one", json!("one")))
        .tool_returning_directly(gives("trip", json!({"city": "Rome"})))
        .tool_returning_directly(gives("list", json!([1, 2])))
        .tool_returning_directly(gives("nothing", Value::Null))
        .tool_returning_directly(fails("broken"))
        .tool(skips("skips", json!("skipped")))
}

/// The calls of a batch, and the answer that they come to.
const ANSWERS: [(&[&str], &str); 8] = [
    (&["one"], "one"),
    (&["trip"], r#"{"city":"Rome"}"#),
    (&["list"], "[1,2]"),
    (&["trip", "plain", "one"], "one"),
    (&["one", "trip", "plain"], r#"{"city":"Rome"}"#),
    (&["one", "skips", "plain"], "skipped"),
    (&["skips", "one", "plain", "plain"], "one"),
    (&["skips", "plain"], "skipped"),
];

#[tokio::test]
async fn the_last_direct_call_in_call_order_is_the_text_of_the_run() {
    for (made, expected) in ANSWERS {
        let (runner, key) = begin(desk(made)).await;
        assert_eq!(runner.run(&key, "hi").text().await.unwrap(), expected, "{made:?}");
        let log = stored(&runner, &key).await;
        assert_eq!(log.len(), 3, "{made:?}: the whole batch runs, and the model is not asked again");
        assert_eq!(log[2].responses().count(), made.len(), "{made:?}");
        // What is in the log tells the same, be it written and read again.
        let again: Event = serde_json::from_str(&serde_json::to_string(&*log[2]).unwrap()).unwrap();
        assert_eq!(again.answer_text(), expected, "{made:?}");
    }
}

#[tokio::test]
async fn the_output_key_gets_the_direct_answer_alone() {
    for (made, expected) in ANSWERS {
        let (runner, key) = begin(desk(made).output_key("found")).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        assert_eq!(state(&runner, &key).await["found"], expected, "{made:?}");
    }
}

/// What the caller of an agent gets for it.
fn as_result(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Value::Object(object),
        Ok(other) => json!({"result": other}),
        Err(_) => json!({"result": text}),
    }
}

#[tokio::test]
async fn the_caller_of_an_agent_gets_the_direct_answer_of_its_tool() {
    for (made, expected) in ANSWERS {
        let asks = || ScriptedModel::new("o").call("desk", json!({"request": "?", "goal": "?"})).text("done");
        let caller = || LlmAgent::new("outer").model(asks());
        let as_tool = caller().tool(AgentTool::new(desk(made)));
        let delegated = caller().sub_agent(desk(made).mode(Mode::SingleTurn));
        for (how, agent) in [("tool", as_tool), ("delegate", delegated)] {
            let (runner, key) = begin(agent).await;
            read(runner.run(&key, "hi")).await.assert_finished();
            let log = stored(&runner, &key).await;
            let own =
                log.iter().filter(|event| event.author() == "outer").flat_map(|event| event.responses());
            let answers: Vec<_> =
                own.map(|response| Value::Object(response.response.clone().unwrap())).collect();
            assert_eq!(answers, [as_result(expected)], "{how}, {made:?}");
        }
    }
}

#[derive(Debug, PartialEq, Deserialize, schemars::JsonSchema)]
struct Trip {
    city: String,
}

#[tokio::test]
async fn a_direct_answer_is_structured_where_the_agents_answer_is() {
    let (runner, key) = begin(desk(&["trip", "plain"]).output::<Trip>().output_key("found")).await;
    let trip: Trip = runner.run(&key, "hi").output().await.unwrap();
    assert_eq!(trip, Trip { city: "Rome".into() });
    assert_eq!(state(&runner, &key).await["found"], json!({"city": "Rome"}));
    let model = ScriptedModel::new("o").call("desk", json!({"request": "?"})).text("done");
    let child = desk(&["trip", "plain"]).output::<Trip>();
    let (runner, key) = begin(LlmAgent::new("outer").model(model).tool(AgentTool::new(child))).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"city": "Rome"})]);
}

#[tokio::test]
async fn an_error_or_nothing_is_no_answer_and_the_caller_is_told_of_the_error() {
    for made in [["plain", "broken"], ["one", "broken"], ["plain", "nothing"]] {
        let (runner, key) = begin(desk(&made).output_key("found")).await;
        assert_eq!(runner.run(&key, "hi").text().await.unwrap(), "", "{made:?}");
        // What the agent said before its calls stands.
        assert_eq!(state(&runner, &key).await["found"], "One moment. ");
    }
    let model = ScriptedModel::new("o").call("desk", json!({"request": "?"})).text("done");
    let outer = LlmAgent::new("outer").model(model).tool(AgentTool::new(desk(&["one", "broken"])));
    let (runner, key) = begin(outer).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"error": "out of paper"})]);
}

#[tokio::test]
async fn a_direct_answer_that_people_agreed_to_is_the_answer_too() {
    let model = ScriptedModel::new("m").call("pay", json!({})).text("in words");
    let pay = gives("pay", json!("paid")).confirm(Confirm::Always);
    let agent = LlmAgent::new("a").model(model).tool_returning_directly(pay).output_key("found");
    let (runner, key) = begin(agent).await;
    let asked = read(runner.run(&key, "go")).await.interrupts()[0].clone();
    assert_eq!(state(&runner, &key).await, json!({}));
    assert_eq!(runner.run(&key, asked.answer(true)).text().await.unwrap(), "paid");
    assert_eq!(state(&runner, &key).await["found"], "paid");
}

#[tokio::test]
async fn media_of_a_direct_answer_come_along() {
    let photo = FunctionTool::new("photo", "", |_: Value| async {
        Ok(ToolValue {
            value: json!("a cat"),
            parts: vec![Part::data("image/png", [1u8, 2])],
            ..ToolValue::default()
        })
    });
    let child = LlmAgent::new("child").model(ScriptedModel::new("i").call("photo", json!({})));
    let child = AgentTool::new(child.tool_returning_directly(photo));
    let model = ScriptedModel::new("o").call("child", json!({"request": "?"})).text("done");
    let (runner, key) = begin(LlmAgent::new("outer").model(model.clone()).tool(child)).await;
    let seen = read(runner.run(&key, "hi")).await;
    let response = seen.whole()[1].responses().next().unwrap().clone();
    assert_eq!(response.value(), json!("a cat"));
    assert_eq!(response.unknown["parts"][0]["inlineData"]["mimeType"], "image/png");
}

#[test]
fn an_event_of_google_adk_that_skips_the_summary_answers_by_its_last_response() {
    let event = |value: Value| serde_json::from_value::<Event>(value).unwrap();
    let content = json!({"role": "user", "parts": [
        {"functionResponse": {"id": "a", "name": "a", "response": {"result": "one"}}},
        {"functionResponse": {"id": "b", "name": "b", "response": {"n": 2}}}]});
    let plain = json!({"id": "e", "author": "x", "content": content});
    assert!(event(plain.clone()).direct_answer().is_none());
    let mut skips = plain;
    skips["actions"] = json!({"skipSummarization": true});
    assert_eq!(event(skips.clone()).answer_text(), r#"{"n":2}"#);
    skips["customMetadata"] = json!({"umbel": {"directAnswer": "a"}});
    assert_eq!(event(skips.clone()).answer_text(), "one");
    skips["customMetadata"] = json!({"umbel": {"directAnswer": null}});
    assert!(event(skips).direct_answer().is_none());
}

#[tokio::test]
async fn words_that_are_no_direct_answer_are_what_they_were() {
    let model = ScriptedModel::new("m").recorded().call("echo", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(echo()).output_key("found")).await;
    assert_eq!(runner.run(&key, "hi").text().await.unwrap(), "done");
    assert_eq!(state(&runner, &key).await["found"], "done");
    assert_eq!(said(&model.requests()[1]).len(), 3);
    let event = Event::new("r".into(), Arc::default()).with_content(Content::model("hello"));
    assert_eq!(event.answer_text(), "hello");
}
