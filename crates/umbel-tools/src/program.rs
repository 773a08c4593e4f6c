//! How a program is started: without a shell, and with what it was given of the environment.

use std::fmt;
use std::path::{Path, PathBuf};

use tokio::process::Command;

/// A program, where it runs, and what it sees of the environment: `PATH`, `LANG` and what is named, nothing else.
#[derive(Clone)]
pub struct Program {
    path: PathBuf,
    folder: Option<PathBuf>,
    keep: Vec<String>,
    set: Vec<(String, String)>,
}

impl Program {
    /// A program by its name or path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let keep = ["PATH", "LANG"].map(str::to_owned).to_vec();
        Self { path: path.into(), folder: None, keep, set: Vec::new() }
    }

    /// The folder it runs in; that of this process if left out.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Lets it see a variable of the environment.
    pub fn keep_env(mut self, name: impl Into<String>) -> Self {
        self.keep.push(name.into());
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Its name or path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, without the folders before it.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What starts it, in a process group of its own. It gets nothing that this process has open, and ends with its handle.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().kill_on_drop(true);
        command.envs(self.keep.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        crate::process::mark(&mut command);
        #[cfg(unix)]
        {
            command.process_group(0);
            crate::process::keep_descriptors();
        }
        command
    }
}

/// What is set for the program may be secret, so it is not shown.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.path.display())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_gets_nothing_that_this_process_has_open() {
        let file = tempfile::tempfile().unwrap();
        // As files of libraries in C are.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let look = format!("test -e /proc/self/fd/{number} && echo open || echo closed");
        let said = Program::new("sh").command().args(["-c", &look]).output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "closed");
    }
}
