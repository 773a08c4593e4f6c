//! G: what handlers are for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use umbel::{
    Content, Handler, Hooks, LlmAgent, ModelTurn, NextTool, Result, Runner, ScriptedModel, Step, ToolCall,
    ToolMeta, ToolResult, handler,
};

use crate::handler_support::{
    Probe, about, before_agent, before_model, configure, declared, digger, noting, wrap_tool,
};
use crate::support::{Notes, begin, echo, fine, read, run_once, said, streaming, with_session};

/// Counts model calls in a field of its own.
#[derive(Default)]
struct Counter {
    calls: AtomicUsize,
}

#[handler]
impl Handler for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    async fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(Step::Continue)
    }
}

/// Says something at the end of each conversation; the type of the words is open.
struct Says<T> {
    words: T,
}

#[handler]
impl<T: AsRef<str> + Send + Sync> Handler for Says<T> {
    fn name(&self) -> &str {
        "says"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        turn.history.push(Content::user(self.words.as_ref()));
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn g1_a_handler_is_any_type_with_its_own_fields_and_stands_beside_others_in_one_list() {
    let counter = Arc::new(Counter::default());
    let model = fine();
    let (runner, key) = begin(
        LlmAgent::new("a")
            .model(model.clone())
            .handler(counter.clone())
            .handler(Says { words: "static" })
            .handler(Says { words: String::from("owned") }),
    )
    .await;
    for _ in 0..3 {
        read(runner.run(&key, "hi")).await.assert_finished();
    }
    assert_eq!(counter.calls.load(Ordering::SeqCst), 3);
    assert_eq!(said(&model.requests()[0]), ["hi", "static", "owned"]);
}

/// Nothing but a name, written by hand: such a handler is asked for every hook.
struct Bare;

impl Handler for Bare {
    fn name(&self) -> &str {
        "bare"
    }
}

#[tokio::test]
async fn g2_a_handler_is_asked_only_for_the_hooks_it_has() {
    assert_eq!(Counter::default().hooks(), Hooks::BEFORE_MODEL);
    let agent = LlmAgent::new("a").model(fine()).handler(Counter::default());
    let hooks = agent.explain().unwrap().hooks;
    assert_eq!(hooks, [("before_model", vec!["counter".into()])]);
}

#[tokio::test]
async fn g2_a_handler_without_any_hook_of_its_own_changes_nothing() {
    assert_eq!(Bare.hooks(), Hooks::ALL);
    let script =
        || ScriptedModel::new("m").calls([("echo", json!({"n": 1})), ("dig", json!({}))]).text("done");
    let run = async |agent: LlmAgent, bare: bool| {
        let builder = Runner::builder("app", agent.tool(echo()).tool(digger()));
        let builder = if bare { builder.handler(Bare) } else { builder };
        let (runner, key) = with_session(builder.build().unwrap()).await;
        let seen = read(runner.run_with(&key, "hi", streaming())).await;
        seen.assert_finished();
        let whole = seen.whole();
        (whole.iter().map(|event| event.text()).collect::<Vec<_>>(), seen.responses(), seen.partial().len())
    };
    let (model, plain) = (script(), script());
    let with = run(LlmAgent::new("a").model(model.clone()).handler(Bare).tool_layer(Bare), true).await;
    assert_eq!(with, run(LlmAgent::new("a").model(plain.clone()), false).await);
    for (one, other) in model.requests().iter().zip(plain.requests()) {
        assert_eq!((said(one), declared(one)), (said(&other), declared(&other)));
        assert_eq!(one.instruction, other.instruction);
    }
}

#[tokio::test]
async fn g3_an_instruction_is_appended_prepended_replaced_and_rewritten_by_what_the_run_is_about() {
    let told = |model: &ScriptedModel| {
        let requests = model.requests();
        let parts = requests.last().unwrap().instruction.parts().to_vec();
        let own = parts.iter().filter(|part| part.source != "identity");
        own.map(|part| part.text.to_string()).collect::<Vec<_>>()
    };
    let model = fine();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .instruction("Middle.")
        .handler(configure("append", |plan| {
            plan.instruction.push("append", "Last.");
            Ok(())
        }))
        .handler(configure("prepend", |plan| {
            plan.instruction.prepend("prepend", "First.");
            Ok(())
        }))
        .handler(before_agent("by state", |turn| {
            if turn.run().state().get("child").is_some() {
                turn.plan.instruction.replace("by state", "Be simple.");
            }
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(told(&model), ["First.", "Middle.", "Last."]);
    let child = umbel::RunConfig {
        state_delta: crate::support::object(json!({"child": true})),
        ..Default::default()
    };
    read(runner.run_with(&key, "hi", child)).await.assert_finished();
    assert_eq!(told(&model), ["Be simple."]);
}

#[tokio::test]
async fn g4_tools_are_added_removed_and_changed_and_depend_on_the_run() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m")
        .recorded()
        .calls([("added", json!({})), ("changed", json!({})), ("removed", json!({}))])
        .text("one")
        .text("two");
    let (added, changed) = (noting("added", &notes), notes.clone());
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("removed", &notes))
        .tool(noting("changed", &notes))
        .handler(before_agent("tools", move |turn| {
            if turn.input.as_ref().is_some_and(|input| input.text() == "none") {
                turn.plan.tools_mut().retain(|_| false);
                return Ok(Step::Continue);
            }
            turn.plan.add_tool(Arc::new(added.clone()));
            assert!(turn.plan.remove_tool("removed"));
            assert!(!turn.plan.remove_tool("removed"));
            let other = changed.clone();
            turn.plan.add_tool(Arc::new(umbel::FunctionTool::new(
                "changed",
                "",
                move |_: serde_json::Value| {
                    other.add("changed by a handler");
                    async { Ok("other") }
                },
            )));
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(declared(&model.requests()[0]), ["changed", "added"]);
    assert_eq!(notes.all(), ["added", "changed by a handler"]);
    let known = seen.assert_finished().responses()[2]["error"].as_str().unwrap().to_owned();
    assert!(known.contains("no tool named `removed`") && known.contains("changed, added"), "{known}");
    read(runner.run(&key, "none")).await.assert_finished();
    assert_eq!(declared(&model.requests()[2]), Vec::<String>::new());
}

#[tokio::test]
async fn g4_whether_a_tool_answers_directly_can_be_changed_both_ways() {
    for directly in [true, false] {
        let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("in words");
        let agent = LlmAgent::new("a").model(model.clone());
        let agent = if directly { agent.tool(echo()) } else { agent.tool_returning_directly(echo()) };
        let agent = agent.handler(before_agent("direct", move |turn| {
            assert!(turn.plan.return_directly("echo", directly));
            assert!(!turn.plan.return_directly("no such tool", directly));
            Ok(Step::Continue)
        }));
        let seen = run_once(agent).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
        assert_eq!(model.requests().len(), if directly { 1 } else { 2 });
    }
}

#[tokio::test]
async fn g5_a_message_hook_takes_a_history_and_gives_another_with_no_other_state() {
    let model = fine();
    let agent = LlmAgent::new("a").model(model.clone()).handler(before_model("last two", |turn| {
        turn.history.map(|history| {
            let from = history.len().saturating_sub(2);
            history.iter_from(from).cloned().collect()
        });
        Ok(Step::Continue)
    }));
    let (runner, key) = begin(agent).await;
    for text in ["one", "two", "three"] {
        read(runner.run(&key, text)).await.assert_finished();
    }
    assert_eq!(said(&model.requests()[2]), ["fine", "three"]);
}

#[tokio::test]
async fn g6_one_hook_stands_around_every_tool_whatever_it_gives_and_however_the_run_goes() {
    for stream in [false, true] {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").calls([("echo", json!({})), ("dig", json!({}))]).text("done");
        let agent = LlmAgent::new("a")
            .model(model)
            .tool(echo())
            .tool(digger())
            .tool_layer(Probe::new("layer", &notes))
            .handler(Probe::new("handler", &notes));
        let (runner, key) = begin(agent).await;
        let config = umbel::RunConfig { streaming: stream, ..Default::default() };
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        let of = |name: &str| about(&notes, "wrap_tool").iter().filter(|note| note.starts_with(name)).count();
        assert_eq!((of("layer"), of("handler")), (4, 4));
        // A tool layer is one: its other hooks are not called.
        assert!(notes.all().iter().all(|note| !note.starts_with("layer") || note.contains("wrap_tool")));
    }
}

#[tokio::test]
async fn g6_the_types_around_a_tool_are_the_same_for_closures_and_handlers() {
    struct Loud;
    #[handler]
    impl Handler for Loud {
        fn name(&self) -> &str {
            "loud"
        }

        async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
            let args = crate::support::object(json!({"n": 2}));
            next.call(call.with_args(args)).await
        }
    }
    let closure = wrap_tool("loud too", |call, next| Box::pin(async move { next.call(call).await }));
    let model = ScriptedModel::new("m").call("echo", json!({"n": 1})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo()).handler(closure).handler(Loud)).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 2})]);
}

#[tokio::test]
async fn g4_a_tool_set_that_a_handler_builds_keeps_its_order() {
    let notes = Notes::default();
    let model = fine();
    let tools = ["c", "a", "b"].map(|name| Arc::new(noting(name, &notes)));
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(configure("all", move |plan| {
        let set = plan.tools_mut();
        set.retain(|_| false);
        for tool in &tools {
            set.add_meta(ToolMeta { tool: tool.clone(), return_directly: false });
        }
        Ok(())
    }));
    run_once(agent).await.assert_finished();
    assert_eq!(declared(&model.requests()[0]), ["c", "a", "b"]);
}
