//! Events as vectors show them.

use serde_json::Value;
use umbel::{BoxError, Event, Object};

/// An event without what differs from run to run, and without actions that do nothing.
pub(crate) fn event(event: &Event) -> Result<Value, BoxError> {
    let mut value = serde_json::to_value(event)?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|key, _| !["id", "invocationId", "timestamp", "nodeInfo"].contains(&key.as_str()));
        if let Some(actions) = fields.get_mut("actions").and_then(Value::as_object_mut) {
            let nothing = |value: &Value| value.is_null() || value.as_object().is_some_and(Object::is_empty);
            actions.retain(|_, value| !nothing(value));
            if actions.is_empty() {
                fields.remove("actions");
            }
        }
    }
    Ok(value)
}

/// The words of an error do not count, only that there is one.
pub(crate) fn hide_errors(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(hide_errors),
        Value::Object(object) => {
            if let Some(error) = object.get_mut("response").and_then(|response| response.get_mut("error")) {
                *error = "…".into();
            }
            object.values_mut().for_each(hide_errors);
        }
        _ => {}
    }
}

/// A preview does nothing, so what it is said to do does not count: the oracle lets it share the actions of the event
/// that comes after it.
pub(crate) fn calm_previews(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(calm_previews),
        Value::Object(object) => {
            if object.get("partial") == Some(&Value::Bool(true)) {
                object.remove("actions");
            }
            object.values_mut().for_each(calm_previews);
        }
        _ => {}
    }
}

/// Leaves out a name or parts that are empty: the oracle tells them from absent ones, which means nothing.
pub(crate) fn leave_out_empty(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(leave_out_empty),
        Value::Object(object) => {
            if object.contains_key("role") && object.get("parts") == Some(&Value::Array(Vec::new())) {
                object.remove("parts");
            }
            for key in ["functionCall", "functionResponse"] {
                let named = object.get_mut(key).and_then(Value::as_object_mut);
                if let Some(named) = named.filter(|named| named.get("name") == Some(&"".into())) {
                    named.remove("name");
                }
            }
            object.values_mut().for_each(leave_out_empty);
        }
        _ => {}
    }
}

/// Forgets the codes of errors that escaped a run: vectors have the oracle's class names there.
pub(crate) fn forget_codes(value: &mut Value, escaped: &[String]) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| forget_codes(value, escaped)),
        Value::Object(object) => {
            let message = object.get("errorMessage").and_then(Value::as_str);
            if message.is_some_and(|message| escaped.iter().any(|escaped| escaped == message))
                && let Some(code) = object.get_mut("errorCode")
            {
                *code = "…".into();
            }
            object.values_mut().for_each(|value| forget_codes(value, escaped));
        }
        _ => {}
    }
}
