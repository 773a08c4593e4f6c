//! Time, injected, so that a test can set it.

use std::fmt;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Seconds since 1970-01-01T00:00:00Z.
    fn now(&self) -> f64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }
}

/// A clock that goes one step further each time it is asked. For tests.
#[derive(Debug)]
pub struct SteppingClock {
    next: Mutex<f64>,
    step: f64,
}

impl SteppingClock {
    /// Starts at `start` and adds `step` after each reading.
    pub fn new(start: f64, step: f64) -> Self {
        Self { next: Mutex::new(start), step }
    }
}

impl Clock for SteppingClock {
    fn now(&self) -> f64 {
        let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = *next;
        *next += self.step;
        now
    }
}
