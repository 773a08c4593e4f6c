//! What providers ask of schemas.

use serde_json::Value;

/// Whether a schema can be kept to strictly: each object names all it may have, and all of it must be there.
pub(crate) fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(object) => {
            let is_object =
                object.contains_key("properties") || object.get("type").is_some_and(|kind| kind == "object");
            let closed = || object.get("additionalProperties") == Some(&Value::Bool(false));
            let all_required = || {
                let required = object.get("required").and_then(Value::as_array);
                let is_required =
                    |name: &String| required.is_some_and(|all| all.iter().any(|one| one == name));
                object
                    .get("properties")
                    .and_then(Value::as_object)
                    .is_none_or(|all| all.keys().all(is_required))
            };
            (!is_object || (closed() && all_required())) && object.values().all(is_strict)
        }
        Value::Array(items) => items.iter().all(is_strict),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_schemas_that_leave_nothing_open_are_strict() {
        let strict = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
                            "additionalProperties": false});
        assert!(is_strict(&strict));
        assert!(is_strict(&json!({"type": "array", "items": strict.clone()})));
        assert!(!is_strict(&json!({"type": "object"})));
        let mut open = strict.clone();
        open["required"] = json!([]);
        assert!(!is_strict(&open));
        assert!(!is_strict(&json!({"anyOf": [strict, {"properties": {}}]})));
    }
}
