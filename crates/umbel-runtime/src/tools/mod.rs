//! Tools that come with the kit.

pub mod agent_tool;
mod built_in;
pub(crate) mod delegate;
mod input_schema;
mod run_code;

pub use self::agent_tool::AgentTool;
pub use self::built_in::{ExitLoop, LoadArtifacts, LoadMemory, PreloadMemory, RequestInput};
pub use self::run_code::RunCode;
