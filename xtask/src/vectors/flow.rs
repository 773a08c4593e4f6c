//! Whole runs: runner, agents with scripted models, tools and hooks, several turns.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    BoxError, Content, CountingIds, EventFilter, RunConfig, RunLimits, Runner, SessionKey, ToolErrors,
};

use super::case::{Case, Checked};
use super::script::{Stage, calm_previews, event, forget_codes, hide_errors, list, object};
use super::tokens::Tokens;

pub(super) async fn check(case: &Case) -> Result<Checked, BoxError> {
    // Texts may try to forge our marks, so inputs have tokens too.
    let input = &Tokens::default().fill(&case.input);
    let root = input.get("root").ok_or("the input has no `root`")?;
    let stage = Stage::new(input);
    let runner = runner(&stage, input, root)?;
    let session = runner.create_session_with("user", "session", object(input, "state")).await?;
    let mut turns = Vec::new();
    for message in list(input, "turns") {
        turns.push(turn(&runner, &session.key, serde_json::from_value(message.clone())?).await?);
    }
    let stored = runner.sessions().get(&session.key, EventFilter::default()).await?;
    let stored = stored.ok_or("the session is gone")?;
    let events = stored.events.iter().map(|stored| event(stored)).collect::<Result<Vec<_>, _>>()?;
    let mut actual = json!({
        "turns": turns,
        "requests": stage.log().requests(),
        "trace": stage.log().trace(),
        "state": stored.state.to_object(),
        "stored_events": events,
    });
    let mut expected = case.expect.clone();
    for side in [&mut expected, &mut actual] {
        settle_errors(side);
        calm_previews(side);
        if case.has_tag("opaque_error") {
            hide_errors(side);
        }
        if case.has_tag("parallel") {
            order(side);
        }
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::of_tree(root) })
}

fn runner(stage: &Stage, input: &Value, root: &Value) -> Result<Runner, BoxError> {
    let mut limits = RunLimits::default();
    if let Some(calls) = input.get("max_llm_calls").and_then(Value::as_i64) {
        limits.model_calls = u32::try_from(calls.max(0))?;
    }
    let config = RunConfig {
        streaming: stage.streaming(),
        limits,
        tool_errors: ToolErrors::Fail,
        ..RunConfig::default()
    };
    let builder = Runner::builder("app", stage.agent(root)?).ids(CountingIds::default()).config(config);
    let builder = stage.hooks().plugins().into_iter().fold(builder, umbel::RunnerBuilder::plugin);
    Ok(builder.build()?)
}

/// What one message brings about.
async fn turn(runner: &Runner, key: &SessionKey, message: Content) -> Result<Value, BoxError> {
    let (mut events, mut error) = (Vec::new(), None);
    let mut stream = runner.run(key, message);
    while let Some(item) = stream.next().await {
        match item {
            Ok(item) => events.push(event(&Arc::unwrap_or_clone(item))?),
            Err(escaped) => error = Some(escaped),
        }
    }
    let mut turn = json!({"events": events});
    if let (Some(error), Some(turn)) = (error, turn.as_object_mut()) {
        turn.insert("error".to_owned(), json!({"message": error.message()}));
    }
    Ok(turn)
}

/// Errors count by their message; their names are the oracle's own.
fn settle_errors(run: &mut Value) {
    let mut escaped = Vec::new();
    let turns = run.get_mut("turns").and_then(Value::as_array_mut);
    for error in turns.into_iter().flatten().filter_map(|turn| turn.get_mut("error")) {
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        *error = json!({"message": message});
        escaped.push(message);
    }
    forget_codes(run, &escaped);
}

/// Where agents or tools work at the same time, only the order on each branch counts.
fn order(run: &mut Value) {
    let word =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let turns = run.get_mut("turns").and_then(Value::as_array_mut);
    for events in turns.into_iter().flatten().filter_map(|turn| turn.get_mut("events")?.as_array_mut()) {
        events.sort_by_key(|event| word(event, "branch"));
    }
    if let Some(events) = run.get_mut("stored_events").and_then(Value::as_array_mut) {
        events.sort_by_key(|event| word(event, "branch"));
    }
    if let Some(requests) = run.get_mut("requests").and_then(Value::as_array_mut) {
        requests.sort_by_key(|request| word(request, "agent"));
    }
    if let Some(trace) = run.get_mut("trace").and_then(Value::as_array_mut) {
        trace.sort_by_key(|entry| entry.as_str().unwrap_or_default().to_owned());
    }
}
