//! Models that are asked again, and others in their place.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{ModelFallback, ModelRetry, OnFailure};
use umbel::{BoxError, LlmAgent, Result};

use super::{Log, ScriptModel, agent, builder, kind_of, run};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};

pub(crate) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let (input, log) = (&case.input, Log::default());
    if list(input, "handlers").iter().any(|handler| text(handler, "kind") == Some("tool_retry")) {
        return Ok(Checked::Skipped);
    }
    let mut built = agent(input, &log);
    for handler in list(input, "handlers") {
        built = built.and_then(|agent| handled(agent, handler, input, &log));
    }
    let Ok(Ok(runner)) = built.map(|agent| builder(agent).build()) else {
        return Ok(Checked::plain(case.expect.clone(), json!({"config_error": true})));
    };
    let key = runner.create_session("ann").await?.key;
    let ran = run(&runner, &key, "go").await?;
    let mut actual = json!({
        "outcome": if ran.error.is_some() { "error" } else { "ok" },
        "model_attempts": log.models(),
        "tool_attempts": log.calls(),
        "delays": in_milliseconds(&log.delays()),
    });
    match &ran.error {
        Some(error) => actual["error"] = json!({"kind": kind_of(error), "text": error.message()}),
        None => actual["messages"] = ran.messages.get(1..).unwrap_or_default().into(),
    }
    let mut expected = case.expect.clone();
    let delays: Vec<f64> = list(&expected, "delays").iter().filter_map(Value::as_f64).collect();
    expected["delays"] = json!(in_milliseconds(&delays));
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
    if let Some(retries) = handler.get("max_retries").and_then(Value::as_i64) {
        retry = retry.max_retries(u32::try_from(retries)?);
    }
    if let Some(kinds) = handler.get("retry_on") {
        let kinds: Vec<String> = serde_json::from_value(kinds.clone())?;
        retry = retry.retry_on(move |error| {
            let kind = kind_of(error);
            kinds
                .iter()
                .any(|listed| kind == listed || (kind == "rate_limit_burst" && listed == "rate_limit"))
        });
    }
    let on_failure = handler.get("on_failure");
    Ok(match on_failure.and_then(|words| text(words, "text")).map(str::to_owned) {
        Some(words) => {
            retry.on_failure(OnFailure::say(move |error, _| words.replace("{kind}", kind_of(error))))
        }
        None if on_failure == Some(&json!("error")) => retry.on_failure(OnFailure::Error),
        None => retry,
    })
}

/// The waits of a handler. Vectors have no jitter unless they say so.
pub(super) fn backoff(handler: &Value, input: &Value) -> Result<Backoff, BoxError> {
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
