//! E and C: what fails, what passes through, and what may be shared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use serde_json::{Value, json};
use umbel::{
    AfterOrder, Confirm, Content, Error, ErrorKind, FunctionTool, Handler, LlmAgent, NextTool, Outcome,
    Runner, ScriptedModel, Step, ToolCall, ToolOutput, ToolResult, handler,
};

use crate::handler_support::{
    Fails, How, Probe, about, before_agent, before_model, configure, on_error, on_event, wrap_tool,
};
use crate::support::{
    Notes, assert_ended, begin, call_with_id, calls, echo, fine, read, run_once, stored, with_session,
};

fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").call("echo", json!({"n": 1})).text("done")
}

/// Hooks that are asked one after the other, and by whose error the run ends.
const PIPELINES: [&str; 7] =
    ["on_input", "before_run", "before_agent", "before_model", "after_model", "on_event", "on_output"];

#[tokio::test]
async fn e1_the_first_error_of_a_hook_stops_the_chain_and_is_never_swallowed() {
    for hook in PIPELINES {
        let notes = Notes::default();
        let runner = Runner::builder("app", LlmAgent::new("a").model(fine()))
            .handler(Probe::new("before", &notes))
            .handler(Fails::new("fails", hook, How::Error))
            .handler(Probe::new("after", &notes))
            .build()
            .unwrap();
        let (runner, key) = with_session(runner).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"), "{hook}");
        assert_eq!(seen.message(), format!("handler `fails` failed in {hook}: broken"));
        let asked: Vec<String> =
            about(&notes, hook).iter().map(|note| note.split('.').next().unwrap().into()).collect();
        let whole = seen.events.len();
        match hook {
            // What tells of the failure is an event too, unless it was an event that failed.
            "on_input" => assert_eq!((asked, whole), (vec!["before".into()], 0)),
            "on_event" | "on_output" => assert_eq!((asked, whole), (vec!["before".into()], 0), "{hook}"),
            _ => assert_eq!(asked, ["before"], "{hook}"),
        }
    }
}

#[tokio::test]
async fn e1_an_error_keeps_its_kind_unless_it_has_none_in_particular() {
    let kinds = [
        (ErrorKind::Other, ErrorKind::Handler),
        (ErrorKind::Handler, ErrorKind::Handler),
        (ErrorKind::Blocked, ErrorKind::Blocked),
        (ErrorKind::InvalidInput, ErrorKind::InvalidInput),
    ];
    for (given, expected) in kinds {
        let agent = LlmAgent::new("a")
            .model(fine())
            .handler(before_model("picky", move |_| Err(Error::new(given, "not like this"))));
        let seen = run_once(agent).await;
        assert_eq!(seen.kind(), expected);
        assert_eq!(seen.message(), "handler `picky` failed in before_model: not like this", "{given:?}");
    }
}

#[tokio::test]
async fn e1_how_long_to_wait_survives_the_naming() {
    let agent = LlmAgent::new("a").model(fine()).handler(before_model("limit", |_| {
        Err(Error::new(ErrorKind::RateLimited, "slowly").with_retry_after(std::time::Duration::from_secs(9)))
    }));
    let error = run_once(agent).await.error.unwrap();
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::RateLimited, Some(std::time::Duration::from_secs(9)))
    );
    assert!(error.is_retryable());
}

#[tokio::test]
async fn e2_an_error_in_configure_fails_the_build_and_one_in_before_agent_the_run() {
    let broken = || Error::new(ErrorKind::Other, "no key");
    let agent = LlmAgent::new("a").model(fine()).handler(configure("keys", move |_| Err(broken())));
    let error = Runner::new("app", agent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
    assert_eq!(error.message(), "agent `a`: handler `keys` failed in configure: no key");
    let model = fine();
    let agent = LlmAgent::new("a").model(model.clone()).handler(before_agent("keys", move |_| Err(broken())));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.message(), "handler `keys` failed in before_agent: no key");
    assert!(model.requests().is_empty());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn e3_an_error_of_a_hook_is_an_event_in_the_log_and_the_last_item_of_the_stream() {
    let agent = LlmAgent::new("a").model(echo_once()).tool(echo()).handler(before_model("second", |turn| {
        if turn.history.len() > 1 { Err(Error::new(ErrorKind::Other, "enough")) } else { Ok(Step::Continue) }
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    let told = seen.events.last().unwrap();
    assert_eq!((told.author(), told.error_code()), ("a", Some("HANDLER_FAILED")));
    assert_eq!(told.error_message(), Some("handler `second` failed in before_model: enough"));
    assert_eq!(stored(&runner, &key).await.last(), Some(told));
    let Outcome::Failed { failure } = &seen.outcome else { panic!("{:?}", seen.outcome) };
    assert_eq!(failure.message, seen.message());
    assert_ended(&runner, &key, &seen).await;
}

/// A tool that asks a person by an error, and works once it has the answer.
fn asks(notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::with_context("ask", "", move |cx, _: Value| {
        let (notes, answer) = (notes.clone(), cx.confirmation().map(|word| word.confirmed));
        Box::pin(async move {
            match answer {
                None => Err(Error::interrupt("Really?").into()),
                Some(word) => {
                    notes.add(format!("answered {word}"));
                    Ok(json!({"confirmed": word}))
                }
            }
        })
    })
}

#[tokio::test]
async fn e4_an_interrupt_from_below_passes_through_all_layers_and_is_no_error() {
    for reverse in [AfterOrder::Forward, AfterOrder::Reverse] {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").recorded().call("ask", json!({})).text("done");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(asks(&notes))
            .tool_layer(Probe::new("layer", &notes))
            .handler(Probe::new("A", &notes))
            .handler(on_error("answers everything", |_, _| Ok(Some(Content::model("all is well")))))
            .on_tool_error(|_, _, _| Box::pin(async { Ok(Some(Default::default())) }))
            .after_order(reverse);
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        let [asked] = seen.interrupts() else { panic!("{:?}", seen.outcome) };
        assert_eq!(asked.message.as_deref(), Some("Really?"));
        assert!(seen.error.is_none() && seen.texts().is_empty());
        assert_eq!(
            about(&notes, "wrap_tool"),
            ["layer.wrap_tool>", "A.wrap_tool>", "A.wrap_tool!", "layer.wrap_tool!"]
        );
        assert_eq!(about(&notes, "after_agent"), ["A.after_agent(a, interrupted)"]);
        assert_ended(&runner, &key, &seen).await;
        assert_eq!(model.requests().len(), 1, "the model is not asked about a question to a person");
        let seen = read(runner.run(&key, asked.answer(true))).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"confirmed": true})]);
        assert_eq!(notes.all().iter().filter(|note| note.starts_with("answered")).count(), 1);
    }
}

#[tokio::test]
async fn e4_a_tool_that_needs_a_word_asks_through_all_layers() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(echo().confirm(Confirm::Always))
        .handler(Probe::new("A", &notes))
        .handler(wrap_tool("retry errors", |call, next| {
            Box::pin(async move {
                for _ in 0..3 {
                    match next.call(call.clone()).await {
                        Ok(ToolOutput::Value(value)) if value.is_error => {}
                        other => return other,
                    }
                }
                next.call(call).await
            })
        }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    let [asked] = seen.interrupts() else { panic!("{:?}", seen.outcome) };
    let seen = read(runner.run(&key, asked.answer(true))).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
}

#[tokio::test]
async fn e4_no_hook_can_turn_a_cancellation_into_an_answer() {
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(FunctionTool::with_context("echo", "", |cx, args: Value| {
            cx.cancel_token().cancel(umbel::CancelReason::Asked);
            Box::pin(async move { Ok(args) })
        }))
        .handler(on_error("answers everything", |_, _| Ok(Some(Content::model("all is well")))))
        .handler(wrap_tool("swallows everything", |call, next| {
            Box::pin(async move { Ok(next.call(call).await.unwrap_or_else(|_| json!({"ok": true}).into())) })
        }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), &seen.outcome), (ErrorKind::Cancelled, &Outcome::Cancelled));
    assert!(seen.texts().is_empty());
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn e1_on_error_may_answer_for_an_agent_that_failed_and_the_first_answer_counts() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").fail("no power"))
        .handler(on_error("silent", |_, _| Ok(None)))
        .handler(on_error("sorry", |_, error| Ok(Some(Content::model(format!("Sorry: {error}").as_str())))))
        .handler(Probe::new("not asked", &notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "Sorry: no power".into())]);
    assert!(about(&notes, "on_error").is_empty());
    // The turn ended well, as far as anyone can tell.
    assert_eq!(about(&notes, "after_agent"), ["not asked.after_agent(a, finished)"]);
    assert_eq!(stored(&runner, &key).await.len(), 2);
}

#[tokio::test]
async fn e3_an_error_of_a_handler_can_be_answered_by_another() {
    let agent = LlmAgent::new("a")
        .model(fine())
        .handler(Fails::new("fails", "before_model", How::Error))
        .handler(on_error("sorry", |_, error| Ok(Some(Content::model(error.message())))));
    let seen = run_once(agent).await;
    let text = "handler `fails` failed in before_model: broken";
    assert_eq!(seen.assert_finished().texts(), [("a".into(), text.into())]);
}

/// The right way to keep a cache: the lock is in the handler, and nobody holds it while a tool works.
#[derive(Default)]
struct LockedCache {
    known: Mutex<HashMap<String, Value>>,
    hits: AtomicUsize,
}

#[handler]
impl Handler for LockedCache {
    fn name(&self) -> &str {
        "locked cache"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let key = format!("{} {}", call.name(), Value::Object((*call.args).clone()));
        if let Some(value) = self.known.lock().unwrap().get(&key).cloned() {
            self.hits.fetch_add(1, Ordering::SeqCst);
            return Ok(value.into());
        }
        let output = next.call(call).await?;
        if let ToolOutput::Value(value) = &output {
            self.known.lock().unwrap().insert(key, value.value.clone());
        }
        Ok(output)
    }
}

/// Says who asked.
fn parrot() -> ScriptedModel {
    ScriptedModel::from_fn("parrot", |request| {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let text = request.contents.get(0).unwrap().text();
        let response = match answered {
            true => umbel::Response::text(format!("for {text}")),
            false => calls([call_with_id("c", "echo", json!({"user": text}))]),
        };
        vec![Ok(umbel::Chunk::Complete(response))]
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c1_one_handler_serves_many_runs_at_once() {
    let cache = Arc::new(LockedCache::default());
    let agent = LlmAgent::new("a").model(parrot()).tool(echo()).handler(cache.clone());
    let runner = Arc::new(Runner::new("app", agent).unwrap());
    let runs = (0..40).map(|n| {
        let runner = runner.clone();
        tokio::spawn(async move {
            let key = runner.create_session("ann").await.unwrap().key;
            let seen = read(runner.run(&key, format!("user {}", n % 20).as_str())).await;
            (n % 20, seen.assert_finished().responses(), seen.texts())
        })
    });
    for done in join_all(runs).await {
        let (n, responses, texts) = done.unwrap();
        assert_eq!(responses, [json!({"user": format!("user {n}")})]);
        assert_eq!(texts, [("a".into(), format!("for user {n}"))]);
    }
    assert_eq!(cache.known.lock().unwrap().len(), 20);
}

#[tokio::test]
async fn c2_a_cache_behind_a_lock_answers_the_second_call_without_the_tool() {
    let (notes, cache) = (Notes::default(), Arc::new(LockedCache::default()));
    let seen_by = notes.clone();
    let tool = FunctionTool::new("echo", "", move |args: Value| {
        seen_by.add(args.to_string());
        async move { Ok(args) }
    });
    let same = || json!({"n": 1});
    let model = ScriptedModel::new("m")
        .call("echo", same())
        .call("echo", same())
        .call("echo", json!({"n": 2}))
        .text("done");
    run_once(LlmAgent::new("a").model(model).tool(tool).handler(cache.clone())).await.assert_finished();
    assert_eq!(notes.all(), [r#"{"n":1}"#, r#"{"n":2}"#]);
    assert_eq!(cache.hits.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn c2_an_instance_per_agent_keeps_agents_apart() {
    let (one, two) = (Arc::new(LockedCache::default()), Arc::new(LockedCache::default()));
    let agent = |name: &str, cache: &Arc<LockedCache>| {
        LlmAgent::new(name.to_owned()).model(echo_once()).tool(echo()).handler(cache.clone())
    };
    let team = umbel::Sequential::new("team").agent(agent("one", &one)).agent(agent("two", &two));
    run_once(team).await.assert_finished();
    for cache in [one, two] {
        assert_eq!((cache.known.lock().unwrap().len(), cache.hits.load(Ordering::SeqCst)), (1, 0));
    }
}

#[tokio::test]
async fn e1_an_error_of_on_event_leaves_nothing_of_that_event_in_the_log() {
    let agent = LlmAgent::new("a").model(echo_once()).tool(echo()).handler(on_event("strict", |_, event| {
        if event.responses().next().is_some() { Err(Error::new(ErrorKind::Other, "no")) } else { Ok(event) }
    }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.message(), "handler `strict` failed in on_event: no");
    assert!(seen.responses().is_empty());
    assert_eq!(stored(&runner, &key).await.len(), 2);
    assert_ended(&runner, &key, &seen).await;
}
