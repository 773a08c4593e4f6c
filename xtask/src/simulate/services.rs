//! Time and ids of a simulation: the same for the same seed.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;
use umbel::{Clock, IdKind, Ids};

/// Where the wall clock begins, seconds since 1970.
const EPOCH: f64 = 1_000_000.0;

/// How far simulated time is ahead of real time.
const AHEAD: Duration = Duration::from_secs(3_600);

/// Simulated time: that of tokio's paused clock, and a wall clock that jumps. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct SimClock {
    /// When the simulation began, by the clock of the current runtime.
    began: Arc<Mutex<Instant>>,
    /// Microseconds since then, for threads outside the runtime.
    elapsed: Arc<AtomicU64>,
    /// How far the wall clock jumped, in seconds.
    offset: Arc<AtomicI64>,
}

impl SimClock {
    /// Begins now, by the clock of the current runtime.
    pub(super) async fn start() -> Self {
        // Ahead of real time, so that the clock of a later runtime can be moved to where this one stood.
        tokio::time::advance(AHEAD).await;
        let began = Arc::new(Mutex::new(Instant::now()));
        Self { began, elapsed: Arc::default(), offset: Arc::default() }
    }

    fn began(&self) -> Instant {
        *self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulated time since the beginning. Call it within the runtime.
    pub(super) fn elapsed(&self) -> Duration {
        let elapsed = Instant::now().saturating_duration_since(self.began());
        self.elapsed.store(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        elapsed
    }

    /// Moves the clock of a new runtime to where that of the last one stood. Timers go by whole milliseconds of their runtime,
    /// so that the beginning moves by less than one.
    pub(super) async fn catch_up(&self, elapsed: Duration) {
        let missing = (self.began() + elapsed).saturating_duration_since(Instant::now());
        let whole = missing.as_nanos().div_ceil(1_000_000);
        tokio::time::advance(Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX))).await;
        if let Some(began) = Instant::now().checked_sub(elapsed) {
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = began;
        }
    }

    /// The wall clock jumps.
    pub(super) fn jump(&self, seconds: i32) {
        self.offset.fetch_add(i64::from(seconds), Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> f64 {
        let offset = self.offset.load(Ordering::Relaxed);
        EPOCH + self.elapsed().as_secs_f64() + offset as f64
    }
}

/// The same time for a store on threads of its own: as far as it was last looked at, without jumps.
#[derive(Clone, Debug)]
pub(super) struct StoreClock(pub(super) SimClock);

impl Clock for StoreClock {
    fn now(&self) -> f64 {
        EPOCH + self.0.elapsed.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// Ids that are counted. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(super) struct SimIds(Arc<AtomicU64>);

impl Ids for SimIds {
    fn mint(&self, kind: IdKind) -> SmolStr {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let prefix = match kind {
            IdKind::Run => "e-",
            IdKind::Call => "adk-",
            IdKind::Event => "v",
            _ => "s",
        };
        format!("{prefix}{number}").into()
    }
}
