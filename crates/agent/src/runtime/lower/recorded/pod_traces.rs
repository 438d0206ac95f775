//! Traces of recorded pods (`testdata/golden-node/pods.jsonl.gz`): errors of container creation have equal
//! texts, and the environment that containers printed equals ours.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{UID, node, read, served};
use crate::runtime::lower::tests::{World, texts};
use crate::runtime::lower::{ImageUser, MountedVolume};
use lifecycle::spec::Pod;

/// Returns the world of a recorded pod, with the objects of every namespace.
fn world() -> World {
    let mut world = World::new();
    world.node_env = node();
    world.pod_ips = vec!["<POD_IP>".to_owned()];
    world.image_user = ImageUser { uid: Some(0), name: String::new() };
    let map = [("key1", "value1"), ("key2", "value2"), ("file.conf", "a=1\nb=2\n")];
    let map = map.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    world.configs.config_maps.insert("cm1".to_owned(), map);
    let secret = BTreeMap::from([
        ("user".to_owned(), b"admin".to_vec()),
        ("pass".to_owned(), b"s3cret".to_vec()),
    ]);
    world.configs.secrets.insert("sec1".to_owned(), secret);
    world
}

/// Returns every state of a recorded pod's first container.
fn states(line: &Value) -> impl Iterator<Item = &Value> {
    let snapshots = line["snapshots"].as_array().into_iter().flatten();
    snapshots.filter_map(|snapshot| snapshot.pointer("/status/containerStatuses/0/state"))
}

#[test]
fn config_errors_have_the_kubelets_texts() {
    let mut seen = Vec::new();
    for line in read("pods.jsonl.gz") {
        let is_refused =
            |state: &&Value| state["waiting"]["reason"] == "CreateContainerConfigError";
        let Some(state) = states(&line).find(is_refused) else { continue };
        let expected = state["waiting"]["message"].as_str().unwrap();
        let pod: Pod = serde_json::from_value(served(&line, "lives")).unwrap();
        let mut world = world();
        for volume in &pod.spec.volumes {
            // Mounted, but without a prepared sub-path.
            let host_path = format!("/var/lib/kubelet/pods/{UID}/volumes/{}", volume.name);
            let path = MountedVolume::Path { host_path, read_only: false, relabel: false };
            world.mounted.volumes.insert(volume.name.clone(), path);
        }
        let name = &pod.spec.containers[0].name;
        let text = world.container(&pod, name).unwrap_err().to_string();
        assert_eq!(text, expected, "{}", line["id"]);
        seen.push(line["id"].as_str().unwrap().to_owned());
    }
    assert!(seen.len() >= 6, "{seen:?}");
}

#[test]
fn environment_equals_the_recorded_one() {
    let mut lines = 0;
    for line in read("pods.jsonl.gz") {
        if !["cm-envfrom-mixed", "downward-env-cni"].iter().any(|id| line["id"] == *id) {
            continue;
        }
        let printed = states(&line).find_map(|state| state["terminated"]["message"].as_str());
        let pod: Pod = serde_json::from_value(served(&line, "lives")).unwrap();
        let config = world().container(&pod, "c").unwrap();
        let ours = texts(&config).join("\n");
        for text in printed.unwrap().lines() {
            assert!(ours.lines().any(|ours| ours == text), "{}: {text}\n{ours}", line["id"]);
            lines += 1;
        }
    }
    assert_eq!(lines, 4 + 11);
}
