//! `cargo xtask conformance`: the AG-UI server and its events, held against the official packages of the protocol.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::test::{Verdict, cargo, ensure, root, succeed};

/// Where tests find the folder to which they write their events.
const EVENTS_VARIABLE: &str = "UMBEL_AGUI_EVENTS";

/// The crates whose tests write events down.
const CRATES: [&str; 2] = ["umbel-agui", "umbel-server"];

/// What the server says once it can be reached.
const LISTENING: &str = "listening on ";

/// How long it may take until then.
const START: Duration = Duration::from_secs(60);

/// `cargo xtask test conformance`: the events of all tests, and the server with every check.
pub(crate) fn check() -> Verdict {
    let packages = match Packages::install() {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    match check_events(&packages) {
        Verdict::Passed => check_server(&packages, &[]),
        other => other,
    }
}

/// `cargo xtask conformance`: the same, or some checks of the server alone.
pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let args: Vec<String> = args.collect();
    let verdict = match args.first().map(String::as_str) {
        None => check(),
        Some("--events") => {
            Packages::install().map_or_else(Verdict::Failed, |packages| check_events(&packages))
        }
        Some("--only" | "--verbose" | "--list") => {
            Packages::install().map_or_else(Verdict::Failed, |packages| check_server(&packages, &args))
        }
        Some(other) => {
            eprintln!("there is no option `{other}`; there are --events, --only, --list and --verbose");
            return ExitCode::from(2);
        }
    };
    match verdict {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed(why) | Verdict::NotRun(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Every event that a test produces fits the schemas, streams keep the rules of order, protobuf says the same, and the
/// official client makes the same of a stream whether it was cut or not.
fn check_events(packages: &Packages) -> Verdict {
    let events = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return Verdict::Failed(format!("no folder for events: {error}")),
    };
    let Some(folder) = events.path().to_str() else {
        return Verdict::Failed("the folder for temporary files has no name in Unicode".to_owned());
    };
    let mut args = vec!["test", "--all-features"];
    args.extend(CRATES.iter().flat_map(|name| ["-p", name]));
    match cargo(&args, &[(EVENTS_VARIABLE, folder)]) {
        Verdict::Passed => {}
        other => return other,
    }
    for script in ["validate.mjs", "proto.mjs", "folds.mjs"] {
        match packages.run(script, &[folder]) {
            Verdict::Passed => {}
            other => return other,
        }
    }
    Verdict::Passed
}

/// The official client drives the agents of the example.
fn check_server(packages: &Packages, options: &[String]) -> Verdict {
    let server = match Server::start() {
        Ok(server) => server,
        Err(why) => return Verdict::Failed(why),
    };
    let args: Vec<&str> =
        [server.address.as_str()].into_iter().chain(options.iter().map(String::as_str)).collect();
    match packages.run("run.mjs", &args) {
        Verdict::Passed if options.is_empty() => check_client(packages, &server),
        other => other,
    }
}

/// The class for front ends whose streams are taken up again.
fn check_client(packages: &Packages, server: &Server) -> Verdict {
    let client = root().join("clients").join("resumable-http-agent.ts");
    match client.to_str() {
        Some(client) => packages.run("resumable.mjs", &[&server.address, client]),
        None => Verdict::Failed(format!("{} has no name in Unicode", client.display())),
    }
}

/// The scripts of `conformance/agui` and the packages they use, in a folder of their own.
struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Installs the packages as the lock file has them; Node.js is installed for them where that is possible.
    fn install() -> Result<Self, String> {
        ensure("node", "nodejs")?;
        ensure("npm", "npm")?;
        let folder = target().join("conformance-agui");
        let failed = |error: std::io::Error| format!("{} cannot be written: {error}", folder.display());
        let source = root().join("conformance").join("agui");
        let (locked, installed) = (source.join("package-lock.json"), folder.join("installed-lock.json"));
        let is_installed = std::fs::read(&locked).ok() == std::fs::read(&installed).ok();
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for entry in std::fs::read_dir(&source).map_err(failed)?.flatten() {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.join(entry.file_name())).map_err(failed)?;
            }
        }
        if !is_installed {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder);
            if let Verdict::Failed(why) | Verdict::NotRun(why) = succeed(&mut npm) {
                return Err(format!("the packages of AG-UI cannot be installed: {why}"));
            }
            std::fs::copy(&locked, &installed).map_err(failed)?;
        }
        Ok(Self { folder })
    }

    fn run(&self, script: &str, args: &[&str]) -> Verdict {
        succeed(Command::new("node").arg(script).args(args).current_dir(&self.folder))
    }
}

/// The example with the agents of the checks. It is killed when this is dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Result<Self, String> {
        let build = ["build", "--quiet", "-p", "umbel-server", "--example", "conformance"];
        if let Verdict::Failed(why) | Verdict::NotRun(why) = cargo(&build, &[]) {
            return Err(why);
        }
        let program = target().join("debug").join("examples").join("conformance");
        let mut command = Command::new(&program);
        command.args(["--port", "0"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let process =
            command.spawn().map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
        let mut server = Self { process, address: String::new() };
        let output = server.process.stdout.take().ok_or("the server has no output")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // It goes on reading after that, so that the server never waits for its reader.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(address) = address_of(&line) {
                    drop(sender.send(address));
                }
            }
        });
        server.address =
            receiver.recv_timeout(START).map_err(|_| "the server ended or never said where it listens")?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("the server could not be stopped: {error}");
        }
    }
}

/// The address in what the server says.
fn address_of(line: &str) -> Option<String> {
    line.strip_prefix(LISTENING).map(|address| address.trim().to_owned())
}

/// Where this workspace is built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_what_follows_listening_on() {
        assert_eq!(address_of("listening on http://127.0.0.1:1\n"), Some("http://127.0.0.1:1".to_owned()));
        assert_eq!(address_of("hello"), None);
    }
}
