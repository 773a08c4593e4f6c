//! Limits on how often models and tools are called.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{
    LimitReached, ModelCallLimit, ModelLimitExit, ModelRetry, ToolCallLimit, ToolLimitExit,
};
use umbel::{
    Agent, AgentTool, BoxStream, Chunk, Confirm, Content, Error, ErrorKind, Event, Handler, Hooks, LlmAgent,
    LoopAgent, Model, ModelRequest, ModelTurn, Outcome, Parallel, Part, Response, Result, Runner,
    ScriptedModel, Sequential, Step, handler, text,
};

use crate::support::{
    Notes, Seen, answer, begin, call_with_id, calls, echo, fine, read, state, stored_answers, with_session,
};

/// Says "fine", but lets others begin first.
#[derive(Debug)]
struct Slow;

impl Model for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn generate(&self, _request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        Box::pin(futures::stream::once(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(Chunk::Complete(Response::text("fine")))
        }))
    }
}

/// Agents that work at the same time.
fn crowd(names: &[&str]) -> Parallel {
    names.iter().fold(Parallel::new("crowd"), |crowd, name| crowd.agent(LlmAgent::new(*name).model(Slow)))
}

async fn once(agent: impl Agent + 'static, handler: impl Handler + 'static) -> Seen {
    let runner = Runner::builder("app", agent).handler(handler).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "hi")).await
}

/// How many agents were answered by their model, and how many were told to stop.
fn answered(seen: &Seen) -> (usize, usize) {
    let texts = seen.texts();
    let fine = texts.iter().filter(|(_, text)| text == "fine").count();
    (fine, texts.len() - fine)
}

#[tokio::test]
async fn agents_that_work_at_the_same_time_share_what_a_run_may_ask() {
    let seen = once(crowd(&["a", "b", "c", "d"]), ModelCallLimit::new().run(3)).await;
    assert_eq!(answered(seen.assert_finished()), (3, 1));
    let stop = seen.texts().into_iter().find(|(_, text)| text != "fine").unwrap();
    assert_eq!(stop.1, text::model_limit(&text::calls_of(3, 3, "run")));
}

#[tokio::test]
async fn agents_that_are_called_as_tools_share_it_too() {
    let model = || ScriptedModel::new("m").call("helper", json!({"request": "help"})).text("done");
    let helper = || AgentTool::new(LlmAgent::new("helper").description("Helps.").model(fine()));
    let seen = once(LlmAgent::new("a").model(model()).tool(helper()), ModelCallLimit::new().run(2)).await;
    let stop = text::model_limit(&text::calls_of(2, 2, "run"));
    assert_eq!(seen.texts(), [("a".to_owned(), stop)]);
    assert_eq!(seen.responses(), [json!({"result": "fine"})]);
    let seen = once(LlmAgent::new("a").model(model()).tool(helper()), ModelCallLimit::new().run(3)).await;
    assert_eq!(seen.texts(), [("a".to_owned(), "done".to_owned())]);
}

/// Takes its time after the model of one agent.
struct Dawdles(&'static str);

#[handler]
impl Handler for Dawdles {
    fn name(&self) -> &str {
        "dawdles"
    }

    async fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        if turn.run().agent_name() == self.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn a_session_counts_right_though_an_answer_is_stored_later_than_others_that_came_after_it() {
    let model = |turns: usize| {
        let calls = (0..turns).fold(ScriptedModel::new("m"), |model, _| model.call("echo", json!({})));
        calls.text("fine")
    };
    let agent = |name: &str, turns| LlmAgent::new(name).model(model(turns)).tool(echo());
    let crowd = |turns| Parallel::new("crowd").agent(agent("a", turns)).agent(agent("b", 3));
    let models: Arc<dyn Handler> = Arc::new(ModelCallLimit::new().session(10));
    let tools: Arc<dyn Handler> = Arc::new(ToolCallLimit::new().session(10));
    for (limit, turns, count) in [(models, 0, 5), (tools, 1, 4)] {
        let key = format!("_umbel:calls:{}", limit.name());
        let runner =
            Runner::builder("app", crowd(turns)).handler(limit).handler(Dawdles("a")).build().unwrap();
        let (runner, session) = with_session(runner).await;
        read(runner.run(&session, "hi")).await.assert_finished();
        assert_eq!(state(&runner, &session).await[&key], count, "{key}");
    }
}

#[tokio::test]
async fn a_session_counts_over_its_runs() {
    let runner = Runner::builder("app", crowd(&["a", "b", "c"])).handler(ModelCallLimit::new().session(4));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(answered(&read(runner.run(&key, "hi")).await), (3, 0));
    assert_eq!(state(&runner, &key).await["_umbel:calls:model-call-limit"], 3);
    assert_eq!(answered(&read(runner.run(&key, "hi")).await), (1, 2));
    assert_eq!(state(&runner, &key).await["_umbel:calls:model-call-limit"], 4);
}

#[tokio::test]
async fn tools_are_counted_over_agents_that_work_at_the_same_time() {
    let asks = |name: &str| {
        let model = ScriptedModel::new("m").call("echo", json!({"of": name})).text("done");
        LlmAgent::new(name).model(model).tool(echo())
    };
    let crowd = ["a", "b", "c"].iter().fold(Parallel::new("crowd"), |crowd, name| crowd.agent(asks(name)));
    let limit = ToolCallLimit::new().session(2);
    let (runner, key) = with_session(Runner::builder("app", crowd).handler(limit).build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    let refused = seen.responses().iter().filter(|response| response["error"].is_string()).count();
    assert_eq!((seen.responses().len(), refused), (3, 1));
    assert_eq!(state(&runner, &key).await["_umbel:calls:tool-call-limit"], 2);
}

#[tokio::test]
async fn a_call_counts_once_however_many_attempts_it_takes() {
    let model =
        || ScriptedModel::new("m").fail("no").fail("no").call("echo", json!({})).fail("no").text("done");
    let retry = ModelRetry::new().backoff(Backoff::new().initial(Duration::ZERO));
    for inside in [true, false] {
        let limit = ModelCallLimit::new().run(2);
        let agent = LlmAgent::new("a").model(model()).tool(echo());
        let agent = match inside {
            true => agent.handler(limit).handler(retry.clone()),
            false => agent.handler(retry.clone()).handler(limit),
        };
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.texts(), [("a".to_owned(), "done".to_owned())], "inside: {inside}");
    }
}

/// Answers in the model's place so often.
struct Answers(AtomicUsize);

#[handler]
impl Handler for Answers {
    fn name(&self) -> &str {
        "answers"
    }

    fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        Ok(match left {
            Ok(_) => Step::Respond(Content::model(Part::text("no need to ask"))),
            Err(_) => Step::Continue,
        })
    }
}

#[tokio::test]
async fn an_answer_in_the_models_place_does_not_count() {
    let agent = LlmAgent::new("a").model(fine());
    let agent = agent.handler(ModelCallLimit::new().run(1)).handler(Answers(AtomicUsize::new(3)));
    let (runner, key) = begin(LoopAgent::new("loop").agent(agent).max_iterations(5)).await;
    let said: Vec<String> =
        read(runner.run(&key, "hi")).await.texts().into_iter().map(|(_, text)| text).collect();
    let stop = text::model_limit(&text::calls_of(1, 1, "run"));
    assert_eq!(said, ["no need to ask", "no need to ask", "no need to ask", "fine", stop.as_str()]);

    let agent = LlmAgent::new("a").model(fine());
    let agent = agent.handler(ModelCallLimit::new().session(1)).handler(Answers(AtomicUsize::new(2)));
    let (runner, key) = begin(agent).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        counts.push(answered(&read(runner.run(&key, "hi")).await).0);
    }
    assert_eq!(counts, [0, 0, 1, 0]);
}

#[tokio::test]
async fn a_run_that_goes_on_after_a_question_goes_on_counting() {
    let sure = echo().confirm(Confirm::Always);
    let call = |id: &str| calls([call_with_id(id, "echo", json!({}))]);
    let model = ScriptedModel::new("m").response(call("1")).response(call("2")).text("done");
    let agent = LlmAgent::new("a").model(model).tool(sure).handler(ModelCallLimit::new().run(2));
    let (runner, key) = begin(agent).await;
    let mut seen = read(runner.run(&key, "hi")).await;
    for _ in 0..2 {
        let Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{:?}", seen.outcome) };
        let yes = answer(interrupts[0].id.as_str(), "adk_request_confirmation", json!({"confirmed": true}));
        seen = read(runner.run(&key, yes)).await;
    }
    assert_eq!(seen.texts(), [("a".to_owned(), text::model_limit(&text::calls_of(2, 2, "run")))]);
}

#[tokio::test]
async fn limits_of_the_same_name_count_together_and_others_apart() {
    let limited = |name: &str, limit: ModelCallLimit| LlmAgent::new(name).model(fine()).handler(limit);
    let limit = || ModelCallLimit::new().run(1);
    let together = Sequential::new("team").agent(limited("a", limit())).agent(limited("b", limit()));
    let (runner, key) = begin(together).await;
    assert_eq!(answered(&read(runner.run(&key, "hi")).await), (1, 1));
    let apart =
        Sequential::new("team").agent(limited("a", limit())).agent(limited("b", limit().named("b's")));
    let (runner, key) = begin(apart).await;
    assert_eq!(answered(&read(runner.run(&key, "hi")).await), (2, 0));
}

#[tokio::test]
async fn a_call_that_is_refused_is_answered_and_the_rest_is_made() {
    let batch = calls([
        call_with_id("1", "echo", json!({"n": 1})),
        call_with_id("2", "other", json!({})),
        call_with_id("3", "echo", json!({"n": 3})),
    ]);
    let notes = Notes::default();
    let noted = notes.clone();
    let other = umbel::FunctionTool::new("other", "Does something.", move |_: Value| {
        noted.add("other");
        async { Ok("did") }
    });
    let model = ScriptedModel::new("m").response(batch).text("done");
    let agent = LlmAgent::new("a").model(model).tool(echo()).tool(other);
    let (runner, key) = begin(agent.handler(ToolCallLimit::of("echo").run(1))).await;
    let seen = read(runner.run(&key, "hi")).await;
    let refused = json!({"error": text::tool_limit(Some("echo"))});
    assert_eq!(seen.assert_finished().responses(), [refused, json!({"n": 1}), json!({"result": "did"})]);
    assert_eq!(notes.all(), ["other"]);
}

#[tokio::test]
async fn a_limit_can_end_the_turn_before_any_call_is_made() {
    let batch = || calls([call_with_id("1", "echo", json!({})), call_with_id("2", "echo", json!({}))]);
    let model = ScriptedModel::new("m").response(batch()).response(batch()).text("done");
    let agent = LlmAgent::new("a").model(model).tool(echo());
    let (runner, key) = begin(agent.handler(ToolCallLimit::new().run(1).exit(ToolLimitExit::End))).await;
    let seen = read(runner.run(&key, "hi")).await;
    let words = text::tool_limit_end(None, &text::calls_of(2, 1, "run"));
    assert_eq!(seen.assert_finished().texts(), [("a".to_owned(), words)]);
    let errors = [text::CALL_SKIPPED.to_owned(), text::tool_limit(None)];
    assert_eq!(seen.responses(), errors.map(|error| json!({"error": error})));
}

fn reached(error: &Error) -> &LimitReached {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(reached) = error.downcast_ref() {
            return reached;
        }
        source = error.source();
    }
    panic!("no limit in {error:?}")
}

#[tokio::test]
async fn a_limit_can_fail_the_run_and_says_how_far_it_came() {
    let call = || calls([call_with_id("1", "echo", json!({})), call_with_id("2", "echo", json!({}))]);
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").response(call())).tool(echo());
    let limit = ToolCallLimit::of("echo").run(1).session(1).exit(ToolLimitExit::Error);
    let (runner, key) = begin(agent.handler(limit)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::ToolCallLimit, "TOOL_CALL_LIMIT"));
    let error = seen.error.unwrap();
    let reached_limit = reached(&error);
    assert_eq!((reached_limit.run, reached_limit.run_limit), (2, Some(1)));
    assert_eq!((reached_limit.session, reached_limit.tool.as_deref()), (2, Some("echo")));
    // What was not answered is not stored, so that the session can go on.
    let stored = stored_answers(&runner, &key).await;
    assert!(stored.iter().all(|event: &Arc<Event>| event.calls().next().is_none()));

    let agent =
        LlmAgent::new("a").model(fine()).handler(ModelCallLimit::new().run(0).exit(ModelLimitExit::Error));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::ModelCallLimit, "MODEL_CALL_LIMIT"));
    assert_eq!(reached(&seen.error.unwrap()).run_limit, Some(0));
}

#[test]
fn a_limit_that_limits_nothing_fails_the_build() {
    let build = |agent: LlmAgent| Runner::new("app", agent).map(|_| ()).map_err(|error| error.kind());
    let agent = || LlmAgent::new("a").model(fine());
    assert_eq!(build(agent().handler(ModelCallLimit::new())), Err(ErrorKind::Build));
    assert_eq!(build(agent().handler(ToolCallLimit::new())), Err(ErrorKind::Build));
    assert_eq!(build(agent().handler(ToolCallLimit::of("t").run(3).session(2))), Err(ErrorKind::Build));
    assert_eq!(build(agent().handler(ModelCallLimit::new().run(3).session(2))), Ok(()));
}

#[test]
fn events_are_looked_at_only_for_a_limit_on_sessions() {
    assert!(!ModelCallLimit::new().run(1).hooks().contains(Hooks::ON_EVENT));
    assert!(ModelCallLimit::new().session(1).hooks().contains(Hooks::ON_EVENT));
    assert!(!ToolCallLimit::new().run(1).hooks().contains(Hooks::ON_EVENT));
    assert!(ToolCallLimit::new().session(1).hooks().contains(Hooks::ON_EVENT));
}
