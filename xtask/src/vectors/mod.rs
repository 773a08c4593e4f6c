//! Runs vector files: what the oracle did with an input, this project must do too.
//!
//! # Layout
//! - [`case`]: a case, and what is to be compared; [`compare`], [`tokens`]: how; [`better`]: where to differ
//! - one module per kind of vector; [`script`]: the agents, models, tools and hooks that vectors describe

mod append_user_content;
mod better;
mod case;
mod compare;
mod contents;
mod final_response;
mod flow;
mod function_calls;
mod handlers;
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

use self::better::Better;
use self::case::{Case, Checked, Verdict};
use crate::test::root;

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
    /// Cases on which this project does better than the oracle, on purpose.
    better: usize,
    lines: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let Self { passed, failed, skipped, better, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped, {better} better")
    }
}

/// `cargo xtask vectors`.
pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    match Options::read(args).and_then(|options| run_dir(&options)) {
        Ok(report) => {
            println!("{report}");
            if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// All vectors of the project, for `cargo xtask test`.
pub(crate) fn check_all() -> crate::test::Verdict {
    let mut failed = 0;
    for dir in ["vectors/flow", "vectors/handlers"] {
        let options = Options { dir: Some(root().join(dir)), ..Options::default() };
        match run_dir(&options) {
            Ok(report) => {
                println!("{dir}\n{report}");
                failed += report.failed;
            }
            Err(error) => return crate::test::Verdict::Failed(format!("{dir}: {error}")),
        }
    }
    match failed {
        0 => crate::test::Verdict::Passed,
        failed => crate::test::Verdict::Failed(format!("{failed} cases failed")),
    }
}

/// The name of the list of cases to do better on. It stands among vectors and is none.
const BETTER: &str = "better.json";

fn run_dir(options: &Options) -> Result<Report, BoxError> {
    let dir = options.dir.as_ref().ok_or("name the folder with the vector files")?;
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{} cannot be read: {e}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "json") && !file.ends_with(BETTER)
    });
    files.sort();
    let better = Better::read(&root().join("vectors/handlers").join(BETTER))?;
    let mut report = Report::default();
    for file in &files {
        run_file(file, options, &better, &mut report);
    }
    Ok(report)
}

/// Runs the cases of one file. A file that cannot be read is one failure.
fn run_file(path: &Path, options: &Options, better: &Better, report: &mut Report) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (kind, cases) = match read_file(path) {
        Ok(file) => file,
        Err(error) => {
            report.failed += 1;
            report.lines.push(format!("{name}: {error}"));
            return;
        }
    };
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    for case in better.missing(&name, &names) {
        report.failed += 1;
        report
            .lines
            .push(format!("{name} {case}: is to be done better, but there is no such case: see {BETTER}"));
    }
    let wanted = |case: &&Case| options.case.as_ref().is_none_or(|part| case.name.contains(part));
    let cases: Vec<&Case> = cases.iter().filter(wanted).collect();
    if !KINDS.contains(&kind.as_str()) {
        report.skipped += cases.len();
        report.lines.push(format!("{name}: {} cases skipped, their kind `{kind}` is not known", cases.len()));
        return;
    }
    for case in cases {
        let verdict = judge(&kind, case);
        // Where the list says what is to be done instead, that is done.
        let instead = better.expect(&name, &case.name).filter(|_| matches!(verdict, Verdict::Failed(_)));
        let verdict = match instead.map(|expect| judge(&kind, &case.expecting(expect))) {
            None => verdict,
            Some(Verdict::Passed) => {
                report.better += 1;
                continue;
            }
            Some(other) => {
                report.failed += 1;
                let found =
                    if let Verdict::Failed(failure) = &other { &failure.difference } else { "skipped" };
                report.lines.push(format!("{name} {}: not as {BETTER} says: {found}", case.name));
                continue;
            }
        };
        match verdict {
            Verdict::Failed(_) if better.contains(&name, &case.name) => report.better += 1,
            Verdict::Passed if better.contains(&name, &case.name) => {
                report.failed += 1;
                let case = &case.name;
                report.lines.push(format!("{name} {case}: is to be done better, but passes: see {BETTER}"));
            }
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
    // Where waits are measured time stands still, and goes on when all wait.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().start_paused(kind == "retry").build() {
        Ok(runtime) => runtime,
        Err(error) => return Verdict::broken(&error),
    };
    match runtime.block_on(check(kind, case)) {
        Ok(checked) => checked.verdict(),
        Err(error) => Verdict::broken(error.as_ref()),
    }
}

/// The kinds that [`check`] knows.
const KINDS: &[&str] = &[
    "append_user_content",
    "contents",
    "context_edit",
    "final_response",
    "flow",
    "function_calls",
    "hitl",
    "instructions",
    "limits",
    "order",
    "pii",
    "pii_stream",
    "planner",
    "retry",
    "state",
    "stream",
    "summarise",
    "todo",
    "tool_select",
    "transfer",
];

async fn check(kind: &str, case: &Case) -> Result<Checked, BoxError> {
    match kind {
        "append_user_content" => append_user_content::check(case),
        "contents" => contents::check(case),
        "context_edit" => handlers::context_edit::check(case),
        "final_response" => final_response::check(case),
        "flow" => flow::check(case).await,
        "function_calls" => function_calls::check(case).await,
        "hitl" => handlers::hitl::check(case).await,
        "instructions" => instructions::check(case).await,
        "limits" => handlers::limits::check(case).await,
        "order" => handlers::order::check(case).await,
        "pii" => handlers::pii::check(case).await,
        "pii_stream" => handlers::pii::check_stream(case),
        "planner" => planner::check(case),
        "retry" => handlers::retry::check(case).await,
        "state" => state::check(case).await,
        "stream" => stream::check(case),
        "summarise" => handlers::summarise::check(case),
        "todo" => handlers::todo::check(case).await,
        "tool_select" => handlers::tool_select::check(case).await,
        "transfer" => transfer::check(case),
        other => Err(format!("the kind `{other}` is not known").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_cases_pass(folder: &str, file: &str) {
        let folder = root().join("vectors").join(folder);
        let better = Better::read(&folder.join(BETTER)).unwrap();
        let mut report = Report::default();
        run_file(&folder.join(file), &Options::default(), &better, &mut report);
        assert!(report.failed == 0, "{report}");
        assert!(report.passed > 0, "{file} has no cases");
    }

    macro_rules! files {
        ($folder:literal: $($kind:ident),*) => {
            $(
                #[test]
                fn $kind() {
                    all_cases_pass($folder, concat!(stringify!($kind), ".json"));
                }
            )*
        };
    }

    files!(
        "flow": append_user_content,
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
    files!("handlers": context_edit, hitl, limits, order, pii, pii_stream, retry, summarise, todo, tool_select);

    /// What becomes of two cases, of which the second fails, with that list of cases to do better on.
    fn judged(better: &str) -> (usize, usize, usize, String) {
        // Tests run at the same time, so each has files of its own.
        let dir = std::env::temp_dir().join(format!("umbel-better-{}-{}", std::process::id(), better.len()));
        std::fs::create_dir_all(&dir).unwrap();
        let event = r#"{"event": {"author": "a", "content": {"role": "model", "parts": [{"text": "x"}]}}}"#;
        let case = |name: &str, last: bool| {
            format!(r#"{{"name": "{name}", "input": {event}, "expect": {{"final": {last}}}}}"#)
        };
        let cases = format!("{}, {}", case("right", true), case("wrong", false));
        std::fs::write(dir.join("f.json"), format!(r#"{{"kind": "final_response", "cases": [{cases}]}}"#))
            .unwrap();
        std::fs::write(dir.join(BETTER), better).unwrap();
        let list = Better::read(&dir.join(BETTER)).unwrap();
        let mut report = Report::default();
        run_file(&dir.join("f.json"), &Options::default(), &list, &mut report);
        std::fs::remove_dir_all(&dir).unwrap();
        (report.passed, report.failed, report.better, report.lines.join("\n"))
    }

    #[test]
    fn a_case_to_do_better_on_must_exist_and_must_not_pass() {
        let entry = |case: &str| format!(r#"[{{"file": "f.json", "case": "{case}", "reason": "because"}}]"#);
        let (passed, failed, better, _) = judged("[]");
        assert_eq!((passed, failed, better), (1, 1, 0));
        let (passed, failed, better, _) = judged(&entry("wrong"));
        assert_eq!((passed, failed, better), (1, 0, 1));
        let (passed, failed, better, lines) = judged(&entry("right"));
        assert_eq!((passed, failed, better), (0, 2, 0));
        assert!(lines.contains("f.json right: is to be done better, but passes"), "{lines}");
        let (_, failed, _, lines) = judged(&entry("gone away"));
        assert_eq!(failed, 2);
        assert!(lines.contains("there is no such case"), "{lines}");
    }

    #[test]
    fn what_is_done_better_must_be_what_the_list_says() {
        let entry = |last: bool| {
            format!(
                r#"[{{"file": "f.json", "case": "wrong", "reason": "because", "expect": {{"final": {last}}}}}]"#
            )
        };
        let (passed, failed, better, _) = judged(&entry(true));
        assert_eq!((passed, failed, better), (1, 0, 1));
        let impossible = entry(true).replace("true", "\"no\"");
        let (passed, failed, better, lines) = judged(&impossible);
        assert_eq!((passed, failed, better), (1, 1, 0));
        assert!(lines.contains("not as better.json says"), "{lines}");
    }

    #[test]
    fn a_case_to_do_better_on_needs_a_reason() {
        let path = std::env::temp_dir().join(format!("umbel-reason-{}.json", std::process::id()));
        std::fs::write(&path, r#"[{"file": "f.json", "case": "c", "reason": ""}]"#).unwrap();
        let error = Better::read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("`reason`"), "{error}");
    }
}
