//! Agents as vectors describe them.

use std::sync::Arc;

use serde_json::Value;
use umbel::{
    Agent, AgentTool, BoxError, IncludeContents, LlmAgent, LoopAgent, Mode, Parallel, Result, Sequential,
    agent_fn, run_sub_agent,
};

use super::model::ScriptModel;
use super::tool::{ScriptTool, schema_of};
use super::{Stage, flag, list, text};

impl Stage {
    /// An agent with all that stands below it.
    pub(crate) fn agent(&self, spec: &Value) -> Result<Arc<dyn Agent>, BoxError> {
        let name = text(spec, "name").ok_or("an agent has no `name`")?;
        let description = text(spec, "description").unwrap_or_default();
        let below = list(spec, "sub_agents").iter().map(|spec| self.agent(spec));
        let below: Vec<Arc<dyn Agent>> = below.collect::<Result<_, _>>()?;
        let around = self.hooks().around(&format!("agent:{name}"));
        Ok(match text(spec, "type").unwrap_or("llm") {
            "llm" => Arc::new(below.into_iter().fold(self.llm(name, spec)?, LlmAgent::sub_agent)),
            "sequential" => {
                let agent = Sequential::new(name).description(description).callbacks(around);
                Arc::new(below.into_iter().fold(agent, Sequential::agent))
            }
            "parallel" => {
                let agent = Parallel::new(name).description(description).callbacks(around);
                Arc::new(below.into_iter().fold(agent, Parallel::agent))
            }
            "loop" => {
                let mut agent = LoopAgent::new(name).description(description).callbacks(around);
                if let Some(rounds) = spec.get("max_iterations").and_then(Value::as_i64) {
                    agent = agent.max_iterations(u32::try_from(rounds.max(0))?);
                }
                Arc::new(below.into_iter().fold(agent, LoopAgent::agent))
            }
            "custom" => {
                let agent = agent_fn(name, |run| {
                    Box::pin(async move {
                        for child in &run.node()?.children {
                            let name = run.tree().node(*child)?.agent.name().to_owned();
                            run_sub_agent(run, &name).await?;
                        }
                        Ok(())
                    })
                });
                Arc::new(
                    below
                        .into_iter()
                        .fold(agent.description(description), |agent, child| agent.sub_agent(child)),
                )
            }
            other => return Err(format!("there is no type of agent `{other}`").into()),
        })
    }

    /// An agent that thinks with a script, without those below it.
    fn llm(&self, name: &str, spec: &Value) -> Result<LlmAgent, BoxError> {
        let mut agent = LlmAgent::new(name)
            .description(text(spec, "description").unwrap_or_default())
            .model(ScriptModel::new(name, list(spec, "script"), self));
        if let Some(instruction) = text(spec, "instruction") {
            agent = agent.instruction(instruction);
        }
        if let Some(instruction) = text(spec, "global_instruction") {
            agent = agent.global_instruction(instruction);
        }
        if let Some(instruction) = text(spec, "static_instruction") {
            agent = agent.static_instruction(instruction);
        }
        if let Some(key) = text(spec, "output_key") {
            agent = agent.output_key(key);
        }
        if let Some(schema) = spec.get("output_schema").filter(|schema| !schema.is_null()) {
            agent = agent.output_schema(schema_of(schema));
        }
        if let Some(schema) = spec.get("input_schema").filter(|schema| !schema.is_null()) {
            agent = agent.input_schema(schema_of(schema));
        }
        if text(spec, "include_contents") == Some("none") {
            agent = agent.include_contents(IncludeContents::None);
        }
        if flag(spec, "disallow_transfer_to_parent") {
            agent = agent.disallow_transfer_to_parent();
        }
        if flag(spec, "disallow_transfer_to_peers") {
            agent = agent.disallow_transfer_to_peers();
        }
        agent = match text(spec, "mode") {
            Some("task") => agent.mode(Mode::Task),
            Some("single_turn") => agent.mode(Mode::SingleTurn),
            _ => agent,
        };
        for tool in list(spec, "tools") {
            agent = agent.tool(ScriptTool::new(tool, self)?);
        }
        for spec in list(spec, "agent_tools") {
            let tool = AgentTool::new(self.agent(spec)?);
            agent =
                agent.tool(if flag(spec, "skip_summarization") { tool.skip_summarization() } else { tool });
        }
        Ok(self.hooks().on_agent(&format!("agent:{name}"), agent))
    }
}
