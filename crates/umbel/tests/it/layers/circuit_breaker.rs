//! No calls for a while of what keeps failing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use umbel::{
    CallScope, CircuitBreaker, Error, ErrorKind, Layered, Tool, ToolContext, ToolError, ToolItem, ToolOutput,
    ToolResult, ToolValue,
};

use super::{Scripted, call, call_in, error, items, streamed};

const SECOND: Duration = Duration::from_secs(1);

/// A tool that fails while it is told to.
fn switched(broken: &Arc<AtomicBool>) -> Scripted {
    let broken = broken.clone();
    Scripted::new(move |_, _| {
        let broken = broken.load(Ordering::SeqCst);
        async move { if broken { Err(ToolError::new("down")) } else { Ok(json!("up").into()) } }
    })
}

async fn kind(tool: &Arc<dyn Tool>) -> Option<ErrorKind> {
    call(tool, json!({})).await.err().map(|e| e.error().kind())
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_for_thirty_seconds() {
    let broken = Arc::new(AtomicBool::new(true));
    let tool = switched(&broken);
    let guarded = tool.tool.clone().layered(CircuitBreaker::new());
    for _ in 0..5 {
        assert_eq!(kind(&guarded).await, Some(ErrorKind::Tool));
    }
    tokio::time::advance(10 * SECOND).await;
    let refused = error(call(&guarded, json!({})).await);
    assert_eq!((refused.kind(), refused.retry_after()), (ErrorKind::CircuitOpen, Some(20 * SECOND)));
    assert_eq!(tool.calls(), 5);
    // Refusals do not keep it open: half a minute after the last failure one call is let through.
    broken.store(false, Ordering::SeqCst);
    tokio::time::advance(20 * SECOND).await;
    for _ in 0..10 {
        assert_eq!(kind(&guarded).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_begins_the_row_anew() {
    let tool = Scripted::new(|n, _| async move {
        if n % 2 == 0 { Err(ToolError::new("down")) } else { Ok(json!(n).into()) }
    });
    let guarded = tool.tool.clone().layered(CircuitBreaker::new().in_a_row(2));
    for _ in 0..10 {
        assert_ne!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
    }
}

#[tokio::test(start_paused = true)]
async fn failures_within_a_window_open_it_whatever_succeeds_in_between() {
    let tool = || {
        Scripted::new(|n, _| async move {
            if n % 2 == 0 { Err(ToolError::new("down")) } else { Ok(json!(n).into()) }
        })
    };
    let breaker = || CircuitBreaker::new().within(3, 10 * SECOND);
    let guarded = tool().tool.layered(breaker());
    for expected in [true, false, true, false, true] {
        assert_eq!(kind(&guarded).await.is_some(), expected);
    }
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
    // Failures that are further apart do not.
    let guarded = tool().tool.layered(breaker());
    for _ in 0..20 {
        assert_ne!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
        tokio::time::advance(4 * SECOND).await;
    }
}

/// A circuit that is about to let one call through.
async fn half_open(script: fn(usize) -> ToolResult) -> (Scripted, Arc<dyn Tool>) {
    let tool = Scripted::new(move |n, _| async move {
        tokio::time::sleep(SECOND).await;
        if n == 0 { Err(ToolError::new("down")) } else { script(n) }
    });
    let guarded = tool.tool.clone().layered(CircuitBreaker::new().in_a_row(1).open_for(5 * SECOND));
    assert_eq!(kind(&guarded).await, Some(ErrorKind::Tool));
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
    tokio::time::advance(5 * SECOND).await;
    (tool, guarded)
}

#[tokio::test(start_paused = true)]
async fn one_call_and_no_more_is_let_through_to_see() {
    let (tool, guarded) = half_open(|n| Ok(json!(n).into())).await;
    let results = futures::future::join_all((0..10).map(|_| call(&guarded, json!({})))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    for refused in results.into_iter().filter(Result::is_err) {
        let refused = error(refused);
        assert_eq!((refused.kind(), refused.retry_after()), (ErrorKind::CircuitOpen, Some(SECOND)));
    }
    assert_eq!(tool.calls(), 2);
    assert_eq!(kind(&guarded).await, None, "all is as before");
}

#[tokio::test(start_paused = true)]
async fn if_that_one_fails_the_while_begins_again() {
    let (tool, guarded) = half_open(|_| Err(ToolError::new("still down"))).await;
    assert_eq!(kind(&guarded).await, Some(ErrorKind::Tool));
    tokio::time::advance(4 * SECOND).await;
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
    tokio::time::advance(SECOND).await;
    assert_eq!(kind(&guarded).await, Some(ErrorKind::Tool));
    assert_eq!(tool.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn if_that_one_is_dropped_or_asks_a_person_another_one_sees() {
    let (tool, guarded) =
        half_open(|n| if n < 3 { Err(Error::interrupt("May I?").into()) } else { Ok(json!(n).into()) }).await;
    let mut dropped = Box::pin(call(&guarded, json!({})));
    assert!(futures::poll!(&mut dropped).is_pending());
    drop(dropped);
    assert_eq!(kind(&guarded).await, Some(ErrorKind::Interrupted));
    assert_eq!(kind(&guarded).await, None);
    assert_eq!(tool.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_began_before_tells_nothing_about_after() {
    let tool = Scripted::new(|n, _| async move {
        tokio::time::sleep(if n == 0 { 10 * SECOND } else { SECOND }).await;
        if n == 0 { Ok(json!(n).into()) } else { Err(ToolError::new("down")) }
    });
    let guarded = tool.tool.clone().layered(CircuitBreaker::new().in_a_row(1));
    let (first, second) = tokio::join!(call(&guarded, json!({})), call(&guarded, json!({})));
    assert!(first.is_ok() && second.is_err());
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
}

#[tokio::test]
async fn what_is_no_breakdown_does_not_count() {
    let failures: [fn() -> ToolResult; 5] = [
        || Err(ToolError::invalid_arguments("no such city")),
        || Err(Error::new(ErrorKind::RateLimited, "slow down").into()),
        || Err(Error::new(ErrorKind::CircuitOpen, "open").into()),
        || Err(Error::interrupt("May I?").into()),
        || Err(Error::new(ErrorKind::Cancelled, "stop").into()),
    ];
    for failure in failures {
        let tool = Scripted::new(move |_, _| async move { failure() });
        let guarded = tool.tool.clone().layered(CircuitBreaker::new().in_a_row(1));
        for _ in 0..3 {
            assert!(call(&guarded, json!({})).await.is_err());
        }
        assert_eq!(tool.calls(), 3);
    }
    let tool = Scripted::failing(10);
    let guarded = tool.tool.clone().layered(CircuitBreaker::new().in_a_row(1).counts(|_| false));
    for _ in 0..3 {
        assert_eq!(kind(&guarded).await, Some(ErrorKind::Tool));
    }
}

#[tokio::test]
async fn a_result_that_says_it_is_an_error_counts_and_so_does_the_end_of_a_stream() {
    let bad = || ToolValue { is_error: true, ..json!("no").into() };
    let tool = Scripted::new(move |_, _| async move { Ok(ToolOutput::from(bad())) });
    let guarded = tool.tool.layered(CircuitBreaker::new().in_a_row(1));
    call(&guarded, json!({})).await.unwrap();
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
    let tool = Scripted::new(move |_, _| async move { streamed([ToolItem::Done(bad())]) });
    let guarded = tool.tool.layered(CircuitBreaker::new().in_a_row(1));
    items(call(&guarded, json!({})).await).await;
    assert_eq!(kind(&guarded).await, Some(ErrorKind::CircuitOpen));
}

#[tokio::test]
async fn tools_have_circuits_of_their_own_unless_told_otherwise() {
    for (scope, expected) in [(CallScope::Tool, None), (CallScope::All, Some(ErrorKind::CircuitOpen))] {
        let breaker = Arc::new(CircuitBreaker::new().in_a_row(1).per(scope));
        let broken = Scripted::named("broken", |_, _| async { Err(ToolError::new("down")) });
        let broken = broken.tool.layered(breaker.clone());
        let cx = ToolContext::detached("broken").unwrap();
        assert!(call_in(&broken, &cx, json!({})).await.is_err());
        assert_eq!(kind(&Scripted::numbers().tool.layered(breaker)).await, expected);
    }
}
