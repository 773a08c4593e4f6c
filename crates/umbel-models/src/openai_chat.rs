//! Chat completions: the format of OpenAI that nearly everybody speaks.

mod reader;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use umbel_core::history::CONTINUE_TURN;
use umbel_core::{
    Blob, CallId, Capabilities, Content, FileData, FunctionCall, ModelRequest, Object, Part, Payload, Role,
    ToolChoice, ToolSpec,
};

use crate::catalog::Catalog;
use crate::conversation::{NO_ANSWER, Next, orphan_words, response_media, walk, words};
use crate::fragments::{Fragment, Fragments, Piece, call_key};
use crate::json::{self, Fields, array};
use crate::schema;
use crate::wire::{Reader, Wire};

/// The key under which parts carry what only this format understands. Since many speak it, it says whose that is too.
const OWN: &str = "openaiChat";

/// Chat completions, as this provider speaks them.
#[derive(Clone, Debug)]
pub(crate) struct OpenAiChat {
    provider: &'static str,
    dialect: Dialect,
}

/// Where providers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// OpenAI itself, and Azure: new names for old things, which others do not know.
    OpenAi,
    /// Other names for some settings, ids of calls in a form of its own, and no options of streams.
    Mistral,
    Other,
}

impl OpenAiChat {
    /// OpenAI, or one that is just like it.
    pub(crate) fn openai(provider: &'static str) -> Self {
        Self { provider, dialect: Dialect::OpenAi }
    }

    pub(crate) fn compatible(provider: &'static str) -> Self {
        let dialect = if provider == "mistral" { Dialect::Mistral } else { Dialect::Other };
        Self { provider, dialect }
    }

    /// All that is set besides the conversation and the tools. Under `tools` are those that the provider runs.
    fn settings(&self, request: &ModelRequest) -> Object {
        let config = &request.config;
        let mut settings = Object::new();
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                settings.insert(key.to_owned(), value);
            }
        };
        let (max_tokens, seed) = match self.dialect {
            Dialect::OpenAi => ("max_completion_tokens", "seed"),
            Dialect::Mistral => ("max_tokens", "random_seed"),
            Dialect::Other => ("max_tokens", "seed"),
        };
        set("stream", request.stream.then_some(Value::Bool(true)));
        if request.stream && self.dialect != Dialect::Mistral {
            set("stream_options", Some(json!({"include_usage": true})));
        }
        set("temperature", config.temperature.map(Value::from));
        set("top_p", config.top_p.map(Value::from));
        set("top_k", config.top_k.map(Value::from));
        set(max_tokens, config.max_output_tokens.map(Value::from));
        set("stop", (!config.stop_sequences.is_empty()).then(|| json!(config.stop_sequences)));
        set(seed, config.seed.map(Value::from));
        set("presence_penalty", config.presence_penalty.map(Value::from));
        set("frequency_penalty", config.frequency_penalty.map(Value::from));
        let effort = config.thinking.and_then(|thinking| thinking.effort);
        set("reasoning_effort", effort.map(|effort| effort.as_str().into()));
        set("response_format", self.response_format(request));
        if request.tools.specs().next().is_some() || config.other.contains_key("tools") {
            set("tool_choice", config.tool_choice.as_ref().map(|choice| self.tool_choice(choice)));
            set("parallel_tool_calls", config.parallel_calls.map(Value::Bool));
        }
        for (key, value) in &config.other {
            json::add(settings.entry(key.as_str()).or_insert(Value::Null), value);
        }
        settings
    }

    /// Whether the model is known to give JSON, but to none of our schemas.
    fn lacks_schemas(&self, request: &ModelRequest) -> bool {
        Catalog::known().find(self.provider, &request.model).is_some_and(|info| !info.schema)
    }

    fn response_format(&self, request: &ModelRequest) -> Option<Value> {
        let plain = || json!({"type": "json_object"});
        match &request.output_schema {
            Some(_) if self.lacks_schemas(request) => Some(plain()),
            Some(schema) => Some(json!({
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": schema::is_strict(schema)},
            })),
            None => (request.config.response_mime_type.as_deref() == Some("application/json")).then(plain),
        }
    }

    fn tool_choice(&self, choice: &ToolChoice) -> Value {
        match choice {
            ToolChoice::None => json!("none"),
            ToolChoice::Any if self.dialect == Dialect::Mistral => json!("any"),
            ToolChoice::Any => json!("required"),
            ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
            _ => json!("auto"),
        }
    }

    /// The instruction, and a schema that can be sent in no other way.
    fn instruction(&self, request: &ModelRequest) -> String {
        let mut text = request.instruction.text();
        if let Some(schema) = request.output_schema.as_ref().filter(|_| self.lacks_schemas(request)) {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&format!("Answer with JSON that keeps to this schema: {schema}"));
        }
        text
    }

    /// Who gives the instruction: to models of OpenAI that think, the developer does.
    fn instructor(&self, model: &str) -> &'static str {
        if self.dialect == Dialect::OpenAi && thinks(model) { "developer" } else { "system" }
    }

    fn tool_fragment(&self, spec: &ToolSpec) -> Fragment {
        let mut fragment = Fragment::default();
        fragment.add(Piece::default(), |out| {
            let mut tool = Fields::new(out);
            tool.set("type", "function");
            let mut function = tool.object("function");
            function.set("name", &spec.name);
            function.set("description", &spec.description);
            function.set("parameters", &spec.parameters);
            // Others may not know the word.
            if self.dialect == Dialect::OpenAi && schema::is_strict(&spec.parameters) {
                function.set("strict", &true);
            }
        });
        fragment
    }

    /// The id of a call as the provider takes it. Mistral's have nine letters and digits, and a conversation may have
    /// begun elsewhere.
    fn call_id<'a>(&self, id: &'a str) -> Cow<'a, str> {
        const LEN: usize = 9;
        let fits = id.len() == LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if self.dialect != Dialect::Mistral || fits {
            return Cow::Borrowed(id);
        }
        // FNV-1a: the same id each time, and in each process.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        let digit = |_| {
            let digit = char::from_digit((hash % 36) as u32, 36).unwrap_or('0');
            hash /= 36;
            digit
        };
        Cow::Owned((0..LEN).map(digit).collect())
    }

    fn tool_message(&self, out: &mut Vec<u8>, id: &CallId, text: &str) {
        let mut message = Fields::new(out);
        message.set("role", "tool");
        message.set("tool_call_id", &self.call_id(id.as_str()));
        message.set("content", text);
    }

    /// The messages that a message of ours becomes: one for each answer of a tool, and one for the rest.
    fn message(&self, content: &Content) -> Fragment {
        let mut fragment = Fragment::of(content);
        for response in content.responses() {
            let id = call_key(response.id.as_ref(), &response.name);
            let text = json::text(&response.response);
            fragment.add(Piece::answering(response), |out| self.tool_message(out, &id, &text));
        }
        match content.role {
            Some(Role::Model) => self.assistant_message(content, &mut fragment),
            _ => user_message(content, &mut fragment),
        }
        fragment
    }

    /// What a part carries for this provider. What another gave is none of its business.
    fn own<'a>(&self, part: &'a Part) -> Option<&'a Object> {
        let own = part.unknown(OWN)?.as_object()?;
        own.get("provider").is_some_and(|provider| provider == self.provider).then_some(own)
    }

    fn assistant_message(&self, content: &Content, fragment: &mut Fragment) {
        let text: String = content.parts.iter().filter(|part| !part.is_thought()).filter_map(words).collect();
        let calls: Vec<&Part> = content.parts.iter().filter(|part| part.as_call().is_some()).collect();
        if text.is_empty() && calls.is_empty() {
            return;
        }
        let named = calls.iter().filter_map(|part| part.as_call());
        fragment.add(Piece::with_calls(named), |out| {
            let mut message = Fields::new(out);
            message.set("role", "assistant");
            self.thoughts_and_words(content, &text, !calls.is_empty(), &mut message);
            if !calls.is_empty() {
                array(message.key("tool_calls"), &calls, |out, part| self.tool_call(out, part));
            }
        });
    }

    fn thoughts_and_words(&self, content: &Content, text: &str, calls: bool, message: &mut Fields<'_>) {
        let owned = || content.parts.iter().filter_map(|part| Some((part, self.own(part)?)));
        let thoughts_in = |place: &str| -> Vec<&str> {
            let here = owned().filter(|(_, own)| own.get("thoughtIn").is_some_and(|key| key == place));
            here.filter_map(|(part, _)| part.as_text()).collect()
        };
        let within = thoughts_in("content");
        if within.is_empty() {
            message.set("content", &Some(text).filter(|text| !text.is_empty()));
        } else {
            let thinking =
                |thought: &&str| json!({"type": "thinking", "thinking": [{"type": "text", "text": thought}]});
            let mut parts: Vec<Value> = within.iter().map(thinking).collect();
            if !text.is_empty() {
                parts.push(json!({"type": "text", "text": text}));
            }
            message.set("content", &parts);
        }
        if let Some(details) = owned().find_map(|(_, own)| own.get("reasoning_details")) {
            // They say all that the thoughts in words do.
            message.set("reasoning_details", details);
        } else if calls {
            // Wanted back as long as the calls that they led to are under way.
            for place in ["reasoning_content", "reasoning"] {
                let thoughts = thoughts_in(place);
                if !thoughts.is_empty() {
                    message.set(place, &thoughts.concat());
                }
            }
        }
    }

    fn tool_call(&self, out: &mut Vec<u8>, part: &Part) {
        let Some(call) = part.as_call() else { return json::write(out, &()) };
        let id = call.id.as_ref().map_or(call.name.as_str(), CallId::as_str);
        let mut wire = Fields::new(out);
        wire.set("id", &self.call_id(id));
        wire.set("type", "function");
        wire.maybe("extra_content", self.own(part).and_then(|own| own.get("extra_content")));
        let mut function = wire.object("function");
        function.set("name", &call.name);
        function.set("arguments", &arguments(call));
    }
}

/// The arguments of a call as text.
pub(crate) fn arguments(call: &FunctionCall) -> Cow<'_, str> {
    match (call.unreadable_args(), &call.args) {
        (Some(text), _) => Cow::Borrowed(text),
        (None, Some(args)) => Cow::Owned(json::text(args)),
        (None, None) => Cow::Borrowed("{}"),
    }
}

/// Whether a model of OpenAI is known to think before it answers.
pub(crate) fn thinks(model: &str) -> bool {
    let model = model.strip_prefix("ft:").unwrap_or(model);
    Catalog::known().find("openai", model).is_some_and(|info| info.thinking)
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
        let mut settings = self.settings(request);
        let run_there = settings.shift_remove("tools");
        for (key, value) in &settings {
            body.set(key, value);
        }
        let run_there = run_there.as_ref().and_then(Value::as_array).into_iter().flatten();
        let tools = request.tools.iter().filter(|meta| !meta.tool.spec().hidden).map(Ok);
        let mut tools = tools.chain(run_there.map(Err)).peekable();
        if tools.peek().is_some() {
            array(body.key("tools"), tools, |out, tool| match tool {
                Ok(meta) => {
                    let written = writing.tool(&meta.tool, |tool| self.tool_fragment(tool.spec()));
                    out.extend_from_slice(&written.json);
                }
                Err(value) => json::write(out, value),
            });
        }
        // The conversation comes last: what was sent before is the beginning of what is sent next.
        let messages = body.key("messages");
        messages.push(b'[');
        let instruction = self.instruction(request);
        if !instruction.is_empty() {
            plain_message(messages, self.instructor(&request.model), &instruction);
        }
        let write = |content: &Content| self.message(content);
        let mut last = Speaker::User;
        walk(&request.contents, &mut writing, write, |next| {
            let speaker = Speaker::of(&next);
            if self.dialect == Dialect::Mistral && (last, speaker) == (Speaker::Tool, Speaker::User) {
                // A user who speaks right after a tool is refused.
                next_message(messages);
                plain_message(messages, "assistant", BRIDGE);
            }
            last = speaker;
            next_message(messages);
            match next {
                Next::Piece(fragment, piece) => messages.extend_from_slice(fragment.bytes(piece)),
                Next::Unanswered(id, _) => self.tool_message(messages, id, NO_ANSWER),
                Next::Orphan(response) => plain_message(messages, "user", &orphan_words(response)),
            }
        });
        if self.dialect == Dialect::Mistral && last == Speaker::Model {
            // So is a conversation that ends with the model.
            next_message(messages);
            plain_message(messages, "user", CONTINUE_TURN);
        }
        messages.push(b']');
        drop(body);
        out
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(reader::ChatReader::new(self.provider))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().schema_with_tools().pairs_calls_by_id()
    }
}

/// What the model is taken to have said between a tool and a user, where something has to be.
const BRIDGE: &str = "I see.";

/// Who has a message.
#[derive(Clone, Copy, PartialEq)]
enum Speaker {
    User,
    Model,
    Tool,
}

impl Speaker {
    fn of(next: &Next<'_>) -> Self {
        match next {
            Next::Piece(fragment, _) if fragment.by_model => Self::Model,
            Next::Piece(_, piece) if piece.answers.is_some() => Self::Tool,
            Next::Unanswered(..) => Self::Tool,
            Next::Piece(..) | Next::Orphan(_) => Self::User,
        }
    }
}

/// Puts a comma behind the message before.
fn next_message(messages: &mut Vec<u8>) {
    if messages.last() != Some(&b'[') {
        messages.push(b',');
    }
}

fn plain_message(out: &mut Vec<u8>, role: &str, text: &str) {
    let mut message = Fields::new(out);
    message.set("role", role);
    message.set("content", text);
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
pub(crate) fn is_said(part: &Part) -> bool {
    match &part.payload {
        Payload::Text(text) => !text.is_empty() && !part.is_thought(),
        Payload::InlineData(_) | Payload::FileData(_) | Payload::Code(_) | Payload::CodeResult(_) => true,
        _ => false,
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
            json!({"type": "input_audio", "input_audio": {"data": data, "format": audio_format(format)}})
        }
        Some(("text", _)) => match std::str::from_utf8(&blob.data) {
            Ok(text) => json!({"type": "text", "text": text}),
            Err(_) => file_of(blob, kind, &data),
        },
        _ => file_of(blob, kind, &data),
    }
}

/// What a format of audio is called here, by the second half of its media type.
pub(crate) fn audio_format(kind: &str) -> &str {
    if kind.starts_with("mp") { "mp3" } else { kind.trim_start_matches("x-") }
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
