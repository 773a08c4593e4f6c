//! Session databases of google-adk, to be taken over.
//!
//! Both kinds are read: that of its SQLite service and that of its SQLAlchemy service on SQLite. They become the JSON
//! lines that a store imports. Nothing is changed in them.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> umbel_core::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("umbel.db");
//! let mut lines = Vec::new();
//! umbel_stores::adk::export("tests/data/adk-sessions.db", &mut lines)?;
//! let store = umbel_stores::Sqlite::open(path).await?;
//! store.import(std::io::Cursor::new(lines)).await?;
//! # Ok(())
//! # }
//! ```

use std::io::Write;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use umbel_core::{Error, ErrorKind, Event, LogEntry, Object, Result, SessionKey};

use crate::transfer::{Lines, Piece, SessionPiece};

/// Keys of an event whose values are somebody's own and stay as they are.
const OPAQUE: [&str; 9] = [
    "args",
    "response",
    "state_delta",
    "artifact_delta",
    "custom_metadata",
    "agent_state",
    "output",
    "payload",
    "json_schema",
];

/// Keys whose values are maps by somebody's own keys.
const MAPS: [&str; 2] = ["requested_auth_configs", "requested_tool_confirmations"];

/// Writes what a database of google-adk holds as JSON lines. Tells how many pieces there were.
pub fn export(path: impl AsRef<Path>, out: impl Write) -> Result<u64> {
    let path = path.as_ref();
    let unreadable = |error: rusqlite::Error| {
        let message =
            format!("{} cannot be read as a session database of google-adk: {error}", path.display());
        Error::new(ErrorKind::InvalidInput, message).with_source(error)
    };
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(unreadable)?;
    let mut lines = Lines::new(out)?;
    for state in states(&connection).map_err(unreadable)? {
        let (app, user, json) = state;
        let state = parse(&format!("the state of app {app}"), &json)?;
        lines.write(Piece::State { app, user, state })?;
    }
    for (app, user, id, state, updated_at) in sessions(&connection).map_err(unreadable)? {
        let key = SessionKey::new(app, user, id)?;
        let state = parse(&format!("the state of session {key}"), &state)?;
        let bodies = bodies(&connection, &key).map_err(unreadable)?;
        let entries = bodies.iter().map(|body| event(&key, body)).collect::<Result<_>>()?;
        let (parent, owner) = (None, None);
        lines.write(Piece::Session(SessionPiece { key, parent, state, updated_at, owner, entries }))?;
    }
    lines.end()
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("{what} cannot be read: {error}")).with_source(error)
    })
}

/// App, user if it is a user's, and the state as JSON.
fn states(connection: &Connection) -> rusqlite::Result<Vec<(String, Option<String>, String)>> {
    let mut select = connection.prepare(
        "SELECT app_name, NULL, state FROM app_states UNION ALL SELECT app_name, user_id, state FROM user_states",
    )?;
    select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
}

/// App, user, id, state as JSON, and when it last changed; in the order they were made.
fn sessions(connection: &Connection) -> rusqlite::Result<Vec<(String, String, String, String, f64)>> {
    let mut select = connection.prepare(
        "SELECT app_name, user_id, id, state, update_time FROM sessions ORDER BY create_time, rowid",
    )?;
    let rows = select.query_map([], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, seconds(row.get_ref(4)?)))
    })?;
    rows.collect()
}

/// The events of a session as JSON, oldest first.
fn bodies(connection: &Connection, key: &SessionKey) -> rusqlite::Result<Vec<String>> {
    let mut select = connection.prepare_cached(
        "SELECT event_data FROM events WHERE app_name = ?1 AND user_id = ?2 AND session_id = ?3
         ORDER BY timestamp, rowid",
    )?;
    select.query_map([key.app(), key.user(), key.id()], |row| row.get(0))?.collect()
}

/// A time in seconds since 1970: a number in one kind of database, a date without a zone (it is UTC) in the other.
fn seconds(value: ValueRef<'_>) -> f64 {
    match value {
        ValueRef::Real(seconds) => seconds,
        ValueRef::Integer(seconds) => seconds as f64,
        ValueRef::Text(text) => std::str::from_utf8(text).ok().and_then(from_date).unwrap_or(0.0),
        _ => 0.0,
    }
}

/// The time of `2025-10-09 08:53:29.25`.
fn from_date(text: &str) -> Option<f64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    // Days since 1970 in the Gregorian calendar, with years that begin in March, so that a leap day ends one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469;
    Some(days as f64 * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds)
}

fn event(key: &SessionKey, body: &str) -> Result<LogEntry> {
    let what = format!("an event of session {key}");
    let event: Event = serde_json::from_value(in_camel_case(parse(&what, body)?)).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("{what} cannot be read: {error}")).with_source(error)
    })?;
    Ok(LogEntry::Event(event.into()))
}

/// The same with keys as events have them on the wire.
fn in_camel_case(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(in_camel_case).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| field(&key, value)).collect())
        }
        other => other,
    }
}

fn field(key: &str, value: Value) -> (String, Value) {
    let value = match value {
        Value::Object(map) if MAPS.contains(&key) => {
            let inside = |(key, value): (String, Value)| (key, in_camel_case(value));
            Value::Object(map.into_iter().map(inside).collect::<Object>())
        }
        value if OPAQUE.contains(&key) => value,
        value => in_camel_case(value),
    };
    let mut words = key.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        name.push_str(letters.as_str());
    }
    (name, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dates_are_read_as_utc() {
        assert_eq!(from_date("2025-10-09 08:53:29.250000"), Some(1_760_000_009.25));
        assert_eq!(from_date("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(from_date("2024-02-29 12:00:00"), Some(1_709_208_000.0));
        for bad in ["", "2025-10-09", "yesterday at noon", "2025-x-09 1:2:3"] {
            assert_eq!(from_date(bad), None);
        }
    }

    #[test]
    fn what_is_somebodys_own_keeps_its_names() {
        let stored = json!({"invocation_id": "i", "actions": {"state_delta": {"my_key": {"in_side": 1}},
            "requested_tool_confirmations": {"call_1": {"hint": "h", "payload": {"my_key": 1}}}},
            "content": {"parts": [{"function_call": {"name": "f", "args": {"my_arg": 1}}, "thought_signature": "AA=="}]}});
        let wire = json!({"invocationId": "i", "actions": {"stateDelta": {"my_key": {"in_side": 1}},
            "requestedToolConfirmations": {"call_1": {"hint": "h", "payload": {"my_key": 1}}}},
            "content": {"parts": [{"functionCall": {"name": "f", "args": {"my_arg": 1}}, "thoughtSignature": "AA=="}]}});
        assert_eq!(in_camel_case(stored), wire);
    }
}
