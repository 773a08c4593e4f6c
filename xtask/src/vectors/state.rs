//! Where state lives: operations on a session store.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{
    Actions, BoxError, Clock, Error, ErrorKind, Event, EventFilter, InMemorySessions, NewSession, Object,
    RunId, Session, SessionKey, SessionStore, Source, SystemClock,
};

use super::case::{Case, Checked};
use super::script::{flag, list, object, text};

pub(super) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let expected = case.expect.get("in_memory").ok_or("the expectation has no `in_memory`")?;
    let actual = perform(&InMemorySessions::new(), list(&case.input, "ops")).await?;
    Ok(Checked::plain(expected.clone(), Value::Array(actual)))
}

/// Does the operations on a store, and tells what each gave.
async fn perform(store: &dyn SessionStore, ops: &[Value]) -> Result<Vec<Value>, BoxError> {
    let mut handles: HashMap<SessionKey, Session> = HashMap::new();
    let mut records = Vec::new();
    for op in ops {
        let name = text(op, "op").ok_or("an operation has no `op`")?;
        let mut record = one(store, &mut handles, name, op).await.or_else(|error| {
            let code = error.downcast_ref::<Error>().map(|error| error_name(error.kind()));
            code.map(|code| json!({"error": code})).ok_or(error)
        })?;
        if let Some(record) = record.as_object_mut() {
            record.insert("op".to_owned(), name.into());
        }
        records.push(record);
    }
    Ok(records)
}

async fn one(
    store: &dyn SessionStore,
    handles: &mut HashMap<SessionKey, Session>,
    name: &str,
    op: &Value,
) -> Result<Value, BoxError> {
    let (app, user) = (text(op, "app").ok_or("no `app`")?, text(op, "user").ok_or("no `user`")?);
    let key = || SessionKey::new(app, user, text(op, "id").unwrap_or_default());
    match name {
        "create" => {
            let session = store.create(NewSession::new(key()?).state(object(op, "state"))).await?;
            let record = json!({"state": session.state.to_object()});
            handles.insert(session.key.clone(), session);
            Ok(record)
        }
        "append" => {
            let handle = handles.get_mut(&key()?).ok_or("the session was never opened")?;
            let event = handle.append(store, event(op)).await?;
            let delta = event.state_delta().cloned().unwrap_or_default();
            Ok(json!({"handle_state": handle.state.to_object(), "stored_delta": delta,
                      "handle_events": handle.events.len()}))
        }
        "reload" => {
            let count = |key: &str| op.get(key).and_then(Value::as_u64);
            let filter = EventFilter {
                recent: count("num_recent_events").map(usize::try_from).transpose()?,
                after: op.get("after_timestamp").and_then(Value::as_f64),
            };
            let Some(session) = store.get(&key()?, filter).await? else {
                return Ok(json!({"session": null}));
            };
            let record = json!({"state": session.state.to_object(), "events": session.events.len()});
            handles.insert(session.key.clone(), session);
            Ok(record)
        }
        "delete" => {
            store.delete(&key()?).await?;
            Ok(json!({}))
        }
        "list" => {
            let sessions = store.list(app, user).await?;
            let shown = |session: &Session| json!({"id": session.key.id(), "state": session.state.to_object(), "events": session.events.len()});
            Ok(json!({"sessions": sessions.iter().map(shown).collect::<Vec<_>>()}))
        }
        "user_state" => Ok(json!({"state": *store.user_state(app, user).await?})),
        other => Err(format!("there is no operation `{other}`").into()),
    }
}

fn event(op: &Value) -> Event {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    let delta: Object = object(op, "delta");
    if !delta.is_empty() {
        event = event.with_actions(Actions { state_delta: Some(delta), ..Actions::default() });
    }
    event.timestamp = op.get("timestamp").and_then(Value::as_f64).unwrap_or_else(|| SystemClock.now());
    event.partial = flag(op, "partial").then_some(true);
    event
}

/// The oracle's name for a kind of error.
fn error_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::SessionNotFound => "SessionNotFoundError",
        ErrorKind::AlreadyExists => "AlreadyExistsError",
        ErrorKind::StaleSession => "StaleSessionError",
        other => other.code(),
    }
}
