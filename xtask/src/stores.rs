//! `cargo xtask bench stores`: what sessions on disk cost, in commits, fsyncs, bytes, instructions and time.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::budgets::{Trouble, build, counted, folder_beside, instructions, json_of, per_one};
use crate::onion::Figure;
use crate::postgres::Server;
use crate::test::ensure;

/// The lengths between which a turn must cost the same, in events.
const SHORT: u64 = 10;
const LONG: u64 = 3_000;

/// The benchmark, and a folder for its databases.
pub(crate) struct Bench {
    binary: PathBuf,
    folder: TempDir,
    databases: AtomicU32,
}

impl Bench {
    /// Builds it.
    pub(crate) fn new() -> Result<Self, Trouble> {
        let binary = build("bench-stores", false)?;
        let folder = folder_beside(&binary)?;
        Ok(Self { binary, folder, databases: AtomicU32::new(0) })
    }

    /// A file for a database that is not there yet.
    fn file(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        self.folder.path().join(format!("{number}.db")).display().to_string()
    }

    fn sqlite(&self) -> String {
        format!("sqlite:{}", self.file())
    }

    /// Transactions that a turn writes, rounded up.
    fn commits(&self, url: &str, scenario: &str) -> Result<u64, Trouble> {
        const TURNS: u64 = 50;
        Ok(counted(&self.binary, &["commits", url, scenario, &TURNS.to_string()])?.div_ceil(TURNS))
    }

    /// Instructions of a turn of a session that is kept at hand, on all threads. Each count has a database of its own.
    fn instructions(&self, on: &str, scenario: &str, events: u64) -> Result<u64, Trouble> {
        const TURNS: u64 = 100;
        let count = |turns: u64| {
            let url = if on == "memory" { "memory:".to_owned() } else { self.sqlite() };
            let args = ["turns", &url, scenario, &events.to_string(), &turns.to_string()];
            instructions(&self.binary, &args)
        };
        per_one(20, 20 + TURNS, count)
    }

    /// How often 64 busy sessions sync per 1,000 events, making the sessions included.
    fn syncs(&self) -> Result<u64, Trouble> {
        const EACH: u64 = 300;
        let told = self.folder.path().join("strace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o"]).arg(&told);
        strace.arg(&self.binary).args(["appends", &self.file(), &EACH.to_string()]);
        let output =
            strace.output().map_err(|e| Trouble::Broken(format!("strace cannot be started: {e}")))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Trouble::Missing(format!("strace cannot trace here: {why}")));
        }
        let told = std::fs::read_to_string(&told)
            .map_err(|e| Trouble::Broken(format!("strace told nothing: {e}")))?;
        let syncs = told.lines().filter(|line| line.contains("sync(") && !line.contains("resumed"));
        Ok((syncs.count() as u64 * 1_000).div_ceil(64 * EACH))
    }

    /// Bytes of a turn with 1,000 bytes of text, and by how many per cent the largest tenth of 1,000 turns is above the
    /// smallest.
    fn bytes(&self, url: &str) -> Result<(u64, u64), Trouble> {
        let size = json_of(&self.binary, &["size", url, "1000"])?;
        let parts = size.get("parts").and_then(Value::as_array).into_iter().flatten();
        let parts: Vec<u64> = parts.filter_map(Value::as_u64).collect();
        let (smallest, largest) = (parts.iter().min().copied(), parts.iter().max().copied());
        let (smallest, largest) = (smallest.unwrap_or(1).max(1), largest.unwrap_or(u64::MAX));
        let spread = (largest - smallest).saturating_mul(100).div_ceil(smallest);
        Ok((size.get("bytes_per_turn").and_then(Value::as_u64).unwrap_or(u64::MAX), spread))
    }

    /// How fast 64 sessions append, beside one, and what one fsync takes on the disk of this folder.
    fn rate(&self, url: &str) -> Result<Value, Trouble> {
        json_of(&self.binary, &["rate", url, &self.folder.path().display().to_string()])
    }
}

/// Instructions of turns on SQLite and how they grow, which have budgets.
pub(crate) fn instructions_of_turns(bench: &Bench) -> Result<Vec<(String, u64)>, Trouble> {
    let mut costs = Vec::new();
    for scenario in ["text", "tool"] {
        let near = bench.instructions("sqlite", scenario, SHORT)?;
        let far = bench.instructions("sqlite", scenario, LONG)?;
        costs.push((format!("instructions_sqlite_{scenario}"), near));
        costs.push((format!("growth_sqlite_{scenario}_percent"), far * 100 / near.max(1)));
    }
    Ok(costs)
}

/// The figures that the test command holds to their limits.
pub(crate) fn figures(bench: &Bench) -> Result<Vec<Figure>, Trouble> {
    let mut figures = Vec::new();
    let mut add = |name: &str, value: u64, wanted: u64| {
        figures.push(Figure { name: name.to_owned(), value, wanted });
    };
    add("SQLite: commits of a text turn", bench.commits(&bench.sqlite(), "text")?, 2);
    add("SQLite: commits of a turn with a tool", bench.commits(&bench.sqlite(), "tool")?, 4);
    match Server::start() {
        Ok(server) => {
            add("PostgreSQL: commits of a text turn", bench.commits(&server.url(), "text")?, 2);
            add("PostgreSQL: commits of a turn with a tool", bench.commits(&server.url(), "tool")?, 4);
        }
        Err(why) => println!("   PostgreSQL is not measured: {why}"),
    }
    match ensure("strace", "strace").map_err(Trouble::Missing).and_then(|()| bench.syncs()) {
        Ok(syncs) => add("SQLite: fsyncs per 1,000 events, 64 sessions", syncs, 100),
        Err(Trouble::Missing(why)) => println!("   fsyncs are not counted: {why}"),
        Err(broken) => return Err(broken),
    }
    let (bytes, spread) = bench.bytes(&bench.sqlite())?;
    add("SQLite: bytes of a turn with 1,000 of text", bytes, 4_000);
    add("SQLite: per cent between tenths of 1,000 turns", spread, 5);
    Ok(figures)
}

/// Prints the whole table. What goes by the clock is in it too.
pub(crate) fn main() -> Result<(), String> {
    ensure("valgrind", "valgrind")?;
    let missed = table().map_err(|trouble| match trouble {
        Trouble::Missing(why) | Trouble::Broken(why) => why,
    })?;
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
}

fn table() -> Result<Vec<String>, Trouble> {
    let bench = Bench::new()?;
    let mut missed = Vec::new();
    let mut show = |name: &str, value: u64, wanted: u64| {
        let is_missed = value > wanted;
        println!("{name:<52} {value:>8}  of {wanted}{}", if is_missed { "  MISSED" } else { "" });
        if is_missed {
            missed.push(name.to_owned());
        }
    };
    for Figure { name, value, wanted } in figures(&bench)? {
        show(&name, value, wanted);
    }
    let rate = bench.rate(&bench.sqlite())?;
    let of = |path: &str| rate.pointer(path).and_then(Value::as_u64).unwrap_or(u64::MAX);
    let wanted = of("/sync/p99").saturating_mul(3);
    show("SQLite: p99 of an append, one session, µs", of("/alone/p99"), wanted);
    show("SQLite: p99 of an append, 64 sessions, µs", of("/together/p99"), wanted);
    println!("   one fsync: p50 {} µs, p99 {} µs", of("/sync/p50"), of("/sync/p99"));
    println!("   an append of one session: p50 {} µs, of 64: {} µs", of("/alone/p50"), of("/together/p50"));
    let (together, alone) = (of("/together/per_second"), of("/alone/per_second").max(1));
    println!("   events per second: {together} of 64 sessions, {alone} with a commit each");
    println!(
        "   that is {:.1} times as many, {} in a commit",
        together as f64 / alone as f64,
        of("/events_per_commit")
    );
    for scenario in ["text", "tool"] {
        let memory = bench.instructions("memory", scenario, SHORT)?;
        let near = bench.instructions("sqlite", scenario, SHORT)?;
        let far = bench.instructions("sqlite", scenario, LONG)?;
        show(&format!("SQLite: instructions of a {scenario} turn at 3,000 events"), far, near * 3 / 2);
        println!("   at 10 events {near}, in memory {memory}");
    }
    if let Ok(server) = Server::start() {
        // First, while there is no room that was left free.
        let (bytes, spread) = bench.bytes(&server.url())?;
        println!("   PostgreSQL: {bytes} bytes of a turn with 1,000 of text, {spread} % between tenths");
        let rate = bench.rate(&server.url())?;
        let of = |path: &str| rate.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        let (together, alone) = (of("/together/per_second"), of("/alone/per_second"));
        println!("   PostgreSQL: {together} events per second of 64 sessions, {alone} of one");
    }
    Ok(missed)
}
