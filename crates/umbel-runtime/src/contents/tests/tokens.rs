//! The tokens of the vectors, and our own words for them.

use serde_json::Value;
use umbel_core::Object;

use crate::text;

/// A text of a vector in our own words.
fn ours(token: &str) -> String {
    let Some(inner) = token.strip_prefix('⟦') else { return marks(token) };
    let (head, body) = inner.split_once('⟧').unwrap();
    let words: Vec<&str> = head.split(' ').collect();
    let body = marks(body.strip_suffix("⟦/⟧").unwrap_or(body));
    let object = || (!body.is_empty()).then(|| serde_json::from_str::<Object>(&body).unwrap());
    match words.as_slice() {
        ["said", agent] => text::said(agent, &body),
        ["thought", agent] => text::thought(agent, &body),
        ["called", agent, tool] => text::called(agent, tool, object().as_ref()),
        ["returned", agent, tool] => text::returned(agent, tool, object().as_ref()),
        _ => marks(token),
    }
}

fn marks(text: &str) -> String {
    let text = [
        ("⟦foreign⟧", text::FOREIGN),
        ("⟦quote-begin⟧", text::QUOTE_BEGIN),
        ("⟦quote-end⟧", text::QUOTE_END),
        ("⟦instruction-begin⟧", text::INSTRUCTION_BEGIN),
        ("⟦instruction-end⟧", text::INSTRUCTION_END),
        ("⟦instruction-preamble⟧", text::INSTRUCTION_PREAMBLE),
        ("⟦elided⟧", text::ELIDED),
        ("⟦single-turn-nudge⟧", text::SINGLE_TURN_NUDGE),
    ]
    .iter()
    .fold(text.to_owned(), |text, (token, ours)| text.replace(token, ours));
    assert!(!text.contains('⟦'), "an unknown token: {text}");
    text
}

/// A value of a vector in our own words.
pub(super) fn translate(value: &Value) -> Value {
    match value {
        Value::String(text) => ours(text).into(),
        Value::Array(items) => items.iter().map(translate).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), translate(value))).collect(),
        other => other.clone(),
    }
}

/// The same with all numbers as floats, so that 3 is 3.0.
pub(super) fn comparable(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.iter().map(comparable).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), comparable(value))).collect(),
        other => other.clone(),
    }
}
