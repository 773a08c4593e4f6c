//! How much work a JSON Schema may make that somebody else wrote.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

/// Whether a keyword refers to another schema.
fn refers(keyword: &str) -> bool {
    matches!(keyword, "$ref" | "$dynamicRef" | "$recursiveRef")
}

/// How many values there are in a value, with itself.
pub fn nodes(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<u64>(),
        Value::Object(fields) => 1 + fields.values().map(nodes).sum::<u64>(),
        _ => 1,
    }
}

/// How big a schema is when all that it refers to is written out; what refers to itself is counted once. `None` if it
/// refers to something outside.
pub fn unfolded(schema: &Value) -> Option<u64> {
    Unfold { whole: schema, known: BTreeMap::new() }.size(schema)
}

struct Unfold<'a> {
    whole: &'a Value,
    /// The sizes of what is referred to; nothing yet while it is being measured.
    known: BTreeMap<&'a str, u64>,
}

impl<'a> Unfold<'a> {
    fn size(&mut self, value: &'a Value) -> Option<u64> {
        match value {
            Value::Array(values) => {
                values.iter().try_fold(1u64, |sum, value| Some(sum.saturating_add(self.size(value)?)))
            }
            Value::Object(fields) => {
                let mut sum = 1u64;
                for (key, value) in fields {
                    sum = sum.saturating_add(match value.as_str().filter(|_| refers(key)) {
                        Some(target) => self.target(target)?,
                        None => self.size(value)?,
                    });
                }
                Some(sum)
            }
            _ => Some(1),
        }
    }

    fn target(&mut self, target: &'a str) -> Option<u64> {
        if let Some(known) = self.known.get(target) {
            return Some(*known);
        }
        let place = target.strip_prefix('#')?;
        self.known.insert(target, 1);
        // An anchor, or a place that is not there, is nothing that could be written out.
        let size = match self.whole.pointer(place) {
            Some(value) => self.size(value)?,
            None => 1,
        };
        self.known.insert(target, size);
        Some(size)
    }
}

/// Whether a schema refers to itself.
pub fn is_recursive(schema: &Value) -> bool {
    fn walk<'a>(
        whole: &'a Value,
        value: &'a Value,
        path: &mut Vec<&'a str>,
        done: &mut HashSet<&'a str>,
    ) -> bool {
        match value {
            Value::Array(values) => values.iter().any(|value| walk(whole, value, path, done)),
            Value::Object(fields) => fields.iter().any(|(key, value)| {
                let Some(target) = value.as_str().filter(|_| refers(key)) else {
                    return walk(whole, value, path, done);
                };
                if path.contains(&target) {
                    return true;
                }
                if !done.insert(target) {
                    return false;
                }
                let Some(place) = target.strip_prefix('#').and_then(|place| whole.pointer(place)) else {
                    // An anchor may lead anywhere.
                    return true;
                };
                path.push(target);
                let found = walk(whole, place, path, done);
                path.pop();
                found
            }),
            _ => false,
        }
    }
    walk(schema, schema, &mut vec!["#"], &mut HashSet::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_refers_to_itself_is_known() {
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            assert!(is_recursive(&json!({"properties": {"a": {keyword: "#"}}})), "{keyword}");
        }
        let pair =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert!(is_recursive(&pair));
        let plain = json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}});
        assert!(!is_recursive(&plain));
    }

    #[test]
    fn whatever_refers_is_written_out() {
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            let schema = json!({"$defs": {"a": [1, 2, 3]}, "allOf": [{keyword: "#/$defs/a"}]});
            let plain = json!({"$defs": {"a": [1, 2, 3]}, "allOf": [{"x": 1}]});
            assert_eq!(unfolded(&schema).unwrap(), unfolded(&plain).unwrap() + 3, "{keyword}");
        }
        assert_eq!(nodes(&json!({"a": [1, 2], "b": null})), 5);
    }
}
