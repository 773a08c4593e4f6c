//! The contract of a model: a request in, a stream of chunks out.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::content::Content;
use crate::error::Result;
use crate::history::History;
use crate::instruction::Instruction;
use crate::json::Object;
use crate::part::Part;
use crate::response::Response;
use crate::tool::ToolSet;
use crate::work::BoxStream;

/// Generates text, thoughts and calls.
pub trait Model: Send + Sync + fmt::Debug {
    /// Its name, as the provider spells it.
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Who runs it.
    fn provider(&self) -> Provider<'_> {
        Provider::default()
    }

    /// Answers a request.
    ///
    /// There is one path: a model that does not stream gives one [`Chunk::Complete`]. A stream that breaks off must
    /// end with an error of kind [`StreamCut`](crate::ErrorKind::StreamCut).
    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>>;
}

impl<M: Model + ?Sized> Model for Arc<M> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn provider(&self) -> Provider<'_> {
        (**self).provider()
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        (**self).generate(request)
    }
}

/// Who runs a model, for those who measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provider<'a> {
    /// The name that OpenTelemetry's conventions have for it, such as `openai`, `anthropic` or `gcp.gemini`; `custom` unless
    /// told.
    pub name: &'a str,
    /// The host that is asked, and its port, if there is one.
    pub server: Option<(&'a str, u16)>,
}

impl Default for Provider<'_> {
    fn default() -> Self {
        Self { name: "custom", server: None }
    }
}

/// A piece of a model's answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Chunk {
    /// More words; folded with what came before. The lightest form, since most chunks are this.
    Text(String),
    /// More of a thought.
    Thought(String),
    /// More of the message, of whatever kind; folded with what came before.
    Delta(Response),
    /// The whole message; takes the place of what was folded so far.
    Complete(Response),
    /// What came so far is void: an attempt was rejected and another begins.
    Restart,
}

impl Chunk {
    /// The chunk as a response, if it is a piece of a message.
    pub fn into_delta(self) -> Option<Response> {
        match self {
            Self::Text(text) => Some(Response::text(text)),
            Self::Thought(text) => Some(Response::new(Content::model(Part::thought(text)))),
            Self::Delta(response) => Some(response),
            _ => None,
        }
    }
}

/// What a model can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// It keeps to an output schema and calls tools in the same request.
    pub schema_with_tools: bool,
    /// It pairs calls with their answers by id, so ids that the flow minted must be sent.
    pub pairs_calls_by_id: bool,
    /// It refuses media that carry a display name.
    pub refuses_display_names: bool,
    /// It can run code itself, where its provider is.
    pub runs_code: bool,
    /// How many tokens it takes in one request, if that is known.
    pub context_tokens: Option<u32>,
}

impl Capabilities {
    /// The same, able to keep to a schema while it calls tools.
    pub fn schema_with_tools(mut self) -> Self {
        self.schema_with_tools = true;
        self
    }

    /// The same, pairing calls with answers by id.
    pub fn pairs_calls_by_id(mut self) -> Self {
        self.pairs_calls_by_id = true;
        self
    }

    /// The same, refusing display names.
    pub fn refuses_display_names(mut self) -> Self {
        self.refuses_display_names = true;
        self
    }

    /// The same, able to run code itself.
    pub fn runs_code(mut self) -> Self {
        self.runs_code = true;
        self
    }

    /// The same, taking so many tokens in one request.
    pub fn context_tokens(mut self, tokens: u32) -> Self {
        self.context_tokens = Some(tokens);
        self
    }
}

/// What a model is asked. Everything big in it is shared: a clone is cheap.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The model's name.
    pub model: SmolStr,
    /// The system instruction.
    pub instruction: Instruction,
    /// The conversation.
    pub contents: History,
    /// The tools it may call, in a fixed order.
    pub tools: Arc<ToolSet>,
    /// How to generate.
    pub config: Arc<GenerateConfig>,
    /// The schema its answer must keep to, if the model sees to that itself.
    pub output_schema: Option<Arc<Value>>,
    /// Whether anyone reads along.
    pub stream: bool,
}

impl ModelRequest {
    /// An empty request.
    pub fn new(model: impl Into<SmolStr>) -> Self {
        static NOTHING: LazyLock<(Arc<ToolSet>, Arc<GenerateConfig>)> = LazyLock::new(Default::default);
        let (tools, config) = NOTHING.clone();
        Self {
            model: model.into(),
            instruction: Instruction::new(),
            contents: History::new(),
            tools,
            config,
            output_schema: None,
            stream: false,
        }
    }
}

/// How to generate. What is not set is left to the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerateConfig {
    /// Randomness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sampling among the best so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Longest answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// Texts that end the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_sequences: Vec<String>,
    /// For the same answer twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Against saying it again at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Against saying it again and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// How much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// Which tools may be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several tools at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_calls: Option<bool>,
    /// Whether it may run code itself, where its provider is. A model that cannot ignores this.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub run_code: bool,
    /// The media type of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_mime_type: Option<SmolStr>,
    /// Labels for the provider's bill.
    #[serde(skip_serializing_if = "Object::is_empty")]
    pub labels: Object,
    /// Anything else an adapter knows.
    #[serde(flatten)]
    pub other: Object,
}

/// How much a model thinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Thinking {
    /// Whether thoughts are shown.
    pub include_thoughts: bool,
    /// Tokens it may spend on them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// How hard it thinks, for models that are told so in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
}

/// How hard a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Effort {
    /// As good as not at all.
    Minimal,
    /// A little.
    Low,
    /// As usual.
    Medium,
    /// Much.
    High,
}

impl Effort {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Which tools a model may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ToolChoice {
    /// As it sees fit.
    Auto,
    /// None.
    None,
    /// At least one.
    Any,
    /// This one.
    Tool(SmolStr),
}
