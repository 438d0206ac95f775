//! Recorded nodes of the kubelet are reproduced from the same machine and configuration.

use objects::kubelet_config;
use serde_json::json;

use super::runtime::Runtime;
use super::*;
use crate::observability::events::AgentEvent;
use crate::test_machine::machine;
use rig::golden_node::lines;

const FILE: &str = "node.jsonl.gz";
const TIME: &str = "<TIME>";
const MEMORY: u64 = 24_682_416 << 10;
const STORAGE: u64 = 270_553_174_016;

/// Returns the recorded configuration with these fields changed.
fn config(other: &Value) -> KubeletConfig {
    let mut file = json!({
        "apiVersion": kubelet_config::API_VERSION,
        "kind": kubelet_config::KIND,
        "systemReserved": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
        "kubeReserved": {"cpu": "200m", "memory": "300Mi", "ephemeral-storage": "2Gi"},
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi",
        },
        "maxPods": 150,
        "port": 23250,
    });
    for (field, value) in other.as_object().into_iter().flatten() {
        match (file.get_mut(field).and_then(Value::as_object_mut), value.as_object()) {
            (Some(map), Some(more)) => map.extend(more.clone()),
            _ => file[field] = value.clone(),
        }
    }
    kubelet_config::read(&file.to_string()).unwrap().0
}

pub(super) fn described(other: &Value) -> (Description, Observation) {
    let config = config(other);
    let settings = Settings::of(&config).unwrap();
    let machine = machine(OsName::Linux, 2, &[MEMORY]);
    let ledger =
        placement::configured::Configured::new(&machine, &config).unwrap().node.empty_ledger();
    let report = NodeReport::new(&machine, &config, ledger).unwrap();
    let identity = Identity {
        hostname: "node-1".to_owned(),
        machine_id: "<MACHINE_ID>".to_owned(),
        system_uuid: "<SYSTEM_UUID>".to_owned(),
        boot_id: "<BOOT_ID>".to_owned(),
        kernel_version: "<KERNEL_VERSION>".to_owned(),
        os_image: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        in_user_namespace: false,
    };
    let description = Description {
        name: "node-1".to_owned(),
        hostname: "node-1".to_owned(),
        os: OsName::Linux,
        architecture: "amd64".to_owned(),
        identity,
        addresses: vec!["192.0.2.7".parse().unwrap()],
        labels: BTreeMap::new(),
        version: "v0.0.0-master+$Format:%H$".to_owned(),
        declared_features: Vec::new(),
        huge_page_sizes: vec![2 << 20, 1 << 30],
        config,
        settings,
    };
    let fine = cri::Condition { status: true, ..cri::Condition::default() };
    let runtime = Runtime {
        name: "containerd".to_owned(),
        version: "1.6.20".to_owned(),
        ready: fine.clone(),
        network: fine,
        handlers: Vec::new(),
        tells_features: false,
        supplemental_groups_policy: false,
        classes: None,
    };
    let observation = Observation {
        memory: Memory { total: MEMORY, ..Memory::default() },
        storage: STORAGE,
        runtime: RuntimeHealth::Seen(Arc::new(runtime)),
        images: Arc::default(),
        pressure: Pressure::default(),
        report: Arc::new(report),
        devices: BTreeMap::new(),
    };
    (description, observation)
}

/// Returns the images of a recorded status.
fn images(list_value: &Value) -> Vec<Image> {
    let read = |image: &Value| {
        let names = list(&image["names"]).iter().map(|name| name.as_str().unwrap().to_owned());
        let (digests, tags) = names.partition(|name| name.contains('@'));
        Image { digests, tags, bytes: image["sizeBytes"].as_u64().unwrap(), ..Image::default() }
    };
    list(list_value).iter().rev().map(read).collect()
}

fn without_runtime_network(now: &mut Observation) {
    if let RuntimeHealth::Seen(runtime) = &mut now.runtime {
        Arc::make_mut(runtime).network = cri::Condition {
            status: false,
            reason: "NetworkPluginNotReady".to_owned(),
            message: "Network plugin returns error: cni plugin not initialized".to_owned(),
        };
    }
}

#[test]
fn recorded_nodes_come_out_the_same() {
    let mut seen = 0;
    for line in lines(FILE).iter().filter(|line| line["kind"] == "node") {
        let mut expected = line["object"].clone();
        let (mut description, mut now) = described(&Value::Null);
        let recorded = &expected["status"];
        description.declared_features =
            serde_json::from_value(recorded["declaredFeatures"].clone()).unwrap();
        now.images = Arc::new(images(&recorded["images"]));
        if line["id"] == "node-registered-not-ready" {
            without_runtime_network(&mut now);
        }
        let mut node = object(&description, &now);
        node["status"] = status(&description, &now);
        let problems = now.runtime.problems();
        let conditions = conditions(&Value::Null, now.pressure, &problems, TIME, true);
        node["status"]["conditions"] = conditions.conditions.into();

        // Berth's own annotations.
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        let ours = annotations.len();
        annotations.retain(|name, _| !name.starts_with("berth.dev/"));
        assert_eq!(ours, annotations.len() + placement::report::ANNOTATIONS.len());
        // Set by the server.
        for field in ["creationTimestamp", "uid"] {
            expected["metadata"].as_object_mut().unwrap().remove(field).unwrap();
        }
        let text = expected.to_string().replace("<NODE_IP>", "192.0.2.7");
        let text = text.replace("<NODE_ALLOCATABLE_MEMORY>", "24068016Ki");
        let expected: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(node, expected, "{}", line["id"]);
        seen += 1;
    }
    assert_eq!(seen, 2);
}

/// Returns how configuration and machine differed in a recorded trace.
fn otherwise(id: &str) -> (Value, Pressure) {
    let none = Pressure::default();
    match id {
        "kubelet-restart" | "runtime-restart" => (Value::Null, none),
        "memory-pressure" => (
            json!({"evictionHard": {"memory.available": "23Gi"}}),
            Pressure { memory: true, ..none },
        ),
        "disk-pressure" => (
            json!({"evictionHard": {"nodefs.available": "200Gi"}}),
            Pressure { disk: true, ..none },
        ),
        "pid-pressure" => {
            (json!({"evictionHard": {"pid.available": "32700"}}), Pressure { pids: true, ..none })
        }
        "node-after-device-plugin-left" => {
            let more = json!({
                "cpuManagerPolicy": "static",
                "reservedSystemCPUs": "0",
                "memoryManagerPolicy": "Static",
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "600Mi"}}],
                "topologyManagerPolicy": "single-numa-node",
                "maxPods": 110,
            });
            (more, none)
        }
        other => panic!("{other} is new"),
    }
}

#[test]
fn recorded_lives_of_nodes_come_out_the_same() {
    let mut seen = 0;
    for line in lines(FILE).iter().filter(|line| line["kind"] == "node-life") {
        let id = line["id"].as_str().unwrap();
        let (other, pressure) = otherwise(id);
        let (description, mut now) = described(&other);
        now.pressure = pressure;
        // The kubelet was restarted, except where the runtime was.
        let mut first = id != "runtime-restart" && id != "node-after-device-plugin-left";
        let well = conditions(&Value::Null, Pressure::default(), &[], TIME, false);
        let mut before = Value::from(well.conditions);
        let mut changes = Vec::new();
        for snapshot in list(&line["snapshots"]) {
            let down = list(&snapshot["conditions"])
                .iter()
                .any(|condition| condition["message"] == "container runtime is down");
            now.devices = devices(snapshot);
            let runtime = if down { RuntimeHealth::Down } else { now.runtime.clone() };
            let problems = runtime.problems();
            let after = conditions(&before, now.pressure, &problems, TIME, first);
            let mut status = status(&description, &now);
            let mut expected = snapshot.clone();
            let text = expected["allocatable"].to_string();
            let text = text.replace("<NODE_ALLOCATABLE_MEMORY>", "24068016Ki");
            expected["allocatable"] = serde_json::from_str(&text).unwrap();
            for field in ["capacity", "allocatable"] {
                assert_eq!(status[field].take(), expected[field], "{id}: {field}");
            }
            let mut conditions = Value::from(after.conditions.clone());
            for condition in conditions.as_array_mut().unwrap() {
                let condition = condition.as_object_mut().unwrap();
                condition.retain(|field, _| !field.starts_with("last"));
            }
            assert_eq!(conditions, expected["conditions"], "{id}");
            changes.extend(after.changes);
            before = after.conditions.into();
            first = false;
            seen += 1;
        }
        let name = "node-1".to_owned();
        let mut changes: Vec<String> = changes
            .into_iter()
            .map(|is| AgentEvent::Node { name: name.clone(), is }.to_string())
            .collect();
        let events = list(&line["events"]).iter().map(|event| event["message"].as_str().unwrap());
        let mut expected: Vec<&str> =
            events.filter(|message| message.starts_with("Node node-1 status")).collect();
        changes.sort();
        expected.sort_unstable();
        assert_eq!(changes, expected, "{id}");
    }
    assert!(seen >= 8, "only {seen} states of nodes were recorded");
}

/// Devices of plugins, whose amounts are taken from the recording.
fn devices(snapshot: &Value) -> BTreeMap<String, Devices> {
    let all = snapshot["capacity"].as_object().unwrap();
    let amount = |text: &Value| text.as_str().unwrap().parse().unwrap();
    let devices = all.iter().filter(|(name, _)| name.contains('/')).map(|(name, all)| {
        let healthy = amount(&snapshot["allocatable"][name]);
        (name.clone(), Devices { all: amount(all), healthy })
    });
    devices.collect()
}

#[test]
fn recorded_leases_come_out_the_same() {
    let time = objects::timestamp::Timestamp::new(0, 0);
    let mut seen = 0;
    for line in lines(FILE).iter().filter(|line| line["lease_spec"].is_object()) {
        let mut lease = super::lease::renewed(None, "node-1", "u", 40, time);
        assert!(objects::timestamp::is_micro_time(lease["spec"]["renewTime"].as_str().unwrap()));
        lease["spec"]["renewTime"] = TIME.into();
        assert_eq!(lease["spec"], line["lease_spec"]);
        let mut owner = lease["metadata"]["ownerReferences"].take();
        owner[0].as_object_mut().unwrap().remove("uid");
        assert_eq!(owner, line["lease_owner"]);
        seen += 1;
    }
    assert!(seen > 0);
}
