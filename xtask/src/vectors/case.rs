//! One case of a vector file, and what came of it.

use serde_json::Value;
use umbel::BoxError;

use super::compare::difference;
use super::script::leave_out_empty;
use super::tokens::Tokens;

/// One case of a vector file.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) input: Value,
    pub(super) expect: Value,
    tags: Vec<String>,
}

impl Case {
    pub(super) fn read(case: &Value) -> Result<Self, BoxError> {
        let name = case.get("name").and_then(Value::as_str).ok_or("a case has no `name`")?;
        let part = |key: &str| case.get(key).cloned().ok_or_else(|| format!("case {name} has no `{key}`"));
        let tags = case.get("tags").and_then(Value::as_array).into_iter().flatten();
        Ok(Self {
            name: name.to_owned(),
            input: part("input")?,
            expect: part("expect")?,
            tags: tags.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }

    /// The same case, of which something else is expected.
    pub(super) fn expecting(&self, expect: &Value) -> Self {
        let Self { name, input, tags, .. } = self;
        Self { name: name.clone(), input: input.clone(), expect: expect.clone(), tags: tags.clone() }
    }

    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|present| present == tag)
    }
}

/// What a kind makes of a case: two values to be compared, or nothing.
#[derive(Clone, Debug)]
pub(super) enum Checked {
    Compare { expected: Value, actual: Value, tokens: Tokens },
    Skipped,
}

impl Checked {
    /// Compares without anything that an input would have to say about tokens.
    pub(super) fn plain(expected: Value, actual: Value) -> Self {
        Self::Compare { expected, actual, tokens: Tokens::default() }
    }

    /// The case's settings were refused.
    pub(super) fn refused(case: &Case) -> Self {
        Self::plain(case.expect.clone(), serde_json::json!({"config_error": true}))
    }

    /// Whether the case fails.
    pub(super) fn differs(&self) -> bool {
        matches!(self.clone().verdict(), Verdict::Failed(_))
    }

    pub(super) fn verdict(self) -> Verdict {
        let Self::Compare { mut expected, mut actual, tokens } = self else { return Verdict::Skipped };
        for side in [&mut expected, &mut actual] {
            leave_out_empty(side);
        }
        let Some(difference) = difference(&expected, &actual, &tokens) else { return Verdict::Passed };
        let shown = |what: &str, value: &Value| {
            format!(
                "  {what}: {}",
                serde_json::to_string_pretty(value).unwrap_or_default().replace('\n', "\n  ")
            )
        };
        let details = vec![shown("expected", &tokens.fill(&expected)), shown("actual", &actual)];
        Verdict::Failed(Failure { difference, details })
    }
}

/// How a case went.
#[derive(Debug)]
pub(super) enum Verdict {
    Passed,
    Skipped,
    Failed(Failure),
}

impl Verdict {
    /// The case could not be run at all.
    pub(super) fn broken(error: &dyn std::error::Error) -> Self {
        Self::Failed(Failure { difference: format!("cannot be run: {error}"), details: Vec::new() })
    }
}

#[derive(Debug)]
pub(super) struct Failure {
    /// Where expectation and fact part, in one line.
    pub(super) difference: String,
    /// Both in full.
    pub(super) details: Vec<String>,
}
