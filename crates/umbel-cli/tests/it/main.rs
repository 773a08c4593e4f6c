//! Whole conversations, through the library and through the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod binary;
mod commands;
mod conversation;
mod evals;
mod file;
mod mcp;
mod model;
#[path = "../../../umbel-tools/tests/it/oauth_server.rs"]
#[allow(dead_code, reason = "what the tests of tools alone need of it")]
mod oauth_server;
mod replays;
mod serve;
mod telemetry;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(unix)]
mod transports;
