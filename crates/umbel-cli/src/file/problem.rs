//! What is wrong with a file, with the place where it is.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use strsim::osa_distance;

/// How many are told at once.
const MOST: usize = 20;

/// What holds keys and tokens.
const SECRET: [&str; 5] = ["authorization", "bearer", "env", "headers", "query"];

/// Something that is wrong at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

/// All problems of a file in the order of their places, each with its line.
pub(super) fn report(path: &Path, source: &str, mut problems: Vec<Problem>) -> String {
    problems.sort_by_key(|problem| problem.at.start);
    problems.dedup();
    let mut text = String::new();
    for problem in problems.iter().take(MOST) {
        let (line, column, words, width) = place(source, &problem.at);
        let gap = " ".repeat(line.to_string().len());
        // A caret stands under a character only if what comes before it is as wide.
        let before: String =
            words.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let carets = "^".repeat(width);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}:{line}:{column}: {}", path.display(), problem.message);
        if !has_secrets(source, &problem.at, &words) {
            let _ = writeln!(text, " {line} | {words}\n {gap} | {before}{carets}");
        }
        if let Some(hint) = &problem.hint {
            let _ = writeln!(text, " {gap} = {hint}");
        }
        text.push('\n');
    }
    if let Some(more) = problems.len().checked_sub(MOST).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more");
    }
    text.trim_end().to_owned()
}

/// Whether keys or tokens may stand on a line: it names what holds them, or its table does.
fn has_secrets(source: &str, at: &Range<usize>, line: &str) -> bool {
    let names = |text: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
        words.any(|word| SECRET.contains(&word.to_ascii_lowercase().as_str()))
    };
    let before = source.get(..floor(source, at.start)).unwrap_or_default();
    let table = before.lines().rev().map(str::trim_start).find(|line| line.starts_with('['));
    names(line) || table.is_some_and(names)
}

/// Line and column of a place, counted from 1, the line's text, and how many characters of it are meant.
fn place(source: &str, at: &Range<usize>) -> (usize, usize, String, usize) {
    let start = floor(source, at.start);
    let before = source.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    let words = source.get(line_start..).unwrap_or_default();
    let words = words.split('\n').next().unwrap_or_default().trim_end_matches('\r');
    let column = source.get(line_start..start).unwrap_or_default().chars().count() + 1;
    let meant = source.get(start..floor(source, at.end)).unwrap_or_default();
    let meant = meant.split('\n').next().unwrap_or_default().trim_end().chars().count();
    (line, column, words.to_owned(), meant.max(1))
}

/// The nearest place before that does not cut a character in two.
fn floor(source: &str, at: usize) -> usize {
    let at = at.min(source.len());
    (0..=at).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0)
}

/// The known word that was most likely meant.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Two letters that changed places count as one mistake: it is the one that fingers make most.
    let best = known.into_iter().min_by_key(|other| osa_distance(word, other))?;
    let most = (word.chars().count() / 3).clamp(1, 3);
    (osa_distance(word, best) <= most).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_under_its_line() {
        let source = "a = 1\r\nüber = \"x\"\n";
        let at = source.find("\"x\"").unwrap();
        let problem = Problem { at: at..at + 3, message: "no".to_owned(), hint: Some("say yes".to_owned()) };
        let told = report(Path::new("a.toml"), source, vec![problem.clone(), problem]);
        assert_eq!(told, "a.toml:2:8: no\n 2 | über = \"x\"\n   |        ^^^\n   = say yes");
    }

    #[test]
    fn a_line_that_may_hold_a_secret_is_not_shown() {
        for source in [
            "[tools.t]\nbearer = \"hunter2",
            "[tools.t]\nheaders.X-Key = \"hunter2$\"",
            "[tools.t]\nquery = { key = \"hunter2$\" }",
            "[tools.t.headers]\n\nX-Key = \"hunter2$\"",
        ] {
            let at = source.find("hunter2").unwrap();
            let problem = Problem { at: at..at + 3, message: "no".to_owned(), hint: Some("yes".to_owned()) };
            let told = report(Path::new("a.toml"), source, vec![problem]);
            assert!(
                told.contains(": no\n") && told.ends_with("= yes") && !told.contains("hunter2"),
                "{told}"
            );
        }
    }

    #[test]
    fn places_that_are_nowhere_are_the_nearest_there_are() {
        for at in [0..0, 2..9, 99..200, 1..2] {
            let problem = Problem { at, message: "no".to_owned(), hint: None };
            assert!(report(Path::new("a"), "ü\n", vec![problem]).contains("no"));
        }
    }

    #[test]
    fn the_nearest_word_is_near() {
        let known = ["instruction", "model", "tools"];
        assert_eq!(nearest("instrction", known), Some("instruction"));
        assert_eq!(nearest("tool", known), Some("tools"));
        assert_eq!(nearest("temperature", known), None);
        assert_eq!(nearest("", known), None);
    }
}
