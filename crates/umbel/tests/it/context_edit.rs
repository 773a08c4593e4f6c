//! Old tool results are taken out of requests, and out of nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use umbel::handlers::{ClearResults, ContextEdit};
use umbel::{Content, FunctionTool, LlmAgent, ModelRequest, RunConfig, ScriptedModel};

use super::support::{begin, echo, read, responses, stored};

/// Says a long word.
fn long() -> FunctionTool {
    FunctionTool::new(
        "long",
        "",
        |args: Value| async move { Ok(format!("{}{}", args["n"], "x".repeat(400))) },
    )
}

/// Calls the tool so many times, then ends.
fn calling(times: usize) -> ScriptedModel {
    let model =
        (0..times).fold(ScriptedModel::new("m").recorded(), |model, n| model.call("long", json!({"n": n})));
    model.text("done")
}

/// The results in a request, cut to their first character.
fn results(request: &ModelRequest) -> String {
    let all = request.contents.iter().flat_map(|content| content.responses());
    let first = |value: &Value| value.as_str().unwrap().chars().next().unwrap();
    all.map(|response| first(&response.response.as_ref().unwrap()["result"])).collect()
}

#[tokio::test]
async fn old_results_are_cleared_in_requests_and_stay_in_the_log() {
    for streaming in [false, true] {
        let model = calling(4);
        let edit = ContextEdit::of([ClearResults::above(150).keep(1)]);
        let agent = LlmAgent::new("a").model(model.clone()).tool(long()).handler(edit);
        let (runner, key) = begin(agent).await;
        let config = RunConfig { streaming, ..RunConfig::default() };
        read(runner.run_with(&key, "go", config)).await.assert_finished();
        let seen: Vec<String> = model.requests().iter().map(results).collect();
        assert_eq!(seen, ["", "0", "[1", "[[2", "[[[3"], "streaming: {streaming}");
        let kept = responses(&stored(&runner, &key).await);
        assert!(kept.iter().all(|response| response["result"].as_str().unwrap().len() == 401));
    }
}

#[tokio::test]
async fn arguments_are_cleared_too_if_asked_and_found_without_ids() {
    let model = ScriptedModel::new("m")
        .recorded()
        .calls([("long", json!({"n": 1})), ("echo", json!({"n": 2})), ("long", json!({"n": 3}))])
        .text("done");
    let edit = ContextEdit::of([ClearResults::above(10).keep(1).exclude(["echo"]).inputs().placeholder("-")]);
    let agent = LlmAgent::new("a").model(model.clone()).tool(long()).tool(echo()).handler(edit);
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    let request = &model.requests()[1];
    let calls: Vec<_> = request.contents.iter().flat_map(|content| content.calls()).collect();
    assert!(calls.iter().all(|call| call.id.is_none()), "this model is not sent ids");
    let args: Vec<Value> =
        calls.iter().map(|call| Value::Object((**call.args.as_ref().unwrap()).clone())).collect();
    assert_eq!(args, [json!({}), json!({"n": 2}), json!({"n": 3})]);
    let answers: Vec<_> = request.contents.iter().flat_map(|content| content.responses()).collect();
    assert_eq!(answers[0].response.as_ref().unwrap()["result"], "-");
    assert_eq!(answers[1].response.as_ref().unwrap()["n"], 2);
}

#[tokio::test]
async fn a_second_handler_leaves_alone_what_the_first_one_cleared() {
    let model = ["a", "b"].into_iter().fold(ScriptedModel::new("m").recorded(), |model, id| {
        let call = super::support::call_with_id(id, "long", json!({"n": id}));
        model.response(super::support::calls([call]))
    });
    let model = model.text("done");
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(long())
        .handler(ContextEdit::of([ClearResults::above(10).keep(1).placeholder("1st")]))
        .handler(ContextEdit::of([ClearResults::above(10).keep(0).placeholder("2nd")]));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(results(&model.requests()[2]), "12");
}

#[tokio::test]
async fn within_a_run_each_message_is_counted_once() {
    let counted = Arc::new(AtomicUsize::new(0));
    let count = counted.clone();
    let counter = move |_: &Content| -> u64 {
        count.fetch_add(1, Ordering::SeqCst);
        1
    };
    let agent = LlmAgent::new("a")
        .model(calling(40))
        .tool(long())
        .handler(ContextEdit::of([ClearResults::above(1_000)]).counter(counter));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(counted.load(Ordering::SeqCst), 1 + 2 * 40);
}
