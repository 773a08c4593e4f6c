//! Everything a store holds, as JSON lines: to move it elsewhere, to keep a copy, to look at it.
//!
//! The first line tells the format. A session's line is followed by a line for each entry of its log. Leases are not
//! taken along; a session whose run was under way is marked, and counts as abandoned where it is imported. Credentials
//! stay encrypted: they open where the same keys are.

use std::io::{BufRead, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use umbel_core::memory::MemoryEntry;
use umbel_core::{
    Clock, Content, Error, ErrorKind, Event, LogEntry, Object, Part, Result, RunStep, SessionKey, SystemClock,
};

use crate::seal::{Owner, Sealed};

/// The format of the lines.
const FORMAT: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Line {
    /// What the lines are.
    Umbel { format: u32 },
    /// The state of a user, or of an app.
    State {
        app: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        state: Object,
    },
    /// A session. The entries of its log follow.
    Session(SessionLine),
    /// An entry of the session above.
    Event { event: Box<Event> },
    /// An entry of the session above.
    Record { record: Box<RunStep> },
    /// An entry of the session above that the store holds and cannot read, as the store has it.
    Unreadable { body: String },
    /// A version of an artifact; without a session it is the user's.
    Artifact {
        app: String,
        user: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        session: String,
        name: String,
        version: u64,
        part: Box<Part>,
        /// When it was saved; lines of older versions do not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saved_at: Option<f64>,
    },
    /// A memory.
    Memory {
        app: String,
        user: String,
        session: String,
        author: String,
        timestamp: f64,
        content: Box<Content>,
    },
    /// A credential, encrypted; base64.
    Credential {
        app: String,
        user: String,
        name: String,
        key_id: String,
        sealed: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saved_at: Option<f64>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionLine {
    app: String,
    user: String,
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    state: Object,
    updated_at: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Parent {
    user: String,
    id: String,
}

/// A piece of a store that is written and read as one.
#[derive(Debug)]
pub(crate) enum Piece {
    State {
        app: String,
        user: Option<String>,
        state: Object,
    },
    Session(SessionPiece),
    Artifact {
        place: [String; 4],
        version: u64,
        part: Part,
        saved_at: f64,
    },
    /// What is remembered of one session.
    Memories {
        place: [String; 3],
        entries: Vec<MemoryEntry>,
    },
    Credential {
        owner: Owner,
        sealed: Sealed,
        saved_at: f64,
    },
}

/// A session with its log.
#[derive(Debug)]
pub(crate) struct SessionPiece {
    pub(crate) key: SessionKey,
    pub(crate) parent: Option<SessionKey>,
    /// The state it began with.
    pub(crate) state: Object,
    pub(crate) updated_at: f64,
    /// Who held its lease.
    pub(crate) owner: Option<String>,
    pub(crate) entries: Vec<LogEntry>,
}

/// An entry of a log as a store holds it: read, or its text if it cannot be read.
pub(crate) type StoredEntry = Result<LogEntry, String>;

/// Writes pieces as lines.
pub(crate) struct Lines<W> {
    out: W,
    pieces: u64,
}

impl<W: Write> Lines<W> {
    pub(crate) fn new(out: W) -> Result<Self> {
        let mut lines = Self { out, pieces: 0 };
        lines.line(&Line::Umbel { format: FORMAT })?;
        Ok(lines)
    }

    pub(crate) fn write(&mut self, piece: Piece) -> Result<()> {
        self.pieces += 1;
        match piece {
            Piece::State { app, user, state } => self.line(&Line::State { app, user, state }),
            Piece::Session(mut session) => {
                let entries = std::mem::take(&mut session.entries);
                self.session(session, entries.into_iter().map(Ok))
            }
            Piece::Artifact { place: [app, user, session, name], version, part, saved_at } => {
                let (part, saved_at) = (Box::new(part), Some(saved_at));
                self.line(&Line::Artifact { app, user, session, name, version, part, saved_at })
            }
            Piece::Memories { place: [app, user, session], entries } => {
                for MemoryEntry { content, author, timestamp, .. } in entries {
                    let (app, user, session) = (app.clone(), user.clone(), session.clone());
                    let content = Box::new((*content).clone());
                    self.line(&Line::Memory { app, user, session, author, timestamp, content })?;
                }
                Ok(())
            }
            Piece::Credential { owner: Owner { app, user, name }, sealed, saved_at } => {
                let (key_id, sealed) = (sealed.key_id, STANDARD.encode(sealed.bytes));
                let saved_at = Some(saved_at);
                self.line(&Line::Credential { app, user, name, key_id, sealed, saved_at })
            }
        }
    }

    /// Tells how many pieces there were, once all is written.
    pub(crate) fn end(mut self) -> Result<u64> {
        self.out.flush().map_err(|error| cannot("be written", error))?;
        Ok(self.pieces)
    }

    /// Writes a session as its store holds it. Entries that cannot be read stand in their places, as text.
    pub(crate) fn stored_session(&mut self, session: SessionPiece, entries: Vec<StoredEntry>) -> Result<()> {
        self.pieces += 1;
        let unreadable = entries.iter().filter(|entry| entry.is_err()).count();
        if unreadable > 0 {
            tracing::warn!(session = %session.key, unreadable, "exported a session with entries that cannot be read");
        }
        self.session(session, entries)
    }

    fn session(
        &mut self,
        session: SessionPiece,
        entries: impl IntoIterator<Item = StoredEntry>,
    ) -> Result<()> {
        let SessionPiece { key, parent, state, updated_at, owner, .. } = session;
        let [app, user, id] = [key.app(), key.user(), key.id()].map(str::to_owned);
        let parent =
            parent.map(|parent| Parent { user: parent.user().to_owned(), id: parent.id().to_owned() });
        self.line(&Line::Session(SessionLine { app, user, id, parent, state, updated_at, owner }))?;
        for entry in entries {
            self.line(&match entry {
                Ok(LogEntry::Event(event)) => Line::Event { event: Box::new((*event).clone()) },
                Ok(LogEntry::Record(record)) => Line::Record { record: Box::new((*record).clone()) },
                Err(body) => Line::Unreadable { body },
            })?;
        }
        Ok(())
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        serde_json::to_writer(&mut self.out, line).map_err(|error| cannot("be written", error.into()))?;
        self.out.write_all(b"\n").map_err(|error| cannot("be written", error))
    }
}

/// Reads lines and hands over piece by piece. Tells how many there were.
pub(crate) fn read_pieces(input: impl BufRead, mut take: impl FnMut(Piece) -> Result<()>) -> Result<u64> {
    let (mut open, mut count, mut is_known) = (None, 0, false);
    for (number, text) in input.lines().enumerate() {
        let text = text.map_err(|error| cannot("be read", error))?;
        if text.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| bad(number, &error.to_string()))?;
        match &line {
            Line::Umbel { format: FORMAT } => {
                is_known = true;
                continue;
            }
            Line::Umbel { format } => {
                return Err(bad(number, &format!("format {format} is newer than this version of Umbel")));
            }
            _ if !is_known => {
                return Err(bad(number, "the first line does not say that this is an export of Umbel"));
            }
            _ => {}
        }
        if let Some(whole) = add(&mut open, line).map_err(|error| bad(number, error.message()))? {
            take(whole)?;
            count += 1;
        }
    }
    if let Some(last) = open {
        take(last)?;
        count += 1;
    }
    Ok(count)
}

/// Adds a line to the piece that is open, or opens the next. Gives the one that is whole then.
fn add(open: &mut Option<Piece>, line: Line) -> Result<Option<Piece>> {
    let next = match (open.as_mut(), line) {
        (Some(Piece::Session(session)), Line::Event { event }) => {
            session.entries.push(LogEntry::Event((*event).into()));
            return Ok(None);
        }
        (Some(Piece::Session(session)), Line::Record { record }) => {
            session.entries.push((*record).into());
            return Ok(None);
        }
        (_, Line::Event { .. } | Line::Record { .. }) => {
            return Err(Error::new(ErrorKind::InvalidInput, "an entry stands under no session"));
        }
        (open, Line::Memory { app, user, session, author, timestamp, content }) => {
            let entry =
                MemoryEntry { content: (*content).into(), author, session: session.clone(), timestamp };
            let here = [app, user, session];
            if let Some(Piece::Memories { place, entries }) = open
                && *place == here
            {
                entries.push(entry);
                return Ok(None);
            }
            Piece::Memories { place: here, entries: vec![entry] }
        }
        (_, line) => piece(line)?,
    };
    Ok(open.replace(next))
}

/// The piece that a line begins or is.
fn piece(line: Line) -> Result<Piece> {
    Ok(match line {
        Line::State { app, user, state } => Piece::State { app, user, state },
        Line::Session(SessionLine { app, user, id, parent, state, updated_at, owner }) => {
            let parent = parent.map(|parent| SessionKey::new(&app, parent.user, parent.id)).transpose()?;
            let (key, entries) = (SessionKey::new(&app, user, id)?, Vec::new());
            Piece::Session(SessionPiece { key, parent, state, updated_at, owner, entries })
        }
        Line::Artifact { app, user, session, name, version, part, saved_at } => {
            let saved_at = saved_at.unwrap_or_else(|| SystemClock.now());
            Piece::Artifact { place: [app, user, session, name], version, part: *part, saved_at }
        }
        Line::Credential { app, user, name, key_id, sealed, saved_at } => {
            let unreadable = |_| Error::new(ErrorKind::InvalidInput, "a credential is not base64");
            let sealed = Sealed { key_id, bytes: STANDARD.decode(sealed).map_err(unreadable)? };
            let saved_at = saved_at.unwrap_or_else(|| SystemClock.now());
            Piece::Credential { owner: Owner::new(&app, &user, &name)?, sealed, saved_at }
        }
        Line::Unreadable { .. } => {
            let message = "this entry could not be read when it was exported: repair it, or delete the line to \
                           import the session without it";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Line::Umbel { .. } | Line::Event { .. } | Line::Record { .. } | Line::Memory { .. } => {
            return Err(Error::new(ErrorKind::InvalidInput, "a line stands where it cannot"));
        }
    })
}

fn bad(number: usize, what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("line {} cannot be imported: {what}; nothing was", number + 1),
    )
}

fn cannot(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Other, format!("the lines cannot {what}: {error}")).with_source(error)
}
