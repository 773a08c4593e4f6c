//! The tests of the facade.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod bad_input;
mod calls;
mod checklist;
mod confirmations;
mod flow;
mod handler_macro;
mod handler_support;
mod hooks_matrix;
mod options;
mod outcome;
mod sessions;
mod spans;
mod support;
mod tool_macro;
