//! OpenAI Responses. Nothing is kept at the provider: each request carries the whole conversation, and what the model
//! wants to see again goes back as it came.

mod reader;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use umbel_core::{
    Blob, CallId, Capabilities, Content, FileData, FunctionCall, FunctionResponse, ModelRequest, Object,
    Part, Payload, Role, ToolChoice, ToolSpec,
};

use crate::catalog::Catalog;
use crate::conversation::{NO_ANSWER, Next, orphan_words, response_media, walk, words};
use crate::fragments::{Fragment, Fragments, Piece, call_key};
use crate::json::{self, Fields, array};
use crate::openai_chat::{arguments, audio_format, is_said, thinks};
use crate::schema;
use crate::wire::{Reader, Wire};

/// The key under which parts carry what only this format understands: the `item` that a part came from as a whole, or
/// what else there was to a message or a call.
const OWN: &str = "openaiResponses";

/// The Responses format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenAiResponses;

impl Wire for OpenAiResponses {
    fn path(&self, _request: &ModelRequest) -> String {
        "/responses".to_owned()
    }

    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writing = fragments.begin();
        let mut body = Fields::new(&mut out);
        body.set("model", &request.model);
        let mut settings = settings(request);
        let run_there = settings.shift_remove("tools");
        for (key, value) in &settings {
            body.set(key, value);
        }
        let instruction = request.instruction.text();
        if !instruction.is_empty() {
            body.set("instructions", &instruction);
        }
        let run_there = run_there.as_ref().and_then(Value::as_array).into_iter().flatten();
        let tools = request.tools.iter().filter(|meta| !meta.tool.spec().hidden).map(Ok);
        let mut tools = tools.chain(run_there.map(Err)).peekable();
        if tools.peek().is_some() {
            array(body.key("tools"), tools, |out, tool| match tool {
                Ok(meta) => {
                    let written = writing.tool(&meta.tool, |tool| tool_fragment(tool.spec()));
                    out.extend_from_slice(&written.json);
                }
                Err(value) => json::write(out, value),
            });
        }
        // The conversation comes last: what was sent before is the beginning of what is sent next.
        let input = body.key("input");
        input.push(b'[');
        let takes_thoughts = takes_thoughts(&request.model);
        let write = |content: &Content| items(content, takes_thoughts);
        walk(&request.contents, &mut writing, write, |next| {
            if input.last() != Some(&b'[') {
                input.push(b',');
            }
            match next {
                Next::Piece(fragment, piece) => input.extend_from_slice(fragment.bytes(piece)),
                Next::Unanswered(id, _) => call_output(input, id, |out| json::write(out, NO_ANSWER)),
                Next::Orphan(response) => plain_message(input, "user", &orphan_words(response)),
            }
        });
        input.push(b']');
        drop(body);
        out
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(reader::ResponsesReader::default())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().schema_with_tools().pairs_calls_by_id()
    }
}

/// All that is set besides the conversation and the tools. Under `tools` are those that the provider runs.
fn settings(request: &ModelRequest) -> Object {
    let config = &request.config;
    let mut settings = Object::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings.insert(key.to_owned(), value);
        }
    };
    set("stream", request.stream.then_some(Value::Bool(true)));
    set("store", Some(Value::Bool(false)));
    set("temperature", config.temperature.map(Value::from));
    set("top_p", config.top_p.map(Value::from));
    set("max_output_tokens", config.max_output_tokens.map(Value::from));
    let mut reasoning = Object::new();
    if let Some(effort) = config.thinking.and_then(|thinking| thinking.effort) {
        reasoning.insert("effort".to_owned(), effort.as_str().into());
    }
    if config.thinking.is_some_and(|thinking| thinking.include_thoughts) {
        reasoning.insert("summary".to_owned(), "auto".into());
    }
    set("reasoning", (!reasoning.is_empty()).then_some(Value::Object(reasoning)));
    if config.thinking.is_some() || thinks(&request.model) {
        // Models that do not think refuse to be asked for it.
        set("include", Some(json!(["reasoning.encrypted_content"])));
    }
    let format = match &request.output_schema {
        Some(schema) => Some(json!({
            "type": "json_schema", "name": "answer", "schema": schema, "strict": schema::is_strict(schema),
        })),
        None => (config.response_mime_type.as_deref() == Some("application/json"))
            .then(|| json!({"type": "json_object"})),
    };
    set("text", format.map(|format| json!({"format": format})));
    if request.tools.specs().next().is_some() || config.other.contains_key("tools") {
        set("tool_choice", config.tool_choice.as_ref().map(tool_choice));
        set("parallel_tool_calls", config.parallel_calls.map(Value::Bool));
    }
    set("metadata", (!config.labels.is_empty()).then(|| labels(&config.labels)));
    for (key, value) in &config.other {
        json::add(settings.entry(key.as_str()).or_insert(Value::Null), value);
    }
    settings
}

/// Labels are texts here.
fn labels(labels: &Object) -> Value {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    labels.iter().map(|(key, value)| (key.clone(), Value::from(text(value)))).collect()
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => json!("none"),
        ToolChoice::Any => json!("required"),
        ToolChoice::Tool(name) => json!({"type": "function", "name": name}),
        _ => json!("auto"),
    }
}

fn tool_fragment(spec: &ToolSpec) -> Fragment {
    let mut fragment = Fragment::default();
    fragment.add(Piece::default(), |out| {
        let mut tool = Fields::new(out);
        tool.set("type", "function");
        tool.set("name", &spec.name);
        tool.set("description", &spec.description);
        tool.set("parameters", &spec.parameters);
        // Said either way: what is not said is taken as strict.
        tool.set("strict", &schema::is_strict(&spec.parameters));
    });
    fragment
}

fn plain_message(out: &mut Vec<u8>, role: &str, text: &str) {
    let mut message = Fields::new(out);
    message.set("role", role);
    message.set("content", text);
}

fn call_output(out: &mut Vec<u8>, id: &CallId, output: impl FnOnce(&mut Vec<u8>)) {
    let mut item = Fields::new(out);
    item.set("type", "function_call_output");
    item.set("call_id", id);
    output(item.key("output"));
}

/// Whether thoughts may be sent to a model: one that is known not to think refuses those of another.
fn takes_thoughts(model: &str) -> bool {
    Catalog::known().find("openai", model).is_none_or(|info| info.thinking)
}

/// The items that a message becomes.
fn items(content: &Content, takes_thoughts: bool) -> Fragment {
    let mut fragment = Fragment::of(content);
    for response in content.responses() {
        let id = call_key(response.id.as_ref(), &response.name);
        fragment.add(Piece::answering(response), |out| {
            call_output(out, &id, |out| response_output(out, response));
        });
    }
    match content.role {
        Some(Role::Model) => model_items(content, takes_thoughts, &mut fragment),
        _ => user_item(content, &mut fragment),
    }
    fragment
}

/// What a tool answered: its words, and the media that it gave with them.
fn response_output(out: &mut Vec<u8>, response: &FunctionResponse) {
    let text = json::text(&response.response);
    let media = response_media(response);
    if media.is_empty() {
        return json::write(out, &text);
    }
    let words = Part::text(text);
    array(out, std::iter::once(&words).chain(&media), |out, part| json::write(out, &input_part(part)));
}

/// What a part carries for this format.
fn own(part: &Part) -> Option<&Object> {
    part.unknown(OWN).and_then(Value::as_object)
}

/// The item that a part came from, if it was kept.
fn kept_item(part: &Part) -> Option<&Object> {
    own(part)?.get("item")?.as_object()
}

fn is_reasoning(item: &Object) -> bool {
    item.get("type").is_some_and(|kind| kind == "reasoning")
}

/// Whether a kept item can be sent back.
fn goes_back(item: &Object) -> bool {
    let has = |key: &str| item.get(key).is_some_and(|value| !value.is_null());
    match item.get("type").and_then(Value::as_str).unwrap_or_default() {
        // Nothing is kept there, so that an id alone is of no use.
        "reasoning" => has("encrypted_content") || has("content"),
        // Calls that somebody else than the provider would have to run. They cannot be answered here, and a call without
        // an answer is refused.
        "computer_call"
        | "custom_tool_call"
        | "local_shell_call"
        | "shell_call"
        | "apply_patch_call"
        | "mcp_approval_request" => false,
        kind => !kind.is_empty(),
    }
}

/// Whether a part of the model becomes an item that a thought can lead to.
fn is_led_to(part: &Part) -> bool {
    match (&part.payload, kept_item(part)) {
        (_, Some(item)) => !is_reasoning(item) && goes_back(item),
        (Payload::Call(_), None) => true,
        (_, None) => is_spoken(part),
    }
}

fn is_spoken(part: &Part) -> bool {
    !part.is_thought() && words(part).is_some_and(|words| !words.is_empty())
}

fn model_items(content: &Content, takes_thoughts: bool, fragment: &mut Fragment) {
    // A thought that led to nothing is refused, such as one at which an answer was cut short.
    let last = content.parts.iter().rposition(is_led_to).unwrap_or_default();
    let goes =
        |at: usize, item: &Object| goes_back(item) && (!is_reasoning(item) || (takes_thoughts && at < last));
    let mut thoughts = content.parts.iter().enumerate().filter_map(|(at, part)| Some((at, kept_item(part)?)));
    // An item with an id is refused without the thought that led to it, which somebody may have taken out.
    let with_ids = thoughts.any(|(at, item)| is_reasoning(item) && goes(at, item));
    let mut at = 0;
    while let Some(part) = content.parts.get(at) {
        let here = at;
        at += 1;
        match (&part.payload, kept_item(part)) {
            (_, Some(item)) if goes(here, item) => {
                fragment.add(Piece::default(), |out| kept(out, item, &part.payload));
            }
            (_, Some(_)) => {}
            (Payload::Call(call), None) => {
                let more = own(part).filter(|_| with_ids);
                fragment.add(Piece::with_calls([&**call]), |out| function_call(out, call, more));
            }
            _ if is_spoken(part) => {
                let id = |part: &Part| own(part).and_then(|own| own.get("id")).cloned();
                let rest = content.parts.get(at..).unwrap_or_default().iter();
                at += rest.take_while(|next| is_spoken(next) && id(next) == id(part)).count();
                let message = content.parts.get(here..at).unwrap_or_default();
                fragment.add(Piece::default(), |out| output_message(out, message, with_ids));
            }
            _ => {}
        }
    }
}

/// An item as it came. An image is kept as a part, and not a second time in the item.
fn kept(out: &mut Vec<u8>, item: &Object, payload: &Payload) {
    let mut written = Fields::new(out);
    for (key, value) in item {
        written.set(key, value);
    }
    if let Payload::InlineData(blob) = payload {
        written.set("result", &STANDARD.encode(&blob.data));
    }
}

fn function_call(out: &mut Vec<u8>, call: &FunctionCall, more: Option<&Object>) {
    let id = call_key(call.id.as_ref(), &call.name);
    let mut item = Fields::new(out);
    item.set("type", "function_call");
    for (key, value) in more.into_iter().flatten() {
        item.set(key, value);
    }
    item.set("call_id", &id);
    item.set("name", &call.name);
    item.set("arguments", &arguments(call));
}

/// What the model said: as the message that it was, if its id is to be sent, or else as words.
fn output_message(out: &mut Vec<u8>, parts: &[Part], with_ids: bool) {
    let own = parts.first().and_then(own);
    let mut message = Fields::new(out);
    message.set("type", "message");
    message.set("role", "assistant");
    let Some(own) = own.filter(|own| with_ids && own.contains_key("id")) else {
        let text: String = parts.iter().filter_map(words).collect();
        message.maybe("phase", own.and_then(|own| own.get("phase")));
        return message.set("content", &text);
    };
    for (key, value) in own.iter().filter(|(key, _)| *key != "refusal") {
        message.set(key, value);
    }
    array(message.key("content"), parts, |out, part| {
        let text = words(part).unwrap_or_default();
        let refused = part.unknown(OWN).is_some_and(|own| own.get("refusal").is_some());
        json::write(
            out,
            &match refused {
                true => json!({"type": "refusal", "refusal": text}),
                false => json!({"type": "output_text", "text": text, "annotations": []}),
            },
        );
    });
}

fn user_item(content: &Content, fragment: &mut Fragment) {
    let parts: Vec<&Part> = content.parts.iter().filter(|part| is_said(part)).collect();
    if parts.is_empty() {
        return;
    }
    fragment.add(Piece::default(), |out| {
        let mut message = Fields::new(out);
        message.set("role", "user");
        match parts.as_slice() {
            [Part { payload: Payload::Text(text), .. }] => message.set("content", text),
            parts => array(message.key("content"), parts, |out, part| json::write(out, &input_part(part))),
        }
    });
}

fn input_part(part: &Part) -> Value {
    match &part.payload {
        Payload::InlineData(blob) => blob_part(blob),
        Payload::FileData(file) => file_part(file),
        _ => json!({"type": "input_text", "text": words(part).unwrap_or_default()}),
    }
}

fn blob_part(blob: &Blob) -> Value {
    let kind = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
    let data = || STANDARD.encode(&blob.data);
    let file = || {
        let name = blob.display_name.as_deref().unwrap_or("file");
        let url = format!("data:{kind};base64,{}", data());
        json!({"type": "input_file", "filename": name, "file_data": url})
    };
    match kind.split_once('/') {
        Some(("image", _)) => {
            let url = format!("data:{kind};base64,{}", data());
            json!({"type": "input_image", "detail": "auto", "image_url": url})
        }
        Some(("audio", format)) => {
            json!({"type": "input_audio", "input_audio": {"data": data(), "format": audio_format(format)}})
        }
        Some(("text", _)) => match std::str::from_utf8(&blob.data) {
            Ok(text) => json!({"type": "input_text", "text": text}),
            Err(_) => file(),
        },
        _ => file(),
    }
}

/// A file somewhere else: at an address, or kept at the provider by an id, which has no colon in it.
fn file_part(file: &FileData) -> Value {
    let uri = file.file_uri.as_deref().unwrap_or_default();
    let is_image = file.mime_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    let is_web = uri.starts_with("http://") || uri.starts_with("https://");
    match (is_image, uri.contains(':')) {
        (true, true) => json!({"type": "input_image", "detail": "auto", "image_url": uri}),
        (true, false) => json!({"type": "input_image", "detail": "auto", "file_id": uri}),
        (false, true) if is_web => json!({"type": "input_file", "file_url": uri}),
        (false, true) => json!({"type": "input_text", "text": format!("[file: {uri}]")}),
        (false, false) => json!({"type": "input_file", "file_id": uri}),
    }
}
