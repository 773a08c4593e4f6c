//! Calls that were made, against those that were expected.

use serde_json::Value;
use umbel_core::Object;

use super::case::{ArgsMatch, ExpectedCall, ToolsMatch};
use super::conversation::Called;

/// Whether the calls are those that were expected.
pub(super) fn fits(expected: &[ExpectedCall], made: &[Called], order: ToolsMatch, args: ArgsMatch) -> bool {
    let same = |expected: &ExpectedCall, made: &Called| {
        expected.name == made.name && same_args(expected.args.as_ref(), &made.args, args)
    };
    match order {
        ToolsMatch::Exact => {
            expected.len() == made.len() && expected.iter().zip(made).all(|(one, other)| same(one, other))
        }
        ToolsMatch::InOrder => {
            let mut made = made.iter();
            expected.iter().all(|one| made.any(|other| same(one, other)))
        }
        ToolsMatch::AnyOrder => {
            let pairs: Vec<Vec<usize>> = expected
                .iter()
                .map(|one| (0..made.len()).filter(|at| made.get(*at).is_some_and(|m| same(one, m))).collect())
                .collect();
            pair_all(&pairs, made.len())
        }
    }
}

/// Whether each has one of its own. A call that is expected with few arguments must not take the only one that fits another.
fn pair_all(wanted: &[Vec<usize>], count: usize) -> bool {
    fn find(one: usize, wanted: &[Vec<usize>], taken: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        for place in wanted.get(one).into_iter().flatten().copied() {
            if std::mem::replace(seen.get_mut(place).unwrap_or(&mut true), true) {
                continue;
            }
            let holder = taken.get(place).copied().flatten();
            if holder.is_none_or(|other| find(other, wanted, taken, seen)) {
                if let Some(slot) = taken.get_mut(place) {
                    *slot = Some(one);
                }
                return true;
            }
        }
        false
    }
    let mut taken = vec![None; count];
    (0..wanted.len()).all(|one| find(one, wanted, &mut taken, &mut vec![false; count]))
}

fn same_args(expected: Option<&Object>, made: &Object, how: ArgsMatch) -> bool {
    let Some(expected) = expected else { return true };
    match how {
        ArgsMatch::Ignore => true,
        ArgsMatch::Partial => has(expected, made),
        ArgsMatch::Exact => expected.len() == made.len() && has_same(expected, made, same),
    }
}

/// Whether an object has all that is expected; objects in it may have more.
pub(super) fn has(expected: &Object, actual: &Object) -> bool {
    has_same(expected, actual, within)
}

fn has_same(expected: &Object, actual: &Object, same: fn(&Value, &Value) -> bool) -> bool {
    expected.iter().all(|(key, value)| actual.get(key).is_some_and(|other| same(value, other)))
}

/// Whether a value has all that is expected: of an object only what is named, anything else whole.
pub(super) fn within(expected: &Value, actual: &Value) -> bool {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => has(expected, actual),
        _ => same(expected, actual),
    }
}

/// Whether two values are the same. 3 and 3.0 are, since models write either.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => one.len() == other.len() && has_same(one, other, same),
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ArgsMatch::{Exact as Same, Ignore, Partial};
    use ToolsMatch::{AnyOrder, Exact, InOrder};

    fn expected(calls: &[(&str, Value)]) -> Vec<ExpectedCall> {
        let call = |(name, args): &(&str, Value)| ExpectedCall {
            name: (*name).to_owned(),
            args: args.as_object().cloned(),
        };
        calls.iter().map(call).collect()
    }

    fn made(calls: &[(&str, Value)]) -> Vec<Called> {
        let call = |(name, args): &(&str, Value)| Called {
            name: (*name).into(),
            args: args.as_object().cloned().unwrap_or_default(),
        };
        calls.iter().map(call).collect()
    }

    #[test]
    fn trajectories_are_compared_as_one_says() {
        let (a, b) = (("a", json!({"x": 1})), ("b", json!({"y": {"z": [1, 2], "w": "q"}})));
        let any = ("a", Value::Null);
        for (want, got, order, args, fit) in [
            (vec![a.clone(), b.clone()], vec![a.clone(), b.clone()], Exact, Same, true),
            (vec![a.clone(), b.clone()], vec![b.clone(), a.clone()], Exact, Same, false),
            (vec![a.clone()], vec![a.clone(), b.clone()], Exact, Same, false),
            (vec![], vec![], Exact, Same, true),
            (vec![], vec![a.clone()], Exact, Same, false),
            (vec![a.clone(), b.clone()], vec![a.clone(), a.clone(), b.clone()], InOrder, Same, true),
            (vec![a.clone(), b.clone()], vec![b.clone(), a.clone()], InOrder, Same, false),
            (vec![a.clone(), a.clone()], vec![a.clone()], InOrder, Same, false),
            (vec![b.clone(), a.clone()], vec![a.clone(), b.clone(), a.clone()], AnyOrder, Same, true),
            (vec![a.clone(), a.clone()], vec![a.clone(), b.clone()], AnyOrder, Same, false),
            // The one without arguments leaves the other what only that one can have.
            (vec![any.clone(), a.clone()], vec![a.clone(), ("a", json!({}))], AnyOrder, Same, true),
            (vec![("a", json!({"x": 1.0}))], vec![a.clone()], Exact, Same, true),
            (vec![("a", json!({}))], vec![a.clone()], Exact, Same, false),
            (vec![("a", json!({}))], vec![a.clone()], Exact, Partial, true),
            (vec![("b", json!({"y": {"z": [1, 2]}}))], vec![b.clone()], Exact, Partial, true),
            (vec![("b", json!({"y": {"z": [1]}}))], vec![b.clone()], Exact, Partial, false),
            (vec![("b", json!({"y": {"z": [1, 2]}}))], vec![b.clone()], Exact, Same, false),
            (vec![("a", json!({"x": 9}))], vec![a.clone()], Exact, Ignore, true),
            (vec![any.clone()], vec![a.clone()], Exact, Same, true),
        ] {
            let found = fits(&expected(&want), &made(&got), order, args);
            assert_eq!(found, fit, "{want:?} against {got:?}, {order:?}, {args:?}");
        }
    }
}
