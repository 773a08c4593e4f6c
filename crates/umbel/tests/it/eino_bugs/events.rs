//! What readers and the log see of attempts, layers and ids.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use umbel::{
    Chunk, Content, Event, FunctionTool, LlmAgent, ModelCall, NextModel, RunConfig, ScriptedModel, Step,
    ToolOutput,
};

use crate::handler_support::{Probe, about, after_model, before_model, on_event, wrap_model, wrap_tool};
use crate::support::{
    Notes, Seen, begin, call_with_id, calls, echo, fine, read, run_once, said, stored, streaming,
};

fn both() -> [RunConfig; 2] {
    [RunConfig::default(), streaming()]
}

/// Reads an answer to its end, passing it on as it comes; if it says "bad", it is void and another is asked for.
fn judge() -> impl umbel::Handler {
    async fn attempt<'a>(
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> umbel::Result<Vec<umbel::Result<Chunk>>> {
        Ok(next.call(call).await?.collect().await)
    }
    wrap_model("judge", |call, next| {
        Box::pin(async move {
            let mut all = Vec::new();
            loop {
                let chunks = attempt(call.clone(), next).await?;
                let text: String = chunks
                    .iter()
                    .filter_map(|chunk| match chunk {
                        Ok(Chunk::Text(text)) => Some(text.as_str()),
                        _ => None,
                    })
                    .collect();
                all.extend(chunks);
                if !text.contains("bad") {
                    return Ok(futures::stream::iter(all).boxed());
                }
                all.push(Ok(Chunk::Restart));
            }
        })
    })
}

#[tokio::test]
async fn an_attempt_that_was_rejected_is_marked_for_readers_and_not_stored() {
    let model =
        ScriptedModel::new("m").recorded().stream(["very ", "bad"]).stream(["good", " now"]).text("next");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).handler(judge())).await;
    let seen = read(runner.run_with(&key, "hi", streaming())).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "good now".into())]);
    let shown: Vec<_> =
        seen.events.iter().map(|event| (event.text(), event.error_code().map(str::to_owned))).collect();
    let piece = |text: &str| (text.to_owned(), None);
    let void = (String::new(), Some(umbel::text::ATTEMPT_REJECTED.to_owned()));
    assert_eq!(shown, [piece("very "), piece("bad"), void, piece("good"), piece(" now"), piece("good now")]);
    // The mark has the id of what it voids; what follows has another.
    let ids: Vec<_> = seen.events.iter().map(|event| event.id.clone()).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2]);
    assert!(ids[2] != ids[3] && ids[3] == ids[4] && ids[4] == ids[5]);
    assert!(seen.events[2].is_partial(), "a mark is not stored");
    let texts: Vec<_> = stored(&runner, &key).await.iter().map(|event| event.text()).collect();
    assert_eq!(texts, ["hi", "good now"]);
    read(runner.run(&key, "more")).await.assert_finished();
    assert_eq!(said(&model.requests()[2]), ["hi", "good now", "more"]);
}

#[tokio::test]
async fn an_attempt_that_was_rejected_is_not_seen_at_all_in_a_run_that_does_not_stream() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").stream(["very ", "bad"]).stream(["good", " now"]);
    let agent = LlmAgent::new("a").model(model).handler(Probe::new("A", &notes)).handler(judge());
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().events.len(), 1);
    assert_eq!(stored(&runner, &key).await[1].text(), "good now");
    assert_eq!((about(&notes, "after_model").len(), about(&notes, "on_event").len()), (1, 1));
}

#[tokio::test]
async fn a_call_in_an_attempt_that_was_rejected_is_not_made() {
    let notes = Notes::default();
    let bad = [Chunk::Text("bad".to_owned()), Chunk::Delta(calls([call_with_id("c1", "pay", json!({}))]))];
    for config in both() {
        let model = ScriptedModel::new("m").chunks(bad.clone()).text("good");
        let tool = crate::handler_support::noting("pay", &notes);
        let (runner, key) = begin(LlmAgent::new("a").model(model).tool(tool).handler(judge())).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "good".into())]);
        assert!(notes.all().is_empty() && seen.responses().is_empty());
    }
}

#[tokio::test]
async fn events_show_what_layers_made_of_calls_and_answers() {
    for config in both() {
        let notes = Notes::default();
        let seen_by = notes.clone();
        let model = ScriptedModel::new("m").call("echo", json!({"n": 1})).stream(["o", "k"]);
        let agent = LlmAgent::new("a")
            .model(model)
            .tool(echo())
            .handler(on_event("first", move |_, event: Event| {
                let result = event.responses().next().and_then(|one| one.response.clone());
                seen_by.add(format!("{} {}", event.text(), Value::from(result.unwrap_or_default())));
                Ok(event)
            }))
            .handler(wrap_tool("adds", |call, next| {
                Box::pin(async move {
                    let ToolOutput::Value(mut value) = next.call(call).await? else { panic!("a value") };
                    value.value["added"] = json!(true);
                    Ok(ToolOutput::Value(value))
                })
            }))
            .handler(wrap_model("loud", |call, next| {
                Box::pin(async move {
                    let chunks = next.call(call).await?;
                    Ok(chunks
                        .map_ok(|chunk| match chunk {
                            Chunk::Text(text) => Chunk::Text(text.to_uppercase()),
                            other => other,
                        })
                        .boxed())
                })
            }))
            .handler(after_model("signs", |turn| {
                if turn.calls().count() == 0 {
                    let text = turn.response.as_ref().unwrap().content.as_ref().unwrap().text();
                    turn.response = Some(umbel::Response::text(format!("{text}!")));
                }
                Ok(Step::Continue)
            }));
        let (runner, key) = begin(agent).await;
        let streams = config.streaming;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1, "added": true})]);
        assert_eq!(seen.texts(), [("a".into(), "OK!".into())]);
        let shown: Vec<_> = seen.partial().iter().map(|event| event.text()).collect();
        assert_eq!(shown, if streams { vec!["O", "K"] } else { vec![] });
        let whole: Vec<_> = notes
            .all()
            .into_iter()
            .filter(|note| !note.starts_with("O {") && !note.starts_with("K {"))
            .collect();
        assert_eq!(whole, [" {}", r#" {"n":1,"added":true}"#, "OK! {}"]);
    }
}

/// The ids of a call wherever it is seen.
fn call_ids(seen: &Seen) -> Vec<String> {
    let calls = seen.whole().into_iter().flat_map(|event| {
        let calls: Vec<_> = event.calls().map(|call| call.id.clone()).collect();
        let responses: Vec<_> = event.responses().map(|response| response.id.clone()).collect();
        calls.into_iter().chain(responses).collect::<Vec<_>>()
    });
    calls.map(|id| id.expect("an id").to_string()).collect()
}

#[tokio::test]
async fn events_log_and_tools_share_the_ids_of_events_and_calls() {
    for config in both() {
        for with_id in [true, false] {
            let notes = Notes::default();
            let (in_tool, in_hook, in_layer) = (notes.clone(), notes.clone(), notes.clone());
            let call = match with_id {
                true => call_with_id("c1", "look", json!({})),
                false => umbel::Part::call(umbel::FunctionCall::new("look", Default::default())),
            };
            let model = ScriptedModel::new("m").response(calls([call])).stream(["do", "ne"]);
            let agent = LlmAgent::new("a")
                .model(model)
                .tool(FunctionTool::with_context("look", "", move |cx, _: Value| {
                    in_tool.add(cx.call_id().unwrap().to_string());
                    Box::pin(async { Ok(1) })
                }))
                .handler(after_model("sees", move |turn| {
                    turn.calls().for_each(|call| in_hook.add(call.id.clone().unwrap().to_string()));
                    Ok(Step::Continue)
                }))
                .handler(wrap_tool("sees too", move |call, next| {
                    in_layer.add(call.id().unwrap().to_string());
                    Box::pin(next.call(call))
                }));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            seen.assert_finished();
            let ids: Vec<_> = notes.all().into_iter().chain(call_ids(&seen)).collect();
            assert_eq!(ids.len(), 5);
            assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
            assert_eq!(with_id, ids[0] == "c1");
            // What is read is what is stored, by id and as a whole; previews have the id of their whole.
            assert_eq!(seen.whole(), stored(&runner, &key).await[1..]);
            let last = seen.whole().pop().unwrap();
            assert!(seen.partial().iter().all(|event| event.id == last.id));
        }
    }
}

#[tokio::test]
async fn an_answer_whose_calls_a_handler_takes_away_ends_the_run() {
    for config in both() {
        for as_message in [true, false] {
            let notes = Notes::default();
            let part = call_with_id("c1", "pay", json!({}));
            let answer = umbel::Response::new(Content::new(
                umbel::Role::Model,
                [umbel::Part::text("I could pay."), part],
            ));
            let model = ScriptedModel::new("m").recorded().response(answer).text("not reached");
            let agent = LlmAgent::new("a")
                .model(model.clone())
                .tool(crate::handler_support::noting("pay", &notes))
                .handler(after_model("strips", move |turn| {
                    let mut content = (**turn.response.as_ref().unwrap().content.as_ref().unwrap()).clone();
                    content.parts.retain(|part| part.as_call().is_none());
                    if as_message {
                        turn.history.replace(turn.history.len() - 1, content);
                    } else if let Some(response) = &mut turn.response {
                        response.content = Some(Arc::new(content));
                    }
                    Ok(Step::Continue)
                }));
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            assert_eq!(seen.assert_finished().texts(), [("a".into(), "I could pay.".into())]);
            assert!(notes.all().is_empty());
            assert_eq!(model.requests().len(), 1);
            assert!(stored(&runner, &key).await[1].calls().next().is_none());
        }
    }
}

#[tokio::test]
async fn another_model_in_a_layer_keeps_the_layers_further_in() {
    for config in both() {
        let notes = Notes::default();
        let (first, other) = (fine(), ScriptedModel::new("other").recorded().stream(["from ", "the other"]));
        let swapped = other.clone();
        let agent = LlmAgent::new("a")
            .model(first.clone())
            .handler(wrap_model("swaps", move |mut call, next| {
                call.model = Arc::new(swapped.clone());
                Box::pin(next.call(call))
            }))
            .handler(Probe::new("inner", &notes))
            .after_model({
                let notes = notes.clone();
                move |_, response| {
                    if response.partial != Some(true) {
                        notes.add("callback");
                    }
                    Box::pin(async { Ok(None) })
                }
            });
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "from the other".into())]);
        assert_eq!((first.requests().len(), other.requests().len()), (0, 1));
        assert_eq!(about(&notes, "wrap_model"), ["inner.wrap_model>", "inner.wrap_model<"]);
        assert!(notes.all().contains(&"callback".to_owned()));
    }
}

#[tokio::test]
async fn a_value_for_a_model_call_goes_inward_only_and_ends_with_the_call() {
    struct Budget(u32);
    let notes = Notes::default();
    let (outer, inner) = (notes.clone(), notes.clone());
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(FunctionTool::with_context("echo", "", {
            let notes = notes.clone();
            move |cx, args: Value| {
                notes.add(format!("tool {}", cx.extension::<Budget>().is_some()));
                Box::pin(async move { Ok(args) })
            }
        }))
        .handler(wrap_model("outer", move |mut call, next| {
            outer.add(format!("outer {}", call.extension::<Budget>().is_some()));
            call.extensions.insert(Budget(7));
            Box::pin(next.call(call))
        }))
        .handler(wrap_model("inner", move |call, next| {
            inner.add(format!("inner {:?}", call.extension::<Budget>().map(|budget| budget.0)));
            Box::pin(next.call(call))
        }))
        .handler(before_model("later", {
            let notes = notes.clone();
            move |turn| {
                notes.add(format!("before_model {}", turn.run().extension::<Budget>().is_some()));
                Ok(Step::Continue)
            }
        }));
    run_once(agent).await.assert_finished();
    let once = ["before_model false", "outer false", "inner Some(7)"];
    let expected: Vec<_> = once.iter().chain(&["tool false"]).chain(&once).copied().collect();
    assert_eq!(notes.all(), expected);
}

#[tokio::test]
async fn a_value_for_a_tool_call_is_not_seen_by_siblings_or_outside() {
    struct Mine(String);
    let notes = Notes::default();
    let (outer, tool) = (notes.clone(), notes.clone());
    let three = ["c1", "c2", "c3"].map(|id| call_with_id(id, "look", json!({})));
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").response(calls(three)).text("done"))
        .tool(FunctionTool::with_context("look", "", move |cx, _: Value| {
            let mine = cx.extension::<Mine>().map(|mine| mine.0.clone());
            tool.add(format!("{} sees {mine:?}", cx.call_id().unwrap()));
            Box::pin(async { Ok(1) })
        }))
        .handler(wrap_tool("outer", move |call, next| {
            let notes = outer.clone();
            Box::pin(async move {
                let given = next.call(call.clone()).await;
                assert!(call.cx.extension::<Mine>().is_none() && call.run().extension::<Mine>().is_none());
                notes.add("outside none");
                given
            })
        }))
        .handler(wrap_tool("inner", |call, next| {
            Box::pin(async move {
                let id = call.id().unwrap().to_string();
                // Only two of three have a value.
                if id == "c2" {
                    return next.call(call).await;
                }
                let cx = call.cx.with(Mine(id));
                tokio::task::yield_now().await;
                next.call(call.with_context(&cx)).await
            })
        }));
    run_once(agent).await.assert_finished();
    let mut notes = notes.all();
    notes.sort();
    let expected = [
        r#"c1 sees Some("c1")"#,
        "c2 sees None",
        r#"c3 sees Some("c3")"#,
        "outside none",
        "outside none",
        "outside none",
    ];
    assert_eq!(notes, expected);
}
