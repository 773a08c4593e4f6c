//! So many calls a second.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use umbel_core::{Deadline, Error, ErrorKind, Handler, Hooks, NextTool, Result, ToolCall, ToolResult, Work};

use super::held::Holdings;
use super::limiter::{LimiterStore, MemoryLimiter, Quota, seconds};
use super::{CallScope, at_end, wait};
use crate::text;

/// Lets so many calls a second through, and refuses the others with [`ErrorKind::RateLimited`], which says when to try
/// again.
///
/// By default all calls share one quota: ten a second, twenty at once. With [`max_wait`](Self::max_wait) a call that would
/// be refused waits its turn, first come first served; it takes its token when its turn comes, so one that is dropped
/// while it waits has taken none. The metadata of a result say `rate_limited: false`.
#[derive(Debug)]
pub struct RateLimit {
    quota: Quota,
    /// Tools with a quota of their own.
    tools: Vec<(SmolStr, Quota)>,
    scope: CallScope,
    max_wait: Duration,
    store: Arc<dyn LimiterStore>,
    queues: Arc<Holdings<SmolStr, Queue>>,
}

/// Those who wait for tokens of one bucket.
#[derive(Default)]
struct Queue {
    /// Whoever has it is next.
    turn: tokio::sync::Mutex<()>,
    waiting: AtomicU32,
    /// When the next token is there, as far as is known.
    next: Mutex<Option<Deadline>>,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new(Quota::default())
    }
}

impl RateLimit {
    /// A limit for all calls together.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota,
            tools: Vec::new(),
            scope: CallScope::All,
            max_wait: Duration::ZERO,
            store: Arc::new(MemoryLimiter::new()),
            queues: Holdings::new(),
        }
    }

    /// Which calls share a quota.
    pub fn per(mut self, scope: CallScope) -> Self {
        self.scope = scope;
        self
    }

    /// Gives a tool a quota of its own; its calls do not count against the others'.
    pub fn tool(mut self, name: impl Into<SmolStr>, quota: Quota) -> Self {
        self.tools.push((name.into(), quota));
        self
    }

    /// Lets a call wait for so long before it is refused. One that would have to wait for longer is refused at once.
    /// Zero lets none wait; with [`Duration::MAX`] none is refused.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }

    /// Counts calls elsewhere. If that fails, calls fail.
    pub fn store(mut self, store: impl LimiterStore + 'static) -> Self {
        self.store = Arc::new(store);
        self
    }

    /// The bucket of a call.
    fn bucket(&self, call: &ToolCall<'_>) -> (SmolStr, Quota) {
        let key = self.scope.key(call);
        match self.tools.iter().rev().find(|(name, _)| name == call.name()) {
            Some((name, quota)) => (format_smolstr!("{name}\0{key}"), *quota),
            None => (key, self.quota),
        }
    }

    async fn take(&self, call: &ToolCall<'_>) -> Result<()> {
        let (key, quota) = self.bucket(call);
        if self.max_wait.is_zero() {
            return match self.store.take(&key, quota).await? {
                None => Ok(()),
                Some(wait) => Err(refused(call, wait)),
            };
        }
        let deadline = Deadline::after(self.max_wait);
        let queue = self.queues.hold(key.clone(), Queue::default);
        // Nobody goes ahead of those who wait.
        if queue.waiting.load(Ordering::Relaxed) == 0 {
            match self.store.take(&key, quota).await? {
                None => return Ok(()),
                Some(wait) => queue.expect(wait),
            }
        }
        let place = Place::behind(&queue);
        let wait = queue.until_next().saturating_add(seconds(f64::from(place.ahead) * quota.interval()));
        if wait > self.max_wait {
            return Err(refused(call, wait));
        }
        let turn = deadline.timeout(queue.turn.lock()).await;
        let _turn = turn.ok_or_else(|| refused(call, seconds(quota.interval())))?;
        while let Some(wait) = self.store.take(&key, quota).await? {
            queue.expect(wait);
            if wait > deadline.left() {
                return Err(refused(call, wait));
            }
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }
}

impl Queue {
    fn expect(&self, wait: Duration) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Deadline::after(wait));
    }

    fn until_next(&self) -> Duration {
        let next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.map_or(Duration::MAX, Deadline::left)
    }
}

/// A place in a queue, left when it is dropped.
struct Place<'a> {
    queue: &'a Queue,
    ahead: u32,
}

impl<'a> Place<'a> {
    fn behind(queue: &'a Queue) -> Self {
        Self { ahead: queue.waiting.fetch_add(1, Ordering::Relaxed), queue }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refused(call: &ToolCall<'_>, wait: Duration) -> Error {
    Error::new(ErrorKind::RateLimited, text::rate_limited(call.name(), wait)).with_retry_after(wait)
}

impl Handler for RateLimit {
    fn name(&self) -> &str {
        "rate_limit"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            // Who is told to stop while it waits was stopped, not refused.
            wait(call.run(), self.take(&call)).await??;
            at_end(next.call(call).await, |end| {
                std::future::ready(end.map(|mut value| {
                    value.metadata.insert("rate_limited".to_owned(), Value::Bool(false));
                    value
                }))
            })
            .await
        })
    }
}
