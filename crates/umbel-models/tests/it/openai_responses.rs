//! OpenAI Responses.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{
    Content, Effort, ErrorKind, FunctionCall, Model, ModelErrorKind, ModelRequest, Part, Role, Thinking,
    ToolChoice,
};
use umbel_models::HttpModel;

use crate::support::{
    assert_prefix_grows, body, content, named, parts, read_stream, read_whole, request, sse, streamed_text,
    weather_tools, whole,
};

const OWN: &str = "openaiResponses";

fn gpt() -> HttpModel {
    named("openai/gpt-5")
}

fn event(kind: &str, fields: Value) -> Value {
    let mut event = json!({"type": kind, "sequence_number": 7});
    event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    event
}

/// An answer as it stands at the end of a stream, and where nothing is streamed.
fn response(status: &str, output: Value) -> Value {
    json!({"id": "resp_1", "object": "response", "status": status, "model": "gpt-5-2025-08-07", "error": null,
           "incomplete_details": null, "service_tier": "default", "output": output,
           "usage": {"input_tokens": 40, "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 8},
                     "output_tokens": 30, "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 70}})
}

fn reasoning() -> Value {
    json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAA=", "status": "completed",
           "summary": [{"type": "summary_text", "text": "Look it up."}, {"type": "summary_text", "text": "In Rome."}]})
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": "commentary",
           "content": [{"type": "output_text", "text": text, "logprobs": [{"token": "One", "logprob": -0.1}],
                        "annotations": [{"type": "url_citation", "url": "https://a.example", "title": "A",
                                         "start_index": 0, "end_index": 3}]}]})
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": "get_weather",
           "arguments": arguments, "status": "completed"})
}

/// A stream with a thought, words and two calls, and the items that it makes.
fn stream() -> (Vec<u8>, Value) {
    let items =
        json!([reasoning(), message("One moment 😀"), call("c1", "{\"city\":\"Rome\"}"), call("c2", "{}")]);
    let at = |index: u64, fields: Value| {
        let mut fields = fields;
        fields["output_index"] = json!(index);
        fields
    };
    let summary = |part: u64, delta: &str| {
        event(
            "response.reasoning_summary_text.delta",
            at(0, json!({"item_id": "rs_1", "summary_index": part, "delta": delta})),
        )
    };
    let text = |delta: &str| {
        let logprobs = json!([{"token": delta, "logprob": -0.1}]);
        event(
            "response.output_text.delta",
            at(1, json!({"content_index": 0, "delta": delta, "logprobs": logprobs})),
        )
    };
    let arguments =
        |delta: &str| event("response.function_call_arguments.delta", at(2, json!({"delta": delta})));
    let added =
        |index: u64, item: Value| event("response.output_item.added", at(index, json!({"item": item})));
    let done =
        |index: usize| event("response.output_item.done", at(index as u64, json!({"item": items[index]})));
    let frames = [
        event("response.created", json!({"response": response("in_progress", json!([]))})),
        event("response.in_progress", json!({"response": response("in_progress", json!([]))})),
        added(0, json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA"})),
        event("response.reasoning_summary_part.added", at(0, json!({"summary_index": 0, "part": {}}))),
        summary(0, "Look "),
        summary(0, "it up."),
        event(
            "response.reasoning_summary_text.done",
            at(0, json!({"summary_index": 0, "text": "Look it up."})),
        ),
        summary(1, "In Rome."),
        done(0),
        added(1, json!({"type": "message", "id": "msg_1", "role": "assistant", "content": []})),
        event(
            "response.content_part.added",
            at(1, json!({"content_index": 0, "part": {"type": "output_text"}})),
        ),
        text("One "),
        text("moment 😀"),
        event(
            "response.output_text.annotation.added",
            at(1, json!({"content_index": 0, "annotation_index": 0, "annotation": {"type": "url_citation"}})),
        ),
        event("response.output_text.done", at(1, json!({"content_index": 0, "text": "One moment 😀"}))),
        event("response.content_part.done", at(1, json!({"content_index": 0, "part": {}}))),
        done(1),
        added(
            2,
            json!({"type": "function_call", "id": "fc_c1", "call_id": "c1", "name": "get_weather", "arguments": ""}),
        ),
        arguments("{\"city\":"),
        arguments("\"Rome\"}"),
        event(
            "response.function_call_arguments.done",
            at(2, json!({"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"})),
        ),
        done(2),
        added(
            3,
            json!({"type": "function_call", "id": "fc_c2", "call_id": "c2", "name": "get_weather", "arguments": ""}),
        ),
        done(3),
        event("response.completed", json!({"response": response("completed", items.clone())})),
    ];
    (sse(&frames), items)
}

/// What is made of a stream that another test splits everywhere.
fn read_once(bytes: &[u8]) -> Vec<umbel_core::Result<umbel_core::Chunk>> {
    gpt().read(true, [bytes])
}

#[test]
fn a_stream_gives_thoughts_words_calls_and_the_same_wherever_it_is_split() {
    let (bytes, _) = stream();
    let chunks = read_stream(&gpt(), &bytes);
    assert_eq!(streamed_text(&chunks), "One moment 😀");
    let whole = whole(&chunks);
    assert_eq!(
        parts(whole),
        json!([
            {"text": "Look it up.\n\nIn Rome.", "thought": true, OWN: {"item": reasoning()}},
            {"text": "One moment 😀", OWN: {"id": "msg_1", "status": "completed", "phase": "commentary"}},
            {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}},
             OWN: {"id": "fc_c1", "status": "completed"}},
            {"functionCall": {"id": "c2", "name": "get_weather", "args": {}},
             OWN: {"id": "fc_c2", "status": "completed"}},
        ])
    );
    let usage = whole.usage().unwrap();
    assert_eq!((usage.prompt_token_count, usage.candidates_token_count), (Some(40), Some(10)));
    assert_eq!((usage.thoughts_token_count, usage.total_token_count), (Some(20), Some(70)));
    assert_eq!((usage.cached_content_token_count, usage.cache_write_token_count), (Some(16), Some(8)));
    let meta = whole.meta.as_ref().unwrap();
    assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None));
    assert_eq!(meta.model_version.as_deref(), Some("gpt-5-2025-08-07"));
    assert_eq!(
        (&meta.unknown["serviceTier"], &meta.unknown["responseId"]),
        (&json!("default"), &json!("resp_1"))
    );
    assert_eq!(meta.unknown["stopReason"], "completed");
    // Told once, though it came in pieces and as a whole.
    assert_eq!(meta.unknown["logprobsResult"], json!([{"token": "One", "logprob": -0.1}]));
    let citations = &meta.citation_metadata.as_ref().unwrap()["citations"];
    assert_eq!((citations.as_array().unwrap().len(), &citations[0]["title"]), (1, &json!("A")));
    assert!(!meta.unknown.contains_key("unknownFrames"));
}

#[test]
fn an_answer_that_is_not_streamed_says_the_same() {
    let (bytes, items) = stream();
    let streamed = read_once(&bytes);
    assert_eq!(&read_whole(&gpt(), &response("completed", items)), whole(&streamed));
}

#[test]
fn a_stream_that_tells_all_at_its_end_is_read_too() {
    let (bytes, items) = stream();
    let late = sse(&[event("response.completed", json!({"response": response("completed", items)}))]);
    assert_eq!(whole(&read_once(&late)), whole(&read_once(&bytes)));
    // Pieces that were not followed by their item are not told twice.
    let delta =
        event("response.output_text.delta", json!({"output_index": 0, "content_index": 0, "delta": "On"}));
    let end =
        event("response.completed", json!({"response": response("completed", json!([message("One")]))}));
    let chunks = read_stream(&gpt(), &sse(&[delta, end]));
    assert_eq!(parts(whole(&chunks))[0]["text"], "One");
    assert_eq!(streamed_text(&chunks), "One");
}

#[test]
fn what_the_model_said_goes_back_as_it_came() {
    let (bytes, items) = stream();
    let said = whole(&read_once(&bytes)).content.as_deref().unwrap().clone();
    let answers = content(json!({"role": "user", "parts": [
        {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": "sunny"}}},
        {"functionResponse": {"id": "c2", "name": "get_weather", "response": {"result": "wet"}}}]}));
    let written = body(&gpt(), &request([Content::user("Weather?"), said.clone(), answers]));
    let mut expected = items.as_array().unwrap().clone();
    // Only what was said of the words is sent, not what was found about them.
    expected[1]["content"] = json!([{"type": "output_text", "text": "One moment 😀", "annotations": []}]);
    expected.insert(0, json!({"role": "user", "content": "Weather?"}));
    expected
        .push(json!({"type": "function_call_output", "call_id": "c1", "output": "{\"result\":\"sunny\"}"}));
    expected.push(json!({"type": "function_call_output", "call_id": "c2", "output": "{\"result\":\"wet\"}"}));
    assert_eq!(written["input"], Value::Array(expected));
    // To others it is words and calls; so it is to a model that does not think.
    for other in ["openai-chat/gpt-5", "groq/x", "openai/gpt-4.1"] {
        let text = body(&named(other), &request([said.clone()])).to_string();
        for secret in ["gAAAA", "rs_1", "msg_1", "fc_c1", "Look it up"] {
            assert!(!text.contains(secret), "{other}: {secret} in {text}");
        }
    }
}

#[test]
fn thoughts_that_cannot_be_taken_back_are_left_out_and_ids_with_them() {
    let written = |parts: Value| {
        let said = content(json!({"role": "model", "parts": parts}));
        body(&gpt(), &request([Content::user("hi"), said]))["input"].as_array().unwrap()[1..].to_vec()
    };
    let words =
        || json!({"text": "Yes", OWN: {"id": "msg_1", "status": "completed", "phase": "final_answer"}});
    let plain = json!({"type": "message", "role": "assistant", "phase": "final_answer", "content": "Yes"});
    // Somebody took the thought out.
    assert_eq!(written(json!([words()])), std::slice::from_ref(&plain));
    // It is not encrypted, and nothing is kept at the provider.
    let bare = json!({"text": "hm", "thought": true, OWN: {"item": {"type": "reasoning", "id": "rs_1", "summary": []}}});
    assert_eq!(written(json!([bare, words()])), [plain]);
    // It led to nothing.
    let thought = json!({"text": "hm", "thought": true, OWN: {"item": reasoning()}});
    assert_eq!(written(json!([thought])), [] as [Value; 0]);
    assert_eq!(written(json!([words(), thought]))[0]["content"], "Yes");
    // It is someone else's.
    let foreign =
        json!({"text": "hm", "thought": true, "thoughtSignature": "c2ln", "anthropic": {"type": "thinking"}});
    assert_eq!(
        written(json!([foreign, {"text": "Yes"}])),
        [json!({"type": "message", "role": "assistant", "content": "Yes"})]
    );
}

#[test]
fn each_kind_of_part_is_written_as_an_item() {
    let request = request([
        content(json!({"role": "user", "parts": [
            {"text": "Look"},
            {"inlineData": {"mimeType": "image/png", "data": "AAEC"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "AAEC", "displayName": "a.pdf"}},
            {"inlineData": {"mimeType": "audio/x-wav", "data": "AAEC"}},
            {"inlineData": {"mimeType": "text/csv", "data": "YSxi"}},
            {"inlineData": {"mimeType": "text/csv", "data": "/w=="}},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/b.png"}},
            {"fileData": {"mimeType": "image/png", "fileUri": "file-1"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://a.example/b.pdf"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "file-2"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://a/b.pdf"}},
            {"executableCode": {"language": "PYTHON", "code": "1+1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}]})),
        content(json!({"role": "model", "parts": [
            {"text": "hm", "thought": true}, {"text": "I "}, {"text": "ask."},
            {"functionCall": {"id": "c1", "name": "look", "args": {"at": "it"}}}]})),
        content(json!({"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "look",
            "response": {"ok": true}, "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAEC"}}]}}]})),
    ]);
    let image = json!({"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AAEC"});
    assert_eq!(
        body(&gpt(), &request)["input"],
        json!([
            {"role": "user", "content": [
                {"type": "input_text", "text": "Look"},
                image,
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAEC"},
                {"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}},
                {"type": "input_text", "text": "a,b"},
                {"type": "input_file", "filename": "file", "file_data": "data:text/csv;base64,/w=="},
                {"type": "input_image", "detail": "auto", "image_url": "https://a.example/b.png"},
                {"type": "input_image", "detail": "auto", "file_id": "file-1"},
                {"type": "input_file", "file_url": "https://a.example/b.pdf"},
                {"type": "input_file", "file_id": "file-2"},
                {"type": "input_text", "text": "[file: gs://a/b.pdf]"},
                {"type": "input_text", "text": "\n```python\n1+1\n```\n"},
                {"type": "input_text", "text": "\n```\n2\n```\n"}]},
            {"type": "message", "role": "assistant", "content": "I ask."},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\":\"it\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": [
                {"type": "input_text", "text": "{\"ok\":true}"}, image]},
        ])
    );
}

#[test]
fn settings_are_sent_by_their_names_here() {
    let mut request = request([Content::user("hi")]);
    request.instruction.push("agent", "Be brief.");
    request.tools = weather_tools();
    request.stream = true;
    request.output_schema =
        Some(Arc::new(json!({"type": "object", "properties": {}, "additionalProperties": false})));
    let config = Arc::make_mut(&mut request.config);
    config.temperature = Some(0.5);
    config.top_p = Some(0.9);
    config.max_output_tokens = Some(100);
    config.tool_choice = Some(ToolChoice::Tool("get_weather".into()));
    config.parallel_calls = Some(false);
    config.thinking = Some(Thinking { effort: Some(Effort::Low), include_thoughts: true, budget: None });
    config.labels.insert("team".to_owned(), json!("a"));
    config.labels.insert("cost".to_owned(), json!(7));
    for (key, value) in [
        ("service_tier", json!("flex")),
        ("text", json!({"verbosity": "low"})),
        ("reasoning", json!({"effort": "xhigh"})),
        ("include", json!(["message.output_text.logprobs"])),
        ("tools", json!([{"type": "web_search"}])),
    ] {
        config.other.insert(key.to_owned(), value);
    }
    let written = body(&gpt(), &request);
    for (key, value) in [
        ("model", json!("gpt-5")),
        ("store", json!(false)),
        ("stream", json!(true)),
        ("instructions", json!("Be brief.")),
        ("temperature", json!(0.5)),
        ("top_p", json!(0.9)),
        ("max_output_tokens", json!(100)),
        ("tool_choice", json!({"type": "function", "name": "get_weather"})),
        ("parallel_tool_calls", json!(false)),
        ("reasoning", json!({"effort": "xhigh", "summary": "auto"})),
        ("include", json!(["reasoning.encrypted_content", "message.output_text.logprobs"])),
        ("metadata", json!({"team": "a", "cost": "7"})),
        ("service_tier", json!("flex")),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    assert_eq!(written["text"]["verbosity"], "low");
    assert_eq!(written["text"]["format"]["type"], "json_schema");
    assert_eq!(written["text"]["format"]["strict"], true);
    assert_eq!(written["text"]["format"]["schema"]["type"], "object");
    let tools = written["tools"].as_array().unwrap();
    assert_eq!((&tools[0]["type"], &tools[0]["name"]), (&json!("function"), &json!("get_weather")));
    // Its schema leaves room for more.
    assert_eq!(tools[0]["strict"], false);
    assert_eq!(tools[0]["parameters"]["properties"]["city"]["type"], "string");
    assert_eq!(tools[1], json!({"type": "web_search"}));
}

#[test]
fn what_is_not_asked_for_is_not_sent() {
    let written = body(&named("openai/gpt-4.1"), &request([Content::user("hi")]));
    assert_eq!(
        written,
        json!({"model": "gpt-4.1", "store": false, "input": [{"role": "user", "content": "hi"}]})
    );
    let with = |change: fn(&mut ModelRequest)| {
        let mut request = request([Content::user("hi")]);
        change(&mut request);
        body(&named("openai/gpt-4.1"), &request)
    };
    let set = |request: &mut ModelRequest| {
        Arc::make_mut(&mut request.config).response_mime_type = Some("application/json".into());
    };
    assert_eq!(with(set)["text"], json!({"format": {"type": "json_object"}}));
    for (choice, word) in
        [(ToolChoice::None, "none"), (ToolChoice::Any, "required"), (ToolChoice::Auto, "auto")]
    {
        let mut request = request([Content::user("hi")]);
        Arc::make_mut(&mut request.config).tool_choice = Some(choice);
        assert_eq!(body(&gpt(), &request).get("tool_choice"), None, "there are no tools");
        request.tools = weather_tools();
        assert_eq!(body(&gpt(), &request)["tool_choice"], word);
    }
    // A model that thinks is asked for its thoughts, whoever trained it further.
    for (model, asked) in
        [("gpt-5", true), ("o4-mini", true), ("ft:gpt-4.1-mini:me", false), ("gpt-5-chat-latest", false)]
    {
        let written = body(&named(&format!("openai/{model}")), &request([Content::user("hi")]));
        assert_eq!(written.get("include").is_some(), asked, "{model}");
    }
}

#[test]
fn what_would_be_refused_is_repaired() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {"ok": true}}});
    let unreadable = FunctionCall::new("t", serde_json::Map::new()).with_unreadable_args("{oops");
    let request = request([
        content(json!({"role": "user", "parts": [answer("gone")]})),
        Content::new(Role::Model, [call("c1"), call("c2")]),
        content(json!({"role": "user", "parts": [answer("c2")]})),
        content(json!({"role": "user", "parts": [{"text": ""}]})),
        Content::user("well?"),
        Content::new(Role::Model, [Part::call(unreadable.with_id("c3"))]),
    ]);
    let written = body(&gpt(), &request);
    let items: Vec<(&str, &str)> = written["input"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            let kind = item["type"].as_str().or(item["role"].as_str()).unwrap();
            (kind, item["call_id"].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        items,
        [
            ("user", ""),
            ("function_call", "c1"),
            ("function_call", "c2"),
            ("function_call_output", "c2"),
            ("function_call_output", "c1"),
            ("user", ""),
            ("function_call", "c3"),
            ("function_call_output", "c3"),
        ]
    );
    assert_eq!(written["input"][0]["content"], "The tool `t` answered: {\"ok\":true}");
    assert!(written["input"][4]["output"].as_str().unwrap().contains("has no answer"));
    assert_eq!(written["input"][6]["arguments"], "{oops");
}

#[test]
fn a_conversation_that_grows_is_sent_with_the_same_bytes_before() {
    let answered = [
        Content::user("hi"),
        Content::model(Part::text("hello")),
        Content::user("Weather?"),
        content(
            json!({"role": "model", "parts": [{"text": "hm", "thought": true, OWN: {"item": reasoning()}},
                                                  {"text": "Fine", OWN: {"id": "msg_1", "status": "completed"}}]}),
        ),
        Content::user("Thanks"),
    ];
    assert_prefix_grows(&gpt(), &answered);
}

#[test]
fn items_of_tools_that_the_provider_runs_are_kept_and_sent_back() {
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed",
                        "action": {"type": "search", "query": "Rome"}});
    let image = json!({"type": "image_generation_call", "id": "ig_1", "status": "completed",
                       "output_format": "webp", "result": "AAEC"});
    let new = json!({"type": "brand_new_call", "id": "bn_1", "what": [1]});
    let custom =
        json!({"type": "custom_tool_call", "id": "ct_1", "call_id": "c9", "name": "grep", "input": "x"});
    let output = json!([reasoning(), search, image, new, custom, message("Done")]);
    let kinds = |value: &Value| -> Vec<Value> {
        value.as_array().unwrap().iter().map(|item| item["type"].clone()).collect()
    };
    let mut frames: Vec<Value> = kinds(&output)
        .iter()
        .zip(0u64..)
        .map(|(_, at)| {
            event("response.output_item.done", json!({"output_index": at, "item": output[at as usize]}))
        })
        .collect();
    for kind in [
        "web_search_call.searching",
        "file_search_call.completed",
        "code_interpreter_call_code.delta",
        "image_generation_call.partial_image",
        "mcp_call_arguments.delta",
        "mcp_list_tools.in_progress",
        "custom_tool_call_input.delta",
        "queued",
    ] {
        frames.insert(
            1,
            event(&format!("response.{kind}"), json!({"output_index": 1, "delta": "x", "code": "y"})),
        );
    }
    frames.push(event("response.completed", json!({"response": response("completed", output.clone())})));
    let whole = whole(&read_stream(&gpt(), &sse(&frames))).clone();
    assert_eq!(whole, read_whole(&gpt(), &response("completed", output.clone())));
    let parts = parts(&whole);
    assert_eq!(parts[1], json!({OWN: {"item": search}}));
    assert_eq!(parts[2]["inlineData"], json!({"mimeType": "image/webp", "data": "AAEC"}));
    assert!(!whole.meta.as_ref().unwrap().unknown.contains_key("unknownFrames"));
    let written = body(&gpt(), &request([whole.content.as_deref().unwrap().clone()]));
    // A call that only its caller could run has no answer, and would be refused.
    let mut sent = output.as_array().unwrap().clone();
    sent.remove(4);
    assert_eq!(kinds(&written["input"]), kinds(&Value::Array(sent.clone())));
    assert_eq!(written["input"].as_array().unwrap()[..4], sent[..4]);
}

#[test]
fn an_image_that_failed_is_kept_without_data() {
    let image = json!({"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": null});
    let whole = read_whole(&gpt(), &response("completed", json!([image])));
    assert_eq!(parts(&whole)[0][OWN]["item"]["status"], "failed");
}

#[test]
fn a_refusal_is_said_and_marked_and_goes_back_as_one() {
    let refusal = json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                         "content": [{"type": "refusal", "refusal": "I can't."}]});
    let delta =
        event("response.refusal.delta", json!({"output_index": 1, "content_index": 0, "delta": "I can"}));
    let done =
        event("response.refusal.done", json!({"output_index": 1, "content_index": 0, "refusal": "I can't."}));
    let item =
        |at: u64, item: &Value| event("response.output_item.done", json!({"output_index": at, "item": item}));
    let output = json!([reasoning(), refusal]);
    let end = event("response.completed", json!({"response": response("completed", output.clone())}));
    let chunks = read_stream(&gpt(), &sse(&[item(0, &reasoning()), delta, done, item(1, &refusal), end]));
    assert_eq!(whole(&chunks), &read_whole(&gpt(), &response("completed", output.clone())));
    assert_eq!(whole(&chunks).error_code(), Some("REFUSAL"));
    assert_eq!(streamed_text(&chunks), "I can't.");
    let written = body(&gpt(), &request([whole(&chunks).content.as_deref().unwrap().clone()]));
    assert_eq!(written["input"], output);
}

#[test]
fn open_thoughts_are_told_and_go_back() {
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": [],
                      "content": [{"type": "reasoning_text", "text": "Well, well."}]});
    let delta = |text: &str| {
        event("response.reasoning_text.delta", json!({"output_index": 0, "content_index": 0, "delta": text}))
    };
    let frames = [
        delta("Well, "),
        delta("well."),
        event(
            "response.reasoning_text.done",
            json!({"output_index": 0, "content_index": 0, "text": "Well, well."}),
        ),
        event("response.output_item.done", json!({"output_index": 0, "item": item})),
        event("response.output_item.done", json!({"output_index": 1, "item": message("Hi")})),
        event("response.completed", json!({"response": response("completed", json!([]))})),
    ];
    let chunks = read_stream(&gpt(), &sse(&frames));
    assert_eq!(parts(whole(&chunks))[0]["text"], "Well, well.");
    let written = body(&gpt(), &request([whole(&chunks).content.as_deref().unwrap().clone()]));
    assert_eq!(written["input"][0], item);
}

#[test]
fn the_reason_for_an_early_end_is_told() {
    let ends = |reason: Value| {
        let mut cut = response("incomplete", json!([message("Once")]));
        cut["incomplete_details"] = reason;
        let streamed = read_stream(&gpt(), &sse(&[event("response.incomplete", json!({"response": cut}))]));
        assert_eq!(whole(&streamed), &read_whole(&gpt(), &cut));
        let meta = whole(&streamed).meta.clone().unwrap();
        (meta.finish_reason.unwrap().to_string(), meta.unknown["stopReason"].as_str().unwrap().to_owned())
    };
    let pair = |ours: &str, theirs: &str| (ours.to_owned(), theirs.to_owned());
    assert_eq!(ends(json!({"reason": "max_output_tokens"})), pair("MAX_TOKENS", "max_output_tokens"));
    assert_eq!(ends(json!({"reason": "max_tokens"})), pair("MAX_TOKENS", "max_tokens"));
    assert_eq!(ends(json!({"reason": "content_filter"})), pair("SAFETY", "content_filter"));
    assert_eq!(ends(json!({"reason": "bored"})), pair("OTHER", "bored"));
    assert_eq!(ends(Value::Null), pair("OTHER", "incomplete"));
}

#[test]
fn streams_that_fail_or_break_off_end_with_an_error_that_says_so() {
    let read = |frames: &[Value]| read_stream(&gpt(), &sse(frames)).pop().unwrap().unwrap_err();
    let delta = event("response.output_text.delta", json!({"output_index": 0, "delta": "Once"}));
    assert_eq!(read(&[delta]).kind(), ErrorKind::StreamCut);
    let failed = |error: Value| {
        let mut failed = response("failed", json!([]));
        failed["error"] = error;
        let streamed = read(&[event("response.failed", json!({"response": failed}))]);
        let whole = gpt().read(false, [failed.to_string().as_bytes()]).pop().unwrap().unwrap_err();
        assert_eq!(streamed.to_string(), whole.to_string());
        streamed
    };
    let error = failed(json!({"code": "server_error", "message": "It broke."}));
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
    assert_eq!(error.message(), "openai: It broke. (server_error)");
    let error = failed(json!({"code": "rate_limit_exceeded", "message": "slow"}));
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::RateLimited));
    assert!(failed(Value::Null).message().contains("the answer is failed"));
    for error in [
        json!({"type": "error", "code": "context_length_exceeded", "message": "too long", "param": null}),
        json!({"type": "error", "error": {"type": "invalid_request_error", "code": "context_length_exceeded",
                                          "message": "too long"}}),
    ] {
        assert_eq!(read(&[error]).kind(), ErrorKind::Model(ModelErrorKind::ContextTooLong));
    }
    let cancelled = event("response.cancelled", json!({"response": response("cancelled", json!([]))}));
    assert_eq!(read(&[cancelled]).kind(), ErrorKind::Model(ModelErrorKind::Other));
}

#[test]
fn frames_that_came_after_us_are_kept() {
    let new = event("response.brand_new.delta", json!({"delta": {"a": 1}, "text": 3}));
    let mut bytes = sse(&[
        new.clone(),
        event("response.completed", json!({"response": response("completed", json!([message("Hi")]))})),
    ]);
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    let chunks = read_once(&bytes);
    assert_eq!(whole(&chunks).meta.as_ref().unwrap().unknown["unknownFrames"], json!([new]));
}

#[test]
fn nonsense_is_an_error_and_never_more() {
    let model = gpt();
    for data in [
        "3",
        "[]",
        "{}",
        "null",
        "{\"type\": 3}",
        "{\"type\":\"response.completed\"}",
        "{\"type\":\"response.output_item.done\",\"item\":[]}",
        "{\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\",\"content\":{\"a\":1}}}",
        "{\"type\":\"response.output_item.done\",\"item\":{\"type\":\"reasoning\",\"summary\":\"x\"}}",
        "{\"type\":\"response.output_item.done\",\"item\":{\"type\":\"image_generation_call\",\"result\":\"?\"}}",
        "{\"type\":\"response.output_text.delta\",\"delta\":{},\"output_index\":-1}",
        "{\"type\":\"response.output_text.delta\",\"delta\":5,\"logprobs\":{}}",
        "{\"type\":\"response.function_call_arguments.delta\",\"delta\":\"{\",\"output_index\":18446744073709551615}",
        "{\"type\":\"response.completed\",\"response\":{\"output\":[3]}}",
        "{\"type\":\"response.completed\",\"response\":{\"usage\":{\"output_tokens\":1,\"output_tokens_details\":{\"reasoning_tokens\":9}}}}",
    ] {
        let bytes = format!("event: x\ndata: {data}\n\n");
        for chunk in model.read(true, [bytes.as_bytes()]) {
            drop(chunk);
        }
        drop(model.read(false, [data.as_bytes()]));
    }
    let error = model.read(false, [&b"{\"id\":\"resp_1\"}"[..]]).pop().unwrap().unwrap_err();
    assert!(error.message().contains("nothing in it"), "{error}");
    // Arguments of a call that never began are nobody's words.
    let lost =
        event("response.function_call_arguments.delta", json!({"output_index": 4, "delta": "{\"a\":1}"}));
    let end = event("response.completed", json!({"response": response("completed", json!([message("Hi")]))}));
    assert_eq!(streamed_text(&read_stream(&model, &sse(&[lost, end]))), "Hi");
}

#[test]
fn the_model_is_asked_at_its_address() {
    let model = gpt();
    assert_eq!((model.name(), format!("{model:?}").as_str()), ("gpt-5", "HttpModel(gpt-5 at openai)"));
    let capabilities = Model::capabilities(&model);
    assert!(capabilities.schema_with_tools && capabilities.pairs_calls_by_id);
    assert_eq!(capabilities.context_tokens, Some(272_000));
}
