//! `cargo xtask test mcp`: MCP both ways, held against the official packages of the protocol.

use std::process::Command;

use crate::built;
use crate::packages::Packages;
use crate::server::Server;
use crate::test::{Verdict, passed, succeed, target};

/// The folder of the checks.
const FOLDER: &str = "conformance/mcp";
/// The official suite.
const SUITE: &str = "node_modules/@modelcontextprotocol/conformance/dist/index.js";

/// `cargo xtask test mcp`: all of it, whatever fails first.
pub(crate) fn check() -> Verdict {
    let packages = match Packages::install(FOLDER) {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    let parts = [client_of_servers(), client(&packages), server(&packages)];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("; ")) }
}

/// Our client: an agent uses the official servers.
fn client_of_servers() -> Result<(), String> {
    let mut agent = Command::new(built::program("official_servers")?);
    passed(succeed(agent.arg(target().join(FOLDER.replace('/', "-")))))
}

/// Our client: the official suite starts it for each of its scenarios.
fn client(packages: &Packages) -> Result<(), String> {
    let program = built::program("conformance_client")?;
    let results = tempfile::tempdir().map_err(|error| format!("no folder for results: {error}"))?;
    let mut suite = suite(packages);
    suite.args(["client", "--suite", "all", "--command"]).arg(program);
    suite.args(["--expected-failures", "client-expected-failures.yml", "--output-dir"]).arg(results.path());
    passed(succeed(&mut suite))
}

/// Our server: the official client uses it, over HTTP and over standard input and output, and the official suite looks at it.
fn server(packages: &Packages) -> Result<(), String> {
    let program = built::program("conformance_server")?;
    let server = Server::start(Command::new(&program))?;
    passed(succeed(packages.node("server.mjs").arg(&server.address).arg(&program)))?;
    let mut suite = suite(packages);
    suite.args(["server", "--suite", "all", "--url"]).arg(format!("{}/mcp", server.address));
    passed(succeed(suite.args(["--expected-failures", "server-expected-failures.yml"])))
}

/// The command that runs the official suite.
fn suite(packages: &Packages) -> Command {
    let mut node = packages.node("--import");
    node.args(["./old-node.mjs", SUITE]);
    node
}
