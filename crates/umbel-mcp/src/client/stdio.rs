//! MCP servers that are programs: they read what they are told on their input and answer on their output, a line for each
//! message.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio as Pipes;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Child;
use tokio::time::timeout;
use umbel_core::{Error, ErrorKind, Result};

use super::lines::{Ended, Lines};

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
    program: PathBuf,
    args: Vec<String>,
    folder: Option<PathBuf>,
    keep: Vec<String>,
    set: Vec<(String, String)>,
}

impl Stdio {
    /// A program by its name or path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        let keep = ["PATH", "LANG"].map(str::to_owned).to_vec();
        Self { program: program.into(), args: Vec::new(), folder: None, keep, set: Vec::new() }
    }

    /// Its arguments.
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The folder it runs in; that of this process if left out.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Lets it see a variable of the environment. `PATH` and `LANG` are all it sees otherwise.
    pub fn keep_env(mut self, name: impl Into<String>) -> Self {
        self.keep.push(name.into());
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Starts it. What it complains about goes to the log, under the name of its toolset.
    pub(crate) fn start(&self, toolset: &str, bytes: usize, ended: Ended) -> Result<(Lines, Program)> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.args).env_clear().kill_on_drop(true);
        command.envs(self.keep.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Pipes::piped()).stdout(Pipes::piped()).stderr(Pipes::piped());
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| {
            let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Error::new(ErrorKind::Tool, format!("`{name}` could not be started: {error}"))
        })?;
        if let Some(complaints) = child.stderr.take() {
            tokio::spawn(log_complaints(toolset.to_owned(), complaints));
        }
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(Error::new(ErrorKind::Tool, "the program has no input or no output"));
        };
        Ok((Lines::new(output, input, bytes, ended), Program::new(child)))
    }
}

/// What is set for the program may be secret, so it is not shown.
impl fmt::Debug for Stdio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stdio({})", self.program.display())
    }
}

/// Tells the log what a program complains about, line by line.
async fn log_complaints(toolset: String, complaints: impl AsyncRead + Unpin) {
    let mut complaints = BufReader::new(complaints);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is told in pieces.
        match (&mut complaints).take(COMPLAINT as u64).read_until(b'\n', &mut line).await {
            Ok(1..) => {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "umbel::mcp", server = toolset, "{}", text.trim_end());
            }
            _ => return,
        }
    }
}

/// How long a program may take to end by itself once its input is closed, and again once it was told to.
const GRACE: Duration = Duration::from_secs(2);

/// A program and all that it started, but for what left its process group. Dropped, they end: the program sees the end of its
/// input, is told to end a little later, and is not asked any more after that.
pub(crate) struct Program {
    child: Option<Child>,
    group: Group,
}

/// A process group.
#[derive(Clone, Copy)]
struct Group {
    #[cfg(unix)]
    id: Option<rustix::process::Pid>,
}

impl Group {
    fn of(child: &Child) -> Self {
        #[cfg(unix)]
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            #[cfg(unix)]
            id: id.and_then(rustix::process::Pid::from_raw),
        }
    }

    #[cfg(unix)]
    fn signal(self, signal: rustix::process::Signal) {
        if let Some(id) = self.id {
            let _ = rustix::process::kill_process_group(id, signal);
        }
    }

    fn tell_to_end(self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::TERM);
    }

    fn end(self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
    }
}

/// Ends a group when it is dropped, be it because nobody has time any more to wait.
struct Last(Group);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Program {
    fn new(child: Child) -> Self {
        Self { group: Group::of(&child), child: Some(child) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let (group, last) = (self.group, Last(self.group));
        let (Some(mut child), Ok(runtime)) = (self.child.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        runtime.spawn(async move {
            let _last = last;
            if timeout(GRACE, child.wait()).await.is_err() {
                group.tell_to_end();
                let _ = timeout(GRACE, child.wait()).await;
            }
        });
    }
}
