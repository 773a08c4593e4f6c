//! What others make of chat completions.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{
    Content, ErrorKind, FunctionCall, FunctionTool, ModelErrorKind, Part, Role, ToolChoice, ToolSet,
};
use umbel_models::model_with;

use crate::support::{
    body, content, named, parts, read_stream, read_whole, request, sse, streamed_text, weather_tools, whole,
};

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "model": "m",
           "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn done(frames: &[Value]) -> Vec<u8> {
    let mut bytes = sse(frames);
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes
}

fn message(message: Value) -> Value {
    json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
}

/// What the model said, in the next request to it.
fn sent_back(model: &str, response: &umbel_core::Response) -> Value {
    let said = response.content.as_deref().unwrap().clone();
    let calls: Vec<Part> = said
        .calls()
        .map(|call| {
            let answer =
                umbel_core::FunctionResponse::new(call.id.clone(), call.name.clone(), serde_json::Map::new());
            Part::response(answer)
        })
        .collect();
    let mut contents = vec![said];
    if !calls.is_empty() {
        contents.push(Content::new(Role::User, calls));
    }
    body(&named(model), &request(contents))["messages"][0].clone()
}

#[test]
fn details_of_thoughts_are_put_together_and_go_back_unchanged_to_openrouter_alone() {
    let detail = |value: Value| chunk(json!({"reasoning_details": [value]}), None);
    let text = |text: &str| {
        let value =
            json!({"type": "reasoning.text", "text": text, "format": "anthropic-claude-v1", "index": 0});
        chunk(json!({"reasoning": text, "reasoning_details": [value]}), None)
    };
    let bytes = done(&[
        text("Let me "),
        text("see."),
        detail(
            json!({"type": "reasoning.text", "signature": "sig", "format": "anthropic-claude-v1", "index": 0, "id": null}),
        ),
        detail(json!({"type": "reasoning.encrypted", "data": "AA", "id": "r1", "index": 1})),
        detail(json!({"type": "reasoning.encrypted", "data": "BB", "id": "r1", "index": 1})),
        detail(json!({"type": "reasoning.encrypted", "data": "CC", "id": "r2", "index": 1})),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "t", "arguments": "{}"}}]}),
            Some("tool_calls"),
        ),
    ]);
    let chunks = read_stream(&named("openrouter/anthropic/claude-sonnet-4-5"), &bytes);
    let said = whole(&chunks);
    assert_eq!((&parts(said)[0]["text"], &parts(said)[0]["thought"]), (&json!("Let me see."), &json!(true)));
    let expected = json!([
        {"type": "reasoning.text", "text": "Let me see.", "format": "anthropic-claude-v1", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "AABB", "id": "r1", "index": 1},
        {"type": "reasoning.encrypted", "data": "CC", "id": "r2", "index": 1},
    ]);
    let back = sent_back("openrouter/x/y", said);
    assert_eq!(back["reasoning_details"], expected);
    assert_eq!(back.get("reasoning"), None);
    for other in ["openai-chat/gpt-5", "groq/x", "mistral/x", "http://localhost:1/v1#m"] {
        let back = sent_back(other, said).to_string();
        assert!(
            !back.contains("sig") && !back.contains("AABB") && !back.contains("Let me see"),
            "{other}: {back}"
        );
    }
}

#[test]
fn thoughts_that_come_as_details_alone_are_told() {
    let summary = |text: &str| {
        chunk(json!({"reasoning_details": [{"type": "reasoning.summary", "summary": text}]}), None)
    };
    let bytes = done(&[summary("Sum"), summary("mary"), chunk(json!({"content": "Hi"}), Some("stop"))]);
    let chunks = read_stream(&named("openrouter/x/y"), &bytes);
    assert_eq!(parts(whole(&chunks))[0]["text"], "Summary");
    let back = sent_back("openrouter/x/y", whole(&chunks));
    assert_eq!(back["reasoning_details"], json!([{"type": "reasoning.summary", "summary": "Summary"}]));
    let answer = message(json!({"content": "Hi", "reasoning": "Summary",
        "reasoning_details": [{"type": "reasoning.summary", "summary": "Summary"}]}));
    assert_eq!(parts(&read_whole(&named("openrouter/x/y"), &answer)), parts(whole(&chunks)));
}

#[test]
fn thoughts_among_the_words_are_told_and_go_back_there() {
    let thinking = |text: &str| json!([{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]);
    let bytes = done(&[
        chunk(json!({"content": thinking("Let me ")}), None),
        chunk(json!({"content": thinking("see.")}), None),
        chunk(
            json!({"content": [{"type": "text", "text": "It "}, {"type": "reference", "reference_ids": [1]}]}),
            None,
        ),
        chunk(json!({"content": "is."}), Some("stop")),
    ]);
    let model = named("mistral/magistral-medium-latest");
    let chunks = read_stream(&model, &bytes);
    let said = whole(&chunks);
    assert_eq!(
        parts(said),
        json!([
            {"text": "Let me see.", "thought": true, "openaiChat": {"provider": "mistral", "thoughtIn": "content"}},
            {"text": "It is."},
        ])
    );
    let unknown = &said.meta.as_ref().unwrap().unknown["unknownFrames"];
    assert_eq!(unknown[0]["reference_ids"], json!([1]));
    let content = json!([{"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]},
                         {"type": "text", "text": "It is."}]);
    assert_eq!(sent_back("mistral/x", said)["content"], content);
    assert_eq!(sent_back("groq/x", said)["content"], "It is.");
    let thought =
        json!([{"type": "thinking", "thinking": "Let me see."}, {"type": "text", "text": "It is."}]);
    assert_eq!(parts(&read_whole(&model, &message(json!({"content": thought})))), parts(said));
}

#[test]
fn mistral_is_asked_in_its_own_words() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let answer = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {}}});
    let mut request = request([
        Content::new(Role::Model, [call("call_0123456789"), call("abcDEF123")]),
        content(json!({"role": "user", "parts": [answer("call_0123456789"), answer("abcDEF123")]})),
        Content::new(Role::Model, [call("call_open")]),
    ]);
    request.stream = true;
    request.tools = weather_tools();
    let config = Arc::make_mut(&mut request.config);
    config.seed = Some(7);
    config.tool_choice = Some(ToolChoice::Any);
    let written = body(&named("mistral/mistral-large-latest"), &request);
    assert_eq!((&written["random_seed"], &written["tool_choice"]), (&json!(7), &json!("any")));
    assert_eq!((written.get("seed"), written.get("stream_options")), (None, None));
    let messages = &written["messages"];
    let id = messages[0]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(messages[1]["tool_call_id"], id);
    assert_eq!(messages[0]["tool_calls"][1]["id"], "abcDEF123");
    assert_eq!(messages[4]["tool_call_id"], messages[3]["tool_calls"][0]["id"]);
    assert_ne!(messages[4]["tool_call_id"], id);
    // Nobody else minds.
    let written = body(&named("groq/x"), &request);
    assert_eq!(written["messages"][0]["tool_calls"][0]["id"], "call_0123456789");
    assert_eq!((&written["seed"], &written["tool_choice"]), (&json!(7), &json!("required")));
}

#[test]
fn what_is_said_aloud_is_heard_and_read() {
    let audio = |value: Value| chunk(json!({"audio": value}), None);
    let bytes = done(&[
        audio(json!({"id": "audio_1", "transcript": "Hel"})),
        audio(json!({"id": "audio_1", "data": "AAE"})),
        audio(json!({"data": "CAwQF", "transcript": "lo"})),
        audio(json!({"expires_at": 1_729_234_747})),
        chunk(json!({}), Some("stop")),
    ]);
    let chunks = read_stream(&named("openai-chat/gpt-audio"), &bytes);
    assert_eq!(streamed_text(&chunks), "Hello");
    assert_eq!(
        parts(whole(&chunks)),
        json!([{"text": "Hello"}, {"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": "AAECAwQF"}}])
    );
    for (data, kind) in [
        ("UklGRgA=", "wav"),
        ("SUQzBA==", "mpeg"),
        ("//uQZA==", "mpeg"),
        ("ZkxhQw==", "flac"),
        ("T2dnUw==", "ogg"),
    ] {
        let answer =
            message(json!({"content": null, "audio": {"id": "a", "data": data, "transcript": "Hi"}}));
        let whole = read_whole(&named("openai-chat/gpt-audio"), &answer);
        assert_eq!(parts(&whole)[1]["inlineData"]["mimeType"], format!("audio/{kind}"));
    }
    // What was said goes back as words.
    assert_eq!(
        sent_back("openai-chat/gpt-audio", whole(&chunks)),
        json!({"role": "assistant", "content": "Hello"})
    );
    let bad = read_stream(&named("openai-chat/gpt-audio"), &sse(&[audio(json!({"data": "????"}))]));
    assert!(bad.last().unwrap().is_err());
}

#[test]
fn images_are_seen() {
    let images = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}},
                        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
                        {"type": "image_url", "image_url": {}}]);
    let expected = json!([{"text": "Here"}, {"inlineData": {"mimeType": "image/png", "data": "AAEC"}},
                          {"fileData": {"fileUri": "https://a.example/b.png"}}]);
    let model = named("openrouter/google/gemini-2.5-flash-image");
    let bytes =
        done(&[chunk(json!({"content": "Here"}), None), chunk(json!({"images": images}), Some("stop"))]);
    assert_eq!(parts(whole(&read_stream(&model, &bytes))), expected);
    assert_eq!(parts(&read_whole(&model, &message(json!({"content": "Here", "images": images})))), expected);
    let within = json!([{"type": "text", "text": "Here"}, images[0], images[1]]);
    assert_eq!(parts(&read_whole(&model, &message(json!({"content": within})))), expected);
}

#[test]
fn usage_is_counted_wherever_it_is_told() {
    let counted = |model: &str, end: Value| {
        let chunks = read_stream(&named(model), &done(&[chunk(json!({"content": "Hi"}), Some("stop")), end]));
        whole(&chunks).usage().unwrap().clone()
    };
    let groq = json!({"choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 5, "completion_tokens": 3,
        "total_tokens": 8, "queue_time": 0.1}}});
    let usage = counted("groq/x", groq);
    assert_eq!((usage.prompt_token_count, usage.candidates_token_count), (Some(5), Some(3)));
    let deepseek = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
        "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}}});
    let usage = counted("deepseek/x", deepseek);
    assert_eq!(usage.cached_content_token_count, Some(4));
    assert_eq!((usage.candidates_token_count, usage.thoughts_token_count), (Some(1), Some(2)));
    // At xAI thoughts are not among the tokens of the answer.
    let xai = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 18,
        "completion_tokens_details": {"reasoning_tokens": 10}, "prompt_tokens_details": {"cached_tokens": 2}}});
    let usage = counted("xai/x", xai);
    assert_eq!((usage.candidates_token_count, usage.thoughts_token_count), (Some(3), Some(10)));
    assert_eq!((usage.cached_content_token_count, usage.total_token_count), (Some(2), Some(18)));
    let openrouter = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "cost": 0.25,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 3}}});
    let usage = counted("openrouter/x/y", openrouter);
    assert_eq!((usage.cache_write_token_count, usage.total_token_count), (Some(3), Some(8)));
    assert_eq!(usage.unknown["cost"], json!(0.25));
    let moonshot = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop",
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 1}}]});
    assert_eq!(counted("http://localhost:1/v1#kimi", moonshot).cached_content_token_count, Some(1));
    let absurd = json!({"choices": [], "usage": {"prompt_tokens": u64::MAX, "completion_tokens": u64::MAX}});
    assert_eq!(counted("groq/x", absurd).total_token_count, None);
}

#[test]
fn a_call_in_the_old_form_is_a_call() {
    let call = |value: Value| chunk(json!({"function_call": value}), None);
    let bytes = done(&[
        call(json!({"name": "get_weather", "arguments": ""})),
        call(json!({"arguments": "{\"city\":"})),
        call(json!({"arguments": "\"Rome\"}"})),
        chunk(json!({}), Some("function_call")),
    ]);
    let model = named("http://localhost:1/v1#m");
    let said = whole(&read_stream(&model, &bytes)).clone();
    assert_eq!(said.finish_reason(), Some("STOP"));
    assert_eq!(parts(&said)[0]["functionCall"]["args"], json!({"city": "Rome"}));
    let back = sent_back("http://localhost:1/v1#m", &said);
    assert!(back["tool_calls"][0]["id"].as_str().unwrap().starts_with("call_"));
    let answer = message(
        json!({"content": null, "function_call": {"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}}),
    );
    assert_eq!(parts(&read_whole(&model, &answer))[0]["functionCall"]["args"], json!({"city": "Rome"}));
}

#[test]
fn calls_are_told_apart_however_little_is_said_of_them() {
    let model = named("http://localhost:1/v1#m");
    let calls = |frames: &[Value]| {
        let said = whole(&read_stream(&model, &done(frames))).clone();
        let calls: Vec<(String, Value)> = said
            .content
            .as_deref()
            .unwrap()
            .calls()
            .map(|call| (call.name.to_string(), json!(call.args)))
            .collect();
        let ids: std::collections::HashSet<_> =
            said.content.as_deref().unwrap().calls().map(|call| call.id.clone().unwrap()).collect();
        assert_eq!(ids.len(), calls.len(), "each has an id of its own");
        calls
    };
    let two = vec![("a".to_owned(), json!({"x": 1})), ("b".to_owned(), json!({"y": 2}))];
    let frame = |calls: Value| chunk(json!({"tool_calls": calls}), None);
    let end = chunk(json!({}), Some("tool_calls"));
    // No numbers, but ids, and the arguments in pieces.
    let by_id = [
        frame(json!([{"id": "c1", "function": {"name": "a", "arguments": "{\"x\""}}])),
        frame(json!([{"function": {"arguments": ":1}"}}])),
        frame(json!([{"id": "c2", "function": {"name": "b", "arguments": "{\"y\":2}"}}])),
        end.clone(),
    ];
    assert_eq!(calls(&by_id), two);
    // Neither numbers nor ids.
    let by_name = [
        frame(json!([{"id": "", "function": {"name": "a", "arguments": "{\"x\":"}}])),
        frame(json!([{"function": {"name": "", "arguments": "1}"}}])),
        frame(json!([{"id": "", "function": {"name": "b", "arguments": "{\"y\":2}"}}])),
        end.clone(),
    ];
    assert_eq!(calls(&by_name), two);
    // The same number for each.
    let same = [
        frame(json!([{"index": 0, "id": "c1", "function": {"name": "a", "arguments": "{\"x\":1}"}}])),
        frame(json!([{"index": 0, "id": "c2", "function": {"name": "b", "arguments": "{\"y\":2}"}}])),
        end.clone(),
    ];
    assert_eq!(calls(&same), two);
    // All at once, the arguments not as text.
    let objects = [
        frame(
            json!([{"function": {"name": "a", "arguments": {"x": 1}}}, {"function": {"name": "b", "arguments": {"y": 2}}}]),
        ),
        end.clone(),
    ];
    assert_eq!(calls(&objects), two);
    // No arguments, or nothing at all.
    let none =
        [frame(json!([{"id": "c1", "function": {"name": "a", "arguments": null}}, {"id": "c2"}])), end];
    assert_eq!(calls(&none), [("a".to_owned(), json!({})), (String::new(), json!({}))]);
    let answer = json!({"choices": [{"message": {"tool_calls": [{"id": "", "function": {"name": "a", "arguments": {"x": 1}}}]}}]});
    let whole = read_whole(&model, &answer);
    assert_eq!(parts(&whole)[0]["functionCall"]["args"], json!({"x": 1}));
}

#[test]
fn an_answer_is_complete_when_it_can_be_told_that_it_is() {
    let model = named("http://localhost:1/v1#m");
    let said = chunk(json!({"content": "Hi"}), None);
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let ends = |bytes: &[u8]| match read_stream(&model, bytes).pop().unwrap() {
        Ok(umbel_core::Chunk::Complete(whole)) => whole.finish_reason().unwrap().to_owned(),
        Ok(other) => panic!("{other:?}"),
        Err(error) => format!("{:?}", error.kind()),
    };
    let cut = format!("{:?}", ErrorKind::StreamCut);
    // A reason without the end mark, the end mark without a reason, the usage without either.
    assert_eq!(ends(&sse(&[said.clone(), chunk(json!({}), Some("stop"))])), "STOP");
    assert_eq!(ends(&done(std::slice::from_ref(&said))), "STOP");
    assert_eq!(ends(&sse(&[said.clone(), usage.clone()])), "STOP");
    assert_eq!(ends(&done(&[chunk(json!({"refusal": "No."}), None)])), "REFUSAL");
    // Nothing that says so, or nothing said.
    assert_eq!(ends(&sse(&[said])), cut);
    assert_eq!(ends(&sse(std::slice::from_ref(&usage))), cut);
    assert_eq!(ends(&done(&[usage])), cut);
    assert_eq!(ends(&done(&[json!({"choices": null})])), cut);
}

#[test]
fn every_word_for_the_end_is_understood() {
    let model = named("http://localhost:1/v1#m");
    for (word, reason) in [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("eos_token", "STOP"),
        ("length", "MAX_TOKENS"),
        ("max_tokens", "MAX_TOKENS"),
        ("model_length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
    ] {
        let chunks = read_stream(&model, &done(&[chunk(json!({"content": "Hi"}), Some(word))]));
        let meta = whole(&chunks).meta.as_ref().unwrap();
        assert_eq!(meta.finish_reason.as_deref(), Some(reason), "{word}");
        assert_eq!(meta.unknown["stopReason"], word);
    }
    let fails = |word: &str| {
        read_stream(&model, &sse(&[chunk(json!({}), Some(word))])).pop().unwrap().unwrap_err().kind()
    };
    assert_eq!(fails("insufficient_system_resource"), ErrorKind::Model(ModelErrorKind::Overloaded));
    assert_eq!(fails("error"), ErrorKind::Model(ModelErrorKind::Other));
    let error = json!({"error": {"code": 502, "message": "Provider disconnected"},
                       "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]});
    let error = read_stream(&named("openrouter/x/y"), &sse(&[error])).pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
}

#[test]
fn azure_is_asked_at_its_resource_and_tells_what_its_filter_found() {
    let at = |endpoint: Option<&str>| {
        let endpoint = endpoint.map(str::to_owned);
        model_with("azure/my-gpt", move |variable| match variable {
            "AZURE_OPENAI_API_KEY" => Some("sk-test-1234".to_owned()),
            "AZURE_OPENAI_ENDPOINT" => endpoint.clone(),
            _ => None,
        })
    };
    let model = at(Some("https://me.openai.azure.com/")).unwrap();
    let mut request = request([Content::user("hi")]);
    Arc::make_mut(&mut request.config).max_output_tokens = Some(5);
    let written = body(&model, &request);
    assert_eq!((&written["model"], &written["max_completion_tokens"]), (&json!("my-gpt"), &json!(5)));
    assert!(at(None).unwrap_err().message().contains("AZURE_OPENAI_ENDPOINT"));
    let bytes = done(&[
        json!({"model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}),
        chunk(json!({"content": "Hi"}), None),
        json!({"model": "gpt", "choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter",
            "content_filter_results": {"hate": {"filtered": true, "severity": "high"}}}]}),
    ]);
    let chunks = read_stream(&model, &bytes);
    assert_eq!(whole(&chunks).error_code(), Some("SAFETY"));
    let meta = whole(&chunks).meta.as_ref().unwrap();
    assert_eq!(meta.unknown["contentFilterResults"]["hate"]["filtered"], true);
    assert_eq!(meta.unknown["promptFilterResults"][0]["prompt_index"], 0);
    assert_eq!(meta.model_version.as_deref(), Some("gpt"));
}

#[test]
fn the_instruction_is_the_developers_for_models_of_openai_that_think() {
    let role = |name: &str| {
        let mut request = request([Content::user("hi")]);
        request.instruction.push("agent", "Be brief.");
        let model = model_with(name, |_| Some("http://localhost".to_owned())).unwrap();
        body(&model, &request)["messages"][0]["role"].as_str().unwrap().to_owned()
    };
    assert_eq!(role("openai-chat/gpt-5-mini"), "developer");
    assert_eq!(role("azure/o3"), "developer");
    for name in
        ["openai-chat/gpt-4.1", "openai-chat/gpt-5-chat-latest", "azure/mine", "groq/openai/gpt-oss-20b"]
    {
        assert_eq!(role(name), "system", "{name}");
    }
}

#[test]
fn a_tool_is_strict_where_that_is_known_and_its_schema_allows_it() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Args {
        #[allow(dead_code, reason = "only its schema is looked at")]
        city: String,
    }
    let mut request = request([Content::user("hi")]);
    let mut tools = ToolSet::new();
    tools.add(Arc::new(FunctionTool::new("strict", "", |_: Args| async { Ok("sunny".to_owned()) })));
    tools.add(weather_tools().get("get_weather").unwrap().tool.clone());
    request.tools = Arc::new(tools);
    let strict = |name: &str| -> Vec<(String, Value)> {
        let written = body(&named(name), &request);
        let tools = written["tools"].as_array().unwrap().iter();
        let tools = tools.map(|tool| tool.get("function").unwrap_or(tool));
        tools.map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool["strict"].clone())).collect()
    };
    let pair =
        |strict: Value, loose: Value| vec![("strict".to_owned(), strict), ("get_weather".to_owned(), loose)];
    assert_eq!(strict("openai-chat/gpt-5"), pair(json!(true), Value::Null));
    assert_eq!(strict("openai/gpt-5"), pair(json!(true), json!(false)));
    assert_eq!(strict("groq/x"), pair(Value::Null, Value::Null));
}

#[test]
fn a_model_without_schemas_is_told_the_schema_in_words() {
    let mut request = request([Content::user("hi")]);
    request.instruction.push("agent", "Be brief.");
    request.output_schema = Some(Arc::new(json!({"type": "object"})));
    let written = body(&named("deepseek/deepseek-chat"), &request);
    assert_eq!(written["response_format"], json!({"type": "json_object"}));
    let instruction = written["messages"][0]["content"].as_str().unwrap();
    assert_eq!(instruction, "Be brief.\n\nAnswer with JSON that keeps to this schema: {\"type\":\"object\"}");
    let written = body(&named("xai/grok-4.3"), &request);
    assert_eq!(written["response_format"]["type"], "json_schema");
    assert_eq!(written["messages"][0]["content"], "Be brief.");
}

#[test]
fn other_settings_go_on_top_of_ours() {
    let mut request = request([Content::user("hi")]);
    request.stream = true;
    request.tools = weather_tools();
    let config = Arc::make_mut(&mut request.config);
    config.temperature = Some(0.5);
    config.other.insert("temperature".to_owned(), json!(1));
    config.other.insert("stream_options".to_owned(), json!({"include_obfuscation": false}));
    config.other.insert("tools".to_owned(), json!([{"type": "browser_search"}]));
    let text = String::from_utf8(named("groq/x").body(&request)).unwrap();
    assert_eq!((text.matches("\"temperature\"").count(), text.matches("\"tools\"").count()), (1, 1));
    let written = body(&named("groq/x"), &request);
    assert_eq!(written["temperature"], 1);
    assert_eq!(written["stream_options"], json!({"include_usage": true, "include_obfuscation": false}));
    assert_eq!(written["tools"][1], json!({"type": "browser_search"}));
}

#[test]
fn what_gemini_wants_back_with_a_call_goes_back_to_where_it_came_from() {
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    let call =
        json!({"index": 0, "id": "c1", "extra_content": extra, "function": {"name": "t", "arguments": "{}"}});
    let name = "http://localhost:1/v1#gemini";
    let chunks =
        read_stream(&named(name), &done(&[chunk(json!({"tool_calls": [call]}), Some("tool_calls"))]));
    assert_eq!(sent_back(name, whole(&chunks))["tool_calls"][0]["extra_content"], extra);
    assert_eq!(sent_back("groq/x", whole(&chunks))["tool_calls"][0].get("extra_content"), None);
}
