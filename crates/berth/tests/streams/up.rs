//! The binary end to end: `berth up` on its own containerd, with every kubectl, `berth status`,
//! `berth explain` and `berth down`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::cluster::TIMEOUT;
use crate::{Kubectl, kubectls};

const NODE: &str = "node-1";

/// A node started from the command line.
struct Up {
    process: Child,
    dir: tempfile::TempDir,
    /// Last, so that it is dropped after everything that uses it.
    containerd: rig::Containerd,
}

impl Up {
    async fn start() -> Up {
        let containerd = rig::Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        // Each pod gets a pair of interfaces, which are removed with it.
        let network = serde_json::json!({
            "cniVersion": "0.4.0", "name": "test", "plugins": [{
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "subnet": format!("10.88.{}.0/24", std::process::id() % 250),
                    "dataDir": containerd.directory().join("addresses"),
                },
            }],
        });
        let written = containerd.directory().join("cni/10-test.conflist");
        std::fs::write(written, network.to_string()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("kubelet.yaml");
        let last = last_cpu();
        // All CPUs but the last are reserved, so that exactly one can be allocated on any machine.
        // Eviction is off, so that a full disk does not matter.
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             cgroupRoot: {}\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-{}\n\
             evictionHard: {{memory.available: 1Mi}}\n",
            containerd.cgroup_parent(),
            last - 1,
        );
        std::fs::write(&config, text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["up", "--https-listen-port", "0", "--agent-port", "0"])
            .args(["--hostname-override", NODE])
            // A relative path; the runtime receives an absolute one.
            .current_dir(dir.path())
            .args(["--data-dir", "./data"])
            .arg("--config")
            .arg(config)
            .args(["--container-runtime-endpoint", &containerd.endpoint()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let banner = timeout(TIMEOUT, async {
            let mut banner = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                banner.push(line);
                if banner.last().is_some_and(|line| line.contains("kubectl")) {
                    break;
                }
            }
            banner
        });
        let banner = banner.await.unwrap();
        assert!(banner[0].starts_with("Berth is up after "), "{banner:?}");
        assert!(banner.iter().any(|line| line.contains(&format!("node     {NODE}"))), "{banner:?}");
        // The agent listens on the node's address only.
        let agent = banner.iter().find(|line| line.starts_with("  agent    https://")).unwrap();
        assert!(!agent.contains("//0.0.0.0:") && agent.contains("--agent-address"), "{agent}");
        Up { process, dir, containerd }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/kubeconfig")
    }

    fn kubectl<'a>(&'a self, program: &'a Path) -> Kubectl<'a> {
        Kubectl { program, kubeconfig: self.kubeconfig(), home: self.dir.path() }
    }

    /// Runs another `berth` command.
    async fn berth(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(arguments)
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .kill_on_drop(true)
            .output();
        let Output { status, stdout, stderr } = timeout(TIMEOUT, output).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

fn last_cpu() -> u32 {
    let cpus = berth::machine_source::load_machine(None).unwrap().topology.all_cpus().clone();
    cpus.last().unwrap().0
}

async fn succeeds(kubectl: &Kubectl<'_>, arguments: &[&str], input: &str) -> String {
    let (code, out, errors) = kubectl.run(arguments, input).await;
    assert_eq!(code, 0, "{kubectl:?} {arguments:?}: {out}{errors}");
    out
}

async fn ready(kubectl: &Kubectl<'_>, pod: &str) {
    let name = format!("pod/{pod}");
    let waiting = ["wait", "--for=condition=Ready", &name, "--timeout=50s"];
    let (code, _, errors) = kubectl.run(&waiting, "").await;
    if code != 0 {
        let (_, report, _) = kubectl.run(&["describe", "pod", pod], "").await;
        panic!("{kubectl:?}: {errors}\n{report}");
    }
}

/// A pod with its own network that serves a page.
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: c
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, "echo hello; mkdir /w; echo body > /w/index.html; exec httpd -f -p 8080 -h /w"]
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
"#;

/// Returns a pod with this many exclusive CPUs.
fn exclusive(name: &str, cpus: u32) -> String {
    format!(
        "# kubectl takes what begins with a brace for JSON.\n\
         {{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{hostNetwork: true, \
         terminationGracePeriodSeconds: 2, containers: [{{name: c, image: 'localhost/busybox:1', \
         imagePullPolicy: Never, command: [sleep, '600'], resources: {{limits: {{cpu: '{cpus}', \
         memory: 32Mi}}}}}}]}}}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kubectl_works_with_berth_up() {
    let up = Up::start().await;
    for program in kubectls() {
        let kubectl = up.kubectl(&program);
        session(&kubectl).await;
    }
    let (code, out, errors) = up.berth(&["status"]).await;
    assert_eq!(code, 0, "{out}{errors}\n{}", up.log());
    assert!(out.contains("node node-1 is ready"), "{out}");
    end(up).await;
}

async fn session(kubectl: &Kubectl<'_>) {
    succeeds(kubectl, &["apply", "-f", "-"], WEB).await;
    ready(kubectl, "web").await;
    let out = succeeds(kubectl, &["get", "pods", "-o", "wide"], "").await;
    assert!(out.contains("1/1") && out.contains("Running") && out.contains(NODE), "{out}");

    let mut child = kubectl.command(&["logs", "-f", "web"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(line.as_deref(), Some("hello"), "{kubectl:?}");
    drop(child);

    let out = succeeds(kubectl, &["exec", "-i", "web", "--", "cat"], "there and back").await;
    assert_eq!(out, "there and back", "{kubectl:?}");
    let terminal = kubectl.on_terminal("exec -it web -- tty").await;
    assert!(terminal.starts_with("/dev/pts/"), "{kubectl:?}: {terminal:?}");

    let mut child = kubectl.command(&["port-forward", "web", ":8080"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap_or_default();
    let local: u16 = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{kubectl:?}: {line}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).await.unwrap();
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").await.unwrap();
    let mut heard = String::new();
    timeout(TIMEOUT, stream.read_to_string(&mut heard)).await.unwrap().unwrap();
    assert!(heard.contains(" 200 OK") && heard.ends_with("body\n"), "{heard}");
    drop(child);

    let out = succeeds(kubectl, &["describe", "pod", "web"], "").await;
    for part in ["Scheduled", "Container image \"localhost/busybox:1\" already present", "Started"]
    {
        assert!(out.contains(part), "{kubectl:?}: {part} is not in {out}");
    }
    let out = succeeds(kubectl, &["describe", "node", NODE], "").await;
    for part in ["KubeletReady", "containerd://", "default/web", "Allocated resources"] {
        let spaced = part.replace('/', "                     ");
        assert!(out.contains(part) || out.contains(&spaced), "{kubectl:?}: {part}: {out}");
    }
    // There is no metrics server, and kubectl reports it.
    for what in ["pods", "nodes"] {
        let (code, _, errors) = kubectl.run(&["top", what], "").await;
        assert!(
            code == 1 && errors.to_lowercase().contains("metrics api not available"),
            "{errors}"
        );
    }

    // A pod without a controller is drained only with a flag.
    let (code, _, errors) = kubectl.run(&["drain", NODE], "").await;
    assert!(code != 0 && errors.contains("web"), "{kubectl:?}: {errors}");
    succeeds(kubectl, &["drain", NODE, "--force", "--timeout=60s"], "").await;
    let out = succeeds(kubectl, &["get", "pods", "-o", "name"], "").await;
    assert_eq!(out, "", "{kubectl:?}");
    let out = succeeds(kubectl, &["get", "nodes"], "").await;
    assert!(out.contains("Ready,SchedulingDisabled"), "{out}");
    succeeds(kubectl, &["uncordon", NODE], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placements_are_explained_in_events_and_by_explain() {
    let up = Up::start().await;
    let program = kubectls().pop().unwrap();
    let kubectl = up.kubectl(&program);
    let cpu = last_cpu();
    succeeds(&kubectl, &["apply", "-f", "-"], &exclusive("own", 1)).await;
    ready(&kubectl, "own").await;
    let out = succeeds(&kubectl, &["describe", "pod", "own"], "").await;
    assert!(out.contains(&format!("container c has CPUs {cpu}")), "{out}");

    let (code, out, errors) = up.berth(&["explain", "pod", "own"]).await;
    assert_eq!(code, 0, "{errors}");
    for part in [
        "own  Guaranteed · Running on node-1".to_owned(),
        format!("Placed: container c has CPUs {cpu}"),
        "node-1 has it".to_owned(),
        "1 CPU of its own".to_owned(),
    ] {
        assert!(out.contains(&part), "{part} is not in {out}");
    }
    let (code, out, _) = up.berth(&["explain", "node"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("own") && out.contains("0 CPUs to hand out"), "{out}");
    let (code, out, _) = up.berth(&["explain", "node", NODE, "-o", "json"]).await;
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["pods"][0]["containers"][0]["cpus"]), (0, &cpu.to_string().into()));

    // A second pod waits, with the reason in its status.
    succeeds(&kubectl, &["apply", "-f", "-"], &exclusive("late", 1)).await;
    let waited = timeout(TIMEOUT, async {
        loop {
            let (code, out, errors) = up.berth(&["explain", "pod", "late"]).await;
            if out.contains("0/1 nodes are available") {
                return (code, out);
            }
            assert!(code == 0 || code == 3, "{out}{errors}");
        }
    });
    let (code, out) = waited.await.unwrap();
    assert_eq!(code, 3, "{out}");
    for part in ["late  Guaranteed · Pending", "node-1 would refuse it now", "without own on"] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
    // The explained change has the predicted effect.
    succeeds(&kubectl, &["delete", "pod", "own"], "").await;
    ready(&kubectl, "late").await;
    let (code, _, errors) = up.berth(&["explain", "pod", "nobody"]).await;
    assert_eq!((code, &*errors), (2, "error: there is no pod \"nobody\" in \"default\"\n"));
    end(up).await;
}

/// Stops the node and its pods.
async fn end(mut up: Up) {
    let (code, out, errors) = up.berth(&["down"]).await;
    assert_eq!(code, 0, "{out}{errors}\n{}", up.log());
    assert!(timeout(TIMEOUT, up.process.wait()).await.unwrap().unwrap().success(), "{}", up.log());
    let runtime = cri::Client::new(cri::Endpoint::parse(&up.containerd.endpoint()).unwrap());
    let containers = runtime.call(cri::v1::ListContainersRequest::default()).await.unwrap();
    let run = |container: &&cri::v1::Container| {
        container.state == i32::from(cri::v1::ContainerState::ContainerRunning)
    };
    assert_eq!(containers.containers.iter().filter(run).count(), 0, "{containers:?}");
    let (code, _, _) = up.berth(&["status"]).await;
    assert_eq!(code, 1);
}
