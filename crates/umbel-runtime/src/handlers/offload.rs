//! Stores tool results that are too long, and shows the model how to read them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    AgentPlan, AgentTurn, Error, ErrorKind, FunctionTool, Handler, NextTool, Object, Part, Result, Step,
    ToolCall, ToolContext, ToolError, ToolItem, ToolOutput, ToolResult, ToolValue,
};
use umbel_macros::handler;

use super::token_counter::{answer_value, json_chars};
use crate::text;

/// The tool that reads stored results.
pub const READ_ARTIFACT: &str = "read_artifact";

/// State keys that begin like this name the results that were stored in this session.
const STORED: &str = "_umbel:offload:";

/// Characters that a page has unless the model asks for another length.
const PAGE: usize = 10_000;

/// Stores tool results that are too long as artifacts. The model gets the beginning, how much is missing, and a name by
/// which to read on.
///
/// The tool for that, [`READ_ARTIFACT`], is added unless the agent has one of that name. It reads page by page, and only
/// what was stored in this session. Its own results are never stored, nor are those of [excluded](Self::exclude) tools.
///
/// A runner without an artifact store fails at the agent's first turn. If the store fails later, the model gets the
/// result whole: the tool has done its work, and that must not be lost.
///
/// ```
/// use umbel_core::InMemoryArtifacts;
/// use umbel_runtime::handlers::Offload;
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// # fn main() -> umbel_core::Result<()> {
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo")).handler(Offload::new().above(20_000));
/// let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Offload(Arc<Settings>);

#[derive(Clone, Debug)]
struct Settings {
    limit: usize,
    shown: usize,
    excluded: HashSet<SmolStr>,
}

impl Offload {
    /// Stores results of more than 50,000 characters, and shows the first 2,000 of them.
    pub fn new() -> Self {
        Self(Arc::new(Settings { limit: 50_000, shown: 2_000, excluded: HashSet::new() }))
    }

    /// Stores results of more than so many characters.
    pub fn above(mut self, chars: usize) -> Self {
        Arc::make_mut(&mut self.0).limit = chars;
        self
    }

    /// How many characters of a stored result the model sees at once.
    pub fn show(mut self, chars: usize) -> Self {
        Arc::make_mut(&mut self.0).shown = chars;
        self
    }

    /// Leaves results of these tools as they are.
    pub fn exclude<T: Into<SmolStr>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        Arc::make_mut(&mut self.0).excluded.extend(tools.into_iter().map(Into::into));
        self
    }
}

impl Default for Offload {
    fn default() -> Self {
        Self::new()
    }
}

#[handler(crate = umbel_core)]
impl Handler for Offload {
    fn name(&self) -> &str {
        "offload"
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        let Settings { limit, shown, .. } = *self.0;
        if limit == 0 || shown > limit {
            let message = "the handler `offload` cannot work: it must store results above a length of 1 at least, and \
                           show no more than that";
            return Err(Error::new(ErrorKind::Build, message));
        }
        if plan.tools.get(READ_ARTIFACT).is_none() {
            plan.add_tool(Arc::new(read_artifact(limit)));
        }
        Ok(())
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        // Better now than when the first long result is there.
        turn.run().artifacts().map(|_| Step::Continue)
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let cx = call.cx;
        if call.name() == READ_ARTIFACT || self.0.excluded.contains(call.name()) {
            return next.call(call).await;
        }
        match next.call(call).await? {
            ToolOutput::Value(value) => self.0.store(cx, *value).await.map(ToolOutput::from),
            ToolOutput::Stream(items) => {
                let (settings, cx) = (self.0.clone(), cx.clone());
                let items = items.then(move |item| {
                    let (settings, cx) = (settings.clone(), cx.clone());
                    async move {
                        match item? {
                            ToolItem::Done(value) => settings.store(&cx, value).await.map(ToolItem::Done),
                            news => Ok(news),
                        }
                    }
                });
                Ok(ToolOutput::Stream(Box::pin(items)))
            }
        }
    }
}

impl Settings {
    /// The result as the model gets it: whole, or its beginning and where the rest is.
    async fn store(&self, cx: &ToolContext, result: ToolValue) -> Result<ToolValue, ToolError> {
        let total = chars(&result.value);
        if total <= self.limit {
            return Ok(result);
        }
        let words = words(&result.value).into_owned();
        let shown: String = words.chars().take(self.shown).collect();
        // Ids of calls may repeat, ids of events do not.
        let name = format!("tool_result_{}.txt", cx.run().services().ids.event());
        match cx.save_artifact(&name, Part::text(words)).await {
            Ok(_) => {}
            Err(error) if error.is_control() || error.kind() == ErrorKind::NoArtifactStore => {
                return Err(error.into());
            }
            Err(error) => {
                tracing::warn!(%error, tool = cx.tool_name(), "a long result could not be stored and stays whole");
                return Ok(result);
            }
        }
        cx.set_state(format!("{STORED}{name}"), total);
        let note = text::offloaded(READ_ARTIFACT, &name, self.shown, total);
        let key = if is_error(&result) { "error" } else { "result" };
        let mut metadata = result.metadata;
        metadata.insert("artifact".to_owned(), name.into());
        Ok(ToolValue { value: json!({key: shown, "note": note}), metadata, ..result })
    }
}

fn is_error(result: &ToolValue) -> bool {
    result.is_error || result.value.get("error").is_some()
}

/// What a result says, without its wrapping.
fn said(value: &Value) -> &Value {
    value.as_object().and_then(answer_value).unwrap_or(value)
}

fn chars(value: &Value) -> usize {
    match said(value) {
        Value::String(text) => text.chars().count(),
        other => json_chars(other),
    }
}

fn words(value: &Value) -> Cow<'_, str> {
    match said(value) {
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

/// What to read of a stored result.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Page {
    /// The name that the result gave.
    name: String,
    /// How many characters to skip; none unless said otherwise.
    #[serde(default)]
    offset: usize,
    /// How many characters to read; 10000 unless said otherwise.
    #[serde(default)]
    length: Option<usize>,
}

/// A tool that reads stored results, so many characters at most at once.
fn read_artifact(longest: usize) -> FunctionTool {
    FunctionTool::with_context(READ_ARTIFACT, text::READ_ARTIFACT, move |cx, page: Page| {
        Box::pin(async move { read_page(cx, page, longest).await })
    })
    .read_only()
    .idempotent()
}

async fn read_page(cx: &ToolContext, page: Page, longest: usize) -> Result<Value, ToolError> {
    let unknown = || ToolError::invalid_arguments(text::no_stored_result(&page.name));
    let total = cx.state(&format!("{STORED}{}", page.name)).ok_or_else(unknown)?;
    let part = cx.load_artifact(&page.name).await?.ok_or_else(unknown)?;
    let words = part.as_text().ok_or_else(unknown)?;
    let length = page.length.unwrap_or(PAGE).min(longest);
    let read: String = words.chars().skip(page.offset).take(length).collect();
    let end = page.offset.saturating_add(read.chars().count());
    let mut answer = Object::new();
    answer.insert("text".to_owned(), read.into());
    if total.as_u64().is_some_and(|total| (end as u64) < total) {
        answer.insert("next_offset".to_owned(), end.into());
    }
    answer.insert("total".to_owned(), total);
    Ok(Value::Object(answer))
}
