//! The connections of a listener: which of them belong to known clients, and when each has to end.
//!
//! Main types: [`Registry`] counts connections and closes some to make room; [`Client`] is one
//! connection as the request handler sees it. Does no I/O itself.
//!
//! ```text
//!  accepted ──▶ anonymous ─────── certificate, or known_as ──────▶ known
//!                  │ no request in time                              │ idle, or does not read
//!                  │ the oldest, when a newer one needs its slot     │ idle, when another needs its slot
//!                  ▼                                                 ▼
//!                                       closed
//! ```
//!
//! Anonymous clients never displace a known client and never wait for each other: the oldest one is
//! closed instead. A known client is limited by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::listener::{Limits, Peer};

/// The reason why the listener ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// An anonymous client sent no request in time.
    Silent,
    /// A known client sent no request for a long time.
    Idle,
    /// The client does not read a response.
    Stalled,
    /// Another connection needed the slot.
    Displaced,
}

impl End {
    const ALL: [End; 4] = [End::Silent, End::Idle, End::Stalled, End::Displaced];

    fn name(self) -> &'static str {
        match self {
            End::Silent => "silent",
            End::Idle => "idle",
            End::Stalled => "stalled",
            End::Displaced => "displaced",
        }
    }
}

/// The number of connections, and of those that the listener ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    pub anonymous: usize,
    pub known: usize,
    /// By reason, since the listener was bound.
    pub ended: Vec<(&'static str, u64)>,
}

/// All connections of a listener.
#[derive(Debug)]
pub(crate) struct Registry {
    limits: Limits,
    members: Mutex<Members>,
    ended: [AtomicU64; End::ALL.len()],
}

#[derive(Debug, Default)]
struct Members {
    /// The number of the next connection; numbers follow the order of acceptance.
    next: u64,
    anonymous: BTreeMap<u64, Arc<Client>>,
    by_network: HashMap<IpAddr, BTreeSet<u64>>,
    known: HashMap<String, BTreeMap<u64, Arc<Client>>>,
    known_count: usize,
}

impl Members {
    fn remove_anonymous(&mut self, client: &Client) -> bool {
        if self.anonymous.remove(&client.number).is_none() {
            return false;
        }
        if let Some(numbers) = self.by_network.get_mut(&client.network) {
            numbers.remove(&client.number);
            if numbers.is_empty() {
                self.by_network.remove(&client.network);
            }
        }
        true
    }

    fn remove_known(&mut self, name: &str, number: u64) {
        let Some(own) = self.known.get_mut(name) else { return };
        if own.remove(&number).is_some() {
            self.known_count -= 1;
        }
        if own.is_empty() {
            self.known.remove(name);
        }
    }

    /// Returns the oldest connection of a client without a request under way.
    fn idle_of(&self, name: &str) -> Option<Arc<Client>> {
        self.known.get(name)?.values().find(|client| client.is_idle()).cloned()
    }

    /// Returns an idle connection of the client that has the most of them.
    fn idle_of_largest(&self) -> Option<Arc<Client>> {
        let idle = |own: &BTreeMap<u64, Arc<Client>>| own.values().any(|client| client.is_idle());
        let (name, _) =
            self.known.iter().filter(|(_, own)| idle(own)).max_by_key(|(_, own)| own.len())?;
        self.idle_of(name)
    }
}

impl Registry {
    pub(crate) fn new(limits: Limits) -> Arc<Registry> {
        let (members, ended) = (Mutex::default(), Default::default());
        Arc::new(Registry { limits, members, ended })
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock()
    }

    /// Registers a connection as anonymous. Closes the oldest one of its network, or of all
    /// anonymous connections, if there are too many.
    pub(crate) fn register(self: &Arc<Registry>, address: SocketAddr) -> ConnectionGuard {
        let network = network(address.ip());
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        let client = Arc::new(Client {
            number,
            address,
            network,
            peer: OnceLock::new(),
            registry: Arc::clone(self),
            displaced: Notify::new(),
            activity: Mutex::new(Activity::new()),
        });
        members.anonymous.insert(number, Arc::clone(&client));
        members.by_network.entry(network).or_default().insert(number);
        let own = members.by_network.get(&network);
        let oldest = own
            .filter(|own| own.len() > self.limits.anonymous_per_address)
            .and_then(|own| own.first().copied());
        let is_full = members.anonymous.len() > self.limits.anonymous;
        let oldest =
            oldest.or_else(|| members.anonymous.keys().next().copied().filter(|_| is_full));
        if let Some(oldest) = oldest.and_then(|number| members.anonymous.get(&number).cloned()) {
            self.displace(&mut members, &oldest);
        }
        ConnectionGuard(client)
    }

    /// Closes the oldest anonymous connection, for a process without free file descriptors.
    pub(crate) fn displace_oldest_anonymous(&self) {
        let mut members = self.members();
        if let Some(oldest) = members.anonymous.values().next().cloned() {
            self.displace(&mut members, &oldest);
        }
    }

    fn displace(&self, members: &mut Members, client: &Client) {
        match client.known() {
            Some(name) => members.remove_known(&name, client.number),
            None => {
                members.remove_anonymous(client);
            }
        }
        self.count(End::Displaced);
        client.displaced.notify_one();
    }

    /// Moves a connection from the anonymous to the known clients, if there is a free slot.
    fn admit(&self, client: &Client, name: &str, certified: bool) -> bool {
        let limits = &self.limits;
        let mut members = self.members();
        if client.known().is_some() {
            return true;
        }
        let own = members.known.get(name).map_or(0, BTreeMap::len);
        // Certificates are given to administrators and nodes, tokens to every pod.
        let places = if certified { limits.connections } else { limits.connections / 4 * 3 };
        let displaced = match () {
            () if own >= limits.connections_per_client => Some(members.idle_of(name)),
            () if members.known_count >= places => Some(members.idle_of_largest()),
            () => None,
        };
        match displaced {
            Some(None) => return false,
            Some(Some(idle)) => self.displace(&mut members, &idle),
            None => {}
        }
        // It may have been displaced a moment ago and be about to end.
        if members.anonymous.contains_key(&client.number) {
            let this = members.anonymous.get(&client.number).cloned();
            members.remove_anonymous(client);
            if let Some(this) = this {
                client.activity().known = Some(name.to_owned());
                members.known.entry(name.to_owned()).or_default().insert(client.number, this);
                members.known_count += 1;
            }
        }
        true
    }

    fn remove(&self, client: &Client) {
        let mut members = self.members();
        if !members.remove_anonymous(client)
            && let Some(name) = client.known()
        {
            members.remove_known(&name, client.number);
        }
    }

    fn count(&self, end: End) {
        self.ended[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let members = self.members();
        let ended =
            End::ALL.map(|end| (end.name(), self.ended[end as usize].load(Ordering::Relaxed)));
        Counts {
            anonymous: members.anonymous.len(),
            known: members.known_count,
            ended: ended.into(),
        }
    }
}

/// Returns what the limits per address count by: an IPv4 address, or the network of 64 bits that one
/// host with IPv6 usually has to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(bits))
        }
        address => address,
    }
}

/// Counts a connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(pub(crate) Arc<Client>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.registry.remove(&self.0);
    }
}

/// The client at the other end of a connection.
#[derive(Debug)]
pub struct Client {
    number: u64,
    address: SocketAddr,
    network: IpAddr,
    peer: OnceLock<Peer>,
    registry: Arc<Registry>,
    displaced: Notify,
    activity: Mutex<Activity>,
}

#[derive(Debug)]
struct Activity {
    known: Option<String>,
    /// The time of the last request or complete response.
    last: Instant,
    next: u64,
    /// The requests that are not answered completely, with the time since when the client has not
    /// read the available bytes.
    requests: HashMap<u64, Option<Instant>>,
}

impl Activity {
    fn new() -> Activity {
        Activity { known: None, last: Instant::now(), next: 0, requests: HashMap::new() }
    }

    /// Returns the reason to end the connection now, if there is one.
    fn end(&self, limits: &Limits, now: Instant) -> Option<End> {
        let quiet = now.saturating_duration_since(self.last);
        let is_stalled = |since: &Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) >= limits.stall)
        };
        if self.known.is_none() {
            // Anonymous requests are answered at once, so a long one is not being read.
            return (quiet >= limits.handshake_timeout).then_some(End::Silent);
        }
        if self.requests.values().any(is_stalled) {
            return Some(End::Stalled);
        }
        (self.requests.is_empty() && quiet >= limits.idle).then_some(End::Idle)
    }
}

impl Client {
    /// Returns the address of the other end of the connection.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the subject of the certificate that the client proved to have.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.get()
    }

    /// Counts the connection as one of an authenticated client from now on, under the name of its
    /// first request. Returns false if that client has too many connections with requests in
    /// flight; the connection then stays anonymous.
    #[must_use]
    pub fn known_as(&self, name: &str) -> bool {
        self.registry.admit(self, name, false)
    }

    /// Records the client certificate. Returns false if its owner has too many connections.
    pub(crate) fn certified(&self, peer: Peer) -> bool {
        let admitted = self.registry.admit(self, &peer.name, true);
        let _ = self.peer.set(peer);
        admitted
    }

    fn known(&self) -> Option<String> {
        self.activity().known.clone()
    }

    fn is_idle(&self) -> bool {
        self.activity().requests.is_empty()
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock()
    }

    /// Waits until the connection has to end.
    pub(crate) async fn ended(&self) -> End {
        let limits = &self.registry.limits;
        let shortest = limits.handshake_timeout.min(limits.idle).min(limits.stall);
        let pause = (shortest / 4).max(Duration::from_millis(10));
        loop {
            tokio::select! {
                // Already counted when the connection was displaced.
                () = self.displaced.notified() => return End::Displaced,
                () = sleep(pause) => {}
            }
            let end = self.activity().end(limits, Instant::now());
            if let Some(end) = end {
                self.registry.count(end);
                return end;
            }
        }
    }

    /// Records a request.
    pub(crate) fn begin(self: &Arc<Client>) -> InFlight {
        let mut activity = self.activity();
        let number = activity.next;
        activity.next += 1;
        activity.last = Instant::now();
        activity.requests.insert(number, None);
        InFlight { client: Arc::clone(self), number }
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    client: Arc<Client>,
    number: u64,
}

impl InFlight {
    /// Records whether the client has unread bytes.
    pub(crate) fn set_unread(&self, is_unread: bool) {
        let since = is_unread.then(Instant::now);
        self.client.activity().requests.insert(self.number, since);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut activity = self.client.activity();
        activity.requests.remove(&self.number);
        activity.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            connections: 8,
            connections_per_client: 3,
            anonymous: 4,
            anonymous_per_address: 2,
            ..Limits::default()
        }
    }

    fn from(host: &str) -> SocketAddr {
        format!("{host}:1").parse().unwrap()
    }

    fn is_displaced(connection: &ConnectionGuard) -> bool {
        let members = connection.0.registry.members();
        let is_known = |name: String| {
            members.known.get(&name).is_some_and(|own| own.contains_key(&connection.0.number))
        };
        !members.anonymous.contains_key(&connection.0.number)
            && !connection.0.known().is_some_and(is_known)
    }

    #[tokio::test]
    async fn oldest_anonymous_connection_is_displaced() {
        let registry = Registry::new(limits());
        let first = registry.register(from("10.0.0.1"));
        let other = registry.register(from("10.0.0.2"));
        let second = registry.register(from("10.0.0.1"));
        assert!(!is_displaced(&first));
        let third = registry.register(from("10.0.0.1"));
        assert!(is_displaced(&first) && !is_displaced(&second) && !is_displaced(&other));
        let more = [registry.register(from("10.0.0.3")), registry.register(from("10.0.0.4"))];
        assert!(is_displaced(&other) && !is_displaced(&second));
        assert_eq!(registry.counts().anonymous, 4);
        assert_eq!(registry.counts().ended.last(), Some(&("displaced", 2)));
        drop((first, other, second, third, more));
        assert_eq!(registry.counts().anonymous, 0);
        assert!(registry.members().by_network.is_empty());
    }

    #[tokio::test]
    async fn known_clients_are_limited_by_name() {
        let registry = Registry::new(limits());
        let known: Vec<ConnectionGuard> =
            (0..3).map(|_| registry.register(from("10.0.0.1"))).collect();
        // The first was displaced by the third, and cannot come back.
        assert!(known[0].0.known_as("a") && is_displaced(&known[0]));
        let again = registry.register(from("10.0.0.1"));
        drop(known);
        let mut known = vec![again];
        assert!(known[0].0.known_as("a"));
        for _ in 0..2 {
            known.push(registry.register(from("10.0.0.1")));
            assert!(known.last().unwrap().0.known_as("a"));
        }
        assert_eq!((registry.counts().anonymous, registry.counts().known), (0, 3));
        let busy: Vec<InFlight> = known.iter().map(|connection| connection.0.begin()).collect();
        let fourth = registry.register(from("10.0.0.1"));
        assert!(!fourth.0.known_as("a"), "all of its connections are in use");
        assert!(fourth.0.known_as("b"), "another client has its own places");
        drop(busy);
        let fifth = registry.register(from("10.0.0.1"));
        assert!(fifth.0.known_as("a"));
        assert!(is_displaced(&known[0]) && !is_displaced(&known[1]));
    }

    #[tokio::test]
    async fn slots_are_reserved_for_clients_with_certificates() {
        let registry = Registry::new(limits());
        let mut kept = Vec::new();
        for name in ["a", "a", "b", "b", "c", "c"] {
            let connection = registry.register(from("10.0.0.1"));
            assert!(connection.0.known_as(name));
            kept.push((connection.0.begin(), connection));
        }
        let late = registry.register(from("10.0.0.1"));
        assert!(!late.0.known_as("d"));
        let admin = registry.register(from("10.0.0.1"));
        let peer = Peer { name: "admin".to_owned(), groups: Vec::new() };
        assert!(admin.0.certified(peer));
        assert_eq!(registry.counts().known, 7);
    }

    #[tokio::test]
    async fn connection_ends_when_silent_idle_or_unread() {
        let limits = Limits::default();
        let mut activity = Activity::new();
        let start = activity.last;
        let just_before = |limit: Duration| start + limit - Duration::from_millis(1);
        assert_eq!(activity.end(&limits, just_before(limits.handshake_timeout)), None);
        assert_eq!(activity.end(&limits, start + limits.handshake_timeout), Some(End::Silent));
        activity.known = Some("a".to_owned());
        assert_eq!(activity.end(&limits, just_before(limits.idle)), None);
        assert_eq!(activity.end(&limits, start + limits.idle), Some(End::Idle));
        // A watch without events is not idle, and its client has nothing to read.
        activity.requests.insert(0, None);
        assert_eq!(activity.end(&limits, start + limits.idle * 100), None);
        activity.requests.insert(1, Some(start));
        assert_eq!(activity.end(&limits, just_before(limits.stall)), None);
        assert_eq!(activity.end(&limits, start + limits.stall), Some(End::Stalled));
    }

    #[test]
    fn addresses_of_one_host_count_together() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(of("fd00:1:2:3:4:5:6:7"), "fd00:1:2:3::");
    }
}
