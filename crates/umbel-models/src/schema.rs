//! What providers ask of schemas.

use serde_json::{Map, Value};

/// Whether a schema can be kept to strictly: each object names all it may have, all of it must be there, and nothing is
/// asked that OpenAI refuses in a strict schema.
pub(crate) fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Object(object) => {
            let is_object =
                object.contains_key("properties") || object.get("type").is_some_and(|kind| kind == "object");
            (!is_object || is_closed(object)) && object.iter().all(|(key, value)| is_strict_key(key, value))
        }
        Value::Array(items) => items.iter().all(is_strict),
        // What is open to anything is strict in nothing.
        Value::Bool(open) => !open,
        _ => true,
    }
}

/// Whether an object may have what it names and nothing else, and must have all of it.
fn is_closed(object: &Map<String, Value>) -> bool {
    let required = object.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|all| all.iter().any(|one| one == name));
    let properties = object.get("properties").and_then(Value::as_object);
    object.get("additionalProperties") == Some(&Value::Bool(false))
        && properties.is_none_or(|all| all.keys().all(is_required))
}

fn is_strict_key(key: &str, value: &Value) -> bool {
    const FORMATS: [&str; 9] =
        ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
    match key {
        "allOf" | "oneOf" | "not" | "if" | "then" | "else" | "default" | "patternProperties"
        | "propertyNames" | "dependentRequired" | "dependentSchemas" | "prefixItems" | "contains"
        | "uniqueItems" | "minLength" | "maxLength" => false,
        "format" => value.as_str().is_some_and(|format| FORMATS.contains(&format)),
        // Below these stand schemas, each by a name that says nothing.
        "properties" | "$defs" | "definitions" => {
            value.as_object().is_some_and(|all| all.values().all(is_strict))
        }
        "items" | "anyOf" => is_strict(value),
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
    #[test]
    fn what_is_refused_in_strict_schemas_makes_a_schema_none() {
        let with = |property: Value| {
            json!({"type": "object", "properties": {"format": property}, "required": ["format"],
                   "additionalProperties": false})
        };
        for fine in [
            json!({"type": "string", "format": "date-time", "description": "default"}),
            json!({"type": "integer", "minimum": 0}),
            json!({"enum": ["oneOf", "not"]}),
            json!({"$ref": "#/$defs/a"}),
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ] {
            assert!(is_strict(&with(fine.clone())), "{fine}");
        }
        for refused in [
            json!({"type": "integer", "format": "uint32"}),
            json!({"oneOf": [{"type": "string"}]}),
            json!({"type": "string", "default": ""}),
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            json!({"type": "array", "items": true}),
            json!(true),
        ] {
            assert!(!is_strict(&with(refused.clone())), "{refused}");
        }
    }
}
