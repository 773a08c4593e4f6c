//! Compares JSON by structure: key order does not matter, 3 is 3.0, and tokens stand for our own words.

use serde_json::{Number, Value};

use super::tokens::Tokens;

/// The first place where two values differ, in words; nothing if they are the same.
pub(super) fn difference(expected: &Value, actual: &Value, tokens: &Tokens) -> Option<String> {
    at("$", expected, actual, tokens)
}

fn at(path: &str, expected: &Value, actual: &Value, tokens: &Tokens) -> Option<String> {
    match (expected, actual) {
        (Value::Object(wanted), Value::Object(got)) => {
            for (key, value) in wanted {
                let path = format!("{path}.{key}");
                match got.get(key) {
                    Some(got) => {
                        if let Some(found) = at(&path, value, got, tokens) {
                            return Some(found);
                        }
                    }
                    None => {
                        return Some(format!("{path}: expected {}, but it is absent", shown(value, tokens)));
                    }
                }
            }
            let (key, value) = got.iter().find(|(key, _)| !wanted.contains_key(*key))?;
            Some(format!("{path}.{key}: got {}, but nothing is expected there", shown(value, tokens)))
        }
        (Value::Array(wanted), Value::Array(got)) => {
            let pairs = wanted.iter().zip(got).enumerate();
            for (index, (wanted, got)) in pairs {
                if let Some(found) = at(&format!("{path}[{index}]"), wanted, got, tokens) {
                    return Some(found);
                }
            }
            let common = wanted.len().min(got.len());
            if let Some(missing) = wanted.get(common) {
                return Some(format!(
                    "{path}[{common}]: expected {}, but the list ends",
                    shown(missing, tokens)
                ));
            }
            let extra = got.get(common)?;
            Some(format!("{path}[{common}]: got {}, but the list should end", shown(extra, tokens)))
        }
        _ => {
            let same = match (expected, actual) {
                (Value::String(expected), Value::String(actual)) => tokens.matches(expected, actual),
                (Value::Number(expected), Value::Number(actual)) => same_number(expected, actual),
                _ => expected == actual,
            };
            (!same).then(|| {
                format!("{path}: expected {}, got {}", shown(expected, tokens), shown(actual, tokens))
            })
        }
    }
}

fn same_number(one: &Number, other: &Number) -> bool {
    one == other || one.as_f64() == other.as_f64()
}

/// A value in one line that can be read.
fn shown(value: &Value, tokens: &Tokens) -> String {
    const LONGEST: usize = 300;
    let text = tokens.fill(value).to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn key_order_and_the_form_of_numbers_do_not_matter() {
        let (one, other) = (json!({"a": 3, "b": [1.0]}), json!({"b": [1], "a": 3.0}));
        assert_eq!(difference(&one, &other, &Tokens::default()), None);
    }

    #[test]
    fn the_first_difference_is_told_with_its_place() {
        let tell = |one, other| difference(&one, &other, &Tokens::default()).unwrap();
        assert_eq!(tell(json!({"a": [1, 2]}), json!({"a": [1, 3]})), "$.a[1]: expected 2, got 3");
        assert_eq!(tell(json!({"a": 1}), json!({})), "$.a: expected 1, but it is absent");
        assert_eq!(tell(json!([]), json!([{}])), "$[0]: got {}, but the list should end");
        assert_eq!(tell(json!({}), json!({"x": null})), "$.x: got null, but nothing is expected there");
    }
}
