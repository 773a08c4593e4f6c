//! Every golden vector of contents.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use umbel_core::{Content, ContentsView, Event, History, List};

use super::tokens::{comparable, translate};
use super::{assert_same, projection};
use crate::contents::{build, place};

struct Case {
    name: String,
    view: ContentsView,
    events: Vec<Arc<Event>>,
    input: Option<Arc<Content>>,
    context: Vec<Arc<Content>>,
    instructions: Vec<Arc<Content>>,
    contents: Value,
}

fn read<T: DeserializeOwned>(input: &Value, key: &str) -> Option<T> {
    input.get(key).map(|value| serde_json::from_value(value.clone()).unwrap())
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/flow/contents.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    cases.iter().map(case).collect()
}

fn case(case: &Value) -> Case {
    let input = translate(&case["input"]);
    let text = |key: &str| read::<String>(&input, key).map(Into::into);
    let flag = |key: &str| read(&input, key).unwrap_or(false);
    Case {
        name: case["name"].as_str().unwrap().to_owned(),
        view: ContentsView {
            agent: text("agent_name").unwrap(),
            branch: text("branch"),
            isolation_scope: text("isolation_scope"),
            single_turn: input.get("mode") == Some(&json!("single_turn")),
            current_turn_only: input.get("include_contents") == Some(&json!("none")),
            keep_client_ids: flag("preserve_function_call_ids"),
            foreign_thoughts: flag("include_thoughts_from_other_agents"),
            ..ContentsView::default()
        },
        events: read(&input, "events").unwrap(),
        input: read(&input, "user_content"),
        context: read(&input, "model_input_context").unwrap_or_default(),
        instructions: read(&input, "instruction_contents").unwrap_or_default(),
        contents: comparable(&translate(&case["expect"]["contents"])),
    }
}

#[test]
fn every_vector_gives_what_the_oracle_gives() {
    let mut failed = Vec::new();
    for case in cases() {
        let events: List<Arc<Event>> = case.events.iter().cloned().collect();
        let mut history: History = build(&case.view, &events, case.input.as_ref()).into_iter().collect();
        place(&mut history, &case.context, case.input.as_ref(), &case.instructions);
        let contents: Vec<&Content> = history.iter().map(|content| &**content).collect();
        let got = comparable(&serde_json::to_value(contents).unwrap());
        if got != case.contents {
            failed.push(format!("{}\nexpected {}\n     got {got}", case.name, case.contents));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn every_vector_is_the_same_kept_as_built_anew() {
    for case in cases() {
        let mut each = projection(&case.view);
        let mut events = List::new();
        for event in &case.events {
            events.push(event.clone());
            assert_same(&mut each, &events, case.input.as_ref());
        }
        assert_same(&mut projection(&case.view), &events, case.input.as_ref());
    }
}
