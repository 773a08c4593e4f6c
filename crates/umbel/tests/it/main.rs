//! The tests of the facade.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod approve;
mod attempts;
mod bad_input;
mod call_limits;
mod calls;
mod checklist;
mod code_execution;
mod confirmations;
mod context_edit;
mod desk;
mod edits;
mod eino_bugs;
mod evals;
mod flow;
mod handler_bad_input;
mod handler_macro;
mod handler_steps;
mod handler_support;
mod hooks_matrix;
mod interrupts;
mod layers;
mod offload;
mod options;
mod outcome;
mod pii;
mod pii_vectors;
mod rebuild;
mod recovery;
mod repair;
mod replays;
mod safe_points;
mod session_manager;
mod sessions;
mod small_handlers;
mod small_handlers_run;
mod spans;
mod store_faults;
mod summarise;
mod support;
mod taking_over;
mod tool_macro;
mod usage;
mod with_helpers;
