//! What a run makes of input that makes no sense: from models, tools, users and builders.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Chunk, Content, Error, ErrorKind, Event, FunctionCall, FunctionTool, LlmAgent, NewSession, Outcome, Part,
    Response, Result, Role, RunConfig, RunLimits, Runner, ScriptedModel, Sequential, SessionKey, Source,
    Tool, ToolError, ToolErrors, agent_fn,
};

use crate::support::{
    Seen, answer, begin, call_with_id, calls, changed, echo, fine, log, outcomes, read, run_once, said,
    state, stored, stored_answers,
};

/// One run in which a model calls a tool, then says "done".
async fn call_once(tool: impl Tool + 'static, name: &str, args: Value, errors: ToolErrors) -> Seen {
    let model = ScriptedModel::new("m").call(name, args).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(tool)).await;
    let config = RunConfig { tool_errors: errors, ..RunConfig::default() };
    read(runner.run_with(&key, "hi", config)).await
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Trip {
    to: String,
    days: u8,
}

fn trip() -> FunctionTool {
    FunctionTool::new("trip", "Plans.", |trip: Trip| async move { Ok(format!("{} {}", trip.to, trip.days)) })
}

#[tokio::test]
async fn a_call_of_an_unknown_tool_is_answered_with_the_known_ones() {
    for errors in [ToolErrors::ToModel, ToolErrors::Fail] {
        let seen = call_once(echo(), "nope", json!({}), errors).await;
        assert_eq!(
            seen.tool_error(),
            "There is no tool named `nope`. The tools you can call are: echo. Call only tools from this list."
        );
        seen.assert_finished();
    }
}

#[tokio::test]
async fn arguments_that_do_not_fit_go_back_to_the_model_whatever_the_policy() {
    for errors in [ToolErrors::ToModel, ToolErrors::Fail] {
        let seen = call_once(trip(), "trip", json!({"to": "Rome", "days": "two"}), errors).await;
        let error = seen.tool_error();
        assert!(error.contains("the argument `days` does not fit"), "{error}");
        seen.assert_finished();
    }
}

#[tokio::test]
async fn a_call_without_arguments_is_told_what_is_missing() {
    let call = Part::call(FunctionCall { name: "trip".into(), ..FunctionCall::default() });
    let model = ScriptedModel::new("m").response(calls([call])).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(trip())).await;
    assert!(seen.tool_error().contains("the mandatory arguments `to`, `days` are missing"));
    seen.assert_finished();
}

#[tokio::test]
async fn arguments_that_cannot_be_read_go_back_to_the_model_and_no_tool_is_called() {
    let call = FunctionCall { name: "echo".into(), ..FunctionCall::default() };
    let call = Part::call(call.with_unreadable_args("{\"text\": "));
    let model = ScriptedModel::new("m").response(calls([call])).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo())).await;
    assert!(seen.tool_error().contains("its arguments are not a JSON object"), "{}", seen.tool_error());
    seen.assert_finished();
}

/// So many arrays within each other.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

#[tokio::test]
async fn what_is_nested_too_deep_for_the_log_goes_back_to_the_model_and_not_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    for (levels, fits) in [(60, true), (70, false), (123, false), (500, false)] {
        let path = folder.path().join(format!("{levels}.db"));
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        let deep = FunctionTool::new("deep", "Answers.", move |_: Value| async move { Ok(nested(levels)) });
        let args = json!({"text": "x", "more": nested(levels)});
        let model = ScriptedModel::new("m").call("deep", json!({})).call("echo", args).text("done");
        let agent = LlmAgent::new("a").model(model).tool(deep).tool(echo());
        let runner = Runner::builder("app", agent).sessions(store).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        let told = serde_json::to_string(&seen.whole()).unwrap();
        assert_eq!(told.contains("nested deeper than 64 levels"), !fits, "{levels}: the result");
        assert_eq!(told.contains("or nested too deep"), !fits, "{levels}: the arguments");
        // Another process reads all of it.
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        let again = Runner::builder("app", LlmAgent::new("a").model(ScriptedModel::new("m"))).sessions(store);
        assert_eq!(stored(&again.build().unwrap(), &key).await.len(), seen.whole().len() + 1, "{levels}");
    }
}

#[tokio::test]
async fn state_that_a_store_could_not_read_again_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for levels in [90, 120, 126, 130] {
        let path = folder.path().join(format!("{levels}.db"));
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        let agent = agent_fn("a", move |run| {
            Box::pin(async move {
                let mut event = run.event().with_content(Content::model("x"));
                event.actions_mut().set_state("deep", nested(levels));
                run.emit(event).await.map(drop)
            })
        });
        let runner = Runner::builder("app", agent).sessions(store.clone()).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        let seen = read(runner.run(&key, "hi")).await;
        if levels > 90 {
            let error = seen.error.unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{levels}: {error}");
            assert!(error.message().contains("more than 100 levels"), "{error}");
        } else {
            assert_eq!(seen.outcome, Outcome::Finished);
        }
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        let again = Runner::builder("app", LlmAgent::new("a").model(ScriptedModel::new("m"))).sessions(store);
        let again = again.build().unwrap();
        assert!(!stored(&again, &key).await.is_empty(), "{levels}");
        again.session(&key).await.unwrap().unwrap();
    }
}

#[test]
fn arguments_that_are_no_object_cannot_be_read() {
    let part = json!({"functionCall": {"name": "t", "args": [1]}});
    let candidate = json!({"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"});
    let error = Response::from_generate_content(json!({"candidates": [candidate]})).unwrap_err();
    assert!(!error.message().is_empty());
}

#[tokio::test]
async fn a_call_id_that_repeats_in_one_turn_answers_each_call() {
    let both = [call_with_id("c", "echo", json!({"n": 1})), call_with_id("c", "echo", json!({"n": 2}))];
    let model = ScriptedModel::new("m").response(calls(both)).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo())).await;
    assert_eq!(seen.responses(), [json!({"n": 1}), json!({"n": 2})]);
    seen.assert_finished();
}

#[tokio::test]
async fn a_call_that_a_stream_repeats_is_made_once() {
    let piece = || Chunk::Delta(calls([call_with_id("c", "echo", json!({"n": 1}))]));
    let model = ScriptedModel::new("m").chunks([piece(), piece()]).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo())).await;
    assert_eq!(seen.responses(), [json!({"n": 1})]);
}

#[tokio::test]
async fn a_call_id_that_repeats_over_turns_belongs_to_the_nearest_call() {
    let call = |n: u32| calls([call_with_id("c", "echo", json!({"n": n}))]);
    let model =
        ScriptedModel::new("m").recorded().response(call(1)).text("one").response(call(2)).text("two");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(echo())).await;
    read(runner.run(&key, "first")).await.assert_finished();
    let seen = read(runner.run(&key, "second")).await;
    assert_eq!(seen.responses(), [json!({"n": 2})]);
    let last = model.requests().pop().unwrap();
    let answers: Vec<_> = last.contents.iter().flat_map(|content| content.responses()).collect();
    let answers: Vec<_> = answers.iter().map(|one| one.response.as_ref().unwrap()["n"].clone()).collect();
    assert_eq!(answers, [1, 2]);
}

#[tokio::test]
async fn a_model_that_never_stops_calling_ends_at_the_limit() {
    let call = || Response::new(Content::model(Part::call(FunctionCall::new("echo", Default::default()))));
    let model = ScriptedModel::from_fn("m", move |_| vec![Ok(Chunk::Complete(call()))]);
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    let limits = RunLimits { model_calls: 3, ..RunLimits::default() };
    let seen = read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::ModelCallLimit, "MODEL_CALL_LIMIT"));
    assert_eq!(seen.responses().len(), 3);
    let last = stored(&runner, &key).await.pop().unwrap();
    assert_eq!((last.author(), last.error_code()), ("a", Some("MODEL_CALL_LIMIT")));
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
}

#[tokio::test]
async fn a_limit_of_zero_model_calls_is_no_limit() {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    let limits = RunLimits { model_calls: 0, ..RunLimits::default() };
    read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await.assert_finished();
}

fn stopped(mut response: Response) -> Response {
    response.meta_mut().finish_reason = Some("STOP".into());
    response
}

#[tokio::test]
async fn a_model_that_stops_without_an_answer_gives_an_error_event() {
    let thought = Response::new(Content::model(Part::thought("hm")));
    let blank = Response::text(" \n");
    for response in [stopped(thought), stopped(blank), stopped(Response::default())] {
        let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").response(response))).await;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        let stored = stored_answers(&runner, &key).await;
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].error_code(), Some("MODEL_RETURNED_NO_CONTENT"));
    }
}

#[tokio::test]
async fn a_model_that_gives_nothing_at_all_ends_the_run_without_an_event() {
    let silent = [
        ScriptedModel::new("m").chunks([]),
        ScriptedModel::new("m").chunks([Chunk::Complete(Response::default())]),
    ];
    for model in silent {
        for streaming in [false, true] {
            let (runner, key) = begin(LlmAgent::new("a").model(model.clone().chunks([]))).await;
            let seen =
                read(runner.run_with(&key, "hi", RunConfig { streaming, ..RunConfig::default() })).await;
            seen.assert_finished();
            assert!(seen.events.is_empty());
        }
    }
}

#[tokio::test]
async fn a_model_that_fails_before_the_first_chunk_fails_the_run() {
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").fail("no power"))).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.error.as_ref().unwrap().message(), seen.code()), ("no power", "MODEL_FAILED"));
    let stored = stored_answers(&runner, &key).await;
    assert_eq!(stored.len(), 1);
    assert_eq!((stored[0].error_code(), stored[0].error_message()), (Some("MODEL_FAILED"), Some("no power")));
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_previews_and_no_half_message() {
    let model = ScriptedModel::new("m").recorded().break_off(["Hel", "lo"]).text("again");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone())).await;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "hi", config)).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::StreamCut, "STREAM_CUT"));
    let previews: Vec<_> = seen.partial().iter().map(|event| event.text()).collect();
    assert_eq!(previews, ["Hel", "lo"]);
    let answers = stored_answers(&runner, &key).await;
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].text().as_str(), answers[0].error_code()), ("", Some("STREAM_CUT")));
    // The next turn goes on as if the half message had never been.
    read(runner.run(&key, "still there?")).await.assert_finished();
    assert_eq!(said(&model.requests()[1]), ["hi", "still there?"]);
}

#[tokio::test]
async fn a_model_whose_last_item_is_a_preview_was_cut() {
    let preview = Response { partial: Some(true), ..Response::text("Hel") };
    let model = ScriptedModel::new("m").chunks([Chunk::Complete(preview)]);
    let (runner, key) = begin(LlmAgent::new("a").model(model)).await;
    let seen = read(runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() })).await;
    assert_eq!(seen.kind(), ErrorKind::StreamCut);
}

#[tokio::test]
async fn a_session_that_does_not_exist_is_an_error_everywhere() {
    let runner = Runner::new("app", LlmAgent::new("a").model(fine())).unwrap();
    let key = SessionKey::new("app", "ann", "nowhere").unwrap();
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::SessionNotFound, "SESSION_NOT_FOUND"));
    assert_eq!(runner.rewind(&key, &"e-1".into()).await.unwrap_err().kind(), ErrorKind::SessionNotFound);
    runner.delete_session(&key).await.unwrap();
}

#[tokio::test]
async fn a_session_cannot_be_made_twice_or_for_nobody() {
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    let again = runner.sessions().create(NewSession::new(key)).await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(runner.create_session("").await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_message_without_parts_or_with_a_call_is_refused_and_not_stored() {
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    let call = Content::user(Part::call(FunctionCall::new("echo", Default::default())));
    for message in [Content::new(Role::User, []), call] {
        assert_eq!(read(runner.run(&key, message)).await.kind(), ErrorKind::InvalidInput);
    }
    assert!(log(&runner, &key).await.is_empty());
}

#[tokio::test]
async fn a_message_is_the_users_whatever_its_role_says() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone())).await;
    read(runner.run(&key, Content::model("hi"))).await.assert_finished();
    assert_eq!(model.requests()[0].contents.get(0).unwrap().role, Some(Role::User));
}

#[tokio::test]
async fn a_preview_appended_by_hand_changes_nothing() {
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    let mut session = runner.sessions().get(&key, Default::default()).await.unwrap().unwrap();
    let mut event = Event::new("r".into(), Source::user()).with_content(Content::user("half"));
    event.partial = Some(true);
    event.actions_mut().set_state("k", 1);
    session.append(runner.sessions().as_ref(), event).await.unwrap();
    assert!(session.events.is_empty() && session.state.get("k").is_none());
    assert!(log(&runner, &key).await.is_empty());
    assert_eq!(state(&runner, &key).await, json!({}));
}

#[tokio::test]
async fn a_state_key_with_an_unknown_prefix_is_the_sessions() {
    let model = ScriptedModel::new("m").text("ok");
    let agent = LlmAgent::new("a").model(model).before_agent(|cx| {
        Box::pin(async move {
            cx.set_state("sys:x", 1);
            Ok(None)
        })
    });
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(state(&runner, &key).await, json!({"sys:x": 1}));
    assert!(runner.sessions().user_state("app", "ann").await.unwrap().is_empty());
}

fn panicking() -> Vec<FunctionTool> {
    let later = FunctionTool::new("t", "", |_: Value| async {
        tokio::task::yield_now().await;
        if true {
            panic!("ouch");
        }
        Ok(Value::Null)
    });
    let at_once = FunctionTool::new("t", "", |_: Value| {
        if true {
            panic!("ouch");
        }
        async { Ok(Value::Null) }
    });
    let blocking = FunctionTool::blocking("t", "", |_: Value| -> Result<Value, ToolError> { panic!("ouch") });
    vec![later, at_once, blocking]
}

#[tokio::test]
async fn a_tool_that_panics_is_a_tool_that_failed() {
    for tool in panicking() {
        let seen = call_once(tool, "t", json!({}), ToolErrors::ToModel).await;
        let error = seen.tool_error();
        assert!(
            error.contains("panicked") && !error.contains("ouch"),
            "what it fell over stays inside: {error}"
        );
        seen.assert_finished();
    }
    for tool in panicking() {
        let seen = call_once(tool, "t", json!({}), ToolErrors::Fail).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Panic, "PANIC"));
    }
}

fn slow() -> FunctionTool {
    FunctionTool::new("slow", "", |_: Value| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(Value::Null)
    })
}

#[tokio::test]
async fn a_tool_that_takes_too_long_is_stopped() {
    let limit = Duration::from_millis(20);
    let seen = call_once(slow().timeout(limit), "slow", json!({}), ToolErrors::ToModel).await;
    assert_eq!(seen.tool_error(), "tool `slow` took longer than 0.02 s and was stopped");
    seen.assert_finished();
    let seen = call_once(slow().timeout(limit), "slow", json!({}), ToolErrors::Fail).await;
    assert_eq!(seen.code(), "TIMEOUT");
    // Without a limit of its own, the run's counts.
    let model = ScriptedModel::new("m").call("slow", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(slow())).await;
    let limits = RunLimits { tool_time: limit, ..RunLimits::default() };
    let seen = read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await;
    assert!(seen.tool_error().contains("took longer"));
}

#[tokio::test]
async fn a_stale_reading_cannot_append_and_stays_as_it_was() {
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    let mut stale = runner.sessions().get(&key, Default::default()).await.unwrap().unwrap();
    read(runner.run(&key, "hi")).await.assert_finished();
    let before = log(&runner, &key).await;
    let mut event = Event::new("r".into(), Source::user()).with_content(Content::user("late"));
    event.actions_mut().set_state("k", 1);
    let error = stale.append(runner.sessions().as_ref(), event).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleSession);
    assert_eq!(log(&runner, &key).await, before);
    assert_eq!((stale.state.get("k"), stale.events.len()), (None, 0));
}

/// An agent that waits until it is cancelled.
fn waiting() -> impl umbel::Agent {
    agent_fn("waiting", |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(Content::model("one moment"))).await?;
            run.flush().await?;
            run.cancel_token().guard(std::future::pending::<()>()).await
        })
    })
}

#[tokio::test]
async fn a_session_that_a_run_holds_takes_no_append_and_no_second_run() {
    use futures::StreamExt;
    let (runner, key) = begin(waiting()).await;
    let mut first = runner.run(&key, "hi");
    first.next().await.unwrap().unwrap();
    let mut session = runner.sessions().get(&key, Default::default()).await.unwrap().unwrap();
    let event = Event::new("r".into(), Source::user()).with_content(Content::user("x"));
    let error = session.append(runner.sessions().as_ref(), event).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionBusy);
    let second = read(runner.run(&key, "me too")).await;
    assert_eq!((second.kind(), second.code()), (ErrorKind::SessionBusy, "SESSION_BUSY"));
    assert_eq!(runner.rewind(&key, first.id()).await.unwrap_err().kind(), ErrorKind::SessionBusy);
    first.cancel();
    assert_eq!(read(first).await.outcome, Outcome::Cancelled);
    assert_eq!(stored(&runner, &key).await.len(), 2);
}

#[tokio::test]
async fn a_second_run_can_wait_for_the_first() {
    let slow = FunctionTool::new("slow", "", |_: Value| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Value::Null)
    });
    let model = ScriptedModel::new("m").recorded().call("slow", json!({})).text("one").text("two");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(slow)).await;
    let config = RunConfig { wait_for_session: Duration::from_secs(5), ..RunConfig::default() };
    let first = read(runner.run(&key, "first"));
    let second = read(runner.run_with(&key, "second", config));
    let (first, second) = tokio::join!(first, second);
    first.assert_finished();
    second.assert_finished();
    assert_eq!(second.texts(), [("a".into(), "two".into())]);
    assert_eq!(said(&model.requests()[2]).last().unwrap(), "second");
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished, Outcome::Finished]);
}

#[tokio::test]
async fn a_run_that_waits_in_vain_is_refused() {
    use futures::StreamExt;
    let (runner, key) = begin(waiting()).await;
    let mut first = runner.run(&key, "hi");
    first.next().await.unwrap().unwrap();
    let config = RunConfig { wait_for_session: Duration::from_millis(30), ..RunConfig::default() };
    assert_eq!(read(runner.run_with(&key, "me too", config)).await.kind(), ErrorKind::SessionBusy);
}

#[tokio::test]
async fn an_answer_to_nothing_is_left_out_of_the_request() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone())).await;
    read(runner.run(&key, answer("never", "echo", json!({"x": 1})))).await.assert_finished();
    assert!(model.requests()[0].contents.iter().all(|content| !content.has_responses()));
}

fn refused(agent: impl umbel::Agent + 'static) -> Error {
    Runner::new("app", agent).unwrap_err()
}

#[test]
fn names_of_agents_must_be_usable_and_unique() {
    let agent = |name: &str| LlmAgent::new(name).model(fine());
    for bad in [agent("user"), agent(""), agent("a").sub_agent(agent("a"))] {
        assert_eq!(refused(bad).kind(), ErrorKind::Build);
    }
    let twins = Sequential::new("s").agent(agent("x")).agent(agent("x"));
    assert!(refused(twins).message().contains("two agents are named `x`"));
}

#[tokio::test]
async fn an_agent_without_a_model_uses_that_of_the_agent_above_it() {
    assert_eq!(refused(LlmAgent::new("a")).kind(), ErrorKind::Build);
    assert!(refused(Sequential::new("s").agent(LlmAgent::new("a"))).message().contains(".model("));
    let model = ScriptedModel::new("m").call("transfer_to_agent", json!({"agent_name": "b"})).text("from b");
    let seen = run_once(LlmAgent::new("a").model(model).sub_agent(LlmAgent::new("b"))).await;
    assert_eq!(seen.texts(), [("b".into(), "from b".into())]);
}

#[test]
fn an_output_schema_that_is_none_cannot_be_built() {
    let error = refused(LlmAgent::new("a").model(fine()).output_schema(json!({"type": 7})));
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.message().contains("output schema"), "{error}");
}

#[test]
fn a_processor_that_does_not_exist_cannot_be_moved() {
    LlmAgent::new("a").processors(changed(|processors| {
        let error = processors.remove("nope").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build);
        assert!(error.message().contains("basic, auth, confirmation"), "{error}");
    }));
}
