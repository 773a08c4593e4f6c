//! House rules that no lint knows: how long a file may be, and that every documented example runs.

use std::path::Path;
use std::process::Command;

use crate::test::{Verdict, root};

/// Longest file, in lines.
const LONGEST: usize = 900;

pub(crate) fn check() -> Verdict {
    let root = root();
    let listed =
        Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(&root).output();
    let files = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => return Verdict::NotRun("the files cannot be listed without git".to_owned()),
    };
    let mut problems = Vec::new();
    for name in files.lines().filter(|name| name.ends_with(".rs") || name.ends_with(".md")) {
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        problems.extend(problems_of(name, &text));
    }
    if problems.is_empty() { Verdict::Passed } else { Verdict::Failed(problems.join("; ")) }
}

fn problems_of(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    let is_rust = Path::new(name).extension().is_some_and(|ending| ending == "rs");
    if is_rust && lines > LONGEST {
        problems.push(format!("{name} has {lines} lines, and {LONGEST} are allowed"));
    }
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start_matches(['/', '!', ' ']);
        let skipped = ["ignore", "no_run"].iter().any(|word| fence.contains(word));
        if fence.starts_with("```") && skipped {
            problems.push(format!("{name}:{} has an example that never runs", number + 1));
        }
        if is_rust && line.trim_start().starts_with("#[ignore") {
            problems.push(format!("{name}:{} has a test that never runs", number + 1));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_and_examples_that_never_run_are_found() {
        let fence = "```";
        let text = format!("/// {fence}no_run\n/// {fence}\n{}", "x\n".repeat(900));
        assert_eq!(problems_of("a.rs", &text).len(), 2);
        assert!(problems_of("a.rs", "/// ```\n/// 1;\n/// ```\n").is_empty());
    }
}
