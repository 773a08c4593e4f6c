//! Gemini, by key and on Vertex. Messages have its form here, so most of what is sent is what is in the log.

mod credentials;
mod reader;
pub(crate) mod vertex;

use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::history::{BEGIN_TURN, CONTINUE_TURN};
use umbel_core::{
    CallId, Capabilities, CodeResult, Content, Effort, ExecutableCode, FunctionCall, FunctionResponse,
    ModelRequest, Object, Part, Payload, Thinking, ToolChoice, ToolSpec,
};

use crate::conversation::{NO_ANSWER, Next, orphan_words, response_media, walk};
use crate::fragments::{Fragment, Fragments, Piece};
use crate::json::{self, Fields, array};
use crate::wire::{Reader, Wire};

pub use credentials::GoogleCredentials;
use reader::GeminiReader;

/// The key under which parts carry what Gemini said and this version does not know.
const OWN: &str = "gemini";

/// Keys by which other formats mark what only they understand. A signature next to one of them is not Gemini's.
const FOREIGN: [&str; 4] = ["anthropic", "openaiChat", "openaiResponses", "ollama"];

/// Keys of a part that are Gemini's, besides what it carries, the mark of a thought and the signature.
const PART_KEYS: [&str; 6] =
    ["videoMetadata", "mediaResolution", "toolCall", "toolResponse", "partMetadata", "audioTranscription"];

/// Keys of a tool's answer that are Gemini's.
const RESPONSE_KEYS: [&str; 3] = ["parts", "scheduling", "willContinue"];

/// Other settings that stand in the body itself. All the rest belong to the generation config.
const BODY_KEYS: [&str; 5] = ["safetySettings", "cachedContent", "serviceTier", "modelArmorConfig", "store"];

/// The tool by which Gemini runs code itself.
const CODE_EXECUTION: &str = "codeExecution";

/// What stands for the signature of a call that Gemini did not make: documented, and taken by all that ask for one.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// Gemini's format.
#[derive(Clone, Debug)]
pub(crate) struct Gemini {
    vertex: Option<Vertex>,
    /// It is told in words how hard to think, and insists on the signatures of its calls.
    is_third: bool,
    /// It runs code itself. Others that speak this format, such as Gemma, do not.
    runs_code: bool,
}

/// A project on Vertex.
#[derive(Clone, Debug)]
pub(crate) struct Vertex {
    pub(crate) project: String,
    pub(crate) location: String,
}

/// Whether a model is of Gemini 3 or later.
fn is_third(model: &str) -> bool {
    let Some((_, rest)) = model.split_once("gemini-") else { return false };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    // `gemini-flash-latest` and its like are of today.
    digits.parse::<u32>().ok().is_none_or(|number| number >= 3)
}

impl Gemini {
    pub(crate) fn new(model: &str) -> Self {
        let runs_code = model.rsplit('/').next().is_some_and(|name| name.starts_with("gemini"));
        Self { vertex: None, is_third: is_third(model), runs_code }
    }

    pub(crate) fn on_vertex(model: &str, vertex: Vertex) -> Self {
        Self { vertex: Some(vertex), ..Self::new(model) }
    }

    fn provider(&self) -> &'static str {
        if self.vertex.is_some() { "vertex" } else { "gemini" }
    }

    fn generation_config(&self, request: &ModelRequest) -> Object {
        let config = &request.config;
        let mut out = Object::new();
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                out.insert(key.to_owned(), value);
            }
        };
        set("temperature", config.temperature.map(Value::from));
        set("topP", config.top_p.map(Value::from));
        set("topK", config.top_k.map(Value::from));
        set("maxOutputTokens", config.max_output_tokens.map(Value::from));
        set("stopSequences", (!config.stop_sequences.is_empty()).then(|| json!(config.stop_sequences)));
        set("seed", config.seed.map(Value::from));
        set("presencePenalty", config.presence_penalty.map(Value::from));
        set("frequencyPenalty", config.frequency_penalty.map(Value::from));
        set("thinkingConfig", config.thinking.map(|thinking| self.thinking(thinking)));
        let kind = config.response_mime_type.as_deref();
        let kind = kind.or(request.output_schema.as_ref().map(|_| "application/json"));
        set("responseMimeType", kind.map(Value::from));
        set("responseJsonSchema", request.output_schema.as_deref().cloned());
        for (key, value) in &config.other {
            match (key.as_str(), value) {
                ("tools" | "toolConfig", _) => {}
                ("generationConfig", Value::Object(more)) => out.extend(more.clone()),
                (key, _) if BODY_KEYS.contains(&key) => {}
                _ => {
                    out.insert(key.clone(), value.clone());
                }
            }
        }
        out
    }

    /// Gemini 3 is told in words how hard to think, those before it in tokens. Both at once are refused.
    fn thinking(&self, thinking: Thinking) -> Value {
        let mut out = json!({"includeThoughts": thinking.include_thoughts});
        let (key, value) = match (thinking.effort, thinking.budget) {
            (None, None) => return out,
            (Some(effort), _) if self.is_third => ("thinkingLevel", json!(effort.as_str().to_uppercase())),
            (_, Some(budget)) => ("thinkingBudget", json!(budget)),
            (Some(effort), None) => ("thinkingBudget", json!(budget(effort))),
        };
        if let Value::Object(out) = &mut out {
            out.insert(key.to_owned(), value);
        }
        out
    }

    /// The parts of a message: one piece for each answer of a tool, and one for the rest.
    fn message(&self, content: &Content) -> Fragment {
        let mut fragment = Fragment::of(content);
        for response in content.responses() {
            fragment.add(Piece::answering(response), |out| {
                self.answer(out, response);
            });
        }
        // Older models refuse media in answers, so there they follow as a message.
        let media: Vec<Part> = match self.is_third {
            true => Vec::new(),
            false => content.responses().flat_map(response_media).collect(),
        };
        let said = content.parts.iter().filter(|part| is_said(part));
        let rest: Vec<&Part> = said.chain(&media).collect();
        if rest.is_empty() {
            return fragment;
        }
        let piece = Piece::with_calls(content.calls());
        let first_call = content.parts.iter().find(|part| part.as_call().is_some());
        fragment.add(piece, |out| {
            let mut between = false;
            for part in rest {
                if std::mem::replace(&mut between, true) {
                    out.push(b',');
                }
                let is_first = first_call.is_some_and(|first| std::ptr::eq(first, part));
                self.part(out, part, is_first);
            }
        });
        fragment
    }

    /// The id of a call, if Gemini has ever seen it. Vertex refuses ids.
    fn known_id<'a>(&self, id: &'a Option<CallId>) -> Option<&'a CallId> {
        id.as_ref().filter(|id| self.vertex.is_none() && !id.is_client() && !id.is_empty())
    }

    fn function_call(&self, wire: &mut Fields<'_>, call: &FunctionCall) {
        wire.maybe("id", self.known_id(&call.id));
        wire.set("name", &call.name);
        match &call.args {
            Some(args) => wire.set("args", args),
            None => wire.set("args", &json!({})),
        }
    }

    fn answer(&self, out: &mut Vec<u8>, response: &FunctionResponse) {
        let mut part = Fields::new(out);
        let mut wire = part.object("functionResponse");
        wire.maybe("id", self.known_id(&response.id));
        wire.set("name", &response.name);
        match &response.response {
            Some(said) => wire.set("response", said),
            None => wire.set("response", &json!({})),
        }
        for key in RESPONSE_KEYS.into_iter().filter(|key| self.is_third || *key != "parts") {
            wire.maybe(key, response.unknown.get(key));
        }
    }

    fn no_answer(&self, id: &CallId, name: &SmolStr) -> Vec<u8> {
        let id = Some(id).filter(|id| id.as_str() != name.as_str()).cloned();
        let mut said = Object::new();
        said.insert("error".to_owned(), NO_ANSWER.into());
        let mut out = Vec::new();
        self.answer(&mut out, &FunctionResponse::new(id, name.clone(), said));
        out
    }

    fn part(&self, out: &mut Vec<u8>, part: &Part, is_first_call: bool) {
        let mut wire = Fields::new(out);
        match &part.payload {
            Payload::Text(text) => wire.set("text", text),
            Payload::Call(call) => self.function_call(&mut wire.object("functionCall"), call),
            Payload::InlineData(blob) => {
                let mut blob = (**blob).clone();
                blob.display_name = blob.display_name.filter(|_| self.vertex.is_some());
                wire.set("inlineData", &blob);
            }
            Payload::FileData(file) => {
                let mut file = (**file).clone();
                file.display_name = file.display_name.filter(|_| self.vertex.is_some());
                wire.set("fileData", &file);
            }
            Payload::Code(code) => {
                let id = self.known_id(&code.id).cloned();
                wire.set("executableCode", &ExecutableCode { id, ..(**code).clone() });
            }
            Payload::CodeResult(result) => {
                let id = self.known_id(&result.id).cloned();
                wire.set("codeExecutionResult", &CodeResult { id, ..(**result).clone() });
            }
            _ => {}
        }
        if part.is_thought() {
            wire.set("thought", &true);
        }
        let needed = || (is_first_call && self.is_third).then_some(NO_SIGNATURE);
        wire.maybe("thoughtSignature", signature(part).or_else(needed));
        for key in PART_KEYS {
            wire.maybe(key, part.unknown(key));
        }
        if let Some(Value::Object(own)) = part.unknown(OWN) {
            for (key, value) in own {
                wire.set(key, value);
            }
        }
    }
}

/// What thinking costs in tokens, for models that are not told in words.
fn budget(effort: Effort) -> u32 {
    match effort {
        Effort::Medium => 8192,
        Effort::High => 24_576,
        _ => 1024,
    }
}

impl Wire for Gemini {
    fn path(&self, request: &ModelRequest) -> String {
        let method = if request.stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let model = request.model.as_str();
        let Some(Vertex { project, location }) = &self.vertex else {
            let folder = if model.contains('/') { "" } else { "models/" };
            return format!("/{folder}{model}:{method}");
        };
        let place = match model.split_once('/') {
            Some(("projects", _)) => return format!("/{model}:{method}"),
            Some(("publishers" | "endpoints", _)) => model.to_owned(),
            Some((publisher, model)) => format!("publishers/{publisher}/models/{model}"),
            None => format!("publishers/google/models/{model}"),
        };
        format!("/projects/{project}/locations/{location}/{place}:{method}")
    }

    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writing = fragments.begin();
        let mut body = Fields::new(&mut out);
        let instruction = request.instruction.text();
        if !instruction.is_empty() {
            body.set("systemInstruction", &json!({"parts": [{"text": instruction}]}));
        }
        let config = self.generation_config(request);
        body.maybe("generationConfig", (!config.is_empty()).then_some(config));
        let other = &request.config.other;
        for key in BODY_KEYS {
            body.maybe(key, other.get(key));
        }
        let labels = Some(&request.config.labels).filter(|labels| !labels.is_empty());
        body.maybe("labels", labels.filter(|_| self.vertex.is_some()));
        let mut tools = request.tools.iter().filter(|meta| !meta.tool.spec().hidden).peekable();
        let declares = tools.peek().is_some();
        let given = other.get("tools").and_then(Value::as_array).into_iter().flatten();
        let runs_code =
            request.config.run_code && given.clone().all(|tool| tool.get(CODE_EXECUTION).is_none());
        let run_code = runs_code.then(|| json!({CODE_EXECUTION: {}}));
        let mut of_the_server = given.chain(&run_code).peekable();
        if declares || of_the_server.peek().is_some() {
            let list = body.key("tools");
            list.push(b'[');
            if declares {
                array(Fields::new(list).key("functionDeclarations"), tools, |out, meta| {
                    let written = writing.tool(&meta.tool, |tool| declaration(tool.spec()));
                    out.extend_from_slice(&written.json);
                });
            }
            for tool in of_the_server {
                if list.last() != Some(&b'[') {
                    list.push(b',');
                }
                json::write(list, tool);
            }
            list.push(b']');
        }
        let choice = request.config.tool_choice.as_ref().filter(|_| declares);
        body.maybe("toolConfig", tool_config(choice, other.get("toolConfig")));
        // The conversation comes last: what was sent before is the beginning of what is sent next.
        let mut turns = Turns { out: body.key("contents"), last: None };
        turns.out.push(b'[');
        walk(
            &request.contents,
            &mut writing,
            |content| self.message(content),
            |next| match next {
                Next::Piece(fragment, piece) if piece.answers.is_some() => {
                    turns.add(Turn::Answers, fragment.bytes(piece));
                }
                Next::Piece(fragment, piece) if fragment.by_model => {
                    turns.add(Turn::Model, fragment.bytes(piece));
                }
                Next::Piece(fragment, piece) => turns.add(Turn::User, fragment.bytes(piece)),
                Next::Unanswered(id, name) => turns.add(Turn::Answers, &self.no_answer(id, name)),
                Next::Orphan(response) => turns.say(&orphan_words(response)),
            },
        );
        turns.end();
        drop(body);
        out
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(GeminiReader::new(self.provider()))
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        // Ids of ours are left out as they are written: another model may need them.
        capabilities.pairs_calls_by_id = true;
        capabilities.schema_with_tools = self.is_third;
        capabilities.runs_code = self.runs_code;
        capabilities.refuses_display_names = self.vertex.is_none();
        capabilities
    }
}

/// Whose turn a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    User,
    Model,
    /// What tools answered.
    Answers,
}

/// The messages as they are written. A call must stand right behind a turn of the user, and all answers right behind their
/// calls, in one message: so what the model said in a row is one message, and so is what tools answered.
struct Turns<'a> {
    out: &'a mut Vec<u8>,
    last: Option<Turn>,
}

impl Turns<'_> {
    fn add(&mut self, turn: Turn, parts: &[u8]) {
        if self.last.is_none() && turn == Turn::Model {
            self.say(BEGIN_TURN);
        }
        if self.last == Some(turn) && turn != Turn::User {
            self.out.push(b',');
        } else {
            self.close();
            let role: &[u8] = if turn == Turn::Model { b"model" } else { b"user" };
            let comma: &[u8] = if self.last.is_some() { b"," } else { b"" };
            self.out.extend_from_slice(&[comma, b"{\"role\":\"", role, b"\",\"parts\":["].concat());
        }
        self.out.extend_from_slice(parts);
        self.last = Some(turn);
    }

    /// Words of the user.
    fn say(&mut self, text: &str) {
        self.add(Turn::User, json::text(&json!({"text": text})).as_bytes());
    }

    fn close(&mut self) {
        if self.last.is_some() {
            self.out.extend_from_slice(b"]}");
        }
    }

    fn end(&mut self) {
        match self.last {
            None => self.say(BEGIN_TURN),
            Some(Turn::Model) => self.say(CONTINUE_TURN),
            Some(_) => {}
        }
        self.close();
        self.out.push(b']');
    }
}

fn tool_config(choice: Option<&ToolChoice>, other: Option<&Value>) -> Option<Value> {
    let Some(choice) = choice else { return other.cloned() };
    let mut config = other.and_then(Value::as_object).cloned().unwrap_or_default();
    let calling = config.entry("functionCallingConfig").or_insert_with(|| json!({}));
    if let Value::Object(calling) = calling {
        let mode = match choice {
            ToolChoice::None => "NONE",
            ToolChoice::Any | ToolChoice::Tool(_) => "ANY",
            _ => "AUTO",
        };
        calling.insert("mode".to_owned(), mode.into());
        if let ToolChoice::Tool(name) = choice {
            calling.insert("allowedFunctionNames".to_owned(), json!([name]));
        }
    }
    Some(Value::Object(config))
}

fn declaration(spec: &ToolSpec) -> Fragment {
    let mut fragment = Fragment::default();
    fragment.add(Piece::default(), |out| {
        let mut wire = Fields::new(out);
        wire.set("name", &spec.name);
        wire.set("description", &spec.description);
        // An object without properties is refused; no parameters at all are the same thing.
        let has = |key: &str| match spec.parameters.get(key) {
            Some(Value::Object(entries)) => !entries.is_empty(),
            Some(value) => !matches!(value, Value::Null | Value::Bool(false)),
            None => false,
        };
        if ["properties", "additionalProperties", "$ref", "anyOf", "oneOf", "allOf"].into_iter().any(has) {
            wire.set("parametersJsonSchema", &spec.parameters);
        }
    });
    fragment
}

/// The signature of a part, if it is Gemini's.
fn signature(part: &Part) -> Option<&str> {
    part.signature().filter(|_| !is_foreign(part))
}

fn is_foreign(part: &Part) -> bool {
    FOREIGN.iter().any(|key| part.unknown(key).is_some())
}

/// Whether a part is anything to be sent, besides answers of tools.
fn is_said(part: &Part) -> bool {
    match &part.payload {
        Payload::Response(_) => false,
        // What another model thought is none of Gemini's business.
        Payload::Text(_) if part.is_thought() && is_foreign(part) => false,
        Payload::Text(text) => !text.is_empty() || signature(part).is_some(),
        Payload::Empty => {
            let mut keys = PART_KEYS.iter().chain(&[OWN]);
            signature(part).is_some() || keys.any(|key| part.unknown(key).is_some())
        }
        _ => true,
    }
}
