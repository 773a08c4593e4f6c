//! Code of others is called without a lock: it may look at the run that calls it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    AgentTurn, FunctionTool, Handler, Hooks, LlmAgent, Outcome, Result, Run, ScriptedModel, Step, handler,
    per_run,
};

use super::support::{Seen, begin, fine, read, state};

/// Runs an agent on a thread of its own, and fails if that is blocked.
fn unblocked(agent: LlmAgent) -> (Seen, Value) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let (runner, key) = begin(agent).await;
            let seen = read(runner.run(&key, "hi")).await;
            (seen, state(&runner, &key).await)
        });
        let _ = done.send(ended);
    });
    wait.recv_timeout(Duration::from_secs(20)).expect("nobody is blocked")
}

/// Keeps a value that is made of others of the run.
struct Keeps;

#[handler]
impl Handler for Keeps {
    fn name(&self) -> &str {
        "keeps"
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        let run = turn.run();
        run.keep("n", &3_u32)?;
        let kept: Arc<u32> =
            run.values().get_or_insert_with(|| run.kept::<u32>("n").unwrap().unwrap_or_default() + 1);
        assert_eq!(*kept, 4);
        Ok(Step::Continue)
    }
}

#[test]
fn a_value_of_a_handler_may_be_made_of_others_of_the_run() {
    let (seen, _) = unblocked(LlmAgent::new("a").model(fine()).handler(Keeps));
    assert_eq!(seen.outcome, Outcome::Finished);
}

#[test]
fn a_change_of_actions_may_use_the_context() {
    let tool = FunctionTool::with_context("note", "", |cx, _: Value| {
        cx.set_state("a", 1);
        cx.actions(|actions| {
            // What is done here meanwhile counts, too.
            cx.set_state("b", 2);
            cx.actions(|inner| inner.set_state("c", 3));
            assert_eq!((cx.state("a"), cx.state("b")), (Some(json!(1)), Some(json!(2))));
            actions.set_state("a", 4);
            actions.set_state("d", 5);
        });
        cx.set_state("e", 6);
        let all = ["a", "b", "c", "d", "e"].map(|key| cx.state(key).unwrap());
        Box::pin(async move { Ok(all.to_vec()) })
    });
    let model = ScriptedModel::new("m").call("note", json!({})).text("done");
    let (seen, state) = unblocked(LlmAgent::new("a").model(model).tool(tool));
    assert_eq!(seen.assert_finished().responses(), [json!({"result": [4, 2, 3, 5, 6]})]);
    assert_eq!(state, json!({"a": 4, "b": 2, "c": 3, "d": 5, "e": 6}));
}

struct Plain;

impl Handler for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn hooks(&self) -> Hooks {
        Hooks::BEFORE_AGENT
    }
}

#[test]
fn a_handler_that_is_made_for_a_run_may_look_at_the_run() {
    let make = |run: &Run| {
        run.keep("made", &true).unwrap();
        let _: Arc<u8> = run.values().get_or_insert_with(|| 1);
        Arc::new(Plain) as Arc<dyn Handler>
    };
    let agent = LlmAgent::new("a").model(fine());
    let agent = agent.handler(per_run("one", Hooks::BEFORE_AGENT, make));
    let (seen, _) = unblocked(agent.handler(per_run("two", Hooks::BEFORE_AGENT, make)));
    assert_eq!(seen.outcome, Outcome::Finished);
}
