//! Anthropic's Messages.
//!
//! `blocks.rs` turns parts into blocks, `messages.rs` puts blocks into messages and marks what is to be kept in the
//! provider's cache, `thinking.rs` knows what models of which age can be told, and `reader.rs` reads answers.

mod blocks;
mod messages;
mod reader;
mod thinking;

use serde_json::{Value, json};
use umbel_core::{Capabilities, Content, GenerateConfig, ModelRequest, Object, ToolChoice, ToolSpec};

use self::messages::{Messages, mark};
use self::reader::MessageReader;
use crate::catalog::{Catalog, ModelInfo};
use crate::conversation::walk;
use crate::fragments::{Fragment, Fragments, Piece, Writing};
use crate::json::{self, Fields, array};
use crate::schema;
use crate::wire::{Reader, Wire};

/// The key under which parts carry what only this format understands:
///
/// - on a thought `model`, who thought it. The signature is the part's own;
/// - on a text `citations`, what it rests on;
/// - on a call `caller`, if that was not the model itself;
/// - on an empty part `block`, a block of a kind that is not known here, as it came; with `model` if no other model may
///   see it.
const OWN: &str = "anthropic";

/// Settings that have a place of their own in a request, so they are not sent as they stand.
const PLACED: [&str; 6] = ["cache_control", "messages", "model", "output_config", "system", "tools"];

/// Messages, as Anthropic and some others speak them.
#[derive(Clone, Debug)]
pub(crate) struct Anthropic;

impl Wire for Anthropic {
    fn path(&self, _request: &ModelRequest) -> String {
        "/messages".to_owned()
    }

    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writing = fragments.begin();
        let cache = cache_mark(&request.config);
        let info = Catalog::known().find("anthropic", &request.model);
        let can_be_held = info.is_none_or(|info| info.schema);
        let format = request
            .output_schema
            .as_deref()
            .map(|schema| schema::closed(schema).filter(|_| can_be_held).ok_or(schema));
        let mut body = Fields::new(&mut out);
        body.set("model", &request.model);
        for (key, value) in settings(request, info, format.as_ref().and_then(|format| format.as_ref().ok())) {
            body.set(&key, &value);
        }
        let provided = request.config.other.get("tools").and_then(Value::as_array);
        let provided = provided.map(Vec::as_slice).unwrap_or_default();
        if request.tools.specs().next().is_some() || !provided.is_empty() {
            let out = body.key("tools");
            write_tools(out, request, provided, &mut writing);
            let end = out.len() - 1;
            mark(out, end, cache.as_ref());
        }
        let told = format.and_then(Result::err).map(|schema| {
            // What the provider cannot be held to has to be asked for.
            format!("Answer with JSON alone, according to this JSON schema:\n{}", json::text(schema))
        });
        let system = [request.instruction.text(), told.unwrap_or_default()];
        if system.iter().any(|text| !text.trim().is_empty()) {
            let out = body.key("system");
            let said = system.iter().filter(|text| !text.trim().is_empty());
            array(out, said, |out, text| blocks::text(out, text));
            let end = out.len() - 1;
            mark(out, end, cache.as_ref());
        }
        // The conversation comes last: what was sent before is the beginning of what is sent next.
        let mut messages = Messages::new(body.key("messages"));
        let write = |content: &Content| blocks::message(content, &request.model);
        walk(&request.contents, &mut writing, write, |next| messages.add(&next));
        messages.end(blocks::is_paused(&request.contents), cache.as_ref());
        drop(body);
        out
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(MessageReader::default())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().schema_with_tools().pairs_calls_by_id()
    }
}

/// What is put on a block so that the provider keeps all that stands before its end: what the setting `cache_control`
/// says, nothing if that is null or false.
fn cache_mark(config: &GenerateConfig) -> Option<Value> {
    match config.other.get("cache_control") {
        None | Some(Value::Bool(true)) => Some(json!({"type": "ephemeral"})),
        Some(told @ Value::Object(_)) => Some(told.clone()),
        Some(_) => None,
    }
}

/// All that is set, in the order in which it is sent. Of two settings with the same name, that of the format's own counts.
fn settings(request: &ModelRequest, info: Option<&ModelInfo>, format: Option<&Value>) -> Object {
    let config = &request.config;
    let mut settings = Object::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            settings.insert(key.to_owned(), value);
        }
    };
    set("stream", request.stream.then_some(Value::Bool(true)));
    let thinking = thinking::plan(&request.model, info, config);
    set("max_tokens", Some(thinking.max_tokens.into()));
    if thinking.takes_sampling {
        set("temperature", config.temperature.map(Value::from));
        // Both at once are refused.
        set("top_p", config.top_p.filter(|_| config.temperature.is_none()).map(Value::from));
        set("top_k", config.top_k.map(Value::from));
    }
    let stops: Vec<&String> = config.stop_sequences.iter().filter(|stop| !stop.trim().is_empty()).collect();
    set("stop_sequences", (!stops.is_empty()).then(|| json!(stops)));
    set("thinking", thinking.asked);
    if request.tools.specs().next().is_some() {
        set("tool_choice", tool_choice(config));
    }
    let mut output = Object::new();
    output.extend(thinking.effort.map(|effort| ("effort".to_owned(), json!(effort))));
    output
        .extend(format.map(|format| ("format".to_owned(), json!({"type": "json_schema", "schema": format}))));
    if let Some(Value::Object(more)) = config.other.get("output_config") {
        output.extend(more.clone());
    }
    set("output_config", (!output.is_empty()).then_some(Value::Object(output)));
    for (key, value) in config.other.iter().filter(|(key, _)| !PLACED.contains(&key.as_str())) {
        settings.insert(key.clone(), value.clone());
    }
    settings
}

fn tool_choice(config: &GenerateConfig) -> Option<Value> {
    let one_by_one = config.parallel_calls == Some(false);
    let mut choice = match &config.tool_choice {
        Some(ToolChoice::None) => return Some(json!({"type": "none"})),
        Some(ToolChoice::Any) => json!({"type": "any"}),
        Some(ToolChoice::Tool(name)) => json!({"type": "tool", "name": name}),
        None if !one_by_one => return None,
        _ => json!({"type": "auto"}),
    };
    if let Value::Object(choice) = &mut choice
        && one_by_one
    {
        choice.insert("disable_parallel_tool_use".to_owned(), Value::Bool(true));
    }
    Some(choice)
}

/// The tools that are called here, and then those that the provider runs itself.
fn write_tools(out: &mut Vec<u8>, request: &ModelRequest, provided: &[Value], writing: &mut Writing<'_>) {
    out.push(b'[');
    for meta in request.tools.iter().filter(|meta| !meta.tool.spec().hidden) {
        let written = writing.tool(&meta.tool, |tool| tool_fragment(tool.spec()));
        out.extend_from_slice(&written.json);
        out.push(b',');
    }
    for tool in provided {
        json::write(out, tool);
        out.push(b',');
    }
    out.pop();
    out.push(b']');
}

fn tool_fragment(spec: &ToolSpec) -> Fragment {
    let mut fragment = Fragment::default();
    fragment.add(Piece::default(), |out| {
        let mut tool = Fields::new(out);
        tool.set("name", &spec.name);
        tool.set("description", &spec.description);
        match &*spec.parameters {
            Value::Object(schema) if !schema.contains_key("type") => {
                // It must say that it is an object.
                let mut named = tool.object("input_schema");
                named.set("type", "object");
                for (key, value) in schema {
                    named.set(key, value);
                }
            }
            schema => tool.set("input_schema", schema),
        }
    });
    fragment
}
