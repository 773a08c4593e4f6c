//! Ollama's own format.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    CallId, Capabilities, Content, Effort, FunctionCall, Ids, ModelRequest, Object, Part, Payload, RandomIds,
    Result, Role, Thinking, ToolSpec, Usage,
};

use crate::answer::Answer;
use crate::conversation::{self, NO_ANSWER, Next, orphan_words, response_media, walk};
use crate::endpoint::{Endpoint, Key, Secret};
use crate::failure;
use crate::fragments::{Fragment, Fragments, Piece};
use crate::frames::{Framing, unreadable};
use crate::http_model::HttpModel;
use crate::json::{self, Fields, array};
use crate::wire::{Reader, Wire};

/// The key under which parts carry what only this format understands.
const OWN: &str = "ollama";

/// Other settings that stand in the body itself. All the rest are options.
const BODY_KEYS: [&str; 7] =
    ["keep_alive", "think", "format", "logprobs", "top_logprobs", "truncate", "shift"];

/// Where Ollama listens, unless it was told otherwise.
const PORT: &str = "11434";

/// A model at Ollama, as the environment says.
pub(crate) fn model(name: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<HttpModel> {
    let mut endpoint = Endpoint::new("ollama", base(environment("OLLAMA_HOST").as_deref()));
    if let Some(key) = environment("OLLAMA_API_KEY") {
        endpoint.key = Key::Bearer(Secret(key.trim().to_owned()));
    }
    HttpModel::new(name, Ollama, endpoint)
}

/// The address, in all the forms that the variable may have.
fn base(host: Option<&str>) -> String {
    let host = host.unwrap_or_default().trim().trim_end_matches('/');
    if host.contains("://") {
        return host.to_owned();
    }
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => (name, port),
        _ => (host, ""),
    };
    // All addresses of a machine are what a server listens on, not where it is found.
    let name = if matches!(name, "" | "0.0.0.0" | "[::]") { "localhost" } else { name };
    format!("http://{name}:{}", if port.is_empty() { PORT } else { port })
}

/// Ollama's format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ollama;

impl Wire for Ollama {
    fn path(&self, _request: &ModelRequest) -> String {
        "/api/chat".to_owned()
    }

    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writing = fragments.begin();
        let mut body = Fields::new(&mut out);
        let other = &request.config.other;
        body.set("model", &request.model);
        body.set("stream", &request.stream);
        let settings = [("think", request.config.thinking.map(think)), ("format", format(request))];
        for (key, value) in settings {
            body.maybe(key, value.filter(|_| !other.contains_key(key)));
        }
        for key in BODY_KEYS {
            body.maybe(key, other.get(key));
        }
        let options = options(request);
        body.maybe("options", (!options.is_empty()).then_some(options));
        let mut tools = request.tools.iter().filter(|meta| !meta.tool.spec().hidden).peekable();
        if tools.peek().is_some() {
            array(body.key("tools"), tools, |out, meta| {
                let written = writing.tool(&meta.tool, |tool| tool_fragment(tool.spec()));
                out.extend_from_slice(&written.json);
            });
        }
        // The conversation comes last: what was sent before is the beginning of what is sent next.
        let messages = body.key("messages");
        messages.push(b'[');
        let instruction = request.instruction.text();
        if !instruction.is_empty() {
            plain_message(messages, "system", &instruction);
        }
        walk(&request.contents, &mut writing, message, |next| {
            if messages.last() != Some(&b'[') {
                messages.push(b',');
            }
            match next {
                Next::Piece(fragment, piece) => messages.extend_from_slice(fragment.bytes(piece)),
                Next::Unanswered(id, name) => {
                    let id = Some(id).filter(|id| id.as_str() != name.as_str()).cloned();
                    tool_message(messages, id.as_ref(), name, NO_ANSWER);
                }
                Next::Orphan(response) => plain_message(messages, "user", &orphan_words(response)),
            }
        });
        messages.push(b']');
        drop(body);
        out
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(OllamaReader::default())
    }

    fn capabilities(&self) -> Capabilities {
        // Ids of ours are left out as they are written: another model may need them.
        Capabilities::default().pairs_calls_by_id()
    }
}

/// Whether to think: most models know yes and no, some how hard.
fn think(thinking: Thinking) -> Value {
    match (thinking.effort, thinking.budget) {
        (_, Some(0)) => json!(false),
        (Some(Effort::Minimal), _) => json!("low"),
        (Some(effort), _) => json!(effort.as_str()),
        (None, Some(_)) => json!(true),
        (None, None) => json!(thinking.include_thoughts),
    }
}

fn format(request: &ModelRequest) -> Option<Value> {
    match &request.output_schema {
        Some(schema) => Some((**schema).clone()),
        None => {
            (request.config.response_mime_type.as_deref() == Some("application/json")).then(|| json!("json"))
        }
    }
}

fn options(request: &ModelRequest) -> Object {
    let config = &request.config;
    let mut out = Object::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            out.insert(key.to_owned(), value);
        }
    };
    set("temperature", config.temperature.map(Value::from));
    set("top_p", config.top_p.map(Value::from));
    set("top_k", config.top_k.map(Value::from));
    set("num_predict", config.max_output_tokens.map(Value::from));
    set("stop", (!config.stop_sequences.is_empty()).then(|| json!(config.stop_sequences)));
    set("seed", config.seed.map(Value::from));
    set("presence_penalty", config.presence_penalty.map(Value::from));
    set("frequency_penalty", config.frequency_penalty.map(Value::from));
    for (key, value) in &config.other {
        match (key.as_str(), value) {
            ("options", Value::Object(more)) => out.extend(more.clone()),
            (key, _) if BODY_KEYS.contains(&key) => {}
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    out
}

fn tool_fragment(spec: &ToolSpec) -> Fragment {
    let mut fragment = Fragment::default();
    fragment.add(Piece::default(), |out| {
        let mut tool = Fields::new(out);
        tool.set("type", "function");
        let mut function = tool.object("function");
        function.set("name", &spec.name);
        function.set("description", &spec.description);
        function.set("parameters", &spec.parameters);
    });
    fragment
}

fn plain_message(out: &mut Vec<u8>, role: &str, text: &str) {
    let mut message = Fields::new(out);
    message.set("role", role);
    message.set("content", text);
}

fn tool_message(out: &mut Vec<u8>, id: Option<&CallId>, name: &SmolStr, text: &str) {
    let mut message = Fields::new(out);
    message.set("role", "tool");
    message.set("tool_name", name);
    message.maybe("tool_call_id", id.filter(|id| !id.is_client()));
    message.set("content", text);
}

/// The messages that a message of ours becomes: one for each answer of a tool, and one for the rest.
fn message(content: &Content) -> Fragment {
    let mut fragment = Fragment::of(content);
    for response in content.responses() {
        fragment.add(Piece::answering(response), |out| {
            tool_message(out, response.id.as_ref(), &response.name, &json::text(&response.response));
        });
    }
    match content.role {
        Some(Role::Model) => assistant_message(content, &mut fragment),
        _ => user_message(content, &mut fragment),
    }
    fragment
}

fn assistant_message(content: &Content, fragment: &mut Fragment) {
    let text: String = content.parts.iter().filter(|part| !part.is_thought()).filter_map(words).collect();
    let is_own = |part: &&Part| part.is_thought() && part.unknown(OWN).is_some();
    let thoughts: String = content.parts.iter().filter(is_own).filter_map(Part::as_text).collect();
    let calls: Vec<&FunctionCall> = content.calls().collect();
    if text.is_empty() && thoughts.is_empty() && calls.is_empty() {
        return;
    }
    fragment.add(Piece::with_calls(calls.iter().copied()), |out| {
        let mut message = Fields::new(out);
        message.set("role", "assistant");
        message.set("content", &text);
        message.maybe("thinking", (!thoughts.is_empty()).then_some(&thoughts));
        if !calls.is_empty() {
            array(message.key("tool_calls"), &calls, |out, call| tool_call(out, call));
        }
    });
}

fn tool_call(out: &mut Vec<u8>, call: &FunctionCall) {
    let mut wire = Fields::new(out);
    wire.maybe("id", call.id.as_ref().filter(|id| !id.is_client()));
    wire.set("type", "function");
    let mut function = wire.object("function");
    function.set("name", &call.name);
    match &call.args {
        Some(args) => function.set("arguments", args),
        None => function.set("arguments", &json!({})),
    }
}

/// A message of the user. Images stand apart from the words; media of other kinds are named, since models here do not
/// take them.
fn user_message(content: &Content, fragment: &mut Fragment) {
    // Answers of tools are text here, so their media follow as a message.
    let media: Vec<Part> = content.responses().flat_map(response_media).collect();
    let said = content.parts.iter().filter(|part| !part.is_thought()).chain(&media);
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for part in said {
        match &part.payload {
            Payload::InlineData(blob) if is_image(blob.mime_type.as_deref()) => {
                images.push(STANDARD.encode(&blob.data));
            }
            _ => texts.extend(words(part).filter(|text| !text.is_empty())),
        }
    }
    if texts.is_empty() && images.is_empty() {
        return;
    }
    fragment.add(Piece::default(), |out| {
        let mut message = Fields::new(out);
        message.set("role", "user");
        message.set("content", &texts.join("\n"));
        message.maybe("images", (!images.is_empty()).then_some(images));
    });
}

fn is_image(kind: Option<&str>) -> bool {
    kind.is_some_and(|kind| kind.starts_with("image/"))
}

/// A part as words, if that is what it is or can be. Media are named.
fn words(part: &Part) -> Option<Cow<'_, str>> {
    match &part.payload {
        Payload::InlineData(blob) => {
            let kind = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
            let text = std::str::from_utf8(&blob.data).ok().filter(|_| kind.starts_with("text/"));
            let name = || format!("[file: {} ({kind})]", blob.display_name.as_deref().unwrap_or("unnamed"));
            Some(text.map_or_else(|| Cow::Owned(name()), Cow::Borrowed))
        }
        Payload::FileData(file) => {
            Some(Cow::Owned(format!("[file: {}]", file.file_uri.as_deref().unwrap_or_default())))
        }
        _ => conversation::words(part),
    }
}

#[derive(Debug, Default)]
struct OllamaReader {
    logprobs: Vec<Value>,
}

/// A line, or the whole.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Line<'a> {
    model: Option<SmolStr>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    done: Option<bool>,
    #[serde(borrow)]
    done_reason: Option<Cow<'a, str>>,
    prompt_eval_count: Option<u64>,
    eval_count: Option<u64>,
    logprobs: Option<Vec<Value>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    /// The same, from servers that stand in for Ollama.
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

impl OllamaReader {
    /// Takes a line. Says whether it is the last.
    fn line(&mut self, data: &str, answer: &mut Answer) -> Result<bool> {
        let read: Line<'_> = serde_json::from_str(data)
            .map_err(|error| unreadable("a line of the answer cannot be read").with_source(error))?;
        if let Some(error) = read.error {
            return Err(failure::in_stream("ollama", error.get()));
        }
        if read.message.is_none() && read.done.is_none() {
            answer.keep_unknown(data);
        }
        if read.model.is_some() {
            answer.meta.model_version = read.model;
        }
        if let Some(message) = read.message {
            said(&message, answer)?;
        }
        self.logprobs.extend(read.logprobs.into_iter().flatten());
        if read.done != Some(true) {
            return Ok(false);
        }
        if read.prompt_eval_count.is_some() || read.eval_count.is_some() {
            let sum = read
                .prompt_eval_count
                .unwrap_or_default()
                .saturating_add(read.eval_count.unwrap_or_default());
            answer.meta.usage_metadata = Some(Usage {
                prompt_token_count: read.prompt_eval_count,
                candidates_token_count: read.eval_count,
                total_token_count: Some(sum),
                ..Usage::default()
            });
        }
        // Older servers do not say why.
        let word = read.done_reason.as_deref().unwrap_or("stop");
        answer.stop(word, if word == "length" { "MAX_TOKENS" } else { "STOP" });
        if !self.logprobs.is_empty() {
            answer.tell("logprobsResult", std::mem::take(&mut self.logprobs));
        }
        answer.finish();
        Ok(true)
    }
}

fn said(message: &Message<'_>, answer: &mut Answer) -> Result<()> {
    if let Some(thought) = message.thinking.as_ref().or(message.reasoning_content.as_ref()) {
        answer.think(thought, OWN, || json!({}))?;
    }
    if let Some(words) = &message.content {
        answer.say(false, words)?;
    }
    for call in message.tool_calls.iter().flatten() {
        let id = call.id.as_deref().filter(|id| !id.is_empty());
        let id = id.map_or_else(|| RandomIds.call(), CallId::from);
        let slot = answer.begin_call(id.as_str(), &call.function.name);
        let arguments = call.function.arguments.map_or("", RawValue::get);
        // Arguments are an object. Some servers that stand in for Ollama write it as a text.
        match serde_json::from_str::<String>(arguments) {
            Ok(text) => answer.push(slot, &text)?,
            Err(_) => answer.push(slot, arguments)?,
        }
        answer.end(slot);
    }
    Ok(())
}

impl Reader for OllamaReader {
    fn frame(&mut self, _event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        self.line(data, answer).map(drop)
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        match self.line(body, answer)? {
            true => Ok(()),
            false => Err(unreadable("the answer has no end")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_may_be_written_in_many_ways() {
        for (host, expected) in [
            (None, "http://localhost:11434"),
            (Some("0.0.0.0"), "http://localhost:11434"),
            (Some(":8080"), "http://localhost:8080"),
            (Some("10.0.0.7:8080"), "http://10.0.0.7:8080"),
            (Some("box"), "http://box:11434"),
            (Some("[::1]"), "http://[::1]:11434"),
            (Some("[::1]:80"), "http://[::1]:80"),
            (Some("https://ollama.com/"), "https://ollama.com"),
        ] {
            assert_eq!(base(host), expected, "{host:?}");
        }
    }
}
