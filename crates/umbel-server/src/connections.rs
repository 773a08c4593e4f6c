//! Connections: how many there may be, and which are closed to make room for others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
#[cfg(unix)]
use std::net::Ipv4Addr;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::runs::ServerLimits;

/// So many descriptors are left for stores, models, tools and files, and at least a quarter of all.
const RESERVE: usize = 64;

/// That connections are closed or refused is said so often at most.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Where connections come from: an address, or the network that a host has with IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer(IpAddr);

impl Peer {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            address => Self(address),
        }
    }

    /// This machine, for connections that have no address.
    #[cfg(unix)]
    pub(crate) fn local() -> Self {
        Self::of(Ipv4Addr::LOCALHOST.into())
    }

    /// Whether it is this machine: people who sit here, or a proxy for everybody.
    fn is_local(self) -> bool {
        self.0.is_loopback() || self == Self::of(Ipv6Addr::LOCALHOST.into())
    }
}

/// A connection, as far as requests that come by it need to know.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Whether it is encrypted.
    pub(crate) is_tls: bool,
    number: u64,
    connections: Weak<Connections>,
    /// Somebody who may ask has asked.
    is_trusted: AtomicBool,
    close: Notify,
}

impl Connection {
    /// Says that somebody who may ask has asked: it is not closed to make room for others any more.
    pub(crate) fn trust(&self) {
        if !self.is_trusted.swap(true, Ordering::Relaxed)
            && let Some(connections) = self.connections.upgrade()
        {
            connections.lock().forget_stranger(self.number, self.peer);
        }
    }

    /// Done once it has to make room.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

/// A connection that is open. Dropped, it is not any more.
#[derive(Debug)]
pub(crate) struct OpenConnection(pub(crate) Arc<Connection>);

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    limit: usize,
    per_peer: usize,
    table: Mutex<Table>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: usize,
    /// How many each peer has.
    peers: HashMap<Peer, usize>,
    /// Those by which nobody has asked yet who may, the oldest first.
    strangers: BTreeMap<u64, Arc<Connection>>,
    /// The same by peer.
    strangers_of: HashMap<Peer, BTreeSet<u64>>,
    /// When it was last said that there are too many.
    said: Option<Instant>,
}

impl Connections {
    /// As many as the limits allow, and this process has descriptors for.
    pub(crate) fn new(limits: &ServerLimits) -> Arc<Self> {
        let mut limit = limits.connections.max(1);
        if let Some(descriptors) = raised_descriptors() {
            let most = descriptors.saturating_sub(RESERVE.max(descriptors / 4)).max(1);
            if most < limit {
                tracing::info!(
                    "there are {descriptors} descriptors, so {most} connections at most: \
                     `ulimit -n` allows for more"
                );
                limit = most;
            }
        }
        Self::with(limit, limits.connections_per_peer)
    }

    fn with(limit: usize, per_peer: usize) -> Arc<Self> {
        Arc::new(Self { limit, per_peer: per_peer.max(1), table: Mutex::default(), emptied: Notify::new() })
    }

    /// Takes a connection in. If there are too many, the oldest one by which nobody has asked yet who may is closed; `None` if
    /// there is none.
    pub(crate) fn open(self: &Arc<Self>, peer: Peer, is_tls: bool) -> Option<OpenConnection> {
        let mut table = self.lock();
        let of_peer = table.peers.get(&peer).copied().unwrap_or_default();
        let too_many_of_peer = !peer.is_local() && of_peer >= self.per_peer;
        let victim = if too_many_of_peer {
            Some(table.strangers_of.get(&peer).and_then(|numbers| numbers.first().copied()))
        } else if table.open >= self.limit {
            Some(table.strangers.keys().next().copied())
        } else {
            None
        };
        if let Some(victim) = victim {
            table.say(if too_many_of_peer { "connections_per_peer" } else { "connections" });
            let closed = table.strangers.get(&victim?).cloned()?;
            table.forget_stranger(victim?, closed.peer);
            // It is counted until it is gone; the reserve has room for it.
            closed.close.notify_one();
        }
        let number = table.next;
        table.next += 1;
        table.open += 1;
        *table.peers.entry(peer).or_default() += 1;
        let (connections, is_trusted) = (Arc::downgrade(self), AtomicBool::new(false));
        let close = Notify::new();
        let connection = Arc::new(Connection { peer, is_tls, number, connections, is_trusted, close });
        table.strangers.insert(number, connection.clone());
        table.strangers_of.entry(peer).or_default().insert(number);
        drop(table);
        Some(OpenConnection(connection))
    }

    /// Done once there are none.
    pub(crate) async fn empty(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.lock().open == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn forget_stranger(&mut self, number: u64, peer: Peer) {
        self.strangers.remove(&number);
        if let Some(numbers) = self.strangers_of.get_mut(&peer) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.strangers_of.remove(&peer);
            }
        }
    }

    /// Says that there are too many, now and then.
    fn say(&mut self, limit: &str) {
        if self.said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            self.said = Some(Instant::now());
            tracing::warn!(limit, open = self.open, "too many connections: those of strangers are closed");
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let Connection { peer, number, connections, .. } = &*self.0;
        let Some(connections) = connections.upgrade() else { return };
        let mut table = connections.lock();
        table.forget_stranger(*number, *peer);
        table.open = table.open.saturating_sub(1);
        if let Some(count) = table.peers.get_mut(peer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                table.peers.remove(peer);
            }
        }
        if table.open == 0 {
            connections.emptied.notify_waiters();
        }
    }
}

/// How many descriptors this process may have, after it has asked for as many as it may ask for.
#[cfg(unix)]
fn raised_descriptors() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Some systems say that there is no limit, and mean this.
    let wanted = maximum.unwrap_or(1 << 20).min(1 << 20);
    let current = current?;
    if current < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok() {
        return usize::try_from(wanted).ok();
    }
    usize::try_from(current).ok()
}

#[cfg(not(unix))]
fn raised_descriptors() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().unwrap())
    }

    async fn is_closed(id: &OpenConnection) -> bool {
        tokio::time::timeout(Duration::ZERO, id.0.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_who_may_ask_stays() {
        let connections = Connections::with(3, 100);
        let open = |text: &str| connections.open(peer(text), false);
        let [first, second, third] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|text| open(text).unwrap());
        first.0.trust();
        let fourth = open("10.0.0.4").unwrap();
        assert!(!is_closed(&first).await && is_closed(&second).await && !is_closed(&third).await);
        fourth.0.trust();
        third.0.trust();
        drop(second);
        // All that are there may stay, so there is no room.
        assert!(open("10.0.0.5").is_none());
        drop(first);
        let fifth = open("10.0.0.5").unwrap();
        assert!(!is_closed(&fifth).await);
        drop((third, fourth, fifth));
        connections.empty().await;
        let table = connections.lock();
        assert!(table.peers.is_empty() && table.strangers.is_empty() && table.strangers_of.is_empty());
    }

    #[tokio::test]
    async fn a_peer_has_its_own_limit_and_makes_room_for_itself() {
        let connections = Connections::with(100, 2);
        let open = |text: &str| connections.open(peer(text), false).unwrap();
        let other = open("2001:db8::1");
        let [one, two] = [open("2001:db8:0:1::1"), open("2001:db8:0:1::2")];
        // One network is one peer, however many addresses it has.
        let three = open("2001:db8:0:1:f::3");
        assert!(is_closed(&one).await && !is_closed(&two).await && !is_closed(&other).await);
        drop(one);
        two.0.trust();
        three.0.trust();
        assert!(connections.open(peer("2001:db8:0:1::4"), false).is_none());
        // A proxy on this machine has everybody's.
        let local: Vec<_> = ["127.0.0.1", "::1", "::ffff:127.0.0.1"].repeat(3);
        let mut local: Vec<_> = local.into_iter().map(open).collect();
        #[cfg(unix)]
        local.extend((0..3).map(|_| connections.open(Peer::local(), false).unwrap()));
        for id in &local {
            assert!(!is_closed(id).await);
        }
    }

    #[cfg(unix)]
    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        let descriptors = raised_descriptors().unwrap();
        let limits = ServerLimits { connections: usize::MAX, ..ServerLimits::default() };
        let limit = Connections::new(&limits).limit;
        assert!(limit < descriptors && limit >= descriptors / 2, "{limit} of {descriptors}");
        let few = ServerLimits { connections: 3, ..ServerLimits::default() };
        assert_eq!(Connections::new(&few).limit, 3);
    }
}
