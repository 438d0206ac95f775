//! Combined load: idle connections, watches and floods of requests, while an administrator works.
//!
//! The load lasts a few seconds, or `BERTH_FLOOD_SECONDS`.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::server::{Endpoint, Server, Who};
use crate::transport::{Filler, open, request};

const SILENT: usize = 4096;
const WATCHES: usize = 10_000;
const FLOODS: usize = 100;

/// Limits on memory: during the load, and a minute after it.
const UNDER_LOAD: u64 = 300 << 20;
const AFTERWARDS: u64 = 100 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Raises this process's limit on open files to its maximum.
pub(crate) fn raise_open_files() {
    let pid = std::process::id().to_string();
    let script = "prlimit --pid $0 --nofile=$(ulimit -Hn):$(ulimit -Hn)";
    let raised = Command::new("sh").args(["-c", script, &pid]).status().unwrap();
    assert!(raised.success(), "the limit of open files cannot be raised");
}

/// Connects, sends nothing, and reconnects some time after the server closes. Counts the first
/// connection.
async fn stay_silent(endpoint: Endpoint, turns: Arc<Semaphore>, connected: Arc<AtomicU64>) {
    let mut first = Some(connected);
    loop {
        let turn = turns.acquire().await;
        let stream = endpoint.connect().await;
        drop(turn);
        if let Ok(mut stream) = stream {
            if let Some(connected) = first.take() {
                connected.fetch_add(1, Ordering::Relaxed);
            }
            let mut nothing = Vec::new();
            let _ = stream.read_to_end(&mut nothing).await;
        }
        // A handshake costs the client as much as the server.
        sleep(Duration::from_secs(30)).await;
    }
}

/// Waits until a count has been reached.
async fn reached(what: &str, count: &AtomicU64, wanted: usize) {
    let waiting = async {
        while count.load(Ordering::Relaxed) < wanted as u64 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(MINUTE, waiting).await.is_ok(), "{what}: {count:?} of {wanted}");
}

/// The measurements of an administrator's requests.
struct Load {
    requests: usize,
    slowest: Duration,
}

/// Requests an object over new connections, on a thread of its own.
fn work(server: &Server, time: Duration) -> Load {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let started = Instant::now();
        let mut load = Load { requests: 0, slowest: Duration::ZERO };
        while started.elapsed() < time {
            let began = Instant::now();
            let path = "/api/v1/namespaces/default";
            let answer = server.ask(Who::Admin, Method::GET, path, &[], "").await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
            load.slowest = load.slowest.max(began.elapsed());
            load.requests += 1;
            sleep(Duration::from_millis(100)).await;
        }
        load
    })
}

/// Opens a hundred watches on one connection without reading them. Counts the accepted ones.
async fn watch(endpoint: Endpoint, granted: Arc<AtomicU64>) {
    let Some(mut sender) = open(&endpoint).await else { return };
    let mut kept = Vec::new();
    for _ in 0..100 {
        let path = "/api/v1/pods?watch=1";
        let request = request(&endpoint, Who::Admin, Method::GET, path, Filler::whole(0));
        let Ok(answer) = sender.send_request(request).await else { return };
        if answer.status() == StatusCode::OK {
            granted.fetch_add(1, Ordering::Relaxed);
        }
        kept.push(answer);
    }
    std::future::pending::<()>().await;
}

/// Sends requests with large bodies as fast as responses come, over new connections.
async fn flood(
    endpoint: Endpoint,
    token: Option<String>,
    path: &'static str,
    sent: Arc<AtomicU64>,
) {
    let who = token.as_deref().map_or(Who::Stranger, Who::Token);
    loop {
        let Some(sender) = open(&endpoint).await else { continue };
        let mut answers = JoinSet::new();
        for _ in 0..8 {
            let (mut sender, sent) = (sender.clone(), Arc::clone(&sent));
            let again = || request(&endpoint, who, Method::POST, path, Filler::whole(3_000_000));
            let requests: Vec<_> = (0..16).map(|_| again()).collect();
            answers.spawn(async move {
                for request in requests {
                    let Ok(answer) = sender.send_request(request).await else { return };
                    sent.fetch_add(1, Ordering::Relaxed);
                    let _ = answer.into_body().collect().await;
                }
            });
        }
        while answers.join_next().await.is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn administrator_gets_responses_within_a_second() {
    raise_open_files();
    let seconds = std::env::var("BERTH_FLOOD_SECONDS").ok();
    let seconds = seconds.map_or(5, |text| text.parse().unwrap());
    let server = Server::start();
    let token = server.token("default", "default").await;
    let granted: Arc<AtomicU64> = Arc::default();
    let sent: Arc<AtomicU64> = Arc::default();
    let mut load = JoinSet::new();
    let admin = server.endpoint(Who::Admin, "h2");
    for _ in 0..WATCHES / 100 {
        load.spawn(watch(admin.clone(), Arc::clone(&granted)));
    }
    reached("watches", &granted, WATCHES).await;
    let stranger = server.endpoint(Who::Stranger, "h2");
    let (turns, connected) = (Arc::new(Semaphore::new(32)), Arc::new(AtomicU64::new(0)));
    for _ in 0..SILENT {
        let (turns, connected) = (Arc::clone(&turns), Arc::clone(&connected));
        load.spawn(stay_silent(stranger.clone(), turns, connected));
    }
    reached("silent connections", &connected, SILENT).await;
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let pods = "/api/v1/namespaces/default/pods";
    for number in 0..FLOODS {
        let (token, path) = match number % 3 {
            0 => (None, pods),
            1 => (Some(token.clone()), pods),
            _ => (Some(token.clone()), review),
        };
        load.spawn(flood(stranger.clone(), token, path, Arc::clone(&sent)));
    }
    let time = Duration::from_secs(seconds);
    let Load { requests, slowest } =
        std::thread::scope(|scope| scope.spawn(|| work(&server, time)).join().unwrap());
    let peak = server.peak_memory();
    load.shutdown().await;
    let ended = Instant::now();
    while server.resident_memory() >= AFTERWARDS && ended.elapsed() < MINUTE {
        sleep(Duration::from_millis(200)).await;
    }
    let left = server.resident_memory();
    println!(
        "{requests} requests of an administrator, the slowest {slowest:?}, beside {} others; \
         {} MiB at most, {} MiB after {:?}",
        sent.load(Ordering::Relaxed),
        peak >> 20,
        left >> 20,
        ended.elapsed(),
    );
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert!(peak < UNDER_LOAD, "{} MiB under the load", peak >> 20);
    assert!(left < AFTERWARDS, "{} MiB a minute after the load", left >> 20);
    server.assert_alive().await;
}
