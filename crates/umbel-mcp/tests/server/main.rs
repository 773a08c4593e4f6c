//! Agents as an MCP server, as clients see them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![expect(deprecated, reason = "clients of today read log messages and lend their models")]

mod asking;
mod bad_clients;
mod calls;
mod changing;
mod http;
mod reading;
mod support;
