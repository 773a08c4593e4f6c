//! Handlers that most agents can use: add one to an agent, or to a runner for all of its agents.

pub mod pii;
