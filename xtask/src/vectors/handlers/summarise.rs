//! Summaries: when they are due, what they cover, and what stands in its place.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::{ApproximateTokens, Keep, Summarise, TokenCounter, Trigger};
use umbel::{BoxError, CallId, Content, History, Part, text as words};

use super::message::{content, of_content};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) fn check(case: &Case) -> Result<Checked, BoxError> {
    let Some(summarise) = handler(&case.input)? else { return Ok(Checked::refused(case)) };
    let messages = list(&case.input, "messages");
    let history = history(messages)?;
    let tokens = tokens(&case.input, &history);
    let reported = reported(messages);
    let cut = summarise.plan(&history, tokens, reported).unwrap_or(0);
    let (old, kept): (Vec<Arc<Content>>, Vec<Arc<Content>>) =
        (history.iter().take(cut).cloned().collect(), history.iter_from(cut).cloned().collect());
    let summary = Arc::new(Content::user(Part::text(words::summary("SUM"))));
    let result = (cut > 0).then(|| shown([&summary].into_iter().chain(&kept)));
    let mut actual = json!({
        "tokens": tokens,
        "triggered": summarise.is_due(history.len(), tokens, reported),
        "cut": cut,
        "summarised": (0..cut).collect::<Vec<_>>(),
        "kept": (cut..history.len()).collect::<Vec<_>>(),
        "result": result,
    });
    if let Some(actual) = actual.as_object_mut() {
        if case.expect.get("splits_pair").is_some() {
            actual.insert("splits_pair".to_owned(), splits(&history, cut).into());
        }
        if case.expect.get("summariser_saw").is_some() {
            let told = summarise.shown(&old);
            actual.insert("summariser_saw".to_owned(), shown(told.iter()).into());
        }
    }
    let mut expected = case.expect.clone();
    for message in expected.get_mut("result").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            message.retain(|key, _| key != "usage_total" && key != "provider");
        }
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

pub(super) fn history(messages: &[Value]) -> Result<History, BoxError> {
    messages.iter().map(|message| content(message).map(Arc::new)).collect()
}

/// The messages as vectors write them.
pub(super) fn shown<'a>(contents: impl Iterator<Item = &'a Arc<Content>>) -> Vec<Value> {
    contents.flat_map(|content| of_content(content)).collect()
}

/// The tokens of all messages.
pub(super) fn tokens(input: &Value, history: &History) -> u64 {
    let counter = counter(input);
    history.iter().map(|message| counter.count(message)).sum()
}

pub(super) fn counter(input: &Value) -> ApproximateTokens {
    let counter = input.get("counter").cloned().unwrap_or_default();
    ApproximateTokens {
        overhead: counter.get("overhead").and_then(Value::as_u64).unwrap_or_default(),
        chars_per_token: counter.get("chars_per_token").and_then(Value::as_f64),
        count_args: flag(&counter, "count_args"),
    }
}

/// The handler, unless its settings are refused.
fn handler(input: &Value) -> Result<Option<Summarise>, BoxError> {
    let Some(trigger) = trigger(input.get("trigger").unwrap_or(&Value::Null))? else { return Ok(None) };
    let trim = input.get("trim").and_then(Value::as_u64);
    let mut made = Summarise::new(trigger).counter(counter(input)).trim(trim);
    match input.get("keep") {
        None | Some(Value::Null) => {}
        Some(keep) => match keep_of(keep)? {
            Some(keep) => made = made.keep(keep),
            None => return Ok(None),
        },
    }
    if let Some(window) = input.get("max_input_tokens").and_then(Value::as_u64) {
        made = made.window(window);
    }
    Ok(made.check().ok().map(|()| made))
}

/// `null`, `[kind, n]`, `{kind: n, …}` (all of them) or a list of those (any of them). Nothing if we have no such trigger.
fn trigger(value: &Value) -> Result<Option<Trigger>, BoxError> {
    let one = |kind: &str, n: &Value| match kind {
        "messages" => n.as_u64().and_then(|n| usize::try_from(n).ok()).map(Trigger::Messages),
        "tokens" => n.as_u64().map(Trigger::Tokens),
        "fraction" => n.as_f64().map(Trigger::Fraction),
        _ => None,
    };
    Ok(match value {
        Value::Null => Some(Trigger::Any(Vec::new())),
        Value::Array(list) => match list.as_slice() {
            [Value::String(kind), n] => one(kind, n),
            any => any.iter().map(trigger).collect::<Result<Option<_>, _>>()?.map(Trigger::Any),
        },
        Value::Object(all) => {
            all.iter().map(|(kind, n)| one(kind, n)).collect::<Option<_>>().map(Trigger::All)
        }
        other => return Err(format!("there is no trigger {other}").into()),
    })
}

fn keep_of(value: &Value) -> Result<Option<Keep>, BoxError> {
    let Some([Value::String(kind), n]) = value.as_array().map(Vec::as_slice) else {
        return Err(format!("nothing is kept by {value}").into());
    };
    Ok(match kind.as_str() {
        "messages" => n.as_u64().and_then(|n| usize::try_from(n).ok()).map(Keep::Messages),
        "tokens" => n.as_u64().map(Keep::Tokens),
        "fraction" => n.as_f64().map(Keep::Fraction),
        _ => None,
    })
}

/// What the model reported last, if it is the one that is asked now.
fn reported(messages: &[Value]) -> Option<u64> {
    let last = messages.iter().rev().find(|message| text(message, "role") == Some("assistant"))?;
    last.get("usage_total").and_then(Value::as_u64).filter(|_| text(last, "provider") == Some("scripted"))
}

/// Whether an answer stands behind the cut and its call only before it.
fn splits(history: &History, cut: usize) -> bool {
    let calls = |id: &Option<CallId>, message: &Arc<Content>| message.calls().any(|call| call.id == *id);
    let before = |id: &Option<CallId>| history.iter().take(cut).any(|message| calls(id, message));
    let behind = |id: &Option<CallId>| history.iter_from(cut).any(|message| calls(id, message));
    let mut answers = history.iter_from(cut).flat_map(|message| message.responses());
    answers.any(|answer| before(&answer.id) && !behind(&answer.id))
}
