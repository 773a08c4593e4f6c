//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod answers;
mod auth;
mod bad_requests;
mod choosing;
mod client_tools;
mod desk;
mod docs;
mod faults;
mod fold;
mod jwt;
mod middleware_bugs;
mod odd_names;
mod policies;
mod seams;
mod sessions;
mod slow_readers;
mod state;
mod support;
mod tenants;
mod threads;
