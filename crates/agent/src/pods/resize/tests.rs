//! Recorded resizes, and tables of feasibility and order.

use host::cgroups::{Bound, Quota};
use serde_json::{Value, json};

use super::*;
use lifecycle::spec::ResourceList;
use rig::golden_node::{defaulted, lines};

/// Returns a pod with one container with these resources.
#[allow(clippy::needless_pass_by_value, reason = "tables read better without &")]
fn pod(resources: Value) -> Pod {
    let spec = json!({"containers": [{"name": "c", "resources": resources}]});
    let metadata = json!({"name": "p", "uid": "u", "generation": 2});
    serde_json::from_value(defaulted(&json!({"metadata": metadata, "spec": spec}))).unwrap()
}

/// Applies a recorded patch to a pod's containers.
fn patch(pod: &mut Value, patch: &Value) {
    for changed in patch["spec"]["containers"].as_array().into_iter().flatten() {
        let containers = pod["spec"]["containers"].as_array_mut().unwrap();
        let found = containers.iter_mut().find(|c| c["name"] == changed["name"]).unwrap();
        for list in ["requests", "limits"] {
            for (name, amount) in changed["resources"][list].as_object().into_iter().flatten() {
                found["resources"][list][name] = amount.clone();
            }
        }
    }
}

#[test]
fn recorded_events_are_reproduced() {
    let mut described = 0;
    for line in lines("pods.jsonl.gz").iter().filter(|line| line["family"] == "resize") {
        let mut wanted = defaulted(&line["manifest"]);
        wanted["metadata"]["generation"] = 2.into();
        for step in line["steps"].as_array().unwrap() {
            if step["response"]["code"] == 200 {
                patch(&mut wanted, &step["action"]["patch"]);
            }
        }
        if line["id"] == "resize-deferred" {
            wanted["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1200m".into();
        }
        let wanted: Pod = serde_json::from_value(wanted).unwrap();
        for event in line["events"].as_array().unwrap() {
            let message = event["message"].as_str().unwrap();
            let Some((_, recorded)) = message.split_once(": ") else { continue };
            if !event["reason"].as_str().unwrap().starts_with("Resize") {
                continue;
            }
            let error = serde_json::from_str::<Value>(recorded).unwrap()["error"].clone();
            assert_eq!(describe(&wanted, error.as_str()), recorded);
            described += 1;
        }
    }
    assert_eq!(described, 16);
}

fn amounts(cpu: &str, memory: &str) -> ResourceList {
    serde_json::from_value(json!({"cpu": cpu, "memory": memory, "pods": "110"})).unwrap()
}

fn node_env(swap: SwapBehavior) -> NodeEnvironment {
    let mut node_env = crate::runtime::lower::tests::World::new().node_env;
    node_env.swap = swap;
    node_env.cgroups.version = CgroupVersion::V2;
    node_env.cgroups.swap_controller = true;
    node_env
}

#[test]
fn feasibility_matches_upstream() {
    let node =
        admission::Node { allocatable: amounts("1700m", "2Gi"), ..admission::Node::default() };
    let beside = pod(json!({"requests": {"cpu": "900m", "memory": "1Gi"}}));
    let node_env = node_env(SwapBehavior::NoSwap);
    let table = [
        ("400m", "32Mi", None),
        ("800m", "32Mi", None),
        (
            "1200m",
            "32Mi",
            Some(
                "Node didn't have enough resource: cpu, requested: 1200, used: 900, capacity: 1700",
            ),
        ),
        (
            "100",
            "32Mi",
            Some("Node didn't have enough capacity: cpu, requested: 100000, capacity: 1700"),
        ),
        (
            "100m",
            "3Gi",
            Some(
                "Node didn't have enough capacity: memory, requested: 3221225472, capacity: \
                 2147483648",
            ),
        ),
    ];
    let has = pod(json!({"requests": {"cpu": "400m", "memory": "32Mi"}}));
    for (cpu, memory, expected) in table {
        let wanted = pod(json!({"requests": {"cpu": cpu, "memory": memory}}));
        let rules = ResizeRules {
            node_env: &node_env,
            static_cpus: true,
            change_static_cpus: false,
            static_memory: true,
            classes: &ClassSupport::Annotations,
        };
        let judged = judge(&wanted, &has, &node, &[AdmittedPod::new(&beside)], &rules);
        let found = judged.as_ref().err().map(ToString::to_string);
        assert_eq!(found.as_deref(), expected, "{cpu} {memory}");
        let deferred = matches!(judged, Err(ResizeRefusal::Deferred(_)));
        assert_eq!(deferred, expected.is_some_and(|text| text.contains("resource: ")));
    }
}

#[test]
fn infeasible_resizes_are_rejected_with_the_reason() {
    let node = admission::Node { allocatable: amounts("16", "16Gi"), ..admission::Node::default() };
    let whole = |cpu: &str, memory: &str| {
        let both = json!({"cpu": cpu, "memory": memory});
        pod(json!({"requests": both, "limits": both}))
    };
    let part =
        |memory: &str| pod(json!({"requests": {"memory": memory}, "limits": {"memory": "4Gi"}}));
    let class = |name: &str| pod(json!({"qosResources": [{"name": "rdt", "class": name}]}));
    let mut of_file = whole("1", "1Gi");
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    of_file.metadata.annotations.extend([source]);
    let swaps = SwapBehavior::LimitedSwap;
    let never = SwapBehavior::NoSwap;
    let mut restarts = part("2Gi");
    restarts.spec.containers[0].resize_policy = serde_json::from_value(json!([
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]))
    .unwrap();
    let table = [
        (of_file, whole("2", "1Gi"), never, Some("static_pod")),
        (
            whole("2", "1Gi"),
            whole("1", "1Gi"),
            never,
            Some("guaranteed_pod_cpu_manager_static_policy"),
        ),
        (
            whole("1", "2Gi"),
            whole("1", "1Gi"),
            never,
            Some("guaranteed_pod_memory_manager_static_policy"),
        ),
        (whole("1000m", "1024Mi"), whole("1", "1Gi"), never, None),
        (part("2Gi"), part("1Gi"), swaps, Some("container_memory_swap")),
        (restarts, part("1Gi"), swaps, None),
        (part("2Gi"), part("1Gi"), never, None),
        (class("gold"), class("silver"), never, Some("qos_resource_class")),
    ];
    for (wanted, has, swap, expected) in table {
        let node_env = node_env(swap);
        let rules = ResizeRules {
            node_env: &node_env,
            static_cpus: true,
            change_static_cpus: false,
            static_memory: true,
            classes: &ClassSupport::Annotations,
        };
        let detail = match judge(&wanted, &has, &node, &[], &rules) {
            Err(ResizeRefusal::Infeasible(why)) => Some(why.detail()),
            Err(ResizeRefusal::Deferred(why)) => panic!("{why}"),
            Ok(()) => None,
        };
        assert_eq!(detail, expected);
    }
}

#[test]
fn exclusive_cpus_and_classes_change_only_where_supported() {
    let resources = BTreeMap::from([(
        "k8s.io/rdt".to_owned(),
        admission::Offered {
            for_pods: false,
            classes: BTreeMap::from([("gold".to_owned(), 1), ("silver".to_owned(), 0)]),
        },
    )]);
    let classes = admission::ClassOffer { resources };
    let node = admission::Node {
        allocatable: amounts("16", "16Gi"),
        classes,
        ..admission::Node::default()
    };
    let node_env = node_env(SwapBehavior::NoSwap);
    let of = |cpu: &str, class: &str| {
        let both = json!({"cpu": cpu, "memory": "1Gi"});
        let classes = json!([{"name": "rdt", "class": class}]);
        pod(json!({"requests": both, "limits": both, "qosResources": classes}))
    };
    let support = ClassSupport::Fields {
        pod: Default::default(),
        container: ["k8s.io/rdt".to_owned()].into(),
    };
    let rules = ResizeRules {
        node_env: &node_env,
        static_cpus: true,
        change_static_cpus: true,
        static_memory: true,
        classes: &support,
    };
    judge(&of("2", "gold"), &of("1", "silver"), &node, &[], &rules).unwrap();
    // The only unit of the class is taken: it may become free.
    let beside = of("1", "gold");
    let others = [AdmittedPod::new(&beside)];
    let refused = judge(&of("1", "gold"), &of("1", "silver"), &node, &others, &rules);
    assert!(matches!(refused, Err(ResizeRefusal::Deferred(Rejection::OutOfClass { .. }))));
    let refused = judge(&of("1", "lead"), &of("1", "silver"), &node, &[], &rules);
    assert!(matches!(refused, Err(ResizeRefusal::Infeasible(Infeasible::Never(_)))));
}

fn limits(memory: u64, time: u64, shares: u64) -> Limits {
    Limits {
        memory: Some(if memory == 0 { Bound::Max } else { Bound::At(memory) }),
        cpu_quota: Some(Quota { time: Bound::At(time), period: 100_000 }),
        cpu_shares: Some(shares),
        ..Limits::default()
    }
}

#[test]
fn pod_limits_grow_before_containers_and_shrink_after_them() {
    let shown = |step: &Step| match step {
        Step::Containers(resource) => (*resource).to_owned(),
        Step::Pod(limits) => match (limits.memory, limits.cpu_quota, limits.cpu_shares) {
            (Some(bound), None, None) => format!("pod memory {bound}"),
            (None, Some(quota), None) => format!("pod quota {}", quota.time),
            (None, None, Some(shares)) => format!("pod shares {shares}"),
            _ => "several".to_owned(),
        },
    };
    let table = [
        (limits(1, 1, 1), limits(1, 1, 1), "memory, cpu"),
        (limits(1, 1, 1), limits(2, 2, 2), "pod memory 2, memory, pod quota 2, pod shares 2, cpu"),
        (limits(2, 2, 2), limits(1, 1, 1), "memory, pod memory 1, cpu, pod quota 1, pod shares 1"),
        (limits(1, 2, 1), limits(2, 1, 2), "pod memory 2, memory, pod shares 2, cpu, pod quota 1"),
        (limits(0, 1, 1), limits(7, 1, 1), "memory, pod memory 7, cpu"),
        (limits(7, 1, 1), limits(0, 1, 1), "pod memory max, memory, cpu"),
    ];
    for (from, to, expected) in table {
        let found: Vec<String> = steps(&from, &to).iter().map(shown).collect();
        assert_eq!(found.join(", "), expected);
    }
}

#[test]
fn limit_below_usage_is_reported_with_upstream_text() {
    let container = InUse::Container { name: "c".to_owned(), limit: 34_603_008, usage: 42_639_360 };
    let whole = InUse::Pod { limit: 34_603_008, usage: 42_639_360 };
    let all = lines("pods.jsonl.gz");
    let line = all.iter().find(|line| line["id"] == "resize-mem-below-usage").unwrap();
    let mut events = line["events"].as_array().unwrap().iter();
    let last = events.rfind(|event| event["reason"] == "ResizeError").unwrap();
    let (_, recorded) = last["message"].as_str().unwrap().split_once(": ").unwrap();
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    assert_eq!(recorded["error"], cannot_decrease(&[whole, container.clone()]));
    assert_eq!(
        cannot_decrease(&[container]),
        "cannot decrease memory limits: attempting to set container \"c\" memory limit (34603008) \
         below current usage (42639360)"
    );
}

#[test]
fn restart_is_needed_only_if_the_resize_policy_requires_it() {
    let policy = json!([
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
    ]);
    let mut wanted = pod(json!({"limits": {"cpu": "2", "memory": "2Gi"}}));
    wanted.spec.containers[0].resize_policy = serde_json::from_value(policy).unwrap();
    let container = &wanted.spec.containers[0];
    let table = [("2", "2Gi", false), ("1", "2Gi", false), ("2", "1Gi", true), ("1", "1Gi", true)];
    for (cpu, memory, expected) in table {
        let has = pod(json!({"limits": {"cpu": cpu, "memory": memory}}));
        let restarts = needs_restart(container, &wanted, &PodAllocation::of(&has));
        assert_eq!(restarts, expected, "{cpu} {memory}");
    }
}

#[test]
fn pod_level_resize_restarts_containers_that_inherit_its_limits() {
    let of = |level: &Value, own: &Value, policy: &str| {
        let mut pod = pod(own.clone());
        pod.spec.resources = serde_json::from_value(level.clone()).unwrap();
        let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
        pod.spec.containers[0].resize_policy = serde_json::from_value(policy).unwrap();
        pod
    };
    let has = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "1Gi"}});
    let own = json!({"limits": {"memory": "100Mi"}});
    let (more_memory, more_cpu, more_requested) = (
        json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"memory": "1Gi"}}),
        json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"memory": "1Gi"}}),
        json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "512Mi"}}),
    );
    let table = [
        (&more_memory, &json!({}), "RestartContainer", true),
        (&more_memory, &json!({}), "NotRequired", false),
        (&more_memory, &own, "RestartContainer", false),
        (&more_cpu, &json!({}), "RestartContainer", false),
        (&more_requested, &json!({}), "RestartContainer", false),
        (&has, &json!({}), "RestartContainer", false),
    ];
    for (to, own, policy, expected) in table {
        let (wanted, has) = (of(to, own, policy), PodAllocation::of(&of(&has, own, policy)));
        let restarts = needs_restart(&wanted.spec.containers[0], &wanted, &has);
        assert_eq!(restarts, expected, "{to} {own} {policy}");
    }
}

#[test]
fn pod_level_resources_change_one_after_the_other() {
    let of = |cpu: &str, memory: &str| {
        let mut pod = pod(json!({}));
        let level = json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu}});
        pod.spec.resources = serde_json::from_value(level).unwrap();
        pod
    };
    let check = |to: &Pod, expected: &[&str]| {
        assert_eq!(of_pod(&PodAllocation::of(&of("1", "1Gi")), to, Part::All), expected);
    };
    check(&of("1", "1Gi"), &[]);
    check(&of("2", "1Gi"), &[CPU]);
    check(&of("2", "2Gi"), &[CPU, MEMORY]);

    let wanted = of("2", "2Gi");
    let mut level = PodAllocation::of(&of("1", "1Gi")).pod_level_resources;
    let mut limits = |resource: &str| {
        let limits = with_level(&wanted, &mut level, resource).spec.resources.unwrap().limits;
        (limits[CPU].to_string(), limits[MEMORY].to_string())
    };
    assert_eq!(limits(MEMORY), ("1".to_owned(), "2Gi".to_owned()));
    assert_eq!(limits(CPU), ("2".to_owned(), "2Gi".to_owned()));
    let without = pod(json!({}));
    assert_eq!(with_level(&without, &mut None, CPU), without);
}
