//! Layers around tool calls: handlers whose only hook is `wrap_tool`.
//!
//! A layer goes around the calls of all tools of an agent, or around one tool with [`Layered`]. The first one is
//! outermost. A good order is logging, then caching, then the limits: what the cache answers then counts against no
//! limit, and everything is logged.
//!
//! # Layout
//! - [`logging`]: one line per call, however it ended
//! - [`caching`]: answers a call that was answered before; [`cache_store`]: where the answers are kept
//! - [`rate_limit`]: so many calls a second; [`limiter`]: where they are counted
//! - [`concurrency`]: so many calls at once; [`timeout`]: no call for longer; [`retry`]: another try
//! - [`circuit_breaker`]: no calls for a while of what keeps failing
//! - [`mod@hooks`]: layers from functions: [`layer_fn`] around a call, [`ToolHooks`] before and behind it
//! - [`tower`]: any `tower::Layer` as a layer
//! - [`layered`]: layers around one tool
//! - [`scope`]: which calls a layer takes together; [`end`]: seeing how a call ends, streamed or not
//! - [`contract`]: the tests that every layer has to pass
//!
//! What a layer needs to know of one call lives in its future, never in the arguments. Time is tokio's: it never goes
//! back, waits follow it, and tests can stop it.

pub mod cache_store;
pub mod caching;
pub(crate) mod canonical;
pub mod circuit_breaker;
pub mod concurrency;
pub mod contract;
pub mod end;
mod held;
pub mod hooks;
pub mod layered;
pub mod limiter;
pub mod logging;
mod masked;
mod nested;
pub mod rate_limit;
pub mod retry;
pub mod scope;
pub mod timeout;
pub mod tower;
pub(crate) mod user_tools;

pub use cache_store::{CacheKey, CacheStore, CachedAnswer, MemoryCache};
pub use caching::{CacheStats, CacheStatus, Caching};
pub use circuit_breaker::CircuitBreaker;
pub use concurrency::Concurrency;
pub use end::at_end;
pub use hooks::{LayerFn, ToolHooks, hooks, layer_fn};
pub use layered::Layered;
pub use limiter::{LimiterStore, MemoryLimiter, Quota};
pub use logging::{CallLog, Ending, Logging};
pub use rate_limit::RateLimit;
pub use retry::ToolRetry;
pub use scope::CallScope;
pub use timeout::Timeout;
pub use tower::{ToolRequest, ToolService, tower_layer};

use std::future::Future;
use std::pin::pin;

use umbel_core::{Error, Result, Run};

/// Whether a failure is the run's own end, or a question to a person: nothing that a layer may deal with.
pub(crate) fn is_control(run: &Run, error: &Error) -> bool {
    // A run out of time fails like a call out of time; its token tells them apart.
    error.is_control() || run.cancel_token().is_cancelled()
}

/// Waits in a layer, as long as the run goes on: nothing begins in a run that was told to stop.
async fn wait<T>(run: &Run, future: impl Future<Output = T>) -> Result<T> {
    let value = run.cancel_token().guard(pin!(future)).await?;
    run.cancel_token().check()?;
    Ok(value)
}
