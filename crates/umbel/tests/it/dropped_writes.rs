//! Branches that are dropped while the store writes for them, and stores that fail: nothing is lost, and nobody is told
//! what is not so.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Agent, AgentFn, Content, ErrorKind, FunctionTool, InMemorySessions, LlmAgent, Outcome, Parallel,
    RunConfig, Runner, ScriptedModel, Sequential, SessionKey, ToolError, ToolErrors, ToolSpec, agent_fn,
    run_sub_agent,
};

use crate::support::{
    Notes, Seen, Spy, assert_ended, assert_free, log, outcomes, read, said, stored_answers, with_session,
};

/// Emits so many events, one after the other.
fn talker(words: usize) -> AgentFn {
    agent_fn("talker", move |run| {
        Box::pin(async move {
            for n in 0..words {
                run.emit(run.event().with_content(Content::model(format!("word {n}").as_str()))).await?;
            }
            Ok(())
        })
    })
}

fn says(name: &'static str, words: &'static str) -> AgentFn {
    agent_fn(name, move |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(Content::model(words))).await?;
            Ok(())
        })
    })
}

/// Escalates after a while.
fn escalating(after: u64) -> AgentFn {
    agent_fn("escalates", move |run| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            let mut event = run.event().with_content(Content::model("enough"));
            event.actions_mut().escalate = Some(true);
            run.emit(event).await?;
            Ok(())
        })
    })
}

async fn on_slow_store(agent: impl Agent + 'static) -> (Runner, SessionKey) {
    with_session(Runner::builder("app", agent).sessions(Spy::default().slow()).build().unwrap()).await
}

/// What a run showed is what is stored, in that order, and nothing is left of the run.
async fn assert_nothing_lost(runner: &Runner, key: &SessionKey, seen: &Seen) {
    let words = |events: Vec<Arc<umbel::Event>>| -> Vec<String> {
        events.iter().map(|event| format!("{} {}", event.author(), event.text())).collect()
    };
    assert_eq!(words(seen.whole()), words(stored_answers(runner, key).await));
    assert_ended(runner, key, seen).await;
    assert_free(runner, key).await;
}

#[tokio::test(start_paused = true)]
async fn an_escalation_while_a_sibling_writes_loses_no_event_and_blames_nobody() {
    // The store takes 5 ms for an append: at each of these the sibling is at another point of one.
    for after in 0..25 {
        let group = Parallel::new("group").agent(talker(50)).agent(escalating(after));
        let agent = Sequential::new("all").agent(group).agent(says("after", "next"));
        let (runner, key) = on_slow_store(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        assert_eq!(seen.texts().last().unwrap().1, "next", "{after}");
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_an_escalation_is_stored_with_the_outcome() {
    for after in 0..25 {
        let group = Parallel::new("group").agent(talker(50)).agent(escalating(after));
        let own = agent_fn("own", |run| {
            Box::pin(async move {
                run_sub_agent(run, "group").await?;
                run.emit(run.event().with_content(Content::model("The final answer."))).await?;
                Ok(())
            })
        });
        let (runner, key) = on_slow_store(own.sub_agent(group)).await;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        assert_eq!(seen.texts().last().unwrap().1, "The final answer.");
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_a_sub_agent_leaves_the_run_as_good_as_before() {
    for limit in 0..25 {
        let own = agent_fn("own", move |run| {
            Box::pin(async move {
                let limit = Duration::from_millis(limit);
                let _ = tokio::time::timeout(limit, run_sub_agent(run, "talker")).await;
                run.emit(run.event().with_content(Content::model("I go on without it."))).await?;
                run.emit(run.event().with_content(Content::model("And on."))).await?;
                Ok(())
            })
        });
        let (runner, key) = on_slow_store(own.sub_agent(talker(50))).await;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        let texts: Vec<String> = seen.texts().into_iter().map(|(_, text)| text).collect();
        assert!(texts.ends_with(&["I go on without it.".to_owned(), "And on.".to_owned()]), "{texts:?}");
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_fails_the_run_is_named_whatever_its_siblings_are_writing() {
    let tool = |name: &'static str, ms: u64, is_good: bool| {
        FunctionTool::new(name, "", move |_: Value| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            if is_good { Ok(json!(name)) } else { Err(ToolError::new("the printer is on fire")) }
        })
    };
    for fails_after in 10..30 {
        let calls = [("c", json!({})), ("b", json!({})), ("a", json!({}))];
        let model = ScriptedModel::new("m").calls(calls).text("done");
        let agent = LlmAgent::new("agent").model(model).tool(tool("c", 1, true)).tool(tool("b", 15, true));
        let config = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
        let builder = Runner::builder("app", agent.tool(tool("a", fails_after, false))).config(config);
        let (runner, key) = with_session(builder.sessions(Spy::default().slow()).build().unwrap()).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.kind(), ErrorKind::Tool, "{}", seen.message());
        assert!(seen.message().contains("printer"), "{}", seen.message());
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_times_out_while_an_effect_is_journaled_is_told_to_the_model() {
    for limit in 18..30 {
        let schema = json!({"type": "object", "properties": {}});
        let timeout = Some(Duration::from_millis(limit));
        let spec = ToolSpec { timeout, ..ToolSpec::new("pay", "", schema) };
        let pay = FunctionTool::raw(spec, |cx, _| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let paid: String = cx.once("paid", || async { Ok("receipt 7".to_owned()) }).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(json!(paid).into())
            })
        });
        let model = ScriptedModel::new("m").call("pay", json!({})).text("Sorry, that took too long.");
        let (runner, key) = on_slow_store(LlmAgent::new("a").model(model).tool(pay)).await;
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        assert_eq!(seen.texts().last().unwrap().1, "Sorry, that took too long.");
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_who_share_an_append_that_fails_are_told_so() {
    let notes = Notes::default();
    let speaker = |name: &'static str, ms: u64| {
        let notes = notes.clone();
        agent_fn(name, move |run| {
            let notes = notes.clone();
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                let emitted = run.emit(run.event().with_content(Content::model(name))).await;
                notes.add(format!("{name} {}", emitted.map_or_else(|error| error.kind().code(), |_| "ok")));
                Ok(()) // Each handles its own errors.
            })
        })
    };
    let store = Spy::default().slow();
    let fails = store.clone();
    let failing = agent_fn("failing", move |_| {
        let fails = fails.clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            fails.fail_next_append();
            Ok(())
        })
    });
    // The first is being written when the others queue theirs; both of those fail.
    let group = Parallel::new("group").agent(speaker("first", 0)).agent(speaker("second", 1));
    let group = group.agent(speaker("third", 2)).agent(failing);
    let (runner, key) = with_session(Runner::builder("app", group).sessions(store).build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    let mut told = notes.all();
    told.sort();
    assert_eq!(told, ["first ok", "second STORE_FAILED", "third STORE_FAILED"]);
    assert_eq!(seen.texts().len(), 1);
    assert_nothing_lost(&runner, &key, &seen).await;
}

/// Says what became of each emit, and goes on.
fn persistent(notes: &Notes, words: &'static [&'static str]) -> AgentFn {
    let notes = notes.clone();
    agent_fn("persistent", move |run| {
        let notes = notes.clone();
        Box::pin(async move {
            for word in words {
                let mut event = run.event().with_content(Content::model(*word));
                event.actions_mut().state_delta = Some(crate::support::object(json!({"last": word})));
                let emitted = run.emit(event).await;
                notes.add(format!("{word} {}", emitted.map_or_else(|error| error.kind().code(), |_| "ok")));
            }
            // The model of another agent would be sent what is stored, and nothing else.
            notes.add(format!("{:?} {:?}", run.events().last().unwrap().text(), run.state().get("last")));
            Ok(())
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_last_word_whose_append_failed_is_written_with_the_next_one() {
    let notes = Notes::default();
    let own = {
        let notes = notes.clone();
        agent_fn("own", move |run| {
            let notes = notes.clone();
            Box::pin(async move {
                // Held until the next write: `emit` has returned when that one fails.
                run.emit(run.event().with_content(Content::model("the last word"))).await?;
                notes.add(
                    run_sub_agent(run, "talker").await.map_or_else(|error| error.kind().code(), |()| "ok"),
                );
                Ok(())
            })
        })
    };
    let store = Spy::default();
    let runner = Runner::builder("app", own.sub_agent(talker(1))).sessions(store.clone()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    store.fail_next_append();
    let seen = read(runner.run(&key, "hi")).await;
    seen.assert_finished();
    assert_eq!(notes.all(), ["STORE_FAILED"]);
    assert_eq!(seen.texts(), [("own".to_owned(), "the last word".to_owned())]);
    assert_nothing_lost(&runner, &key, &seen).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_could_not_be_stored_is_not_in_the_session_at_hand() {
    let (notes, store) = (Notes::default(), Spy::default());
    let agent = Sequential::new("all").agent(persistent(&notes, &["lost", "kept"]));
    let (runner, key) =
        with_session(Runner::builder("app", agent).sessions(store.clone()).build().unwrap()).await;
    store.fail_next_append();
    let seen = read(runner.run(&key, "hi")).await;
    seen.assert_finished();
    assert_eq!(notes.all(), ["lost STORE_FAILED", "kept ok", "\"kept\" Some(String(\"kept\"))"]);
    assert_nothing_lost(&runner, &key, &seen).await;

    // One that fails last leaves nothing of itself.
    let (notes, store) = (Notes::default(), Spy::default());
    let agent = Sequential::new("all").agent(persistent(&notes, &["lost"]));
    let (runner, key) =
        with_session(Runner::builder("app", agent).sessions(store.clone()).build().unwrap()).await;
    store.fail_next_append();
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(notes.all(), ["lost STORE_FAILED", "\"hi\" None"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_found_in_the_log() {
    for lost in 1..4 {
        let (notes, store) = (Notes::default(), Spy::default());
        let agent = Sequential::new("all").agent(persistent(&notes, &["one", "two"]));
        let (runner, key) =
            with_session(Runner::builder("app", agent).sessions(store.clone()).build().unwrap()).await;
        store.lose_answers(lost);
        let seen = read(runner.run(&key, "hi")).await;
        seen.assert_finished();
        assert_eq!(notes.all()[..2], ["one ok", "two ok"]);
        assert_nothing_lost(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn an_event_that_no_store_takes_fails_alone_and_is_sent_to_no_model() {
    let note =
        FunctionTool::raw(ToolSpec::new("note", "", json!({"type": "object", "properties": {}})), |cx, _| {
            cx.set_state("a\0b", 1);
            Box::pin(async { Ok(json!({"secret": "phantom"}).into()) })
        });
    let store = Arc::new(InMemorySessions::new());
    let make = |model: ScriptedModel| {
        let agent = LlmAgent::new("a").model(model).tool(note.clone());
        Runner::builder("app", agent).sessions(store.clone()).build().unwrap()
    };
    let model = ScriptedModel::new("m").recorded().call("note", json!({})).text("second");
    let (hot, key) = with_session(make(model.clone())).await;
    assert_eq!(read(hot.run(&key, "one")).await.kind(), ErrorKind::InvalidInput);
    read(hot.run(&key, "two")).await.assert_finished();
    let cold_model = ScriptedModel::new("m").recorded().text("cold");
    let cold = make(cold_model.clone());
    read(cold.run(&key, "three")).await.assert_finished();
    let (sent, sent_cold) = (said(&model.requests()[1]), said(&cold_model.requests()[0]));
    assert!(sent.iter().all(|words| !words.contains("phantom")), "{sent:?}");
    assert_eq!(sent, sent_cold[..sent.len()]);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_tried_again_and_the_outcome_is_written_once() {
    let store = Spy::default();
    let (runner, key) =
        with_session(Runner::builder("app", says("agent", "hello")).sessions(store.clone()).build().unwrap())
            .await;
    // The one write of such a run after its first is its last.
    store.lose_answers(1);
    let seen = read(runner.run(&key, "hi")).await;
    seen.assert_finished();
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
    assert_nothing_lost(&runner, &key, &seen).await;
}
