//! What fuzzers reach of this crate.

use crate::Setup;
use crate::file::{Trust, check};

/// Reads a file of agents that nobody trusts. What is wrong with it can be told.
pub fn agents(source: &str) {
    let setup = Setup { watched: false, model: Some("script".to_owned()) };
    if let Err(told) = check(source, &setup, &Trust::default()) {
        assert!(!told.is_empty());
    }
}
