//! The project's vectors of state, on any session store.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{
    Actions, BoxError, Clock, Error, ErrorKind, Event, EventFilter, NewSession, Object, RunId, Session,
    SessionKey, SessionStore, Source, SystemClock,
};

use super::fresh_app;

/// Does the operations of a vector on a store, and tells what each gave.
pub async fn perform(store: &dyn SessionStore, ops: &[Value]) -> Result<Vec<Value>, BoxError> {
    let mut player = Player { store, apps: fresh_app(), handles: HashMap::new() };
    let mut records = Vec::new();
    for op in ops {
        let name = text(op, "op").ok_or("an operation has no `op`")?;
        let mut record = player.one(name, op).await.or_else(|error| {
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

/// Does one operation after the other.
struct Player<'a> {
    store: &'a dyn SessionStore,
    /// Stands before the names of apps, since vectors share a store.
    apps: String,
    handles: HashMap<SessionKey, Session>,
}

impl Player<'_> {
    async fn one(&mut self, name: &str, op: &Value) -> Result<Value, BoxError> {
        let app = format!("{} {}", self.apps, text(op, "app").ok_or("no `app`")?);
        let user = text(op, "user").ok_or("no `user`")?;
        let key = || SessionKey::new(&app, user, text(op, "id").unwrap_or_default());
        match name {
            "create" => {
                let session = self.store.create(NewSession::new(key()?).state(object(op, "state"))).await?;
                let record = json!({"state": session.state.to_object()});
                self.handles.insert(session.key.clone(), session);
                Ok(record)
            }
            "append" => {
                let handle = self.handles.get_mut(&key()?).ok_or("the session was never opened")?;
                let event = handle.append(self.store, event(op)).await?;
                let delta = event.state_delta().cloned().unwrap_or_default();
                Ok(json!({"handle_state": handle.state.to_object(), "stored_delta": delta,
                          "handle_events": handle.events.len()}))
            }
            "reload" => self.reload(&key()?, op).await,
            "delete" => {
                self.store.delete(&key()?).await?;
                Ok(json!({}))
            }
            "list" => {
                let sessions = self.store.list(&app, user).await?;
                let shown = |session: &Session| json!({"id": session.key.id(), "state": session.state.to_object(), "events": session.events.len()});
                Ok(json!({"sessions": sessions.iter().map(shown).collect::<Vec<_>>()}))
            }
            "user_state" => Ok(json!({"state": *self.store.user_state(&app, user).await?})),
            other => Err(format!("there is no operation `{other}`").into()),
        }
    }

    async fn reload(&mut self, key: &SessionKey, op: &Value) -> Result<Value, BoxError> {
        let recent = op.get("num_recent_events").and_then(Value::as_u64);
        let filter = EventFilter {
            recent: recent.map(usize::try_from).transpose()?,
            after: op.get("after_timestamp").and_then(Value::as_f64),
            first: None,
        };
        let Some(session) = self.store.get(key, filter).await? else {
            return Ok(json!({"session": null}));
        };
        let record = json!({"state": session.state.to_object(), "events": session.events.len()});
        self.handles.insert(session.key.clone(), session);
        Ok(record)
    }
}

fn text<'a>(op: &'a Value, key: &str) -> Option<&'a str> {
    op.get(key).and_then(Value::as_str)
}

fn object(op: &Value, key: &str) -> Object {
    op.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
}

fn event(op: &Value) -> Event {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    let delta = object(op, "delta");
    if !delta.is_empty() {
        event = event.with_actions(Actions { state_delta: Some(delta), ..Actions::default() });
    }
    event.timestamp = op.get("timestamp").and_then(Value::as_f64).unwrap_or_else(|| SystemClock.now());
    event.partial = (op.get("partial") == Some(&Value::Bool(true))).then_some(true);
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
