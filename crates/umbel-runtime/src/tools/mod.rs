//! Tools that come with the kit.

pub mod agent_tool;
mod built_in;
pub(crate) mod delegate;

pub use self::agent_tool::AgentTool;
pub use self::built_in::{ExitLoop, LoadArtifacts, LoadMemory, PreloadMemory, RequestInput};
