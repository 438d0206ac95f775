//! Corner cases of upstream's behaviour that no recorded scenario covers, each as a small cluster.

use scheduling::{Code, Explanation, Failure, Outcome, Plugin, Scheduler, Settings, Tie};
use serde_json::{Value, json};

fn scheduler(profile: Value) -> Scheduler {
    Scheduler::new(&Settings { profile, ..Settings::default() }).unwrap()
}

fn node(name: &str, zone: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone},
        },
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    })
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"priority": 0, "containers": [{"name": "c", "image": "img"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn explain(scheduler: &mut Scheduler, pod: &Value) -> Explanation {
    scheduler.cluster_mut().apply_pod(pod).unwrap();
    let namespace = pod["metadata"]["namespace"].as_str().unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    scheduler.explain(&format!("{namespace}/{name}"), Tie::FirstByName).unwrap()
}

fn raw(explanation: &Explanation, node: &str, plugin: Plugin) -> Option<i64> {
    explanation.scores[node].plugins.get(&plugin).map(|[raw, _, _]| *raw)
}

fn failure(explanation: &Explanation) -> &Failure {
    match &explanation.attempt.outcome {
        Outcome::Unschedulable(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// Sets the CPU request.
fn asks(cpu: &str) -> Value {
    json!([{"name": "c", "image": "img", "resources": {"requests": {"cpu": cpu}}}])
}

/// Pins the pod to the node of this name.
fn pinned(node: &str) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

/// Returns pod affinity of one kind with one preferred term for `app`, by host name.
fn prefers(kind: &str, app: &str, weight: i64) -> Value {
    json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": weight,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": {"app": app}},
            "topologyKey": "kubernetes.io/hostname",
        },
    }]}})
}

#[test]
fn existing_preferences_are_ignored_only_without_own_preferences() {
    let args = json!({"ignorePreferredTermsOfExistingPods": true});
    let profile = json!({"pluginConfig": [{"name": "InterPodAffinity", "args": args}]});
    let mut scheduler = scheduler(profile);
    for name in ["n1", "n2"] {
        scheduler.cluster_mut().apply_node(&node(name, "za")).unwrap();
    }
    let there = json!({"nodeName": "n1", "affinity": prefers("podAffinity", "p", 7)});
    scheduler.cluster_mut().apply_pod(&pod("e", there)).unwrap();
    let without = explain(&mut scheduler, &pod("p", json!({})));
    assert_eq!(raw(&without, "n1", Plugin::InterPodAffinity), None);
    let own = json!({"affinity": prefers("podAffinity", "e", 10)});
    let with = explain(&mut scheduler, &pod("p", own));
    assert_eq!(raw(&with, "n1", Plugin::InterPodAffinity), Some(17));
    assert_eq!(raw(&with, "n2", Plugin::InterPodAffinity), Some(0));
}

#[test]
fn empty_namespace_selector_matches_unknown_namespaces() {
    let mut scheduler = scheduler(Value::Null);
    for name in ["n1", "n2"] {
        scheduler.cluster_mut().apply_node(&node(name, "za")).unwrap();
    }
    let mut there = pod("e", json!({"nodeName": "n1"}));
    there["metadata"]["namespace"] = "elsewhere".into();
    scheduler.cluster_mut().apply_pod(&there).unwrap();
    let term = json!({
        "labelSelector": {"matchLabels": {"app": "e"}},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    });
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    let got = explain(&mut scheduler, &pod("p", json!({"affinity": {"podAffinity": required}})));
    assert_eq!(got.feasible, ["n1"]);
}

#[test]
fn score_plugin_without_weight_has_weight_one() {
    for point in ["score", "multiPoint"] {
        let plugins = json!({point: {"enabled": [{"name": "TaintToleration"}]}});
        let mut scheduler = scheduler(json!({"plugins": plugins}));
        for name in ["n1", "n2"] {
            scheduler.cluster_mut().apply_node(&node(name, "za")).unwrap();
        }
        let got = explain(&mut scheduler, &pod("p", json!({})));
        let scores = got.scores["n1"].plugins[&Plugin::TaintToleration];
        assert_eq!(scores, [0, 100, 100], "{point}");
    }
}

/// Returns the free CPU and memory of a node of 4 CPUs and 8 GiB in per cent, by the fit score of a
/// pod without requests.
fn left_beside(there: &Value) -> i64 {
    let mut scheduler = scheduler(Value::Null);
    for name in ["n1", "n2"] {
        scheduler.cluster_mut().apply_node(&node(name, "za")).unwrap();
    }
    scheduler.cluster_mut().apply_pod(there).unwrap();
    let nothing = json!([{"name": "c", "resources": {"requests": {"cpu": "0", "memory": "0"}}}]);
    let got = explain(&mut scheduler, &pod("p", json!({"containers": nothing})));
    raw(&got, "n1", Plugin::NodeResourcesFit).unwrap()
}

#[test]
fn pod_level_requests_limit_the_defaulted_resources() {
    // Half of the node's CPUs; memory is missing in both containers, which counts as 400 MiB.
    let containers = json!([{"name": "a"}, {"name": "b"}]);
    let there = |more: Value| {
        let mut there = pod("e", json!({"nodeName": "n1", "containers": containers}));
        there["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
        for (field, value) in more.as_object().unwrap() {
            there["spec"][field] = value.clone();
        }
        there
    };
    assert_eq!(left_beside(&there(json!({}))), (50 + 95) / 2);
    // The overhead requests memory, so it is not missing: 4 GiB are left.
    assert_eq!(left_beside(&there(json!({"overhead": {"memory": "4Gi"}}))), 50);
}

#[test]
fn pod_level_resize_counts_the_larger_amount() {
    let there = |wanted: &str, allocated: &str, actual: &str, reason: &str| {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "4Gi"}});
        let mut there = pod("e", json!({"nodeName": "n1", "resources": requests(wanted)}));
        there["status"] = json!({
            "resources": requests(actual),
            "allocatedResources": {"cpu": allocated, "memory": "4Gi"},
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
        });
        left_beside(&there)
    };
    assert_eq!(there("1", "3", "3", ""), (25 + 50) / 2);
    assert_eq!(there("1", "1", "2", ""), (50 + 50) / 2);
    assert_eq!(there("3", "1", "1", "Deferred"), (25 + 50) / 2);
    assert_eq!(there("3", "1", "1", "Infeasible"), (75 + 50) / 2);
}

fn claim(name: &str, mode: &str, annotations: Value, class: &str, volume: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": class,
            "volumeName": volume,
        },
        "status": {"phase": if volume.is_empty() { "Pending" } else { "Bound" }},
    })
}

fn mounts(claim: &str) -> Value {
    json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}])
}

#[test]
fn nominated_pod_does_not_reserve_an_unused_claim() {
    let mut scheduler = scheduler(Value::Null);
    let cluster = scheduler.cluster_mut();
    cluster.apply_node(&node("n1", "za")).unwrap();
    let volume = json!({"metadata": {"name": "v1"}, "status": {"phase": "Bound"}});
    cluster.apply_volume(&volume).unwrap();
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    cluster.apply_claim(&claim("c1", "ReadWriteOncePod", bound, "", "v1")).unwrap();
    let mut waiting = pod("w", json!({"volumes": mounts("c1")}));
    waiting["status"] = json!({"nominatedNodeName": "n1"});
    cluster.apply_pod(&waiting).unwrap();
    let got = explain(&mut scheduler, &pod("p", json!({"volumes": mounts("c1")})));
    assert_eq!(got.feasible, ["n1"]);
}

#[test]
fn volume_being_provisioned_pins_the_pod() {
    let mut scheduler = scheduler(Value::Null);
    let cluster = scheduler.cluster_mut();
    for name in ["n1", "n2"] {
        cluster.apply_node(&node(name, "za")).unwrap();
    }
    let class = json!({
        "metadata": {"name": "late"},
        "provisioner": "example.com/made",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.apply_class(&class).unwrap();
    let selected = json!({"volume.kubernetes.io/selected-node": "n2"});
    cluster.apply_claim(&claim("c1", "ReadWriteOnce", selected, "late", "")).unwrap();
    let got = explain(&mut scheduler, &pod("p", json!({"volumes": mounts("c1")})));
    assert_eq!(got.feasible, ["n2"]);
    let reasons = &got.filtered["n1"].reasons;
    assert_eq!(*reasons, ["node(s) didn't find available persistent volumes to bind"]);
}

#[test]
fn pinned_pod_is_rejected_by_its_affinity_too() {
    let mut scheduler = scheduler(Value::Null);
    scheduler.cluster_mut().apply_node(&node("n1", "za")).unwrap();
    let spec = json!({"affinity": pinned("n1"), "containers": asks("5")});
    let got = explain(&mut scheduler, &pod("p", spec));
    assert_eq!(failure(&got).plugins, [Plugin::NodeAffinity, Plugin::NodeResourcesFit]);
}

#[test]
fn nominated_node_is_tried_despite_pinned_names() {
    let mut scheduler = scheduler(Value::Null);
    for name in ["n1", "n2", "n3"] {
        scheduler.cluster_mut().apply_node(&node(name, "za")).unwrap();
    }
    let mut waiting = pod("p", json!({"affinity": pinned("n1"), "containers": asks("5")}));
    waiting["status"] = json!({"nominatedNodeName": "n2"});
    let got = explain(&mut scheduler, &waiting);
    assert_eq!(got.filtered["n2"].plugin, Some(Plugin::NodeAffinity));
    assert_eq!(got.filtered["n3"].plugin, None);
    assert_eq!(
        failure(&got).message,
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node \
         affinity/selector, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/3 \
         nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn post_filter_message_depends_on_the_enabled_plugins() {
    let without = |plugins: &[&str]| {
        let disabled: Vec<Value> = plugins.iter().map(|p| json!({"name": p})).collect();
        let point = json!({"disabled": disabled});
        let mut scheduler = scheduler(json!({"plugins": {"postFilter": point}}));
        scheduler.cluster_mut().apply_node(&node("n1", "za")).unwrap();
        let there = json!({"nodeName": "n1", "containers": asks("3"), "priority": -1});
        scheduler.cluster_mut().apply_pod(&pod("e", there)).unwrap();
        let mut say = |spec: Value| {
            let got = explain(&mut scheduler, &pod("p", spec));
            failure(&got).message.clone()
        };
        let full = say(json!({"containers": asks("4")}));
        (full, say(json!({"volumes": mounts("none")})))
    };
    let full = "0/1 nodes are available: 1 Insufficient cpu.";
    let lost = "0/1 nodes are available: persistentvolumeclaim \"none\" not found.";
    let found = "preemption: found a potential placement for pod on node n1, preempting 1 victims";
    let in_vain =
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(without(&[]), (format!("{full} {found}"), format!("{lost} not found")));
    let said = without(&["DynamicResources"]);
    assert_eq!(said, (format!("{full} {found}"), format!("{lost} {in_vain}")));
    let said = without(&["DefaultPreemption"]);
    assert_eq!(said, (full.to_owned(), format!("{lost} not found")));
    assert_eq!(without(&["*"]), (full.to_owned(), lost.to_owned()));
}

#[test]
fn nomination_is_cleared_without_post_filter_plugins() {
    let waits_after = |disabled: &str, spec: Value| {
        let point = json!({"disabled": [{"name": disabled}]});
        let mut scheduler = scheduler(json!({"plugins": {"postFilter": point}}));
        scheduler.cluster_mut().apply_node(&node("n1", "za")).unwrap();
        let mut waiting = pod("p", spec);
        waiting["status"] = json!({"nominatedNodeName": "n1"});
        let got = explain(&mut scheduler, &waiting);
        scheduler.adopt(&got.attempt);
        scheduler.cluster().nominated_node_of("default/p").is_some()
    };
    for spec in [json!({"containers": asks("5")}), json!({"volumes": mounts("none")})] {
        assert!(waits_after("DefaultPreemption", spec.clone()), "{spec}");
        assert!(!waits_after("*", spec.clone()), "{spec}");
    }
}

#[test]
fn profile_limits_the_number_of_evaluated_nodes() {
    for (share, looked_at) in [(None, 300), (Some(0), 144), (Some(10), 100), (Some(100), 300)] {
        let mut scheduler = scheduler(json!({"percentageOfNodesToScore": share}));
        for n in 0..300 {
            scheduler.cluster_mut().apply_node(&node(&format!("n{n}"), "za")).unwrap();
        }
        let got = explain(&mut scheduler, &pod("p", json!({})));
        assert_eq!(got.feasible.len(), looked_at, "{share:?}");
    }
}

#[test]
fn violated_budget_does_not_charge_later_ones() {
    let mut scheduler = scheduler(Value::Null);
    let cluster = scheduler.cluster_mut();
    cluster.apply_node(&node("n1", "za")).unwrap();
    for (name, label, allowed) in [("a", "tight", 0), ("b", "loose", 1)] {
        let budget = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {label: "yes"}}},
            "status": {"disruptionsAllowed": allowed},
        });
        cluster.apply_budget(&budget).unwrap();
    }
    for (name, labels, priority) in [
        ("first", json!({"tight": "yes", "loose": "yes"}), 2),
        ("second", json!({"loose": "yes"}), 1),
    ] {
        let spec = json!({"nodeName": "n1", "containers": asks("2"), "priority": priority});
        let mut there = pod(name, spec);
        there["metadata"]["labels"] = labels;
        cluster.apply_pod(&there).unwrap();
    }
    let got = explain(&mut scheduler, &pod("p", json!({"containers": asks("4"), "priority": 9})));
    let preemption = failure(&got).preemption.as_ref().unwrap();
    assert_eq!(preemption.candidates["n1"].pdb_violations, 1);
}

#[test]
fn nomination_is_cleared_without_nodes() {
    let mut scheduler = scheduler(Value::Null);
    let mut waiting = pod("p", json!({}));
    waiting["status"] = json!({"nominatedNodeName": "n1"});
    let got = explain(&mut scheduler, &waiting);
    assert_eq!(failure(&got).message, "no nodes available to schedule pods");
    scheduler.adopt(&got.attempt);
    assert_eq!(scheduler.cluster().nominated_node_of("default/p"), None);
}

#[test]
fn node_must_declare_required_features() {
    let mut scheduler = scheduler(Value::Null);
    for (name, features) in [("n1", json!([])), ("n2", json!(["UserNamespacesHostNetworkSupport"]))]
    {
        let mut node = node(name, "za");
        node["status"]["declaredFeatures"] = features;
        scheduler.cluster_mut().apply_node(&node).unwrap();
    }
    let spec = json!({"hostNetwork": true, "hostUsers": false});
    let got = explain(&mut scheduler, &pod("p", spec));
    assert_eq!(got.feasible, ["n2"]);
    assert_eq!(got.filtered["n1"].plugin, Some(Plugin::NodeDeclaredFeatures));
    assert_eq!(got.filtered["n1"].code, Code::UnschedulableAndUnresolvable);
    assert_eq!(got.filtered["n1"].reasons, ["node(s) didn't match Pod's required features"]);
}

#[test]
fn bindable_volumes_are_scored_by_unused_capacity() {
    let mut scheduler = scheduler(Value::Null);
    let cluster = scheduler.cluster_mut();
    let class = json!({
        "metadata": {"name": "local"},
        "provisioner": "example.com/made",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    cluster.apply_class(&class).unwrap();
    for (name, size) in [("n1", Some("4Gi")), ("n2", Some("1Gi")), ("n3", None)] {
        cluster.apply_node(&node(name, "za")).unwrap();
        let Some(size) = size else { continue };
        let at = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [name]});
        let volume = json!({
            "metadata": {"name": format!("v-{name}")},
            "spec": {
                "storageClassName": "local",
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": size},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [at]}]}},
            },
            "status": {"phase": "Available"},
        });
        cluster.apply_volume(&volume).unwrap();
    }
    cluster.apply_claim(&claim("c1", "ReadWriteOnce", json!({}), "local", "")).unwrap();
    let got = explain(&mut scheduler, &pod("p", json!({"volumes": mounts("c1")})));
    let score = |node| raw(&got, node, Plugin::VolumeBinding);
    assert_eq!([score("n1"), score("n2"), score("n3")], [Some(75), Some(0), Some(0)]);
    let got = explain(&mut scheduler, &pod("q", json!({})));
    assert_eq!(raw(&got, "n1", Plugin::VolumeBinding), None);
}

#[test]
fn waiting_claim_uses_its_reserved_or_an_available_volume() {
    let check = |volume: Value, feasible: &[&str]| {
        let mut scheduler = scheduler(Value::Null);
        let cluster = scheduler.cluster_mut();
        for name in ["n1", "n2"] {
            cluster.apply_node(&node(name, "za")).unwrap();
        }
        let class = json!({
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        cluster.apply_class(&class).unwrap();
        let at = |name| {
            let at = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [name]});
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [at]}]}})
        };
        let object = |name: &str, at: Value| {
            json!({
                "metadata": {"name": name},
                "spec": {
                    "storageClassName": "local",
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "2Gi"},
                    "nodeAffinity": at,
                },
                "status": {"phase": "Available"},
            })
        };
        let mut own = object("v1", at("n1"));
        for (pointer, value) in volume.as_object().unwrap() {
            let (part, field) = pointer.split_once('.').unwrap();
            own[part][field] = value.clone();
        }
        cluster.apply_volume(&own).unwrap();
        cluster.apply_volume(&object("v2", at("n2"))).unwrap();
        cluster.apply_claim(&claim("c1", "ReadWriteOnce", json!({}), "local", "")).unwrap();
        let got = explain(&mut scheduler, &pod("p", json!({"volumes": mounts("c1")})));
        assert_eq!(got.feasible, feasible, "{volume}");
    };
    check(json!({}), &["n1", "n2"]);
    for phase in ["", "Pending", "Released"] {
        check(json!({"status.phase": phase}), &["n2"]);
    }
    check(json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}), &["n2"]);
    check(json!({"spec.accessModes": ["ReadWriteMany"]}), &["n2"]);
    // A volume reserved for the claim is used without further checks, and no other one is.
    let kept = json!({"namespace": "default", "name": "c1"});
    check(json!({"spec.claimRef": kept, "status.phase": "Bound"}), &["n1"]);
    check(json!({"spec.claimRef": kept, "spec.accessModes": ["ReadWriteMany"]}), &["n1"]);
    check(json!({"spec.claimRef": {"namespace": "default", "name": "other"}}), &["n2"]);
}

#[test]
fn container_resize_counts_the_larger_sum() {
    let there = |reason: &str| {
        let container = |name: &str, cpu: &str| {
            let requests = json!({"cpu": cpu, "memory": "2Gi"});
            json!({"name": name, "resources": {"requests": requests}})
        };
        let status = |name: &str, cpu: &str| {
            let held = json!({"cpu": cpu, "memory": "2Gi"});
            json!({"name": name, "resources": {"requests": held}, "allocatedResources": held})
        };
        let containers = json!([container("a", "2"), container("b", "1")]);
        let mut there = pod("e", json!({"nodeName": "n1", "containers": containers}));
        there["status"] = json!({
            "containerStatuses": [status("a", "1"), status("b", "1500m")],
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
        });
        left_beside(&there)
    };
    // Of 4 CPUs 3 are requested and 2.5 allocated, never 3.5.
    assert_eq!(there("Deferred"), (25 + 50) / 2);
    assert_eq!(there("Infeasible"), (37 + 50) / 2);
}
