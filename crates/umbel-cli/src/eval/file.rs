//! Files with cases.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use umbel::eval::{Case, Suite};

use super::adk;
use crate::args::{bad_usage, cannot};

/// Where the keys are explained.
const HINT: &str = "All keys are explained in docs/eval.md.";

/// Reads cases, in whatever form they are.
pub(super) fn read(path: &Path) -> io::Result<Suite> {
    let text = std::fs::read_to_string(path).map_err(|error| bad_usage(cannot(path, &error).to_string()))?;
    let suite = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => toml::from_str(&text).map_err(|error| error.to_string()),
        Some("jsonl") => read_lines(&text),
        Some("json") => read_json(path, &text),
        _ => Err("a file with cases ends with .toml, .jsonl or .json".to_owned()),
    };
    let suite = suite.map_err(|error| bad(path, error.trim_end()))?;
    umbel::eval::validate(&suite, true).map_err(|error| {
        let place =
            place_of(path, &text, error.message()).map(|line| format!("line {line}: ")).unwrap_or_default();
        bad(path, &format!("{place}{}", error.message()))
    })?;
    Ok(suite)
}

/// What is wrong with a file.
pub(super) fn bad(path: &Path, what: &str) -> io::Error {
    bad_usage(format!("{}: {what}\n{HINT}", path.display()))
}

/// A case in each line.
fn read_lines(text: &str) -> Result<Suite, String> {
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: Case =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))?;
        cases.push(case);
    }
    Ok(Suite { cases, ..Suite::default() })
}

/// Our own form, or one of google-adk's.
fn read_json(path: &Path, text: &str) -> Result<Suite, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if adk::is_one(&value) {
        let beside = path.with_file_name("test_config.json");
        let config = std::fs::read_to_string(&beside).ok();
        let config = config.map(|text| serde_json::from_str::<Value>(&text)).transpose();
        let config = config.map_err(|error| format!("{}: {error}", beside.display()))?;
        return adk::suite(&value, config.as_ref());
    }
    // Read once more from the text, so that what is wrong has its line.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The line on which the case stands that a message names.
fn place_of(path: &Path, text: &str, message: &str) -> Option<usize> {
    let (_, rest) = message.split_once("case")?;
    let name = rest.split('`').nth(1)?;
    let names = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => names_in_toml(text),
        Some("jsonl") => names_in_lines(text),
        // There it takes more than a look at the text.
        _ => Vec::new(),
    };
    let mut found = names.into_iter().filter(|(other, _)| other == name).map(|(_, line)| line);
    if message.starts_with("two cases") { found.nth(1) } else { found.next() }
}

/// The names of cases, and the lines that they stand on.
fn names_in_toml(text: &str) -> Vec<(String, usize)> {
    #[derive(Deserialize)]
    struct Cases {
        #[serde(default)]
        case: Vec<Named>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: Option<toml::Spanned<String>>,
    }
    let cases = toml::from_str::<Cases>(text).map(|cases| cases.case).unwrap_or_default();
    let line = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let names = cases.into_iter().filter_map(|case| case.name);
    names.map(|name| (name.get_ref().clone(), line(name.span().start))).collect()
}

/// The same where each case has a line of its own.
fn names_in_lines(text: &str) -> Vec<(String, usize)> {
    let name = |line: &str| Some(serde_json::from_str::<Value>(line).ok()?.get("name")?.as_str()?.to_owned());
    text.lines().enumerate().filter_map(|(index, line)| Some((name(line)?, index + 1))).collect()
}
