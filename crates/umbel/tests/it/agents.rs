//! Agents that run other agents, hand over to them, or call them as tools.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Agent, AgentTool, Callbacks, Content, ErrorKind, EventFilter, ExitLoop, FunctionTool, InMemorySessions,
    LlmAgent, LoopAgent, Mode, Outcome, Parallel, Plugin, RunConfig, RunLimits, Runner, ScriptedModel,
    Sequential, SessionKey, SessionStore, agent_fn, run_sub_agent,
};

use crate::support::{
    Notes, Seen, Spy, begin, echo, fine, log, object, outcomes, read, run_once, said, state, stored,
    with_session,
};

fn says(name: &str, text: &str) -> LlmAgent {
    LlmAgent::new(name).description(format!("{name} helps")).model(ScriptedModel::new(name).text(text))
}

fn hand_over(to: &str) -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("transfer_to_agent", json!({"agent_name": to}))
}

fn pairs(texts: &[(&str, &str)]) -> Vec<(String, String)> {
    texts.iter().map(|(author, text)| ((*author).to_owned(), (*text).to_owned())).collect()
}

async fn run_with_limits(agent: impl Agent + 'static, limits: RunLimits) -> Seen {
    let (runner, key) = begin(agent).await;
    read(runner.run_with(&key, "hi", RunConfig { limits, ..RunConfig::default() })).await
}

#[tokio::test]
async fn a_sequence_runs_one_after_the_other_and_each_reads_the_others() {
    let last = ScriptedModel::new("last").recorded().text("three");
    let agent = Sequential::new("s")
        .agent(says("one", "first").output_key("one"))
        .agent(LlmAgent::new("two").model(last.clone()).instruction("After {one}."));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().texts(), pairs(&[("one", "first"), ("two", "three")]));
    let request = &last.requests()[0];
    assert!(request.instruction.text().starts_with("After first."));
    assert!(request.contents.get(1).unwrap().parts[1].as_text().unwrap().contains("one said:"));
    assert!(seen.events.iter().all(|event| event.branch().is_none()));
}

#[tokio::test]
async fn a_sequence_stops_where_a_person_is_asked() {
    let ask = echo().confirm(umbel::Confirm::Always);
    let asks = LlmAgent::new("asks").model(ScriptedModel::new("m").call("echo", json!({}))).tool(ask);
    let seen = run_once(Sequential::new("s").agent(asks).agent(says("after", "too early"))).await;
    assert!(matches!(seen.outcome, Outcome::Interrupted { .. }));
    assert!(seen.texts().is_empty());
}

#[tokio::test]
async fn callbacks_surround_a_workflow_agent() {
    let mut callbacks = Callbacks::default();
    callbacks.before_agent.push(std::sync::Arc::new(|cx| {
        cx.set_state("begun", true);
        Box::pin(async { Ok(None) })
    }));
    callbacks
        .after_agent
        .push(std::sync::Arc::new(|_| Box::pin(async { Ok(Some(Content::model("the end"))) })));
    for kind in 0..3 {
        let one = says("one", "hello");
        let (runner, key) = match kind {
            0 => begin(Sequential::new("w").agent(one).callbacks(callbacks.clone())).await,
            1 => begin(Parallel::new("w").agent(one).callbacks(callbacks.clone())).await,
            _ => begin(LoopAgent::new("w").max_iterations(1).agent(one).callbacks(callbacks.clone())).await,
        };
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.assert_finished().texts(), pairs(&[("one", "hello"), ("w", "the end")]));
        assert_eq!(state(&runner, &key).await, json!({"begun": true}));
    }
}

#[tokio::test]
async fn parallel_agents_do_not_see_each_other() {
    let models =
        ["left", "right"].map(|name| ScriptedModel::new(name).recorded().call("echo", json!({})).text(name));
    let mut group = Parallel::new("group");
    for (name, model) in ["left", "right"].into_iter().zip(&models) {
        group = group.agent(LlmAgent::new(name).model(model.clone()).tool(echo()));
    }
    let after = ScriptedModel::new("after").recorded().text("both are done");
    let all = Sequential::new("all").agent(group).agent(LlmAgent::new("after").model(after.clone()));
    let (runner, key) = begin(all).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().events.len(), 7);
    for event in seen.events.iter().filter(|event| event.author() != "after") {
        assert_eq!(event.branch(), Some(format!("group.{}", event.author()).as_str()));
    }
    for model in &models {
        // The message, the call and its answer, and nothing of the other.
        assert_eq!(model.requests()[1].contents.len(), 3);
    }
    assert_eq!(after.requests()[0].contents.len(), 1 + 6);
    assert_eq!(stored(&runner, &key).await[1..], seen.events[..]);
}

/// An agent that never ends by itself.
fn endless(name: &'static str) -> impl Agent {
    agent_fn(name, |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(Content::model("working"))).await?;
            run.cancel_token().guard(std::future::pending::<()>()).await
        })
    })
}

#[tokio::test]
async fn an_error_in_one_parallel_agent_fails_all() {
    let failing = LlmAgent::new("failing").model(ScriptedModel::new("m").fail("no power"));
    let (runner, key) = begin(Parallel::new("group").agent(endless("endless")).agent(failing)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.error.as_ref().unwrap().message(), seen.code()), ("no power", "MODEL_FAILED"));
    assert_eq!(seen.texts(), pairs(&[("endless", "working")]));
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
}

#[tokio::test]
async fn an_escalation_stops_the_siblings() {
    for store in [Spy::default(), Spy::default().slow()] {
        let model = ScriptedModel::new("m").call("exit_loop", json!({}));
        let quick = LlmAgent::new("quick").model(model).tool(ExitLoop);
        let group = Parallel::new("group").agent(endless("endless")).agent(quick);
        let agent = Sequential::new("s").agent(group).agent(says("after", "next"));
        let runner = Runner::builder("app", agent).sessions(store).build().unwrap();
        let (runner, key) = with_session(runner).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.assert_finished().texts().last().unwrap(), &("after".into(), "next".into()));
        assert_eq!(stored(&runner, &key).await[1..], seen.events[..]);
    }
}

#[tokio::test]
async fn a_loop_ends_after_its_last_round() {
    for rounds in [0, 1, 3] {
        let looping = LoopAgent::new("l").max_iterations(rounds).agent(LlmAgent::new("a").model(fine()));
        assert_eq!(run_once(looping).await.assert_finished().events.len(), rounds as usize);
    }
    run_once(LoopAgent::new("l")).await.assert_finished();
}

#[tokio::test]
async fn a_loop_ends_when_an_agent_escalates() {
    let model = ScriptedModel::new("m").text("draft").call("exit_loop", json!({}));
    let writer = LlmAgent::new("writer").model(model).tool(ExitLoop);
    let critic = LlmAgent::new("critic").model(ScriptedModel::new("c").text("not yet"));
    let agent = Sequential::new("s")
        .agent(LoopAgent::new("l").agent(writer).agent(critic))
        .agent(says("after", "printed"));
    let seen = run_once(agent).await;
    let expected = pairs(&[("writer", "draft"), ("critic", "not yet"), ("after", "printed")]);
    assert_eq!(seen.assert_finished().texts(), expected);
}

#[tokio::test]
async fn a_loop_without_end_ends_at_the_limits_of_the_run() {
    let looping = || LoopAgent::new("l").agent(LlmAgent::new("a").model(fine()));
    let seen = run_with_limits(looping(), RunLimits { model_calls: 5, ..RunLimits::default() }).await;
    assert_eq!((seen.code(), seen.events.len()), ("MODEL_CALL_LIMIT", 5));
    let limits = RunLimits { model_calls: 0, run_time: Duration::from_millis(30), ..RunLimits::default() };
    assert_eq!(run_with_limits(looping(), limits).await.code(), "TIMEOUT");
}

#[tokio::test]
async fn an_agent_of_ones_own_runs_its_sub_agents() {
    let own = agent_fn("own", |run| {
        Box::pin(async move {
            run_sub_agent(run, "two").await?;
            run_sub_agent(run, "one").await?;
            run_sub_agent(run, "three").await
        })
    });
    let seen = run_once(own.sub_agent(says("one", "1")).sub_agent(says("two", "2"))).await;
    assert_eq!(seen.texts(), pairs(&[("two", "2"), ("one", "1")]));
    assert_eq!(seen.kind(), ErrorKind::AgentNotFound);
}

#[tokio::test]
async fn agents_do_not_nest_deeper_than_allowed() {
    let nested = (0..4).fold(Sequential::new("s").agent(says("a", "deep")), |inner, n| {
        Sequential::new(format!("s{n}")).agent(inner)
    });
    let seen = run_with_limits(nested.clone(), RunLimits { depth: 5, ..RunLimits::default() }).await;
    seen.assert_finished();
    let seen = run_with_limits(nested, RunLimits { depth: 4, ..RunLimits::default() }).await;
    assert_eq!(seen.code(), "DEPTH_LIMIT");
}

#[tokio::test]
async fn an_agent_hands_over_down_up_and_to_a_peer() {
    let b = LlmAgent::new("b").model(hand_over("c"));
    let c = LlmAgent::new("c").model(hand_over("a"));
    let model = hand_over("b").text("back at the root");
    let agent = LlmAgent::new("a").model(model.clone()).sub_agent(b).sub_agent(c);
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().texts(), pairs(&[("a", "back at the root")]));
    let authors: Vec<_> = seen.events.iter().map(|event| event.author().to_owned()).collect();
    assert_eq!(authors, ["a", "a", "b", "b", "c", "c", "a"]);
    let tool = model.requests()[0].tools.get("transfer_to_agent").unwrap().tool.clone();
    assert_eq!(tool.spec().parameters["properties"]["agent_name"]["enum"], json!(["b", "c"]));
}

#[tokio::test]
async fn handing_over_to_a_stranger_fails_the_run() {
    let c = LlmAgent::new("c").model(fine());
    let b = LlmAgent::new("b").model(fine()).sub_agent(c);
    let seen = run_once(LlmAgent::new("a").model(hand_over("c")).sub_agent(b)).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::TransferRefused, "TRANSFER_REFUSED"));
    let seen = run_once(LlmAgent::new("a").model(hand_over("nobody")).sub_agent(says("b", ""))).await;
    assert_eq!(seen.kind(), ErrorKind::AgentNotFound);
}

#[tokio::test]
async fn an_agent_may_be_kept_from_handing_back_or_on() {
    let target = |b: LlmAgent| {
        let agent = LlmAgent::new("a").model(hand_over("b")).sub_agent(b).sub_agent(says("c", "from c"));
        async move { run_once(agent).await }
    };
    let b = LlmAgent::new("b").model(hand_over("a")).disallow_transfer_to_parent();
    assert_eq!(target(b).await.kind(), ErrorKind::TransferRefused);
    let b = LlmAgent::new("b").model(hand_over("c")).disallow_transfer_to_peers();
    assert_eq!(target(b).await.kind(), ErrorKind::TransferRefused);
    let b = LlmAgent::new("b").model(hand_over("c")).disallow_transfer_to_parent();
    assert_eq!(target(b).await.assert_finished().texts(), pairs(&[("c", "from c")]));
}

#[tokio::test]
async fn who_was_handed_the_conversation_keeps_it() {
    for keeps in [true, false] {
        let mut b = LlmAgent::new("b").model(fine());
        if !keeps {
            b = b.disallow_transfer_to_parent();
        }
        let agent = LlmAgent::new("a").model(hand_over("b").text("from a")).sub_agent(b);
        let (runner, key) = begin(agent).await;
        assert_eq!(read(runner.run(&key, "hi")).await.texts(), pairs(&[("b", "fine")]));
        let expected = if keeps { ("b", "fine") } else { ("a", "from a") };
        assert_eq!(read(runner.run(&key, "more")).await.texts(), pairs(&[expected]));
    }
}

fn delegating(args: Value) -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("helper", args)
}

#[tokio::test]
async fn a_single_turn_agent_works_as_a_tool_out_of_sight() {
    let helper = ScriptedModel::new("helper").recorded().call("echo", json!({"x": 1})).text("42");
    let sub = LlmAgent::new("helper").description("Computes.").mode(Mode::SingleTurn);
    let sub = sub.model(helper.clone()).tool(echo());
    let model = delegating(json!({"goal": "6 * 7"})).text("It is 42.");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).sub_agent(sub)).await;
    let seen = read(runner.run(&key, "what is 6 * 7?")).await;
    assert_eq!(seen.assert_finished().texts(), pairs(&[("helper", "42"), ("a", "It is 42.")]));
    // It gets the task and not the conversation; its caller gets the result and not the way to it.
    let asked = said(&helper.requests()[0]);
    assert_eq!(asked.len(), 1);
    assert!(asked[0].starts_with(r#"{"goal":"6 * 7"}"#), "{asked:?}");
    let requests = model.requests();
    assert!(requests[0].tools.get("transfer_to_agent").is_none());
    let sent = &requests[1].contents;
    assert_eq!(sent.len(), 3);
    let result = sent.get(2).unwrap().responses().next().unwrap().response.clone().unwrap();
    assert_eq!(Value::Object(result), json!({"result": "42"}));
    assert_eq!(read(runner.run(&key, "x")).await.code(), "MODEL_FAILED", "the script of `a` is at its end");
}

#[tokio::test]
async fn a_task_agent_talks_with_the_user_until_it_is_done() {
    let helper = ScriptedModel::new("helper")
        .recorded()
        .text("Which seat?")
        .text("And the date?")
        .call("finish_task", json!({"result": "12A on Monday"}));
    let sub = LlmAgent::new("helper").description("Books.").mode(Mode::Task).model(helper.clone());
    let model = delegating(json!({"goal": "book a seat"})).text("Booked: 12A on Monday.").text("Welcome.");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).sub_agent(sub)).await;
    let first = read(runner.run(&key, "book me a seat")).await;
    assert_eq!(first.assert_finished().texts(), pairs(&[("helper", "Which seat?")]));
    let second = read(runner.run(&key, "12A")).await;
    assert_eq!(second.assert_finished().texts(), pairs(&[("helper", "And the date?")]));
    assert_eq!(model.requests().len(), 1);
    let third = read(runner.run(&key, "Monday")).await;
    assert_eq!(third.assert_finished().texts(), pairs(&[("a", "Booked: 12A on Monday.")]));
    // The helper sees its task and its talk with the user, its caller the result alone.
    let heard = said(&helper.requests()[2]);
    assert_eq!(heard[1..], ["Which seat?", "12A", "And the date?", "Monday"]);
    assert!(helper.requests()[0].tools.get("finish_task").is_some());
    let sent = model.requests()[1].contents.clone();
    let results: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].response.as_ref().unwrap()["result"], "12A on Monday");
    assert!(!said(&model.requests()[1]).contains(&"12A".to_owned()));
    // And then the caller has the conversation again.
    assert_eq!(read(runner.run(&key, "thanks")).await.texts(), pairs(&[("a", "Welcome.")]));
}

#[tokio::test]
async fn a_task_that_is_done_at_once_needs_no_second_turn() {
    let helper = ScriptedModel::new("helper")
        .call("finish_task", json!({"wrong": 1}))
        .call("finish_task", json!({"seat": "12A"}));
    let schema = json!({"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]});
    let sub = LlmAgent::new("helper").mode(Mode::Task).model(helper.clone()).output_schema(schema);
    let model = delegating(json!({"goal": "book a seat"})).text("Booked.");
    let seen = run_once(LlmAgent::new("a").model(model).sub_agent(sub)).await;
    assert_eq!(seen.assert_finished().texts(), pairs(&[("a", "Booked.")]));
    let responses = seen.responses();
    assert!(responses[0]["error"].as_str().unwrap().contains("seat"), "{responses:?}");
    assert_eq!(responses[1..], [json!({"seat": "12A"}), json!({"seat": "12A"})]);
}

#[tokio::test]
async fn an_agent_as_a_tool_works_on_a_session_of_its_own() {
    let inner = ScriptedModel::new("inner").recorded().call("note", json!({})).text("noted");
    let note = FunctionTool::with_context("note", "", |cx, _: Value| {
        Box::pin(async move {
            cx.set_state("noted", cx.state("topic"));
            cx.set_state("user:seen", true);
            Ok(Value::Null)
        })
    });
    let child = LlmAgent::new("child").description("Notes.").model(inner.clone()).tool(note);
    let model = ScriptedModel::new("m").call("child", json!({"request": "note it"})).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(AgentTool::new(child));
    let notes = Notes::default();
    let told = notes.clone();
    let plugin = Plugin::new("p").before_agent(move |cx| {
        told.add(format!("{} {}", cx.run().agent_name(), cx.run().session_key().id()));
        Box::pin(async { Ok(None) })
    });
    let runner = Runner::builder("app", agent).plugin(plugin).build().unwrap();
    let first = object(json!({"topic": "tea", "_adk_x": 1}));
    let key = runner.create_session_with("ann", "s", first).await.unwrap().key;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), pairs(&[("a", "done")]));
    assert_eq!(seen.responses(), [json!({"result": "noted"})]);
    assert_eq!(said(&inner.requests()[0]), ["note it"]);
    let expected = json!({"topic": "tea", "_adk_x": 1, "noted": "tea", "user:seen": true});
    assert_eq!(state(&runner, &key).await, expected);
    // Plugins are called for it too, and it is stored, but not listed, and goes with its parent.
    let all = notes.all();
    assert_eq!(all.len(), 2);
    let child = all[1].strip_prefix("child ").unwrap();
    let child = SessionKey::new("app", "ann", child).unwrap();
    assert_eq!(outcomes(&log(&runner, &child).await), [Outcome::Finished]);
    assert_eq!(state(&runner, &child).await["_adk_x"], Value::Null);
    assert_eq!(runner.sessions().list("app", "ann").await.unwrap().len(), 1);
    runner.delete_session(&key).await.unwrap();
    assert!(runner.sessions().get(&child, EventFilter::default()).await.unwrap().is_none());
}

#[tokio::test]
async fn calling_an_agent_does_not_turn_shared_state_back() {
    let model = ScriptedModel::new("m").calls([("meddle", json!({}))]).call("child", json!({"request": "x"}));
    // While the run is under way, another session of the user sets what this run knows an older value of.
    let meddle = FunctionTool::with_context("meddle", "", |cx, _: Value| {
        Box::pin(async move {
            let key = SessionKey::new("app", "ann", "other")?;
            let new = umbel::NewSession::new(key).state(object(json!({"user:n": 2, "app:n": 2})));
            cx.run().services().sessions.create(new).await?;
            Ok(Value::Null)
        })
    });
    let child = LlmAgent::new("child").model(fine());
    let agent = LlmAgent::new("a").model(model.text("done")).tool(meddle).tool(AgentTool::new(child));
    let runner = Runner::new("app", agent).unwrap();
    let first = object(json!({"user:n": 1, "app:n": 1}));
    let key = runner.create_session_with("ann", "s", first).await.unwrap().key;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(state(&runner, &key).await, json!({"user:n": 2, "app:n": 2}));
}

#[tokio::test]
async fn an_agent_as_a_tool_takes_its_own_input_and_may_have_the_last_word() {
    let inner = ScriptedModel::new("inner").recorded().text("Rome it is");
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let child = LlmAgent::new("child").model(inner.clone()).input_schema(schema.clone());
    let model = ScriptedModel::new("m").recorded().call("child", json!({"city": "Rome"}));
    let tool = AgentTool::new(child).skip_summarization();
    let seen = run_once(LlmAgent::new("a").model(model.clone()).tool(tool)).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"result": "Rome it is"})]);
    assert_eq!(model.requests().len(), 1);
    assert_eq!(said(&inner.requests()[0]), [r#"{"city":"Rome"}"#]);
    assert_eq!(*model.requests()[0].tools.get("child").unwrap().tool.spec().parameters, schema);
}

#[tokio::test]
async fn an_agent_as_a_tool_that_fails_is_a_tool_that_failed() {
    let failing = LlmAgent::new("child").model(ScriptedModel::new("m").fail("no power"));
    let model = ScriptedModel::new("m").call("child", json!({"request": "x"})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model).tool(AgentTool::new(failing))).await;
    assert!(seen.tool_error().contains("no power"), "{}", seen.tool_error());
    seen.assert_finished();
}

#[tokio::test]
async fn agents_called_as_tools_share_the_limits_of_their_caller() {
    fn nested(depth: u32) -> LlmAgent {
        let name = format!("a{depth}");
        if depth == 0 {
            return says(&name, "bottom");
        }
        let child = format!("a{}", depth - 1);
        let model = ScriptedModel::new("m").call(child, json!({"request": "go"})).text("up");
        LlmAgent::new(name).model(model).tool(AgentTool::new(nested(depth - 1)))
    }
    let seen = run_with_limits(nested(3), RunLimits { depth: 3, ..RunLimits::default() }).await;
    assert_eq!(seen.responses(), [json!({"result": "up"})]);
    // At the limit the innermost agent is not run, and its caller is told.
    let seen = run_with_limits(nested(3), RunLimits { depth: 2, ..RunLimits::default() }).await;
    seen.assert_finished();
    let seen = run_with_limits(nested(1), RunLimits { depth: 0, ..RunLimits::default() }).await;
    assert!(seen.tool_error().contains("RunLimits::depth"), "{}", seen.tool_error());
    let limits = RunLimits { model_calls: 2, ..RunLimits::default() };
    assert_eq!(run_with_limits(nested(1), limits).await.code(), "MODEL_CALL_LIMIT");
}

#[tokio::test]
async fn a_child_session_of_a_store_is_hidden_and_goes_with_its_parent() {
    let store = InMemorySessions::new();
    let key = |id: &str| SessionKey::new("app", "ann", id).unwrap();
    store.create(umbel::NewSession::new(key("p"))).await.unwrap();
    store.create(umbel::NewSession::new(key("c")).parent(key("p"))).await.unwrap();
    store.create(umbel::NewSession::new(key("g")).parent(key("c"))).await.unwrap();
    assert_eq!(store.list("app", "ann").await.unwrap().len(), 1);
    store.delete(&key("p")).await.unwrap();
    for id in ["p", "c", "g"] {
        assert!(store.get(&key(id), EventFilter::default()).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_loop_whose_agents_never_wait_ends_with_the_time_of_its_run_and_remembers_each_once() {
    let idle = agent_fn("idle", |_| Box::pin(async { Ok(()) }));
    let other = agent_fn("other", |_| Box::pin(async { Ok(()) }));
    let limits = RunLimits { run_time: Duration::from_millis(30), ..RunLimits::default() };
    let (runner, key) = begin(LoopAgent::new("l").agent(idle).agent(other)).await;
    let config = RunConfig { limits, ..RunConfig::default() };
    let seen = read(runner.run_with(&key, "hi", config)).await;
    assert_eq!(seen.kind(), ErrorKind::Timeout);
    // The message, that the run began, that each of the agents was done, and the outcome.
    assert_eq!(log(&runner, &key).await.len(), 5);
}
