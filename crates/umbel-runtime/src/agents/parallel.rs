//! Several agents at once.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{Agent, AgentCallbacks, BoxFuture, Result, Run};

use super::run_child;

/// Runs its sub-agents at once, each on a branch of its own, so that none sees the others.
///
/// Their events stand in the log in the order they came. If one fails, all are stopped; so they are if one escalates.
#[derive(Clone)]
pub struct Parallel {
    name: SmolStr,
    description: String,
    agents: Vec<Arc<dyn Agent>>,
    callbacks: AgentCallbacks,
}

impl Parallel {
    /// A group without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        let (description, agents) = (String::new(), Vec::new());
        Self { name: name.into(), description, agents, callbacks: AgentCallbacks::default() }
    }

    /// What it is good for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Another agent.
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

impl Agent for Parallel {
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
            let children: Vec<Run> =
                run.node()?.children.iter().map(|child| run.fork(*child)).collect::<Result<_>>()?;
            let mut work: FuturesUnordered<_> = children.iter().map(run_until_escalated).collect();
            while let Some(result) = work.next().await {
                result?;
                if children.iter().any(Run::has_escalated) {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Runs a child until it is done or escalates: that ends the group, be it in the middle of the child's work. An agent
/// further below that escalates ends what encloses it there.
async fn run_until_escalated(child: &Run) -> Result<()> {
    let mut work = pin!(run_child(child));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending if child.has_escalated() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await
}

impl fmt::Debug for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parallel({}, {} agents)", self.name, self.agents.len())
    }
}
