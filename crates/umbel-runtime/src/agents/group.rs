//! What agents that run others have in common.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{Agent, Callbacks, Handler};

/// A name, and agents in order.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) name: SmolStr,
    pub(super) description: String,
    pub(super) agents: Vec<Arc<dyn Agent>>,
    pub(super) callbacks: Callbacks,
    pub(super) handlers: Vec<Arc<dyn Handler>>,
}

impl Group {
    pub(super) fn new(name: SmolStr) -> Self {
        let (agents, handlers) = (Vec::new(), Vec::new());
        Self { name, description: String::new(), agents, callbacks: Callbacks::default(), handlers }
    }
}

/// Makes an agent of that kind of a type that has a `group` and an `async fn work(&self, run: &Run) -> Result<()>`.
macro_rules! group_agent {
    ($name:ident, $kind:ident) => {
        impl $name {
            /// What it is good for.
            pub fn description(mut self, description: impl Into<String>) -> Self {
                self.group.description = description.into();
                self
            }

            /// The next agent.
            pub fn agent(mut self, agent: impl umbel_core::Agent + 'static) -> Self {
                self.group.agents.push(std::sync::Arc::new(agent));
                self
            }

            /// What is called around it.
            pub fn callbacks(mut self, callbacks: umbel_core::Callbacks) -> Self {
                self.group.callbacks = callbacks;
                self
            }

            /// Extends it, not the agents below it.
            pub fn handler(mut self, handler: impl umbel_core::Handler + 'static) -> Self {
                self.group.handlers.push(std::sync::Arc::new(handler));
                self
            }
        }

        impl umbel_core::Agent for $name {
            fn name(&self) -> &str {
                &self.group.name
            }

            fn description(&self) -> &str {
                &self.group.description
            }

            fn kind(&self) -> umbel_core::AgentKind {
                umbel_core::AgentKind::$kind
            }

            fn sub_agents(&self) -> &[std::sync::Arc<dyn umbel_core::Agent>] {
                &self.group.agents
            }

            fn input_schema(&self) -> Option<&std::sync::Arc<serde_json::Value>> {
                self.group.agents.first()?.input_schema()
            }

            fn output_schema(&self) -> Option<&std::sync::Arc<serde_json::Value>> {
                self.group.agents.last()?.output_schema()
            }

            fn callbacks(&self) -> Option<&umbel_core::Callbacks> {
                Some(&self.group.callbacks)
            }

            fn handlers(&self) -> umbel_core::Extending<'_> {
                umbel_core::Extending { handlers: &self.group.handlers, ..umbel_core::Extending::default() }
            }

            fn run<'a>(
                &'a self,
                run: &'a umbel_core::Run,
            ) -> umbel_core::BoxFuture<'a, umbel_core::Result<()>> {
                Box::pin(self.work(run))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({}, {} agents)", stringify!($name), self.group.name, self.group.agents.len())
            }
        }
    };
}

pub(super) use group_agent;
