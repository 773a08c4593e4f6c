//! Tools that are taken away, answer directly, fail, or do not exist.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    AgentTool, FunctionTool, LlmAgent, LoopAgent, RunConfig, ScriptedModel, Step, ToolError, ToolErrors,
    ToolOutput, ToolSet,
};

use crate::handler_support::{Probe, about, before_agent, configure, declared, digger, noting, wrap_tool};
use crate::support::{
    Notes, assert_ended, begin, call_with_id, calls, echo, fine, read, run_once, streaming,
};

fn both() -> [RunConfig; 2] {
    [RunConfig::default(), streaming()]
}

#[tokio::test]
async fn a_tool_that_is_taken_away_is_gone_for_model_and_executor() {
    for config in both() {
        for at_build in [true, false] {
            let notes = Notes::default();
            let model =
                ScriptedModel::new("m").calls([("kept", json!({})), ("gone", json!({}))]).text("done");
            let agent = LlmAgent::new("a")
                .model(model.clone())
                .tool(noting("kept", &notes))
                .tool(noting("gone", &notes));
            let agent = match at_build {
                true => agent.handler(configure("removes", |plan| {
                    plan.remove_tool("gone");
                    Ok(())
                })),
                false => agent.handler(before_agent("removes", |turn| {
                    turn.plan.remove_tool("gone");
                    Ok(Step::Continue)
                })),
            };
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            assert!(model.requests().iter().all(|request| declared(request) == ["kept"]));
            assert_eq!(notes.all(), ["kept"]);
            let error = seen.assert_finished().responses()[1]["error"].as_str().unwrap().to_owned();
            assert!(error.contains("The tools you can call are: kept."), "{error}");
        }
    }
}

#[tokio::test]
async fn all_tools_that_are_taken_away_are_gone_for_model_and_executor() {
    for config in both() {
        for how in 0..3 {
            let notes = Notes::default();
            let model = ScriptedModel::new("m").recorded().call("one", json!({})).text("done");
            let agent = LlmAgent::new("a")
                .model(model.clone())
                .tool_returning_directly(noting("one", &notes))
                .tool(noting("two", &notes))
                .handler(before_agent("removes", move |turn| {
                    match how {
                        0 => turn.plan.tools_mut().retain(|_| false),
                        1 => turn.plan.tools = Arc::new(ToolSet::new()),
                        _ => ["one", "two"].into_iter().for_each(|name| assert!(turn.plan.remove_tool(name))),
                    }
                    Ok(Step::Continue)
                }));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            assert!(model.requests().iter().all(|request| declared(request).is_empty()));
            assert!(notes.all().is_empty());
            assert!(seen.assert_finished().tool_error().contains("The tools you can call are: none."));
        }
    }
}

#[tokio::test]
async fn an_agent_without_tools_can_be_given_some_for_a_turn() {
    for directly in [true, false] {
        let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("in words");
        let agent = LlmAgent::new("a").model(model.clone()).handler(before_agent("adds", move |turn| {
            turn.plan.add_tool(Arc::new(echo()));
            turn.plan.return_directly("echo", directly);
            Ok(Step::Continue)
        }));
        let seen = run_once(agent).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
        assert_eq!(model.requests().len(), if directly { 1 } else { 2 });
    }
}

#[tokio::test]
async fn false_means_false_for_a_tool_that_answers_directly() {
    // Others looked only whether there is an entry for the tool.
    let model = ScriptedModel::new("m").recorded().call("echo", json!({})).text("in words");
    let agent =
        LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_agent("says false", |turn| {
            turn.plan.return_directly("echo", false);
            Ok(Step::Continue)
        }));
    assert_eq!(run_once(agent).await.assert_finished().texts(), [("a".into(), "in words".into())]);
    assert_eq!(model.requests().len(), 2);
}

#[tokio::test]
async fn a_mark_that_is_cleared_for_all_tools_is_cleared() {
    let model = ScriptedModel::new("m")
        .recorded()
        .calls([("echo", json!({})), ("other", json!({}))])
        .text("in words");
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool_returning_directly(echo())
        .tool_returning_directly(noting("other", &Notes::default()))
        .handler(before_agent("clears", |turn| {
            let names: Vec<_> = turn.plan.tools.iter().map(|meta| meta.tool.spec().name.clone()).collect();
            for name in names {
                turn.plan.return_directly(&name, false);
            }
            Ok(Step::Continue)
        }));
    assert_eq!(run_once(agent).await.assert_finished().texts(), [("a".into(), "in words".into())]);
    assert_eq!(model.requests().len(), 2);
}

#[tokio::test]
async fn of_a_batch_all_calls_are_made_and_the_results_are_the_last_event() {
    for config in both() {
        let notes = Notes::default();
        let batch = [("direct", json!({})), ("plain", json!({})), ("direct too", json!({}))];
        let model = ScriptedModel::new("m").recorded().calls(batch).text("in words");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool_returning_directly(noting("direct", &notes))
            .tool(noting("plain", &notes))
            .tool_returning_directly(noting("direct too", &notes));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        let expected = ["direct", "plain", "direct too"].map(|name| json!({"result": name}));
        assert_eq!(seen.assert_finished().responses(), expected);
        assert_eq!(notes.all().len(), 3);
        let last = seen.whole().pop().unwrap();
        assert!(last.is_final() && last.responses().count() == 3);
        assert_eq!(model.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_tool_that_answers_directly_and_needs_a_word_answers_directly_once_it_has_it() {
    let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("in words");
    let tool = echo().confirm(umbel::Confirm::Always);
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool_returning_directly(tool)).await;
    let asked = read(runner.run(&key, "go")).await.interrupts()[0].clone();
    let seen = read(runner.run(&key, asked.answer(true))).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert!(seen.texts().is_empty(), "{:?}", seen.texts());
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn a_layer_stands_around_tools_of_every_kind() {
    for config in both() {
        let notes = Notes::default();
        let names = ["echo", "dig", "block", "later", "child", "broken", "unknown"];
        let model =
            ScriptedModel::new("m").calls(names.map(|name| (name, json!({"request": "go"})))).text("done");
        let seen_by = notes.clone();
        let agent = LlmAgent::new("a")
            .model(model)
            .tool(echo())
            .tool(digger())
            .tool(FunctionTool::blocking("block", "", |_: Value| Ok(1)))
            .tool(FunctionTool::new("later", "", |_: Value| async { Ok(Value::Null) }).long_running())
            .tool(AgentTool::new(LlmAgent::new("child").model(fine())))
            .tool(FunctionTool::new("broken", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) }))
            .handler(wrap_tool("sees", move |call, next| {
                seen_by.add(call.name());
                Box::pin(next.call(call))
            }));
        let (runner, key) = begin(agent).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        let mut seen = notes.all();
        seen.sort();
        let mut names = names.map(str::to_owned);
        names.sort();
        assert_eq!(seen, names);
    }
}

#[tokio::test]
async fn a_layer_stands_around_the_tools_of_the_runtime_too() {
    let notes = Notes::default();
    let below = LlmAgent::new("b").model(fine());
    let model = ScriptedModel::new("m").call("transfer_to_agent", json!({"agent_name": "b"}));
    let agent = LlmAgent::new("a").model(model).sub_agent(below).handler(Probe::new("A", &notes));
    run_once(agent).await.assert_finished();
    assert_eq!(about(&notes, "wrap_tool"), ["A.wrap_tool>", "A.wrap_tool<"]);
    let notes = Notes::default();
    let model = ScriptedModel::new("m").call("set_model_response", json!({"name": "Rome"}));
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let agent =
        LlmAgent::new("a").model(model).tool(echo()).output_schema(schema).handler(Probe::new("A", &notes));
    run_once(agent).await.assert_finished();
    assert_eq!(about(&notes, "wrap_tool"), ["A.wrap_tool>", "A.wrap_tool<"]);
}

#[tokio::test]
async fn an_unknown_tool_passes_the_onion_is_an_event_and_can_be_answered() {
    for config in both() {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").call("unknown", json!({"n": 1})).text("done");
        let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(Probe::new("A", &notes));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config.clone())).await;
        assert!(seen.assert_finished().tool_error().starts_with("There is no tool named `unknown`"));
        assert_eq!(about(&notes, "wrap_tool"), ["A.wrap_tool>", "A.wrap_tool!"]);
        assert_eq!(about(&notes, "on_event(responses)").len(), 1);
        // A layer may know what was meant.
        let knows = wrap_tool("knows", |call, next| {
            Box::pin(async move {
                match call.tool {
                    Some(_) => next.call(call).await,
                    None => Ok(json!({"meant": call.name()}).into()),
                }
            })
        });
        let model = ScriptedModel::new("m").call("unknown", json!({})).text("done");
        let (runner, key) = begin(LlmAgent::new("a").model(model).handler(knows)).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"meant": "unknown"})]);
    }
}

#[tokio::test]
async fn a_tool_that_fails_is_an_event_and_loses_no_siblings() {
    for config in both() {
        for place in 0..3 {
            let notes = Notes::default();
            let batch = (0..3).map(|n| (if n == place { "broken" } else { "echo" }, json!({"n": n})));
            let model = ScriptedModel::new("m").calls(batch).text("done");
            let broken =
                FunctionTool::new("broken", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) });
            let agent =
                LlmAgent::new("a").model(model).tool(echo()).tool(broken).handler(Probe::new("A", &notes));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            let expected: Vec<_> =
                (0..3).map(|n| if n == place { json!({"error": "no"}) } else { json!({"n": n}) }).collect();
            assert_eq!(seen.assert_finished().responses(), expected);
            assert_eq!(about(&notes, "on_event(responses)").len(), 1);
        }
    }
}

#[tokio::test]
async fn a_tool_that_panics_does_no_harm_in_any_place_of_a_batch() {
    for place in 0..3 {
        let batch = (0..3).map(|n| (if n == place { "broken" } else { "echo" }, json!({"n": n})));
        let model = ScriptedModel::new("m").calls(batch).text("done");
        let broken = FunctionTool::new("broken", "", |args: Value| async move {
            assert!(args.is_null(), "burnt out");
            Ok(1)
        });
        let layer = wrap_tool("passes", |call, next| Box::pin(next.call(call)));
        let agent = LlmAgent::new("a").model(model).tool(echo()).tool(broken).handler(layer);
        let seen = run_once(agent).await;
        let responses = seen.assert_finished().responses();
        for (n, response) in responses.iter().enumerate() {
            match n == place {
                // It is the tool that is blamed, and not the layer around it.
                true => {
                    assert_eq!(response["error"], "The tool `broken` is broken: this call of it panicked.");
                }
                false => assert_eq!(*response, json!({"n": n})),
            }
        }
    }
}

#[tokio::test]
async fn results_of_siblings_stay_though_the_policy_is_to_fail() {
    let slow = FunctionTool::new("broken", "", |_: Value| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Err::<Value, _>(ToolError::new("no"))
    });
    let model =
        ScriptedModel::new("m").calls([("echo", json!({"n": 1})), ("broken", json!({}))]).text("done");
    let pass = wrap_tool("passes", |call, next| Box::pin(next.call(call)));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo()).tool(slow).handler(pass)).await;
    let fail = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "hi", fail)).await;
    assert_eq!((seen.code(), seen.message()), ("TOOL_FAILED", "no"));
    assert_eq!(seen.responses(), [json!({"n": 1})]);
    assert_ended(&runner, &key, &seen).await;
}

#[tokio::test]
async fn braces_in_an_instruction_of_a_handler_are_no_holes() {
    let model = fine();
    let agent = LlmAgent::new("a").model(model.clone()).instruction("In {city}.").handler(configure(
        "json",
        |plan| {
            plan.instruction.push("json", r#"Answer as {"city": "…"}, never as {city}."#);
            Ok(())
        },
    ));
    let (runner, key) = begin(agent).await;
    let state = crate::support::object(json!({"city": "Rome"}));
    read(runner.run_with(&key, "hi", RunConfig { state_delta: state, ..RunConfig::default() }))
        .await
        .assert_finished();
    let told = model.requests()[0].instruction.text();
    assert!(told.starts_with("In Rome.\n\nAnswer as {\"city\": \"…\"}, never as {city}."), "{told}");
}

#[tokio::test]
async fn an_agent_that_is_called_as_a_tool_cannot_steer_its_caller() {
    // It asks to end what encloses it, and to hand over: both are its own affair.
    let steers = FunctionTool::with_context("steer", "", |cx, _: Value| {
        cx.escalate();
        cx.set_state("steered", true);
        Box::pin(async { Ok("done") })
    });
    let child = LlmAgent::new("child")
        .model(ScriptedModel::new("m").call("steer", json!({})).text("I tried"))
        .tool(steers);
    let call = |n: u32| calls([call_with_id(&format!("c{n}"), "child", json!({"request": "go"}))]);
    let model = ScriptedModel::new("m").response(call(1)).text("one").text("two");
    let caller = LlmAgent::new("caller").model(model.clone()).tool(AgentTool::new(child));
    let (runner, key) = begin(LoopAgent::new("loop").agent(caller).max_iterations(2)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts().len(), 2, "the loop was not ended: {:?}", seen.texts());
    assert_eq!(crate::support::state(&runner, &key).await["steered"], true);
}

#[tokio::test]
async fn a_layer_around_a_streamed_tool_sees_the_stream_and_its_time_is_limited() {
    let spec = umbel::ToolSpec::new("endless", "", json!({"type": "object"}));
    let endless = FunctionTool::raw(spec, |_, _| {
        Box::pin(async { Ok(ToolOutput::Stream(Box::pin(futures::stream::pending()))) })
    })
    .timeout(Duration::from_millis(20));
    let pass = wrap_tool("passes", |call, next| Box::pin(next.call(call)));
    let model = ScriptedModel::new("m").call("endless", json!({})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(endless).handler(pass)).await;
    assert_eq!(seen.assert_finished().tool_error(), "tool `endless` took longer than 0.02 s and was stopped");
}
