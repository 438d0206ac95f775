//! Certificates of a control plane over years: the clock is moved, with connections before and
//! after.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use berth::server::{Certificates, Server, Settings};
use client::Kubeconfig;
use http::{Request, Response};
use http_body_util::Full;
use https::certificates::{self, Pair};
use https::{Answer, Body, Clock, Dialer, Limits, Listener};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;

use crate::remote::TIMEOUT;

const DAY: u64 = 24 * 3600;
/// In the year 2026.
const START: u64 = 20_600 * DAY;

/// A settable clock.
#[derive(Clone)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn new() -> TestClock {
        TestClock(Arc::new(AtomicU64::new(START)))
    }

    fn set_day(&self, day: u64) {
        self.0.store(START + day * DAY, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let seconds = Arc::clone(&self.0);
        Clock::new(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.load(Ordering::Relaxed))
        })
    }
}

/// A control plane and an agent's socket with the test's clock.
struct Plane {
    clock: TestClock,
    dir: tempfile::TempDir,
    certificates: Certificates,
    agent: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Plane {
    async fn start() -> Plane {
        let (dir, clock) = (tempfile::tempdir().unwrap(), TestClock::new());
        let mut settings = Settings::new(dir.path().join("data"));
        settings.address.set_port(0);
        settings.clock = clock.clock();
        let server = Server::start(&settings).await.unwrap();
        let certificates = server.certificates().clone();
        let tls = certificates.serve_agent(vec!["127.0.0.1".to_owned()]).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind_with(any, tls, Limits::default()).await.unwrap();
        let agent = listener.address().unwrap();
        let (stop, stopping) = watch::channel(false);
        tokio::spawn(server.serve(stopping.clone()));
        let handle = |_, client: Arc<https::Client>| async move {
            let name = client.peer().map(|peer| peer.name.clone()).unwrap_or_default();
            Answer::from(Response::new(Body::Whole(Bytes::from(name))))
        };
        tokio::spawn(listener.serve(handle, stopping));
        Plane { clock, dir, certificates, agent, stop }
    }

    fn data_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn kubeconfig(&self) -> Copy {
        Copy::of(&self.data_dir().join("kubeconfig"))
    }

    /// Checks that a client with this kubeconfig gets responses from server and agent over new
    /// connections.
    async fn accepts(&self, copy: &Copy) -> Result<(), String> {
        for (port, path) in
            [(copy.config.address.port, "/api/v1/namespaces/default"), (self.agent.port(), "/")]
        {
            let stream = copy.connect(port, "http/1.1", self.clock.clock()).await?;
            let request = Request::get(path).header("host", "x").body(Full::<Bytes>::default());
            let response = https::exchange(stream, request.unwrap()).await;
            let status = response.map_err(|error| error.to_string())?.status();
            assert_eq!(status, 200, "{path}");
        }
        Ok(())
    }
}

/// A kubeconfig copied at some time.
struct Copy {
    config: Kubeconfig,
    authority: String,
    pair: Pair,
}

impl Copy {
    fn of(file: &Path) -> Copy {
        let config = Kubeconfig::read(file).unwrap();
        let (certificate, key) = config.identity.as_ref().unwrap();
        let pair = Pair { certificate: certificate.text().unwrap(), key: key.text().unwrap() };
        Copy { authority: config.authority.text().unwrap(), pair, config }
    }

    async fn connect(
        &self,
        port: u16,
        protocol: &str,
        clock: Clock,
    ) -> Result<TlsStream<TcpStream>, String> {
        let dialer = Dialer::new_at(&self.authority, Some(&self.pair), &[protocol], TIMEOUT, clock);
        let connected = dialer.unwrap().connect("127.0.0.1", port, "127.0.0.1").await;
        connected.map_err(|error| error.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clock_changes_break_neither_open_nor_new_connections() {
    let plane = Plane::start().await;
    let first = plane.kubeconfig();
    plane.accepts(&first).await.unwrap();
    // A connection that stays open during the whole test.
    let stream = first.connect(first.config.address.port, "h2", plane.clock.clock()).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut live, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let mut ask = async || {
        let uri = "https://127.0.0.1/api/v1/namespaces/default";
        let request = Request::get(uri).body(Full::<Bytes>::default()).unwrap();
        live.send_request(request).await.unwrap().status()
    };
    assert_eq!(ask().await, 200);

    // Nothing is renewed early.
    assert!(!plane.certificates.check().unwrap());
    plane.clock.set_day(400);
    assert!(plane.accepts(&plane.kubeconfig()).await.is_err(), "all has expired");
    assert!(plane.certificates.check().unwrap());
    plane.accepts(&plane.kubeconfig()).await.unwrap();
    assert!(plane.accepts(&first).await.is_err(), "the certificate of the first has expired");
    assert_eq!(ask().await, 200);

    // Back by more than certificates are backdated, and ahead beyond the authority's lifetime.
    for day in [100, 8000, 90, 8000, 3] {
        plane.clock.set_day(day);
        assert!(plane.accepts(&plane.kubeconfig()).await.is_err(), "day {day}");
        assert!(plane.certificates.check().unwrap(), "day {day}");
        assert!(!plane.certificates.check().unwrap(), "day {day}");
        plane.accepts(&plane.kubeconfig()).await.unwrap();
        assert_eq!(ask().await, 200);
    }
    plane.accepts(&first).await.unwrap();

    // Renewed certificates survive a restart, and the files are complete.
    let authorities = plane.data_dir().join("pki/ca-bundle.crt");
    assert_eq!(std::fs::read_to_string(authorities).unwrap(), plane.kubeconfig().authority);
    plane.stop.send(true).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn authority_rotation_breaks_no_copied_kubeconfig_early() {
    let plane = Plane::start().await;
    let mut copies = std::collections::VecDeque::new();
    let mut bundles = std::collections::BTreeSet::new();
    for day in (0..30 * 365).step_by(60) {
        plane.clock.set_day(day);
        plane.certificates.check().unwrap();
        let now = plane.clock.clock().now();
        let current = plane.kubeconfig();
        let all = format!("{}{}", current.authority, current.pair.certificate);
        for pem in all.split_inclusive("-----END CERTIFICATE-----\n") {
            let validity = certificates::validity(pem).unwrap();
            assert!(validity.lasts(now, Duration::ZERO), "day {day}: {validity:?}");
        }
        bundles.insert(current.authority.clone());
        plane.accepts(&current).await.unwrap();
        copies.push_back(current);
        // A certificate has at least four months left when it is copied.
        if copies.len() > 2 {
            let copy = copies.pop_front().unwrap();
            plane.accepts(&copy).await.unwrap_or_else(|error| panic!("day {day}: {error}"));
        }
    }
    // Three rotations in 30 years: each publishes a successor, makes it the issuer, and drops the
    // predecessor.
    assert!((9..=11).contains(&bundles.len()), "{} lists of authorities", bundles.len());
    let most = bundles.iter().map(|bundle| bundle.matches("BEGIN").count()).max();
    assert_eq!(most, Some(2));
    plane.stop.send(true).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_without_a_store_are_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(dir.path().join("data"));
    settings.address.set_port(0);
    let plane = crate::remote::Plane::start(settings.clone()).await.0;
    plane.end().await;
    let at = |name: &str| settings.data_dir.join(name);
    std::fs::rename(at("store"), at("away")).unwrap();
    for _ in 0..2 {
        let error = format!("{:#}", Server::start(&settings).await.unwrap_err());
        for part in ["store is empty", "berth restore", "berth store repair", "pki.old"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    std::fs::remove_dir(at("store")).unwrap();
    std::fs::rename(at("away"), at("store")).unwrap();
    crate::remote::Plane::start(settings).await.0.end().await;
}
