//! O: who comes when, and whose word counts.

#![allow(deprecated)]

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::legacy::AgentMiddleware;
use umbel::{
    AfterOrder, Content, FunctionTool, Handler, LlmAgent, ModelTurn, Plugin, Runner, ScriptedModel, Step,
};

use crate::handler_support::{
    Probe, about, before_agent, before_model, configure, declared, noting, wrap_tool,
};
use crate::support::{Notes, begin, echo, fine, read, run_once, said, streaming, with_session};

/// A middleware of the old form that notes what it is asked.
fn old(name: &'static str, notes: &Notes) -> AgentMiddleware {
    let (before, after, around) = (notes.clone(), notes.clone(), notes.clone());
    AgentMiddleware {
        name: name.into(),
        before_chat_model: Some(Arc::new(move |_: &mut ModelTurn<'_>| {
            before.add(format!("{name}.before_model"));
            Box::pin(async { Ok(()) })
        })),
        after_chat_model: Some(Arc::new(move |_: &mut ModelTurn<'_>| {
            after.add(format!("{name}.after_model"));
            Box::pin(async { Ok(()) })
        })),
        wrap_tool_call: Some(Arc::new(move |call, next| {
            let notes = around.clone();
            notes.add(format!("{name}.wrap_tool>"));
            Box::pin(async move {
                let given = next.call(call).await;
                notes.add(format!("{name}.wrap_tool<"));
                given
            })
        })),
        ..AgentMiddleware::default()
    }
}

fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done")
}

/// The notes about a hook in the first model call.
fn first(notes: &Notes, hook: &str, count: usize) -> Vec<String> {
    about(notes, hook).into_iter().take(count).collect()
}

#[tokio::test]
async fn o1_middlewares_of_the_old_form_come_before_handlers_whatever_was_added_first() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(echo())
        .handler(Probe::new("H0", &notes))
        .middleware(old("M0", &notes))
        .handler(Probe::new("H1", &notes))
        .middleware(old("M1", &notes));
    run_once(agent).await.assert_finished();
    assert_eq!(
        first(&notes, "before_model", 4).join(" "),
        "M0.before_model M1.before_model H0.before_model H1.before_model"
    );
    assert_eq!(
        first(&notes, "after_model", 4).join(" "),
        "M0.after_model M1.after_model H0.after_model H1.after_model"
    );
    let around = "M0.wrap_tool> M1.wrap_tool> H0.wrap_tool> H1.wrap_tool> \
                  H1.wrap_tool< H0.wrap_tool< M1.wrap_tool< M0.wrap_tool<";
    assert_eq!(about(&notes, "wrap_tool").join(" "), around);
}

#[tokio::test]
async fn o1_handlers_of_the_runner_come_before_those_of_the_agent() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a").model(echo_once()).tool(echo()).handler(Probe::new("agent", &notes));
    let runner = Runner::builder("app", agent)
        .handler(Probe::new("one", &notes))
        .handler(Probe::new("two", &notes))
        .build()
        .unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    for hook in
        ["configure", "before_agent", "before_model", "after_model", "on_event", "on_output", "after_agent"]
    {
        let names: Vec<String> =
            first(&notes, hook, 3).iter().map(|note| note.split('.').next().unwrap().into()).collect();
        assert_eq!(names, ["one", "two", "agent"], "{hook}");
    }
    for hook in ["wrap_model>", "wrap_tool>"] {
        assert_eq!(first(&notes, hook, 3), ["one", "two", "agent"].map(|name| format!("{name}.{hook}")));
    }
}

#[tokio::test]
async fn o2_pipelines_run_forward_those_behind_a_call_too() {
    for config in [umbel::RunConfig::default(), streaming()] {
        let notes = Notes::default();
        let agent = LlmAgent::new("a")
            .model(fine())
            .handler(Probe::new("A", &notes))
            .handler(Probe::new("B", &notes))
            .handler(Probe::new("C", &notes));
        let (runner, key) = begin(agent).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        for hook in [
            "before_agent",
            "before_model",
            "after_model",
            "on_event(text)",
            "on_output(text)",
            "after_agent",
        ] {
            let names: String =
                about(&notes, hook).iter().map(|note| note.split('.').next().unwrap()).collect();
            assert_eq!(names, "ABC", "{hook}");
        }
    }
}

#[tokio::test]
async fn o3_layers_are_an_onion_whose_first_is_outermost() {
    for config in [umbel::RunConfig::default(), streaming()] {
        let notes = Notes::default();
        let agent = LlmAgent::new("a")
            .model(echo_once())
            .tool(echo())
            .handler(Probe::new("A", &notes))
            .handler(Probe::new("B", &notes));
        let (runner, key) = begin(agent).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        assert_eq!(
            about(&notes, "wrap_tool").join(" "),
            "A.wrap_tool> B.wrap_tool> B.wrap_tool< A.wrap_tool<"
        );
        let models = first(&notes, "wrap_model", 4);
        assert_eq!(models.join(" "), "A.wrap_model> B.wrap_model> B.wrap_model< A.wrap_model<");
    }
}

#[tokio::test]
async fn o4_instructions_are_edited_in_order_and_may_be_replaced() {
    let model = fine();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .instruction("Base.")
        .handler(configure("one", |plan| {
            plan.instruction.push("one", "One.");
            Ok(())
        }))
        .handler(configure("two", |plan| {
            plan.instruction.replace("two", "Two.");
            Ok(())
        }))
        .handler(configure("three", |plan| {
            plan.instruction.push("three", "Three.");
            Ok(())
        }));
    run_once(agent).await.assert_finished();
    assert!(model.requests()[0].instruction.text().starts_with("Two.\n\nThree."));
}

#[tokio::test]
async fn o5_a_later_handler_can_undo_an_earlier_one_and_a_third_can_undo_that() {
    let adds = |name: &'static str| {
        configure(name, |plan| {
            plan.add_tool(Arc::new(echo()));
            Ok(())
        })
    };
    let removes = || {
        before_agent("removes", |turn| {
            assert!(turn.plan.remove_tool("echo"));
            Ok(Step::Continue)
        })
    };
    let model = echo_once();
    let seen =
        run_once(LlmAgent::new("a").model(model.clone()).handler(adds("adds")).handler(removes())).await;
    assert!(seen.assert_finished().tool_error().contains("There is no tool named `echo`"));
    assert!(declared(&model.requests()[0]).is_empty());
    let model = echo_once();
    let again = before_agent("again", |turn| {
        turn.plan.add_tool(Arc::new(echo()));
        Ok(Step::Continue)
    });
    let agent =
        LlmAgent::new("a").model(model.clone()).handler(adds("adds")).handler(removes()).handler(again);
    assert_eq!(run_once(agent).await.assert_finished().responses(), [json!({"n": 1})]);
    assert_eq!(declared(&model.requests()[0]), ["echo"]);
}

#[tokio::test]
async fn o6_the_last_word_on_answering_directly_counts() {
    for words in [[true, false, true], [false, true, false]] {
        let model = echo_once();
        let mut agent = LlmAgent::new("a").model(model.clone()).tool(echo());
        for (index, directly) in words.into_iter().enumerate() {
            // The first two when the runner is built, the last for the turn.
            agent = match index {
                2 => agent.handler(before_agent("turn", move |turn| {
                    turn.plan.return_directly("echo", directly);
                    Ok(Step::Continue)
                })),
                _ => agent.handler(configure("build", move |plan| {
                    plan.return_directly("echo", directly);
                    Ok(())
                })),
            };
        }
        run_once(agent).await.assert_finished();
        assert_eq!(model.requests().len(), if words[2] { 1 } else { 2 });
    }
}

#[tokio::test]
async fn o7_messages_are_a_pipeline_with_free_edits() {
    let model = fine();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .handler(before_model("adds", |turn| {
            turn.history.push(Content::user("added"));
            Ok(Step::Continue)
        }))
        .handler(before_model("replaces", |turn| {
            let last = turn.history.len() - 1;
            assert_eq!(turn.history.get(last).unwrap().text(), "added");
            turn.history.replace(last, Content::user("replaced"));
            Ok(Step::Continue)
        }))
        .handler(before_model("splices", |turn| {
            let both = ["x", "y"].map(|text| Arc::new(Content::user(text)));
            turn.history.splice(1..1, both);
            Ok(Step::Continue)
        }))
        .handler(before_model("cuts", |turn| {
            turn.history.truncate_front(1);
            Ok(Step::Continue)
        }));
    run_once(agent).await.assert_finished();
    assert_eq!(said(&model.requests()[0]), ["x", "y", "replaced"]);
}

/// A tool of that name that answers with who made it.
fn by(name: &'static str, maker: &'static str) -> Arc<FunctionTool> {
    Arc::new(FunctionTool::new(name, "", move |_: Value| async move { Ok(maker) }))
}

#[tokio::test]
async fn o8_of_tools_with_one_name_the_last_counts_for_model_and_executor_in_the_place_of_the_first() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").recorded().call("shared", json!({})).text("done");
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("shared", &notes))
        .tool(echo())
        .handler(configure("one", |plan| {
            plan.add_tool(by("shared", "one"));
            Ok(())
        }))
        .handler(before_agent("two", |turn| {
            turn.plan.add_tool(by("shared", "two"));
            Ok(Step::Continue)
        }));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"result": "two"})]);
    assert_eq!(declared(&model.requests()[0]), ["shared", "echo"]);
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn o9_the_final_tools_are_what_the_model_sees_and_their_marks_are_what_the_loop_obeys() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m")
        .recorded()
        .calls([("plain", json!({})), ("direct", json!({}))])
        .text("in words");
    let direct = Arc::new(noting("direct", &notes));
    let agent = LlmAgent::new("a").model(model.clone()).tool(noting("plain", &notes)).handler(before_agent(
        "direct",
        move |turn| {
            turn.plan.tools_mut().add_meta(umbel::ToolMeta { tool: direct.clone(), return_directly: true });
            Ok(Step::Continue)
        },
    ));
    let seen = run_once(agent).await;
    // The whole batch runs; what it gave is the answer.
    assert_eq!(seen.assert_finished().responses(), [json!({"result": "plain"}), json!({"result": "direct"})]);
    assert!(seen.events.last().unwrap().is_final());
    assert_eq!(declared(&model.requests()[0]), ["plain", "direct"]);
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn d10_what_comes_behind_can_come_in_reverse_and_only_that() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(echo())
        .middleware(old("M", &notes))
        .handler(Probe::new("A", &notes))
        .handler(Probe::new("B", &notes))
        .after_order(AfterOrder::Reverse);
    run_once(agent).await.assert_finished();
    let names = |hook: &str, count: usize| -> String {
        first(&notes, hook, count).iter().map(|note| note.split('.').next().unwrap()).collect()
    };
    assert_eq!(names("before_agent", 9), "AB");
    assert_eq!(names("before_model", 3), "MAB");
    assert_eq!(names("after_model", 3), "BAM");
    assert_eq!(names("wrap_tool>", 9), "MAB");
    assert_eq!(names("wrap_tool<", 9), "BAM");
    assert_eq!(names("on_event", 2), "AB");
    assert_eq!(names("after_agent", 9), "BA");
}

#[tokio::test]
async fn d11_around_a_tool_stand_runner_layers_old_form_handlers_callbacks_tool() {
    let notes = Notes::default();
    let note = |word: &'static str| {
        let notes = notes.clone();
        move || notes.add(word)
    };
    let (before, after, plugged) = (note("callback>"), note("callback<"), note("plugin>"));
    let tool = notes.clone();
    let layer = |name: &'static str| {
        let notes = notes.clone();
        wrap_tool(name, move |call, next| {
            let notes = notes.clone();
            notes.add(format!("{name}>"));
            Box::pin(async move {
                let given = next.call(call).await;
                notes.add(format!("{name}<"));
                given
            })
        })
    };
    let agent = LlmAgent::new("a")
        .model(echo_once())
        .tool(FunctionTool::new("echo", "", move |args: Value| {
            tool.add("tool");
            async move { Ok(args) }
        }))
        .handler(layer("handler"))
        .before_tool(move |_, _, _| {
            before();
            Box::pin(async { Ok(None) })
        })
        .after_tool(move |_, _, _| {
            after();
            Box::pin(async { Ok(None) })
        })
        .middleware(old("old", &notes))
        .tool_layer(layer("layer"));
    let plugin = Plugin::new("p").before_tool(move |_, _, _| {
        plugged();
        Box::pin(async { Ok(None) })
    });
    let runner = Runner::builder("app", agent).plugin(plugin).handler(layer("runner")).build().unwrap();
    let explained = runner.explain().unwrap();
    let (_, order) = explained[0].hooks.iter().find(|(hook, _)| *hook == "wrap_tool").unwrap();
    assert_eq!(order.join(" "), "runner layer old handler callbacks");
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let notes: Vec<String> = notes.all().into_iter().filter(|note| !note.contains("model")).collect();
    assert_eq!(
        notes.join(" "),
        "runner> layer> old.wrap_tool> handler> plugin> callback> tool callback< handler< old.wrap_tool< layer< runner<"
    );
}

#[tokio::test]
async fn o3_the_event_of_a_call_comes_after_the_whole_onion() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a").model(echo_once()).tool(echo()).handler(Probe::new("A", &notes));
    run_once(agent).await.assert_finished();
    let notes = notes.all();
    let at = |note: &str| notes.iter().position(|one| one == note).unwrap();
    assert!(at("A.on_event(calls)") < at("A.wrap_tool>"));
    assert!(at("A.wrap_tool<") < at("A.on_event(responses)"));
    assert!(Probe::new("A", &Notes::default()).hooks() == umbel::Hooks::ALL);
}
