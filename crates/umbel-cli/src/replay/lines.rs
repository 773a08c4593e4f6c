//! Recordings in a file: JSON lines, as sessions are exported.

use std::io;
use std::path::Path;

use serde_json::Value;
use umbel::replay::Recording;
use umbel::{Event, LogEntry, Object, RunStep, SessionKey};

use crate::args::{bad_usage, cannot};

/// The session of that id, or the only one that works for no other.
pub(super) fn read(path: &Path, session: Option<&str>) -> io::Result<Recording> {
    let text = std::fs::read_to_string(path).map_err(|error| bad_usage(cannot(path, &error).to_string()))?;
    let bad = |what: &str| bad_usage(format!("{}: {what}", path.display()));
    let sessions = sessions(&text).map_err(|error| bad(&error))?;
    let tops = || sessions.iter().filter(|one| one.parent.is_none());
    let wanted = match session {
        Some(id) => tops().find(|one| one.recording.key.id() == id),
        None if tops().count() == 1 => tops().next(),
        None => {
            let ids = tops().map(|one| one.recording.key.id()).take(5).collect::<Vec<_>>().join(", ");
            let what = format!("it has {} sessions ({ids}…): say which by --session", tops().count());
            return Err(bad(&what));
        }
    };
    let wanted =
        wanted.ok_or_else(|| bad(&format!("there is no session `{}`", session.unwrap_or_default())))?;
    Ok(with_children(wanted, &sessions))
}

/// A session of a file.
struct Found {
    recording: Recording,
    parent: Option<String>,
}

fn with_children(found: &Found, all: &[Found]) -> Recording {
    let id = found.recording.key.id();
    let own = all.iter().filter(|other| other.parent.as_deref() == Some(id));
    Recording { children: own.map(|child| with_children(child, all)).collect(), ..found.recording.clone() }
}

fn sessions(text: &str) -> Result<Vec<Found>, String> {
    let mut sessions: Vec<Found> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| format!("line {}: {what}", index + 1);
        let mut value: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let entry: Option<LogEntry> = match text("line").as_str() {
            "session" => {
                let key = SessionKey::new(text("app"), text("user"), text("id"));
                let key = key.map_err(|error| wrong(error.message().to_owned()))?;
                let state = value.get("state").and_then(Value::as_object).cloned().unwrap_or_default();
                let parent = value.pointer("/parent/id").and_then(Value::as_str).map(str::to_owned);
                let recording = Recording { key, state, entries: Vec::new(), children: Vec::new() };
                sessions.push(Found { recording, parent });
                None
            }
            "event" => {
                let event: Event = take(&mut value, "event").map_err(wrong)?;
                Some(LogEntry::Event(event.into()))
            }
            "record" => Some(take::<RunStep>(&mut value, "record").map_err(wrong)?.into()),
            "" => {
                return Err(wrong(
                    "this is no line of an export: `umbel sessions export` writes them".to_owned(),
                ));
            }
            // What else a store holds has no part in a conversation.
            _ => None,
        };
        if let Some(entry) = entry {
            let session =
                sessions.last_mut().ok_or_else(|| wrong("an entry stands under no session".to_owned()))?;
            session.recording.entries.push(entry);
        }
    }
    Ok(sessions)
}

fn take<T: serde::de::DeserializeOwned>(value: &mut Value, key: &str) -> Result<T, String> {
    let none = || Value::Object(Object::new());
    let inner = value.get_mut(key).map(Value::take).unwrap_or_else(none);
    serde_json::from_value(inner).map_err(|error| error.to_string())
}
