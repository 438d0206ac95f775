//! Logs, exec, attach and port-forward end to end: real clients, our API server, the agent's
//! server, and a real containerd. The test creates the pod's object and its container.
//!
//! Needs root, Debian's packages and the clients of `tools/clients`; `./test` installs them.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

#[path = "streams/cluster.rs"]
mod cluster;

#[path = "streams/up.rs"]
mod up;

use cluster::{Cluster, TIMEOUT};
use rig::clients::client;

/// Returns every kubectl, sorted by name.
fn kubectls() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(client(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("kubectl-"))
        .collect();
    found.sort();
    assert!(found.len() >= 3, "{found:?}");
    found
}

struct Kubectl<'a> {
    program: &'a Path,
    kubeconfig: PathBuf,
    home: &'a Path,
}

impl Kubectl<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.env_clear().env("HOME", self.home).env("KUBECONFIG", &self.kubeconfig);
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs kubectl with an input, and returns its exit code and both outputs.
    async fn run(&self, arguments: &[&str], input: &str) -> (i32, String, String) {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = timeout(TIMEOUT, child.wait_with_output()).await;
        let output = output.unwrap_or_else(|_| panic!("{self:?} {arguments:?} does not end"));
        let output = output.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Runs kubectl on a terminal, and returns the terminal's contents.
    async fn on_terminal(&self, arguments: &str) -> String {
        let line = format!("{} {arguments}", self.program.display());
        let mut child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("HOME", self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Keep the input open without typing: echoed input would be part of the contents.
        let _keyboard = child.stdin.take();
        let output = timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

impl std::fmt::Debug for Kubectl<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.program.file_name().unwrap().fmt(f)
    }
}

/// Runs a check with every kubectl.
async fn try_all(cluster: &Cluster, check: impl AsyncFn(Kubectl<'_>)) {
    for program in kubectls() {
        let (kubeconfig, home) = (cluster.kubeconfig("admin"), cluster.home());
        check(Kubectl { program: &program, kubeconfig, home }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_reads_logs() {
    let cluster = Cluster::start().await;
    let command = "echo one; echo two >&2; trap 'echo bye; exit 0' TERM; sleep 600 & wait";
    let id = cluster.run("p", &["sh", "-c", command], false).await;
    let mut followers = Vec::new();
    for program in kubectls() {
        let kubeconfig = cluster.kubeconfig("admin");
        let kubectl = Kubectl { program: &program, kubeconfig, home: cluster.home() };
        // The order of the two streams is not defined.
        let all = timeout(TIMEOUT, async {
            loop {
                let (code, out, errors) = kubectl.run(&["logs", "p"], "").await;
                assert_eq!((code, &*errors), (0, ""), "{kubectl:?}");
                if out.lines().count() == 2 {
                    return out;
                }
            }
        });
        let all = all.await.expect("two lines");
        let (code, out, errors) = kubectl.run(&["logs", "p", "--tail=1"], "").await;
        let last = all.lines().last().unwrap();
        assert_eq!((code, out.trim_end(), &*errors), (0, last, ""), "{kubectl:?}");
        let (code, _, errors) = kubectl.run(&["logs", "p", "--previous"], "").await;
        let expected = "Error from server (BadRequest): previous terminated container \"c\" in pod \
                        \"p\" not found\n";
        assert_eq!((code, &*errors), (1, expected), "{kubectl:?}");
        let mut child = kubectl.command(&["logs", "-f", "p"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for expected in all.lines() {
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
            assert_eq!(line.as_deref(), Some(expected), "{kubectl:?}");
        }
        assert!(all.contains("one\n") && all.contains("two\n"), "{all}");
        followers.push((child, lines));
    }
    cluster.stop(&id).await;
    for (mut child, mut lines) in followers {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some("bye"));
        assert_eq!(timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap(), None);
        assert!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_runs_commands() {
    let cluster = Cluster::start().await;
    cluster.run("p", cluster::SLEEP, false).await;
    try_all(&cluster, async |kubectl| {
        let script = "read a; echo \"got $a\"; echo oops >&2; exit 7";
        let arguments = ["exec", "-i", "p", "--", "sh", "-c", script];
        let (code, out, errors) = kubectl.run(&arguments, "hello\n").await;
        assert_eq!((code, &*out), (7, "got hello\n"), "{kubectl:?} {errors}");
        let expected = "oops\ncommand terminated with exit code 7\n";
        assert_eq!(errors, expected, "{kubectl:?}");
        // More than any buffer on the way can hold.
        let much = "0123456789abcdef".repeat(1 << 16);
        let (code, out, errors) = kubectl.run(&["exec", "-i", "p", "--", "cat"], &much).await;
        assert_eq!((code, out.len(), &*errors), (0, much.len(), ""), "{kubectl:?}");
        assert!(out == much, "{kubectl:?}");
        // The number depends on whether the previous terminal is closed.
        let terminal = kubectl.on_terminal("exec -it p -- tty").await;
        assert!(terminal.starts_with("/dev/pts/"), "{kubectl:?}: {terminal:?}");
        let (code, _, errors) = kubectl.run(&["exec", "p", "-c", "x", "--", "true"], "").await;
        assert!(code == 1 && errors.contains("container x is not valid for pod p"), "{errors}");
    })
    .await;
    let viewer = cluster.kubeconfig("viewer");
    let program = kubectls().pop().unwrap();
    let kubectl = Kubectl { program: &program, kubeconfig: viewer, home: cluster.home() };
    let (code, _, errors) = kubectl.run(&["exec", "p", "--", "true"], "").await;
    assert!(code == 1 && errors.contains("is forbidden"), "{errors}");
    assert_eq!(kubectl.run(&["logs", "p"], "").await.0, 0);
    let over = timeout(TIMEOUT, async {
        while !cluster.metrics().await.contains("\napiserver_longrunning_requests 0\n") {
            tokio::task::yield_now().await;
        }
    });
    over.await.expect("streams that are over are counted no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_attaches() {
    let cluster = Cluster::start().await;
    let command = ["sh", "-c", "while read a; do echo \"heard $a\"; done"];
    cluster.run("p", &command, true).await;
    try_all(&cluster, async |kubectl| {
        let mut child = kubectl.command(&["attach", "-i", "p"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stdin = child.stdin.take().unwrap();
        for word in ["one", "two"] {
            stdin.write_all(format!("{word}\n").as_bytes()).await.unwrap();
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
            assert_eq!(line, Some(format!("heard {word}")), "{kubectl:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_forwards_ports() {
    let cluster = Cluster::start().await;
    cluster.run("p", cluster::SLEEP, false).await;
    // The pod is on the host's network, so it shares this listener.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut ping = [0; 4];
                stream.read_exact(&mut ping).await.unwrap();
                stream.write_all(&ping).await.unwrap();
                stream.write_all(b" pong").await.unwrap();
            });
        }
    });
    try_all(&cluster, async |kubectl| {
        let ports = format!(":{port}");
        let mut child = kubectl.command(&["port-forward", "p", &ports]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        let Some(line) = line else {
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
            panic!("{kubectl:?}: {errors}");
        };
        let local: u16 = line
            .strip_prefix("Forwarding from 127.0.0.1:")
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{kubectl:?}: {line}"));
        for _ in 0..3 {
            let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut heard = String::new();
            timeout(TIMEOUT, stream.read_to_string(&mut heard)).await.unwrap().unwrap();
            assert_eq!(heard, "ping pong", "{kubectl:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_runs_commands_over_websockets() {
    let cluster = Cluster::start().await;
    cluster.run("p", cluster::SLEEP, false).await;
    let script = "import kubernetes as k; from kubernetes.stream import stream\n\
                  k.config.load_kube_config(); api = k.client.CoreV1Api()\n\
                  print(stream(api.connect_get_namespaced_pod_exec, 'p', 'default',\n\
                  \x20   command=['echo', 'from python'], stdout=True, stderr=True), end='')\n\
                  print(api.read_namespaced_pod_log('p', 'default') == '')\n";
    let output = Command::new(client("python/bin/python"))
        .args(["-c", script])
        .env("KUBECONFIG", cluster.kubeconfig("admin"))
        .output();
    let output = timeout(TIMEOUT, output).await.unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "from python\nTrue\n", "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_or_untrusted_agent_is_named_in_the_error() {
    let cluster = Cluster::start().await;
    cluster.run("p", cluster::SLEEP, false).await;
    let program = kubectls().pop().unwrap();
    let kubeconfig = cluster.kubeconfig("admin");
    let kubectl = Kubectl { program: &program, kubeconfig, home: cluster.home() };
    let away = cluster.move_node("127.0.0.1", 1).await;
    let (_, _, errors) = kubectl.run(&["exec", "p", "--", "true"], "").await;
    assert!(errors.contains("error dialing backend: dial tcp 127.0.0.1:1: "), "{errors}");
    let (_, _, errors) = kubectl.run(&["logs", "p"], "").await;
    assert!(errors.contains("dial tcp 127.0.0.1:1: "), "{errors}");
    // The certificate does not include this name.
    cluster.move_node("localhost", away).await;
    let (_, _, errors) = kubectl.run(&["logs", "p"], "").await;
    assert!(errors.contains("not valid for name"), "{errors}");
}
