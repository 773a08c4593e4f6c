//! Whole conversations, through the library and through the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod binary;
mod conversation;
mod file;
mod serve;
