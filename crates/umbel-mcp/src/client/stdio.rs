//! MCP servers that are programs: they read what they are told on their input and answer on their output, a line for each
//! message.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio as Pipes;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::time::timeout;
use umbel_core::{Error, ErrorKind, Result};
use umbel_tools::{ProcessGroup, Program};

use super::lines::{Ended, Lines};
use super::steady::Room;

/// How much of one line of what a program complains about is kept.
const COMPLAINT: usize = 4 << 10;

/// A program that is an MCP server. There is no shell; its environment is empty but for what is named.
///
/// ```
/// use umbel_mcp::client::{McpToolset, Stdio};
///
/// let files = Stdio::new("mcp-server-filesystem").args(["/srv/files"]).keep_env("HOME");
/// let tools = McpToolset::new("files", files);
/// assert_eq!(tools.name(), "files");
/// # use umbel_core::Toolset;
/// ```
#[derive(Clone)]
pub struct Stdio {
    program: Program,
    args: Vec<String>,
}

impl Stdio {
    /// A program by its name or path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: Program::new(program), args: Vec::new() }
    }

    /// Its arguments.
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The folder it runs in; that of this process if left out.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.program = self.program.folder(folder);
        self
    }

    /// Lets it see a variable of the environment. `PATH` and `LANG` are all it sees otherwise.
    pub fn keep_env(mut self, name: impl Into<String>) -> Self {
        self.program = self.program.keep_env(name);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.program = self.program.env(name, value);
        self
    }

    /// What tells it from other servers.
    pub(crate) fn identity(&self) -> serde_json::Value {
        serde_json::json!([self.program.path().to_string_lossy(), self.args])
    }

    /// Starts it. What it complains about goes to the log, under the name of its toolset.
    pub(crate) fn start(&self, toolset: &str, bytes: usize, ended: Ended) -> Result<(Lines, Process)> {
        let mut command = self.program.command();
        command.args(&self.args);
        command.stdin(Pipes::piped()).stdout(Pipes::piped()).stderr(Pipes::piped());
        let (mut child, group) = ProcessGroup::start(&mut command).map_err(|error| {
            let name = self.program.name();
            Error::new(ErrorKind::Tool, format!("`{name}` could not be started: {error}"))
        })?;
        if let Some(complaints) = child.stderr.take() {
            tokio::spawn(log_complaints(toolset.to_owned(), complaints));
        }
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(Error::new(ErrorKind::Tool, "the program has no input or no output"));
        };
        Ok((Lines::new(output, input, bytes, ended), Process(Some((child, group)))))
    }
}

/// What is set for the program may be secret, so it is not shown.
impl fmt::Debug for Stdio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stdio({})", self.program.path().display())
    }
}

/// Tells the log what a program complains about, line by line, as far as it is not too much. Gives how many lines were told.
async fn log_complaints(toolset: String, complaints: impl AsyncRead + Unpin) -> usize {
    let (mut room, mut told) = (Room::new(&toolset), 0);
    let mut complaints = BufReader::new(complaints);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is told in pieces.
        match (&mut complaints).take(COMPLAINT as u64).read_until(b'\n', &mut line).await {
            Ok(1..) if !room.takes(1.0) => {}
            Ok(1..) => {
                told += 1;
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "umbel::mcp", server = toolset, "{}", text.trim_end());
            }
            _ => return told,
        }
    }
}

/// How long a program may take to end by itself once its input is closed, and again once it was told to.
const GRACE: Duration = Duration::from_secs(2);

/// A program and all that it started. Dropped, they end: the program sees the end of its
/// input, is told to end a little later, and is not asked any more after that.
pub(crate) struct Process(Option<(Child, ProcessGroup)>);

impl Drop for Process {
    fn drop(&mut self) {
        // Without a runtime nobody has time to wait, and they end at once.
        let (Some((mut child, group)), Ok(runtime)) = (self.0.take(), Handle::try_current()) else { return };
        runtime.spawn(async move {
            if timeout(GRACE, child.wait()).await.is_err() {
                group.tell_to_end();
                let _ = timeout(GRACE, child.wait()).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_program_that_complains_without_end_does_not_fill_the_log() {
        let few = b"one\ntwo\n".to_vec();
        assert_eq!(log_complaints("s".to_owned(), std::io::Cursor::new(few)).await, 2);
        let many = b"it is bad\n".repeat(5_000);
        assert_eq!(log_complaints("s".to_owned(), std::io::Cursor::new(many)).await, 1_000);
    }
}
