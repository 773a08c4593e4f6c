//! Handlers from closures: `with::…`.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    AgentPlan, AgentTurn, Content, Context, Error, ErrorKind, Extensions, FunctionTool, Handler, Hooks,
    ModelTurn, NextTool, Object, Response, Run, Step, Tool, ToolCall, ToolContext, ToolEnd, ToolError,
    ToolItem, ToolOutput, ToolResult, ToolStream, ToolValue, Transcript, Work, provided, template, with,
};

use crate::support::Notes;

/// What a handler makes of a turn.
async fn planned(handlers: &[&dyn Handler], plan: AgentPlan) -> AgentPlan {
    let cx = Context::new(Run::detached(Extensions::new()).unwrap());
    let mut turn = AgentTurn::new(&cx, plan);
    for handler in handlers {
        assert_eq!(handler.hooks(), Hooks::BEFORE_AGENT);
        assert_eq!(handler.before_agent(&mut turn).await.unwrap(), Step::Continue);
    }
    turn.plan
}

fn words(plan: &AgentPlan) -> Vec<String> {
    plan.instruction.parts().iter().map(|part| format!("{:?}", part.words)).collect()
}

fn names(plan: &AgentPlan) -> Vec<&str> {
    plan.tools.iter().map(|meta| meta.tool.spec().name.as_str()).collect()
}

fn tool(name: &str) -> FunctionTool {
    FunctionTool::new(name, "", |args: Value| async move { Ok(args) })
}

fn having(tools: &[&str]) -> AgentPlan {
    let mut plan = AgentPlan::default();
    for name in tools {
        plan.add_tool(Arc::new(tool(name)));
    }
    plan
}

/// What stands at the centre of an onion.
struct End<F>(F);

impl<F: Fn(ToolCall<'_>) -> ToolResult + Send + Sync> ToolEnd for End<F> {
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult> {
        Work::done((self.0)(call))
    }
}

async fn called(
    layers: Vec<Arc<dyn Handler>>,
    end: impl Fn(ToolCall<'_>) -> ToolResult + Send + Sync,
) -> ToolResult {
    let cx = ToolContext::detached("search").unwrap();
    let call = ToolCall::new(&cx, None, Arc::new(Object::new()));
    NextTool::new(&layers, &End(end)).call(call).await
}

fn pieces(items: Vec<Result<ToolItem, ToolError>>) -> ToolOutput {
    ToolOutput::Stream(Box::pin(futures::stream::iter(items)))
}

fn value(output: ToolOutput) -> ToolValue {
    let ToolOutput::Value(value) = output else { panic!("a stream") };
    *value
}

async fn items(output: ToolOutput) -> Vec<Result<ToolItem, ToolError>> {
    let ToolOutput::Stream(items) = output else { panic!("a value") };
    items.collect().await
}

#[tokio::test]
async fn g3_instructions_are_added_in_order_with_their_kind_of_words() {
    let one = with::instruction("Be polite.");
    let two = with::instruction(template("Hello {name}"));
    let three = with::instruction(provided(|_| Box::pin(async { Ok(String::new()) })));
    let plan = planned(&[&one, &two, &three], AgentPlan::default()).await;
    assert_eq!(words(&plan), ["\"Be polite.\"", "template(\"Hello {name}\")", "provided(…)"]);
    assert!(plan.instruction.parts().iter().all(|part| part.source == "with::instruction"));
}

#[tokio::test]
async fn g3_o4_an_instruction_can_be_put_before_replaced_and_taken_away() {
    let first = with::instruction("a");
    let before = with::instruction_fn(|run, instruction| {
        instruction.prepend("clock", format!("run {}", run.id()));
        Ok(())
    });
    let plan = planned(&[&first, &before], AgentPlan::default()).await;
    assert_eq!(words(&plan), ["\"run run\"", "\"a\""]);
    let replace = with::instruction_fn(|_, instruction| {
        instruction.replace("r", "only this");
        Ok(())
    });
    let after = with::instruction("and this");
    let plan = planned(&[&first, &before, &replace, &after], AgentPlan::default()).await;
    assert_eq!(words(&plan), ["\"only this\"", "\"and this\""]);
}

#[tokio::test]
async fn o5_a_later_handler_undoes_an_earlier_one_whatever_helpers_they_are() {
    let add = with::tools([tool("a"), tool("b")]);
    let remove = with::remove_tools(["a", "not there"]);
    assert_eq!(names(&planned(&[&add, &remove], having(&["x"])).await), ["x", "b"]);
    assert_eq!(names(&planned(&[&remove, &add], having(&["x"])).await), ["x", "a", "b"]);
    let clear = with::tools_fn(|_, tools| {
        tools.retain(|_| false);
        Ok(())
    });
    assert!(planned(&[&add, &clear], having(&["x"])).await.tools.is_empty());
    assert_eq!(names(&planned(&[&clear, &add], having(&["x"])).await), ["a", "b"]);
}

#[tokio::test]
async fn o8_tools_of_several_types_are_added_and_one_of_a_known_name_takes_its_place() {
    let tools: [Arc<dyn Tool>; 2] = [Arc::new(tool("b")), Arc::new(umbel::ExitLoop)];
    let plan = planned(&[&with::tools(tools)], having(&["a", "b", "c"])).await;
    assert_eq!(names(&plan), ["a", "b", "c", "exit_loop"]);
}

#[tokio::test]
async fn o6_the_last_word_on_returning_directly_counts() {
    let on = with::return_directly(["a", "b", "not there"]);
    let off = with::return_directly_off(["a"]);
    let direct = |plan: &AgentPlan| plan.tools.iter().map(|meta| meta.return_directly).collect::<Vec<_>>();
    assert_eq!(direct(&planned(&[&on], having(&["a", "b", "c"])).await), [true, true, false]);
    assert_eq!(direct(&planned(&[&on, &off], having(&["a", "b", "c"])).await), [false, true, false]);
    assert_eq!(direct(&planned(&[&off, &on], having(&["a", "b", "c"])).await), [true, true, false]);
}

#[tokio::test]
async fn before_agent_waits_sees_the_whole_turn_and_may_fail() {
    let hook = with::before_agent(|turn| {
        Box::pin(async move {
            tokio::task::yield_now().await;
            turn.plan.generate_mut().temperature = Some(0.5);
            Ok(Step::Respond(Content::model("no")))
        })
    });
    let cx = Context::new(Run::detached(Extensions::new()).unwrap());
    let mut turn = AgentTurn::new(&cx, AgentPlan::default());
    assert_eq!(hook.before_agent(&mut turn).await.unwrap(), Step::Respond(Content::model("no")));
    assert_eq!(turn.plan.generate.temperature, Some(0.5));
    let fails = with::tools_fn(|_, _| Err(Error::new(ErrorKind::Other, "no")));
    assert!(fails.before_agent(&mut turn).await.is_err());
}

#[tokio::test]
async fn before_and_after_model_change_the_history_and_the_response() {
    let before = with::before_model(|turn| {
        Box::pin(async move {
            turn.history.push(Content::user("more"));
            Ok(Step::Continue)
        })
    });
    let after = with::after_model(|turn| {
        Box::pin(async move {
            turn.response = Some(Response::text("other"));
            Ok(Step::Continue)
        })
    });
    assert_eq!((before.hooks(), after.hooks()), (Hooks::BEFORE_MODEL, Hooks::AFTER_MODEL));
    let cx = Context::new(Run::detached(Extensions::new()).unwrap());
    let (mut history, tools) = (Transcript::default(), Arc::default());
    let mut turn = ModelTurn::new(&cx, &mut history, &tools);
    before.before_model(&mut turn).await.unwrap();
    let mut turn = turn.with_response(Response::text("one"));
    after.after_model(&mut turn).await.unwrap();
    assert_eq!(turn.finish().0, Some(Response::text("other")));
    assert_eq!(history.last().map(|content| content.text()).as_deref(), Some("more"));
}

#[tokio::test]
async fn h10_a_wrapper_changes_arguments_and_result_calls_again_or_not_at_all() {
    let twice = with::tool_wrapper(|call, next| {
        Box::pin(async move {
            let _ = next.call(call.clone()).await;
            let args = Object::from_iter([("n".to_owned(), json!(2))]);
            let mut given = value(next.call(call.with_args(args)).await?);
            given.metadata.insert("seen".to_owned(), true.into());
            Ok(ToolOutput::from(given))
        })
    });
    let notes = Notes::default();
    let noted = notes.clone();
    let end = move |call: ToolCall<'_>| {
        noted.add(Value::Object((*call.args).clone()).to_string());
        Ok(json!("done").into())
    };
    let given = value(called(vec![Arc::new(twice)], end).await.unwrap());
    assert_eq!(notes.all(), ["{}", r#"{"n":2}"#]);
    assert_eq!((given.value, given.metadata.get("seen")), (json!("done"), Some(&json!(true))));
    let skips = with::global_tool_wrapper(|_, _| Box::pin(async { Ok(json!("cached").into()) }));
    assert_eq!((skips.name(), skips.hooks()), ("with::global_tool_wrapper", Hooks::WRAP_TOOL));
    let never = |_: ToolCall<'_>| -> ToolResult { panic!("called") };
    assert_eq!(value(called(vec![Arc::new(skips)], never).await.unwrap()).value, json!("cached"));
}

#[tokio::test]
async fn a_stream_wrapper_acts_on_streamed_results_alone() {
    let shout = || {
        Arc::new(with::stream_tool_wrapper(|call, items: ToolStream| {
            let name = call.name().to_owned();
            with::map_tool_stream(items, move |value| json!(format!("{name}: {value}")))
        })) as Arc<dyn Handler>
    };
    let plain = called(vec![shout()], |_| Ok(json!(1).into())).await.unwrap();
    assert_eq!(value(plain).value, json!(1));
    let streamed = |_: ToolCall<'_>| {
        Ok(pieces(vec![Ok(ToolItem::Progress(json!(1))), Ok(ToolItem::Done(json!(2).into()))]))
    };
    let given = items(called(vec![shout()], streamed).await.unwrap()).await;
    let given: Vec<ToolItem> = given.into_iter().map(|item| item.ok().unwrap()).collect();
    let expected =
        [ToolItem::Progress(json!("search: 1")), ToolItem::Done(ToolValue::from(json!("search: 2")))];
    assert_eq!(given, expected);
}

#[tokio::test]
async fn t1_a_mapped_stream_keeps_errors_marks_and_its_last_item() {
    let failed = ToolValue {
        metadata: Object::from_iter([("k".to_owned(), json!(1))]),
        parts: vec!["media".into()],
        ..ToolValue::error("bad")
    };
    let ToolOutput::Stream(inner) = pieces(vec![Ok(ToolItem::Done(failed.clone()))]) else { panic!() };
    let mapped: Vec<_> = with::map_tool_stream(inner, |_| json!("mapped")).collect().await;
    let expected = ToolValue { value: json!("mapped"), ..failed };
    assert!(matches!(mapped.as_slice(), [Ok(ToolItem::Done(value))] if *value == expected), "{mapped:?}");
    let error =
        Error::new(ErrorKind::RateLimited, "later").with_retry_after(std::time::Duration::from_secs(3));
    let ToolOutput::Stream(inner) = pieces(vec![Ok(ToolItem::Progress(json!(1))), Err(error.into())]) else {
        panic!()
    };
    let mapped: Vec<_> = with::map_tool_stream(inner, |value| value).collect().await;
    let Some(Err(error)) = mapped.last() else { panic!("{mapped:?}") };
    assert_eq!(error.error().kind(), ErrorKind::RateLimited);
    assert_eq!(error.error().retry_after(), Some(std::time::Duration::from_secs(3)));
}

#[tokio::test]
async fn tool_logging_tells_of_each_call() {
    let notes = Notes::default();
    let noted = notes.clone();
    let logging =
        with::tool_logging().sink(move |log| noted.add(format!("{} {}", log.tool, log.ending.name())));
    let logging: Arc<dyn Handler> = Arc::new(logging);
    called(vec![logging.clone()], |_| Ok(json!(1).into())).await.unwrap();
    assert!(called(vec![logging], |_| Err(ToolError::new("no"))).await.is_err());
    assert_eq!(notes.all(), ["search success", "search failure"]);
}

umbel::layer_contract!(tool_wrapper: with::tool_wrapper(|call, next| Box::pin(next.call(call))));
umbel::layer_contract!(stream_wrapper: with::stream_tool_wrapper(|_, items| with::map_tool_stream(items, |v| v)));

#[test]
fn helpers_are_handlers_that_threads_share_and_that_borrow_nothing() {
    fn shared<H: Handler + Send + Sync + 'static>(_: &H) {}
    let (name, line) = ("a".to_owned(), "words".to_owned());
    shared(&with::remove_tools([name.as_str()]));
    shared(&with::return_directly(vec![name.as_str()]));
    shared(&with::instruction(line.as_str()));
}
