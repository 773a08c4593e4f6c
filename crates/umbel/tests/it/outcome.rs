//! How runs end: each with one outcome, with nothing lost, and with the session free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    Agent, AgentTool, CancelReason, Confirm, Content, ErrorKind, EventFilter, FunctionTool, Handler,
    LlmAgent, LogEntry, Outcome, Parallel, Plugin, Result, Run, RunLimits, RunStep, Runner, ScriptedModel,
    Sequential, SessionKey, Work, agent_fn,
};

use crate::support::{
    Notes, Spy, assert_free, begin, config, echo, fine, log, outcomes, quick, read, run_once, stored,
    stored_answers, with_session,
};

/// An agent that says something and then never ends, whoever asks it to.
fn stubborn() -> impl Agent {
    agent_fn("stubborn", |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(Content::model("no"))).await?;
            run.flush().await?;
            std::future::pending().await
        })
    })
}

/// A tool that sleeps and does not look at the token.
fn sleeper() -> FunctionTool {
    FunctionTool::new("sleep", "", |_: Value| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(Value::Null)
    })
}

/// The run's records in order, as words.
fn records(log: &[LogEntry]) -> Vec<&'static str> {
    let word = |entry: &LogEntry| match entry {
        LogEntry::Event(_) => "event",
        LogEntry::Record(record) => match **record {
            RunStep::Started { .. } => "started",
            RunStep::CallsStarted { .. } => "calls",
            RunStep::CallFinished { .. } => "finished",
            RunStep::Ended { .. } => "ended",
            _ => "other",
        },
    };
    log.iter().map(word).collect()
}

#[tokio::test]
async fn a_finished_run_is_written_as_it_went() {
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let log = log(&runner, &key).await;
    assert_eq!(records(&log), ["event", "started", "event", "calls", "event", "event", "ended"]);
    assert_eq!(outcomes(&log), [Outcome::Finished]);
    assert_free(&runner, &key).await;
}

#[tokio::test]
async fn each_of_several_calls_is_noted_as_it_finishes() {
    let model = ScriptedModel::new("m").calls([("echo", json!({})), ("echo", json!({}))]).text("done");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let expected = ["event", "started", "event", "calls", "finished", "finished", "event", "event", "ended"];
    assert_eq!(records(&log(&runner, &key).await), expected);
}

#[tokio::test]
async fn a_run_that_asks_a_person_is_interrupted() {
    let model = ScriptedModel::new("m").call("echo", json!({}));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo().confirm(Confirm::Always))).await;
    let seen = read(runner.run(&key, "hi")).await;
    let Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{:?}", seen.outcome) };
    assert_eq!(interrupts.len(), 1);
    assert_eq!((interrupts[0].reason.as_str(), interrupts[0].address.agent.as_str()), ("confirmation", "a"));
    assert!(interrupts[0].message.as_ref().unwrap().contains("echo"));
    assert!(seen.error.is_none());
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
    assert_free(&runner, &key).await;
}

#[tokio::test]
async fn a_failed_run_says_why() {
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").fail("no power"))).await;
    let seen = read(runner.run(&key, "hi")).await;
    let Outcome::Failed { failure } = &seen.outcome else { panic!("{:?}", seen.outcome) };
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("MODEL_FAILED", "no power"));
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
    assert_free(&runner, &key).await;
}

#[tokio::test]
async fn a_cancelled_run_ends_at_once_and_keeps_what_was_said() {
    let model = ScriptedModel::new("m").call("sleep", json!({}));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(sleeper())).await;
    let mut stream = runner.run(&key, "hi");
    stream.next().await.unwrap().unwrap();
    let (token, started) = (stream.cancel_token(), Instant::now());
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        token.cancel(CancelReason::Asked);
    };
    let (seen, ()) = tokio::join!(read(stream), cancel);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!((seen.kind(), &seen.outcome), (ErrorKind::Cancelled, &Outcome::Cancelled));
    // A cancelled run has not failed: no error event, no result of the call.
    assert_eq!(stored_answers(&runner, &key).await.len(), 1);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Cancelled]);
    assert_free(&runner, &key).await;
}

#[tokio::test]
async fn an_agent_that_ignores_cancellation_is_cut_off_after_the_grace() {
    let (runner, key) = begin(stubborn()).await;
    let mut stream = runner.run_with(&key, "hi", config(quick()));
    stream.next().await.unwrap().unwrap();
    stream.cancel();
    let started = Instant::now();
    let seen = read(stream).await;
    assert!(started.elapsed() >= Duration::from_millis(30));
    assert_eq!(seen.outcome, Outcome::Cancelled);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Cancelled]);
    assert_free(&runner, &key).await;
}

#[tokio::test]
async fn a_blocking_tool_does_not_hold_up_a_cancelled_run() {
    let tool = FunctionTool::blocking("block", "", |_: Value| {
        std::thread::sleep(Duration::from_millis(400));
        Ok(Value::Null)
    });
    let model = ScriptedModel::new("m").call("block", json!({}));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(tool)).await;
    let limits = RunLimits { run_time: Duration::from_millis(20), ..quick() };
    let started = Instant::now();
    let seen = read(runner.run_with(&key, "hi", config(limits))).await;
    assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
    assert_eq!(seen.code(), "TIMEOUT");
}

/// Waits until the log has an outcome.
async fn ended(runner: &Runner, key: &SessionKey) -> Vec<Outcome> {
    for _ in 0..200 {
        let outcomes = outcomes(&log(runner, key).await);
        if !outcomes.is_empty() {
            return outcomes;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the run did not end")
}

#[tokio::test]
async fn a_stream_dropped_early_cancels_its_run_and_frees_the_session() {
    let agents: [Arc<dyn Agent>; 2] = [
        Arc::new(LlmAgent::new("a").model(ScriptedModel::new("m").call("sleep", json!({}))).tool(sleeper())),
        Arc::new(stubborn()),
    ];
    for agent in agents {
        let (runner, key) = begin(agent).await;
        let mut stream = runner.run_with(&key, "hi", config(quick()));
        let first = stream.next().await.unwrap().unwrap();
        drop(stream);
        assert_eq!(ended(&runner, &key).await, [Outcome::Cancelled]);
        assert_free(&runner, &key).await;
        assert_eq!(stored_answers(&runner, &key).await, [first]);
    }
}

#[tokio::test]
async fn a_stream_that_was_never_read_does_nothing() {
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    drop(runner.run(&key, "hi"));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(log(&runner, &key).await.is_empty());
}

#[tokio::test]
async fn a_run_that_takes_too_long_times_out() {
    let limits = RunLimits { run_time: Duration::from_millis(20), ..quick() };
    let waiting = LlmAgent::new("a").model(ScriptedModel::new("m").call("sleep", json!({}))).tool(sleeper());
    let agents: [Arc<dyn Agent>; 2] = [Arc::new(waiting), Arc::new(stubborn())];
    for agent in agents {
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config(limits))).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Timeout, "TIMEOUT"));
        assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
        assert_free(&runner, &key).await;
    }
}

#[tokio::test]
async fn a_deadline_is_no_result_of_a_tool() {
    let notes = Notes::default();
    let told = notes.clone();
    let model = ScriptedModel::new("m").call("sleep", json!({}));
    let agent = LlmAgent::new("a").model(model).tool_returning_directly(sleeper()).on_tool_error(
        move |_, _, error| {
            told.add(error.message());
            Box::pin(async { Ok(Some(Default::default())) })
        },
    );
    let (runner, key) = begin(agent).await;
    let limits = RunLimits { run_time: Duration::from_millis(20), ..quick() };
    let seen = read(runner.run_with(&key, "hi", config(limits))).await;
    assert_eq!(seen.kind(), ErrorKind::Timeout);
    assert!(notes.all().is_empty(), "no callback can swallow it: {:?}", notes.all());
    assert!(seen.responses().is_empty());
}

#[tokio::test]
async fn a_text_turn_costs_two_writes_and_one_with_a_tool_four() {
    let spy = Spy::default();
    let model = ScriptedModel::new("m").text("hello").call("echo", json!({})).text("done");
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).tool(echo()));
    let (runner, key) = with_session(runner.sessions(spy.clone()).build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(spy.writes(), 2);
    read(runner.run(&key, "use the tool")).await.assert_finished();
    assert_eq!(spy.writes(), 2 + 4);
}

/// Agents that emit in many ways.
fn busy() -> impl Agent {
    let worker = |name: &str| {
        let model = ScriptedModel::new("m").calls([("echo", json!({"n": 1})), ("echo", json!({"n": 2}))]);
        LlmAgent::new(name).model(model.text(format!("{name} is done"))).tool(echo())
    };
    let group = Parallel::new("group").agent(worker("left")).agent(worker("right"));
    Sequential::new("all").agent(worker("first")).agent(group).agent(worker("last"))
}

#[tokio::test]
async fn every_whole_event_is_stored_before_it_is_seen_and_none_is_lost() {
    for spy in [Spy::default(), Spy::default().slow()] {
        let runner = Runner::builder("app", busy()).sessions(spy.clone()).build().unwrap();
        let (runner, key) = with_session(runner).await;
        let mut stream = runner.run(&key, "hi");
        let mut seen = Vec::new();
        while let Some(event) = stream.next().await {
            let event = event.unwrap();
            assert!(stored(&runner, &key).await.contains(&event), "seen before it is stored");
            seen.push(event);
        }
        assert_eq!(seen.len(), 12);
        assert_eq!(seen, stored_answers(&runner, &key).await);
        assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
    }
}

#[tokio::test]
async fn a_write_that_fails_fails_the_run_and_leaves_no_false_memory() {
    let spy = Spy::default();
    let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("next");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo());
    let runner = Runner::builder("app", agent).sessions(spy.clone()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    spy.fail_next_append();
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!((seen.kind(), seen.code()), (ErrorKind::Store, "STORE_FAILED"));
    read(runner.run(&key, "again")).await.assert_finished();
    // What was not stored is not sent either.
    let sent = model.requests().pop().unwrap().contents;
    assert!(sent.iter().all(|content| !content.has_calls()), "{sent:?}");
    let texts: Vec<_> = sent.iter().map(|content| content.text()).collect();
    assert_eq!(texts, ["hi", "again"]);
}

#[tokio::test]
async fn a_write_cut_short_by_a_failing_sibling_leaves_a_clean_log() {
    let chatty = agent_fn("chatty", |run| {
        Box::pin(async move {
            for n in 0..50 {
                run.emit(run.event().with_content(Content::model(format!("{n}").as_str()))).await?;
            }
            Ok(())
        })
    });
    let failing = agent_fn("failing", |run| {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(23)).await;
            let _ = run;
            Err(umbel::Error::new(ErrorKind::Other, "enough"))
        })
    });
    let group = Parallel::new("group").agent(chatty).agent(failing);
    let runner = Runner::builder("app", group).sessions(Spy::default().slow()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.error.as_ref().unwrap().message(), "enough");
    assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
    assert_free(&runner, &key).await;
}

/// Panics where it is told to.
struct Clumsy(&'static str);

impl Clumsy {
    fn trip(&self, hook: &str) {
        assert!(self.0 != hook, "tripped in {hook}");
    }
}

impl Handler for Clumsy {
    fn name(&self) -> &str {
        "clumsy"
    }

    fn on_input<'a>(&'a self, _: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        self.trip("on_input");
        Work::done(Ok(input))
    }

    fn before_run<'a>(&'a self, _: &'a Run) -> Work<'a, Result<Option<Content>>> {
        self.trip("before_run");
        Work::done(Ok(None))
    }

    fn on_event<'a>(&'a self, _: &'a Run, event: umbel::Event) -> Work<'a, Result<umbel::Event>> {
        self.trip("on_event");
        Work::done(Ok(event))
    }

    fn after_run<'a>(&'a self, _: &'a Run, _: &'a Outcome) -> Work<'a, Result<()>> {
        self.trip("after_run");
        Work::done(Ok(()))
    }
}

#[tokio::test]
async fn a_hook_that_panics_fails_the_run_and_frees_the_session() {
    for hook in ["before_run", "on_event", "after_run"] {
        let runner = Runner::builder("app", LlmAgent::new("a").model(fine())).handler(Clumsy(hook));
        let (runner, key) = with_session(runner.build().unwrap()).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!((seen.kind(), seen.code()), (ErrorKind::Handler, "HANDLER_FAILED"), "{hook}");
        let wanted = format!("handler `clumsy` in {hook} panicked: tripped in {hook}");
        assert_eq!(seen.error.as_ref().unwrap().message(), wanted);
        assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
        assert_free(&runner, &key).await;
    }
    let runner = Runner::builder("app", LlmAgent::new("a").model(fine())).handler(Clumsy("on_input"));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.kind(), ErrorKind::Handler);
    assert!(log(&runner, &key).await.is_empty());
}

#[tokio::test]
async fn agents_models_and_callbacks_that_panic_fail_the_run() {
    let model = ScriptedModel::from_fn("m", |_| panic!("ouch"));
    let callback = LlmAgent::new("a").model(fine()).before_model(|_, _| panic!("ouch"));
    let closure = agent_fn("f", |_| Box::pin(async { panic!("ouch") }));
    let agents: [(Arc<dyn Agent>, &str); 3] = [
        (Arc::new(LlmAgent::new("a").model(model)), "PANIC"),
        (Arc::new(callback), "HANDLER_FAILED"),
        (Arc::new(closure), "PANIC"),
    ];
    for (agent, code) in agents {
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.code(), code);
        assert_eq!(outcomes(&log(&runner, &key).await), [seen.outcome]);
        assert_free(&runner, &key).await;
    }
}

/// Notes how runs end.
struct Witness(Notes);

impl Handler for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn after_run<'a>(&'a self, _: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.0.add(match outcome {
            Outcome::Finished => "finished",
            Outcome::Interrupted { .. } => "interrupted",
            Outcome::Cancelled => "cancelled",
            _ => "failed",
        });
        Work::done(Ok(()))
    }
}

#[tokio::test]
async fn a_handler_sees_every_outcome_and_a_plugin_all_but_failures() {
    let (handler, plugin) = (Notes::default(), Notes::default());
    let model = ScriptedModel::new("m").text("ok").fail("no").call("ask", json!({})).call("sleep", json!({}));
    let ask = FunctionTool::new("ask", "", |_: Value| async { Ok(Value::Null) }).confirm(Confirm::Always);
    let told = plugin.clone();
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).tool(ask).tool(sleeper()))
        .handler(Witness(handler.clone()))
        .plugin(Plugin::new("p").after_run(move |_, outcome| {
            told.add(format!("{outcome:?}").split([' ', '{']).next().unwrap());
            Box::pin(async { Ok(()) })
        }));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    for _ in 0..3 {
        read(runner.run(&key, "hi")).await;
    }
    let mut stream = runner.run(&key, "hi");
    stream.next().await.unwrap().unwrap();
    stream.cancel();
    read(stream).await;
    assert_eq!(handler.all(), ["finished", "failed", "interrupted", "cancelled"]);
    assert_eq!(plugin.all(), ["Finished", "Interrupted", "Cancelled"]);
}

/// The sessions that work for another one; lists do not show them.
async fn only_child(spy: &Spy, notes: &Notes) -> SessionKey {
    let children = notes.all();
    assert_eq!(children.len(), 1, "{children:?}");
    let key = SessionKey::new("app", "ann", &children[0]).unwrap();
    assert!(umbel::SessionStore::get(spy, &key, EventFilter::default()).await.unwrap().is_some());
    key
}

#[tokio::test]
async fn an_agent_called_as_a_tool_has_an_outcome_too_when_its_caller_is_stopped() {
    let (spy, notes) = (Spy::default(), Notes::default());
    let told = notes.clone();
    let child = LlmAgent::new("child")
        .model(ScriptedModel::new("m").call("sleep", json!({})))
        .tool(sleeper())
        .before_agent(move |cx| {
            told.add(cx.run().session_key().id());
            Box::pin(async { Ok(None) })
        });
    let model = ScriptedModel::new("m").call("child", json!({"request": "sleep"})).text("never");
    let agent = LlmAgent::new("a").model(model).tool(AgentTool::new(child));
    let runner = Runner::builder("app", agent).sessions(spy.clone()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let mut stream = runner.run_with(&key, "hi", config(quick()));
    stream.next().await.unwrap().unwrap();
    let token = stream.cancel_token();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        token.cancel(CancelReason::Asked);
    };
    let (seen, ()) = tokio::join!(read(stream), cancel);
    assert_eq!(seen.outcome, Outcome::Cancelled);
    let child = only_child(&spy, &notes).await;
    assert_eq!(ended(&runner, &child).await, [Outcome::Cancelled]);
}

#[tokio::test]
async fn an_agent_called_as_a_tool_has_an_outcome_too_when_it_takes_too_long() {
    let (spy, notes) = (Spy::default(), Notes::default());
    let told = notes.clone();
    let child = LlmAgent::new("child")
        .model(ScriptedModel::new("m").call("sleep", json!({})))
        .tool(sleeper().timeout(Duration::from_secs(60)))
        .before_agent(move |cx| {
            told.add(cx.run().session_key().id());
            Box::pin(async { Ok(None) })
        });
    let model = ScriptedModel::new("m").call("child", json!({"request": "sleep"})).text("too slow");
    let agent = LlmAgent::new("a").model(model).tool(AgentTool::new(child));
    let runner = Runner::builder("app", agent).sessions(spy.clone()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let limits = RunLimits { tool_time: Duration::from_millis(30), ..quick() };
    let seen = read(runner.run_with(&key, "hi", config(limits))).await;
    assert!(seen.tool_error().contains("took longer"));
    seen.assert_finished();
    let child = only_child(&spy, &notes).await;
    assert_eq!(ended(&runner, &child).await, [Outcome::Cancelled]);
}

#[tokio::test]
async fn the_last_word_is_seen_even_if_nobody_reads_on() {
    // The reader takes one event and stops reading, without dropping the stream: the run simply waits.
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    let mut stream = runner.run(&key, "hi");
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.text(), "fine");
    assert!(stream.next().await.is_none());
    assert_eq!(stream.outcome(), Some(&Outcome::Finished));
    assert!(stream.next().await.is_none());
    run_once(LlmAgent::new("a").model(fine())).await.assert_finished();
}
