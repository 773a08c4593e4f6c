//! Reading objects whose unknown keys must survive.

use std::sync::{Arc, LazyLock};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};

/// A JSON object, keys in the order they came.
pub type Object = Map<String, Value>;

/// The empty object, shared: most sessions have no state.
pub fn empty_object() -> Arc<Object> {
    static EMPTY: LazyLock<Arc<Object>> = LazyLock::new(Arc::default);
    EMPTY.clone()
}

/// Takes known keys out of an object; what is left is kept as it came.
pub(crate) struct Fields {
    what: &'static str,
    map: Object,
}

impl Fields {
    pub(crate) fn new(what: &'static str, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { what, map }),
            other => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("{what} must be a JSON object, but is {}", kind_of(&other)),
            )),
        }
    }

    /// The value of `key`, gone from the rest. `null` counts as absent.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        match self.map.shift_remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|e| {
                Error::new(ErrorKind::InvalidInput, format!("{}: `{key}` cannot be read: {e}", self.what))
            }),
        }
    }

    pub(crate) fn rest(self) -> Object {
        self.map
    }
}

/// How many levels a value may have that a log keeps. It stands within other things there, and readers of JSON stop at 128.
pub const MAX_DEPTH: usize = 64;

/// Whether a value has no more levels than that.
pub fn is_within(value: &Value, levels: usize) -> bool {
    let below = |value: &Value| levels.checked_sub(1).is_some_and(|levels| is_within(value, levels));
    match value {
        Value::Array(items) => items.iter().all(below),
        Value::Object(fields) => fields.values().all(below),
        _ => true,
    }
}

/// What a JSON value is, in words.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A value as text for a prompt: a string is itself, null is empty, anything else is compact JSON.
pub fn render(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
