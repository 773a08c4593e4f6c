//! `cargo xtask test mcp`: MCP beside its official packages: their servers, their client, and their suite.

use std::path::PathBuf;
use std::process::Command;

use crate::packages::Packages;
use crate::server::Server;
use crate::test::{Verdict, cargo, passed, root, succeed, target};

/// The folder of the checks.
const FOLDER: &str = "conformance/mcp";
/// The official suite, in that folder.
const SUITE: &str = "node_modules/@modelcontextprotocol/conformance/dist/index.js";

/// All of it, whatever fails first.
pub(crate) fn check() -> Verdict {
    let packages = match Packages::install(FOLDER) {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    let parts = [check_servers(), check_client(&packages), check_our_server(&packages)];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("; ")) }
}

/// Builds an example of `umbel-mcp` and says where it is.
fn example(name: &str) -> Result<PathBuf, String> {
    passed(cargo(&["build", "--quiet", "-p", "umbel-mcp", "--example", name], &[]))?;
    Ok(target().join("debug").join("examples").join(name))
}

/// An agent uses the official servers.
fn check_servers() -> Result<(), String> {
    let mut agent = Command::new(example("official_servers")?);
    passed(succeed(agent.arg(target().join(FOLDER.replace('/', "-")))))
}

/// The official suite looks at what a client does.
fn check_client(packages: &Packages) -> Result<(), String> {
    let client = example("conformance_client")?;
    let results = tempfile::tempdir().map_err(|error| format!("no folder for results: {error}"))?;
    let mut suite = packages.node("--import");
    suite.args(["./node20.mjs", SUITE, "client", "--suite", "all", "--command"]).arg(client);
    suite.arg("--expected-failures").arg(root().join(FOLDER).join("client-failures.yml"));
    suite.arg("--output-dir").arg(results.path());
    passed(succeed(&mut suite))
}

/// The official client uses our server, over HTTP and over standard input and output, and the official suite looks at it.
fn check_our_server(packages: &Packages) -> Result<(), String> {
    let program = example("conformance_server")?;
    let server = Server::start(Command::new(&program))?;
    passed(succeed(packages.node("server.mjs").arg(&server.address).arg(&program)))?;
    let mut suite = packages.node("--import");
    suite
        .args(["./node20.mjs", SUITE, "server", "--suite", "all", "--url"])
        .arg(format!("{}/mcp", server.address));
    suite.arg("--expected-failures").arg(root().join(FOLDER).join("server-failures.yml"));
    passed(succeed(&mut suite))
}
