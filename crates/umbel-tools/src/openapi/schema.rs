//! Schemas of an OpenAPI document, made whole: references are replaced by what they lead to.

use serde_json::{Value, json};
use umbel_core::{Object, Result};

use super::document::{escape, wrong};

/// How deep schemas may lie in schemas. What is deeper may be anything.
const DEPTH: usize = 24;
/// How many schemas an operation may have, references counted each time.
const SCHEMAS: usize = 4_000;

/// Makes the schemas of one operation whole.
pub(super) struct Schemas<'a> {
    root: &'a Value,
    left: usize,
}

/// What a reference leads to, or why it leads nowhere.
pub(super) fn find<'a>(root: &'a Value, reference: &str) -> std::result::Result<&'a Value, String> {
    let Some(fragment) = reference.strip_prefix('#') else {
        return Err(format!("`{reference}` is in another document: put all into one, with a bundler"));
    };
    let found = unescape(fragment).and_then(|pointer| root.pointer(&pointer));
    found.ok_or_else(|| format!("`{reference}` leads nowhere"))
}

/// A fragment of an address without its `%` forms.
fn unescape(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(bytes).ok()
}

impl<'a> Schemas<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, left: SCHEMAS }
    }

    /// A schema without references, in the words of JSON Schema.
    pub(super) fn inline(&mut self, schema: &'a Value, pointer: &str) -> Result<Value> {
        self.whole(schema, pointer, &mut Vec::new(), DEPTH)
    }

    fn whole(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        within: &mut Vec<&'a str>,
        depth: usize,
    ) -> Result<Value> {
        let Some(object) = schema.as_object() else {
            return match schema {
                Value::Bool(_) => Ok(schema.clone()),
                _ => Err(wrong(pointer, "a schema must be an object")),
            };
        };
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            wrong(
                pointer,
                "the schema is too large for a tool: choose other operations, or a simpler document",
            )
        })?;
        if depth == 0 {
            return Ok(json!({}));
        }
        if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
            return self.referred(object, reference, pointer, within, depth);
        }
        let mut made = Object::new();
        for (key, value) in object {
            let pointer = format!("{pointer}/{}", escape(key));
            let value = match (key.as_str(), value) {
                ("properties" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                    let mut inner = Object::new();
                    for (name, schema) in schemas {
                        // What only the service says is not asked for.
                        if key == "properties" && schema.get("readOnly") == Some(&Value::Bool(true)) {
                            continue;
                        }
                        let pointer = format!("{pointer}/{}", escape(name));
                        inner.insert(name.clone(), self.whole(schema, &pointer, within, depth - 1)?);
                    }
                    Value::Object(inner)
                }
                ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                    let mut inner = Vec::new();
                    for (index, schema) in schemas.iter().enumerate() {
                        inner.push(self.whole(schema, &format!("{pointer}/{index}"), within, depth - 1)?);
                    }
                    Value::Array(inner)
                }
                (
                    "items"
                    | "additionalProperties"
                    | "not"
                    | "if"
                    | "then"
                    | "else"
                    | "contains"
                    | "propertyNames"
                    | "unevaluatedItems"
                    | "unevaluatedProperties",
                    Value::Object(_),
                ) => self.whole(value, &pointer, within, depth - 1)?,
                // These say nothing to a model, or only in OpenAPI.
                ("discriminator" | "xml" | "externalDocs" | "example" | "readOnly" | "writeOnly", _) => {
                    continue;
                }
                ("$defs" | "definitions" | "$schema" | "$id" | "$anchor", _) => continue,
                (key, _) if key.starts_with("x-") => continue,
                _ => value.clone(),
            };
            made.insert(key.clone(), value);
        }
        keep_required(&mut made);
        modernise(&mut made);
        Ok(Value::Object(made))
    }

    /// What a reference leads to, with what stands beside it.
    fn referred(
        &mut self,
        object: &'a Object,
        reference: &'a str,
        pointer: &str,
        within: &mut Vec<&'a str>,
        depth: usize,
    ) -> Result<Value> {
        let target = find(self.root, reference).map_err(|why| wrong(pointer, &why))?;
        let mut made = if within.contains(&reference) {
            // It holds itself. Once around is enough to see how it goes on.
            let mut again = json!({"description": "The same again."});
            if let (Some(again), Some(kind)) = (again.as_object_mut(), target.get("type")) {
                again.insert("type".to_owned(), kind.clone());
            }
            again
        } else {
            within.push(reference);
            let made = self.whole(target, reference, within, depth - 1);
            within.pop();
            made?
        };
        if let (Some(made), Some(words)) = (made.as_object_mut(), object.get("description")) {
            made.insert("description".to_owned(), words.clone());
        }
        Ok(made)
    }
}

/// What must be there has to be there: properties may have been left out.
fn keep_required(schema: &mut Object) {
    let Some(Value::Object(properties)) = schema.get("properties").cloned() else { return };
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name.as_str().is_some_and(|name| properties.contains_key(name)));
    }
}

/// The words of OpenAPI 3.0 in those of JSON Schema.
fn modernise(schema: &mut Object) {
    if schema.remove("nullable") == Some(Value::Bool(true)) {
        if let Some(Value::String(kind)) = schema.get("type").cloned() {
            schema.insert("type".to_owned(), json!([kind, "null"]));
        }
        if let Some(Value::Array(values)) = schema.get_mut("enum")
            && !values.contains(&Value::Null)
        {
            values.push(Value::Null);
        }
    }
    for (exclusive, limit) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match schema.get(exclusive) {
            Some(Value::Bool(true)) => match schema.remove(limit) {
                Some(value) => schema.insert(exclusive.to_owned(), value),
                None => schema.remove(exclusive),
            },
            Some(Value::Bool(false)) => schema.remove(exclusive),
            _ => None,
        };
    }
}
