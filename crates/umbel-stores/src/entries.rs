//! Between log entries and the rows of a database, the same for every database.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use umbel_core::session::without_temp;
#[cfg(feature = "sqlite")]
use umbel_core::store::News;
use umbel_core::store::{WaitChange, refuse_nul, refuse_nul_keys};
use umbel_core::title::title_of;
use umbel_core::{Error, ErrorKind, Event, LogEntry, Object, Part, Payload, Result, SessionKey, StateScope};

use crate::transfer::StoredEntry;

/// Entries as they are written.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) rows: Vec<Row>,
    pub(crate) state: Scoped,
    /// When the newest of the events was said.
    pub(crate) updated_at: Option<f64>,
    /// What becomes of that which the session waits for.
    pub(crate) waits: WaitChange,
    /// The title that the entries give a session without one.
    pub(crate) title: Option<String>,
    /// Bytes of all rows.
    pub(crate) bytes: u64,
}

/// One entry of a log as it is written.
#[derive(Debug)]
pub(crate) struct Row {
    /// When, seconds since 1970. A run record has no time.
    pub(crate) time: Option<f64>,
    pub(crate) body: String,
}

/// State keys by their scope, without prefix.
#[derive(Debug, Default)]
pub(crate) struct Scoped {
    pub(crate) session: Object,
    pub(crate) user: Object,
    pub(crate) app: Object,
}

impl Prepared {
    /// Skips previews, strips `temp:` keys, and refuses what no store takes.
    pub(crate) fn new(entries: &[LogEntry]) -> Result<Self> {
        refuse_nul_keys(entries)?;
        let (rows, waits) = (Vec::with_capacity(entries.len()), WaitChange::of(entries));
        let mut prepared = Self { rows, waits, title: title_of(entries), ..Self::default() };
        for entry in entries {
            match entry {
                LogEntry::Event(event) if event.is_partial() => {}
                LogEntry::Event(event) => prepared.push_event(event)?,
                LogEntry::Record(step) => prepared.push(None, to_json(&**step)?),
            }
        }
        Ok(prepared)
    }

    fn push(&mut self, time: Option<f64>, body: String) {
        self.bytes += body.len() as u64;
        self.rows.push(Row { time, body });
    }

    fn push_event(&mut self, event: &Event) -> Result<()> {
        let mut event = Cow::Borrowed(event);
        if let Some(delta) = event.state_delta() {
            self.state.add(delta);
            if delta.keys().any(|key| StateScope::split(key).0 == StateScope::Temp) {
                event = Cow::Owned(without_temp(event.into_owned()));
            }
        }
        // A time that is no number would be read as none, and none is what records have.
        let time = if event.timestamp.is_nan() { 0.0 } else { event.timestamp };
        self.updated_at = Some(time);
        self.push(Some(time), to_json(&*event)?);
        Ok(())
    }
}

impl Scoped {
    /// The first state of a session.
    pub(crate) fn new(state: &Object) -> Result<Self> {
        state.keys().try_for_each(|key| refuse_nul("name of a state key", key))?;
        let mut scoped = Self::default();
        scoped.add(state);
        Ok(scoped)
    }

    fn add(&mut self, delta: &Object) {
        for (key, value) in delta {
            let (scope, key) = StateScope::split(key);
            let keys = match scope {
                StateScope::Session => &mut self.session,
                StateScope::User => &mut self.user,
                StateScope::App => &mut self.app,
                StateScope::Temp => continue,
            };
            keys.insert(key.to_owned(), value.clone());
        }
    }
}

/// Reads an entry back.
pub(crate) fn decode(key: &SessionKey, version: u64, time: Option<f64>, body: &str) -> Result<LogEntry> {
    let entry = match time {
        Some(_) => serde_json::from_str(body).map(LogEntry::Event),
        None => serde_json::from_str(body).map(LogEntry::Record),
    };
    entry.map_err(|error| corrupt(&format!("entry {version} of session {key}"), error))
}

/// Reads the log and the first state of a session for an export, entry by entry: what cannot be read stays text.
pub(crate) fn decode_stored(
    key: &SessionKey,
    first_state: &str,
    rows: impl IntoIterator<Item = (Option<f64>, String)>,
) -> (Object, Vec<StoredEntry>) {
    let (state, mut entries) = match from_json("the first state of a session", first_state) {
        Ok(state) => (state, Vec::new()),
        Err(_) => (Object::new(), vec![Err(first_state.to_owned())]),
    };
    let rows = rows.into_iter().map(|(time, body)| decode(key, 0, time, &body).map_err(|_| body));
    entries.extend(rows);
    (state, entries)
}

/// Refuses a log with a hole: between two versions there are as many entries as versions.
pub(crate) fn refuse_holes(key: &SessionKey, from: u64, to: u64, entries: &[LogEntry]) -> Result<()> {
    let (found, expected) = (entries.len() as u64, to.saturating_sub(from));
    if found == expected {
        return Ok(());
    }
    let message = format!(
        "entries of session {key} are missing: after entry {from} there are {found} of {expected}; restore the database from a copy"
    );
    Err(Error::new(ErrorKind::Corrupt, message))
}

/// The version of what sessions share that a writer knows after a write of its own: if others wrote before it, that is
/// still news to the writer.
pub(crate) fn known_after(known: u64, version: u64) -> u64 {
    if version == known + 1 { version } else { known }
}

/// What came first, and what came after that.
#[cfg(feature = "sqlite")]
pub(crate) fn together(first: Option<News>, then: News) -> News {
    let Some(first) = first.filter(|_| !then.whole) else { return then };
    let mut entries = first.entries;
    entries.extend(then.entries);
    News {
        versions: then.versions,
        whole: first.whole,
        entries,
        session_state: first.session_state,
        user_state: then.user_state.or(first.user_state),
        app_state: then.app_state.or(first.app_state),
    }
}

/// Where an artifact stands: app, user, session (empty for the user's own), name.
pub(crate) fn artifact_place<'a>(key: &'a SessionKey, name: &'a str) -> [&'a str; 4] {
    let session = if name.starts_with("user:") { "" } else { key.id() };
    [key.app(), key.user(), session, name]
}

/// The bytes of a part, which are stored apart, and the rest of it as JSON.
pub(crate) fn split_part(mut part: Part) -> Result<(String, Option<Vec<u8>>)> {
    let data = match &mut part.payload {
        Payload::InlineData(blob) => Some(std::mem::take(&mut blob.data)),
        _ => None,
    };
    Ok((to_json(&part)?, data))
}

/// A part from its JSON and its bytes.
pub(crate) fn join_part(json: &str, data: Option<Vec<u8>>) -> Result<Part> {
    let mut part: Part = from_json("an artifact", json)?;
    if let (Payload::InlineData(blob), Some(data)) = (&mut part.payload, data) {
        blob.data = data;
    }
    Ok(part)
}

/// How many levels a value may have that is stored: fewer than readers of JSON take, who stop at 128.
const MAX_LEVELS: usize = 100;

pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("a value has no JSON form: {error}")).with_source(error)
    })?;
    if levels(&json) > MAX_LEVELS {
        let message = format!(
            "a value has more than {MAX_LEVELS} levels, and could not be read again: make it flatter"
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(json)
}

/// How deep JSON is nested. What cannot be deep is not looked at closely.
fn levels(json: &str) -> usize {
    // `[` and `{` differ in this bit alone. No piece has more of them than fit into a byte, so many are looked at at once.
    let opens = |piece: &[u8]| piece.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    let opens = json.as_bytes().chunks(255).map(|piece| usize::from(opens(piece))).sum();
    if opens <= MAX_LEVELS {
        return opens;
    }
    let (mut depth, mut most, mut in_text) = (0usize, 0, false);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                bytes.next();
            }
            b'[' | b'{' if !in_text => {
                depth += 1;
                most = most.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    most
}

pub(crate) fn from_json<T: DeserializeOwned>(what: &str, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| corrupt(what, error))
}

/// An object of keys and values that are stored one by one.
pub(crate) fn keys_from(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Object> {
    let pairs = pairs.into_iter();
    pairs.map(|(key, json)| Ok((key, from_json::<Value>("a state value", &json)?))).collect()
}

fn corrupt(what: &str, error: serde_json::Error) -> Error {
    let message =
        format!("{what} cannot be read: it is damaged, or a newer version of Umbel wrote it ({error})");
    Error::new(ErrorKind::Corrupt, message).with_source(error)
}
