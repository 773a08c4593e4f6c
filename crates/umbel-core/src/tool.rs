//! The contract of a tool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::agent::Agent;
use crate::auth::AuthConfig;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::json::Object;
use crate::model::ModelRequest;
use crate::part::Part;
use crate::run::Run;
use crate::tool_context::ToolContext;
use crate::work::{BoxFuture, BoxStream};

/// Something a model can have done.
pub trait Tool: Send + Sync {
    /// What the model and the runtime know about it.
    fn spec(&self) -> &ToolSpec;

    /// Does it.
    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;

    /// Has a say in each request of an agent that has the tool. `None` if it has nothing to say.
    fn prepare<'a>(
        &'a self,
        _run: &'a Run,
        _request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        None
    }

    /// The agent that works for its calls, if one does.
    fn agent(&self) -> Option<&Arc<dyn Agent>> {
        None
    }

    /// An error if its options cannot work together. It is asked when the runner of an agent that has the tool is built.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<T: Tool + ?Sized> Tool for Arc<T> {
    fn spec(&self) -> &ToolSpec {
        (**self).spec()
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        (**self).call(cx, args)
    }

    fn prepare<'a>(
        &'a self,
        run: &'a Run,
        request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        (**self).prepare(run, request)
    }

    fn agent(&self) -> Option<&Arc<dyn Agent>> {
        (**self).agent()
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// What is known about a tool.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name, unique among the tools of an agent.
    pub name: SmolStr,
    /// What it does, for the model.
    pub description: String,
    /// The JSON schema of its arguments; an object.
    pub parameters: Arc<Value>,
    /// The answer comes later: the call's turn ends without it.
    pub long_running: bool,
    /// Whether a person must agree first.
    pub confirm: Confirm,
    /// It changes nothing.
    pub read_only: bool,
    /// Calling it twice is as good as once.
    pub idempotent: bool,
    /// It knows how far a call came that was cut short, and goes on from there when it is called again.
    pub resumes: bool,
    /// No other call of the batch runs beside it.
    pub exclusive: bool,
    /// Not declared to the model: it only prepares requests.
    pub hidden: bool,
    /// Its result is an answer in itself: if the model does not sum it up, it is said as it is.
    pub answers: bool,
    /// The credential it needs: without it, it is not called. Its calls get it by
    /// [`ToolContext::credential`](crate::ToolContext::credential).
    pub auth: Option<AuthConfig>,
    /// How long it may take, if not as long as the run's limits say.
    pub timeout: Option<Duration>,
}

/// Whether a person must agree before a tool runs.
#[derive(Clone, Default)]
pub enum Confirm {
    /// No.
    #[default]
    Never,
    /// Yes.
    Always,
    /// If this says so of the arguments.
    When(Arc<dyn Fn(&Object) -> bool + Send + Sync>),
}

impl Confirm {
    /// Whether a person must agree to these arguments.
    pub fn needed(&self, args: &Object) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::When(decide) => decide(args),
        }
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "Never",
            Self::Always => "Always",
            Self::When(_) => "When(…)",
        })
    }
}

impl ToolSpec {
    /// A tool with a schema for its arguments.
    pub fn new(name: impl Into<SmolStr>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters: Arc::new(parameters),
            long_running: false,
            confirm: Confirm::Never,
            read_only: false,
            idempotent: false,
            resumes: false,
            exclusive: false,
            hidden: false,
            answers: false,
            auth: None,
            timeout: None,
        }
    }

    /// The same, for a tool that does nothing but act on its run: a call that was cut short is simply made again.
    pub fn resuming(mut self) -> Self {
        self.resumes = true;
        self
    }

    /// The schema of a type's arguments, without its title.
    pub fn schema_of<T: schemars::JsonSchema>() -> Value {
        let mut schema = schemars::schema_for!(T).to_value();
        if let Some(object) = schema.as_object_mut() {
            object.remove("$schema");
            object.remove("title");
        }
        schema
    }
}

/// What a tool gives: a value, or a stream that ends in one.
pub enum ToolOutput {
    /// Done. Boxed, since it is handed through many layers.
    Value(Box<ToolValue>),
    /// News while it works; the last item is the value.
    Stream(ToolStream),
}

/// A result that comes piece by piece. An error ends it.
pub type ToolStream = BoxStream<'static, Result<ToolItem, ToolError>>;

impl fmt::Debug for ToolOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Stream(_) => f.write_str("Stream(…)"),
        }
    }
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolValue {
    /// What the model gets. Anything but an object is wrapped as `{"result": …}`.
    pub value: Value,
    /// The tool itself says that it failed.
    pub is_error: bool,
    /// For layers and viewers; the model does not see it.
    pub metadata: Object,
    /// Media that belong to the result.
    pub parts: Vec<Part>,
}

/// One item of a streamed result.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolItem {
    /// News, shown to people as it comes, never stored.
    Progress(Value),
    /// The result; nothing may follow.
    Done(ToolValue),
}

impl ToolOutput {
    /// Anything that has a JSON form.
    pub fn json(value: impl Serialize) -> Result<Self, ToolError> {
        Ok(serde_json::to_value(value)?.into())
    }
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        ToolValue::from(value).into()
    }
}

impl From<ToolValue> for ToolOutput {
    fn from(value: ToolValue) -> Self {
        Self::Value(Box::new(value))
    }
}

impl From<Value> for ToolValue {
    fn from(value: Value) -> Self {
        Self { value, ..Self::default() }
    }
}

impl ToolValue {
    /// A failure in words that the model can act on.
    pub fn error(message: impl Into<Value>) -> Self {
        let value = Value::Object(Object::from_iter([("error".to_owned(), message.into())]));
        Self { value, is_error: true, ..Self::default() }
    }
}

/// Why a tool failed. Any error turns into one with `?`.
///
/// By default the model is told and may try again.
#[derive(Debug)]
pub struct ToolError(Error);

impl ToolError {
    /// A failure in words that the model can act on.
    pub fn new(message: impl Into<String>) -> Self {
        Self(Error::new(ErrorKind::Tool, message))
    }

    /// The arguments cannot be used.
    pub fn invalid_arguments(message: impl Into<String>) -> Self {
        Self(Error::new(ErrorKind::InvalidInput, message))
    }

    /// The error inside.
    pub fn error(&self) -> &Error {
        &self.0
    }

    /// The error inside.
    pub fn into_error(self) -> Error {
        self.0
    }
}

// Not `std::error::Error` itself, so that every other error can turn into it.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        let error: BoxError = Box::new(error);
        match error.downcast::<Error>() {
            Ok(error) => Self(*error),
            Err(error) => Self(Error::new(ErrorKind::Tool, error.to_string()).with_source(error)),
        }
    }
}

impl From<ToolError> for Error {
    fn from(error: ToolError) -> Self {
        error.0
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A tool as an agent has it.
#[derive(Clone)]
pub struct ToolMeta {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its answer is the agent's answer.
    pub return_directly: bool,
}

impl fmt::Debug for ToolMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolMeta({})", self.tool.spec().name)
    }
}

/// The tools of an agent, by name, in the order they were added.
#[derive(Clone, Default)]
pub struct ToolSet {
    tools: Vec<ToolMeta>,
}

impl ToolSet {
    /// No tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool. One of the same name is replaced in its place.
    pub fn add(&mut self, tool: Arc<dyn Tool>) {
        self.add_meta(ToolMeta { tool, return_directly: false });
    }

    /// Adds a tool with what the agent says about it. One of the same name is replaced in its place.
    pub fn add_meta(&mut self, meta: ToolMeta) {
        let name = &meta.tool.spec().name;
        match self.tools.iter_mut().find(|present| present.tool.spec().name == *name) {
            Some(present) => *present = meta,
            None => self.tools.push(meta),
        }
    }

    /// The tool of that name.
    pub fn get(&self, name: &str) -> Option<&ToolMeta> {
        self.tools.iter().find(|meta| meta.tool.spec().name == name)
    }

    /// All tools in order.
    pub fn iter(&self) -> impl Iterator<Item = &ToolMeta> {
        self.tools.iter()
    }

    /// What the model is told about them, in order; hidden ones are left out.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.iter().map(|meta| meta.tool.spec()).filter(|spec| !spec.hidden)
    }

    /// Keeps the tools that `keep` says yes to.
    pub fn retain(&mut self, keep: impl FnMut(&ToolMeta) -> bool) {
        self.tools.retain(keep);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

impl fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tools.iter().map(|meta| &meta.tool.spec().name)).finish()
    }
}

/// Tools that are found out when they are needed, such as those of a remote server.
pub trait Toolset: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Its tools at this moment. Asked once per model call.
    fn tools<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>>;

    /// What the model is told besides the declarations. Asked after [`tools`](Self::tools).
    fn instruction(&self, _: &Run) -> Option<Arc<str>> {
        None
    }

    /// The credential it needs before it can list its tools. [`tools`](Self::tools) gets it by
    /// [`Run::credential`](crate::Run::credential).
    fn auth(&self) -> Option<&AuthConfig> {
        None
    }
}
