//! Sub-agents that their parent calls as tools: for one turn, or for a task that they talk about with the user.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};
use umbel_core::{
    Agent, BoxFuture, CallId, Event, FunctionResponse, List, Mode, NodeId, Object, Part, Result, Run, Tool,
    ToolContext, ToolError, ToolOutput, ToolSpec, ToolValue,
};

use super::input_schema::InputSchema;
use crate::agents::run_child;
use crate::flow::error_value;
use crate::output_schema::OutputSchema;
use crate::text;

/// Name of the tool by which a task agent ends its task.
pub(crate) const FINISH_TASK: &str = "finish_task";

/// A sub-agent that its parent calls as a tool.
#[derive(Debug)]
pub(crate) struct Delegate {
    node: NodeId,
    mode: Mode,
    spec: ToolSpec,
    /// What its arguments must be.
    input: Option<InputSchema>,
}

impl Delegate {
    pub(crate) fn new(node: NodeId, agent: &dyn Agent) -> Self {
        let parameters = match agent.input_schema() {
            Some(schema) => (**schema).clone(),
            None => json!({
                "type": "object",
                "properties": {
                    "goal": {"type": "string", "description": "What is to be reached."},
                    "background": {"type": "string", "description": "What the agent must know for it."},
                },
                "required": ["goal"],
            }),
        };
        let mut spec = ToolSpec::new(agent.name(), agent.description(), parameters);
        let mode = agent.transfer().mode;
        // A task may take several turns of the user: its answer comes when it is done.
        spec.long_running = mode == Mode::Task;
        spec.resumes = true;
        Self { node, mode, spec, input: InputSchema::of(agent) }
    }

    pub(crate) fn is_task(&self) -> bool {
        self.mode == Mode::Task
    }

    /// Lets the agent work under a call, and gives what it reported, if it did.
    async fn work(&self, run: &Run, call: &CallId) -> Result<ToolValue> {
        let below = run.isolate(self.node, call.as_str())?;
        run_child(&below).await?;
        match self.mode {
            Mode::Task => Ok(report(&below.events(), call).unwrap_or_default()),
            _ => Ok(last_words(&below.events(), call)),
        }
    }
}

impl Tool for Delegate {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            if let Some(input) = &self.input {
                input.check(&args)?;
            }
            let Some(call) = cx.call_id() else {
                return Err(ToolError::new("a task needs a call with an id"));
            };
            Ok(ToolOutput::from(self.work(cx.run(), call).await?))
        })
    }
}

/// What the agent that works under `call` reported as the result of its task.
pub(crate) fn report(events: &List<Arc<Event>>, call: &CallId) -> Option<ToolValue> {
    let mine =
        events.iter().rev().take_while(|event| !event.calls().any(|made| made.id.as_ref() == Some(call)));
    let done = mine.filter(|event| event.source.isolation_scope.as_deref() == Some(call.as_str())).find_map(
        |event| {
            let mut responses = event.responses();
            responses
                .find(|response| response.name == FINISH_TASK)
                .and_then(|response| response.response.clone())
        },
    )?;
    if done.contains_key("error") {
        return None;
    }
    Some(Value::Object(done).into())
}

/// The last text that the agent under `call` said, or what a tool of its gave that answers directly.
fn last_words(events: &List<Arc<Event>>, call: &CallId) -> ToolValue {
    let mut mine =
        events.iter().rev().filter(|event| event.source.isolation_scope.as_deref() == Some(call.as_str()));
    let answer = mine.find_map(|event| match event.direct_answer() {
        Some(response) => Some(direct_value(response)),
        None => Some(Value::String(event.text()).into()).filter(|_| !event.text().is_empty()),
    });
    answer.unwrap_or_else(|| Value::String(String::new()).into())
}

/// What a tool gave, as the result of the agent whose answer it is.
pub(super) fn direct_value(response: &FunctionResponse) -> ToolValue {
    if let Some(error) = response.error() {
        return error_value(&umbel_core::json::render(error));
    }
    let parts = response.unknown.get("parts").cloned().unwrap_or_default();
    let value = match response.value() {
        Value::Null => Value::String(String::new()),
        Value::Object(object) if object.is_empty() => Value::String(String::new()),
        value => value,
    };
    ToolValue { parts: serde_json::from_value(parts).unwrap_or_default(), ..value.into() }
}

/// The tool by which a task agent ends its task.
pub(crate) struct FinishTask {
    spec: ToolSpec,
    schema: Option<OutputSchema>,
}

impl FinishTask {
    /// The tool for an agent with that output schema; one without is shared.
    pub(crate) fn shared(schema: Option<&OutputSchema>) -> Arc<Self> {
        static PLAIN: LazyLock<Arc<FinishTask>> = LazyLock::new(|| Arc::new(FinishTask::new(None)));
        static LAST: Mutex<Option<(Arc<Value>, Arc<FinishTask>)>> = Mutex::new(None);
        let Some(schema) = schema else { return PLAIN.clone() };
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, tool)) = last.as_ref()
            && Arc::ptr_eq(known, schema.schema())
        {
            return tool.clone();
        }
        let tool = Arc::new(Self::new(Some(schema.clone())));
        *last = Some((schema.schema().clone(), tool.clone()));
        tool
    }

    fn new(schema: Option<OutputSchema>) -> Self {
        let parameters = match &schema {
            Some(schema) if schema.schema().get("properties").is_some() => (**schema.schema()).clone(),
            _ => {
                json!({"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]})
            }
        };
        Self { spec: ToolSpec::new(FINISH_TASK, text::FINISH_TASK, parameters).resuming(), schema }
    }
}

impl Tool for FinishTask {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let value = Value::Object((*args).clone());
            if let Some(schema) = &self.schema {
                schema.check(&value).map_err(ToolError::invalid_arguments)?;
            }
            cx.skip_summarization();
            Ok(value.into())
        })
    }
}

/// The call of a task that is still open for this agent: made by it, answered by nobody.
pub(crate) fn open_task(events: &List<Arc<Event>>, agent: &str) -> Option<(CallId, smol_str::SmolStr)> {
    let mut answered: Vec<&CallId> = Vec::new();
    for event in events.iter().rev().filter(|event| event.source.isolation_scope.is_none()) {
        answered.extend(event.responses().filter_map(|response| response.id.as_ref()));
        if event.author() != agent {
            continue;
        }
        for call in event.calls() {
            let Some(id) = call.id.as_ref().filter(|id| event.long_running().contains(id)) else { continue };
            return (!answered.contains(&id)).then(|| (id.clone(), call.name.clone()));
        }
    }
    None
}

/// Goes on with a task that waits for the user: the agent works again, and if it is done, its call is answered.
///
/// Gives whether the task is still open, so that the parent has nothing to say.
pub(crate) async fn resume_task(run: &Run, delegates: &[Arc<Delegate>]) -> Result<bool> {
    let events = run.events();
    let Some((call, name)) = open_task(&events, run.agent_name()) else { return Ok(false) };
    let Some(delegate) = delegates.iter().find(|delegate| delegate.spec.name == name && delegate.is_task())
    else {
        return Ok(false);
    };
    drop(events);
    let value = delegate.work(run, &call).await?;
    let Value::Object(response) = value.value else { return Ok(true) };
    let response = umbel_core::FunctionResponse::new(Some(call), name, response);
    let content = umbel_core::Content::new(umbel_core::Role::User, [Part::response(response)]);
    run.emit(run.event().with_content(content)).await?;
    Ok(false)
}

impl std::fmt::Debug for FinishTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FinishTask")
    }
}
