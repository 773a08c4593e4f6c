//! Cases: what is said to an agent, and what is expected of it. All of it is data, to be read from a file or written in
//! code.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use umbel_core::{Answer, Content, Object, Part};

/// Cases that belong together, with what must hold for all of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Suite {
    /// The agent they are for. Whoever reads the file finds it.
    pub agent: Option<String>,
    /// Who judges rubrics. Whoever reads the file finds it.
    pub judge: Option<JudgeChoice>,
    /// How often each case is run; once unless said.
    pub runs: Option<u32>,
    /// What a metric must reach in each run: 1 unless said, 0.8 for [`Metric::Overlap`].
    pub thresholds: Thresholds,
    /// What must hold for all runs together.
    pub gates: Gates,
    /// The cases.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// What metrics must reach.
pub type Thresholds = BTreeMap<Metric, f64>;

/// A model that judges, by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeChoice {
    /// The model, as `provider/model`.
    pub model: String,
    /// How often it is asked about each rubric; the majority counts. Once unless said.
    pub samples: Option<u32>,
}

/// What must hold for all runs together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gates {
    /// The share of runs that must pass; 1 unless said.
    pub min_pass: Option<f64>,
    /// What the mean of a metric must reach.
    pub metrics: Thresholds,
}

/// Something an agent is measured by. Each gives a score from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Metric {
    /// The conversation came to its end: no error, no question without an answer.
    Completed,
    /// The calls that were made.
    Tools,
    /// What the answer says: exact, contains, lacks, regex.
    Text,
    /// How many words an answer shares with the one that was expected: ROUGE-1, google-adk's `response_match_score`.
    Overlap,
    /// Whether the answer fits a JSON schema.
    Schema,
    /// What a model says about it.
    Rubrics,
    /// What the session remembers at the end.
    State,
    /// Who answered last.
    Agent,
    /// Money.
    Cost,
    /// Tokens.
    Tokens,
    /// Time.
    Latency,
    /// How often models were asked.
    ModelCalls,
}

impl Metric {
    /// Its name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Tools => "tools",
            Self::Text => "text",
            Self::Overlap => "overlap",
            Self::Schema => "schema",
            Self::Rubrics => "rubrics",
            Self::State => "state",
            Self::Agent => "agent",
            Self::Cost => "cost",
            Self::Tokens => "tokens",
            Self::Latency => "latency",
            Self::ModelCalls => "model_calls",
        }
    }

    /// What it must reach unless a file says otherwise.
    pub fn threshold(self) -> f64 {
        if self == Self::Overlap { 0.8 } else { 1.0 }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A conversation, and what is expected of it.
///
/// ```
/// use umbel_runtime::eval::{Case, Turn};
///
/// let case = Case::new("weather", [Turn::new("weather in Paris").calls("get_weather").contains("Paris")]);
/// assert_eq!(case.name, "weather");
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What it is about, for people.
    pub about: Option<String>,
    /// Who talks; `eval` unless said.
    pub user: Option<String>,
    /// The state that the session begins with, scope prefixes included.
    pub state: Object,
    /// What the person says, one after the other.
    #[serde(rename = "turn")]
    pub turns: Vec<Turn>,
    /// What tools give, without being called.
    #[serde(rename = "mock")]
    pub mocks: Vec<Mock>,
    /// Whether a tool without a mock fails instead of being called.
    pub only_mocks: bool,
    /// What people say when they are asked.
    #[serde(rename = "answer")]
    pub answers: Vec<Reply>,
    /// What the state must hold at the end; objects in it may hold more.
    pub state_after: Object,
    /// What must be true of the whole conversation, judged by a model.
    pub rubrics: Vec<String>,
    /// What it may use up.
    pub limits: Limits,
    /// What metrics must reach in this case, if something else than in others.
    pub thresholds: Thresholds,
    /// How often it is run, if not as often as others.
    pub runs: Option<u32>,
}

impl Case {
    /// A conversation of these turns.
    pub fn new(name: impl Into<String>, turns: impl IntoIterator<Item = Turn>) -> Self {
        Self { name: name.into(), turns: turns.into_iter().collect(), ..Self::default() }
    }
}

/// What a person says, and what is expected to follow from it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    /// What the person says: text, or a content with parts.
    #[serde(deserialize_with = "said")]
    pub user: Content,
    /// The calls that must be made; any if absent, none at all if empty.
    pub tools: Option<Vec<ExpectedCall>>,
    /// How the calls are compared.
    pub tools_match: ToolsMatch,
    /// How their arguments are compared.
    pub args_match: ArgsMatch,
    /// Tools that must not be called.
    pub never: Vec<String>,
    /// What the answer must be like.
    pub response: Expected,
    /// What must be true of the answer, judged by a model.
    pub rubrics: Vec<String>,
    /// Who must give the answer.
    pub agent: Option<String>,
}

impl Turn {
    /// The person says this.
    pub fn new(user: impl Into<String>) -> Self {
        Self { user: Content::user(Part::text(user)), ..Self::default() }
    }

    /// The tool must be called next, with whatever arguments.
    pub fn calls(self, tool: impl Into<String>) -> Self {
        self.call(ExpectedCall { name: tool.into(), args: None })
    }

    /// The tool must be called next, with these arguments. Anything but an object is taken as none.
    pub fn calls_with(self, tool: impl Into<String>, args: Value) -> Self {
        let args = match args {
            Value::Object(args) => args,
            _ => Object::new(),
        };
        self.call(ExpectedCall { name: tool.into(), args: Some(args) })
    }

    fn call(mut self, call: ExpectedCall) -> Self {
        self.tools.get_or_insert_default().push(call);
        self
    }

    /// The answer must contain this.
    pub fn contains(mut self, text: impl Into<String>) -> Self {
        self.response.contains.0.push(text.into());
        self
    }

    /// The answer must share most of its words with this one.
    pub fn like(mut self, text: impl Into<String>) -> Self {
        self.response.like = Some(text.into());
        self
    }

    /// This must be true of the answer, as a model judges.
    pub fn rubric(mut self, rubric: impl Into<String>) -> Self {
        self.rubrics.push(rubric.into());
        self
    }
}

/// Text as a content of the user, or the content itself.
fn said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(Content::user(Part::text(text))),
        value => serde_json::from_value(value).map_err(serde::de::Error::custom),
    }
}

/// A call that must be made.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCall {
    /// The tool.
    pub name: String,
    /// Its arguments; any if absent.
    #[serde(default)]
    pub args: Option<Object>,
}

/// How calls are compared with those that are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsMatch {
    /// These, in this order, and no others.
    #[default]
    Exact,
    /// These, in this order; others may come between.
    InOrder,
    /// These, in whatever order; there may be others.
    AnyOrder,
}

/// How arguments are compared with those that are expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgsMatch {
    /// The same.
    #[default]
    Exact,
    /// What is expected is among them.
    Partial,
    /// Whatever they are.
    Ignore,
}

/// What an answer must be like. What is absent is not looked at.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expected {
    /// It is this, but for white space around it.
    pub exact: Option<String>,
    /// It has all of these.
    pub contains: Texts,
    /// It has none of these.
    pub lacks: Texts,
    /// Each of these finds something in it.
    pub regex: Texts,
    /// It shares most of its words with this one.
    pub like: Option<String>,
    /// It is JSON that fits this schema.
    pub schema: Option<Value>,
}

/// One text or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts(pub Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(vec![text])),
            value => serde_json::from_value(value)
                .map(Self)
                .map_err(|_| serde::de::Error::custom("a text or a list of texts belongs here")),
        }
    }
}

/// What a tool gives, without being called. The first that fits counts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mock {
    /// The tool.
    pub tool: String,
    /// Arguments that the call must have, among others; any if absent.
    pub args: Option<Object>,
    /// What it gives.
    pub result: Option<Value>,
    /// How it fails, in its place.
    pub error: Option<String>,
    /// How often it does; always if absent. After that the next one that fits counts.
    pub times: Option<u32>,
    /// What it writes to the state.
    pub state: Object,
}

/// What people say when they are asked. The first that fits counts, each time.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reply {
    /// The tool that the question is about; any question if absent.
    pub tool: Option<String>,
    /// Arguments that the call in question must have, among others.
    pub when: Option<Object>,
    /// `approve`, which is the default, or `reject`. With `args`, `respond` or `input` it need not be said.
    pub decision: Option<Decision>,
    /// Approves it with other arguments.
    pub args: Option<Object>,
    /// Why it is rejected.
    pub reason: Option<String>,
    /// The result of the call, which is not made.
    pub respond: Option<Value>,
    /// What was asked for.
    pub input: Option<Value>,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Yes.
    Approve,
    /// No.
    Reject,
}

impl Reply {
    /// The answer that is given.
    pub fn answer(&self) -> Answer {
        let rejects = self.decision == Some(Decision::Reject) || self.reason.is_some();
        match self {
            Self { respond: Some(value), .. } => Answer::respond(value.clone()),
            Self { input: Some(value), .. } => Answer::input(value.clone()),
            Self { args: Some(args), .. } => Answer::edit(args.clone()),
            Self { reason: Some(reason), .. } => Answer::reject_because(reason.clone()),
            _ if rejects => Answer::reject(),
            _ => Answer::approve(),
        }
    }
}

/// What a case may use up, each of its runs for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// US dollars.
    pub cost: Option<f64>,
    /// Tokens of prompts, answers and thoughts.
    pub tokens: Option<u64>,
    /// Seconds.
    pub seconds: Option<f64>,
    /// How often models may be asked.
    pub model_calls: Option<u64>,
}
