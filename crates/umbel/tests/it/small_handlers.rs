//! Todo list, tool selection, reflection, event filter, global instruction and tool errors, hook by hook.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::handlers::{
    EventFilter, GlobalInstruction, OnParsingFailure, ReflectRetry, TODOS, TodoList, ToolErrorHandler,
    ToolSelect, WRITE_TODOS,
};
use umbel::{
    AgentPlan, AgentTurn, Chunk, ChunkStream, Content, Context, Error, ErrorKind, Event, Extensions,
    FunctionTool, GenerateConfig, Handler, History, ModelCall, ModelEnd, ModelRequest, ModelTurn, NextModel,
    NextTool, Object, Part, Response, Result, Role, Run, ScriptedModel, Source, Step, ToolCall, ToolChoice,
    ToolContext, ToolEnd, ToolError, ToolItem, ToolOutput, ToolResult, ToolSet, ToolValue, Transcript, Work,
    text,
};

use crate::support::{answer, call_with_id, calls};

fn tool(name: &str) -> FunctionTool {
    FunctionTool::new(name, "", |args: Value| async move { Ok(args) })
}

fn run() -> Run {
    Run::detached(Extensions::new()).unwrap()
}

// ---- todo list

fn todo_plan(handler: &TodoList) -> AgentPlan {
    let mut plan = AgentPlan::default();
    plan.add_tool(Arc::new(tool("f")));
    plan.instruction.push("own", "You are terse.");
    handler.configure(&mut plan).unwrap();
    plan
}

#[test]
fn a_todo_list_adds_its_tool_in_front_and_its_words_behind() {
    let plan = todo_plan(&TodoList::new());
    let names: Vec<&str> = plan.tools.specs().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, [WRITE_TODOS, "f"]);
    let words: Vec<&str> = plan.instruction.parts().iter().map(|part| part.words.text()).collect();
    assert_eq!(words, ["You are terse.", text::TODO_PROMPT]);
    let plan = todo_plan(&TodoList::new().prompt("Keep a list.").description("Writes."));
    assert_eq!(plan.instruction.parts()[1].words.text(), "Keep a list.");
    assert_eq!(plan.tools.get(WRITE_TODOS).unwrap().tool.spec().description, "Writes.");
}

async fn write_todos(args: Value) -> (ToolResult, Option<Value>) {
    let plan = todo_plan(&TodoList::new());
    let cx = ToolContext::detached(WRITE_TODOS).unwrap();
    let args = Arc::new(crate::support::object(args));
    let result = plan.tools.get(WRITE_TODOS).unwrap().tool.call(&cx, args).await;
    (result, cx.state(TODOS))
}

#[tokio::test]
async fn todos_are_written_to_the_state_that_anyone_reads() {
    let todos = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]);
    let (result, state) = write_todos(json!({"todos": todos})).await;
    let ToolOutput::Value(value) = result.unwrap() else { panic!() };
    assert_eq!(value.value, json!(text::todos_written(1, 1, 0)));
    assert_eq!(state, Some(todos));
}

#[tokio::test]
async fn todos_that_do_not_fit_are_not_written() {
    for args in [json!({}), json!({"todos": [{"content": "a", "status": "blocked"}]})] {
        let (result, state) = write_todos(args).await;
        assert_eq!(result.err().unwrap().error().kind(), ErrorKind::InvalidInput);
        assert_eq!(state, None);
    }
}

async fn answered(response: Response) -> Vec<(String, bool)> {
    let cx = Context::new(run());
    let (mut history, tools) = (Transcript::default(), Arc::default());
    let mut turn = ModelTurn::new(&cx, &mut history, &tools).with_response(response);
    assert_eq!(TodoList::new().after_model(&mut turn).await.unwrap(), Step::Continue);
    let (_, answers) = turn.finish();
    answers.into_iter().map(|(call, value)| (call.to_string(), value.is_error)).collect()
}

#[tokio::test]
async fn of_several_writes_in_one_turn_none_is_made_and_other_calls_are_left_alone() {
    let write = |id| call_with_id(id, WRITE_TODOS, json!({"todos": []}));
    let other = call_with_id("k3", "f", json!({}));
    let twice = calls([write("k1"), other.clone(), write("k2")]);
    assert_eq!(answered(twice).await, [("k1".to_owned(), true), ("k2".to_owned(), true)]);
    assert_eq!(answered(calls([write("k1"), other])).await, []);
}

// ---- tool selection

/// Notes which tools a model would have been shown.
struct Shown(std::sync::Mutex<Vec<Vec<String>>>);

impl ModelEnd for Shown {
    fn call<'a>(&'a self, call: ModelCall<'a>) -> Work<'a, Result<ChunkStream<'a>>> {
        let names = call.request.tools.iter().map(|meta| meta.tool.spec().name.to_string()).collect();
        self.0.lock().unwrap().push(names);
        Work::done(Ok(Box::pin(futures::stream::iter([Ok(Chunk::Text("done".to_owned()))]))))
    }
}

fn select_request(tools: &[&str], contents: impl IntoIterator<Item = Content>) -> ModelRequest {
    let mut request = ModelRequest::new("main");
    let mut set = ToolSet::new();
    for name in tools {
        set.add(Arc::new(tool(name)));
    }
    request.tools = Arc::new(set);
    request.contents = contents.into_iter().map(Arc::new).collect::<History>();
    request
}

async fn shown(
    select: &Arc<dyn Handler>,
    run: &Run,
    own: &ScriptedModel,
    request: ModelRequest,
) -> Result<Vec<String>> {
    let cx = Context::new(run.clone());
    let end = Shown(std::sync::Mutex::default());
    let layers = [select.clone()];
    let call = ModelCall { cx: &cx, model: Arc::new(own.clone()), request, extensions: Extensions::new() };
    let chunks: Vec<_> = NextModel::new(&layers, &end).call(call).await?.collect().await;
    assert_eq!(chunks.len(), 1);
    Ok(end.0.lock().unwrap().concat())
}

const FIVE: [&str; 5] = ["t1", "t2", "t3", "t4", "t5"];

fn picks(names: &[&str]) -> ScriptedModel {
    ScriptedModel::new("small").recorded().text(json!({"tools": names}).to_string())
}

#[tokio::test]
async fn a_small_model_picks_tools_once_for_a_message_in_the_agents_order() {
    let small = picks(&["t4", "t2"]);
    let select: Arc<dyn Handler> = Arc::new(ToolSelect::new().model(small.clone()));
    let (run, own) = (run(), ScriptedModel::new("own").recorded());
    let said = || [Content::user("first"), Content::model("ok"), Content::user("second")];
    let request = select_request(&FIVE, said());
    assert_eq!(shown(&select, &run, &own, request.clone()).await.unwrap(), ["t2", "t4"]);
    // The tool has answered: the message is the same, and so are the tools.
    let mut later = request;
    later.contents.push(answer("k1", "t2", json!({"result": 1})));
    assert_eq!(shown(&select, &run, &own, later).await.unwrap(), ["t2", "t4"]);
    let asked = small.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].contents.iter().map(|content| content.text()).collect::<Vec<_>>(), ["second"]);
    let offered = asked[0].output_schema.as_ref().unwrap()["properties"]["tools"]["items"]["enum"].clone();
    assert_eq!(offered, json!(FIVE));
    assert!(own.requests().is_empty());
    // A new message is another matter.
    let small = small.text(r#"{"tools": ["t1"]}"#);
    let request = select_request(&FIVE, [Content::user("third")]);
    assert_eq!(shown(&select, &run, &own, request).await.unwrap(), ["t1"]);
    assert_eq!(small.requests().len(), 2);
}

#[tokio::test]
async fn the_agents_own_model_picks_if_there_is_no_other() {
    let select: Arc<dyn Handler> = Arc::new(ToolSelect::new());
    // Not held to a schema, it puts a fence around its answer.
    let own = ScriptedModel::new("own").stream(["```json\n{\"tools\"", ": [\"t3\"]}\n```"]);
    let request = select_request(&FIVE, [Content::user("find it")]);
    assert_eq!(shown(&select, &run(), &own, request).await.unwrap(), ["t3"]);
}

#[tokio::test]
async fn tools_without_which_an_agent_cannot_end_or_that_are_demanded_are_never_deselected() {
    let mut request = select_request(
        &["t1", "transfer_to_agent", "set_model_response", "finish_task", "forced"],
        [Content::user("x")],
    );
    let forced = Some(ToolChoice::Tool("forced".into()));
    request.config = Arc::new(GenerateConfig { tool_choice: forced, ..GenerateConfig::default() });
    Arc::make_mut(&mut request.tools).add(Arc::new(umbel::PreloadMemory));
    let small = picks(&[]);
    let select: Arc<dyn Handler> = Arc::new(ToolSelect::new().model(small.clone()));
    let names = shown(&select, &run(), &ScriptedModel::new("own").recorded(), request).await.unwrap();
    assert_eq!(names, ["transfer_to_agent", "set_model_response", "finish_task", "forced", "preload_memory"]);
    let offered = small.requests()[0].output_schema.clone().unwrap();
    assert_eq!(offered["properties"]["tools"]["items"]["enum"], json!(["t1"]));
}

#[tokio::test]
async fn without_words_of_the_user_or_tools_to_choose_from_nobody_is_asked() {
    let small = ScriptedModel::new("small").recorded();
    let select: Arc<dyn Handler> = Arc::new(ToolSelect::new().model(small.clone()));
    let own = ScriptedModel::new("own");
    let silent = select_request(&FIVE, [Content::model("hm")]);
    assert_eq!(shown(&select, &run(), &own, silent).await.unwrap(), FIVE);
    let bare = select_request(&[], [Content::user("x")]);
    assert!(shown(&select, &run(), &own, bare).await.unwrap().is_empty());
    assert!(small.requests().is_empty());
}

#[tokio::test]
async fn a_choice_that_cannot_be_read_is_asked_for_again_as_often_as_allowed() {
    let request = || select_request(&FIVE, [Content::user("x")]);
    let own = ScriptedModel::new("own");
    for (then, expected) in [
        (OnParsingFailure::Error, None),
        (OnParsingFailure::NoTools, Some(vec!["t5"])),
        (OnParsingFailure::AllTools, Some(FIVE.to_vec())),
        (OnParsingFailure::Tools(vec!["t2".into(), "gone".into()]), Some(vec!["t2", "t5"])),
    ] {
        let small = ScriptedModel::new("small").recorded().text("junk").text("{}").text("[]");
        let select = ToolSelect::new().model(small.clone()).always_include(["t5"]).max_retries(2);
        let select: Arc<dyn Handler> = Arc::new(select.on_parsing_failure(then));
        let given = shown(&select, &run(), &own, request()).await;
        assert_eq!(small.requests().len(), 3);
        match expected {
            Some(names) => assert_eq!(given.unwrap(), names),
            None => assert_eq!(given.unwrap_err().kind(), ErrorKind::InvalidOutput),
        }
    }
}

#[tokio::test]
async fn a_fallback_selection_holds_for_one_model_call() {
    let cases = [
        (OnParsingFailure::NoTools, vec![]),
        (OnParsingFailure::AllTools, FIVE.to_vec()),
        (OnParsingFailure::Tools(vec!["t2".into()]), vec!["t2"]),
    ];
    for (then, expected) in cases {
        // Two calls are answered with junk, the third is not; the fourth takes the choice of the third.
        let small =
            ScriptedModel::new("small").recorded().text("junk").text("junk").text(r#"{"tools": ["t4"]}"#);
        let select = ToolSelect::new().model(small.clone()).max_retries(0).on_parsing_failure(then.clone());
        let select: Arc<dyn Handler> = Arc::new(select);
        let (run, own) = (run(), ScriptedModel::new("own"));
        for (expected, asked) in [(&expected, 1), (&expected, 2), (&vec!["t4"], 3), (&vec!["t4"], 3)] {
            let request = select_request(&FIVE, [Content::user("x")]);
            assert_eq!(shown(&select, &run, &own, request).await.unwrap(), *expected, "{then:?}");
            assert_eq!(small.requests().len(), asked, "{then:?}");
        }
    }
}

#[tokio::test]
async fn a_selecting_model_that_fails_fails_the_call() {
    let select: Arc<dyn Handler> =
        Arc::new(ToolSelect::new().model(ScriptedModel::new("small").fail("down")));
    let request = select_request(&FIVE, [Content::user("x")]);
    let error = shown(&select, &run(), &ScriptedModel::new("own"), request).await.unwrap_err();
    assert_eq!(error.message(), "down");
}

// ---- reflection and tool errors

/// Gives what it was told to, one after the other.
struct Script(std::sync::Mutex<Vec<ToolResult>>, AtomicUsize);

impl ToolEnd for Script {
    fn call<'a>(&'a self, _call: ToolCall<'a>) -> Work<'a, ToolResult> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Work::done(self.0.lock().unwrap().remove(0))
    }
}

async fn through(layers: &[Arc<dyn Handler>], cx: &ToolContext, result: ToolResult) -> ToolResult {
    let script = Script(std::sync::Mutex::new(vec![result]), AtomicUsize::new(0));
    let call = ToolCall::new(cx, None, Arc::new(Object::new()));
    let result = NextTool::new(layers, &script).call(call).await;
    assert_eq!(script.1.load(Ordering::SeqCst), 1, "these layers never call twice");
    result
}

fn value(result: ToolResult) -> ToolValue {
    let ToolOutput::Value(value) = result.unwrap() else { panic!("a stream") };
    *value
}

fn failed(message: &str) -> ToolResult {
    Err(ToolError::new(message))
}

fn in_run(run: &Run, tool: &str) -> ToolContext {
    ToolContext::new(run.clone(), tool.into(), Some("call".into()), umbel::CallMade::default())
}

#[tokio::test]
async fn a_failure_is_answered_with_guidance_until_there_were_too_many() {
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new().max_retries(2))];
    let run = run();
    let cx = in_run(&run, "search");
    for attempt in 1..=2 {
        let told = value(through(&layers, &cx, failed("no such row")).await);
        assert!(told.is_error);
        assert_eq!(told.value["error"], "no such row");
        assert_eq!(told.value["error_kind"], "TOOL_FAILED");
        assert_eq!((&told.value["attempt"], &told.value["max_attempts"]), (&json!(attempt), &json!(2)));
        assert_eq!(told.value["guidance"], text::reflect("search", attempt, 2));
    }
    // Other tools have counts of their own.
    assert_eq!(value(through(&layers, &in_run(&run, "other"), failed("x")).await).value["attempt"], 1);
    let error = through(&layers, &cx, failed("still no such row")).await.err().unwrap();
    assert_eq!(error.error().kind(), ErrorKind::Handler, "which fails the run");
    assert_eq!(error.error().message(), text::reflect_failed("search", 3, "still no such row"));
}

#[tokio::test]
async fn a_success_sets_the_count_back_and_each_run_counts_anew() {
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new().max_retries(1))];
    let first = run();
    let cx = in_run(&first, "search");
    assert_eq!(value(through(&layers, &cx, failed("x")).await).value["attempt"], 1);
    assert_eq!(value(through(&layers, &cx, Ok(json!("fine").into())).await).value, json!("fine"));
    assert_eq!(value(through(&layers, &cx, failed("x")).await).value["attempt"], 1);
    assert!(through(&layers, &cx, failed("x")).await.is_err());
    assert_eq!(value(through(&layers, &in_run(&run(), "search"), failed("x")).await).value["attempt"], 1);
}

#[tokio::test]
async fn a_global_count_goes_on_in_the_next_run() {
    let layers: [Arc<dyn Handler>; 1] =
        [Arc::new(ReflectRetry::new().max_retries(1).global().stop_when_exceeded())];
    assert_eq!(value(through(&layers, &in_run(&run(), "search"), failed("x")).await).value["attempt"], 1);
    let told = value(through(&layers, &in_run(&run(), "search"), failed("x")).await);
    assert_eq!((&told.value["attempt"], told.is_error), (&json!(2), true));
    assert_eq!(told.value["guidance"], text::reflect_exceeded("search", 1));
}

#[tokio::test]
async fn a_result_that_is_called_a_failure_counts_as_one() {
    let judge = |_: &ToolContext, value: &ToolValue| {
        (value.value["status"] == "failed").then(|| "the job failed".to_owned())
    };
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new().max_retries(1).failure_if(judge))];
    let run = run();
    let cx = in_run(&run, "job");
    let bad = || Ok(json!({"status": "failed"}).into());
    assert_eq!(value(through(&layers, &cx, bad()).await).value["error"], "the job failed");
    let error = through(&layers, &cx, bad()).await.err().unwrap();
    assert_eq!(error.error().message(), text::reflect_failed("job", 2, "the job failed"));
    let good = json!({"status": "done"});
    assert_eq!(value(through(&layers, &cx, Ok(good.clone().into())).await).value, good);
    let own = through(&layers, &cx, Ok(ToolOutput::from(ToolValue::error("the tool says so")))).await;
    assert_eq!(value(own).value["error"], "the tool says so");
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_or_was_rejected_is_no_failure() {
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new())];
    let pending = ToolValue::error("wait for a person");
    let asking = in_run(&run(), "search");
    asking.request_confirmation("may I?", None).unwrap();
    let told = through(&layers, &asking, Ok(ToolOutput::from(pending.clone()))).await;
    assert_eq!(value(told), pending);
    let made = umbel::CallMade {
        confirmation: Some(Box::new(umbel::Answer::reject())),
        ..umbel::CallMade::default()
    };
    let rejected = ToolContext::new(run(), "search".into(), Some("call".into()), made);
    let told = through(&layers, &rejected, Ok(ToolOutput::from(pending.clone()))).await;
    assert_eq!(value(told), pending);
}

#[tokio::test]
async fn with_no_failure_allowed_the_first_one_is_too_many() {
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new().max_retries(0))];
    assert!(through(&layers, &in_run(&run(), "search"), failed("x")).await.is_err());
}

#[tokio::test]
async fn an_outer_reflection_leaves_the_guidance_of_an_inner_one_alone() {
    let layers: [Arc<dyn Handler>; 2] = [
        Arc::new(ReflectRetry::new().failure_if(|_, _| Some("all is bad".to_owned()))),
        Arc::new(ReflectRetry::new()),
    ];
    let told = value(through(&layers, &in_run(&run(), "search"), failed("x")).await);
    assert_eq!((&told.value["error"], &told.value["attempt"]), (&json!("x"), &json!(1)));
}

async fn last_item(result: ToolResult) -> Result<ToolItem, ToolError> {
    let ToolOutput::Stream(items) = result.unwrap() else { panic!("a value") };
    let mut items: Vec<_> = items.collect().await;
    assert!(matches!(items.first(), Some(Ok(ToolItem::Progress(_)))), "news pass");
    items.pop().unwrap()
}

fn streamed(last: Result<ToolItem, ToolError>) -> ToolResult {
    let items = vec![Ok(ToolItem::Progress(json!(0.5))), last];
    Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items))))
}

#[tokio::test]
async fn a_stream_that_fails_ends_in_guidance_and_one_that_succeeds_sets_the_count_back() {
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ReflectRetry::new().max_retries(1))];
    let run = run();
    let cx = in_run(&run, "search");
    let told = last_item(through(&layers, &cx, streamed(Err(ToolError::new("cut")))).await).await;
    let Ok(ToolItem::Done(told)) = told else { panic!("{told:?}") };
    assert_eq!((&told.value["error"], &told.value["attempt"]), (&json!("cut"), &json!(1)));
    let done = ToolItem::Done(json!("fine").into());
    let given = last_item(through(&layers, &cx, streamed(Ok(done.clone()))).await).await;
    assert_eq!(given.ok(), Some(done));
    assert_eq!(value(through(&layers, &cx, failed("x")).await).value["attempt"], 1);
    assert!(last_item(through(&layers, &cx, streamed(Err(ToolError::new("cut")))).await).await.is_err());
}

#[tokio::test]
async fn e4_interrupts_and_cancellations_pass_reflection_and_error_handlers_untouched() {
    let both: [Arc<dyn Handler>; 2] =
        [Arc::new(ReflectRetry::new().stop_when_exceeded()), Arc::new(ToolErrorHandler::when(|_, _| true))];
    for kind in [ErrorKind::Interrupted, ErrorKind::Cancelled] {
        let cx = in_run(&run(), "search");
        let control = || Err(Error::new(kind, "control").into());
        assert_eq!(through(&both, &cx, control()).await.err().unwrap().error().kind(), kind);
        let item = Err(Error::new(kind, "control").into());
        assert_eq!(
            last_item(through(&both, &cx, streamed(item)).await).await.err().unwrap().error().kind(),
            kind
        );
    }
    // What a tool says when its run is told to stop is no failure of the tool.
    let cx = in_run(&run(), "search");
    cx.cancel_token().cancel(umbel::CancelReason::Asked);
    assert_eq!(through(&both, &cx, failed("stopped")).await.err().unwrap().error().message(), "stopped");
}

#[tokio::test]
async fn chosen_tool_errors_are_told_and_others_stay() {
    let layers: [Arc<dyn Handler>; 1] =
        [Arc::new(ToolErrorHandler::when(|_, error| error.kind() == ErrorKind::Timeout))];
    let cx = in_run(&run(), "search");
    let slow = || ToolError::from(Error::new(ErrorKind::Timeout, "too slow"));
    assert_eq!(value(through(&layers, &cx, Err(slow())).await), ToolValue::error("too slow"));
    assert_eq!(through(&layers, &cx, failed("other")).await.err().unwrap().error().message(), "other");
    let told = last_item(through(&layers, &cx, streamed(Err(slow()))).await).await;
    assert_eq!(told.ok(), Some(ToolItem::Done(ToolValue::error("too slow"))));
    assert_eq!(value(through(&layers, &cx, Ok(json!(1).into())).await).value, json!(1));
}

#[tokio::test]
async fn a_function_finds_better_words_for_an_error() {
    let words = |cx: &ToolContext, error: &Error| {
        (error.message() != "secret").then(|| format!("{} is busy", cx.tool_name()))
    };
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(ToolErrorHandler::tell(words))];
    let cx = in_run(&run(), "search");
    assert_eq!(value(through(&layers, &cx, failed("x")).await), ToolValue::error("search is busy"));
    assert!(through(&layers, &cx, failed("secret")).await.is_err());
}

umbel::layer_contract!(reflecting: ReflectRetry::new());
umbel::layer_contract!(reflecting_without_end: ReflectRetry::new().global().stop_when_exceeded());
umbel::layer_contract!(telling_errors: ToolErrorHandler::when(|_, _| true));

// ---- event filter

fn event(author: &str, parts: impl IntoIterator<Item = Part>) -> Event {
    let source = Arc::new(Source::new(author));
    Event::new("run".into(), source).with_content(Content::new(Role::Model, parts))
}

async fn seen(filter: &EventFilter, event: &Event) -> Option<Event> {
    let seen = filter.on_output(&run(), Arc::new(event.clone())).await.unwrap();
    seen.map(Arc::unwrap_or_clone)
}

fn parts(event: &Event) -> usize {
    event.content.as_ref().map_or(0, |content| content.parts.len())
}

#[tokio::test]
async fn previews_and_authors_are_hidden_as_a_whole() {
    let mut piece = event("a", ["x".into()]);
    piece.partial = Some(true);
    let whole = event("a", ["x".into()]);
    let filter = EventFilter::new().hide_partial();
    assert_eq!((seen(&filter, &piece).await, seen(&filter, &whole).await), (None, Some(whole.clone())));
    let filter = EventFilter::new().hide_authors(["critic"]);
    assert_eq!(seen(&filter, &event("critic", ["x".into()])).await, None);
    assert_eq!(seen(&filter, &piece).await, Some(piece));
}

#[tokio::test]
async fn a_predicate_hides_events() {
    let filter = EventFilter::new().hide_if(|run, event| *run.id() == "run" && event.text() == "secret");
    assert_eq!(seen(&filter, &event("a", ["secret".into()])).await, None);
    assert!(seen(&filter, &event("a", ["open".into()])).await.is_some());
}

#[tokio::test]
async fn thoughts_calls_and_responses_are_taken_out_of_what_is_seen() {
    let thinking = event("a", [Part::thought("hm"), "so".into()]);
    let filter = EventFilter::new().hide_thoughts();
    let left = seen(&filter, &thinking).await.unwrap();
    assert_eq!((parts(&left), left.text().as_str()), (1, "so"));
    assert_eq!(seen(&filter, &event("a", [Part::thought("hm")])).await, None);

    let search = call_with_id("k1", "search", json!({}));
    let other = call_with_id("k2", "other", json!({}));
    let calling = event("a", [search, other]);
    assert_eq!(parts(&seen(&EventFilter::new().hide_calls_of(["search"]), &calling).await.unwrap()), 1);
    assert_eq!(seen(&EventFilter::new().hide_calls(), &calling).await, None);
    assert_eq!(seen(&EventFilter::new().hide_responses(), &calling).await, Some(calling));

    let answer = |name| answer("k1", name, json!({"result": 1})).parts[0].clone();
    let answered = event("a", [answer("search"), answer("other")]);
    assert_eq!(parts(&seen(&EventFilter::new().hide_responses_of(["search"]), &answered).await.unwrap()), 1);
    assert_eq!(seen(&EventFilter::new().hide_responses(), &answered).await, None);
    assert_eq!(seen(&EventFilter::new().hide_calls(), &answered).await, Some(answered));
}

#[tokio::test]
async fn what_an_event_does_and_what_it_asks_is_shown_though_its_words_are_hidden() {
    let mut writing = event("a", [call_with_id("k1", "search", json!({}))]);
    writing.actions_mut().set_state("k", 1);
    let left = seen(&EventFilter::new().hide_calls(), &writing).await.unwrap();
    assert_eq!((left.content, left.actions), (None, writing.actions.clone()));

    let mut failing = event("a", [Part::thought("hm")]);
    failing.meta_mut().error_code = Some("X".into());
    assert!(seen(&EventFilter::new().hide_thoughts(), &failing).await.is_some());

    let mut asking =
        event("a", [call_with_id("k1", "search", json!({})), call_with_id("q1", "ask", json!({}))]);
    asking.long_running_tool_ids = Some(Box::new(vec!["q1".into()]));
    let left = seen(&EventFilter::new().hide_calls(), &asking).await.unwrap();
    let names: Vec<&str> = left.calls().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["ask"]);
}

// ---- global instruction

#[tokio::test]
async fn a_global_instruction_comes_before_all_others() {
    let from_fn = GlobalInstruction::from_fn(|_| Box::pin(async { Ok("made".to_owned()) }));
    let handlers: [&dyn Handler; 3] = [
        &GlobalInstruction::new("Be {polite}."),
        &GlobalInstruction::new(umbel::template("Hello {name}")),
        &from_fn,
    ];
    let cx = Context::new(run());
    let mut plan = AgentPlan::default();
    plan.instruction.push("own", "You are terse.");
    let mut turn = AgentTurn::new(&cx, plan);
    for handler in handlers {
        assert_eq!(handler.before_agent(&mut turn).await.unwrap(), Step::Continue);
    }
    let parts = turn.plan.instruction.parts();
    let words: Vec<String> = parts.iter().map(|part| format!("{:?}", part.words)).collect();
    let expected = ["provided(…)", "template(\"Hello {name}\")", "\"Be {polite}.\"", "\"You are terse.\""];
    assert_eq!(words, expected);
    assert_eq!(parts[0].source, "global_instruction");
}
