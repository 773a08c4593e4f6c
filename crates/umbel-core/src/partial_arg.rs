//! Arguments of a call that come piece by piece.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::Object;

/// A piece of one streamed argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialArg {
    /// Where it belongs, such as `$.city` or `$.tags[0]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_path: Option<String>,
    /// Text to add to the string there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// A number to put there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_value: Option<serde_json::Number>,
    /// A boolean to put there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bool_value: Option<bool>,
    /// Present if null is to be put there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null_value: Option<Value>,
    /// Whether more of this string follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub will_continue: Option<bool>,
}

impl PartialArg {
    /// Puts the piece where it belongs. Text is added to the text there; a path that leads nowhere changes nothing.
    pub fn put_into(&self, args: &mut Object) {
        let Some(path) = self.json_path.as_deref().filter(|path| !path.is_empty()).map(parse_path) else {
            return;
        };
        let value = if let Some(text) = &self.string_value {
            Value::String(text.clone())
        } else if let Some(number) = &self.number_value {
            Value::Number(number.clone())
        } else if let Some(flag) = self.bool_value {
            Value::Bool(flag)
        } else if self.null_value.is_some() {
            Value::Null
        } else {
            return;
        };
        let (Some(Step::Key(first)), rest) = (path.first(), path.get(1..).unwrap_or_default()) else {
            return;
        };
        let slot = args.entry(first.clone()).or_insert_with(|| container_for(rest.first()));
        let Some(slot) =
            rest.iter().enumerate().try_fold(slot, |slot, (i, step)| enter(slot, step, rest.get(i + 1)))
        else {
            return;
        };
        match (slot, value) {
            (Value::String(present), Value::String(more)) => present.push_str(&more),
            (slot, value) => *slot = value,
        }
    }
}

/// One step of a path such as `$.a.b[0]['k']`.
#[derive(Debug, PartialEq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Longest array that a path may make.
const MAX_INDEX: usize = 10_000;

/// What a place must be so that the next step can be taken from it.
fn container_for(next: Option<&Step>) -> Value {
    match next {
        Some(Step::Key(_)) => Value::Object(Object::new()),
        Some(Step::Index(_)) => Value::Array(Vec::new()),
        None => Value::Null,
    }
}

fn enter<'a>(slot: &'a mut Value, step: &Step, next: Option<&Step>) -> Option<&'a mut Value> {
    match (slot, step) {
        (Value::Object(object), Step::Key(key)) => {
            Some(object.entry(key.clone()).or_insert_with(|| container_for(next)))
        }
        (Value::Array(array), Step::Index(index)) if *index <= MAX_INDEX => {
            if array.len() <= *index {
                array.resize(index + 1, Value::Null);
            }
            let slot = array.get_mut(*index)?;
            if slot.is_null() {
                *slot = container_for(next);
            }
            Some(slot)
        }
        _ => None,
    }
}

/// Reads a path. What is no step is skipped.
fn parse_path(path: &str) -> Vec<Step> {
    let mut rest = path.strip_prefix("$.").or_else(|| path.strip_prefix('$')).unwrap_or(path);
    let mut steps = Vec::new();
    while let Some(first) = rest.chars().next() {
        match bracket(rest).or_else(|| bare_key(rest)) {
            Some((step, behind)) => {
                steps.push(step);
                rest = behind;
            }
            None => rest = rest.get(first.len_utf8()..).unwrap_or_default(),
        }
    }
    steps
}

/// `[0]`, `['key']` or `["key"]`, and what stands behind it.
fn bracket(text: &str) -> Option<(Step, &str)> {
    let inner = text.strip_prefix('[')?;
    let Some(quote) = inner.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
        let (index, behind) = inner.split_once(']')?;
        let digits = Some(index.trim()).filter(|index| index.chars().all(|c| c.is_ascii_digit()))?;
        // A number that is too large is one that no array may have.
        let index = if digits.is_empty() { return None } else { digits.parse().unwrap_or(usize::MAX) };
        return Some((Step::Index(index), behind));
    };
    let (key, behind) = unescaped(inner.get(1..)?, |c| c == quote);
    Some((Step::Key(key), behind.strip_prefix(quote)?.strip_prefix(']')?))
}

/// `key` or `.key`, and what stands behind it.
fn bare_key(text: &str) -> Option<(Step, &str)> {
    let (key, behind) = unescaped(text.strip_prefix('.').unwrap_or(text), |c| matches!(c, '.' | '[' | ']'));
    (!key.is_empty()).then_some((Step::Key(key), behind))
}

/// The text up to the first character that ends it, escapes resolved, and what stands from there on.
fn unescaped(text: &str, ends: impl Fn(char) -> bool) -> (String, &str) {
    let mut key = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next().filter(|c| !ends(*c)) {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        if c != '\\' {
            key.push(c);
            continue;
        }
        let Some(escaped) = rest.chars().next() else { break };
        rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
        let code =
            rest.get(..4).filter(|_| escaped == 'u').and_then(|code| u32::from_str_radix(code, 16).ok());
        if let Some(c) = code.and_then(char::from_u32) {
            key.push(c);
            rest = rest.get(4..).unwrap_or_default();
            continue;
        }
        key.push(match escaped {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'b' => '\u{8}',
            'f' => '\u{c}',
            other => other,
        });
    }
    (key, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_with_keys_indexes_and_quotes() {
        let key = |key: &str| Step::Key(key.to_owned());
        assert_eq!(parse_path("$.a.b[0]"), [key("a"), key("b"), Step::Index(0)]);
        assert_eq!(parse_path(r"$['x.y'][2].z"), [key("x.y"), Step::Index(2), key("z")]);
        assert_eq!(parse_path(r#"$["it\'s"]"#), [key("it's")]);
        assert_eq!(parse_path("plain"), [key("plain")]);
        assert_eq!(parse_path(r"$['\u0041\n'].a[ 1 ]"), [key("A\n"), key("a"), Step::Index(1)]);
        assert_eq!(parse_path("$.a[-1]['open"), [key("a"), key("-1"), key("'open")]);
        assert_eq!(parse_path("$[]."), []);
    }

    #[test]
    fn a_path_that_does_not_fit_or_goes_too_far_changes_nothing() {
        let mut args = Object::new();
        let mut put = |path: &str, text: &str| {
            let arg = PartialArg {
                json_path: Some(path.into()),
                string_value: Some(text.into()),
                ..PartialArg::default()
            };
            arg.put_into(&mut args);
        };
        put("$.a", "x");
        put("$.a.b", "y");
        put("$.list[99999999]", "z");
        put("$", "nothing");
        assert_eq!(Value::Object(args), serde_json::json!({"a": "x", "list": []}));
    }
}
