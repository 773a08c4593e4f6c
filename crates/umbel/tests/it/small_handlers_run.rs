//! The small handlers and the helpers of `with`, in whole runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use umbel::handlers::{
    EventFilter, GlobalInstruction, ReflectRetry, TodoList, ToolErrorHandler, ToolSelect, WRITE_TODOS,
};
use umbel::{
    Content, Error, ErrorKind, FunctionTool, LlmAgent, Model, Outcome, Part, RunConfig, Runner,
    RunnerBuilder, ScriptedModel, Step, ToolError, ToolErrors, ToolItem, ToolOutput, ToolSpec, ToolValue,
    template, text, with,
};

use crate::support::{
    Seen, call_with_id, calls, echo, fine, read, said, state, stored_answers, with_session,
};

/// A tool that fails as often as said, then gives its arguments back.
fn failing(times: u32) -> FunctionTool {
    let left = Arc::new(AtomicU32::new(times));
    FunctionTool::new("search", "Looks something up.", move |args: Value| {
        let left = left.clone();
        async move {
            match left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => Err(ToolError::new("no such row")),
                Err(_) => Ok(args),
            }
        }
    })
}

/// A tool that gives news and then ends so.
fn streaming(end: fn() -> Result<ToolItem, ToolError>) -> FunctionTool {
    let spec = ToolSpec::new("search", "", json!({"type": "object"}));
    FunctionTool::raw(spec, move |_, _| {
        let items = vec![Ok(ToolItem::Progress(json!({"news": 1}))), end()];
        Box::pin(async move { Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items)))) })
    })
}

fn searching(times: u32) -> ScriptedModel {
    (0..times)
        .fold(ScriptedModel::new("m").recorded(), |model, _| model.call("search", json!({"q": 1})))
        .text("done")
}

fn agent(model: impl Model + 'static) -> LlmAgent {
    LlmAgent::new("guide").model(model)
}

async fn go(builder: RunnerBuilder) -> Seen {
    let (runner, key) = with_session(builder.build().unwrap()).await;
    read(runner.run(&key, "hi")).await
}

fn streamed() -> RunConfig {
    RunConfig { streaming: true, ..RunConfig::default() }
}

#[tokio::test]
async fn a_model_reflects_on_failures_until_the_tool_works() {
    let model = searching(3);
    let agent = agent(model.clone()).tool(failing(2)).handler(ReflectRetry::new());
    let seen = go(Runner::builder("app", agent)).await;
    seen.assert_finished();
    let answers = seen.responses();
    assert_eq!((&answers[0]["attempt"], &answers[1]["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(answers[1]["guidance"], text::reflect("search", 2, 3));
    assert_eq!(answers[2], json!({"q": 1}));
    let told = model.requests()[1].contents.last().unwrap().responses().next().unwrap().response.clone();
    assert_eq!(told.map(Value::Object), Some(answers[0].clone()));
}

#[tokio::test]
async fn a_tool_that_fails_too_often_fails_the_run_whatever_the_policy_or_the_model_does_without_it() {
    let reflecting =
        |reflect: ReflectRetry| agent(searching(3)).tool(failing(9)).handler(reflect.max_retries(1));
    let seen = go(Runner::builder("app", reflecting(ReflectRetry::new()))).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"));
    assert_eq!(seen.responses().len(), 1);
    let seen = go(Runner::builder("app", reflecting(ReflectRetry::new().stop_when_exceeded()))).await;
    seen.assert_finished();
    assert_eq!(seen.responses()[2]["guidance"], text::reflect_exceeded("search", 1));
}

#[tokio::test]
async fn a_streamed_result_that_breaks_off_is_reflected_on_and_its_news_are_shown() {
    let tool = streaming(|| Err(ToolError::new("cut")));
    let agent = agent(searching(1)).tool(tool).handler(ReflectRetry::new());
    let seen = go(Runner::builder("app", agent).config(streamed())).await;
    seen.assert_finished();
    assert_eq!(seen.responses()[0]["error"], "cut");
    assert!(seen.partial().iter().any(|event| event.responses().next().is_some()));
}

#[tokio::test]
async fn unknown_tools_are_reflected_on_too() {
    let agent = agent(searching(1)).tool(echo()).handler(ReflectRetry::new());
    let seen = go(Runner::builder("app", agent)).await;
    seen.assert_finished();
    assert_eq!(seen.responses()[0]["attempt"], 1);
    assert_eq!(seen.responses()[0]["error"], text::tool_not_found("search", &["echo"]));
}

#[tokio::test]
async fn a_tool_that_a_person_must_agree_to_asks_through_reflection() {
    let tool = failing(0).confirm(umbel::Confirm::Always);
    let agent = agent(searching(1)).tool(tool).handler(ReflectRetry::new());
    let seen = go(Runner::builder("app", agent)).await;
    assert!(matches!(seen.outcome, Outcome::Interrupted { .. }), "{:?}", seen.outcome);
    assert_eq!(seen.tool_error(), text::NEEDS_CONFIRMATION);
}

#[tokio::test]
async fn readers_see_less_and_the_log_has_it_all() {
    let parts = [Part::thought("hm"), call_with_id("k1", "search", json!({}))];
    let model = ScriptedModel::new("m").recorded().response(calls(parts)).stream(["do", "ne"]);
    let filter = EventFilter::new().hide_thoughts().hide_calls().hide_responses_of(["search"]).hide_partial();
    let agent = agent(model.clone()).tool(failing(0)).handler(filter);
    let (runner, key) = with_session(Runner::builder("app", agent).config(streamed()).build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    seen.assert_finished();
    assert_eq!(seen.texts(), [("guide".to_owned(), "done".to_owned())]);
    assert_eq!(seen.events.len(), 1);
    let stored = stored_answers(&runner, &key).await;
    assert_eq!(stored.len(), 3);
    assert_eq!(stored[0].content.as_ref().unwrap().parts.len(), 2);
    assert_eq!(model.requests()[1].contents.last().unwrap().responses().count(), 1);
}

#[tokio::test]
async fn a_runners_filter_hides_one_of_its_agents() {
    let team = umbel::Sequential::new("team")
        .agent(LlmAgent::new("critic").model(fine()))
        .agent(LlmAgent::new("guide").model(fine()));
    let filter = EventFilter::new().hide_authors(["critic"]);
    let seen = go(Runner::builder("app", team).handler(filter)).await;
    assert_eq!(seen.texts(), [("guide".to_owned(), "fine".to_owned())]);
}

#[tokio::test]
async fn all_agents_of_a_runner_are_told_the_same_first() {
    let (one, two) = (fine(), fine());
    let team = umbel::Sequential::new("team")
        .agent(LlmAgent::new("one").model(one.clone()).instruction("You are one."))
        .agent(LlmAgent::new("two").model(two.clone()).instruction("You are two."));
    let builder = Runner::builder("app", team).handler(GlobalInstruction::new(template("Speak {language}.")));
    let runner = builder.handler(GlobalInstruction::new("Keep {braces}.")).build().unwrap();
    let language = crate::support::object(json!({"language": "Latin"}));
    let key = runner.create_session_with("ann", "s", language).await.unwrap().key;
    read(runner.run(&key, "hi")).await.assert_finished();
    for (model, own) in [(one, "You are one."), (two, "You are two.")] {
        let told = model.requests()[0].instruction.text();
        assert!(told.starts_with("Keep {braces}.\n\nSpeak Latin.\n\n"), "{told}");
        assert!(told.contains(own), "{told}");
    }
}

#[tokio::test]
async fn with_a_strict_policy_chosen_tool_errors_are_told_and_others_fail_the_run() {
    let strict = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    let told = ToolErrorHandler::when(|_, error| error.message() == "no such row");
    let lenient = agent(searching(1)).tool(failing(1)).handler(told.clone());
    let seen = go(Runner::builder("app", lenient).config(strict.clone())).await;
    seen.assert_finished();
    assert_eq!(seen.tool_error(), "no such row");
    let tool = streaming(|| Err(ToolError::new("something else")));
    let seen = go(Runner::builder("app", agent(searching(1)).tool(tool).handler(told)).config(strict)).await;
    assert_eq!(seen.error.as_ref().map(Error::message), Some("something else"));
}

#[tokio::test]
async fn a_run_keeps_a_list_of_tasks_that_its_session_remembers() {
    let todos = json!([{"content": "a", "status": "completed"}]);
    let model = ScriptedModel::new("m").recorded().call(WRITE_TODOS, json!({"todos": todos})).text("done");
    let (runner, key) =
        with_session(Runner::new("app", agent(model.clone()).handler(TodoList::new())).unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(state(&runner, &key).await, json!({"todos": todos}));
    assert!(model.requests()[0].instruction.text().starts_with(text::TODO_PROMPT));
}

#[tokio::test]
async fn a_tool_that_was_not_selected_is_called_all_the_same() {
    let small = ScriptedModel::new("small").recorded().text(r#"{"tools": []}"#);
    let model = searching(1);
    let agent = agent(model.clone()).tool(failing(0)).handler(ToolSelect::new().model(small.clone()));
    let seen = go(Runner::builder("app", agent)).await;
    seen.assert_finished();
    assert_eq!(seen.responses(), [json!({"q": 1})]);
    assert!(model.requests().iter().all(|request| request.tools.is_empty()));
    assert_eq!(small.requests().len(), 1, "the message stayed the same");
}

#[tokio::test]
async fn selecting_tools_counts_as_a_model_call() {
    let small = ScriptedModel::new("small").text(r#"{"tools": []}"#);
    let agent = agent(fine()).tool(echo()).handler(ToolSelect::new().model(small));
    let limits = umbel::RunLimits { model_calls: 1, ..umbel::RunLimits::default() };
    let config = RunConfig { limits, ..RunConfig::default() };
    assert_eq!(go(Runner::builder("app", agent).config(config)).await.kind(), ErrorKind::ModelCallLimit);
}

#[tokio::test]
async fn helpers_change_what_the_model_is_told_and_shown_and_what_can_be_called() {
    let model = searching(1);
    let agent = agent(model.clone())
        .instruction("Own.")
        .tool(failing(0))
        .handler(with::instruction("More."))
        .handler(with::instruction_fn(|_, instruction| {
            instruction.prepend("first", "First.");
            Ok(())
        }))
        .handler(with::tools([echo()]))
        .handler(with::remove_tools(["search"]));
    let seen = go(Runner::builder("app", agent)).await;
    seen.assert_finished();
    let request = &model.requests()[0];
    let told = request.instruction.text();
    assert!(told.starts_with("First.\n\nOwn.\n\nMore."), "{told}");
    let names: Vec<&str> = request.tools.specs().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["echo"]);
    assert_eq!(seen.tool_error(), text::tool_not_found("search", &["echo"]));
}

#[tokio::test]
async fn o6_the_answer_of_a_tool_is_the_agents_if_the_last_word_says_so() {
    let direct = |on: bool| {
        let agent = agent(searching(1)).tool(failing(0)).handler(with::return_directly(["search"]));
        if on { agent } else { agent.handler(with::return_directly_off(["search"])) }
    };
    let seen = go(Runner::builder("app", direct(true))).await;
    assert_eq!((seen.texts(), seen.responses().len()), (Vec::new(), 1));
    let seen = go(Runner::builder("app", direct(false))).await;
    assert_eq!(seen.texts(), [("guide".to_owned(), "done".to_owned())]);
}

#[tokio::test]
async fn helpers_see_the_history_and_the_response() {
    let model = ScriptedModel::new("m").recorded().text("one");
    let agent = agent(model.clone())
        .handler(with::before_agent(|turn| {
            Box::pin(async move {
                turn.input = Some(Arc::new(Content::user("hello")));
                Ok(Step::Continue)
            })
        }))
        .handler(with::before_model(|turn| {
            Box::pin(async move {
                turn.history.push(Content::user("and more"));
                Ok(Step::Continue)
            })
        }))
        .handler(with::after_model(|turn| {
            Box::pin(async move {
                let said = turn.response.as_ref().and_then(|r| r.content.as_ref()).map(|c| c.text());
                turn.response = Some(umbel::Response::text(format!("{} two", said.unwrap_or_default())));
                Ok(Step::Continue)
            })
        }));
    let seen = go(Runner::builder("app", agent)).await;
    assert_eq!(seen.texts(), [("guide".to_owned(), "one two".to_owned())]);
    assert_eq!(said(&model.requests()[0]), ["hello", "and more"]);
}

#[tokio::test]
async fn o3_a_runners_wrapper_is_outside_an_agents() {
    let mark = |word: &'static str| {
        move |value: Value| json!(format!("{word}({})", value.as_str().unwrap_or_default()))
    };
    let wrapping = move |word: &'static str| {
        with::global_tool_wrapper(move |call, next| {
            Box::pin(async move {
                let ToolOutput::Value(value) = next.call(call).await? else { panic!("a stream") };
                Ok(mark(word)(value.value).into())
            })
        })
    };
    let tool = FunctionTool::new("search", "", |_: Value| async { Ok("x") });
    let inner = with::tool_wrapper(move |call, next| {
        Box::pin(async move {
            let ToolOutput::Value(value) = next.call(call).await? else { panic!("a stream") };
            Ok(mark("agent")(value.value).into())
        })
    });
    let builder = Runner::builder("app", agent(searching(1)).tool(tool).handler(inner));
    let seen = go(builder.handler(wrapping("runner"))).await;
    assert_eq!(seen.responses(), [json!({"result": "runner(agent(x))"})]);
}

#[tokio::test]
async fn h6_a_stream_wrapper_maps_news_and_result_of_a_streamed_tool() {
    let tool = streaming(|| Ok(ToolItem::Done(ToolValue::from(json!({"n": 2})))));
    let wrap = with::stream_tool_wrapper(|call, items| {
        let name = call.name().to_owned();
        with::map_tool_stream(items, move |value| json!({"from": name, "said": value}))
    });
    let agent = agent(searching(1)).tool(tool).handler(wrap);
    let seen = go(Runner::builder("app", agent).config(streamed())).await;
    assert_eq!(seen.responses(), [json!({"from": "search", "said": {"n": 2}})]);
    let news: Vec<Value> = crate::support::responses(&seen.partial());
    assert_eq!(news, [json!({"from": "search", "said": {"news": 1}})]);
}
