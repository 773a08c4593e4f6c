//! What a run makes of handlers that go wrong: each ends with one outcome that says who it was, and frees the session.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    Agent, AgentTurn, Chunk, Content, Error, ErrorKind, Event, FunctionCall, FunctionTool, Handler, Jump,
    LlmAgent, LogEntry, Outcome, Part, RunConfig, RunLimits, RunStep, Runner, ScriptedModel, SessionKey,
    Step, ToolErrors, handler,
};

use crate::handler_support::{
    Fails, How, Probe, about, after_agent, after_model, after_run, before_agent, before_model, declared,
    noting, on_event, on_output, wrap_model, wrap_tool,
};
use crate::support::{
    Notes, Seen, assert_ended, assert_free, begin, call_with_id, calls, config, echo, fine, log, quick, read,
    run_once, said, stored, streaming, with_session,
};

fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done")
}

/// Hooks that come in a run of [`echo_once`], on the way to its end.
const ON_THE_WAY: [&str; 7] =
    ["before_run", "before_agent", "before_model", "wrap_model", "after_model", "on_event", "on_output"];

/// A run of [`echo_once`] with a handler of the runner that fails, and one that is told how it ended.
async fn run_with(
    hook: &'static str,
    how: How,
    config: RunConfig,
    notes: &Notes,
) -> (Runner, SessionKey, Seen) {
    let runner = Runner::builder("app", LlmAgent::new("a").model(echo_once()).tool(echo()))
        .handler(Fails::new("fails", hook, how))
        .handler(Probe::new("told", notes))
        .build()
        .unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = tokio::time::timeout(Duration::from_secs(5), read(runner.run_with(&key, "hi", config)));
    let seen = seen.await.unwrap_or_else(|_| panic!("a run with {how:?} in {hook} does not end"));
    (runner, key, seen)
}

/// What is said of a hook that went wrong.
fn blame(hook: &str, how: How) -> String {
    match how {
        How::Error | How::LateError => format!("handler `fails` failed in {hook}: broken"),
        _ => format!("handler `fails` in {hook} panicked: broken"),
    }
}

#[tokio::test]
async fn a_hook_that_errors_or_panics_fails_the_run_by_name() {
    for hook in ON_THE_WAY {
        for how in [How::Error, How::LateError, How::EarlyPanic, How::Panic] {
            for config in [RunConfig::default(), streaming()] {
                let notes = Notes::default();
                let (runner, key, seen) = run_with(hook, how, config, &notes).await;
                assert_eq!(
                    (seen.kind(), seen.code()),
                    (ErrorKind::Handler, "HANDLER_FAILED"),
                    "{hook} {how:?}"
                );
                assert_eq!(seen.message(), blame(hook, how));
                assert_ended(&runner, &key, &seen).await;
                assert_eq!(about(&notes, "after_run"), ["told.after_run(failed HANDLER_FAILED)"]);
                let agents = if hook == "before_run" { 0 } else { 1 };
                assert_eq!(about(&notes, "after_agent").len(), agents, "{hook} {how:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_hook_that_sees_the_input_and_fails_keeps_the_run_from_beginning() {
    for how in [How::Error, How::LateError, How::EarlyPanic, How::Panic] {
        let notes = Notes::default();
        let (runner, key, seen) = run_with("on_input", how, RunConfig::default(), &notes).await;
        assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, blame("on_input", how).as_str()));
        assert!(log(&runner, &key).await.is_empty());
        assert_free(&runner, &key).await;
    }
}

#[tokio::test]
async fn a_hook_that_hangs_is_stopped_at_the_deadline_of_the_run() {
    let limits = RunLimits { run_time: Duration::from_millis(20), ..quick() };
    for hook in ON_THE_WAY.into_iter().chain(["wrap_tool", "after_agent", "after_run", "on_input"]) {
        let notes = Notes::default();
        let (runner, key, seen) = run_with(hook, How::Hang, config(limits), &notes).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Timeout, "TIMEOUT"), "{hook}");
        if hook == "on_input" {
            assert!(log(&runner, &key).await.is_empty());
            continue;
        }
        assert_ended(&runner, &key, &seen).await;
        if hook != "after_agent" && hook != "before_run" && hook != "after_run" {
            assert_eq!(about(&notes, "after_agent"), ["told.after_agent(a, failed TIMEOUT)"], "{hook}");
        }
    }
}

#[tokio::test]
async fn a_hook_that_hangs_does_not_hold_up_a_cancelled_run() {
    for hook in ON_THE_WAY.into_iter().chain(["wrap_tool", "after_agent", "after_run", "on_input"]) {
        let runner = Runner::builder("app", LlmAgent::new("a").model(echo_once()).tool(echo()))
            .handler(Fails::new("fails", hook, How::Hang))
            .build()
            .unwrap();
        let (runner, key) = with_session(runner).await;
        let stream = runner.run_with(&key, "hi", config(quick()));
        let token = stream.cancel_token();
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            token.cancel(umbel::CancelReason::Asked);
        };
        let both = async { tokio::join!(read(stream), cancel) };
        let Ok((seen, ())) = tokio::time::timeout(Duration::from_secs(5), both).await else {
            panic!("a cancelled run with a {hook} that hangs does not end")
        };
        assert_eq!(seen.outcome, Outcome::Cancelled, "{hook}");
        assert_free(&runner, &key).await;
    }
}

#[tokio::test]
async fn an_error_around_a_tool_is_the_tools_and_a_panic_there_is_not() {
    for how in [How::Error, How::LateError] {
        let (runner, key, seen) = run_with("wrap_tool", how, RunConfig::default(), &Notes::default()).await;
        assert_eq!(seen.assert_finished().tool_error(), "broken");
        assert_ended(&runner, &key, &seen).await;
        let fail = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
        let (runner, key, seen) = run_with("wrap_tool", how, fail, &Notes::default()).await;
        assert_eq!(seen.message(), "broken");
        assert_ended(&runner, &key, &seen).await;
    }
    for how in [How::EarlyPanic, How::Panic] {
        let (runner, key, seen) = run_with("wrap_tool", how, RunConfig::default(), &Notes::default()).await;
        assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, blame("wrap_tool", how).as_str()));
        assert_ended(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn what_comes_at_the_end_may_fail_and_says_so() {
    for hook in ["after_agent", "after_run"] {
        for how in [How::Error, How::LateError, How::EarlyPanic, How::Panic] {
            let notes = Notes::default();
            let (runner, key, seen) = run_with(hook, how, RunConfig::default(), &notes).await;
            assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, blame(hook, how).as_str()));
            assert_ended(&runner, &key, &seen).await;
            // All are told, also behind the one that failed, and what was said stays.
            assert_eq!((about(&notes, "after_agent").len(), about(&notes, "after_run").len()), (1, 1));
            assert!(stored(&runner, &key).await.iter().any(|event| event.text() == "done"));
        }
    }
}

#[tokio::test]
async fn a_handler_of_an_agent_fails_its_run_like_one_of_the_runner() {
    for hook in
        ["before_agent", "before_model", "wrap_model", "after_model", "on_event", "on_output", "after_agent"]
    {
        for how in [How::LateError, How::Panic] {
            let agent =
                LlmAgent::new("a").model(echo_once()).tool(echo()).handler(Fails::new("fails", hook, how));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run(&key, "hi")).await;
            assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, blame(hook, how).as_str()));
            assert_ended(&runner, &key, &seen).await;
        }
    }
}

#[tokio::test]
async fn configuring_and_closing_may_fail_too() {
    for how in [How::Error, How::EarlyPanic] {
        let agent = || LlmAgent::new("a").model(fine());
        let error = Runner::new("app", agent().handler(Fails::new("fails", "configure", how))).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Build, format!("agent `a`: {}", blame("configure", how)).as_str())
        );
        let notes = Notes::default();
        let runner = Runner::builder("app", agent())
            .handler(Fails::new("fails", "close", how))
            .handler(Probe::new("told", &notes))
            .build()
            .unwrap();
        assert_eq!(runner.close().await.unwrap_err().message(), blame("close", how));
        assert_eq!(about(&notes, "close").len(), 1);
    }
}

#[tokio::test]
async fn on_error_that_fails_fails_the_run_and_the_end_is_told() {
    for how in [How::Error, How::LateError, How::EarlyPanic, How::Panic] {
        let notes = Notes::default();
        let agent = LlmAgent::new("a")
            .model(ScriptedModel::new("m").fail("no power"))
            .handler(Fails::new("fails", "on_error", how))
            .handler(Probe::new("told", &notes));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, blame("on_error", how).as_str()));
        assert_eq!(about(&notes, "after_agent"), ["told.after_agent(a, failed HANDLER_FAILED)"]);
        assert_ended(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn what_failed_first_counts_when_the_end_fails_as_well() {
    let broken = || Error::new(ErrorKind::Other, "and this too");
    let runner = Runner::builder("app", LlmAgent::new("a").model(ScriptedModel::new("m").fail("no power")))
        .handler(after_agent("agent", move |_, _| Err(broken())))
        .handler(after_run("run", move |_, _| Err(broken())))
        .build()
        .unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.code(), seen.message()), ("MODEL_FAILED", "no power"));
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_panic_of_a_model_or_in_a_stream_is_told_to_those_who_wait_for_the_end() {
    let model = || ScriptedModel::from_fn("m", |_| panic!("burnt out"));
    let stream = wrap_model("streams", |call, next| {
        Box::pin(async move {
            let chunks = next.call(call).await?;
            Ok(chunks.map(|_| -> umbel::Result<Chunk> { panic!("burnt out") }).boxed())
        })
    });
    let own = umbel::agent_fn("own", |_| Box::pin(async { panic!("burnt out") }));
    let agents: [(Arc<dyn Agent>, &str); 4] = [
        (Arc::new(LlmAgent::new("a").model(model())), "a"),
        (Arc::new(LlmAgent::new("a").model(model()).handler(Probe::new("layer", &Notes::default()))), "a"),
        (Arc::new(LlmAgent::new("a").model(fine()).handler(stream)), "a"),
        (Arc::new(own), "own"),
    ];
    for (agent, name) in agents {
        let notes = Notes::default();
        let runner = Runner::builder("app", agent).handler(Probe::new("told", &notes)).build().unwrap();
        let (runner, key) = with_session(runner).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Panic, "PANIC"));
        assert!(seen.message().ends_with("panicked: burnt out"), "{}", seen.message());
        assert_ended(&runner, &key, &seen).await;
        assert_eq!(about(&notes, "on_error"), ["told.on_error(PANIC)"]);
        assert_eq!(about(&notes, "after_agent"), [format!("told.after_agent({name}, failed PANIC)")]);
    }
}

#[tokio::test]
async fn a_history_with_nothing_in_it_is_not_sent() {
    let model = fine();
    let agent = LlmAgent::new("a").model(model.clone()).handler(before_model("empties", |turn| {
        turn.history.truncate_front(usize::MAX);
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"));
    let message = seen.message();
    assert!(message.starts_with("handler `empties` failed in before_model: "), "{message}");
    assert!(message.contains("no message"), "{message}");
    assert!(model.requests().is_empty());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn an_empty_history_is_no_fault_if_a_later_handler_fills_it_or_answers() {
    let empties = || {
        before_model("empties", |turn| {
            turn.history.truncate_front(1);
            Ok(Step::Continue)
        })
    };
    let model = fine();
    let fills = before_model("fills", |turn| {
        turn.history.push(Content::user("anything"));
        Ok(Step::Continue)
    });
    run_once(LlmAgent::new("a").model(model.clone()).handler(empties()).handler(fills))
        .await
        .assert_finished();
    assert_eq!(said(&model.requests()[0]), ["anything"]);
    let answers = before_model("answers", |_| Ok(Step::Respond(Content::model("no need to ask"))));
    let seen = run_once(LlmAgent::new("a").model(fine()).handler(empties()).handler(answers)).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "no need to ask".into())]);
}

/// Takes the first message with a call away, and leaves its response.
fn strips(turn: &mut umbel::ModelTurn<'_>) {
    let place = turn.history.iter().position(|content| content.has_calls());
    if let Some(place) = place.filter(|place| place + 1 < turn.history.len()) {
        turn.history.splice(place..=place, []);
    }
}

#[tokio::test]
async fn a_response_whose_call_was_taken_away_is_not_sent() {
    let model = echo_once();
    let agent =
        LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model("strips", |turn| {
            strips(turn);
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"));
    let message = seen.message();
    assert!(message.starts_with("handler `strips` failed in before_model: "), "{message}");
    assert!(message.contains("a response of `echo` without its call"), "{message}");
    assert_eq!(model.requests().len(), 1);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_response_whose_call_after_model_took_away_is_not_sent_either() {
    let call = |id| calls([call_with_id(id, "echo", json!({}))]);
    let model = ScriptedModel::new("m").recorded().response(call("c1")).response(call("c2")).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(after_model("strips", |turn| {
        strips(turn);
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"));
    let message = seen.message();
    assert!(message.starts_with("handler `strips` failed in after_model: "), "{message}");
    assert!(message.contains("a response of `echo` without its call"), "{message}");
    assert_eq!(model.requests().len(), 2);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn one_of_two_calls_taken_away_is_found_as_well() {
    let both = [call_with_id("c1", "echo", json!({})), call_with_id("c2", "echo", json!({}))];
    let model = ScriptedModel::new("m").response(calls(both)).text("done");
    let agent = LlmAgent::new("a").model(model).tool(echo()).handler(before_model("halves", |turn| {
        if turn.history.len() > 1 {
            let mut content = (**turn.history.get(1).unwrap()).clone();
            content.parts.remove(0);
            turn.history.replace(1, content);
        }
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert!(seen.message().contains("without its call"), "{}", seen.message());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_call_and_its_response_may_be_taken_away_together() {
    let model = echo_once();
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model("both", |turn| {
        if turn.history.len() == 3 {
            turn.history.splice(1..3, []);
        }
        Ok(Step::Continue)
    }));
    run_once(agent).await.assert_finished();
    assert_eq!(said(&model.requests()[1]), ["hi"]);
}

#[tokio::test]
async fn an_agent_whose_tools_are_all_taken_away_goes_on_without() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").recorded().call("pay", json!({})).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(noting("pay", &notes)).handler(before_agent(
        "none",
        |turn| {
            turn.plan.tools_mut().retain(|_| false);
            Ok(Step::Continue)
        },
    ));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(
        seen.assert_finished().tool_error(),
        "There is no tool named `pay`. The tools you can call are: none. Call only tools from this list."
    );
    assert!(notes.all().is_empty() && model.requests().iter().all(|request| declared(request).is_empty()));
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_layer_that_calls_next_twice_makes_the_call_twice_and_answers_once() {
    let notes = Notes::default();
    let (model, tool) = (ScriptedModel::new("m").call("pay", json!({})).text("done"), noting("pay", &notes));
    let agent = LlmAgent::new("a").model(model).tool(tool).handler(wrap_tool("twice", |call, next| {
        Box::pin(async move {
            next.call(call.clone()).await?;
            next.call(call).await
        })
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"result": "pay"})]);
    assert_eq!(notes.all(), ["pay", "pay"]);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_layer_that_asks_a_model_twice_counts_twice_and_answers_once() {
    let twice = || {
        wrap_model("twice", |call, next| {
            Box::pin(async move {
                let _ = next.call(call.clone()).await?.collect::<Vec<_>>().await;
                next.call(call).await
            })
        })
    };
    let model = ScriptedModel::new("m").text("one").text("two");
    let (runner, key) = begin(LlmAgent::new("a").model(model).handler(twice())).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "two".into())]);
    let (runner, key) = begin(LlmAgent::new("a").model(fine()).handler(twice())).await;
    let limits = RunLimits { model_calls: 1, ..quick() };
    let seen = read(runner.run_with(&key, "hi", config(limits))).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::ModelCallLimit, "MODEL_CALL_LIMIT"));
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_handler_that_jumps_for_ever_is_stopped_by_name() {
    for jump in [Jump::Model, Jump::Tools] {
        // One that leaves an event each time is no better.
        for leaves in [false, true] {
            let model = fine();
            let agent = LlmAgent::new("a").model(model.clone()).handler(before_model("jumps", move |turn| {
                if leaves {
                    turn.cx().set_state("jumped", true);
                }
                Ok(Step::Jump(jump))
            }));
            let (runner, key) = begin(agent).await;
            let run = read(runner.run_with(
                &key,
                "hi",
                config(RunLimits { run_time: Duration::from_secs(4), ..quick() }),
            ));
            let seen = run.await;
            assert_eq!(
                (seen.kind(), seen.code()),
                (ErrorKind::Handler, "HANDLER_FAILED"),
                "{jump:?} {leaves}"
            );
            let message = seen.message();
            assert!(message.starts_with("handler `jumps` failed in before_model: "), "{message}");
            assert!(message.contains("100"), "{message}");
            assert!(model.requests().is_empty());
            assert_ended(&runner, &key, &seen).await;
        }
    }
}

#[tokio::test]
async fn a_handler_that_sends_the_model_back_for_ever_ends_at_the_limit_of_model_calls() {
    let agent =
        LlmAgent::new("a").model(fine()).handler(after_model("again", |_| Ok(Step::Jump(Jump::Model))));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run_with(&key, "hi", config(RunLimits { model_calls: 5, ..quick() }))).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::ModelCallLimit, "MODEL_CALL_LIMIT"));
    assert_eq!(seen.texts().len(), 5);
    assert_ended(&runner, &key, &seen).await;
}

/// Changes that `on_event` must not make, each to the first event that it can be made to.
fn meddlings() -> Vec<(&'static str, Box<dyn Fn(&mut Event) + Send + Sync>)> {
    fn part(event: &mut Event, change: impl FnOnce(&mut FunctionCall)) {
        let content = Arc::make_mut(event.content.as_mut().unwrap());
        if let Some(umbel::Payload::Call(call)) = content.parts.first_mut().map(|part| &mut part.payload) {
            change(call);
        }
    }
    vec![
        ("event id", Box::new(|event| event.id = "other".into())),
        ("run", Box::new(|event| event.run = "other".into())),
        ("call id", Box::new(|event| part(event, |call| call.id = Some("other".into())))),
        ("no call id", Box::new(|event| part(event, |call| call.id = None))),
        ("call name", Box::new(|event| part(event, |call| call.name = "other".into()))),
        ("arguments", Box::new(|event| part(event, |call| call.args = None))),
        ("call taken away", Box::new(|event| event.content = Some(Arc::new(Content::model("nothing"))))),
        ("content taken away", Box::new(|event| event.content = None)),
        (
            "call added",
            Box::new(|event| {
                let added = Part::call(FunctionCall::new("echo", Default::default()).with_id("new"));
                Arc::make_mut(event.content.as_mut().unwrap()).parts.push(added);
            }),
        ),
        ("transfer", Box::new(|event| event.actions_mut().transfer_to_agent = Some("b".into()))),
        ("escalation", Box::new(|event| event.actions_mut().escalate = Some(true))),
        (
            "question",
            Box::new(|event| event.actions_mut().requested_tool_confirmations = Some(Default::default())),
        ),
        ("preview", Box::new(|event| event.partial = Some(true))),
        ("answered later", Box::new(|event| event.long_running_tool_ids = Some(Box::new(vec!["c1".into()])))),
    ]
}

#[tokio::test]
async fn on_event_must_not_touch_ids_calls_and_control() {
    for (what, change) in meddlings() {
        let notes = Notes::default();
        let call = call_with_id("c1", "pay", json!({"n": 1}));
        let model = ScriptedModel::new("m").response(calls([call])).text("done");
        let agent = LlmAgent::new("a").model(model).tool(noting("pay", &notes)).handler(on_event(
            "meddles",
            move |_, mut event| {
                if event.calls().next().is_some() {
                    change(&mut event);
                }
                Ok(event)
            },
        ));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"), "{what}");
        let expected = "handler `meddles` failed in on_event: ids, calls and control actions of an event must stay as \
                        they are";
        assert_eq!(seen.message(), expected, "{what}");
        assert!(notes.all().is_empty(), "{what}: the call must not be made");
        assert_eq!(stored(&runner, &key).await.len(), 1, "{what}");
        assert_ended(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn on_event_must_not_take_a_control_action_away_or_answer_another_call() {
    let asks = FunctionTool::new("ask", "", |_: Value| async { Ok(1) }).confirm(umbel::Confirm::Always);
    let model = || ScriptedModel::new("m").call("ask", json!({})).text("done");
    let drops = on_event("drops", |_, mut event| {
        if event.responses().next().is_some() {
            event.actions = None;
        }
        Ok(event)
    });
    let (runner, key) = begin(LlmAgent::new("a").model(model()).tool(asks.clone()).handler(drops)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert!(seen.message().starts_with("handler `drops` failed in on_event"), "{}", seen.message());
    assert_ended(&runner, &key, &seen).await;
    let renames = on_event("renames", |_, mut event| {
        if event.responses().next().is_some() {
            let mut content = (**event.content.as_ref().unwrap()).clone();
            if let umbel::Payload::Response(response) = &mut content.parts[0].payload {
                response.id = Some("other".into());
            }
            event.content = Some(Arc::new(content));
        }
        Ok(event)
    });
    let (runner, key) = begin(LlmAgent::new("a").model(echo_once()).tool(echo()).handler(renames)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert!(seen.message().starts_with("handler `renames` failed in on_event"), "{}", seen.message());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn on_event_may_change_words_results_state_and_metadata() {
    let agent =
        LlmAgent::new("a").model(echo_once()).tool(echo()).handler(on_event("adds", |_, mut event| {
            let mut content = (**event.content.as_ref().unwrap()).clone();
            for part in &mut content.parts {
                match &mut part.payload {
                    umbel::Payload::Text(text) => text.push('!'),
                    umbel::Payload::Response(response) => {
                        response.response.get_or_insert_default().insert("seen".into(), true.into());
                    }
                    _ => {}
                }
            }
            event.content = Some(Arc::new(content));
            event.actions_mut().set_state("seen", true);
            event.meta_mut().custom_metadata.get_or_insert_default().insert("by".into(), "adds".into());
            Ok(event)
        }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1, "seen": true})]);
    assert_eq!(seen.texts(), [("a".into(), "done!".into())]);
    assert_eq!(crate::support::state(&runner, &key).await["seen"], true);
}

/// Asks before each call, in a layer, and remembers the word.
struct Approves(Notes);

#[handler]
impl Handler for Approves {
    fn name(&self) -> &str {
        "approves"
    }

    async fn wrap_tool(&self, call: umbel::ToolCall<'_>, next: umbel::NextTool<'_>) -> umbel::ToolResult {
        if call.interrupt(self, format!("May I call {}?", call.name()))?.confirmed {
            return next.call(call).await;
        }
        self.0.add("refused");
        Ok(json!({"refused": true}).into())
    }
}

#[tokio::test]
async fn an_interrupt_of_a_layer_is_asked_and_answered() {
    for config in [RunConfig::default(), streaming()] {
        for confirmed in [true, false] {
            let notes = Notes::default();
            let model = ScriptedModel::new("m").call("pay", json!({})).text("done");
            let agent =
                LlmAgent::new("a").model(model).tool(noting("pay", &notes)).handler(Approves(notes.clone()));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            let [asked] = seen.interrupts() else { panic!("{:?}", seen.outcome) };
            assert_eq!(asked.message.as_deref(), Some("May I call pay?"));
            assert_eq!((asked.reason.as_str(), asked.address.agent.as_str()), ("confirmation", "a"));
            assert!(notes.all().is_empty());
            assert_ended(&runner, &key, &seen).await;
            let seen = read(runner.run_with(&key, asked.answer(confirmed), config.clone())).await;
            let (expected, note) = if confirmed {
                (json!({"result": "pay"}), "pay")
            } else {
                (json!({"refused": true}), "refused")
            };
            assert_eq!(seen.assert_finished().responses(), [expected]);
            assert_eq!(notes.all(), [note]);
            assert_free(&runner, &key).await;
        }
    }
}

#[tokio::test]
async fn an_interrupt_around_a_call_that_has_no_tool_asks_as_well() {
    let model = ScriptedModel::new("m").call("unknown", json!({})).text("done");
    let agent = LlmAgent::new("a").model(model).handler(Approves(Notes::default()));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.interrupts().len(), 1);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_kept_value_of_another_type_is_an_error_by_name() {
    let agent = LlmAgent::new("a").model(fine()).handler(before_model("reads", |turn| {
        turn.run().keep("count", &"three")?;
        let _: Option<u32> = turn.run().kept("count")?;
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Corrupt, "CORRUPT"));
    let message = seen.message();
    assert!(
        message.starts_with("handler `reads` failed in before_model: the value `count` that the run keeps"),
        "{message}"
    );
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_value_without_a_json_form_cannot_be_kept() {
    let agent = LlmAgent::new("a").model(fine()).handler(before_model("keeps", |turn| {
        turn.run().keep("map", &std::collections::BTreeMap::from([((1, 2), 3)]))?;
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.kind(), ErrorKind::InvalidInput);
    assert!(
        seen.message().starts_with("handler `keeps` failed in before_model: the value `map` cannot be kept")
    );
    let kept =
        |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Kept { .. }));
    assert!(!log(&runner, &key).await.iter().any(kept));
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_viewers_handler_that_fails_shows_nothing_of_what_it_failed_on() {
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").text("top secret"))
        .handler(on_output("redacts", |_, _| Err(Error::new(ErrorKind::Other, "no rules"))));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.message(), "handler `redacts` failed in on_output: no rules");
    assert!(seen.events.is_empty());
    // The log keeps what was said.
    assert_eq!(stored(&runner, &key).await[1].text(), "top secret");
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn what_one_branch_shows_waits_for_its_own_handler_alone() {
    // One branch redacts slowly while the other writes.
    struct Slow;
    #[handler]
    impl Handler for Slow {
        fn name(&self) -> &str {
            "slow"
        }

        async fn on_output(&self, _run: &umbel::Run, event: Arc<Event>) -> umbel::Result<Option<Arc<Event>>> {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut event = Arc::unwrap_or_clone(event);
            event.content = Some(Arc::new(Content::model("***")));
            Ok(Some(Arc::new(event)))
        }
    }
    let busy = ScriptedModel::new("m").call("echo", json!({})).call("echo", json!({})).text("busy");
    let secret = LlmAgent::new("secret").model(ScriptedModel::new("m").text("top secret")).handler(Slow);
    let busy = LlmAgent::new("busy").model(busy).tool(echo());
    let seen = run_once(umbel::Parallel::new("both").agent(secret).agent(busy)).await;
    seen.assert_finished();
    let mut texts = seen.texts();
    texts.sort();
    assert_eq!(texts, [("busy".into(), "busy".into()), ("secret".into(), "***".into())]);
}

#[tokio::test]
async fn an_answer_of_a_handler_with_calls_in_it_has_them_made() {
    let call = || Content::model(call_with_id("c1", "echo", json!({"n": 3})));
    let before = before_model("calls", move |turn| match turn.history.len() {
        1 => Ok(Step::Respond(call())),
        _ => Ok(Step::Continue),
    });
    let (runner, key) = begin(LlmAgent::new("a").model(fine()).tool(echo()).handler(before)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 3})]);
    assert_eq!(seen.texts(), [("a".into(), "fine".into())]);
    assert_ended(&runner, &key, &seen).await;
    let after = after_model("calls", move |turn| match turn.history.len() {
        2 => Ok(Step::Respond(call())),
        _ => Ok(Step::Continue),
    });
    let model = ScriptedModel::new("m").text("wait").text("fine");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo()).handler(after)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 3})]);
    assert_eq!(seen.texts(), [("a".into(), "wait".into()), ("a".into(), "fine".into())]);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn a_turn_that_a_handler_begins_with_tools_and_has_none_open_asks_the_model() {
    struct Opens;
    #[handler]
    impl Handler for Opens {
        fn name(&self) -> &str {
            "opens"
        }

        async fn before_agent(&self, _turn: &mut AgentTurn<'_>) -> umbel::Result<Step> {
            Ok(Step::Jump(Jump::Tools))
        }
    }
    let (runner, key) = begin(LlmAgent::new("a").model(fine()).tool(echo()).handler(Opens)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "fine".into())]);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn an_error_of_a_callback_is_told_in_its_own_words() {
    let broken = || Error::new(ErrorKind::Other, "no");
    let base = || LlmAgent::new("a").model(echo_once()).tool(echo());
    let agents = [
        base().before_model(move |_, _| Box::pin(async move { Err(broken()) })),
        base().after_model(move |_, _| Box::pin(async move { Err(broken()) })),
        base().before_tool(move |_, _, _| Box::pin(async move { Err(broken()) })),
        base().after_tool(move |_, _, _| Box::pin(async move { Err(broken()) })),
    ];
    for agent in agents {
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.message()), (ErrorKind::Handler, "no"));
        assert_ended(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn an_error_of_kind_handler_from_a_layer_fails_the_run_by_name() {
    let broken = || Error::new(ErrorKind::Handler, "no");
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(echo())
        .handler(wrap_tool("outer", |call, next| Box::pin(next.call(call))))
        .handler(wrap_tool("inner", move |_, _| Box::pin(async move { Err(broken().into()) })));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(
        (seen.kind(), seen.message()),
        (ErrorKind::Handler, "handler `inner` failed in wrap_tool: no")
    );
    assert_ended(&runner, &key, &seen).await;
}
