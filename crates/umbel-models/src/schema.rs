//! What providers ask of schemas.

use serde_json::{Map, Value, json};

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

/// A schema as providers take it that know the plain words of the language only: each object has what it names and nothing
/// else, and what they do not know is told in words. Nothing if there is an object that may have just any keys, since that
/// cannot be said.
pub(crate) fn closed(schema: &Value) -> Option<Value> {
    const FORMATS: [&str; 10] =
        ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];
    let Value::Object(schema) = schema else { return None };
    let mut out = Map::new();
    let mut told = Vec::new();
    for (key, value) in schema {
        let kept = match (key.as_str(), value) {
            ("type" | "required" | "enum" | "const" | "title" | "description" | "default" | "$ref", _) => {
                value.clone()
            }
            ("properties" | "$defs" | "definitions", Value::Object(all)) => {
                let each = |(name, one): (&String, &Value)| Some((name.clone(), closed(one)?));
                Value::Object(all.iter().map(each).collect::<Option<_>>()?)
            }
            ("items", _) => closed(value)?,
            ("anyOf" | "oneOf" | "allOf", Value::Array(all)) => {
                Value::Array(all.iter().map(closed).collect::<Option<_>>()?)
            }
            ("format", Value::String(format)) if FORMATS.contains(&format.as_str()) => value.clone(),
            ("minItems", Value::Number(least)) if least.as_u64().is_some_and(|least| least < 2) => {
                value.clone()
            }
            ("additionalProperties", Value::Bool(_)) | ("$schema" | "$id" | "$comment", _) => continue,
            ("additionalProperties" | "patternProperties", _) => return None,
            _ => {
                told.push(format!("{key}: {value}"));
                continue;
            }
        };
        out.insert(if key == "oneOf" { "anyOf".to_owned() } else { key.clone() }, kept);
    }
    if out.get("type").is_some_and(|kind| kind == "object") {
        out.insert("additionalProperties".to_owned(), Value::Bool(false));
        out.entry("properties").or_insert_with(|| json!({}));
    }
    if !told.is_empty() {
        let before = out.get("description").and_then(Value::as_str).unwrap_or_default();
        let words = format!("{before} ({})", told.join(", "));
        out.insert("description".to_owned(), json!(words.trim_start()));
    }
    Some(Value::Object(out))
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
        assert!(is_strict(&json!({"type": "array", "items": strict})));
        assert!(!is_strict(&json!({"type": "object"})));
        let mut open = strict.clone();
        open["required"] = json!([]);
        assert!(!is_strict(&open));
        assert!(!is_strict(&json!({"anyOf": [strict, {"properties": {}}]})));
    }

    #[test]
    fn what_a_provider_does_not_know_of_a_schema_is_told_in_words() {
        let schema = json!({"$schema": "x", "title": "T", "type": "object", "required": ["n"], "properties": {
            "n": {"type": "integer", "format": "uint8", "minimum": 0, "description": "How many"},
            "when": {"type": "string", "format": "date"},
            "list": {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": true}},
            "either": {"oneOf": [{"$ref": "#/$defs/D"}, {"const": 3}]}},
            "$defs": {"D": {"type": "object", "properties": {"s": {"enum": ["a"]}}}}});
        assert_eq!(
            closed(&schema).unwrap(),
            json!({"title": "T", "type": "object", "required": ["n"], "properties": {
                "n": {"type": "integer", "description": "How many (format: \"uint8\", minimum: 0)"},
                "when": {"type": "string", "format": "date"},
                "list": {"type": "array", "minItems": 1,
                         "items": {"type": "object", "properties": {}, "additionalProperties": false}},
                "either": {"anyOf": [{"$ref": "#/$defs/D"}, {"const": 3}]}},
                "$defs": {"D": {"type": "object", "properties": {"s": {"enum": ["a"]}}, "additionalProperties": false}},
                "additionalProperties": false})
        );
        assert_eq!(closed(&json!({"type": "integer", "minimum": 1})).unwrap()["description"], "(minimum: 1)");
    }

    #[test]
    fn a_schema_with_any_keys_cannot_be_closed() {
        let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
        assert_eq!(closed(&map), None);
        assert_eq!(closed(&json!({"type": "array", "items": map})), None);
        assert_eq!(closed(&json!(true)), None);
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
