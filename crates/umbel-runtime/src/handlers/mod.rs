//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod approve;
mod attempts;
mod confirm_changes;
mod context_edit;
mod event_filter;
mod fallback;
mod global_instruction;
mod limits;
mod offload;
mod per_agent;
pub mod pii;
mod reflect;
mod repair;
mod retry;
mod summarise;
mod todo;
mod token_counter;
mod tool_error;
mod tool_select;
mod usage;
#[cfg(test)]
mod vectors;

pub use self::approve::{ApprovalRule, Approve};
pub use self::confirm_changes::{CONFIRM_CHANGES, ConfirmChanges};
pub use self::context_edit::{ClearResults, ContextEdit};
pub use self::event_filter::EventFilter;
pub use self::fallback::ModelFallback;
pub use self::global_instruction::GlobalInstruction;
pub use self::limits::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
pub use self::offload::{Offload, READ_ARTIFACT};
pub use self::reflect::ReflectRetry;
pub use self::repair::RepairCalls;
pub use self::retry::{Again, Attempt, ModelRetry, OnFailure, Verdict};
pub use self::summarise::{Keep, Summarise, Trigger};
pub use self::todo::{TODOS, Todo, TodoList, TodoStatus, WRITE_TODOS};
pub use self::token_counter::{ApproximateTokens, TokenCounter};
pub use self::tool_error::ToolErrorHandler;
pub use self::tool_select::{OnParsingFailure, ToolSelect};
pub use self::usage::{UsageLedger, UsageLimit, UsageReached};
