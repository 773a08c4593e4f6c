//! A list of tasks that the model keeps.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use umbel_core::function_tool::parse_args;
use umbel_core::{
    AgentPlan, CallId, FunctionTool, Handler, ModelTurn, Object, Result, Step, Tool, ToolContext, ToolError,
    ToolOutput, ToolSet, ToolSpec, ToolValue, Words,
};
use umbel_macros::handler;

use crate::text;

/// The state key of the list. It is an ordinary key of the session: anyone may read it, clients too.
pub const TODOS: &str = "todos";

/// The name of the tool that writes the list.
pub const WRITE_TODOS: &str = "write_todos";

/// One task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Todo {
    /// What is to be done.
    pub content: String,
    /// How far it is.
    pub status: TodoStatus,
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    /// Not begun.
    Pending,
    /// Being worked on.
    InProgress,
    /// Done.
    Completed,
}

/// Gives the model a list of tasks: the tool `write_todos`, and words about how to use it.
///
/// Each call writes the whole list, to the session's state under [`TODOS`], as a list of [`Todo`]s. Of several calls in
/// one turn none is made, since each would undo the others: all are answered with an error.
///
/// ```
/// use umbel_runtime::handlers::TodoList;
///
/// let todos = TodoList::new().prompt("Keep a list of what is left to do.");
/// ```
pub struct TodoList {
    prompt: Words,
    description: String,
}

impl TodoList {
    /// With the usual words.
    pub fn new() -> Self {
        Self { prompt: text::TODO_PROMPT.into(), description: text::TODO_TOOL.to_owned() }
    }

    /// Other words about how to use the list. Empty ones are left out.
    pub fn prompt(mut self, words: impl Into<Words>) -> Self {
        self.prompt = words.into();
        self
    }

    /// Other words about what the tool does.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }
}

impl Default for TodoList {
    fn default() -> Self {
        Self::new()
    }
}

#[handler(crate = umbel_core)]
impl Handler for TodoList {
    fn name(&self) -> &str {
        "todo_list"
    }

    /// The tool stands before the agent's own: those may change, and what a provider caches begins with the tools.
    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        let mut tools = ToolSet::new();
        tools.add(write_todos(self.description.clone()));
        for meta in plan.tools.iter() {
            tools.add_meta(meta.clone());
        }
        plan.tools = Arc::new(tools);
        plan.instruction.push(self.name(), self.prompt.clone());
        Ok(())
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let writes = turn.calls().filter(|call| call.name == WRITE_TODOS);
        let writes: Vec<CallId> = writes.filter_map(|call| call.id.clone()).collect();
        if writes.len() > 1 {
            for call in writes {
                turn.answer(call, ToolValue::error(text::TODO_PARALLEL));
            }
        }
        Ok(Step::Continue)
    }
}

fn write_todos(description: String) -> Arc<dyn Tool> {
    let status = json!({"type": "string", "enum": ["pending", "in_progress", "completed"]});
    let todo = json!({
        "type": "object",
        "properties": {"content": {"type": "string"}, "status": status},
        "required": ["content", "status"],
    });
    let parameters = json!({
        "type": "object",
        "properties": {"todos": {"type": "array", "items": todo}},
        "required": ["todos"],
    });
    let spec = ToolSpec::new(WRITE_TODOS, description, parameters).resuming();
    let reading = spec.clone();
    Arc::new(FunctionTool::raw(spec, move |cx, args| {
        let written = write(cx, &reading, &args);
        Box::pin(async move { written })
    }))
}

fn write(cx: &ToolContext, spec: &ToolSpec, args: &Object) -> Result<ToolOutput, ToolError> {
    #[derive(Deserialize)]
    struct Args {
        todos: Vec<Todo>,
    }
    let Args { todos } = parse_args(spec, args)?;
    let count = |status| todos.iter().filter(|todo| todo.status == status).count();
    let written = text::todos_written(
        count(TodoStatus::Pending),
        count(TodoStatus::InProgress),
        count(TodoStatus::Completed),
    );
    cx.set_state(TODOS, serde_json::to_value(todos)?);
    Ok(json!(written).into())
}

impl fmt::Debug for TodoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TodoList")
    }
}
