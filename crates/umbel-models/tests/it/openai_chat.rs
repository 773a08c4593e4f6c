//! Chat completions.

use serde_json::{Value, json};
use umbel_core::{
    Content, Effort, ErrorKind, FunctionCall, ModelErrorKind, Part, Role, Thinking, ToolChoice,
};

use crate::support::{
    assert_prefix_grows, body, content, named, parts, read_stream, read_whole, request, sse, streamed_text,
    weather_tools, whole,
};

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "model": "m-2026",
           "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]})
}

fn done(frames: &[Value]) -> Vec<u8> {
    let mut bytes = sse(frames);
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes
}

#[test]
fn a_conversation_with_calls_and_media_is_written_as_messages() {
    let mut request = request([
        content(
            json!({"role": "user", "parts": [{"text": "Look"}, {"inlineData": {"mimeType": "image/png", "data": "AAEC"}}]}),
        ),
        content(json!({"role": "model", "parts": [
            {"text": "hm", "thought": true},
            {"text": "I ask."},
            {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}}}]})),
        content(json!({"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": "sunny"}}}]})),
        Content::model("Sunny."),
        Content::user("Thanks"),
    ]);
    request.instruction.push("agent", "Be brief.");
    request.tools = weather_tools();
    let written = body(&named("openai-chat/gpt-5"), &request);
    assert_eq!(
        written["messages"],
        json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}}]},
            {"role": "assistant", "content": "I ask.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "{\"result\":\"sunny\"}"},
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Thanks"},
        ])
    );
    assert_eq!(written["tools"][0]["function"]["name"], "get_weather");
    assert_eq!(written["tools"][0]["function"]["parameters"]["properties"]["city"]["type"], "string");
    assert_eq!(written["model"], "gpt-5");
    assert_eq!(written.get("stream"), None);
}

#[test]
fn settings_are_sent_by_their_names_here() {
    let mut request = request([Content::user("hi")]);
    request.tools = weather_tools();
    request.stream = true;
    let config = std::sync::Arc::make_mut(&mut request.config);
    config.temperature = Some(0.5);
    config.max_output_tokens = Some(100);
    config.stop_sequences = vec!["END".to_owned()];
    config.tool_choice = Some(ToolChoice::Tool("get_weather".into()));
    config.parallel_calls = Some(false);
    config.thinking = Some(Thinking { effort: Some(Effort::Low), ..Thinking::default() });
    config.other.insert("service_tier".to_owned(), json!("flex"));
    request.output_schema = Some(std::sync::Arc::new(json!({"type": "object"})));
    let written = body(&named("openai-chat/gpt-5"), &request);
    for (key, value) in [
        ("temperature", json!(0.5)),
        ("max_completion_tokens", json!(100)),
        ("stop", json!(["END"])),
        ("tool_choice", json!({"type": "function", "function": {"name": "get_weather"}})),
        ("parallel_tool_calls", json!(false)),
        ("reasoning_effort", json!("low")),
        ("service_tier", json!("flex")),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    assert_eq!(written["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
    assert_eq!(written["response_format"]["json_schema"]["strict"], false);
    assert_eq!(body(&named("groq/x"), &request)["max_tokens"], 100);
}

#[test]
fn what_would_be_refused_is_repaired() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {"ok": true}}});
    let request = request([
        content(json!({"role": "user", "parts": [answer("gone")]})),
        Content::new(Role::Model, [call("c1"), call("c2")]),
        content(json!({"role": "user", "parts": [answer("c2")]})),
        content(json!({"role": "user", "parts": [{"text": ""}]})),
        Content::user("well?"),
        Content::new(Role::Model, [call("c3")]),
    ]);
    let written = body(&named("openai-chat/gpt-5"), &request);
    let roles: Vec<(&str, &str)> = written["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            (message["role"].as_str().unwrap(), message["tool_call_id"].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        roles,
        [
            ("user", ""),
            ("assistant", ""),
            ("tool", "c2"),
            ("tool", "c1"),
            ("user", ""),
            ("assistant", ""),
            ("tool", "c3"),
        ]
    );
    assert_eq!(written["messages"][0]["content"], "The tool `t` answered: {\"ok\":true}");
    assert!(written["messages"][3]["content"].as_str().unwrap().contains("has no answer"));
}

#[test]
fn a_conversation_that_grows_is_sent_with_the_same_bytes_before() {
    let contents: Vec<Content> = (0..10)
        .map(|at| match at % 2 {
            0 => Content::from(format!("question {at}")),
            _ => Content::model(Part::text(format!("answer {at}"))),
        })
        .collect();
    assert_prefix_grows(&named("openai-chat/gpt-5"), &contents);
}

#[test]
fn a_stream_gives_thoughts_calls_usage_and_the_same_wherever_it_is_split() {
    let call = |delta: Value| chunk(json!({"tool_calls": [delta]}), None);
    let bytes = done(&[
        chunk(json!({"role": "assistant", "reasoning_content": "need the "}), None),
        chunk(json!({"reasoning_content": "töol"}), None),
        chunk(json!({"content": "One "}), None),
        chunk(json!({"content": "moment 😀"}), None),
        call(
            json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}),
        ),
        call(json!({"index": 0, "function": {"arguments": "{\"city\":\"Ber"}})),
        call(
            json!({"index": 1, "id": "call_2", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":"}}),
        ),
        call(json!({"index": 0, "function": {"arguments": "lin\"}"}})),
        call(json!({"index": 1, "function": {"arguments": "\"Rome\"}"}})),
        chunk(json!({}), Some("tool_calls")),
        json!({"id": "c", "model": "m-2026", "choices": [], "service_tier": "default", "usage": {
            "prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32,
            "prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens_details": {"reasoning_tokens": 5}}}),
    ]);
    let chunks = read_stream(&named("openai-chat/gpt-5"), &bytes);
    assert_eq!(streamed_text(&chunks), "One moment 😀");
    let whole = whole(&chunks);
    assert_eq!(
        parts(whole),
        json!([
            {"text": "need the töol", "thought": true, "openaiChat": {"provider": "openai", "thoughtIn": "reasoning_content"}},
            {"text": "One moment 😀"},
            {"functionCall": {"id": "call_1", "name": "get_weather", "args": {"city": "Berlin"}}},
            {"functionCall": {"id": "call_2", "name": "get_weather", "args": {"city": "Rome"}}},
        ])
    );
    let usage = whole.usage().unwrap();
    assert_eq!(
        (
            usage.prompt_token_count,
            usage.candidates_token_count,
            usage.thoughts_token_count,
            usage.cached_content_token_count
        ),
        (Some(20), Some(7), Some(5), Some(16))
    );
    let meta = whole.meta.as_ref().unwrap();
    assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None));
    assert_eq!(
        (meta.model_version.as_deref(), &meta.unknown["serviceTier"]),
        (Some("m-2026"), &json!("default"))
    );
}

#[test]
fn thoughts_go_back_with_the_calls_they_led_to() {
    let chunks = read_stream(
        &named("deepseek/r"),
        &done(&[
            chunk(json!({"reasoning_content": "hm"}), None),
            chunk(
                json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "t", "arguments": "{}"}}]}),
                Some("tool_calls"),
            ),
        ]),
    );
    let said = whole(&chunks).content.as_deref().unwrap().clone();
    let written = body(
        &named("deepseek/r"),
        &request([
            said,
            content(json!({"role": "user", "parts": [
        {"functionResponse": {"id": "c1", "name": "t", "response": {}}}]})),
        ]),
    );
    assert_eq!(written["messages"][0]["reasoning_content"], "hm");
}

#[test]
fn an_answer_that_is_not_streamed_says_the_same() {
    let answer = json!({"id": "c", "model": "m", "choices": [{"index": 0, "finish_reason": "length",
        "message": {"role": "assistant", "content": "Once upon", "refusal": null,
                    "annotations": [{"type": "url_citation", "url_citation": {"url": "http://a"}}]},
        "logprobs": {"content": [{"token": "Once", "logprob": -0.1}]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}});
    let whole = read_whole(&named("openai-chat/gpt-5"), &answer);
    assert_eq!(parts(&whole), json!([{"text": "Once upon"}]));
    assert_eq!(whole.error_code(), Some("MAX_TOKENS"));
    let meta = whole.meta.unwrap();
    assert_eq!(meta.unknown["logprobsResult"][0]["token"], "Once");
    assert_eq!(meta.citation_metadata.unwrap()["citations"][0]["type"], "url_citation");
}

#[test]
fn streams_that_fail_or_break_off_end_with_an_error_that_says_so() {
    let model = named("openai-chat/gpt-5");
    let read = |bytes: &[u8]| read_stream(&model, bytes).pop().unwrap().unwrap_err();
    let cut = read(&sse(&[chunk(json!({"content": "Once"}), None)]));
    assert_eq!(cut.kind(), ErrorKind::StreamCut);
    let failed = read(&sse(&[json!({"error": {"message": "Overloaded", "type": "overloaded_error"}})]));
    assert_eq!(failed.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
    assert_eq!(read(b"data: {\"choices\": 3}\n\n").kind(), ErrorKind::Model(ModelErrorKind::Other));
    assert_eq!(read(b"data: [DONE]\n\n").kind(), ErrorKind::StreamCut);
}

#[test]
fn a_refusal_is_said_and_marked() {
    let chunks = read_stream(
        &named("openai-chat/gpt-5"),
        &done(&[chunk(json!({"refusal": "I can't."}), None), chunk(json!({}), Some("stop"))]),
    );
    assert_eq!(parts(whole(&chunks)), json!([{"text": "I can't."}]));
    assert_eq!(whole(&chunks).error_code(), Some("REFUSAL"));
}

#[test]
fn what_comes_behind_the_end_is_not_read() {
    let mut bytes = done(&[chunk(json!({"content": "a"}), Some("stop"))]);
    bytes.extend_from_slice(&sse(&[chunk(json!({"content": "b"}), Some("stop"))]));
    bytes.extend_from_slice(b"data: \xff\n\n");
    let chunks = read_stream(&named("openai-chat/gpt-5"), &bytes);
    assert_eq!(parts(whole(&chunks)), json!([{"text": "a"}]));
}

#[test]
fn answers_that_belong_to_no_call_wait_until_all_calls_are_answered_and_none_is_lost() {
    let answer = |id: &str, said: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {"said": said}}});
    let call = |id: &str| json!({"functionCall": {"id": id, "name": "t", "args": {}}});
    let request = request([
        content(json!({"role": "model", "parts": [call("c1"), call("c2")]})),
        content(json!({"role": "user", "parts": [
            answer("gone", "x"), answer("c1", "pending"), answer("c1", "done"), answer("c2", "two")]})),
    ]);
    let written = body(&named("openai-chat/gpt-5"), &request);
    let told: Vec<(&str, &str)> = written["messages"].as_array().unwrap()[1..]
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("tool", "{\"said\":\"pending\"}"),
            ("tool", "{\"said\":\"two\"}"),
            ("user", "The tool `t` answered: {\"said\":\"x\"}"),
            ("user", "The tool `t` answered: {\"said\":\"done\"}"),
        ]
    );
}

#[test]
fn calls_without_ids_are_paired_by_the_name_of_their_tool() {
    let request = request([
        content(json!({"role": "model", "parts": [{"functionCall": {"name": "clock", "args": {}}}]})),
        content(
            json!({"role": "user", "parts": [{"functionResponse": {"name": "clock", "response": {"t": 1}}}]}),
        ),
    ]);
    let written = body(&named("openai-chat/gpt-5"), &request);
    assert_eq!(
        written["messages"][1],
        json!({"role": "tool", "tool_call_id": "clock", "content": "{\"t\":1}"})
    );
}

#[test]
fn mistral_hears_no_user_right_after_a_tool_and_never_the_model_last() {
    let request = request([
        content(json!({"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "t", "args": {}}}]})),
        Content::user("never mind"),
        Content::model("Fine."),
    ]);
    let roles = |name: &str| -> Vec<String> {
        let written = body(&named(name), &request);
        let messages = written["messages"].as_array().unwrap();
        messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles("mistral/m"), ["assistant", "tool", "assistant", "user", "assistant", "user"]);
    assert_eq!(roles("groq/m"), ["assistant", "tool", "user", "assistant"]);
}

#[test]
fn usage_in_every_chunk_does_not_make_half_an_answer_a_whole_one() {
    let mut half = chunk(json!({"content": "Hal"}), None);
    half["usage"] = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2});
    let model = named("groq/m");
    assert_eq!(read_stream(&model, &sse(&[half])).pop().unwrap().unwrap_err().kind(), ErrorKind::StreamCut);
    let mut both = chunk(json!({"content": "Hi"}), Some("stop"));
    both["choices"][0]["message"] = json!({"role": "assistant", "content": "Hi"});
    assert_eq!(parts(whole(&read_stream(&model, &done(&[both])))), json!([{"text": "Hi"}]));
}
