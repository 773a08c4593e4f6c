//! Stores put through the contract, and what is special to each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod in_memory;
#[cfg(feature = "sqlite")]
mod migrations;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod postgres;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod postgres_faults;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod postgres_silence;
#[cfg(feature = "sqlite")]
mod privacy;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod proxy;
mod server;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_faults;
#[cfg(feature = "sqlite")]
mod transfer;
#[cfg(feature = "sqlite")]
mod two_processes;
