//! MCP servers as toolsets.
//!
//! | What a server has | What an agent makes of it |
//! |---|---|
//! | Tools | Tools of the agent, pinned word for word |
//! | Resources | Two tools that list and read them ([`McpToolset::resources`]) |
//! | Prompts | Messages to begin with ([`McpToolset::prompt`]) |
//! | Questions to people | The run ends with the question, and goes on with the answer |
//! | Requests to a model | The agent's model, if it is lent ([`Sampling`]) |
//!
//! # Layout
//! - `toolset.rs`: what a toolset is told, and its tools; `tool.rs`, `resources.rs`, `prompts.rs`: what is made of them
//! - `listed.rs`, `pins.rs`: what servers say about their tools, looked at and agreed to
//! - `connections.rs`: whose connection is open; `link.rs`: one of them; `asking.rs`: a request of several rounds
//! - `stdio.rs`, `http.rs`: where servers are; `lines.rs`, `steady.rs`: messages within bounds
//! - `handler.rs`, `calls.rs`, `attend.rs`, `elicitation.rs`, `sampling.rs`: what servers ask and tell
//! - `oauth.rs`: signing in where a server says; `result.rs`: what servers give

mod asking;
mod attend;
mod calls;
mod connections;
mod elicitation;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod http;
mod lines;
mod link;
mod listed;
mod oauth;
mod pins;
mod prompts;
mod resources;
mod result;
mod sampling;
mod stdio;
mod steady;
mod tool;
mod toolset;

pub use self::http::Http;
pub use self::oauth::McpOAuth;
pub use self::pins::{FilePins, InMemoryPins, Pinned, Pins};
pub use self::prompts::McpPrompt;
pub use self::result::{SERVER, UNTRUSTED};
pub use self::sampling::Sampling;
pub use self::stdio::Stdio;
pub use self::toolset::{Approval, McpPlace, McpToolset, Pipe, Protocol, ToolsetLimits};
