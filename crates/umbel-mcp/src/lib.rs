//! The Model Context Protocol for Umbel, both ways.
//!
//! - [`client`]: the tools, resources and prompts of MCP servers, for agents.
//! - [`server`]: agents as an MCP server.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod client;
pub mod server;
