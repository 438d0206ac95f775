//! Limits of cgroups compared with the recorded kubelet's, and cgroups in a directory.

#![allow(clippy::needless_pass_by_value, reason = "`json!` makes values")]

use serde_json::{Value, json};

use super::*;
use crate::runtime::lower::ContainerAffinity;
use crate::runtime::lower::tests::World;
use rig::golden_node::{defaulted, lines};

fn pod(spec: Value) -> Pod {
    let metadata = json!({"name": "p", "namespace": "lives", "uid": "u-1"});
    let object = defaulted(&json!({"metadata": metadata, "spec": spec}));
    serde_json::from_value(object).unwrap()
}

/// Returns the files of cgroup v1 in the form of the recording.
fn shown(limits: &Limits) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut put = |file: &str, value: Option<String>| {
        files.extend(value.map(|value| (file.to_owned(), value)));
    };
    put("cpu.shares", limits.cpu_shares.map(|shares| shares.to_string()));
    put("memory.limit_in_bytes", limits.memory.map(|bound| bound.to_string()));
    put("pids.max", limits.pids.map(|bound| bound.to_string()));
    put("cpu.cfs_period_us", limits.cpu_quota.map(|quota| quota.period.to_string()));
    put(
        "cpu.cfs_quota_us",
        limits.cpu_quota.map(|quota| match quota.time {
            Bound::Max => "-1".to_owned(),
            time => time.to_string(),
        }),
    );
    files
}

/// Returns the pods of the recording by name. It does not record which containers were init containers.
fn recorded_pods(line: &Value) -> BTreeMap<String, Pod> {
    let of_one = |(name, of): (&String, &Value)| {
        let containers = of["containers"].as_array().unwrap().clone();
        let (mut init, mut app) = (Vec::new(), Vec::new());
        for mut container in containers {
            match container["name"].as_str().unwrap() {
                "i" => init.push(container),
                "side" => {
                    container["restartPolicy"] = "Always".into();
                    init.push(container);
                }
                _ => app.push(container),
            }
        }
        let mut spec = json!({"initContainers": init, "containers": app});
        if of["resources"].is_object() {
            spec["resources"] = of["resources"].clone();
        }
        (name.clone(), pod(spec))
    };
    line["pods"].as_object().unwrap().iter().map(of_one).collect()
}

#[test]
fn limits_of_every_cgroup_equal_the_kubelets() {
    let recorded = lines("node.jsonl.gz");
    let line = recorded.iter().find(|line| line["kind"] == "cgroups").unwrap();
    let world = World::new();
    let pods = recorded_pods(line);
    let check = |path: &str, limits: &Limits| {
        let theirs = line["cgroups"][path].as_object().unwrap_or_else(|| panic!("no {path}"));
        for (file, value) in shown(limits) {
            assert_eq!(theirs[&file], json!(value), "{path}: {file}");
        }
    };
    for (name, pod) in &pods {
        let level = match qos::class(pod) {
            QosClass::Guaranteed => "",
            QosClass::Burstable => "/burstable",
            QosClass::BestEffort => "/besteffort",
        };
        let limits = of_pod(&world.input(pod), None);
        assert_eq!(shown(&limits).len(), 5);
        check(&format!("/kubepods{level}/pod<UID:{name}>"), &limits);
    }
    assert!(pods.len() >= 10);
    check("/kubepods/burstable", &of_class(&world.node_env, QosClass::Burstable, pods.values()));
    check("/kubepods/besteffort", &of_class(&world.node_env, QosClass::BestEffort, pods.values()));
    let amounts = [("cpu", "1700m"), ("memory", "24170416Ki")]
        .map(|(name, amount)| (name.to_owned(), Quantity::parse(amount).unwrap()));
    check("/kubepods", &of_all_pods(&world.node_env, &amounts.into(), Some(32768)));
}

#[test]
fn exclusive_cpus_and_missing_limits_remove_the_quota() {
    let mut world = World::new();
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    let pinned = pod(json!({"containers": [
        {"name": "c", "resources": {"limits": amounts, "requests": amounts}}]}));
    let time = |world: &World| of_pod(&world.input(&pinned), None).cpu_quota.unwrap().time;
    assert_eq!(time(&world), Bound::At(100_000));
    world.affinities.insert(
        "c".to_owned(),
        ContainerAffinity { exclusive: true, ..ContainerAffinity::default() },
    );
    assert_eq!(time(&world), Bound::Max);
    world.node_env.cpu_quota_period = None;
    assert_eq!(of_pod(&world.input(&pinned), Some(7)).cpu_quota, None);
    assert_eq!(of_pod(&world.input(&pinned), Some(7)).pids, Some(Bound::At(7)));
}

#[test]
fn huge_pages_without_a_request_are_limited_to_zero() {
    let world = World::new();
    let amounts = json!({"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"});
    let pod = pod(json!({"containers": [
        {"name": "c", "resources": {"limits": amounts, "requests": amounts}}]}));
    let limits = of_pod(&world.input(&pod), None);
    let expected = [("1GB".to_owned(), Bound::At(0)), ("2MB".to_owned(), Bound::At(4 << 20))];
    assert_eq!(limits.huge_pages, expected.into());
    let class = of_class(&world.node_env, QosClass::Burstable, [&pod]);
    assert!(class.huge_pages.values().all(|bound| *bound == Bound::Max));
    assert_eq!(class.huge_pages.len(), 2);
}

#[test]
fn requested_memory_is_protected_only_with_gate_and_v2() {
    let mut world = World::new();
    let pod =
        pod(json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "4Ki"}}}]}));
    let unified = |world: &World| of_pod(&world.input(&pod), None).unified;
    world.node_env.memory_throttling = Some(0.9);
    assert_eq!(unified(&world), BTreeMap::new());
    world.node_env.cgroups.version = CgroupVersion::V2;
    assert_eq!(unified(&world), [("memory.min".to_owned(), "4096".to_owned())].into());
    world.node_env.memory_throttling = None;
    assert_eq!(unified(&world), BTreeMap::new());
}

#[test]
fn pods_are_found_and_removed_in_every_class() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("cgroup");
    for name in ["pod-a", "burstable/podb-1", "besteffort/podc-1/container", "other"] {
        std::fs::create_dir_all(root.join("kubepods").join(name)).unwrap();
    }
    let shown = root.to_str().unwrap().replace('\\', "\\134").replace(' ', "\\040");
    let mounts = format!("1 1 0:1 / {shown} rw - cgroup2 cgroup2 rw\n");
    let cgroups = Cgroups::mounted(&mounts, directory.path()).unwrap();
    let pods = PodCgroups::new(cgroups, World::new().node_env.cgroups);
    let uids = || pods.pods().unwrap().into_keys().collect::<Vec<_>>();
    assert_eq!(uids(), ["-a", "b-1", "c-1"]);
    assert_eq!(pods.pods().unwrap()["c-1"], "/kubepods/besteffort/podc-1");
    pods.remove_pod("c-1").unwrap();
    pods.remove_pod("b-1").unwrap();
    assert_eq!(uids(), ["-a"]);
    assert!(root.join("kubepods/other").is_dir());
}
