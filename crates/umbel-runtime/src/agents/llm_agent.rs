//! An agent that thinks with a model.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;
use siphasher::sip::SipHasher13;
use smol_str::SmolStr;
use umbel_core::{
    AfterOrder, Agent, AgentKind, AgentPlan, AgentTree, AuthConfig, BoxFuture, Callbacks, Content, Context,
    Error, ErrorKind, Event, Extending, GenerateConfig, Handler, InstructionProvider, Mode, Model,
    ModelRequest, NodeId, Object, Response, Result, Run, Tool, ToolContext, ToolMeta, ToolSet, Toolset,
    TransferPolicy, Words, Work,
};

use crate::adk_stage::AdkStage;
use crate::code::{AgentCode, CodeExecution};
use crate::configure::check_handlers;
use crate::explain::{Explanation, explain_alone};
use crate::flow::{self, Processors};
use crate::output_schema::{OutputSchema, SetModelResponse};
use crate::planner::Planner;
use crate::template::Template;

/// The source of the part of an instruction that is the agent's own.
pub(crate) const OWN: &str = "instruction";

/// Where an instruction comes from.
#[derive(Clone)]
pub(crate) enum InstructionSource {
    Template(Template),
    Provider(InstructionProvider),
}

/// Which part of the conversation an agent is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeContents {
    /// All that it may see.
    #[default]
    Default,
    /// Only the current turn.
    None,
}

/// An agent that thinks with a model: instruction, tools, and other agents it can hand over to.
///
/// Made by chaining what it needs; a [`Runner`](crate::Runner) checks it when it is built.
#[derive(Clone)]
pub struct LlmAgent {
    pub(crate) name: SmolStr,
    pub(crate) description: String,
    pub(crate) model: Option<Arc<dyn Model>>,
    pub(crate) instruction: Option<InstructionSource>,
    pub(crate) global_instruction: Option<InstructionSource>,
    pub(crate) static_instruction: Option<Arc<str>>,
    pub(crate) tools: Arc<ToolSet>,
    pub(crate) toolsets: Vec<Arc<dyn Toolset>>,
    sub_agents: Vec<Arc<dyn Agent>>,
    pub(crate) generate: Arc<GenerateConfig>,
    pub(crate) include_contents: IncludeContents,
    transfer: TransferPolicy,
    pub(crate) input_schema: Option<Arc<Value>>,
    pub(crate) output_schema: Option<Result<OutputSchema, String>>,
    pub(crate) answer_tool: Option<Arc<SetModelResponse>>,
    pub(crate) output_key: Option<String>,
    pub(crate) planner: Option<Arc<dyn Planner>>,
    /// Shared, since most agents have none and all are cloned.
    pub(crate) code: Option<Arc<AgentCode>>,
    pub(crate) callbacks: Callbacks,
    tool_layers: Vec<Arc<dyn Handler>>,
    legacy: Vec<Arc<dyn Handler>>,
    handlers: Vec<Arc<dyn Handler>>,
    after_order: AfterOrder,
    strict_tools: bool,
    pub(crate) processors: Processors,
}

impl LlmAgent {
    /// An agent of that name, with nothing else yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            model: None,
            instruction: None,
            global_instruction: None,
            static_instruction: None,
            tools: Arc::default(),
            toolsets: Vec::new(),
            sub_agents: Vec::new(),
            generate: Arc::default(),
            include_contents: IncludeContents::Default,
            transfer: TransferPolicy { by_model: true, to_parent: true, to_peers: true, mode: Mode::Chat },
            input_schema: None,
            output_schema: None,
            answer_tool: None,
            output_key: None,
            planner: None,
            code: None,
            callbacks: Callbacks::default(),
            tool_layers: Vec::new(),
            legacy: Vec::new(),
            handlers: Vec::new(),
            after_order: AfterOrder::Forward,
            strict_tools: false,
            processors: Processors::default(),
        }
    }

    /// What it is good for. Other agents and its own model read this.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// The model it thinks with. Without one it uses that of the agent above it.
    pub fn model(mut self, model: impl Model + 'static) -> Self {
        self.model = Some(Arc::new(model));
        self
    }

    /// What it is told, with holes such as `{city}` that are filled from the state.
    pub fn instruction(mut self, template: impl Into<Arc<str>>) -> Self {
        self.instruction = Some(InstructionSource::Template(Template::new(template)));
        self
    }

    /// What it is told, made for each request and taken as it is.
    pub fn instruction_fn<F>(mut self, provider: F) -> Self
    where
        F: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
    {
        self.instruction = Some(InstructionSource::Provider(Arc::new(provider)));
        self
    }

    /// What all agents of the tree are told; counts at the root only.
    pub fn global_instruction(mut self, template: impl Into<Arc<str>>) -> Self {
        self.global_instruction = Some(InstructionSource::Template(Template::new(template)));
        self
    }

    /// What all agents of the tree are told, made for each request and taken as it is.
    pub fn global_instruction_fn<F>(mut self, provider: F) -> Self
    where
        F: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
    {
        self.global_instruction = Some(InstructionSource::Provider(Arc::new(provider)));
        self
    }

    /// What never changes, taken as it is. The other instruction then travels among the messages, so that a
    /// provider's prompt cache keeps the part that stays.
    pub fn static_instruction(mut self, text: impl Into<Arc<str>>) -> Self {
        self.static_instruction = Some(text.into());
        self
    }

    /// A tool it can call. One of the same name is replaced.
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        Arc::make_mut(&mut self.tools).add(Arc::new(tool));
        self
    }

    /// A tool whose answer is the agent's answer.
    pub fn tool_returning_directly(mut self, tool: impl Tool + 'static) -> Self {
        let meta = ToolMeta { tool: Arc::new(tool), return_directly: true };
        Arc::make_mut(&mut self.tools).add_meta(meta);
        self
    }

    /// Tools that are found out when they are needed.
    pub fn toolset(mut self, toolset: impl Toolset + 'static) -> Self {
        self.toolsets.push(Arc::new(toolset));
        self
    }

    /// An agent below it, to which it can hand over.
    pub fn sub_agent(mut self, agent: impl Agent + 'static) -> Self {
        self.sub_agents.push(Arc::new(agent));
        self
    }

    /// How its model generates.
    pub fn generate(mut self, config: GenerateConfig) -> Self {
        self.generate = Arc::new(config);
        self
    }

    /// Which part of the conversation it is sent.
    pub fn include_contents(mut self, include: IncludeContents) -> Self {
        self.include_contents = include;
        self
    }

    /// Keeps it from handing back to the agent above it.
    pub fn disallow_transfer_to_parent(mut self) -> Self {
        self.transfer.to_parent = false;
        self
    }

    /// Keeps it from passing on to its peers.
    pub fn disallow_transfer_to_peers(mut self) -> Self {
        self.transfer.to_peers = false;
        self
    }

    /// How it works for the agent above it.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.transfer.mode = mode;
        self
    }

    /// The structure of what it is asked when it is called as a tool.
    pub fn input<T: schemars::JsonSchema>(self) -> Self {
        self.input_schema(umbel_core::ToolSpec::schema_of::<T>())
    }

    /// The structure of what it is asked when it is called as a tool, as a JSON schema.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.input_schema = Some(Arc::new(schema));
        self
    }

    /// The structure of its answer. [`RunStream::output`](crate::RunStream::output) gives it as that type.
    pub fn output<T: schemars::JsonSchema>(self) -> Self {
        self.output_schema(umbel_core::ToolSpec::schema_of::<T>())
    }

    /// The structure of its answer, as a JSON schema.
    pub fn output_schema(mut self, schema: Value) -> Self {
        let schema = OutputSchema::new(schema).map_err(|e| e.message().to_owned());
        self.answer_tool = schema.as_ref().ok().map(|schema| Arc::new(SetModelResponse::new(schema.clone())));
        self.output_schema = Some(schema);
        self
    }

    /// The state key that its answer is written to.
    pub fn output_key(mut self, key: impl Into<String>) -> Self {
        self.output_key = Some(key.into());
        self
    }

    /// How it plans.
    pub fn planner(mut self, planner: impl Planner + 'static) -> Self {
        self.planner = Some(Arc::new(planner));
        self
    }

    /// What runs the code that its model writes: an executor, or a [`CodeExecution`] that says more.
    pub fn code_executor(mut self, execution: impl Into<CodeExecution>) -> Self {
        self.code = Some(Arc::new(AgentCode::new(execution.into())));
        self
    }

    /// The processors that make its requests and look at its responses, in the place of the usual ones.
    pub fn processors(mut self, processors: Processors) -> Self {
        self.processors = processors;
        self
    }

    /// Extends it. Handlers come in the order in which they are added.
    pub fn handler(mut self, handler: impl Handler + 'static) -> Self {
        self.handlers.push(Arc::new(handler));
        self
    }

    /// A layer around all its tool calls, outside its handlers. Other hooks of it are not called.
    pub fn tool_layer(mut self, layer: impl Handler + 'static) -> Self {
        self.tool_layers.push(Arc::new(layer));
        self
    }

    /// A middleware of the old form. It comes before the handlers.
    #[deprecated(note = "write a handler: the guide has both forms side by side")]
    #[allow(deprecated)]
    pub fn middleware(mut self, middleware: crate::legacy::AgentMiddleware) -> Self {
        let place = self.legacy.len();
        self.legacy.push(Arc::new(middleware.into_handler(place)));
        self
    }

    /// In which order handlers come in `after_model` and `after_agent`.
    pub fn after_order(mut self, order: AfterOrder) -> Self {
        self.after_order = order;
        self
    }

    /// Makes it an error if a handler adds a tool whose name is taken.
    pub fn strict_tools(mut self) -> Self {
        self.strict_tools = true;
        self
    }

    /// Called before it works; a content answers in its place.
    pub fn before_agent<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync + 'static,
    {
        self.callbacks.before_agent.push(Arc::new(callback));
        self
    }

    /// Called after it worked; a content is added.
    pub fn after_agent<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync + 'static,
    {
        self.callbacks.after_agent.push(Arc::new(callback));
        self
    }

    /// Called before its model is asked; a response answers in its place.
    pub fn before_model<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a Context, &'a mut ModelRequest) -> BoxFuture<'a, Result<Option<Response>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.before_model.push(Arc::new(callback));
        self
    }

    /// Called after its model answered; a response takes the place of its.
    pub fn after_model<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a Context, &'a Response) -> BoxFuture<'a, Result<Option<Response>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.after_model.push(Arc::new(callback));
        self
    }

    /// Called after its model failed; a response is as good as an answer.
    pub fn on_model_error<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a Context, &'a ModelRequest, &'a Error) -> BoxFuture<'a, Result<Option<Response>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.on_model_error.push(Arc::new(callback));
        self
    }

    /// Called before a tool; an object answers in its place.
    pub fn before_tool<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(
                &'a ToolContext,
                Option<&'a dyn Tool>,
                &'a mut Object,
            ) -> BoxFuture<'a, Result<Option<Object>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.before_tool.push(Arc::new(callback));
        self
    }

    /// Called after a tool; an object takes the place of its result.
    pub fn after_tool<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a ToolContext, &'a Object, &'a Object) -> BoxFuture<'a, Result<Option<Object>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.after_tool.push(Arc::new(callback));
        self
    }

    /// Called after a tool failed; an object is as good as a result.
    pub fn on_tool_error<F>(mut self, callback: F) -> Self
    where
        F: for<'a> Fn(&'a ToolContext, &'a Object, &'a Error) -> BoxFuture<'a, Result<Option<Object>>>
            + Send
            + Sync
            + 'static,
    {
        self.callbacks.on_tool_error.push(Arc::new(callback));
        self
    }

    /// What came of it and of all that extends it. A runner adds its own; see
    /// [`Runner::explain`](crate::Runner::explain).
    pub fn explain(&self) -> Result<Explanation> {
        explain_alone(self, AdkStage::of(&[], &self.callbacks).as_ref())
    }

    /// Its model, or that of the nearest agent above it that has one.
    pub(crate) fn model_in<'a>(&'a self, tree: &'a AgentTree, node: NodeId) -> Result<&'a Arc<dyn Model>> {
        let mut place = Some(node);
        if let Some(model) = &self.model {
            return Ok(model);
        }
        while let Some(here) = place {
            let node = tree.node(here)?;
            if let Some(model) = node.agent.model() {
                return Ok(model);
            }
            place = node.parent;
        }
        let message = format!(
            "agent `{}` has no model, and none of the agents above it has one: give it one with `.model(…)`",
            self.name
        );
        Err(Error::new(ErrorKind::Build, message))
    }

    /// What it is told, holes filled.
    pub(crate) fn own_instruction<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Arc<str>>>> {
        render(self.instruction.as_ref(), run)
    }

    /// Its output schema, if it has a valid one.
    pub(crate) fn schema(&self) -> Option<&OutputSchema> {
        self.output_schema.as_ref()?.as_ref().ok()
    }

    fn check_parts(&self) -> Result<()> {
        let refuse =
            |kind, message: String| Err(Error::new(kind, format!("agent `{}`: {message}", self.name)));
        if let Some(Err(problem)) = &self.output_schema {
            return refuse(ErrorKind::Build, problem.clone());
        }
        let tools = self.tools.iter().filter_map(|meta| meta.tool.spec().auth.as_ref());
        let toolsets = self.toolsets.iter().filter_map(|toolset| toolset.auth());
        tools.chain(toolsets).try_for_each(AuthConfig::check)
    }
}

/// An instruction, holes filled. Without holes there is nothing to wait for.
fn render<'a>(source: Option<&'a InstructionSource>, run: &'a Run) -> Work<'a, Result<Option<Arc<str>>>> {
    match source {
        None => Work::done(Ok(None)),
        Some(InstructionSource::Template(template)) if template.is_plain() => {
            Work::done(Ok(Some(template.source().clone())))
        }
        Some(InstructionSource::Template(template)) => {
            Work::later(async move { template.render(run).await.map(Some) })
        }
        Some(InstructionSource::Provider(provider)) => {
            Work::later(async move { Ok(Some(provider(run).await?.into())) })
        }
    }
}

impl Agent for LlmAgent {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn kind(&self) -> AgentKind {
        AgentKind::Llm
    }

    fn sub_agents(&self) -> &[Arc<dyn Agent>] {
        &self.sub_agents
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.model.as_ref()
    }

    fn callbacks(&self) -> Option<&Callbacks> {
        Some(&self.callbacks)
    }

    fn handlers(&self) -> Extending<'_> {
        Extending {
            tool_layers: &self.tool_layers,
            legacy: &self.legacy,
            handlers: &self.handlers,
            after_order: self.after_order,
            strict_tools: self.strict_tools,
        }
    }

    fn toolsets(&self) -> &[Arc<dyn Toolset>] {
        &self.toolsets
    }

    fn plan(&self) -> AgentPlan {
        let mut plan = AgentPlan {
            tools: self.tools.clone(),
            generate: self.generate.clone(),
            capabilities: self.model.as_ref().map(|model| model.capabilities()),
            ..AgentPlan::default()
        };
        match &self.instruction {
            None => {}
            Some(InstructionSource::Template(template)) => {
                plan.instruction.push(OWN, Words::Template(template.source().clone()));
            }
            Some(InstructionSource::Provider(provider)) => {
                plan.instruction.push(OWN, Words::Provided(provider.clone()));
            }
        }
        plan
    }

    fn global_instruction<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Arc<str>>>> {
        render(self.global_instruction.as_ref(), run)
    }

    fn transfer(&self) -> TransferPolicy {
        self.transfer
    }

    fn input_schema(&self) -> Option<&Arc<Value>> {
        self.input_schema.as_ref()
    }

    fn output_schema(&self) -> Option<&Arc<Value>> {
        self.schema().map(OutputSchema::schema)
    }

    fn on_answered(&self, event: &mut Event) -> Result<()> {
        flow::save_answer(self, event)
    }

    fn validate(&self, tree: &AgentTree, node: NodeId) -> Result<()> {
        self.check_parts()?;
        let refused = |error: Error, tool: &str| {
            let message = format!("agent `{}`{tool}: {}", self.name, error.message());
            Error::new(ErrorKind::Build, message).with_source(error)
        };
        for tool in self.tools.iter().map(|meta| &meta.tool) {
            tool.check().map_err(|error| refused(error, &format!(", tool `{}`", tool.spec().name)))?;
        }
        check_handlers(&self.tool_layers).map_err(|error| refused(error, ""))?;
        let model = self.model_in(tree, node)?;
        if self.code.as_ref().is_some_and(|code| code.execution.executor().is_none())
            && !model.capabilities().runs_code
        {
            let message = format!(
                "agent `{}`: model `{}` does not run code itself: give the agent an executor with `.code_executor(…)`",
                self.name,
                model.name()
            );
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    fn runs_code(&self) -> bool {
        self.code.is_some()
    }

    fn fingerprint(&self) -> u64 {
        // Not the hasher of the standard library, which may change with the compiler.
        let mut digest = SipHasher13::new();
        self.name.hash(&mut digest);
        self.description.hash(&mut digest);
        for instruction in [&self.instruction, &self.global_instruction].into_iter().flatten() {
            if let InstructionSource::Template(template) = instruction {
                template.source().hash(&mut digest);
            }
        }
        self.static_instruction.hash(&mut digest);
        for spec in self.tools.specs() {
            spec.name.hash(&mut digest);
            spec.parameters.to_string().hash(&mut digest);
        }
        digest.finish()
    }

    fn request<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Option<ModelRequest>>> {
        Box::pin(async move { flow::rebuild(self, run).await.map(Some) })
    }

    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<()>> {
        Box::pin(flow::run(self, run))
    }
}

impl fmt::Debug for LlmAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmAgent")
            .field("name", &self.name)
            .field("tools", &self.tools)
            .field("sub_agents", &self.sub_agents.iter().map(|agent| agent.name()).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
