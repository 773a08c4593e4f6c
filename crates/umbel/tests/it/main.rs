//! The tests of the facade.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod attempts;
mod bad_input;
mod call_limits;
mod calls;
mod confirmations;
mod flow;
mod handler_macro;
mod options;
mod outcome;
mod sessions;
mod spans;
mod support;
mod tool_macro;
