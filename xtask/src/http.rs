//! `cargo xtask bench http`: what serving agents costs, beside a raw handler that writes the same bytes.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::budgets::{Trouble, build, counted, folder_beside, json_of, per_one};
use crate::onion::Figure;
use crate::test::ensure;

/// Connections, as the table has them.
const CONNECTIONS: [u64; 4] = [1, 16, 64, 512];

/// The benchmark, and a folder for its databases.
pub(crate) struct Bench {
    binary: PathBuf,
    folder: TempDir,
}

impl Bench {
    /// Builds it.
    pub(crate) fn new() -> Result<Self, Trouble> {
        let binary = build("bench-http", false)?;
        let folder = folder_beside(&binary)?;
        Ok(Self { binary, folder })
    }

    fn sqlite(&self, name: &str) -> String {
        format!("sqlite:{}", self.folder.path().join(name).display())
    }

    /// A scenario at so many connections: Umbel, raw, and raw that parses.
    fn load(
        &self,
        scenario: &str,
        connections: u64,
        runs: u64,
        rounds: u64,
        store: &str,
    ) -> Result<Load, Trouble> {
        let [connections, runs, rounds] = [connections, runs, rounds].map(|number| number.to_string());
        json_of(&self.binary, &["load", scenario, &connections, &runs, &rounds, store]).map(Load)
    }

    /// Instructions of one run of a server, as the difference of two counts.
    fn instructions(&self, what: &str, scenario: &str, store: &str) -> Result<u64, Trouble> {
        per_one(20, 120, |runs| {
            let store = match store {
                "memory" => "memory:".to_owned(),
                _ => self.sqlite(&format!("{what}-{scenario}-{runs}.db")),
            };
            counted(&self.binary, &["counted", what, scenario, &runs.to_string(), &store])
        })
    }

    /// Instructions of a turn behind so many, with the whole conversation sent again: those of Umbel, and those of a raw
    /// handler that parses the request.
    fn turn(&self, turns: u64) -> Result<(u64, u64), Trouble> {
        let per_turn = |what: &str| {
            per_one(0, 10, |more| {
                counted(&self.binary, &["counted-turns", what, &turns.to_string(), &more.to_string()])
            })
        };
        Ok((per_turn("umbel")?, per_turn("parse")?))
    }

    /// What a message of the history costs that the client sends again: the instructions by which a late turn is dearer than
    /// an early one, by the messages that it has more. The first figure is Umbel's, the second that of the raw handler.
    fn old_message(&self, late: u64) -> Result<(u64, u64), Trouble> {
        const EARLY: u64 = 5;
        let ((early, early_raw), (later, later_raw)) = (self.turn(EARLY)?, self.turn(late)?);
        // A turn is a message of the user and one of the agent.
        let messages = 2 * (late - EARLY);
        Ok((later.saturating_sub(early) / messages, later_raw.saturating_sub(early_raw) / messages))
    }

    fn bytes(&self, what: &str, count: &str) -> Result<u64, Trouble> {
        let told = json_of(&self.binary, &["memory", what, count])?;
        Ok(told.get("bytes").and_then(Value::as_u64).unwrap_or(u64::MAX))
    }
}

/// Figures of one load.
struct Load(Value);

impl Load {
    fn of(&self, side: &str, figure: &str) -> f64 {
        self.0.pointer(&format!("/{side}/{figure}")).and_then(Value::as_f64).unwrap_or(f64::INFINITY)
    }

    /// Umbel's figure by that of the raw handler.
    fn times(&self, figure: &str) -> f64 {
        self.of("umbel", figure) / self.of("raw", figure)
    }
}

/// How much more than four times as dear a request may be that is four times as large, in percent of four times: tables that
/// grow and caches that do not hold all of it cost something.
const LINEAR: u64 = 125;

/// Whether what a request costs grows with what it brings or asks for, and no faster: instructions at one size and at four
/// times that, for every route.
pub(crate) fn routes(bench: &Bench) -> Result<Vec<Figure>, Trouble> {
    let shapes = Command::new(&bench.binary).arg("shapes").output();
    let shapes =
        shapes.map_err(|error| Trouble::Broken(format!("the benchmark cannot be started: {error}")))?;
    let mut figures = Vec::new();
    for shape in String::from_utf8_lossy(&shapes.stdout).lines() {
        let size = match shape {
            // A client brings 128 tools at most.
            "tools" => 30,
            // What is counted is a run each, and 200 threads are searched at most.
            "thread-of-runs" | "thread-before" | "runs" | "events" | "threads" | "search" | "replay"
            | "find-run" | "steps" => 45,
            _ => 800,
        };
        let cost = |size: u64| {
            per_one(1, 3, |count| {
                counted(&bench.binary, &["request", shape, &size.to_string(), &count.to_string()])
            })
        };
        let (one, four) = (cost(size)?, cost(4 * size)?);
        let name = format!("request `{shape}`, {one} and {four} instructions");
        figures.push(Figure { name, value: four * 100 / (4 * one).max(1), wanted: LINEAR });
    }
    if figures.is_empty() {
        return Err(Trouble::Broken("the benchmark knows no requests".to_owned()));
    }
    Ok(figures)
}

/// The figures that have budgets, in a short form.
pub(crate) fn short(bench: &Bench) -> Result<Vec<(String, u64)>, Trouble> {
    let load = bench.load("chat", 16, 320, 9, "memory:")?;
    let percent = |times: f64| (times * 100.0).round() as u64;
    let costs = [
        ("http_bytes_at_start", bench.bytes("start", "0")?),
        ("http_bytes_per_stream", bench.bytes("streams", "300")?),
        ("http_bytes_per_thread", bench.bytes("threads", "10000")?),
        ("http_cpu_chat_percent_of_raw", percent(load.times("cpu_us"))),
        ("http_instructions_chat", bench.instructions("umbel", "chat", "memory")?),
        ("http_instructions_old_message", bench.old_message(60)?.0),
        ("http_instructions_sqlite_chat", bench.instructions("umbel", "chat", "sqlite")?),
        ("http_instructions_tool", bench.instructions("umbel", "tool", "memory")?),
    ];
    Ok(costs.map(|(name, cost)| (name.to_owned(), cost)).into())
}

/// Prints the whole table.
pub(crate) fn main() -> Result<(), String> {
    ensure("valgrind", "valgrind")?;
    let missed = table().map_err(|trouble| match trouble {
        Trouble::Missing(why) | Trouble::Broken(why) => why,
    })?;
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join("; "))) }
}

/// What is wanted, and what of it was missed.
#[derive(Default)]
struct Wanted(Vec<String>);

impl Wanted {
    fn hold(&mut self, name: &str, value: f64, wanted: f64) {
        let is_missed = value > wanted;
        println!("{name:<62} {value:>9.2}  of {wanted:.2}{}", if is_missed { "  MISSED" } else { "" });
        if is_missed {
            self.0.push(name.to_owned());
        }
    }
}

fn table() -> Result<Vec<String>, Trouble> {
    let bench = Bench::new()?;
    let mut wanted = Wanted::default();
    println!(
        "server CPU and waits to the first event in microseconds; raw writes the same bytes, parse reads JSON too\n"
    );
    println!(
        "{:<8} {:>5} {:>9} {:>8} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "run", "conn.", "CPU", "raw", "parse", "times", "runs/s", "raw", "p50", "p99", "raw p50", "raw p99"
    );
    for scenario in ["chat", "paced", "tool"] {
        for connections in CONNECTIONS {
            let (runs, rounds) = match scenario {
                // A run takes a tenth of a second, whoever serves it.
                "paced" => (connections * 2, 5),
                _ => (connections.max(100) * 4, 7),
            };
            let load = bench.load(scenario, connections, runs, rounds, "memory:")?;
            row(scenario, connections, &load);
            if scenario == "chat" && connections == 64 {
                wanted.hold("chat: server CPU by the raw handler's", load.times("cpu_us"), 2.5);
                wanted.hold(
                    "chat: p99 to the first event by the raw handler's",
                    load.times("first_p99_us"),
                    3.0,
                );
            }
        }
    }
    sqlite(&bench, &mut wanted)?;
    println!();
    for (what, scenario) in
        [("umbel", "chat"), ("raw", "chat"), ("parse", "chat"), ("umbel", "tool"), ("raw", "tool")]
    {
        let count = bench.instructions(what, scenario, "memory")?;
        println!("   instructions of a {scenario} run, {what:<6} {count:>9}");
    }
    let count = bench.instructions("umbel", "chat", "sqlite")?;
    println!("   instructions of a chat run, SQLite {count:>9}");
    let kilobytes = |bytes: u64| bytes as f64 / 1024.0;
    wanted.hold("kilobytes of memory at the start", kilobytes(bench.bytes("start", "0")?), 25.0 * 1024.0);
    wanted.hold("kilobytes per kept thread of one turn", kilobytes(bench.bytes("threads", "10000")?), 6.0);
    wanted.hold("kilobytes per stream that waits", kilobytes(bench.bytes("streams", "1000")?), 40.0);
    for turns in [5, 400] {
        let (umbel, parse) = bench.turn(turns)?;
        println!("   instructions of turn {turns}: {umbel}, of the raw handler that parses {parse}");
        let cpu = json_of(&bench.binary, &["history", &turns.to_string(), "20"])?;
        println!("   CPU of turn {turns}: {cpu}");
    }
    let (umbel, parse) = bench.old_message(400)?;
    println!(
        "   instructions of a message that is sent again: {umbel}, of the raw handler that parses {parse}"
    );
    wanted.hold(
        "a message that is sent again, by what parsing it costs",
        umbel as f64 / parse.max(1) as f64,
        0.5,
    );
    Ok(wanted.0)
}

fn row(scenario: &str, connections: u64, load: &Load) {
    let of = |side, figure| load.of(side, figure);
    println!(
        "{scenario:<8} {connections:>5} {:>9.1} {:>8.1} {:>8.1} {:>7.2} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0}",
        of("umbel", "cpu_us"),
        of("raw", "cpu_us"),
        of("parse", "cpu_us"),
        load.times("cpu_us"),
        of("umbel", "runs_per_second"),
        of("raw", "runs_per_second"),
        of("umbel", "first_p50_us"),
        of("umbel", "first_p99_us"),
        of("raw", "first_p50_us"),
        of("raw", "first_p99_us"),
    );
}

/// The same on SQLite, beside what a page takes to the same disk.
fn sqlite(bench: &Bench, wanted: &mut Wanted) -> Result<(), Trouble> {
    println!("\non SQLite");
    let mut load = None;
    for connections in CONNECTIONS {
        let store = bench.sqlite(&format!("load-{connections}.db"));
        let measured = bench.load("chat", connections, connections.max(100) * 2, 5, &store)?;
        row("chat", connections, &measured);
        if connections == 64 {
            load = Some(measured);
        }
    }
    let file = bench.folder.path().join("sync").display().to_string();
    let syncs = json_of(&bench.binary, &["syncs", &file, "500"])?;
    let sync = syncs.get("p99_us").and_then(Value::as_f64).unwrap_or(0.0);
    println!("   one fsync: {syncs}");
    if let Some(load) = load {
        wanted.hold("SQLite: server CPU by the raw handler's", load.times("cpu_us"), 5.0);
        let allowed = load.of("raw", "first_p99_us") + 2.0 * sync;
        wanted.hold("SQLite: p99 to the first event", load.of("umbel", "first_p99_us"), allowed);
    }
    Ok(())
}
