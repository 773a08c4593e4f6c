//! What came of an evaluation.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::case::{Case, Gates, Metric, Suite, Thresholds};

/// Scores that differ by no more than this are the same.
const SAME: f64 = 1e-9;

/// What came of an evaluation. Its JSON form can be kept, and compared with later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The cases, in the order of the file.
    pub cases: Vec<CaseReport>,
    /// What had to hold for all of them.
    pub gates: Vec<Gate>,
}

/// What came of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// Its runs.
    pub runs: Vec<RunReport>,
}

/// What came of a run of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunReport {
    /// Whether all metrics reached what they must.
    pub passed: bool,
    /// What was measured.
    pub metrics: BTreeMap<Metric, Score>,
    /// What was looked at, one by one.
    pub checks: Vec<Check>,
    /// What it used up.
    pub spent: Spent,
}

/// The score of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The mean of its checks, from 0 to 1.
    pub score: f64,
    /// What it must reach.
    pub threshold: f64,
}

impl Score {
    /// Whether it reached that.
    pub fn passed(self) -> bool {
        self.score + SAME >= self.threshold
    }
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What it counts for.
    pub metric: Metric,
    /// After which message, counted from 1; absent if it is about the whole conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// From 0 to 1.
    pub score: f64,
    /// What was expected, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// What was found, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actual: String,
}

impl Check {
    pub(super) fn new(metric: Metric, holds: bool) -> Self {
        Self::scored(metric, if holds { 1.0 } else { 0.0 })
    }

    pub(super) fn scored(metric: Metric, score: f64) -> Self {
        Self { metric, turn: None, score, expected: String::new(), actual: String::new() }
    }

    pub(super) fn differs(mut self, expected: &str, actual: &str) -> Self {
        (self.expected, self.actual) = (expected.to_owned(), actual.to_owned());
        self
    }
}

/// What a run used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spent {
    /// US dollars; absent if not all of it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Tokens; absent if not all of them are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Seconds.
    pub seconds: f64,
    /// How often models were asked.
    pub model_calls: u64,
}

/// Something that had to hold for all runs together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// `pass rate`, or the name of a metric.
    pub name: String,
    /// What was reached.
    pub score: f64,
    /// What had to be.
    pub threshold: f64,
}

impl Gate {
    /// Whether it holds.
    pub fn passed(&self) -> bool {
        self.score + SAME >= self.threshold
    }
}

/// A case that did better or worse than in an earlier report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The case.
    pub case: String,
    /// What of it; absent if it is the share of its runs that passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// What it was.
    pub was: f64,
    /// What it is.
    pub is: f64,
}

impl Change {
    /// Whether fewer runs of the case pass than before.
    pub fn is_regression(&self) -> bool {
        self.metric.is_none() && self.is < self.was
    }
}

impl RunReport {
    /// What follows from the checks of a run.
    pub(super) fn of(suite: &Suite, case: &Case, checks: Vec<Check>, spent: Spent) -> Self {
        let mut sums: BTreeMap<Metric, (f64, f64)> = BTreeMap::new();
        for check in &checks {
            let (sum, count) = sums.entry(check.metric).or_default();
            (*sum, *count) = (*sum + check.score, *count + 1.0);
        }
        let must = |thresholds: &Thresholds, metric: Metric| thresholds.get(&metric).copied();
        let metrics = sums.into_iter().map(|(metric, (sum, count))| {
            let threshold = must(&case.thresholds, metric).or_else(|| must(&suite.thresholds, metric));
            let threshold = threshold.unwrap_or_else(|| metric.threshold());
            (metric, Score { score: sum / count, threshold })
        });
        let metrics: BTreeMap<Metric, Score> = metrics.collect();
        Self { passed: metrics.values().all(|score| score.passed()), metrics, checks, spent }
    }

    /// The checks because of which it did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| {
            let score = self.metrics.get(&check.metric);
            score.is_some_and(|score| !score.passed() && check.score < 1.0)
        })
    }
}

impl CaseReport {
    /// The share of its runs that passed.
    pub fn pass_rate(&self) -> f64 {
        mean(self.runs.iter().map(|run| if run.passed { 1.0 } else { 0.0 })).unwrap_or(0.0)
    }

    /// The mean of a metric over its runs; `None` if it was not measured.
    pub fn mean(&self, metric: Metric) -> Option<f64> {
        mean(self.runs.iter().filter_map(|run| run.metrics.get(&metric)).map(|score| score.score))
    }
}

impl Report {
    pub(super) fn new(cases: Vec<CaseReport>, gates: &Gates) -> Self {
        let mut report = Self { cases, gates: Vec::new() };
        let pass = Gate {
            name: "pass rate".to_owned(),
            score: report.pass_rate(),
            threshold: gates.min_pass.unwrap_or(1.0),
        };
        report.gates.push(pass);
        for (metric, threshold) in &gates.metrics {
            // What nobody measured was not reached.
            let score = report.mean(*metric).unwrap_or(0.0);
            report.gates.push(Gate { name: metric.to_string(), score, threshold: *threshold });
        }
        report
    }

    /// Whether all gates hold.
    pub fn passed(&self) -> bool {
        self.gates.iter().all(Gate::passed)
    }

    /// The share of all runs that passed.
    pub fn pass_rate(&self) -> f64 {
        let runs = self.cases.iter().flat_map(|case| &case.runs);
        mean(runs.map(|run| if run.passed { 1.0 } else { 0.0 })).unwrap_or(0.0)
    }

    /// The mean of a metric over all runs that have it.
    pub fn mean(&self, metric: Metric) -> Option<f64> {
        let runs = self.cases.iter().flat_map(|case| &case.runs);
        mean(runs.filter_map(|run| run.metrics.get(&metric)).map(|score| score.score))
    }

    /// What is different from an earlier report, for cases that are in both.
    pub fn compare(&self, earlier: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for case in &self.cases {
            let Some(before) = earlier.cases.iter().find(|before| before.name == case.name) else { continue };
            let mut note = |metric: Option<Metric>, was: f64, is: f64| {
                if (was - is).abs() > SAME {
                    changes.push(Change { case: case.name.clone(), metric, was, is });
                }
            };
            note(None, before.pass_rate(), case.pass_rate());
            let metrics = case.runs.iter().flat_map(|run| run.metrics.keys().copied());
            for metric in metrics.collect::<BTreeSet<_>>() {
                if let (Some(was), Some(is)) = (before.mean(metric), case.mean(metric)) {
                    note(Some(metric), was, is);
                }
            }
        }
        changes
    }

    /// What did not pass, in lines that a test can fail with. Empty if all gates hold.
    pub fn failures(&self) -> String {
        let mut lines = String::new();
        if self.passed() {
            return lines;
        }
        for case in &self.cases {
            for (index, run) in case.runs.iter().enumerate() {
                for check in run.failures() {
                    let Check { metric, expected, actual, .. } = check;
                    let turn = check.turn.map(|turn| format!(", turn {turn}")).unwrap_or_default();
                    let run = index + 1;
                    lines.push_str(&format!(
                        "{}, run {run}{turn}, {metric}: expected {expected:?}, found {actual:?}\n",
                        case.name
                    ));
                }
            }
        }
        for gate in self.gates.iter().filter(|gate| !gate.passed()) {
            let Gate { name, score, threshold } = gate;
            lines.push_str(&format!("{name} is {score:.3} and must be {threshold:.3}\n"));
        }
        lines
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then_some(sum / count)
}
