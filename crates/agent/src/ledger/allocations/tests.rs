//! Tests with files that a kubelet wrote, and of restarts.

use serde_json::{Value, json};

use super::*;
use rig::golden_node::lines;

#[test]
fn kubelet_files_are_read_and_rewritten_byte_for_byte() {
    let all = lines("node.jsonl.gz");
    let line = all.iter().find(|line| line["id"] == "state-files-policy-none").unwrap();
    let mut text = line["with_pods"]["allocated_pods_state"].as_str().unwrap().to_owned();
    for (name, uid) in line["uids"].as_object().unwrap() {
        text = text.replace(&format!("<UID:{name}>"), uid.as_str().unwrap());
    }
    let entries = parse(text.as_bytes()).unwrap();
    assert_eq!(entries.len(), 10);
    let uid = line["uids"]["cg-podlevel"].as_str().unwrap();
    let level = entries[uid].pod_level_resources.as_ref().unwrap();
    assert_eq!(level.limits[CPU].milli_value(), 120);
    assert_eq!(render(entries), text);
    let wrong = text.replace("128Mi", "129Mi");
    let error = parse(wrong.as_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::Checksum { .. }), "{error}");
}

#[test]
fn pods_of_a_kubelet_are_actuated_and_files_stay_unchanged() {
    let all = lines("node.jsonl.gz");
    let line = all.iter().find(|line| line["id"] == "state-files-policy-none").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let recorded = FILES.map(|file| {
        let checkpoint: Checkpoint =
            serde_json::from_str(line["with_pods"][file].as_str().unwrap()).unwrap();
        let data: Data = serde_json::from_str(&checkpoint.data).unwrap();
        let mut entries = data.entries;
        // The second file also has deleted pods, whose UIDs were not recorded.
        entries.retain(|uid, _| uid != "<UID>");
        let text = render(entries);
        fs::write(directory.path().join(file), &text).unwrap();
        text
    });
    assert_ne!(recorded[0], recorded[1]);
    let (allocations, unusable) = Allocations::open(directory.path()).unwrap();
    assert_eq!(unusable, []);
    assert_eq!(allocations.actuated, Entries::new());
    for (which, file) in FILES.iter().enumerate() {
        allocations.save(which).unwrap();
        let written = fs::read_to_string(directory.path().join(file)).unwrap();
        assert_eq!(written, recorded[which], "{file}");
    }
}

fn pod(cpu: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": "u"},
        "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}}},
            {"name": "b", "resources": {"limits": {"cpu": "1"}}},
        ]},
    }))
    .unwrap()
}

#[test]
fn actuated_resources_are_kept_until_they_equal_the_allocated_ones() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Allocations::open(directory.path()).unwrap();
    let (mut allocations, unusable) = open();
    assert_eq!(unusable, []);
    let (old, new) = (PodAllocation::of(&pod("100m")), PodAllocation::of(&pod("200m")));
    allocations.allocate("u", old.clone()).unwrap();
    assert_eq!(open().0.actuated("u"), None);
    allocations.allocate("u", new.clone()).unwrap();
    let (mut allocations, _) = open();
    assert_eq!(allocations.allocated("u"), Some(&new));
    assert_eq!(allocations.actuated("u"), Some(&old));
    assert_eq!(old.put(&pod("1")), pod("100m"));
    // Allocate the old resources again before the new ones were actuated.
    allocations.allocate("u", old).unwrap();
    assert_eq!(open().0.actuated("u"), None);
    allocations.allocate("u", new.clone()).unwrap();
    let given = |of: &PodAllocation, name: &str| of.container_resources[name].clone();
    assert!(!allocations.actuate("u", "b", given(&new, "b")).unwrap());
    assert!(allocations.actuate("u", "a", given(&new, "a")).unwrap());
    assert_eq!(open().0.actuated("u"), None);
    allocations.forget("u").unwrap();
    assert_eq!(open().0.allocated("u"), None);
}

/// A kubelet that takes over the node restarts containers that are missing in the second file.
#[test]
fn actuated_resources_of_every_pod_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut allocations, _) = Allocations::open(directory.path()).unwrap();
    let files = || FILES.map(|file| fs::read(directory.path().join(file)).unwrap());
    allocations.allocate("u", PodAllocation::of(&pod("100m"))).unwrap();
    allocations.allocate("v", PodAllocation::of(&pod("100m"))).unwrap();
    let [allocated, actuated] = files();
    assert_eq!(allocated, actuated);
    assert_eq!(parse(&actuated).unwrap().len(), 2);
    allocations.allocate("u", PodAllocation::of(&pod("200m"))).unwrap();
    let of = |text: &[u8], uid: &str| parse(text).unwrap()[uid].clone();
    let [allocated, actuated] = files();
    assert_eq!(of(&allocated, "u"), PodAllocation::of(&pod("200m")));
    assert_eq!(of(&actuated, "u"), PodAllocation::of(&pod("100m")));
    allocations.forget("u").unwrap();
    let [allocated, actuated] = files();
    assert_eq!(allocated, actuated);
}

#[test]
fn volume_limits_of_a_kubelet_are_preserved() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Some(json!({"cache": "1Gi"}));
    let given = |cpu: &str| PodAllocation {
        empty_dir_volume_limits: limits.clone(),
        ..PodAllocation::of(&pod(cpu))
    };
    let text = render([("u".to_owned(), given("100m"))].into());
    fs::write(directory.path().join(FILES[0]), text).unwrap();
    let (mut allocations, _) = Allocations::open(directory.path()).unwrap();
    allocations.allocate("u", PodAllocation::of(&pod("200m"))).unwrap();
    assert_eq!(allocations.allocated("u"), Some(&given("200m")));
}

#[test]
fn unusable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILES[1]), "{}").unwrap();
    let (_, unusable) = Allocations::open(directory.path()).unwrap();
    assert_eq!(unusable.len(), 1);
    assert!(unusable[0].to_string().contains("actuated_pods_state"), "{}", unusable[0]);
}

#[test]
fn only_resizable_resources_are_compared() {
    let given = |limits: Value| AllocatedResources {
        limits: serde_json::from_value(limits).unwrap(),
        ..AllocatedResources::default()
    };
    let table = [
        (json!({}), json!({"cpu": "0"}), true),
        (json!({"cpu": "1"}), json!({"cpu": "1000m"}), true),
        (json!({"cpu": "1"}), json!({}), false),
        (json!({"memory": "1Mi"}), json!({"memory": "2Mi"}), false),
        (json!({"ephemeral-storage": "1Mi"}), json!({}), true),
    ];
    for (one, other, expected) in table {
        assert_eq!(given(one.clone()).agrees(&given(other.clone())), expected, "{one} {other}");
    }
}

/// A worker may still actuate the old allocation when the pod is allocated other resources.
#[test]
fn late_actuation_does_not_confirm_a_newer_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let (mut allocations, _) = Allocations::open(directory.path()).unwrap();
    let whole = |cpu: &str| PodAllocation {
        pod_level_resources: Some(AllocatedResources {
            limits: serde_json::from_value(json!({"cpu": cpu})).unwrap(),
            ..AllocatedResources::default()
        }),
        ..PodAllocation::default()
    };
    allocations.allocate("u", whole("1")).unwrap();
    allocations.allocate("u", whole("2")).unwrap();
    assert!(!allocations.actuate_pod("u", whole("1").pod_level_resources).unwrap());
    assert_eq!(allocations.actuated("u"), Some(&whole("1")));
    assert!(allocations.actuate_pod("u", whole("2").pod_level_resources).unwrap());
    assert_eq!(allocations.actuated("u"), None);
}
