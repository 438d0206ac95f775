//! Classes of a file, enforced by `berth class-layer` between the agent and containerd.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use client::PatchKind;
use client::kind::{NODES, PODS};
use cri::v1;
use objects::KubeletConfig;
use rig::Containerd;
use serde_json::{Value, json};

use crate::support::{Berth, SLEEP, phase, pod, until};

/// Two resources that the kernel enforces on any machine.
const CLASSES: &str = "\
apiVersion: berth.dev/v1alpha1
kind: ClassFile
resources:
- name: example.com/files
  mutable: true
  classes:
  - {name: few, capacity: 1, rlimits: [{type: RLIMIT_NOFILE, soft: 100, hard: 200}]}
  - {name: some, rlimits: [{type: RLIMIT_NOFILE, soft: 150, hard: 200}]}
- name: example.com/latency
  classes:
  - {name: batch, scheduling: {policy: SCHED_BATCH, nice: 5}}
";

/// A `berth class-layer` over a containerd.
struct Layer {
    process: Child,
    runtime: String,
    directory: PathBuf,
}

impl Layer {
    fn start(containerd: &Containerd) -> Layer {
        let directory = containerd.directory().to_owned();
        std::fs::write(directory.join("classes.yaml"), CLASSES).unwrap();
        let runtime = containerd.endpoint();
        let process = Layer::spawn(&directory, &runtime);
        Layer { process, runtime, directory }
    }

    fn spawn(directory: &Path, runtime: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["class-layer", "--runtime", runtime, "--listen", &Layer::endpoint(directory)])
            .arg("--classes")
            .arg(directory.join("classes.yaml"))
            .arg("--state-dir")
            .arg(directory.join("class-layer"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn endpoint(directory: &Path) -> String {
        format!("unix://{}", directory.join("class-layer.sock").display())
    }

    /// Ends the layer as kill -9 does and starts it again.
    fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Layer::spawn(&self.directory, &self.runtime);
    }

    fn write_classes(&self, text: &str) {
        std::fs::write(self.directory.join("classes.yaml"), text).unwrap();
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn start() -> (Berth, Layer) {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let layer = Layer::start(&containerd);
    let runtime = cri::Endpoint::parse(&Layer::endpoint(&layer.directory)).unwrap();
    let gate = |config: &mut KubeletConfig| {
        config.feature_gates.set_named("QOSResources", true).unwrap();
    };
    (Berth::over(containerd, runtime, gate).await, layer)
}

fn with_classes(name: &str, classes: &[(&str, &str)]) -> Value {
    let mut pod = pod(name, SLEEP);
    pod["spec"]["containers"][0]["resources"] = json!({"qosResources": requests(classes)});
    pod
}

fn requests(classes: &[(&str, &str)]) -> Value {
    classes.iter().map(|(name, class)| json!({"name": name, "class": class})).collect()
}

async fn advertised(berth: &Berth, is: impl Fn(&Value) -> bool) {
    until("the advertised classes", async || {
        // The node may not exist yet.
        let node: Value = berth.api.get(NODES, "", "node-1").await.ok()?;
        is(&node["status"]["qosResources"]["containerQOSResources"]).then_some(())
    })
    .await;
}

/// Returns the first process of a pod's container, as containerd reports it.
async fn process(berth: &Berth, name: &str) -> u32 {
    let pod = berth.get(name).await.unwrap();
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned();
    let id = id.split_once("://").unwrap().1.to_owned();
    let client = cri::Client::new(cri::Endpoint::parse(&berth.containerd.endpoint()).unwrap());
    let request = v1::ContainerStatusRequest { container_id: id, verbose: true };
    let info = client.call(request).await.unwrap().info;
    let info: Value = serde_json::from_str(&info["info"]).unwrap();
    info["pid"].as_u64().unwrap().try_into().unwrap()
}

/// Returns the soft and hard limit of open files.
fn open_files(pid: u32) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut words = line.split_ascii_whitespace().skip(3).map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

/// Returns the nice value and the scheduling policy.
fn scheduling(pid: u32) -> (i32, u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    // Fields 19 and 41; the first one after the name is field 3.
    (fields[16].parse().unwrap(), fields[38].parse().unwrap())
}

const SCHED_BATCH: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn classes_of_a_file_are_advertised_enforced_counted_and_changed() {
    let (mut berth, mut layer) = start().await;
    let offered = json!([
        {"name": "example.com/files", "mutable": true,
         "classes": [{"name": "few", "capacity": 1}, {"name": "some"}]},
        {"name": "example.com/latency", "classes": [{"name": "batch"}]},
    ]);
    advertised(&berth, |found| *found == offered).await;

    let classes = [("example.com/files", "few"), ("example.com/latency", "batch")];
    berth.create(with_classes("a", &classes)).await;
    berth.until("a", |pod| phase(pod) == "Running").await;
    let pid = process(&berth, "a").await;
    assert_eq!(open_files(pid), ("100".to_owned(), "200".to_owned()));
    assert_eq!(scheduling(pid), (5, SCHED_BATCH));
    // The class has a capacity of one.
    berth.create(with_classes("b", &[("example.com/files", "few")])).await;
    berth.until("b", |pod| phase(pod) == "Failed").await;

    let patch = json!({"spec": {"containers": [{"name": "c", "resources": {
        "qosResources": requests(&[("example.com/files", "some"), ("example.com/latency", "batch")]),
    }}]}});
    let kind = PatchKind::StrategicMerge;
    berth.api.patch_subresource(PODS, "test", "a", "resize", kind, &patch).await.unwrap();
    let some = ("150".to_owned(), "200".to_owned());
    until("the other class", async || (open_files(pid) == some).then_some(())).await;

    // The changed class stays after a kill of the layer, and new pods start.
    layer.kill_and_restart();
    berth.create(with_classes("c", &[("example.com/files", "few")])).await;
    berth.until("c", |pod| phase(pod) == "Running").await;
    assert_eq!(open_files(process(&berth, "c").await).0, "100");
    assert_eq!(open_files(pid), some);
    for name in ["a", "b", "c"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_class_file_is_read_again_unless_it_has_an_error() {
    let (mut berth, layer) = start().await;
    let names = |found: &Value| -> Vec<String> {
        let resources = found.as_array().into_iter().flatten();
        resources.filter_map(|resource| Some(resource["name"].as_str()?.to_owned())).collect()
    };
    advertised(&berth, |found| names(found) == ["example.com/files", "example.com/latency"]).await;
    layer.write_classes("kind: ClassFile\nresources: 5\n");
    let more =
        format!("{CLASSES}- name: example.com/more\n  classes: [{{name: x, memory: {{}}}}]\n");
    let more = more.replace("memory: {}", "scheduling: {policy: SCHED_IDLE}");
    layer.write_classes(&more);
    advertised(&berth, |found| {
        names(found) == ["example.com/files", "example.com/latency", "example.com/more"]
    })
    .await;
    berth.end().await;
}

#[test]
fn class_file_with_errors_is_refused_with_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("classes.yaml");
    std::fs::write(&file, CLASSES.replace("soft: 100", "soft: many")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args([
            "class-layer",
            "--runtime",
            "unix:///none.sock",
            "--listen",
            "unix:///none-either.sock",
        ])
        .arg("--classes")
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    let place = format!("{}: line 7, column ", file.display());
    let field = "resources[0].classes[0].rlimits[0].soft: expected a whole number";
    assert!(text.contains(&place) && text.contains(field), "{text}");
}
