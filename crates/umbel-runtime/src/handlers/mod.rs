//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod attempts;
mod event_filter;
mod fallback;
mod global_instruction;
mod limits;
mod reflect;
mod retry;
mod todo;
mod tool_error;
mod tool_select;

pub use self::event_filter::EventFilter;
pub use self::fallback::ModelFallback;
pub use self::global_instruction::GlobalInstruction;
pub use self::limits::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
pub use self::reflect::ReflectRetry;
pub use self::retry::{Again, Attempt, ModelRetry, OnFailure, Verdict};
pub use self::todo::{TODOS, Todo, TodoList, TodoStatus, WRITE_TODOS};
pub use self::tool_error::ToolErrorHandler;
pub use self::tool_select::{OnParsingFailure, ToolSelect};
