//! Every event on the wire, in both forms.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use umbel_agui::{AguiEvent, proto, testing};

use crate::samples;

fn read(form: &Value) -> AguiEvent<'static> {
    serde_json::from_value(form.clone()).unwrap_or_else(|error| panic!("{form}: {error}"))
}

fn samples() -> Vec<Value> {
    samples::full().into_iter().chain(samples::bare()).collect()
}

#[test]
fn every_kind_of_event_is_written_back_as_it_was_read() {
    let mut kinds = BTreeSet::new();
    for form in samples() {
        let event = read(&form);
        assert_eq!(serde_json::to_value(&event).unwrap(), form);
        assert_eq!(event.kind.name(), form["type"]);
        assert!(serde_json::to_string(&event).unwrap().starts_with("{\"type\":"));
        testing::record(&event).unwrap();
        kinds.insert(event.kind.name());
        assert_eq!(event.clone().into_owned(), event);
    }
    assert_eq!(kinds.len(), 31);
}

#[test]
fn unknown_fields_are_ignored_and_unknown_kinds_are_errors() {
    let event = read(&json!({"type": "TEXT_MESSAGE_END", "messageId": "m", "later": {"x": 1}}));
    assert_eq!(serde_json::to_value(event).unwrap(), json!({"type": "TEXT_MESSAGE_END", "messageId": "m"}));
    assert!(serde_json::from_value::<AguiEvent>(json!({"type": "LATER"})).is_err());
    assert!(serde_json::from_value::<AguiEvent>(json!({"messageId": "m"})).is_err());
}

/// The official package decodes what is written here: `cargo xtask conformance`.
#[test]
fn every_kind_of_event_has_a_form_in_protobuf() {
    for form in samples() {
        let mut out = b"before".to_vec();
        proto::write_frame(&mut out, &read(&form)).unwrap();
        let frame = &out[6..];
        assert_eq!(u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize, frame.len() - 4);
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        testing::record_frame(&form, &hex).unwrap();
    }
}

#[test]
fn a_frame_in_protobuf_is_made_of_the_right_bytes() {
    let mut out = Vec::new();
    let event =
        read(&json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "hé", "timestamp": 300}));
    proto::write_frame(&mut out, &event).unwrap();
    let base = [0x0a, 5, 0x08, 1, 0x10, 0xac, 0x02];
    let fields = [0x12, 1, b'm', 0x1a, 3, b'h', 0xc3, 0xa9];
    let expected = [&[0, 0, 0, 17, 0x12, 15], &base[..], &fields[..]].concat();
    assert_eq!(out, expected);
}

#[test]
fn an_input_that_cannot_be_repeated_in_protobuf_leaves_no_half_frame() {
    let input = json!({"threadId": "t", "runId": "r", "messages": [{"role": "wizard"}]});
    let event = read(&json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "input": input}));
    let mut out = b"before".to_vec();
    assert!(proto::write_frame(&mut out, &event).is_err());
    assert_eq!(out, b"before");
}
