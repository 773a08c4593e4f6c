//! A model that picks the tools for a request.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;
use smol_str::SmolStr;
use umbel_core::{
    ChunkStream, Content, Error, ErrorKind, GenerateConfig, Handler, Model, ModelCall, ModelRequest,
    NextModel, Result, Role, ToolChoice, ToolSpec,
};
use umbel_macros::handler;

use crate::models::ask;
use crate::output_schema::SET_MODEL_RESPONSE;
use crate::team::TRANSFER_TO_AGENT;
use crate::text;
use crate::tools::delegate::FINISH_TASK;

/// Without these an agent could neither hand over nor end, so no model has a say in them.
const INDISPENSABLE: [&str; 3] = [TRANSFER_TO_AGENT, SET_MODEL_RESPONSE, FINISH_TASK];

/// Has a model, best a small one, pick the tools that the agent's model is shown, by what the user said last.
///
/// It changes the request and nothing else: a call of a tool that was not shown is made all the same. Tools are shown
/// in the order in which the agent has them. While the user's message and the tools on offer stay the same, a run asks
/// once: the tools of a turn do not change under way, and providers keep them at hand. A fallback
/// ([`OnParsingFailure`]) holds for one model call: the next one asks again.
///
/// ```
/// use umbel_runtime::ScriptedModel;
/// use umbel_runtime::handlers::{OnParsingFailure, ToolSelect};
///
/// let select = ToolSelect::new()
///     .model(ScriptedModel::new("small"))
///     .max_tools(3)
///     .always_include(["search"])
///     .on_parsing_failure(OnParsingFailure::AllTools);
/// ```
pub struct ToolSelect {
    model: Option<Arc<dyn Model>>,
    max_tools: Option<usize>,
    always_include: Vec<SmolStr>,
    max_retries: u32,
    on_parsing_failure: OnParsingFailure,
}

/// What is shown if the choice of tools cannot be read, in that one model call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnParsingFailure {
    /// Nothing: the model call fails.
    #[default]
    Error,
    /// Only the tools to include always.
    NoTools,
    /// All tools.
    AllTools,
    /// These, and the tools to include always. Those that are not there are left out.
    Tools(Vec<SmolStr>),
}

/// What was chosen.
#[derive(Clone)]
enum Choice {
    All,
    These(Vec<SmolStr>),
}

/// Choices of a run, by what was asked.
#[derive(Default)]
struct Chosen(Mutex<HashMap<String, Choice>>);

impl ToolSelect {
    /// The agent's own model picks, as many tools as it likes.
    pub fn new() -> Self {
        Self {
            model: None,
            max_tools: None,
            always_include: Vec::new(),
            max_retries: 1,
            on_parsing_failure: OnParsingFailure::Error,
        }
    }

    /// The model that picks.
    pub fn model(mut self, model: impl Model + 'static) -> Self {
        self.model = Some(Arc::new(model));
        self
    }

    /// How many tools it may pick; of more the first ones count. Tools to include always come on top.
    pub fn max_tools(mut self, max: usize) -> Self {
        self.max_tools = Some(max);
        self
    }

    /// Tools that are always shown and not offered for choice. It is an error if one is not there.
    pub fn always_include<N: Into<SmolStr>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.always_include = names.into_iter().map(Into::into).collect();
        self
    }

    /// How often the model is asked again if its choice cannot be read; once unless said otherwise.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// What is shown if the choice cannot be read then either; an error unless said otherwise.
    pub fn on_parsing_failure(mut self, then: OnParsingFailure) -> Self {
        self.on_parsing_failure = then;
        self
    }

    /// Leaves the tools in the request that are to be shown.
    async fn select(&self, call: &mut ModelCall<'_>) -> Result<()> {
        let tools = call.request.tools.clone();
        let missing: Vec<&str> = self
            .always_include
            .iter()
            .filter(|name| tools.get(name).is_none())
            .map(SmolStr::as_str)
            .collect();
        if !missing.is_empty() {
            return Err(Error::new(ErrorKind::Build, text::select_missing(&missing)));
        }
        let forced = match &call.request.config.tool_choice {
            Some(ToolChoice::Tool(name)) => Some(name.as_str()),
            _ => None,
        };
        let is_fixed = |name: &str| {
            INDISPENSABLE.contains(&name)
                || forced == Some(name)
                || self.always_include.iter().any(|n| n == name)
        };
        let offered: Vec<&ToolSpec> = tools.specs().filter(|spec| !is_fixed(&spec.name)).collect();
        let Some(user) = last_user_text(&call.request).filter(|_| !offered.is_empty()) else { return Ok(()) };
        let Choice::These(chosen) = self.choose(call, &offered, &user).await? else { return Ok(()) };
        let mut shown = (*tools).clone();
        shown.retain(|meta| {
            let spec = meta.tool.spec();
            spec.hidden || is_fixed(&spec.name) || chosen.contains(&spec.name)
        });
        call.request.tools = Arc::new(shown);
        Ok(())
    }

    /// What is chosen, from an earlier call of this run if nothing has changed.
    async fn choose(&self, call: &ModelCall<'_>, offered: &[&ToolSpec], user: &str) -> Result<Choice> {
        let names: Vec<&str> = offered.iter().map(|spec| spec.name.as_str()).collect();
        let model = self.model.as_ref().unwrap_or(&call.model);
        let key = format!("{}\n{:?}\n{names:?}\n{user}", model.name(), self.max_tools);
        let known = call.run().values().get_or_insert_with(Chosen::default);
        let lock = || known.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(choice) = lock().get(&key) {
            return Ok(choice.clone());
        }
        match self.ask(call, model.as_ref(), offered, user).await? {
            Some(choice) => {
                lock().insert(key, choice.clone());
                Ok(choice)
            }
            None => self.fallback(),
        }
    }

    /// What is shown in one model call whose choice could not be read.
    fn fallback(&self) -> Result<Choice> {
        match &self.on_parsing_failure {
            OnParsingFailure::Error => {
                let message = text::select_malformed(self.max_retries.saturating_add(1));
                Err(Error::new(ErrorKind::InvalidOutput, message))
            }
            OnParsingFailure::NoTools => Ok(Choice::These(Vec::new())),
            OnParsingFailure::AllTools => Ok(Choice::All),
            OnParsingFailure::Tools(names) => Ok(Choice::These(names.clone())),
        }
    }

    /// What the model chooses; nothing if that cannot be read.
    async fn ask(
        &self,
        call: &ModelCall<'_>,
        model: &dyn Model,
        offered: &[&ToolSpec],
        user: &str,
    ) -> Result<Option<Choice>> {
        let request = self.request(model, offered, user);
        for _ in 0..=self.max_retries {
            let answer = ask(call.run(), model, &request).await?;
            let answer = answer.and_then(|response| response.content).map(|content| content.text());
            let Some(chosen) = answer.and_then(|answer| read(&answer)) else { continue };
            return self.check(chosen, offered).map(|names| Some(Choice::These(names)));
        }
        Ok(None)
    }

    fn request(&self, model: &dyn Model, offered: &[&ToolSpec], user: &str) -> ModelRequest {
        let names: Vec<&str> = offered.iter().map(|spec| spec.name.as_str()).collect();
        let described: Vec<(&str, &str)> =
            offered.iter().map(|spec| (spec.name.as_str(), spec.description.as_str())).collect();
        let mut request = ModelRequest::new(model.name());
        request.instruction.push("tool_select", text::select_tools(&described, self.max_tools));
        request.contents.push(Content::user(user));
        request.output_schema = Some(Arc::new(json!({
            "type": "object",
            "properties": {"tools": {"type": "array", "items": {"type": "string", "enum": names}}},
            "required": ["tools"],
        })));
        let mime = Some("application/json".into());
        request.config = Arc::new(GenerateConfig { response_mime_type: mime, ..GenerateConfig::default() });
        request
    }

    /// The names that count. A name that was not on offer is an error: the model did not understand its task.
    fn check(&self, chosen: Vec<SmolStr>, offered: &[&ToolSpec]) -> Result<Vec<SmolStr>> {
        let is_offered = |name: &SmolStr| offered.iter().any(|spec| spec.name == *name);
        let unknown: Vec<&str> =
            chosen.iter().filter(|name| !is_offered(name)).map(SmolStr::as_str).collect();
        if !unknown.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOutput, text::select_unknown(&unknown)));
        }
        let mut names: Vec<SmolStr> = Vec::new();
        for name in chosen {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.truncate(self.max_tools.unwrap_or(usize::MAX));
        Ok(names)
    }
}

impl Default for ToolSelect {
    fn default() -> Self {
        Self::new()
    }
}

/// What the user said last. Answers of tools are in the user's name too, but have no words.
fn last_user_text(request: &ModelRequest) -> Option<String> {
    let said = |content: &Arc<Content>| {
        let text = content.text();
        (content.role == Some(Role::User) && !content.has_responses() && !text.is_empty()).then_some(text)
    };
    request.contents.iter().rev().find_map(said)
}

/// The names in a model's answer. Models that are not held to a schema like to put a fence around JSON.
fn read(answer: &str) -> Option<Vec<SmolStr>> {
    #[derive(Deserialize)]
    struct Answer {
        tools: Vec<SmolStr>,
    }
    let answer = answer.trim();
    let fenced = answer.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let answer = fenced.map_or(answer, |inner| inner.trim_start_matches("json"));
    serde_json::from_str::<Answer>(answer).ok().map(|answer| answer.tools)
}

#[handler(crate = umbel_core)]
impl Handler for ToolSelect {
    fn name(&self) -> &str {
        "tool_select"
    }

    async fn wrap_model(&self, mut call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.select(&mut call).await?;
        next.call(call).await
    }
}

impl fmt::Debug for ToolSelect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolSelect")
            .field("model", &self.model)
            .field("max_tools", &self.max_tools)
            .field("always_include", &self.always_include)
            .finish_non_exhaustive()
    }
}
