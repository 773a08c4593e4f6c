//! The tests that every layer has to pass: [`layer_contract!`](crate::layer_contract) runs them on one of yours.
//!
//! Each check makes a layer, puts it around a tool of its own, and says in words what the layer does wrong.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use umbel_core::{
    BoxFuture, CancelReason, Error, ErrorKind, FunctionTool, Guarded, Handler, NextTool, Tool, ToolCall,
    ToolContext, ToolEnd, ToolError, ToolItem, ToolOutput, ToolResult, ToolSpec, Work,
};

/// Makes a test module that checks a layer.
///
/// It is given an expression that makes the layer anew for each test, with limits wide enough for some hundred calls a
/// second and waits of a few milliseconds. A name goes before it if a file has several. A layer that changes arguments on
/// purpose says `changes_arguments` behind it.
///
/// ```
/// umbel_runtime::layer_contract!(umbel_runtime::layers::Caching::new());
///
/// mod limits {
///     use umbel_runtime::layers::{Concurrency, Timeout};
///     umbel_runtime::layer_contract!(two_at_once: Concurrency::new(2).unwrap());
///     umbel_runtime::layer_contract!(a_minute: Timeout::new(std::time::Duration::from_secs(60)));
/// }
/// ```
#[macro_export]
macro_rules! layer_contract {
    ($name:ident: $layer:expr) => {
        $crate::layer_contract!(@checks $name, $layer, arguments_pass_unchanged);
    };
    ($name:ident: $layer:expr, changes_arguments) => {
        $crate::layer_contract!(@checks $name, $layer,);
    };
    (@checks $name:ident, $layer:expr, $($more:ident)?) => {
        $crate::layer_contract!(@tests $name, $layer,
            an_interrupt_passes_untouched
            a_cancelled_call_passes_untouched
            a_run_that_is_cancelled_ends_every_call
            a_streamed_result_passes_with_its_news
            a_panic_leaves_nothing_locked
            a_dropped_call_leaves_nothing_behind
            a_dropped_stream_leaves_nothing_behind
            a_dropped_call_does_not_take_others_along
            concurrent_calls_keep_their_results
            those_further_in_see_what_was_put_in
            a_call_of_an_unknown_tool_is_no_success
            $($more)?
        );
    };
    (@tests $name:ident, $layer:expr, $($check:ident)*) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(#[test]
            fn $check() -> ::std::result::Result<(), ::std::string::String> {
                $crate::layers::contract::$check(&|| ::std::sync::Arc::new($layer))
            })*
        }
    };
    ($layer:expr $(, $option:ident)?) => {
        $crate::layer_contract!(layer_contract: $layer $(, $option)?);
    };
}

/// What a check says: nothing, or what is wrong.
type Verdict = Result<(), String>;

/// Makes the layer.
type Make<'a> = &'a dyn Fn() -> Arc<dyn Handler>;

/// Longer than any call of a check may take.
const PATIENCE: Duration = Duration::from_secs(2);

fn run(check: impl Future<Output = Verdict>) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|e| format!("no runtime: {e}"))?.block_on(check)
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// The future's value, if it does not hang.
async fn in_time<F: Future>(what: &str, future: F) -> Result<F::Output, String> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_| format!("{what} hangs"))
}

/// What the tool of a check does, given how many calls came before.
type Script = dyn for<'a> Fn(usize, ToolCall<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync;

/// A layer around a tool.
struct Stage {
    layers: [Arc<dyn Handler>; 1],
    tool: Arc<dyn Tool>,
    cx: ToolContext,
    probe: Probe,
}

/// The centre of the onion: the tool, guarded as a run guards it.
struct Probe {
    script: Box<Script>,
    guarded: bool,
    /// How often it was called.
    calls: AtomicUsize,
    /// How many calls are on their way.
    running: Arc<AtomicUsize>,
}

impl Stage {
    fn new(
        make: Make<'_>,
        script: impl for<'a> Fn(usize, ToolCall<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let spec = ToolSpec {
            read_only: true,
            idempotent: true,
            ..ToolSpec::new("probe", "Is called by a check.", json!({"type": "object"}))
        };
        // The layer gets to see it, and the probe is called in its place.
        let tool = FunctionTool::raw(spec, |_, _| Box::pin(async { Ok(Value::Null.into()) }));
        Ok(Self {
            layers: [make()],
            tool: Arc::new(tool),
            cx: ToolContext::detached("probe").map_err(|e| e.to_string())?,
            probe: Probe {
                script: Box::new(script),
                guarded: true,
                calls: AtomicUsize::new(0),
                running: Arc::default(),
            },
        })
    }

    fn call(&self, args: &Value) -> Guarded<'_, ToolResult> {
        let args = Arc::new(args.as_object().cloned().unwrap_or_default());
        self.make_call(ToolCall::new(&self.cx, Some(&self.tool), args))
    }

    fn make_call<'a>(&'a self, call: ToolCall<'a>) -> Guarded<'a, ToolResult> {
        NextTool::new(&self.layers, &self.probe).call(call)
    }

    fn calls(&self) -> usize {
        self.probe.calls.load(Ordering::SeqCst)
    }

    /// A whole call, which has to succeed.
    async fn succeeds(&self, when: &str, args: &Value) -> Result<Value, String> {
        match in_time(&format!("a call {when}"), self.call(args)).await? {
            Ok(ToolOutput::Value(value)) if !value.is_error => Ok(value.value),
            other => Err(format!("a call {when} should succeed, but gave {other:?}")),
        }
    }
}

impl ToolEnd for Probe {
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult> {
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        let running = Running::new(&self.running);
        if !self.guarded {
            return Work::later(async move {
                let _running = running;
                (self.script)(before, call).await
            });
        }
        Work::later(async move {
            let _running = running;
            let token = call.run().cancel_token();
            let work = async { (self.script)(before, call).await };
            match token.guard(pin!(AssertUnwindSafe(work).catch_unwind())).await? {
                Ok(result) => result,
                Err(panic) => Err(Error::from_panic("tool `probe`", panic.as_ref()).into()),
            }
        })
    }
}

struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits so many times, whoever asks.
async fn pause(times: usize) {
    for _ in 0..times {
        let mut waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Asks a future so many times; its value, if that was enough.
fn poll_times<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

fn stream(items: Vec<Result<ToolItem, ToolError>>) -> ToolResult {
    Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items))))
}

async fn echo(call: ToolCall<'_>, pauses: usize) -> ToolResult {
    pause(pauses).await;
    Ok(call.args.get("n").cloned().unwrap_or_default().into())
}

/// The items of a streamed result, errors by kind and words.
async fn items(result: ToolResult) -> Result<Vec<Result<ToolItem, (ErrorKind, String)>>, String> {
    match result {
        Ok(ToolOutput::Stream(items)) => {
            let words = |e: ToolError| (e.error().kind(), e.error().message().to_owned());
            in_time("a streamed result", items.map(|item| item.map_err(words)).collect()).await
        }
        other => Err(format!("a streamed result should pass as it is, but became {other:?}")),
    }
}

/// Whether a control outcome comes out as it went in, after one call: as a result, and at the end of a stream.
async fn passes(make: Make<'_>, outcome: fn() -> Error) -> Verdict {
    let expected = outcome();
    let stage = Stage::new(make, move |_, _| Box::pin(async move { Err(outcome().into()) }))?;
    match in_time("the call", stage.call(&json!({}))).await? {
        Err(e) if e.error().kind() == expected.kind() && e.error().message() == expected.message() => {}
        other => return Err(format!("{expected:?} should pass as it is, but became {other:?}")),
    }
    ensure(stage.calls() == 1, || format!("{expected:?} was tried {} times", stage.calls()))?;
    let news = || ToolItem::Progress(json!(1));
    let stage = Stage::new(make, move |_, _| {
        Box::pin(async move { stream(vec![Ok(news()), Err(outcome().into())]) })
    })?;
    let items = items(in_time("the call", stage.call(&json!({}))).await?).await?;
    let end = (expected.kind(), expected.message().to_owned());
    ensure(items == [Ok(news()), Err(end)], || {
        format!("{expected:?} at the end of a stream became {items:?}")
    })
}

/// A question to a person is no failure.
pub fn an_interrupt_passes_untouched(make: Make<'_>) -> Verdict {
    run(passes(make, || Error::interrupt("May I?")))
}

/// Nor is the end of a run.
pub fn a_cancelled_call_passes_untouched(make: Make<'_>) -> Verdict {
    run(passes(make, || CancelReason::Asked.error()))
}

/// A run that is told to stop stops: calls that are on their way, and those that wait in the layer.
pub fn a_run_that_is_cancelled_ends_every_call(make: Make<'_>) -> Verdict {
    run(async {
        for reason in [CancelReason::Asked, CancelReason::Deadline] {
            let stage = Stage::new(make, |_, _| Box::pin(std::future::pending()))?;
            let args = (0..32).map(|n| json!({"n": n % 16})).collect::<Vec<_>>();
            let mut calls: FuturesUnordered<_> = args.iter().map(|args| stage.call(args)).collect();
            // Those that the layer refuses are done before.
            while let Ok(Some(refused)) = tokio::time::timeout(Duration::from_millis(20), calls.next()).await
            {
                ensure(refused.is_err(), || format!("nothing was there to give, but it gave {refused:?}"))?;
            }
            let before = stage.calls();
            stage.cx.run().cancel_token().cancel(reason);
            while let Some(result) = in_time("a call of a cancelled run", calls.next()).await? {
                let kind = result.as_ref().map_err(|e| e.error().kind());
                let right = kind.as_ref().is_err_and(|kind| *kind == reason.error().kind());
                ensure(right, || format!("a call of a run that was cancelled ({reason:?}) gave {result:?}"))?;
            }
            ensure(stage.calls() == before, || "a call was made after the run was cancelled".to_owned())?;
        }
        Ok(())
    })
}

/// A streamed result passes piece by piece.
pub fn a_streamed_result_passes_with_its_news(make: Make<'_>) -> Verdict {
    run(async {
        let given = || (1..4).map(|n| ToolItem::Progress(json!(n)));
        let all = move || given().chain([ToolItem::Done(json!({"n": 4}).into())]).map(Ok).collect();
        let stage = Stage::new(make, move |_, _| Box::pin(async move { stream(all()) }))?;
        let mut items = items(in_time("the call", stage.call(&json!({}))).await?).await?;
        let last = items.pop();
        let news = given().map(Ok).collect::<Vec<_>>();
        ensure(items == news, || format!("the news {news:?} came out as {items:?}"))?;
        match last {
            Some(Ok(ToolItem::Done(value))) if value.value == json!({"n": 4}) => Ok(()),
            other => Err(format!("the end of a streamed result came out as {other:?}")),
        }
    })
}

/// After a panic the next call is as good as any: caught further in, or passing through the layer.
pub fn a_panic_leaves_nothing_locked(make: Make<'_>) -> Verdict {
    run(async {
        for guarded in [true, false] {
            let mut stage = Stage::new(make, |before, call| {
                Box::pin(async move {
                    pause(1).await;
                    if before == 0 {
                        resume_unwind(Box::new("the tool's own fault"))
                    } else {
                        echo(call, 0).await
                    }
                })
            })?;
            stage.probe.guarded = guarded;
            // Whatever the layer makes of it. Tries that a layer makes by itself may succeed.
            let _ = in_time("a call that panics", stage.call(&json!({"n": 1}))).await?;
            let value = stage.succeeds("after a panic", &json!({"n": 1})).await?;
            ensure(value == json!(1), || format!("a call after a panic gave {value}"))?;
        }
        Ok(())
    })
}

/// A call that is dropped, wherever it was, holds nothing any more and does nothing any more.
pub fn a_dropped_call_leaves_nothing_behind(make: Make<'_>) -> Verdict {
    run(async {
        let stage = Stage::new(make, |_, call| Box::pin(echo(call, 3)))?;
        for polls in 0..16 {
            let args = json!({"n": polls});
            let mut done = false;
            // Often enough to use up what leaks.
            for _ in 0..8 {
                let mut call = pin!(stage.call(&args));
                done = poll_times(call.as_mut(), polls).is_some();
            }
            let before = stage.calls();
            tokio::time::sleep(Duration::from_millis(2)).await;
            let when = format!("after calls that were dropped when they had been polled {polls} times");
            ensure(stage.calls() == before, || format!("the tool was called {when}"))?;
            let running = stage.probe.running.load(Ordering::SeqCst);
            ensure(running == 0, || format!("{running} calls are on their way {when}"))?;
            let value = stage.succeeds(&when, &args).await?;
            ensure(value == json!(polls), || format!("a call {when} gave {value}"))?;
            if done {
                return Ok(());
            }
        }
        Ok(())
    })
}

/// A streamed result that nobody reads to its end holds nothing any more.
pub fn a_dropped_stream_leaves_nothing_behind(make: Make<'_>) -> Verdict {
    run(async {
        let stage = Stage::new(make, |before, call| {
            Box::pin(async move {
                if before >= 8 {
                    return echo(call, 0).await;
                }
                let news = futures::stream::iter([Ok(ToolItem::Progress(json!(1)))]);
                Ok(ToolOutput::Stream(Box::pin(news.chain(futures::stream::pending()))))
            })
        })?;
        let args = json!({"n": 1});
        for _ in 0..8 {
            match in_time("the call", stage.call(&args)).await? {
                Ok(ToolOutput::Stream(mut items)) => drop(in_time("the first news", items.next()).await?),
                other => return Err(format!("a streamed result should pass as it is, but became {other:?}")),
            }
        }
        let value = stage.succeeds("after streams that were dropped", &args).await?;
        ensure(value == json!(1), || format!("a call after streams that were dropped gave {value}"))
    })
}

/// Of two calls that are the same, one may be dropped, and the other one goes on.
pub fn a_dropped_call_does_not_take_others_along(make: Make<'_>) -> Verdict {
    run(async {
        let stage = Stage::new(make, |_, call| Box::pin(echo(call, 3)))?;
        for (n, (polls, first_goes)) in (1..4).flat_map(|polls| [(polls, true), (polls, false)]).enumerate() {
            let args = json!({"n": n});
            let (mut first, mut second) = (Box::pin(stage.call(&args)), Box::pin(stage.call(&args)));
            let done = poll_times(first.as_mut(), polls).or_else(|| poll_times(second.as_mut(), polls));
            ensure(done.is_none(), || format!("nothing was there to give, but it gave {done:?}"))?;
            if !first_goes {
                std::mem::swap(&mut first, &mut second);
            }
            drop(first);
            match in_time("a call whose twin was dropped", second).await? {
                Ok(ToolOutput::Value(value)) if value.value == json!(n) => {}
                other => return Err(format!("a call whose twin was dropped gave {other:?}")),
            }
        }
        Ok(())
    })
}

/// Each call gets its own result.
pub fn concurrent_calls_keep_their_results(make: Make<'_>) -> Verdict {
    run(async {
        let stage = Stage::new(make, |before, call| Box::pin(echo(call, before % 5)))?;
        let args = (0..64).map(|n| json!({"n": n})).collect::<Vec<_>>();
        let calls = args.iter().map(|args| stage.succeeds("among others", args));
        let results = futures::future::try_join_all(calls).await?;
        let expected = (0..64).map(|n| json!(n)).collect::<Vec<_>>();
        ensure(results == expected, || format!("calls got each other's results: {results:?}"))
    })
}

/// What a layer further out put in, the tool's name and the call's id are there for those further in.
pub fn those_further_in_see_what_was_put_in(make: Make<'_>) -> Verdict {
    run(async {
        struct Mark(u8);
        let stage = Stage::new(make, |_, call| {
            let mark = call.cx.extension::<Mark>().map_or(0, |mark| mark.0);
            let id = call.id().map(|id| id.as_str().to_owned());
            let seen = json!([mark, call.name(), id, call.tool.is_some()]);
            Box::pin(async move { Ok(seen.into()) })
        })?;
        let cx = stage.cx.with(Mark(7));
        let call = ToolCall::new(&cx, Some(&stage.tool), Arc::default());
        let Ok(ToolOutput::Value(value)) = in_time("the call", stage.make_call(call)).await? else {
            return Err("a call that should succeed did not".to_owned());
        };
        let expected = json!([7, "probe", "call", true]);
        ensure(value.value == expected, || format!("the tool saw {} in the place of {expected}", value.value))
    })
}

/// A call of a tool that does not exist is never a success.
pub fn a_call_of_an_unknown_tool_is_no_success(make: Make<'_>) -> Verdict {
    run(async {
        let stage =
            Stage::new(make, |_, _| Box::pin(async { Err(ToolError::new("there is no such tool")) }))?;
        let call = ToolCall::new(&stage.cx, None, Arc::default());
        let result = in_time("the call", stage.make_call(call)).await?;
        let failed = match &result {
            Ok(ToolOutput::Value(value)) => value.is_error,
            Ok(ToolOutput::Stream(_)) => false,
            Err(_) => true,
        };
        ensure(failed, || format!("a call of an unknown tool gave {result:?}"))
    })
}

/// The tool gets the arguments that the model gave.
pub fn arguments_pass_unchanged(make: Make<'_>) -> Verdict {
    run(async {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = seen.clone();
        let stage = Stage::new(make, move |_, call| {
            noted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Value::Object((*call.args).clone()).to_string());
            Box::pin(echo(call, 0))
        })?;
        let args = json!({"z": [1, 2.5, null], "__mark": true, "a": {"é": "\"\n"}, "n": 1});
        stage.succeeds("with arguments", &args).await?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Keys in their order too.
        let same = seen == [args.to_string()];
        ensure(same, || format!("the tool was given {seen:?} in the place of {args}"))
    })
}
