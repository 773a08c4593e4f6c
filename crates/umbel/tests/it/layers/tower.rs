//! Any `tower::Layer` as a layer, with real ones.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tower::retry::Policy;
use tower::{BoxError, ServiceBuilder};
use umbel::layers::ToolRequest;
use umbel::{
    CancelReason, Error, ErrorKind, Layered, ToolError, ToolItem, ToolOutput, ToolResult, tower_layer,
};

use super::{Scripted, call, call_in, context, error, items, streamed, value};
use crate::support::object;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_a_call_and_drops_it() {
    let tool = Scripted::slow(3 * SECOND);
    let stack = ServiceBuilder::new().timeout(SECOND);
    let layered = tool.tool.clone().layered(tower_layer("timeout", stack));
    let started = Instant::now();
    let failed = error(call(&layered, json!({})).await);
    assert_eq!((failed.kind(), started.elapsed()), (ErrorKind::Tool, SECOND));
    let source = std::error::Error::source(&failed).expect("the stack's own error");
    assert!(source.is::<tower::timeout::error::Elapsed>());
    let quick = Scripted::numbers();
    let stack = ServiceBuilder::new().timeout(SECOND);
    let layered = quick.tool.clone().layered(tower_layer("timeout", stack));
    assert_eq!(value(call(&layered, json!({})).await).value, json!(0));
}

#[tokio::test(start_paused = true)]
async fn a_limit_holds_over_all_calls() {
    let stack = ServiceBuilder::new().concurrency_limit(2);
    let tool = Scripted::slow(SECOND).tool.layered(tower_layer("two", stack));
    let started = Instant::now();
    for result in futures::future::join_all((0..6).map(|_| call(&tool, json!({})))).await {
        result.unwrap();
    }
    assert_eq!(started.elapsed().as_secs(), 3);
    // A service that cannot be cloned.
    let stack = ServiceBuilder::new().rate_limit(1, SECOND);
    let tool = Scripted::numbers().tool.layered(tower_layer("slow", stack));
    let started = Instant::now();
    for result in futures::future::join_all((0..3).map(|_| call(&tool, json!({})))).await {
        result.unwrap();
    }
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_while_it_waits_leaves_its_place() {
    let stack = ServiceBuilder::new().concurrency_limit(1);
    let tool = Scripted::slow(SECOND).tool.layered(tower_layer("one", stack));
    let mut first = Box::pin(call(&tool, json!({})));
    let mut gone = Box::pin(call(&tool, json!({})));
    let mut third = Box::pin(call(&tool, json!({})));
    for call in [&mut first, &mut gone, &mut third] {
        assert!(futures::poll!(call).is_pending());
    }
    drop(gone);
    let started = Instant::now();
    let (first, third) = tokio::join!(first, third);
    assert!(first.is_ok() && third.is_ok());
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_too_much_is_shed() {
    let stack = ServiceBuilder::new().load_shed().concurrency_limit(1);
    let tool = Scripted::slow(SECOND).tool.layered(tower_layer("shed", stack));
    let (first, second) = tokio::join!(call(&tool, json!({})), call(&tool, json!({})));
    assert!(first.is_ok());
    let shed = error(second);
    assert!(std::error::Error::source(&shed).unwrap().is::<tower::load_shed::error::Overloaded>());
    call(&tool, json!({})).await.unwrap();
}

/// Tries again, whatever the error.
#[derive(Clone)]
struct Stubborn(usize);

impl<E> Policy<ToolRequest, ToolOutput, E> for Stubborn {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut ToolRequest, result: &mut Result<ToolOutput, E>) -> Option<Ready<()>> {
        (result.is_err() && self.0 > 0).then(|| {
            self.0 -= 1;
            ready(())
        })
    }

    fn clone_request(&mut self, request: &ToolRequest) -> Option<ToolRequest> {
        Some(request.clone())
    }
}

#[tokio::test]
async fn a_retry_of_tower_tries_again() {
    let tool = Scripted::failing(2);
    let stack = ServiceBuilder::new().retry(Stubborn(2));
    let layered = tool.tool.clone().layered(tower_layer("retry", stack));
    assert_eq!(value(call(&layered, json!({"q": 1})).await).value, json!(2));
    assert_eq!(*tool.seen.lock().unwrap(), vec![json!({"q": 1}); 3]);
    let tool = Scripted::failing(9);
    let stack = ServiceBuilder::new().retry(Stubborn(2));
    let failed = error(call(&tool.tool.clone().layered(tower_layer("retry", stack)), json!({})).await);
    assert_eq!((failed.message(), tool.calls()), ("failure 2", 3));
}

#[tokio::test]
async fn e4_no_stack_tries_again_or_sees_what_is_no_failure() {
    for kind in [ErrorKind::Interrupted, ErrorKind::Cancelled] {
        let tool = Scripted::new(move |_, _| async move { Err(Error::new(kind, "stop").into()) });
        let stack = ServiceBuilder::new().map_err(|_: BoxError| -> BoxError { "swallowed".into() });
        let stack = stack.map_err(|e: Error| -> BoxError { e.into() }).retry(Stubborn(5));
        let layered = tool.tool.clone().layered(tower_layer("stubborn", stack));
        let stopped = error(call(&layered, json!({})).await);
        assert_eq!((stopped.kind(), stopped.message(), tool.calls()), (kind, "stop", 1));
    }
}

#[tokio::test]
async fn requests_and_results_can_be_mapped() {
    let tool = Scripted::new(|_, args| async move { Ok(args.into()) });
    let stack = ServiceBuilder::new()
        .map_request(|mut request: ToolRequest| {
            assert_eq!(
                (request.name.as_str(), request.call_id.as_ref().unwrap().as_str()),
                ("probe", "call")
            );
            request.args = Arc::new(object(json!({"mapped": true})));
            request
        })
        .map_response(|output| match output {
            ToolOutput::Value(value) => json!([value.value]).into(),
            other => other,
        });
    let layered = tool.tool.layered(tower_layer("map", stack));
    assert_eq!(value(call(&layered, json!({})).await).value, json!([{"mapped": true}]));
}

#[tokio::test]
async fn a_streamed_result_passes_a_stack() {
    let all = || [ToolItem::Progress(json!(1)), ToolItem::Done(json!(2).into())];
    let tool = Scripted::new(move |_, _| async move { streamed(all()) });
    let layered = tool.tool.layered(tower_layer("timeout", ServiceBuilder::new().timeout(SECOND)));
    assert_eq!(items(call(&layered, json!({})).await).await, all().map(Ok));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_does_not_wait_in_a_stack() {
    let stack = ServiceBuilder::new().concurrency_limit(1);
    let tool = Scripted::slow(10 * SECOND).tool.layered(tower_layer("one", stack));
    let mut first = Box::pin(call(&tool, json!({})));
    assert!(futures::poll!(&mut first).is_pending());
    let cx = context();
    let mut waiting = Box::pin(call_in(&tool, &cx, json!({})));
    assert!(futures::poll!(&mut waiting).is_pending());
    cx.run().cancel_token().cancel(CancelReason::Asked);
    let started = Instant::now();
    assert_eq!(error(waiting.await).kind(), ErrorKind::Cancelled);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(first.await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_may_work_elsewhere() {
    // A buffer works in a task of its own.
    let stack = ServiceBuilder::new().buffer(8).concurrency_limit(2);
    let tool = Scripted::new(|_, args| async move { Ok(args.into()) });
    let tool = tool.tool.layered(tower_layer("buffer", stack));
    let calls = (0..20).map(|n| {
        let tool = tool.clone();
        tokio::spawn(async move { (n, value(call(&tool, json!({"n": n})).await).value) })
    });
    for result in futures::future::join_all(calls).await {
        let (n, value) = result.unwrap();
        assert_eq!(value, json!({"n": n}));
    }
}

#[tokio::test]
async fn an_error_of_the_tool_comes_out_as_it_went_in() {
    let tool = Scripted::new(|_, _| async { Err(ToolError::invalid_arguments("no such city")) });
    let layered = tool.tool.layered(tower_layer("timeout", ServiceBuilder::new().timeout(SECOND)));
    let result: ToolResult = call(&layered, json!({})).await;
    assert_eq!(error(result).kind(), ErrorKind::InvalidInput);
}
