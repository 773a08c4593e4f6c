//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod attempts;
pub mod context_edit;
mod event_filter;
mod fallback;
mod global_instruction;
mod limits;
pub mod offload;
mod per_agent;
mod reflect;
pub mod repair;
mod retry;
pub mod summarise;
mod todo;
pub mod token_counter;
mod tool_error;
mod tool_select;
#[cfg(test)]
mod vectors;

pub use self::event_filter::EventFilter;
pub use self::fallback::ModelFallback;
pub use self::global_instruction::GlobalInstruction;
pub use self::limits::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
pub use self::reflect::ReflectRetry;
pub use self::retry::{Again, Attempt, ModelRetry, OnFailure, Verdict};
pub use self::todo::{TODOS, Todo, TodoList, TodoStatus, WRITE_TODOS};
pub use self::tool_error::ToolErrorHandler;
pub use self::tool_select::{OnParsingFailure, ToolSelect};
