//! What the tests of all formats share.

use serde_json::{Value, json};
use std::sync::Arc;

use umbel_core::{Chunk, Content, FunctionTool, ModelRequest, Response, Result, ToolSet};
use umbel_models::{HttpModel, model_with};

/// A model by name, with keys that nobody else has.
pub(crate) fn named(name: &str) -> HttpModel {
    model_with(name, |variable| variable.ends_with("_KEY").then(|| "sk-test-1234".to_owned())).unwrap()
}

/// A request with these messages.
pub(crate) fn request(contents: impl IntoIterator<Item = Content>) -> ModelRequest {
    let mut request = ModelRequest::new("m");
    for content in contents {
        request.contents.push(content);
    }
    request
}

/// A message in JSON.
pub(crate) fn content(value: Value) -> Content {
    serde_json::from_value(value).unwrap()
}

/// A tool that tells the weather.
pub(crate) fn weather_tools() -> Arc<ToolSet> {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Args {
        #[allow(dead_code, reason = "only its schema is looked at")]
        city: String,
    }
    let mut tools = ToolSet::new();
    let tool =
        FunctionTool::new("get_weather", "Tells the weather.", |_: Args| async { Ok("sunny".to_owned()) });
    tools.add(Arc::new(tool));
    Arc::new(tools)
}

/// The body of a request, read back. It must be JSON, and the same when it is written a second time.
pub(crate) fn body(model: &HttpModel, request: &ModelRequest) -> Value {
    let bytes = model.body(request);
    assert_eq!(model.body(request), bytes, "the second time it is written otherwise");
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
}

/// A conversation that only grows is sent as the same bytes, and more of them.
pub(crate) fn assert_prefix_grows(model: &HttpModel, contents: &[Content]) {
    let body = |len: usize| model.body(&request(contents[..len].iter().cloned()));
    assert_bodies_grow((1..=contents.len()).map(body));
}

/// Each of these bodies begins with the one before.
pub(crate) fn assert_bodies_grow(bodies: impl IntoIterator<Item = Vec<u8>>) {
    let mut before: Vec<u8> = Vec::new();
    for (at, mut now) in bodies.into_iter().enumerate() {
        // What closes the list and the object comes behind.
        while now.last().is_some_and(|byte| matches!(byte, b']' | b'}')) {
            now.pop();
        }
        // The end of the last message was cut off with it.
        let common = before.iter().zip(&now).take_while(|(a, b)| a == b).count();
        assert_eq!(common, before.len(), "body {at} does not begin with the one before");
        before = now;
    }
}

/// What a model makes of a stream: the same, wherever it is split. Gives the chunks.
pub(crate) fn read_stream(model: &HttpModel, bytes: &[u8]) -> Vec<Result<Chunk>> {
    let whole = model.read(true, [bytes]);
    keep_as_seed(model, bytes);
    let shown = |chunks: &[Result<Chunk>]| stable(&format!("{chunks:?}"));
    for at in 0..=bytes.len() {
        let (head, rest) = bytes.split_at(at);
        assert_eq!(shown(&model.read(true, [head, rest])), shown(&whole), "split at {at}");
    }
    assert_eq!(shown(&model.read(true, bytes.chunks(1))), shown(&whole), "byte by byte");
    whole
}

/// Keeps a stream for `cargo xtask fuzz`, if a folder for that is in the environment.
fn keep_as_seed(model: &HttpModel, bytes: &[u8]) {
    let Some(folder) = std::env::var_os("UMBEL_FUZZ_SEEDS") else { return };
    let shown = format!("{model:?}");
    let provider = shown.split(" at ").nth(1).unwrap_or_default().trim_end_matches(')');
    let folder = std::path::Path::new(&folder).join(provider);
    std::fs::create_dir_all(&folder).unwrap();
    let name =
        format!("{:016x}", bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte)));
    // The first byte says how it comes: streamed, in pieces of seven.
    std::fs::write(folder.join(name), [&[14], bytes].concat()).unwrap();
}

/// Ids that were made up are not the same each time.
fn stable(text: &str) -> String {
    let mut text = text.to_owned();
    for prefix in ["call_", "adk-"] {
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(prefix) {
            let (head, behind) = rest.split_at(at + prefix.len());
            out.push_str(head);
            rest = behind.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        }
        text = out + rest;
    }
    text
}

/// The whole that chunks end with.
pub(crate) fn whole(chunks: &[Result<Chunk>]) -> &Response {
    match chunks.last() {
        Some(Ok(Chunk::Complete(whole))) => whole,
        other => panic!("no whole answer at the end: {other:?}"),
    }
}

/// The parts of an answer, in JSON.
pub(crate) fn parts(response: &Response) -> Value {
    response.content.as_ref().map_or(json!([]), |content| json!(content.parts))
}

/// What a model makes of an answer that was not streamed.
pub(crate) fn read_whole(model: &HttpModel, body: &Value) -> Response {
    let body = body.to_string();
    let chunks = model.read(false, [body.as_bytes()]);
    assert_eq!(chunks.len(), 1, "{chunks:?}");
    // One that breaks off anywhere is cut, and nothing else.
    for at in 0..body.len() {
        let error = model.read(false, [&body.as_bytes()[..at]]).pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), umbel_core::ErrorKind::StreamCut, "cut at {at}: {error}");
    }
    whole(&chunks).clone()
}

/// Frames of server-sent events with these data.
pub(crate) fn sse(frames: &[Value]) -> Vec<u8> {
    frames.iter().map(|frame| format!("data: {frame}\n\n")).collect::<String>().into_bytes()
}

/// What readers see of the words while they come.
pub(crate) fn streamed_text(chunks: &[Result<Chunk>]) -> String {
    chunks
        .iter()
        .filter_map(|chunk| match chunk {
            Ok(Chunk::Text(text)) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}
