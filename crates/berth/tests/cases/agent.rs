//! The start of `berth agent` with an API server that is not reachable or rejects it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth::server::Settings;
use client::kind::NODES;
use serde_json::{Value, json};

use crate::remote::Plane;
use crate::tools::command;

/// Time within which an error is reported and the process exits.
const SOON: Duration = Duration::from_secs(15);

/// Timeout on a busy machine; successful waits end earlier.
const TIMEOUT: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn settings(dir: &Path, port: u16) -> Settings {
    let mut settings = Settings::new(dir.join("data"));
    settings.address.set_port(port);
    settings
}

/// Writes a kubeconfig with a token, and returns its path.
fn write_kubeconfig(dir: &Path, server: &str, authority: &str, token: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": server, "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    let file = dir.join("agent.kubeconfig");
    fs::write(&file, config.to_string()).unwrap();
    file
}

/// A `berth agent` process whose outputs are files.
struct Agent {
    process: Child,
    dir: PathBuf,
}

impl Agent {
    fn start(dir: &Path, kubeconfig: &Path) -> Agent {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1", "port": free_port(), "podLogsDir": dir.join("logs"),
        });
        fs::write(dir.join("kubelet.yaml"), config.to_string()).unwrap();
        let path = |name: &str| dir.join(name).display().to_string();
        let (root, kubelet) = (path("root"), path("kubelet.yaml"));
        let kubeconfig = kubeconfig.display().to_string();
        let mut args = vec!["agent", "--kubeconfig", &kubeconfig, "--root-dir", &root];
        args.extend(["--config", &kubelet, "--hostname-override", "node-1"]);
        args.extend(["--container-runtime-endpoint", "unix:///nowhere/containerd.sock"]);
        let output = |name: &str| fs::File::create(dir.join(name)).unwrap();
        let process = command(&args)
            .stdin(Stdio::null())
            .stdout(output("out"))
            .stderr(output("err"))
            .spawn()
            .unwrap();
        Agent { process, dir: dir.to_owned() }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap()
    }

    /// Waits until an output contains a text, while the process runs.
    fn wait_for(&mut self, name: &str, text: &str) {
        let started = Instant::now();
        while !self.read(name).contains(text) {
            let log = self.read("err");
            assert!(self.process.try_wait().unwrap().is_none(), "the agent exited: {log}");
            assert!(started.elapsed() < TIMEOUT, "{text:?} is missing: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the exit; returns the code and standard error.
    fn exit(mut self) -> (i32, String) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert_eq!(self.read("out"), "", "the agent was announced");
                return (status.code().unwrap(), self.read("err"));
            }
            assert!(started.elapsed() < SOON, "the agent runs: {}", self.read("err"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_exits_if_credentials_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (plane, address) = Plane::start(settings(dir.path(), 0)).await;
    let data = &plane.settings.data_dir;
    let authority = fs::read_to_string(data.join("pki/ca.crt")).unwrap();
    let server = format!("https://{address}");
    let file = write_kubeconfig(dir.path(), &server, &authority, "not-a-token");
    let (code, error) = Agent::start(dir.path(), &file).exit();
    assert_eq!(code, 1, "{error}");
    let expected = format!("the API server {server} rejected the credentials (401 Unauthorized");
    assert!(error.contains(&expected), "{error}");
    assert!(error.contains("replace the token") && error.contains("agent.kubeconfig"), "{error}");

    // A viewer reads nodes, and may not create one.
    let (code, error) = Agent::start(dir.path(), &data.join("viewer.kubeconfig")).exit();
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("does not let this client register the node \"node-1\""), "{error}");
    assert!(error.contains("system:node:node-1"), "{error}");
    plane.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_exits_if_the_server_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (plane, address) = Plane::start(settings(dir.path(), 0)).await;
    let other = https::certificates::authority("other").unwrap();
    let server = format!("https://{address}");
    let file = write_kubeconfig(dir.path(), &server, &other.certificate, "x");
    let (code, error) = Agent::start(dir.path(), &file).exit();
    assert_eq!(code, 1, "{error}");
    let expected = format!("the certificate of the API server {server} is not trusted");
    assert!(error.contains(&expected) && error.contains("`certificate-authority`"), "{error}");
    plane.end().await;
}

#[test]
fn agent_exits_without_a_valid_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("missing.kubeconfig");
    let (code, error) = Agent::start(dir.path(), &file).exit();
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("missing.kubeconfig"), "{error}");
    fs::write(&file, "kind: Config\n").unwrap();
    let (code, error) = Agent::start(dir.path(), &file).exit();
    assert_eq!(code, 2, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_waits_for_a_server_that_starts_later() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path(), free_port());
    let (plane, _) = Plane::start(settings.clone()).await;
    plane.end().await;
    let mut agent = Agent::start(dir.path(), &settings.data_dir.join("kubeconfig"));
    agent.wait_for("err", "cannot reach the API server; retrying");
    assert_eq!(agent.read("out"), "", "the agent was announced");
    let (plane, _) = Plane::start(settings).await;
    agent.wait_for("out", "Berth's agent runs");
    let node: Value = plane.client("kubeconfig").get(NODES, "", "node-1").await.unwrap();
    assert_eq!(node["metadata"]["name"], "node-1");
    // The same error is logged once.
    let log = agent.read("err");
    assert!(log.matches("cannot reach the API server").count() <= 4, "{log}");
    drop(agent);
    plane.end().await;
}
