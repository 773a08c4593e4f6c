//! The server as its clients see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod answers;
mod bad_requests;
mod client_tools;
mod desk;
mod faults;
mod odd_names;
mod policies;
mod slow_readers;
mod state;
mod support;
mod tenants;
