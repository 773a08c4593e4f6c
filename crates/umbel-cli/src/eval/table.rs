//! A report as people read it.

use std::collections::BTreeSet;

use umbel::eval::{CaseReport, Check, Gate, Metric, RunReport};

use super::{FileResult, Results};
use crate::style::{Ink, Style, clean, clean_line};

/// The widest that a column of what differed may be.
const WIDEST: usize = 56;

/// The whole report.
pub(super) fn text(results: &Results, style: Style) -> String {
    results.files.iter().map(|file| of_file(file, style)).collect::<Vec<_>>().join("\n")
}

fn of_file(file: &FileResult, style: Style) -> String {
    let mut text = format!("{}\n", style.paint(Ink::Agent, &clean_line(&file.file)));
    text.push_str(&cases(&file.report.cases, style));
    for case in &file.report.cases {
        for (index, run) in case.runs.iter().enumerate().filter(|(_, run)| !run.passed) {
            let number = if case.runs.len() > 1 { format!(", run {}", index + 1) } else { String::new() };
            let title = format!("{}{number}", clean_line(&case.name));
            text.push_str(&format!("\n{}\n", style.paint(Ink::Error, &title)));
            run.failures().for_each(|check| text.push_str(&differs(check, style)));
        }
    }
    text.push('\n');
    for Gate { name, score, threshold } in &file.report.gates {
        let passed = Gate { name: name.clone(), score: *score, threshold: *threshold }.passed();
        let line = format!("{} {} {score:.2}, must be {threshold:.2}", sign(passed), clean_line(name));
        text.push_str(&format!("{}\n", style.paint(if passed { Ink::You } else { Ink::Error }, &line)));
    }
    for change in &file.changes {
        let of = change.metric.map_or("pass rate", Metric::as_str);
        let (word, ink) = match (change.is_regression(), change.is < change.was) {
            (true, _) => ("REGRESSION", Ink::Error),
            (false, true) => ("worse", Ink::Question),
            (false, false) => ("better", Ink::You),
        };
        let line =
            format!("{word}: {}, {of} was {:.2}, is {:.2}", clean_line(&change.case), change.was, change.is);
        text.push_str(&format!("{}\n", style.paint(ink, &line)));
    }
    text
}

fn sign(passed: bool) -> &'static str {
    if passed { "✓" } else { "✗" }
}

/// The table of cases, with a column for each metric that one of them has.
fn cases(cases: &[CaseReport], style: Style) -> String {
    let metrics = cases.iter().flat_map(|case| &case.runs).flat_map(|run| run.metrics.keys().copied());
    let metrics: BTreeSet<Metric> = metrics.filter(|metric| *metric != Metric::Completed).collect();
    let names = cases.iter().map(|case| clean_line(&case.name).chars().count());
    let wide = names.max().unwrap_or(0).max("case".len());
    let mut head = format!("  {:<wide$}  passed", "case");
    metrics.iter().for_each(|metric| head.push_str(&format!("  {metric:>7}")));
    head.push_str("  requests   tokens    dollars  seconds");
    let mut text = format!("{}\n", style.paint(Ink::Faint, &head));
    for case in cases {
        let passed = case.runs.iter().filter(|run| run.passed).count();
        let all = passed == case.runs.len();
        let name = clean_line(&case.name);
        let mut line = format!("{} {name:<wide$}  {:>6}", sign(all), format!("{passed}/{}", case.runs.len()));
        for metric in &metrics {
            let width = metric.as_str().len().max(7);
            let score = case.mean(*metric).map(|score| format!("{score:.2}")).unwrap_or_default();
            line.push_str(&format!("  {score:>width$}"));
        }
        line.push_str(&spent(&case.runs));
        text.push_str(&format!(
            "{}\n",
            style.paint(if all { Ink::You } else { Ink::Error }, line.trim_end())
        ));
    }
    text
}

/// What a run of a case takes, on average. What is not known is a dash.
fn spent(runs: &[RunReport]) -> String {
    let count = runs.len().max(1) as f64;
    let mean = |of: fn(&RunReport) -> Option<f64>| -> Option<f64> {
        runs.iter().map(of).sum::<Option<f64>>().map(|sum| sum / count)
    };
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let requests = shown(mean(|run| Some(run.spent.model_calls as f64)), 1);
    let tokens = shown(mean(|run| run.spent.tokens.map(|tokens| tokens as f64)), 0);
    let dollars = shown(mean(|run| run.spent.cost), 5);
    let seconds = shown(mean(|run| Some(run.spent.seconds)), 2);
    format!("  {requests:>8}  {tokens:>7}  {dollars:>9}  {seconds:>7}")
}

/// What was expected and what was found, side by side.
fn differs(check: &Check, style: Style) -> String {
    let turn = check.turn.map(|turn| format!(", turn {turn}")).unwrap_or_default();
    let score = format!(" ({:.2})", check.score);
    let mut text = format!("  {}{turn}{score}\n", check.metric);
    if check.expected.is_empty() && check.actual.is_empty() {
        return text;
    }
    let (left, right) = (folded(&check.expected), folded(&check.actual));
    let wide = left.iter().map(|line| line.chars().count()).max().unwrap_or(0).max("expected".len());
    let head = format!("    {:<wide$}   found", "expected");
    text.push_str(&format!("{}\n", style.paint(Ink::Faint, &head)));
    for index in 0..left.len().max(right.len()) {
        let empty = String::new();
        let (one, other) = (left.get(index).unwrap_or(&empty), right.get(index).unwrap_or(&empty));
        let mark = if one == other { ' ' } else { '|' };
        text.push_str(format!("    {one:<wide$} {mark} {other}").trim_end());
        text.push('\n');
    }
    text
}

/// Lines that fit into a column.
fn folded(text: &str) -> Vec<String> {
    let text = clean(text);
    let mut lines = Vec::new();
    for line in text.lines() {
        let letters: Vec<char> = line.chars().collect();
        match letters.is_empty() {
            true => lines.push(String::new()),
            false => lines.extend(letters.chunks(WIDEST).map(|part| part.iter().collect::<String>())),
        }
    }
    lines
}
