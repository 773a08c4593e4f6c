//! Making the calls that a model asks for: at once or one by one, now or later, with results in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::flow::{Batch, make_calls, merge_calls};
use umbel::{
    ErrorKind, FunctionCall, FunctionTool, LlmAgent, Outcome, Part, RunConfig, RunLimits, Runner,
    ScriptedModel, ToolError, ToolErrors, ToolItem, ToolOutput, ToolSpec, ToolValue, agent_fn,
};

use crate::support::{
    answer, begin, call_with_id, calls, echo, log, outcomes, read, responses, run_once, state,
    stored_answers, with_session,
};

/// Counts how many of its calls overlap.
#[derive(Clone, Default)]
struct Gauge(Arc<(AtomicUsize, AtomicUsize)>);

impl Gauge {
    async fn measure(&self) {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    fn tool(&self, name: &str) -> FunctionTool {
        let gauge = self.clone();
        FunctionTool::new(name, "", move |_: Value| {
            let gauge = gauge.clone();
            async move {
                gauge.measure().await;
                Ok(Value::Null)
            }
        })
    }
}

fn many(names: &[&'static str]) -> ScriptedModel {
    ScriptedModel::new("m").calls(names.iter().map(|name| (*name, json!({})))).text("done")
}

#[tokio::test]
async fn calls_of_one_turn_run_at_once() {
    let gauge = Gauge::default();
    let agent = LlmAgent::new("a").model(many(&["t"; 6])).tool(gauge.tool("t"));
    assert_eq!(run_once(agent).await.assert_finished().responses().len(), 6);
    assert_eq!(gauge.most(), 6);
}

#[tokio::test]
async fn so_many_calls_run_at_once_and_no_more() {
    let gauge = Gauge::default();
    let (runner, key) = begin(LlmAgent::new("a").model(many(&["t"; 6])).tool(gauge.tool("t"))).await;
    let limits = RunLimits { calls_at_once: 2, ..RunLimits::default() };
    let seen = read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await;
    assert_eq!(seen.assert_finished().responses().len(), 6);
    assert_eq!(gauge.most(), 2);
}

#[tokio::test]
async fn an_exclusive_tool_runs_alone() {
    let (alone, all) = (Gauge::default(), Gauge::default());
    let (one, both) = (alone.clone(), all.clone());
    let exclusive = FunctionTool::new("alone", "", move |_: Value| {
        let (one, both) = (one.clone(), both.clone());
        async move {
            let others = both.0.0.load(Ordering::SeqCst);
            one.measure().await;
            Ok(others + both.0.0.load(Ordering::SeqCst))
        }
    });
    let model = many(&["free", "alone", "free", "alone", "free"]);
    let agent = LlmAgent::new("a").model(model).tool(all.tool("free")).tool(exclusive.exclusive());
    let seen = run_once(agent).await;
    assert_eq!(alone.most(), 1);
    // It saw no other call beside it, neither when it began nor when it ended.
    assert_eq!(seen.responses()[1], json!({"result": 0}));
    assert_eq!(seen.responses()[3], json!({"result": 0}));
}

fn wait_for() -> FunctionTool {
    FunctionTool::new("wait", "", |args: Value| async move {
        tokio::time::sleep(Duration::from_millis(args["ms"].as_u64().unwrap())).await;
        Ok(args["ms"].clone())
    })
}

#[tokio::test]
async fn results_stand_in_the_order_of_the_calls() {
    let model = ScriptedModel::new("m").calls([30, 1, 15].map(|ms| ("wait", json!({"ms": ms})))).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(wait_for())).await;
    assert_eq!(seen.responses(), [30, 1, 15].map(|ms| json!({"result": ms})));
    assert_eq!(seen.whole().len(), 3);
}

#[tokio::test]
async fn state_that_calls_write_is_merged_in_the_order_of_the_calls() {
    let set = FunctionTool::with_context("set", "", |cx, args: Value| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(args["ms"].as_u64().unwrap())).await;
            cx.set_state("last", args["ms"].clone());
            cx.set_state(format!("k{}", args["ms"]), true);
            Ok(cx.state("last"))
        })
    });
    let model = ScriptedModel::new("m").calls([20, 1].map(|ms| ("set", json!({"ms": ms})))).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(set)).await;
    assert_eq!(read(runner.run(&key, "hi")).await.responses(), [json!({"result": 20}), json!({"result": 1})]);
    assert_eq!(state(&runner, &key).await, json!({"last": 1, "k20": true, "k1": true}));
}

fn fail() -> FunctionTool {
    FunctionTool::new("fail", "", |_: Value| async { Err::<Value, _>(ToolError::new("broken")) })
}

#[tokio::test]
async fn a_tool_that_fails_is_told_to_the_model_or_fails_the_run_but_its_siblings_keep_their_results() {
    let script = || {
        let three = [("echo", json!({"n": 1})), ("fail", json!({})), ("echo", json!({"n": 2}))];
        LlmAgent::new("a").model(ScriptedModel::new("m").calls(three).text("done")).tool(echo()).tool(fail())
    };
    let seen = run_once(script()).await;
    assert_eq!(seen.responses(), [json!({"n": 1}), json!({"error": "broken"}), json!({"n": 2})]);
    seen.assert_finished();
    let (runner, key) = begin(script()).await;
    let config = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "hi", config)).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Tool, "TOOL_FAILED"));
    assert_eq!(responses(&stored_answers(&runner, &key).await), [json!({"n": 1}), json!({"n": 2})]);
}

#[tokio::test]
async fn news_of_a_tool_are_previews_and_its_last_item_is_the_result() {
    let spec = ToolSpec::new("dig", "", json!({"type": "object"}));
    let dig = FunctionTool::raw(spec, |_, _| {
        let items = [
            Ok(ToolItem::Progress(json!("50 %"))),
            Ok(ToolItem::Progress(json!({"percent": 90}))),
            Ok(ToolItem::Done(json!("gold").into())),
        ];
        Box::pin(async move { Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items)))) })
    });
    let model = ScriptedModel::new("m")
        .recorded()
        .response(calls([call_with_id("c", "dig", json!({}))]))
        .text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(dig)).await;
    let seen = read(runner.run(&key, "hi")).await;
    let news = seen.partial();
    assert_eq!(responses(&news), [json!({"result": "50 %"}), json!({"percent": 90})]);
    assert!(news.iter().all(|event| event.responses().all(|news| news.id == Some("c".into()))));
    assert_eq!(seen.responses(), [json!({"result": "gold"})]);
    assert_eq!(responses(&stored_answers(&runner, &key).await), [json!({"result": "gold"})]);
    assert_eq!(model.requests()[1].contents.len(), 3);
}

#[tokio::test]
async fn a_stream_of_a_tool_that_ends_without_a_result_has_failed() {
    let spec = ToolSpec::new("dig", "", json!({"type": "object"}));
    let dig = FunctionTool::raw(spec, |_, _| {
        let items = [Ok(ToolItem::Progress(json!(1)))];
        Box::pin(async move { Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items)))) })
    });
    let model = ScriptedModel::new("m").call("dig", json!({})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(dig)).await;
    assert_eq!(seen.tool_error(), "tool `dig` ended without a result");
}

#[tokio::test]
async fn a_long_running_call_ends_the_turn_and_is_answered_in_another() {
    let order = FunctionTool::with_context("order", "", |cx, _: Value| {
        Box::pin(async move {
            cx.set_state("ordered", true);
            Ok(Value::Null)
        })
    });
    let model = ScriptedModel::new("m").recorded().call("order", json!({})).text("It has come.");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(order.long_running())).await;
    let seen = read(runner.run(&key, "order!")).await;
    seen.assert_finished();
    let call = seen.events[0].calls().next().unwrap();
    let id = call.id.clone().unwrap();
    assert_eq!(seen.events[0].long_running(), std::slice::from_ref(&id));
    assert!(seen.responses().is_empty());
    // No answer yet, but what the tool did counts.
    assert_eq!(state(&runner, &key).await, json!({"ordered": true}));
    let seen = read(runner.run(&key, answer(id.as_str(), "order", json!({"status": "here"})))).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "It has come.".into())]);
    let sent = model.requests().pop().unwrap().contents;
    let answers: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
    assert_eq!(answers[0].response.as_ref().unwrap()["status"], "here");
}

#[tokio::test]
async fn a_long_running_call_with_a_first_answer_lets_the_model_comment() {
    let order = FunctionTool::new("order", "", |_: Value| async { Ok(json!({"status": "pending"})) });
    let model = ScriptedModel::new("m").call("order", json!({})).text("It is on its way.");
    let seen = run_once(LlmAgent::new("a").model(model).tool(order.long_running())).await;
    assert_eq!(seen.responses(), [json!({"status": "pending"})]);
    assert_eq!(seen.texts(), [("a".into(), "It is on its way.".into())]);
}

#[tokio::test]
async fn the_answer_of_a_tool_can_be_the_agents_answer() {
    let model =
        ScriptedModel::new("m").recorded().calls([("echo", json!({"n": 1})), ("other", json!({"n": 2}))]);
    let other = FunctionTool::new("other", "", |args: Value| async move { Ok(args) });
    let agent = LlmAgent::new("a").model(model.clone()).tool_returning_directly(echo()).tool(other);
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1}), json!({"n": 2})]);
    assert!(seen.events[1].is_final());
    assert_eq!(model.requests().len(), 1);
    // A tool may also decide that itself.
    let model = ScriptedModel::new("m").call("direct", json!({}));
    let direct = FunctionTool::with_context("direct", "", |cx, _: Value| {
        cx.skip_summarization();
        Box::pin(async { Ok("that is it") })
    });
    assert_eq!(
        run_once(LlmAgent::new("a").model(model).tool(direct)).await.assert_finished().events.len(),
        2
    );
}

#[tokio::test]
async fn results_are_wrapped_and_media_travel_with_them() {
    let photo = FunctionTool::new("photo", "", |_: Value| async {
        Ok(ToolValue {
            value: json!([1, 2]),
            parts: vec![Part::data("image/png", [1u8, 2])],
            ..ToolValue::default()
        })
    });
    let model = ScriptedModel::new("m").call("photo", json!({})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(photo)).await;
    assert_eq!(seen.responses(), [json!({"result": [1, 2]})]);
    let part = serde_json::to_value(&seen.events[1].content.as_ref().unwrap().parts[0]).unwrap();
    assert_eq!(part["functionResponse"]["parts"][0]["inlineData"]["mimeType"], "image/png");
}

#[tokio::test]
async fn tools_find_what_the_runner_lends_them() {
    struct Greeting(&'static str);
    let greet = FunctionTool::with_context("greet", "", |cx, _: Value| {
        Box::pin(async move { Ok(cx.dependency::<Greeting>()?.0.to_owned()) })
    });
    let script = || ScriptedModel::new("m").call("greet", json!({})).text("done");
    let agent = LlmAgent::new("a").model(script()).tool(greet.clone());
    let runner = Runner::builder("app", agent).dependency(Greeting("hej")).build().unwrap();
    let (runner, key) = with_session(runner).await;
    assert_eq!(read(runner.run(&key, "hi")).await.responses(), [json!({"result": "hej"})]);
    let seen = run_once(LlmAgent::new("a").model(script()).tool(greet)).await;
    assert!(seen.tool_error().contains("give it to the runner with `.dependency("));
}

#[tokio::test]
async fn an_agent_of_ones_own_can_make_calls() {
    let own = agent_fn("own", |run| {
        Box::pin(async move {
            let hands = LlmAgent::new("hands").tool(echo());
            let call = |n: u32| Batch {
                calls: vec![FunctionCall::new("echo", crate::support::object(json!({"n": n}))).with_id("c")],
                ..Batch::default()
            };
            make_calls(&hands, run, call(1)).await?;
            let quiet = merge_calls(&hands, run, call(2)).await?.unwrap();
            assert_eq!(quiet.responses().next().unwrap().response.as_ref().unwrap()["n"], 2);
            Ok(())
        })
    });
    let (runner, key) = begin(own).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
}
