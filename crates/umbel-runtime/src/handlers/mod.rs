//! Handlers that are ready to use. An agent or a runner takes them with `.handler(…)`.

mod attempts;
mod fallback;
mod limits;
mod retry;

pub use self::fallback::ModelFallback;
pub use self::limits::{LimitReached, ModelCallLimit, ModelLimitExit, ToolCallLimit, ToolLimitExit};
pub use self::retry::{Again, Attempt, ModelRetry, OnFailure, Verdict};
