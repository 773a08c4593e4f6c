//! H, S, T, P: what each hook sees and may change.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use umbel::{
    AgentTurn, Chunk, Content, ErrorKind, FunctionTool, GenerateConfig, Handler, LlmAgent, LogEntry,
    ModelTurn, NextTool, Part, Result, RunConfig, RunStep, ScriptedModel, Step, ToolCall, ToolError,
    ToolErrors, ToolItem, ToolOutput, ToolResult, ToolSpec, handler,
};

use crate::handler_support::{
    Probe, after_model, before_agent, before_model, declared, digger, noting, wrap_model, wrap_tool,
};
use crate::support::{
    Notes, begin, call_with_id, calls, echo, fine, log, object, read, run_once, said, stored, streaming,
};

/// The settings of a run that streams, and of one that does not.
fn both() -> [RunConfig; 2] {
    [RunConfig::default(), streaming()]
}

/// Calls `echo`, then says "done", in pieces.
fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).stream(["do", "ne"])
}

#[tokio::test]
async fn h1_the_name_of_a_handler_is_in_its_errors_and_in_explain() {
    let failing = || before_model("the cautious one", |_| Err(umbel::Error::new(ErrorKind::Other, "no")));
    let agent = LlmAgent::new("a").model(fine()).handler(failing());
    assert_eq!(agent.explain().unwrap().hooks, [("before_model", vec!["the cautious one".into()])]);
    let seen = run_once(agent).await;
    assert_eq!(seen.message(), "handler `the cautious one` failed in before_model: no");
}

/// Changes all four things that a turn begins with.
struct Prepares;

#[handler]
impl Handler for Prepares {
    fn name(&self) -> &str {
        "prepares"
    }

    async fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        tokio::task::yield_now().await;
        turn.plan.instruction.push("prepares", "Be brief.");
        turn.plan.add_tool(Arc::new(echo()));
        turn.plan.return_directly("echo", true);
        turn.plan.generate_mut().temperature = Some(0.5);
        let said = turn.input.as_ref().map(|input| input.text()).unwrap_or_default();
        turn.input = Some(Arc::new(Content::user(format!("{said}!").as_str())));
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn h2_before_agent_may_change_instruction_tools_input_and_options_of_the_turn() {
    for config in both() {
        let model = ScriptedModel::new("m")
            .recorded()
            .call("echo", json!({"n": 1}))
            .text("not reached")
            .text("later");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .instruction("Answer.")
            .generate(GenerateConfig { top_k: Some(3), ..GenerateConfig::default() })
            .handler(Prepares);
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config.clone())).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
        let [request] = &model.requests()[..] else { panic!("the tool's answer is the agent's") };
        assert!(request.instruction.text().starts_with("Answer.\n\nBe brief."));
        assert_eq!(declared(request), ["echo"]);
        assert_eq!((request.config.temperature, request.config.top_k), (Some(0.5), Some(3)));
        assert_eq!(said(request), ["hi!"]);
        // The log keeps what was said, and each turn is prepared anew.
        assert_eq!(stored(&runner, &key).await[0].text(), "hi");
        read(runner.run_with(&key, "again", config)).await.assert_finished();
        let second = model.requests().pop().unwrap();
        assert_eq!(second.instruction.text().matches("Be brief.").count(), 1);
        assert_eq!(said(&second).last().unwrap(), "again!");
    }
}

#[tokio::test]
async fn h2_what_before_agent_puts_in_the_place_of_the_input_is_there_at_every_step() {
    let model = echo_once();
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_agent("input", |turn| {
        turn.input = Some(Arc::new(Content::user("something else")));
        Ok(Step::Continue)
    }));
    run_once(agent).await.assert_finished();
    for request in model.requests() {
        assert_eq!(said(&request)[0], "something else");
    }
}

#[tokio::test]
async fn h3_before_model_comes_before_every_model_call_and_what_it_leaves_is_sent() {
    for config in both() {
        let (model, notes) = (echo_once(), Notes::default());
        let seen_by = notes.clone();
        let agent =
            LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model("note", move |turn| {
                seen_by.add(format!("{} messages", turn.history.len()));
                assert!(turn.response.is_none());
                turn.history.push(Content::user("carry on"));
                Ok(Step::Continue)
            }));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())]);
        // The second time there are also the note of the first, the call and its answer.
        assert_eq!(notes.all(), ["1 messages", "4 messages"]);
        let requests = model.requests();
        assert_eq!(said(&requests[0]), ["hi", "carry on"]);
        assert_eq!(said(&requests[1]), ["hi", "carry on", "", "", "carry on"]);
        // Nothing of it is in the log.
        assert!(stored(&runner, &key).await.iter().all(|event| event.text() != "carry on"));
    }
}

#[tokio::test]
async fn h3_before_model_comes_once_per_model_call_though_a_layer_asks_twice() {
    let (model, notes) = (ScriptedModel::new("m").recorded().fail("no").text("yes"), Notes::default());
    let agent = LlmAgent::new("a").model(model.clone()).handler(Probe::new("p", &notes)).handler(wrap_model(
        "again",
        |call, next| {
            Box::pin(async move {
                let mut chunks = next.call(call.clone()).await?;
                match chunks.next().await {
                    Some(Err(_)) => next.call(call).await,
                    first => Ok(futures::stream::iter(first).chain(chunks).boxed()),
                }
            })
        },
    ));
    assert_eq!(run_once(agent).await.assert_finished().texts(), [("a".into(), "yes".into())]);
    assert_eq!(model.requests().len(), 2);
    let hooks = |hook: &str| crate::handler_support::about(&notes, hook).len();
    assert_eq!((hooks("before_model"), hooks("after_model"), hooks("wrap_model>")), (1, 1, 1));
}

#[tokio::test]
async fn h4_after_model_comes_after_every_model_call_with_the_response_as_the_last_message() {
    for config in both() {
        let (model, notes) = (echo_once(), Notes::default());
        let seen_by = notes.clone();
        let agent =
            LlmAgent::new("a").model(model.clone()).tool(echo()).handler(after_model("look", move |turn| {
                let last = turn.history.last().unwrap();
                assert!(Arc::ptr_eq(last, turn.response.as_ref().unwrap().content.as_ref().unwrap()));
                seen_by.add(format!("{} messages, {} calls", turn.history.len(), turn.calls().count()));
                Ok(Step::Continue)
            }));
        let (runner, key) = begin(agent).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        assert_eq!(notes.all(), ["2 messages, 1 calls", "4 messages, 0 calls"]);
    }
}

#[tokio::test]
async fn h4_what_after_model_leaves_is_stored_be_it_changed_as_response_or_as_the_last_message() {
    for config in both() {
        for as_message in [true, false] {
            let model = ScriptedModel::new("m").recorded().stream(["se", "cret"]).text("second");
            let agent = LlmAgent::new("a").model(model.clone()).handler(after_model("hide", move |turn| {
                let hidden = Arc::new(Content::model("***"));
                if as_message {
                    let last = turn.history.len() - 1;
                    turn.history.replace(last, hidden);
                } else if let Some(response) = &mut turn.response {
                    response.content = Some(hidden);
                }
                Ok(Step::Continue)
            }));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            assert_eq!(seen.assert_finished().texts(), [("a".into(), "***".into())]);
            assert_eq!(stored(&runner, &key).await[1].text(), "***");
            // The next run sees what was stored, once.
            read(runner.run(&key, "and?")).await.assert_finished();
            assert_eq!(said(&model.requests()[1]), ["hi", "***", "and?"]);
        }
    }
}

#[tokio::test]
async fn h4_the_history_that_after_model_leaves_is_there_at_the_next_step() {
    let model = echo_once();
    let agent =
        LlmAgent::new("a").model(model.clone()).tool(echo()).handler(after_model("shorten", |turn| {
            if turn.calls().count() > 0 {
                turn.history.replace(0, Content::user("in short: hi"));
            }
            Ok(Step::Continue)
        }));
    run_once(agent).await.assert_finished();
    assert_eq!(said(&model.requests()[1]), ["in short: hi", "", ""]);
}

#[tokio::test]
async fn h4_messages_put_in_front_by_after_model_do_not_touch_the_response() {
    // As many as make the old answer stand where the new one stood.
    let model = ScriptedModel::new("m").text("old").text("new").text("next");
    let agent = LlmAgent::new("a").model(model.clone()).handler(after_model("front", |turn| {
        let front = ["one", "two"].map(|text| Arc::new(Content::user(text)));
        turn.history.splice(0..0, front);
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "first")).await.assert_finished();
    let seen = read(runner.run(&key, "second")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "new".into())]);
}

#[tokio::test]
async fn h5_wrap_tool_stands_around_a_tool_that_answers_at_once() {
    for config in both() {
        let model = echo_once();
        let agent = LlmAgent::new("a").model(model).tool(echo()).handler(wrap_tool("mark", |call, next| {
            Box::pin(async move {
                let ToolOutput::Value(mut value) = next.call(call).await? else { panic!("a value") };
                value.value["marked"] = json!(true);
                Ok(ToolOutput::Value(value))
            })
        }));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1, "marked": true})]);
    }
}

/// Doubles the news of a streamed tool and marks its result.
struct Doubles;

#[handler]
impl Handler for Doubles {
    fn name(&self) -> &str {
        "doubles"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let ToolOutput::Stream(items) = next.call(call).await? else { panic!("a stream") };
        let items = items.map_ok(|item| match item {
            ToolItem::Progress(news) => ToolItem::Progress(json!(news.as_i64().map(|n| n * 2))),
            ToolItem::Done(mut value) => {
                value.value["marked"] = json!(true);
                ToolItem::Done(value)
            }
        });
        Ok(ToolOutput::Stream(items.boxed()))
    }
}

#[tokio::test]
async fn h6_wrap_tool_stands_around_a_tool_that_streams_its_answer() {
    for config in both() {
        let model = ScriptedModel::new("m").call("dig", json!({"n": 1})).text("done");
        let (runner, key) = begin(LlmAgent::new("a").model(model).tool(digger()).handler(Doubles)).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1, "marked": true})]);
        let news = crate::support::responses(&seen.partial());
        assert_eq!(news, [json!({"result": 2}), json!({"result": 4})]);
        assert_eq!(stored(&runner, &key).await.len(), 4, "news are not stored");
    }
}

#[tokio::test]
async fn h6_a_layer_may_answer_a_plain_tool_with_a_stream_and_a_streamed_one_with_a_value() {
    let other = wrap_tool("other", |call, next| {
        Box::pin(async move {
            Ok(match next.call(call).await? {
                ToolOutput::Value(value) => {
                    let items = [ToolItem::Progress(json!("soon")), ToolItem::Done(*value)];
                    ToolOutput::Stream(futures::stream::iter(items.map(Ok)).boxed())
                }
                ToolOutput::Stream(mut items) => loop {
                    if let Some(ToolItem::Done(value)) = items.try_next().await? {
                        break ToolOutput::from(value);
                    }
                },
            })
        })
    });
    let model =
        ScriptedModel::new("m").calls([("echo", json!({"n": 1})), ("dig", json!({"n": 2}))]).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo()).tool(digger()).handler(other)).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1}), json!({"n": 2})]);
    assert_eq!(crate::support::responses(&seen.partial()), [json!({"result": "soon"})]);
}

/// One hook; all others are those of the trait.
struct Only;

#[handler]
impl Handler for Only {
    fn name(&self) -> &str {
        "only"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        turn.history.push(Content::user("only"));
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn h7_one_hook_can_be_written_and_the_others_pass_everything_on() {
    // Asked for all hooks, though it has one.
    struct AskedForAll(Only);
    impl Handler for AskedForAll {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> umbel::Work<'a, Result<Step>> {
            self.0.before_model(turn)
        }
    }
    let model = echo_once();
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(AskedForAll(Only));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert_eq!(seen.texts(), [("a".into(), "done".into())]);
    assert_eq!(said(&model.requests()[0]), ["hi", "only"]);
}

#[tokio::test]
async fn h8_later_handlers_see_what_earlier_ones_left() {
    #[derive(Debug, PartialEq)]
    struct Tenant(&'static str);
    let (notes, model) = (Notes::default(), echo_once());
    let (in_agent, in_model, in_tool, in_call) = (notes.clone(), notes.clone(), notes.clone(), notes.clone());
    let tool = FunctionTool::with_context("echo", "", move |cx, args: Value| {
        in_tool.add(format!("tool: {:?}", cx.extension::<Tenant>()));
        Box::pin(async move { Ok(args) })
    });
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(tool)
        .handler(before_agent("sets", |turn| {
            turn.run().insert(Tenant("acme"));
            turn.plan.instruction.push("sets", "One.");
            Ok(Step::Continue)
        }))
        .handler(before_agent("sees", move |turn| {
            in_agent.add(format!("before_agent: {:?}", turn.run().extension::<Tenant>()));
            in_agent.add(format!("parts: {}", turn.plan.instruction.parts().len()));
            Ok(Step::Continue)
        }))
        .handler(before_model("pushes", |turn| {
            turn.history.push(Content::user("pushed"));
            Ok(Step::Continue)
        }))
        .handler(before_model("sees too", move |turn| {
            in_model.add(format!("before_model: {}", turn.history.last().unwrap().text()));
            Ok(Step::Continue)
        }))
        .handler(wrap_model("model", move |call, next| {
            in_call.add(format!("wrap_model: {:?}", call.extension::<Tenant>()));
            Box::pin(async move { next.call(call).await })
        }));
    run_once(agent).await.assert_finished();
    let tenant = "Some(Tenant(\"acme\"))";
    assert_eq!(
        notes.all()[..5],
        [
            format!("before_agent: {tenant}"),
            "parts: 1".to_owned(),
            "before_model: pushed".to_owned(),
            format!("wrap_model: {tenant}"),
            format!("tool: {tenant}"),
        ]
    );
}

#[tokio::test]
async fn h8_a_value_goes_inward_with_next() {
    struct Deadline(u32);
    let notes = Notes::default();
    let (inner, tool) = (notes.clone(), notes.clone());
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(FunctionTool::with_context("echo", "", move |cx, args: Value| {
            tool.add(format!("tool {}", cx.extension::<Deadline>().unwrap().0));
            Box::pin(async move { Ok(args) })
        }))
        .handler(wrap_tool("outer", |call, next| {
            Box::pin(async move {
                let cx = call.cx.with(Deadline(7));
                next.call(call.with_context(&cx)).await
            })
        }))
        .handler(wrap_tool("inner", move |call, next| {
            inner.add(format!("layer {}", call.cx.extension::<Deadline>().unwrap().0));
            Box::pin(async move { next.call(call).await })
        }));
    run_once(agent).await.assert_finished();
    assert_eq!(notes.all(), ["layer 7", "tool 7"]);
}

#[tokio::test]
async fn h9_a_layer_sees_the_name_the_arguments_and_the_id_of_a_call() {
    for config in both() {
        let notes = Notes::default();
        let seen_by = notes.clone();
        let call = call_with_id("c1", "echo", json!({"n": 1, "text": "ü"}));
        let model = ScriptedModel::new("m").response(calls([call])).text("done");
        let agent =
            LlmAgent::new("a").model(model).tool(echo()).handler(wrap_tool("look", move |call, next| {
                let args = Value::Object((*call.args).clone());
                seen_by.add(format!("{} {args} {:?} {}", call.name(), call.id(), call.tool.is_some()));
                Box::pin(async move { next.call(call).await })
            }));
        let (runner, key) = begin(agent).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        assert_eq!(notes.all(), [r#"echo {"n":1,"text":"ü"} Some(CallId("c1")) true"#]);
    }
}

#[tokio::test]
async fn h10_a_layer_may_answer_without_the_tool() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").call("pay", json!({})).text("done");
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(noting("pay", &notes))
        .handler(wrap_tool("refuse", |_, _| Box::pin(async { Ok(json!({"refused": true}).into()) })));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"refused": true})]);
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn h10_a_layer_may_change_arguments_and_the_log_keeps_what_the_model_asked() {
    let (runner, key) = begin(
        LlmAgent::new("a").model(echo_once()).tool(echo()).handler(wrap_tool("change", |call, next| {
            Box::pin(async move { next.call(call.with_args(object(json!({"n": 2})))).await })
        })),
    )
    .await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 2})]);
    let asked = seen.events[0].calls().next().unwrap().args.clone().unwrap();
    assert_eq!(*asked, object(json!({"n": 1})));
}

#[tokio::test]
async fn h10_a_layer_may_ask_next_again_after_a_failure() {
    let notes = Notes::default();
    let tries = notes.clone();
    let flaky = FunctionTool::new("echo", "", move |args: Value| {
        tries.add("try");
        let broken = tries.all().len() < 3;
        async move { if broken { Err(ToolError::new("not yet")) } else { Ok(args) } }
    });
    let agent =
        LlmAgent::new("a").model(echo_once()).tool(flaky).handler(wrap_tool("retry", |call, next| {
            Box::pin(async move {
                for _ in 0..4 {
                    if let Ok(output) = next.call(call.clone()).await {
                        return Ok(output);
                    }
                }
                next.call(call).await
            })
        }));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert_eq!(notes.all().len(), 3);
}

#[tokio::test]
async fn s1_what_hooks_change_is_what_the_loop_works_on() {
    // A call that `after_model` changes is made as it was changed, and the model sees it so at the next step.
    for config in both() {
        let model = echo_once();
        let agent =
            LlmAgent::new("a").model(model.clone()).tool(echo()).handler(after_model("rewrite", |turn| {
                if turn.calls().count() > 0 {
                    let call = call_with_id("c9", "echo", json!({"n": 9}));
                    turn.response = Some(calls([call]));
                }
                Ok(Step::Continue)
            }));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 9})]);
        let second = &model.requests()[1];
        let asked: Vec<_> = second.contents.iter().flat_map(|content| content.calls()).collect();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].args.as_deref(), Some(&object(json!({"n": 9}))));
    }
}

#[tokio::test]
async fn s2_what_handlers_leave_in_a_run_has_a_json_form() {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let odd: Part =
        serde_json::from_value(json!({"text": "t", "fromTheFuture": {"deep": [1, null]}})).unwrap();
    let agent =
        LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model("rich", move |turn| {
            if turn.history.len() == 1 {
                let thought = Part::thought("hm");
                let parts = [odd.clone(), thought, Part::data("image/png", [1u8, 2, 3])];
                turn.history.push(Content::new(umbel::Role::User, parts));
                turn.run().keep("rich.seen", &json!({"at": [1, 2], "by": null}))?;
            }
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let mut kinds = Vec::new();
    for entry in log(&runner, &key).await {
        let LogEntry::Record(step) = entry else { continue };
        let text = serde_json::to_string(&*step).unwrap();
        assert_eq!(serde_json::from_str::<RunStep>(&text).unwrap(), *step);
        kinds.extend(match &*step {
            RunStep::Edited { .. } => Some("edited"),
            RunStep::Kept { .. } => Some("kept"),
            _ => None,
        });
    }
    kinds.sort_unstable();
    assert_eq!(kinds, ["edited", "kept"]);
}

#[tokio::test]
async fn s3_call_id_run_and_agent_are_the_same_in_every_layer_and_in_the_tool() {
    for config in both() {
        let notes = Notes::default();
        let (outer, inner, tool) = (notes.clone(), notes.clone(), notes.clone());
        let place = |cx: &umbel::ToolContext| {
            let run = cx.run();
            format!(
                "{:?} {} {} {} {}",
                cx.call_id(),
                cx.tool_name(),
                run.id(),
                run.agent_name(),
                run.session_key()
            )
        };
        let call = call_with_id("c1", "echo", json!({}));
        let agent = LlmAgent::new("a")
            .model(ScriptedModel::new("m").response(calls([call])).text("done"))
            .tool(FunctionTool::with_context("echo", "", move |cx, args: Value| {
                tool.add(place(cx));
                Box::pin(async move { Ok(args) })
            }))
            .before_tool({
                let notes = notes.clone();
                move |cx, _, _| {
                    notes.add(place(cx));
                    Box::pin(async { Ok(None) })
                }
            })
            .tool_layer(wrap_tool("outer", move |call, next| {
                outer.add(place(call.cx));
                Box::pin(async move { next.call(call).await })
            }))
            .handler(wrap_tool("inner", move |call, next| {
                inner.add(place(call.cx));
                Box::pin(async move {
                    let cx = call.cx.with(1u8);
                    next.call(call.with_context(&cx)).await
                })
            }));
        let (runner, key) = begin(agent).await;
        let stream = runner.run_with(&key, "hi", config);
        let expected = format!("Some(CallId(\"c1\")) echo {} a {key}", stream.id());
        read(stream).await.assert_finished();
        assert_eq!(notes.all(), vec![expected; 4]);
    }
}

#[tokio::test]
async fn t1_a_mapped_stream_of_a_tool_keeps_its_error() {
    let spec = ToolSpec::new("dig", "", json!({"type": "object"}));
    let broken = || {
        FunctionTool::raw(spec.clone(), |_, _| {
            Box::pin(async {
                let error = umbel::Error::new(ErrorKind::RateLimited, "too deep")
                    .with_retry_after(std::time::Duration::from_secs(3));
                let items = [Ok(ToolItem::Progress(json!(1))), Err(error.into())];
                Ok(ToolOutput::Stream(futures::stream::iter(items).boxed()))
            })
        })
    };
    let script = || ScriptedModel::new("m").call("dig", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(broken()).handler(Doubles)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().tool_error(), "too deep");
    assert_eq!(crate::support::responses(&seen.partial()), [json!({"result": 2})]);
    let (runner, key) = begin(LlmAgent::new("a").model(script()).tool(broken()).handler(Doubles)).await;
    let fail = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "hi", fail)).await;
    assert_eq!((seen.kind(), seen.message()), (ErrorKind::RateLimited, "too deep"));
    let error = seen.error.unwrap();
    assert!(error.is_retryable() && error.retry_after().is_some());
}

#[tokio::test]
async fn t1_a_mapped_stream_of_a_model_keeps_its_error() {
    for config in both() {
        let model = ScriptedModel::new("m").break_off(["a", "b"]);
        let agent = LlmAgent::new("a").model(model).handler(wrap_model("loud", |call, next| {
            Box::pin(async move {
                let chunks = next.call(call).await?;
                let loud = |chunk| match chunk {
                    Chunk::Text(text) => Chunk::Text(text.to_uppercase()),
                    other => other,
                };
                Ok(chunks.map_ok(loud).boxed())
            })
        }));
        let (runner, key) = begin(agent).await;
        let streams = config.streaming;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!((seen.kind(), seen.message()), (ErrorKind::StreamCut, "the model's answer broke off"));
        assert!(seen.error.as_ref().unwrap().is_retryable());
        let shown: String = seen.partial().iter().map(|event| event.text()).collect();
        assert_eq!(shown, if streams { "AB" } else { "" });
    }
}

#[tokio::test]
async fn p1_handlers_that_only_read_share_the_history_with_the_log() {
    let (notes, prefixes) = (Notes::default(), Notes::default());
    let call = call_with_id("c1", "echo", json!({}));
    let model = ScriptedModel::new("m").recorded().response(calls([call])).text("one").text("two");
    let mut agent = LlmAgent::new("a").model(model.clone()).tool(echo());
    for name in ["a", "b", "c", "d"] {
        agent = agent.handler(Probe::new(name, &notes));
    }
    let seen_by = prefixes.clone();
    let agent = agent.handler(before_model("prefix", move |turn| {
        seen_by.add(format!("{} of {}", turn.history.stable_prefix(), turn.history.len()));
        assert!(!turn.history.is_edited());
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(prefixes.all(), ["0 of 1", "1 of 3"]);
    read(runner.run(&key, "more")).await.assert_finished();
    let events = stored(&runner, &key).await;
    let last = model.requests().pop().unwrap();
    assert_eq!(last.contents.len(), 5);
    for (sent, event) in last.contents.iter().zip(&events) {
        assert!(Arc::ptr_eq(sent, event.content.as_ref().unwrap()), "{sent:?} was copied");
    }
    // Nothing was changed, so nothing is recorded.
    let edited = |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Edited { .. }));
    assert!(!log(&runner, &key).await.iter().any(edited));
}

#[tokio::test]
async fn p1_a_change_tells_how_much_of_the_prompt_it_leaves_as_it_was() {
    let prefixes = Notes::default();
    let seen_by = prefixes.clone();
    let call = |id| calls([call_with_id(id, "echo", json!({}))]);
    let model = ScriptedModel::new("m").response(call("c1")).response(call("c2")).text("done");
    let agent = LlmAgent::new("a").model(model).tool(echo()).handler(before_model("prefix", move |turn| {
        if turn.history.len() == 5 {
            turn.history.replace(2, Content::user("cut"));
        }
        seen_by.add(format!("{} of {}", turn.history.stable_prefix(), turn.history.len()));
        if turn.history.len() == 5 {
            let whole = turn.history.base().get(2).unwrap().clone();
            turn.history.replace(2, whole);
        }
        Ok(Step::Continue)
    }));
    run_once(agent).await.assert_finished();
    assert_eq!(prefixes.all(), ["0 of 1", "1 of 3", "2 of 5"]);
}
