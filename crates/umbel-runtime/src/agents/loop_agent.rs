//! The same agents again and again.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{Agent, AgentCallbacks, BoxFuture, Result, Run};

use super::run_child;

/// Runs its sub-agents one after the other, again and again, until one of them escalates.
#[derive(Clone)]
pub struct LoopAgent {
    name: SmolStr,
    description: String,
    agents: Vec<Arc<dyn Agent>>,
    rounds: Option<u32>,
    callbacks: AgentCallbacks,
}

impl LoopAgent {
    /// A loop without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        let (description, agents) = (String::new(), Vec::new());
        Self { name: name.into(), description, agents, rounds: None, callbacks: AgentCallbacks::default() }
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

    /// How many rounds it makes at most; without a limit it goes on until someone escalates or the run's own limits end it.
    pub fn max_iterations(mut self, rounds: u32) -> Self {
        self.rounds = Some(rounds);
        self
    }

    /// What is called around it.
    pub fn callbacks(mut self, callbacks: AgentCallbacks) -> Self {
        self.callbacks = callbacks;
        self
    }
}

impl Agent for LoopAgent {
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
            let children = &run.node()?.children;
            let mut rounds = 0;
            while !children.is_empty() && self.rounds.is_none_or(|limit| rounds < limit) {
                for child in children {
                    run.cancel_token().check()?;
                    run_child(&run.enter(*child)?).await?;
                    if run.is_escalated() || run.is_paused() {
                        return Ok(());
                    }
                }
                rounds += 1;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for LoopAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoopAgent({}, {} agents)", self.name, self.agents.len())
    }
}
