//! Agents as an MCP server, by `rmcp`.
//!
//! Each agent is a tool: it is called with what it is asked, works on a session of its own, and its last words are the
//! result. Tools can be offered as they are, too.
//!
//! # Layout
//! - [`McpServer`]: what is offered, put together; [`AgentOffer`]: an agent as it is offered
//! - [`McpService`]: the same over HTTP, to be mounted in a server; `stdio.rs`: the same for the program that started us
//! - [`Resources`] and [`Prompt`]: what else clients can read; [`Changes`]: how they hear that it changed
//! - [`ClientModel`]: a model that asks the client's
//! - in `handler.rs` what a client may ask, in `call.rs` what a call comes to, in `questions.rs` how people are asked, in
//!   `result.rs` what the client gets; `passing.rs` clears up after calls of tools, `sessions.rs` knows whose session is whose

mod call;
mod changes;
mod client_model;
mod direct;
mod handler;
mod http;
mod offer;
mod passing;
mod prompts;
mod questions;
mod resources;
mod result;
mod sessions;
mod stdio;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, Result, Tool};
use umbel_runtime::{LlmAgent, Runner, RunnerBuilder};

pub use self::changes::Changes;
pub use self::client_model::ClientModel;
pub use self::http::McpService;
pub use self::offer::AgentOffer;
pub use self::prompts::Prompt;
pub use self::resources::{Resource, Resources};

use self::direct::DirectModel;
use self::handler::Catalog;
use self::offer::Offered;
use self::resources::Artifacts;

/// The app of tools that are offered as they are.
const TOOLS: &str = "tools";

/// How much an MCP server takes on. Of times, zero is at once and [`Duration::MAX`] is never.
#[derive(Clone, Debug)]
pub struct McpLimits {
    /// Calls under way at the same time; 256.
    pub calls: usize,
    /// Calls under way of one user; 16.
    pub calls_per_user: usize,
    /// Bytes of one message; 4 MiB.
    pub message_bytes: usize,
    /// How long people may take to answer what they are asked by their client; 10 minutes. Then the question stays open, and a
    /// call of a tool that is offered as it is ends.
    pub answer_time: Duration,
    /// Sessions of HTTP clients at the same time; 1,000.
    pub sessions: usize,
    /// Sessions of one user; 50. A new one takes the place of the one that was begun first.
    pub sessions_per_user: usize,
    /// How long a session may be silent before it is closed; 30 minutes. It should be more than a run may take.
    pub idle: Duration,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            calls: 256,
            calls_per_user: 16,
            message_bytes: 4 << 20,
            answer_time: Duration::from_secs(600),
            sessions: 1_000,
            sessions_per_user: 50,
            idle: Duration::from_secs(1_800),
        }
    }
}

/// Puts an MCP server together: agents, tools, and what else clients can read.
///
/// ```
/// use umbel_mcp::server::McpServer;
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// # fn main() -> umbel_core::Result<()> {
/// let agent = LlmAgent::new("greeter").description("Greets people.").model(ScriptedModel::new("demo").text("Hello!"));
/// let service = McpServer::new("demo").agent(Runner::new("demo", agent)?).http()?;
/// # let _ = service;
/// # Ok(())
/// # }
/// ```
pub struct McpServer {
    name: SmolStr,
    version: String,
    instructions: Option<String>,
    agents: Vec<AgentOffer>,
    tools: Vec<Arc<dyn Tool>>,
    tool_runner: Box<dyn FnOnce(RunnerBuilder) -> RunnerBuilder + Send>,
    resources: Vec<Arc<dyn Resources>>,
    changes: Changes,
    prompts: Vec<Prompt>,
    callers_confirm: bool,
    limits: McpLimits,
}

impl McpServer {
    /// A server by that name, which has nothing to offer yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self {
            name: name.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instructions: None,
            agents: Vec::new(),
            tools: Vec::new(),
            tool_runner: Box::new(|runner| runner),
            resources: Vec::new(),
            changes: Changes::default(),
            prompts: Vec::new(),
            callers_confirm: false,
            limits: McpLimits::default(),
        }
    }

    /// The version that clients are told; Umbel's unless said otherwise.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// What clients are told about how to use the server.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// Offers an agent as a tool: a [`Runner`], or an [`AgentOffer`] where more is to be said.
    pub fn agent(mut self, agent: impl Into<AgentOffer>) -> Self {
        self.agents.push(agent.into());
        self
    }

    /// Offers a tool as it is, without an agent. Its calls have all that calls of an agent have: time limits,
    /// confirmations, questions, progress.
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// Changes what runs the tools that are offered as they are, such as by a dependency, a store or a handler.
    pub fn tool_runner(
        mut self,
        change: impl FnOnce(RunnerBuilder) -> RunnerBuilder + Send + 'static,
    ) -> Self {
        self.tool_runner = Box::new(change);
        self
    }

    /// Offers things to read. The artifacts of agents are offered without being named here.
    pub fn resources(mut self, resources: impl Resources + 'static) -> Self {
        self.resources.push(Arc::new(resources));
        self
    }

    /// By which clients are told that something they watch has changed.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Offers a prompt: words for people to begin with.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompts.push(prompt);
        self
    }

    /// Lets whoever calls say by the argument `answer` whether something may be done, such as a call of an agent. Without
    /// this only people say so, asked by their client: a model that calls a tool can answer by itself.
    pub fn let_callers_confirm(mut self) -> Self {
        self.callers_confirm = true;
        self
    }

    /// How much it takes on.
    pub fn limits(mut self, limits: McpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Checks everything, and makes the service that HTTP servers mount. Needs a runtime of `tokio` when it is called.
    pub fn http(self) -> Result<McpService> {
        Ok(McpService::new(self.catalog()?))
    }

    /// Checks everything, and serves whoever started this process over its standard input and output, until they are
    /// closed. Nothing else may write to standard output. What is done, is done for the user of that name.
    pub async fn stdio(self, user: impl Into<SmolStr>) -> Result<()> {
        stdio::serve(self.catalog()?, user.into()).await
    }

    /// The same over any two streams of bytes, with a message in each line.
    pub async fn serve<R, W>(self, read: R, write: W, user: impl Into<SmolStr>) -> Result<()>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        stdio::serve_on(self.catalog()?, user.into(), read, write).await
    }

    /// Checks what is offered.
    fn catalog(self) -> Result<Arc<Catalog>> {
        let mut offers = Vec::new();
        let mut resources = self.resources;
        for agent in self.agents {
            resources.extend(Artifacts::of(&agent.runner).map(|artifacts| Arc::new(artifacts) as _));
            offers.push(agent.offered()?);
        }
        if !self.tools.is_empty() {
            let mut agent = LlmAgent::new(TOOLS).model(DirectModel);
            for tool in &self.tools {
                agent = agent.tool_returning_directly(tool.clone());
            }
            let runner = (self.tool_runner)(Runner::builder(TOOLS, agent)).build()?;
            for tool in self.tools {
                offers.push(Offered::tool(tool.spec(), runner.clone())?);
            }
        }
        let refuse = |message: String| Err(Error::new(ErrorKind::Build, message));
        for (index, offer) in offers.iter().enumerate() {
            if offers.iter().take(index).any(|other| other.name() == offer.name()) {
                return refuse(format!("two tools are named `{}`: name one of them otherwise", offer.name()));
            }
        }
        for (index, prompt) in self.prompts.iter().enumerate() {
            if self.prompts.iter().take(index).any(|other| other.name == prompt.name) {
                return refuse(format!(
                    "two prompts are named `{}`: name one of them otherwise",
                    prompt.name
                ));
            }
        }
        Ok(Arc::new(Catalog {
            name: self.name,
            version: self.version,
            instructions: self.instructions,
            offers,
            resources,
            changes: self.changes,
            prompts: self.prompts,
            callers_confirm: self.callers_confirm,
            limits: self.limits,
        }))
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpServer({}, {} agents, {} tools)", self.name, self.agents.len(), self.tools.len())
    }
}
