//! One agent after the other.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{Agent, AgentCallbacks, BoxFuture, Result, Run};

use super::run_child;

/// Runs its sub-agents one after the other, on the same branch. If one of them asks a person, it stops there.
#[derive(Clone)]
pub struct Sequential {
    name: SmolStr,
    description: String,
    agents: Vec<Arc<dyn Agent>>,
    callbacks: AgentCallbacks,
}

impl Sequential {
    /// A sequence without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        let (description, agents) = (String::new(), Vec::new());
        Self { name: name.into(), description, agents, callbacks: AgentCallbacks::default() }
    }

    /// What it is good for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// The next agent.
    pub fn agent(mut self, agent: impl Agent + 'static) -> Self {
        self.agents.push(Arc::new(agent));
        self
    }

    /// What is called around it.
    pub fn callbacks(mut self, callbacks: AgentCallbacks) -> Self {
        self.callbacks = callbacks;
        self
    }
}

impl Agent for Sequential {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn sub_agents(&self) -> &[Arc<dyn Agent>] {
        &self.agents
    }

    fn input_schema(&self) -> Option<&Arc<Value>> {
        self.agents.first()?.input_schema()
    }

    fn output_schema(&self) -> Option<&Arc<Value>> {
        self.agents.last()?.output_schema()
    }

    fn callbacks(&self) -> Option<&AgentCallbacks> {
        Some(&self.callbacks)
    }

    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            for child in &run.node()?.children {
                run_child(&run.enter(*child)?).await?;
                if run.is_paused() {
                    break;
                }
            }
            Ok(())
        })
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential({}, {} agents)", self.name, self.agents.len())
    }
}
