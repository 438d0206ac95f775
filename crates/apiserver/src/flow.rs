//! Limits on concurrent requests: [`Flow`].
//!
//! An equivalent of upstream's API priority and fairness with built-in levels. Every level has its
//! own limits, so that clients of one level cannot affect those of another, and one client may use
//! only a part of its level's. A request waits for a short time and is then answered with 429. Only
//! requests over the network are limited; components in the same process are not.
//!
//! | level | clients |
//! |---|---|
//! | `exempt` | administrators: any number of requests; lists, bodies and watches are bounded |
//! | `system` | the agents of nodes |
//! | `workload-low` | service accounts |
//! | `global-default` | all other users |
//!
//! Health checks are not limited, and neither are requests without credentials, which get an error
//! or a short document.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use https::Counts;
use metrics::{Family, Kind, Sample};

use crate::accept::AcceptedFormat;
use crate::api::request_verb;
use crate::error::ApiError;
use crate::identity::{self, ADMINISTRATORS, User};
use crate::request::{Caller, Request};
use crate::route::Target;
use crate::shares::{Account, Share, Shares, Unavailable};

const MIB: usize = 1 << 20;

/// The maximum time that a request is queued. Clients time out later than this, and retry after a
/// 429.
const TURN: Duration = Duration::from_secs(5);

/// The maximum time that the events of a watch wait for unread events of other watches.
const EVENTS_TURN: Duration = Duration::from_secs(10);

/// The cost of a list that is held in memory as a whole.
const WHOLE_LIST: usize = 4;

/// The reason of a rejection, by its name in the metric; the first two are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    QueueFull,
    TimeOut,
    Watches,
    Connections,
}

impl Reason {
    const ALL: [(Reason, &'static str); 4] = [
        (Reason::QueueFull, "queue-full"),
        (Reason::TimeOut, "time-out"),
        (Reason::Watches, "watches"),
        (Reason::Connections, "connections"),
    ];
}

impl From<Unavailable> for Reason {
    fn from(unavailable: Unavailable) -> Reason {
        match unavailable {
            Unavailable::QueueFull => Reason::QueueFull,
            Unavailable::TimeOut => Reason::TimeOut,
        }
    }
}

/// The limits that the clients of one level share.
#[derive(Debug)]
pub(crate) struct Level {
    name: &'static str,
    /// Requests in flight, except long-running ones; `None` for no limit.
    requests: Option<Shares>,
    lists: Shares,
    /// Bytes of the bodies of requests in flight.
    bodies: Shares,
    watches: Shares,
    /// Bytes of events that clients have not read.
    events: Shares,
    /// Logs being sent.
    logs: Shares,
    rejected: [AtomicU64; Reason::ALL.len()],
    terminated: AtomicU64,
}

impl Level {
    /// The pairs are the total, and the share of one client.
    fn new(
        name: &'static str,
        requests: Option<(usize, usize)>,
        lists: (usize, usize),
        bodies: (usize, usize),
        watches: (usize, usize),
        events: (usize, usize),
        logs: (usize, usize),
    ) -> Level {
        let shares = |(total, each): (usize, usize)| Shares::new(total, each);
        let mib = |(total, each): (usize, usize)| Shares::new(total * MIB, each * MIB);
        Level {
            name,
            requests: requests.map(shares),
            lists: shares(lists),
            bodies: mib(bodies),
            watches: shares(watches),
            events: mib(events),
            logs: shares(logs),
            rejected: Default::default(),
            terminated: AtomicU64::new(0),
        }
    }

    fn reject(&self, reason: Reason) -> ApiError {
        self.rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
        ApiError::too_many_requests()
    }

    /// Takes a watch slot for a user.
    pub(crate) fn watch(&self, user: &User) -> Result<Share, ApiError> {
        let taken = self.watches.account(&user.name).take(1);
        taken.ok_or_else(|| self.reject(Reason::Watches))
    }

    /// Returns the account for the unread event bytes of a user.
    pub(crate) fn events(&self, user: &User) -> Account {
        self.events.account(&user.name)
    }

    /// Waits until there is room for an event. `None` ends the watch because too much is unread.
    pub(crate) async fn event(&self, account: &Account, length: usize) -> Option<Share> {
        let room = account.wait(length, EVENTS_TURN).await;
        if room.is_err() {
            self.terminated.fetch_add(1, Ordering::Relaxed);
        }
        room.ok()
    }

    /// Waits for a share, if there is a limit.
    async fn turn(
        &self,
        shares: Option<&Shares>,
        user: &User,
        amount: usize,
    ) -> Result<Option<Share>, ApiError> {
        let Some(shares) = shares else { return Ok(None) };
        let share = shares.account(&user.name).wait(amount, TURN).await;
        share.map(Some).map_err(|unavailable| self.reject(unavailable.into()))
    }

    /// Takes room for the body of a request.
    pub(crate) async fn body(&self, user: &User, length: usize) -> Result<Option<Share>, ApiError> {
        self.turn(Some(&self.bodies), user, length).await
    }
}

/// The levels of a server.
pub(crate) struct Flow {
    exempt: Level,
    system: Level,
    workload_low: Level,
    global_default: Level,
    /// Counts the connections, once there is a listener.
    connections: OnceLock<Box<dyn Fn() -> Counts + Send + Sync>>,
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flow").finish_non_exhaustive()
    }
}

impl Default for Flow {
    /// The values keep a server of 20 MB when idle below 300 MB when all levels are full. A node
    /// has a handful of watches; one in a hundred pods uses the API.
    fn default() -> Flow {
        Flow {
            exempt: Level::new(
                "exempt",
                None,
                (32, 16),
                (24, 12),
                (16_384, 12_288),
                (32, 16),
                (256, 192),
            ),
            system: Level::new(
                "system",
                Some((256, 32)),
                (64, 8),
                (12, 6),
                (65_536, 256),
                (32, 4),
                (16, 4),
            ),
            workload_low: Level::new(
                "workload-low",
                Some((64, 16)),
                (8, 4),
                (8, 4),
                (2048, 256),
                (8, 4),
                (32, 16),
            ),
            global_default: Level::new(
                "global-default",
                Some((64, 32)),
                (16, 8),
                (8, 6),
                (4096, 1024),
                (16, 8),
                (64, 32),
            ),
            connections: OnceLock::new(),
        }
    }
}

/// The shares of a request until its response has been sent.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    _request: Option<Share>,
    _list: Option<Share>,
    log: Option<Share>,
}

impl Ticket {
    /// Returns true if the client may read the response at any speed.
    pub(crate) fn is_for_slow_reader(&self) -> bool {
        self.log.is_some()
    }
}

/// The cost of a request while it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// It is long-running and limited in other ways, or it needs no credentials.
    Free,
    Request,
    List(usize),
    Log,
}

impl Cost {
    fn of(request: &Request) -> Cost {
        let path = match Target::parse(&request.path) {
            Some(Target::Resource(path)) => path,
            _ if identity::is_public(&request.path) || request.path == crate::backup::PATH => {
                return Cost::Free;
            }
            _ => return Cost::Request,
        };
        let subresource = path.subresource.map_or("", |subresource| subresource.name);
        match request_verb(request, path.name.is_empty(), path.old_watch) {
            "watch" => Cost::Free,
            _ if matches!(subresource, "exec" | "attach" | "portforward") => Cost::Free,
            _ if subresource == "log" => Cost::Log,
            "list" => {
                let is_whole = AcceptedFormat::parse(request.header("accept"))
                    .is_ok_and(|format| format.is_protobuf() || format.is_yaml());
                let is_page = request.query.get("limit").is_some();
                Cost::List(if is_whole && !is_page { WHOLE_LIST } else { 1 })
            }
            _ => Cost::Request,
        }
    }
}

impl Flow {
    pub(crate) fn level(&self, user: &User) -> &Level {
        match user {
            user if user.is_in(ADMINISTRATORS) => &self.exempt,
            user if user.node().is_some() => &self.system,
            user if user.name.starts_with("system:serviceaccount:") => &self.workload_low,
            _ => &self.global_default,
        }
    }

    /// Admits a request, at once or after a short wait.
    pub(crate) async fn enter(&self, request: &Request) -> Result<Ticket, ApiError> {
        let (Caller::Known(user), cost) = (&request.caller, Cost::of(request)) else {
            return Ok(Ticket::default());
        };
        if cost == Cost::Free {
            return Ok(Ticket::default());
        }
        let level = self.level(user);
        if cost == Cost::Log {
            let log = level.turn(Some(&level.logs), user, 1).await?;
            return Ok(Ticket { log, ..Ticket::default() });
        }
        let request_share = level.turn(level.requests.as_ref(), user, 1).await?;
        let list_share = match cost {
            Cost::List(amount) => level.turn(Some(&level.lists), user, amount).await?,
            _ => None,
        };
        Ok(Ticket { _request: request_share, _list: list_share, log: None })
    }

    /// Rejects a request of a user with too many connections.
    pub(crate) fn too_many_connections(&self, user: &User) -> ApiError {
        self.level(user).reject(Reason::Connections)
    }

    /// Adds the connection counts of a listener to the metrics. Only the first listener is used.
    pub(crate) fn measure_connections(&self, counts: impl Fn() -> Counts + Send + Sync + 'static) {
        let _ = self.connections.set(Box::new(counts));
    }

    /// Returns the metrics, with upstream's names where they exist.
    pub(crate) fn families(&self) -> Vec<Family> {
        let levels = [&self.exempt, &self.system, &self.workload_low, &self.global_default];
        let rejected = levels.into_iter().flat_map(|level| {
            Reason::ALL.into_iter().map(move |(reason, word)| {
                let count = level.rejected[reason as usize].load(Ordering::Relaxed);
                let labels = [("priority_level", level.name), ("reason", word)];
                Sample::new(&labels, count as f64)
            })
        });
        let mut families = vec![Family::new(
            Kind::Counter,
            "apiserver_flowcontrol_rejected_requests_total",
            "Requests answered 429, by level and reason.",
            rejected,
        )];
        let by_level = |kind, name, help, read: &dyn Fn(&Level) -> f64| {
            let sample =
                |level: &Level| Sample::new(&[("priority_level", level.name)], read(level));
            Family::new(kind, name, help, levels.into_iter().map(sample))
        };
        type Read = fn(&Level) -> usize;
        let gauges: [(&'static str, &'static str, Read); 6] = [
            (
                "apiserver_flowcontrol_current_executing_requests",
                "Requests being answered, where their number is limited.",
                |level| level.requests.as_ref().map_or(0, Shares::taken),
            ),
            (
                "apiserver_flowcontrol_current_inqueue_requests",
                "Requests that wait for their turn.",
                |level| {
                    let requests = level.requests.as_ref().map_or(0, Shares::waiting);
                    requests + level.lists.waiting() + level.bodies.waiting()
                },
            ),
            ("berth_flow_lists", "Lists being answered, by their weight.", |level| {
                level.lists.taken()
            }),
            ("berth_flow_body_bytes", "Bytes of request bodies in memory.", |level| {
                level.bodies.taken()
            }),
            ("berth_flow_watches", "Watches that are open.", |level| level.watches.taken()),
            ("berth_flow_unread_event_bytes", "Bytes of events that were not read.", |level| {
                level.events.taken()
            }),
        ];
        for (name, help, read) in gauges {
            families.push(by_level(Kind::Gauge, name, help, &|level| read(level) as f64));
        }
        families.push(by_level(
            Kind::Counter,
            "apiserver_terminated_watchers_total",
            "Watches ended because events were not read.",
            &|level| level.terminated.load(Ordering::Relaxed) as f64,
        ));
        if let Some(counts) = self.connections.get() {
            let Counts { anonymous, known, ended } = counts();
            let clients = [("stranger", anonymous), ("known", known)];
            let sample = |(client, count)| Sample::new(&[("client", client)], count as f64);
            families.push(Family::new(
                Kind::Gauge,
                "berth_connections",
                "Connections, by whether the client is known.",
                clients.map(sample),
            ));
            let sample = |(reason, count)| Sample::new(&[("reason", reason)], count as f64);
            families.push(Family::new(
                Kind::Counter,
                "berth_connections_ended_total",
                "Connections that the server ended, by reason.",
                ended.into_iter().map(sample),
            ));
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{NODES, VIEWERS};
    use crate::request::Query;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, Method};

    fn request(user: Option<&User>, path: &str, accept: &'static str) -> Request {
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static(accept));
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method: Method::GET,
            path: path.to_owned(),
            query: Query::parse(query),
            headers,
            body: Bytes::new(),
            caller: user.cloned().map_or(Caller::Anonymous, Caller::Known),
            source: None,
        }
    }

    #[test]
    fn requests_cost_what_they_hold_in_memory() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        for (path, accept, cost) in [
            ("/healthz", "", Cost::Free),
            ("/version", "", Cost::Free),
            ("/berth/backup", "", Cost::Free),
            ("/apis", "", Cost::Request),
            ("/api/v1/namespaces/a/pods/b", "", Cost::Request),
            ("/api/v1/namespaces/a/pods/b/log", "", Cost::Log),
            ("/api/v1/namespaces/a/pods/b/exec", "", Cost::Free),
            ("/api/v1/pods?watch=1", "", Cost::Free),
            ("/api/v1/watch/pods", "", Cost::Free),
            ("/api/v1/pods", "", Cost::List(1)),
            ("/api/v1/pods", protobuf, Cost::List(WHOLE_LIST)),
            ("/api/v1/pods?limit=500", protobuf, Cost::List(1)),
        ] {
            assert_eq!(Cost::of(&request(None, path, accept)), cost, "{path} {accept}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn user_with_many_requests_waits_alone() {
        let flow = Flow::default();
        let viewer = User::member("v", VIEWERS);
        let pods = request(Some(&viewer), "/api/v1/namespaces/a/pods/b", "");
        let mut tickets = Vec::new();
        for _ in 0..32 {
            tickets.push(flow.enter(&pods).await.unwrap());
        }
        let error = flow.enter(&pods).await.unwrap_err();
        assert_eq!((error.code.as_u16(), error.reason), (429, "TooManyRequests"));
        assert_eq!(error.message, "Too many requests, please try again later.");
        assert_eq!(error.retry_after, Some(1));
        let line = "apiserver_flowcontrol_rejected_requests_total\
                    {priority_level=\"global-default\",reason=\"time-out\"} 1";
        let text = metrics::text::render(&flow.families());
        assert!(text.lines().any(|found| found == line), "{text}");
        // Health checks, other users, and other levels.
        flow.enter(&request(Some(&viewer), "/healthz", "")).await.unwrap();
        for user in [
            User::member("w", VIEWERS),
            User::member("system:node:n", NODES),
            User::member("system:serviceaccount:a:b", "system:serviceaccounts"),
            User::member("admin", ADMINISTRATORS),
        ] {
            let request = request(Some(&user), "/api/v1/namespaces/a/pods/b", "");
            flow.enter(&request).await.unwrap();
        }
        drop(tickets);
        flow.enter(&pods).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn administrators_are_exempt_except_from_memory_limits() {
        let flow = Flow::default();
        let admin = User::member("admin", ADMINISTRATORS);
        let get = request(Some(&admin), "/api/v1/namespaces/a/pods/b", "");
        let list = request(Some(&admin), "/api/v1/pods", "");
        let (mut gets, mut lists) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            gets.push(flow.enter(&get).await.unwrap());
        }
        for _ in 0..16 {
            lists.push(flow.enter(&list).await.unwrap());
        }
        assert_eq!(flow.enter(&list).await.unwrap_err().code.as_u16(), 429);
        flow.enter(&get).await.unwrap();
    }
}
