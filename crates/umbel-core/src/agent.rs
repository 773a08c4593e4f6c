//! The contract of an agent, and the tree that agents form.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use smol_str::SmolStr;

use crate::callbacks::Callbacks;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Source, USER};
use crate::handler::Handler;
use crate::model::{Model, ModelRequest};
use crate::plan::AgentPlan;
use crate::run::Run;
use crate::tool::Toolset;
use crate::work::{BoxFuture, Work};

/// Something that runs.
pub trait Agent: Send + Sync {
    /// Its name, unique in its tree.
    fn name(&self) -> &str;

    /// What it is good for; other agents read this when they decide whom to hand over to.
    fn description(&self) -> &str {
        ""
    }

    /// What kind of agent it is, for people who look at it.
    fn kind(&self) -> AgentKind {
        AgentKind::Other
    }

    /// The agents below it.
    fn sub_agents(&self) -> &[Arc<dyn Agent>] {
        &[]
    }

    /// The model it thinks with; agents below it that have none of their own use it too.
    fn model(&self) -> Option<&Arc<dyn Model>> {
        None
    }

    /// What is called around its work.
    fn callbacks(&self) -> Option<&Callbacks> {
        None
    }

    /// What extends it.
    fn handlers(&self) -> Extending<'_> {
        Extending::default()
    }

    /// What it works with before any handler has a say.
    fn plan(&self) -> AgentPlan {
        AgentPlan::default()
    }

    /// Its toolsets.
    fn toolsets(&self) -> &[Arc<dyn Toolset>] {
        &[]
    }

    /// What all agents of the tree are told, if this one is its root.
    fn global_instruction<'a>(&'a self, _run: &'a Run) -> Work<'a, Result<Option<Arc<str>>>> {
        Work::done(Ok(None))
    }

    /// How it takes part in handing over.
    fn transfer(&self) -> TransferPolicy {
        TransferPolicy::default()
    }

    /// The structure of what it is asked when it is called as a tool; words if it has none.
    fn input_schema(&self) -> Option<&Arc<serde_json::Value>> {
        None
    }

    /// The structure of its answer; words if it has none.
    fn output_schema(&self) -> Option<&Arc<serde_json::Value>> {
        None
    }

    /// Has a say in an event that answers in its place, before it is emitted.
    fn on_answered(&self, _event: &mut Event) -> Result<()> {
        Ok(())
    }

    /// Whether it has code run that its model writes.
    fn runs_code(&self) -> bool {
        false
    }

    /// Checks itself with the place it has in its tree.
    fn validate(&self, _tree: &AgentTree, _node: NodeId) -> Result<()> {
        Ok(())
    }

    /// What it would ask its model next, as the log stands; `None` if it has no model. Nothing is done for it.
    fn request<'a>(&'a self, _run: &'a Run) -> BoxFuture<'a, Result<Option<ModelRequest>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// A digest of what makes it what it is: a run that began under another one may not fit.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// Works: emits events and returns when it has nothing more to say.
    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<()>>;
}

impl<A: Agent + ?Sized> Agent for Arc<A> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn description(&self) -> &str {
        (**self).description()
    }

    fn kind(&self) -> AgentKind {
        (**self).kind()
    }

    fn sub_agents(&self) -> &[Arc<dyn Agent>] {
        (**self).sub_agents()
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        (**self).model()
    }

    fn callbacks(&self) -> Option<&Callbacks> {
        (**self).callbacks()
    }

    fn handlers(&self) -> Extending<'_> {
        (**self).handlers()
    }

    fn plan(&self) -> AgentPlan {
        (**self).plan()
    }

    fn toolsets(&self) -> &[Arc<dyn Toolset>] {
        (**self).toolsets()
    }

    fn global_instruction<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Arc<str>>>> {
        (**self).global_instruction(run)
    }

    fn request<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Option<ModelRequest>>> {
        (**self).request(run)
    }

    fn transfer(&self) -> TransferPolicy {
        (**self).transfer()
    }

    fn input_schema(&self) -> Option<&Arc<serde_json::Value>> {
        (**self).input_schema()
    }

    fn output_schema(&self) -> Option<&Arc<serde_json::Value>> {
        (**self).output_schema()
    }

    fn on_answered(&self, event: &mut Event) -> Result<()> {
        (**self).on_answered(event)
    }

    fn runs_code(&self) -> bool {
        (**self).runs_code()
    }

    fn validate(&self, tree: &AgentTree, node: NodeId) -> Result<()> {
        (**self).validate(tree, node)
    }

    fn fingerprint(&self) -> u64 {
        (**self).fingerprint()
    }

    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<()>> {
        (**self).run(run)
    }
}

/// What kind of agent an agent is. Nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AgentKind {
    /// It thinks with a model.
    Llm,
    /// It runs others one after the other.
    Sequential,
    /// It runs others side by side.
    Parallel,
    /// It runs others again and again.
    Loop,
    /// Something else.
    #[default]
    Other,
}

/// What extends an agent, in the order in which it comes, outermost first.
#[derive(Clone, Copy, Default)]
pub struct Extending<'a> {
    /// Around its tool calls, outside its other handlers.
    pub tool_layers: &'a [Arc<dyn Handler>],
    /// Middlewares of the old form.
    pub legacy: &'a [Arc<dyn Handler>],
    /// Its handlers.
    pub handlers: &'a [Arc<dyn Handler>],
    /// Whether handlers behind a call come in the reverse order.
    pub after_order: AfterOrder,
    /// Whether two tools of one name are an error.
    pub strict_tools: bool,
}

impl std::fmt::Debug for Extending<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [self.tool_layers, self.legacy, self.handlers].concat();
        f.debug_list().entries(names.iter().map(|handler| handler.name())).finish()
    }
}

/// In which order handlers come in `after_model` and `after_agent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterOrder {
    /// As they were added.
    #[default]
    Forward,
    /// The last one first, as the layers of an onion are left.
    Reverse,
}

/// How an agent takes part in handing over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferPolicy {
    /// It decides with a model, so it can be a parent to return to and a peer to pass on to.
    pub by_model: bool,
    /// It may return to its parent, and keeps the conversation until it does.
    pub to_parent: bool,
    /// It may pass on to its peers.
    pub to_peers: bool,
    /// How it works for others.
    pub mode: Mode,
}

/// How an agent works for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// It talks with the user; others hand over to it.
    #[default]
    Chat,
    /// Its parent calls it as a tool; it talks with the user until the task is done.
    Task,
    /// Its parent calls it as a tool; it gets one turn.
    SingleTurn,
}

/// The place of an agent in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// An agent with its place among others.
pub struct AgentNode {
    /// The agent.
    pub agent: Arc<dyn Agent>,
    /// Who stands above it.
    pub parent: Option<NodeId>,
    /// Who stands below it, in order.
    pub children: Vec<NodeId>,
    /// The source of its events on the trunk.
    pub source: Arc<Source>,
}

impl AgentNode {
    /// A digest with this agent mixed in: its name, its place and what it is made of. The same in every process.
    fn mix(digest: u64, node: &Self) -> u64 {
        let parent = node.parent.map_or(u64::MAX, |parent| parent.0 as u64);
        let numbers = [parent, node.agent.fingerprint()].map(u64::to_le_bytes);
        let bytes = node.agent.name().as_bytes().iter().chain(numbers.as_flattened());
        // FNV-1a.
        bytes.fold(digest ^ 0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Agents and who stands below whom. Made once, then shared by all runs.
pub struct AgentTree {
    nodes: Vec<AgentNode>,
    by_name: HashMap<SmolStr, NodeId>,
    fingerprint: u64,
}

impl AgentTree {
    /// The tree below `root`. Names must be unique and usable, and each agent must agree with its place.
    pub fn new(root: &Arc<dyn Agent>) -> Result<Self> {
        let mut tree = Self { nodes: Vec::new(), by_name: HashMap::new(), fingerprint: 0 };
        tree.add(root, None)?;
        for (index, node) in tree.nodes.iter().enumerate() {
            node.agent.validate(&tree, NodeId(index))?;
        }
        tree.fingerprint = tree.nodes.iter().fold(0, AgentNode::mix);
        Ok(tree)
    }

    fn add(&mut self, agent: &Arc<dyn Agent>, parent: Option<NodeId>) -> Result<NodeId> {
        let name = SmolStr::new(agent.name());
        if name.is_empty() || name == USER {
            let message = format!("an agent cannot be named `{name}`: choose another name");
            return Err(Error::new(ErrorKind::Build, message));
        }
        let id = NodeId(self.nodes.len());
        if self.by_name.insert(name.clone(), id).is_some() {
            let message = format!("two agents are named `{name}`: names must be unique in a tree");
            return Err(Error::new(ErrorKind::Build, message));
        }
        let source = Arc::new(Source::new(name));
        self.nodes.push(AgentNode { agent: agent.clone(), parent, children: Vec::new(), source });
        for child in agent.sub_agents() {
            let child = self.add(child, Some(id))?;
            if let Some(node) = self.nodes.get_mut(id.0) {
                node.children.push(child);
            }
        }
        Ok(id)
    }

    /// The root.
    pub fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// The agent at that place.
    pub fn node(&self, id: NodeId) -> Result<&AgentNode> {
        self.nodes
            .get(id.0)
            .ok_or_else(|| Error::new(ErrorKind::AgentNotFound, "no such place in the agent tree"))
    }

    /// The place of the agent of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// All places, parents before children.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// A digest of all agents in it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl NodeId {
    /// Its number among [`AgentTree::ids`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl std::fmt::Debug for AgentTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.agent.name())).finish()
    }
}

impl std::fmt::Debug for AgentNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AgentNode({})", self.agent.name())
    }
}
