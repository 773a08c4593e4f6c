//! An agent made of a closure.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{Agent, BoxFuture, Event, Extending, Handler, Result, Run};

type Work = Arc<dyn for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<()>> + Send + Sync>;

/// An agent made of a closure; see [`agent_fn`].
#[derive(Clone)]
pub struct AgentFn {
    name: SmolStr,
    description: String,
    agents: Vec<Arc<dyn Agent>>,
    handlers: Vec<Arc<dyn Handler>>,
    work: Work,
}

/// Makes an agent of a closure that emits events and returns.
///
/// If its run is gone on with, after a question or a crash, the closure is run again from its top. What it emits then is
/// what it emitted before, as far as that goes, and agents below it that are done are not run again. So it should do the
/// same things in the same order; whatever else it does is best done by tools.
///
/// ```
/// use umbel_core::{Content, Result};
/// use umbel_runtime::{Runner, agent_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let echo = agent_fn("echo", |run| {
///     Box::pin(async move {
///         let said = run.input().map(|input| input.text()).unwrap_or_default();
///         run.emit(run.event().with_content(Content::model(said.as_str()))).await?;
///         Ok(())
///     })
/// });
/// let runner = Runner::new("app", echo)?;
/// let session = runner.create_session("ann").await?;
/// assert_eq!(runner.run(&session.key, "hello").text().await?, "hello");
/// # Ok(())
/// # }
/// ```
pub fn agent_fn<F>(name: impl Into<SmolStr>, work: F) -> AgentFn
where
    F: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    let (name, description) = (name.into(), String::new());
    AgentFn { name, description, agents: Vec::new(), handlers: Vec::new(), work: Arc::new(work) }
}

impl AgentFn {
    /// What it is good for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// An agent below it, to be run with [`run_sub_agent`](crate::run_sub_agent).
    pub fn sub_agent(mut self, agent: impl Agent + 'static) -> Self {
        self.agents.push(Arc::new(agent));
        self
    }

    /// Extends it.
    pub fn handler(mut self, handler: impl Handler + 'static) -> Self {
        self.handlers.push(Arc::new(handler));
        self
    }
}

impl Agent for AgentFn {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn sub_agents(&self) -> &[Arc<dyn Agent>] {
        &self.agents
    }

    fn handlers(&self) -> Extending<'_> {
        Extending { handlers: &self.handlers, ..Extending::default() }
    }

    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<()>> {
        if let Some(replay) = run.values().take_up(run.source()) {
            let events = run.events();
            let is_ours =
                |event: &&Arc<Event>| event.source == *run.source() && event.long_running().is_empty();
            run.repeat(events.iter_from(replay.turn_of(run.source())).filter(is_ours).cloned());
        }
        (self.work)(run)
    }
}

impl fmt::Debug for AgentFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentFn({})", self.name)
    }
}
