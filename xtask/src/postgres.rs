//! A PostgreSQL server for tests: on a socket in a folder of its own, gone when they are done.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::built;
use crate::test::{Verdict, ensure, succeed};

/// Where tests find the address of the server.
pub(crate) const VARIABLE: &str = "UMBEL_TEST_POSTGRES";

/// Where tests find PostgreSQL's programs, for servers of their own that they stop and start.
pub(crate) const PROGRAMS_VARIABLE: &str = "UMBEL_TEST_POSTGRES_PROGRAMS";

/// A server that stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    folder: TempDir,
    programs: PathBuf,
}

impl Server {
    /// Starts a server; PostgreSQL is installed for it where that is possible.
    pub(crate) fn start() -> Result<Self, String> {
        if find_programs().is_none() {
            // It ends in an error if the programs are not on the path, though they were installed.
            drop(ensure("postgres", "postgresql"));
        }
        let programs = find_programs()
            .ok_or("PostgreSQL is missing and could not be installed: install the package postgresql")?;
        let folder = tempfile::tempdir().map_err(|error| format!("no folder for a database: {error}"))?;
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()))?;
        }
        let server = Self { folder, programs };
        run(server
            .program("initdb")
            .args(["-A", "trust", "-U", "umbel", "-E", "UTF8", "-D"])
            .arg(server.data()))?;
        run(&mut server.starting())?;
        Ok(server)
    }

    /// What tests are told in their environment.
    pub(crate) fn env(&self) -> [(&'static str, String); 2] {
        [(VARIABLE, self.url()), (PROGRAMS_VARIABLE, self.programs.display().to_string())]
    }

    /// The command that starts it.
    fn starting(&self) -> Command {
        let options = format!("-c listen_addresses= -k {}", self.folder.path().display());
        let mut start = self.program("pg_ctl");
        start.args(["start", "-w", "-o", &options, "-l"]).arg(self.folder.path().join("log")).arg("-D");
        start.arg(self.data());
        start
    }

    /// Kills it with SIGKILL. What it had in hand is lost, what it acknowledged must not be.
    pub(crate) fn kill(&self) -> Result<(), String> {
        let file = self.data().join("postmaster.pid");
        let text =
            std::fs::read_to_string(&file).map_err(|error| format!("no process of a server: {error}"))?;
        let number = text.lines().next().and_then(|line| line.trim().parse().ok());
        let process = number.and_then(rustix::process::Pid::from_raw).ok_or("the server has no process")?;
        rustix::process::kill_process(process, rustix::process::Signal::KILL)
            .map_err(|error| format!("the server cannot be killed: {error}"))
    }

    /// Starts it again after it was killed. Its orphans may hold its memory for a moment.
    pub(crate) fn restart(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match run(self.starting().stderr(Stdio::null())) {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("postgres:///postgres?user=umbel&host={}", self.folder.path().display())
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of PostgreSQL's programs; it refuses to be run by root.
    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(why) = run(self.program("pg_ctl").args(["stop", "-m", "immediate", "-D"]).arg(self.data()))
        {
            eprintln!("the test server of PostgreSQL could not be stopped: {why}");
        }
    }
}

/// `cargo xtask test postgres`: the contract and the vectors of state on a real server.
pub(crate) fn check() -> Verdict {
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return Verdict::NotRun(why),
    };
    let env = server.env();
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let contract = built::run_tests(&["crates/umbel-stores", "crates/umbel"], &["postgres"], &env);
    match contract.and_then(|()| built::run_tests(&["xtask"], &[], &env)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

/// `cargo xtask postgres COMMAND`: runs a command beside a server.
pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let Some(program) = args.next() else {
        eprintln!("name a command that is to find a server at ${VARIABLE}");
        return ExitCode::from(2);
    };
    let verdict = match Server::start() {
        Ok(server) => succeed(Command::new(program).args(args).envs(server.env())),
        Err(why) => Verdict::Failed(why),
    };
    match verdict {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed(why) | Verdict::NotRun(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Where the programs of the newest installed version are. Debian does not put them on the path.
fn find_programs() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = installed.map(|version| version.path().join("bin"));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.chain(std::env::split_paths(&on_path));
    let is_complete =
        |folder: &PathBuf| ["initdb", "pg_ctl", "postgres"].iter().all(|name| folder.join(name).exists());
    folders.filter(is_complete).max_by_key(|folder| version_of(folder))
}

/// The version that stands in the path; 0 where none does.
fn version_of(folder: &Path) -> u32 {
    let name = folder.parent().and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().parse().unwrap_or(0)
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| String::from_utf8_lossy(&id.stdout).trim() == "0")
}

fn run(command: &mut Command) -> Result<(), String> {
    match succeed(command.stdout(Stdio::null())) {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}
