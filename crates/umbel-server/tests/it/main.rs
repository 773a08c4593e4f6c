//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod attach;
mod auth;
mod choosing;
mod docs;
mod first_steps;
mod fold;
mod ghosts;
mod jwt;
mod seams;
mod sessions;
mod support;
mod threads;
mod viewers;
