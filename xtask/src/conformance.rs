//! `cargo xtask conformance`: the AG-UI server and its events, held against the official packages of the protocol.

use std::process::{Command, ExitCode};

use crate::built;
use crate::packages::Packages;
use crate::server::Server;
use crate::test::{Verdict, root};

/// Where tests find the folder to which they write their events.
const EVENTS_VARIABLE: &str = "UMBEL_AGUI_EVENTS";

/// The crates whose tests write events down.
const CRATES: [&str; 2] = ["crates/umbel-agui", "crates/umbel-server"];

/// `cargo xtask test conformance`: the events of all tests, and the server with every check.
pub(crate) fn check() -> Verdict {
    let packages = match Packages::install("conformance/agui") {
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
        Some("--events") => Packages::install("conformance/agui")
            .map_or_else(Verdict::Failed, |packages| check_events(&packages)),
        Some("--only" | "--verbose" | "--list") => Packages::install("conformance/agui")
            .map_or_else(Verdict::Failed, |packages| check_server(&packages, &args)),
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
    if let Err(why) = built::run_tests(&CRATES, &[], &[(EVENTS_VARIABLE, folder)]) {
        return Verdict::Failed(why);
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
    let server = match start_server() {
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

/// The example with the agents of the checks.
fn start_server() -> Result<Server, String> {
    let mut command = Command::new(built::program("conformance")?);
    command.args(["--port", "0"]);
    Server::start(command)
}
