//! What the processes do: agents whose tools have effects, and models that decide from what they are sent, so that any
//! process can go on with what another began.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Agent, AgentTool, Chunk, Confirm, Content, FunctionCall, FunctionTool, LlmAgent, LoopAgent, ModelRequest,
    Parallel, Part, Parts, Response, Result, Role, ScriptedModel, Sequential, UnfinishedCalls,
};

use super::files::Effect;
use super::killer::{Killer, Kind};

/// A piece of work by name.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What the user says, one after the other.
    pub(super) messages: &'static [&'static str],
    /// Its root agent.
    pub(super) agent: fn(&Tools) -> Arc<dyn Agent>,
    /// What becomes of calls that were cut short.
    pub(super) unfinished: UnfinishedCalls,
}

/// One in which the model is told of calls that were cut short.
const fn scenario(
    name: &'static str,
    messages: &'static [&'static str],
    agent: fn(&Tools) -> Arc<dyn Agent>,
) -> Scenario {
    Scenario { name, messages, agent, unfinished: UnfinishedCalls::Report }
}

/// All there are.
pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("text", &["one", "two", "three"], text),
    scenario("call", &["pay", "pay again"], call),
    scenario("batch", &["all at once"], batch),
    scenario("sequential", &["one by one"], sequential),
    scenario("loop", &["again and again"], repeated),
    scenario("parallel", &["side by side"], parallel),
    scenario("agent-tool", &["ask the other"], agent_tool),
    scenario("transfer", &["find someone"], transfer),
    scenario("approval", &["pay if you may"], approval),
    Scenario { unfinished: UnfinishedCalls::Ask, ..scenario("ask", &["one by one"], sequential) },
];

/// Tools that may be called twice for one call. All others must not be.
pub(super) const IDEMPOTENT: &[&str] = &["note"];

/// Tools that have an effect.
pub(super) const WITH_EFFECT: &[&str] = &["note", "pay", "ship"];

/// The key of an answer that tells what a tool did.
pub(super) const DONE: &str = "done";

/// Makes tools that have an effect.
#[derive(Clone)]
pub(super) struct Tools {
    pub(super) folder: PathBuf,
    pub(super) killer: Arc<Killer>,
}

impl Tools {
    /// A tool that leaves a line, after a while and a while before it answers.
    fn effect(&self, name: &'static str, pause: Duration) -> FunctionTool {
        let tools = self.clone();
        FunctionTool::with_context(name, "Leaves a line.", move |cx, _: Value| {
            let tools = tools.clone();
            Box::pin(async move {
                let number = tools.killer.begin(cx.run().session_key().id(), Kind::Effect);
                tokio::time::sleep(pause).await;
                let call = cx.call_id().map(|call| call.as_str().to_owned()).unwrap_or_default();
                let run = cx.run().id().as_str().to_owned();
                let key = cx.idempotency_key().unwrap_or_default().to_string();
                let effect = Effect { run, call: call.clone(), key };
                tokio::task::spawn_blocking(move || effect.happen(&tools.folder)).await??;
                tools.killer.end(Kind::Effect, number);
                tokio::time::sleep(pause).await;
                Ok(json!({DONE: call}))
            })
        })
    }

    fn pay(&self) -> FunctionTool {
        self.effect("pay", Duration::from_millis(4))
    }

    fn ship(&self) -> FunctionTool {
        self.effect("ship", Duration::from_millis(40))
    }

    fn note(&self) -> FunctionTool {
        self.effect("note", Duration::from_millis(4)).idempotent()
    }
}

/// A model that calls these tools, all at once, and says a word when it has their answers.
fn caller(tools: &'static [&'static str]) -> ScriptedModel {
    ScriptedModel::from_fn("caller", move |request: &ModelRequest| {
        let answered = request.contents.last().is_some_and(|last| last.has_responses());
        if answered { says("it is done") } else { calls(tools) }
    })
}

fn says(text: &str) -> Vec<Result<Chunk>> {
    vec![Ok(Chunk::Complete(Response::text(text)))]
}

fn calls(tools: &[&'static str]) -> Vec<Result<Chunk>> {
    let calls = tools.iter().map(|name| (*name, json!({"request": "do it"})));
    calls_with(calls)
}

fn hands_to(agent: &str) -> Vec<Result<Chunk>> {
    calls_with([("transfer_to_agent", json!({"agent_name": agent}))])
}

fn calls_with(calls: impl IntoIterator<Item = (&'static str, Value)>) -> Vec<Result<Chunk>> {
    let parts = calls.into_iter().map(|(name, args)| {
        Part::call(FunctionCall::new(name, args.as_object().cloned().unwrap_or_default()))
    });
    let parts: Parts = parts.collect();
    vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, parts))))]
}

fn text(_: &Tools) -> Arc<dyn Agent> {
    let model = ScriptedModel::from_fn("echo", |request: &ModelRequest| {
        let said = request.contents.last().map(|last| last.text()).unwrap_or_default();
        vec![Ok(Chunk::Text("you said ".to_owned())), Ok(Chunk::Text(said))]
    });
    Arc::new(LlmAgent::new("echo").model(model))
}

fn call(tools: &Tools) -> Arc<dyn Agent> {
    Arc::new(payer("payer", tools))
}

fn payer(name: &'static str, tools: &Tools) -> LlmAgent {
    LlmAgent::new(name).description("Pays.").model(caller(&["pay"])).tool(tools.pay())
}

fn batch(tools: &Tools) -> Arc<dyn Agent> {
    let agent = LlmAgent::new("clerk").model(caller(&["note", "ship", "pay"]));
    Arc::new(agent.tool(tools.note()).tool(tools.ship()).tool(tools.pay()))
}

fn sequential(tools: &Tools) -> Arc<dyn Agent> {
    Arc::new(Sequential::new("line").agent(payer("first", tools)).agent(payer("second", tools)))
}

fn repeated(tools: &Tools) -> Arc<dyn Agent> {
    Arc::new(LoopAgent::new("wheel").max_iterations(3).agent(payer("worker", tools)))
}

fn parallel(tools: &Tools) -> Arc<dyn Agent> {
    let slow = LlmAgent::new("right").model(caller(&["ship", "note"])).tool(tools.ship()).tool(tools.note());
    Arc::new(Parallel::new("fork").agent(payer("left", tools)).agent(slow))
}

fn agent_tool(tools: &Tools) -> Arc<dyn Agent> {
    let inner = AgentTool::new(payer("inner", tools));
    Arc::new(LlmAgent::new("outer").model(caller(&["inner"])).tool(inner))
}

/// Hands over, pays, and hands back.
fn transfer(tools: &Tools) -> Arc<dyn Agent> {
    let desk = ScriptedModel::from_fn("desk", |request: &ModelRequest| {
        // What others did is told to it in words.
        let told = request.contents.iter().map(|content| content.text()).collect::<String>();
        if told.contains("pay") { says("all is done") } else { hands_to("clerk") }
    });
    let clerk = ScriptedModel::from_fn("clerk", |request: &ModelRequest| {
        let answers =
            request.contents.last().is_some_and(|last| last.responses().any(|one| one.name == "pay"));
        if answers { hands_to("desk") } else { calls(&["pay"]) }
    });
    let clerk = LlmAgent::new("clerk").description("Pays.").model(clerk).tool(tools.pay());
    Arc::new(LlmAgent::new("desk").model(desk).sub_agent(clerk))
}

/// Pays if a person agrees, and takes a note of it.
fn approval(tools: &Tools) -> Arc<dyn Agent> {
    let model = ScriptedModel::from_fn("careful", |request: &ModelRequest| {
        let answered = |name: &str| {
            request.contents.last().is_some_and(|last| last.responses().any(|response| response.name == name))
        };
        match () {
            () if answered("note") => says("it is done"),
            () if answered("pay") => calls(&["note"]),
            () => calls(&["pay"]),
        }
    });
    let pay = tools.pay().confirm(Confirm::Always);
    Arc::new(LlmAgent::new("careful").model(model).tool(pay).tool(tools.note()))
}
