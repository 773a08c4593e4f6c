//! Runs of an agent with prebuilt handlers: one agent with a scripted model and scripted tools, on one or more sessions.

pub(super) mod limits;
pub(super) mod retry;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use umbel::{
    BoxError, BoxStream, Chunk, Content, Error, ErrorKind, Event, EventFilter, FunctionCall, FunctionTool,
    LlmAgent, Model, ModelErrorKind, ModelRequest, Object, Part, Response, Result, Role, RunConfig, Runner,
    RunnerBuilder, SessionKey, ToolError, ToolErrors, ToolSpec,
};

use super::script::{list, object, schema_of, text};

/// What models and tools did, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Vec<Done>>>);

#[derive(Clone, Debug)]
struct Done {
    /// A model's name or a call's id.
    what: String,
    by_model: bool,
    at: Instant,
}

impl Log {
    fn note(&self, what: &str, by_model: bool) {
        let done = Done { what: what.to_owned(), by_model, at: Instant::now() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    fn all(&self) -> Vec<Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of the models that were asked, in order.
    pub(super) fn models(&self) -> Vec<String> {
        self.all().into_iter().filter(|done| done.by_model).map(|done| done.what).collect()
    }

    /// The ids of the calls that were made, in order.
    pub(super) fn calls(&self) -> Vec<String> {
        self.all().into_iter().filter(|done| !done.by_model).map(|done| done.what).collect()
    }

    /// The waits between all that, in seconds.
    pub(super) fn delays(&self) -> Vec<f64> {
        let all = self.all();
        let waits = all.iter().zip(all.iter().skip(1)).map(|(one, next)| (next.at - one.at).as_secs_f64());
        waits.filter(|wait| *wait > 0.0).collect()
    }
}

/// An agent as an input describes it, without handlers.
pub(super) fn agent(input: &Value, log: &Log) -> Result<LlmAgent, BoxError> {
    let model = ScriptModel::new("main", list(input, "model"), log);
    let scripts = object(input, "tool_script");
    let mut agent = LlmAgent::new("agent").model(model);
    for does in list(input, "tools") {
        agent = agent.tool(tool(does, &scripts, log)?);
    }
    Ok(agent)
}

/// A runner of an agent. As in the oracle, a tool that fails ends the run.
pub(super) fn builder(agent: LlmAgent) -> RunnerBuilder {
    let config = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    Runner::builder("app", agent).config(config)
}

/// A model that says what its script says.
pub(super) struct ScriptModel {
    name: String,
    script: Mutex<VecDeque<Value>>,
    log: Log,
}

impl ScriptModel {
    pub(super) fn new(name: &str, script: &[Value], log: &Log) -> Self {
        let script = Mutex::new(script.iter().cloned().collect());
        Self { name: name.to_owned(), script, log: log.clone() }
    }
}

impl Model for ScriptModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn generate(&self, _request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        self.log.note(&self.name, true);
        let reply = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let chunk = match reply {
            Some(reply) => said(&reply),
            None => Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), "the script is at its end")),
        };
        Box::pin(futures::stream::iter([chunk]))
    }
}

impl fmt::Debug for ScriptModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptModel({})", self.name)
    }
}

/// A reply of a model's script.
fn said(reply: &Value) -> Result<Chunk> {
    if let Some(error) = reply.get("error") {
        return Err(failure(error));
    }
    let words = text(reply, "text").map(Part::text);
    let calls = list(reply, "calls").iter().map(|call| {
        let id = text(call, "id").unwrap_or_default();
        Part::call(
            FunctionCall::new(text(call, "name").unwrap_or_default(), object(call, "args")).with_id(id),
        )
    });
    Ok(Chunk::Complete(Response::new(Content::new(Role::Model, words.into_iter().chain(calls)))))
}

/// The name of an error in the vectors, carried along as the source of our own.
#[derive(Debug)]
struct Kind(String);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Kind {}

/// The error that `{"kind","text"}` stands for.
pub(super) fn failure(error: &Value) -> Error {
    let kind = text(error, "kind").unwrap_or_default();
    let ours = match kind {
        "timeout" => ErrorKind::Timeout,
        "rate_limit" | "rate_limit_burst" => ErrorKind::Model(ModelErrorKind::RateLimited),
        "server" => ErrorKind::Model(ModelErrorKind::Overloaded),
        "model_retryable" => ErrorKind::Model(ModelErrorKind::Transport),
        "model_fatal" => ErrorKind::Model(ModelErrorKind::Auth),
        "parse" => ErrorKind::Model(ModelErrorKind::Other),
        _ => ErrorKind::Other,
    };
    Error::new(ours, text(error, "text").unwrap_or("boom")).with_source(Kind(kind.to_owned()))
}

/// The first error of that type among what caused an error.
pub(super) fn cause<T: std::error::Error + 'static>(error: &Error) -> Option<&T> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        source = error.source();
    }
    None
}

/// The name that an error has in the vectors.
pub(super) fn kind_of(error: &Error) -> &str {
    cause::<Kind>(error).map_or("unknown", |kind| &kind.0)
}

/// A tool that says its arguments, unless its script says something else.
fn tool(does: &Value, scripts: &Object, log: &Log) -> Result<FunctionTool, BoxError> {
    let name = text(does, "name").ok_or("a tool has no `name`")?.to_owned();
    let params = object(does, "params");
    let spec = ToolSpec::new(name.as_str(), "", schema_of(&Value::Object(params.clone())));
    let queue = |key: &String, script: &Value| {
        (key.clone(), script.as_array().cloned().unwrap_or_default().into_iter().collect::<VecDeque<_>>())
    };
    let scripts: Mutex<Vec<(String, VecDeque<Value>)>> =
        Mutex::new(scripts.iter().map(|(key, script)| queue(key, script)).collect());
    let log = log.clone();
    Ok(FunctionTool::raw(spec, move |cx, args| {
        let id = cx.call_id().map(|id| id.as_str().to_owned()).unwrap_or_default();
        let result = match params.keys().find(|param| !args.contains_key(*param)) {
            Some(missing) => Err(ToolError::invalid_arguments(format!("`{missing}` is missing"))),
            None => {
                log.note(&id, false);
                let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
                let mut scripted = |key: &str| {
                    scripts.iter_mut().find(|(of, _)| of == key).and_then(|(_, script)| script.pop_front())
                };
                match scripted(&id).or_else(|| scripted(&name)) {
                    Some(outcome) => match outcome.get("error") {
                        Some(error) => Err(failure(error).into()),
                        None => Ok(outcome.get("text").cloned().unwrap_or_default()),
                    },
                    None => {
                        let known = args.iter().filter(|(key, _)| params.contains_key(*key));
                        let mut known =
                            Value::Object(known.map(|(key, value)| (key.clone(), value.clone())).collect());
                        known.sort_all_objects();
                        Ok(Value::String(format!("{name} {known}")))
                    }
                }
            }
        };
        Box::pin(async move { Ok(result?.into()) })
    }))
}

/// What one message brings about.
pub(super) struct Ran {
    pub(super) error: Option<Error>,
    /// The messages that were stored.
    pub(super) messages: Vec<Value>,
}

/// Runs one message on a session.
pub(super) async fn run(runner: &Runner, key: &SessionKey, user: &str) -> Result<Ran, BoxError> {
    let before = stored(runner, key).await?.len();
    let mut error = None;
    let mut stream = runner.run(key, user);
    while let Some(item) = stream.next().await {
        error = item.err().or(error);
    }
    let messages = stored(runner, key).await?.iter().skip(before).flat_map(|event| messages(event)).collect();
    Ok(Ran { error, messages })
}

async fn stored(runner: &Runner, key: &SessionKey) -> Result<Vec<Arc<Event>>, BoxError> {
    let session = runner.sessions().get(key, EventFilter::default()).await?.ok_or("the session is gone")?;
    Ok(session.events.iter().cloned().collect())
}

/// The messages of an event in the form of the vectors.
fn messages(event: &Event) -> Vec<Value> {
    let Some(content) = &event.content else { return Vec::new() };
    if event.is_user() {
        return vec![json!({"role": "user", "text": content.text()})];
    }
    let responses = content.responses().map(|response| {
        let value = response.response.clone().unwrap_or_default();
        let error = value.get("error").cloned();
        let status = error.is_some().then(|| "error".into());
        let words = error.or_else(|| value.get("result").cloned()).unwrap_or_default();
        let message = json!({"role": "tool", "call_id": response.id, "name": response.name, "text": words});
        with(message, "status", status)
    });
    let responses: Vec<Value> = responses.collect();
    if !responses.is_empty() {
        return responses;
    }
    let call = |call: &FunctionCall| json!({"id": call.id, "name": call.name, "args": call.args.clone().unwrap_or_default()});
    let calls = content.has_calls().then(|| content.calls().map(call).collect());
    vec![with(json!({"role": "assistant", "text": content.text()}), "calls", calls)]
}

/// The object with a key more, if there is a value for it.
pub(super) fn with(mut object: Value, key: &str, value: Option<Value>) -> Value {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(key.to_owned(), value);
    }
    object
}
