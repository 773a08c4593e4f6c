//! Where calls are counted against a limit: token buckets, the contract for those elsewhere, and those in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;
use umbel_core::{Error, ErrorKind, Result, Work};

/// So many calls a second, and so many at once after a quiet time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    rate: f64,
    burst: u32,
}

impl Quota {
    /// `rate` calls a second, `burst` at once. Neither may be zero.
    pub fn per_second(rate: f64, burst: u32) -> Result<Self> {
        if !rate.is_finite() || rate <= 0.0 {
            let message =
                format!("a rate limit of {rate} calls a second lets none through: give more than zero");
            return Err(Error::new(ErrorKind::Build, message));
        }
        if burst == 0 {
            let message = "a rate limit with a burst of zero lets no call through: give at least one";
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(Self { rate, burst })
    }

    /// Calls a second.
    pub fn rate(self) -> f64 {
        self.rate
    }

    /// Calls at once.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// Seconds until a bucket has one more token.
    pub(super) fn interval(self) -> f64 {
        self.rate.recip()
    }
}

/// Ten calls a second, twenty at once.
impl Default for Quota {
    fn default() -> Self {
        Self { rate: 10.0, burst: 20 }
    }
}

/// Token buckets by key. One that processes share makes a limit hold for all of them.
pub trait LimiterStore: Send + Sync + fmt::Debug {
    /// Takes a token from a bucket. If there is none: how long until there is.
    fn take<'a>(&'a self, key: &'a str, quota: Quota) -> Work<'a, Result<Option<Duration>>>;
}

/// A shared store is a store.
impl<S: LimiterStore + ?Sized> LimiterStore for Arc<S> {
    fn take<'a>(&'a self, key: &'a str, quota: Quota) -> Work<'a, Result<Option<Duration>>> {
        (**self).take(key, quota)
    }
}

/// Token buckets in memory. One that is full is forgotten: a new one is as good.
#[derive(Debug)]
pub struct MemoryLimiter {
    start: Instant,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// When each is full again, in seconds since the start.
    full_at: HashMap<SmolStr, f64>,
    /// How many there may be before the full ones go.
    limit: usize,
}

/// Fewer buckets than this are not worth a look.
const FEW: usize = 64;
/// Seconds that do not count: sums of fractions are not exact.
const SLACK: f64 = 1e-9;

impl Default for MemoryLimiter {
    fn default() -> Self {
        Self { start: Instant::now(), buckets: Mutex::default() }
    }
}

impl MemoryLimiter {
    /// No buckets yet: each is full when it is first asked.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many buckets there are. Some may be full.
    pub fn len(&self) -> usize {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).full_at.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LimiterStore for MemoryLimiter {
    fn take<'a>(&'a self, key: &'a str, quota: Quota) -> Work<'a, Result<Option<Duration>>> {
        let now = self.start.elapsed().as_secs_f64();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = buckets.full_at.get(key).copied().unwrap_or(now).max(now);
        // A bucket that lacks `burst` tokens is empty.
        let wait = full_at - now - f64::from(quota.burst - 1) * quota.interval();
        if wait > SLACK {
            return Work::done(Ok(Some(seconds(wait))));
        }
        match buckets.full_at.get_mut(key) {
            Some(bucket) => *bucket = full_at + quota.interval(),
            None => buckets.add(key, full_at + quota.interval(), now),
        }
        Work::done(Ok(None))
    }
}

impl Buckets {
    /// Adds a bucket. When there are twice as many as the last time, the full ones go: on average that costs nothing.
    fn add(&mut self, key: &str, full_at: f64, now: f64) {
        if self.full_at.len() >= self.limit.max(FEW) {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.limit = self.full_at.len() * 2;
        }
        self.full_at.insert(key.into(), full_at);
    }
}

/// A time in seconds; one that is too long for a clock is as long as can be.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn take(limiter: &MemoryLimiter, key: &str, quota: Quota) -> Option<Duration> {
        limiter.take(key, quota).await.unwrap()
    }

    #[test]
    fn a_quota_that_lets_nothing_through_is_refused() {
        for (rate, burst) in [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (f64::INFINITY, 1), (1.0, 0)] {
            let error = Quota::per_second(rate, burst).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Build, "{rate} {burst}");
        }
        assert_eq!(Quota::default(), Quota::per_second(10.0, 20).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_burst_and_then_its_rate() {
        let (limiter, quota) = (MemoryLimiter::new(), Quota::per_second(10.0, 3).unwrap());
        for _ in 0..3 {
            assert_eq!(take(&limiter, "a", quota).await, None);
        }
        let wait = take(&limiter, "a", quota).await.unwrap();
        assert!((wait.as_secs_f64() - 0.1).abs() < 1e-6, "{wait:?}");
        assert_eq!(take(&limiter, "b", quota).await, None, "another key has its own bucket");
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(take(&limiter, "a", quota).await, None);
        assert!(take(&limiter, "a", quota).await.is_some());
        tokio::time::advance(Duration::from_secs(100)).await;
        for _ in 0..3 {
            assert_eq!(take(&limiter, "a", quota).await, None, "no more than the burst is saved up");
        }
        assert!(take(&limiter, "a", quota).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_forgotten() {
        let (limiter, quota) = (MemoryLimiter::new(), Quota::default());
        for round in 0..100 {
            for key in 0..FEW {
                assert_eq!(take(&limiter, &format!("{round}/{key}"), quota).await, None);
            }
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert!(limiter.len() <= 2 * FEW, "{}", limiter.len());
    }

    #[tokio::test]
    async fn the_slowest_rate_does_no_harm() {
        let (limiter, quota) =
            (MemoryLimiter::new(), Quota::per_second(f64::MIN_POSITIVE, u32::MAX).unwrap());
        assert_eq!(take(&limiter, "a", quota).await, None);
        let quota = Quota::per_second(f64::MIN_POSITIVE, 1).unwrap();
        assert_eq!(take(&limiter, "a", quota).await, Some(Duration::MAX));
    }
}
