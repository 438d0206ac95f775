//! A load generator for the API: creates, gets, lists and watches over TLS, with their times.
//!
//! Each client is one connection that sends its next request after the last response. Clients run
//! on the server's machine, so the results include their own cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

mod scheduling;

/// The size of the load.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    pub kubeconfig: Option<PathBuf>,
    pub pods: usize,
    pub clients: usize,
    pub watchers: usize,
    pub seconds: u64,
}

/// Runs the benchmark and prints results as they come.
pub fn run(options: &BenchOptions) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (target, own) = match &options.kubeconfig {
            Some(file) => (Target::read(file)?, None),
            None => {
                let started = Instant::now();
                let dir = tempfile::tempdir()?;
                let server = BenchServer::start(dir, "")?;
                let target = server.ready().await?;
                println!("ready after {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
                (target, Some(server))
            }
        };
        let memory = |what: &str| {
            if let Some(resident) = own.as_ref().and_then(BenchServer::resident) {
                println!("{what}: {} resident", resident.rounded());
            }
        };
        memory("idle");
        let space = format!("bench-{}", std::process::id());
        make_namespaces(&target, &space).await?;
        creates(&target, options, &space, pod).await?;
        gets(&target, options, &space).await?;
        list(&target).await?;
        watches(&target, options, &space).await?;
        memory("at the end");
        Ok(())
    })
}

/// Measures how fast a server's scheduler binds pending pods, and prints results as they come.
pub fn run_scheduling(options: &BenchOptions, nodes: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = BenchServer::start(tempfile::tempdir()?, "")?;
        let target = server.ready().await?;
        let space = format!("bench-{}", std::process::id());
        make_namespaces(&target, &space).await?;
        scheduling::make_nodes(&target, nodes, options.clients).await?;
        creates(&target, options, &space, scheduling::pod).await?;
        let dir = server.end()?;
        let server = BenchServer::start(dir, "scheduler")?;
        let target = server.ready().await?;
        scheduling::until_bound(&target, options.pods).await?;
        if let Some(resident) = server.resident() {
            println!("API and scheduler at the end: {} resident", resident.rounded());
        }
        Ok(())
    })
}

/// Number of namespaces that the pods are spread over.
const NAMESPACES: usize = 10;

async fn make_namespaces(target: &Target, space: &str) -> Result<()> {
    let mut client = target.connect().await?;
    for index in 0..NAMESPACES {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{space}-{index}"}}}}"#
        );
        client.send("POST", "/api/v1/namespaces", body).await?.expect(StatusCode::CREATED)?;
    }
    Ok(())
}

fn pod(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","labels":{{"app":"bench"}}}},"spec":{{"containers":[{{"name":"c","image":"registry.example/app:1.0","resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}},"limits":{{"memory":"128Mi"}}}},"ports":[{{"containerPort":8080}}]}}]}}}}"#
    )
}

async fn creates(
    target: &Target,
    options: &BenchOptions,
    space: &str,
    pod: fn(&str) -> String,
) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        let (mut client, next, pods, space) =
            (target.connect().await?, Arc::clone(&next), options.pods, space.to_owned());
        clients.push(tokio::spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= pods {
                    return anyhow::Ok(());
                }
                let path = format!("/api/v1/namespaces/{space}-{}/pods", index % NAMESPACES);
                let reply = client.send("POST", &path, pod(&format!("p{index}"))).await?;
                reply.expect(StatusCode::CREATED)?;
            }
        }));
    }
    finish(clients).await?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "created {} pods with {} clients in {seconds:.1} s: {:.0} per second",
        options.pods,
        options.clients,
        options.pods as f64 / seconds
    );
    Ok(())
}

async fn gets(target: &Target, options: &BenchOptions, space: &str) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let count = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for number in 0..options.clients {
        let (mut client, count, pods, space) =
            (target.connect().await?, Arc::clone(&count), options.pods.max(1), space.to_owned());
        clients.push(tokio::spawn(async move {
            let mut index = number * 7919;
            while Instant::now() < until {
                index = (index + 104_729) % pods;
                let path =
                    format!("/api/v1/namespaces/{space}-{}/pods/p{index}", index % NAMESPACES);
                client.send("GET", &path, String::new()).await?.expect(StatusCode::OK)?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }));
    }
    let started = Instant::now();
    finish(clients).await?;
    let rate = count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    println!("read single pods with {} clients: {rate:.0} per second", options.clients);
    Ok(())
}

async fn list(target: &Target) -> Result<()> {
    let mut client = target.connect().await?;
    for _ in 0..2 {
        // The list is discarded, so that the client's memory does not affect the result.
        let started = Instant::now();
        let mut stream = client.open("/api/v1/pods").await?;
        let mut bytes = 0;
        while let Some(frame) = stream.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len);
        }
        let seconds = started.elapsed().as_secs_f64();
        println!("listed all pods: {seconds:.3} s, {}", placement::Bytes(bytes as u64).rounded());
    }
    Ok(())
}

/// Number of pods created while the watches are open.
const WATCHED: usize = 100;

async fn watches(target: &Target, options: &BenchOptions, space: &str) -> Result<()> {
    if options.watchers == 0 {
        return Ok(());
    }
    let received = Arc::new(AtomicUsize::new(0));
    let mut watchers = Vec::new();
    let path = format!("/api/v1/namespaces/{space}-0/pods?watch=1&resourceVersion=");
    let mut client = target.connect().await?;
    let listed = client.send("GET", "/api/v1/pods?limit=1", String::new()).await?;
    let listed: serde_json::Value = serde_json::from_slice(&listed.body)?;
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    for _ in 0..options.watchers {
        let mut client = target.connect().await?;
        let (path, received) =
            (format!("{path}{version}&timeoutSeconds=60"), Arc::clone(&received));
        watchers.push(tokio::spawn(async move {
            let mut stream = client.open(&path).await?;
            let mut events = 0;
            while events < WATCHED {
                let Some(frame) = stream.frame().await else { bail!("a watch ended early") };
                if let Some(data) = frame?.data_ref() {
                    events += data.iter().filter(|byte| **byte == b'\n').count();
                }
            }
            received.fetch_add(events, Ordering::Relaxed);
            anyhow::Ok(())
        }));
    }
    let started = Instant::now();
    for index in 0..WATCHED {
        let path = format!("/api/v1/namespaces/{space}-0/pods");
        let reply = client.send("POST", &path, pod(&format!("w{index}"))).await?;
        reply.expect(StatusCode::CREATED)?;
    }
    finish(watchers).await?;
    println!(
        "{} watchers saw all {WATCHED} new pods: {} events in {:.2} s",
        options.watchers,
        received.load(Ordering::Relaxed),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

async fn finish(tasks: Vec<tokio::task::JoinHandle<Result<()>>>) -> Result<()> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// The server's address and the client's credentials.
struct Target {
    address: String,
    tls: TlsConnector,
}

impl Target {
    /// Reads a kubeconfig with a client certificate, as `berth server` writes it.
    fn read(kubeconfig: &Path) -> Result<Target> {
        let text = fs::read_to_string(kubeconfig)
            .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
        let (documents, errors) = objects::yaml::parse(&text);
        if let Some(error) = errors.first() {
            bail!("{}: {error}", kubeconfig.display());
        }
        let config = documents.first().map(objects::yaml::Node::to_json).unwrap_or_default();
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let data = |value: &serde_json::Value, field: &str| {
            let text = value[field].as_str();
            let text = text.with_context(|| format!("{}: no {field}", kubeconfig.display()))?;
            STANDARD.decode(text).with_context(|| format!("{field} is not base64"))
        };
        let mut roots = RootCertStore::empty();
        for certificate in
            CertificateDer::pem_slice_iter(&data(cluster, "certificate-authority-data")?)
        {
            roots.add(certificate?)?;
        }
        let chain = data(user, "client-certificate-data")?;
        let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&data(user, "client-key-data")?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let server = cluster["server"].as_str().unwrap_or_default();
        let address = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
        Ok(Target { address, tls: TlsConnector::from(Arc::new(config)) })
    }

    async fn connect(&self) -> Result<Client> {
        let stream = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned())?;
        let stream = self.tls.connect(name, stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Requests fail when the connection breaks.
            let _ = connection.await;
        });
        Ok(Client { sender })
    }
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
}

struct Response {
    status: StatusCode,
    body: Bytes,
}

impl Response {
    fn expect(&self, status: StatusCode) -> Result<()> {
        if self.status != status {
            bail!("{}: {}", self.status, String::from_utf8_lossy(&self.body));
        }
        Ok(())
    }
}

impl Client {
    async fn send(&mut self, method: &str, path: &str, body: String) -> Result<Response> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("user-agent", "berth-bench/1")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Response { status, body })
    }

    /// Returns the body of a response that does not end.
    async fn open(&mut self, path: &str) -> Result<hyper::body::Incoming> {
        let request = Request::builder()
            .uri(path)
            .header("host", "localhost")
            .header("user-agent", "berth-bench/1")
            .body(Full::new(Bytes::new()))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            bail!("{path} was answered with {}", response.status());
        }
        Ok(response.into_body())
    }
}

/// A server that runs for the duration of the measurement.
struct BenchServer {
    child: Child,
    /// `None` after [`BenchServer::end`].
    dir: Option<tempfile::TempDir>,
}

impl BenchServer {
    fn start(dir: tempfile::TempDir, controllers: &str) -> Result<BenchServer> {
        let child = Command::new(std::env::current_exe()?)
            .args(["server", "--https-listen-port", "0", "--controllers", controllers])
            // No controller runs that would create service accounts.
            .args(["--disable-admission-plugins", "ServiceAccount"])
            .arg("--data-dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a server")?;
        Ok(BenchServer { child, dir: Some(dir) })
    }

    /// Stops the process and returns its data directory.
    fn end(mut self) -> Result<tempfile::TempDir> {
        let dir = self.dir.take().context("a server ends once")?;
        drop(self);
        // The file signals readiness; the next server must write it again.
        fs::remove_file(dir.path().join("kubeconfig"))?;
        Ok(dir)
    }

    /// Waits until the server responds.
    async fn ready(&self) -> Result<Target> {
        let dir = self.dir.as_ref().context("the server has ended")?;
        let kubeconfig = dir.path().join("kubeconfig");
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if kubeconfig.exists()
                && let Ok(target) = Target::read(&kubeconfig)
                && let Ok(mut client) = target.connect().await
                && let Ok(answer) = client.send("GET", "/readyz", String::new()).await
                && answer.status == StatusCode::OK
            {
                return Ok(target);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the server did not become ready")
    }

    /// Returns the resident memory of the process, on systems with `/proc`.
    fn resident(&self) -> Option<placement::Bytes> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kilobytes = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(placement::Bytes::kib(kilobytes))
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
