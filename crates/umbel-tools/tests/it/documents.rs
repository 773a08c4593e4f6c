//! Documents that are wrong, and documents that are out to do harm.

use proptest::prelude::*;
use serde_json::{Value, json};
use umbel_core::Tool;
use umbel_tools::OpenApi;

fn with(paths: &Value) -> Value {
    json!({"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": paths})
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let get = |operation: Value| with(&json!({"/a/{b}": {"get": operation}}));
    let cases = [
        (json!(5), "at #: it has no `openapi`"),
        (json!({"swagger": "2.0"}), "at #/swagger: Swagger 2 is not known"),
        (json!({"openapi": "4.0.0"}), "at #/openapi: version 4.0.0 is not known"),
        (json!({"openapi": "3.0.0"}), "at #: it has no `paths`"),
        (with(&json!([])), "at #/paths: it must be an object"),
        (with(&json!({"a": {}})), "at #/paths/a: a path must begin with `/`"),
        (with(&json!({"/a": 1})), "at #/paths/~1a: it must be an object"),
        (with(&json!({"/a": {"$ref": "#/nowhere"}})), "at #/paths/~1a: `#/nowhere` leads nowhere"),
        (with(&json!({"/a": {"$ref": "other.json#/a"}})), "`other.json#/a` is in another document"),
        (with(&json!({"/a": {"$ref": "#/paths/~1a"}})), "the references go in a circle"),
        (get(json!(1)), "at #/paths/~1a~1{b}/get: an operation must be an object"),
        (get(json!({})), "at #/paths/~1a~1{b}/get: the path has `{b}`, and no parameter says what it is"),
        (get(json!({"parameters": {}})), "at #/paths/~1a~1{b}/get/parameters: it must be a list"),
        (
            get(json!({"parameters": [{}]})),
            "at #/paths/~1a~1{b}/get/parameters/0: the parameter has no `name`",
        ),
        (get(json!({"parameters": [{"name": "b"}]})), "/parameters/0: `in` must be"),
        (get(json!({"parameters": [{"name": "b c", "in": "header"}]})), "`name` is no name of a header"),
        (
            get(json!({"parameters": [{"name": "b", "in": "path", "schema": 1}]})),
            "/0/schema: a schema must be an object",
        ),
        (
            get(json!({"parameters": [{"name": "b", "in": "path", "schema": {"items": {"$ref": "#/x"}}}]})),
            "/0/schema/items: `#/x` leads nowhere",
        ),
        (
            with(&json!({"/a": {"post": {"requestBody": {}}}})),
            "at #/paths/~1a/post/requestBody: the body has no `content`",
        ),
        (json!({"openapi": "3.0.0", "paths": {"/a": {"get": {}}}}), "at #: it names no `servers`"),
        (
            json!({"openapi": "3.0.0", "servers": [{}], "paths": {"/a": {"get": {}}}}),
            "at #/servers/0: the server has no `url`",
        ),
        (
            json!({"openapi": "3.0.0", "servers": [{"url": "https://{x}"}], "paths": {"/a": {"get": {}}}}),
            "at #/servers/0: the variable `{x}` has no `default`",
        ),
        (
            json!({"openapi": "3.0.0", "servers": [{"url": "/v1"}], "paths": {"/a": {"get": {}}}}),
            "the server `/v1` at #/servers/0 is no whole address",
        ),
        (
            json!({"openapi": "3.0.0", "servers": [{"url": "https://a:b@c.example"}], "paths": {"/a": {"get": {}}}}),
            "has a user's name or password in it",
        ),
        (
            json!({"openapi": "3.0.0", "servers": [{"url": "ftp://c.example"}], "paths": {"/a": {"get": {}}}}),
            "is no http or https address",
        ),
    ];
    for (document, why) in cases {
        let error = OpenApi::new(document.clone()).build().unwrap_err();
        assert!(error.message().contains(why), "{document}: {error}");
    }
}

#[test]
fn a_document_that_is_not_json_is_said_to_be_none() {
    let read = |text: &str| OpenApi::read(text).unwrap_err().message().to_owned();
    assert!(read("openapi: 3.0.0\npaths:\n").contains("It looks like YAML"));
    assert!(read("{\"openapi\": ").contains("line 1 column"));
}

#[test]
fn servers_of_operations_and_paths_come_first_and_variables_have_their_defaults() {
    let document = json!({
        "openapi": "3.0.0",
        "servers": [{"url": "https://{region}.example", "variables": {"region": {"default": "eu"}}}],
        "paths": {"/a": {"get": {}}},
    });
    assert!(OpenApi::new(document).build().is_ok());
    let document = json!({
        "openapi": "3.0.0",
        "paths": {
            "/a": {"servers": [{"url": "https://path.example"}], "get": {}},
            "/b": {"get": {"servers": [{"url": "https://operation.example"}]}},
        },
    });
    assert_eq!(OpenApi::new(document).build().unwrap().tools().len(), 2);
}

#[test]
fn names_are_short_unique_and_made_of_what_models_can_say() {
    let long = "é".repeat(200);
    let document = with(&json!({
        "/a": {"get": {"operationId": long}, "put": {"operationId": long}, "delete": {"operationId": "a b"}},
        "/b": {"get": {"operationId": "a_b"}, "put": {"operationId": ""}},
    }));
    let service = OpenApi::new(document).build().unwrap();
    let names: Vec<_> = service.tools().iter().map(|tool| tool.spec().name.to_string()).collect();
    let long = "_".repeat(64);
    let second = format!("{}_2", "_".repeat(56));
    assert_eq!(names, [long.as_str(), &second, "a_b", "a_b_2", "put_b"]);
}

#[test]
fn schemas_that_hold_each_other_many_times_are_refused() {
    // Each level holds the next one ten times: a million million schemas.
    let mut schemas = serde_json::Map::new();
    for level in 0..12 {
        let next = json!({"$ref": format!("#/components/schemas/S{}", level + 1)});
        let properties: serde_json::Map<_, _> = (0..10).map(|i| (format!("p{i}"), next.clone())).collect();
        schemas.insert(format!("S{level}"), json!({"type": "object", "properties": properties}));
    }
    schemas.insert("S12".to_owned(), json!({"type": "string"}));
    let body = json!({"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}});
    let mut document = with(&json!({"/a": {"post": {"requestBody": body}}}));
    document["components"] = json!({"schemas": schemas});
    let error = OpenApi::new(document).build().unwrap_err();
    assert!(error.message().contains("the schema is too large for a tool"), "{error}");
}

#[test]
fn schemas_that_go_very_deep_end_somewhere() {
    let mut schemas = serde_json::Map::new();
    for level in 0..200 {
        let next = json!({"$ref": format!("#/components/schemas/S{}", level + 1)});
        schemas.insert(format!("S{level}"), json!({"properties": {"next": next}}));
    }
    schemas.insert("S200".to_owned(), json!({}));
    let parameter = json!({"name": "a", "in": "query", "schema": {"$ref": "#/components/schemas/S0"}});
    let mut document = with(&json!({"/a": {"get": {"parameters": [parameter]}}}));
    document["components"] = json!({"schemas": schemas});
    let service = OpenApi::new(document).build().unwrap();
    let schema = service.tools()[0].spec().parameters.to_string();
    assert!(schema.matches("\"next\"").count() < 24 && schema.contains("\"next\":{}"), "{schema}");
}

/// A document with something of everything.
fn rich() -> String {
    let parameter = json!({"name": "id", "in": "path", "schema": {"$ref": "#/components/schemas/A"}});
    let media = json!({"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/B"}]}}});
    let mut document = with(&json!({"/a/{id}": {
        "parameters": [parameter],
        "get": {"operationId": "a", "tags": ["t"], "summary": "S"},
        "post": {"requestBody": {"required": true, "content": media}},
    }}));
    document["components"] = json!({"schemas": {
        "A": {"type": "string", "nullable": true, "enum": ["x"]},
        "B": {"type": "object", "properties": {"self": {"$ref": "#/components/schemas/B"}, "a": {"$ref": "#/components/schemas/A"}}},
    }});
    document.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_document_makes_the_reader_panic(cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6usize), 1..6)) {
        let mut text = rich();
        for (from, to, what) in cuts {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            if places.is_empty() {
                break;
            }
            let (from, to) = (*from.get(&places), *to.get(&places));
            let (from, to) = (from.min(to), from.max(to));
            match what {
                0 => text.replace_range(from..to.min(from + 12), ""),
                1 => text.insert_str(from, "null"),
                2 => text.replace_range(from..from + 1, "\"$ref\":\"#/components/schemas/B\","),
                3 => text = text.replace("\"object\"", "5"),
                4 => text = text.replace("#/components", "#/paths"),
                _ => text.insert_str(from, "{}"),
            }
        }
        if let Ok(service) = OpenApi::read(&text).and_then(OpenApi::build) {
            for tool in service.tools() {
                prop_assert!(tool.spec().parameters.is_object());
            }
        }
    }

    #[test]
    fn no_value_in_the_place_of_another_makes_the_reader_panic(at in any::<prop::sample::Index>(), with in 0..7usize) {
        let mut document: Value = serde_json::from_str(&rich()).unwrap();
        let mut pointers = Vec::new();
        collect(&document, String::new(), &mut pointers);
        let pointer = at.get(&pointers).clone();
        let values = [json!(null), json!(true), json!(-1), json!(""), json!([]), json!({}), json!({"$ref": "#"})];
        *document.pointer_mut(&pointer).unwrap() = values[with].clone();
        let _ = OpenApi::new(document).build();
    }
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{pointer}/{key}"), pointers);
            }
        }
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(index, value)| collect(value, format!("{pointer}/{index}"), pointers));
        }
        _ => {}
    }
    pointers.push(pointer);
}
