//! What an agent is going to work with: instruction, tools, options.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::content::Content;
use crate::context::Context;
use crate::error::Result;
use crate::handler::Handler;
use crate::interrupt::{Answer, Question};
use crate::model::{Capabilities, GenerateConfig};
use crate::onion::layer_name;
use crate::run::Run;
use crate::tool::{Tool, ToolMeta, ToolSet};
use crate::work::BoxFuture;

/// Makes a part of an instruction for a request. What it gives is taken as it is, braces and all.
pub type InstructionProvider = Arc<dyn for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<String>> + Send + Sync>;

/// What an agent is going to work with. Handlers change it: once in `configure`, and for one turn in `before_agent`.
#[derive(Clone, Debug, Default)]
pub struct AgentPlan {
    /// What it is told.
    pub instruction: InstructionPlan,
    /// Its tools. What a handler leaves is what the model sees and what can be called.
    pub tools: Arc<ToolSet>,
    /// How its model generates.
    pub generate: Arc<GenerateConfig>,
    /// What its model can do, if it has one of its own. To look at: it cannot be changed here.
    pub capabilities: Option<Capabilities>,
}

impl AgentPlan {
    /// Its tools, to be changed.
    pub fn tools_mut(&mut self) -> &mut ToolSet {
        Arc::make_mut(&mut self.tools)
    }

    /// Adds a tool. One of the same name is replaced in its place.
    pub fn add_tool(&mut self, tool: Arc<dyn Tool>) {
        self.tools_mut().add(tool);
    }

    /// Takes a tool away. Returns whether it was there.
    pub fn remove_tool(&mut self, name: &str) -> bool {
        let before = self.tools.len();
        if self.tools.get(name).is_some() {
            self.tools_mut().retain(|meta| meta.tool.spec().name != name);
        }
        self.tools.len() < before
    }

    /// Says whether a tool's answer is the agent's answer. The last word counts. Returns whether there is such a tool.
    pub fn return_directly(&mut self, name: &str, directly: bool) -> bool {
        let Some(meta) = self.tools.get(name) else { return false };
        let meta = ToolMeta { return_directly: directly, ..meta.clone() };
        self.tools_mut().add_meta(meta);
        true
    }

    /// How its model generates, to be changed.
    pub fn generate_mut(&mut self) -> &mut GenerateConfig {
        Arc::make_mut(&mut self.generate)
    }
}

/// The words of one part of an instruction.
#[derive(Clone)]
#[non_exhaustive]
pub enum Words {
    /// Taken as they are.
    Verbatim(Arc<str>),
    /// With holes such as `{city}` that are filled from the state for each request.
    Template(Arc<str>),
    /// Made for each request.
    Provided(InstructionProvider),
}

impl Words {
    /// The words as they were written; empty if they are made for each request.
    pub fn text(&self) -> &str {
        match self {
            Self::Verbatim(text) | Self::Template(text) => text,
            Self::Provided(_) => "",
        }
    }
}

/// Words with holes that are filled from the state, for helpers that take them as they are otherwise.
pub fn template(text: impl Into<Arc<str>>) -> Words {
    Words::Template(text.into())
}

/// Words that are made for each request.
///
/// ```
/// let words = umbel_core::provided(|run| Box::pin(async move { Ok(format!("This is run {}.", run.id())) }));
/// ```
pub fn provided<F>(provider: F) -> Words
where
    F: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
{
    Words::Provided(Arc::new(provider))
}

impl<T: Into<Arc<str>>> From<T> for Words {
    fn from(text: T) -> Self {
        Self::Verbatim(text.into())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbatim(text) => write!(f, "{text:?}"),
            Self::Template(text) => write!(f, "template({text:?})"),
            Self::Provided(_) => f.write_str("provided(…)"),
        }
    }
}

/// One part of what an agent is told, before it is put in words.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    /// Who put it there.
    pub source: SmolStr,
    /// The words.
    pub words: Words,
}

/// What an agent is told: parts in order, joined by a blank line; empty ones are left out.
#[derive(Clone, Debug, Default)]
pub struct InstructionPlan {
    parts: Vec<PlannedPart>,
}

impl InstructionPlan {
    /// The parts in order.
    pub fn parts(&self) -> &[PlannedPart] {
        &self.parts
    }

    /// The parts, to be changed.
    pub fn parts_mut(&mut self) -> &mut Vec<PlannedPart> {
        &mut self.parts
    }

    /// Adds a part at the end.
    pub fn push(&mut self, source: impl Into<SmolStr>, words: impl Into<Words>) {
        self.parts.push(PlannedPart { source: source.into(), words: words.into() });
    }

    /// Adds a part at the front.
    pub fn prepend(&mut self, source: impl Into<SmolStr>, words: impl Into<Words>) {
        self.parts.insert(0, PlannedPart { source: source.into(), words: words.into() });
    }

    /// Puts one part in the place of all. Gives those that were dropped.
    pub fn replace(&mut self, source: impl Into<SmolStr>, words: impl Into<Words>) -> Vec<PlannedPart> {
        let dropped = std::mem::take(&mut self.parts);
        self.push(source, words);
        dropped
    }

    /// Drops the parts of that source. Returns whether there were any.
    pub fn remove(&mut self, source: &str) -> bool {
        let before = self.parts.len();
        self.parts.retain(|part| part.source != source);
        self.parts.len() < before
    }
}

/// One turn of an agent that is about to begin.
#[derive(Debug)]
pub struct AgentTurn<'a> {
    cx: &'a Context,
    /// What it is going to work with, for this turn.
    pub plan: AgentPlan,
    /// What the user said, as this agent will see it. The log keeps what was said.
    pub input: Option<Arc<Content>>,
}

impl<'a> AgentTurn<'a> {
    /// A turn with a plan, in the context of a run.
    pub fn new(cx: &'a Context, plan: AgentPlan) -> Self {
        Self { cx, plan, input: cx.run().input().cloned() }
    }

    /// The run, seen from the agent's place.
    pub fn run(&self) -> &'a Run {
        self.cx.run()
    }

    /// Where to leave state and other actions.
    pub fn cx(&self) -> &'a Context {
        self.cx
    }

    /// What people said to this question of a handler: pass the handler itself. If nobody was asked yet, the error ends
    /// the run as *interrupted*, and the hook is called again with the answer.
    pub fn interrupt(&self, handler: &dyn Handler, question: impl Into<Question>) -> Result<Answer> {
        self.run().ask(Some(layer_name(handler, "before_agent")), question.into())
    }
}
