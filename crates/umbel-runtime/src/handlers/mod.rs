//! Handlers that most agents can use.

pub mod context_edit;
pub mod offload;
mod per_agent;
pub mod repair;
pub mod summarise;
pub mod token_counter;
#[cfg(test)]
mod vectors;
