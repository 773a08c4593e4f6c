//! What a run may cost: instructions by callgrind, allocations and live heap by a counting allocator; and what serving it
//! may cost, beside a raw handler.
//!
//! The figures of `bench/budgets.json` are what was measured, plus some slack. A change that costs more must say why
//! and raise them; one that costs much less should lower them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::cargo;
use crate::onion::{self, Figure};
use crate::test::{Verdict, ensure, root};
use crate::{http, model_bench, stores};

pub(crate) fn check() -> Verdict {
    match measure_and_compare() {
        Ok(problems) if problems.is_empty() => Verdict::Passed,
        Ok(problems) => Verdict::Failed(problems.join("; ")),
        Err(Trouble::Missing(why)) => Verdict::NotRun(why),
        Err(Trouble::Broken(why)) => Verdict::Failed(why),
    }
}

pub(crate) enum Trouble {
    /// A program is missing and cannot be had.
    Missing(String),
    /// The measuring itself went wrong.
    Broken(String),
}

fn measure_and_compare() -> Result<Vec<String>, Trouble> {
    ensure("valgrind", "valgrind").map_err(Trouble::Missing)?;
    let bench = root().join("bench");
    let budgets = read_budgets(&bench)?;
    let mut measured = BTreeMap::new();
    let (plain, counting) = (build("bench-umbel", false)?, build("bench-umbel", true)?);
    for scenario in ["text", "tool", "stream"] {
        let cost = per_run(&plain, &["fixed", scenario])?;
        measured.insert(format!("instructions_{scenario}"), cost);
    }
    measured.insert("instructions_team".to_owned(), per_run(&plain, &["team"])?);
    for scenario in ["text", "tool"] {
        let near = per_turn(&plain, scenario, 10)?;
        let far = per_turn(&plain, scenario, 1_000)?;
        measured.insert(format!("growth_{scenario}_percent"), far * 100 / near.max(1));
    }
    let allocs = json_of(&counting, &["allocs"])?;
    for scenario in ["text", "tool", "stream"] {
        let count = allocs.pointer(&format!("/result/{scenario}/allocations")).and_then(Value::as_u64);
        measured.insert(format!("allocations_{scenario}"), count.unwrap_or(u64::MAX));
    }
    let memory = json_of(&counting, &["memory"])?;
    let heap = memory.pointer("/result/live_heap_bytes_per_session").and_then(Value::as_u64);
    measured.insert("heap_bytes_per_session".to_owned(), heap.unwrap_or(u64::MAX));
    let stores = stores::Bench::new()?;
    measured.extend(stores::instructions_of_turns(&stores)?);
    let http = http::Bench::new()?;
    measured.extend(http::short(&http)?);
    measured.extend(model_bench::figures()?);
    let mut problems = compare(&budgets, &measured);
    let figures = onion::figures(&plain, &counting)?.into_iter().chain(stores::figures(&stores)?);
    let figures = figures.chain(http::routes(&http)?);
    for Figure { name, value, wanted } in figures {
        println!("   {name:<52} {value:>6}  of {wanted}");
        if value > wanted {
            problems.push(format!("{name}: {value}, and {wanted} are allowed"));
        }
    }
    Ok(problems)
}

/// Prints each figure beside its budget, and gives those that are over.
fn compare(budgets: &BTreeMap<String, u64>, measured: &BTreeMap<String, u64>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, cost) in measured {
        let budget = budgets.get(name).copied();
        println!("   {name:<28} {cost:>9}  of {}", budget.map_or("no budget".to_owned(), |b| b.to_string()));
        match budget {
            Some(budget) if *cost <= budget => {}
            Some(budget) => problems.push(format!("{name} is {cost}, and {budget} are allowed")),
            None => problems.push(format!("{name} is {cost} and has no budget")),
        }
    }
    problems
}

fn read_budgets(bench: &Path) -> Result<BTreeMap<String, u64>, Trouble> {
    let path = bench.join("budgets.json");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Trouble::Broken(format!("{} cannot be read: {e}", path.display())))?;
    serde_json::from_str(&text)
        .map_err(|e| Trouble::Broken(format!("{} is not as it should be: {e}", path.display())))
}

/// The crates that measure Umbel. They are always built together: each alone would want its dependencies with other
/// features, and so build most of them again.
const CRATES: [&str; 4] = ["bench-umbel", "bench-stores", "bench-http", "bench-models"];

/// Builds the benchmark in the time that other checks leave. What goes wrong with it is told by whoever needs it.
pub(crate) fn build_early() {
    let mut command = Command::new("nice");
    let cargo = build_command(false);
    command.args(["-n", "10"]).arg(cargo.get_program()).args(cargo.get_args());
    for (name, _) in cargo.get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(name);
    }
    command.current_dir(root().join("bench")).stderr(Stdio::null());
    let _ = command.status();
}

fn build_command(counting: bool) -> Command {
    let mut command = cargo::command(&root().join("bench"));
    command.args(["build", "--release", "--quiet", "--locked"]);
    command.args(CRATES.iter().flat_map(|package| ["-p", package]));
    if counting {
        command.args(["--features", "harness/count-alloc"]);
    }
    command
}

/// Builds the benchmark and gives a copy of the binary of one crate.
pub(crate) fn build(package: &str, counting: bool) -> Result<PathBuf, Trouble> {
    let bench = root().join("bench");
    let mut command = build_command(counting);
    let status = command.status().map_err(|e| Trouble::Broken(format!("cargo cannot be started: {e}")))?;
    if !status.success() {
        return Err(Trouble::Broken("the benchmark does not build".to_owned()));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| bench.join("target"), PathBuf::from);
    let built = target.join("release").join(package);
    let copy = target.join(format!("{package}.{}", if counting { "counting" } else { "plain" }));
    std::fs::copy(&built, &copy)
        .map_err(|e| Trouble::Broken(format!("{} cannot be copied: {e}", built.display())))?;
    Ok(copy)
}

/// A folder for databases. It is beside the binary and not among temporary files, which may be in memory.
pub(crate) fn folder_beside(binary: &Path) -> Result<TempDir, Trouble> {
    let beside = binary.parent().unwrap_or(binary);
    tempfile::tempdir_in(beside)
        .map_err(|error| Trouble::Broken(format!("no folder for databases in {}: {error}", beside.display())))
}

/// What one of them costs, as the difference of two counts.
pub(crate) fn per_one(
    few: u64,
    many: u64,
    count: impl Fn(u64) -> Result<u64, Trouble> + Sync,
) -> Result<u64, Trouble> {
    let counts = counts([few, many], count)?;
    Ok(counts.iter().rev().copied().reduce(u64::saturating_sub).unwrap_or(0) / (many - few).max(1))
}

/// Several counts at once: how many instructions there are does not depend on what else is under way.
fn counts<const N: usize>(
    of: [u64; N],
    count: impl Fn(u64) -> Result<u64, Trouble> + Sync,
) -> Result<Vec<u64>, Trouble> {
    let count = &count;
    std::thread::scope(|scope| {
        let counting = of.map(|many| scope.spawn(move || count(many)));
        let joined = counting.map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Trouble::Broken("a count broke off".to_owned())))
        });
        joined.into_iter().collect()
    })
}

/// Instructions of one run.
fn per_run(binary: &Path, args: &[&str]) -> Result<u64, Trouble> {
    per_one(50, 250, |runs| instructions(binary, &[args, &[&runs.to_string()]].concat()))
}

/// Instructions of one turn of a session that is `turns` long.
fn per_turn(binary: &Path, scenario: &str, turns: u64) -> Result<u64, Trouble> {
    const MORE: u64 = 20;
    let count = |more: u64| instructions(binary, &["long", scenario, &(turns + more * MORE).to_string()]);
    // A process of a certain size may have more to do at its end, when the allocator puts together what is free. Of three
    // spans that follow each other the middle one tells what a turn costs.
    let counts = counts([0, 1, 2, 3], count)?;
    let mut spans: Vec<u64> = counts
        .windows(2)
        .map(|pair| pair.iter().rev().copied().reduce(u64::saturating_sub).unwrap_or(0))
        .collect();
    spans.sort_unstable();
    Ok(spans.get(1).copied().unwrap_or(0) / MORE)
}

pub(crate) fn instructions(binary: &Path, args: &[&str]) -> Result<u64, Trouble> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(binary).args(args);
    let output = command.output().map_err(|e| Trouble::Broken(format!("valgrind cannot be started: {e}")))?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = told.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    count.ok_or_else(|| Trouble::Broken(format!("callgrind counted nothing: {told}")))
}

/// What the benchmark itself counted.
pub(crate) fn counted(binary: &Path, args: &[&str]) -> Result<u64, Trouble> {
    let output = Command::new(binary)
        .args(args)
        .output()
        .map_err(|e| Trouble::Broken(format!("the benchmark cannot be started: {e}")))?;
    let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    told.parse().map_err(|_| Trouble::Broken(format!("`{}` counted nothing: {told}", args.join(" "))))
}

pub(crate) fn json_of(binary: &Path, args: &[&str]) -> Result<Value, Trouble> {
    let output = Command::new(binary)
        .args(args)
        .output()
        .map_err(|e| Trouble::Broken(format!("the benchmark cannot be started: {e}")))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Trouble::Broken(format!("the benchmark's `{}` is not JSON: {e}", args.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_over_its_budget_or_without_one_is_a_problem() {
        let budgets = BTreeMap::from([("a".to_owned(), 10), ("b".to_owned(), 10)]);
        let measured = BTreeMap::from([("a".to_owned(), 10), ("b".to_owned(), 11), ("c".to_owned(), 1)]);
        assert_eq!(compare(&budgets, &measured).len(), 2);
    }
}
