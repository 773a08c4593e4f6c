//! The agents that the commands work on, wherever they come from.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel::runtime::RunnerBuilder;
use umbel::{Result, Runner};
use umbel_server::AgentEndpoint;
use umbel_stores::Stores;

/// What a command knows before the agents are made.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Whether a person reads along, so that a script should speak no faster than one can follow.
    pub watched: bool,
    /// The model that the command line or `UMBEL_MODEL` names, for agents that are not bound to one.
    pub model: Option<String>,
}

/// Makes the agents. It is called once for each command, and again when what they are made of has changed.
pub type Source = Arc<dyn Fn(&Setup) -> Result<Vec<Offer>> + Send + Sync>;

/// An agent that the commands work on.
///
/// ```
/// use umbel::{LlmAgent, Runner, ScriptedModel};
/// use umbel_cli::Offer;
///
/// let agent = LlmAgent::new("greeter").model(ScriptedModel::new("demo").text("Hello!"));
/// let offer = Offer::new("greeter", Runner::builder("greeter", agent)).about("Says hello.").suggest("Hi!");
/// assert_eq!(offer.name(), "greeter");
/// ```
pub struct Offer {
    name: SmolStr,
    about: String,
    suggestions: Vec<String>,
    runner: RunnerBuilder,
    endpoint: Box<dyn FnOnce(AgentEndpoint) -> AgentEndpoint + Send>,
}

impl Offer {
    /// An agent by the name that the command line and addresses know it by. Where its sessions are kept is said on the
    /// command line.
    pub fn new(name: impl Into<SmolStr>, runner: RunnerBuilder) -> Self {
        let (about, suggestions) = (String::new(), Vec::new());
        Self { name: name.into(), about, suggestions, runner, endpoint: Box::new(|endpoint| endpoint) }
    }

    /// What it is good for, in a line.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// Something to say to it, for who sees it for the first time.
    pub fn suggest(mut self, message: impl Into<String>) -> Self {
        self.suggestions.push(message.into());
        self
    }

    /// Changes how it is served.
    pub fn endpoint(mut self, change: impl FnOnce(AgentEndpoint) -> AgentEndpoint + Send + 'static) -> Self {
        self.endpoint = Box::new(change);
        self
    }

    /// Changes what runs it, such as by a handler for all its runs.
    pub fn with_runner(mut self, change: impl FnOnce(RunnerBuilder) -> RunnerBuilder) -> Self {
        self.runner = change(self.runner);
        self
    }

    /// The name it goes by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is good for.
    pub fn describes(&self) -> &str {
        &self.about
    }

    /// What one might say to it.
    pub fn suggestions(&self) -> &[String] {
        &self.suggestions
    }

    /// What makes what runs it, with its sessions kept there.
    pub fn builder(self, stores: &Stores) -> RunnerBuilder {
        kept(self.runner, stores)
    }

    /// What runs it, with its sessions kept there.
    pub fn runner(self, stores: &Stores) -> Result<Runner> {
        kept(self.runner, stores).build()
    }

    /// How it is served, with its sessions kept there.
    pub fn serve(self, stores: &Stores) -> Result<AgentEndpoint> {
        let runner = kept(self.runner, stores).build()?;
        Ok((self.endpoint)(AgentEndpoint::new(runner)))
    }
}

fn kept(runner: RunnerBuilder, stores: &Stores) -> RunnerBuilder {
    let Stores { sessions, artifacts, memory, credentials } = stores.clone();
    runner.sessions(sessions).artifacts(artifacts).memory(memory).credentials(credentials)
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({}, {:?})", self.name, self.runner)
    }
}
