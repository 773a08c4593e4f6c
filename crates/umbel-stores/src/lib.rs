//! Where Umbel keeps sessions, artifacts, memories and credentials.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

#[cfg(feature = "contract")]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "tests: they panic where a store breaks its contract, and their names say what they show"
)]
pub mod contract;
