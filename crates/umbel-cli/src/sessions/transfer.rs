//! Conversations as JSON lines, out of a store and into one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::Deserialize;
use umbel::SessionKey;

use crate::args::{bad_usage, cannot};

/// Writes all that a store holds, or what belongs to one session. Tells how many pieces there were.
pub(super) async fn export(store: &str, only: Option<SessionKey>, file: Option<&Path>) -> io::Result<u64> {
    let out: Box<dyn Write + Send> = match file {
        Some(path) => Box::new(private(path)?),
        None => Box::new(io::stdout()),
    };
    let out = io::BufWriter::new(out);
    let exported = match only {
        None => umbel_stores::export(store, out).await,
        Some(key) => umbel_stores::export(store, Only { out, key, rest: Vec::new(), keeps: false }).await,
    };
    exported.map_err(io::Error::other)
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

/// Lets through the lines that belong to one session, and those that say what the lines are.
struct Only<W> {
    out: W,
    key: SessionKey,
    /// What came of a line that has no end yet.
    rest: Vec<u8>,
    /// Whether the session at hand is the one.
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
}

impl<W: Write> Only<W> {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        let head: Head = serde_json::from_slice(line)?;
        let here =
            |id: &str| head.app == self.key.app() && head.user == self.key.user() && id == self.key.id();
        let keeps = match head.line.as_str() {
            "umbel" => true,
            "session" => {
                self.keeps = here(&head.id);
                self.keeps
            }
            "event" | "record" => self.keeps,
            "artifact" | "memory" => here(&head.session),
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
