//! Ollama's own format.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel_core::{
    Chunk, Content, Effort, ErrorKind, FunctionCall, Model, ModelErrorKind, Part, Role, Thinking,
};
use umbel_models::{HttpModel, model_with};

use crate::server::Server;
use crate::support::{
    assert_prefix_grows, body, content, parts, read_stream, read_whole, request, streamed_text,
    weather_tools, whole,
};

fn ollama() -> HttpModel {
    model_with("ollama/qwen3", |_| None).unwrap()
}

fn line(message: Value) -> Value {
    json!({"model": "qwen3", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": false})
}

fn end(reason: &str) -> Value {
    json!({"model": "qwen3", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": reason,
           "total_duration": 5, "prompt_eval_count": 20, "eval_count": 12})
}

fn lines(lines: &[Value]) -> Vec<u8> {
    lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

#[test]
fn a_conversation_with_calls_and_media_is_written_as_messages() {
    let mut request = request([
        content(json!({"role": "user", "parts": [
            {"text": "Look"},
            {"inlineData": {"mimeType": "image/png", "data": "AAEC"}},
            {"inlineData": {"mimeType": "text/plain", "data": "bm90ZQ=="}},
            {"inlineData": {"mimeType": "audio/wav", "data": "AAEC", "displayName": "a.wav"}},
            {"fileData": {"fileUri": "https://f/1"}}]})),
        content(json!({"role": "model", "parts": [
            {"text": "hm", "thought": true, "ollama": {}},
            {"text": "not mine", "thought": true, "anthropic": {}},
            {"text": "I ask."},
            {"functionCall": {"id": "c1", "name": "get_weather", "args": {"city": "Rome"}}},
            {"functionCall": {"id": "adk-2", "name": "get_weather"}}]})),
        content(json!({"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": "sunny"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "AwQF"}}]}},
            {"functionResponse": {"id": "adk-2", "name": "get_weather", "response": {"result": "rain"}}}]})),
        content(json!({"role": "model", "parts": [{"executableCode": {"code": "1", "language": "PYTHON"}}]})),
        Content::user("Thanks"),
    ]);
    request.instruction.push("agent", "Be brief.");
    request.tools = weather_tools();
    let written = body(&ollama(), &request);
    assert_eq!(
        written["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look\nnote\n[file: a.wav (audio/wav)]\n[file: https://f/1]", "images": ["AAEC"]},
            {"role": "assistant", "content": "I ask.", "thinking": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}},
                {"type": "function", "function": {"name": "get_weather", "arguments": {}}}]},
            {"role": "tool", "tool_name": "get_weather", "tool_call_id": "c1", "content": "{\"result\":\"sunny\"}"},
            {"role": "tool", "tool_name": "get_weather", "content": "{\"result\":\"rain\"}"},
            {"role": "user", "content": "", "images": ["AwQF"]},
            {"role": "assistant", "content": "\n```python\n1\n```\n"},
            {"role": "user", "content": "Thanks"},
        ])
    );
    assert_eq!(written["tools"][0]["function"]["parameters"]["properties"]["city"]["type"], "string");
    assert_eq!((&written["model"], &written["stream"]), (&json!("qwen3"), &json!(false)));
    assert_eq!(written.get("options"), None);
}

#[test]
fn settings_are_sent_by_their_names_here() {
    let mut request = request([Content::user("hi")]);
    request.stream = true;
    let config = Arc::make_mut(&mut request.config);
    config.temperature = Some(0.5);
    config.top_p = Some(0.9);
    config.top_k = Some(40);
    config.max_output_tokens = Some(100);
    config.stop_sequences = vec!["END".to_owned()];
    config.seed = Some(7);
    config.presence_penalty = Some(0.1);
    config.frequency_penalty = Some(0.2);
    config.response_mime_type = Some("application/json".into());
    for (key, value) in [
        ("keep_alive", json!("10m")),
        ("logprobs", json!(true)),
        ("num_ctx", json!(8192)),
        ("options", json!({"top_k": 41})),
    ] {
        config.other.insert(key.to_owned(), value);
    }
    let written = body(&ollama(), &request);
    assert_eq!(
        written["options"],
        json!({"temperature": 0.5, "top_p": 0.9, "top_k": 41, "num_predict": 100, "stop": ["END"], "seed": 7,
               "presence_penalty": 0.1, "frequency_penalty": 0.2, "num_ctx": 8192})
    );
    for (key, value) in [
        ("stream", json!(true)),
        ("keep_alive", json!("10m")),
        ("logprobs", json!(true)),
        ("format", json!("json")),
    ] {
        assert_eq!(written[key], value, "{key}");
    }
    assert_eq!(written.get("think"), None);
    request.output_schema = Some(Arc::new(json!({"type": "object"})));
    assert_eq!(body(&ollama(), &request)["format"], json!({"type": "object"}));
    Arc::make_mut(&mut request.config).other.insert("format".to_owned(), json!("json"));
    assert_eq!(body(&ollama(), &request)["format"], "json");
}

#[test]
fn thinking_is_yes_no_or_how_hard() {
    let think = |thinking: Thinking| {
        let mut request = request([Content::user("hi")]);
        Arc::make_mut(&mut request.config).thinking = Some(thinking);
        body(&ollama(), &request)["think"].clone()
    };
    let none = Thinking::default();
    assert_eq!(think(none), false);
    assert_eq!(think(Thinking { include_thoughts: true, ..none }), true);
    assert_eq!(think(Thinking { budget: Some(100), ..none }), true);
    assert_eq!(think(Thinking { budget: Some(0), include_thoughts: true, ..none }), false);
    for (effort, word) in
        [(Effort::Minimal, "low"), (Effort::Low, "low"), (Effort::Medium, "medium"), (Effort::High, "high")]
    {
        assert_eq!(think(Thinking { effort: Some(effort), ..none }), word);
    }
}

#[test]
fn what_does_not_fit_together_is_repaired() {
    let call = |id: &str| Part::call(FunctionCall::new("t", serde_json::Map::new()).with_id(id));
    let request = request([
        content(
            json!({"role": "user", "parts": [{"functionResponse": {"name": "t", "response": {"ok": true}}}]}),
        ),
        Content::new(Role::Model, [call("c1"), call("c2")]),
        content(
            json!({"role": "user", "parts": [{"functionResponse": {"id": "c2", "name": "t", "response": {}}}]}),
        ),
        content(json!({"role": "user", "parts": [{"text": ""}]})),
        content(json!({"role": "model", "parts": [{"functionCall": {"name": "t"}}]})),
    ]);
    let written = body(&ollama(), &request);
    let messages = written["messages"].as_array().unwrap();
    let shape: Vec<(&str, Option<&str>)> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["tool_call_id"].as_str()))
        .collect();
    assert_eq!(
        shape,
        [
            ("user", None),
            ("assistant", None),
            ("tool", Some("c2")),
            ("tool", Some("c1")),
            ("assistant", None),
            ("tool", None)
        ]
    );
    assert_eq!(messages[0]["content"], "The tool `t` answered: {\"ok\":true}");
    assert!(messages[5]["content"].as_str().unwrap().contains("has no answer"));
}

#[test]
fn a_conversation_that_grows_is_sent_with_the_same_bytes_before() {
    let contents: Vec<Content> = (0..10)
        .map(|at| match at % 2 {
            0 => Content::from(format!("question {at}")),
            _ => Content::model(Part::text(format!("answer {at}"))),
        })
        .collect();
    assert_prefix_grows(&ollama(), &contents);
}

#[test]
fn a_stream_gives_thoughts_calls_usage_and_the_same_wherever_it_is_split() {
    let call = json!({"id": "call_1", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Rome"}}});
    let unnamed = json!({"function": {"name": "now", "arguments": "{\"zone\":\"CET\"}"}});
    let bytes = lines(&[
        line(json!({"role": "assistant", "content": "", "thinking": "need the "})),
        line(json!({"role": "assistant", "content": "", "thinking": "töol"})),
        line(json!({"role": "assistant", "content": "One "})),
        line(json!({"role": "assistant", "content": "moment 😀"})),
        line(json!({"role": "assistant", "content": "", "tool_calls": [call, unnamed]})),
        end("stop"),
    ]);
    let model = ollama();
    let chunks = read_stream(&model, &bytes);
    assert_eq!(streamed_text(&chunks), "One moment 😀");
    let thoughts = chunks.iter().filter(|chunk| matches!(chunk, Ok(Chunk::Thought(_)))).count();
    assert_eq!(thoughts, 2);
    let whole = whole(&chunks);
    let said = whole.content.as_deref().unwrap().clone();
    let minted = said.calls().nth(1).unwrap().id.clone().unwrap();
    assert!(minted.is_client());
    assert_eq!(
        parts(whole),
        json!([
            {"text": "need the töol", "thought": true, "ollama": {}},
            {"text": "One moment 😀"},
            {"functionCall": {"id": "call_1", "name": "get_weather", "args": {"city": "Rome"}}},
            {"functionCall": {"id": minted, "name": "now", "args": {"zone": "CET"}}},
        ])
    );
    let usage = whole.usage().unwrap();
    assert_eq!(
        (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count),
        (Some(20), Some(12), Some(32))
    );
    assert_eq!((whole.finish_reason(), whole.error_code()), (Some("STOP"), None));
    assert_eq!(whole.meta.as_ref().unwrap().model_version.as_deref(), Some("qwen3"));
    let written = body(&model, &request([Content::user("hi"), said]));
    assert_eq!(written["messages"][1]["thinking"], "need the töol");
}

#[test]
fn an_answer_that_is_not_streamed_says_the_same() {
    let mut answer = end("length");
    answer["message"] = json!({"role": "assistant", "content": "Once upon", "thinking": "hm"});
    answer["logprobs"] = json!([{"token": "Once", "logprob": -0.1}]);
    let whole_answer = read_whole(&ollama(), &answer);
    assert_eq!(
        parts(&whole_answer),
        json!([{"text": "hm", "thought": true, "ollama": {}}, {"text": "Once upon"}])
    );
    assert_eq!(whole_answer.error_code(), Some("MAX_TOKENS"));
    let meta = whole_answer.meta.as_ref().unwrap();
    assert_eq!(
        (&meta.unknown["stopReason"], &meta.unknown["logprobsResult"][0]["token"]),
        (&json!("length"), &json!("Once"))
    );
    assert_eq!(whole(&read_stream(&ollama(), &lines(&[answer.clone()]))), &whole_answer);
}

#[test]
fn every_reason_to_stop_is_told() {
    for (word, reason) in [("stop", "STOP"), ("length", "MAX_TOKENS"), ("load", "STOP"), ("unload", "STOP")] {
        let whole = read_whole(&ollama(), &end(word));
        assert_eq!(
            (whole.finish_reason(), &whole.meta.as_ref().unwrap().unknown["stopReason"]),
            (Some(reason), &json!(word))
        );
    }
    let whole = read_whole(&ollama(), &json!({"message": {"content": "a"}, "done": true}));
    assert_eq!((whole.finish_reason(), whole.usage()), (Some("STOP"), None));
}

#[test]
fn arguments_that_are_no_object_are_kept_as_they_came() {
    let call = json!({"function": {"name": "t", "arguments": "{\"a\":"}});
    let bytes = lines(&[line(json!({"tool_calls": [call]})), end("stop")]);
    let chunks = read_stream(&ollama(), &bytes);
    let content = whole(&chunks).content.clone().unwrap();
    assert_eq!(content.calls().next().unwrap().unreadable_args(), Some("{\"a\":"));
}

#[test]
fn streams_that_fail_or_break_off_end_with_an_error_that_says_so() {
    let model = ollama();
    let read = |bytes: &[u8]| read_stream(&model, bytes).pop().unwrap().unwrap_err();
    let said = line(json!({"content": "Once"}));
    assert_eq!(read(&lines(&[said.clone()])).kind(), ErrorKind::StreamCut);
    let failed =
        read(&lines(&[said.clone(), json!({"error": "an error was encountered while running the model"})]));
    assert!(failed.message().contains("ollama: an error was encountered"), "{failed}");
    let too_long = read(&lines(&[json!({"error": "the input length exceeds the context length"})]));
    assert_eq!(too_long.kind(), ErrorKind::Model(ModelErrorKind::ContextTooLong));
    let unfinished = model.read(false, [said.to_string().as_bytes()]).pop().unwrap().unwrap_err();
    assert_eq!(unfinished.kind(), ErrorKind::Model(ModelErrorKind::Other));
}

#[test]
fn unknown_lines_are_kept_and_hostile_ones_are_errors() {
    let bytes = lines(&[json!({"status": "pulling"}), end("stop")]);
    let chunks = read_stream(&ollama(), &bytes);
    assert_eq!(
        whole(&chunks).meta.as_ref().unwrap().unknown["unknownFrames"],
        json!([{"status": "pulling"}])
    );
    for bytes in [
        &b"{\"message\": 3}\n"[..],
        b"{\"message\": {\"tool_calls\": [{}]}}\n",
        b"nonsense\n",
        b"\xff\n",
        b"{\"done\": true, \"eval_count\": -1}\n",
    ] {
        let error = read_stream(&ollama(), bytes).pop().unwrap().unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Model(ModelErrorKind::Other),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
    let most = json!({"message": {}, "done": true, "prompt_eval_count": u64::MAX, "eval_count": u64::MAX});
    assert_eq!(read_whole(&ollama(), &most).usage().unwrap().total_token_count, Some(u64::MAX));
}

#[tokio::test]
async fn it_is_found_where_the_environment_says_with_a_key_or_without() {
    let stream = String::from_utf8(lines(&[line(json!({"content": "Hi"})), end("stop")])).unwrap();
    let server = Server::answering("200 OK", "content-type: application/x-ndjson\r\n", &stream).await;
    for key in [None, Some("sk-o")] {
        let environment = |variable: &str| match variable {
            "OLLAMA_HOST" => server.url.strip_prefix("http://").map(str::to_owned),
            "OLLAMA_API_KEY" => key.map(str::to_owned),
            _ => None,
        };
        let model = model_with("ollama/qwen3", environment).unwrap();
        let mut request = request([Content::user("hi")]);
        request.stream = true;
        let chunks: Vec<_> = model.generate(&request).collect().await;
        assert_eq!(whole(&chunks).content.as_ref().unwrap().text(), "Hi");
        let sent = server.requests().pop().unwrap();
        assert!(sent.starts_with("POST /api/chat HTTP"), "{sent}");
        assert_eq!(sent.contains("authorization: Bearer sk-o\r\n"), key.is_some(), "{sent}");
    }
}
