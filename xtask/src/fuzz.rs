//! `cargo xtask fuzz`: all that reads what comes from outside, fed with bytes that find new ways through it.
//!
//! libFuzzer needs the compiler to count where a program comes by. The flags for that are LLVM's, so the stable compiler
//! takes them.
//!
//! `fuzz/corpus/TARGET` has the streams of the tests (`UMBEL_FUZZ_SEEDS=FOLDER cargo test -p umbel-models` writes them),
//! and the archive beside it the inputs that found ways of their own, as few as cover them.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::cargo;
use crate::test::{Verdict, root, succeed};

const TARGETS: [&str; 14] = [
    "openai_chat",
    "openai_responses",
    "anthropic",
    "gemini",
    "ollama",
    "agui_input",
    "agui_events",
    "json_patch",
    "mcp",
    "openapi",
    "agents_file",
    "jwt",
    "log_entries",
    "server_text",
];

const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// What a parser is fed with at most, and how long unless told.
const MOST_BYTES: usize = 16 << 10;
const SECONDS: u64 = 600;

pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    match fuzz(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let (mut seconds, mut targets) = (SECONDS, Vec::new());
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            seconds = args.next().and_then(|n| n.parse().ok()).ok_or("--seconds needs a number")?;
        } else if TARGETS.contains(&arg.as_str()) {
            targets.push(arg);
        } else {
            return Err(format!("there is no target `{arg}`; there are {}", TARGETS.join(", ")));
        }
    }
    if targets.is_empty() {
        targets = TARGETS.map(str::to_owned).to_vec();
    }
    let folder = root().join("fuzz");
    let machine = this_machine()?;
    build(&folder, &machine)?;
    for target in targets {
        println!("== {target}, {seconds} s");
        let corpus = folder.join("corpus").join(&target);
        let found = folder.join("target").join("found").join(&target);
        for folder in [&corpus, &found] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        unpack(&folder.join("corpus").join(format!("{target}.tar.xz")), &found)?;
        let mut run = Command::new(folder.join("target").join(&machine).join("release").join(&target));
        run.arg(&found).arg(&corpus).arg(format!("-max_total_time={seconds}")).current_dir(&folder);
        run.args([
            &format!("-max_len={MOST_BYTES}"),
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ]);
        run.arg(format!("-artifact_prefix={}/", folder.join("target").display()));
        if let Verdict::Failed(why) | Verdict::NotRun(why) = succeed(&mut run) {
            return Err(format!("{target}: {why}"));
        }
    }
    Ok(())
}

/// What earlier runs found, if this is the first here.
fn unpack(archive: &Path, folder: &Path) -> Result<(), String> {
    let is_empty = std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_none());
    if !is_empty || !archive.exists() {
        return Ok(());
    }
    match succeed(Command::new("tar").arg("xJf").arg(archive).arg("-C").arg(folder)) {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}

/// The name of this kind of machine. With it said, what runs while building is built without the flags.
fn this_machine() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc cannot be started: {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what machine this is".to_owned())
}

fn build(folder: &Path, machine: &str) -> Result<(), String> {
    let mut cargo = cargo::command(folder);
    cargo.args(["build", "--release", "--locked", "--target", machine]);
    cargo.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", folder.join("target"));
    match succeed(&mut cargo) {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}
