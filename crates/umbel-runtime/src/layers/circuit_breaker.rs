//! No calls for a while of what keeps failing.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;
use umbel_core::{
    Deadline, Error, ErrorKind, Handler, Hooks, NextTool, Result, Run, ToolCall, ToolError, ToolResult,
    ToolValue, Work,
};

use super::{CallScope, at_end, is_control};
use crate::text;

/// Stops calling what keeps failing: for a while calls are refused with [`ErrorKind::CircuitOpen`], which says when to try
/// again. Then one call is let through to see; if it succeeds all is as before, if not the while begins again.
///
/// By default a tool has to fail five times in a row, and the while is thirty seconds. What the model did wrong does not
/// count, nor do refusals of other layers, questions to people and calls that were stopped.
pub struct CircuitBreaker {
    failures: usize,
    /// If set, they count if they came within that time, though others succeeded in between.
    window: Option<Duration>,
    open_for: Duration,
    scope: CallScope,
    counts: Arc<dyn Fn(&Error) -> bool + Send + Sync>,
    circuits: Arc<Circuits>,
}

#[derive(Default)]
struct Circuits(Mutex<Known>);

#[derive(Default)]
struct Known {
    circuits: HashMap<SmolStr, Circuit>,
    /// How many there may be before the quiet ones go.
    limit: usize,
}

/// What is known of one that failed lately. One that did not is not known.
#[derive(Default)]
struct Circuit {
    /// When it failed, the oldest first.
    failed: VecDeque<Instant>,
    open_until: Option<Deadline>,
    /// One call was let through to see.
    probed: bool,
}

/// Fewer circuits than this are not worth a look.
const FEW: usize = 1_024;
/// One that did not fail for so long is forgotten when there are many.
const LONG: Duration = Duration::from_secs(3_600);
/// When to try again while someone else sees.
const SOON: Duration = Duration::from_secs(1);

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self {
            failures: 5,
            window: None,
            open_for: Duration::from_secs(30),
            scope: CallScope::Tool,
            counts: Arc::new(is_breakdown),
            circuits: Arc::default(),
        }
    }
}

fn is_breakdown(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::RateLimited | ErrorKind::CircuitOpen)
}

impl CircuitBreaker {
    /// Five failures in a row, thirty seconds.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many failures in a row open it, at least one.
    pub fn in_a_row(mut self, failures: usize) -> Self {
        (self.failures, self.window) = (failures.max(1), None);
        self
    }

    /// So many failures within a time open it, at least one, whatever succeeded in between. With [`Duration::MAX`] every
    /// failure counts.
    pub fn within(mut self, failures: usize, window: Duration) -> Self {
        (self.failures, self.window) = (failures.max(1), Some(window));
        self
    }

    /// How long it stays open. Zero lets one call through at once; [`Duration::MAX`] leaves it open for good.
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// What fails together.
    pub fn per(mut self, scope: CallScope) -> Self {
        self.scope = scope;
        self
    }

    /// Which errors count as failures. A result that says it is an error always does.
    pub fn counts(mut self, decide: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Arc::new(decide);
        self
    }

    /// Lets a call through, or says why not.
    fn enter(&self, call: &ToolCall<'_>) -> Result<Attempt> {
        let key = self.scope.key(call);
        let mut probes = false;
        if let Some(circuit) = self.circuits.lock().circuits.get_mut(&key)
            && let Some(until) = circuit.open_until
        {
            let left = until.left();
            let wait = if left.is_zero() && circuit.probed { SOON.min(self.open_for) } else { left };
            if !wait.is_zero() || circuit.probed {
                let message = text::circuit_open(call.name(), wait);
                return Err(Error::new(ErrorKind::CircuitOpen, message).with_retry_after(wait));
            }
            circuit.probed = true;
            probes = true;
        }
        Ok(Attempt {
            circuits: self.circuits.clone(),
            key,
            probes,
            failures: self.failures,
            window: self.window,
            open_for: self.open_for,
        })
    }
}

impl Circuits {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// A circuit, be it new. When there are twice as many as the last time, the quiet ones go.
    fn circuit(&mut self, key: &SmolStr, now: Instant) -> &mut Circuit {
        if self.circuits.len() >= self.limit.max(FEW) {
            self.circuits.retain(|_, circuit| !circuit.is_quiet(now));
            self.limit = self.circuits.len() * 2;
        }
        self.circuits.entry(key.clone()).or_default()
    }
}

impl Circuit {
    fn is_quiet(&self, now: Instant) -> bool {
        self.open_until.is_none() && self.failed.back().is_none_or(|last| now - *last > LONG)
    }
}

/// A call that was let through. If it is dropped without a result, it tells nothing.
struct Attempt {
    circuits: Arc<Circuits>,
    key: SmolStr,
    probes: bool,
    failures: usize,
    window: Option<Duration>,
    open_for: Duration,
}

impl Attempt {
    fn succeeded(mut self) {
        let mut known = self.circuits.lock();
        let open = known.circuits.get(&self.key).is_some_and(|circuit| circuit.open_until.is_some());
        // A call that began before the circuit opened cannot close it, and within a window failures stay.
        if self.probes || (!open && self.window.is_none()) {
            known.circuits.remove(&self.key);
        }
        drop(known);
        self.probes = false;
    }

    fn failed(mut self) {
        let now = Instant::now();
        let mut known = self.circuits.lock();
        let circuit = known.circuit(&self.key, now);
        if self.probes {
            circuit.open_until = Some(Deadline::since(now, self.open_for));
            circuit.probed = false;
        } else if circuit.open_until.is_none() {
            if let Some(window) = self.window {
                circuit.failed.retain(|failed| now - *failed <= window);
            }
            circuit.failed.push_back(now);
            while circuit.failed.len() > self.failures {
                circuit.failed.pop_front();
            }
            if circuit.failed.len() == self.failures {
                circuit.open_until = Some(Deadline::since(now, self.open_for));
            }
        }
        drop(known);
        self.probes = false;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.probes
            && let Some(circuit) = self.circuits.lock().circuits.get_mut(&self.key)
        {
            // Another one may see.
            circuit.probed = false;
        }
    }
}

/// Notes how a call ended.
fn note(
    attempt: Attempt,
    run: &Run,
    counts: &(dyn Fn(&Error) -> bool + Send + Sync),
    end: &Result<ToolValue, ToolError>,
) {
    match end {
        Ok(value) if value.is_error => attempt.failed(),
        Ok(_) => attempt.succeeded(),
        Err(error) if !is_control(run, error.error()) && counts(error.error()) => attempt.failed(),
        Err(_) => {}
    }
}

impl Handler for CircuitBreaker {
    fn name(&self) -> &str {
        "circuit_breaker"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        if call.tool.is_none() {
            // What does not exist cannot break, and the model shall go on being told so.
            return Work::later(next.call(call));
        }
        Work::later(async move {
            let attempt = self.enter(&call)?;
            let (run, counts) = (call.run().clone(), self.counts.clone());
            at_end(next.call(call).await, move |end| {
                note(attempt, &run, &*counts, &end);
                ready(end)
            })
            .await
        })
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("failures", &self.failures)
            .field("window", &self.window)
            .field("open_for", &self.open_for)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
