//! Whole conversations, through the library and through the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod binary;
mod commands;
mod conversation;
mod evals;
mod file;
mod mcp;
mod model;
mod replays;
mod serve;
mod telemetry;
#[cfg(target_os = "linux")]
mod terminal;
