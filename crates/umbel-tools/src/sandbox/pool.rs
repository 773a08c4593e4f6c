//! The cap over all sandboxes of a process: how many there may be, and how much memory they may
//! take together.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use umbel_core::{Error, ErrorKind, Result};

use super::sessions::Sessions;
use super::verdict::bytes;
use super::{cgroup, watch};

/// How many sandboxes there may be at once, unless it is said.
const COUNT: usize = 32;
/// The memory for all of them where it is not known how much this machine has.
const UNKNOWN: u64 = 1 << 30;

/// The pool of sandboxes for which nothing else is said.
static OF_PROCESS: LazyLock<SandboxPool> = LazyLock::new(SandboxPool::new);

/// A pool of sandboxes: the cap over all that share it. [`Sandbox::pool`](super::Sandbox::pool)
/// says which pool it is; without it, all sandboxes of a process share one with the defaults.
///
/// Each sandbox takes a permit from when it is made until its last process is gone, weighted by
/// [`Sandbox::memory`] and by what fits into its file systems, which are memory too. Code waits for
/// its permit as long as it may run ([`Sandbox::time`]), and is then refused with `RATE_LIMITED`.
/// Interpreters that are kept for a session hold a permit while they live; whoever waits ends the
/// one that was not used for longest.
///
/// [`Sandbox::memory`]: super::Sandbox::memory
/// [`Sandbox::time`]: super::Sandbox::time
///
/// ```
/// use umbel_tools::{Sandbox, SandboxPool};
///
/// let pool = SandboxPool::new().memory(4 << 30).count(8);
/// let python = Sandbox::python().pool(pool.clone());
/// let shell = Sandbox::new("shell", ["sh"]).pool(pool);
/// ```
#[derive(Clone)]
pub struct SandboxPool {
    memory: u64,
    count: usize,
    /// The memory was said, and is not half of what is there.
    is_said: bool,
    shared: Arc<Shared>,
}

/// What all who share a pool know of it.
#[derive(Default)]
struct Shared {
    /// One at a time waits for room; the others wait for their turn, in the order in which they
    /// came.
    turn: tokio::sync::Mutex<()>,
    used: Mutex<Used>,
    /// A permit was given back.
    returned: Notify,
    /// A sandbox came to rest.
    rested: Notify,
    sessions: Mutex<Vec<Weak<Sessions>>>,
}

/// The permits that are given out.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    memory: u64,
    count: usize,
}

/// The right to have a sandbox. Dropped, it is given back.
pub(super) struct SandboxPermit {
    memory: u64,
    shared: Arc<Shared>,
}

impl SandboxPool {
    /// A pool of its own, for 32 sandboxes and for half of the memory of this machine, or of the
    /// control group of this process if that has less. A sandbox that needs more than this half
    /// runs alone.
    pub fn new() -> Self {
        let memory = watch::machine_memory().into_iter().chain(cgroup::memory_limit()).min();
        let memory = memory.map_or(UNKNOWN, |memory| memory / 2);
        Self { memory, count: COUNT, is_said: false, shared: Arc::default() }
    }

    /// A pool of its own, with so many bytes of memory for all its sandboxes together. One that
    /// needs more cannot be built.
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: bytes, is_said: true, shared: Arc::default(), ..self }
    }

    /// A pool of its own, with so many sandboxes at once; 32.
    pub fn count(self, count: usize) -> Self {
        Self { count: count.max(1), shared: Arc::default(), ..self }
    }

    /// That of the process.
    pub(super) fn of_process() -> Self {
        OF_PROCESS.clone()
    }

    /// Says why there can never be a sandbox that needs so much.
    pub(super) fn refuse(&self, need: u64) -> Option<String> {
        (self.is_said && need > self.memory).then(|| {
            let (need, all) = (bytes(need), bytes(self.memory));
            format!("with its disk it may use {need}, and all together have {all} (`SandboxPool::memory`): set both")
        })
    }

    /// Lets sandboxes that are kept make room for others.
    pub(super) fn join(&self, sessions: &Arc<Sessions>) {
        let mut all = self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sessions| sessions.strong_count() > 0);
        all.push(Arc::downgrade(sessions));
    }

    /// Says that a sandbox came to rest, and may make room.
    pub(super) fn rested(&self) {
        self.shared.rested.notify_waiters();
    }

    /// Waits for the permit to have a sandbox that needs so much memory.
    pub(super) async fn acquire(&self, need: u64, patience: Duration) -> Result<SandboxPermit> {
        let need = need.min(self.memory);
        tokio::time::timeout(patience, self.wait(need)).await.map_err(|_| {
            let seconds = patience.as_secs_f64();
            let why = if self.used().count >= self.count {
                format!("{} are there, and no more may be (`SandboxPool::count`)", self.count)
            } else {
                format!("all together may use {} of memory (`SandboxPool::memory`)", bytes(self.memory))
            };
            let message =
                format!("there was no room for another sandbox for {seconds} s: {why}. Try again later");
            Error::new(ErrorKind::RateLimited, message)
        })
    }

    async fn wait(&self, need: u64) -> SandboxPermit {
        let _turn = self.shared.turn.lock().await;
        loop {
            // They are there before it is looked, so that nothing is missed that happens meanwhile.
            let (returned, rested) = (self.shared.returned.notified(), self.shared.rested.notified());
            if let Some(permit) = self.take(need) {
                return permit;
            }
            if self.end_one_that_rests() {
                // No other one has to end before this one's permit is back.
                returned.await;
            } else {
                tokio::select! {
                    () = returned => {}
                    () = rested => {}
                }
            }
        }
    }

    fn take(&self, need: u64) -> Option<SandboxPermit> {
        let mut used = self.shared.used.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = used.memory.saturating_add(need);
        if memory > self.memory || used.count >= self.count {
            return None;
        }
        *used = Used { memory, count: used.count + 1 };
        Some(SandboxPermit { memory: need, shared: self.shared.clone() })
    }

    fn used(&self) -> Used {
        *self.shared.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the sandbox that rests for longest, if one does. Its permit comes back when it is gone.
    fn end_one_that_rests(&self) -> bool {
        let all = self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all: Vec<Arc<Sessions>> = all.iter().filter_map(Weak::upgrade).collect();
        let resting = all.iter().filter_map(|sessions| Some((sessions.rests_since()?, sessions)));
        resting.min_by_key(|(since, _)| *since).is_some_and(|(_, sessions)| sessions.end_oldest())
    }
}

impl Default for SandboxPool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SandboxPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxPool({} of {}, {:?})", self.count, bytes(self.memory), self.used())
    }
}

impl Drop for SandboxPermit {
    fn drop(&mut self) {
        let mut used = self.shared.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = Used { memory: used.memory.saturating_sub(self.memory), count: used.count.saturating_sub(1) };
        drop(used);
        self.shared.returned.notify_waiters();
    }
}

impl fmt::Debug for SandboxPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxPermit({})", bytes(self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn permits_are_bounded_by_memory_and_by_their_number() {
        let pool = SandboxPool::new().memory(100).count(3);
        let take = |need| pool.acquire(need, Duration::from_secs(5));
        let large = take(60).await.unwrap();
        let error = take(60).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RateLimited);
        assert!(
            error.message().contains("for 5 s") && error.message().contains("SandboxPool::memory"),
            "{error}"
        );
        let small = [take(10).await.unwrap(), take(10).await.unwrap()];
        let error = take(10).await.unwrap_err();
        assert!(error.message().contains("SandboxPool::count"), "{error}");
        // Who waits is served when there is room, and who came first comes first.
        let (first, second) = tokio::join!(take(90), async {
            let second = take(10);
            drop((large, small));
            second.await
        });
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!((pool.used().memory, pool.used().count), (100, 2));
        drop((first, second));
        assert_eq!((pool.used().memory, pool.used().count), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_does_not_hold_up_others() {
        let pool = SandboxPool::new().memory(100);
        let held = pool.acquire(100, Duration::ZERO).await.unwrap();
        let waiting = [1, 2].map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.acquire(100, Duration::from_secs(60)).await })
        });
        tokio::task::yield_now().await;
        let [first, second] = waiting;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        drop(held);
        assert!(second.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_large_runs_alone_unless_the_memory_was_said() {
        let pool = SandboxPool::new();
        assert!(pool.memory > 1 << 20, "{pool:?}");
        assert_eq!(pool.refuse(u64::MAX), None);
        let held = pool.acquire(u64::MAX, Duration::ZERO).await.unwrap();
        assert!(pool.acquire(1, Duration::ZERO).await.is_err());
        drop(held);
        let pool = pool.memory(1 << 30);
        assert_eq!(pool.refuse(1 << 30), None);
        assert!(pool.refuse((1 << 30) + 1).unwrap().contains("SandboxPool::memory"));
    }
}
