//! `cargo xtask test studio`: the studio in a headless Chromium, against `umbel serve`, and how fast that starts.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use umbel_stores::sqlite::Sqlite;

use crate::packages::Packages;
use crate::server::{Server, build_umbel, serve_umbel};
use crate::test::{Verdict, ensure, passed, root, succeed, target};

/// The folder of the checks.
const FOLDER: &str = "conformance/studio";

/// How long `umbel serve` may take until it listens.
const SLOWEST: Duration = Duration::from_millis(100);

/// How often it is started to find that out.
const STARTS: usize = 9;

/// All of it, whatever fails first. What cannot be installed here is told apart.
pub(crate) fn check() -> Verdict {
    let packages = match ensure("chromium", "chromium").and_then(|()| Packages::install(FOLDER)) {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    let studio = root().join("crates/umbel-server/studio");
    let parts = [
        passed(succeed(packages.node("types.mjs").arg(&studio))),
        passed(succeed(Command::new("node").args(["--test", "unit/"]).current_dir(root().join(FOLDER)))),
        drive(&packages),
    ];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(wrong.join("; ")) }
}

/// A browser, and the server that it looks at.
fn drive(packages: &Packages) -> Result<(), String> {
    let umbel = build_umbel()?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for sessions: {error}"))?;
    let start = check_start(&umbel, folder.path());
    fill(packages, folder.path())?;
    let server = Server::start(serve_umbel(&umbel, folder.path()))?;
    let screenshots = target().join("studio");
    std::fs::create_dir_all(&screenshots).map_err(|error| format!("no folder for screenshots: {error}"))?;
    passed(succeed(packages.node("run.mjs").args([&server.address]).arg(&screenshots)))?;
    start
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
