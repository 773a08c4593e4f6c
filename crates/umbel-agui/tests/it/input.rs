//! What clients send, and what they should not.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use umbel_agui::{
    ContentPart, InputErrorKind, InputLimits, MediaPart, Message, MessageContent, PartSource, RunAgentInput,
};

use crate::samples;

fn minimal() -> Value {
    json!({"threadId": "t", "runId": "r", "messages": []})
}

fn with(key: &str, value: Value) -> Value {
    let mut form = minimal();
    form[key] = value;
    form
}

/// What is wrong with an input, in words.
fn refusal(body: &str) -> (InputErrorKind, String) {
    let error = RunAgentInput::parse(body.as_bytes()).expect_err(body);
    (error.kind, error.to_string())
}

fn message(form: &Value) -> Result<Message, String> {
    let raw = RawValue::from_string(form.to_string()).unwrap();
    Message::parse(&raw).map_err(|error| error.to_string())
}

#[test]
fn an_input_is_written_back_as_it_was_read() {
    for form in
        [samples::input(), json!({"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": []})]
    {
        let body = form.to_string();
        let input = RunAgentInput::parse(body.as_bytes()).unwrap();
        assert_eq!(serde_json::to_value(&input).unwrap(), form);
        let owned: RunAgentInput<'static> = input.clone().into_owned();
        assert_eq!(owned, input);
    }
}

#[test]
fn messages_are_kept_as_they_came_and_borrowed_from_the_body() {
    let body = r#"{"runId":"r","messages":[ {"id" : "1","role":"user","content":"x"} ],"threadId":"t"}"#;
    let input = RunAgentInput::parse(body.as_bytes()).unwrap();
    assert_eq!(input.messages[0].get(), r#"{"id" : "1","role":"user","content":"x"}"#);
    assert!(body.as_bytes().as_ptr_range().contains(&input.messages[0].get().as_ptr()));
    assert!(matches!(input.thread_id, Cow::Borrowed("t")));
}

#[test]
fn null_is_absent_and_what_is_not_known_is_ignored() {
    let body = json!({"threadId": "t", "runId": "r", "messages": [], "state": null, "tools": null, "context": null,
        "forwardedProps": null, "resume": null, "parentRunId": null, "protocolVersion": null, "later": {"x": [1]}});
    let body = body.to_string();
    let input = RunAgentInput::parse(body.as_bytes()).unwrap();
    let expected = minimal().to_string();
    assert_eq!(input, RunAgentInput::parse(expected.as_bytes()).unwrap());
    assert_eq!(input.state, None);
}

#[test]
fn an_input_that_is_wrong_says_where_and_what_to_do() {
    let tool = |name: &str| json!([{"name": "fine", "description": ""}, {"name": name, "description": ""}]);
    let (invalid, not_json, too_much) =
        (InputErrorKind::Invalid, InputErrorKind::NotJson, InputErrorKind::TooMuch);
    for (body, kind, words) in [
        (String::new(), not_json, "the input: cannot be read as JSON"),
        ("{nope".to_owned(), not_json, "the input: cannot be read as JSON"),
        (format!("{} x", minimal()), not_json, "the input: cannot be read as JSON"),
        ("[1]".to_owned(), invalid, "expected a JSON object with `threadId`, `runId` and `messages`"),
        (json!({"runId": "r", "messages": []}).to_string(), invalid, "`threadId` is missing: send it"),
        (json!({"threadId": "t", "messages": []}).to_string(), invalid, "`runId` is missing"),
        (json!({"threadId": "t", "runId": "r"}).to_string(), invalid, "`messages` is missing"),
        (
            with("threadId", json!(1)).to_string(),
            invalid,
            "`threadId` of the input: invalid type: integer `1`",
        ),
        (with("threadId", json!("")).to_string(), invalid, "`threadId` of the input: must not be empty"),
        (with("runId", json!("a\nb")).to_string(), invalid, "`runId` of the input: has control characters"),
        (
            with("parentRunId", json!("x".repeat(257))).to_string(),
            too_much,
            "`parentRunId` of the input: has 257 bytes",
        ),
        (
            with("messages", json!("hi")).to_string(),
            invalid,
            "`messages` of the input: invalid type: string \"hi\", expected an array",
        ),
        (with("messages", Value::Null).to_string(), invalid, "`messages` of the input: invalid type: null"),
        (
            with("tools", json!([{"name": "a", "description": ""}, {"name": "b"}])).to_string(),
            invalid,
            "`tools[1]` of the input: missing field `description`",
        ),
        (
            with("tools", tool("b\u{1b}[0m")).to_string(),
            invalid,
            "`tools[1].name` of the input: has control characters",
        ),
        (with("tools", tool("")).to_string(), invalid, "`tools[1].name` of the input: must not be empty"),
        (
            with("tools", json!(vec![&tool("x")[0]; 1000])).to_string(),
            too_much,
            "`tools` of the input: there may be at most 128",
        ),
        (
            with("context", json!([{"value": ""}])).to_string(),
            invalid,
            "`context[0]` of the input: missing field `description`",
        ),
        (
            with("resume", json!([{"interruptId": "i", "status": "maybe"}])).to_string(),
            invalid,
            "`resume[0]` of the input: unknown variant `maybe`",
        ),
        (
            with("resume", json!([{"interruptId": "i".repeat(300), "status": "resolved"}])).to_string(),
            too_much,
            "`resume[0].interruptId` of the input: has 300 bytes, and may have 256",
        ),
    ] {
        let (found, said) = refusal(&body);
        assert_eq!(found, kind, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn limits_can_be_set() {
    let body = with("messages", json!([{}, {}, {}])).to_string();
    let limits = InputLimits { messages: 2, ..InputLimits::default() };
    let error = RunAgentInput::parse_within(body.as_bytes(), &limits).unwrap_err();
    assert_eq!((error.kind, error.path.as_str()), (InputErrorKind::TooMuch, "messages"));
    let limits = InputLimits { messages: 3, ..limits };
    assert_eq!(RunAgentInput::parse_within(body.as_bytes(), &limits).unwrap().messages.len(), 3);

    let raw = RawValue::from_string(r#"{"role": "user", "id": "long", "content": ""}"#.to_owned()).unwrap();
    assert!(Message::parse(&raw).is_ok());
    let limits = InputLimits { id_bytes: 3, ..limits };
    assert_eq!(Message::parse_within(&raw, &limits).unwrap_err().path, "id");
}

#[test]
fn ten_thousand_levels_are_an_error_wherever_they_are_read() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    for deep in [deep("[", "]"), deep("{\"a\":", "}").replace(":}", ":1}")] {
        let body = |key: &str| format!(r#"{{"threadId":"t","runId":"r","messages":[],"{key}":{deep}}}"#);
        for key in ["state", "forwardedProps"] {
            let (kind, said) = refusal(&body(key));
            assert_eq!(kind, InputErrorKind::NotJson);
            assert!(said.contains(key) && said.contains("recursion limit"), "{said}");
        }
        assert!(RunAgentInput::parse(deep.as_bytes()).is_err());
        assert!(RunAgentInput::parse(body("unknown").as_bytes()).is_ok());
        for place in ["content", "metadata", "unknown"] {
            let body = format!(
                r#"{{"threadId":"t","runId":"r","messages":[{{"role":"user","id":"m","content":"","{place}":{deep}}}]}}"#
            );
            let input = RunAgentInput::parse(body.as_bytes()).unwrap();
            assert!(Message::parse(&input.messages[0]).is_err());
        }
    }
}

#[test]
fn what_is_kept_may_have_sixty_four_levels_and_no_more() {
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    for (levels, fits) in [(64, true), (65, false), (110, false)] {
        let deep = deep(levels);
        let tool =
            |field: &str| format!(r#""tools":[{{"name":"t","description":"","{field}":{{"a":{deep}}}}}]"#);
        let answer = format!(r#""resume":[{{"interruptId":"i","status":"resolved","payload":{deep}}}]"#);
        // The object around it is a level, too, where the whole of it counts.
        for (field, is_level) in [
            (tool("metadata"), false),
            (tool("parameters"), true),
            (answer, false),
            (format!(r#""state":{{"a":{deep}}}"#), true),
        ] {
            let body = format!(r#"{{"threadId":"t","runId":"r","messages":[],{field}}}"#);
            let checked = RunAgentInput::parse(body.as_bytes());
            assert_eq!(checked.is_ok(), fits && !is_level, "{levels}: {body}");
        }
        let part = format!(r#"[{{"type":"text","text":"x","metadata":{deep}}}]"#);
        let message = format!(r#"{{"role":"user","id":"m","content":{part}}}"#);
        let message = Message::parse(&RawValue::from_string(message).unwrap());
        assert_eq!(message.is_ok(), fits, "{levels}: {message:?}");
    }
}

#[test]
fn every_kind_of_message_is_written_back_as_it_was_read() {
    for form in samples::messages() {
        let read = message(&form).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), form);
        assert_eq!(
            (read.role(), read.id().as_str()),
            (form["role"].as_str().unwrap(), form["id"].as_str().unwrap())
        );
        let text = |key: &str| form.get(key).map(|value| value.as_str().unwrap());
        assert_eq!(read.subagent_run_id().map(|id| id.as_str()), text("subagentRunId"));
        assert_eq!(read.metadata().cloned().map(Value::from).as_ref(), form.get("metadata"));
    }
}

#[test]
fn a_message_that_is_wrong_says_what_is() {
    for (form, words) in [
        (json!({"role": "wizard", "id": "1", "content": "x"}), "unknown variant `wizard`"),
        (json!({"role": "user", "content": "x"}), "missing field `id`"),
        (
            json!({"role": "user", "id": "1", "content": 5}),
            "must be a string or an array of parts, but is a number",
        ),
        (json!({"role": "user", "id": "1"}), "missing field `content`"),
        (json!({"role": "user", "id": "1", "content": [{"type": "hologram"}]}), "unknown variant `hologram`"),
        (json!({"role": "tool", "id": "1", "content": "x"}), "missing field `toolCallId`"),
        (
            json!({"role": "tool", "id": "1", "content": "x", "toolCallId": "\u{0}"}),
            "`toolCallId` of the input: has control",
        ),
        (
            json!({"role": "assistant", "id": "1", "toolCalls": [{"id": "", "function": {"name": "n", "arguments": ""}}]}),
            "`toolCalls[0].id` of the input: must not be empty",
        ),
        (
            json!({"role": "assistant", "id": "1", "toolCalls": [{"id": "c", "function": {"name": "\n", "arguments": ""}}]}),
            "`toolCalls[0].function.name` of the input: has control",
        ),
    ] {
        let said = message(&form).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn an_error_of_a_message_can_be_placed_in_its_input() {
    let raw = RawValue::from_string(
        json!({"role": "tool", "id": "", "content": "x", "toolCallId": "c"}).to_string(),
    );
    let error = Message::parse(&raw.unwrap()).unwrap_err();
    assert_eq!(error.within("messages[3]").path, "messages[3].id");
    let raw = RawValue::from_string("1".to_owned()).unwrap();
    assert_eq!(Message::parse(&raw).unwrap_err().within("messages[3]").path, "messages[3]");
}

#[test]
fn a_part_of_before_1_0_is_read_as_what_it_is_today() {
    let part = |form: Value| {
        let form = json!({"role": "user", "id": "1", "content": [form]});
        match message(&form)? {
            Message::User(user) => match user.content {
                MessageContent::Parts(mut parts) => Ok(parts.remove(0)),
                MessageContent::Text(text) => Err(text),
            },
            other => Err(format!("{other:?}")),
        }
    };
    let media = |source: PartSource| MediaPart { source, id: None, metadata: None };
    let mime_type = || "image/png".to_owned();
    let data = PartSource::Data { value: "AAEC".to_owned(), mime_type: mime_type() };
    let url = PartSource::Url { value: "u".to_owned(), mime_type: Some("application/pdf".to_owned()) };
    let file =
        PartSource::File { value: "f".to_owned(), provider: None, mime_type: Some("audio/mp3".to_owned()) };
    let named = Some(json!({"filename": "x.png"}));
    for (form, expected) in [
        (
            json!({"type": "binary", "mimeType": "image/png", "data": "AAEC", "url": "u", "filename": "x.png"}),
            ContentPart::Image(MediaPart { metadata: named, ..media(data) }),
        ),
        (
            json!({"type": "binary", "mimeType": "application/pdf", "url": "u"}),
            ContentPart::Document(media(url)),
        ),
        (
            json!({"type": "binary", "mimeType": "audio/mp3", "id": "f"}),
            ContentPart::Audio(MediaPart { id: Some("f".into()), ..media(file) }),
        ),
    ] {
        assert_eq!(part(form).unwrap(), expected);
    }
    let nothing = part(json!({"type": "binary", "mimeType": "video/mp4"})).unwrap_err();
    assert!(nothing.contains("needs `data`, `url` or `id`"), "{nothing}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in any_bytes()) {
        if let Ok(input) = RunAgentInput::parse(&bytes) {
            for raw in &input.messages {
                drop(Message::parse(raw));
            }
        }
    }
}

/// An input with some of its bytes changed, or any bytes.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let body = samples::input().to_string().into_bytes();
    let changes = prop::collection::vec((0..body.len(), any::<u8>()), 0..6);
    let changed = changes.prop_map(move |changes| {
        let mut body = body.clone();
        for (at, byte) in changes {
            body[at] = byte;
        }
        body
    });
    prop_oneof![3 => changed, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}
