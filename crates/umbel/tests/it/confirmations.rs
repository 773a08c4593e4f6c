//! Calls that a person must agree to.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{CallId, Confirm, ErrorKind, FunctionTool, LlmAgent, Outcome, Runner, ScriptedModel, SessionKey};

use crate::support::{
    Notes, Seen, answer, begin, call_with_id, calls, echo, log, outcomes, read, run_once, with_session,
};

const ASK: &str = "adk_request_confirmation";

/// A tool that needs a word, and notes that it was called.
fn pay(notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::with_context("pay", "Pays.", move |cx, args: Value| {
        notes.add(format!("paid {}", args["amount"]));
        let payload = cx.confirmation().and_then(|word| word.payload.clone());
        Box::pin(async move { Ok(json!({"paid": args["amount"], "payload": payload})) })
    })
    .confirm(Confirm::Always)
}

/// The id of the only question that a run ended with.
fn question(seen: &Seen) -> CallId {
    let interrupts = seen.interrupts();
    assert_eq!(interrupts.len(), 1);
    interrupts[0].id.clone()
}

async fn word(runner: &Runner, key: &SessionKey, question: &CallId, response: Value) -> Seen {
    read(runner.run(key, answer(question.as_str(), ASK, response))).await
}

fn script() -> ScriptedModel {
    ScriptedModel::new("m")
        .recorded()
        .call("pay", json!({"amount": 5}))
        .text("done")
        .text("again")
        .text("and again")
}

#[tokio::test]
async fn a_call_that_is_approved_is_made_with_what_the_person_said() {
    let (notes, model) = (Notes::default(), script());
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(pay(&notes))).await;
    let seen = read(runner.run(&key, "pay")).await;
    assert!(notes.all().is_empty());
    assert!(seen.tool_error().contains("waits for a person"));
    let asked = question(&seen);
    let event = seen.events.iter().find(|event| event.calls().any(|call| call.name == ASK)).unwrap();
    assert_eq!(event.long_running(), std::slice::from_ref(&asked));
    let shown = event.calls().next().unwrap().args.clone().unwrap();
    assert_eq!(shown["originalFunctionCall"]["args"], json!({"amount": 5}));
    assert_eq!(shown["toolConfirmation"]["confirmed"], false);
    let seen = word(&runner, &key, &asked, json!({"confirmed": true, "payload": "from savings"})).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"paid": 5, "payload": "from savings"})]);
    assert_eq!(seen.texts(), [("a".into(), "done".into())]);
    assert_eq!(notes.all(), ["paid 5"]);
    // The model never sees the question, and sees the result in the place of the first answer.
    let sent = model.requests().pop().unwrap().contents;
    assert!(sent.iter().all(|content| content.calls().all(|call| call.name == "pay")));
    let results: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].response.as_ref().unwrap()["paid"], 5);
}

#[tokio::test]
async fn the_model_may_make_another_call_after_one_that_was_approved() {
    let notes = Notes::default();
    let model =
        ScriptedModel::new("m").call("pay", json!({"amount": 5})).call("echo", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(pay(&notes)).tool(echo())).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    let seen = word(&runner, &key, &asked, json!({"confirmed": true})).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())]);
}

#[tokio::test]
async fn a_call_that_is_rejected_is_not_made() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    let seen = word(&runner, &key, &asked, json!({"confirmed": false})).await;
    assert!(seen.tool_error().contains("rejected"));
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())]);
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn an_answer_may_come_as_json_text() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    word(&runner, &key, &asked, json!({"response": "{\"confirmed\": true}"})).await.assert_finished();
    assert_eq!(notes.all(), ["paid 5"]);
}

#[tokio::test]
async fn an_answer_that_comes_twice_counts_once() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    let approve = json!({"confirmed": true});
    word(&runner, &key, &asked, approve.clone()).await.assert_finished();
    let seen = word(&runner, &key, &asked, approve).await;
    assert!(seen.assert_finished().events.is_empty());
    assert_eq!(notes.all(), ["paid 5"]);
    let outcomes = outcomes(&log(&runner, &key).await);
    assert!(matches!(outcomes[..], [Outcome::Interrupted { .. }, Outcome::Finished, Outcome::Finished]));
}

#[tokio::test]
async fn an_answer_to_a_question_that_was_never_asked_makes_no_call() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let seen = read(runner.run(&key, "pay")).await;
    let call = seen.events.iter().flat_map(|event| event.calls()).find(|call| call.name == "pay").unwrap();
    for forged in ["adk-forged".into(), call.id.clone().unwrap()] {
        let seen = word(&runner, &key, &forged, json!({"confirmed": true})).await;
        assert_eq!(seen.code(), "INVALID_CONFIRMATION");
        assert!(notes.all().is_empty());
    }
    // The true answer still counts.
    word(&runner, &key, &question(&seen), json!({"confirmed": true})).await;
    assert_eq!(notes.all(), ["paid 5"]);
}

#[tokio::test]
async fn an_answer_that_is_no_confirmation_fails_the_run() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    let seen = word(&runner, &key, &asked, json!({"confirmed": "perhaps"})).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::InvalidConfirmation, "INVALID_CONFIRMATION"));
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn an_answer_without_a_word_is_no_yes() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(pay(&notes))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    word(&runner, &key, &asked, json!({"ok": true})).await;
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn a_tool_that_is_gone_cannot_be_approved() {
    let notes = Notes::default();
    let store = crate::support::Spy::default();
    let build = |agent: LlmAgent| Runner::builder("app", agent).sessions(store.clone()).build().unwrap();
    let (runner, key) = with_session(build(LlmAgent::new("a").model(script()).tool(pay(&notes)))).await;
    let asked = question(&read(runner.run(&key, "pay")).await);
    let without = build(LlmAgent::new("a").model(script()).tool(echo()));
    assert_eq!(
        word(&without, &key, &asked, json!({"confirmed": true})).await.kind(),
        ErrorKind::InvalidConfirmation
    );
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn another_runner_can_take_the_answer() {
    let (notes, store) = (Notes::default(), crate::support::Spy::default());
    let build = || {
        let agent = LlmAgent::new("a").model(script()).tool(pay(&notes));
        Runner::builder("app", agent).sessions(store.clone()).build().unwrap()
    };
    let (first, key) = with_session(build()).await;
    let asked = question(&read(first.run(&key, "pay")).await);
    word(&build(), &key, &asked, json!({"confirmed": true})).await;
    assert_eq!(notes.all(), ["paid 5"]);
}

#[tokio::test]
async fn only_arguments_that_matter_need_a_word() {
    let notes = Notes::default();
    let large = Confirm::When(Arc::new(|args| args["amount"].as_u64() > Some(100)));
    let model = ScriptedModel::new("m").call("pay", json!({"amount": 5})).call("pay", json!({"amount": 500}));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(pay(&notes).confirm(large))).await;
    let seen = read(runner.run(&key, "pay")).await;
    question(&seen);
    assert_eq!(notes.all(), ["paid 5"]);
}

#[tokio::test]
async fn a_settled_sibling_keeps_its_result_while_another_waits() {
    let notes = Notes::default();
    let both = [call_with_id("c1", "echo", json!({"n": 1})), call_with_id("c2", "pay", json!({"amount": 5}))];
    let model = ScriptedModel::new("m").recorded().response(calls(both)).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).tool(pay(&notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    assert_eq!(seen.responses()[0], json!({"n": 1}));
    let seen = word(&runner, &key, &question(&seen), json!({"confirmed": true})).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"paid": 5, "payload": null})]);
    let sent = model.requests().pop().unwrap().contents;
    let results: Vec<_> =
        sent.iter().flat_map(|content| content.responses()).map(|one| one.id.clone()).collect();
    assert_eq!(results, [Some("c1".into()), Some("c2".into())]);
}

#[tokio::test]
async fn two_questions_can_be_answered_at_once_or_one_by_one() {
    for at_once in [true, false] {
        let notes = Notes::default();
        let both = [
            call_with_id("c1", "pay", json!({"amount": 1})),
            call_with_id("c2", "pay", json!({"amount": 2})),
        ];
        let model = ScriptedModel::new("m").response(calls(both)).text("done").text("done too");
        let (runner, key) = begin(LlmAgent::new("a").model(model).tool(pay(&notes))).await;
        let seen = read(runner.run(&key, "go")).await;
        let Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{:?}", seen.outcome) };
        let ids: Vec<_> = interrupts.iter().map(|asked| asked.id.clone()).collect();
        assert_eq!(ids.len(), 2);
        if at_once {
            let mut message = answer(ids[0].as_str(), ASK, json!({"confirmed": true}));
            message.parts.extend(answer(ids[1].as_str(), ASK, json!({"confirmed": false})).parts);
            read(runner.run(&key, message)).await.assert_finished();
            assert_eq!(notes.all(), ["paid 1"]);
        } else {
            for id in &ids {
                word(&runner, &key, id, json!({"confirmed": true})).await;
            }
            assert_eq!(notes.all(), ["paid 1", "paid 2"]);
        }
    }
}

/// A tool that asks by itself.
fn book() -> FunctionTool {
    FunctionTool::with_context("book", "Books.", |cx, _: Value| {
        Box::pin(async move {
            match cx.confirmation() {
                None => {
                    cx.request_confirmation("Window or aisle?", Some(json!({"seat": "window"})))?;
                    Ok(json!({"status": "asking"}))
                }
                Some(word) if word.confirmed => Ok(json!({"seat": word.payload})),
                Some(_) => Ok(json!({"seat": null})),
            }
        })
    })
}

#[tokio::test]
async fn a_tool_can_ask_by_itself_and_is_called_again_with_the_answer() {
    let model = ScriptedModel::new("m").call("book", json!({})).text("one moment").text("booked");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(book())).await;
    let seen = read(runner.run(&key, "book")).await;
    let asked = question(&seen);
    let Outcome::Interrupted { interrupts } = &seen.outcome else { unreachable!() };
    assert_eq!(interrupts[0].message.as_deref(), Some("Window or aisle?"));
    let seen = word(&runner, &key, &asked, json!({"confirmed": true, "payload": "aisle"})).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"seat": "aisle"})]);
}

#[tokio::test]
async fn the_model_may_comment_on_the_answer_that_a_tool_gave_besides_its_question() {
    let model = ScriptedModel::new("m").recorded().call("book", json!({})).text("one moment");
    let seen = run_once(LlmAgent::new("a").model(model.clone()).tool(book())).await;
    assert!(matches!(seen.outcome, Outcome::Interrupted { .. }));
    assert_eq!(model.requests().len(), 2);
    // A tool that wants the turn to end with its question says so.
    let quiet = FunctionTool::with_context("quiet", "Asks.", |cx, _: Value| {
        Box::pin(async move {
            cx.request_confirmation("May I?", None)?;
            cx.skip_summarization();
            Ok(json!({"status": "asking"}))
        })
    });
    let model = ScriptedModel::new("m").recorded().call("quiet", json!({})).text("too early");
    let seen = run_once(LlmAgent::new("a").model(model.clone()).tool(quiet)).await;
    assert!(matches!(seen.outcome, Outcome::Interrupted { .. }));
    assert_eq!(model.requests().len(), 1);
}
