//! What came of a conversation, against what was expected of it.

use std::time::Duration;

use serde_json::Value;
use umbel_core::{Error, ErrorKind, Object, Result};

use super::case::{Case, Expected, ExpectedCall, Metric, Turn};
use super::conversation::{Called, Conversation, Said, tokens};
use super::judge::Judge;
use super::mock::Seen;
use super::overlap::overlap;
use super::report::{Check, Spent};
use super::tools;
use crate::output_schema::OutputSchema;
use crate::usage::Prices;

/// What a conversation used up, as far as its models told.
pub(super) fn spent(talk: &Conversation, seen: &Seen, prices: &Prices) -> Spent {
    let used = talk.used();
    // Answers of which nobody told anything are not taken as free.
    let told = used.len() as u64 >= seen.model_calls;
    let only = || seen.models.first().filter(|_| seen.models.len() == 1).cloned();
    let costs = used.iter().map(|used| {
        let model = used.model.clone().or_else(only)?;
        prices.cost(&model, &used.usage).map(|cost| cost.as_nanos() as f64 / 1e9)
    });
    let cost: Option<f64> = costs.sum();
    let sum = used.iter().fold(0_u64, |sum, used| sum.saturating_add(tokens(&used.usage)));
    Spent {
        cost: cost.filter(|_| told),
        tokens: told.then_some(sum),
        seconds: talk.time.as_secs_f64(),
        model_calls: seen.model_calls,
    }
}

/// All that is to be checked in a run of a case.
pub(super) async fn check(
    case: &Case,
    talk: &Conversation,
    spent: &Spent,
    judge: Option<&Judge>,
) -> Result<Vec<Check>> {
    let completed = Check::new(Metric::Completed, talk.failure.is_none());
    let mut checks = vec![match &talk.failure {
        Some(failure) => completed.differs("the conversation comes to its end", failure),
        None => completed,
    }];
    let nothing = Said::default();
    let mut so_far: Vec<(String, Said)> = Vec::new();
    for (index, turn) in case.turns.iter().enumerate() {
        let said = talk.turns.get(index).unwrap_or(&nothing);
        so_far.push((turn.user.text(), said.clone()));
        let mut found = check_turn(turn, said)?;
        for rubric in &turn.rubrics {
            found.push(rubric_holds(judge, rubric, &so_far).await?);
        }
        checks.extend(found.into_iter().map(|check| Check { turn: Some(index + 1), ..check }));
    }
    for rubric in &case.rubrics {
        checks.push(rubric_holds(judge, rubric, &so_far).await?);
    }
    checks.extend(case.state_after.iter().map(|(key, expected)| state_holds(key, expected, &talk.state)));
    checks.extend(limits_hold(case, spent));
    Ok(checks)
}

fn check_turn(turn: &Turn, said: &Said) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let calls = said.calls();
    if let Some(expected) = &turn.tools {
        let fits = tools::fits(expected, &calls, turn.tools_match, turn.args_match);
        checks.push(Check::new(Metric::Tools, fits).differs(&in_lines(expected), &made(&calls)));
    }
    for name in &turn.never {
        let called = calls.iter().any(|call| call.name == *name);
        checks.push(
            Check::new(Metric::Tools, !called).differs(&format!("`{name}` is not called"), &made(&calls)),
        );
    }
    if let Some(agent) = &turn.agent {
        checks.push(Check::new(Metric::Agent, said.author() == agent).differs(agent, said.author()));
    }
    checks.extend(check_text(&turn.response, &said.text())?);
    Ok(checks)
}

fn check_text(expected: &Expected, text: &str) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let mut is_so = |holds: bool, what: String| {
        checks.push(Check::new(Metric::Text, holds).differs(&what, text));
    };
    if let Some(exact) = &expected.exact {
        is_so(exact.trim() == text.trim(), exact.clone());
    }
    expected.contains.0.iter().for_each(|part| is_so(text.contains(part.as_str()), format!("has: {part}")));
    expected.lacks.0.iter().for_each(|part| is_so(!text.contains(part.as_str()), format!("lacks: {part}")));
    for pattern in &expected.regex.0 {
        is_so(regex(pattern)?.is_match(text), format!("fits: {pattern}"));
    }
    if let Some(like) = &expected.like {
        let check = Check::scored(Metric::Overlap, overlap(like, text));
        checks.push(check.differs(like, text));
    }
    if let Some(schema) = &expected.schema {
        let problem = OutputSchema::new(schema.clone())?.parse(text).err();
        let check = Check::new(Metric::Schema, problem.is_none());
        checks.push(match problem {
            Some(problem) => check.differs("an answer that fits its schema", problem.message()),
            None => check,
        });
    }
    Ok(checks)
}

/// Whether the patterns and the schema of an answer are ones.
pub(super) fn are_readable(expected: &Expected) -> Result<()> {
    expected.regex.0.iter().try_for_each(|pattern| regex(pattern).map(drop))?;
    expected.schema.iter().try_for_each(|schema| OutputSchema::new(schema.clone()).map(drop))
}

fn regex(pattern: &str) -> Result<regex::Regex> {
    regex::Regex::new(pattern)
        .map_err(|error| Error::new(ErrorKind::InvalidInput, format!("`{pattern}` is no regex: {error}")))
}

async fn rubric_holds(judge: Option<&Judge>, rubric: &str, said: &[(String, Said)]) -> Result<Check> {
    let Some(judge) = judge else {
        let message = "there are rubrics, but nobody to judge them: name a model as judge";
        return Err(Error::new(ErrorKind::InvalidInput, message));
    };
    Ok(match judge.judge(rubric, said).await {
        Ok(verdict) => {
            let votes = format!("{} yes, {} no: {}", verdict.yes, verdict.no, verdict.reason);
            Check::new(Metric::Rubrics, verdict.holds).differs(rubric, &votes)
        }
        Err(error) => {
            let failed = format!("the judge gave no verdict: {}", error.message());
            Check::new(Metric::Rubrics, false).differs(rubric, &failed)
        }
    })
}

fn state_holds(key: &str, expected: &Value, state: &Object) -> Check {
    // To expect null is to expect that nothing is there.
    let actual = state.get(key).unwrap_or(&Value::Null);
    let check = Check::new(Metric::State, tools::within(expected, actual));
    check.differs(&format!("{key} = {expected}"), &format!("{key} = {actual}"))
}

fn limits_hold(case: &Case, spent: &Spent) -> Vec<Check> {
    let limits = &case.limits;
    let mut checks = Vec::new();
    let mut limit = |metric: Metric, most: Option<f64>, actual: Option<f64>, unit: &str| {
        let Some(most) = most else { return };
        let shown = actual.map_or_else(|| "not known".to_owned(), |actual| format!("{actual} {unit}"));
        let holds = actual.is_some_and(|actual| actual <= most);
        checks.push(Check::new(metric, holds).differs(&format!("at most {most} {unit}"), &shown));
    };
    limit(Metric::Cost, limits.cost, spent.cost, "dollars");
    limit(Metric::Tokens, limits.tokens.map(as_f64), spent.tokens.map(as_f64), "tokens");
    limit(Metric::Latency, limits.seconds, Some(millis(spent.seconds)), "seconds");
    limit(Metric::ModelCalls, limits.model_calls.map(as_f64), Some(as_f64(spent.model_calls)), "model calls");
    checks
}

fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Seconds with no more digits than anybody reads.
fn millis(seconds: f64) -> f64 {
    Duration::try_from_secs_f64(seconds).map_or(seconds, |time| time.as_millis() as f64 / 1e3)
}

/// Calls that were expected, one in each line.
fn in_lines(expected: &[ExpectedCall]) -> String {
    let line = |call: &ExpectedCall| match &call.args {
        Some(args) => in_line(&call.name, args),
        None => format!("{}(…)", call.name),
    };
    lines(expected.iter().map(line))
}

fn made(calls: &[Called]) -> String {
    lines(calls.iter().map(|call| in_line(&call.name, &call.args)))
}

fn in_line(name: &str, args: &Object) -> String {
    let args = args.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(", ");
    format!("{name}({args})")
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    let lines = lines.collect::<Vec<_>>();
    if lines.is_empty() { "no calls".to_owned() } else { lines.join("\n") }
}
