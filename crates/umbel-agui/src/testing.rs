//! For tests: what they send is written down, so that it can be held against the official packages of the protocol.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

/// The folder in which events are written down, if there is one.
pub const VARIABLE: &str = "UMBEL_AGUI_EVENTS";

/// Writes an event down.
pub fn record(event: &impl Serialize) -> io::Result<()> {
    add_line("jsonl", event)
}

/// Writes a whole stream down, from the start of its first run to the end of its last.
pub fn record_stream(events: &[impl Serialize]) -> io::Result<()> {
    add_line("jsonl", &events)
}

/// Writes an event down as JSON and beside it its frame in protobuf, in hexadecimal.
pub fn record_frame(event: &impl Serialize, frame: &str) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a, E> {
        event: &'a E,
        frame: &'a str,
    }
    add_line("proto.jsonl", &Line { event, frame })
}

/// Writes down a stream that was cut and taken up again, beside the same uncut: clients have to make the same of both.
pub fn record_fold(fold: &impl Serialize) -> io::Result<()> {
    add_line("folds", fold)
}

/// A file per process and thread: no two writers share one.
fn add_line(ending: &str, line: &impl Serialize) -> io::Result<()> {
    let Some(folder) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let name = format!("{}-{:?}.{ending}", std::process::id(), std::thread::current().id());
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    std::fs::create_dir_all(&folder)?;
    let file = OpenOptions::new().create(true).append(true).open(Path::new(&folder).join(name));
    file?.write_all(&bytes)
}
