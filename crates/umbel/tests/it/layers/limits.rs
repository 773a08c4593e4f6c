//! So many calls a second, so many at once, and none for longer than it may take.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use umbel::layers::{LimiterStore, MemoryLimiter};
use umbel::{
    CallScope, CancelReason, Concurrency, Error, ErrorKind, FunctionTool, Layered, LlmAgent, Quota,
    RateLimit, Result, Runner, ScriptedModel, Timeout, Tool, ToolContext, ToolItem, ToolOutput, Work,
};

use super::{Scripted, call, call_in, context, done, error, items, metadata, streamed, value};
use crate::support::{read, with_session};

const SECOND: Duration = Duration::from_secs(1);

fn quota(rate: f64, burst: u32) -> Quota {
    Quota::per_second(rate, burst).unwrap()
}

fn limited(limit: RateLimit) -> Arc<dyn Tool> {
    Scripted::numbers().tool.layered(limit)
}

#[tokio::test(start_paused = true)]
async fn rl1_ten_calls_a_second_and_twenty_at_once_by_default() {
    let tool = limited(RateLimit::default());
    for _ in 0..20 {
        assert_eq!(value(call(&tool, json!({})).await).metadata, metadata(&[("rate_limited", false)]));
    }
    let refused = error(call(&tool, json!({})).await);
    assert_eq!(refused.kind(), ErrorKind::RateLimited);
    assert!(refused.message().contains("rate limit exceeded"), "{refused}");
    let after = refused.retry_after().expect("when to try again");
    assert!(after > Duration::from_millis(99) && after <= Duration::from_millis(101), "{after:?}");
    tokio::time::advance(SECOND).await;
    for _ in 0..10 {
        call(&tool, json!({})).await.unwrap();
    }
    assert!(call(&tool, json!({})).await.is_err());
}

#[tokio::test]
async fn rl1_a_limit_that_lets_nothing_through_cannot_be_built() {
    for (rate, burst) in [(10.0, 0), (0.0, 20), (-1.0, 20), (f64::NAN, 20)] {
        assert_eq!(Quota::per_second(rate, burst).unwrap_err().kind(), ErrorKind::Build);
    }
    assert_eq!(Concurrency::new(0).unwrap_err().kind(), ErrorKind::Build);
    assert_eq!(Concurrency::new(usize::MAX).unwrap_err().kind(), ErrorKind::Build);
}

#[tokio::test]
async fn rl1_limits_are_global_or_per_tool() {
    for (scope, expected) in [(CallScope::All, false), (CallScope::Tool, true)] {
        let limit = Arc::new(RateLimit::new(quota(0.001, 1)).per(scope));
        let (a, b) = (Scripted::named("a", |_, _| async { Ok(json!(1).into()) }), Scripted::numbers());
        let (a, b) = (a.tool.layered(limit.clone()), b.tool.layered(limit));
        let cx = ToolContext::detached("a").unwrap();
        call_in(&a, &cx, json!({})).await.unwrap();
        assert_eq!(call(&b, json!({})).await.is_ok(), expected);
        assert!(call_in(&a, &cx, json!({})).await.is_err());
    }
}

#[tokio::test]
async fn a_tool_with_a_quota_of_its_own_takes_nothing_from_the_others() {
    let limit = Arc::new(RateLimit::new(quota(0.001, 2)).tool("a", quota(0.001, 1)));
    let (a, b) = (Scripted::named("a", |_, _| async { Ok(json!(1).into()) }), Scripted::numbers());
    let (a, b) = (a.tool.layered(limit.clone()), b.tool.layered(limit));
    let cx = ToolContext::detached("a").unwrap();
    call_in(&a, &cx, json!({})).await.unwrap();
    assert!(call_in(&a, &cx, json!({})).await.is_err());
    for _ in 0..2 {
        call(&b, json!({})).await.unwrap();
    }
    assert!(call(&b, json!({})).await.is_err());
}

/// Whether the call of each run was let through: two of ann, one of bob.
async fn runs_with(limit: RateLimit) -> Vec<bool> {
    let tool = Scripted::numbers();
    let model = ScriptedModel::from_fn("m", |request| {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let response = match answered {
            true => umbel::Response::text("done"),
            false => crate::support::calls([crate::support::call_with_id("a", "probe", json!({}))]),
        };
        vec![Ok(umbel::Chunk::Complete(response))]
    });
    let agent = LlmAgent::new("a").model(model).tool(tool.tool.layered(limit));
    let (runner, ann) = with_session(Runner::new("app", agent).unwrap()).await;
    let bob = runner.create_session("bob").await.unwrap().key;
    let mut passed = Vec::new();
    for key in [&ann, &ann, &bob] {
        let seen = read(runner.run(key, "go")).await;
        seen.assert_finished();
        let response = &seen.responses()[0];
        let refused = response["error"].as_str().is_some_and(|error| error.contains("rate limit exceeded"));
        assert_eq!(refused, response.get("result").is_none(), "{response}");
        passed.push(!refused);
    }
    passed
}

#[tokio::test]
async fn limits_can_be_per_user_or_app_and_a_refusal_goes_to_the_model() {
    let limit = || RateLimit::new(quota(0.001, 1));
    assert_eq!(runs_with(limit().per(CallScope::User)).await, [true, false, true]);
    assert_eq!(runs_with(limit().per(CallScope::App)).await, [true, false, false]);
    assert_eq!(runs_with(limit().per(CallScope::Run)).await, [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_its_turn_first_come_first_served() {
    let tool = limited(RateLimit::new(quota(1.0, 1)).max_wait(10 * SECOND));
    let started = Instant::now();
    let mut calls: futures::stream::FuturesOrdered<_> = (0..4)
        .map(|_| async {
            call(&tool, json!({})).await.unwrap();
            started.elapsed().as_secs()
        })
        .collect();
    let mut times = Vec::new();
    while let Some(time) = calls.next().await {
        times.push(time);
    }
    assert_eq!(times, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_would_wait_too_long_is_refused_at_once() {
    let tool = limited(RateLimit::new(quota(1.0, 1)).max_wait(Duration::from_millis(2_500)));
    let started = Instant::now();
    let results = futures::future::join_all((0..5).map(|_| async {
        let result = call(&tool, json!({})).await;
        (
            result.map_err(|e| e.error().retry_after().unwrap().as_secs_f64().round()).is_ok(),
            started.elapsed(),
        )
    }))
    .await;
    let passed: Vec<_> = results.iter().filter(|(passed, _)| *passed).map(|(_, at)| at.as_secs()).collect();
    assert_eq!(passed, [0, 1, 2]);
    assert!(results.iter().filter(|(passed, _)| !passed).all(|(_, at)| at.is_zero()), "{results:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_it_waits_has_taken_no_token() {
    let tool = limited(RateLimit::new(quota(1.0, 1)).max_wait(10 * SECOND));
    call(&tool, json!({})).await.unwrap();
    let mut gone = Box::pin(call(&tool, json!({})));
    let mut next = Box::pin(call(&tool, json!({})));
    assert!(futures::poll!(&mut gone).is_pending() && futures::poll!(&mut next).is_pending());
    drop(gone);
    let started = Instant::now();
    next.await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 1, "it has the place of the one that is gone");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_cancelled_while_it_waits_was_not_refused() {
    let tool = limited(RateLimit::new(quota(0.01, 1)).max_wait(1_000 * SECOND));
    call(&tool, json!({})).await.unwrap();
    let cx = context();
    let mut waiting = Box::pin(call_in(&tool, &cx, json!({})));
    assert!(futures::poll!(&mut waiting).is_pending());
    cx.run().cancel_token().cancel(CancelReason::Asked);
    let started = Instant::now();
    assert_eq!(error(waiting.await).kind(), ErrorKind::Cancelled);
    assert_eq!(started.elapsed(), Duration::ZERO);
    // Its token is there for the next one.
    tokio::time::advance(100 * SECOND).await;
    call(&tool, json!({})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_longer_than_any_clock_is_a_wait() {
    let tool = limited(RateLimit::new(quota(1.0, 1)).max_wait(Duration::MAX));
    for _ in 0..3 {
        call(&tool, json!({})).await.unwrap();
    }
}

/// Buckets elsewhere: notes what it is asked, and fails on demand.
#[derive(Debug, Default)]
struct Elsewhere {
    buckets: MemoryLimiter,
    asked: Mutex<Vec<String>>,
}

impl LimiterStore for Elsewhere {
    fn take<'a>(&'a self, key: &'a str, quota: Quota) -> Work<'a, Result<Option<Duration>>> {
        self.asked.lock().unwrap().push(key.to_owned());
        Work::later(async move {
            tokio::task::yield_now().await;
            if self.asked.lock().unwrap().len() > 3 {
                return Err(Error::new(ErrorKind::Store, "no connection"));
            }
            self.buckets.take(key, quota).await
        })
    }
}

#[tokio::test]
async fn calls_can_be_counted_elsewhere_and_fail_if_they_cannot() {
    let store = Arc::new(Elsewhere::default());
    let tool = limited(RateLimit::new(quota(0.001, 2)).per(CallScope::Tool).store(store.clone()));
    for expected in [None, None, Some(ErrorKind::RateLimited), Some(ErrorKind::Store)] {
        let result = call(&tool, json!({})).await;
        assert_eq!(result.err().map(|e| e.error().kind()), expected);
    }
    assert_eq!(*store.asked.lock().unwrap(), ["tool\0probe\0"; 4]);
}

#[tokio::test]
async fn a_streamed_result_says_that_it_was_not_limited() {
    let tool = Scripted::new(|_, _| async { streamed([ToolItem::Done(json!(1).into())]) });
    let tool = tool.tool.layered(RateLimit::default());
    assert_eq!(done(call(&tool, json!({})).await).await.metadata, metadata(&[("rate_limited", false)]));
}

#[tokio::test(start_paused = true)]
async fn so_many_calls_run_at_once_and_the_others_wait() {
    let tool = Scripted::slow(SECOND).tool.layered(Concurrency::new(2).unwrap());
    let started = Instant::now();
    futures::future::join_all((0..6).map(|_| call(&tool, json!({})))).await;
    assert_eq!(started.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_for_others_is_refused() {
    for (wait, expected) in [(Duration::ZERO, 0), (SECOND / 2, 0), (2 * SECOND, 1)] {
        let tool = Scripted::slow(SECOND).tool.layered(Concurrency::new(1).unwrap().max_wait(wait));
        let (first, second) = tokio::join!(call(&tool, json!({})), call(&tool, json!({})));
        assert!(first.is_ok());
        assert_eq!(usize::from(second.is_ok()), expected, "{wait:?}");
        if let Err(refused) = second {
            assert_eq!(refused.error().kind(), ErrorKind::RateLimited);
            assert!(refused.error().message().contains("at once"), "{refused}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_streamed_result_counts_to_its_end() {
    let tool = Scripted::new(|_, _| async {
        streamed([ToolItem::Progress(json!(1)), ToolItem::Done(json!(1).into())])
    });
    let tool = tool.tool.layered(Concurrency::new(1).unwrap().max_wait(Duration::ZERO));
    let first = call(&tool, json!({})).await;
    assert!(call(&tool, json!({})).await.is_err());
    assert_eq!(items(first).await.len(), 2);
    assert_eq!(items(call(&tool, json!({})).await).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_are_counted_by_scope() {
    let layer = Arc::new(Concurrency::new(1).unwrap().per(CallScope::Tool));
    let slow = |name: &str| {
        let tool = Scripted::named(name, |_, _| async {
            tokio::time::sleep(SECOND).await;
            Ok(json!(1).into())
        });
        tool.tool.layered(layer.clone())
    };
    let (a, b) = (slow("a"), slow("b"));
    let (in_a, in_b) = (ToolContext::detached("a").unwrap(), ToolContext::detached("b").unwrap());
    let started = Instant::now();
    let all = tokio::join!(
        call_in(&a, &in_a, json!({})),
        call_in(&b, &in_b, json!({})),
        call_in(&b, &in_b, json!({}))
    );
    assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok());
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_on_behalf_of_one_that_counts_does_not_wait_for_it() {
    let layer = Arc::new(Concurrency::new(1).unwrap());
    let inner = Scripted::numbers().tool.layered(layer.clone());
    let outer = FunctionTool::with_context("outer", "", move |cx, _: Value| {
        let inner = inner.clone();
        Box::pin(async move { inner.call(cx, Arc::default()).await })
    });
    let outer = outer.layered(layer);
    let result = tokio::time::timeout(SECOND, call(&outer, json!({}))).await.expect("it waits for itself");
    assert_eq!(value(result).value, json!(0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_ended() {
    let tool = Scripted::slow(3 * SECOND);
    let limit = || Timeout::new(SECOND);
    let ended = error(call(&tool.tool.clone().layered(limit()), json!({})).await);
    assert_eq!(ended.kind(), ErrorKind::Timeout);
    assert!(ended.message().contains("1 s"), "{ended}");
    let patient = tool.tool.clone().layered(limit().tool("another", SECOND).tool("probe", 5 * SECOND));
    assert_eq!(value(call(&patient, json!({})).await).value, json!(1));
    let forever = tool.tool.layered(Timeout::new(Duration::MAX));
    assert_eq!(value(call(&forever, json!({})).await).value, json!(2));
}

#[tokio::test(start_paused = true)]
async fn a_streamed_result_that_takes_too_long_is_ended_behind_its_news() {
    let tool = Scripted::new(|_, _| async {
        let news = (0..10).map(|n| Ok(ToolItem::Progress(json!(n))));
        let slow = futures::stream::iter(news).then(|item| async move {
            tokio::time::sleep(SECOND).await;
            item
        });
        Ok(ToolOutput::Stream(Box::pin(slow)))
    });
    let tool = tool.tool.layered(Timeout::new(Duration::from_millis(2_500)));
    let seen = items(call(&tool, json!({})).await).await;
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1], Ok(ToolItem::Progress(json!(1))));
    assert!(seen[2].as_ref().unwrap_err().contains("2.5 s"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_limit_counts_against_a_timeout_further_out() {
    let limit = RateLimit::new(quota(0.1, 1)).max_wait(100 * SECOND);
    let tool = Scripted::numbers();
    let layered = tool.tool.clone().layered_with([Arc::new(Timeout::new(SECOND)), Arc::new(limit)]);
    call(&layered, json!({})).await.unwrap();
    assert_eq!(error(call(&layered, json!({})).await).kind(), ErrorKind::Timeout);
    assert_eq!(tool.calls(), 1);
}
