//! The connections of a toolset: opened when they are needed, opened again when they broke, closed when nobody uses them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::HeaderValue;
use rmcp::model::{ClientRequest, ServerResult};
use smol_str::SmolStr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use umbel_core::{Error, ErrorKind, Grant, Result, Tool};

use super::attend::Attendant;
use super::http::Bearer;
use super::link::{Failure, Link};
use super::toolset::Options;

/// How long is waited before it is tried again to connect. After the last time nothing is tried for a while.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
/// How long nothing is tried after connecting failed the first time; each time twice as long.
const REST: Duration = Duration::from_secs(2);
/// How long nothing is tried at most.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// How often it is looked whether there is a connection that nobody uses any more, while somebody waits for one.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Whose connection it is: app and user. All share one if nobody has one of their own.
pub(crate) type Who = Option<[SmolStr; 2]>;

/// The connections of a toolset.
pub(crate) struct Connections {
    slots: Mutex<HashMap<Who, Arc<Slot>>>,
    /// How many there may be.
    limit: usize,
    /// One for each connection that may be open.
    places: Arc<Semaphore>,
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Mutex::default(), limit, places: Arc::new(Semaphore::new(limit)) }
    }

    /// The place of a connection, be it open or not.
    pub(crate) fn slot(self: &Arc<Self>, who: Who) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= self.limit && !slots.contains_key(&who) {
            make_room(&mut slots, |_| true);
        }
        slots.entry(who).or_insert_with(|| Arc::new(Slot::new(Arc::downgrade(self)))).clone()
    }

    /// The right to open a connection. Those that nobody uses make room; if all are in use, some time is waited for one.
    async fn place(&self, options: &Options) -> Result<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let begin = Instant::now();
        // One and the same wait, so that whoever came first is first.
        let mut wait = pin!(self.places.clone().acquire_owned());
        loop {
            // A call that is over leaves its connection open: whoever waits has to look.
            make_room(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner), Slot::is_open);
            let rest = options.limits.connect.saturating_sub(begin.elapsed());
            match timeout(rest.min(LOOK_AGAIN), &mut wait).await {
                Ok(Ok(place)) => return Ok(place),
                Err(_) if rest > LOOK_AGAIN => {}
                _ => break,
            }
        }
        let (server, all) = (&options.name, self.limit);
        let message = format!("the MCP server `{server}`: all {all} connections are in use; try again later");
        Err(Error::new(ErrorKind::Tool, message))
    }

    /// The place of a connection, if there is one.
    pub(crate) fn known(&self, who: &Who) -> Option<Arc<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).get(who).cloned()
    }

    /// Closes all.
    pub(crate) async fn close(&self) {
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        for slot in slots.into_values() {
            if let Some(link) = slot.state.lock().await.link.take() {
                link.close();
            }
        }
    }
}

/// Forgets those of a kind that nobody uses now, the half of them that nobody used for longest; connections end with them.
fn make_room(slots: &mut HashMap<Who, Arc<Slot>>, is_meant: impl Fn(&Slot) -> bool) {
    let mut idle: Vec<(Duration, Who)> = slots
        .iter()
        .filter(|(_, slot)| Arc::strong_count(slot) == 1 && is_meant(slot))
        .map(|(who, slot)| (slot.idle(), who.clone()))
        .collect();
    idle.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
    for (_, who) in idle.iter().take(idle.len().div_ceil(2)) {
        slots.remove(who);
    }
}

/// The place of a connection.
pub(crate) struct Slot {
    connections: Weak<Connections>,
    /// Locked while a connection is opened, so that there is one.
    state: tokio::sync::Mutex<State>,
    bearer: Bearer,
    /// Held by the one that calls, where calls are made one after the other.
    pub(crate) turn: tokio::sync::Mutex<()>,
    tools: Mutex<Option<Kept>>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    failures: u32,
    /// Nothing is tried before, and why.
    rest: Option<(Instant, String)>,
}

/// Tools that were listed over a connection.
struct Kept {
    link: Weak<Link>,
    /// How often the server had said until then that they are others now.
    changes: u64,
    since: Instant,
    tools: Vec<Arc<dyn Tool>>,
    /// What the server tells models, if that was asked for and agreed to.
    instruction: Option<Arc<str>>,
}

impl Slot {
    fn new(connections: Weak<Connections>) -> Self {
        let (state, turn, tools) = Default::default();
        Self { connections, state, bearer: Bearer::default(), turn, tools }
    }

    /// Sets what goes along with requests from now on.
    pub(crate) fn authorise(&self, grant: Option<&Grant>) -> Result<()> {
        let Some(grant) = grant else { return Ok(()) };
        let refuse = |why: &str| Error::new(ErrorKind::Build, why.to_owned());
        let http =
            grant.http().ok_or_else(|| refuse("that credential does not go along with HTTP requests"))?;
        let mut value = HeaderValue::from_str(http.expose())
            .map_err(|_| refuse("the credential has characters that headers cannot have"))?;
        value.set_sensitive(true);
        self.bearer.set(http.place, &http.name, value)
    }

    /// How long nobody has used it; for ever if there is no connection.
    fn idle(&self) -> Duration {
        // Whoever has it opens it.
        let Ok(state) = self.state.try_lock() else { return Duration::ZERO };
        state.link.as_ref().map_or(Duration::MAX, |link| link.idle())
    }

    /// Whether there is a connection.
    fn is_open(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.link.is_some())
    }

    /// The connection, opened if it is not open.
    pub(crate) async fn link(self: &Arc<Self>, options: &Options) -> Result<Arc<Link>, Failure> {
        let mut state = self.state.lock().await;
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        state.link = None;
        if let Some((until, why)) = state.rest.as_ref().filter(|(until, _)| *until > Instant::now()) {
            let seconds = until.duration_since(Instant::now()).as_secs() + 1;
            return Err(Failure::Unreachable(format!("{why}; it is tried again in {seconds} s")));
        }
        match self.open(options).await {
            Ok(link) => {
                *state = State { link: Some(link.clone()), ..State::default() };
                self.watch(&link, options.limits.idle);
                Ok(link)
            }
            Err(failure) => {
                if let Failure::Unreachable(why) = &failure {
                    let rest = REST.saturating_mul(1 << state.failures.min(5)).min(LONGEST_REST);
                    state.failures += 1;
                    state.rest = Some((Instant::now() + rest, why.clone()));
                }
                Err(failure)
            }
        }
    }

    async fn open(&self, options: &Options) -> Result<Arc<Link>, Failure> {
        let gone = || Error::new(ErrorKind::Tool, "the toolset is not there any more");
        let connections = self.connections.upgrade().ok_or_else(gone)?;
        let mut permit = Some(connections.place(options).await?);
        let mut pauses = PAUSES.iter();
        loop {
            let Options { name, place, limits, grants, protocol, .. } = options;
            match Link::open(name, place, limits, grants, *protocol, &self.bearer).await {
                Ok(mut link) => {
                    link.place = permit.take();
                    return Ok(Arc::new(link));
                }
                Err(Failure::Ended(why) | Failure::TooLarge(why)) => match pauses.next() {
                    Some(pause) => sleep(*pause).await,
                    None => return Err(Failure::Unreachable(why)),
                },
                Err(Failure::Late(limit)) => {
                    let why = format!("it did not answer within {} s", limit.as_secs_f64());
                    return Err(Failure::Unreachable(why));
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Closes a connection once nobody has used it for a while.
    fn watch(self: &Arc<Self>, link: &Arc<Link>, idle: Duration) {
        let (slot, link) = (Arc::downgrade(self), Arc::downgrade(link));
        tokio::spawn(async move {
            loop {
                let Some(rest) = link.upgrade().map(|link| idle.saturating_sub(link.idle())) else { return };
                if rest.is_zero() {
                    break;
                }
                sleep(rest.max(Duration::from_millis(10))).await;
            }
            let Some(slot) = slot.upgrade() else { return };
            let mut state = slot.state.lock().await;
            let is_same =
                state.link.as_ref().is_some_and(|open| std::ptr::eq(Arc::as_ptr(open), link.as_ptr()));
            if is_same {
                state.link = None;
            }
        });
    }

    /// Asks the server.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        options: &Options,
        request: ClientRequest,
        attendant: &Attendant<'_>,
    ) -> Result<ServerResult, Failure> {
        let mut link = self.link(options).await?;
        if link.is_taken(attendant) {
            // Calls that are under way keep it until they are done.
            let mut state = self.state.lock().await;
            state.link.take_if(|open| Arc::ptr_eq(open, &link));
            drop(state);
            // Its place may be the one that the next connection needs.
            drop(link);
            link = self.link(options).await?;
        }
        link.ask(request, attendant, options.limits.answer, options.limits.call).await
    }

    /// The tools that were listed over this connection, if they still count.
    pub(crate) fn tools(&self, link: &Arc<Link>, limit: Duration) -> Option<Vec<Arc<dyn Tool>>> {
        let kept = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        // What does not count any more never counts again: none of these goes back.
        let is_of = |kept: &Kept| std::ptr::eq(kept.link.as_ptr(), Arc::as_ptr(link));
        let counts =
            |kept: &&Kept| is_of(kept) && kept.since.elapsed() < limit && kept.changes == link.changes();
        kept.as_ref().filter(counts).map(|kept| kept.tools.clone())
    }

    /// What the server tells models, if that was asked for and agreed to.
    pub(crate) fn instruction(&self) -> Option<Arc<str>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.instruction.clone()
    }

    /// Keeps tools that were listed over a connection after so many changes, and what the server tells models. A list that
    /// was asked for later and came earlier stays.
    pub(crate) fn keep(
        &self,
        (link, changes): (Weak<Link>, u64),
        tools: &[Arc<dyn Tool>],
        instruction: Option<Arc<str>>,
    ) {
        let mut kept = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|kept| !kept.link.ptr_eq(&link) || kept.changes <= changes) {
            let (since, tools) = (Instant::now(), tools.to_vec());
            *kept = Some(Kept { link, changes, since, tools, instruction });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(n: usize) -> Who {
        Some(["app".into(), smol_str::format_smolstr!("user-{n}")])
    }

    #[test]
    fn there_is_room_for_the_next_user_and_whoever_is_in_use_stays() {
        const USERS: usize = 100;
        let connections = Arc::new(Connections::new(USERS));
        let first = connections.slot(who(0));
        // Somebody opens it, so it is not idle.
        let _opening = first.state.try_lock().unwrap();
        for n in 1..5 * USERS {
            connections.slot(who(n));
        }
        let count = connections.slots.lock().unwrap().len();
        assert!((USERS / 2..=USERS).contains(&count), "{count}");
        assert!(connections.known(&who(0)).is_some_and(|slot| Arc::ptr_eq(&slot, &first)));
    }
}
