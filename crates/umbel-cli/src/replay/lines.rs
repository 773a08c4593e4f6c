//! Recordings in a file: JSON lines, as sessions are exported.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde_json::Value;
use umbel::replay::Recording;
use umbel::{Event, LogEntry, Object, RunStep, SessionKey};

use crate::args::{bad_usage, cannot};

/// How deep sessions may work for one another: no agents do by this much, and each takes a piece of the stack.
const DEEPEST: usize = 100;

/// A recording, and whether the file tells the state of users and apps.
pub(super) struct Read {
    pub(super) recording: Recording,
    pub(super) has_shared_state: bool,
}

/// The session of that id, or the only one that works for no other.
pub(super) fn read(path: &Path, session: Option<&str>) -> io::Result<Read> {
    let text = std::fs::read_to_string(path).map_err(|error| bad_usage(cannot(path, &error).to_string()))?;
    let bad = |what: &str| bad_usage(format!("{}: {what}", path.display()));
    let file = Lines::read(&text).map_err(|error| bad(&error))?;
    let tops = || file.sessions.iter().filter(|one| one.parent.is_none());
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
    let recording = file.whole(wanted, 0).map_err(|error| bad(&error))?;
    Ok(Read { recording, has_shared_state: !file.states.is_empty() })
}

/// A session of a file.
struct Found {
    recording: Recording,
    parent: Option<SessionKey>,
}

/// What stands in a file.
#[derive(Default)]
struct Lines {
    /// Each of them once, so that none works for itself.
    sessions: Vec<Found>,
    /// The state of a user, or of the whole app where there is no user.
    states: BTreeMap<(String, Option<String>), Object>,
}

impl Lines {
    /// A session with those that worked for it, and with the state that it shared with others.
    fn whole(&self, found: &Found, depth: usize) -> Result<Recording, String> {
        let key = &found.recording.key;
        if depth > DEEPEST {
            return Err(format!("sessions work for one another more than {DEEPEST} deep"));
        }
        let own = self.sessions.iter().filter(|other| other.parent.as_ref() == Some(key));
        let children = own.map(|child| self.whole(child, depth + 1)).collect::<Result<_, _>>()?;
        let state = |user: Option<&str>| {
            self.states.get(&(key.app().to_owned(), user.map(str::to_owned))).cloned().unwrap_or_default()
        };
        let recording = Recording { children, ..found.recording.clone() };
        Ok(recording.shared_state(&state(Some(key.user())), &state(None)))
    }

    fn read(text: &str) -> Result<Self, String> {
        let mut lines = Self::default();
        let mut known = BTreeSet::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| format!("line {}: {what}", index + 1);
            let value: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            lines.add(value, &mut known).map_err(wrong)?;
        }
        Ok(lines)
    }

    fn add(&mut self, mut value: Value, known: &mut BTreeSet<SessionKey>) -> Result<(), String> {
        let text = |key: &str| value.pointer(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let object = |key: &str| value.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
        let key_of = |user: &str, id: &str| {
            SessionKey::new(text("/app"), text(user), text(id)).map_err(|error| error.message().to_owned())
        };
        let entry: LogEntry = match text("/line").as_str() {
            "session" => {
                let key = key_of("/user", "/id")?;
                if !known.insert(key.clone()) {
                    return Err(format!("session `{}` stands here for the second time", key.id()));
                }
                let has_parent = value.get("parent").is_some_and(|parent| !parent.is_null());
                let parent = has_parent.then(|| key_of("/parent/user", "/parent/id")).transpose()?;
                let (entries, children) = (Vec::new(), Vec::new());
                let recording = Recording { key, state: object("state"), entries, children };
                self.sessions.push(Found { recording, parent });
                return Ok(());
            }
            "state" => {
                let user = value.get("user").and_then(Value::as_str).map(str::to_owned);
                self.states.insert((text("/app"), user), object("state"));
                return Ok(());
            }
            "event" => LogEntry::Event(take::<Event>(&mut value, "event")?.into()),
            "record" => take::<RunStep>(&mut value, "record")?.into(),
            "" => {
                return Err("this is no line of an export: `umbel sessions export` writes them".to_owned());
            }
            // What else a store holds has no part in a conversation.
            _ => return Ok(()),
        };
        let session = self.sessions.last_mut().ok_or("an entry stands under no session")?;
        session.recording.entries.push(entry);
        Ok(())
    }
}

fn take<T: serde::de::DeserializeOwned>(value: &mut Value, key: &str) -> Result<T, String> {
    let none = || Value::Object(Object::new());
    let inner = value.get_mut(key).map(Value::take).unwrap_or_else(none);
    serde_json::from_value(inner).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_session_worked_for_the_one_of_its_own_app_and_user_alone() {
        let line = |app: &str, user: &str, id: &str, parent: Option<(&str, &str)>| {
            let parent = parent.map(|(user, id)| json!({"user": user, "id": id}));
            json!({"line": "session", "app": app, "user": user, "id": id, "parent": parent}).to_string()
        };
        let text = [
            line("a", "u", "s", None),
            line("a", "u", "s/1", Some(("u", "s"))),
            line("a", "v", "s/2", Some(("v", "s"))),
            line("b", "u", "s/3", Some(("u", "s"))),
        ];
        let lines = Lines::read(&text.join("\n")).unwrap();
        let whole = lines.whole(&lines.sessions[0], 0).unwrap();
        let ids: Vec<&str> = whole.children.iter().map(|child| child.key.id()).collect();
        assert_eq!(ids, ["s/1"]);
    }
}
