//! `umbel eval`: measures agents by cases in files.
//!
//! The engine is [`umbel::eval`]; here are the files, the reports and the progress.

mod adk;
mod file;
mod judges;
mod junit;
mod progress;
mod table;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::{Deserialize, Serialize};
use umbel::Prices;
use umbel::eval::{Change, Eval, Judge, Report, Suite};
use umbel_stores::Stores;

use self::judges::Judges;
use self::progress::Progress;
use crate::Cli;
use crate::args::{self, Which, bad_usage, cannot};
use crate::stop::until_stopped;
use crate::style::{Style, for_stdout};

/// What is to be measured, and how.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Files: TOML (see docs/eval.md), JSON lines with a case in each, or eval sets and test files of google-adk.
Exit code: 0 if all gates hold, 1 if not, 2 if a file or the command line cannot be followed.

Examples:
  umbel eval examples/evals/guide.toml
  umbel eval cases.toml --runs 5 --jobs 4 --min-pass 0.9 --junit report.xml
  umbel eval cases.toml --json report.json
  umbel eval cases.toml --baseline report.json")]
pub struct Options {
    /// Files with cases.
    #[arg(required = true, value_name = "CASES")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// How often each case is run, whatever the files say.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// How many runs go on at once.
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    jobs: usize,
    /// Only cases whose name has this in it. May be given several times.
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// The share of runs that must pass, from 0 to 1, whatever the files say.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    min_pass: Option<f64>,
    /// A report of an earlier time. Cases that passed more often then are named, and fail the evaluation.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the report as JSON; `-` for standard output, and nothing else there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The model that judges rubrics, whatever the files say.
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// How often it is asked about each rubric; the majority counts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    samples: Option<u32>,
    /// What the judge said. If the file is there it is all that is asked; if not, it is written.
    #[arg(long, value_name = "FILE")]
    judge_tape: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "a number from 0 to 1 belongs here".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("it must be from 0 to 1".to_owned()) }
}

/// What came of all files, as it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    passed: bool,
    files: Vec<FileResult>,
}

/// What came of a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileResult {
    file: String,
    #[serde(flatten)]
    report: Report,
    /// What is different from the baseline.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    changes: Vec<Change>,
}

/// Measures.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(until_stopped(evaluate(cli, options)))
}

async fn evaluate(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let baseline = match options.baseline.as_deref() {
        Some(from) => Some((read_results(from)?, from)),
        None => None,
    };
    let mut suites = Vec::new();
    for path in &options.files {
        let suite = select(file::read(path)?, &options.cases);
        suites.push((path, suite));
    }
    if suites.iter().all(|(_, suite)| suite.cases.is_empty()) {
        let wanted = options.cases.join("`, `");
        return Err(bad_usage(format!("no case has `{wanted}` in its name")));
    }
    suites.retain(|(_, suite)| !suite.cases.is_empty());
    let progress = Arc::new(Progress::new(io::stderr().is_terminal()));
    if let Some((results, from)) = &baseline {
        // Said now, and not when all before it is measured.
        suites.iter().try_for_each(|(path, _)| earlier(results, from, path).map(|_| ()))?;
    }
    let mut judges = Judges::new(options)?;
    let mut results = Results::default();
    for (path, mut suite) in suites {
        if options.min_pass.is_some() {
            suite.gates.min_pass = options.min_pass;
        }
        let judge = judges.of(&suite)?;
        umbel::eval::validate(&suite, judge.is_some()).map_err(|error| file::bad(path, error.message()))?;
        let eval = engine(cli, options, &suite, judge, &progress)?;
        let runs: u64 = suite.cases.iter().map(|case| u64::from(eval.runs_of(&suite, case))).sum();
        progress.begin(&path.display().to_string(), runs);
        let report = eval.run(&suite).await;
        progress.end();
        let report = report.map_err(|error| bad_usage(format!("{}: {}", path.display(), error.message())))?;
        let file = path.display().to_string();
        let earlier = baseline.as_ref().map(|(results, from)| earlier(results, from, path)).transpose()?;
        let changes = earlier.map(|earlier| report.compare(&earlier.report)).unwrap_or_default();
        results.files.push(FileResult { file, report, changes });
    }
    let holds = |one: &FileResult| one.report.passed() && !one.changes.iter().any(Change::is_regression);
    results.passed = results.files.iter().all(holds);
    judges.keep()?;
    write_out(options, &results)?;
    Ok(if results.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_out(options: &Options, results: &Results) -> io::Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    let to_stdout = options.json.as_deref() == Some(Path::new("-"));
    match &options.json {
        Some(_) if to_stdout => writeln!(io::stdout(), "{}", for_stdout(&json))?,
        Some(path) => args::write_private(path, json + "\n")?,
        None => {}
    }
    if let Some(path) = &options.junit {
        std::fs::write(path, junit::xml(results)).map_err(|error| cannot(path, &error))?;
    }
    if !to_stdout {
        let style = Style::for_terminal(io::stdout().is_terminal());
        io::stdout().write_all(table::text(results, style).as_bytes())?;
    }
    Ok(())
}

/// Those whose names have one of the texts in them; all without a text.
fn select(mut suite: Suite, names: &[String]) -> Suite {
    suite.cases.retain(|case| names.is_empty() || names.iter().any(|name| case.name.contains(name)));
    suite
}

fn engine(
    cli: &Cli,
    options: &Options,
    suite: &Suite,
    judge: Option<Judge>,
    progress: &Arc<Progress>,
) -> io::Result<Eval> {
    let mut which = options.which.clone();
    which.agent = which.agent.or_else(|| suite.agent.clone());
    // Said now if there is no such agent, and not of each case.
    cli.offer(&which, false)?;
    let (cli, told) = (cli.clone(), progress.clone());
    let make = move || {
        let offer = cli.offer(&which, false);
        let offer = offer.map_err(|error| umbel::Error::new(umbel::ErrorKind::Build, error.to_string()))?;
        Ok(offer.builder(&Stores::in_memory()))
    };
    let prices = serde_json::from_value::<Prices>(umbel::models::prices().map_err(io::Error::other)?)?;
    let eval = Eval::new(make).prices(prices).jobs(options.jobs);
    let eval = eval.on_run(move |_, run| told.done(run.passed));
    let eval = options.runs.into_iter().fold(eval, Eval::runs);
    Ok(judge.into_iter().fold(eval, Eval::judge))
}

/// What the baseline says of a file, however its path is written. A file that is not in it would pass unseen.
fn earlier<'a>(baseline: &'a Results, from: &Path, path: &Path) -> io::Result<&'a FileResult> {
    let whole = |path: &Path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    let wanted = whole(path);
    let found = baseline.files.iter().find(|one| whole(Path::new(&one.file)) == wanted);
    found.ok_or_else(|| {
        let (path, from) = (path.display(), from.display());
        bad_usage(format!("{path} is not in the baseline {from}: write it anew by --json, with all files"))
    })
}

fn read_results(path: &Path) -> io::Result<Results> {
    let text = std::fs::read_to_string(path).map_err(|error| bad_usage(cannot(path, &error).to_string()))?;
    serde_json::from_str(&text).map_err(|error| {
        bad_usage(format!("{}: this is no report of `umbel eval --json`: {error}", path.display()))
    })
}
