//! Handlers that most agents can use.

mod per_agent;
pub mod token_counter;
