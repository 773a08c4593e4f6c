//! An output schema and tools go together only to models that can take both, wherever the tools come from.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use umbel::flow::{Draft, RequestProcessor};
use umbel::{
    AgentPlan, AgentTurn, BoxFuture, Capabilities, Handler, LlmAgent, Mode, ModelRequest, Result, Run,
    RunConfig, ScriptedModel, Step, Tool, ToolSet, Toolset, Work, handler,
};

use super::support::{begin, echo, fine};

#[derive(Debug, PartialEq, Deserialize, schemars::JsonSchema)]
struct Trip {
    city: String,
}

struct Shelf;

impl Toolset for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn tools<'a>(&'a self, _run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(async { Ok(vec![Arc::new(echo()) as Arc<dyn Tool>]) })
    }
}

/// Adds a tool: when the runner is built, or before each turn.
struct Adds {
    at_build: bool,
}

#[handler]
impl Handler for Adds {
    fn name(&self) -> &str {
        "adds"
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        if self.at_build {
            plan.tools_mut().add(Arc::new(echo()));
        }
        Ok(())
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        if !self.at_build {
            turn.plan.tools_mut().add(Arc::new(echo()));
        }
        Ok(Step::Continue)
    }
}

/// Takes all tools away, those of the run, too.
struct Removes;

#[handler]
impl Handler for Removes {
    fn name(&self) -> &str {
        "removes"
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        turn.plan.tools = Arc::new(ToolSet::new());
        Ok(Step::Continue)
    }
}

/// Adds a tool while a request is made.
struct AddsToRequest;

impl RequestProcessor for AddsToRequest {
    fn name(&self) -> &str {
        "adds"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        draft.add_tool(Arc::new(echo()));
        Work::done(Ok(()))
    }
}

fn with_processor(agent: LlmAgent, behind: &str) -> LlmAgent {
    let mut processors = umbel::flow::Processors::default();
    processors.insert_after(behind, AddsToRequest).unwrap();
    agent.processors(processors)
}

/// The ways in which an agent comes to a tool, and the config of its run.
fn ways() -> Vec<(&'static str, fn(LlmAgent) -> LlmAgent, RunConfig)> {
    let mut tools = ToolSet::new();
    tools.add(Arc::new(echo()));
    let given = RunConfig { tools: Some(Arc::new(tools)), ..RunConfig::default() };
    vec![
        ("its own", |agent| agent.tool(echo()), RunConfig::default()),
        ("the run's", |agent| agent, given),
        ("a toolset's", |agent| agent.toolset(Shelf), RunConfig::default()),
        ("a handler's", |agent| agent.handler(Adds { at_build: true }), RunConfig::default()),
        ("a handler's for the turn", |agent| agent.handler(Adds { at_build: false }), RunConfig::default()),
        ("a processor's, early", |agent| with_processor(agent, "basic"), RunConfig::default()),
        ("a processor's, late", |agent| with_processor(agent, "transfer"), RunConfig::default()),
        ("to hand over", |agent| agent.sub_agent(LlmAgent::new("b").model(fine())), RunConfig::default()),
        (
            "to delegate",
            |agent| agent.sub_agent(LlmAgent::new("b").model(fine()).mode(Mode::SingleTurn)),
            RunConfig::default(),
        ),
    ]
}

fn count(request: &ModelRequest, name: &str) -> usize {
    request.tools.specs().filter(|spec| spec.name == name).count()
}

#[tokio::test]
async fn beside_tools_from_anywhere_a_model_that_cannot_take_both_answers_by_a_tool() {
    for (way, agent, config) in ways() {
        let model = ScriptedModel::new("m").recorded().call("set_model_response", json!({"city": "Rome"}));
        let answering = LlmAgent::new("a").model(model.clone()).output::<Trip>().output_key("trip");
        let (runner, key) = begin(agent(answering)).await;
        let trip: Trip = runner.run_with(&key, "hi", config).output().await.unwrap();
        assert_eq!(trip.city, "Rome", "{way}");
        let request = &model.requests()[0];
        assert!(request.output_schema.is_none(), "{way}");
        assert_eq!(request.config.response_mime_type, None, "{way}");
        assert_eq!(count(request, "set_model_response"), 1, "{way}");
        assert!(request.tools.specs().count() > 1, "{way}");
        let sources = request.instruction.parts().iter().filter(|part| part.source == "output_schema");
        assert_eq!(sources.count(), 1, "{way}");
        let session = runner.session(&key).await.unwrap().unwrap();
        assert_eq!(session.state.get("trip"), Some(&json!({"city": "Rome"})), "{way}");
    }
}

#[tokio::test]
async fn beside_tools_from_anywhere_a_model_that_can_take_both_keeps_to_the_schema() {
    for (way, agent, config) in ways() {
        let model =
            ScriptedModel::new("m").recorded().capabilities(Capabilities::default().schema_with_tools());
        let model = model.text(r#"{"city": "Rome"}"#);
        let (runner, key) = begin(agent(LlmAgent::new("a").model(model.clone()).output::<Trip>())).await;
        let trip: Trip = runner.run_with(&key, "hi", config).output().await.unwrap();
        assert_eq!(trip.city, "Rome", "{way}");
        let request = &model.requests()[0];
        assert!(request.output_schema.is_some(), "{way}");
        assert_eq!(count(request, "set_model_response"), 0, "{way}");
    }
}

#[tokio::test]
async fn tools_that_a_handler_takes_away_do_not_count() {
    let model = ScriptedModel::new("m").recorded().text(r#"{"city": "Rome"}"#);
    let agent = LlmAgent::new("a").model(model.clone()).output::<Trip>().tool(echo()).handler(Removes);
    let (runner, key) = begin(agent).await;
    let (_, _, config) = ways().swap_remove(1);
    let trip: Trip = runner.run_with(&key, "hi", config).output().await.unwrap();
    assert_eq!(trip.city, "Rome");
    assert!(model.requests()[0].output_schema.is_some());
    assert_eq!(model.requests()[0].tools.specs().count(), 0);
}

#[tokio::test]
async fn a_tool_of_the_run_cannot_take_the_place_of_the_answer_tool() {
    let mut tools = ToolSet::new();
    let taken =
        umbel::FunctionTool::new("set_model_response", "", |_: serde_json::Value| async { Ok("mine") });
    tools.add(Arc::new(taken));
    let model = ScriptedModel::new("m").recorded().call("set_model_response", json!({"city": "Rome"}));
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).output::<Trip>()).await;
    let config = RunConfig { tools: Some(Arc::new(tools)), ..RunConfig::default() };
    let trip: Trip = runner.run_with(&key, "hi", config).output().await.unwrap();
    assert_eq!(trip.city, "Rome");
    assert_eq!(count(&model.requests()[0], "set_model_response"), 1);
}
