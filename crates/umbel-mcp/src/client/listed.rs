//! A server's tools as they were listed, looked at before anybody uses them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smol_str::SmolStr;
use umbel_core::json_schema::unfolded;

/// The most bytes that what is said of one tool may have.
const DEFINITION: usize = 64 << 10;
/// How big a schema may get when all that it refers to is written out.
const UNFOLDED: u64 = 20_000;
/// The longest name that models take.
const NAME: usize = 64;

/// A tool as its server lists it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Its name at the server.
    pub(crate) tool: Arc<Tool>,
    /// Its name here.
    pub(crate) name: SmolStr,
    /// All that the server says about it.
    pub(crate) definition: Arc<Value>,
    /// A digest of that.
    pub(crate) digest: String,
}

/// The tools that can be used, by the names that they have here. What cannot be used is left out, and the log is told.
pub(crate) fn look_at(server: &str, prefix: &str, tools: Vec<Tool>) -> Vec<Listed> {
    let mut names = HashSet::new();
    let mut listed = Vec::new();
    for tool in tools {
        let name = name(prefix, &tool.name);
        let definition = definition(&tool);
        let wrong = if tool.name.is_empty() {
            Some("it has no name")
        } else if definition.to_string().len() > DEFINITION {
            Some("what is said about it is too long")
        } else if unfolded(&Value::Object((*tool.input_schema).clone())).is_none_or(|size| size > UNFOLDED) {
            Some("its schema is too big")
        } else if !names.insert(name.clone()) {
            Some("there is another one of that name")
        } else {
            None
        };
        if let Some(why) = wrong {
            let short: String = tool.name.chars().take(NAME).collect();
            tracing::warn!(target: "umbel::mcp", server, tool = short, "the tool is left out: {why}");
            continue;
        }
        let digest = digest(&definition);
        listed.push(Listed { tool: Arc::new(tool), name, definition: Arc::new(definition), digest });
    }
    listed
}

/// A name that models take: letters, digits, `_` and `-`, not too long.
fn name(prefix: &str, name: &str) -> SmolStr {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let whole = format!("{prefix}{name}");
    let mut plain: String = whole.chars().map(plain).collect();
    if plain.len() > NAME {
        // Names that differ only at their ends stay different.
        let end = digest(&Value::String(whole));
        plain.truncate(NAME - 9);
        plain.push('_');
        plain.extend(end.chars().take(8));
    }
    plain.into()
}

/// What a server says about a tool that changes what a model or the runtime does with it. Keys are in order.
fn definition(tool: &Tool) -> Value {
    let mut definition = json!({"name": tool.name, "inputSchema": *tool.input_schema});
    let more = [
        ("title", json!(tool.title)),
        ("description", json!(tool.description)),
        ("outputSchema", json!(tool.output_schema.as_deref())),
        ("annotations", json!(tool.annotations)),
    ];
    if let Some(object) = definition.as_object_mut() {
        object.extend(more.into_iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.to_owned(), v)));
    }
    sorted(definition)
}

/// The same value with the keys of all objects in order: in which order a server writes them says nothing.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            Value::Object(fields.into_iter().collect())
        }
        other => other,
    }
}

/// A digest of what a server says, whatever the order of its keys.
pub(crate) fn digest(value: &Value) -> String {
    let digest = Sha256::digest(sorted(value.clone()).to_string());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, schema: &Value) -> Tool {
        let description = "Does something.";
        serde_json::from_value(json!({"name": name, "description": description, "inputSchema": schema}))
            .unwrap()
    }

    fn names(tools: Vec<Tool>) -> Vec<String> {
        look_at("s", "p_", tools).iter().map(|listed| listed.name.to_string()).collect()
    }

    #[test]
    fn names_are_ones_that_models_take_and_none_is_there_twice() {
        let empty = json!({"type": "object"});
        let tools = ["read file", "read/file", "ok-1", "", "ok-1"].map(|name| tool(name, &empty));
        assert_eq!(names(tools.to_vec()), ["p_read_file", "p_ok-1"]);
        let long = ["x".repeat(100) + "a", "x".repeat(100) + "b"].map(|name| tool(&name, &empty));
        let long = names(long.to_vec());
        assert!(long.iter().all(|name| name.len() == 64) && long[0] != long[1], "{long:?}");
    }

    #[test]
    fn a_schema_that_grows_without_bounds_or_leads_outside_is_left_out() {
        let mut defs = umbel_core::Object::new();
        for n in 0..60 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"allOf": [next.clone(), next]}));
        }
        defs.insert("d60".to_owned(), json!({"type": "string"}));
        let bomb = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": defs});
        let outside = json!({"type": "object", "properties": {"a": {"$ref": "https://elsewhere.example/s"}}});
        let tree = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert_eq!(
            names(vec![tool("bomb", &bomb), tool("outside", &outside), tool("tree", &tree)]),
            ["p_tree"]
        );
    }

    #[test]
    fn the_digest_sees_every_word_and_no_order() {
        let one = tool("a", &json!({"type": "object", "properties": {}}));
        let same = tool("a", &json!({"properties": {}, "type": "object"}));
        let digest_of = |tool: &Tool| digest(&definition(tool));
        assert_eq!(digest_of(&one), digest_of(&same));
        let mut others = Vec::new();
        for change in [
            json!({"description": "Does something!"}),
            json!({"title": "A"}),
            json!({"inputSchema": {"type": "object", "properties": {"a": {}}}}),
            json!({"outputSchema": {"type": "object"}}),
            json!({"annotations": {"readOnlyHint": true}}),
        ] {
            let mut changed = serde_json::to_value(&one).unwrap();
            changed.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            others.push(digest_of(&serde_json::from_value(changed).unwrap()));
        }
        others.push(digest_of(&one));
        let different: HashSet<&String> = others.iter().collect();
        assert_eq!(different.len(), others.len());
    }
}
