//! Every hook in its order, for each way that a run can go.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    AfterOrder, Agent, AgentTool, ErrorKind, FunctionTool, LlmAgent, Outcome, RunConfig, Runner,
    ScriptedModel, Sequential, agent_fn,
};

use crate::handler_support::{Probe, about};
use crate::support::{Notes, assert_ended, begin, echo, fine, log, outcomes, read, streaming, with_session};

/// A runner with a probe of its own named `R`.
fn probed(agent: impl Agent + 'static, notes: &Notes) -> Runner {
    Runner::builder("app", agent).handler(Probe::new("R", notes)).build().unwrap()
}

/// The notes as one text, without what previews gave.
fn trace(notes: &Notes) -> String {
    let notes = notes.take();
    notes.into_iter().filter(|note| !note.contains("(preview)")).collect::<Vec<_>>().join(" ")
}

fn words(lines: &[&str]) -> String {
    lines.join(" ")
}

#[tokio::test]
async fn a_text_run_passes_every_hook_of_a_runner_in_order() {
    for config in [RunConfig::default(), streaming()] {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").stream(["do", "ne"]);
        let (runner, key) = with_session(probed(LlmAgent::new("a").model(model), &notes)).await;
        assert_eq!(trace(&notes), "R.configure");
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        let expected = words(&[
            "R.on_input R.before_run R.before_agent(a)",
            "R.before_model R.wrap_model> R.wrap_model< R.after_model R.on_event(text) R.on_output(text)",
            "R.after_agent(a, finished) R.after_run(finished)",
        ]);
        assert_eq!(trace(&notes), expected);
        runner.close().await.unwrap();
        assert_eq!(trace(&notes), "R.close");
    }
}

#[tokio::test]
async fn a_text_run_passes_the_hooks_of_an_agent_but_not_those_that_are_runner_wide() {
    let notes = Notes::default();
    let (runner, key) = begin(LlmAgent::new("a").model(fine()).handler(Probe::new("A", &notes))).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    runner.close().await.unwrap();
    let expected = words(&[
        "A.configure A.before_agent(a) A.before_model A.wrap_model> A.wrap_model< A.after_model",
        "A.on_event(text) A.on_output(text) A.after_agent(a, finished)",
    ]);
    assert_eq!(trace(&notes), expected);
}

#[tokio::test]
async fn previews_pass_on_event_and_on_output_and_nothing_else() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").stream(["one", "two", "three"]);
    let (runner, key) = begin(LlmAgent::new("a").model(model).handler(Probe::new("A", &notes))).await;
    let seen = read(runner.run_with(&key, "hi", streaming())).await;
    assert_eq!(seen.partial().len(), 3);
    assert_eq!(about(&notes, "on_event(preview)").len(), 3);
    assert_eq!(about(&notes, "on_output(preview)").len(), 3);
    assert_eq!(about(&notes, "after_model").len(), 1);
}

#[tokio::test]
async fn a_tool_run_passes_the_hooks_of_runner_and_agent_in_order() {
    for config in [RunConfig::default(), streaming()] {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").call("echo", json!({})).stream(["do", "ne"]);
        let agent = LlmAgent::new("a").model(model).tool(echo()).handler(Probe::new("A", &notes));
        let (runner, key) = with_session(probed(agent, &notes)).await;
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
        let ask = "R.before_model A.before_model R.wrap_model> A.wrap_model> A.wrap_model< R.wrap_model< \
                   R.after_model A.after_model";
        let expected = words(&[
            "R.configure A.configure R.on_input R.before_run R.before_agent(a) A.before_agent(a)",
            ask,
            "R.on_event(calls) A.on_event(calls) R.on_output(calls) A.on_output(calls)",
            "R.wrap_tool> A.wrap_tool> A.wrap_tool< R.wrap_tool<",
            "R.on_event(responses) A.on_event(responses) R.on_output(responses) A.on_output(responses)",
            ask,
            "R.on_event(text) A.on_event(text) R.on_output(text) A.on_output(text)",
            "R.after_agent(a, finished) A.after_agent(a, finished) R.after_run(finished)",
        ]);
        assert_eq!(trace(&notes), expected);
    }
}

#[tokio::test]
async fn a_tool_run_in_reverse_order_turns_only_what_comes_behind() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").call("echo", json!({})).text("done");
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(echo())
        .handler(Probe::new("A", &notes))
        .handler(Probe::new("B", &notes))
        .after_order(AfterOrder::Reverse);
    let (runner, key) = with_session(probed(agent, &notes)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let names = |hook: &str, count: usize| -> String {
        about(&notes, hook).iter().take(count).map(|note| note.split('.').next().unwrap()).collect()
    };
    for hook in ["before_agent", "before_model", "wrap_model>", "wrap_tool>", "on_event", "on_output"] {
        assert_eq!(names(hook, 3), "RAB", "{hook}");
    }
    for hook in ["after_model", "wrap_model<", "wrap_tool<", "after_agent"] {
        assert_eq!(names(hook, 3), "BAR", "{hook}");
    }
}

#[tokio::test]
async fn a_transfer_passes_the_hooks_of_both_agents_one_after_the_other() {
    let notes = Notes::default();
    let handing = ScriptedModel::new("m").call("transfer_to_agent", json!({"agent_name": "b"}));
    let below = LlmAgent::new("b").model(fine()).handler(Probe::new("B", &notes));
    let agent = LlmAgent::new("a").model(handing).sub_agent(below).handler(Probe::new("A", &notes));
    let (runner, key) = with_session(probed(agent, &notes)).await;
    notes.take();
    read(runner.run(&key, "hi")).await.assert_finished();
    let hooks = |name: &str| {
        words(&[
            &format!("R.before_agent({name}) X.before_agent({name}) R.before_model X.before_model"),
            "R.wrap_model> X.wrap_model> X.wrap_model< R.wrap_model< R.after_model X.after_model",
        ])
    };
    let event =
        |kind: &str| format!("R.on_event({kind}) X.on_event({kind}) R.on_output({kind}) X.on_output({kind})");
    let (a, b) = (hooks("a").replace('X', "A"), hooks("b").replace('X', "B"));
    let expected = words(&[
        "R.on_input R.before_run",
        &a,
        &event("calls").replace('X', "A"),
        "R.wrap_tool> A.wrap_tool> A.wrap_tool< R.wrap_tool<",
        &event("responses").replace('X', "A"),
        "R.after_agent(a, finished) A.after_agent(a, finished)",
        &b,
        &event("text").replace('X', "B"),
        "R.after_agent(b, finished) B.after_agent(b, finished) R.after_run(finished)",
    ]);
    assert_eq!(trace(&notes), expected);
}

#[tokio::test]
async fn a_run_that_fails_passes_on_error_and_all_that_comes_after() {
    for config in [RunConfig::default(), streaming()] {
        let notes = Notes::default();
        let agent = LlmAgent::new("a")
            .model(ScriptedModel::new("m").fail("no power"))
            .handler(Probe::new("A", &notes));
        let (runner, key) = with_session(probed(agent, &notes)).await;
        notes.take();
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.code(), "MODEL_FAILED");
        let expected = words(&[
            "R.on_input R.before_run R.before_agent(a) A.before_agent(a) R.before_model A.before_model",
            "R.wrap_model> A.wrap_model> A.wrap_model< R.wrap_model<",
            "R.on_error(MODEL_FAILED) A.on_error(MODEL_FAILED)",
            "R.after_agent(a, failed MODEL_FAILED) A.after_agent(a, failed MODEL_FAILED)",
            "R.on_event(error) A.on_event(error) R.on_output(error) A.on_output(error)",
            "R.after_run(failed MODEL_FAILED)",
        ]);
        assert_eq!(trace(&notes), expected);
        assert_ended(&runner, &key, &seen).await;
    }
}

#[tokio::test]
async fn a_run_that_is_cancelled_passes_no_on_error_and_all_that_comes_after() {
    let notes = Notes::default();
    let sleeper = FunctionTool::new("sleep", "", |_: Value| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(1)
    });
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").call("sleep", json!({})))
        .tool(sleeper)
        .handler(Probe::new("A", &notes));
    let (runner, key) = with_session(probed(agent, &notes)).await;
    notes.take();
    let mut stream = runner.run(&key, "hi");
    stream.next().await.unwrap().unwrap();
    let token = stream.cancel_token();
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        token.cancel(umbel::CancelReason::Asked);
    };
    let (seen, ()) = tokio::join!(read(stream), cancel);
    assert_eq!((seen.kind(), &seen.outcome), (ErrorKind::Cancelled, &Outcome::Cancelled));
    let expected = words(&[
        "R.on_input R.before_run R.before_agent(a) A.before_agent(a) R.before_model A.before_model",
        "R.wrap_model> A.wrap_model> A.wrap_model< R.wrap_model< R.after_model A.after_model",
        "R.on_event(calls) A.on_event(calls) R.on_output(calls) A.on_output(calls)",
        "R.wrap_tool> A.wrap_tool>",
        "R.after_agent(a, cancelled) A.after_agent(a, cancelled) R.after_run(cancelled)",
    ]);
    // What waits inside the layers is cut off where it stands, or sees the cancellation as an error.
    let trace = trace(&notes).replace("A.wrap_tool! R.wrap_tool! ", "");
    assert_eq!(trace, expected);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Cancelled]);
}

#[tokio::test]
async fn an_interrupted_run_passes_all_that_comes_after_and_again_on_the_answer() {
    let notes = Notes::default();
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m").call("echo", json!({})).text("done"))
        .tool(echo().confirm(umbel::Confirm::Always));
    let (runner, key) = with_session(probed(agent, &notes)).await;
    notes.take();
    let seen = read(runner.run(&key, "hi")).await;
    let [asked] = seen.interrupts() else { panic!("{:?}", seen.outcome) };
    let expected = words(&[
        "R.on_input R.before_run R.before_agent(a) R.before_model R.wrap_model> R.wrap_model< R.after_model",
        "R.on_event(calls) R.on_output(calls) R.wrap_tool> R.wrap_tool<",
        "R.on_event(calls) R.on_output(calls) R.on_event(responses) R.on_output(responses)",
        "R.after_agent(a, interrupted) R.after_run(interrupted)",
    ]);
    assert_eq!(trace(&notes), expected);
    read(runner.run(&key, asked.answer(true))).await.assert_finished();
    let expected = words(&[
        "R.on_input R.before_run R.before_agent(a) R.wrap_tool> R.wrap_tool<",
        "R.on_event(responses) R.on_output(responses)",
        "R.before_model R.wrap_model> R.wrap_model< R.after_model R.on_event(text) R.on_output(text)",
        "R.after_agent(a, finished) R.after_run(finished)",
    ]);
    assert_eq!(trace(&notes), expected);
}

#[tokio::test]
async fn agents_that_run_others_pass_the_hooks_around_agents_and_events() {
    let notes = Notes::default();
    let own = agent_fn("own", |run| {
        Box::pin(async move {
            run.emit(run.event().with_content(umbel::Content::model("plain code"))).await?;
            Ok(())
        })
    });
    let team = Sequential::new("team").agent(own).agent(LlmAgent::new("a").model(fine()));
    let (runner, key) = with_session(probed(team, &notes)).await;
    notes.take();
    read(runner.run(&key, "hi")).await.assert_finished();
    let expected = words(&[
        "R.on_input R.before_run R.before_agent(team)",
        "R.before_agent(own) R.on_event(text) R.on_output(text) R.after_agent(own, finished)",
        "R.before_agent(a) R.before_model R.wrap_model> R.wrap_model< R.after_model",
        "R.on_event(text) R.on_output(text) R.after_agent(a, finished)",
        "R.after_agent(team, finished) R.after_run(finished)",
    ]);
    assert_eq!(trace(&notes), expected);
}

#[tokio::test]
async fn an_agent_that_is_called_as_a_tool_passes_the_hooks_of_its_caller_as_a_run_of_its_own() {
    let notes = Notes::default();
    let child = LlmAgent::new("child").model(fine());
    let model = ScriptedModel::new("m").call("child", json!({"request": "go"})).text("done");
    let (runner, key) =
        with_session(probed(LlmAgent::new("a").model(model).tool(AgentTool::new(child)), &notes)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    for (hook, count) in
        [("on_input", 2), ("before_run", 2), ("after_run", 2), ("wrap_tool>", 1), ("close", 0)]
    {
        assert_eq!(about(&notes, hook).len(), count, "{hook}");
    }
    assert_eq!(about(&notes, "before_agent"), ["R.before_agent(a)", "R.before_agent(child)"]);
}

#[tokio::test]
async fn a_failing_agent_below_another_is_told_to_the_handlers_of_both() {
    let notes = Notes::default();
    let failing =
        LlmAgent::new("low").model(ScriptedModel::new("m").fail("no")).handler(Probe::new("L", &notes));
    let team = Sequential::new("team").agent(failing).agent(LlmAgent::new("never").model(fine()));
    let (runner, key) = with_session(probed(team, &notes)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.code(), "MODEL_FAILED");
    let outcome = "failed MODEL_FAILED";
    let told = |name: &str, agent: &str| format!("{name}.after_agent({agent}, {outcome})");
    assert_eq!(about(&notes, "after_agent"), [told("R", "low"), told("L", "low"), told("R", "team")]);
    assert_eq!(
        about(&notes, "before_agent"),
        ["R.before_agent(team)", "R.before_agent(low)", "L.before_agent(low)"]
    );
}

#[tokio::test]
async fn a_handler_answers_for_an_agent_or_ends_its_turn_before_it_begins() {
    let notes = Notes::default();
    let model = fine();
    let answering = crate::handler_support::before_agent("answers", |_| {
        Ok(umbel::Step::Respond(umbel::Content::model("from the handler")))
    });
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .output_key("said")
        .handler(answering)
        .handler(Probe::new("A", &notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "from the handler".into())]);
    assert_eq!(crate::support::state(&runner, &key).await["said"], "from the handler");
    // Handlers further on are not asked, but told how it ended.
    assert!(about(&notes, "before_agent").is_empty());
    assert_eq!(about(&notes, "after_agent"), ["A.after_agent(a, finished)"]);
    let ending = crate::handler_support::before_agent("ends", |turn| {
        turn.cx().set_state("ended", true);
        Ok(umbel::Step::Jump(umbel::Jump::End))
    });
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).handler(ending)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert!(seen.assert_finished().texts().is_empty());
    assert_eq!(crate::support::state(&runner, &key).await["ended"], true);
    assert!(model.requests().is_empty());
}

#[tokio::test]
async fn input_and_run_can_be_taken_over_by_a_handler_of_the_runner() {
    struct Doorman;
    #[umbel::handler]
    impl umbel::Handler for Doorman {
        fn name(&self) -> &str {
            "doorman"
        }

        async fn on_input(
            &self,
            _run: &umbel::Run,
            input: Arc<umbel::Content>,
        ) -> umbel::Result<Arc<umbel::Content>> {
            Ok(Arc::new(umbel::Content::user(input.text().to_uppercase().as_str())))
        }

        async fn before_run(&self, run: &umbel::Run) -> umbel::Result<Option<umbel::Content>> {
            let closed = run.input().is_some_and(|input| input.text() == "NIGHT");
            Ok(closed.then(|| umbel::Content::model("We are closed.")))
        }
    }
    let (notes, model) = (Notes::default(), fine());
    let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone()))
        .handler(Doorman)
        .handler(Probe::new("R", &notes))
        .build()
        .unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "day")).await.assert_finished();
    assert_eq!(crate::support::said(&model.requests()[0]), ["DAY"]);
    assert_eq!(crate::support::stored(&runner, &key).await[0].text(), "DAY");
    notes.take();
    let seen = read(runner.run(&key, "night")).await;
    assert_eq!(seen.assert_finished().texts(), [("model".into(), "We are closed.".into())]);
    assert_eq!(trace(&notes), "R.on_input R.on_event(text) R.on_output(text) R.after_run(finished)");
}

#[tokio::test]
async fn what_viewers_see_and_what_is_stored_can_differ() {
    for config in [RunConfig::default(), streaming()] {
        let model = ScriptedModel::new("m").call("echo", json!({"secret": 1})).stream(["top ", "secret"]);
        let agent = LlmAgent::new("a").model(model).tool(echo()).handler(crate::handler_support::on_output(
            "redacts",
            |_, event| {
                if event.responses().next().is_some() {
                    return Ok(None);
                }
                let mut event = Arc::unwrap_or_clone(event);
                if event.text().contains("secret") {
                    event.content = Some(Arc::new(umbel::Content::model("***")));
                }
                Ok(Some(Arc::new(event)))
            },
        ));
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "***".into())]);
        assert!(seen.responses().is_empty());
        assert!(seen.partial().iter().all(|event| !event.text().contains("secret")));
        let stored = crate::support::stored(&runner, &key).await;
        assert_eq!(stored[2].responses().count(), 1);
        assert_eq!(stored[3].text(), "top secret");
    }
}
