//! For tests: what they send is written down, so that it can be held against the protocol's own schemas.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

/// The folder in which events are written down, if there is one.
pub const VARIABLE: &str = "UMBEL_AGUI_EVENTS";

/// Writes an event down as a line of JSON, if a folder is named in the environment: in a file per process and thread,
/// so that no two writers share one.
pub fn record(event: &impl Serialize) -> io::Result<()> {
    let Some(folder) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let thread = std::thread::current();
    let name = format!("{}-{:?}.jsonl", std::process::id(), thread.id());
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    std::fs::create_dir_all(&folder)?;
    let file = OpenOptions::new().create(true).append(true).open(Path::new(&folder).join(name));
    file?.write_all(&line)
}
