//! What runs ask people, and how it reaches them and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::model::{ElicitResult, ElicitationAction};
use serde_json::{Value, json};
use umbel_core::{Confirm, DecisionKind, Question};
use umbel_mcp::server::McpServer;
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

use crate::support::{TestClient, TestTool, accept, call, connect, session, texts};

/// A tool that people must agree to, and how often it did its work.
fn delete() -> (TestTool, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let mut tool = TestTool::new("delete", move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(json!("deleted").into()))
    });
    tool.spec.confirm = Confirm::Always;
    (tool, done)
}

/// An agent that deletes something, and what it did.
fn deleter() -> (Runner, Arc<AtomicUsize>) {
    let (tool, done) = delete();
    let model = ScriptedModel::new("script").call("delete", json!({"file": "a.txt"})).text("It is over.");
    (Runner::new("app", LlmAgent::new("deleter").model(model).tool(tool)).unwrap(), done)
}

/// A tool that asks for a colour.
fn paint(schema: Option<Value>) -> TestTool {
    TestTool::new("paint", move |cx, _| {
        let mut question = Question::input("Which colour?");
        question.response_schema.clone_from(&schema);
        let answer = cx.interrupt(question);
        async move {
            let answer = answer?;
            Ok(json!({"confirmed": answer.confirmed, "given": answer.payload}).into())
        }
    })
}

#[tokio::test]
async fn a_person_agrees_to_what_they_are_shown() {
    let (runner, done) = deleter();
    let test = TestClient::answering(|_| accept(json!({"confirm": true})));
    let client = connect(McpServer::new("house").agent(runner), "ann", test.clone()).await;
    let result = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
    assert_eq!(texts(&result), ["It is over."]);
    assert_eq!(done.load(Ordering::Relaxed), 1);
    let asked = &test.asked()[0];
    assert!(asked["message"].as_str().unwrap().contains(r#"delete({"file":"a.txt"})"#), "{asked}");
    assert_eq!(asked["requestedSchema"]["properties"]["confirm"]["type"], "boolean");
}

#[tokio::test]
async fn a_person_may_say_no() {
    for no in [accept(json!({"confirm": false})), ElicitResult::new(ElicitationAction::Decline)] {
        let (runner, done) = deleter();
        let test = TestClient::answering(move |_| no.clone());
        let client = connect(McpServer::new("house").agent(runner), "ann", test).await;
        let result = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
        assert_eq!((texts(&result), done.load(Ordering::Relaxed)), (vec!["It is over."], 0));
    }
}

#[tokio::test]
async fn what_is_no_clear_yes_is_asked_again() {
    for unclear in [json!({"confirm": "false"}), json!({"confirm": null}), json!({}), Value::Null] {
        let (runner, done) = deleter();
        let times = AtomicUsize::new(0);
        let test = TestClient::answering(move |_| match times.fetch_add(1, Ordering::Relaxed) {
            0 => accept(unclear.clone()),
            _ => accept(json!({"confirm": false})),
        });
        let client = connect(McpServer::new("house").agent(runner), "ann", test.clone()).await;
        let result = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
        assert_eq!((texts(&result), done.load(Ordering::Relaxed)), (vec!["It is over."], 0));
        let again = test.asked()[1]["message"].as_str().unwrap().to_owned();
        assert!(again.starts_with("That answer cannot be taken: "), "{again}");
    }
}

/// An agent whose tool asks whether it may go on, for a reason of its own.
fn doubter() -> (Runner, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let tool = TestTool::new("pay", move |cx, _| {
        let kinds = [DecisionKind::Approve, DecisionKind::Reject, DecisionKind::Respond];
        let answer = cx.interrupt(Question::new("unfinished", "Pay again?").decisions(kinds));
        let count = count.clone();
        async move {
            count.fetch_add(usize::from(answer?.confirmed), Ordering::Relaxed);
            Ok(json!("over").into())
        }
    });
    let model = ScriptedModel::new("script").call("pay", json!({})).text("It is over.");
    (Runner::new("app", LlmAgent::new("payer").model(model).tool(tool)).unwrap(), done)
}

#[tokio::test]
async fn words_do_not_decide_about_a_call_whatever_the_reason_it_is_asked_for() {
    let (runner, done) = doubter();
    let test = TestClient::answering(|_| accept(json!({"answer": "no"})));
    let client = connect(McpServer::new("house").agent(runner), "ann", test.clone()).await;
    let waits = client.call_tool(call("payer", json!({"request": "Pay"}))).await.unwrap();
    assert_eq!((waits.is_error, test.asked().len(), done.load(Ordering::Relaxed)), (Some(true), 3, 0));
    assert_eq!(test.asked()[0]["requestedSchema"]["properties"]["confirm"]["type"], "boolean");
    assert!(texts(&waits)[0].contains("Only a person can answer this"), "{waits:?}");
    let answer = json!({"request": "", "session": session(&waits), "answer": "yes"});
    let refused = client.call_tool(call("payer", answer)).await.unwrap();
    assert_eq!((refused.is_error, done.load(Ordering::Relaxed)), (Some(true), 0));
}

#[tokio::test]
async fn a_person_who_does_not_decide_leaves_the_question_open() {
    let (runner, done) = deleter();
    let test = TestClient::answering(|_| ElicitResult::new(ElicitationAction::Cancel));
    let client = connect(McpServer::new("house").agent(runner.clone()), "ann", test).await;
    let result = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
    assert_eq!((result.is_error, done.load(Ordering::Relaxed)), (Some(true), 0));
    assert!(texts(&result)[0].starts_with("This waits for an answer before it goes on."), "{result:?}");
    let key = umbel_core::SessionKey::new("app", "ann", session(&result)).unwrap();
    assert_eq!(runner.open_questions(&key).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_form_asks_for_what_the_question_wants() {
    let schema = json!({
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "coats": {"type": "integer"}},
        "required": ["colour"],
    });
    let test = TestClient::answering(|_| accept(json!({"colour": "red", "coats": 2})));
    let client = connect(McpServer::new("house").tool(paint(Some(schema))), "ann", test.clone()).await;
    let result = client.call_tool(call("paint", json!({}))).await.unwrap();
    let given = json!({"colour": "red", "coats": 2});
    assert_eq!(result.structured_content, Some(json!({"confirmed": true, "given": given})));
    let shown = &test.asked()[0]["requestedSchema"];
    assert_eq!(shown["properties"]["colour"]["enum"], json!(["red", "blue"]));
    assert_eq!(shown["required"], json!(["colour"]));
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_asked_for_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let times = asked.clone();
    let test = TestClient::answering(move |_| match times.fetch_add(1, Ordering::Relaxed) {
        0 => accept(json!({"answer": 300})),
        _ => accept(json!({"answer": 3})),
    });
    let tool = paint(Some(json!({"type": "integer", "maximum": 10})));
    let client = connect(McpServer::new("house").tool(tool), "ann", test.clone()).await;
    let result = client.call_tool(call("paint", json!({}))).await.unwrap();
    assert_eq!(result.structured_content, Some(json!({"confirmed": true, "given": 3})));
    let again = test.asked()[1]["message"].as_str().unwrap().to_owned();
    assert!(again.starts_with("That answer cannot be taken: "), "{again}");
    assert!(again.contains("\n\nWhich colour?\n\n"), "{again}");
}

#[tokio::test]
async fn answers_that_never_fit_end_the_call() {
    let test = TestClient::answering(|_| accept(json!({"answer": "many"})));
    let tool = paint(Some(json!({"type": "integer"})));
    let client = connect(McpServer::new("house").tool(tool), "ann", test.clone()).await;
    let result = client.call_tool(call("paint", json!({}))).await.unwrap();
    assert_eq!((result.is_error, test.asked().len()), (Some(true), 3));
}

#[tokio::test]
async fn several_questions_are_asked_one_after_the_other() {
    let (tool, done) = delete();
    let calls = [("delete", json!({"file": "a"})), ("delete", json!({"file": "b"}))];
    let model = ScriptedModel::new("script").calls(calls).text("Both.");
    let runner = Runner::new("app", LlmAgent::new("deleter").model(model).tool(tool)).unwrap();
    let test = TestClient::answering(|_| accept(json!({"confirm": true})));
    let client = connect(McpServer::new("house").agent(runner), "ann", test.clone()).await;
    let result = client.call_tool(call("deleter", json!({"request": "?"}))).await.unwrap();
    assert_eq!((texts(&result), done.load(Ordering::Relaxed)), (vec!["Both."], 2));
    assert_eq!(test.asked().len(), 2);
}

#[tokio::test]
async fn who_cannot_ask_people_is_told_what_is_asked_and_answers_by_argument() {
    let model = ScriptedModel::new("script").recorded().call("paint", json!({})).text("Painted.");
    let agent = LlmAgent::new("painter").model(model.clone()).tool(paint(None));
    let runner = Runner::new("app", agent).unwrap();
    let client = connect(McpServer::new("house").agent(runner), "ann", TestClient::default()).await;
    let waits = client.call_tool(call("painter", json!({"request": "Paint"}))).await.unwrap();
    let id = session(&waits);
    assert_eq!(
        texts(&waits),
        [format!(
            "This waits for an answer before it goes on.\n\nWhich colour?\n\nThe call: paint({{}})\n\nTo answer, call \
             `painter` again with `session` \"{id}\" and with the answer as `answer`, in words."
        )]
    );
    let answer = json!({"request": "", "session": id, "answer": "blue"});
    let result = client.call_tool(call("painter", answer.clone())).await.unwrap();
    assert_eq!((texts(&result), result.is_error), (vec!["Painted."], Some(false)));
    let last = model.requests()[1].contents.iter().next_back().unwrap().clone();
    let response = last.responses().next().unwrap().response.clone().unwrap();
    assert_eq!(response["given"], "blue");
    let late = client.call_tool(call("painter", answer)).await.unwrap();
    assert_eq!(texts(&late), ["nothing is asked in that session: leave `answer` out"]);
}

#[tokio::test]
async fn a_model_that_calls_does_not_agree_in_the_place_of_a_person() {
    let (runner, done) = deleter();
    let client = connect(McpServer::new("house").agent(runner), "ann", TestClient::default()).await;
    let waits = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
    assert!(texts(&waits)[0].contains("Only a person can answer this"), "{waits:?}");
    let answer = json!({"request": "", "session": session(&waits), "answer": "yes"});
    let refused = client.call_tool(call("deleter", answer)).await.unwrap();
    assert_eq!((refused.is_error, done.load(Ordering::Relaxed)), (Some(true), 0));
}

#[tokio::test]
async fn a_model_that_calls_agrees_where_that_is_allowed() {
    let (runner, done) = deleter();
    let server = McpServer::new("house").agent(runner).let_callers_confirm();
    let client = connect(server, "ann", TestClient::default()).await;
    let waits = client.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
    assert!(texts(&waits)[0].contains("as `answer`, `yes` or `no`."), "{waits:?}");
    let id = session(&waits);
    let unclear = json!({"request": "", "session": id, "answer": "perhaps"});
    let refused = client.call_tool(call("deleter", unclear)).await.unwrap();
    assert_eq!(texts(&refused), ["the answer must be `yes` or `no`"]);
    let answer = json!({"request": "", "session": id, "answer": "yes"});
    let result = client.call_tool(call("deleter", answer)).await.unwrap();
    assert_eq!((texts(&result), done.load(Ordering::Relaxed)), (vec!["It is over."], 1));
}

#[tokio::test]
async fn nobody_answers_what_another_is_asked() {
    let (runner, done) = deleter();
    let house = || McpServer::new("house").agent(runner.clone()).let_callers_confirm();
    let ann = connect(house(), "ann", TestClient::default()).await;
    let waits = ann.call_tool(call("deleter", json!({"request": "Delete a.txt"}))).await.unwrap();
    let bob = connect(house(), "bob", TestClient::default()).await;
    let answer = json!({"request": "", "session": session(&waits), "answer": "yes"});
    let refused = bob.call_tool(call("deleter", answer)).await.unwrap();
    assert_eq!(texts(&refused), ["there is no such session: leave `session` out to begin anew"]);
    assert_eq!(done.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_answer_without_a_session_is_refused() {
    let (runner, _) = deleter();
    let client = connect(McpServer::new("house").agent(runner), "ann", TestClient::default()).await;
    for args in [json!({"request": "", "answer": "yes"}), json!({"request": "", "session": 3})] {
        let refused = client.call_tool(call("deleter", args)).await.unwrap();
        assert_eq!(texts(&refused), ["`session` must be the session of an earlier answer, as a text"]);
    }
}
