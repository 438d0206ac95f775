//! Amounts: shares and quota, OOM scores, huge pages, swap, memory protection, overhead.

use placement::{CpuSet, NumaId};

use super::*;
use lifecycle::spec::Role;

#[test]
fn shares_and_quota_stay_within_the_kernels_limits() {
    for (milli, shares) in
        [(0, 2), (1, 2), (2, 2), (3, 3), (100, 102), (1000, 1024), (256_000, 262_144)]
    {
        assert_eq!(resources::cpu_shares(milli), shares, "{milli}");
    }
    assert_eq!(resources::cpu_shares(i64::MAX), 262_144);
    for (milli, period, quota) in [
        (0, 100_000, 0),
        (1, 100_000, 1000),
        (10, 100_000, 1000),
        (11, 100_000, 1100),
        (1500, 100_000, 150_000),
        (1500, 10_000, 15_000),
        (i64::MAX, 100_000, i64::MAX),
    ] {
        assert_eq!(resources::cpu_quota(milli, period), quota, "{milli}");
    }
    let mut world = World::new();
    world.node_env.cpu_quota_period = None;
    let linux = of(&world, &pod_of(json!({"resources": {"limits": {"cpu": "1"}}})));
    assert_eq!((linux.cpu_period, linux.cpu_quota, linux.cpu_shares), (0, 0, 1024));
}

/// Returns the resources of container `c`.
fn of(world: &World, pod: &Pod) -> v1::LinuxContainerResources {
    world.made(pod).linux.unwrap().resources.unwrap()
}

fn memory(request: &str, limit: &str) -> Value {
    json!({"requests": {"memory": request}, "limits": {"memory": limit}})
}

#[test]
fn oom_scores_rank_containers_by_memory_requests() {
    let burst = |request: &str| json!({"requests": {"memory": request}});
    let whole = json!({"limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "1", "memory": "1Gi"}});
    let app = |resources: Value| json!({"containers": [{"name": "c", "resources": resources}]});
    let mut critical = app(burst("1Gi"));
    critical["priority"] = 2_000_001_000.into();
    critical["priorityClassName"] = "system-node-critical".into();
    let mut important = critical.clone();
    important["priorityClassName"] = "system-cluster-critical".into();
    let sidecar = |request: &str| {
        json!({
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": burst(request)}],
            "containers": [{"name": "c", "resources": burst("4Gi")},
                {"name": "d", "resources": burst("2Gi")}],
        })
    };
    let world = World::new();
    // The machine has 16Gi: 1Gi is 62 of 1000.
    for (spec, name, expected) in [
        (app(json!({})), "c", 1000),
        (app(whole), "c", -997),
        (app(burst("1Gi")), "c", 938),
        (app(burst("16Gi")), "c", 3),
        (app(burst("32Gi")), "c", 3),
        (app(burst("1")), "c", 999),
        (app(json!({"requests": {"cpu": "1"}})), "c", 999),
        (critical, "c", -997),
        (important, "c", 938),
        // Not killed before the smallest container that it serves.
        (sidecar("1Gi"), "s", 875),
        (sidecar("8Gi"), "s", 500),
        (sidecar("1Gi"), "d", 875),
        // The pod-level request exceeds the containers' by 3Gi, divided by three.
        (
            json!({
                "resources": {"requests": {"memory": "4Gi"}},
                "initContainers": [{"name": "i"}],
                "containers": [{"name": "c", "resources": burst("1Gi")}, {"name": "d"}],
            }),
            "c",
            875,
        ),
    ] {
        let pod = pod(spec);
        let (role, container) = pod.container(name).unwrap();
        let score = resources::oom_score(&world.input(&pod), container, role);
        assert_eq!(score, expected, "{name} of {:?}", pod.spec);
        assert_eq!(role == Role::Sidecar, name == "s");
    }
}

#[test]
fn huge_pages_of_every_size_are_limited() {
    let mut world = World::new();
    world.node_env.huge_page_sizes = vec![64 << 10, 2 << 20, 1 << 30];
    let limits = |pod: &Pod| {
        let of = of(&world, pod).hugepage_limits;
        of.into_iter()
            .map(|limit| format!("{}={}", limit.page_size, limit.limit))
            .collect::<Vec<_>>()
    };
    let own = pod_of(json!({"resources": {"limits": {"hugepages-2Mi": "64Mi"}}}));
    assert_eq!(limits(&own), ["64KB=0", "2MB=67108864", "1GB=0"]);
    let whole = pod(json!({
        "resources": {"limits": {"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"}},
        "containers": [{"name": "c", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}}],
    }));
    assert_eq!(limits(&whole), ["64KB=0", "2MB=4194304", "1GB=1073741824"]);
}

#[test]
fn swap_follows_the_nodes_policy() {
    let burstable = pod_of(json!({"resources": memory("4Gi", "8Gi")}));
    let same = pod_of(json!({"resources": memory("4Gi", "4Gi")}));
    let mut world = World::new();
    assert_eq!(of(&world, &burstable).memory_swap_limit_in_bytes, 8 << 30);
    world.node_env.cgroups.version = CgroupVersion::V2;
    let swap = |world: &World, pod: &Pod| of(world, pod).unified.get("memory.swap.max").cloned();
    assert_eq!(swap(&world, &burstable).as_deref(), Some("0"));
    assert_eq!(of(&world, &burstable).memory_swap_limit_in_bytes, 0);
    world.node_env.swap = SwapBehavior::LimitedSwap;
    // A quarter of the memory gets a quarter of the swap.
    assert_eq!(swap(&world, &burstable).as_deref(), Some("1073741824"));
    assert_eq!(swap(&world, &same).as_deref(), Some("0"));
    let mut critical = burstable.clone();
    critical.spec.priority = Some(2_000_000_000);
    assert_eq!(swap(&world, &critical).as_deref(), Some("0"));
    world.source.origin = ConfigSource::File;
    assert_eq!(swap(&world, &burstable).as_deref(), Some("0"), "static pods are critical");
    world.node_env.cgroups.swap_controller = false;
    assert_eq!(swap(&world, &burstable), None);
}

#[test]
fn cgroup_v2_gets_its_own_files() {
    let mut world = World::new();
    world.node_env.memory_throttling = Some(0.9);
    world.node_env.cgroups.swap_controller = false;
    let pod = pod_of(json!({"resources": memory("1Gi", "2Gi")}));
    assert!(of(&world, &pod).unified.is_empty(), "v1 has no such files");
    world.node_env.cgroups.version = CgroupVersion::V2;
    world.node_env.single_process_oom_kill = false;
    let text = |pod: &Pod| {
        let files = of(&world, pod).unified;
        files.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" ")
    };
    // 1Gi and nine tenths of the other, rounded down to a page.
    assert_eq!(text(&pod), "memory.high=2040107008 memory.min=1073741824 memory.oom.group=1");
    let same = pod_of(json!({"resources": memory("1Gi", "1Gi")}));
    assert_eq!(text(&same), "memory.min=1073741824 memory.oom.group=1");
    // Without a limit, of the node's allocatable memory: 8Gi.
    let open = pod_of(json!({"resources": {"requests": {"memory": "1Gi"}}}));
    assert_eq!(text(&open), "memory.high=7838314496 memory.min=1073741824 memory.oom.group=1");
    assert_eq!(text(&pod_of(json!({}))), "memory.oom.group=1");
}

#[test]
fn sandbox_has_effective_resources_and_overhead() {
    let pod = pod(json!({
        "overhead": {"cpu": "250m", "memory": "64Mi"},
        "initContainers": [
            {"name": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}},
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
        ],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}],
    }));
    let linux = World::new().sandbox(&pod).unwrap().linux.unwrap();
    let (resources, overhead) = (linux.resources.unwrap(), linux.overhead.unwrap());
    let of = |r: &v1::LinuxContainerResources| (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes);
    assert_eq!(of(&resources), (2048, 300_000, 1 << 30));
    assert_eq!(of(&overhead), (256, 25_000, 64 << 20));
}

#[test]
fn placement_is_lowered_to_a_cpuset() {
    let mut world = World::new();
    let cpus = CpuSet::parse("2-3,7").unwrap();
    let affinity = ContainerAffinity {
        cpus,
        exclusive: true,
        mems: [NumaId(3), NumaId(0)].into(),
        groups: Vec::new(),
    };
    world.affinities.insert("c".to_owned(), affinity.clone());
    let pod = pod_of(json!({"resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "3"}}}));
    let made = of(&world, &pod);
    assert_eq!((made.cpuset_cpus.as_str(), made.cpuset_mems.as_str()), ("2-3,7", "0,3"));
    assert_eq!((made.cpu_quota, made.cpu_shares), (-1, 3072));
    let (role, container) = pod.container("c").unwrap();
    let id = "id".to_owned();
    // An update of amounts does not change CPUs, nor the reverse.
    let amounts = update::resources(&world.input(&pod), container, role, &id).linux.unwrap();
    assert_eq!((amounts.cpuset_cpus.as_str(), amounts.cpu_quota), ("", -1));
    let moved = update::cpus(OsName::Linux, &affinity, &id).linux.unwrap();
    assert_eq!((moved.cpuset_cpus.as_str(), moved.cpu_quota, moved.cpu_shares), ("2-3,7", 0, 0));
}
