//! What happens when a handler wants something else to happen next: answers, jumps, and calls it answers itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use umbel::{Content, FunctionTool, Jump, LlmAgent, Runner, ScriptedModel, SessionKey, Step, ToolValue};

use crate::handler_support::{Probe, about, after_model, before_agent, before_model, noting};
use crate::support::{
    Notes, Seen, assert_ended, begin, call_with_id, calls, echo, fine, read, run_once, said, stored,
};

/// In which hook a turn jumps to its tools.
#[derive(Clone, Copy, Debug)]
enum From {
    Agent,
    Model,
}

/// A session whose first run left a call open, and a second run that begins with it.
async fn resumed(from: From, agent: LlmAgent, model: ScriptedModel) -> (Runner, SessionKey, Seen) {
    let first = Arc::new(AtomicBool::new(true));
    let (ends, jumps) = (first.clone(), AtomicBool::new(true));
    let agent =
        agent.model(model).handler(after_model("ends", move |_| match ends.swap(false, Ordering::SeqCst) {
            true => Ok(Step::Jump(Jump::End)),
            false => Ok(Step::Continue),
        }));
    let jump = move || match !first.load(Ordering::SeqCst) && jumps.swap(false, Ordering::SeqCst) {
        true => Ok(Step::Jump(Jump::Tools)),
        false => Ok(Step::Continue),
    };
    let agent = match from {
        From::Agent => agent.handler(before_agent("jumps", move |_| jump())),
        From::Model => agent.handler(before_model("jumps", move |_| jump())),
    };
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    assert!(seen.assert_finished().responses().is_empty(), "the call is left open");
    let seen = read(runner.run(&key, "go on")).await;
    (runner, key, seen)
}

#[tokio::test]
async fn a_jump_to_the_tools_makes_the_calls_that_were_left_open_and_goes_on() {
    for from in [From::Agent, From::Model] {
        let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done");
        let (_, _, seen) = resumed(from, LlmAgent::new("a").tool(echo()), model.clone()).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})], "{from:?}");
        assert_eq!(seen.texts(), [("a".into(), "done".into())]);
        let sent = model.requests().pop().unwrap().contents;
        assert_eq!(sent.iter().filter(|content| content.has_responses()).count(), 1);
    }
}

#[tokio::test]
async fn a_tool_that_answers_directly_does_so_after_a_jump_as_well() {
    for from in [From::Agent, From::Model] {
        let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("in words");
        let agent = LlmAgent::new("a").tool_returning_directly(echo());
        let (_, _, seen) = resumed(from, agent, model.clone()).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})], "{from:?}");
        assert!(seen.texts().is_empty(), "{from:?}: {:?}", seen.texts());
        assert_eq!(model.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_jump_to_the_tools_does_not_repeat_what_is_answered_later() {
    for from in [From::Agent, From::Model] {
        let notes = Notes::default();
        let slow = noting("slow", &notes).long_running();
        let model = ScriptedModel::new("m").call("slow", json!({})).text("it takes its time");
        let agent = LlmAgent::new("a").tool(slow);
        let (_, _, seen) = resumed(from, agent, model).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "it takes its time".into())], "{from:?}");
        assert!(notes.all().is_empty(), "{from:?}: {:?}", notes.all());
    }
}

#[tokio::test]
async fn a_jump_to_the_tools_leaves_a_question_to_a_person_alone() {
    let jumped = AtomicBool::new(false);
    let model = ScriptedModel::new("m").call("echo", json!({})).text("still waiting");
    let agent = LlmAgent::new("a").model(model).tool(echo().confirm(umbel::Confirm::Always)).handler(
        before_agent("jumps", move |turn| {
            let second = turn.input.as_ref().is_some_and(|input| input.text() == "well?");
            match second && !jumped.swap(true, Ordering::SeqCst) {
                true => Ok(Step::Jump(Jump::Tools)),
                false => Ok(Step::Continue),
            }
        }),
    );
    let (runner, key) = begin(agent).await;
    let asked = read(runner.run(&key, "go")).await.interrupts()[0].clone();
    let seen = read(runner.run(&key, "well?")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "still waiting".into())]);
    assert!(seen.responses().is_empty(), "{:?}", seen.responses());
    // The question can still be answered.
    let seen = read(runner.run(&key, asked.answer(true))).await;
    assert_eq!(seen.responses(), [json!({})]);
}

#[tokio::test]
async fn a_jump_to_the_tools_is_not_to_those_of_another_agent() {
    let notes = Notes::default();
    let open = LlmAgent::new("open")
        .model(ScriptedModel::new("m").call("pay", json!({})))
        .tool(noting("pay", &notes))
        .handler(after_model("ends", |_| Ok(Step::Jump(Jump::End))));
    let jumps = LlmAgent::new("jumps")
        .model(fine())
        .tool(noting("pay", &notes))
        .handler(before_agent("jumps", |_| Ok(Step::Jump(Jump::Tools))));
    let seen = run_once(umbel::Sequential::new("team").agent(open).agent(jumps)).await;
    assert_eq!(seen.assert_finished().texts(), [("jumps".into(), "fine".into())]);
    assert!(notes.all().is_empty() && seen.responses().is_empty());
}

#[tokio::test]
async fn before_model_may_end_the_turn_and_what_it_did_is_kept() {
    let (model, notes) = (fine(), Notes::default());
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .handler(before_model("ends", |turn| {
            turn.cx().set_state("why", "enough");
            Ok(Step::Jump(Jump::End))
        }))
        .handler(Probe::new("later", &notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert!(seen.assert_finished().texts().is_empty() && model.requests().is_empty());
    assert_eq!(crate::support::state(&runner, &key).await["why"], "enough");
    assert!(about(&notes, "before_model").is_empty());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn an_answer_in_the_models_place_is_said_and_saved() {
    let (model, notes) = (fine(), Notes::default());
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .output_key("said")
        .handler(before_model("answers", |_| Ok(Step::Respond(Content::model("cached")))))
        .handler(Probe::new("later", &notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "cached".into())]);
    assert!(model.requests().is_empty());
    assert_eq!(crate::support::state(&runner, &key).await["said"], "cached");
    assert!(about(&notes, "after_model").is_empty() && about(&notes, "wrap_model").is_empty());
}

#[tokio::test]
async fn after_model_may_ask_again_and_calls_that_are_passed_over_say_so() {
    let model = ScriptedModel::new("m").recorded().call("pay", json!({})).text("done");
    let notes = Notes::default();
    let agent = LlmAgent::new("a").model(model.clone()).tool(noting("pay", &notes)).handler(after_model(
        "again",
        |turn| match turn.calls().count() {
            0 => Ok(Step::Continue),
            _ => Ok(Step::Jump(Jump::Model)),
        },
    ));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().tool_error(), umbel::text::CALL_SKIPPED);
    assert!(notes.all().is_empty());
    assert_eq!((model.requests().len(), seen.texts()), (2, vec![("a".into(), "done".into())]));
}

#[tokio::test]
async fn after_model_may_say_something_behind_the_answer_and_end() {
    let model = ScriptedModel::new("m").recorded().call("pay", json!({})).text("not reached");
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("pay", &notes))
        .handler(after_model("stops", |_| Ok(Step::Respond(Content::model("I must not pay.")))));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().tool_error(), umbel::text::CALL_SKIPPED);
    assert_eq!(seen.texts(), [("a".into(), "I must not pay.".into())]);
    assert!(notes.all().is_empty());
    assert_eq!(model.requests().len(), 1);
    assert_eq!(stored(&runner, &key).await.len(), 4);
}

#[tokio::test]
async fn after_model_may_answer_calls_itself_and_the_others_are_made() {
    let both = [
        call_with_id("c1", "pay", json!({})),
        call_with_id("c2", "pay", json!({})),
        call_with_id("c3", "pay", json!({})),
    ];
    let model = ScriptedModel::new("m").recorded().response(calls(both)).text("done");
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("pay", &notes))
        .handler(after_model("answers", |turn| {
            if turn.calls().count() > 0 {
                turn.answer("c2".into(), json!({"refused": 2}));
                turn.answer("c2".into(), json!({"refused": "the first answer counts"}));
            }
            Ok(Step::Continue)
        }))
        .handler(after_model("looks", |turn| {
            assert!(turn.calls().count() == 0 || turn.is_answered(&"c2".into()));
            Ok(Step::Continue)
        }))
        .handler(after_model("as a message", |turn| {
            if turn.calls().count() > 0 {
                turn.history.push(crate::support::answer("c3", "pay", json!({"refused": 3})));
            }
            Ok(Step::Continue)
        }));
    let seen = run_once(agent).await;
    assert_eq!(notes.all(), ["pay"]);
    let ids: Vec<String> =
        seen.whole()[1].responses().map(|one| one.id.clone().unwrap().to_string()).collect();
    assert_eq!(ids, ["c2", "c3", "c1"], "results that were given come first");
    assert_eq!(
        seen.assert_finished().responses(),
        [json!({"refused": 2}), json!({"refused": 3}), json!({"result": "pay"})]
    );
    // The model sees each answer once.
    let sent = &model.requests()[1].contents;
    let answers: Vec<_> =
        sent.iter().flat_map(|content| content.responses()).map(|one| one.id.clone()).collect();
    let mut ids: Vec<String> = answers.into_iter().map(|id| id.unwrap().to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["c1", "c2", "c3"]);
}

#[tokio::test]
async fn an_answer_for_a_call_that_answers_directly_does_not() {
    let model = ScriptedModel::new("m").recorded().call("pay", json!({})).text("in words");
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool_returning_directly(FunctionTool::new("pay", "", |_: Value| async { Ok(1) }))
        .handler(after_model("answers", |turn| {
            let ids: Vec<_> = turn.calls().filter_map(|call| call.id.clone()).collect();
            for id in ids {
                turn.answer(id, ToolValue { is_error: true, ..json!({"error": "not today"}).into() });
            }
            Ok(Step::Continue)
        }));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "in words".into())]);
    assert_eq!(said(&model.requests()[1]).len(), 3);
}

#[tokio::test]
async fn before_agent_that_jumps_to_the_model_simply_goes_on() {
    let agent =
        LlmAgent::new("a").model(fine()).handler(before_agent("jumps", |_| Ok(Step::Jump(Jump::Model))));
    assert_eq!(run_once(agent).await.assert_finished().texts(), [("a".into(), "fine".into())]);
}
