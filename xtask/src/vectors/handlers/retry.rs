//! Models and tools that are asked again, and other models in the place of one.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{ModelFallback, ModelRetry, OnFailure};
use umbel::layers::ToolRetry;
use umbel::{BoxError, Error, LlmAgent, Result};

use super::{Log, ScriptModel, agent, builder, kind_of, run, with};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};

pub(crate) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let (input, log) = (&case.input, Log::default());
    let mut built = agent(input, &log);
    for handler in list(input, "handlers") {
        built = built.and_then(|agent| handled(agent, handler, input, &log));
    }
    let Ok(Ok(runner)) = built.map(|agent| builder(agent).build()) else {
        return Ok(Checked::plain(case.expect.clone(), json!({"config_error": true})));
    };
    let key = runner.create_session("ann").await?.key;
    let ran = run(&runner, &key, "go").await?;
    // Calls of one turn run at the same time, so their order is not looked at.
    let mut calls = log.calls();
    calls.sort();
    let actual = json!({
        "outcome": if ran.error.is_some() { "error" } else { "ok" },
        "model_attempts": log.models(),
        "tool_attempts": calls,
        "delays": in_milliseconds(&log.delays()),
    });
    let actual = match &ran.error {
        Some(error) => with(actual, "error", Some(json!({"kind": kind_of(error), "text": error.message()}))),
        None => with(actual, "messages", ran.messages.get(1..).map(Value::from)),
    };
    let delays: Vec<f64> = list(&case.expect, "delays").iter().filter_map(Value::as_f64).collect();
    let mut expected = with(case.expect.clone(), "delays", Some(json!(in_milliseconds(&delays))));
    if let Some(calls) = expected.get_mut("tool_attempts").and_then(Value::as_array_mut) {
        calls.sort_by_key(|call| call.as_str().map(str::to_owned));
    }
    Ok(Checked::plain(expected, actual))
}

/// As a timer counts.
fn in_milliseconds(delays: &[f64]) -> Vec<f64> {
    delays.iter().map(|delay| (delay * 1000.0 - 1e-6).ceil()).collect()
}

/// The agent with one handler more.
fn handled(agent: LlmAgent, handler: &Value, input: &Value, log: &Log) -> Result<LlmAgent, BoxError> {
    match text(handler, "kind") {
        Some("model_retry") => Ok(agent.handler(model_retry(handler, input)?)),
        Some("tool_retry") => Ok(agent.handler(tool_retry(handler, input)?)),
        Some("model_fallback") => {
            let script = |name: &str| input.get("fallback_models").map(|models| list(models, name));
            let names = list(handler, "models").iter().filter_map(Value::as_str);
            let mut models = names.map(|name| ScriptModel::new(name, script(name).unwrap_or_default(), log));
            let first = models.next().ok_or("a fallback has no models")?;
            Ok(agent.handler(models.fold(ModelFallback::new(first), ModelFallback::then)))
        }
        other => Err(format!("there is no handler {other:?}").into()),
    }
}

fn model_retry(handler: &Value, input: &Value) -> Result<ModelRetry, BoxError> {
    let mut retry = ModelRetry::new().backoff(backoff(handler, input)?);
    retry = max_retries(handler)?.into_iter().fold(retry, ModelRetry::max_retries);
    if let Some(listed) = listed(handler)? {
        retry = retry.retry_on(listed);
    }
    Ok(match words(handler) {
        Some(words) => retry.on_failure(OnFailure::say(move |error, _| words(error))),
        None if text(handler, "on_failure") == Some("error") => retry.on_failure(OnFailure::Error),
        None => retry,
    })
}

fn tool_retry(handler: &Value, input: &Value) -> Result<ToolRetry, BoxError> {
    let mut retry = ToolRetry::new().backoff(backoff(handler, input)?);
    retry = max_retries(handler)?.into_iter().fold(retry, ToolRetry::max_retries);
    if let Some(listed) = listed(handler)? {
        retry = retry.retry_on(listed);
    }
    if handler.get("tools").is_some() {
        retry = retry.tools(list(handler, "tools").iter().filter_map(Value::as_str));
    }
    Ok(match words(handler) {
        Some(words) => retry.or_say(words),
        None if text(handler, "on_failure") == Some("error") => retry.or_fail(),
        None => retry,
    })
}

fn max_retries(handler: &Value) -> Result<Option<u32>, BoxError> {
    Ok(handler.get("max_retries").and_then(Value::as_i64).map(u32::try_from).transpose()?)
}

/// Whether an error is of a kind that the handler lists, or below one.
fn listed(handler: &Value) -> Result<Option<impl Fn(&Error) -> bool + 'static>, BoxError> {
    let Some(kinds) = handler.get("retry_on") else { return Ok(None) };
    let kinds: Vec<String> = serde_json::from_value(kinds.clone())?;
    Ok(Some(move |error: &Error| {
        let kind = kind_of(error);
        kinds.iter().any(|listed| kind == listed || (kind == "rate_limit_burst" && listed == "rate_limit"))
    }))
}

/// What is said of the last error, if the handler has words of its own.
fn words(handler: &Value) -> Option<impl Fn(&Error) -> String + 'static> {
    let words = text(handler.get("on_failure")?, "text")?.to_owned();
    Some(move |error: &Error| words.replace("{kind}", kind_of(error)))
}

/// The waits of a handler. Vectors have no jitter unless they say so.
fn backoff(handler: &Value, input: &Value) -> Result<Backoff, BoxError> {
    let number = |key: &str| handler.get(key).and_then(Value::as_f64);
    let duration = |key: &str| number(key).map(Duration::try_from_secs_f64).transpose();
    let mut backoff = Backoff::new().jitter(flag(handler, "jitter"));
    backoff = duration("initial_delay")?.into_iter().fold(backoff, Backoff::initial);
    backoff = duration("max_delay")?.into_iter().fold(backoff, Backoff::max);
    backoff = number("backoff_factor").into_iter().fold(backoff, Backoff::factor);
    if let Some(draw) = input.get("jitter_at").and_then(Value::as_f64) {
        backoff = backoff.draw(move || draw);
    }
    Ok(backoff)
}
