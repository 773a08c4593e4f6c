//! The tests of the facade.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod bad_input;
mod calls;
mod confirmations;
mod context_edit;
mod flow;
mod handler_macro;
mod layers;
mod offload;
mod options;
mod outcome;
mod pii;
mod pii_vectors;
mod repair;
mod sessions;
mod spans;
mod summarise;
mod support;
mod tool_macro;
