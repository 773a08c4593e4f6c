//! Conversations as JSON lines, out of a store and into one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::Deserialize;
use umbel::SessionKey;

use crate::args::{bad_usage, cannot};

/// Writes all that a store holds, or what belongs to one session and to those that worked for it. Tells how many pieces there were.
pub(super) async fn export(store: &str, only: Option<SessionKey>, file: Option<&Path>) -> io::Result<u64> {
    let out: Box<dyn Write + Send> = match file {
        Some(path) => Box::new(private(path)?),
        None => Box::new(io::stdout()),
    };
    let out = io::BufWriter::new(out);
    let exported = match only {
        None => umbel_stores::export(store, out).await,
        Some(key) => umbel_stores::export(store, Only::new(out, key)).await,
    };
    exported.map_err(|error| {
        // That nobody reads any more is no failure, so it must be seen below what the store says of it.
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        io::Error::new(source.map_or(io::ErrorKind::Other, io::Error::kind), error)
    })
}

/// Takes in what was exported.
pub(super) async fn import(store: &str, file: &Path) -> io::Result<u64> {
    let input: Box<dyn BufRead + Send> = match file.to_str() {
        Some("-") => Box::new(BufReader::new(io::stdin())),
        _ => Box::new(BufReader::new(File::open(file).map_err(|error| cannot(file, &error))?)),
    };
    crate::args::open(store).await?;
    umbel_stores::import(store, input).await.map_err(|error| bad_usage(error.to_string()))
}

/// A file that only its owner may read, and that is not there yet.
fn private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| cannot(path, &error))
}

/// Lets through the lines that belong to one session and to those that worked for it, and those that say what the lines are.
struct Only<W> {
    out: W,
    key: SessionKey,
    /// The sessions that belong to it so far, itself among them, by user and id. A parent comes before its children.
    own: BTreeSet<(String, String)>,
    /// What came of a line that has no end yet.
    rest: Vec<u8>,
    /// Whether the session at hand is one of them.
    keeps: bool,
}

/// What a line says of itself.
#[derive(Deserialize)]
struct Head {
    line: String,
    #[serde(default)]
    app: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    session: String,
    #[serde(default)]
    parent: Option<Parent>,
}

/// The session that another one worked for.
#[derive(Deserialize)]
struct Parent {
    user: String,
    id: String,
}

impl<W: Write> Only<W> {
    fn new(out: W, key: SessionKey) -> Self {
        let own = BTreeSet::from([(key.user().to_owned(), key.id().to_owned())]);
        Self { out, key, own, rest: Vec::new(), keeps: false }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let head: Head = serde_json::from_slice(line)?;
        let here = |user: &str, id: &str| {
            head.app == self.key.app() && self.own.contains(&(user.to_owned(), id.to_owned()))
        };
        let keeps = match head.line.as_str() {
            "umbel" => true,
            "session" => {
                let works_for = head.parent.as_ref().is_some_and(|parent| here(&parent.user, &parent.id));
                self.keeps = here(&head.user, &head.id) || works_for;
                if self.keeps {
                    self.own.insert((head.user, head.id));
                }
                self.keeps
            }
            "event" | "record" => self.keeps,
            "artifact" | "memory" => here(&head.user, &head.session),
            // State and credentials are the user's, not the session's.
            _ => false,
        };
        if keeps { self.out.write_all(line) } else { Ok(()) }
    }
}

impl<W: Write> Write for Only<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            self.line(&line)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
