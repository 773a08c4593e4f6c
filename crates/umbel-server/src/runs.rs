//! The runs of a server: which there are, who may begin one, and who waits for whom.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::Notify;
use umbel_core::{SafePoint, SessionKey};

use crate::drive::refuse;
use crate::endpoint::SameThread;
use crate::live::{LiveRun, Stop};
use crate::problem::Problem;
use crate::quotas::Quotas;
use crate::rates::Rates;

/// How much a server takes on. Of times, zero is at once and [`Duration::MAX`] is never.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Runs under way at the same time; 1,000.
    pub runs: usize,
    /// Runs under way of one user; 20. Without auth there is one principal, to whom it does not apply.
    pub runs_per_user: usize,
    /// Bytes of frames kept of one run; 1 MiB. A viewer that falls further behind is cut off, and may take up the stream
    /// from the log.
    pub run_bytes: usize,
    /// Bytes of frames kept of runs that are over; 16 MiB.
    pub kept_bytes: usize,
    /// How long frames of a run that is over are kept; a minute. Later they are made from the log.
    pub kept_for: Duration,
    /// Bytes of a request's body; 10 MiB.
    pub body_bytes: usize,
    /// How long a request may take to arrive; 30 seconds.
    pub request_time: Duration,
    /// How long a client may stop reading before its connection is closed; a minute.
    pub read_time: Duration,
    /// After how long a stream without news says that it is alive; 15 seconds. Zero is every 10 milliseconds.
    pub keep_alive: Duration,
    /// How long runs may go on when the server is told to stop; 10 seconds.
    pub drain: Duration,
    /// Connections at the same time; 10,000, or what the descriptors of the process allow for. If there are more, the oldest by
    /// which nobody has asked yet who may is closed.
    pub connections: usize,
    /// The same of one address, or of one network with IPv6; 1,000. This machine's own is not counted: a proxy may stand there.
    pub connections_per_peer: usize,
    /// Requests of one user in a second, and twice as many at once; 100. Without auth there is one principal, to whom it does not
    /// apply.
    pub requests_per_second: u32,
    /// Tokens that are not good, from one address in a minute; 30. Then none is looked at that was not good before.
    pub bad_tokens_per_minute: u32,
    /// Bytes that the threads of one user take in the store of one app; 1 GiB. It is measured every 5 seconds. This and what
    /// follows does not apply without auth, when there is one principal.
    pub stored_bytes_per_user: u64,
    /// Threads of one user in one app; 10,000.
    pub threads_per_user: u64,
    /// Forks of one user in a minute; 30.
    pub forks_per_minute: u32,
    /// Milliseconds of CPU time that the requests and runs of one user take in a second; 1,000, and 30 seconds at once.
    pub cpu_millis_per_second: u32,
    /// Bytes of memory that the requests of one user take at the same time, if they are large; 256 MiB. More wait.
    pub in_flight_bytes_per_user: u64,
    /// The same of all users together; 1 GiB. It applies without auth, too.
    pub in_flight_bytes: u64,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            runs: 1_000,
            runs_per_user: 20,
            run_bytes: 1 << 20,
            kept_bytes: 16 << 20,
            kept_for: Duration::from_secs(60),
            body_bytes: 10 << 20,
            request_time: Duration::from_secs(30),
            read_time: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(10),
            connections: 10_000,
            connections_per_peer: 1_000,
            requests_per_second: 100,
            bad_tokens_per_minute: 30,
            stored_bytes_per_user: 1 << 30,
            threads_per_user: 10_000,
            forks_per_minute: 30,
            cpu_millis_per_second: 1_000,
            in_flight_bytes_per_user: 256 << 20,
            in_flight_bytes: 1 << 30,
        }
    }
}

impl ServerLimits {
    /// Sets a limit by its name, from text: a number, or a time such as `30s`, `500ms`, `10m` or `never`.
    ///
    /// ```
    /// use umbel_server::ServerLimits;
    ///
    /// let mut limits = ServerLimits::default();
    /// limits.set("runs_per_user", "5")?;
    /// limits.set("request_time", "10s")?;
    /// assert_eq!(limits.runs_per_user, 5);
    /// # Ok::<(), umbel_core::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> umbel_core::Result<()> {
        let refuse = |what: String| umbel_core::Error::new(umbel_core::ErrorKind::Build, what);
        let number = || value.parse().map_err(|_| refuse(format!("the limit `{name}` is a whole number")));
        let large = || value.parse().map_err(|_| refuse(format!("the limit `{name}` is a whole number")));
        let rate = || value.parse().map_err(|_| refuse(format!("the limit `{name}` is a whole number")));
        let time = || {
            let why = || refuse(format!("the limit `{name}` is a time, such as `30s`, `500ms` or `never`"));
            duration(value).ok_or_else(why)
        };
        match name {
            "runs" => self.runs = number()?,
            "runs_per_user" => self.runs_per_user = number()?,
            "run_bytes" => self.run_bytes = number()?,
            "kept_bytes" => self.kept_bytes = number()?,
            "kept_for" => self.kept_for = time()?,
            "body_bytes" => self.body_bytes = number()?,
            "request_time" => self.request_time = time()?,
            "read_time" => self.read_time = time()?,
            "keep_alive" => self.keep_alive = time()?,
            "drain" => self.drain = time()?,
            "connections" => self.connections = number()?,
            "connections_per_peer" => self.connections_per_peer = number()?,
            "requests_per_second" => self.requests_per_second = rate()?,
            "bad_tokens_per_minute" => self.bad_tokens_per_minute = rate()?,
            "stored_bytes_per_user" => self.stored_bytes_per_user = large()?,
            "threads_per_user" => self.threads_per_user = large()?,
            "forks_per_minute" => self.forks_per_minute = rate()?,
            "cpu_millis_per_second" => self.cpu_millis_per_second = rate()?,
            "in_flight_bytes_per_user" => self.in_flight_bytes_per_user = large()?,
            "in_flight_bytes" => self.in_flight_bytes = large()?,
            _ => {
                return Err(refuse(format!(
                    "there is no limit `{name}`: they are {}",
                    Self::NAMES.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The names of all limits.
    pub const NAMES: [&'static str; 20] = [
        "runs",
        "runs_per_user",
        "run_bytes",
        "kept_bytes",
        "kept_for",
        "body_bytes",
        "request_time",
        "read_time",
        "keep_alive",
        "drain",
        "connections",
        "connections_per_peer",
        "requests_per_second",
        "bad_tokens_per_minute",
        "stored_bytes_per_user",
        "threads_per_user",
        "forks_per_minute",
        "cpu_millis_per_second",
        "in_flight_bytes_per_user",
        "in_flight_bytes",
    ];
}

/// A time as people write it.
fn duration(text: &str) -> Option<Duration> {
    if text == "never" {
        return Some(Duration::MAX);
    }
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at_checked(unit)?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

/// The runs of a server.
#[derive(Debug)]
pub(crate) struct Runs {
    limits: ServerLimits,
    table: Mutex<Table>,
    /// How often one may ask.
    pub(crate) rates: Rates,
    /// What users have used up.
    pub(crate) quotas: Quotas,
    /// Told when no run may begin any more.
    drains: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// The last run of each name, over or not.
    by_name: HashMap<Name, Arc<LiveRun>>,
    /// Threads with a run under way.
    threads: HashMap<SessionKey, Slot>,
    /// How many runs are under way, waiting ones included.
    active: usize,
    by_user: HashMap<SmolStr, usize>,
    /// Runs that ended with questions, by thread: they are forgotten when the thread goes on.
    asking: HashMap<SessionKey, Name>,
    is_draining: bool,
}

/// A run's name: names of clients are unique for a user of an app.
type Name = (SmolStr, SmolStr, SmolStr);

/// What goes on in a thread.
#[derive(Debug)]
struct Slot {
    running: Arc<LiveRun>,
    /// The one that waits.
    next: Option<Arc<LiveRun>>,
}

fn name(key: &SessionKey, run: &str) -> Name {
    (key.app().into(), key.user().into(), run.into())
}

/// What a request for a run comes to.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It may begin once `after` is over.
    Begin { ticket: Ticket, after: Option<Arc<LiveRun>> },
    /// There is such a run.
    Attach(Arc<LiveRun>),
}

impl Runs {
    pub(crate) fn new(limits: ServerLimits) -> Arc<Self> {
        let (rates, quotas) = (Rates::new(&limits), Quotas::new(&limits));
        Arc::new(Self { limits, table: Mutex::default(), rates, quotas, drains: Notify::new() })
    }

    pub(crate) fn limits(&self) -> &ServerLimits {
        &self.limits
    }

    /// Lets a run begin, now or after the one that its thread has. `resumes` is whether it goes on with an interrupted
    /// one, whose name it may have.
    pub(crate) fn admit(
        self: &Arc<Self>,
        live: Arc<LiveRun>,
        policy: SameThread,
        resumes: bool,
        counts_user: bool,
    ) -> Result<Admission, Problem> {
        let mut table = self.lock();
        let name = name(&live.key, &live.run);
        if let Some(there) = table.by_name.get(&name) {
            if there.digest == live.digest && there.key == live.key {
                return Ok(Admission::Attach(there.clone()));
            }
            if !resumes || there.over_since().is_none() {
                return Err(Problem::run_exists(&live.run));
            }
        }
        self.check_load(&table, live.key.user(), counts_user)?;
        let after = table.wait_in_thread(&live, policy)?;
        if let Some(answered) = table.asking.remove(&live.key) {
            table.by_name.remove(&answered);
        }
        table.active += 1;
        *table.by_user.entry(live.key.user().into()).or_default() += 1;
        table.by_name.insert(name, live.clone());
        drop(table);
        let ticket = Ticket { runs: self.clone(), live };
        Ok(Admission::Begin { ticket, after })
    }

    fn check_load(&self, table: &Table, user: &str, counts_user: bool) -> Result<(), Problem> {
        if table.is_draining {
            return Err(Problem::shutting_down("the server is about to stop: try another one"));
        }
        if table.active >= self.limits.runs {
            return Err(Problem::busy(format!(
                "the server has {} runs under way (`runs`): try again soon",
                table.active
            )));
        }
        let own = table.by_user.get(user).copied().unwrap_or_default();
        if counts_user && own >= self.limits.runs_per_user {
            return Err(Problem::busy(format!(
                "you have {own} runs under way (`runs_per_user`): try again when one is done"
            )));
        }
        Ok(())
    }

    /// The run of that name, if it is under way or was a moment ago.
    pub(crate) fn find(&self, app: &str, user: &str, run: &str) -> Option<Arc<LiveRun>> {
        self.lock().by_name.get(&(app.into(), user.into(), run.into())).cloned()
    }

    /// The run that a thread has under way.
    pub(crate) fn of_thread(&self, key: &SessionKey) -> Option<Arc<LiveRun>> {
        self.lock().threads.get(key).map(|slot| slot.running.clone())
    }

    /// All runs of a thread that are not over, waiting ones included.
    pub(crate) fn all_of_thread(&self, key: &SessionKey) -> Vec<Arc<LiveRun>> {
        let table = self.lock();
        let all = table.by_name.values().filter(|live| live.key == *key && live.over_since().is_none());
        all.cloned().collect()
    }

    /// How many runs are under way.
    pub(crate) fn active(&self) -> usize {
        self.lock().active
    }

    /// How many bytes of frames are kept.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.lock().by_name.values().map(|live| live.bytes()).sum()
    }

    /// Ends runs that nobody looks at, and forgets those that are over for long or take too much room.
    pub(crate) fn tidy(&self) {
        let mut table = self.lock();
        let mut kept: Vec<_> = Vec::new();
        table.by_name.retain(|name, live| match live.over_since() {
            None => {
                live.stop_if_abandoned();
                true
            }
            Some(since) if since.elapsed() >= self.limits.kept_for => false,
            Some(since) => {
                kept.push((since, live.bytes(), name.clone()));
                true
            }
        });
        let Table { by_name, asking, .. } = &mut *table;
        asking.retain(|_, name| by_name.contains_key(name));
        kept.sort_unstable_by_key(|(since, ..)| std::cmp::Reverse(*since));
        let mut bytes = 0;
        for (_, size, name) in kept {
            bytes += size;
            if bytes > self.limits.kept_bytes {
                table.by_name.remove(&name);
            }
        }
    }

    /// Lets no run begin any more. Gives those that are under way.
    pub(crate) fn drain(&self) -> Vec<Arc<LiveRun>> {
        let mut table = self.lock();
        table.is_draining = true;
        let under_way = table.by_name.values().filter(|live| live.over_since().is_none()).cloned().collect();
        drop(table);
        self.drains.notify_waiters();
        under_way
    }

    /// Done once no run may begin any more.
    pub(crate) async fn draining(&self) {
        let mut drains = std::pin::pin!(self.drains.notified());
        // Registered first: a word between the look and the wait must not be missed.
        drains.as_mut().enable();
        if !self.is_draining() {
            drains.await;
        }
    }

    /// Whether no run may begin any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.lock().is_draining
    }

    /// Forgets what is kept of runs that are over. For tests, and for those who are short of memory.
    pub(crate) fn forget(&self) {
        self.lock().by_name.retain(|_, live| live.over_since().is_none());
    }

    /// Forgets what is kept of the runs of a thread.
    pub(crate) fn forget_thread(&self, key: &SessionKey) {
        self.lock().by_name.retain(|_, live| live.key != *key || live.over_since().is_none());
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The run that has to end first, if the thread has one.
    fn wait_in_thread(
        &mut self,
        live: &Arc<LiveRun>,
        policy: SameThread,
    ) -> Result<Option<Arc<LiveRun>>, Problem> {
        let Some(slot) = self.threads.get_mut(&live.key) else {
            self.threads.insert(live.key.clone(), Slot { running: live.clone(), next: None });
            return Ok(None);
        };
        let refuse = |message: &str| Err(Problem::new(http::StatusCode::CONFLICT, "THREAD_BUSY", message));
        if slot.running.is_unseen() {
            slot.running.stop(Stop::Now);
        }
        if let Some(next) = slot.next.clone().filter(|_| policy == SameThread::Supersede) {
            slot.running.stop(Stop::Now);
            next.stop(Stop::Now);
            slot.next = Some(live.clone());
            return Ok(Some(next));
        }
        if slot.next.is_some() {
            return refuse("a run waits for this thread already: try again when it is done");
        }
        match policy {
            SameThread::Queue => {}
            SameThread::Refuse if !slot.running.is_stopped() => {
                return refuse("the thread has a run under way: try again when it is done");
            }
            SameThread::Refuse => {}
            SameThread::Supersede => slot.running.stop(Stop::Now),
            SameThread::Steer => slot.running.stop(Stop::At(SafePoint::Next)),
        }
        slot.next = Some(live.clone());
        Ok(Some(slot.running.clone()))
    }

    fn leave_thread(&mut self, live: &Arc<LiveRun>) {
        let Some(slot) = self.threads.get_mut(&live.key) else { return };
        if slot.next.as_ref().is_some_and(|next| Arc::ptr_eq(next, live)) {
            slot.next = None;
        } else if Arc::ptr_eq(&slot.running, live) {
            match slot.next.take() {
                Some(next) => slot.running = next,
                None => {
                    self.threads.remove(&live.key);
                }
            }
        }
    }
}

/// The right of a run to be under way. Dropped, it makes room for another one.
#[derive(Debug)]
pub(crate) struct Ticket {
    runs: Arc<Runs>,
    pub(crate) live: Arc<LiveRun>,
}

impl Ticket {
    /// Tells that the run cannot begin, in a stream that has. Another may have its name then.
    pub(crate) fn refuse(self, problem: &Problem) {
        refuse(&self.live, problem);
        self.runs.lock().by_name.retain(|_, live| !Arc::ptr_eq(live, &self.live));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let was_cut_short = self.live.over_since().is_none();
        if was_cut_short && !self.live.has_begun() {
            // Whoever attached to it meanwhile waits for an end, and so does the run behind it.
            refuse(&self.live, &Problem::not_begun("the run could not begin: ask again"));
        } else if was_cut_short {
            self.live.publish(bytes::Bytes::new(), 0, true);
        }
        let mut table = self.runs.lock();
        table.active = table.active.saturating_sub(1);
        let user = self.live.key.user();
        if let Some(count) = table.by_user.get_mut(user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                table.by_user.remove(user);
            }
        }
        table.leave_thread(&self.live);
        if self.live.has_asked() {
            table.asking.insert(self.live.key.clone(), name(&self.live.key, &self.live.run));
        }
        if was_cut_short {
            // Nobody must find it.
            table.by_name.retain(|_, live| !Arc::ptr_eq(live, &self.live));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_set_by_its_name() {
        let usual = format!("{:?}", ServerLimits::default());
        for name in ServerLimits::NAMES {
            let mut limits = ServerLimits::default();
            let value = ["7", "7s"].into_iter().find(|value| limits.set(name, value).is_ok());
            assert!(value.is_some() && format!("{limits:?}") != usual, "{name}");
            assert!(format!("{limits:?}").contains(&format!("{name}: 7")), "{name}: {limits:?}");
            let why = ServerLimits::default().set(name, "soon").unwrap_err();
            assert!(why.message().contains(name), "{why}");
        }
        let fields = usual.matches(": ").count();
        assert_eq!(fields, ServerLimits::NAMES.len(), "{usual}");
        let unknown = ServerLimits::default().set("run", "5").unwrap_err();
        assert!(unknown.message().contains("runs_per_user"), "{unknown}");
    }

    #[test]
    fn times_are_written_as_people_do() {
        let millis = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(millis("500ms"), Some(500));
        assert_eq!(millis("1.5s"), Some(1_500));
        assert_eq!((millis("10m"), millis("2h"), millis("0s")), (Some(600_000), Some(7_200_000), Some(0)));
        assert_eq!(duration("never"), Some(Duration::MAX));
        for bad in ["", "5", "s", "-1s", "1e99s", "1d", "1.2.3s", "nans"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
