//! One request in the making.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    Agent, AgentPlan, Content, ContentsView, Event, Mode, Model, ModelRequest, Result, Run, Tool, ToolMeta,
    ToolSet,
};

use super::processors::part_schema_from_tools;
use super::toolsets::{ListingOptions, ToolListing};
use crate::agents::{IncludeContents, LlmAgent, TurnPlan};
use crate::team::Team;

/// One request in the making: what the processors work on.
pub struct Draft<'a> {
    /// The agent.
    pub agent: &'a LlmAgent,
    /// The run, seen from the agent's place.
    pub run: &'a Run,
    /// The model that will be asked.
    pub model: Arc<dyn Model>,
    /// What it will be asked.
    pub request: ModelRequest,
    /// Words for this turn that travel among the messages. The contents processor finds their place.
    pub turn_contents: Vec<Arc<Content>>,
    /// The agent's own tools at this moment, those of its toolsets included.
    pub tools: Arc<ToolSet>,
    pub(crate) team: Arc<Team>,
    /// How often in a row the conversation was too long for the model.
    pub(crate) overflows: u32,
    /// What handlers made of the agent for this turn.
    pub(crate) turn_plan: Option<Arc<TurnPlan>>,
    /// Declared before the agent's own tools.
    first_tools: Vec<ToolMeta>,
    /// The names of those of its tools that toolsets found.
    found: Vec<SmolStr>,
    /// What toolsets tell the model.
    notes: Vec<(SmolStr, Arc<str>)>,
    stopped: bool,
    last: Option<Arc<Event>>,
    /// What is for this request only has no place among the messages yet.
    unplaced: bool,
}

impl<'a> Draft<'a> {
    /// Boxed, since it is large and lives as long as the model's answer takes.
    pub(crate) fn new(agent: &'a LlmAgent, run: &'a Run, team: Arc<Team>) -> Result<Box<Self>> {
        let model = agent.model_in(run.tree(), run.node_id())?.clone();
        let mut request = ModelRequest::new(model.name());
        request.stream = run.config().streaming;
        let place = team.place(run.node_id())?;
        let turn_plan = match place.onion.before_agent.is_empty() {
            true => None,
            false => run.turn_value::<TurnPlan>(),
        };
        let fixed = turn_plan.as_ref().filter(|turn| turn.tools_fixed).map(|turn| &turn.plan.tools);
        let tools = fixed.or_else(|| place.configured.as_ref().map(|plan| &plan.tools));
        let tools = tools.unwrap_or(&agent.tools).clone();
        let found = turn_plan.as_ref().filter(|turn| turn.tools_fixed).map(|turn| turn.found.clone());
        Ok(Box::new(Self {
            agent,
            run,
            model,
            request,
            turn_contents: Vec::new(),
            tools,
            turn_plan,
            team,
            overflows: 0,
            first_tools: Vec::new(),
            found: found.unwrap_or_default(),
            notes: Vec::new(),
            stopped: false,
            last: None,
            unplaced: false,
        }))
    }

    /// Asks each toolset once; what they say now holds for the whole step. The first step of a turn takes what was found out
    /// for the handlers before it.
    /// Those that need a credential do without if `asks` is false and there is none.
    pub(crate) async fn ask_toolsets(&mut self, asks: bool) -> Result<()> {
        let toolsets = &self.agent.toolsets;
        if toolsets.is_empty() {
            return Ok(());
        }
        let fixed = self.turn_plan.as_ref().is_some_and(|turn| turn.tools_fixed);
        let listed = self.turn_plan.as_ref().and_then(|turn| turn.take_listing());
        let listing = match listed {
            Some(listing) => listing,
            None => {
                let how = ListingOptions { asks, lists: !fixed };
                ToolListing::new(self.run, toolsets, self.tools.clone(), how).await?
            }
        };
        self.notes = listing.notes;
        if !fixed {
            (self.tools, self.found) = (listing.tools, listing.found);
        }
        Ok(())
    }

    /// What the agent works with, if handlers had a say in it.
    pub fn plan(&self) -> Option<&AgentPlan> {
        let configured = || self.team.place(self.run.node_id()).ok()?.configured.as_deref();
        self.turn_plan.as_ref().map(|turn| &turn.plan).or_else(configured)
    }

    /// Declares a tool before the agent's own.
    pub fn add_tool(&mut self, tool: Arc<dyn Tool>) {
        self.first_tools.push(ToolMeta { tool, return_directly: false });
    }

    /// A tool that the answer to this request may call.
    pub fn tool(&self, name: &str) -> Option<&ToolMeta> {
        let first = self.first_tools.iter().find(|meta| meta.tool.spec().name == name);
        first.or_else(|| self.tools.get(name))
    }

    /// Emits an event before the model is asked. A final answer to calls ends the step.
    pub async fn emit(&mut self, event: Event) -> Result<()> {
        let event = self.run.emit(event).await?;
        self.emitted(event);
        Ok(())
    }

    /// Takes in what was emitted before the model is asked. A final answer to calls, or a question, ends the step.
    pub(crate) fn emitted(&mut self, event: Arc<Event>) {
        let answers = event.responses().next().is_some() || !event.long_running().is_empty();
        self.stopped |= event.is_final() && answers;
        self.last = Some(event);
    }

    /// Ends the step without asking the model.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether the model will not be asked.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(crate) fn take_last(&mut self) -> Option<Arc<Event>> {
        self.last.take()
    }

    /// How the agent works for others.
    pub fn mode(&self) -> Mode {
        self.agent.transfer().mode
    }

    /// How the agent sees the log; processors have a say in it.
    pub fn view(&self) -> ContentsView {
        let source = self.run.source();
        let mut view = ContentsView {
            agent: source.author.clone(),
            branch: source.branch.clone(),
            isolation_scope: source.isolation_scope.clone(),
            single_turn: self.mode() == Mode::SingleTurn,
            current_turn_only: self.agent.include_contents == IncludeContents::None,
            keep_client_ids: self.model.capabilities().pairs_calls_by_id,
            foreign_thoughts: self.run.config().include_thoughts_from_other_agents,
            ..ContentsView::default()
        };
        for processor in self.agent.processors.request() {
            processor.see(self, &mut view);
        }
        view
    }

    /// Whether the conversation that is sent may differ from what the log gives.
    pub(crate) fn has_worked_on_history(&self, has_transcript: bool) -> Result<bool> {
        let onion = &self.team.place(self.run.node_id())?.onion;
        let input = self.turn_plan.as_ref().is_some_and(|turn| turn.input.is_some());
        Ok(has_transcript
            || input
            || onion.works_on_history()
            || self.run.values().has_edits(self.run.source()))
    }

    /// Takes in what the log gives.
    pub(crate) fn take_contents(&mut self) -> Result<()> {
        self.request.contents = self.run.contents(&self.view());
        self.unplaced = true;
        // Handlers work on the log's messages alone: what is for one request only stands elsewhere in the next.
        if !self.has_worked_on_history(false)? {
            self.place_turn();
        }
        Ok(())
    }

    /// Puts what is for this request only among the messages, if that was not done yet.
    pub(crate) fn place_turn(&mut self) {
        if std::mem::take(&mut self.unplaced) {
            let seen = self.turn_plan.as_ref().and_then(|turn| turn.input.as_ref());
            let turn = std::mem::take(&mut self.turn_contents);
            let context = &self.run.config().model_input_context;
            let input = seen.or_else(|| self.run.input());
            crate::contents::place(&mut self.request.contents, context, input, &turn);
        }
    }

    /// The tools that the run was given, unless handlers settled which ones there are.
    fn given_tools(&self) -> Option<&'a Arc<ToolSet>> {
        let fixed = self.turn_plan.as_ref().is_some_and(|turn| turn.tools_fixed);
        self.run.config().tools.as_ref().filter(|_| !fixed)
    }

    /// Whether the request has tools, as far as is known by now: the agent's, those of its toolsets and handlers, those that
    /// the run was given, and those by which it reaches other agents.
    pub(crate) fn declares_tools(&self) -> bool {
        let reaches = || {
            let place = self.team.place(self.run.node_id());
            place.is_ok_and(|place| place.transfer.is_some() || !place.delegates.is_empty())
        };
        !self.tools.is_empty()
            || !self.first_tools.is_empty()
            || self.given_tools().is_some_and(|given| !given.is_empty())
            || reaches()
    }

    /// Declares all tools, and lets each have its say.
    pub(crate) async fn finish_tools(&mut self) -> Result<()> {
        part_schema_from_tools(self);
        if self.first_tools.is_empty() {
            self.request.tools = self.tools.clone();
        } else {
            let mut all = ToolSet::new();
            let first = std::mem::take(&mut self.first_tools);
            let is_first = |name: &SmolStr| first.iter().any(|meta| meta.tool.spec().name == *name);
            // An agent may have a tool in the place of one of these; a toolset may not.
            let (own, found) = (self.tools.iter(), &self.found);
            let own: Vec<ToolMeta> = own
                .filter(|meta| !(found.contains(&meta.tool.spec().name) && is_first(&meta.tool.spec().name)))
                .cloned()
                .collect();
            for meta in first.into_iter().chain(own) {
                all.add_meta(meta);
            }
            self.request.tools = Arc::new(all);
        }
        if let Some(given) = self.given_tools() {
            add_given(&mut self.request.tools, given);
        }
        for (source, text) in std::mem::take(&mut self.notes) {
            self.request.instruction.push(source, text);
        }
        let tools = self.request.tools.clone();
        for meta in tools.iter() {
            if let Some(say) = meta.tool.prepare(self.run, &mut self.request) {
                say.await?;
            }
        }
        Ok(())
    }
}

/// Adds the tools that a run was given. Others of the same name count.
pub(crate) fn add_given(tools: &mut Arc<ToolSet>, given: &ToolSet) {
    let new: Vec<&ToolMeta> =
        given.iter().filter(|meta| tools.get(&meta.tool.spec().name).is_none()).collect();
    if !new.is_empty() {
        let all = Arc::make_mut(tools);
        new.into_iter().for_each(|meta| all.add_meta(meta.clone()));
    }
}

impl std::fmt::Debug for Draft<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Draft({}, {} messages)", self.agent.name, self.request.contents.len())
    }
}
