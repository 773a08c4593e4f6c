//! The wire form of every event and the rules of their order.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod costs;
mod events;
mod guard;
mod input;
mod rules;
mod samples;
mod taking_in;
mod translating;
