//! Cases on which this project does better than the oracle, on purpose: it must not do as the oracle does there.

use std::path::Path;

use serde_json::Value;
use umbel::BoxError;

use super::script::text;

/// One such case.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    file: String,
    case: String,
    /// What is to come of it, if that is said.
    expect: Option<Value>,
}

/// All such cases.
#[derive(Clone, Debug, Default)]
pub(super) struct Better(Vec<Entry>);

impl Better {
    /// Reads a list of `{file, case, reason, expect?}`. No list is an empty one.
    pub(super) fn read(path: &Path) -> Result<Self, BoxError> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let list: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path)?)
            .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        let word = |entry: &Value, key: &str| {
            let word = text(entry, key).filter(|word| !word.is_empty()).map(str::to_owned);
            word.ok_or_else(|| format!("{}: an entry has no `{key}`: {entry}", path.display()))
        };
        let read = |entry: &Value| -> Result<Entry, BoxError> {
            word(entry, "reason")?;
            let expect = entry.get("expect").cloned();
            Ok(Entry { file: word(entry, "file")?, case: word(entry, "case")?, expect })
        };
        Ok(Self(list.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Whether a case is one of them.
    pub(super) fn contains(&self, file: &str, case: &str) -> bool {
        self.0.iter().any(|entry| entry.file == file && entry.case == case)
    }

    /// What is to come of a case in the place of what the oracle made of it.
    pub(super) fn expect(&self, file: &str, case: &str) -> Option<&Value> {
        self.0.iter().find(|entry| entry.file == file && entry.case == case)?.expect.as_ref()
    }

    /// Those of a file that it does not have.
    pub(super) fn missing<'a>(&'a self, file: &'a str, cases: &[&str]) -> Vec<&'a str> {
        let gone = |entry: &&Entry| entry.file == file && !cases.contains(&entry.case.as_str());
        self.0.iter().filter(gone).map(|entry| entry.case.as_str()).collect()
    }
}
