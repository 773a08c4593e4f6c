//! Scripted models and tools, and what they saw.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::time::Instant;
use umbel::{
    BoxError, BoxFuture, BoxStream, Chunk, Error, ErrorKind, LlmAgent, Model, ModelErrorKind, ModelRequest,
    Object, Response, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
};

use super::message::{canonical, content};
use crate::vectors::script::{flag, list, object, text};

/// What models and tools of a case share: what is left of their scripts, and what they saw.
#[derive(Default)]
pub(super) struct Scene {
    tools: Mutex<BTreeMap<String, VecDeque<Value>>>,
    seen: Mutex<Seen>,
}

/// What happened so far.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Model calls, with the names of the models and when it was.
    pub(super) asked: Vec<(String, ModelRequest, Instant)>,
    /// Executions of tools: call id, name, arguments, and when it was.
    pub(super) ran: Vec<(String, String, Value, Instant)>,
    /// Whatever left a trace.
    pub(super) trace: Vec<String>,
}

impl Scene {
    /// The scene of an input, with its `tool_script`.
    pub(super) fn new(input: &Value) -> Arc<Self> {
        let script = object(input, "tool_script").into_iter();
        let script = script.map(|(key, steps)| (key, steps.as_array().cloned().unwrap_or_default().into()));
        Arc::new(Self { tools: Mutex::new(script.collect()), seen: Mutex::default() })
    }

    /// An agent with the input's `tools`, which thinks with `model`.
    pub(super) fn agent(
        self: &Arc<Self>,
        input: &Value,
        model: impl Model + 'static,
    ) -> Result<LlmAgent, BoxError> {
        let mut agent = LlmAgent::new("agent").model(model);
        if let Some(system) = text(input, "system") {
            agent = agent.instruction(system);
        }
        for tool in list(input, "tools") {
            let made = SceneTool::new(tool, self)?;
            agent = if flag(tool, "return_direct") {
                agent.tool_returning_directly(made)
            } else {
                agent.tool(made)
            };
        }
        Ok(agent)
    }

    pub(super) fn note(&self, what: String) {
        self.lock().trace.push(what);
    }

    /// What happened so far.
    pub(super) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a tool is to do in this execution, if that is scripted. The script of the call comes before that of the tool.
    fn outcome(&self, call: &str, tool: &str) -> Option<Value> {
        let mut scripts = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = if scripts.contains_key(call) { call } else { tool };
        scripts.get_mut(key)?.pop_front()
    }
}

impl Seen {
    /// The executions as vectors write them.
    pub(super) fn ran(&self) -> Vec<Value> {
        let ran = self.ran.iter();
        ran.map(|(id, name, args, _)| json!({"call_id": id, "name": name, "args": args})).collect()
    }

    /// The names of the tools that a model was shown, for each call.
    pub(super) fn tools(&self) -> Vec<Vec<String>> {
        let names =
            |request: &ModelRequest| request.tools.specs().map(|spec| spec.name.to_string()).collect();
        self.asked.iter().map(|(_, request, _)| names(request)).collect()
    }
}

/// A model that answers what a vector says.
pub(super) struct SceneModel {
    name: String,
    replies: Arc<Mutex<VecDeque<Value>>>,
    scene: Arc<Scene>,
}

impl SceneModel {
    pub(super) fn new(name: &str, replies: &[Value], scene: &Arc<Scene>) -> Self {
        let replies = Arc::new(Mutex::new(replies.iter().cloned().collect()));
        Self { name: name.to_owned(), replies, scene: scene.clone() }
    }

    /// Tells how many answers it has left.
    pub(super) fn unused(&self) -> impl Fn() -> usize + use<> {
        let replies = self.replies.clone();
        move || replies.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn reply(&self, stream: bool) -> Result<Vec<Result<Chunk>>> {
        let reply = self.replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let model = ErrorKind::Model(ModelErrorKind::Other);
        let reply = reply.ok_or_else(|| Error::new(model, "the script of the model is at its end"))?;
        if let Some(error) = reply.get("error") {
            return Err(model_failure(error));
        }
        let words = text(&reply, "text").unwrap_or_default();
        let middle = words.char_indices().nth(words.chars().count() / 2).map_or(0, |(at, _)| at);
        let (head, tail) = words.split_at_checked(middle).unwrap_or((words, ""));
        if stream && !head.is_empty() && list(&reply, "calls").is_empty() {
            return Ok(vec![Ok(Chunk::Text(head.to_owned())), Ok(Chunk::Text(tail.to_owned()))]);
        }
        let mut message = reply.clone();
        if let Some(message) = message.as_object_mut() {
            message.insert("role".to_owned(), "assistant".into());
        }
        let content = content(&message).map_err(|e| Error::new(ErrorKind::InvalidInput, e.to_string()))?;
        Ok(vec![Ok(Chunk::Complete(Response::new(content)))])
    }
}

impl Model for SceneModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        self.scene.lock().asked.push((self.name.clone(), request.clone(), Instant::now()));
        self.scene.note("model".to_owned());
        let chunks = self.reply(request.stream).unwrap_or_else(|error| vec![Err(error)]);
        Box::pin(futures::stream::iter(chunks))
    }
}

impl fmt::Debug for SceneModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SceneModel({})", self.name)
    }
}

/// A tool that does what a vector says.
struct SceneTool {
    spec: ToolSpec,
    scene: Arc<Scene>,
}

impl SceneTool {
    fn new(tool: &Value, scene: &Arc<Scene>) -> Result<Self, BoxError> {
        let name = text(tool, "name").ok_or("a tool has no `name`")?;
        let params = object(tool, "params");
        let required: Vec<&String> = params.keys().collect();
        let properties: Object =
            params.iter().map(|(key, kind)| (key.clone(), json!({"type": kind}))).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        Ok(Self { spec: ToolSpec::new(name, "", parameters), scene: scene.clone() })
    }

    /// The arguments that it knows. All of them are needed.
    fn known(&self, args: &Object) -> Result<Object, ToolError> {
        let mut known = Object::new();
        for (name, schema) in object(&self.spec.parameters, "properties") {
            let fits = |value: &&Value| match text(&schema, "type") {
                Some("string") => value.is_string(),
                Some("integer") => value.is_i64(),
                Some("number") => value.is_number(),
                Some("boolean") => value.is_boolean(),
                Some("array") => value.is_array(),
                _ => true,
            };
            let value = args.get(&name).filter(fits);
            let value =
                value.ok_or_else(|| ToolError::invalid_arguments(format!("`{name}` does not fit")))?;
            known.insert(name, value.clone());
        }
        Ok(known)
    }

    fn work(&self, cx: &ToolContext, args: &Object) -> Result<ToolOutput, ToolError> {
        let args = Value::Object(self.known(args)?);
        let (name, call) =
            (self.spec.name.as_str(), cx.call_id().map(ToString::to_string).unwrap_or_default());
        self.scene.note(format!("tool:{call}"));
        let ran = (call.clone(), name.to_owned(), args.clone(), Instant::now());
        self.scene.lock().ran.push(ran);
        let outcome = self.scene.outcome(&call, name);
        if let Some(error) = outcome.as_ref().and_then(|outcome| outcome.get("error")) {
            return Err(Scripted::error(error, ErrorKind::Tool).into());
        }
        let said = outcome.as_ref().and_then(|outcome| text(outcome, "text"));
        Ok(json!(said.map_or_else(|| format!("{name} {}", canonical(&args)), str::to_owned)).into())
    }
}

impl Tool for SceneTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        // Not before it is polled, as most tools.
        Box::pin(async move { self.work(cx, &args) })
    }
}

/// An error of a model as a vector writes it.
pub(in crate::vectors) fn model_failure(error: &Value) -> Error {
    Scripted::error(error, ErrorKind::Model(ModelErrorKind::Other))
}

/// An error of a vector. It travels as the source of ours.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) kind: String,
    pub(super) text: String,
}

impl Scripted {
    /// `{"kind", "text"}` as an error. Provider errors say whether it is worth another try, the others do not.
    pub(super) fn error(error: &Value, unclassified: ErrorKind) -> Error {
        let kind = text(error, "kind").unwrap_or("error").to_owned();
        let words = text(error, "text").unwrap_or("boom").to_owned();
        let class = match kind.as_str() {
            "model_retryable" => ErrorKind::Model(ModelErrorKind::Overloaded),
            "model_fatal" => ErrorKind::Model(ModelErrorKind::Auth),
            _ => unclassified,
        };
        Error::new(class, words.clone()).with_source(Self { kind, text: words })
    }

    /// The error of the vector in an error of ours, however deep.
    pub(super) fn find(error: &Error) -> Option<&Self> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    /// An error of ours as vectors write it.
    pub(super) fn shown(error: &Error) -> Value {
        match Self::find(error) {
            Some(Self { kind, text }) => json!({"kind": kind, "text": text}),
            None => json!({"kind": error.kind().code(), "text": error.message()}),
        }
    }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

impl std::error::Error for Scripted {}
