//! Agents: one that thinks with a model, and those that run others.

mod agent_fn;
mod group;
mod llm_agent;
mod loop_agent;
mod parallel;
mod sequential;

use std::sync::{Arc, Mutex, PoisonError};

use futures::TryFutureExt;
use smol_str::SmolStr;
use tracing::Instrument;
use umbel_core::{
    Address, AgentCallback, AgentPlan, AgentTurn, Asker, Callbacks, Content, Context, Error, ErrorKind,
    Interrupt, Jump, NodeId, Outcome, Raised, Result, Run, RunStep, SafePoint, Step,
};

pub use self::agent_fn::{AgentFn, agent_fn};
pub(crate) use self::llm_agent::OWN;
pub use self::llm_agent::{IncludeContents, LlmAgent};
pub use self::loop_agent::LoopAgent;
pub use self::parallel::Parallel;
pub use self::sequential::Sequential;

use crate::flow::{ListingOptions, ToolListing, emit_questions};
use crate::onion::{self, Onion};
use crate::runner::caught;
use crate::spans;
use crate::team::{Team, resolve_transfer};

/// Runs the agent at the run's place, and those that it hands over to, until one keeps the word.
///
/// An error comes with the place of the agent that failed, unless it was the handing over that did.
pub(crate) async fn run_agent(run: &Run) -> Result<(), (Error, Option<NodeId>)> {
    let mut here = run.clone();
    loop {
        let failed = |error| (error, Some(here.node_id()));
        let span = spans::agent(&here);
        let next = noted(turn(&here)).instrument(span.clone()).await.map_err(failed)?;
        let Some(next) = next else { break };
        if here.is_top() && here.is_paused() {
            // An answer is awaited. The other agent takes over with what the user says next.
            break;
        }
        let node = resolve_transfer(here.tree(), here.node_id(), &next).map_err(|error| (error, None))?;
        let next = here.hand_over(node).map_err(failed)?;
        // Below another agent, the work of the one that goes on is part of this one's.
        if !here.is_top() && has_after(&here).map_err(failed)? {
            Box::pin(run_agent(&next)).await?;
            noted(finish_one(&here)).instrument(span).await.map_err(failed)?;
            break;
        }
        here = next;
    }
    if here.is_top() { Ok(()) } else { here.flush().await.map_err(|error| (error, Some(here.node_id()))) }
}

/// One turn of an agent with all that extends it. Gives the name of the agent that is to go on.
async fn turn(run: &Run) -> Result<Option<SmolStr>> {
    let team = Team::of(run)?;
    let onion = &team.place(run.node_id())?.onion;
    if onion.on_error.is_empty() && onion.after_agent.is_empty() {
        return match work(run, &team, onion).await {
            Err(error) if error.kind() == ErrorKind::Interrupted => Box::pin(ask_people(run, error)).await,
            result => result,
        };
    }
    // A panic is an error here already, so that whoever waits for the end of the turn is told of it.
    let result = match Box::pin(caught(work(run, &team, onion))).await {
        Err(error) if error.kind() == ErrorKind::Interrupted => ask_people(run, error).await,
        result => result,
    };
    // Boxed: most agents have no such handler.
    Box::pin(wind_up(run, onion, result)).await
}

/// Asks people what the agent or one of its handlers wants to know. The turn goes on with the answer.
async fn ask_people(run: &Run, error: Error) -> Result<Option<SmolStr>> {
    let Some(Raised::Question { question, by, nth }) = error.raised().cloned() else { return Err(error) };
    let layer = match by {
        Some(Asker::Layer(layer)) => Some(layer),
        _ => None,
    };
    let address = Address { layer, nth, ..Address::new(run.source(), None) };
    let services = run.services();
    let asked = Interrupt::new(services.ids.call(), address, *question, services.clock.now());
    emit_questions(run, vec![asked]).await?;
    Ok(None)
}

/// What comes after a turn, however it ended.
async fn wind_up(run: &Run, onion: &Onion, mut result: Result<Option<SmolStr>>) -> Result<Option<SmolStr>> {
    if let Err(error) = &result
        && let Some(answered) = answer_error(run, onion, error).await
    {
        result = answered;
    }
    if !onion.after_agent.is_empty() {
        let outcome = match &result {
            Err(error) => Outcome::from_error(error),
            Ok(_) if run.is_paused() => Outcome::Interrupted { interrupts: Box::default() },
            Ok(_) => Outcome::Finished,
        };
        let told = onion::after_agent(&onion.after_agent, run, &outcome).await;
        result = result.and_then(|next| told.map(|()| next));
    }
    result
}

/// What handlers make of a turn that failed; `None` if none of them answers in its place.
async fn answer_error(run: &Run, onion: &Onion, error: &Error) -> Option<Result<Option<SmolStr>>> {
    if onion.on_error.is_empty() || error.is_control() || run.cancel_token().is_cancelled() {
        return None;
    }
    match onion::on_error(&onion.on_error, run, error).await {
        Ok(None) => None,
        Ok(Some(content)) => Some(run.emit(run.event().with_content(content)).await.map(|_| None)),
        Err(failure) => Some(Err(failure)),
    }
}

/// The turn itself, and what is called before and after it.
async fn work(run: &Run, team: &Team, onion: &Onion) -> Result<Option<SmolStr>> {
    if !onion.before_agent.is_empty() && Box::pin(prepare(run, team, onion)).await? {
        return Ok(None);
    }
    let agent = run.node()?.agent.clone();
    if around(run, team, Hook::Before, agent.callbacks()).await? {
        // Answered in its place: what comes after it does not come.
        return Ok(run.take_transfer());
    }
    agent.run(run).await?;
    let next = run.take_transfer();
    if next.is_none() {
        around(run, team, Hook::After, agent.callbacks()).await?;
    }
    Ok(next)
}

/// Lets handlers prepare the turn. Gives whether one of them ended it.
async fn prepare(run: &Run, team: &Team, onion: &Onion) -> Result<bool> {
    let cx = Context::new(run.clone());
    let plan = match &team.place(run.node_id())?.configured {
        Some(plan) => (**plan).clone(),
        None => run.node()?.agent.plan(),
    };
    let mut plan = plan;
    let how = ListingOptions { asks: true, lists: true };
    let listing = ToolListing::new(run, run.node()?.agent.toolsets(), plan.tools.clone(), how).await?;
    plan.tools = listing.tools.clone();
    if let Some(given) = &run.config().tools {
        crate::flow::add_given(&mut plan.tools, given);
    }
    let tools = plan.tools.clone();
    let mut turn = AgentTurn::new(&cx, plan);
    let strict_tools = run.node()?.agent.handlers().strict_tools;
    let step = onion::before_agent(&onion.before_agent, &mut turn, strict_tools).await?;
    let AgentTurn { plan, input, .. } = turn;
    let changes_input = |given: &Arc<Content>| run.input().is_none_or(|said| !Arc::ptr_eq(said, given));
    let input = input.filter(changes_input);
    let tools_fixed = !Arc::ptr_eq(&tools, &plan.tools);
    let starts_with_calls = step == Step::Jump(Jump::Tools);
    let (found, listing) = (listing.found.clone(), Mutex::new(Some(listing)));
    run.set_turn_value(Arc::new(TurnPlan { plan, tools_fixed, found, listing, input, starts_with_calls }));
    let (answer, ended) = match step {
        Step::Continue | Step::Jump(Jump::Model | Jump::Tools) => (None, false),
        Step::Respond(content) => (Some(content), true),
        Step::Jump(_) => (None, true),
        other => {
            let message = format!("`before_agent` cannot ask for {other:?}");
            return Err(Error::new(umbel_core::ErrorKind::Handler, message));
        }
    };
    let actions = cx.take_actions();
    if answer.is_some() || actions.is_some() {
        let mut event = run.event();
        event.actions = actions;
        event.content = answer.map(Arc::new);
        run.node()?.agent.on_answered(&mut event)?;
        run.emit(event).await?;
    }
    Ok(ended)
}

/// What an agent works with in one turn.
pub(crate) struct TurnPlan {
    pub(crate) plan: AgentPlan,
    /// Handlers changed the tools, so toolsets are not asked again.
    pub(crate) tools_fixed: bool,
    /// The names of the tools that toolsets found.
    pub(crate) found: Vec<SmolStr>,
    /// What toolsets gave before the turn, until the first request is made of it.
    listing: Mutex<Option<ToolListing>>,
    /// What the user said, if the agent is to see something else.
    pub(crate) input: Option<Arc<Content>>,
    /// The turn begins with the calls of the last message, before the model is asked.
    pub(crate) starts_with_calls: bool,
}

impl TurnPlan {
    /// What toolsets gave before the turn, if no request was made of it yet.
    pub(crate) fn listing(&self) -> Option<ToolListing> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, for a request. The next one asks toolsets anew.
    pub(crate) fn take_listing(&self) -> Option<ToolListing> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn set_listing(&self, listing: Option<ToolListing>) {
        let old =
            std::mem::replace(&mut *self.listing.lock().unwrap_or_else(PoisonError::into_inner), listing);
        drop(old);
    }
}

/// Runs a sub-agent of the run's agent, by name, and waits until it is done. For agents of your own.
pub async fn run_sub_agent(run: &Run, name: &str) -> Result<()> {
    let children = &run.node()?.children;
    let found = run.tree().find(name).filter(|node| children.contains(node));
    let node = found.ok_or_else(|| {
        let message = format!("`{}` has no sub-agent named `{name}`", run.agent_name());
        Error::new(umbel_core::ErrorKind::AgentNotFound, message)
    })?;
    run_child(&run.enter(node)?).await
}

/// Runs the agent at the run's place, below another one. If the run goes on with one that was cut short, turns that were
/// done are not done again.
pub(crate) async fn run_child(run: &Run) -> Result<()> {
    if let Some(done) = run.values().visit(run.source(), || names_below(run)) {
        run.mark_done(&done);
        return Ok(());
    }
    run.cancel_token().check_at(SafePoint::Next)?;
    // Boxed, since agents hold agents.
    Box::pin(run_agent(run)).await.map_err(|(error, _)| error)?;
    if !run.is_paused() {
        run.values().settle(&Address::new(run.source(), None));
        run.note_step(RunStep::AgentDone { done: Box::new(run.done()) });
    }
    Ok(())
}

/// The names of all agents below the one at the run's place.
fn names_below(run: &Run) -> Vec<SmolStr> {
    let tree = run.tree();
    let (mut names, mut left) = (Vec::new(), vec![run.node_id()]);
    while let Some(node) = left.pop().and_then(|id| tree.node(id).ok()) {
        for child in &node.children {
            names.extend(tree.node(*child).ok().map(|child| child.source.author.clone()));
            left.push(*child);
        }
    }
    names
}

/// The work with its failure noted in the span.
fn noted<T>(work: impl Future<Output = Result<T>>) -> impl Future<Output = Result<T>> {
    work.inspect_err(|error| spans::record_error(error.kind().code()))
}

/// What is called after an agent worked.
async fn finish_one(run: &Run) -> Result<()> {
    let agent = &run.node()?.agent;
    around(run, &*Team::of(run)?, Hook::After, agent.callbacks()).await.map(|_| ())
}

/// Whether anything is called after this agent.
fn has_after(run: &Run) -> Result<bool> {
    let own = run.node()?.agent.callbacks().is_some_and(|own| !own.after_agent.is_empty());
    Ok(own || Team::of(run)?.extras.plugins.iter().any(|plugin| !plugin.callbacks.after_agent.is_empty()))
}

#[derive(Clone, Copy)]
enum Hook {
    Before,
    After,
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before_agent",
            Self::After => "after_agent",
        }
    }

    fn of(self, callbacks: &Callbacks) -> &[AgentCallback] {
        match self {
            Self::Before => &callbacks.before_agent,
            Self::After => &callbacks.after_agent,
        }
    }
}

/// Calls plugins, then the agent's own; the first content counts and is emitted, with the state that was written.
///
/// Gives whether there was a content.
async fn around(run: &Run, team: &Team, hook: Hook, own: Option<&Callbacks>) -> Result<bool> {
    let plugins = &team.extras.plugins;
    let own = own.map(|own| hook.of(own)).unwrap_or_default();
    if own.is_empty() && plugins.iter().all(|plugin| hook.of(&plugin.callbacks).is_empty()) {
        return Ok(false);
    }
    // Boxed, so that agents without callbacks do not carry their state around.
    Box::pin(call_back(run, plugins, hook, own)).await
}

async fn call_back(
    run: &Run,
    plugins: &[Arc<crate::Plugin>],
    hook: Hook,
    own: &[AgentCallback],
) -> Result<bool> {
    let cx = Context::new(run.clone());
    let content = first_content(&cx, plugins, hook, own).await?;
    let actions = cx.take_actions();
    let answered = content.is_some();
    if answered || actions.is_some() {
        let mut event = run.event();
        event.actions = actions;
        event.content = content.map(Arc::new);
        if let Hook::Before = hook {
            run.node()?.agent.on_answered(&mut event)?;
        }
        run.emit(event).await?;
    }
    Ok(answered)
}

async fn first_content(
    cx: &Context,
    plugins: &[Arc<crate::Plugin>],
    hook: Hook,
    own: &[AgentCallback],
) -> Result<Option<Content>> {
    for plugin in plugins {
        for callback in hook.of(&plugin.callbacks) {
            let given = callback(cx).await.map_err(|error| plugin.named(hook.name(), error))?;
            if given.is_some() {
                return Ok(given);
            }
        }
    }
    for callback in own {
        let given = callback(cx).await?;
        if given.is_some() {
            return Ok(given);
        }
    }
    Ok(None)
}
