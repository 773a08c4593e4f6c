//! Each option that is a time, with none at all and with a time without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{ApprovalRule, Approve};
use umbel::{
    Answer, Caching, CancelReason, CircuitBreaker, Concurrency, ErrorKind, FunctionTool, Layered, LlmAgent,
    Question, Quota, RateLimit, RunConfig, RunLimits, ScriptedModel, SessionManager, Timeout, Tool,
    ToolContext, ToolError, ToolItem, ToolOutput, ToolRetry, ToolSpec,
};

use crate::support::{begin, echo, fine, read};

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A tool that does something with the number of its call.
fn tool<F, Fut>(make: F) -> (FunctionTool, Arc<AtomicUsize>)
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let spec = ToolSpec::new("probe", "", json!({"type": "object"}));
    let tool = FunctionTool::raw(spec, move |_, _| {
        let made = make(count.fetch_add(1, Ordering::SeqCst));
        Box::pin(async move { Ok(made.await?.into()) })
    });
    (tool.read_only(), calls)
}

/// A tool that takes an hour.
fn slow() -> FunctionTool {
    tool(|n| async move {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        Ok(n.into())
    })
    .0
}

fn failing() -> FunctionTool {
    tool(|_| async { Err(ToolError::new("boom")) }).0
}

async fn call(tool: &Arc<dyn Tool>) -> Option<ErrorKind> {
    let cx = ToolContext::detached("probe").unwrap();
    tool.call(&cx, Arc::default()).await.err().map(|error| error.error().kind())
}

/// How three calls end, a year apart.
async fn three(tool: Arc<dyn Tool>) -> Vec<String> {
    let mut ends = Vec::new();
    for _ in 0..3 {
        ends.push(call(&tool).await.map_or("ok", ErrorKind::code).to_owned());
        tokio::time::advance(YEAR).await;
    }
    ends
}

/// How two calls end that are made at once.
async fn two(tool: Arc<dyn Tool>) -> Vec<String> {
    let (one, two) = tokio::join!(call(&tool), call(&tool));
    [one, two].map(|end| end.map_or("ok", ErrorKind::code).to_owned()).to_vec()
}

async fn caching(time: Duration) -> Vec<String> {
    let (tool, calls) = tool(|n| async move { Ok(n.into()) });
    three(tool.layered(Caching::new().ttl(time))).await;
    vec![calls.load(Ordering::SeqCst).to_string()]
}

async fn open_for(time: Duration) -> Vec<String> {
    three(failing().layered(CircuitBreaker::new().in_a_row(1).open_for(time))).await
}

async fn failures_within(time: Duration) -> Vec<String> {
    three(failing().layered(CircuitBreaker::new().within(2, time).open_for(Duration::MAX))).await
}

async fn timeout(time: Duration) -> Vec<String> {
    three(slow().layered(Timeout::new(time))).await
}

async fn timeout_of_a_tool(time: Duration) -> Vec<String> {
    three(slow().layered(Timeout::new(YEAR).tool("probe", time))).await
}

async fn timeout_of_a_stream(time: Duration) -> Vec<String> {
    let spec = ToolSpec::new("probe", "", json!({"type": "object"}));
    let streaming = FunctionTool::raw(spec, |_, _| {
        let items = futures::stream::once(async {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            Ok(ToolItem::Done(json!(1).into()))
        });
        Box::pin(async { Ok(ToolOutput::Stream(items.boxed())) })
    });
    let cx = ToolContext::detached("probe").unwrap();
    let tool = streaming.layered(Timeout::new(time));
    let Ok(ToolOutput::Stream(mut items)) = tool.call(&cx, Arc::default()).await else { panic!("no stream") };
    let end = items.next().await.unwrap();
    vec![end.err().map_or("ok", |error| error.error().kind().code()).to_owned()]
}

async fn rate_limit_wait(time: Duration) -> Vec<String> {
    let quota = Quota::per_second(0.001, 1).unwrap();
    two(tool(|n| async move { Ok(n.into()) }).0.layered(RateLimit::new(quota).max_wait(time))).await
}

async fn concurrency_wait(time: Duration) -> Vec<String> {
    two(slow().layered(Concurrency::new(1).unwrap().max_wait(time))).await
}

/// Whether all retries are made within a year.
async fn backoff(time: Duration) -> Vec<String> {
    let (tool, calls) = tool(|_| async { Err(ToolError::new("boom")) });
    let backoff = Backoff::new().initial(time).max(time.max(Duration::from_secs(60)));
    let tool = tool.layered(ToolRetry::new().backoff(backoff));
    let cx = ToolContext::detached("probe").unwrap();
    let made = tokio::time::timeout(YEAR, tool.call(&cx, Arc::default())).await;
    if made.is_err() {
        // Whoever waits for ever can still be cancelled.
        let mut waiting = Box::pin(tool.call(&cx, Arc::default()));
        assert!((&mut waiting).now_or_never().is_none());
        cx.run().cancel_token().cancel(CancelReason::Asked);
        assert_eq!(waiting.await.unwrap_err().error().kind(), ErrorKind::Cancelled);
        return vec!["waits".to_owned()];
    }
    vec![calls.load(Ordering::SeqCst).to_string()]
}

/// What the model is told by a run whose tool takes an hour.
async fn told(agent: LlmAgent, limits: RunLimits) -> Vec<String> {
    let (runner, key) = begin(agent).await;
    let config = RunConfig { limits, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "go", config)).await;
    let response = seen.assert_finished().responses().remove(0);
    vec![if response.get("error").is_some() { "TIMEOUT" } else { "ok" }.to_owned()]
}

fn long() -> RunLimits {
    RunLimits { run_time: YEAR, tool_time: Duration::from_secs(60), ..RunLimits::default() }
}

fn caller() -> LlmAgent {
    LlmAgent::new("a").model(ScriptedModel::new("m").call("probe", json!({})).text("done"))
}

async fn spec_timeout(time: Duration) -> Vec<String> {
    told(caller().tool(slow().timeout(time)), long()).await
}

async fn tool_time(time: Duration) -> Vec<String> {
    told(caller().tool(slow()), RunLimits { tool_time: time, ..long() }).await
}

/// Whether a question can be answered a little later, and when it says that it expires.
async fn answered(agent: LlmAgent) -> Vec<String> {
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await;
    let asked = runner.open_questions(&key).await.unwrap().remove(0);
    let end = read(runner.run(&key, asked.answer_with(&Answer::approve()))).await;
    let expires = if asked.expires_at.is_some() { "expires" } else { "stays" };
    vec![expires.to_owned(), end.error.map_or("ok", |error| error.kind().code()).to_owned()]
}

async fn approval(time: Duration) -> Vec<String> {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let approve = Approve::new().rule(ApprovalRule::tool("echo").expires_in(time));
    answered(LlmAgent::new("a").model(model).tool(echo()).handler(approve)).await
}

async fn question(time: Duration) -> Vec<String> {
    let asks = FunctionTool::with_context("probe", "", move |cx, _: Value| {
        Box::pin(async move {
            cx.interrupt(Question::new(Question::CONFIRMATION, "May I?").expires_in(time))?;
            Ok(json!(1))
        })
    });
    answered(caller().tool(asks)).await
}

/// How many sessions of one that is idle, one that waits and their app are left after a sweep.
async fn left(manage: impl FnOnce(SessionManager) -> SessionManager) -> Vec<String> {
    let asks = FunctionTool::new("probe", "", |_: Value| async { Ok(1) }).confirm(umbel::Confirm::Always);
    let (runner, key) = begin(caller().tool(asks)).await;
    read(runner.run(&key, "go")).await;
    runner.create_session("bob").await.unwrap();
    manage(SessionManager::new(&runner)).sweep().await.unwrap();
    let mut left = Vec::new();
    for user in ["ann", "bob"] {
        left.push(runner.sessions().list("app", user).await.unwrap().len().to_string());
    }
    left
}

async fn session_timeout(time: Duration) -> Vec<String> {
    left(|manager| manager.timeout(time)).await
}

async fn session_max_wait(time: Duration) -> Vec<String> {
    left(|manager| manager.timeout(Duration::ZERO).max_wait(time)).await
}

/// How many sessions are left that were made after the first sweep.
async fn sweep_every(time: Duration) -> Vec<String> {
    let (runner, _) = begin(LlmAgent::new("a").model(fine())).await;
    let sweeper = SessionManager::new(&runner).timeout(Duration::ZERO).sweep_every(time).start().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    runner.create_session("bob").await.unwrap();
    tokio::time::sleep(if time.is_zero() { Duration::from_secs(1) } else { YEAR }).await;
    drop(sweeper);
    vec![runner.sessions().list("app", "bob").await.unwrap().len().to_string()]
}

/// An option by its name, how to try it with a time, and what comes of it with zero and with the longest there is.
type TimeOption = (&'static str, fn(Duration) -> BoxFuture<'static, Vec<String>>, Ends, Ends);
type Ends = &'static [&'static str];

#[tokio::test(start_paused = true)]
async fn every_option_that_is_a_time_takes_none_at_all_and_one_without_end() {
    const OK: Ends = &["ok", "ok", "ok"];
    const LATE: Ends = &["TIMEOUT", "TIMEOUT", "TIMEOUT"];
    const FAILS: Ends = &["TOOL_FAILED", "TOOL_FAILED", "TOOL_FAILED"];
    let options: [TimeOption; 16] = [
        ("Caching::ttl", |time| caching(time).boxed(), &["3"], &["1"]),
        (
            "CircuitBreaker::open_for",
            |time| open_for(time).boxed(),
            FAILS,
            &["TOOL_FAILED", "CIRCUIT_OPEN", "CIRCUIT_OPEN"],
        ),
        (
            "CircuitBreaker::within",
            |time| failures_within(time).boxed(),
            FAILS,
            &["TOOL_FAILED", "TOOL_FAILED", "CIRCUIT_OPEN"],
        ),
        ("Timeout::new", |time| timeout(time).boxed(), LATE, OK),
        ("Timeout::tool", |time| timeout_of_a_tool(time).boxed(), LATE, OK),
        ("Timeout of a stream", |time| timeout_of_a_stream(time).boxed(), &["TIMEOUT"], &["ok"]),
        ("RateLimit::max_wait", |time| rate_limit_wait(time).boxed(), &["ok", "RATE_LIMITED"], &["ok", "ok"]),
        (
            "Concurrency::max_wait",
            |time| concurrency_wait(time).boxed(),
            &["ok", "RATE_LIMITED"],
            &["ok", "ok"],
        ),
        ("Backoff::initial", |time| backoff(time).boxed(), &["3"], &["waits"]),
        ("FunctionTool::timeout", |time| spec_timeout(time).boxed(), &["TIMEOUT"], &["ok"]),
        ("RunLimits::tool_time", |time| tool_time(time).boxed(), &["TIMEOUT"], &["ok"]),
        (
            "Approve::expires_in",
            |time| approval(time).boxed(),
            &["expires", "INVALID_CONFIRMATION"],
            &["stays", "ok"],
        ),
        (
            "Question::expires_in",
            |time| question(time).boxed(),
            &["expires", "INVALID_CONFIRMATION"],
            &["stays", "ok"],
        ),
        ("SessionManager::timeout", |time| session_timeout(time).boxed(), &["1", "0"], &["1", "1"]),
        ("SessionManager::max_wait", |time| session_max_wait(time).boxed(), &["0", "0"], &["1", "0"]),
        ("SessionManager::sweep_every", |time| sweep_every(time).boxed(), &["0"], &["1"]),
    ];
    for (name, run, zero, max) in options {
        assert_eq!(run(Duration::ZERO).await, zero, "{name} with zero");
        assert_eq!(run(Duration::MAX).await, max, "{name} with the longest there is");
    }
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_stays_open_for_good_says_so() {
    let tool = failing().layered(CircuitBreaker::new().in_a_row(1).open_for(Duration::MAX));
    call(&tool).await;
    tokio::time::advance(YEAR).await;
    let cx = ToolContext::detached("probe").unwrap();
    let error = tool.call(&cx, Arc::default()).await.unwrap_err().into_error();
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::CircuitOpen, Some(Duration::MAX)));
    assert!(error.message().contains("not tried any more"), "{error}");
}
