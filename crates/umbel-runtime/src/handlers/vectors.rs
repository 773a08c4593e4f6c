//! The vectors of handlers that keep a context in shape, run through the functions that the handlers use.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{CallId, Content, FunctionCall, FunctionResponse, History, Object, Part, Role};

use super::context_edit::{ClearResults, ContextEdit};
use super::summarise::{Keep, Summarise, Trigger};
use super::token_counter::{ApproximateTokens, count_all};

fn cases(file: &str) -> Vec<Value> {
    let path = format!("{}/../../vectors/handlers/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    file["cases"].as_array().unwrap().clone()
}

fn object(value: &Value) -> Object {
    value.as_object().unwrap().clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn content(message: &Value) -> Content {
    let words = text(&message["text"]);
    match text(&message["role"]) {
        "user" => Content::user(words),
        "assistant" => {
            let words = Some(Part::text(words)).filter(|_| !words.is_empty());
            let calls = message["calls"].as_array().into_iter().flatten().map(|call| {
                let id = text(&call["id"]);
                Part::call(FunctionCall::new(text(&call["name"]), object(&call["args"])).with_id(id))
            });
            Content::new(Role::Model, words.into_iter().chain(calls))
        }
        "tool" => {
            let key = if message["status"] == "error" { "error" } else { "result" };
            let said = Object::from_iter([(key.to_owned(), words.into())]);
            let id = Some(text(&message["call_id"]).into());
            Content::user(Part::response(FunctionResponse::new(id, text(&message["name"]), said)))
        }
        other => panic!("no message is of role {other}"),
    }
}

fn history(messages: &Value) -> History {
    messages.as_array().unwrap().iter().map(|message| Arc::new(content(message))).collect()
}

/// The same with neighbouring answers in one message.
fn merged(history: &History) -> History {
    let mut merged: Vec<Content> = Vec::new();
    for message in history {
        match merged.last_mut().filter(|last| last.has_responses() && message.has_responses()) {
            Some(last) => last.parts.extend(message.parts.iter().cloned()),
            None => merged.push((**message).clone()),
        }
    }
    merged.into_iter().map(Arc::new).collect()
}

/// The messages in the form of the vectors, one per answer.
fn messages(history: &History) -> Vec<Value> {
    let mut messages = Vec::new();
    for content in history {
        for response in content.responses() {
            let said = response.response.as_ref().unwrap();
            let (key, said) = said.iter().next().unwrap();
            let mut message = json!({"role": "tool", "text": said, "call_id": response.id});
            if !response.name.is_empty() {
                message["name"] = json!(response.name);
            }
            if key == "error" {
                message["status"] = json!("error");
            }
            messages.push(message);
        }
        if content.has_responses() {
            continue;
        }
        let role = if content.role == Some(Role::Model) { "assistant" } else { "user" };
        let mut message = json!({"role": role, "text": content.text()});
        if content.has_calls() {
            let call = |call: &FunctionCall| json!({"id": call.id, "name": call.name, "args": call.args});
            message["calls"] = content.calls().map(call).collect();
        }
        messages.push(message);
    }
    messages
}

fn counter(case: &Value) -> ApproximateTokens {
    ApproximateTokens {
        overhead: case["overhead"].as_u64().unwrap(),
        chars_per_token: case["chars_per_token"].as_f64(),
        count_args: case["count_args"].as_bool().unwrap_or(false),
    }
}

/// `None` for a measure that is not one of ours.
fn trigger(case: &Value) -> Option<Trigger> {
    let one = |kind: &str, n: &Value| {
        Some(match kind {
            "messages" => Trigger::Messages(n.as_u64()? as usize),
            "tokens" => Trigger::Tokens(n.as_u64()?),
            "fraction" => Trigger::Fraction(n.as_f64()?),
            _ => return None,
        })
    };
    match case {
        Value::Null => Some(Trigger::Any(Vec::new())),
        Value::Array(pair) if pair.first().is_some_and(Value::is_string) => one(text(&pair[0]), &pair[1]),
        Value::Array(any) => any.iter().map(trigger).collect::<Option<_>>().map(Trigger::Any),
        Value::Object(all) => {
            all.iter().map(|(kind, n)| one(kind, n)).collect::<Option<_>>().map(Trigger::All)
        }
        other => panic!("no trigger is {other}"),
    }
}

/// `None` for a measure that is not one of ours.
fn keep(case: &Value) -> Option<Keep> {
    let n = &case[1];
    Some(match text(&case[0]) {
        "messages" => Keep::Messages(n.as_u64()? as usize),
        "tokens" => Keep::Tokens(n.as_u64()?),
        "fraction" => Keep::Fraction(n.as_f64()?),
        _ => return None,
    })
}

fn summarise(input: &Value) -> Option<Summarise> {
    let mut summarise = Summarise::new(trigger(&input["trigger"])?)
        .counter(counter(&input["counter"]))
        .trim(input["trim"].as_u64());
    if !input["keep"].is_null() {
        summarise = summarise.keep(keep(&input["keep"])?);
    }
    if let Some(window) = input["max_input_tokens"].as_u64() {
        summarise = summarise.window(window);
    }
    summarise.check().ok().map(|()| summarise)
}

/// What the last message of the model reports, if it is of the model's provider.
fn reported(messages: &Value) -> Option<u64> {
    let last = messages.as_array()?.iter().rev().find(|message| message["role"] == "assistant")?;
    last["usage_total"].as_u64().filter(|_| last["provider"] == "scripted")
}

/// Whether an answer stands behind the cut and its call before it.
fn splits(history: &History, cut: usize) -> bool {
    let before = |id: &Option<CallId>| history.iter().take(cut).flat_map(|m| m.calls()).any(|c| c.id == *id);
    let behind = |id: &Option<CallId>| history.iter_from(cut).flat_map(|m| m.calls()).any(|c| c.id == *id);
    history.iter_from(cut).flat_map(|m| m.responses()).any(|answer| before(&answer.id) && !behind(&answer.id))
}

/// Cases in which the oracle forgets what was said without summing it up, and we do not.
const BETTER: [&str; 1] = ["trim-none-left"];

#[test]
fn summarise_does_what_the_oracle_does_and_never_splits_a_call_from_its_answer() {
    let cases = cases("summarise");
    assert!(cases.len() >= 61);
    for case in cases {
        let (name, input, expect) = (text(&case["name"]), &case["input"], &case["expect"]);
        let summarise = summarise(input);
        assert_eq!(summarise.is_none(), expect["config_error"] == true, "{name}");
        let Some(summarise) = summarise else { continue };
        let history = history(&input["messages"]);
        let tokens = count_all(&counter(&input["counter"]), &history);
        assert_eq!(json!(tokens), expect["tokens"], "{name}");
        let reported = reported(&input["messages"]);
        assert_eq!(json!(summarise.is_due(history.len(), tokens, reported)), expect["triggered"], "{name}");
        let cut = summarise.plan(&history, tokens, reported).unwrap_or(0);
        assert!(!splits(&history, cut), "{name}");
        if expect["splits_pair"] != true {
            assert_eq!(json!(cut), expect["cut"], "{name}");
        }
        let old: Vec<Arc<Content>> = history.iter().take(cut).cloned().collect();
        let shown: History = summarise.shown(&old).into_iter().collect();
        assert_eq!(shown.is_empty(), cut == 0, "{name}: whatever is summed up is shown");
        if expect.get("summariser_saw").is_some() && !BETTER.contains(&name) {
            assert_eq!(json!(messages(&shown)), expect["summariser_saw"], "{name}");
        }
        let merged = merged(&history);
        let cut = summarise.plan(&merged, tokens, reported).unwrap_or(0);
        assert!(!splits(&merged, cut), "{name}, answers in one message");
    }
}

fn edits(input: &Value) -> ContextEdit {
    let edit = |edit: &Value| {
        let number = |key: &str| edit[key].as_u64();
        let mut clear = number("trigger").map_or_else(ClearResults::default, ClearResults::above);
        if let Some(keep) = number("keep") {
            clear = clear.keep(keep as usize);
        }
        if let Some(tokens) = number("clear_at_least") {
            clear = clear.at_least(tokens);
        }
        if edit["clear_tool_inputs"] == true {
            clear = clear.inputs();
        }
        if let Some(words) = edit["placeholder"].as_str() {
            clear = clear.placeholder(words);
        }
        clear.exclude(edit["exclude_tools"].as_array().into_iter().flatten().map(text))
    };
    ContextEdit::of(input["edits"].as_array().unwrap().iter().map(edit)).counter(counter(&input["counter"]))
}

/// The oracle's messages in our words, without its marks: those are in the list of cleared calls.
fn ours(messages: &Value) -> Vec<Value> {
    let plain = |message: &Value| {
        let mut message = object(message);
        message.remove("cleared");
        message.remove("cleared_inputs");
        if message["text"] == "⟦cleared⟧" {
            message["text"] = json!(crate::text::CLEARED);
        }
        Value::Object(message)
    };
    messages.as_array().unwrap().iter().map(plain).collect()
}

#[test]
fn context_edit_does_what_the_oracle_does_whether_answers_stand_apart_or_together() {
    let cases = cases("context_edit");
    assert!(cases.len() >= 31);
    for case in cases {
        let (name, input, expect) = (text(&case["name"]), &case["input"], &case["expect"]);
        let edit = edits(input);
        let before =
            input["messages"].as_array().unwrap().iter().filter(|message| message["cleared"] == true);
        let before: Vec<CallId> = before.map(|message| text(&message["call_id"]).into()).collect();
        let apart = history(&input["messages"]);
        for history in [merged(&apart), apart] {
            assert_eq!(
                json!(count_all(&counter(&input["counter"]), &history)),
                expect["tokens_before"],
                "{name}"
            );
            let stored = messages(&history);
            let (edited, cleared) = edit.edit(&history, &before);
            assert_eq!(messages(&edited), ours(&expect["messages"]), "{name}");
            assert_eq!(json!(cleared), expect["cleared"], "{name}");
            assert_eq!(messages(&history), stored, "{name}: the history stays as it is");
        }
    }
}
