//! `cargo xtask soak`: a server under a long mixed load, and what it has left when the load is over.
//!
//! Each exchange makes threads, by runs that finish, ask, wait for a client, are cut or cancelled, fork or call MCP
//! tools, and deletes them. Afterwards memory, descriptors, tasks and pages of the database must be what they were.

mod client;
mod exchange;
mod plot;
mod process;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::client::Client;
use self::exchange::{Exchange, ExchangeKind, KINDS};
use self::process::{Sample, SoakServer};
use crate::built;
use crate::test::{Verdict, target};

/// Exchanges of the check, and those before the first sample, in which caches fill.
const RUNS: u64 = 20_000;
const WARM_UP: u64 = 4_000;

/// Threads that stay in the database.
const KEPT_THREADS: u64 = 300;

/// Clients at once.
const CLIENTS: u64 = 4;

/// How long a server may take until it is idle again.
const SETTLE: Duration = Duration::from_secs(40);

/// How much more memory it may have after the load than before, in bytes.
const MOST_BYTES: u64 = 2 << 20;

/// The options of the command.
struct SoakOptions {
    runs: u64,
    minutes: u64,
    plot: Option<PathBuf>,
}

pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let usage = "usage: cargo xtask soak [--runs N] [--minutes N] [--plot FILE.svg]";
    let mut options = SoakOptions { runs: RUNS, minutes: 0, plot: None };
    while let Some(arg) = args.next() {
        let value = args.next();
        let number = value.as_deref().and_then(|value| value.parse().ok());
        let is_known = match arg.as_str() {
            "--runs" => number.map(|runs| options.runs = runs).is_some(),
            "--minutes" => number.map(|minutes| options.minutes = minutes).is_some(),
            "--plot" => value.map(|file| options.plot = Some(file.into())).is_some(),
            _ => false,
        };
        if !is_known {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    }
    match soak(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo xtask test soak`.
pub(crate) fn check() -> Verdict {
    match soak(&SoakOptions { runs: RUNS, minutes: 0, plot: None }) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn soak(options: &SoakOptions) -> Result<(), String> {
    let program = built::program("soak_server")?;
    let folder = target();
    let folder = tempfile::tempdir_in(&folder)
        .map_err(|error| format!("no folder for databases in {}: {error}", folder.display()))?;
    let file = folder.path().join("soak.db");
    let pages = keep_threads(&program, &file)?;
    let server = SoakServer::start(&program, &file)?;
    let started = Instant::now();
    load(&server, 0..WARM_UP, Duration::ZERO, &mut |_| {})?;
    let before = server.settle(SETTLE, None)?;
    let mut samples = vec![(started.elapsed(), before)];
    let until = Duration::from_secs(60 * options.minutes);
    let count = load(&server, WARM_UP..WARM_UP + options.runs, until, &mut |sample| {
        samples.push((started.elapsed(), sample));
    })?;
    let after = server.settle(SETTLE, Some(before))?;
    samples.push((started.elapsed(), after));
    server.stop()?;
    let pages_after = used_pages(&file)?;
    println!(
        "soak: {count} exchanges in {} s; memory {} → {} KiB, descriptors {} → {}, tasks {} → {}, threads {} → {}, \
         database pages in use {pages} → {pages_after}",
        started.elapsed().as_secs(),
        before.memory / 1024,
        after.memory / 1024,
        before.descriptors,
        after.descriptors,
        before.tasks,
        after.tasks,
        before.threads,
        after.threads,
    );
    if let Some(path) = &options.plot {
        plot::write(path, &samples)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    }
    let mut problems = Vec::new();
    if after.memory > before.memory + MOST_BYTES {
        problems.push(format!("memory rose by {} KiB", (after.memory - before.memory) / 1024));
    }
    for (what, then, now) in
        [("descriptors", before.descriptors, after.descriptors), ("tasks", before.tasks, after.tasks)]
    {
        if now > then {
            problems.push(format!("there are {now} {what}, and there were {then}"));
        }
    }
    if pages_after * 100 > pages * 101 {
        problems.push(format!("{pages_after} pages of the database are in use, and {pages} were"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Fills a database with threads that stay, and counts its pages.
fn keep_threads(program: &Path, file: &Path) -> Result<u64, String> {
    let server = SoakServer::start(program, file)?;
    let mut client = Client::connect(server.address)?;
    for number in 0..KEPT_THREADS {
        Exchange::new(&mut client, format!("kept-{number}")).run("/chat")?;
    }
    drop(client);
    server.stop()?;
    used_pages(file)
}

/// Pages of a closed SQLite file that are in use: its header has the number of all, and of those that are free.
fn used_pages(file: &Path) -> Result<u64, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).map(u64::from).ok_or("the database has no header")
    };
    Ok(number(28)? - number(36)?)
}

/// Makes the exchanges of these numbers, and goes on for so long, from several clients at once. Takes a sample after each
/// hundredth of them, and gives how many there were.
fn load(
    server: &SoakServer,
    numbers: std::ops::Range<u64>,
    least: Duration,
    sampled: &mut dyn FnMut(Sample),
) -> Result<u64, String> {
    let (next, started) = (AtomicU64::new(numbers.start), Instant::now());
    let every = ((numbers.end - numbers.start) / 100).max(1);
    let work = || -> Result<(), String> {
        let mut client = Client::connect(server.address)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end && started.elapsed() >= least {
                return Ok(());
            }
            let kind =
                KINDS.into_iter().cycle().nth(number as usize % KINDS.len()).unwrap_or(ExchangeKind::Chat);
            Exchange::new(&mut client, format!("thread-{number}"))
                .of_kind(kind)
                .map_err(|why| format!("exchange {number} ({kind:?}): {why}"))?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        let mut last = numbers.start;
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            let now = next.load(Ordering::Relaxed);
            if now >= last + every {
                last = now;
                sampled(server.sample()?);
            }
        }
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
    })?;
    Ok(next.load(Ordering::Relaxed).saturating_sub(numbers.start + CLIENTS))
}
