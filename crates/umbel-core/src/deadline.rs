//! A point in time that may never come.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// From how long on a wait has no end. Clocks, and libraries that add to them, cannot count much further.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The time, unless it has no end: [`Duration::MAX`], or more than a hundred years. For those who would add it to a clock.
pub fn finite(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| *time < NEVER)
}

/// A point in time that may never come: a time from now that is too long for any clock has no end. Time is tokio's.
///
/// ```
/// use std::time::Duration;
/// use umbel_core::Deadline;
///
/// assert!(Deadline::after(Duration::ZERO).is_past());
/// assert!(!Deadline::after(Duration::MAX).is_past());
/// assert_eq!(Deadline::after(Duration::MAX).left(), Duration::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// That long from now.
    pub fn after(time: Duration) -> Self {
        Self::since(Instant::now(), time)
    }

    /// That long from then.
    pub fn since(start: Instant, time: Duration) -> Self {
        Self(finite(time).and_then(|time| start.checked_add(time)))
    }

    /// When it is; `None` if it never comes.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Whether it has come.
    pub fn is_past(self) -> bool {
        self.0.is_some_and(|instant| instant <= Instant::now())
    }

    /// How long until it comes; [`Duration::MAX`] if it never does.
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |instant| instant.saturating_duration_since(Instant::now()))
    }

    /// The one that comes first.
    pub fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(two)) => Self(Some(one.min(two))),
            (one, two) => Self(one.or(two)),
        }
    }

    /// Waits until it comes.
    pub async fn wait(self) {
        match self.0 {
            Some(instant) => tokio::time::sleep_until(instant).await,
            None => std::future::pending().await,
        }
    }

    /// What a future gives, if it does so before.
    pub async fn timeout<F: Future>(self, future: F) -> Option<F::Output> {
        match self.0 {
            Some(instant) => tokio::time::timeout_at(instant, future).await.ok(),
            None => Some(future.await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_comes_when_its_time_is_over_and_never_if_it_has_no_end() {
        let (soon, never) = (Deadline::after(SECOND), Deadline::after(Duration::MAX));
        assert_eq!((soon.left(), never.left()), (SECOND, Duration::MAX));
        assert_eq!((soon.earlier(never), never.earlier(soon)), (soon, soon));
        assert_eq!(never.earlier(never).instant(), None);
        let start = Instant::now();
        soon.earlier(never).wait().await;
        assert_eq!(start.elapsed(), SECOND);
        assert!(soon.is_past() && !never.is_past());
        assert_eq!(soon.left(), Duration::ZERO);
        assert!(Deadline::after(Duration::ZERO).is_past());
        assert_eq!(Deadline::since(start, Duration::MAX), never);
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_has_until_its_deadline() {
        let work = || tokio::time::sleep(SECOND);
        assert_eq!(Deadline::after(Duration::MAX).timeout(work()).await, Some(()));
        assert_eq!(Deadline::after(SECOND / 2).timeout(work()).await, None);
        // What is ready at once is, though there is no time at all.
        assert_eq!(Deadline::after(Duration::ZERO).timeout(std::future::ready(1)).await, Some(1));
    }

    #[test]
    fn a_time_of_more_than_a_hundred_years_has_no_end() {
        for (time, is_finite) in [
            (Duration::ZERO, true),
            (SECOND, true),
            (99 * 365 * 86_400 * SECOND, true),
            (NEVER, false),
            (Duration::MAX, false),
        ] {
            assert_eq!(finite(time).is_some(), is_finite, "{time:?}");
        }
    }
}
