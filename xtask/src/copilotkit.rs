//! `cargo xtask copilotkit`: a front end made with CopilotKit's packages, in a browser, against `umbel serve`.

use std::process::ExitCode;

use crate::built;
use crate::packages::Packages;
use crate::server::{Server, serve_umbel};
use crate::test::{chromium, passed, succeed, target};

/// Where the front end is.
const FOLDER: &str = "examples/copilotkit";

pub(crate) fn main() -> ExitCode {
    match drive() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn drive() -> Result<(), String> {
    let chromium = chromium()?;
    let packages = Packages::install(FOLDER)?;
    passed(packages.npm_run("build"))?;
    let umbel = built::program("umbel")?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for sessions: {error}"))?;
    let server = Server::start(serve_umbel(&umbel, folder.path()))?;
    let screenshots = target().join("copilotkit");
    std::fs::create_dir_all(&screenshots).map_err(|error| format!("no folder for screenshots: {error}"))?;
    let mut test = packages.node("test.mjs");
    test.args(["--agents", &server.address, "--screenshots"]).arg(&screenshots);
    test.arg("--chromium").arg(&chromium);
    passed(succeed(&mut test))
}
