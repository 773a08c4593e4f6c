//! Layers around the tool calls of whole runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::{
    AgentTool, Caching, CancelReason, Chunk, CircuitBreaker, Concurrency, Error, ErrorKind, FunctionTool,
    Handler, Layered, LlmAgent, Logging, ModelErrorKind, Outcome, Quota, RateLimit, Response, RunConfig,
    RunLimits, Runner, ScriptedModel, Timeout, Tool, ToolErrors, ToolItem, ToolOutput, ToolRetry, Work,
    layer_fn,
};

use super::{Scripted, call, streamed, value};
use crate::support::{Notes, begin, call_with_id, calls, quick, read, responses, run_once, with_session};

const MINUTE: Duration = Duration::from_secs(60);

/// An agent with every layer around its tools.
fn with_all_layers(agent: LlmAgent) -> LlmAgent {
    let quickly = Backoff::new().initial(Duration::from_millis(1));
    agent
        .tool_layer(Logging::new())
        .tool_layer(Caching::new())
        .tool_layer(RateLimit::new(Quota::per_second(1_000.0, 1_000).unwrap()).max_wait(MINUTE))
        .tool_layer(Timeout::new(MINUTE))
        .tool_layer(ToolRetry::new().backoff(quickly))
        .tool_layer(Concurrency::new(4).unwrap())
        .tool_layer(CircuitBreaker::new())
}

/// A model that calls `probe` in each turn, with the same arguments, and then says that it is done.
fn caller() -> ScriptedModel {
    ScriptedModel::from_fn("m", |request| {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let response = match answered {
            true => Response::text("done"),
            false => calls([call_with_id("c", "probe", json!({"q": 1}))]),
        };
        vec![Ok(Chunk::Complete(response))]
    })
}

fn streaming(streaming: bool) -> RunConfig {
    RunConfig { streaming, ..RunConfig::default() }
}

fn noting(name: &'static str, notes: &Notes) -> impl Handler + 'static {
    let notes = notes.clone();
    layer_fn(name, move |call, next| {
        notes.add(name);
        Work::later(next.call(call))
    })
}

#[tokio::test]
async fn e4_a_question_passes_every_layer_and_its_answer_comes_back_through_them() {
    for is_streaming in [false, true] {
        let tool = FunctionTool::with_context("probe", "", |cx, _: Value| {
            Box::pin(async move {
                match cx.confirmation() {
                    None => Err(Error::interrupt("May I?").into()),
                    Some(answer) => Ok(answer.confirmed),
                }
            })
        });
        let agent = with_all_layers(LlmAgent::new("a").model(caller()).tool(tool.read_only()));
        let (runner, key) = begin(agent).await;
        let asked = read(runner.run_with(&key, "go", streaming(is_streaming))).await;
        let Outcome::Interrupted { interrupts } = &asked.outcome else { panic!("{asked:?}") };
        assert_eq!(interrupts.len(), 1);
        let answered = read(runner.run_with(&key, interrupts[0].answer(true), streaming(is_streaming))).await;
        assert_eq!(answered.assert_finished().responses(), [json!({"result": true})]);
    }
}

#[tokio::test]
async fn d11_layers_of_runner_agent_and_tool_nest_in_that_order() {
    let notes = Notes::default();
    let layers: [Arc<dyn Handler>; 2] =
        [Arc::new(noting("tool 1", &notes)), Arc::new(noting("tool 2", &notes))];
    let agent = LlmAgent::new("a")
        .model(caller())
        .tool(Scripted::numbers().tool.layered_with(layers))
        .handler(noting("handler", &notes))
        .tool_layer(noting("agent 1", &notes))
        .tool_layer(noting("agent 2", &notes));
    let runner = Runner::builder("app", agent).handler(noting("runner", &notes)).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(notes.all(), ["runner", "agent 1", "agent 2", "handler", "tool 1", "tool 2"]);
}

#[tokio::test]
async fn h6_news_of_a_streamed_tool_pass_every_layer_and_a_hit_has_none() {
    for is_streaming in [false, true] {
        let tool = Scripted::new(|_, _| async {
            let news = (1..3).map(|n| ToolItem::Progress(json!({"step": n})));
            streamed(news.chain([ToolItem::Done(json!("whole").into())]).collect::<Vec<_>>())
        });
        let agent = with_all_layers(LlmAgent::new("a").model(caller()).tool(tool.tool.clone()));
        let (runner, key) = begin(agent).await;
        for expected in [vec![json!({"step": 1}), json!({"step": 2})], vec![]] {
            let seen = read(runner.run_with(&key, "go", streaming(is_streaming))).await;
            assert_eq!(seen.assert_finished().responses(), [json!({"result": "whole"})]);
            assert_eq!(responses(&seen.partial()), expected);
        }
        assert_eq!(tool.calls(), 1);
    }
}

#[tokio::test]
async fn calls_of_one_turn_that_are_the_same_are_one_call() {
    let tool = Scripted::slow(Duration::from_millis(10));
    let same = |id: &str| call_with_id(id, "probe", json!({"q": 1}));
    let model = ScriptedModel::new("m").response(calls([same("a"), same("b"), same("c")])).text("done");
    let agent = LlmAgent::new("a").model(model).tool(tool.tool.clone()).tool_layer(Caching::new());
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), vec![json!({"result": 0}); 3]);
    assert_eq!(tool.calls(), 1);
}

/// A runner whose next run waits for a token that does not come, with that time for the whole of it.
async fn waiting(run_time: Duration) -> (Runner, umbel::SessionKey) {
    let limit = RateLimit::new(Quota::per_second(0.001, 1).unwrap()).max_wait(Duration::from_secs(10_000));
    let agent = LlmAgent::new("a").model(caller()).tool(Scripted::numbers().tool).tool_layer(limit);
    let config = RunConfig { limits: RunLimits { run_time, ..quick() }, ..RunConfig::default() };
    let (runner, key) = with_session(Runner::builder("app", agent).config(config).build().unwrap()).await;
    read(runner.run(&key, "take the token")).await.assert_finished();
    (runner, key)
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_for_a_limit_is_cancelled() {
    let (runner, key) = waiting(MINUTE).await;
    let started = Instant::now();
    let mut run = runner.run(&key, "wait");
    let token = run.cancel_token();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        token.cancel(CancelReason::Asked);
    };
    let reading = async { while run.next().await.is_some() {} };
    tokio::join!(cancel, reading);
    assert_eq!(run.outcome(), Some(&Outcome::Cancelled));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_run_out_of_time_while_it_waits_for_a_limit_was_not_refused() {
    let (runner, key) = waiting(Duration::from_millis(300)).await;
    let seen = read(runner.run(&key, "wait")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Timeout, "TIMEOUT"));
}

#[tokio::test]
async fn a_retry_keeps_a_run_alive_where_failures_end_it() {
    let quickly = || ToolRetry::new().backoff(Backoff::new().initial(Duration::from_millis(1)));
    for (retry, finished) in [(quickly(), true), (quickly().or_fail(), false)] {
        let tool = Scripted::failing(9);
        let agent = LlmAgent::new("a").model(caller()).tool(tool.tool.clone()).tool_layer(retry);
        let config = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
        let (runner, key) = with_session(Runner::builder("app", agent).config(config).build().unwrap()).await;
        let seen = read(runner.run(&key, "go")).await;
        assert_eq!((seen.error.is_none(), tool.calls()), (finished, 3));
        let words = if finished { seen.tool_error() } else { seen.error.unwrap().message().to_owned() };
        assert!(words.contains("failure 2"), "{words}");
    }
}

#[tokio::test]
async fn an_agent_called_as_a_tool_is_not_called_again_for_what_no_new_try_can_change() {
    use ModelErrorKind as Model;
    let kinds = [
        (ErrorKind::Model(Model::Auth), 1),
        (ErrorKind::Model(Model::Refused), 1),
        (ErrorKind::Model(Model::ContextTooLong), 1),
        (ErrorKind::Model(Model::BadRequest), 1),
        (ErrorKind::ModelCallLimit, 1),
        (ErrorKind::ToolCallLimit, 1),
        (ErrorKind::UsageLimit, 1),
        (ErrorKind::Blocked, 1),
        (ErrorKind::Denied, 1),
        (ErrorKind::TooLarge, 1),
        (ErrorKind::InvalidInput, 1),
        (ErrorKind::Model(Model::Overloaded), 3),
        (ErrorKind::Model(Model::Other), 3),
    ];
    for (kind, calls) in kinds {
        let model = ScriptedModel::from_fn("inner", move |_| vec![Err(Error::new(kind, "no"))]).recorded();
        let inner = AgentTool::new(LlmAgent::new("probe").model(model.clone()));
        let retry = ToolRetry::new().backoff(Backoff::new().initial(Duration::ZERO)).or_fail();
        let agent = LlmAgent::new("a").model(caller()).tool(inner).tool_layer(retry);
        let (runner, key) = begin(agent).await;
        read(runner.run(&key, "go")).await.assert_finished();
        assert_eq!(model.requests().len(), calls, "{kind:?}");
    }
}

#[tokio::test]
async fn an_unknown_tool_passes_every_layer_and_the_model_is_told_each_time() {
    let other = FunctionTool::new("another", "", |_: Value| async { Ok(1) });
    let (runner, key) = begin(with_all_layers(LlmAgent::new("a").model(caller()).tool(other))).await;
    // More often than a circuit allows.
    for _ in 0..8 {
        let seen = read(runner.run(&key, "go")).await;
        let words = seen.assert_finished().tool_error();
        assert!(words.contains("`probe`") && words.contains("another"), "{words}");
    }
}

#[tokio::test]
async fn a_circuit_that_is_open_is_told_to_the_model_and_the_run_goes_on() {
    let tool = Scripted::failing(9);
    let breaker = CircuitBreaker::new().in_a_row(2);
    let agent = LlmAgent::new("a").model(caller()).tool(tool.tool.clone()).tool_layer(breaker);
    let (runner, key) = begin(agent).await;
    for expected in ["failure 0", "failure 1", "not tried for a while", "not tried for a while"] {
        let words = read(runner.run(&key, "go")).await.assert_finished().tool_error();
        assert!(words.contains(expected), "{words}");
    }
    assert_eq!(tool.calls(), 2);
}

#[tokio::test]
async fn an_agent_called_as_a_tool_does_not_wait_for_its_own_caller() {
    let inner = LlmAgent::new("inner")
        .model(ScriptedModel::new("m").call("probe", json!({})).text("from inside"))
        .tool(Scripted::numbers().tool);
    let outer = LlmAgent::new("outer")
        .model(ScriptedModel::new("m").call("inner", json!({"request": "go"})).text("done"))
        .tool(AgentTool::new(inner));
    let runner = Runner::builder("app", outer).handler(Concurrency::new(1).unwrap()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let run = tokio::time::timeout(Duration::from_secs(10), read(runner.run(&key, "go")));
    let seen = run.await.expect("it waits for itself");
    assert_eq!(seen.assert_finished().responses(), [json!({"result": "from inside"})]);
}

#[tokio::test]
async fn a_call_made_to_answer_the_same_call_does_not_wait_for_it() {
    let caching = Arc::new(Caching::new());
    let inner = Scripted::numbers().tool;
    let spec = inner.spec().clone();
    let inner = inner.layered(caching.clone());
    let outer = FunctionTool::raw(spec, move |cx, args| {
        let inner = inner.clone();
        Box::pin(async move { inner.call(cx, args).await })
    });
    let outer = outer.layered(caching);
    let result = tokio::time::timeout(Duration::from_secs(5), call(&outer, json!({"q": 1}))).await;
    assert_eq!(value(result.expect("it waits for itself")).value, json!(0));
}

#[tokio::test]
async fn a_panic_in_the_stream_of_a_tool_ends_its_call_and_leaves_layers_as_they_were() {
    let tool = Scripted::new(|n, _| async move {
        if n > 0 {
            return Ok(json!(n).into());
        }
        Ok(ToolOutput::Stream(futures::stream::once(async { panic!("in the stream") }).boxed()))
    });
    let agent = LlmAgent::new("a")
        .model(caller())
        .tool(tool.tool.clone())
        .tool_layer(Caching::new())
        .tool_layer(Concurrency::new(1).unwrap());
    let (runner, key) = begin(agent).await;
    let words = read(runner.run(&key, "go")).await.assert_finished().tool_error();
    assert!(words.contains("panicked"), "{words}");
    let seen = read(runner.run(&key, "go")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"result": 1})]);
}
