//! A tree of agents with what a runner adds to it, made ready once for all runs.

use std::sync::Arc;

use serde_json::json;
use smol_str::SmolStr;
use umbel_core::{
    AgentPlan, AgentTree, BoxFuture, Callbacks, Error, ErrorKind, Handler, Hooks, Mode, NodeId, Object,
    Result, Run, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
};

use crate::adk_stage::AdkStage;
use crate::configure::configure;
use crate::onion::{HookList, Onion, having};
use crate::plugin::Plugin;
use crate::text;
use crate::tools::delegate::Delegate;

/// Name of the tool by which an agent hands over.
pub const TRANSFER_TO_AGENT: &str = "transfer_to_agent";

/// A tree of agents with the plugins and handlers of its runner.
#[derive(Debug)]
pub(crate) struct Team {
    pub(crate) tree: Arc<AgentTree>,
    pub(crate) extras: Arc<Extras>,
    places: Vec<Place>,
    pub(crate) hooks: RunHooks,
    has_tasks: bool,
}

/// The hooks around whole runs.
#[derive(Default)]
pub(crate) struct RunHooks {
    pub(crate) on_input: HookList,
    pub(crate) before_run: HookList,
    pub(crate) after_run: HookList,
    pub(crate) close: HookList,
}

impl RunHooks {
    fn new(handlers: &[Arc<dyn Handler>]) -> Self {
        Self {
            on_input: having(handlers.iter(), Hooks::ON_INPUT),
            before_run: having(handlers.iter(), Hooks::BEFORE_RUN),
            after_run: having(handlers.iter(), Hooks::AFTER_RUN),
            close: having(handlers.iter(), Hooks::CLOSE),
        }
    }
}

impl std::fmt::Debug for RunHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunHooks({} before, {} after)", self.before_run.len(), self.after_run.len())
    }
}

/// What a runner adds to every agent.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) plugins: Vec<Arc<Plugin>>,
    pub(crate) handlers: Vec<Arc<dyn Handler>>,
    pub(crate) compaction: Option<Arc<crate::compaction::Compactor>>,
    pub(crate) stand_in: Option<Arc<dyn crate::stand_in::StandIn>>,
}

impl std::fmt::Debug for Extras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extras({} plugins, {} handlers)", self.plugins.len(), self.handlers.len())
    }
}

/// What follows from an agent's place in the tree.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Tells the model its name.
    pub(crate) identity: Arc<str>,
    /// Whom it may hand over to, and how it is told.
    pub(crate) transfer: Option<Transfer>,
    /// Agents below it that it calls as tools.
    pub(crate) delegates: Vec<Arc<Delegate>>,
    /// Its handlers and the runner's.
    pub(crate) onion: Onion,
    /// What it works with, if handlers had a say in it.
    pub(crate) configured: Option<Arc<AgentPlan>>,
}

#[derive(Debug)]
pub(crate) struct Transfer {
    /// Absent for agents that work as tools: they get the tool without the words.
    pub(crate) instruction: Option<Arc<str>>,
    pub(crate) tool: Arc<TransferTool>,
}

impl Team {
    pub(crate) fn new(tree: Arc<AgentTree>, extras: Arc<Extras>) -> Result<Arc<Self>> {
        let places: Vec<Place> = tree.ids().map(|id| place(&tree, &extras, id)).collect::<Result<_>>()?;
        let has_tasks = places.iter().flat_map(|place| &place.delegates).any(|delegate| delegate.is_task());
        let hooks = RunHooks::new(&extras.handlers);
        Ok(Arc::new(Self { tree, extras, places, hooks, has_tasks }))
    }

    /// The team of a run.
    pub(crate) fn of(run: &Run) -> Result<Arc<Self>> {
        run.extension::<Self>()
            .ok_or_else(|| Error::new(ErrorKind::Build, "the run was not started by a runner"))
    }

    /// Whether any agent works on tasks that may take several turns.
    pub(crate) fn has_tasks(&self) -> bool {
        self.has_tasks
    }

    pub(crate) fn place(&self, node: NodeId) -> Result<&Place> {
        self.places
            .get(node.index())
            .ok_or_else(|| Error::new(ErrorKind::AgentNotFound, "no such place in the agent tree"))
    }
}

fn place(tree: &AgentTree, extras: &Extras, id: NodeId) -> Result<Place> {
    let node = tree.node(id)?;
    let (name, description) = (node.agent.name(), node.agent.description());
    let policy = node.agent.transfer();
    let mut delegates = Vec::new();
    for child in &node.children {
        let agent = &tree.node(*child)?.agent;
        if policy.by_model && agent.transfer().mode != Mode::Chat {
            delegates.push(Arc::new(Delegate::new(*child, agent.as_ref())));
        }
    }
    let targets = transfer_targets(tree, id)?;
    let mut transfer = None;
    if policy.by_model && !targets.is_empty() {
        let names: Vec<SmolStr> = names(tree, &targets)?;
        let instruction = Some(transfer_instruction(tree, id)?).filter(|text| !text.is_empty());
        transfer = Some(Transfer { instruction, tool: Arc::new(TransferTool::new(&names)) });
    }
    let stage = node.agent.callbacks().and_then(|own| AdkStage::of(&extras.plugins, own));
    let stage = stage.or_else(|| AdkStage::of(&extras.plugins, &Callbacks::default()));
    Ok(Place {
        identity: text::identity(name, description).into(),
        transfer,
        delegates,
        onion: Onion::new(&extras.handlers, node.agent.handlers(), stage.as_ref()),
        configured: configure(&extras.handlers, node.agent.as_ref())?,
    })
}

fn names(tree: &AgentTree, ids: &[NodeId]) -> Result<Vec<SmolStr>> {
    ids.iter().map(|id| Ok(tree.node(*id)?.agent.name().into())).collect()
}

/// Whom an agent may hand over to, in order: agents below it, its parent, its peers.
pub fn transfer_targets(tree: &AgentTree, id: NodeId) -> Result<Vec<NodeId>> {
    let node = tree.node(id)?;
    let policy = node.agent.transfer();
    let talks = |id: &NodeId| tree.node(*id).is_ok_and(|node| node.agent.transfer().mode == Mode::Chat);
    let mut targets: Vec<NodeId> = node.children.iter().copied().filter(talks).collect();
    if let Some(parent) = node.parent {
        let above = tree.node(parent)?;
        if above.agent.transfer().by_model {
            targets.extend(policy.to_parent.then_some(parent));
            let peers = above.children.iter().copied().filter(|peer| *peer != id && talks(peer));
            targets.extend(peers.filter(|_| policy.to_peers));
        }
    }
    Ok(targets)
}

/// What an agent is told about handing over; empty if it can hand over to nobody, or works as a tool.
pub fn transfer_instruction(tree: &AgentTree, id: NodeId) -> Result<Arc<str>> {
    let targets = transfer_targets(tree, id)?;
    let node = tree.node(id)?;
    if targets.is_empty() || node.agent.transfer().mode != Mode::Chat {
        return Ok("".into());
    }
    let parent = node.parent.filter(|_| node.agent.transfer().to_parent);
    let parent = parent.map(|parent| Ok::<_, Error>(tree.node(parent)?.agent.name())).transpose()?;
    let agents =
        targets.iter().map(|id| tree.node(*id).map(|node| (node.agent.name(), node.agent.description())));
    let agents: Vec<_> = agents.collect::<Result<_>>()?;
    Ok(text::transfer(&agents, parent).into())
}

/// The agent that a handing over goes to: the agent itself, or one that it may hand over to.
pub fn resolve_transfer(tree: &AgentTree, from: NodeId, to: &str) -> Result<NodeId> {
    let target =
        tree.find(to).ok_or_else(|| Error::new(ErrorKind::AgentNotFound, text::agent_not_found(to)))?;
    let node = tree.node(from)?;
    let allowed =
        target == from || !node.agent.transfer().by_model || transfer_targets(tree, from)?.contains(&target);
    if !allowed {
        let message = text::transfer_refused(node.agent.name(), to);
        return Err(Error::new(ErrorKind::TransferRefused, message));
    }
    Ok(target)
}

/// The tool by which an agent hands over.
#[derive(Debug)]
pub struct TransferTool(ToolSpec);

impl TransferTool {
    /// A tool that hands over to one of these agents.
    pub fn new(names: &[SmolStr]) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {"agent_name": {"type": "string", "enum": names}},
            "required": ["agent_name"],
        });
        Self(ToolSpec::new(TRANSFER_TO_AGENT, text::TRANSFER_TOOL, parameters).resuming())
    }
}

impl Tool for TransferTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let name = args.get("agent_name").and_then(serde_json::Value::as_str).map(SmolStr::new);
        Box::pin(async move {
            let name = name
                .ok_or_else(|| ToolError::invalid_arguments("`agent_name` must be the name of an agent"))?;
            cx.transfer_to_agent(name);
            Ok(serde_json::Value::Null.into())
        })
    }
}
