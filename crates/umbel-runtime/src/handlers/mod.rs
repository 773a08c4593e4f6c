//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod attempts;
mod context_edit;
mod fallback;
mod limits;
mod offload;
mod per_agent;
pub mod pii;
mod repair;
mod retry;
mod summarise;
mod token_counter;
#[cfg(test)]
mod vectors;

pub use self::context_edit::{ClearResults, ContextEdit};
pub use self::fallback::ModelFallback;
pub use self::limits::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
pub use self::offload::{Offload, READ_ARTIFACT};
pub use self::repair::RepairCalls;
pub use self::retry::{Again, Attempt, ModelRetry, OnFailure, Verdict};
pub use self::summarise::{Keep, Summarise, Trigger};
pub use self::token_counter::{ApproximateTokens, TokenCounter};
