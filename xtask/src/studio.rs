//! `cargo xtask test studio`: the studio in a headless Chromium, against `umbel serve`, and how fast that starts.

use std::fs::{File, Permissions};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use umbel_stores::sqlite::Sqlite;

use crate::built;
use crate::packages::Packages;
use crate::server::{Server, serve_umbel};
use crate::test::{Verdict, chromium, passed, root, succeed, target};

/// The folder of the checks.
const FOLDER: &str = "conformance/studio";

/// How long `umbel serve` may take until it listens.
const SLOWEST: Duration = Duration::from_millis(100);

/// What comes before all paths of the server that wants a token.
const BASE: &str = "/deep/down";

/// Who may ask it.
const TOKENS: &str = "guarded-by-this-token-alone ann\n";

/// How often it is started to find that out.
const STARTS: usize = 9;

/// All of it, whatever fails first. What cannot be installed here is told apart.
pub(crate) fn check() -> Verdict {
    let needed = chromium().and_then(|chromium| Ok((chromium, Packages::install(FOLDER)?)));
    let (chromium, packages) = match needed {
        Ok(needed) => needed,
        Err(why) => return Verdict::NotRun(why),
    };
    let studio = root().join("crates/umbel-server/studio");
    let parts = [
        passed(succeed(packages.node("types.mjs").arg(&studio))),
        passed(succeed(Command::new("node").args(["--test", "unit/"]).current_dir(root().join(FOLDER)))),
        drive(&packages, &chromium),
    ];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("; ")) }
}

/// A browser, and the server that it looks at.
fn drive(packages: &Packages, chromium: &Path) -> Result<(), String> {
    let umbel = built::program("umbel")?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for sessions: {error}"))?;
    let start = check_start(&umbel, folder.path());
    fill(packages, folder.path())?;
    let server = Server::start(serve_umbel(&umbel, folder.path()))?;
    let guarded = Server::start(serve_guarded(&umbel)?)?;
    let screenshots = target().join("studio");
    std::fs::create_dir_all(&screenshots).map_err(|error| format!("no folder for screenshots: {error}"))?;
    let mut run = packages.node("run.mjs");
    run.arg(&server.address).arg(&screenshots).arg("--chromium").arg(chromium);
    run.arg("--guarded").arg(format!("{}{BASE}", guarded.address));
    let service = Server::start(Command::new(built::program("oauth_server")?))?;
    run.arg("--umbel").arg(&umbel).arg("--service").arg(&service.address);
    passed(succeed(&mut run))?;
    start
}

/// A server that wants to know who asks, behind a base path.
fn serve_guarded(umbel: &Path) -> Result<Command, String> {
    let tokens = target().join("studio-tokens.txt");
    let failed = |error: std::io::Error| format!("{} cannot be written: {error}", tokens.display());
    std::fs::write(&tokens, TOKENS).map_err(failed)?;
    std::fs::set_permissions(&tokens, Permissions::from_mode(0o600)).map_err(failed)?;
    let mut command = Command::new(umbel);
    command.args(["serve", "--port", "0", "--model", "script", "--store", "memory:", "--base-path", BASE]);
    command.arg("--tokens").arg(tokens);
    Ok(command)
}

/// How long it takes until the server listens, as the median of several starts.
fn check_start(umbel: &Path, folder: &Path) -> Result<(), String> {
    let mut times = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        let began = Instant::now();
        let server = Server::start(serve_umbel(umbel, folder))?;
        times.push(began.elapsed());
        drop(server);
    }
    times.sort();
    let median = times.get(STARTS / 2).copied().unwrap_or_default();
    println!("`umbel serve` listens after {} ms, the median of {STARTS} starts", median.as_millis());
    if median > SLOWEST {
        return Err(format!("`umbel serve` may take {} ms until it listens", SLOWEST.as_millis()));
    }
    Ok(())
}

/// Puts sessions into the store that there are to look at.
fn fill(packages: &Packages, folder: &Path) -> Result<(), String> {
    let lines: PathBuf = folder.join("fixture.jsonl");
    passed(succeed(packages.node("fixture.mjs").arg(&lines)))?;
    let input = File::open(&lines).map_err(|error| format!("{} cannot be read: {error}", lines.display()))?;
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("no runtime: {error}"))?;
    let imported = runtime.block_on(async {
        let store = Sqlite::open(folder.join("sessions.db")).await?;
        store.import(BufReader::new(input)).await
    });
    imported.map(drop).map_err(|error| format!("the sessions cannot be imported: {error}"))
}
