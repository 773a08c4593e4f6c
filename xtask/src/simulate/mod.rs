//! `cargo xtask simulate`: random worlds of agents, people and faults in simulated time, and an oracle that says what must hold.
//!
//! One seed is one world. It repeats exactly: time is tokio's paused clock, ids are counted, faults are decided per store operation.

mod agents;
mod drops;
mod fault_store;
mod generate;
mod handlers;
mod ledger;
mod log_model;
mod models;
mod oracle;
mod person;
#[cfg(test)]
mod regressions;
mod services;
mod shrink;
mod simulation;
mod tools;
mod watchdog;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use self::ledger::Violation;
use self::simulation::{StoreChoice, simulate};
use self::watchdog::Watchdog;
use self::world::SimWorld;
use crate::test::Verdict;

/// Seeds of the check in memory and on SQLite.
const SEEDS: u64 = 20_000;
const SQLITE_SEEDS: u64 = 300;

/// Every so many seeds the world is run again without a cache, and compared.
const COLD_EVERY: u64 = 3;

/// What must have happened at least once in many seeds, so that nobody is fooled by a simulator that does nothing.
const EXPECTED: &[&str] = &[
    "clock.back",
    "clock.forward",
    "closure.drop",
    "closure.escalation",
    "closure.timeout",
    "compared",
    "fault.detach",
    "fault.die-after",
    "fault.die-before",
    "fault.fail-after",
    "fault.fail-before",
    "fault.hang-after",
    "fault.hang-before",
    "fault.slow-after",
    "fault.slow-before",
    "handler",
    "outcome.cancelled",
    "outcome.failed",
    "outcome.finished",
    "outcome.interrupted",
    "person.answer",
    "person.continue",
    "person.create",
    "person.delete",
    "person.fork",
    "person.kill",
    "person.look",
    "person.message",
    "person.recover",
    "person.rewind",
    "process.death",
    "reader.cancel",
    "reader.drop",
    "reader.safe-point",
    "recovered",
    "shown.preview",
    "step.drop",
    "store.heartbeat",
    "summary",
    "tool.effect",
];

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct SimOptions {
    first: u64,
    seeds: u64,
    store: StoreChoice,
    /// Prints the trace of a single seed.
    verbose: bool,
}

/// What came of one world.
#[derive(Debug, Default)]
struct WorldResult {
    counts: BTreeMap<&'static str, u64>,
    violations: Vec<Violation>,
    /// Of the trace: the same for the same seed.
    digest: u64,
}

/// What came of many seeds.
#[derive(Debug, Default)]
struct SimTotals {
    /// All digests together.
    digest: u64,
    counts: BTreeMap<&'static str, u64>,
    failures: Vec<(u64, Vec<Violation>)>,
}

pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let mut options = SimOptions { first: 0, seeds: SEEDS, store: StoreChoice::Memory, verbose: false };
    let usage = "usage: cargo xtask simulate [--seeds N] [--seed S] [--from S] [--store memory|sqlite] [--verbose] [--drops]";
    let mut drops = false;
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u64>().ok());
        let is_known = match arg.as_str() {
            "--seeds" => number().map(|seeds| options.seeds = seeds).is_some(),
            "--seed" => number().map(|seed| (options.first, options.seeds) = (seed, 1)).is_some(),
            "--from" => number().map(|seed| options.first = seed).is_some(),
            "--store" => {
                let store = match args.next().as_deref() {
                    Some("memory") => Some(StoreChoice::Memory),
                    Some("sqlite") => Some(StoreChoice::Sqlite),
                    _ => None,
                };
                store.map(|store| options.store = store).is_some()
            }
            "--verbose" => {
                options.verbose = true;
                true
            }
            "--drops" => {
                drops = true;
                true
            }
            _ => false,
        };
        if !is_known {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    }
    let done = if drops { drops::run(options.store) } else { run(options) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The check of `cargo xtask test`.
pub(crate) fn check() -> Verdict {
    let memory = SimOptions { first: 0, seeds: SEEDS, store: StoreChoice::Memory, verbose: false };
    let sqlite = SimOptions { seeds: SQLITE_SEEDS, store: StoreChoice::Sqlite, ..memory };
    let drops = || drops::run(StoreChoice::Memory).and_then(|()| drops::run(StoreChoice::Sqlite));
    match run(memory).and_then(|()| run(sqlite)).and_then(|()| drops()) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn run(options: SimOptions) -> Result<(), String> {
    let began = Instant::now();
    let totals = Mutex::new(SimTotals::default());
    let next = AtomicU64::new(options.first);
    let end = options.first + options.seeds;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let WorldResult { counts, violations, digest } = seed_of(seed, options);
        let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        totals.digest ^= digest;
        for (name, count) in counts {
            *totals.counts.entry(name).or_default() += count;
        }
        if !violations.is_empty() {
            totals.failures.push((seed, violations));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let totals = totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report(options, totals, began)
}

/// Runs the world of a seed, and again without a cache.
fn seed_of(seed: u64, options: SimOptions) -> WorldResult {
    let world = generate::generate(seed);
    if options.verbose {
        println!("{world:#?}");
    }
    let compares = seed.is_multiple_of(COLD_EVERY);
    run_world(&world, options.store, compares, options.verbose)
}

/// Runs a world, and again without a cache if that is to be compared.
fn run_world(world: &SimWorld, store: StoreChoice, compares: bool, verbose: bool) -> WorldResult {
    let failed = |detail: String| vec![Violation { check: "setup", detail }];
    let hot = match Watchdog::shared().guard(world, || simulate(world, store, false, verbose)) {
        Ok(report) => report,
        Err(why) => return WorldResult { violations: failed(why), ..WorldResult::default() },
    };
    if verbose {
        hot.ledger.lock().lines.iter().flatten().for_each(|line| println!("{line}"));
    }
    let (mut counts, requests) = {
        let state = hot.ledger.lock();
        (state.counts.clone(), state.requests.clone())
    };
    let mut violations = hot.violations;
    if compares && violations.is_empty() && !world.depends_on_cache() && world.hot_sessions > 0 {
        counts.insert("compared", 1);
        match Watchdog::shared().guard(world, || simulate(world, store, true, verbose)) {
            Ok(cold) => {
                let cold_requests = cold.ledger.lock().requests.clone();
                let (check, detail) = match first_difference(&hot.logs, &cold.logs) {
                    Some(detail) => ("cold-log", Some(detail)),
                    None => ("cold-requests", first_difference(&requests, &cold_requests)),
                };
                violations.extend(detail.map(|detail| Violation { check, detail }));
            }
            Err(why) => violations = failed(why),
        }
    }
    WorldResult { counts, violations, digest: hot.digest }
}

/// Where two lists differ.
fn first_difference<T: PartialEq + std::fmt::Debug>(hot: &[T], cold: &[T]) -> Option<String> {
    let place = hot.iter().zip(cold).position(|(hot, cold)| hot != cold);
    let place = place.or((hot.len() != cold.len()).then(|| hot.len().min(cold.len())))?;
    Some(format!("at {place}: hot {:?}, cold {:?}", hot.get(place), cold.get(place)))
}

fn report(options: SimOptions, mut totals: SimTotals, began: Instant) -> Result<(), String> {
    totals.failures.sort_by_key(|(seed, _)| *seed);
    let counts: Vec<String> = totals.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let (first, end) = (options.first, options.first + options.seeds);
    let store = format!("{:?}", options.store).to_lowercase();
    println!(
        "simulate: {} seeds ({first}..{end}) on {store}: {} failures, {} s, digest {:016x}, {}",
        options.seeds,
        totals.failures.len(),
        began.elapsed().as_secs(),
        totals.digest,
        counts.join(", ")
    );
    let missing: Vec<&str> =
        EXPECTED.iter().copied().filter(|name| !totals.counts.contains_key(name)).collect();
    if options.seeds >= SEEDS && !missing.is_empty() {
        return Err(format!("never happened: {}", missing.join(", ")));
    }
    if totals.failures.is_empty() {
        return Ok(());
    }
    // One world per check is enough to look at.
    let mut by_check: BTreeMap<&str, (u64, u64, &Violation)> = BTreeMap::new();
    for (seed, violations) in &totals.failures {
        for violation in violations {
            by_check.entry(violation.check).or_insert((0, *seed, violation)).0 += 1;
        }
    }
    for (check, (count, seed, violation)) in &by_check {
        println!("\n{check}: {count} seeds fail, the first is {seed}: {}", violation.detail);
    }
    for (check, (_, seed, _)) in by_check {
        show(seed, check, options);
    }
    Err(format!("{} seeds fail: see above", totals.failures.len()))
}

/// Prints the smallest world that fails the same check as a seed.
fn show(seed: u64, check: &'static str, options: SimOptions) {
    let compares = check.starts_with("cold");
    let violations_of = |world: &SimWorld| run_world(world, options.store, compares, false).violations;
    let fails = |world: &SimWorld| violations_of(world).iter().any(|violation| violation.check == check);
    let world = shrink::shrink(&generate::generate(seed), fails);
    println!("\n=== {check}, seed {seed}, shrunk:");
    for violation in violations_of(&world) {
        println!("// {}: {}", violation.check, violation.detail.replace('\n', "\n// "));
    }
    println!("#[test]\nfn seed_{seed}_{}() {{", check.replace('-', "_"));
    println!("    assert_holds({});\n}}", literal(&world));
}

/// A world as the code that makes it. Names of variants are unique, so that they can be imported.
fn literal(world: &SimWorld) -> String {
    format!("{world:?}").replace('[', "vec![").replace("18446744073709551615", "FOREVER")
}
