//! A PostgreSQL server of a test's own, which it may stop and start as it likes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A server that goes with the test.
#[derive(Debug)]
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
}

impl Server {
    /// Starts a server with the programs that `cargo xtask test` found; without them, says so.
    // Who runs the tests is told why these are not run.
    #[allow(clippy::print_stderr)]
    pub(crate) fn start() -> Option<Self> {
        let Ok(programs) = std::env::var("UMBEL_TEST_POSTGRES_PROGRAMS") else {
            eprintln!(
                "not run, since UMBEL_TEST_POSTGRES_PROGRAMS is not set: use `cargo xtask test postgres`"
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let server = Self { folder, programs: programs.into() };
        let data = server.data();
        run(server.program("initdb").args(["-A", "trust", "-U", "umbel", "-E", "UTF8", "-D"]).arg(data));
        server.go_on();
        Some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres:///postgres?user=umbel&host={}", self.folder.path().display())
    }

    /// Stops it: `fast` ends what is under way and closes the database, `immediate` is a crash.
    pub(crate) fn stop(&self, how: &str) {
        run(self.program("pg_ctl").args(["stop", "-m", how, "-D"]).arg(self.data()));
    }

    /// Starts it again.
    pub(crate) fn go_on(&self) {
        let options = format!("-c listen_addresses= -k {}", self.folder.path().display());
        let mut start = self.program("pg_ctl");
        start.args(["start", "-w", "-o", &options, "-l"]).arg(self.folder.path().join("log"));
        run(start.arg("-D").arg(self.data()));
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of PostgreSQL's programs; it refuses to be run by root.
    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = if is_root() { Command::new("runuser") } else { Command::new(&program) };
        if is_root() {
            command.args(["-u", "postgres", "--"]).arg(program);
        }
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be stopped already.
        let mut stop = self.program("pg_ctl");
        stop.args(["stop", "-m", "immediate", "-D"]).arg(self.data());
        drop(stop.stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}

fn run(command: &mut Command) {
    let status = command.stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?} ended with {status}");
}

/// Whether the tests are run by root, whom permissions do not stop.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
