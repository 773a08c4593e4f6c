//! Toolsets are asked once for each model call, whatever handlers an agent has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use umbel::{
    AgentTurn, Answer, AuthConfig, BoxFuture, FunctionTool, Handler, HttpPlace, Jump, LlmAgent, Outcome,
    PlainAuth, Result, Run, Runner, ScriptedModel, Step, Tool, Toolset, handler, with,
};

use super::support::{Seen, begin, echo, fine, read, with_session};

fn tool(name: &str) -> Arc<dyn Tool> {
    Arc::new(FunctionTool::new(name, "", |args: Value| async move { Ok(args) }))
}

/// A toolset that counts how often it is asked, and gives another tool each time.
#[derive(Clone, Default)]
struct Shelf(Arc<AtomicUsize>);

impl Shelf {
    fn asked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Toolset for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn tools<'a>(&'a self, _run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move { Ok(vec![tool(&format!("tool{number}"))]) })
    }

    fn instruction(&self, _run: &Run) -> Option<Arc<str>> {
        Some("Use the shelf.".into())
    }
}

/// A toolset behind a credential.
struct Chest {
    auth: AuthConfig,
    listed: Arc<AtomicUsize>,
}

impl Toolset for Chest {
    fn name(&self) -> &str {
        "chest"
    }

    fn tools<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(async move {
            run.credential(&self.auth).await?;
            self.listed.fetch_add(1, Ordering::SeqCst);
            Ok(vec![tool("open")])
        })
    }

    fn auth(&self) -> Option<&AuthConfig> {
        Some(&self.auth)
    }
}

/// Adds a tool for the turn, so that handlers settle which ones there are.
struct Adds;

#[handler]
impl Handler for Adds {
    fn name(&self) -> &str {
        "adds"
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        turn.plan.tools_mut().add(tool("added"));
        Ok(Step::Continue)
    }
}

/// Begins the turn with calls that are open.
struct CallsFirst;

#[handler]
impl Handler for CallsFirst {
    fn name(&self) -> &str {
        "calls-first"
    }

    fn before_agent(&self, _turn: &mut AgentTurn<'_>) -> Result<Step> {
        Ok(Step::Jump(Jump::Tools))
    }
}

/// Handlers that a turn may have before it, by name.
fn having(agent: LlmAgent, which: &str) -> LlmAgent {
    match which {
        "none" => agent,
        "instruction" => agent.handler(with::instruction("Be brief.")),
        "tools" => agent.handler(Adds),
        _ => agent.handler(CallsFirst),
    }
}

const EACH: [&str; 4] = ["none", "instruction", "tools", "calls"];

fn names(model: &ScriptedModel, request: usize) -> Vec<String> {
    model.requests()[request].tools.specs().map(|spec| spec.name.to_string()).collect()
}

#[tokio::test]
async fn a_toolset_is_asked_once_for_each_model_call_whatever_handlers_there_are() {
    for which in EACH {
        let shelf = Shelf::default();
        let model = ScriptedModel::new("m").recorded().call("echo", json!({})).text("done").text("again");
        let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).toolset(shelf.clone());
        let (runner, key) = begin(having(agent, which)).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        // Handlers that change the tools settle them for the turn.
        let (turn, second) = if which == "tools" { (1, "tool1") } else { (2, "tool2") };
        assert_eq!(shelf.asked(), turn, "{which}");
        assert!(names(&model, 0).contains(&"tool1".to_owned()), "{which}: {:?}", names(&model, 0));
        assert!(names(&model, 1).contains(&second.to_owned()), "{which}: {:?}", names(&model, 1));
        assert_eq!(names(&model, 0).contains(&"added".to_owned()), which == "tools");
        for request in model.requests() {
            assert_eq!(request.instruction.text().matches("Use the shelf.").count(), 1, "{which}");
        }
        read(runner.run(&key, "more")).await.assert_finished();
        assert_eq!(shelf.asked(), turn + 1, "{which}");
    }
}

async fn behind_a_credential(which: &str, answer: Answer) -> (Seen, ScriptedModel, usize) {
    let auth = AuthConfig::new("key", PlainAuth::api_key(HttpPlace::Header, "X-Key"));
    let (model, listed) = (fine(), Arc::new(AtomicUsize::new(0)));
    let agent = LlmAgent::new("a").model(model.clone()).toolset(Chest { auth, listed: listed.clone() });
    let (runner, key) = with_session(Runner::new("app", having(agent, which)).unwrap()).await;
    let asked = read(runner.run(&key, "hi")).await;
    assert_eq!(asked.interrupts().len(), 1, "{which}");
    let open = runner.open_questions(&key).await.unwrap();
    let seen = read(runner.resume(&key, [(&open[0], answer)])).await;
    (seen, model, listed.load(Ordering::SeqCst))
}

#[tokio::test]
async fn without_its_credential_a_toolset_is_left_out_whatever_handlers_there_are() {
    for which in EACH {
        let (seen, model, listed) = behind_a_credential(which, Answer::reject()).await;
        assert_eq!(seen.outcome, Outcome::Finished, "{which}: {:?}", seen.error);
        assert_eq!((model.requests().len(), listed), (1, 0), "{which}");
        assert!(!names(&model, 0).contains(&"open".to_owned()), "{which}");
        assert!(model.requests()[0].instruction.text().contains("chest"), "{which}: the model is told");
    }
}

#[tokio::test]
async fn with_its_credential_a_toolset_is_listed_once_whatever_handlers_there_are() {
    for which in EACH {
        let secret = Answer::input("k");
        let (seen, model, listed) = behind_a_credential(which, secret).await;
        assert_eq!(seen.outcome, Outcome::Finished, "{which}: {:?}", seen.error);
        assert_eq!((model.requests().len(), listed), (1, 1), "{which}");
        assert!(names(&model, 0).contains(&"open".to_owned()), "{which}");
    }
}
