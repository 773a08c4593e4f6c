//! Answers from a cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::layers::{CacheKey, CacheStats, CacheStore, CachedAnswer, MemoryCache};
use umbel::{
    CacheStatus, Caching, CallScope, CancelReason, Confirm, Error, ErrorKind, Layered, LlmAgent, Part, Quota,
    RateLimit, Result, Runner, ScriptedModel, Tool, ToolContext, ToolError, ToolItem, ToolOutput, ToolValue,
    Work, layer_fn,
};

use super::{Scripted, call, call_in, context, context_of, done, error, items, metadata, streamed, value};
use crate::support::{read, with_session};

fn status(value: &ToolValue) -> CacheStatus {
    CacheStatus::of(&value.metadata).expect("a status")
}

fn cached(tool: &Scripted, caching: Caching) -> Arc<dyn Tool> {
    tool.tool.clone().layered(caching)
}

#[tokio::test]
async fn ca1_a_hit_does_not_call_the_tool_and_says_so() {
    let tool = Scripted::numbers();
    let cached = cached(&tool, Caching::new());
    let first = value(call(&cached, json!({"q": 1})).await);
    assert_eq!(first.value, json!(0));
    assert_eq!(first.metadata, metadata(&[("cache_hit", false), ("cache_stored", true)]));
    let second = value(call(&cached, json!({"q": 1})).await);
    assert_eq!(second.value, json!(0));
    assert_eq!(second.metadata, metadata(&[("cache_hit", true)]));
    assert_eq!((status(&first), status(&second)), (CacheStatus::Stored, CacheStatus::Hit));
    assert_eq!(tool.calls(), 1);
}

#[tokio::test]
async fn ca1_the_order_of_keys_does_not_matter_and_that_of_lists_does() {
    let tool = Scripted::numbers();
    let cached = cached(&tool, Caching::new());
    let mut calls = 0;
    for (args, is_new) in [
        (json!({"a": 1, "b": {"x": [1, 2], "y": "z"}}), true),
        (json!({"b": {"y": "z", "x": [1, 2]}, "a": 1.0}), false),
        (json!({"a": 1, "b": {"x": [2, 1], "y": "z"}}), true),
        (json!({"a": "1", "b": {"x": [1, 2], "y": "z"}}), true),
        (json!({"a": 1}), true),
        (json!({"a": 1, "b": null}), true),
    ] {
        calls += usize::from(is_new);
        call(&cached, args.clone()).await.unwrap();
        assert_eq!(tool.calls(), calls, "{args}");
    }
}

#[tokio::test]
async fn ca1_top_level_keys_with_two_underscores_do_not_count_but_reach_the_tool() {
    let tool = Scripted::numbers();
    let cached = cached(&tool, Caching::new().ignore(["trace"]));
    call(&cached, json!({"q": 1, "__id": 1, "trace": "a"})).await.unwrap();
    assert_eq!(
        status(&value(call(&cached, json!({"q": 1, "__id": 2, "trace": "b"})).await)),
        CacheStatus::Hit
    );
    assert_eq!(status(&value(call(&cached, json!({"q": 1})).await)), CacheStatus::Hit);
    let inner = value(call(&cached, json!({"q": {"__id": 1}})).await);
    assert_eq!(status(&inner), CacheStatus::Stored);
    assert_eq!(status(&value(call(&cached, json!({"q": {"__id": 2}})).await)), CacheStatus::Stored);
    assert_eq!(tool.seen.lock().unwrap()[0], json!({"q": 1, "__id": 1, "trace": "a"}));
}

#[tokio::test]
async fn ca1_failures_are_never_kept() {
    let tool = Scripted::new(|n, _| async move {
        match n {
            0 => Err(ToolError::new("no")),
            1 => Ok(ToolOutput::from(ToolValue { is_error: true, ..json!("no").into() })),
            _ => Ok(json!(n).into()),
        }
    });
    let cached = cached(&tool, Caching::new());
    assert_eq!(error(call(&cached, json!({})).await).message(), "no");
    assert_eq!(status(&value(call(&cached, json!({})).await)), CacheStatus::Miss);
    assert_eq!(value(call(&cached, json!({})).await).value, json!(2));
    assert_eq!(value(call(&cached, json!({})).await).value, json!(2));
}

#[tokio::test(start_paused = true)]
async fn ca1_an_answer_lasts_five_minutes() {
    let tool = Scripted::numbers();
    let cached = cached(&tool, Caching::new());
    call(&cached, json!({})).await.unwrap();
    tokio::time::advance(Duration::from_secs(299)).await;
    assert_eq!(status(&value(call(&cached, json!({})).await)), CacheStatus::Hit);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(status(&value(call(&cached, json!({})).await)), CacheStatus::Stored);
    assert_eq!(tool.calls(), 2);
}

#[tokio::test]
async fn only_tools_that_may_be_called_again_are_cached_unless_told_otherwise() {
    let tool = Scripted::numbers();
    let twice = umbel::FunctionTool::new("probe", "", |_: Value| async { Ok(1) }).idempotent();
    let twice = twice.layered(Caching::new());
    assert_eq!(status(&value(call(&twice, json!({})).await)), CacheStatus::Stored);
    assert_eq!(status(&value(call(&cached(&tool, Caching::new()), json!({})).await)), CacheStatus::Stored);
    let risky = || umbel::FunctionTool::new("probe", "", |_: Value| async { Ok(1) }).layered(Caching::new());
    let bypassed = value(call(&risky(), json!({})).await);
    assert_eq!(bypassed.metadata, metadata(&[("cache_hit", false), ("cache_bypass", true)]));
    assert_eq!(status(&bypassed), CacheStatus::Bypass);
    let layers = [Caching::new().all_tools(), Caching::new().tools(["probe"])];
    for caching in layers {
        let tool = umbel::FunctionTool::new("probe", "", |_: Value| async { Ok(1) }).layered(caching);
        assert_eq!(status(&value(call(&tool, json!({})).await)), CacheStatus::Stored);
    }
    let tool = Scripted::numbers();
    let other = tool.tool.clone().layered(Caching::new().tools(["another"]));
    assert_eq!(status(&value(call(&other, json!({})).await)), CacheStatus::Bypass);
}

#[tokio::test]
async fn what_hangs_on_a_persons_word_or_comes_later_is_not_cached() {
    let tool = Scripted::numbers();
    let confirmed = tool.tool.clone().confirm(Confirm::When(Arc::new(|args| args.contains_key("risky"))));
    let confirmed = confirmed.layered(Caching::new());
    assert_eq!(status(&value(call(&confirmed, json!({"risky": 1})).await)), CacheStatus::Bypass);
    assert_eq!(status(&value(call(&confirmed, json!({})).await)), CacheStatus::Stored);
    let long = Scripted::numbers().tool.long_running().layered(Caching::new());
    assert_eq!(status(&value(call(&long, json!({})).await)), CacheStatus::Bypass);

    // A tool that asks by itself: neither its question nor the answer to it is an answer to others.
    let asks = umbel::FunctionTool::with_context("probe", "", |cx, _: Value| {
        Box::pin(async move {
            if cx.confirmation().is_none() {
                cx.request_confirmation("May I?", None)?;
            }
            Ok(cx.confirmation().is_some_and(|answer| answer.confirmed))
        })
    });
    let asks = asks.read_only().layered(Caching::new());
    assert_eq!(status(&value(call(&asks, json!({})).await)), CacheStatus::Miss);
    let made = umbel::CallMade {
        confirmation: Some(Box::new(umbel::Answer::approve())),
        ..umbel::CallMade::default()
    };
    let cx = ToolContext::new(context().run().clone(), "probe".into(), Some("call".into()), made);
    let answered = value(call_in(&asks, &cx, json!({})).await);
    assert_eq!((status(&answered), answered.value), (CacheStatus::Bypass, json!(true)));
    let again = value(call(&asks, json!({})).await);
    assert_eq!((status(&again), again.value), (CacheStatus::Miss, json!(false)));
}

#[tokio::test]
async fn a_call_that_did_more_than_answer_is_not_kept() {
    let tool = umbel::FunctionTool::with_context("probe", "", |cx, args: Value| {
        Box::pin(async move {
            if args["write"] == true {
                cx.set_state("written", true);
            }
            Ok(1)
        })
    });
    let cached = tool.read_only().layered(Caching::new());
    for _ in 0..2 {
        let cx = context();
        let written = value(call_in(&cached, &cx, json!({"write": true})).await);
        assert_eq!(status(&written), CacheStatus::Miss);
        assert!(cx.take_actions().is_some());
    }
    // What someone further out did is not the call's.
    let cx = context();
    cx.set_state("other", 1);
    assert_eq!(status(&value(call_in(&cached, &cx, json!({})).await)), CacheStatus::Stored);
}

#[tokio::test]
async fn metadata_of_inner_layers_and_of_the_tool_are_not_said_again_but_media_are() {
    let tool = Scripted::new(|n, _| async move {
        let mut value = ToolValue::from(json!(n));
        value.metadata.insert("took".into(), json!(1));
        value.parts.push(Part::text("picture"));
        Ok(ToolOutput::from(value))
    });
    let cached = tool.tool.clone().layered_with([Arc::new(Caching::new()), Arc::new(RateLimit::default())]);
    let first = value(call(&cached, json!({})).await);
    assert_eq!(first.metadata["rate_limited"], json!(false));
    assert_eq!(first.metadata["took"], json!(1));
    let second = value(call(&cached, json!({})).await);
    assert_eq!(second.metadata, metadata(&[("cache_hit", true)]));
    assert_eq!(second.parts, [Part::text("picture")]);
}

#[tokio::test]
async fn a3_a_hit_costs_no_token_of_a_limit_further_in() {
    let limit = RateLimit::new(Quota::per_second(0.001, 1).unwrap());
    let tool = Scripted::numbers();
    let layered = tool.tool.clone().layered_with([Arc::new(Caching::new()), Arc::new(limit)]);
    for _ in 0..10 {
        call(&layered, json!({})).await.unwrap();
    }
    assert_eq!(error(call(&layered, json!({"q": 2})).await).kind(), ErrorKind::RateLimited);
}

#[tokio::test]
async fn a_streamed_result_is_kept_without_its_news() {
    let tool = Scripted::new(|n, _| async move {
        streamed([ToolItem::Progress(json!("half")), ToolItem::Done(json!(n).into())])
    });
    let cached = cached(&tool, Caching::new());
    let seen = items(call(&cached, json!({})).await).await;
    assert_eq!(seen[0], Ok(ToolItem::Progress(json!("half"))));
    let Ok(ToolItem::Done(first)) = &seen[1] else { panic!("{seen:?}") };
    assert_eq!(status(first), CacheStatus::Stored);
    let second = value(call(&cached, json!({})).await);
    assert_eq!((status(&second), second.value), (CacheStatus::Hit, json!(0)));
    let bypassed = tool.tool.layered(Caching::new().tools(["another"]));
    assert_eq!(status(&done(call(&bypassed, json!({})).await).await), CacheStatus::Bypass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_calls_at_once_are_one_call() {
    for round in 0..20 {
        let tool = Scripted::slow(Duration::from_millis(round % 3));
        let caching = Arc::new(Caching::new());
        let cached = tool.tool.clone().layered(caching.clone());
        let calls = (0..100).map(|_| {
            let cached = cached.clone();
            tokio::spawn(async move { value(call(&cached, json!({"q": 1})).await) })
        });
        let results = futures::future::join_all(calls).await;
        let statuses: Vec<_> = results.into_iter().map(|result| status(&result.unwrap())).collect();
        assert_eq!(tool.calls(), 1);
        assert_eq!(statuses.iter().filter(|status| **status == CacheStatus::Stored).count(), 1);
        let expected = CacheStats { hits: 99, misses: 1, stored: 1, ..CacheStats::default() };
        assert_eq!(caching.stats(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_call_that_fails_make_it_themselves_and_at_once() {
    let tool = Scripted::new(|n, _| async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Err(ToolError::new(format!("failure {n}")))
    });
    let cached = cached(&tool, Caching::new());
    let started = tokio::time::Instant::now();
    let results = futures::future::join_all((0..10).map(|_| call(&cached, json!({})))).await;
    let mut messages: Vec<_> = results.into_iter().map(|result| error(result).to_string()).collect();
    messages.sort();
    assert_eq!(messages, (0..10).map(|n| format!("failure {n}")).collect::<Vec<_>>(), "no error is shared");
    assert_eq!(started.elapsed(), Duration::from_secs(20), "one after the first, all others together");
}

#[tokio::test(start_paused = true)]
async fn when_the_one_who_calls_is_dropped_another_one_takes_over() {
    let tool = Scripted::slow(Duration::from_secs(10));
    let cached = cached(&tool, Caching::new());
    let mut leader = Box::pin(call(&cached, json!({})));
    assert!(futures::poll!(&mut leader).is_pending());
    let followers = futures::future::join_all((0..5).map(|_| call(&cached, json!({}))));
    let results = tokio::join!(followers, async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(leader);
    })
    .0;
    for result in results {
        assert_eq!(value(result).value, json!(1));
    }
    assert_eq!(tool.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn when_the_one_who_reads_a_stream_goes_another_one_takes_over() {
    let tool = Scripted::new(|n, _| async move {
        let news = [Ok(ToolItem::Progress(json!(n)))];
        let end = async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(ToolItem::Done(json!(n).into()))
        };
        let items = futures::StreamExt::chain(futures::stream::iter(news), futures::stream::once(end));
        Ok(ToolOutput::Stream(Box::pin(items)))
    });
    let cached = cached(&tool, Caching::new());
    let leader = call(&cached, json!({})).await.unwrap();
    let mut follower = Box::pin(call(&cached, json!({})));
    assert!(futures::poll!(&mut follower).is_pending(), "it waits for the end of the stream");
    drop(leader);
    assert_eq!(done(follower.await).await.value, json!(1));
    assert_eq!(value(call(&cached, json!({})).await).value, json!(1));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_does_not_wait_for_anothers_call() {
    let tool = Scripted::slow(Duration::from_secs(10));
    let cached = cached(&tool, Caching::new());
    let mut leader = Box::pin(call(&cached, json!({})));
    assert!(futures::poll!(&mut leader).is_pending());
    let cx = context();
    let mut follower = Box::pin(call_in(&cached, &cx, json!({})));
    assert!(futures::poll!(&mut follower).is_pending());
    cx.run().cancel_token().cancel(CancelReason::Asked);
    let started = tokio::time::Instant::now();
    assert_eq!(error(follower.await).kind(), ErrorKind::Cancelled);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(value(leader.await).value, json!(0), "the other one is not disturbed");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_cancelled_has_not_failed_for_those_who_wait() {
    let tool = Scripted::new(|n, _| async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        if n == 0 { Err(Error::new(ErrorKind::Cancelled, "stop").into()) } else { Ok(json!(n).into()) }
    });
    let cached = cached(&tool, Caching::new());
    let results = futures::future::join_all((0..5).map(|_| call(&cached, json!({})))).await;
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    assert_eq!(tool.calls(), 2, "one takes over, and the others wait for it");
}

/// A store that is as wrong as can be: it gives the last answer to whoever asks.
#[derive(Debug, Default)]
struct OneAnswer {
    answer: Mutex<Option<Arc<CachedAnswer>>>,
    broken: AtomicBool,
}

impl CacheStore for OneAnswer {
    fn get<'a>(&'a self, _: &'a CacheKey) -> Work<'a, Result<Option<Arc<CachedAnswer>>>> {
        if self.broken.load(Ordering::SeqCst) {
            return Work::done(Err(Error::new(ErrorKind::Store, "no connection")));
        }
        // A store elsewhere has to be waited for.
        Work::later(async {
            tokio::task::yield_now().await;
            Ok(self.answer.lock().unwrap().clone())
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a CacheKey,
        answer: Arc<CachedAnswer>,
        _: Duration,
    ) -> Work<'a, Result<bool>> {
        if self.broken.load(Ordering::SeqCst) {
            return Work::done(Err(Error::new(ErrorKind::Store, "no connection")));
        }
        assert_eq!(answer.request, key.text());
        // What is stored elsewhere goes through text.
        let text = serde_json::to_string(&*answer).unwrap();
        *self.answer.lock().unwrap() = Some(Arc::new(serde_json::from_str(&text).unwrap()));
        Work::done(Ok(true))
    }

    fn clear(&self) -> Work<'_, Result<()>> {
        *self.answer.lock().unwrap() = None;
        Work::done(Ok(()))
    }
}

#[tokio::test]
async fn an_answer_to_another_call_is_never_given() {
    let (tool, store) = (Scripted::numbers(), Arc::new(OneAnswer::default()));
    let cached = cached(&tool, Caching::new().store(store));
    for (q, expected) in [(1, 0), (1, 0), (2, 1), (1, 2)] {
        assert_eq!(value(call(&cached, json!({"q": q})).await).value, json!(expected));
    }
    // A key of one's own that is the same for all calls brings no two calls together either.
    let tool = Scripted::numbers();
    let same = CallScope::custom(|_| "same".into());
    let cached = self::cached(&tool, Caching::new().scope(same));
    for (q, expected) in [(1, 0), (2, 1), (1, 0), (2, 1)] {
        assert_eq!(value(call(&cached, json!({"q": q})).await).value, json!(expected));
    }
}

#[tokio::test]
async fn a_store_that_fails_costs_answers_but_no_calls_and_is_seen() {
    let (tool, store) = (Scripted::numbers(), Arc::new(OneAnswer::default()));
    let caching = Arc::new(Caching::new().store(store.clone()));
    let cached = tool.tool.clone().layered(caching.clone());
    store.broken.store(true, Ordering::SeqCst);
    for n in 0..2 {
        let result = value(call(&cached, json!({})).await);
        assert_eq!((result.value.clone(), status(&result)), (json!(n), CacheStatus::Miss));
        assert_eq!(result.metadata.get("cache_stored"), None);
    }
    // Each call asks twice and stores once.
    assert_eq!(caching.stats(), CacheStats { misses: 2, errors: 6, ..CacheStats::default() });
    store.broken.store(false, Ordering::SeqCst);
    call(&cached, json!({})).await.unwrap();
    assert_eq!(status(&value(call(&cached, json!({})).await)), CacheStatus::Hit);
    caching.clear().await.unwrap();
    assert_eq!(status(&value(call(&cached, json!({})).await)), CacheStatus::Stored);
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_given_but_not_kept() {
    let tool = Scripted::new(|n, _| async move { Ok(json!([n, "x".repeat(10_000)]).into()) });
    let cached = cached(&tool, Caching::new().store(MemoryCache::new().bytes(5_000)));
    for n in 0..2 {
        let result = value(call(&cached, json!({})).await);
        assert_eq!((result.value[0].clone(), status(&result)), (json!(n), CacheStatus::Miss));
    }
}

#[tokio::test]
async fn tools_of_one_name_with_different_schemas_do_not_share_answers() {
    let caching = Arc::new(Caching::new());
    let tool = |schema: Value, answer: i64| {
        let spec = umbel::ToolSpec { read_only: true, ..umbel::ToolSpec::new("probe", "", schema) };
        umbel::FunctionTool::raw(spec, move |_, _| Box::pin(async move { Ok(json!(answer).into()) }))
            .layered(caching.clone())
    };
    let (one, two) = (tool(json!({"type": "object"}), 1), tool(json!({"type": "object", "title": "v2"}), 2));
    for _ in 0..2 {
        assert_eq!(value(call(&one, json!({})).await).value, json!(1));
        assert_eq!(value(call(&two, json!({})).await).value, json!(2));
    }
    assert_eq!(caching.stats().hits, 2);
}

#[tokio::test]
async fn two_caches_tell_each_their_own() {
    let tool = Scripted::numbers();
    let outer = Arc::new(Caching::new().ttl(Duration::ZERO));
    let layered = tool.tool.clone().layered_with([outer, Arc::new(Caching::new())]);
    call(&layered, json!({})).await.unwrap();
    // The inner one hits, the outer one does not, and keeps nothing.
    assert_eq!(status(&value(call(&layered, json!({})).await)), CacheStatus::Miss);
    assert_eq!(tool.calls(), 1);
}

/// Runs of several users and sessions of one runner, with a cached tool: which calls reach the tool.
async fn calls_of_runs(caching: Caching) -> Vec<usize> {
    let tool = Scripted::numbers();
    let model = ScriptedModel::from_fn("m", |request| {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let response = if answered {
            umbel::Response::text("done")
        } else {
            crate::support::calls([crate::support::call_with_id("a", "probe", json!({"q": 1}))])
        };
        vec![Ok(umbel::Chunk::Complete(response))]
    });
    let agent = LlmAgent::new("a").model(model).tool(tool.tool.clone().layered(caching));
    let (runner, ann) = with_session(Runner::new("app", agent).unwrap()).await;
    let ann_too = runner.create_session("ann").await.unwrap().key;
    let bob = runner.create_session("bob").await.unwrap().key;
    let mut counts = Vec::new();
    for key in [&ann, &ann, &ann_too, &bob] {
        read(runner.run(key, "go")).await.assert_finished();
        counts.push(tool.calls());
    }
    counts
}

#[tokio::test]
async fn answers_are_shared_within_their_scope_and_never_beyond() {
    for (scope, expected) in [
        (CallScope::Run, [1, 2, 3, 4]),
        (CallScope::Session, [1, 1, 2, 3]),
        (CallScope::User, [1, 1, 1, 2]),
        (CallScope::App, [1, 1, 1, 1]),
        (CallScope::All, [1, 1, 1, 1]),
        (CallScope::custom(|call| call.run().session_key().id().into()), [1, 1, 2, 3]),
    ] {
        let name = format!("{scope:?}");
        assert_eq!(calls_of_runs(Caching::new().scope(scope)).await, expected, "{name}");
    }
    assert_eq!(calls_of_runs(Caching::new()).await, [1, 1, 1, 2], "the user's, by default");
}

#[tokio::test]
async fn calls_of_one_batch_share_an_answer() {
    let tool = Scripted::slow(Duration::from_millis(5));
    let cached = cached(&tool, Caching::new());
    let cx = context();
    let contexts: Vec<_> = (0..4).map(|n| context_of(&cx, &format!("call-{n}"))).collect();
    let calls = contexts.iter().map(|cx| call_in(&cached, cx, json!({})));
    for result in futures::future::join_all(calls).await {
        assert_eq!(value(result).value, json!(0));
    }
    assert_eq!(tool.calls(), 1);
}

#[tokio::test]
async fn a_layer_that_calls_twice_calls_twice_within_a_cache_and_once_around_it() {
    let twice = || {
        Arc::new(layer_fn("twice", |call, next| {
            Work::later(async move {
                next.call(call.clone()).await?;
                next.call(call).await
            })
        }))
    };
    let tool = Scripted::numbers();
    let around = tool.tool.clone().layered_with([twice(), Arc::new(Caching::new())]);
    assert_eq!(status(&value(call(&around, json!({})).await)), CacheStatus::Hit);
    assert_eq!(tool.calls(), 1);
    let within = tool.tool.clone().layered_with([Arc::new(Caching::new()), twice()]);
    for _ in 0..2 {
        assert_eq!(value(call(&within, json!({})).await).value, json!(2));
    }
    assert_eq!(tool.calls(), 3);
}

#[tokio::test]
async fn a4_a_second_identical_call_does_not_reach_the_tool_and_says_so() {
    let tool = Scripted::numbers();
    let cached = tool.tool.clone().layered(Caching::new().all_tools());
    let first = value(call(&cached, json!({"q": 1})).await);
    let second = value(call(&cached, json!({"q": 1})).await);
    assert_eq!((tool.calls(), first.value == second.value), (1, true));
    assert_eq!(first.metadata.get("cache_hit"), Some(&json!(false)));
    assert_eq!(first.metadata.get("cache_stored"), Some(&json!(true)));
    assert_eq!(second.metadata.get("cache_hit"), Some(&json!(true)));
}
