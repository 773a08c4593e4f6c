//! How long to wait before another attempt.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use umbel_core::{CancelToken, Error, ErrorKind, Result};

/// How long to wait before another attempt: longer each time, up to a limit, and a little at random, so that those who
/// failed together do not come back together.
///
/// ```
/// use std::time::Duration;
/// use umbel_runtime::backoff::Backoff;
///
/// let backoff = Backoff::new().initial(Duration::from_millis(500)).factor(3.0).max(Duration::from_secs(4));
/// let delays: Vec<f64> = (0..4).map(|retry| backoff.delay(retry, 0.5).as_secs_f64()).collect();
/// assert_eq!(delays, [0.5, 1.5, 4.0, 4.0]);
/// ```
#[derive(Clone)]
pub struct Backoff {
    initial: Duration,
    factor: f64,
    max: Duration,
    jitter: bool,
    draw: Arc<dyn Fn() -> f64 + Send + Sync>,
}

/// How much of a delay is left to chance, to either side.
const JITTER: f64 = 0.25;

impl Backoff {
    /// One second, twice as long each time, a minute at most, with jitter.
    pub fn new() -> Self {
        Self {
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(60),
            jitter: true,
            draw: Arc::new(fastrand::f64),
        }
    }

    /// The wait before the second attempt.
    pub fn initial(mut self, initial: Duration) -> Self {
        self.initial = initial;
        self
    }

    /// By how much each wait is longer than the one before. 0 and 1 make all alike.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The longest wait, jitter not counted.
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Whether waits are up to a quarter longer or shorter, at random.
    pub fn jitter(mut self, jitter: bool) -> Self {
        self.jitter = jitter;
        self
    }

    /// Where chance comes from: numbers from 0 (a quarter shorter) to 1 (a quarter longer). For tests.
    pub fn draw(mut self, draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.draw = Arc::new(draw);
        self
    }

    /// The wait before a retry, of which the first is number 0, with that draw from 0 to 1.
    pub fn delay(&self, retry: u32, draw: f64) -> Duration {
        let exponent = if self.factor == 0.0 { 0 } else { i32::try_from(retry).unwrap_or(i32::MAX) };
        let grown = self.initial.as_secs_f64() * self.factor.powi(exponent);
        let jitter = if self.jitter { 1.0 + JITTER * (2.0 * draw - 1.0) } else { 1.0 };
        let delay = grown.min(self.max.as_secs_f64()) * jitter;
        Duration::try_from_secs_f64(delay).unwrap_or(self.max)
    }

    /// The wait before a retry after that error, which may say itself how long it takes. `None` if that is longer than
    /// anyone should wait.
    pub fn delay_after(&self, retry: u32, error: &Error) -> Option<Duration> {
        let delay = self.delay(retry, (self.draw)());
        match error.retry_after() {
            Some(after) if after > self.max || after == Duration::MAX => None,
            Some(after) => Some(delay.max(after)),
            None => Some(delay),
        }
    }

    /// An error of kind [`Build`](ErrorKind::Build) if it makes no sense: a factor that is negative, infinite or no number.
    /// Handlers with a backoff check it when a runner is built. An initial wait that is longer than the longest is that one.
    pub fn check(&self) -> Result<()> {
        let factor = self.factor;
        if factor.is_finite() && factor >= 0.0 {
            return Ok(());
        }
        let message =
            format!("the factor of a backoff is {factor}: it must be 0 or more; 2 doubles each wait");
        Err(Error::new(ErrorKind::Build, message))
    }
}

/// Waits, unless there is nothing to wait for. An error if the token is cancelled first.
pub async fn pause(delay: Duration, cancel: &CancelToken) -> Result<()> {
    cancel.check()?;
    if delay.is_zero() {
        return Ok(());
    }
    cancel.guard(pin!(tokio::time::sleep(delay))).await
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("initial", &self.initial)
            .field("factor", &self.factor)
            .field("max", &self.max)
            .field("jitter", &self.jitter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbel_core::CancelReason;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn delays(backoff: &Backoff, draw: f64) -> Vec<f64> {
        (0..4).map(|retry| backoff.delay(retry, draw).as_secs_f64()).collect()
    }

    #[test]
    fn waits_grow_up_to_the_longest() {
        let backoff = Backoff::new();
        assert_eq!(delays(&backoff, 0.5), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(delays(&backoff.clone().max(seconds(3.0)), 0.5), [1.0, 2.0, 3.0, 3.0]);
        assert_eq!(delays(&backoff.clone().factor(0.0), 0.5), [1.0; 4]);
        assert_eq!(delays(&backoff.clone().factor(1.0), 0.5), [1.0; 4]);
        assert_eq!(delays(&backoff.initial(Duration::ZERO), 0.5), [0.0; 4]);
    }

    #[test]
    fn chance_is_a_quarter_to_either_side_and_may_go_beyond_the_longest() {
        let backoff = Backoff::new().max(seconds(3.0));
        assert_eq!(delays(&backoff, 0.0), [0.75, 1.5, 2.25, 2.25]);
        assert_eq!(delays(&backoff, 1.0), [1.25, 2.5, 3.75, 3.75]);
        assert_eq!(delays(&backoff.jitter(false), 1.0), [1.0, 2.0, 3.0, 3.0]);
        let drawn: Vec<Duration> = (0..50).filter_map(|_| Backoff::new().delay_after(0, &failed())).collect();
        assert_eq!(drawn.len(), 50);
        assert!(drawn.iter().all(|delay| (0.75..=1.25).contains(&delay.as_secs_f64())), "{drawn:?}");
        assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn no_number_is_too_large() {
        let backoff = Backoff::new().factor(f64::MAX).initial(Duration::MAX).max(Duration::MAX);
        assert_eq!(backoff.delay(u32::MAX, 1.0), Duration::MAX);
        assert_eq!(Backoff::new().delay(u32::MAX, 0.5), seconds(60.0));
    }

    fn failed() -> Error {
        Error::new(ErrorKind::Other, "failed")
    }

    #[test]
    fn an_error_that_says_how_long_it_takes_is_believed_within_reason() {
        let backoff = Backoff::new().draw(|| 0.5);
        let after = |after| backoff.delay_after(1, &failed().with_retry_after(seconds(after)));
        assert_eq!(backoff.delay_after(1, &failed()), Some(seconds(2.0)));
        assert_eq!(after(0.1), Some(seconds(2.0)));
        assert_eq!(after(7.5), Some(seconds(7.5)));
        assert_eq!(after(60.0), Some(seconds(60.0)));
        assert_eq!(after(60.1), None);
        let never = failed().with_retry_after(Duration::MAX);
        assert_eq!(Backoff::new().max(Duration::MAX).delay_after(1, &never), None, "it never helps");
    }

    #[test]
    fn a_factor_that_makes_no_sense_is_refused() {
        assert!(Backoff::new().factor(0.0).check().is_ok());
        for factor in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Backoff::new().factor(factor).check().unwrap_err().kind(), ErrorKind::Build);
        }
    }

    #[test]
    fn an_initial_wait_that_is_longer_than_the_longest_is_the_longest() {
        let backoff = Backoff::new().initial(seconds(5.0)).max(seconds(4.0)).jitter(false);
        assert!(backoff.check().is_ok());
        assert_eq!(delays(&backoff, 0.5), [4.0; 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_the_run_is_cancelled() {
        let token = CancelToken::new();
        let begin = tokio::time::Instant::now();
        pause(seconds(5.0), &token).await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 5);
        let other = token.clone();
        let waiting = tokio::spawn(async move { pause(seconds(1e6), &other).await });
        tokio::time::sleep(seconds(1.0)).await;
        token.cancel(CancelReason::Asked);
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(begin.elapsed().as_secs(), 6);
        assert_eq!(pause(Duration::ZERO, &token).await.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
