//! The runtime of Umbel.

pub mod contents;
pub mod text;
