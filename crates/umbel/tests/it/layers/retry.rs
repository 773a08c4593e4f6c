//! Another try for a call that failed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use tokio::time::Instant;
use umbel::backoff::Backoff;
use umbel::{
    Caching, CancelReason, CircuitBreaker, Error, ErrorKind, Layered, LlmAgent, ModelErrorKind, Runner,
    ScriptedModel, ToolError, ToolItem, ToolOutput, ToolRetry,
};

use super::{Scripted, call, call_in, context, error, items, value};

const SECOND: Duration = Duration::from_secs(1);

fn plain() -> ToolRetry {
    ToolRetry::new().backoff(Backoff::new().jitter(false))
}

/// The times between the calls of a tool, in seconds.
async fn delays(tool: &Scripted, retry: ToolRetry) -> (Vec<f64>, umbel::ToolResult) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = times.clone();
    let clock = umbel::layer_fn("clock", move |call, next| {
        noted.lock().unwrap().push(Instant::now());
        umbel::Work::later(next.call(call))
    });
    let tool = tool.tool.clone().layered_with([Arc::new(retry), Arc::new(clock)]);
    let result = call(&tool, json!({})).await;
    let times = times.lock().unwrap();
    let delays = times.windows(2).map(|pair| ((pair[1] - pair[0]).as_secs_f64() * 1e3).round() / 1e3);
    (delays.collect(), result)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_tried_twice_more_after_one_and_two_seconds() {
    let (waited, result) = delays(&Scripted::failing(2), plain()).await;
    assert_eq!((waited, value(result).value), (vec![1.0, 2.0], json!(2)));
    let (waited, result) = delays(&Scripted::failing(0), plain()).await;
    assert_eq!((waited, value(result).value), (vec![], json!(0)));
}

#[tokio::test(start_paused = true)]
async fn when_all_tries_are_used_up_the_model_is_told() {
    let (waited, result) = delays(&Scripted::failing(9), plain()).await;
    assert_eq!(waited, [1.0, 2.0]);
    let told = value(result);
    assert!(told.is_error);
    let words = told.value["error"].as_str().unwrap();
    for part in ["probe", "3 times", "TOOL_FAILED", "failure 2"] {
        assert!(words.contains(part), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn or_the_last_error_is_the_calls_or_words_of_ones_own() {
    let (_, result) = delays(&Scripted::failing(9), plain().or_fail()).await;
    assert_eq!(error(result).message(), "failure 2");
    let own = plain().max_retries(1).or_say(|error| format!("no luck: {}", error.message()));
    let (_, result) = delays(&Scripted::failing(9), own).await;
    let told = value(result);
    assert!(told.is_error);
    assert_eq!(told.value, json!({"error": "no luck: failure 1"}));
    let (waited, result) = delays(&Scripted::failing(9), plain().max_retries(0)).await;
    assert!(waited.is_empty());
    assert!(value(result).value["error"].as_str().unwrap().contains("tried once"));
}

#[tokio::test(start_paused = true)]
async fn waits_follow_the_backoff_and_its_draw() {
    let (initial, max) = (Duration::from_millis(250), Duration::from_millis(750));
    let backoff = Backoff::new().initial(initial).max(max).jitter(false);
    let (waited, _) = delays(&Scripted::failing(3), ToolRetry::new().max_retries(3).backoff(backoff)).await;
    assert_eq!(waited, [0.25, 0.5, 0.75]);
    let (waited, _) =
        delays(&Scripted::failing(9), ToolRetry::new().backoff(Backoff::new().draw(|| 0.0))).await;
    assert_eq!(waited, [0.75, 1.5]);
    let (waited, _) = delays(&Scripted::failing(9), ToolRetry::new()).await;
    assert!((0.75..=1.25).contains(&waited[0]) && (1.5..=2.5).contains(&waited[1]), "{waited:?}");
}

#[tokio::test]
async fn a_wait_of_nothing_needs_no_clock() {
    let none = Backoff::new().initial(Duration::ZERO);
    let started = std::time::Instant::now();
    let (_, result) = delays(&Scripted::failing(2), ToolRetry::new().backoff(none)).await;
    assert_eq!(value(result).value, json!(2));
    assert!(started.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn only_some_tools_are_tried_again() {
    for (listed, calls) in [("probe", 2), ("another", 1)] {
        let tool = Scripted::failing(1);
        let (_, result) = delays(&tool, plain().tools([listed])).await;
        assert_eq!((tool.calls(), result.is_ok()), (calls, calls == 2), "{listed}");
    }
}

fn failing_with(failure: fn() -> Error) -> Scripted {
    Scripted::new(move |n, _| async move { if n == 0 { Err(failure().into()) } else { Ok(json!(n).into()) } })
}

#[tokio::test(start_paused = true)]
async fn only_some_failures_are_worth_another_try_and_the_others_pass() {
    let cases: [(fn() -> Error, bool); 9] = [
        (|| Error::new(ErrorKind::Timeout, "late"), true),
        (|| Error::new(ErrorKind::Panic, "oh"), true),
        (|| Error::new(ErrorKind::Model(ModelErrorKind::Transport), "cut"), true),
        (|| Error::new(ErrorKind::InvalidInput, "no city"), false),
        (|| Error::new(ErrorKind::Blocked, "secret"), false),
        (|| Error::new(ErrorKind::Unsupported, "later"), false),
        (|| Error::new(ErrorKind::DepthLimit, "deep"), false),
        (|| Error::interrupt("May I?"), false),
        (|| Error::new(ErrorKind::Cancelled, "stop"), false),
    ];
    for (failure, again) in cases {
        let tool = failing_with(failure);
        let (_, result) = delays(&tool, plain()).await;
        assert_eq!((tool.calls() == 2, result.is_ok()), (again, again), "{:?}", failure());
        if let Err(error) = result {
            assert_eq!(error.error().kind(), failure().kind());
        }
    }
    let tool = Scripted::failing(1);
    let (_, result) = delays(&tool, plain().retry_on(|error| error.kind() == ErrorKind::Timeout)).await;
    assert_eq!((tool.calls(), error(result).kind()), (1, ErrorKind::Tool));
    // Not even one who asks for it gets another try after a question or a cancellation.
    let tool = failing_with(|| Error::interrupt("May I?"));
    let (_, result) = delays(&tool, plain().retry_on(|_| true)).await;
    assert_eq!((tool.calls(), error(result).kind()), (1, ErrorKind::Interrupted));
}

/// The kinds of errors that a new try may change. All others pass.
const RETRIED: [ErrorKind; 17] = [
    ErrorKind::SessionBusy,
    ErrorKind::SessionAbandoned,
    ErrorKind::StaleSession,
    ErrorKind::Timeout,
    ErrorKind::StreamCut,
    ErrorKind::Model(ModelErrorKind::RateLimited),
    ErrorKind::Model(ModelErrorKind::Overloaded),
    ErrorKind::Model(ModelErrorKind::Transport),
    ErrorKind::Model(ModelErrorKind::Other),
    ErrorKind::Tool,
    ErrorKind::InvalidOutput,
    ErrorKind::Handler,
    ErrorKind::RateLimited,
    ErrorKind::CircuitOpen,
    ErrorKind::Panic,
    ErrorKind::Store,
    ErrorKind::Other,
];

#[tokio::test(start_paused = true)]
async fn each_kind_of_error_is_tried_again_or_passes() {
    for kind in ErrorKind::ALL.iter().copied() {
        let again = RETRIED.contains(&kind);
        let tool = Scripted::new(move |n, _| async move {
            if n == 0 { Err(Error::new(kind, "no").into()) } else { Ok(json!(n).into()) }
        });
        let (_, result) = delays(&tool, plain()).await;
        assert_eq!((tool.calls(), result.is_ok()), (1 + usize::from(again), again), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_makes_of_an_error_is_judged_by_that_error() {
    for kind in ErrorKind::ALL.iter().copied().filter(|kind| *kind != ErrorKind::Handler) {
        let again = RETRIED.contains(&kind);
        let tool = Scripted::new(move |n, _| async move {
            let failed =
                Error::new(ErrorKind::Handler, "a plugin failed").with_source(Error::new(kind, "no"));
            if n == 0 { Err(failed.into()) } else { Ok(json!(n).into()) }
        });
        let (_, result) = delays(&tool, plain()).await;
        assert_eq!((tool.calls(), result.is_ok()), (1 + usize::from(again), again), "{kind:?}");
    }
}

#[test]
fn a_backoff_of_a_tool_retry_that_makes_no_sense_fails_the_build() {
    let wrong = [
        (Backoff::new().factor(-1.0), "factor"),
        (Backoff::new().factor(f64::NAN), "factor"),
        (Backoff::new().factor(f64::INFINITY), "factor"),
    ];
    for (backoff, words) in wrong {
        let retry = ToolRetry::new().backoff(backoff);
        let agent = || LlmAgent::new("a").model(ScriptedModel::new("m"));
        let layered = Scripted::failing(0).tool.clone().layered(retry.clone());
        for agent in [
            agent().handler(retry.clone()),
            agent().tool_layer(retry),
            agent().tool(layered.clone()),
            agent().tool(layered.layered(Caching::new())),
        ] {
            let error = Runner::new("app", agent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Build);
            assert!(error.message().contains("tool_retry") && error.message().contains(words), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_says_when_to_try_again_is_believed() {
    let slow_down = || Error::new(ErrorKind::RateLimited, "slow down");
    let tool = Scripted::new(move |n, _| async move {
        match n {
            0 => Err(slow_down().with_retry_after(7 * SECOND).into()),
            1 => Err(slow_down().with_retry_after(SECOND).into()),
            _ => Err(slow_down().with_retry_after(61 * SECOND).into()),
        }
    });
    let (waited, result) = delays(&tool, plain().max_retries(9).or_fail()).await;
    assert_eq!(waited, [7.0, 2.0], "the longer of both, and none that is too long");
    assert_eq!(error(result).kind(), ErrorKind::RateLimited);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_while_it_waits_makes_no_more_tries() {
    for (reason, kind) in
        [(CancelReason::Asked, ErrorKind::Cancelled), (CancelReason::Deadline, ErrorKind::Timeout)]
    {
        let tool = Scripted::failing(9);
        let layered = tool.tool.clone().layered(plain());
        let cx = context();
        let mut waiting = Box::pin(call_in(&layered, &cx, json!({})));
        assert!(futures::poll!(&mut waiting).is_pending());
        cx.run().cancel_token().cancel(reason);
        let started = Instant::now();
        assert_eq!(error(waiting.await).kind(), kind);
        assert_eq!((started.elapsed(), tool.calls()), (Duration::ZERO, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_out_of_time_is_no_failure_of_its_tool() {
    let tool = Scripted::new(|_, _| async { Err(CancelReason::Deadline.error().into()) });
    let layered = tool.tool.clone().layered(plain());
    let cx = context();
    cx.run().cancel_token().cancel(CancelReason::Deadline);
    assert_eq!(error(call_in(&layered, &cx, json!({})).await).kind(), ErrorKind::Timeout);
    assert_eq!(tool.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_began_is_not_begun_again() {
    let tool = Scripted::new(|n, _| async move {
        if n == 0 {
            return Err(ToolError::new("cannot begin"));
        }
        let items = [Ok(ToolItem::Progress(json!(1))), Err(ToolError::new("broke off"))];
        Ok(ToolOutput::Stream(futures::stream::iter(items).boxed()))
    });
    let (waited, result) = delays(&tool, plain()).await;
    assert_eq!(waited, [1.0]);
    assert_eq!(items(result).await, [Ok(ToolItem::Progress(json!(1))), Err("broke off".to_owned())]);
    assert_eq!(tool.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_further_in_is_waited_for() {
    let tool = Scripted::failing(1);
    let breaker = CircuitBreaker::new().in_a_row(1).open_for(5 * SECOND);
    let layered = tool.tool.clone().layered_with([Arc::new(plain()), Arc::new(breaker)]);
    let started = Instant::now();
    // Tried at 0 s (fails), at 1 s (open for 4 s more), and at 5 s.
    assert_eq!(value(call(&layered, json!({})).await).value, json!(1));
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_tool_is_a_failure_like_any() {
    let tool = Scripted::new(|n, _| async move {
        assert!(n > 0, "the first call panics");
        Ok(json!(n).into())
    });
    let (_, result) = delays(&tool, plain()).await;
    assert_eq!(value(result).value, json!(1));
}
