//! Runs vector files: what the oracle did with an input, this project must do too.
//!
//! # Layout
//! - [`case`]: a case, and what is to be compared; [`compare`], [`tokens`]: how
//! - one module per kind of vector; [`script`]: the agents, models, tools and hooks that vectors describe

mod append_user_content;
mod case;
mod compare;
mod contents;
mod final_response;
mod flow;
mod function_calls;
mod instructions;
mod planner;
mod script;
mod state;
mod stream;
mod tokens;
mod transfer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use umbel::BoxError;

use self::case::{Case, Checked, Verdict};

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Options {
    dir: Option<PathBuf>,
    case: Option<String>,
    verbose: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, BoxError> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "-v" | "--verbose" => options.verbose = true,
                "-c" | "--case" => options.case = Some(args.next().ok_or("`--case` needs a name")?),
                flag if flag.starts_with('-') => return Err(format!("there is no flag `{flag}`").into()),
                dir => options.dir = Some(dir.into()),
            }
        }
        Ok(options)
    }
}

/// How many cases went which way, and the lines to say so.
#[derive(Debug, Default)]
struct Report {
    passed: usize,
    failed: usize,
    skipped: usize,
    lines: Vec<String>,
}

/// `cargo xtask vectors`.
pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    match Options::read(args).and_then(|options| run_dir(&options)) {
        Ok(report) => {
            for line in &report.lines {
                println!("{line}");
            }
            println!("{} passed, {} failed, {} skipped", report.passed, report.failed, report.skipped);
            if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run_dir(options: &Options) -> Result<Report, BoxError> {
    let dir = options.dir.as_ref().ok_or("name the folder with the vector files")?;
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{} cannot be read: {e}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut report = Report::default();
    for file in &files {
        run_file(file, options, &mut report);
    }
    Ok(report)
}

/// Runs the cases of one file. A file that cannot be read is one failure.
fn run_file(path: &Path, options: &Options, report: &mut Report) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (kind, cases) = match read_file(path) {
        Ok(file) => file,
        Err(error) => {
            report.failed += 1;
            report.lines.push(format!("{name}: {error}"));
            return;
        }
    };
    let wanted = |case: &&Case| options.case.as_ref().is_none_or(|part| case.name.contains(part));
    let cases: Vec<&Case> = cases.iter().filter(wanted).collect();
    if !KINDS.contains(&kind.as_str()) {
        report.skipped += cases.len();
        report.lines.push(format!("{name}: {} cases skipped, their kind `{kind}` is not known", cases.len()));
        return;
    }
    for case in cases {
        match judge(&kind, case) {
            Verdict::Passed => report.passed += 1,
            Verdict::Skipped => report.skipped += 1,
            Verdict::Failed(failure) => {
                report.failed += 1;
                report.lines.push(format!("{name} {}: {}", case.name, failure.difference));
                if options.verbose {
                    report.lines.extend(failure.details);
                }
            }
        }
    }
}

fn read_file(path: &Path) -> Result<(String, Vec<Case>), BoxError> {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let kind = file.get("kind").and_then(Value::as_str).ok_or("the file has no `kind`")?;
    let cases = file.get("cases").and_then(Value::as_array).ok_or("the file has no `cases`")?;
    Ok((kind.to_owned(), cases.iter().map(Case::read).collect::<Result<_, _>>()?))
}

/// Runs one case, on a runtime of its own so that nothing of it stays behind.
fn judge(kind: &str, case: &Case) -> Verdict {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Verdict::broken(&error),
    };
    match runtime.block_on(check(kind, case)) {
        Ok(checked) => checked.verdict(),
        Err(error) => Verdict::broken(error.as_ref()),
    }
}

/// The kinds that [`check`] knows.
const KINDS: [&str; 10] = [
    "append_user_content",
    "contents",
    "final_response",
    "flow",
    "function_calls",
    "instructions",
    "planner",
    "state",
    "stream",
    "transfer",
];

async fn check(kind: &str, case: &Case) -> Result<Checked, BoxError> {
    match kind {
        "append_user_content" => append_user_content::check(case),
        "contents" => contents::check(case),
        "final_response" => final_response::check(case),
        "flow" => flow::check(case).await,
        "function_calls" => function_calls::check(case).await,
        "instructions" => instructions::check(case).await,
        "planner" => planner::check(case),
        "state" => state::check(case).await,
        "stream" => stream::check(case),
        "transfer" => transfer::check(case),
        other => Err(format!("the kind `{other}` is not known").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_cases_pass(file: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/flow").join(file);
        let mut report = Report::default();
        run_file(&path, &Options::default(), &mut report);
        assert!(report.failed == 0, "{}", report.lines.join("\n"));
        assert!(report.passed > 0, "{file} has no cases");
    }

    macro_rules! files {
        ($($kind:ident),*) => {
            $(
                #[test]
                fn $kind() {
                    all_cases_pass(concat!(stringify!($kind), ".json"));
                }
            )*
        };
    }

    files!(
        append_user_content,
        contents,
        final_response,
        flow,
        function_calls,
        instructions,
        planner,
        state,
        stream,
        transfer
    );
}
