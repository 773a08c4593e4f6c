//! What came of an agent and all that extends it, as data and in words.

use std::fmt;

use smol_str::SmolStr;
use umbel_core::{Agent, AgentKind, AgentPlan, AgentTree, Handler, Hooks, NodeId, Result, Words};

use crate::configure::{Change, configured};
use crate::runner::Runner;
use crate::team::{Extras, Team, transfer_targets};

/// What came of an agent and all that extends it.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Explanation {
    /// The agent.
    pub agent: SmolStr,
    /// What kind of agent it is.
    pub kind: AgentKind,
    /// What it is good for.
    pub description: String,
    /// Who stands above it.
    pub parent: Option<SmolStr>,
    /// The model it thinks with, its own or that of an agent above it.
    pub model: Option<SmolStr>,
    /// Whom it may hand over to.
    pub transfers_to: Vec<SmolStr>,
    /// For each hook that anyone has, who is asked, in order. Around calls the first is outermost.
    pub hooks: Vec<(&'static str, Vec<SmolStr>)>,
    /// The parts of its instruction, with who put them there.
    pub instruction: Vec<(SmolStr, String)>,
    /// Its tools, with who put them there.
    pub tools: Vec<(SmolStr, SmolStr)>,
    /// What is worth a second look.
    pub notes: Vec<String>,
    /// What it works with, with all that handlers made of it.
    #[serde(skip)]
    pub plan: AgentPlan,
}

impl Runner {
    /// What came of each agent and all that extends it, parents before children.
    pub fn explain(&self) -> Result<Vec<Explanation>> {
        let team = self.team();
        team.tree.ids().map(|id| explain_one(team, id)).collect()
    }
}

/// The same for one agent without a runner.
pub(crate) fn explain_alone(
    agent: &dyn Agent,
    stage: Option<&std::sync::Arc<dyn Handler>>,
) -> Result<Explanation> {
    let onion = crate::onion::Onion::new(&[], agent.handlers(), stage);
    explained(agent, &Extras::default(), &onion)
}

fn explain_one(team: &Team, id: NodeId) -> Result<Explanation> {
    let (tree, node) = (&*team.tree, team.tree.node(id)?);
    let name = |id: NodeId| tree.node(id).map(|node| node.source.author.clone());
    let targets = match node.agent.transfer().by_model {
        true => transfer_targets(tree, id)?,
        false => Vec::new(),
    };
    Ok(Explanation {
        parent: node.parent.map(name).transpose()?,
        model: model_of(tree, id),
        transfers_to: targets.into_iter().map(name).collect::<Result<_>>()?,
        ..explained(node.agent.as_ref(), &team.extras, &team.place(id)?.onion)?
    })
}

/// The name of the model that an agent thinks with; `None` if it does not think with one.
fn model_of(tree: &AgentTree, id: NodeId) -> Option<SmolStr> {
    let mut node = tree.node(id).ok()?;
    if node.agent.kind() != AgentKind::Llm {
        return Some(node.agent.model()?.name().into());
    }
    loop {
        match node.agent.model() {
            Some(model) => return Some(model.name().into()),
            None => node = tree.node(node.parent?).ok()?,
        }
    }
}

fn explained(agent: &dyn Agent, extras: &Extras, onion: &crate::onion::Onion) -> Result<Explanation> {
    let own = agent.handlers();
    let names = |list: &crate::onion::HookList| -> Vec<SmolStr> {
        list.iter().map(|handler| handler.name().into()).collect()
    };
    let lists = onion.lists();
    let used = lists.iter().filter(|(_, list)| !list.is_empty());
    let (plan, changes) = match configured(&extras.handlers, agent)? {
        Some((plan, changes)) => (plan, changes),
        None => (agent.plan(), Vec::new()),
    };
    let instruction = plan.instruction.parts().iter().map(|part| {
        let words = match &part.words {
            Words::Provided(_) => "(made for each request)".to_owned(),
            words => words.text().to_owned(),
        };
        (part.source.clone(), words)
    });
    let source = |tool: &SmolStr| {
        let adds =
            |change: &&Change| change.tools_added.contains(tool) || change.tools_replaced.contains(tool);
        changes
            .iter()
            .rev()
            .find(adds)
            .map_or_else(|| SmolStr::new_static("agent"), |change| change.handler.clone())
    };
    let tools = plan.tools.iter().map(|meta| (meta.tool.spec().name.clone(), source(&meta.tool.spec().name)));
    let mut notes = changes.iter().flat_map(told).collect::<Vec<_>>();
    notes.extend(lints(extras, own, onion));
    Ok(Explanation {
        agent: agent.name().into(),
        kind: agent.kind(),
        description: agent.description().to_owned(),
        model: agent.model().map(|model| model.name().into()),
        hooks: used.map(|(hook, list)| (*hook, names(list))).collect(),
        instruction: instruction.collect(),
        tools: tools.collect(),
        notes,
        plan,
        ..Explanation::default()
    })
}

/// What a handler did to the work of others.
fn told(change: &Change) -> Vec<String> {
    let by = &change.handler;
    let mut notes = Vec::new();
    notes.extend(
        change.tools_replaced.iter().map(|tool| format!("tool `{tool}` is replaced by handler `{by}`")),
    );
    notes.extend(
        change.tools_removed.iter().map(|tool| format!("tool `{tool}` is removed by handler `{by}`")),
    );
    let dropped = change.parts_dropped.iter();
    notes.extend(dropped.map(|part| format!("instruction part `{part}` is dropped by handler `{by}`")));
    notes
}

/// What is probably not meant.
fn lints(extras: &Extras, own: umbel_core::Extending<'_>, onion: &crate::onion::Onion) -> Vec<String> {
    let mut notes = Vec::new();
    if !own.legacy.is_empty() && !own.handlers.is_empty() {
        notes.push(crate::text::LEGACY_MIXED.to_owned());
    }
    let all: Vec<&str> = extras
        .handlers
        .iter()
        .chain(own.tool_layers)
        .chain(own.legacy)
        .chain(own.handlers)
        .map(|handler| handler.name())
        .collect();
    for (index, name) in all.iter().enumerate() {
        if all.iter().take(index).any(|earlier| earlier == name) {
            notes.push(format!("two handlers are named `{name}`: messages cannot tell them apart"));
        }
    }
    let at = |name: &str| onion.wrap_tool.iter().position(|handler| handler.name() == name);
    if let (Some(limit), Some(cache)) = (at("rate_limit"), at("caching"))
        && limit < cache
    {
        notes.push(
            "`caching` is inside `rate_limit`: a hit uses up the quota; put the cache outside".to_owned(),
        );
    }
    for handler in own.handlers.iter().filter(|handler| handler.hooks() != Hooks::ALL) {
        let wide: Vec<_> = Hooks::NAMED
            .iter()
            .filter(|(hook, _)| Hooks::RUNNER_WIDE.contains(*hook) && handler.hooks().contains(*hook))
            .map(|(_, name)| *name)
            .collect();
        if !wide.is_empty() {
            notes.push(format!(
                "handler `{}` has {}, which act only for a handler of a runner",
                handler.name(),
                wide.join(", ")
            ));
        }
    }
    for layer in own.tool_layers.iter().filter(|layer| !layer.hooks().contains(Hooks::WRAP_TOOL)) {
        notes.push(format!("tool layer `{}` has no wrap_tool: it does nothing", layer.name()));
    }
    notes
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "agent {}", self.agent)?;
        if !self.instruction.is_empty() {
            writeln!(f, "  instruction")?;
        }
        for (source, text) in &self.instruction {
            let line = text.lines().next().unwrap_or_default();
            let more = if text.lines().count() > 1 { " …" } else { "" };
            writeln!(f, "    {source}: {line}{more}")?;
        }
        if !self.tools.is_empty() {
            writeln!(f, "  tools")?;
        }
        for (tool, source) in &self.tools {
            writeln!(f, "    {tool} (from {source})")?;
        }
        if !self.hooks.is_empty() {
            writeln!(f, "  handlers")?;
        }
        for (hook, names) in &self.hooks {
            let sign = if hook.starts_with("wrap") { " > " } else { ", " };
            writeln!(f, "    {hook}: {}", names.join(sign))?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}
