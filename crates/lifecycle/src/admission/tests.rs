use serde_json::{Value, json};

use super::recorded::{amounts, node, pod};
use super::*;

/// Returns `admitted` or the reason of the rejection.
fn reason(pod: &Pod, node: &Node, others: &[&Pod]) -> String {
    let others: Vec<AdmittedPod<'_>> = others.iter().map(|other| AdmittedPod::new(other)).collect();
    match admit(pod, node, &others, || Ok(())) {
        Admission::Admitted => "admitted".to_owned(),
        Admission::AfterPreempting(victims) => victims.join(" "),
        Admission::Rejected(rejection) => rejection.reason(),
    }
}

fn asking(uid: &str, requests: &Value) -> Pod {
    pod(json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    }))
}

#[test]
fn resources_are_checked_in_order_without_unknown_extended_ones() {
    let check = |requests: Value, wanted: &str| {
        let neighbour = asking("n", &json!({"cpu": "700m", "example.com/known": "1"}));
        let mut node = node();
        node.allocatable.extend(amounts(&[("example.com/known", "2")]));
        assert_eq!(reason(&asking("p", &requests), &node, &[&neighbour]), wanted);
    };
    check(json!({"cpu": "1"}), "admitted");
    check(json!({"cpu": "1001m", "memory": "1Ti"}), "OutOfcpu");
    check(json!({"memory": "1Ti", "ephemeral-storage": "1Pi"}), "OutOfmemory");
    check(json!({"hugepages-1Gi": "1Gi"}), "OutOfhugepages-1Gi");
    check(json!({"example.com/known": "2"}), "OutOfexample.com/known");
    check(json!({"example.com/known": "1"}), "admitted");
    check(json!({"example.com/unknown": "5"}), "admitted");
}

#[test]
fn overhead_and_the_worst_moment_of_starting_count() {
    let mut pod = pod(json!({"spec": {
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}},
            {"name": "i", "resources": {"requests": {"cpu": "1400m"}}},
        ],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "overhead": {"cpu": "100m"},
    }}));
    assert_eq!(reason(&pod, &node(), &[]), "admitted");
    pod.spec.overhead = amounts(&[("cpu", "101m")]);
    assert_eq!(reason(&pod, &node(), &[]), "OutOfcpu");
}

#[test]
fn selectors_names_ports_and_taints_are_checked() {
    let holder = pod(json!({"spec": {"containers": [{"name": "c", "ports": [
        {"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 53, "protocol": "UDP"},
    ]}]}}));
    let check = |spec: Value, wanted: &str| {
        let mut node = node();
        let text = |text: &str| text.to_owned();
        node.taints = vec![
            Taint { key: text("gone"), value: text("5"), effect: text("NoExecute") },
            Taint { key: text("later"), value: text(""), effect: text("NoSchedule") },
        ];
        let mut value = json!({"spec": {
            "containers": [], "tolerations": [{"key": "gone", "operator": "Exists"}],
        }});
        value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        assert_eq!(reason(&pod(value), &node, &[&holder]), wanted, "{spec}");
    };
    check(json!({}), "admitted");
    check(json!({"nodeSelector": {"kubernetes.io/os": "linux"}}), "admitted");
    check(json!({"nodeSelector": {"disk": "ssd"}}), "NodeAffinity");
    check(json!({"nodeName": "node-2"}), "NodeName");
    let affinity = |operator: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": operator, "values": ["node-1"]},
            ]}],
        }}}})
    };
    check(affinity("In"), "admitted");
    check(affinity("NotIn"), "NodeAffinity");
    let port = |port: Value| json!({"containers": [{"name": "c", "ports": [port]}]});
    check(port(json!({"hostPort": 80})), "NodePorts");
    check(port(json!({"hostPort": 80, "hostIP": "10.0.0.2"})), "admitted");
    check(port(json!({"hostPort": 80, "protocol": "UDP"})), "admitted");
    check(port(json!({"hostPort": 53})), "admitted");
    check(port(json!({"containerPort": 80})), "admitted");
    check(json!({"tolerations": []}), "TaintToleration");
    check(json!({"tolerations": [{"operator": "Exists"}]}), "admitted");
    check(json!({"tolerations": [{"key": "gone", "value": "5"}]}), "admitted");
    let above =
        |value: &str| json!({"tolerations": [{"key": "gone", "operator": "Gt", "value": value}]});
    check(above("4"), "TaintToleration");
    check(
        json!({"tolerations": [{"key": "gone", "value": "5", "effect": "NoSchedule"}]}),
        "TaintToleration",
    );
}

#[test]
fn a_static_pod_runs_whatever_taints_there_are() {
    let mut node = node();
    let (key, effect) = ("k".to_owned(), "NoExecute".to_owned());
    node.taints = vec![Taint { key, effect, ..Taint::default() }];
    let mut pod = asking("p", &json!({}));
    assert_eq!(reason(&pod, &node, &[]), "TaintToleration");
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod.metadata.annotations.extend([source]);
    assert_eq!(reason(&pod, &node, &[]), "admitted");
}

#[test]
fn sysctls_are_safe_or_allowed_and_never_the_hosts() {
    let check = |sysctl: &str, allowed: &[&str], host: bool, wanted: &str| {
        let pod = pod(json!({"spec": {
            "containers": [], "hostNetwork": host, "hostIPC": host,
            "securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]},
        }}));
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let message =
            check_sysctls(&pod, &allowed).map_or_else(|e| e.to_string(), |()| String::new());
        assert_eq!(message, wanted);
    };
    check("kernel.shm_rmid_forced", &[], false, "");
    check("net/ipv4/tcp_syncookies", &[], false, "");
    check("kernel.msgmax", &[], false, "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
    check("kernel.msgmax", &["kernel.msg*"], false, "");
    check("net.core.somaxconn", &["net/core/*"], false, "");
    check(
        "kernel.msgmax",
        &["kernel.msgmax"],
        true,
        "forbidden sysctl: \"kernel.msgmax\" not allowed with host IPC enabled",
    );
    check(
        "net.ipv4.tcp_rmem",
        &[],
        true,
        "forbidden sysctl: \"net.ipv4.tcp_rmem\" not allowed with host Net enabled",
    );
}

#[test]
fn the_platform_has_to_be_the_pods() {
    let check = |os: OsName, value: Value, wanted: &str| {
        let node = Node { os: Some(os), host_process: true, ..node() };
        assert_eq!(reason(&pod(value), &node, &[]), wanted);
    };
    let labelled = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
    check(OsName::Linux, labelled.clone(), "PodOSSelectorNodeLabelDoesNotMatch");
    check(OsName::Windows, labelled, "admitted");
    check(OsName::Windows, json!({"spec": {"os": {"name": "linux"}}}), "PodOSNotSupported");
    let strict = json!({"spec": {"securityContext": {"supplementalGroupsPolicy": "Strict"}}});
    check(OsName::Linux, strict, "SupplementalGroupsPolicyNotSupported");
    let host_process = |pod: Value, own: Value, network: bool| {
        json!({"spec": {
            "hostNetwork": network,
            "securityContext": {"windowsOptions": {"hostProcess": pod}},
            "initContainers": [{"name": "i"}],
            "containers": [
                {"name": "c", "securityContext": {"windowsOptions": {"hostProcess": own}}},
            ],
        }})
    };
    check(OsName::Windows, host_process(json!(true), json!(null), true), "admitted");
    let refused = "HostProcessNotSupported";
    check(OsName::Windows, host_process(json!(true), json!(null), false), refused);
    check(OsName::Windows, host_process(json!(true), json!(false), true), refused);
    check(OsName::Windows, host_process(json!(null), json!(true), true), refused);
    check(OsName::Linux, host_process(json!(null), json!(true), false), "admitted");
    let off = Node { os: Some(OsName::Windows), ..node() };
    let asking = pod(host_process(json!(true), json!(null), true));
    assert_eq!(reason(&asking, &off, &[]), refused);
    let runtime = NoHostProcesses("containerd 1.5.9 is too old".to_owned());
    let cannot = Node { host_process: true, no_host_processes: Some(runtime), ..off };
    assert_eq!(reason(&asking, &cannot, &[]), refused);
    let plain = pod(json!({"spec": {"containers": [{"name": "c"}]}}));
    assert_eq!(reason(&plain, &cannot, &[]), "admitted");
}

#[test]
fn classes_are_counted_at_the_worst_moment_over_all_pods() {
    let offered = |for_pods, classes: &[(&str, u64)]| Offered {
        for_pods,
        classes: classes.iter().map(|(name, capacity)| ((*name).to_owned(), *capacity)).collect(),
    };
    let resources = [
        ("k8s.io/rdt".to_owned(), offered(false, &[("gold", 3), ("any", 0)])),
        ("example.com/net".to_owned(), offered(true, &[("fast", 1)])),
    ];
    let node = Node { classes: ClassOffer { resources: resources.into() }, ..node() };
    let container =
        |name: &str, classes: Value| json!({"name": name, "resources": {"qosResources": classes}});
    let gold = json!([{"name": "rdt", "class": "gold"}]);
    let one = pod(json!({"spec": {"containers": [container("c", gold.clone())]}}));
    let by_default = pod(json!({"spec": {
        "qosResources": gold,
        "containers": [{"name": "a"}, container("b", json!([{"name": "rdt", "class": "any"}]))],
        "initContainers": [{"name": "i"}, {"name": "j"}],
    }}));
    let net = pod(json!({"spec": {
        "containers": [{"name": "a"}, {"name": "b"}],
        "qosResources": [{"name": "example.com/net", "class": "fast"}],
    }}));
    assert_eq!(reason(&by_default, &node, &[&one, &one]), "admitted");
    assert_eq!(reason(&by_default, &node, &[&one, &by_default, &one]), "OutOfQOSResource");
    assert_eq!(reason(&net, &node, &[&one]), "admitted");
    assert_eq!(reason(&net, &node, &[&net]), "OutOfQOSResource");
    let unknown = |name: &str, class: &str| {
        let classes = json!([{"name": name, "class": class}]);
        pod(json!({"spec": {"containers": [container("c", classes)]}}))
    };
    assert_eq!(reason(&unknown("rdt", "any"), &node, &[]), "admitted");
    assert_eq!(reason(&unknown("rdt", "silver"), &node, &[]), "QOSResourceUnavailable");
    assert_eq!(reason(&unknown("blockio", "x"), &node, &[]), "QOSResourceUnavailable");
}

#[test]
fn as_few_pods_as_possible_are_preempted_weakest_first() {
    let critical = |requests: Value| {
        let mut pod = asking("critical", &requests);
        pod.spec.priority = Some(2_000_001_000);
        pod
    };
    let guaranteed = pod(json!({"metadata": {"uid": "guaranteed"}, "spec": {"containers": [
        {"name": "c", "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "1Gi"},
        }},
    ]}}));
    let small = asking("small", &json!({"cpu": "300m"}));
    let large = asking("large", &json!({"cpu": "700m"}));
    let best_effort = asking("besteffort", &json!({}));
    let others = [&guaranteed, &small, &large, &best_effort];
    let check = |cpu: &str, wanted: &str| {
        assert_eq!(reason(&critical(json!({"cpu": cpu})), &node(), &others), wanted, "{cpu}");
    };
    // 200m are free.
    check("200m", "admitted");
    check("500m", "small");
    check("600m", "large");
    check("900m", "large");
    check("1200m", "large small");
    check("1700m", "large small guaranteed");
    check("1800m", "UnexpectedAdmissionError");
    // The limit of pods is reached, whatever resources are free.
    let mut full = node();
    full.allocatable.extend(amounts(&[("pods", "4")]));
    assert_eq!(reason(&critical(json!({})), &full, &others), "besteffort");
    // Preemption helps only against insufficient resources.
    let mut lost = critical(json!({"cpu": "1"}));
    lost.spec.node_name = "node-2".to_owned();
    assert_eq!(reason(&lost, &node(), &others), "NodeName");
}

#[test]
fn pressure_shutdown_and_app_armor_turn_pods_away() {
    let plain = asking("p", &json!({}));
    let burstable = asking("p", &json!({"cpu": "1m"}));
    let under = |pressures: &[&str]| Node {
        pressures: pressures.iter().map(|name| (*name).to_owned()).collect(),
        ..node()
    };
    assert_eq!(reason(&plain, &under(&["MemoryPressure"]), &[]), "Evicted");
    assert_eq!(reason(&burstable, &under(&["MemoryPressure"]), &[]), "admitted");
    let both = under(&["MemoryPressure", "DiskPressure"]);
    assert_eq!(reason(&burstable, &both, &[]), "Evicted");
    let message = check_pressure(&burstable, &both).unwrap_err().to_string();
    assert_eq!(message, "The node had condition: [MemoryPressure DiskPressure]. ");
    assert_eq!(reason(&plain, &Node { shutting_down: true, ..node() }, &[]), "NodeShutdown");
    let confined = pod(json!({"spec": {
        "containers": [{"name": "c"}],
        "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}},
    }}));
    assert_eq!(reason(&confined, &node(), &[]), "AppArmor");
    assert_eq!(reason(&confined, &Node { app_armor: true, ..node() }, &[]), "admitted");
}
