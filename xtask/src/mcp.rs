//! `cargo xtask test mcp`: MCP both ways, held against the official packages of the protocol.

use std::path::PathBuf;
use std::process::Command;

use crate::packages::Packages;
use crate::server::Server;
use crate::test::{Verdict, cargo, succeed, target};

/// The official suite.
const SUITE: &str = "node_modules/@modelcontextprotocol/conformance/dist/index.js";

/// `cargo xtask test mcp`.
pub(crate) fn check() -> Verdict {
    match Packages::install("conformance/mcp") {
        Ok(packages) => server(&packages),
        Err(why) => Verdict::NotRun(why),
    }
}

/// Our server: the official client drives it, and the official suite.
fn server(packages: &Packages) -> Verdict {
    let program = match example("conformance_server") {
        Ok(program) => program,
        Err(why) => return Verdict::Failed(why),
    };
    let server = match Server::start(Command::new(&program)) {
        Ok(server) => server,
        Err(why) => return Verdict::Failed(why),
    };
    let Some(program) = program.to_str() else {
        return Verdict::Failed(format!("{} has no name in Unicode", program.display()));
    };
    match packages.run("server.mjs", &[&server.address, program]) {
        Verdict::Passed => {}
        other => return other,
    }
    let url = format!("{}/mcp", server.address);
    let args = ["server", "--url", &url, "--suite", "all", "--expected-failures"];
    succeed(suite(packages).args(args).arg("server-expected-failures.yml"))
}

/// The command that runs the official suite.
fn suite(packages: &Packages) -> Command {
    let mut node = packages.node("--import");
    node.args(["./old-node.mjs", SUITE]);
    node
}

/// Builds an example of umbel-mcp, and says where it is.
fn example(name: &str) -> Result<PathBuf, String> {
    match cargo(&["build", "--quiet", "-p", "umbel-mcp", "--example", name], &[]) {
        Verdict::Passed => Ok(target().join("debug").join("examples").join(name)),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}
