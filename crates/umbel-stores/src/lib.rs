//! Where Umbel keeps sessions, artifacts, memories and credentials.
//!
//! # Layout
//! - [`open`]: all stores of one place, found by its address; [`Stores`]
//! - `sqlite` (feature, on by default): everything in one file
//! - `postgres` (feature): a server that many processes share
//! - [`Keys`]: what credentials are encrypted with
//! - [`Stores::erase_user`], [`Retention`]: to erase a user, and not to keep data for ever
//! - `adk`: google-adk's session databases as JSON lines, which stores import and export
//! - `contract` (feature): tests that any store can be put through
//!
//! ```
//! use umbel_core::{NewSession, Result, SessionKey};
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let stores = umbel_stores::open("memory:").await?;
//!     let key = SessionKey::new("demo", "ann", "s1")?;
//!     stores.sessions.create(NewSession::new(key)).await?;
//!     Ok(())
//! }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

#[cfg(feature = "sqlite")]
pub mod adk;
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
#[cfg(feature = "sealed")]
mod entries;
#[cfg(all(fuzzing, feature = "sealed"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "sealed")]
mod lease;
#[cfg(feature = "postgres")]
pub mod postgres;
mod privacy;
#[cfg(feature = "sealed")]
mod refusal;
#[cfg(feature = "sealed")]
mod seal;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod stores;
#[cfg(feature = "sealed")]
mod transfer;

#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresOptions};
pub use privacy::{Erased, Retention};
#[cfg(feature = "sealed")]
pub use seal::{KEYS_FILE_VARIABLE, KEYS_VARIABLE, Key, Keys};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteOptions};
pub use stores::{Stores, export, import, open};
