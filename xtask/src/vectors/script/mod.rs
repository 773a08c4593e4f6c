//! What vectors describe in JSON, brought to life: agents, models, tools and hooks that leave a trace.

mod agents;
mod hooks;
mod model;
mod normal;
mod tool;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use umbel::Object;

pub(super) use self::hooks::Hooks;
pub(super) use self::normal::{calm_previews, event, forget_codes, hide_errors, leave_out_empty};
pub(super) use self::tool::{ScriptTool, schema_of};

/// Everything of one case that agents, models, tools and hooks share.
#[derive(Clone)]
pub(super) struct Stage {
    log: Arc<Log>,
    hooks: Arc<Hooks>,
    streaming: bool,
}

/// What happened so far.
#[derive(Default)]
pub(super) struct Log {
    trace: Mutex<Vec<Value>>,
    requests: Mutex<Vec<Value>>,
}

impl Log {
    /// Notes that something was called.
    pub(super) fn note(&self, what: String) {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).push(Value::String(what));
    }

    /// Notes what a model was asked.
    fn asked(&self, request: Value) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }

    pub(super) fn trace(&self) -> Vec<Value> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Stage {
    /// The stage for an input, with its hooks. Vectors of single calls have the tool's name in the trace of hooks.
    pub(super) fn new(input: &Value) -> Self {
        let log: Arc<Log> = Arc::default();
        let single_calls = input.get("calls").is_some();
        let hooks = Arc::new(Hooks::read(list(input, "callbacks"), single_calls, &log));
        Self { log, hooks, streaming: text(input, "streaming") == Some("sse") }
    }

    pub(super) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    pub(super) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// Whether previews are wanted.
    pub(super) fn streaming(&self) -> bool {
        self.streaming
    }
}

/// A text of an object; null is as good as absent.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// A list of an object, empty if it is absent.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether an object says so.
pub(super) fn flag(value: &Value, key: &str) -> bool {
    value.get(key) == Some(&Value::Bool(true))
}

/// An object of an object, empty if it is absent.
pub(super) fn object(value: &Value, key: &str) -> Object {
    value.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}
