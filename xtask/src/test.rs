//! `cargo xtask test`: everything that must hold, on a machine that has Rust and the package registries.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
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

pub(crate) fn main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let only = args.next();
    if let Some(only) = &only
        && !CHECKS.iter().any(|check| check.name == only)
    {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        eprintln!("there is no check `{only}`; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut early = None;
    for check in CHECKS.iter().filter(|check| only.as_deref().is_none_or(|only| only == check.name)) {
        println!("== {}", check.name);
        if only.is_none() && check.name == BUILDS_BENCHMARK {
            early = Some(std::thread::spawn(budgets::build_early));
        }
        if check.name == "budgets"
            && let Some(early) = early.take()
        {
            let _ = early.join();
        }
        let started = Instant::now();
        let verdict = (check.run)();
        let seconds = started.elapsed().as_secs();
        match verdict {
            Verdict::Passed => {
                passed += 1;
                println!("== {}: passed ({seconds} s)", check.name);
            }
            Verdict::Failed(why) => {
                failed += 1;
                println!("== {}: FAILED ({seconds} s): {why}", check.name);
            }
            Verdict::NotRun(why) => {
                skipped += 1;
                println!("== {}: not run: {why}", check.name);
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
