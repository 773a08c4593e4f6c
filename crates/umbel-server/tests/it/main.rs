//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod auth;
mod choosing;
mod docs;
mod jwt;
mod sessions;
mod support;
mod threads;
