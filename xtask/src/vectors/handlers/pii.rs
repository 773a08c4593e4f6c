//! Personal data: in texts, in messages, in whole runs, and in texts that come piece by piece.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::pii::{Pii, PiiBlocked, PiiRule, PiiStrategy};
use umbel::{
    BoxError, Content, Error, FunctionResponse, Handler, History, ModelRequest, Part, Payload, Role,
    Transcript,
};

use super::message::{content, of_content, settle};
use super::play::{Play, both_ways};
use super::scene::{Scene, SceneModel};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let actual = match text(&case.input, "op") {
        Some("text") => in_text(&case.input)?,
        Some("messages") => in_messages(&case.input)?,
        Some("agent") => return both_ways(case, in_run).await,
        other => return Err(format!("there is no operation {other:?}").into()),
    };
    Ok(Checked::plain(case.expect.clone(), actual))
}

/// A text that comes piece by piece. Where what the oracle lets through is not what it says at the end, only the end is
/// compared: all that passes must make it up.
pub(in crate::vectors) fn check_stream(case: &Case) -> Result<Checked, BoxError> {
    let lookback = case.input.get("lookback").and_then(Value::as_u64).ok_or("there is no `lookback`")?;
    let mut redactor = rule(&case.input)?.stream(usize::try_from(lookback)?);
    let mut passed = Vec::new();
    for delta in list(&case.input, "deltas").iter().filter_map(Value::as_str) {
        match redactor.push(delta) {
            Ok(piece) => passed.push(piece),
            Err(error) => {
                let mut blocked = blocked(&error)?;
                if let Some(blocked) = blocked.as_object_mut() {
                    blocked.insert("after_delta".to_owned(), passed.len().into());
                }
                let actual = json!({"blocked": blocked, "deltas": passed});
                return Ok(Checked::plain(case.expect.clone(), actual));
            }
        }
    }
    let (emitted, held) = (passed.concat(), redactor.finish()?);
    let end = format!("{emitted}{held}");
    if case.expect.get("stream_equals_final") == Some(&Value::Bool(true)) {
        let actual = json!({"deltas": passed, "emitted": emitted, "held_at_end": held, "final": end,
                            "stream_equals_final": true});
        return Ok(Checked::plain(case.expect.clone(), actual));
    }
    Ok(Checked::plain(json!({"final": case.expect.get("final")}), json!({"final": end})))
}

fn rule(value: &Value) -> Result<PiiRule, BoxError> {
    let kind = text(value, "type").ok_or("a rule has no `type`")?;
    let rule = match text(value, "pattern") {
        Some(pattern) => PiiRule::pattern(kind, pattern)?,
        None => PiiRule::built_in(kind)?,
    };
    let strategy = match text(value, "strategy") {
        Some("redact") => PiiStrategy::Redact,
        Some("mask") => PiiStrategy::Mask,
        Some("hash") => PiiStrategy::Hash,
        Some("block") => PiiStrategy::Block,
        other => return Err(format!("there is no strategy {other:?}").into()),
    };
    let applies = |to: &str| list(value, "apply").iter().any(|place| place == to);
    let rule = rule.strategy(strategy).input(applies("input"));
    Ok(rule.output(applies("output")).tool_results(applies("tool_results")))
}

fn rules(input: &Value) -> Result<Vec<PiiRule>, BoxError> {
    list(input, "rules").iter().map(rule).collect()
}

/// What a run or a text was stopped for.
fn blocked(error: &Error) -> Result<Value, BoxError> {
    let mut source = std::error::Error::source(error);
    while let Some(here) = source {
        if let Some(PiiBlocked { kind, count }) = here.downcast_ref::<PiiBlocked>() {
            return Ok(json!({"type": kind.as_str(), "count": count}));
        }
        source = here.source();
    }
    Err(error.message().into())
}

fn in_text(input: &Value) -> Result<Value, BoxError> {
    let (rule, words) = (rule(input)?, text(input, "text").unwrap_or_default());
    let found = rule.detect(words).into_iter();
    let found: Vec<Value> =
        found.map(|found| json!({"value": found.value, "start": found.start, "end": found.end})).collect();
    Ok(match rule.apply(words) {
        Ok(words) => json!({"matches": found, "text": words, "literal": words}),
        Err(error) => json!({"matches": found, "blocked": blocked(&error)?}),
    })
}

fn in_messages(input: &Value) -> Result<Value, BoxError> {
    let messages = list(input, "messages");
    let history =
        messages.iter().map(|message| spoken(message).map(Arc::new)).collect::<Result<History, _>>()?;
    let mut history = Transcript::new(history);
    if let Err(error) = redact(input, messages, &mut history) {
        return Ok(json!({"blocked": blocked(&error)?}));
    }
    let shown: Vec<Value> =
        history.iter().zip(messages).map(|(content, like)| patched(content, like)).collect();
    Ok(json!({"changed": shown != messages, "messages": shown}))
}

/// Each rule is a handler of its own. Older messages were looked at before.
fn redact(input: &Value, messages: &[Value], history: &mut Transcript) -> umbel::Result<()> {
    let rules = rules(input).map_err(|e| Error::new(umbel::ErrorKind::InvalidInput, e.to_string()))?;
    let last = |role: &str| messages.iter().rposition(|message| text(message, "role") == Some(role));
    let behind_model = last("assistant").map_or(0, |place| place + 1);
    if text(input, "phase") == Some("before_model") {
        for rule in rules {
            let users = Pii::new(rule.clone().tool_results(false));
            users.redact_history(history, last("user").unwrap_or(messages.len()))?;
            Pii::new(rule.input(false)).redact_history(history, behind_model)?;
        }
        return Ok(());
    }
    let Some(place) = behind_model.checked_sub(1) else { return Ok(()) };
    for rule in rules.into_iter().rev() {
        let answer = history.get(place).map(|answer| Pii::new(rule).redact_answer(answer));
        if let Some(changed) = answer.transpose()?.flatten() {
            history.replace(place, changed);
        }
    }
    Ok(())
}

/// A message as a content; unlike elsewhere it may have blocks, or be the system's.
fn spoken(message: &Value) -> Result<Content, BoxError> {
    let blocks = list(message, "blocks");
    if !blocks.is_empty() {
        let block = |block: &Value| match text(block, "text") {
            Some(words) => Ok(Part::text(words)),
            None => serde_json::from_value(json!({"fileData": {"fileUri": block.get("url")}})),
        };
        return Ok(Content::new(Role::User, blocks.iter().map(block).collect::<Result<Vec<_>, _>>()?));
    }
    match text(message, "role") {
        Some("system") => {
            let words = Part::text(text(message, "text").unwrap_or_default());
            Ok(Content::new(Role::Other("system".into()), [words]))
        }
        _ => content(message),
    }
}

/// The message with the words of a content in the place of its own.
fn patched(content: &Content, like: &Value) -> Value {
    let mut message = like.clone();
    for (part, block) in content.parts.iter().zip(blocks_mut(&mut message)) {
        let (key, words) = match &part.payload {
            Payload::FileData(file) => ("url", file.file_uri.as_deref()),
            _ => ("text", part.as_text()),
        };
        if let Some(place) = block.get_mut(key) {
            *place = json!(words);
        }
    }
    let answered = |response: &FunctionResponse| response.response.as_ref()?.values().next().cloned();
    let words = content.responses().find_map(answered).unwrap_or_else(|| content.text().into());
    if let Some(place) = message.get_mut("text") {
        *place = words;
    }
    let calls = of_content(content).into_iter().next().and_then(|shown| shown.get("calls").cloned());
    if let (Some(place), Some(calls)) = (message.get_mut("calls"), calls) {
        *place = calls;
    }
    message
}

fn blocks_mut(message: &mut Value) -> impl Iterator<Item = &mut Value> {
    message.get_mut("blocks").and_then(Value::as_array_mut).into_iter().flatten()
}

async fn in_run(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let scene = Scene::new(&case.input);
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let agent = scene.agent(&case.input, model)?;
    // The oracle's state holds what users said redacted, so it must not reach the log otherwise.
    let handler = |rule: PiiRule| Arc::new(Pii::new(rule).on_entry()) as Arc<dyn Handler>;
    let handlers = rules(&case.input)?.into_iter().map(handler).collect();
    let play = Play::with_handlers(agent, handlers, streaming)?;
    let played = play.run("t1", list(&case.input, "messages")).await?;
    let seen = scene.seen();
    let saw = |request: &ModelRequest| -> Vec<Value> {
        request.contents.iter().flat_map(|content| of_content(content)).collect()
    };
    let saw: Vec<Vec<Value>> = seen.asked.iter().map(|(_, request, _)| saw(request)).collect();
    let mut actual = json!({"ran": seen.ran(), "model_saw": saw});
    let mut expected = case.expect.clone();
    if let Some(actual) = actual.as_object_mut() {
        match &played.error {
            Some(error) => actual.insert("blocked".to_owned(), blocked(error)?),
            None => actual.insert("messages".to_owned(), played.messages.into()),
        };
    }
    if let (Some(wanted), Some(got)) = (expected.get_mut("messages"), actual.get_mut("messages")) {
        settle(wanted, got);
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}
