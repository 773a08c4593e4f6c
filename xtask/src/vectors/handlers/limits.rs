//! Limits on how often models and tools are called.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
use umbel::{AfterOrder, BoxError, Error, ErrorKind, Handler};

use super::message::settle_runs;
use super::play::{Play, both_ways, built};
use super::scene::{Scene, SceneModel};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    both_ways(case, once).await
}

async fn once(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let scene = Scene::new(&case.input);
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let unused = model.unused();
    let mut agent = scene.agent(&case.input, model)?.after_order(AfterOrder::Reverse);
    for limit in list(&case.input, "handlers") {
        let Some(limit) = handler(limit) else { return Ok(Checked::refused(case)) };
        agent = agent.handler(limit);
    }
    let Some(play) = built(Play::new(agent, streaming))? else { return Ok(Checked::refused(case)) };
    let mut runs = Vec::new();
    for run in list(&case.input, "runs") {
        let before = scene.seen();
        let message = json!({"role": "user", "text": text(run, "user")});
        let played = play.run(text(run, "thread").unwrap_or("t1"), &[message]).await?;
        let seen = scene.seen();
        let mut ran: Vec<&String> = seen.ran.iter().skip(before.ran.len()).map(|(id, ..)| id).collect();
        ran.sort();
        let calls = seen.asked.len() - before.asked.len();
        let mut shown =
            json!({"outcome": "ok", "messages": played.messages, "ran": ran, "model_calls": calls});
        if let (Some(error), Some(shown)) = (&played.error, shown.as_object_mut()) {
            shown.insert("outcome".to_owned(), "error".into());
            shown.insert("error".to_owned(), reached(error));
        }
        runs.push(shown);
    }
    let mut actual = json!({"runs": runs, "replies_unused": unused()});
    let mut expected = case.expect.clone();
    settle_runs(&mut expected, &mut actual);
    settle_counts(&mut expected, &mut actual);
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

/// The handler, unless there is no such thing.
fn handler(limit: &Value) -> Option<Arc<dyn Handler>> {
    let number =
        |key: &str| limit.get(key).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    let (run, session) = (number("run"), number("thread"));
    if text(limit, "kind") == Some("model_call_limit") {
        let mut made = ModelCallLimit::new();
        made = run.into_iter().fold(made, ModelCallLimit::run);
        made = session.into_iter().fold(made, ModelCallLimit::session);
        let exit = match text(limit, "exit") {
            Some("end") => ModelLimitExit::End,
            Some("error") => ModelLimitExit::Error,
            _ => return None,
        };
        return Some(Arc::new(made.exit(exit)));
    }
    let mut made = text(limit, "tool").map_or_else(ToolCallLimit::new, ToolCallLimit::of);
    made = run.into_iter().fold(made, ToolCallLimit::run);
    made = session.into_iter().fold(made, ToolCallLimit::session);
    let exit = match text(limit, "exit") {
        Some("continue") => ToolLimitExit::Continue,
        Some("end") => ToolLimitExit::End,
        Some("error") => ToolLimitExit::Error,
        _ => return None,
    };
    Some(Arc::new(made.exit(exit)))
}

/// The error that a limit was reached, as vectors write it.
fn reached(error: &Error) -> Value {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(here) = source {
        if let Some(limit) = here.downcast_ref::<LimitReached>() {
            let counts = json!({
                "thread": [limit.session, limit.session_limit],
                "run": [limit.run, limit.run_limit],
            });
            return match error.kind() {
                ErrorKind::ModelCallLimit => with(counts, [("kind", json!("model_limit"))]),
                _ => with(counts, [("kind", json!("tool_limit")), ("tool", json!(limit.tool))]),
            };
        }
        source = here.source();
    }
    json!(error.message())
}

fn with<const N: usize>(mut object: Value, more: [(&str, Value); N]) -> Value {
    for (key, value) in more {
        if let Some(object) = object.as_object_mut() {
            object.insert(key.to_owned(), value);
        }
    }
    object
}

/// Calls are made at once, so what ran is a set.
fn settle_counts(expected: &mut Value, actual: &mut Value) {
    for side in [expected, actual] {
        for run in side.get_mut("runs").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(ran) = run.get_mut("ran").and_then(Value::as_array_mut) {
                ran.sort_by_key(ToString::to_string);
            }
        }
    }
}
