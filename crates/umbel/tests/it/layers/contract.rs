//! Every layer passes the contract of layers.

use std::time::Duration;

use tower::ServiceBuilder;
use umbel::backoff::Backoff;
use umbel::layers::hooks;
use umbel::{
    Caching, CallScope, CircuitBreaker, Concurrency, Logging, Quota, RateLimit, Timeout, ToolHooks,
    ToolRetry, Work, layer_contract, layer_fn, tower_layer,
};

const MINUTE: Duration = Duration::from_secs(60);

fn fast() -> Quota {
    Quota::per_second(10_000.0, 1).unwrap()
}

struct Nothing;

impl ToolHooks for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }
}

layer_contract!(logging: Logging::new());
layer_contract!(caching: Caching::new());
layer_contract!(caching_that_bypasses: Caching::new().tools(["another"]));
layer_contract!(rate_limit: RateLimit::new(Quota::per_second(1.0, 1_000).unwrap()));
layer_contract!(rate_limit_that_waits: RateLimit::new(fast()).per(CallScope::Tool).max_wait(MINUTE));
layer_contract!(concurrency: Concurrency::new(1).unwrap());
layer_contract!(concurrency_per_user: Concurrency::new(2).unwrap().per(CallScope::User).max_wait(MINUTE));
layer_contract!(timeout: Timeout::new(MINUTE));
layer_contract!(retry: ToolRetry::new().backoff(Backoff::new().initial(Duration::from_millis(1))));
layer_contract!(circuit_breaker: CircuitBreaker::new());
layer_contract!(circuit_breaker_with_window: CircuitBreaker::new().within(3, MINUTE));
layer_contract!(function: layer_fn("plain", |call, next| Work::later(next.call(call))));
layer_contract!(before_and_after: hooks(Nothing));
layer_contract!(no_tower: tower_layer("identity", tower::layer::util::Identity::new()));
layer_contract!(tower_stack: tower_layer("stack", ServiceBuilder::new().timeout(MINUTE).concurrency_limit(1)));

/// A layer that does one thing wrong, and the check that finds it.
mod wrong {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tokio::sync::Semaphore;
    use umbel::layers::contract;
    use umbel::{Handler, ToolOutput, Work, layer_fn};

    type Check = fn(&dyn Fn() -> Arc<dyn Handler>) -> Result<(), String>;

    /// The check finds something wrong, and says what.
    fn finds(check: Check, words: &str, make: &dyn Fn() -> Arc<dyn Handler>) {
        let found = check(make).expect_err("nothing was found");
        assert!(found.contains(words), "{found}");
    }

    #[test]
    fn a_layer_that_swallows_what_is_no_failure_is_found() {
        let make = || -> Arc<dyn Handler> {
            Arc::new(layer_fn("swallows", |call, next| {
                Work::later(async move { next.call(call).await.or_else(|_| Ok(json!("fine").into())) })
            }))
        };
        finds(contract::an_interrupt_passes_untouched, "should pass as it is", &make);
        finds(contract::a_cancelled_call_passes_untouched, "should pass as it is", &make);
        finds(contract::a_run_that_is_cancelled_ends_every_call, "gave Ok", &make);
        finds(contract::a_call_of_an_unknown_tool_is_no_success, "unknown tool", &make);
    }

    #[test]
    fn a_layer_that_tries_again_after_a_question_is_found() {
        let make = || -> Arc<dyn Handler> {
            Arc::new(layer_fn("stubborn", |call, next| {
                Work::later(async move {
                    let _ = next.call(call.clone()).await;
                    next.call(call).await
                })
            }))
        };
        finds(contract::an_interrupt_passes_untouched, "tried 2 times", &make);
    }

    #[test]
    fn a_layer_that_reads_streams_is_found() {
        let make = || -> Arc<dyn Handler> {
            Arc::new(layer_fn("reads", |call, next| {
                Work::later(async move {
                    match next.call(call).await? {
                        ToolOutput::Stream(_) => Ok(json!({"n": 4}).into()),
                        value => Ok(value),
                    }
                })
            }))
        };
        finds(contract::a_streamed_result_passes_with_its_news, "should pass as it is", &make);
    }

    /// Takes a permit and gives it back by hand: not when it is dropped, nor when it waits for one.
    fn leaky(permits: usize) -> Arc<dyn Handler> {
        let free = Arc::new(Semaphore::new(permits));
        Arc::new(layer_fn("leaky", move |call, next| {
            let free = free.clone();
            Work::later(async move {
                free.acquire().await.unwrap().forget();
                let result = next.call(call).await;
                free.add_permits(1);
                result
            })
        }))
    }

    #[test]
    fn a_layer_that_leaks_when_it_is_dropped_is_found() {
        finds(contract::a_dropped_call_leaves_nothing_behind, "hangs", &|| leaky(4));
    }

    #[test]
    fn a_layer_that_takes_others_along_is_found() {
        finds(contract::a_dropped_call_does_not_take_others_along, "hangs", &|| leaky(1));
    }

    #[test]
    fn a_layer_that_begins_in_a_cancelled_run_or_leaks_with_a_panic_is_found() {
        finds(contract::a_run_that_is_cancelled_ends_every_call, "after the run", &|| leaky(1));
        finds(contract::a_panic_leaves_nothing_locked, "hangs", &|| leaky(1));
    }

    #[test]
    fn a_layer_that_mixes_results_or_changes_arguments_is_found() {
        let make = || -> Arc<dyn Handler> {
            let last = Arc::new(Mutex::new(json!({})));
            Arc::new(layer_fn("mixes", move |call, next| {
                *last.lock().unwrap() = serde_json::Value::Object((*call.args).clone());
                let last = last.clone();
                Work::later(async move {
                    tokio::task::yield_now().await;
                    let mut args = last.lock().unwrap().as_object().cloned().unwrap();
                    args.insert("more".into(), json!(1));
                    let args = Arc::new(args);
                    next.call(umbel::ToolCall { args, ..call }).await
                })
            }))
        };
        finds(contract::concurrent_calls_keep_their_results, "each other's", &make);
        finds(contract::arguments_pass_unchanged, "in the place of", &make);
    }

    #[test]
    fn a_layer_that_works_on_after_it_was_dropped_is_found() {
        let make = || -> Arc<dyn Handler> {
            let busy = Arc::new(AtomicBool::new(false));
            Arc::new(layer_fn("busy", move |call, next| {
                let was_busy = busy.swap(true, Ordering::SeqCst);
                let busy = busy.clone();
                Work::later(async move {
                    if was_busy {
                        return Err(umbel::ToolError::new("busy"));
                    }
                    let result = next.call(call).await;
                    busy.store(false, Ordering::SeqCst);
                    result
                })
            }))
        };
        finds(contract::a_dropped_call_leaves_nothing_behind, "should succeed", &make);
    }

    #[test]
    fn a_layer_that_hides_what_was_put_in_is_found() {
        let make = || -> Arc<dyn Handler> {
            Arc::new(layer_fn("hides", |call, next| {
                Work::later(async move {
                    let cx = umbel::ToolContext::detached("probe").unwrap();
                    next.call(call.with_context(&cx)).await
                })
            }))
        };
        finds(contract::those_further_in_see_what_was_put_in, "the tool saw", &make);
    }

    umbel::layer_contract!(changing: layer_fn("changes", |call, next| {
        let mut args = (*call.args).clone();
        args.insert("more".into(), json!(1));
        Work::later(next.call(call.with_args(args)))
    }), changes_arguments);
}
