//! Quotas of a principal: stored bytes and threads, forks, bytes in flight, and CPU time.
//!
//! One user must not fill the store, the memory or the processor that all share. Quotas hold where there is auth; without it
//! there is one principal, for whom only the bytes in flight of the whole server count.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use rustix::time::{ClockId, clock_gettime};
use smol_str::SmolStr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use umbel_core::store::StoredUsage;
use umbel_core::{SessionKey, SessionStore};

use crate::problem::Problem;
use crate::rates::Buckets;
use crate::runs::ServerLimits;

/// How long a measured usage counts. What agents write meanwhile may exceed a quota by as much.
const MEASURED_FOR: Duration = Duration::from_secs(5);

/// Users whose usage is cached, and whose bytes in flight are counted apart.
const MOST_USERS: usize = 16 << 10;

/// Requests of fewer bytes are not counted as in flight.
const SMALL: u64 = 64 << 10;

/// Bytes in flight are counted in blocks.
const BLOCK: u64 = 4 << 10;

/// A log takes so many times its length while an answer is made of it: as events, as messages and as text.
const COPIES: u64 = 4;

/// A CPU bucket holds what may be used in so many seconds.
const CPU_BURST: f64 = 30.0;

/// The quotas of a server's principals, as far as they are used up.
#[derive(Debug)]
pub(crate) struct Quotas {
    usage: Mutex<HashMap<(SmolStr, SmolStr), (Instant, StoredUsage)>>,
    forks: Buckets<SmolStr>,
    /// Milliseconds of CPU time.
    cpu: Buckets<SmolStr>,
    all_in_flight: Arc<Semaphore>,
    in_flight: Mutex<HashMap<SmolStr, Arc<Semaphore>>>,
}

impl Quotas {
    pub(crate) fn new(limits: &ServerLimits) -> Self {
        let (forks, cpu) = (f64::from(limits.forks_per_minute), f64::from(limits.cpu_millis_per_second));
        Self {
            usage: Mutex::default(),
            forks: Buckets::new(forks / 60.0, forks),
            cpu: Buckets::new(cpu, cpu * CPU_BURST),
            all_in_flight: Arc::new(Semaphore::new(blocks(limits.in_flight_bytes))),
            in_flight: Mutex::default(),
        }
    }

    /// Checks whether a user may store so many more bytes in a thread. `is_copy` says that the thread is new in any case.
    ///
    /// The usage is measured every [`MEASURED_FOR`]. What was admitted since then is added to it; where that might exceed a
    /// quota, the usage is measured again.
    pub(crate) async fn check_stored(
        &self,
        store: &dyn SessionStore,
        key: &SessionKey,
        (bytes, is_copy): (u64, bool),
        limits: &ServerLimits,
    ) -> Result<(), Problem> {
        let name = (SmolStr::new(key.app()), SmolStr::new(key.user()));
        let exceeds = |used: StoredUsage| {
            used.sessions >= limits.threads_per_user
                || used.bytes.saturating_add(bytes) > limits.stored_bytes_per_user
        };
        let known =
            self.usage().get(&name).filter(|(at, _)| at.elapsed() < MEASURED_FOR).map(|known| known.1);
        let used = match known {
            Some(used) if !exceeds(used) => used,
            _ => {
                let used = store.usage(key.app(), key.user()).await?;
                self.remember(name.clone(), used);
                used
            }
        };
        let total = used.bytes.saturating_add(bytes);
        if total > limits.stored_bytes_per_user {
            return Err(over_quota(format!(
                "your threads would take {total} bytes, more than {} (`stored_bytes_per_user`): delete some",
                limits.stored_bytes_per_user
            )));
        }
        let is_full = used.sessions >= limits.threads_per_user;
        if is_full && (is_copy || store.summary(key).await?.is_none()) {
            return Err(over_quota(format!(
                "you have {} threads, and may not have more than {} (`threads_per_user`): delete some",
                used.sessions, limits.threads_per_user
            )));
        }
        if let Some((_, used)) = self.usage().get_mut(&name) {
            // The thread may be new.
            used.sessions += 1;
            used.bytes = used.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    /// Forgets what is known of a user's usage: something was deleted.
    pub(crate) fn forget_usage(&self, key: &SessionKey) {
        self.usage().remove(&(SmolStr::new(key.app()), SmolStr::new(key.user())));
    }

    fn remember(&self, name: (SmolStr, SmolStr), used: StoredUsage) {
        let mut known = self.usage();
        if known.len() >= MOST_USERS {
            known.clear();
        }
        known.insert(name, (Instant::now(), used));
    }

    fn usage(&self) -> std::sync::MutexGuard<'_, HashMap<(SmolStr, SmolStr), (Instant, StoredUsage)>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a fork of a user.
    pub(crate) fn count_fork(&self, user: &SmolStr, limits: &ServerLimits) -> Result<(), Problem> {
        let Err(wait) = self.forks.take(user.clone(), Instant::now()) else { return Ok(()) };
        let message =
            format!("you made more than {} forks in a minute (`forks_per_minute`)", limits.forks_per_minute);
        Err(Problem::too_often("TOO_MANY_REQUESTS", message, wait))
    }

    /// A problem if a user has no CPU time left.
    pub(crate) fn check_cpu(&self, user: &SmolStr, limits: &ServerLimits) -> Result<(), Problem> {
        let Some(wait) = self.cpu.wait(user, Instant::now()) else { return Ok(()) };
        let message = format!(
            "your requests take more than {} ms of CPU time in a second (`cpu_millis_per_second`): slow down",
            limits.cpu_millis_per_second
        );
        Err(Problem::too_often("TOO_MUCH_CPU", message, wait))
    }

    /// Work whose CPU time is charged to a user, poll by poll.
    pub(crate) fn metered<F: Future>(&self, user: SmolStr, work: F) -> impl Future<Output = F::Output> {
        let mut work = Box::pin(work);
        poll_fn(move |cx| {
            let before = thread_cpu();
            let polled = work.as_mut().poll(cx);
            let millis = thread_cpu().saturating_sub(before).as_secs_f64() * 1e3;
            // Most polls are too short to be worth a look at the bucket.
            if millis > 0.05 {
                self.cpu.spend(user.clone(), millis, Instant::now());
            }
            polled
        })
    }

    /// Reserves memory for a request that takes so many bytes, and waits for it as long as a request may take to arrive.
    pub(crate) async fn reserve(
        &self,
        user: Option<&SmolStr>,
        bytes: u64,
        limits: &ServerLimits,
    ) -> Result<Reserved, Problem> {
        if bytes < SMALL {
            return Ok(Reserved(None));
        }
        let taken = async {
            let own = match user {
                Some(user) => {
                    let (own, most) = (self.of_user(user, limits), limits.in_flight_bytes_per_user);
                    Some(own.acquire_many_owned(permits(bytes, most)).await)
                }
                None => None,
            };
            let all = self.all_in_flight.clone();
            let all = all.acquire_many_owned(permits(bytes, limits.in_flight_bytes)).await;
            // The semaphores are never closed.
            Reserved(Some(Box::new((own.and_then(Result::ok), all.ok()))))
        };
        tokio::time::timeout(limits.request_time, taken).await.map_err(|_| {
            let message = "too many bytes are in flight (`in_flight_bytes_per_user`, `in_flight_bytes`): try again soon";
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MUCH_IN_FLIGHT", message);
            Problem { retry_after: Some(1), ..problem }
        })
    }

    /// The same for a request that reads a thread. One that is not there takes nothing.
    pub(crate) async fn reserve_log(
        &self,
        user: Option<&SmolStr>,
        store: &dyn SessionStore,
        key: &SessionKey,
        limits: &ServerLimits,
    ) -> Result<Reserved, Problem> {
        let bytes = store.summary(key).await?.map_or(0, |found| found.bytes);
        self.reserve(user, bytes.saturating_mul(COPIES), limits).await
    }

    fn of_user(&self, user: &SmolStr, limits: &ServerLimits) -> Arc<Semaphore> {
        let most = blocks(limits.in_flight_bytes_per_user);
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if in_flight.len() >= MOST_USERS {
            in_flight.retain(|_, own| own.available_permits() < most);
        }
        in_flight.entry(user.clone()).or_insert_with(|| Arc::new(Semaphore::new(most))).clone()
    }
}

fn over_quota(message: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "QUOTA_EXCEEDED", message)
}

/// The blocks of a semaphore for so many bytes; one at least.
fn blocks(bytes: u64) -> usize {
    usize::try_from(bytes / BLOCK).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS)
}

/// The permits that so many bytes need. What is larger than the limit needs all of them, so that it runs alone.
fn permits(bytes: u64, limit: u64) -> u32 {
    u32::try_from(blocks(bytes).min(blocks(limit))).unwrap_or(u32::MAX)
}

/// The CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// The permits of a user, and of the server.
type Permits = (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>);

/// Memory that was reserved for a request. Dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Reserved(Option<Box<Permits>>);

impl Reserved {
    /// Keeps the reservation until the body of a response is sent or dropped.
    pub(crate) fn hold(self, response: Response) -> Response {
        if self.0.is_none() {
            return response;
        }
        response.map(|body| Body::new(ReservedBody { body, _reserved: self }))
    }
}

/// A body that holds a reservation.
struct ReservedBody {
    body: Body,
    _reserved: Reserved,
}

impl http_body::Body for ReservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use umbel_core::{Content, Event, InMemorySessions, LogEntry, NewSession, RunId, Source};

    use super::*;

    fn limits() -> ServerLimits {
        ServerLimits { request_time: Duration::from_millis(20), ..ServerLimits::default() }
    }

    fn key(id: &str) -> SessionKey {
        SessionKey::new("app", "ann", id).unwrap()
    }

    async fn store_with(sessions: &[&str], bytes: usize) -> InMemorySessions {
        let store = InMemorySessions::new();
        for id in sessions {
            store.create(NewSession::new(key(id))).await.unwrap();
            let text = "x".repeat(bytes);
            let event = Event::new(RunId::from("r"), Source::user()).with_content(Content::user(&*text));
            let entries = [LogEntry::Event(Arc::new(event))].into_iter().collect();
            store.commit(&key(id), None, entries).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn a_user_may_store_so_many_bytes_and_threads() {
        let store = store_with(&["a", "b"], 1_000).await;
        let check = async |limits: &ServerLimits, id: &str, more| {
            let checked = Quotas::new(limits).check_stored(&store, &key(id), more, limits).await;
            checked.map_err(|problem| (problem.code, problem.message))
        };
        let full = ServerLimits { threads_per_user: 2, ..limits() };
        assert!(check(&full, "a", (0, false)).await.is_ok(), "a thread that is there goes on");
        for more in [(0, false), (1, true)] {
            let (code, message) = check(&full, "c", more).await.unwrap_err();
            assert!(code == "QUOTA_EXCEEDED" && message.contains("`threads_per_user`"), "{message}");
        }
        let small = ServerLimits { stored_bytes_per_user: 5_000, ..limits() };
        assert!(check(&small, "c", (1_000, true)).await.is_ok());
        let (_, message) = check(&small, "c", (4_000, true)).await.unwrap_err();
        assert!(message.contains("`stored_bytes_per_user`"), "{message}");
        let none = ServerLimits { stored_bytes_per_user: 0, ..limits() };
        assert!(check(&none, "a", (0, false)).await.is_err());
    }

    #[tokio::test]
    async fn what_is_admitted_counts_before_the_usage_is_measured_again() {
        let store = store_with(&["a"], 1_000).await;
        let limits = ServerLimits { stored_bytes_per_user: 10_000, threads_per_user: 3, ..limits() };
        let quotas = Quotas::new(&limits);
        let check = async |id: &str| quotas.check_stored(&store, &key(id), (100, false), &limits).await;
        for _ in 0..10 {
            assert!(check("a").await.is_ok(), "the usage is measured again before anybody is refused");
        }
        for id in ["b", "c"] {
            assert!(check(id).await.is_ok());
            store.create(NewSession::new(key(id))).await.unwrap();
        }
        assert!(check("d").await.is_err());
        store.delete(&key("b")).await.unwrap();
        assert!(check("d").await.is_ok());
    }

    #[tokio::test]
    async fn bytes_in_flight_wait_for_each_other_and_are_given_back() {
        let limits = ServerLimits { in_flight_bytes_per_user: 1 << 20, in_flight_bytes: 3 << 19, ..limits() };
        let quotas = Quotas::new(&limits);
        let (ann, bob) = (SmolStr::new("ann"), SmolStr::new("bob"));
        let reserve = async |user: Option<&SmolStr>, bytes| quotas.reserve(user, bytes, &limits).await;
        // What is larger than the limit gets through, alone.
        let whole = reserve(Some(&ann), 1 << 40).await.unwrap();
        assert!(reserve(Some(&ann), 1 << 17).await.is_err());
        drop(whole);
        let first = reserve(Some(&ann), 1 << 20).await.unwrap();
        assert_eq!(reserve(Some(&ann), 1 << 17).await.unwrap_err().code, "TOO_MUCH_IN_FLIGHT");
        let small = reserve(Some(&ann), 1_000).await.unwrap();
        let other = reserve(Some(&bob), 1 << 19).await.unwrap();
        assert!(reserve(None, 1 << 17).await.is_err(), "the server's own limit");
        drop((first, small, other));
        let response = reserve(Some(&ann), 1 << 20).await.unwrap().hold(Response::new(Body::from("body")));
        assert!(reserve(Some(&ann), 1 << 20).await.is_err(), "until the body is sent");
        let sent = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(&*sent, b"body");
        assert!(reserve(Some(&ann), 1 << 20).await.is_ok());
    }

    #[tokio::test]
    async fn cpu_time_is_charged_to_who_uses_it() {
        let limits = ServerLimits { cpu_millis_per_second: 1, ..limits() };
        let quotas = Quotas::new(&limits);
        let (ann, bob) = (SmolStr::new("ann"), SmolStr::new("bob"));
        let burn = || {
            let before = thread_cpu();
            while thread_cpu().saturating_sub(before) < Duration::from_millis(40) {}
        };
        quotas.metered(ann.clone(), async { burn() }).await;
        let problem = quotas.check_cpu(&ann, &limits).unwrap_err();
        assert!(problem.code == "TOO_MUCH_CPU" && problem.retry_after.is_some(), "{problem:?}");
        assert!(quotas.check_cpu(&bob, &limits).is_ok());
    }

    #[test]
    fn forks_are_counted_by_the_minute() {
        let limits = ServerLimits { forks_per_minute: 3, ..limits() };
        let (quotas, ann) = (Quotas::new(&limits), SmolStr::new("ann"));
        assert!((0..3).all(|_| quotas.count_fork(&ann, &limits).is_ok()));
        assert!(quotas.count_fork(&ann, &limits).unwrap_err().message.contains("`forks_per_minute`"));
    }
}
