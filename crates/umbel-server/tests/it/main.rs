//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod agents;
mod answers;
mod attach;
mod auth;
mod background;
mod bad_requests;
mod choosing;
mod client_tools;
mod code;
mod confirming;
mod credentials;
mod desk;
mod docs;
mod durations;
mod faults;
mod first_steps;
mod fold;
mod forking;
mod ghosts;
mod hostile;
mod inspecting;
mod jwt;
mod looks;
mod middleware_bugs;
mod mounting;
mod odd_names;
mod policies;
mod replacing;
mod seams;
mod sessions;
mod slow_readers;
mod state;
mod steps;
mod studio;
mod support;
mod tenants;
mod threads;
mod tls;
mod tracing_runs;
#[cfg(unix)]
mod unix;
mod usage;
mod viewers;
