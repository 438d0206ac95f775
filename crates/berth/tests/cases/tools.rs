//! The user's commands: `config check`, `plan`, `version`, and `up`, `status`, `explain` and `down`
//! with a node without a runtime.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for actions that take milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a `berth` command without the environment of the test's user.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(args).env("NO_COLOR", "1").env_remove("BERTH_DATA_DIR").env_remove("KUBECONFIG");
    command
}

/// Runs a command and returns its exit code, standard output and standard error.
pub(crate) fn finished(mut command: Command, input: &str) -> (i32, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have exited already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn berth(args: &[&str], input: &str) -> (i32, String, String) {
    finished(command(args), input)
}

const MACHINE: &str = "2 sockets x 4 cores x 2 threads mem=8Gi";

fn configuration(fields: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n")
}

#[test]
fn check_and_up_reject_a_configuration_with_the_same_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubelet.yaml").display().to_string();
    let data = dir.path().join("data").display().to_string();
    let cases = [
        ("address: here", "address: invalid configuration: address \"here\" must be a valid IP"),
        ("port: 0\nmaxPods: -4", "line 4, column 10: maxPods: invalid configuration"),
        ("fileCheckFrequency: 20", "line 3, column 21: fileCheckFrequency: expected a duration"),
        ("containerLogMaxSize: 10MB", "containerLogMaxSize: expected a quantity of bytes"),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}",
            "cpuManagerPolicyOptions: new none policy error: None policy: received unsupported \
             options=map[full-pcpus-only:true]; write cpuManagerPolicy: static",
        ),
        (
            "cpuCFSQuotaPeriod: 50ms",
            "requires feature gate CustomCPUCFSQuotaPeriod; write featureGates",
        ),
        ("containerRuntimeEndpoint: 'tcp://x'", "containerRuntimeEndpoint: "),
    ];
    // On Windows the CPU manager and its options need a feature gate.
    let applies = |fields: &str| {
        std::env::consts::OS != "windows" || !fields.starts_with("cpuManagerPolicyOptions")
    };
    for (fields, part) in cases.into_iter().filter(|(fields, _)| applies(fields)) {
        std::fs::write(&file, configuration(fields)).unwrap();
        let up = ["up", "--data-dir", &data, "--config", &file, "--https-listen-port", "0"];
        for args in [&["config", "check", &file][..], &up] {
            let (code, _, errors) = berth(args, "");
            assert_eq!(code, 2, "{args:?} {fields}: {errors}");
            assert!(errors.contains(&file) && errors.contains(part), "{fields}: {errors}");
        }
        assert!(!Path::new(&data).join("store").exists(), "nothing was started");
    }
}

#[test]
fn invalid_node_name_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let (code, _, errors) =
        berth(&["up", "--data-dir", &data, "--hostname-override", "My Host"], "");
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("--hostname-override: \"My Host\" should be a node's name"),
        "{errors}"
    );
    assert!(errors.contains("a lowercase RFC 1123 subdomain"), "{errors}");
}

#[test]
fn output_of_topology_is_valid_input_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let pods = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i, \
                resources: {limits: {cpu: 2, memory: 64Mi}}}]}}";
    let config = dir.path().join("kubelet.yaml").display().to_string();
    std::fs::write(&config, configuration("cpuManagerPolicy: static\nreservedSystemCPUs: '0'"))
        .unwrap();
    let words =
        ["8 sockets x 8 numa x 8 cores x 2 threads mem=1Gi", MACHINE, "1x2x4x1 mem=4Gi os=windows"];
    for words in words {
        for format in ["json", "yaml"] {
            let (code, machine, errors) = berth(&["topology", "--from", words, "-o", format], "");
            assert_eq!((code, errors.as_str()), (0, ""), "{words}");
            let file = dir.path().join(format!("a machine.{format}")).display().to_string();
            std::fs::write(&file, &machine).unwrap();
            let (code, again, errors) = berth(&["topology", "--from", &file, "-o", format], "");
            assert_eq!((code, again == machine), (0, true), "{words}: {errors}");
            let (code, _, errors) = berth(&["topology", "--from", "-", "-o", "svg"], &machine);
            assert_eq!(code, 0, "{words}: {errors}");
            let (code, _, errors) = berth(&["config", "check", &config, "--machine", &file], "");
            assert_eq!(code, 0, "{words}: {errors}");
            let (code, _, errors) = berth(&["config", "generate", "--machine", &file], "");
            assert_eq!(code, 0, "{words}: {errors}");
            let (code, out, errors) = berth(&["plan", "-f", "-", "--machine", &file], pods);
            assert_eq!(code, 0, "{words} as {format}: {out}{errors}");
        }
    }
}

#[test]
fn lscpu_output_is_a_machine_with_reported_assumptions() {
    let lscpu = "Architecture:  x86_64\nCPU(s):  8\nOn-line CPU(s) list:  0-7\nThread(s) per core:  2\n\
                 Core(s) per socket:  4\nSocket(s):  1\nNUMA node(s):  1\nNUMA node0 CPU(s):  0-7\n";
    let (code, out, errors) = berth(&["topology", "--from", "-", "-o", "yaml"], lscpu);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains("\"0,4\", \"1,5\""), "{out}");
    assert!(errors.contains("CPUs 0,4 are taken to share a core"), "{errors}");
    assert!(errors.contains("lscpu -J -e=CPU,CORE,SOCKET,NODE,CACHE,ONLINE"), "{errors}");
}

#[test]
fn memory_without_a_unit_is_rejected_with_suggestions() {
    let (code, _, errors) = berth(&["topology", "--from", "2 cores mem=512"], "");
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("it has no unit: write 512Mi or 512Gi"), "{errors}");
    let args = ["config", "generate", "--machine", MACHINE, "--reserved-memory", "512"];
    let (code, _, errors) = berth(&args, "");
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("write 512Mi or 512Gi"), "{errors}");
}

#[test]
fn bound_pods_of_a_cluster_are_planned_on_any_machine() {
    let pod = |name: &str, metadata: &str, phase: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, {metadata}}}, status: {{phase: {phase}}}, \
             spec: {{nodeName: worker-7, containers: [{{name: c, image: i, resources: {{requests: \
             {{cpu: 1}}}}}}]}}}}"
        )
    };
    let list =
        |pods: &[String]| format!("{{apiVersion: v1, kind: List, items: [{}]}}", pods.join(", "));
    let bound = "uid: 0a9c3a5f-0a3c-4a53-9c3e-1f6f3c7c0001";
    let live = list(&[pod("a", bound, "Running"), pod("b", bound, "Succeeded")]);
    let (code, out, errors) = berth(&["plan", "-f", "-", "--machine", MACHINE], &live);
    assert_eq!(code, 0, "{out}{errors}");
    assert!(out.contains("1 pod placed"), "{out}");
    assert!(errors.contains("1 pod runs on node \"worker-7\""), "{errors}");
    assert!(errors.contains("Pod \"b\" skipped: it has ended"), "{errors}");
    // A machine of that name keeps its pods.
    let named = "8 cores mem=8Gi name=worker-7";
    let (code, _, errors) =
        berth(&["plan", "-f", "-", "--machine", named, "--machine", MACHINE], &live);
    assert_eq!((code, errors.contains("worker-7\", which")), (0, false), "{errors}");
    // A node name in a manifest is a constraint.
    let wished = list(&[pod("a", "labels: {}", "Pending")]);
    let (code, _, _) = berth(&["plan", "-f", "-", "--machine", MACHINE], &wished);
    assert_eq!(code, 3);
}

#[test]
fn version_is_printed_as_text_and_json() {
    let (code, out, _) = berth(&["version"], "");
    assert!(code == 0 && out.starts_with("berth 0.") && out.contains("Kubernetes v1."), "{out}");
    let (code, out, _) = berth(&["version", "-o", "json"], "");
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert!(view["kubernetesVersion"].as_str().unwrap().starts_with("v1."), "{view}");
}

#[test]
fn commands_without_a_node_explain_how_to_select_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let (code, _, errors) = berth(&["explain", "pod/a", "--data-dir", &data], "");
    assert_eq!(code, 2, "{errors}");
    for part in ["holds no control plane", "--data-dir", "BERTH_DATA_DIR", "KUBECONFIG"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let (code, _, errors) = berth(&["status", "--data-dir", &data], "");
    assert_eq!(code, 1);
    assert!(errors.contains("no node runs on"), "{errors}");
}

#[test]
fn port_in_use_error_shows_the_flag_and_the_process() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let (code, _, errors) =
        berth(&["server", "--data-dir", &data, "--https-listen-port", &port], "");
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains(&format!("port {port} is in use")), "{errors}");
    assert!(errors.contains("choose another port with --https-listen-port"), "{errors}");
    // Only Linux shows which process listens.
    if std::env::consts::OS == "linux" {
        assert!(errors.contains(&format!("(process {})", std::process::id())), "{errors}");
    }
}

/// A `berth up` node without a runtime.
struct Up {
    process: Child,
    dir: tempfile::TempDir,
    output: String,
}

impl Up {
    fn start() -> Up {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data").display().to_string();
        let mut args = vec!["up", "--data-dir", &data, "--https-listen-port", "0"];
        args.extend(["--agent-port", "0", "--hostname-override", "Node-1"]);
        args.extend(["--container-runtime-endpoint", "unix:///nowhere/containerd.sock"]);
        let mut process = command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut output = String::new();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        while !output.contains("kubectl --kubeconfig") {
            let Some(line) = lines.next() else {
                let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                panic!("berth up ended: {log}");
            };
            output += &(line.unwrap() + "\n");
        }
        Up { process, dir, output }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    /// Runs a command that finds the node by an environment variable.
    fn berth(&self, variable: &str, args: &[&str]) -> (i32, String, String) {
        let mut command = command(args);
        match variable {
            "KUBECONFIG" => command.env(variable, self.kubeconfig()),
            _ => command.env(variable, self.data()),
        };
        finished(command, "")
    }

    fn client(&self) -> client::Client {
        let config = client::Kubeconfig::read(&self.kubeconfig()).unwrap();
        let remote = client::Remote::new(config, "test", client::Timeouts::default()).unwrap();
        client::Client::new(std::sync::Arc::new(remote), "test")
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pod(name: &str, spec: &serde_json::Value) -> serde_json::Value {
    let mut pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"automountServiceAccountToken": false,
                 "containers": [{"name": "c", "image": "localhost/x"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

/// Repeats a command until its output contains a text.
fn eventually(ask: impl Fn() -> (i32, String, String), part: &str) -> (i32, String) {
    let begun = Instant::now();
    loop {
        let (code, out, errors) = ask();
        if out.contains(part) {
            return (code, out);
        }
        assert!(begun.elapsed() < TIMEOUT, "{part:?} is not in {out}{errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_not_ready_rejects_pods_with_every_reason() {
    use client::kind::PODS;
    use serde_json::{Value, json};
    let up = Up::start();
    assert!(up.output.contains("node     node-1 ("), "{}", up.output);
    assert!(up.output.contains("i of memory)") && !up.output.contains("GiB"), "{}", up.output);
    assert!(up.output.contains("export KUBECONFIG="), "{}", up.output);
    let api = up.client();
    let tolerant = json!([{"operator": "Exists"}]);
    let bodies = [
        pod("plain", &json!({})),
        pod("gated", &json!({"schedulingGates": [{"name": "example.com/wait"}]})),
        pod("picky", &json!({"nodeSelector": {"disk": "fast"}, "tolerations": tolerant})),
        pod(
            "claiming",
            &json!({
                "tolerations": tolerant,
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            }),
        ),
        pod(
            "classy",
            &json!({
                "tolerations": tolerant,
                "qosResources": [{"name": "example.com/net", "class": "gold"}],
            }),
        ),
        pod("sound", &json!({"tolerations": tolerant})),
    ];
    for body in bodies {
        // Pods are rejected until the namespace's account is created.
        let begun = Instant::now();
        while let Err(error) = api.create(PODS, "default", &body).await {
            assert!(begun.elapsed() < TIMEOUT, "{error}");
        }
    }
    let explain = |name: &str| up.berth("KUBECONFIG", &["explain", &format!("pod/{name}")]);
    let cases = [
        ("plain", "TaintToleration: node(s) had untolerated taint(s)"),
        ("gated", "SchedulingGates: Scheduling is blocked due to non-empty scheduling gates"),
        ("picky", "node(s) didn't match Pod's node affinity/selector"),
        ("claiming", "persistentvolumeclaim \"data\" not found"),
        ("classy", "node(s) had no QoS class example.com/net=gold"),
    ];
    for (name, reason) in cases {
        let (code, out) = eventually(|| explain(name), reason);
        assert_eq!(code, 3, "{name}: {out}");
        assert!(out.contains("node-1 would refuse it now"), "{name}: {out}");
    }
    // The pod tolerates everything, and is bound to a node that cannot start it.
    let (code, out) =
        eventually(|| explain("default/sound"), "NodeNotReady: the node is not ready");
    assert_eq!(code, 3, "{out}");
    let (code, out, errors) =
        up.berth("BERTH_DATA_DIR", &["explain", "pod", "default/plain", "-o", "json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["nodes"][0]["verdict"]), (3, &json!("refuses")), "{out}{errors}");
    let (code, _, errors) = up.berth("BERTH_DATA_DIR", &["explain", "pod/a/b", "-n", "c"]);
    assert!(code == 2 && errors.contains("two namespaces are given"), "{errors}");
    let (code, out, errors) = up.berth("BERTH_DATA_DIR", &["explain", "node/node-1"]);
    assert!(code == 0 && out.contains("node-1"), "{out}{errors}");

    let (code, out, errors) = up.berth("KUBECONFIG", &["status"]);
    assert!(code == 1 && out.contains("node node-1 is not ready"), "{out}{errors}");
    let to = up.dir.path().join("backup").display().to_string();
    let (code, out, errors) = up.berth("KUBECONFIG", &["backup", &to]);
    assert!(code == 0 && out.contains("Ki") && !out.contains("kB"), "{out}{errors}");
    let (code, out, errors) = up.berth("KUBECONFIG", &["down", "--timeout", "60"]);
    assert_eq!(code, 0, "{out}{errors}");
    let data = up.data().display().to_string();
    let id = up.process.id();
    assert!(out.starts_with(&format!("stopped the node on {data} (process {id}) in ")), "{out}");
    assert!(out.contains("0 running pods were stopped"), "{out}");
    let (code, _, errors) = up.berth("BERTH_DATA_DIR", &["down"]);
    assert!(code == 0 && errors.contains("nothing to stop"), "{errors}");
}
