//! A session store with faults: operations that are slow, hang, fail before or after they took effect, or end the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use umbel::store::{
    Abandoned, Acquire, Acquired, Entries, EventFilter, Idle, IdleFilter, Lease, News, OpenQuestion,
    StoredUsage,
};
use umbel::{
    Error, ErrorKind, NewSession, Object, Result, Session, SessionKey, SessionStore, Versions, Work,
};

use super::ledger::Ledger;
use super::services::SimClock;
use super::world::{FaultKind, StoreFault, StoreOp, StoreShape, millis};

/// More operations than any world needs: a run that does not end is found by them.
const MOST_OPERATIONS: u32 = 4_000;

/// Which operation gets which fault, over all processes of a simulation.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    state: Mutex<PlanState>,
    is_off: AtomicBool,
}

#[derive(Debug, Default)]
struct PlanState {
    faults: Vec<StoreFault>,
    counts: [u32; 10],
    total: u32,
}

impl FaultPlan {
    pub(super) fn new(faults: Vec<StoreFault>) -> Self {
        let state = PlanState { faults, ..PlanState::default() };
        Self { state: Mutex::new(state), is_off: AtomicBool::new(false) }
    }

    /// No faults from now on.
    pub(super) fn stop(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    /// Whether there were more operations than any world needs.
    pub(super) fn is_exhausted(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).total > MOST_OPERATIONS
    }

    /// The fault of the next operation of this kind; an error if there were too many operations.
    fn next(&self, op: StoreOp) -> Result<Option<FaultKind>, ()> {
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A short lease needs many heartbeats.
        state.total += u32::from(op != StoreOp::KeepLease);
        if state.total > MOST_OPERATIONS {
            return Err(());
        }
        let Some(count) = state.counts.get_mut(op as usize) else { return Ok(None) };
        let nth = *count;
        *count += 1;
        let hit = |fault: &&StoreFault| {
            fault.op == op && nth >= fault.nth && nth < fault.nth.saturating_add(fault.times)
        };
        Ok(state.faults.iter().find(hit).map(|fault| fault.kind))
    }
}

/// The life of a simulated process.
#[derive(Debug, Default)]
pub(super) struct Lifeline {
    is_dead: AtomicBool,
    died: Notify,
}

impl Lifeline {
    pub(super) fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.died.notify_one();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Done when the process dies.
    pub(super) async fn died(&self) {
        self.died.notified().await;
    }
}

/// Another store, with faults.
#[derive(Clone, Debug)]
pub(super) struct FaultStore {
    pub(super) inner: Arc<dyn SessionStore>,
    pub(super) shape: StoreShape,
    pub(super) plan: Arc<FaultPlan>,
    pub(super) life: Arc<Lifeline>,
    pub(super) ledger: Ledger,
    pub(super) clock: SimClock,
}

/// The value of work of a store. One on threads of its own is waited for, so that simulated time stands still.
pub(super) fn wait_now<T>(work: Work<'_, T>) -> T {
    work.try_now().unwrap_or_else(futures::executor::block_on)
}

fn failed(op: StoreOp) -> Error {
    Error::new(ErrorKind::Store, format!("simulated fault in {op:?}"))
}

impl FaultStore {
    /// Performs an operation with the fault that the plan has for it.
    fn perform<T: Send + 'static>(
        &self,
        op: StoreOp,
        work: impl FnOnce(&dyn SessionStore) -> Result<T> + Send + 'static,
    ) -> Work<'_, Result<T>> {
        if self.life.is_dead() {
            return self.never();
        }
        let Ok(fault) = self.plan.next(op) else {
            self.ledger.violate("bounded", format!("more than {MOST_OPERATIONS} store operations"));
            self.life.kill();
            return Work::later(std::future::pending());
        };
        if let Some(fault) = fault {
            self.ledger.count(name_of(fault));
            if matches!(fault, FaultKind::HangBefore | FaultKind::HangAfter) && op != StoreOp::KeepLease {
                self.ledger.lock().hangs = true;
            }
        }
        if self.shape.immediate {
            return self.perform_now(op, fault, work);
        }
        Work::later(async move {
            if self.shape.latency_ms > 0 {
                tokio::time::sleep(millis(self.shape.latency_ms)).await;
            }
            self.perform_later(op, fault, work).await
        })
    }

    /// The answer of a process that is dead: none, as far as that is possible.
    fn never<'a, T: Send + 'a>(&self) -> Work<'a, Result<T>> {
        if self.shape.immediate {
            return Work::done(Err(Error::new(ErrorKind::Store, "the process is dead")));
        }
        Work::later(std::future::pending())
    }

    fn perform_now<T: Send + 'static>(
        &self,
        op: StoreOp,
        fault: Option<FaultKind>,
        work: impl FnOnce(&dyn SessionStore) -> Result<T>,
    ) -> Work<'_, Result<T>> {
        match fault {
            Some(FaultKind::FailBefore) => Work::done(Err(failed(op))),
            Some(FaultKind::DieBefore) => {
                self.life.kill();
                self.never()
            }
            fault => {
                let done = self.done(op, work);
                match fault {
                    Some(FaultKind::FailAfter) => Work::done(done.and(Err(failed(op)))),
                    Some(FaultKind::DieAfter) => {
                        self.life.kill();
                        self.never()
                    }
                    _ => Work::done(done),
                }
            }
        }
    }

    async fn perform_later<T: Send + 'static>(
        &self,
        op: StoreOp,
        fault: Option<FaultKind>,
        work: impl FnOnce(&dyn SessionStore) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match fault {
            Some(FaultKind::SlowBefore(ms)) => tokio::time::sleep(millis(ms)).await,
            Some(FaultKind::Detach(ms)) => return self.queue(op, ms, work).await,
            Some(FaultKind::HangBefore) => return std::future::pending().await,
            Some(FaultKind::FailBefore) => return Err(failed(op)),
            Some(FaultKind::DieBefore) => {
                self.life.kill();
                return std::future::pending().await;
            }
            _ => {}
        }
        if self.life.is_dead() {
            return std::future::pending().await;
        }
        let done = self.done(op, work);
        match fault {
            Some(FaultKind::SlowAfter(ms)) => tokio::time::sleep(millis(ms)).await,
            Some(FaultKind::HangAfter) => return std::future::pending().await,
            Some(FaultKind::FailAfter) => return done.and(Err(failed(op))),
            Some(FaultKind::DieAfter) => {
                self.life.kill();
                return std::future::pending().await;
            }
            _ => {}
        }
        done
    }

    /// An operation that waits in a queue: it takes effect even if nobody waits for it any more.
    async fn queue<T: Send + 'static>(
        &self,
        op: StoreOp,
        ms: u64,
        work: impl FnOnce(&dyn SessionStore) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        let queued = tokio::spawn(async move {
            tokio::time::sleep(millis(ms)).await;
            store.done(op, work)
        });
        queued.await.unwrap_or_else(|_| Err(failed(op)))
    }

    fn done<T>(&self, op: StoreOp, work: impl FnOnce(&dyn SessionStore) -> Result<T>) -> Result<T> {
        let at = self.clock.elapsed();
        let done = work(&*self.inner);
        let kind = done.as_ref().err().map(Error::kind);
        self.ledger.trace(at, "store", || format!("{op:?} {kind:?}"));
        if matches!(
            op,
            StoreOp::AppendEntries | StoreOp::AcquireLease | StoreOp::ReleaseLease | StoreOp::CommitEntries
        ) {
            self.ledger.count("store.write");
        }
        done
    }
}

/// What the summary calls a fault.
fn name_of(fault: FaultKind) -> &'static str {
    match fault {
        FaultKind::SlowBefore(_) => "fault.slow-before",
        FaultKind::SlowAfter(_) => "fault.slow-after",
        FaultKind::HangBefore => "fault.hang-before",
        FaultKind::HangAfter => "fault.hang-after",
        FaultKind::FailBefore => "fault.fail-before",
        FaultKind::FailAfter => "fault.fail-after",
        FaultKind::DieBefore => "fault.die-before",
        FaultKind::DieAfter => "fault.die-after",
        FaultKind::Detach(_) => "fault.detach",
    }
}

impl SessionStore for FaultStore {
    fn is_immediate(&self) -> bool {
        self.shape.immediate
    }

    fn create(&self, new: NewSession) -> Work<'_, Result<Session>> {
        self.ledger.created(&new.key);
        self.perform(StoreOp::CreateSession, |store| wait_now(store.create(new)))
    }

    fn get<'a>(&'a self, key: &'a SessionKey, filter: EventFilter) -> Work<'a, Result<Option<Session>>> {
        let key = key.clone();
        self.perform(StoreOp::ReadSession, move |store| wait_now(store.get(&key, filter)))
    }

    fn list<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Vec<Session>>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        self.perform(StoreOp::ListSessions, move |store| wait_now(store.list(&app, &user)))
    }

    fn delete<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<()>> {
        let (key, ledger) = (key.clone(), self.ledger.clone());
        self.perform(StoreOp::DeleteSession, move |store| {
            ledger.deleted(&key);
            wait_now(store.delete(&key))
        })
    }

    fn delete_unchanged<'a>(&'a self, key: &'a SessionKey, expected: Versions) -> Work<'a, Result<()>> {
        let (key, ledger) = (key.clone(), self.ledger.clone());
        self.perform(StoreOp::DeleteSession, move |store| {
            ledger.deleted(&key);
            wait_now(store.delete_unchanged(&key, expected))
        })
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        self.perform(StoreOp::DeleteSession, move |store| wait_now(store.erase_user(&app, &user)))
    }

    fn user_state<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<Arc<Object>>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        self.perform(StoreOp::ListSessions, move |store| wait_now(store.user_state(&app, &user)))
    }

    fn news<'a>(&'a self, key: &'a SessionKey, known: Versions) -> Work<'a, Result<Option<News>>> {
        let key = key.clone();
        self.perform(StoreOp::ReadNews, move |store| wait_now(store.news(&key, known)))
    }

    fn acquire(&self, acquire: Acquire) -> Work<'_, Result<Acquired>> {
        if acquire.creates {
            self.ledger.created(&acquire.key);
        }
        self.perform(StoreOp::AcquireLease, |store| wait_now(store.acquire(acquire)))
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Work<'a, Result<()>> {
        self.ledger.count("store.heartbeat");
        let lease = lease.clone();
        self.perform(StoreOp::KeepLease, move |store| wait_now(store.heartbeat(&lease, ttl)))
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        let lease = lease.clone();
        self.perform(StoreOp::AppendEntries, move |store| wait_now(store.append(&lease, expected, entries)))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Lease,
        expected: Versions,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        let lease = lease.clone();
        self.perform(StoreOp::ReleaseLease, move |store| wait_now(store.release(&lease, expected, entries)))
    }

    fn commit<'a>(
        &'a self,
        key: &'a SessionKey,
        expected: Option<Versions>,
        entries: Entries,
    ) -> Work<'a, Result<Versions>> {
        let key = key.clone();
        self.perform(StoreOp::CommitEntries, move |store| wait_now(store.commit(&key, expected, entries)))
    }

    fn abandoned<'a>(&'a self, app: &'a str) -> Work<'a, Result<Vec<Abandoned>>> {
        let app = app.to_owned();
        self.perform(StoreOp::ListSessions, move |store| wait_now(store.abandoned(&app)))
    }

    fn open_questions<'a>(
        &'a self,
        app: &'a str,
        user: Option<&'a str>,
    ) -> Work<'a, Result<Vec<OpenQuestion>>> {
        let (app, user) = (app.to_owned(), user.map(str::to_owned));
        self.perform(StoreOp::ListSessions, move |store| {
            wait_now(store.open_questions(&app, user.as_deref()))
        })
    }

    fn idle<'a>(&'a self, app: &'a str, filter: IdleFilter<'a>) -> Work<'a, Result<Vec<Idle>>> {
        let (app, user) = (app.to_owned(), filter.user.map(str::to_owned));
        let (after, IdleFilter { before, limit, newest_first, .. }) = (filter.after.cloned(), filter);
        self.perform(StoreOp::ListSessions, move |store| {
            let (user, after) = (user.as_deref(), after.as_ref());
            wait_now(store.idle(&app, IdleFilter { before, user, after, limit, newest_first }))
        })
    }

    fn summary<'a>(&'a self, key: &'a SessionKey) -> Work<'a, Result<Option<Idle>>> {
        let key = key.clone();
        self.perform(StoreOp::ListSessions, move |store| wait_now(store.summary(&key)))
    }

    fn usage<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<StoredUsage>> {
        let (app, user) = (app.to_owned(), user.to_owned());
        self.perform(StoreOp::ListSessions, move |store| wait_now(store.usage(&app, &user)))
    }
}
