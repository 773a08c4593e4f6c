//! Calls without an answer and answers without a call are repaired before a model sees them.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::RepairCalls;
use umbel::{
    Content, FunctionResponse, FunctionTool, Handler, History, LlmAgent, ModelRequest, ModelTurn, Object,
    Part, Result, RunConfig, ScriptedModel, Step, Work,
};

use super::support::{begin, echo, read, stored};

/// Calls, answers and words of a request, in order.
fn shape(request: &ModelRequest) -> Vec<String> {
    let part = |part: &Part| match (part.as_call(), part.as_response()) {
        (Some(call), _) => format!("call {}", call.name),
        (_, Some(response)) => {
            let said = response.response.as_ref().unwrap();
            let is_placeholder = said.get("error").is_some_and(|error| error == umbel::text::NO_ANSWER);
            format!("{} {}", if is_placeholder { "placeholder" } else { "answer" }, response.name)
        }
        _ => part.as_text().unwrap_or_default().lines().next().unwrap_or_default().to_owned(),
    };
    request
        .contents
        .iter()
        .map(|content| content.parts.iter().map(part).collect::<Vec<_>>().join(", "))
        .collect()
}

#[tokio::test]
async fn a_call_that_waits_for_its_answer_has_a_placeholder_until_then() {
    for streaming in [false, true] {
        let ask = FunctionTool::new("ask", "", |_: Value| async { Ok(Value::Null) }).long_running();
        let model = ScriptedModel::new("m")
            .recorded()
            .call("ask", json!({"message": "Where to?"}))
            .text("I still wait.")
            .text("Rome it is.");
        let agent = LlmAgent::new("a").model(model.clone()).tool(ask).handler(RepairCalls::new());
        let (runner, key) = begin(agent).await;
        let config = RunConfig { streaming, ..RunConfig::default() };
        read(runner.run_with(&key, "Book.", config.clone())).await;
        read(runner.run_with(&key, "And the weather?", config.clone())).await.assert_finished();
        assert_eq!(
            shape(&model.requests()[1]),
            ["Book.", "call ask", "placeholder ask", "And the weather?"],
            "streaming: {streaming}"
        );
        // The log knows nothing of it, and the answer takes its place.
        let log = stored(&runner, &key).await;
        let id = log.iter().flat_map(|event| event.calls()).next().unwrap().id.clone().unwrap();
        assert!(log.iter().all(|event| event.responses().next().is_none()));
        let answer = super::support::answer(id.as_str(), "ask", json!({"city": "Rome"}));
        read(runner.run_with(&key, answer, config)).await.assert_finished();
        let third = shape(&model.requests()[2]);
        assert_eq!(third[..3], ["Book.", "call ask", "answer ask"], "{third:?}");
        assert!(!third.iter().any(|message| message.contains("placeholder")), "{third:?}");
    }
}

/// A handler that breaks the conversation: the first message goes, and an answer to nothing comes.
struct Breaks;

impl Handler for Breaks {
    fn name(&self) -> &str {
        "breaks"
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        if turn.history.len() == 3 {
            let said = Object::from_iter([("result".to_owned(), json!("lost"))]);
            let answer = Part::response(FunctionResponse::new(Some("zz".into()), "gone", said));
            turn.history.splice(0..2, [Arc::new(Content::user("summary"))]);
            turn.history.push(Content::user(answer));
        }
        Work::done(Ok(Step::Continue))
    }
}

#[tokio::test]
async fn what_handlers_before_it_broke_is_whole_again_for_the_rest_of_the_run() {
    let model = ScriptedModel::new("m")
        .recorded()
        .call("echo", json!({"n": 1}))
        .call("echo", json!({"n": 2}))
        .text("done");
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(echo())
        .handler(Breaks)
        .handler(RepairCalls::new().placeholder("nothing"));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    let requests = model.requests();
    let words = ["The tool `echo` answered you:", "The tool `gone` answered you:"].join(", ");
    assert_eq!(shape(&requests[1]), ["summary", &words]);
    assert_eq!(shape(&requests[2]), ["summary", &words, "call echo", "answer echo"]);
    assert!(requests[1].contents.get(1).unwrap().text().contains("lost"));
}

#[tokio::test]
async fn a_whole_conversation_is_sent_as_it_is() {
    let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done").text("again");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(RepairCalls::new());
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    read(runner.run(&key, "more")).await.assert_finished();
    let last: History = model.requests()[2].contents.clone();
    assert_eq!(shape(&model.requests()[2]), ["go", "call echo", "answer echo", "done", "more"]);
    // Nothing was copied: these are the messages of the log.
    let log = stored(&runner, &key).await;
    assert!(Arc::ptr_eq(last.get(0).unwrap(), log[0].content.as_ref().unwrap()));
}
