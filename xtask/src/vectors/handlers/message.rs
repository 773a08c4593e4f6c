//! Messages as these vectors write them: `{"role", "text", "calls"?, "call_id"?, "name"?, "status"?}`.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{BoxError, Content, Event, FunctionCall, FunctionResponse, Object, Part, Role};

use crate::vectors::script::{list, object, text};

/// A message of a vector as a content.
pub(super) fn content(message: &Value) -> Result<Content, BoxError> {
    let words = text(message, "text").unwrap_or_default();
    match text(message, "role") {
        Some("user") => Ok(Content::user(words)),
        Some("assistant") => {
            let words = Some(words).filter(|words| !words.is_empty()).map(Part::text);
            let calls = list(message, "calls").iter().map(|call| Part::call(call_of(call)));
            Ok(Content::new(Role::Model, words.into_iter().chain(calls)))
        }
        Some("tool") => {
            let key = if text(message, "status") == Some("error") { "error" } else { "result" };
            let answer = Object::from_iter([(key.to_owned(), words.into())]);
            let (id, name) = (text(message, "call_id").map(Into::into), text(message, "name"));
            Ok(Content::user(Part::response(FunctionResponse::new(id, name.unwrap_or_default(), answer))))
        }
        other => Err(format!("there is no role {other:?}").into()),
    }
}

fn call_of(call: &Value) -> FunctionCall {
    let made = FunctionCall::new(text(call, "name").unwrap_or_default(), object(call, "args"));
    match text(call, "id") {
        Some(id) => made.with_id(id),
        None => made,
    }
}

/// The messages of events, as a vector writes them. An event that says nothing is none.
pub(super) fn of_events(events: &[Arc<Event>]) -> Vec<Value> {
    events.iter().filter_map(|event| event.content.as_ref()).flat_map(|content| of_content(content)).collect()
}

/// A content as a vector writes it: each answer of a tool is a message of its own.
pub(super) fn of_content(content: &Content) -> Vec<Value> {
    let answers: Vec<Value> = content.responses().map(answer).collect();
    if !answers.is_empty() {
        return answers;
    }
    let is_model = content.role == Some(Role::Model);
    let mut message = json!({"role": if is_model { "assistant" } else { "user" }, "text": content.text()});
    let calls: Vec<Value> = content
        .calls()
        .map(|call| json!({"id": call.id, "name": call.name, "args": call.args.clone().unwrap_or_default()}))
        .collect();
    if let Some(message) = message.as_object_mut().filter(|_| !calls.is_empty()) {
        message.insert("calls".to_owned(), calls.into());
    }
    vec![message]
}

fn answer(response: &FunctionResponse) -> Value {
    let given = response.response.clone().unwrap_or_default();
    let said = given.get("error").or_else(|| given.get("result"));
    let words = said.map_or_else(|| Value::Object(given.clone()).to_string(), umbel::json::render);
    let mut message = json!({"role": "tool", "text": words, "call_id": response.id});
    if let Some(message) = message.as_object_mut() {
        if !response.name.is_empty() {
            message.insert("name".to_owned(), response.name.as_str().into());
        }
        if given.contains_key("error") {
            message.insert("status".to_owned(), "error".into());
        }
    }
    message
}

/// Makes two lists of messages comparable: results of one turn are a set, and a tool that the vector does not name is
/// not compared.
pub(super) fn settle(expected: &mut Value, actual: &mut Value) {
    for side in [&mut *expected, &mut *actual] {
        let Some(messages) = side.as_array_mut() else { continue };
        for turn in messages.chunk_by_mut(|one, next| is_answer(one) && is_answer(next)) {
            turn.sort_by_key(|message| text(message, "call_id").unwrap_or_default().to_owned());
        }
    }
    let pairs = expected.as_array().into_iter().flatten().zip(actual.as_array_mut().into_iter().flatten());
    for (expected, actual) in pairs.filter(|(expected, _)| is_answer(expected)) {
        if let Some(actual) = actual.as_object_mut().filter(|_| expected.get("name").is_none()) {
            actual.remove("name");
        }
    }
}

/// The same for the messages of all runs of a case.
pub(super) fn settle_runs(expected: &mut Value, actual: &mut Value) {
    let wanted = expected.get_mut("runs").and_then(Value::as_array_mut);
    let got = actual.get_mut("runs").and_then(Value::as_array_mut);
    for (wanted, got) in wanted.into_iter().flatten().zip(got.into_iter().flatten()) {
        if let (Some(wanted), Some(got)) = (wanted.get_mut("messages"), got.get_mut("messages")) {
            settle(wanted, got);
        }
    }
}

fn is_answer(message: &Value) -> bool {
    text(message, "role") == Some("tool")
}

/// JSON with sorted keys and without spaces.
pub(super) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort();
            let entry = |key: &&String| {
                format!(
                    "{}:{}",
                    Value::String((*key).clone()),
                    object.get(*key).map_or_else(String::new, canonical)
                )
            };
            format!("{{{}}}", keys.iter().map(entry).collect::<Vec<_>>().join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_way_there_and_back() {
        for message in [
            json!({"role": "user", "text": "go"}),
            json!({"role": "assistant", "text": "", "calls": [{"id": "k1", "name": "f", "args": {"q": "v"}}]}),
            json!({"role": "tool", "text": "no", "call_id": "k1", "name": "f", "status": "error"}),
            json!({"role": "tool", "text": "yes", "call_id": "k1", "name": "f"}),
        ] {
            assert_eq!(of_content(&content(&message).unwrap()), [message]);
        }
    }

    #[test]
    fn results_of_one_turn_are_a_set() {
        let result = |id: &str| json!({"role": "tool", "text": id, "call_id": id, "name": "f"});
        let mut expected = json!([result("k2"), result("k1"), {"role": "user", "text": "x"}, result("k0")]);
        let mut actual = json!([result("k1"), result("k2"), {"role": "user", "text": "x"}, result("k0")]);
        settle(&mut expected, &mut actual);
        assert_eq!(expected, actual);
    }

    #[test]
    fn canonical_json_has_sorted_keys_and_no_spaces() {
        assert_eq!(
            canonical(&json!({"b": [1, {"d": "ä", "c": null}], "a": 2})),
            r#"{"a":2,"b":[1,{"c":null,"d":"ä"}]}"#
        );
    }
}
