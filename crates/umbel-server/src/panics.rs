//! Panics in work of the server that nobody asked for: they end that work and nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use umbel_core::{Error, Result};

/// What a future gives, or that it panicked, which is logged.
pub(crate) async fn caught<F: Future>(what: &str, work: F) -> Result<F::Output> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| {
        let error = Error::from_panic(what, panic.as_ref());
        tracing::error!("{error}");
        error
    })
}
