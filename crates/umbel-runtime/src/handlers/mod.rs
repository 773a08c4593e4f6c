//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod event_filter;
mod global_instruction;
mod reflect;
mod todo;
mod tool_error;
mod tool_select;

pub use self::event_filter::EventFilter;
pub use self::global_instruction::GlobalInstruction;
pub use self::reflect::ReflectRetry;
pub use self::todo::{TODOS, Todo, TodoList, TodoStatus, WRITE_TODOS};
pub use self::tool_error::ToolErrorHandler;
pub use self::tool_select::{OnParsingFailure, ToolSelect};
