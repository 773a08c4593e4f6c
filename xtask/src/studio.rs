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

/// How big the studio may be, all its files together.
const LARGEST: u64 = 200_000;

/// How long `umbel serve` may take until it listens.
const SLOWEST: Duration = Duration::from_millis(100);

/// How often it is started to find that out.
const STARTS: usize = 9;

/// All of it. What cannot be installed here is told apart from what fails.
pub(crate) fn check() -> Verdict {
    let packages = match ensure("chromium", "chromium").and_then(|()| Packages::install(FOLDER)) {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    match check_with(&packages) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn check_with(packages: &Packages) -> Result<(), String> {
    let studio = root().join("crates/umbel-server/studio");
    check_size(&studio)?;
    passed(succeed(packages.node("types.mjs").arg(&studio)))?;
    passed(succeed(Command::new("node").args(["--test", "unit/"]).current_dir(root().join(FOLDER))))?;
    let umbel = build_umbel()?;
    let folder = tempfile::tempdir().map_err(|error| format!("no folder for sessions: {error}"))?;
    check_start(&umbel, folder.path())?;
    fill(packages, folder.path())?;
    let server = Server::start(serve_umbel(&umbel, folder.path()))?;
    let screenshots = target().join("studio");
    std::fs::create_dir_all(&screenshots).map_err(|error| format!("no folder for screenshots: {error}"))?;
    passed(succeed(packages.node("run.mjs").args([&server.address]).arg(&screenshots)))
}

/// The studio is part of the binary, so it is kept small.
fn check_size(studio: &Path) -> Result<(), String> {
    let bytes = size(studio).map_err(|error| format!("{} cannot be read: {error}", studio.display()))?;
    println!("the studio has {bytes} bytes");
    if bytes > LARGEST {
        return Err(format!("the studio has {bytes} bytes, and {LARGEST} are allowed"));
    }
    Ok(())
}

fn size(folder: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(folder)?.try_fold(0, |sum, entry| {
        let path = entry?.path();
        let bytes = if path.is_dir() { size(&path)? } else { path.metadata()?.len() };
        Ok(sum + bytes)
    })
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
