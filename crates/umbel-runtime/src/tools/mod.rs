//! Tools that come with the kit.

pub mod agent_tool;
pub(crate) mod delegate;
mod built_in;

pub use self::agent_tool::AgentTool;
pub use self::built_in::{ExitLoop, LoadArtifacts, LoadMemory, PreloadMemory, RequestInput};
