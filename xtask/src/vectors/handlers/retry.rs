//! Models and tools that are asked again, and models in the place of others.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use umbel::backoff::Backoff;
use umbel::handlers::{ModelFallback, ModelRetry, OnFailure};
use umbel::{BoxError, Error, Handler, ToolRetry};

use super::message::settle;
use super::play::{Play, both_ways, built};
use super::scene::{Scene, SceneModel, Scripted, Seen};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    both_ways(case, once).await
}

async fn once(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let scene = Scene::new(&case.input);
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let mut agent = scene.agent(&case.input, model)?;
    for handler in list(&case.input, "handlers") {
        let Ok(handler) = made(handler, &case.input, &scene) else { return Ok(Checked::refused(case)) };
        agent = agent.handler(handler);
    }
    let Some(play) = built(Play::new(agent, streaming))? else { return Ok(Checked::refused(case)) };
    let played = play.run("t1", &[json!({"role": "user", "text": "go"})]).await?;
    let seen = scene.seen();
    let mut actual = json!({
        "outcome": if played.error.is_some() { "error" } else { "ok" },
        "model_attempts": seen.asked.iter().map(|(name, ..)| name).collect::<Vec<_>>(),
        "tool_attempts": seen.ran.iter().map(|(id, ..)| id).collect::<Vec<_>>(),
        "delays": delays(&seen),
    });
    if let Some(actual) = actual.as_object_mut() {
        match &played.error {
            Some(error) => actual.insert("error".to_owned(), Scripted::shown(error)),
            None => actual.insert("messages".to_owned(), played.messages.get(1..).unwrap_or_default().into()),
        };
    }
    let mut expected = case.expect.clone();
    if let (Some(wanted), Some(got)) = (expected.get_mut("messages"), actual.get_mut("messages")) {
        settle(wanted, got);
    }
    // Calls of one turn are made at once.
    for side in [&mut expected, &mut actual] {
        if let Some(attempts) = side.get_mut("tool_attempts").and_then(Value::as_array_mut) {
            attempts.sort_by_key(ToString::to_string);
        }
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

/// The waits before attempts, in seconds. Time stands still but for them.
fn delays(seen: &Seen) -> Vec<f64> {
    let asked = seen.asked.iter().map(|(.., at)| *at);
    let mut moments: Vec<Instant> = asked.chain(seen.ran.iter().map(|(.., at)| *at)).collect();
    moments.sort();
    let waits = moments.iter().zip(moments.iter().skip(1)).map(|(one, next)| *next - *one);
    // A timer counts milliseconds.
    waits.map(|wait| wait.as_millis()).filter(|wait| *wait > 0).map(|wait| wait as f64 / 1000.0).collect()
}

/// A handler as a vector describes it. An error if it cannot be.
fn made(handler: &Value, input: &Value, scene: &Arc<Scene>) -> Result<Arc<dyn Handler>, BoxError> {
    match text(handler, "kind") {
        Some("model_retry") => Ok(Arc::new(model_retry(handler, input)?)),
        Some("tool_retry") => Ok(Arc::new(tool_retry(handler, input)?)),
        Some("model_fallback") => {
            let scripts = input.get("fallback_models").cloned().unwrap_or_default();
            let names = list(handler, "models").iter().filter_map(Value::as_str);
            let mut models = names.map(|name| SceneModel::new(name, list(&scripts, name), scene));
            let first = models.next().ok_or("a fallback has no models")?;
            Ok(Arc::new(models.fold(ModelFallback::new(first), ModelFallback::then)))
        }
        other => Err(format!("there is no handler {other:?}").into()),
    }
}

fn model_retry(handler: &Value, input: &Value) -> Result<ModelRetry, BoxError> {
    let mut retry = ModelRetry::new().backoff(backoff(handler, input)?);
    if let Some(retries) = handler.get("max_retries").and_then(Value::as_i64) {
        retry = retry.max_retries(u32::try_from(retries)?);
    }
    if handler.get("retry_on").is_some() {
        retry = retry.retry_on(listed(handler));
    }
    let on_failure = handler.get("on_failure").cloned().unwrap_or_default();
    Ok(match (on_failure.as_str(), text(&on_failure, "text")) {
        (Some("error"), _) => retry.on_failure(OnFailure::Error),
        (_, Some(_)) => retry.on_failure(OnFailure::say(move |error, _| said(&on_failure, error))),
        _ => retry,
    })
}

fn tool_retry(handler: &Value, input: &Value) -> Result<ToolRetry, BoxError> {
    let mut retry = ToolRetry::new().backoff(backoff(handler, input)?);
    if let Some(retries) = handler.get("max_retries").and_then(Value::as_i64) {
        retry = retry.max_retries(u32::try_from(retries)?);
    }
    if handler.get("retry_on").is_some() {
        retry = retry.retry_on(listed(handler));
    }
    if handler.get("tools").is_some() {
        retry = retry.tools(list(handler, "tools").iter().filter_map(Value::as_str));
    }
    let on_failure = handler.get("on_failure").cloned().unwrap_or_default();
    Ok(match (on_failure.as_str(), text(&on_failure, "text")) {
        (Some("error"), _) => retry.or_fail(),
        (_, Some(_)) => retry.or_say(move |error| said(&on_failure, error)),
        _ => retry,
    })
}

/// Whether an error is of a kind that `retry_on` lists, sub-kinds included.
fn listed(handler: &Value) -> impl Fn(&Error) -> bool + Send + Sync + 'static {
    let kinds = list(handler, "retry_on").to_vec();
    move |error| {
        let kind = Scripted::find(error).map_or("", |scripted| &scripted.kind);
        kinds
            .iter()
            .filter_map(Value::as_str)
            .any(|listed| kind == listed || kind.strip_prefix(listed).is_some_and(|sub| sub.starts_with('_')))
    }
}

/// The words of `{"text"}`, with the error's kind in its place.
fn said(on_failure: &Value, error: &Error) -> String {
    let kind = Scripted::find(error).map_or("", |scripted| &scripted.kind);
    text(on_failure, "text").unwrap_or_default().replace("{kind}", kind)
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
