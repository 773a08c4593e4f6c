//! Chat completions: the format of OpenAI that nearly everybody speaks.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    Blob, CallId, Capabilities, Content, FileData, FunctionCall, FunctionResponse, ModelRequest, Part,
    Payload, Result, Role, ToolChoice, ToolSpec, Usage,
};

use crate::answer::{Answer, SlotId};
use crate::conversation::{NO_ANSWER, Next, orphan_words, walk};
use crate::failure;
use crate::fragments::{Fragment, Fragments, Piece};
use crate::frames::unreadable;
use crate::json::{self, Fields, array};
use crate::schema;
use crate::wire::{Reader, Wire};

/// The key under which parts carry what only this format understands.
const OWN: &str = "openaiChat";

/// Chat completions, as this provider speaks them.
#[derive(Clone, Debug)]
pub(crate) struct OpenAiChat {
    pub(crate) provider: &'static str,
    /// What the longest answer is called: newer models refuse the old name, other servers do not know the new one.
    pub(crate) max_tokens: &'static str,
}

impl OpenAiChat {
    pub(crate) fn openai() -> Self {
        Self { provider: "openai", max_tokens: "max_completion_tokens" }
    }

    pub(crate) fn compatible(provider: &'static str) -> Self {
        Self { provider, max_tokens: "max_tokens" }
    }

    fn config(&self, body: &mut Fields<'_>, request: &ModelRequest) {
        let config = &request.config;
        body.maybe("temperature", config.temperature);
        body.maybe("top_p", config.top_p);
        body.maybe("top_k", config.top_k);
        body.maybe(self.max_tokens, config.max_output_tokens);
        body.maybe("stop", (!config.stop_sequences.is_empty()).then_some(&config.stop_sequences));
        body.maybe("seed", config.seed);
        body.maybe("presence_penalty", config.presence_penalty);
        body.maybe("frequency_penalty", config.frequency_penalty);
        let effort = config.thinking.and_then(|thinking| thinking.effort);
        body.maybe("reasoning_effort", effort.map(umbel_core::Effort::as_str));
        let format = match &request.output_schema {
            Some(schema) => Some(json!({
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": schema::is_strict(schema)},
            })),
            None if config.response_mime_type.as_deref() == Some("application/json") => {
                Some(json!({"type": "json_object"}))
            }
            None => None,
        };
        body.maybe("response_format", format);
        if request.tools.specs().next().is_some() {
            body.maybe("tool_choice", config.tool_choice.as_ref().map(tool_choice));
            body.maybe("parallel_tool_calls", config.parallel_calls);
        }
        for (key, value) in &config.other {
            body.set(key, value);
        }
    }
}

impl Wire for OpenAiChat {
    fn path(&self, _request: &ModelRequest) -> String {
        "/chat/completions".to_owned()
    }

    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writing = fragments.begin();
        let mut body = Fields::new(&mut out);
        body.set("model", &request.model);
        if request.stream {
            body.set("stream", &true);
            body.set("stream_options", &json!({"include_usage": true}));
        }
        self.config(&mut body, request);
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
                Next::Unanswered(id, _) => tool_message(messages, id, NO_ANSWER),
                Next::Orphan(response) => plain_message(messages, "user", &orphan_words(response)),
            }
        });
        messages.push(b']');
        drop(body);
        out
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ChatReader { provider: self.provider, ..ChatReader::default() })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().schema_with_tools().pairs_calls_by_id()
    }
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => json!("none"),
        ToolChoice::Any => json!("required"),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
        _ => json!("auto"),
    }
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

fn tool_message(out: &mut Vec<u8>, id: &CallId, text: &str) {
    let mut message = Fields::new(out);
    message.set("role", "tool");
    message.set("tool_call_id", id);
    message.set("content", text);
}

/// The messages that a message of ours becomes: one for each answer of a tool, and one for the rest.
fn message(content: &Content) -> Fragment {
    let mut fragment = Fragment::of(content);
    for response in content.responses() {
        let id = response.id.clone().unwrap_or_else(|| response.name.as_str().into());
        fragment
            .add(Piece::answering(Some(&id)), |out| tool_message(out, &id, &json::text(&response.response)));
    }
    match content.role {
        Some(Role::Model) => assistant_message(content, &mut fragment),
        _ => user_message(content, &mut fragment),
    }
    fragment
}

fn assistant_message(content: &Content, fragment: &mut Fragment) {
    let text: String = content.parts.iter().filter(|part| !part.is_thought()).filter_map(words).collect();
    let calls: Vec<&FunctionCall> = content.calls().collect();
    if text.is_empty() && calls.is_empty() {
        return;
    }
    fragment.add(Piece::with_calls(calls.iter().copied()), |out| {
        let mut message = Fields::new(out);
        message.set("role", "assistant");
        message.set("content", &Some(&text).filter(|text| !text.is_empty()));
        for part in &content.parts {
            let Some(Value::Object(own)) = part.unknown(OWN) else { continue };
            for (key, value) in own {
                // Thoughts are wanted back as long as the calls that they led to are under way.
                match (key.as_str(), part.as_text()) {
                    ("thoughtIn", Some(thought)) if !calls.is_empty() => {
                        message.set(value.as_str().unwrap_or("reasoning_content"), thought);
                    }
                    ("thoughtIn", _) => {}
                    _ => message.set(key, value),
                }
            }
        }
        if !calls.is_empty() {
            array(message.key("tool_calls"), &calls, |out, call| tool_call(out, call));
        }
    });
}

fn tool_call(out: &mut Vec<u8>, call: &FunctionCall) {
    let id = call.id.clone().unwrap_or_else(|| call.name.as_str().into());
    let mut wire = Fields::new(out);
    wire.set("id", &id);
    wire.set("type", "function");
    let mut function = wire.object("function");
    function.set("name", &call.name);
    match (call.unreadable_args(), &call.args) {
        (Some(text), _) => function.set("arguments", text),
        (None, Some(args)) => function.set("arguments", &json::text(args)),
        (None, None) => function.set("arguments", "{}"),
    }
}

fn user_message(content: &Content, fragment: &mut Fragment) {
    let said: Vec<&Part> = content.parts.iter().filter(|part| is_said(part)).collect();
    let media = content.responses().flat_map(response_media).collect::<Vec<Part>>();
    let parts: Vec<&Part> = said.into_iter().chain(&media).collect();
    if parts.is_empty() {
        return;
    }
    fragment.add(Piece::default(), |out| {
        let mut message = Fields::new(out);
        message.set("role", "user");
        match parts.as_slice() {
            [Part { payload: Payload::Text(text), .. }] => message.set("content", text),
            parts => array(message.key("content"), parts, |out, part| user_part(out, part)),
        }
    });
}

/// Whether a part of a user's message is anything to be sent.
fn is_said(part: &Part) -> bool {
    match &part.payload {
        Payload::Text(text) => !text.is_empty() && !part.is_thought(),
        Payload::InlineData(_) | Payload::FileData(_) | Payload::Code(_) | Payload::CodeResult(_) => true,
        _ => false,
    }
}

/// Media that a tool answered with. An answer is text here, so they follow it as a message.
fn response_media(response: &FunctionResponse) -> Vec<Part> {
    let parts = response.unknown.get("parts").cloned().unwrap_or_default();
    serde_json::from_value(parts).unwrap_or_default()
}

/// A part as words, if that is what it is or can be.
fn words(part: &Part) -> Option<Cow<'_, str>> {
    match &part.payload {
        Payload::Text(text) => Some(Cow::Borrowed(text)),
        Payload::Code(code) => {
            let language = code.language.as_deref().unwrap_or_default().to_lowercase();
            let code = code.code.as_deref().unwrap_or_default();
            Some(Cow::Owned(format!("\n```{language}\n{code}\n```\n")))
        }
        Payload::CodeResult(result) => {
            let output = result.output.as_deref().unwrap_or_default();
            Some(Cow::Owned(format!("\n```\n{output}\n```\n")))
        }
        _ => None,
    }
}

fn user_part(out: &mut Vec<u8>, part: &Part) {
    let value = match &part.payload {
        Payload::InlineData(blob) => blob_part(blob),
        Payload::FileData(file) => file_part(file),
        _ => json!({"type": "text", "text": words(part).unwrap_or_default()}),
    };
    json::write(out, &value);
}

fn blob_part(blob: &Blob) -> Value {
    let kind = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
    let data = STANDARD.encode(&blob.data);
    match kind.split_once('/') {
        Some(("image", _)) => {
            json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{data}")}})
        }
        Some(("audio", format)) => {
            let format = if format.starts_with("mp") { "mp3" } else { format.trim_start_matches("x-") };
            json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
        }
        Some(("text", _)) => match std::str::from_utf8(&blob.data) {
            Ok(text) => json!({"type": "text", "text": text}),
            Err(_) => file_of(blob, kind, &data),
        },
        _ => file_of(blob, kind, &data),
    }
}

fn file_of(blob: &Blob, kind: &str, data: &str) -> Value {
    let name = blob.display_name.as_deref().unwrap_or("file");
    json!({"type": "file", "file": {"filename": name, "file_data": format!("data:{kind};base64,{data}")}})
}

fn file_part(file: &FileData) -> Value {
    let uri = file.file_uri.as_deref().unwrap_or_default();
    let is_image = file.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    if is_image {
        json!({"type": "image_url", "image_url": {"url": uri}})
    } else if uri.contains(':') {
        json!({"type": "text", "text": format!("[file: {uri}]")})
    } else {
        json!({"type": "file", "file": {"file_id": uri}})
    }
}

#[derive(Debug, Default)]
struct ChatReader {
    provider: &'static str,
    /// The calls by their number.
    calls: Vec<(u64, SmolStr, SlotId)>,
    stopped: bool,
    refused: bool,
    logprobs: Vec<Value>,
    annotations: Vec<Value>,
}

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(default, borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    model: Option<SmolStr>,
    #[serde(default)]
    service_tier: Option<SmolStr>,
    #[serde(default)]
    citations: Option<Value>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(default, borrow, alias = "message")]
    delta: Option<Delta<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
struct Delta<'a> {
    #[serde(default, borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(default)]
    reasoning_details: Option<Vec<Value>>,
    #[serde(default, borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<ToolCallDelta<'a>>>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct ToolCallDelta<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function: FunctionDelta<'a>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta<'a> {
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    arguments: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl Tokens {
    fn usage(&self) -> Usage {
        let cached = self.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let thoughts = self.completion_tokens_details.as_ref().and_then(|details| details.reasoning_tokens);
        let sum = |thoughts: u64| Some(self.prompt_tokens? + self.completion_tokens? + thoughts);
        // Most count thoughts as part of the answer; with some they come on top.
        let on_top = thoughts
            .filter(|thoughts| *thoughts > 0)
            .is_some_and(|thoughts| sum(thoughts) == self.total_tokens);
        let within = if on_top { 0 } else { thoughts.unwrap_or_default() };
        Usage {
            prompt_token_count: self.prompt_tokens,
            candidates_token_count: self.completion_tokens.map(|all| all.saturating_sub(within)),
            total_token_count: self.total_tokens.or_else(|| sum(0)),
            cached_content_token_count: cached.or(self.prompt_cache_hit_tokens),
            thoughts_token_count: thoughts,
            ..Usage::default()
        }
    }
}

impl ChatReader {
    fn completion(&mut self, data: &str, answer: &mut Answer) -> Result<()> {
        let read: Completion<'_> = serde_json::from_str(data)
            .map_err(|error| unreadable("a frame of the answer cannot be read").with_source(error))?;
        if let Some(error) = read.error {
            return Err(self.failure(error.get()));
        }
        if let Some(model) = read.model.filter(|model| !model.is_empty()) {
            answer.meta.model_version = Some(model);
        }
        if let Some(tokens) = read.usage {
            answer.meta.usage_metadata = Some(tokens.usage());
        }
        if let Some(tier) = read.service_tier {
            answer.tell("serviceTier", tier.as_str());
        }
        if let Some(citations) = read.citations.filter(|citations| !citations.is_null()) {
            answer.meta.citation_metadata = Some(json!({"citations": citations}));
        }
        for choice in read.choices.into_iter().filter(|choice| choice.index == 0) {
            self.choice(choice, answer)?;
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice<'_>, answer: &mut Answer) -> Result<()> {
        if let Some(delta) = choice.delta {
            self.delta(delta, answer)?;
        }
        if let Some(content) = choice.logprobs.and_then(|logprobs| logprobs.content) {
            self.logprobs.extend(content);
        }
        if let Some(word) = choice.finish_reason {
            let reason = match &*word {
                _ if self.refused => "REFUSAL",
                "length" => "MAX_TOKENS",
                "content_filter" => "SAFETY",
                "error" => return Err(self.failure("{\"message\":\"the model failed\"}")),
                _ => "STOP",
            };
            answer.stop(&word, reason);
            self.stopped = true;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, answer: &mut Answer) -> Result<()> {
        if let Some(thought) = &delta.reasoning_content {
            answer.think(thought, OWN, || json!({"thoughtIn": "reasoning_content"}))?;
        } else if let Some(thought) = &delta.reasoning {
            answer.think(thought, OWN, || json!({"thoughtIn": "reasoning"}))?;
        }
        for detail in delta.reasoning_details.into_iter().flatten() {
            answer.opaque(OWN, json!({"reasoning_details": [detail]}));
        }
        if let Some(words) = &delta.content {
            answer.say(false, words)?;
        }
        if let Some(words) = delta.refusal.filter(|words| !words.is_empty()) {
            self.refused = true;
            answer.say(false, &words)?;
        }
        for (place, call) in delta.tool_calls.into_iter().flatten().enumerate() {
            self.tool_call(place, &call, answer)?;
        }
        self.annotations.extend(delta.annotations.into_iter().flatten());
        Ok(())
    }

    fn tool_call(&mut self, place: usize, call: &ToolCallDelta<'_>, answer: &mut Answer) -> Result<()> {
        let number = call.index.unwrap_or(place as u64);
        let id = call.id.as_deref().unwrap_or_default();
        // Some give each call the same number, and only the id tells that another begins.
        let known = self.calls.iter().rev().find(|(at, _, _)| *at == number);
        let slot = match known.filter(|(_, before, _)| id.is_empty() || before == id) {
            Some((_, _, slot)) => *slot,
            None => {
                let name = call.function.name.as_deref().unwrap_or_default();
                let slot = answer.begin_call(id, name);
                self.calls.push((number, id.into(), slot));
                slot
            }
        };
        answer.push(slot, call.function.arguments.as_deref().unwrap_or_default())
    }

    fn finish(&mut self, answer: &mut Answer) {
        if !self.logprobs.is_empty() {
            answer.tell("logprobsResult", std::mem::take(&mut self.logprobs));
        }
        if !self.annotations.is_empty() {
            let citations = json!({"citations": std::mem::take(&mut self.annotations)});
            answer.meta.citation_metadata = Some(citations);
        }
        answer.finish();
    }

    /// A failure in the middle of an answer.
    fn failure(&self, error: &str) -> umbel_core::Error {
        failure::in_stream(self.provider, error)
    }
}

impl Reader for ChatReader {
    fn frame(&mut self, _event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        if data.trim() == "[DONE]" {
            if self.stopped {
                self.finish(answer);
            }
            return Ok(());
        }
        self.completion(data, answer)
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        self.completion(body, answer)?;
        if !self.stopped {
            return Err(unreadable("the answer has no message in it"));
        }
        self.finish(answer);
        Ok(())
    }

    fn end(&mut self, answer: &mut Answer) -> Result<()> {
        // Not all say that they are done.
        if self.stopped {
            self.finish(answer);
        }
        Ok(())
    }
}
