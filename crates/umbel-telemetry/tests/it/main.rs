//! Traces and metrics as they leave the program: in memory, and over the wire.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod canary;
mod content;
mod context;
mod links;
mod metrics;
mod otlp;
mod served;
mod spans;
mod stub;
mod support;
