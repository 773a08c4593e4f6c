//! Handlers that most agents can use.

pub mod offload;
mod per_agent;
pub mod repair;
pub mod token_counter;
