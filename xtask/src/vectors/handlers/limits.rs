//! Limits on calls of models and tools, over several runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use umbel::handlers::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
use umbel::{BoxError, Error, ErrorKind, LlmAgent, Result};

use super::{Log, agent, builder, cause, run, with};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, text};

pub(crate) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let log = Log::default();
    let built = list(&case.input, "handlers").iter().try_fold(agent(&case.input, &log)?, limited);
    let Ok(Ok(runner)) = built.map(|agent| builder(agent).build()) else {
        return Ok(Checked::plain(case.expect.clone(), json!({"config_error": true})));
    };
    let mut sessions = BTreeMap::new();
    let mut runs = Vec::new();
    for asked in list(&case.input, "runs") {
        let thread = text(asked, "thread").unwrap_or("t1");
        if !sessions.contains_key(thread) {
            sessions.insert(thread, runner.create_session("ann").await?.key);
        }
        let key = sessions.get(thread).ok_or("the session is gone")?;
        let (models, calls) = (log.models().len(), log.calls().len());
        let ran = run(&runner, key, text(asked, "user").unwrap_or_default()).await?;
        let made = json!({
            "outcome": if ran.error.is_some() { "error" } else { "ok" },
            "messages": ran.messages,
            "ran": log.calls().get(calls..),
            "model_calls": log.models().len() - models,
        });
        runs.push(with(made, "error", ran.error.as_ref().map(told)));
    }
    let replies = list(&case.input, "model").len();
    let actual = json!({"runs": runs, "replies_unused": replies.saturating_sub(log.models().len())});
    let mut expected = case.expect.clone();
    settle(&mut expected);
    Ok(Checked::plain(expected, actual))
}

/// The agent with one limit more.
fn limited(agent: LlmAgent, limit: &Value) -> Result<LlmAgent, BoxError> {
    let count = |key: &str| limit.get(key).and_then(Value::as_u64).map(u32::try_from).transpose();
    let (run, session) = (count("run")?, count("thread")?);
    match (text(limit, "kind"), text(limit, "exit")) {
        (Some("model_call_limit"), exit) => {
            let mut handler = ModelCallLimit::new().exit(match exit {
                Some("end") => ModelLimitExit::End,
                Some("error") => ModelLimitExit::Error,
                other => return Err(format!("there is no exit {other:?}").into()),
            });
            handler = run.into_iter().fold(handler, ModelCallLimit::run);
            Ok(agent.handler(session.into_iter().fold(handler, ModelCallLimit::session)))
        }
        (Some("tool_call_limit"), exit) => {
            let handler = text(limit, "tool").map_or_else(ToolCallLimit::new, ToolCallLimit::of);
            let mut handler = handler.exit(match exit {
                Some("continue") => ToolLimitExit::Continue,
                Some("end") => ToolLimitExit::End,
                Some("error") => ToolLimitExit::Error,
                other => return Err(format!("there is no exit {other:?}").into()),
            });
            handler = run.into_iter().fold(handler, ToolCallLimit::run);
            Ok(agent.handler(session.into_iter().fold(handler, ToolCallLimit::session)))
        }
        (other, _) => Err(format!("there is no handler {other:?}").into()),
    }
}

/// An error as the vectors tell it.
fn told(error: &Error) -> Value {
    let Some(reached) = cause::<LimitReached>(error) else { return json!({"kind": error.message()}) };
    let told = json!({
        "kind": if error.kind() == ErrorKind::ToolCallLimit { "tool_limit" } else { "model_limit" },
        "thread": [reached.session, reached.session_limit],
        "run": [reached.run, reached.run_limit],
    });
    with(told, "tool", (error.kind() == ErrorKind::ToolCallLimit).then(|| json!(reached.tool)))
}

/// What is ours on purpose: answers that no tool gave stand in the order of their calls, and a response that a limit
/// stops is not stored, since its calls would stay without an answer.
fn settle(expected: &mut Value) {
    let is_refused = |message: &Value| text(message, "status") == Some("error");
    for run in expected.get_mut("runs").and_then(Value::as_array_mut).into_iter().flatten() {
        let stopped = run.pointer("/error/kind") == Some(&json!("tool_limit"));
        let Some(messages) = run.get_mut("messages").and_then(Value::as_array_mut) else { continue };
        if stopped {
            messages.pop_if(|last| !list(last, "calls").is_empty());
        }
        for refused in messages.chunk_by_mut(|one, next| is_refused(one) && is_refused(next)) {
            refused.sort_by_key(|message| text(message, "call_id").map(str::to_owned));
        }
    }
}
