//! D: where the requirements disagreed, and what was decided. D2 and D9 are in `instructions`, D10 and D11 in `order`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use futures::future::join_all;
use serde_json::{Value, json};
use umbel::{
    AgentPlan, AgentTool, AgentTurn, Content, Error, ErrorKind, FunctionTool, Handler, Hooks, LlmAgent,
    ModelTurn, NextTool, Result, Run, Runner, ScriptedModel, Sequential, Step, ToolCall, ToolError, ToolItem,
    ToolOutput, ToolResult, ToolSpec, handler, per_run,
};

use crate::handler_support::{Probe, before_agent, before_model, configure, declared, noting, wrap_tool};
use crate::support::{
    Notes, begin, call_with_id, calls, config, echo, fine, read, run_once, said, streaming, with_session,
};

fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done")
}

#[tokio::test]
async fn d1_one_trait_serves_handlers_of_one_hook_and_of_all() {
    let notes = Notes::default();
    let handlers: [(Arc<dyn Handler>, Hooks); 4] = [
        (Arc::new(Probe::new("all", &notes)), Hooks::ALL),
        (Arc::new(before_model("one", |_| Ok(Step::Continue))), Hooks::BEFORE_MODEL),
        (Arc::new(wrap_tool("layer", |call, next| Box::pin(next.call(call)))), Hooks::WRAP_TOOL),
        (Arc::new(configure("build", |_| Ok(()))), Hooks::CONFIGURE),
    ];
    let mut agent = LlmAgent::new("a").model(echo_once()).tool(echo());
    for (handler, hooks) in handlers {
        assert_eq!(handler.hooks(), hooks);
        agent = agent.handler(handler);
    }
    // Each is listed where it acts and nowhere else.
    let explained = agent.explain().unwrap();
    for (hook, names) in &explained.hooks {
        let expected = match *hook {
            "before_model" => vec!["all", "one"],
            "wrap_tool" => vec!["all", "layer"],
            _ => vec!["all"],
        };
        assert_eq!(*names, expected, "{hook}");
    }
    run_once(agent).await.assert_finished();
}

#[tokio::test]
async fn d3_a_tool_of_a_known_name_is_replaced_in_its_place_and_explain_says_so() {
    let notes = Notes::default();
    let model = fine();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("first", &notes))
        .tool(noting("shared", &notes))
        .tool(noting("last", &notes))
        .handler(configure("replaces", |plan| {
            plan.add_tool(Arc::new(FunctionTool::new("shared", "other", |_: Value| async { Ok(1) })));
            plan.add_tool(Arc::new(echo()));
            plan.remove_tool("first");
            Ok(())
        }));
    let explained = agent.explain().unwrap();
    let tools: Vec<_> = explained.tools.iter().map(|(tool, by)| format!("{tool} by {by}")).collect();
    assert_eq!(tools, ["shared by replaces", "last by agent", "echo by replaces"]);
    assert_eq!(
        explained.notes,
        ["tool `shared` is replaced by handler `replaces`", "tool `first` is removed by handler `replaces`"]
    );
    run_once(agent).await.assert_finished();
    let request = &model.requests()[0];
    assert_eq!(declared(request), ["shared", "last", "echo"]);
    assert_eq!(request.tools.get("shared").unwrap().tool.spec().description, "other");
}

#[tokio::test]
async fn d3_strict_tools_makes_a_taken_name_an_error_when_built_and_in_a_turn() {
    let adds = |plan: &mut AgentPlan| plan.add_tool(Arc::new(echo()));
    let agent = LlmAgent::new("a").model(fine()).tool(echo()).strict_tools();
    let built = agent.clone().handler(configure("doubles", move |plan| {
        adds(plan);
        Ok(())
    }));
    let error = Runner::new("app", built).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
    let expected = "agent `a`: handler `doubles` adds a tool `echo`, but there is one of that name: \
                    rename it, or do without `strict_tools`";
    assert_eq!(error.message(), expected);
    let seen = run_once(agent.clone().handler(before_agent("doubles", move |turn| {
        adds(&mut turn.plan);
        Ok(Step::Continue)
    })))
    .await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"));
    assert!(seen.message().contains("`doubles` failed in before_agent"), "{}", seen.message());
    assert!(seen.message().contains("a tool `echo`"), "{}", seen.message());
    // What does not double a name is no error, nor is a mark on a tool that is there.
    let seen = run_once(agent.handler(before_agent("marks", |turn| {
        turn.plan.return_directly("echo", true);
        turn.plan.add_tool(Arc::new(noting("other", &Notes::default())));
        Ok(Step::Continue)
    })))
    .await;
    seen.assert_finished();
}

#[tokio::test]
async fn d4_what_a_handler_leaves_of_the_tools_is_what_there_is_in_the_order_they_were_added() {
    let notes = Notes::default();
    let model = fine();
    let tool = |name| Arc::new(noting(name, &notes));
    let (z, a) = (tool("z"), tool("a"));
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(noting("m", &notes))
        .tool(noting("k", &notes))
        .handler(before_agent("filters", |turn| {
            turn.plan.tools_mut().retain(|meta| meta.tool.spec().name != "m");
            Ok(Step::Continue)
        }))
        .handler(before_agent("adds", move |turn| {
            turn.plan.add_tool(z.clone());
            turn.plan.add_tool(a.clone());
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    for _ in 0..5 {
        read(runner.run(&key, "hi")).await.assert_finished();
    }
    for request in model.requests() {
        assert_eq!(declared(&request), ["k", "z", "a"]);
    }
}

/// Counts how often it is asked to configure, and to prepare a turn.
#[derive(Default)]
struct Counts {
    built: AtomicUsize,
    prepared: AtomicUsize,
}

#[handler]
impl Handler for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.built.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn before_agent(&self, _turn: &mut AgentTurn<'_>) -> Result<Step> {
        self.prepared.fetch_add(1, Ordering::SeqCst);
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn d5_configure_comes_once_when_built_and_before_agent_in_every_run_and_resume() {
    let counts = Arc::new(Counts::default());
    let model = ScriptedModel::new("m").text("one").call("echo", json!({})).text("two");
    let tool = echo().confirm(umbel::Confirm::Always);
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(tool).handler(counts.clone())).await;
    let count = || (counts.built.load(Ordering::SeqCst), counts.prepared.load(Ordering::SeqCst));
    assert_eq!(count(), (1, 0));
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(count(), (1, 1));
    let seen = read(runner.run(&key, "go")).await;
    let [asked] = seen.interrupts() else { panic!("{:?}", seen.outcome) };
    assert_eq!(count(), (1, 2));
    read(runner.run(&key, asked.answer(true))).await.assert_finished();
    assert_eq!(count(), (1, 3));
}

#[tokio::test]
async fn d5_what_before_agent_stamps_is_new_in_every_run() {
    let model = fine();
    let stamps = AtomicUsize::new(0);
    let agent = LlmAgent::new("a").model(model.clone()).instruction("Base.").handler(before_agent(
        "stamp",
        move |turn| {
            let stamp = stamps.fetch_add(1, Ordering::SeqCst);
            turn.plan.instruction.push("stamp", format!("It is {stamp} o'clock."));
            Ok(Step::Continue)
        },
    ));
    let (runner, key) = begin(agent).await;
    for hour in 0..3 {
        read(runner.run(&key, "hi")).await.assert_finished();
        let told = model.requests().pop().unwrap().instruction.text();
        assert!(told.starts_with(&format!("Base.\n\nIt is {hour} o'clock.")), "{told}");
        assert_eq!(told.matches("o'clock").count(), 1);
    }
}

#[tokio::test]
async fn d6_a_streamed_result_without_an_end_is_an_error_and_nothing_may_follow_its_end() {
    let spec = ToolSpec::new("dig", "", json!({"type": "object"}));
    let tool = |items: Vec<ToolItem>| {
        FunctionTool::raw(spec.clone(), move |_, _| {
            let items: Vec<Result<_, ToolError>> = items.iter().cloned().map(Ok).collect();
            Box::pin(async { Ok(ToolOutput::Stream(futures::stream::iter(items).boxed())) })
        })
    };
    let done = |n: i32| ToolItem::Done(json!({"n": n}).into());
    let pass = || wrap_tool("pass", |call, next| Box::pin(next.call(call)));
    let script = || ScriptedModel::new("m").call("dig", json!({})).text("done");
    let seen = run_once(
        LlmAgent::new("a").model(script()).tool(tool(vec![ToolItem::Progress(json!(1))])).handler(pass()),
    )
    .await;
    assert_eq!(seen.assert_finished().tool_error(), "tool `dig` ended without a result");
    let items = vec![done(1), done(2), ToolItem::Progress(json!(3))];
    let seen = run_once(LlmAgent::new("a").model(script()).tool(tool(items)).handler(pass())).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert!(seen.partial().is_empty());
}

#[tokio::test]
async fn d7_changing_in_place_and_giving_another_history_come_to_the_same() {
    let mut requests = Vec::new();
    for by_map in [true, false] {
        let model = ScriptedModel::new("m").recorded().text("one").text("two");
        let agent = LlmAgent::new("a").model(model.clone()).handler(before_model("cut", move |turn| {
            if turn.history.len() < 3 {
                return Ok(Step::Continue);
            }
            let summary = Arc::new(Content::user("earlier: one"));
            if by_map {
                turn.history
                    .map(|history| [summary].into_iter().chain(history.iter_from(2).cloned()).collect());
            } else {
                turn.history.splice(0..2, [summary]);
            }
            Ok(Step::Continue)
        }));
        let (runner, key) = begin(agent).await;
        for _ in 0..2 {
            read(runner.run(&key, "hi")).await.assert_finished();
        }
        requests.push(model.requests().iter().map(said).collect::<Vec<_>>());
    }
    assert_eq!(requests[0][1], ["earlier: one", "hi"]);
    assert_eq!(requests[0], requests[1]);
}

#[tokio::test]
async fn d8_a_value_in_the_run_reaches_everyone_and_one_in_a_call_only_those_further_in() {
    struct Whole(&'static str);
    struct Part(&'static str);
    let notes = Notes::default();
    let (tool, outer) = (notes.clone(), notes.clone());
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").calls([("look", json!({})), ("look", json!({}))]).text("done"))
        .tool(FunctionTool::with_context("look", "", move |cx, _: Value| {
            let part = cx.extension::<Part>().map(|part| part.0);
            tool.add(format!("tool {:?} {part:?}", cx.extension::<Whole>().map(|whole| whole.0)));
            Box::pin(async { Ok(1) })
        }))
        .handler(before_agent("whole", |turn| {
            turn.run().insert(Whole("run"));
            Ok(Step::Continue)
        }))
        .handler(wrap_tool("outer", move |call, next| {
            let notes = outer.clone();
            Box::pin(async move {
                let given = next.call(call.clone()).await;
                notes.add(format!("outer {}", call.cx.extension::<Part>().is_some()));
                given
            })
        }))
        .handler(wrap_tool("inner", |call, next| {
            Box::pin(async move {
                let cx = call.cx.with(Part("call"));
                next.call(call.with_context(&cx)).await
            })
        }));
    run_once(agent).await.assert_finished();
    let mut notes = notes.all();
    notes.sort();
    let tool = r#"tool Some("run") Some("call")"#;
    assert_eq!(notes, ["outer false", "outer false", tool, tool]);
}

/// The right form of a layer that logs: it looks at a result only if there is one.
struct Log(Notes);

#[handler]
impl Handler for Log {
    fn name(&self) -> &str {
        "log"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let name = call.name().to_owned();
        let given = next.call(call).await;
        self.0.add(match &given {
            Ok(ToolOutput::Value(value)) => format!("{name} gave {}", value.value),
            Ok(ToolOutput::Stream(_)) => format!("{name} streams"),
            Err(error) => format!("{name} failed: {error}"),
        });
        given
    }
}

#[tokio::test]
async fn d12_a_layer_that_logs_sees_results_and_errors_apart() {
    let notes = Notes::default();
    let broken = FunctionTool::new("broken", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) });
    let model = ScriptedModel::new("m")
        .calls([("echo", json!({"n": 1})), ("broken", json!({})), ("unknown", json!({})), ("dig", json!({}))])
        .text("done");
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(echo())
        .tool(broken)
        .tool(crate::handler_support::digger())
        .handler(Log(notes.clone()));
    run_once(agent).await.assert_finished();
    let mut notes = notes.all();
    notes.sort();
    assert_eq!(notes[..3], ["broken failed: no", "dig streams", r#"echo gave {"n":1}"#]);
    assert!(notes[3].starts_with("unknown failed: There is no tool named `unknown`"), "{}", notes[3]);
}

/// Counts the model calls of one run and says so at its end.
struct OwnCount {
    calls: AtomicUsize,
    notes: Notes,
}

#[handler]
impl Handler for OwnCount {
    fn name(&self) -> &str {
        "own count"
    }

    async fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Ok(Step::Continue)
    }

    async fn after_run(&self, run: &Run, _outcome: &umbel::Outcome) -> Result<()> {
        self.notes.add(format!("{} of {}", self.calls.load(Ordering::SeqCst), run.session_key().user()));
        Ok(())
    }
}

#[tokio::test]
async fn d13_a_factory_makes_a_handler_for_each_run_which_its_agents_share() {
    let (notes, made) = (Notes::default(), Arc::new(AtomicUsize::new(0)));
    let (told, count) = (notes.clone(), made.clone());
    let factory = per_run("own count", Hooks::BEFORE_MODEL | Hooks::AFTER_RUN, move |_run| {
        count.fetch_add(1, Ordering::SeqCst);
        Arc::new(OwnCount { calls: AtomicUsize::new(0), notes: told.clone() })
    });
    assert_eq!((factory.name(), factory.hooks()), ("own count", Hooks::BEFORE_MODEL | Hooks::AFTER_RUN));
    // Two agents in one run: three model calls, one handler.
    let model = ScriptedModel::from_fn("m", |request| {
        let first = request.contents.len() == 1;
        let response =
            if first { calls([call_with_id("c", "echo", json!({}))]) } else { umbel::Response::text("done") };
        vec![Ok(umbel::Chunk::Complete(response))]
    });
    let agent = |name: &str| LlmAgent::new(name.to_owned()).model(model.clone()).tool(echo());
    let team = Sequential::new("team").agent(agent("one")).agent(agent("two"));
    let runner = Arc::new(Runner::builder("app", team).handler(factory).build().unwrap());
    assert_eq!(made.load(Ordering::SeqCst), 0);
    let runs = (0..20).map(|n| {
        let runner = runner.clone();
        async move {
            let key = runner.create_session(format!("user{n}")).await.unwrap().key;
            read(runner.run(&key, "hi")).await.assert_finished();
        }
    });
    join_all(runs).await;
    assert_eq!(made.load(Ordering::SeqCst), 20);
    let mut told = notes.all();
    told.sort();
    let mut expected: Vec<_> = (0..20).map(|n| format!("3 of user{n}")).collect();
    expected.sort();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn d13_two_factories_do_not_mix_and_a_run_below_gets_a_handler_of_its_own() {
    let notes = Notes::default();
    let factory = |name: &'static str| {
        let notes = notes.clone();
        per_run(name, Hooks::BEFORE_MODEL, move |run| {
            notes.add(format!("{name} for {}", run.agent_name()));
            let notes = notes.clone();
            Arc::new(before_model(name, move |turn| {
                notes.add(format!("{name} in {}", turn.run().agent_name()));
                Ok(Step::Continue)
            }))
        })
    };
    let child = LlmAgent::new("child").model(fine());
    let model = ScriptedModel::new("m").call("child", json!({"request": "go"})).text("done");
    let agent = LlmAgent::new("a").model(model).tool(AgentTool::new(child));
    let runner = Runner::builder("app", agent).handler(factory("x")).handler(factory("y")).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let expected = [
        "x for a",
        "x in a",
        "y for a",
        "y in a",
        "x for child",
        "x in child",
        "y for child",
        "y in child",
        "x in a",
        "y in a",
    ];
    assert_eq!(notes.all(), expected);
}

#[tokio::test]
async fn d13_a_factory_that_panics_fails_the_run_and_no_other() {
    let made = AtomicUsize::new(0);
    let factory = per_run("moody", Hooks::BEFORE_MODEL, move |_| {
        if made.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("not today");
        }
        Arc::new(before_model("fine", |_| Ok(Step::Continue)))
    });
    let (runner, key) = begin(LlmAgent::new("a").model(fine()).handler(factory)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(
        (seen.kind(), seen.message()),
        (ErrorKind::Handler, "handler `moody` in before_model panicked: not today")
    );
    read(runner.run(&key, "hi")).await.assert_finished();
}

#[tokio::test]
async fn d14_what_a_layer_hands_to_next_is_what_the_tool_gets_in_both_run_modes() {
    for settings in [config(crate::support::quick()), streaming()] {
        let notes = Notes::default();
        let tool = notes.clone();
        let agent = LlmAgent::new("a")
            .model(
                ScriptedModel::new("m")
                    .response(calls([call_with_id("c7", "look", json!({"n": 1}))]))
                    .text("done"),
            )
            .tool(FunctionTool::with_context("look", "", move |cx, args: Value| {
                let tenant = cx.extension::<String>().map(|tenant| (*tenant).clone());
                tool.add(format!("{:?} {args} {tenant:?} {}", cx.call_id(), cx.run().agent_name()));
                cx.set_state("seen", true);
                Box::pin(async { Ok(1) })
            }))
            .handler(wrap_tool("outer", |call, next| {
                Box::pin(async move {
                    let cx = call.cx.with("acme".to_owned());
                    let args = crate::support::object(json!({"n": 2}));
                    next.call(call.with_args(args).with_context(&cx)).await
                })
            }));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", settings)).await;
        seen.assert_finished();
        assert_eq!(notes.all(), [r#"Some(CallId("c7")) {"n":2} Some("acme") a"#]);
        // What the tool did with the context that it was handed counts for the call.
        assert_eq!(crate::support::state(&runner, &key).await["seen"], true);
    }
}

#[tokio::test]
async fn d4_an_error_of_a_tools_editor_names_it() {
    let agent = LlmAgent::new("a").model(fine()).handler(before_agent("tools", |turn| {
        let there = turn.plan.remove_tool("missing");
        if there { Ok(Step::Continue) } else { Err(Error::new(ErrorKind::Other, "no `missing`")) }
    }));
    let seen = run_once(agent).await;
    assert_eq!(seen.message(), "handler `tools` failed in before_agent: no `missing`");
}
