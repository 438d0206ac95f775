//! Tables, and the recorded evictions.

use serde_json::{Value, json};

use super::*;
use crate::spec::Pod;
use rig::golden_node::lines;

const MI: u64 = 1 << 20;

fn config(fields: &Value) -> KubeletConfig {
    let mut file = json!({
        "apiVersion": objects::kubelet_config::API_VERSION,
        "kind": objects::kubelet_config::KIND,
    });
    for (name, value) in fields.as_object().unwrap() {
        file[name] = value.clone();
    }
    objects::kubelet_config::read(&file.to_string()).unwrap().0
}

fn eviction(fields: &Value) -> Eviction {
    let limits = limits(&config(fields), OsName::Linux);
    Eviction::new(limits, Duration::from_secs(300), false)
}

fn amounts(of: &[(EvictionSignal, u64, u64)]) -> SignalObservations {
    let amount =
        |&(signal, available, capacity)| (signal, SignalObservation { available, capacity });
    of.iter().map(amount).collect()
}

fn memory(available: u64) -> SignalObservations {
    amounts(&[(EvictionSignal::MemoryAvailable, available * MI, 1000 * MI)])
}

#[test]
fn a_hard_threshold_acts_at_once_and_its_pressure_lasts() {
    let mut eviction = eviction(&json!({"evictionHard": {"memory.available": "100Mi"}}));
    let calm = eviction.assess(&memory(100), 0);
    assert_eq!(calm, Assessment { pressure: Pressure::default(), reclaim: None });
    let short = eviction.assess(&memory(99), 1_000);
    assert!(short.pressure.memory && !short.pressure.disk);
    let reclaim = short.reclaim.unwrap();
    assert_eq!((reclaim.resource, reclaim.hard, reclaim.collect_garbage), ("memory", true, false));
    let after = eviction.assess(&memory(500), 2_000);
    assert_eq!((after.pressure.memory, after.reclaim), (true, None));
    assert!(eviction.assess(&memory(500), 301_000).pressure.memory);
    assert!(!eviction.assess(&memory(500), 301_001).pressure.memory);
}

#[test]
fn a_soft_limit_acts_when_it_has_lasted() {
    let mut eviction = eviction(&json!({
        "evictionHard": {"memory.available": "10Mi"},
        "evictionSoft": {"memory.available": "200Mi"},
        "evictionSoftGracePeriod": {"memory.available": "30s"},
    }));
    let first = eviction.assess(&memory(150), 0);
    assert_eq!((first.pressure.memory, first.reclaim), (true, None));
    assert_eq!(eviction.assess(&memory(150), 29_999).reclaim, None);
    // One measurement above the threshold restarts the grace period.
    assert_eq!(eviction.assess(&memory(300), 30_000).reclaim, None);
    assert_eq!(eviction.assess(&memory(150), 31_000).reclaim, None);
    let lasted = eviction.assess(&memory(150), 61_000).reclaim.unwrap();
    assert!(!lasted.hard);
}

#[test]
fn once_begun_reclaiming_goes_on_until_there_is_enough() {
    let mut eviction = eviction(&json!({
        "evictionHard": {"memory.available": "100Mi"},
        "evictionMinimumReclaim": {"memory.available": "50Mi"},
    }));
    assert_eq!(eviction.assess(&memory(120), 0).reclaim, None);
    assert!(eviction.assess(&memory(90), 1).reclaim.is_some());
    assert!(eviction.assess(&memory(120), 2).reclaim.is_some());
    assert_eq!(eviction.assess(&memory(150), 3).reclaim, None);
    assert_eq!(eviction.assess(&memory(120), 4).reclaim, None);
}

#[test]
fn memory_comes_before_disks_and_disks_begin_with_garbage() {
    let hard = json!({"evictionHard": {
        "nodefs.available": "10%", "nodefs.inodesFree": "5%", "memory.available": "100Mi",
        "pid.available": "100",
    }});
    let mut eviction = eviction(&hard);
    let disk = (EvictionSignal::NodefsAvailable, 9 * MI, 100 * MI);
    let low = (EvictionSignal::MemoryAvailable, MI, 1000 * MI);
    let reclaim = eviction.assess(&amounts(&[disk, low]), 0).reclaim.unwrap();
    assert_eq!(reclaim.resource, "memory");
    let reclaim = eviction.assess(&amounts(&[disk]), 1).reclaim.unwrap();
    assert_eq!((reclaim.resource, reclaim.collect_garbage), ("ephemeral-storage", true));
    let inodes = (EvictionSignal::NodefsInodesFree, 4, 100);
    let reclaim = eviction.assess(&amounts(&[inodes]), 2).reclaim.unwrap();
    assert_eq!(reclaim.resource, "inodes");
    let pids = (EvictionSignal::PidAvailable, 99, 32_768);
    let assessment = eviction.assess(&amounts(&[pids]), 3);
    assert_eq!(assessment.reclaim.unwrap().resource, "pids");
    assert!(assessment.pressure.pids && assessment.pressure.disk);
}

#[test]
fn pods_together_have_a_limit_where_it_is_enforced() {
    let signals = |fields: Value| -> Vec<EvictionSignal> {
        let limits = limits(&config(&fields), OsName::Linux);
        limits.into_iter().map(|limit| limit.signal).collect()
    };
    let hard = json!({"memory.available": "100Mi"});
    let both = [EvictionSignal::MemoryAvailable, EvictionSignal::AllocatableMemoryAvailable];
    assert_eq!(signals(json!({"evictionHard": hard})), both);
    let none = json!({"evictionHard": hard, "enforceNodeAllocatable": ["none"]});
    assert_eq!(signals(none), both[..1]);
    assert_eq!(signals(json!({"evictionHard": {"memory.available": "0%"}})), []);
}

fn pod(name: &str, priority: i32, request: &str) -> Pod {
    let value = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {
            "priority": priority,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "resources": {"requests": {
                "memory": request, "ephemeral-storage": request,
            }}}],
        },
    });
    serde_json::from_value(value).unwrap()
}

fn using(pod: &Pod, mib: u64) -> PodUsage<'_> {
    let bytes = mib * MI;
    let container = ContainerUsage {
        name: "c".to_owned(),
        memory: bytes,
        writable: Disk { bytes, inodes: mib },
        ..ContainerUsage::default()
    };
    let usage =
        Usage { memory: bytes, processes: mib, containers: vec![container], ..Usage::default() };
    PodUsage { pod, usage: Some(usage) }
}

fn reclaim(signal: EvictionSignal) -> Reclaim {
    let mut eviction = Eviction::new(
        vec![EvictionThreshold {
            signal,
            value: Threshold::Quantity(Quantity::parse("100Mi").unwrap()),
            grace: Duration::ZERO,
            minimum_reclaim: None,
        }],
        Duration::ZERO,
        false,
    );
    eviction.assess(&amounts(&[(signal, 5 * MI, 1000 * MI)]), 0).reclaim.unwrap()
}

#[test]
fn pods_over_their_requests_go_first_then_lower_priorities() {
    let modest = pod("modest", 0, "100Mi");
    let greedy = pod("greedy", 0, "10Mi");
    let greedier = pod("greedier", 0, "10Mi");
    let lowly = pod("lowly", -5, "10Mi");
    let critical = pod("critical", 2_000_000_000, "1Mi");
    let mut pods = vec![using(&modest, 90), using(&greedy, 40), using(&critical, 500)];
    let first = |pods: &[PodUsage<'_>], signal| {
        victim(&reclaim(signal), pods, false, 0).map(|victim| victim.pod_uid)
    };
    let memory = EvictionSignal::MemoryAvailable;
    assert_eq!(first(&pods, memory).as_deref(), Some("greedy"));
    pods.push(using(&greedier, 60));
    assert_eq!(first(&pods, memory).as_deref(), Some("greedier"));
    pods.push(using(&lowly, 11));
    assert_eq!(first(&pods, memory).as_deref(), Some("lowly"));
    assert_eq!(first(&pods, EvictionSignal::NodefsAvailable).as_deref(), Some("lowly"));
    pods.pop();
    assert_eq!(first(&pods, EvictionSignal::PidAvailable).as_deref(), Some("modest"));
    pods.push(PodUsage { pod: &lowly, usage: None });
    assert_eq!(first(&pods, memory).as_deref(), Some("lowly"));
    assert_eq!(first(&[using(&critical, 500)], memory), None);
}

#[test]
fn only_soft_evictions_have_a_grace_period() {
    let pod = pod("p", 0, "1Mi");
    let pods = [using(&pod, 5)];
    let mut reclaim = reclaim(EvictionSignal::MemoryAvailable);
    assert_eq!(victim(&reclaim, &pods, false, 60).unwrap().grace_seconds, 1);
    reclaim.hard = false;
    assert_eq!(victim(&reclaim, &pods, false, 60).unwrap().grace_seconds, 30);
    assert_eq!(victim(&reclaim, &pods, false, 7).unwrap().grace_seconds, 7);
}

#[test]
fn image_file_systems_do_not_count_for_the_node() {
    let (logs, layers) = (pod("logs", 0, "0"), pod("layers", 0, "0"));
    let mut writes_logs = using(&logs, 0);
    let usage = writes_logs.usage.as_mut().unwrap();
    usage.containers[0].logs.bytes = MI;
    let pods = [writes_logs, using(&layers, 50)];
    let of = |signal, image_disk| {
        victim(&reclaim(signal), &pods, image_disk, 0).map(|victim| victim.pod_uid).unwrap()
    };
    assert_eq!(of(EvictionSignal::NodefsAvailable, true), "logs");
    assert_eq!(of(EvictionSignal::ImagefsAvailable, true), "layers");
    assert_eq!(of(EvictionSignal::NodefsAvailable, false), "layers");
}

#[test]
fn limits_of_containers_volumes_and_pods_are_kept() {
    let value = |volume: &str, limit: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": "p"},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": volume}}],
                "containers": [
                    {"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}},
                    {"name": "d", "resources": {"limits": {"ephemeral-storage": "1Gi"}}},
                ],
            },
        }))
        .unwrap()
    };
    let check = |pod: &Pod, on_volume: u64, expected: Option<&str>| {
        let mut usage = using(pod, 3);
        let volume = Disk { bytes: on_volume * MI, inodes: 1 };
        usage.usage.as_mut().unwrap().volumes.insert("v".to_owned(), volume);
        let over = over_limit(&[usage], false);
        assert_eq!(over.first().map(|victim| victim.message.as_str()), expected);
    };
    check(&value("5Mi", "10Mi"), 5, None);
    let volume = "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". ";
    check(&value("5Mi", "10Mi"), 6, Some(volume));
    let container = "Container c exceeded its local ephemeral storage limit \"2Mi\". ";
    check(&value("5Mi", "2Mi"), 1, Some(container));
    let all = "Pod ephemeral local storage usage exceeds the total limit of containers 1034Mi. ";
    check(&value("9Gi", "10Mi"), 2000, Some(all));
}

/// The recorded messages are reproduced from the amounts that they contain.
#[test]
fn recorded_evictions_have_the_same_messages() {
    let mut seen = 0;
    for life in lines("pods.jsonl.gz") {
        for event in life["events"].as_array().into_iter().flatten() {
            let message = event["message"].as_str().unwrap_or("");
            if event["reason"] != "Evicted" || message.starts_with("The node had condition") {
                continue;
            }
            let pod: Pod = serde_json::from_value(life["manifest"].clone()).unwrap();
            let mut usage = Usage::default();
            let name = pod.spec.containers[0].name.clone();
            let container = ContainerUsage { name, memory: 7 * MI, ..ContainerUsage::default() };
            let found = if message.starts_with("The node was low") {
                usage.containers.push(container);
                let limit = EvictionThreshold {
                    signal: EvictionSignal::MemoryAvailable,
                    value: Threshold::Quantity(Quantity::parse("23Gi").unwrap()),
                    grace: Duration::ZERO,
                    minimum_reclaim: None,
                };
                let mut eviction = Eviction::new(vec![limit], Duration::ZERO, false);
                let reclaim = eviction.assess(&memory(5), 0).reclaim.unwrap();
                let pods = [PodUsage { pod: &pod, usage: Some(usage) }];
                let found = victim(&reclaim, &pods, false, 0).unwrap().message;
                found.replace("5Mi", "<QUANTITY>").replace("7Mi", "<QUANTITY>")
            } else {
                let mut container = container;
                container.writable.bytes = 7 * MI;
                usage.containers.push(container);
                for volume in &pod.spec.volumes {
                    usage.volumes.insert(volume.name.clone(), Disk { bytes: 7 * MI, inodes: 1 });
                }
                let pods = [PodUsage { pod: &pod, usage: Some(usage) }];
                over_limit(&pods, false).remove(0).message
            };
            assert_eq!(found, message, "{}", life["id"]);
            seen += 1;
        }
    }
    assert!(seen >= 3, "only {seen} evictions were recorded");
}
