//! What is offered as a tool: an agent, or a tool as it is.

use std::fmt;
use std::sync::Arc;

use ::http::request::Parts;
use jsonschema::Validator;
use rmcp::model::{Tool as McpTool, ToolAnnotations};
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{Caller, Confirm, Content, Error, ErrorKind, Object, Part, Result, RunConfig, ToolSpec};
use umbel_runtime::Runner;

use super::direct::DirectCall;

/// The argument that names a conversation to go on with.
pub(super) const SESSION: &str = "session";
/// The argument that answers what was asked.
pub(super) const ANSWER: &str = "answer";

/// An agent as it is offered to MCP clients.
#[derive(Clone)]
pub struct AgentOffer {
    pub(super) runner: Runner,
    name: Option<SmolStr>,
    description: Option<String>,
    conversations: bool,
    config: Option<Arc<ToConfig>>,
}

/// Changes how a call is run.
pub(super) type ToConfig = dyn Fn(&Caller, Option<&Parts>, RunConfig) -> Result<RunConfig> + Send + Sync;

impl AgentOffer {
    /// The root agent of a runner, by its own name and description. Each call is a conversation of its own.
    pub fn new(runner: Runner) -> Self {
        Self { runner, name: None, description: None, conversations: false, config: None }
    }

    /// The tool's name, if not the agent's.
    pub fn name(mut self, name: impl Into<SmolStr>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What it is good for, for the model that calls it, if not what the agent says of itself.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Tells with each answer which session it belongs to, so that the caller can go on with the conversation by naming it
    /// as the argument `session`. Nobody reaches the sessions of another user by that.
    pub fn conversations(mut self) -> Self {
        self.conversations = true;
        self
    }

    /// Changes how a call is run, by who calls and by the head of their request, which is absent where there is none: limits,
    /// extensions, and with [`state_delta`](RunConfig::state_delta) the state. An error is what the caller gets.
    pub fn run_config(
        mut self,
        make: impl Fn(&Caller, Option<&Parts>, RunConfig) -> Result<RunConfig> + Send + Sync + 'static,
    ) -> Self {
        self.config = Some(Arc::new(make));
        self
    }

    pub(super) fn offered(self) -> Result<Offered> {
        let tree = self.runner.tree();
        let agent = &tree.node(tree.root())?.agent;
        let name = self.name.unwrap_or_else(|| agent.name().into());
        let description = match self.description.unwrap_or_else(|| agent.description().to_owned()) {
            none if none.is_empty() => format!("Asks the agent `{name}`."),
            some => some,
        };
        let own = agent.input_schema().map(|schema| (**schema).clone());
        let is_structured = own.is_some();
        let schema = own.unwrap_or_else(|| {
            json!({
                "type": "object",
                "properties": {"request": {"type": "string", "description": "What the agent is asked to do."}},
                "required": ["request"],
            })
        });
        let fits = validator(&name, &schema)?;
        let takes_answers = may_go_on(&schema);
        let input = object(&name, if takes_answers { going_on(schema) } else { schema })?;
        let mut tool = McpTool::new(name.to_string(), description, Arc::new(input));
        let output = agent.output_schema().map(|schema| (**schema).clone());
        let wraps_output = output.as_ref().is_some_and(|schema| schema.get("type") != Some(&json!("object")));
        let has_output = output.is_some();
        if let Some(schema) = output {
            let schema = if wraps_output { wrapped(schema) } else { schema };
            tool = tool.with_raw_output_schema(Arc::new(object(&name, schema)?));
        }
        let kind = Kind::Agent {
            is_structured,
            takes_answers,
            has_output,
            wraps_output,
            conversations: self.conversations,
        };
        Ok(Offered { tool, fits, runner: self.runner, kind, config: self.config })
    }
}

impl From<Runner> for AgentOffer {
    fn from(runner: Runner) -> Self {
        Self::new(runner)
    }
}

impl fmt::Debug for AgentOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentOffer({:?})", self.runner)
    }
}

/// Something that is offered as a tool.
pub(super) struct Offered {
    /// What clients are told.
    pub(super) tool: McpTool,
    /// What its arguments must be.
    fits: Validator,
    pub(super) runner: Runner,
    pub(super) kind: Kind,
    /// How its calls are run, if otherwise than its runner says.
    pub(super) config: Option<Arc<ToConfig>>,
}

/// What stands behind a tool.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// An agent.
    Agent {
        /// Whether it is asked by a structure, not by words.
        is_structured: bool,
        /// Whether its arguments have room for a session and an answer.
        takes_answers: bool,
        /// Whether its answer is a structure, not words.
        has_output: bool,
        /// Whether that structure is no object, and so wrapped in one.
        wraps_output: bool,
        /// Whether each answer names its session.
        conversations: bool,
    },
    /// A tool as it is.
    Tool,
}

impl Offered {
    /// A tool as it is, run by a runner whose agent calls what it is told to.
    pub(super) fn tool(spec: &ToolSpec, runner: Runner) -> Result<Self> {
        let fits = validator(&spec.name, &spec.parameters)?;
        let mut input = object(&spec.name, (*spec.parameters).clone())?;
        // Clients refuse a schema that does not say so.
        input.entry("type").or_insert_with(|| "object".into());
        let mut annotations = ToolAnnotations::new().read_only(spec.read_only).idempotent(spec.idempotent);
        if !matches!(spec.confirm, Confirm::Never) {
            // Of other tools nobody knows.
            annotations = annotations.destructive(true);
        }
        let tool = McpTool::new(spec.name.to_string(), spec.description.clone(), Arc::new(input))
            .with_annotations(annotations);
        Ok(Self { tool, fits, runner, kind: Kind::Tool, config: None })
    }

    pub(super) fn name(&self) -> &str {
        &self.tool.name
    }

    /// What is wrong with arguments, in words; nothing if they fit.
    pub(super) fn check(&self, args: &Object) -> Result<(), String> {
        let args = Value::Object(args.clone());
        let problems = self.fits.iter_errors(&args).take(5);
        let problems: Vec<String> =
            problems.map(|error| format!("at `{}`: {error}", error.instance_path())).collect();
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// What the agent is told.
    pub(super) fn message(&self, args: Object) -> Content {
        let text = match self.kind {
            Kind::Tool => DirectCall { tool: self.name().into(), args }.text(),
            Kind::Agent { is_structured: true, .. } => Value::Object(args).to_string(),
            Kind::Agent { .. } => match args.get("request") {
                Some(Value::String(request)) => request.clone(),
                _ => String::new(),
            },
        };
        Content::user(Part::text(text))
    }

    /// Whether a caller can answer by arguments.
    pub(super) fn takes_answers(&self) -> bool {
        matches!(self.kind, Kind::Agent { takes_answers: true, .. })
    }
}

impl fmt::Debug for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offered({})", self.name())
    }
}

/// Whether arguments for going on do not meet arguments of the agent's own.
fn may_go_on(schema: &Value) -> bool {
    let own = schema.get("properties").and_then(Value::as_object);
    own.is_none_or(|own| !own.contains_key(SESSION) && !own.contains_key(ANSWER))
}

/// A schema with the arguments by which a conversation is gone on with.
fn going_on(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        let properties = object.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert(
                SESSION.to_owned(),
                json!({
                    "type": "string",
                    "description": "The session of an earlier answer, to go on from there. Leave it out to begin anew.",
                }),
            );
            properties.insert(
                ANSWER.to_owned(),
                json!({
                    "type": "string",
                    "description": "The answer to what was asked in that session. Only if something was asked.",
                }),
            );
        }
    }
    schema
}

/// A schema of an object that has a value of another schema as its `result`.
fn wrapped(mut schema: Value) -> Value {
    // What it refers to must stay where it is.
    let defs = schema.as_object_mut().and_then(|object| object.remove("$defs"));
    let mut outer = json!({"type": "object", "properties": {"result": schema}, "required": ["result"]});
    if let (Some(defs), Some(outer)) = (defs, outer.as_object_mut()) {
        outer.insert("$defs".to_owned(), defs);
    }
    outer
}

fn object(name: &str, schema: Value) -> Result<Object> {
    match schema {
        Value::Object(object) => Ok(object),
        _ => Err(Error::new(ErrorKind::Build, format!("the schema of `{name}` is no object"))),
    }
}

fn validator(name: &str, schema: &Value) -> Result<Validator> {
    jsonschema::validator_for(schema)
        .map_err(|e| Error::new(ErrorKind::Build, format!("the schema of `{name}` is no JSON schema: {e}")))
}
