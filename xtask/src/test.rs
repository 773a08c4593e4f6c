//! `cargo xtask test`: everything that must hold, on a machine that has Rust and the package registries.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{
    audit, budgets, cargo, conformance, crash, mcp, models, pages, postgres, sandbox, simulate, soak,
    starter, studio, style, vectors,
};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// Where this workspace is built.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// What one check says.
pub(crate) enum Verdict {
    Passed,
    Failed(String),
    /// It could not be done here, and why.
    NotRun(String),
}

/// A check by name.
struct Check {
    name: &'static str,
    run: fn() -> Verdict,
}

const CHECKS: &[Check] = &[
    Check { name: "format", run: || cargo::run(&["fmt", "--all", "--check"], &[]) },
    Check { name: "style", run: style::check },
    Check { name: "pages", run: pages::check },
    Check { name: "audit", run: audit::check },
    Check {
        name: "lints",
        run: || cargo::run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]),
    },
    Check { name: "tests", run: run_tests },
    Check { name: "sandbox", run: sandbox::check },
    Check { name: "vectors", run: vectors::check_all },
    Check { name: "postgres", run: postgres::check },
    Check { name: "crash", run: crash::check },
    Check { name: "simulate", run: simulate::check },
    Check { name: "soak", run: soak::check },
    Check { name: "conformance", run: conformance::check },
    Check { name: "mcp", run: mcp::check },
    Check { name: "studio", run: studio::check },
    Check { name: "starter", run: starter::check },
    Check { name: "models", run: models::check },
    Check {
        name: "docs",
        run: || cargo::run(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")]),
    },
    Check { name: "budgets", run: budgets::check },
];

/// The check from which on the benchmark is built beside the others: most of those that follow wait for servers and browsers.
const BUILDS_BENCHMARK: &str = "postgres";

/// The exit code of a check that could not be run here.
const NOT_RUN: u8 = 3;

/// Lines of a failed check that are printed again at the end.
const REPEATED_LINES: usize = 100;

pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let Some(only) = args.next() else { return run_all() };
    let Some(check) = CHECKS.iter().find(|check| check.name == only) else {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        eprintln!("there is no check `{only}`; there are {}", names.join(", "));
        return ExitCode::from(2);
    };
    match (check.run)() {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed(why) => {
            println!("{only} failed: {why}");
            ExitCode::FAILURE
        }
        Verdict::NotRun(why) => {
            println!("{only} was not run: {why}");
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Runs every check in a process of its own. The end of what a failed one printed is repeated after
/// all others, since logs of CI are often cut to their tail.
fn run_all() -> ExitCode {
    let (mut passed, mut skipped) = (0, 0);
    let mut failed: Vec<(&str, Vec<String>)> = Vec::new();
    let mut early = None;
    for Check { name, .. } in CHECKS {
        println!("== {name}");
        if *name == BUILDS_BENCHMARK {
            early = Some(std::thread::spawn(budgets::build_early));
        }
        if *name == "budgets"
            && let Some(early) = early.take()
        {
            let _ = early.join();
        }
        let started = Instant::now();
        let (code, tail) = run_apart(name);
        let seconds = started.elapsed().as_secs();
        match code {
            Some(0) => {
                passed += 1;
                println!("== {name}: passed ({seconds} s)");
            }
            Some(code) if code == i32::from(NOT_RUN) => {
                skipped += 1;
                println!("== {name}: not run ({seconds} s)");
            }
            _ => {
                println!("== {name}: FAILED ({seconds} s)");
                failed.push((name, tail));
            }
        }
    }
    for (name, tail) in &failed {
        println!("\n== {name} FAILED; its last lines:");
        for line in tail {
            println!("{line}");
        }
    }
    println!("{passed} passed, {} failed, {skipped} skipped", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one check in a process of its own, prints what it prints, and returns its exit code with its
/// last lines.
fn run_apart(name: &str) -> (Option<i32>, Vec<String>) {
    let failed =
        |error: &dyn std::fmt::Display| (None, vec![format!("the check cannot be started: {error}")]);
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(&error),
    };
    let mut command = Command::new(program);
    command.args(["test", name]).stdout(Stdio::piped()).stderr(Stdio::piped());
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(&error),
    };
    let tail = Mutex::new(VecDeque::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| stdout.map(|stdout| pass_on(stdout, &tail)));
        scope.spawn(|| stderr.map(|stderr| pass_on(stderr, &tail)));
    });
    let status = child.wait();
    let tail = tail.into_inner().unwrap_or_else(PoisonError::into_inner);
    (status.ok().and_then(|status| status.code()), tail.into())
}

/// Prints lines as they come and keeps the last of them.
fn pass_on(from: impl Read, tail: &Mutex<VecDeque<String>>) {
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("{text}");
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == REPEATED_LINES {
            tail.pop_front();
        }
        tail.push_back(text);
        line.clear();
    }
}

/// All tests of the workspace, those in the documentation too. Some run code in sandboxes; without them they fail, and say why.
fn run_tests() -> Verdict {
    match sandbox::prepare() {
        Ok(()) => cargo::run(&["test", "--workspace"], &[]),
        Err(why) => Verdict::Failed(why),
    }
}

/// Runs a command and says whether it succeeded.
pub(crate) fn succeed(command: &mut Command) -> Verdict {
    match command.status() {
        Ok(status) if status.success() => Verdict::Passed,
        Ok(status) => Verdict::Failed(format!("{} ended with {status}", command.get_program().display())),
        Err(error) => {
            Verdict::Failed(format!("{} cannot be started: {error}", command.get_program().display()))
        }
    }
}

/// The same, as a result.
pub(crate) fn passed(verdict: Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}

/// Whether a program can be started; a Debian package is installed for it where that is possible.
pub(crate) fn ensure(program: &str, package: &str) -> Result<(), String> {
    if is_there(program) {
        return Ok(());
    }
    println!("installing {package}, since `{program}` is missing");
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        matches!(succeed(&mut command), Verdict::Passed)
    };
    let installed = apt(&["update", "-qq"]) && apt(&["install", "-y", "-qq", package]);
    if installed && is_there(program) {
        return Ok(());
    }
    Err(format!("`{program}` is missing and could not be installed: install the package {package}"))
}

/// A browser, installed where that is possible, and where it is.
pub(crate) fn chromium() -> Result<PathBuf, String> {
    ensure("chromium", "chromium")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file());
    found.ok_or_else(|| "`chromium` can be started, but is in no folder of $PATH".to_owned())
}

fn is_there(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
