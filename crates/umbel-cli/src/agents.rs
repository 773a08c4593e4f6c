//! The agents that the commands work on, wherever they come from.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel::runtime::RunnerBuilder;
use umbel::runtime::handlers::UsageLedger;
use umbel::{Result, Runner};
use umbel_server::AgentEndpoint;
use umbel_stores::Stores;

use crate::models::{self, Found};

/// What a command knows before the agents are made.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Whether a person reads along, so that a script should speak no faster than one can follow.
    pub watched: bool,
    /// The model that the command line or `UMBEL_MODEL` names, for agents that are not bound to one.
    pub model: Option<String>,
}

impl Setup {
    /// The model to work with: the one that is named, else one that the environment has a key or an address for, such as
    /// `ANTHROPIC_API_KEY` or `OLLAMA_HOST`. None if there is none, or if `script` is named.
    pub fn find_model(&self) -> Result<Option<Found>> {
        models::find(self.model.as_deref(), |variable| std::env::var(variable).ok())
    }
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
    model: String,
    suggestions: Vec<String>,
    runner: RunnerBuilder,
    endpoint: Box<dyn FnOnce(AgentEndpoint) -> AgentEndpoint + Send>,
}

impl Offer {
    /// An agent by the name that the command line and addresses know it by. Where its sessions are kept is said on the
    /// command line.
    pub fn new(name: impl Into<SmolStr>, runner: RunnerBuilder) -> Self {
        let (about, model, suggestions) = (String::new(), String::new(), Vec::new());
        Self { name: name.into(), about, model, suggestions, runner, endpoint: Box::new(|endpoint| endpoint) }
    }

    /// What it is good for, in a line.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// What its model is, in words, for who starts it.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
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

    /// What its model is; empty if nobody said so.
    pub fn model_words(&self) -> &str {
        &self.model
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

    /// The same, with all that is known of it.
    pub fn ready(self, stores: &Stores) -> Result<Ready> {
        let Self { name, about, model, suggestions, runner, .. } = self;
        Ok(Ready { name, about, model, suggestions, runner: kept(runner, stores).build()? })
    }

    /// How it is served, with its sessions kept there.
    pub fn serve(self, stores: &Stores) -> Result<AgentEndpoint> {
        let runner = kept(self.runner, stores).build()?;
        Ok((self.endpoint)(AgentEndpoint::new(runner).suggestions(self.suggestions)))
    }
}

/// An agent that is ready to run.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The name it goes by.
    pub name: SmolStr,
    /// What it is good for.
    pub about: String,
    /// What its model is.
    pub model: String,
    /// What one might say to it.
    pub suggestions: Vec<String>,
    /// What runs it.
    pub runner: Runner,
}

impl Ready {
    /// An agent of which nothing else is known.
    pub fn new(name: impl Into<SmolStr>, runner: Runner) -> Self {
        let (about, model, suggestions) = (String::new(), String::new(), Vec::new());
        Self { name: name.into(), about, model, suggestions, runner }
    }
}

/// The runner, which counts what its models take, with its sessions kept there.
fn kept(runner: RunnerBuilder, stores: &Stores) -> RunnerBuilder {
    let Stores { sessions, artifacts, memory, credentials } = stores.clone();
    // An agent that counts by itself, with prices of its own, is not counted twice.
    let runner = runner.handler(UsageLedger::new(models::prices()));
    runner.sessions(sessions).artifacts(artifacts).memory(memory).credentials(credentials)
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({}, {:?})", self.name, self.runner)
    }
}
