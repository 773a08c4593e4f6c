//! What it costs to write a request and to read an answer.
//!
//! `bench-models assemble|values MESSAGES TIMES`: the same bodies, by Umbel and by serde_json from values. Each time the
//! conversation has grown by a turn.
//! `bench-models parse CHUNKS TIMES`: streams that are read.
//! `bench-models time MESSAGES`: nanoseconds per byte of both, as JSON.

use std::hint::black_box;
use std::time::Instant;

use serde_json::{Value, json};
use umbel_core::{Chunk, Content, FunctionCall, FunctionResponse, ModelRequest, Part};
use umbel_models::{HttpModel, model};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args[at].parse::<usize>().expect("a number");
    match args[0].as_str() {
        "assemble" => {
            let (model, mut request) = (openai(), conversation(number(1)));
            // What was sent before is known.
            let mut bytes = model.body(&request).len();
            for _ in 0..number(2) {
                grow(&mut request);
                bytes += black_box(model.body(&request)).len();
            }
            println!("{bytes}");
        }
        "values" => {
            let mut request = conversation(number(1));
            let mut bytes = from_values(&request).len();
            for _ in 0..number(2) {
                grow(&mut request);
                bytes += black_box(from_values(&request)).len();
            }
            println!("{bytes}");
        }
        "parse" => {
            let (model, frames) = (openai(), bench_models::stream(number(1)));
            for _ in 0..number(2) {
                let chunks = model.read(true, frames.iter().map(Vec::as_slice));
                check(chunks.last().expect("an end").as_ref().expect("no error"), number(1));
            }
        }
        "time" => time(number(1)),
        other => panic!("there is no {other}"),
    }
}

fn openai() -> HttpModel {
    model("http://localhost/v1#gpt-5").expect("a model")
}

fn check(chunk: &Chunk, chunks: usize) {
    match chunk {
        Chunk::Complete(whole) => {
            assert_eq!(whole.content.as_ref().expect("words").text(), bench_models::said(chunks));
        }
        other => panic!("{other:?}"),
    }
}

/// A conversation of so many messages: questions, calls, answers of tools, and words.
fn conversation(messages: usize) -> ModelRequest {
    let mut request = ModelRequest::new("gpt-5");
    request.instruction.push("agent", "You are a helpful guide. Answer briefly.");
    while request.contents.len() < messages {
        grow(&mut request);
    }
    request
}

/// A turn more: a question, a call, its answer, and words.
fn grow(request: &mut ModelRequest) {
    let object = |value: Value| value.as_object().expect("an object").clone();
    let turn = request.contents.len() / 4;
    let id = format!("call_{turn}");
    let question =
        format!("Question {turn}: what is the weather in Paris, \"today\" and tomorrow?\nPlease be exact.");
    let args = json!({"city": "Paris", "days": [0, 1], "unit": "celsius"});
    let call = FunctionCall::new("get_weather", object(args)).with_id(id.as_str());
    let answer =
        json!({"today": {"sky": "sunny", "high": 24, "low": 13}, "tomorrow": {"sky": "rain", "high": 17}});
    let answer = FunctionResponse::new(Some(id.as_str().into()), "get_weather", object(answer));
    let words =
        format!("Answer {turn}: today it is sunny with up to 24 degrees; tomorrow it rains, with up to 17.");
    request.contents.push(Content::from(question));
    request.contents.push(Content::model(Part::call(call)));
    request.contents.push(Content::user(Part::response(answer)));
    request.contents.push(Content::model(Part::text(words)));
}

/// The same body, built as values and then written.
fn from_values(request: &ModelRequest) -> Vec<u8> {
    let mut messages = vec![json!({"role": "system", "content": request.instruction.text()})];
    for content in &request.contents {
        for response in content.responses() {
            let text = serde_json::to_string(&response.response).expect("JSON");
            messages.push(json!({"role": "tool", "tool_call_id": response.id, "content": text}));
        }
        let calls: Vec<Value> = content
            .calls()
            .map(|call| {
                let arguments = serde_json::to_string(&call.args).expect("JSON");
                let function = json!({"name": call.name, "arguments": arguments});
                json!({"id": call.id, "type": "function", "function": function})
            })
            .collect();
        let text = content.text();
        let by_model = content.role.as_ref().is_some_and(|role| role.as_str() == "model");
        match (by_model, calls.is_empty(), text.is_empty()) {
            (true, false, _) => {
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": calls}))
            }
            (true, true, _) => messages.push(json!({"role": "assistant", "content": text})),
            (false, _, false) => messages.push(json!({"role": "user", "content": text})),
            (false, _, true) => {}
        }
    }
    serde_json::to_vec(&json!({"model": "gpt-5", "messages": messages})).expect("JSON")
}

/// Nanoseconds per byte: the best of several rounds, since others use this machine too.
fn time(messages: usize) {
    let model = openai();
    let mut request = conversation(messages);
    let ours: Value = serde_json::from_slice(&model.body(&request)).expect("JSON");
    let theirs: Value = serde_json::from_slice(&from_values(&request)).expect("JSON");
    assert_eq!(ours, theirs, "the bodies differ");
    let rounds = (200_000 / messages.max(1)).clamp(5, 2_000);
    let (mut first, mut later, mut values) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..rounds {
        let fresh = openai();
        let fresh_request = conversation(messages);
        let begun = Instant::now();
        let bytes = black_box(fresh.body(&fresh_request)).len();
        first = first.min(begun.elapsed().as_nanos() as f64 / bytes as f64);
        let begun = Instant::now();
        let bytes = black_box(from_values(&request)).len();
        values = values.min(begun.elapsed().as_nanos() as f64 / bytes as f64);
        if later == f64::MAX {
            grow(&mut request);
        }
        let begun = Instant::now();
        let bytes = black_box(model.body(&request)).len();
        later = later.min(begun.elapsed().as_nanos() as f64 / bytes as f64);
    }
    let bytes = model.body(&request).len();
    println!(
        "{}",
        json!({"messages": messages, "bytes": bytes, "first": first, "later": later, "values": values})
    );
}
