//! Anthropic's Messages.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel_core::{
    Chunk, Content, Effort, ErrorKind, FunctionCall, GenerateConfig, Model, ModelErrorKind, ModelRequest,
    Part, Response, Role, Thinking, ToolChoice,
};
use umbel_models::{HttpModel, model_with};

use crate::server::Server;
use crate::support::{
    assert_bodies_grow, body, content, named, parts, read_stream, read_whole, request, sse, streamed_text,
    weather_tools, whole,
};

const MODEL: &str = "anthropic/claude-opus-4-6";

fn model() -> HttpModel {
    named(MODEL)
}

/// A body without the marks of the cache.
fn unmarked(model: &HttpModel, request: &ModelRequest) -> Value {
    let mut request = request.clone();
    Arc::make_mut(&mut request.config).other.insert("cache_control".to_owned(), Value::Null);
    body(model, &request)
}

fn with_config(request: &ModelRequest, change: impl FnOnce(&mut GenerateConfig)) -> ModelRequest {
    let mut request = request.clone();
    change(Arc::make_mut(&mut request.config));
    request
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The events of a message with these blocks.
fn events(blocks: &[Value], stop: Value) -> Vec<Value> {
    let mut events = vec![
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant",
            "model": "claude-opus-4-6", "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 20,
                      "cache_creation_input_tokens": 3, "service_tier": "standard"}}}),
        json!({"type": "ping"}),
    ];
    for (index, block) in blocks.iter().enumerate() {
        events.extend(block_events(index, block));
    }
    events.push(json!({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 12}}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// How a block is streamed: bare, then in two halves.
fn block_events(index: usize, block: &Value) -> Vec<Value> {
    let mut start = block.clone();
    let halves = |text: &str| {
        let middle = (text.len() / 2..).find(|at| text.is_char_boundary(*at)).unwrap();
        [text[..middle].to_owned(), text[middle..].to_owned()]
    };
    let mut deltas = Vec::new();
    let mut stream = |key: &str, kind: &str, named: &str| {
        let Some(value) = block.get(key) else { return };
        let (bare, whole) = match value {
            Value::String(text) => (json!(""), text.clone()),
            Value::Array(all) => {
                start.as_object_mut().unwrap().shift_remove(key);
                deltas.extend(all.iter().map(|one| json!({"type": kind, named: one})));
                return;
            }
            value => (json!({}), value.to_string()),
        };
        start[key] = bare;
        deltas.extend(halves(&whole).map(|half| json!({"type": kind, named: half})));
    };
    match block["type"].as_str().unwrap() {
        "text" => {
            stream("text", "text_delta", "text");
            stream("citations", "citations_delta", "citation");
        }
        "thinking" => {
            stream("thinking", "thinking_delta", "thinking");
            stream("signature", "signature_delta", "signature");
        }
        "tool_use" | "server_tool_use" => stream("input", "input_json_delta", "partial_json"),
        _ => {}
    }
    let mut events = vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
    events.extend(
        deltas
            .into_iter()
            .map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})),
    );
    events.push(json!({"type": "content_block_stop", "index": index}));
    events
}

/// What is made of an answer with these blocks, streamed and as a whole, which must be the same.
fn answer(blocks: &[Value], stop: Value) -> (Vec<umbel_core::Result<Chunk>>, Response) {
    let chunks = read_stream(&model(), &sse(&events(blocks, stop.clone())));
    let mut message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-6",
        "content": blocks, "usage": {"input_tokens": 5, "output_tokens": 12, "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 3, "service_tier": "standard"}});
    message.as_object_mut().unwrap().extend(stop.as_object().unwrap().clone());
    let at_once = read_whole(&model(), &message);
    let streamed = whole(&chunks).clone();
    assert_eq!(streamed, at_once);
    (chunks, streamed)
}

fn end_turn() -> Value {
    json!({"stop_reason": "end_turn", "stop_sequence": null})
}

/// What is sent of an answer when it is part of the conversation.
fn sent_back(model: &str, said: &Response) -> Value {
    let said = said.content.as_deref().unwrap().clone();
    let calls: Vec<Value> = said
        .calls()
        .map(|call| json!({"functionResponse": {"id": call.id, "name": call.name, "response": {"ok": true}}}))
        .chain([json!({"text": "and?"})])
        .collect();
    let request = request([Content::user("go"), said, content(json!({"role": "user", "parts": calls}))]);
    unmarked(&named(model), &request)["messages"][1]["content"].clone()
}

#[test]
fn a_conversation_is_written_as_blocks_in_turns() {
    let mut request = request([
        Content::user("Look"),
        content(
            json!({"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAEC"}}]}),
        ),
        content(json!({"role": "model", "parts": [
            {"text": "I ask."},
            {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}}}]})),
        content(json!({"role": "user", "parts": [
            {"text": "Quick!"},
            {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": "sunny"}}}]})),
        Content::model("Sunny."),
        Content::user("Thanks"),
    ]);
    request.instruction.push("agent", "Be brief.");
    request.instruction.push("more", "Be kind.");
    request.tools = weather_tools();
    let written = unmarked(&model(), &request);
    assert_eq!(
        written["messages"],
        json!([
            {"role": "user", "content": [text("Look"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}]},
            {"role": "assistant", "content": [text("I ask."),
                {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "{\"result\":\"sunny\"}"},
                text("Quick!")]},
            {"role": "assistant", "content": [text("Sunny.")]},
            {"role": "user", "content": [text("Thanks")]},
        ])
    );
    assert_eq!(written["system"], json!([text("Be brief.\n\nBe kind.")]));
    assert_eq!(written["tools"][0]["name"], "get_weather");
    assert_eq!(written["tools"][0]["description"], "Tells the weather.");
    assert_eq!(written["tools"][0]["input_schema"]["properties"]["city"]["type"], "string");
    assert_eq!((&written["model"], &written["max_tokens"]), (&json!("claude-opus-4-6"), &json!(32_000)));
    assert_eq!(written.get("stream"), None);
}

#[test]
fn each_kind_of_part_is_shown_as_far_as_it_can_be() {
    let user = |part: Value| {
        let request = request([content(json!({"role": "user", "parts": [{"text": "x"}, part]}))]);
        unmarked(&model(), &request)["messages"][0]["content"][1].clone()
    };
    let blob =
        |kind: &str, data: &str| json!({"inlineData": {"mimeType": kind, "data": data, "displayName": "n"}});
    let file = |kind: Value, uri: &str| json!({"fileData": {"mimeType": kind, "fileUri": uri}});
    let url = |block: &str, url: &str| json!({"type": block, "source": {"type": "url", "url": url}});
    let pdf = json!("application/pdf");
    let none = Value::Null;
    for (part, block) in [
        (json!({"text": "  "}), none.clone()),
        (json!({"text": "t", "thought": true}), none.clone()),
        (
            blob("image/jpg", "AAEC"),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAEC"}}),
        ),
        (
            blob("application/pdf", "AAEC"),
            json!({"type": "document", "title": "n",
                   "source": {"type": "base64", "media_type": "application/pdf", "data": "AAEC"}}),
        ),
        (
            blob("text/csv", "YSxi"),
            json!({"type": "document", "title": "n",
                   "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}}),
        ),
        (blob("audio/wav", "//79"), text("[file that cannot be shown: n, audio/wav]")),
        (file(json!("image/png"), "https://a/b"), url("image", "https://a/b")),
        (file(none.clone(), "https://a/b.JPG?x=1"), url("image", "https://a/b.JPG?x=1")),
        (file(pdf.clone(), "https://a/b"), url("document", "https://a/b")),
        (file(none.clone(), "http://a/b.pdf"), url("document", "http://a/b.pdf")),
        (file(none.clone(), "https://a/b"), text("[file: https://a/b]")),
        (file(pdf.clone(), "gs://a/b.pdf"), text("[file: gs://a/b.pdf]")),
        (
            file(json!("image/png"), "file_1"),
            json!({"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
        ),
        (file(pdf, "file_2"), json!({"type": "document", "source": {"type": "file", "file_id": "file_2"}})),
        (json!({"executableCode": {"code": "1+1", "language": "PYTHON"}}), text("\n```python\n1+1\n```\n")),
        (json!({"codeExecutionResult": {"output": "2"}}), text("\n```\n2\n```\n")),
    ] {
        assert_eq!(user(part.clone()), block, "{part}");
    }
}

#[test]
fn a_tool_answers_with_media_and_says_if_it_failed() {
    let image = json!([{"inlineData": {"mimeType": "image/png", "data": "AAEC"}}]);
    let answered = |response: Value| {
        let call = FunctionCall::new("t", serde_json::Map::new()).with_id("c1");
        let answer = json!({"id": "c1", "name": "t", "response": response, "parts": image});
        let request = request([
            Content::user("go"),
            Content::model(Part::call(call)),
            content(json!({"role": "user", "parts": [{"functionResponse": answer}]})),
        ]);
        unmarked(&model(), &request)["messages"][2]["content"][0].clone()
    };
    assert_eq!(
        answered(json!({"ok": 1})),
        json!({"type": "tool_result", "tool_use_id": "c1", "content": [
            text("{\"ok\":1}"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}]})
    );
    assert_eq!(
        answered(json!({"error": null})),
        json!({"type": "tool_result", "tool_use_id": "c1", "content": [
            text("{\"error\":null}"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}]})
    );
    assert_eq!(
        answered(json!({"error": "boom"})),
        json!({"type": "tool_result", "tool_use_id": "c1", "content": "{\"error\":\"boom\"}", "is_error": true})
    );
}

#[test]
fn settings_are_sent_by_their_names_here() {
    let mut asked = request([Content::user("hi")]);
    asked.tools = weather_tools();
    asked.stream = true;
    let asked = with_config(&asked, |config| {
        config.temperature = Some(0.5);
        config.top_p = Some(0.9);
        config.top_k = Some(40);
        config.max_output_tokens = Some(100);
        config.stop_sequences = vec!["END".to_owned(), " \n".to_owned()];
        config.tool_choice = Some(ToolChoice::Tool("get_weather".into()));
        config.parallel_calls = Some(false);
        config.other.insert("service_tier".to_owned(), json!("standard_only"));
        config.other.insert("metadata".to_owned(), json!({"user_id": "u"}));
        config
            .other
            .insert("tools".to_owned(), json!([{"type": "web_search_20250305", "name": "web_search"}]));
    });
    let written = unmarked(&model(), &asked);
    for (key, value) in [
        ("temperature", json!(0.5)),
        ("top_k", json!(40)),
        ("max_tokens", json!(100)),
        ("stop_sequences", json!(["END"])),
        ("tool_choice", json!({"type": "tool", "name": "get_weather", "disable_parallel_tool_use": true})),
        ("service_tier", json!("standard_only")),
        ("metadata", json!({"user_id": "u"})),
        ("stream", json!(true)),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    assert_eq!(written.get("top_p"), None, "only one of the two is taken");
    assert_eq!(written["tools"][1], json!({"type": "web_search_20250305", "name": "web_search"}));
    let newer = unmarked(&named("anthropic/claude-opus-5"), &asked);
    for key in ["temperature", "top_p", "top_k"] {
        assert_eq!(newer.get(key), None, "{key} is refused");
    }
    let only_top_p = with_config(&asked, |config| config.temperature = None);
    assert_eq!(unmarked(&model(), &only_top_p)["top_p"], 0.9);
    let own = with_config(&asked, |config| {
        config.other.insert("max_tokens".to_owned(), json!(7));
    });
    assert_eq!(unmarked(&model(), &own)["max_tokens"], 7);
}

#[test]
fn which_tools_may_be_called_is_said_if_there_are_any() {
    let choice = |choice: Option<ToolChoice>, parallel: Option<bool>, tools: bool| {
        let mut asked = request([Content::user("hi")]);
        if tools {
            asked.tools = weather_tools();
        }
        let asked = with_config(&asked, |config| {
            config.tool_choice = choice;
            config.parallel_calls = parallel;
        });
        unmarked(&model(), &asked).get("tool_choice").cloned()
    };
    assert_eq!(choice(Some(ToolChoice::Any), None, false), None);
    assert_eq!(choice(None, None, true), None);
    assert_eq!(choice(None, Some(true), true), None);
    assert_eq!(choice(Some(ToolChoice::Auto), None, true), Some(json!({"type": "auto"})));
    assert_eq!(choice(Some(ToolChoice::Any), None, true), Some(json!({"type": "any"})));
    assert_eq!(choice(Some(ToolChoice::None), Some(false), true), Some(json!({"type": "none"})));
    assert_eq!(
        choice(None, Some(false), true),
        Some(json!({"type": "auto", "disable_parallel_tool_use": true}))
    );
}

#[test]
fn thinking_is_asked_for_and_leaves_sampling_out() {
    let thinking = |model: &str, thinking: Thinking| {
        let asked = with_config(&request([Content::user("hi")]), |config| {
            config.thinking = Some(thinking);
            config.temperature = Some(0.2);
        });
        unmarked(&named(model), &asked)
    };
    let budget = Thinking { budget: Some(2_000), include_thoughts: true, ..Thinking::default() };
    let old = thinking("anthropic/claude-sonnet-4-5", budget);
    assert_eq!(old["thinking"], json!({"type": "enabled", "budget_tokens": 2000}));
    assert_eq!((&old["max_tokens"], old.get("temperature")), (&json!(34_000), None));
    let effort = Thinking { effort: Some(Effort::Low), ..Thinking::default() };
    let new = thinking("anthropic/claude-opus-5", effort);
    assert_eq!(new["thinking"], json!({"type": "adaptive", "display": "omitted"}));
    assert_eq!(new["output_config"], json!({"effort": "low"}));
}

#[test]
fn an_answer_is_held_to_a_schema_as_far_as_the_provider_can() {
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
    let mut asked = request([Content::user("hi")]);
    asked.output_schema = Some(Arc::new(schema));
    let asked = with_config(&asked, |config| {
        config.other.insert("output_config".to_owned(), json!({"effort": "max"}));
    });
    assert_eq!(
        unmarked(&model(), &asked)["output_config"],
        json!({"effort": "max", "format": {"type": "json_schema", "schema": {
            "type": "object", "properties": {"n": {"type": "integer", "description": "(minimum: 1)"}},
            "required": ["n"], "additionalProperties": false}}})
    );
    let mut open = request([Content::user("hi")]);
    open.output_schema =
        Some(Arc::new(json!({"type": "object", "additionalProperties": {"type": "string"}})));
    let written = unmarked(&model(), &open);
    assert_eq!(written.get("output_config"), None);
    let told = written["system"][0]["text"].as_str().unwrap();
    let old = unmarked(&named("anthropic/claude-sonnet-4-20250514"), &asked);
    assert_eq!(old["output_config"].get("format"), None, "it cannot be held to any");
    assert!(old["system"][0]["text"].as_str().unwrap().contains("\"minimum\":1"));
    assert!(told.ends_with("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}"), "{told}");
}

#[test]
fn what_would_be_refused_is_repaired() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {"ok": true}}});
    let request = request([
        Content::new(Role::Model, [call("functions.t:0"), call("c2"), call("c3")]),
        content(json!({"role": "user", "parts": [answer("gone"), answer("c2")]})),
        content(json!({"role": "user", "parts": [answer("functions.t:0"), {"text": ""}]})),
        Content::user("well?"),
        Content::model(" "),
        Content::model(Part::call(
            FunctionCall::new("t", serde_json::Map::new()).with_id("c4").with_unreadable_args("{\"a"),
        )),
        Content::model("Hm. "),
    ]);
    let written = unmarked(&model(), &request);
    let ok = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "{\"ok\":true}"});
    let messages = written["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 7, "{messages:#?}");
    assert_eq!(messages[0]["role"], "user", "the user begins");
    let ids: Vec<&Value> =
        messages[1]["content"].as_array().unwrap().iter().map(|block| &block["id"]).collect();
    assert_eq!(ids, ["functions_t_0", "c2", "c3"]);
    let answers = messages[2]["content"].as_array().unwrap();
    assert_eq!(answers[..2], [ok("c2"), ok("functions_t_0")]);
    assert_eq!((&answers[2]["tool_use_id"], &answers[2]["is_error"]), (&json!("c3"), &json!(true)));
    assert_eq!(answers[3..], [text("The tool `t` answered: {\"ok\":true}"), text("well?")]);
    let unreadable = json!({"type": "tool_use", "id": "c4", "name": "t", "input": {"INVALID_JSON": "{\"a"}});
    assert_eq!(messages[3]["content"], json!([unreadable]), "words of white space are none");
    assert_eq!(messages[4]["content"][0]["tool_use_id"], "c4");
    assert_eq!(messages[5], json!({"role": "assistant", "content": [text("Hm. ")]}));
    assert_eq!(messages[6]["role"], "user", "and has the last word");
    assert!(messages[6]["content"][0]["text"].as_str().unwrap().starts_with("Go on"));
    let empty = unmarked(&model(), &crate::support::request([]));
    assert_eq!(empty["messages"][0]["role"], "user");
}

#[test]
fn an_answer_belongs_to_its_call_even_if_neither_has_an_id() {
    let request = request([
        Content::user("go"),
        content(json!({"role": "model", "parts": [{"functionCall": {"name": "t"}}]})),
        content(json!({"role": "user", "parts": [{"functionResponse": {"name": "t", "response": {}}},
                                                  {"functionResponse": {"name": "other", "response": {}}}]})),
    ]);
    let written = unmarked(&model(), &request);
    assert_eq!(written["messages"][1]["content"][0]["id"], "t");
    assert_eq!(
        written["messages"][2]["content"],
        json!([{"type": "tool_result", "tool_use_id": "t", "content": "{}"}, text("The tool `other` answered: {}")])
    );
}

/// Where marks stand in a body: their paths.
fn marks(written: &Value, path: &str, found: &mut Vec<String>) {
    match written {
        Value::Object(object) => {
            for (key, value) in object {
                match key.as_str() {
                    "cache_control" => found.push(path.to_owned()),
                    _ => marks(value, &format!("{path}/{key}"), found),
                }
            }
        }
        Value::Array(all) => {
            for (at, value) in all.iter().enumerate() {
                marks(value, &format!("{path}/{at}"), found);
            }
        }
        _ => {}
    }
}

fn marks_of(request: &ModelRequest) -> Vec<String> {
    let mut found = Vec::new();
    marks(&body(&model(), request), "", &mut found);
    found
}

#[test]
fn the_cache_is_marked_behind_tools_system_and_the_last_two_messages_of_the_user() {
    let turn = |at: usize| {
        let id = format!("c{at}");
        [
            content(json!({"role": "model", "parts": [{"text": "hm"},
                {"functionCall": {"id": id, "name": "get_weather", "args": {}}}]})),
            content(json!({"role": "user", "parts": [
                {"functionResponse": {"id": id, "name": "get_weather", "response": {}}}]})),
        ]
    };
    let mut asked = request([Content::user("go")]);
    asked.tools = weather_tools();
    asked.instruction.push("agent", "Be brief.");
    let first = "/messages/0/content/0";
    assert_eq!(marks_of(&asked), ["/tools/0", "/system/0", first]);
    turn(1).into_iter().for_each(|content| asked.contents.push(content));
    assert_eq!(marks_of(&asked), ["/tools/0", "/system/0", first, "/messages/2/content/0"]);
    turn(2).into_iter().for_each(|content| asked.contents.push(content));
    asked.contents.push(Content::user("and?"));
    assert_eq!(marks_of(&asked), ["/tools/0", "/system/0", "/messages/2/content/0", "/messages/4/content/1"]);
}

#[test]
fn marks_can_be_switched_off_or_made_to_last_longer() {
    let mut asked = request([Content::user("go")]);
    asked.tools = weather_tools();
    asked.instruction.push("agent", "Be brief.");
    let marked = |told: Value| {
        with_config(&asked, |config| {
            config.other.insert("cache_control".to_owned(), told);
        })
    };
    assert_eq!(body(&model(), &asked)["system"][0]["cache_control"], json!({"type": "ephemeral"}));
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let written = body(&model(), &marked(hour.clone()));
    assert_eq!(written["tools"][0]["cache_control"], hour);
    assert_eq!(written["system"][0]["cache_control"], hour);
    assert_eq!(written["messages"][0]["content"][0]["cache_control"], hour);
    for off in [Value::Null, json!(false)] {
        assert_eq!(marks_of(&marked(off.clone())), [""; 0], "{off}");
    }
    assert_eq!(marks_of(&marked(json!(true))).len(), 3);
}

#[test]
fn a_conversation_that_grows_is_sent_with_the_same_bytes_before_but_for_the_marks() {
    let mut asked = request([]);
    asked.tools = weather_tools();
    asked.instruction.push("agent", "Be brief.");
    let model = model();
    let bodies = (0..8).map(|at| {
        asked.contents.push(Content::from(format!("question {at}")));
        let now = model.body(&asked);
        asked.contents.push(content(json!({"role": "model", "parts": [{"text": format!("answer {at}")},
            {"functionCall": {"id": format!("c{at}"), "name": "get_weather", "args": {"city": "Rome"}}}]})));
        asked.contents.push(content(json!({"role": "user", "parts": [{"functionResponse":
            {"id": format!("c{at}"), "name": "get_weather", "response": {"result": "]}sunny]}"}}}]})));
        let answered = model.body(&asked);
        asked.contents.push(Content::model("So it is."));
        [now, answered]
    });
    let mark = ",\"cache_control\":{\"type\":\"ephemeral\"}";
    assert_bodies_grow(bodies.flatten().map(|body| {
        let body = String::from_utf8(body).unwrap();
        assert!(body.matches(mark).count() <= 4);
        body.replace(mark, "").into_bytes()
    }));
}

#[test]
fn a_stream_gives_thoughts_words_calls_and_usage() {
    let (chunks, whole) = answer(
        &[
            json!({"type": "thinking", "thinking": "need the töol", "signature": "c2ln"}),
            json!({"type": "text", "text": "One moment 😀"}),
            json!({"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Berlin", "n": 1}}),
            json!({"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}),
        ],
        json!({"stop_reason": "tool_use", "stop_sequence": null}),
    );
    assert_eq!(streamed_text(&chunks), "One moment 😀");
    assert_eq!(
        parts(&whole),
        json!([
            {"text": "need the töol", "thought": true, "thoughtSignature": "c2ln",
             "anthropic": {"model": "claude-opus-4-6"}},
            {"text": "One moment 😀"},
            {"functionCall": {"id": "toolu_1", "name": "get_weather", "args": {"city": "Berlin", "n": 1}}},
            {"functionCall": {"id": "toolu_2", "name": "clock", "args": {}}},
        ])
    );
    let thoughts: String = chunks
        .iter()
        .filter_map(|chunk| match chunk {
            Ok(Chunk::Thought(thought)) => Some(thought.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(thoughts, "need the töol");
    assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None));
    let meta = whole.meta.as_ref().unwrap();
    assert_eq!(meta.model_version.as_deref(), Some("claude-opus-4-6"));
    assert_eq!(meta.unknown["serviceTier"], "standard");
    let usage = serde_json::to_value(whole.usage()).unwrap();
    assert_eq!(
        usage,
        json!({"promptTokenCount": 28, "candidatesTokenCount": 12, "totalTokenCount": 40,
               "cachedContentTokenCount": 20, "cacheWriteTokenCount": 3})
    );
}

#[test]
fn usage_at_the_end_of_a_stream_counts_and_thoughts_are_told_apart() {
    let mut frames = events(&[json!({"type": "text", "text": "hi"})], end_turn());
    let last = frames.len() - 2;
    frames[last]["usage"] = json!({"input_tokens": 10, "cache_read_input_tokens": 30,
        "cache_creation_input_tokens": 0, "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 40},
        "cache_creation": {"ephemeral_1h_input_tokens": 0}, "server_tool_use": {"web_search_requests": 2}});
    let chunks = read_stream(&model(), &sse(&frames));
    assert_eq!(
        serde_json::to_value(whole(&chunks).usage()).unwrap(),
        json!({"promptTokenCount": 40, "candidatesTokenCount": 10, "totalTokenCount": 90,
               "cachedContentTokenCount": 30, "cacheWriteTokenCount": 0, "thoughtsTokenCount": 40,
               "cacheCreation": {"ephemeral_1h_input_tokens": 0}, "serverToolUse": {"web_search_requests": 2}})
    );
    frames[last]["usage"] =
        json!({"input_tokens": u64::MAX, "cache_read_input_tokens": u64::MAX, "output_tokens": u64::MAX});
    let chunks = read_stream(&model(), &sse(&frames));
    assert_eq!(whole(&chunks).usage().unwrap().total_token_count, Some(u64::MAX));
}

#[test]
fn every_reason_to_stop_is_told_in_the_words_of_both() {
    for (word, reason, error) in [
        ("end_turn", "STOP", None),
        ("stop_sequence", "STOP", None),
        ("tool_use", "STOP", None),
        ("max_tokens", "MAX_TOKENS", Some("MAX_TOKENS")),
        ("model_context_window_exceeded", "MAX_TOKENS", Some("MAX_TOKENS")),
        ("refusal", "REFUSAL", Some("REFUSAL")),
        ("pause_turn", "PAUSE_TURN", Some("PAUSE_TURN")),
        ("something_new", "STOP", None),
    ] {
        let (_, whole) = answer(&[text("Once")], json!({"stop_reason": word, "stop_sequence": null}));
        assert_eq!((whole.finish_reason(), whole.error_code()), (Some(reason), error), "{word}");
        assert_eq!(whole.meta.unwrap().unknown["stopReason"], word);
    }
}

#[test]
fn what_is_told_about_the_end_is_kept() {
    let details = json!({"type": "refusal", "category": "bio", "explanation": "Not this."});
    let (_, refused) =
        answer(&[], json!({"stop_reason": "refusal", "stop_details": details, "container": {"id": "k"}}));
    let meta = refused.meta.unwrap();
    assert_eq!(meta.error_message.as_deref(), Some("Not this."));
    assert_eq!((&meta.unknown["stopDetails"], &meta.unknown["container"]), (&details, &json!({"id": "k"})));
    let (_, stopped) = answer(&[text("a")], json!({"stop_reason": "stop_sequence", "stop_sequence": "END"}));
    assert_eq!(stopped.meta.unwrap().unknown["stopSequence"], "END");
}

#[test]
fn all_that_the_model_said_goes_back_as_it_came_and_in_order() {
    let blocks = [
        json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}),
        json!({"type": "redacted_thinking", "data": "b3BhcXVl"}),
        json!({"type": "text", "text": "I look it up."}),
        json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rust"}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
            {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "xyz", "page_age": null}]}),
        json!({"type": "text", "text": "Rust is a language.", "citations": [
            {"type": "web_search_result_location", "url": "https://a", "title": "A", "encrypted_index": "i", "cited_text": "R"}]}),
        json!({"type": "thinking", "thinking": "", "signature": "bGF0ZXI="}),
        json!({"type": "block_of_tomorrow", "data": [1, 2]}),
        json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": {"a": 1},
               "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}),
    ];
    let (_, whole) = answer(&blocks, json!({"stop_reason": "tool_use"}));
    assert_eq!(sent_back(MODEL, &whole), json!(blocks));
    assert_eq!(
        whole.meta.as_ref().unwrap().citation_metadata.as_ref().unwrap()["citations"],
        blocks[5]["citations"]
    );
    let visible: String = whole.content.as_ref().unwrap().text();
    assert_eq!(visible, "I look it up.Rust is a language.");
    // Kept in a log and read again, it is the same.
    let stored: Content = serde_json::from_str(&serde_json::to_string(&whole.content).unwrap()).unwrap();
    assert_eq!(sent_back(MODEL, &Response::new(stored)), json!(blocks));
}

#[test]
fn a_call_that_the_model_made_itself_needs_no_caller() {
    let call =
        json!({"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}, "caller": {"type": "direct"}});
    let (_, whole) = answer(&[call], json!({"stop_reason": "tool_use"}));
    assert_eq!(parts(&whole), json!([{"functionCall": {"id": "toolu_1", "name": "t", "args": {}}}]));
}

#[test]
fn thoughts_of_another_model_are_not_sent_and_signatures_of_others_never() {
    let (_, whole) = answer(
        &[
            json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}),
            json!({"type": "redacted_thinking", "data": "b3BhcXVl"}),
            text("Well."),
        ],
        end_turn(),
    );
    assert_eq!(sent_back("anthropic/claude-opus-5-5", &whole), json!([text("Well.")]));
    assert_eq!(sent_back("anthropic/claude-opus-4-6-20260205", &whole).as_array().unwrap().len(), 3);
    let foreign = Response::new(content(json!({"role": "model", "parts": [
        {"text": "hm", "thought": true, "thoughtSignature": "Z2VtaW5p"},
        {"text": "hm", "thought": true, "openaiChat": {"thoughtIn": "reasoning"}},
        {"text": "unsigned", "thought": true, "anthropic": {"model": "claude-opus-4-6"}},
        {"thoughtSignature": "Z2VtaW5p"},
        {"openaiChat": {"reasoning_details": [{}]}},
        {"text": "Well.", "thoughtSignature": "Z2VtaW5p"},
        {"inlineData": {"mimeType": "image/png", "data": "AAEC"}},
        {"functionCall": {"id": "c1", "name": "t", "args": {}}, "thoughtSignature": "Z2VtaW5p"}]})));
    assert_eq!(
        sent_back(MODEL, &foreign),
        json!([text("Well."), text("[file that cannot be shown: image/png]"),
               {"type": "tool_use", "id": "c1", "name": "t", "input": {}}])
    );
}

#[test]
fn a_turn_that_was_paused_is_sent_as_the_last_one() {
    let blocks = [
        text("I look."),
        json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rust"}}),
    ];
    let (_, paused) = answer(&blocks, json!({"stop_reason": "pause_turn"}));
    let said = paused.content.as_deref().unwrap().clone();
    let written = unmarked(&model(), &request([Content::user("go"), said]));
    assert_eq!(
        written["messages"],
        json!([{"role": "user", "content": [text("go")]}, {"role": "assistant", "content": blocks}])
    );
}

#[test]
fn blocks_that_come_in_turns_or_never_end_are_put_together() {
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let input = |more: &str| json!({"type": "input_json_delta", "partial_json": more});
    let mut frames = events(&[], json!({"stop_reason": "tool_use"}));
    let mixed = [
        start(0, json!({"type": "tool_use", "id": "a", "name": "t", "input": {}})),
        start(1, json!({"type": "tool_use", "id": "b", "name": "t", "input": {"early": true}})),
        delta(1, input("")),
        delta(0, input("{\"n\":")),
        delta(7, input("lost")),
        delta(0, json!({"type": "delta_of_tomorrow", "x": 1})),
        delta(0, input("1}")),
        json!({"type": "event_of_tomorrow", "delta": "anything"}),
    ];
    frames.splice(2..2, mixed.clone());
    let chunks = read_stream(&model(), &sse(&frames));
    assert_eq!(
        parts(whole(&chunks)),
        json!([
            {"functionCall": {"id": "a", "name": "t", "args": {"n": 1}}},
            {"functionCall": {"id": "b", "name": "t", "args": {"early": true}}},
        ])
    );
    assert_eq!(
        whole(&chunks).meta.as_ref().unwrap().unknown["unknownFrames"],
        json!([mixed[4], mixed[5], mixed[7]])
    );
}

#[test]
fn arguments_that_are_no_json_are_kept_as_they_came() {
    let mut frames = events(
        &[json!({"type": "tool_use", "id": "a", "name": "t", "input": {"city": "Rome"}})],
        json!({"stop_reason": "max_tokens"}),
    );
    let second_half = frames.iter().rposition(|frame| frame["delta"]["partial_json"].is_string()).unwrap();
    frames.remove(second_half);
    let chunks = read_stream(&model(), &sse(&frames));
    let call = whole(&chunks).content.as_ref().unwrap().calls().next().unwrap().clone();
    assert!(call.unreadable_args().unwrap().starts_with("{\"city"));
}

#[test]
fn streams_that_fail_or_break_off_end_with_an_error_that_says_so() {
    let model = model();
    let all = events(&[text("Once upon")], end_turn());
    for len in 0..all.len() {
        let error = read_stream(&model, &sse(&all[..len])).pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StreamCut, "after {len} frames");
    }
    let mut without_reason = all.clone();
    without_reason.remove(all.len() - 2);
    let error = read_stream(&model, &sse(&without_reason)).pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StreamCut);
    for (kind, expected) in [
        ("overloaded_error", ModelErrorKind::Overloaded),
        ("api_error", ModelErrorKind::Overloaded),
        ("rate_limit_error", ModelErrorKind::RateLimited),
        ("authentication_error", ModelErrorKind::Auth),
        ("permission_error", ModelErrorKind::Auth),
        ("billing_error", ModelErrorKind::Auth),
        ("timeout_error", ModelErrorKind::Overloaded),
        ("invalid_request_error", ModelErrorKind::BadRequest),
    ] {
        let mut frames = all[..4].to_vec();
        let failed =
            json!({"type": "error", "error": {"type": kind, "message": "No"}, "request_id": "req_1"});
        frames.push(failed.clone());
        let chunks = read_stream(&model, &sse(&frames));
        let error = chunks.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model(expected), "{kind}");
        assert!(error.message().starts_with("anthropic: No"), "{error}");
        assert!(!streamed_text(&chunks).is_empty(), "what was said before is still told");
        let at_once = model.read(false, [failed.to_string().as_bytes()]).pop().unwrap().unwrap_err();
        assert_eq!(at_once.kind(), ErrorKind::Model(expected));
    }
    assert!(model.read(false, [&b"{}"[..]]).pop().unwrap().is_err());
}

#[test]
fn bytes_that_nobody_would_send_are_an_error_and_no_panic() {
    let model = model();
    let values = [json!(null), json!(-1), json!("x"), json!([]), json!({}), json!({"type": 3}), json!(1e300)];
    let frames = events(
        &[
            json!({"type": "thinking", "thinking": "hm", "signature": "s"}),
            json!({"type": "tool_use", "id": "a", "name": "t", "input": {"a": 1}}),
            json!({"type": "server_tool_use", "id": "s", "name": "w", "input": {"q": 1}}),
        ],
        json!({"stop_reason": "refusal", "stop_details": {"explanation": "no"}}),
    );
    // Each value of each frame is replaced by something that does not belong there.
    for at in 0..frames.len() {
        for key in frames[at].as_object().unwrap().keys() {
            for value in &values {
                let mut changed = frames.clone();
                changed[at][key] = value.clone();
                model.read(true, [sse(&changed).as_slice()]);
                let inner = frames[at][key].as_object().into_iter().flatten();
                for (deeper, _) in inner {
                    let mut changed = frames.clone();
                    changed[at][key][deeper] = value.clone();
                    model.read(true, [sse(&changed).as_slice()]);
                    model.read(false, [changed[at].to_string().as_bytes()]);
                }
            }
        }
    }
    for bytes in [&b"data: \xff\xfe\n\n"[..], b"data: {\n\n", b"data: []\n\n", b"data: null\n\n"] {
        assert!(model.read(true, [bytes]).pop().unwrap().is_err());
    }
}

#[tokio::test]
async fn requests_go_to_the_address_of_the_environment_with_key_and_version() {
    let frames = String::from_utf8(sse(&events(&[text("Hello")], end_turn()))).unwrap();
    let headers = "content-type: text/event-stream\r\nrequest-id: req_1\r\n";
    for behind in ["", "/", "/v1", "/v1/"] {
        let server = Server::answering("200 OK", headers, &frames).await;
        let model = model_with(MODEL, |variable| match variable {
            "ANTHROPIC_API_KEY" => Some("sk-ant-1".to_owned()),
            "ANTHROPIC_BASE_URL" => Some(format!("{}{behind}", server.url)),
            _ => None,
        });
        let mut asked = request([Content::user("hi")]);
        asked.stream = true;
        let chunks: Vec<_> = model.unwrap().generate(&asked).collect().await;
        assert_eq!(streamed_text(&chunks), "Hello");
        assert_eq!(whole(&chunks).meta.as_ref().unwrap().unknown["requestId"], "req_1");
        let sent = &server.requests()[0];
        assert!(sent.starts_with("POST /v1/messages HTTP/1.1\r\n"), "{sent}");
        for header in ["x-api-key: sk-ant-1\r\n", "anthropic-version: 2023-06-01\r\n"] {
            assert!(sent.contains(header), "{header} is not in {sent}");
        }
        assert!(!sent.contains("authorization"), "{sent}");
    }
}
