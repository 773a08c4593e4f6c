//! What the processes leave in a lane's folder: lines of JSON, each appended by one write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use umbel::BoxError;

/// What a tool did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) run: String,
    pub(super) call: String,
    pub(super) key: String,
}

impl Effect {
    /// Does it: a line in a file of the call's own, on the disk when this returns.
    pub(super) fn happen(&self, folder: &Path) -> io::Result<()> {
        let line = json!({"run": self.run, "call": self.call, "key": self.key});
        append(&effects(folder).join(&self.call), &line)?.sync_all()
    }

    /// What happened for a call, each time it did.
    pub(super) fn of_call(folder: &Path, call: &str) -> Result<Vec<Self>, BoxError> {
        let text = |line: &Value, key: &str| {
            line.get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
                .ok_or(format!("an effect has no `{key}`"))
        };
        let lines = read(&effects(folder).join(call))?;
        let read = |line: &Value| {
            Ok(Self { run: text(line, "run")?, call: text(line, "call")?, key: text(line, "key")? })
        };
        lines.iter().map(read).collect()
    }

    /// The calls that anything happened for.
    pub(super) fn calls(folder: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(effects(folder))?.map(|file| Ok(file?.file_name().to_string_lossy().into()));
        names.collect()
    }
}

/// Where the effects are.
pub(super) fn effects(folder: &Path) -> PathBuf {
    folder.join("effects")
}

/// Where the sessions are noted that work for others.
pub(super) fn children(folder: &Path) -> PathBuf {
    folder.join("children")
}

/// Where the ids of events are that a reader saw.
pub(super) fn seen(folder: &Path, batch: &str) -> PathBuf {
    folder.join(format!("seen-{batch}"))
}

/// Appends a line.
pub(super) fn append(path: &Path, line: &Value) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    Ok(file)
}

/// The lines of a file; none if it is not there.
pub(super) fn read(path: &Path) -> Result<Vec<Value>, BoxError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
