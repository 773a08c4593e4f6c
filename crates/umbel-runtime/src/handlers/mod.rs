//! Handlers that most agents can use.

mod per_agent;
pub mod repair;
pub mod token_counter;
