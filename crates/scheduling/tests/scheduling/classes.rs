//! QoS classes: the offers of nodes, the requests of pods, and the messages if they do not match.

use scheduling::{Code, Explanation, Outcome, Plugin, Scheduler, Settings, Tie};
use serde_json::{Value, json};

fn scheduler(on: bool) -> Scheduler {
    Scheduler::new(&Settings { qos_resources: on, ..Settings::default() }).unwrap()
}

/// Returns a node with enough of everything except classes.
fn node(name: &str, pod_level: Value, container_level: Value) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
            "qosResources": {"podQOSResources": pod_level, "containerQOSResources": container_level},
        },
    })
}

/// Returns one class resource with classes and their capacities.
fn offer(resource: &str, classes: &[(&str, u64)]) -> Value {
    let classes =
        classes.iter().map(|(name, capacity)| json!({"name": name, "capacity": capacity}));
    json!([{"name": resource, "mutable": false, "classes": classes.collect::<Vec<_>>()}])
}

fn container(name: &str, class: Option<(&str, &str)>) -> Value {
    let classes = class.map(|(resource, class)| json!([{"name": resource, "class": class}]));
    json!({"name": name, "image": "img", "resources": {"qosResources": classes}})
}

fn pod(name: &str, containers: &[Value], pod_level: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"priority": 0, "containers": containers, "qosResources": pod_level},
    })
}

fn one(name: &str, resource: &str, class: &str) -> Value {
    pod(name, &[container("c", Some((resource, class)))], Value::Null)
}

fn on(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod
}

fn explain(scheduler: &mut Scheduler, pod: &Value) -> Explanation {
    scheduler.cluster_mut().apply_pod(pod).unwrap();
    let name = format!("default/{}", pod["metadata"]["name"].as_str().unwrap());
    scheduler.explain(&name, Tie::FirstByName).unwrap()
}

/// Returns the rejection of a pod by one node that runs other pods.
fn verdict(node: &Value, there: &[Value], pod: &Value) -> Option<(Code, Vec<String>)> {
    let mut scheduler = scheduler(true);
    scheduler.cluster_mut().apply_node(node).unwrap();
    for pod in there {
        scheduler.cluster_mut().apply_pod(&on(pod.clone(), "n")).unwrap();
    }
    let verdict = explain(&mut scheduler, pod).filtered.remove("n")?;
    assert_eq!(verdict.plugin, Some(Plugin::QosResources));
    Some((verdict.code, verdict.reasons))
}

const FULL: Code = Code::Unschedulable;
const NEVER: Code = Code::UnschedulableAndUnresolvable;

#[test]
fn class_must_be_offered_and_have_capacity() {
    let offered = offer("k8s.io/rdt", &[("gold", 2), ("silver", 1), ("bronze", 0)]);
    let node = node("n", Value::Null, offered);
    let check = |there: &[Value], pod: Value, expected: Option<(Code, &str)>| {
        let expected = expected.map(|(code, reason)| (code, vec![reason.to_owned()]));
        assert_eq!(verdict(&node, there, &pod), expected, "{pod}");
    };
    let gold = |name: &str| one(name, "k8s.io/rdt", "gold");
    let two = pod(
        "p",
        &[container("a", Some(("rdt", "gold"))), container("b", Some(("rdt", "gold")))],
        Value::Null,
    );
    let three: Vec<Value> =
        ["a", "b", "c"].iter().map(|n| container(n, Some(("rdt", "gold")))).collect();
    check(&[], gold("p"), None);
    check(&[gold("a")], gold("p"), None);
    check(
        &[gold("a"), gold("b")],
        gold("p"),
        Some((FULL, "Insufficient QoS class k8s.io/rdt=gold")),
    );
    // The short name equals the official one.
    check(
        &[gold("a"), gold("b")],
        one("p", "rdt", "gold"),
        Some((FULL, "Insufficient QoS class k8s.io/rdt=gold")),
    );
    // Every container counts.
    check(&[], two.clone(), None);
    check(&[gold("a")], two, Some((FULL, "Insufficient QoS class k8s.io/rdt=gold")));
    // More than the capacity.
    check(
        &[],
        pod("p", &three, Value::Null),
        Some((NEVER, "Insufficient QoS class k8s.io/rdt=gold")),
    );
    // Zero is unlimited.
    let bronze = |name: &str| one(name, "rdt", "bronze");
    check(&[bronze("a"), bronze("b"), bronze("c")], bronze("p"), None);
    check(&[], one("p", "rdt", "tin"), Some((NEVER, "node(s) had no QoS class k8s.io/rdt=tin")));
    check(
        &[],
        one("p", "vendor.example/x", "gold"),
        Some((NEVER, "node(s) had no QoS class vendor.example/x=gold")),
    );
}

#[test]
fn pod_level_class_is_the_default_of_containers() {
    let for_containers = node("n", Value::Null, offer("rdt", &[("gold", 2), ("silver", 0)]));
    let for_pods = node("n", offer("k8s.io/rdt", &[("gold", 1), ("silver", 0)]), Value::Null);
    let default = json!([{"name": "rdt", "class": "gold"}]);
    let containers = |own: &[Option<&str>]| -> Vec<Value> {
        let one = |c: &Option<&str>| container("c", c.map(|class| ("rdt", class)));
        own.iter().map(one).collect()
    };
    let check = |node: &Value, own: &[Option<&str>], fits: bool| {
        let pod = pod("p", &containers(own), default.clone());
        assert_eq!(verdict(node, &[], &pod).is_none(), fits, "{pod}");
    };
    check(&for_containers, &[None, None], true);
    check(&for_containers, &[None, None, None], false);
    check(&for_containers, &[None, Some("silver"), None], true);
    check(&for_containers, &[Some("gold"), None], true);
    check(&for_containers, &[Some("gold"), None, Some("gold")], false);
    // A pod counts once, whatever its containers.
    check(&for_pods, &[None, None, None], true);
    let pod_of = |name: &str| pod(name, &containers(&[None]), default.clone());
    assert!(verdict(&for_pods, &[pod_of("a")], &pod_of("p")).is_some());
}

#[test]
fn sequential_init_containers_do_not_add_up() {
    let node = node("n", Value::Null, offer("rdt", &[("gold", 1)]));
    let gold = |name: &str| container(name, Some(("rdt", "gold")));
    let mut sequence = pod("p", &[gold("app")], Value::Null);
    sequence["spec"]["initContainers"] = json!([gold("first"), gold("second")]);
    assert_eq!(verdict(&node, &[], &sequence), None);
    let mut beside = sequence.clone();
    beside["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
    assert_eq!(verdict(&node, &[], &beside).unwrap().0, NEVER);
}

#[test]
fn disabled_gate_ignores_classes() {
    let mut scheduler = scheduler(false);
    scheduler.cluster_mut().apply_node(&node("n", Value::Null, Value::Null)).unwrap();
    let explained = explain(&mut scheduler, &one("p", "rdt", "gold"));
    assert_eq!(explained.feasible, ["n"]);
}

#[test]
fn message_names_the_class_and_the_number_of_nodes() {
    let mut scheduler = scheduler(true);
    for name in ["n1", "n2"] {
        let offered = offer("rdt", &[("gold", 1)]);
        scheduler.cluster_mut().apply_node(&node(name, Value::Null, offered)).unwrap();
        let there = on(one(&format!("on-{name}"), "rdt", "gold"), name);
        scheduler.cluster_mut().apply_pod(&there).unwrap();
    }
    // Both spellings of the field are accepted.
    let mut without = node("n3", Value::Null, Value::Null);
    without["status"]["qosResources"] =
        json!({"containerQoSResources": offer("rdt", &[("silver", 1)])});
    scheduler.cluster_mut().apply_node(&without).unwrap();
    let explained = explain(&mut scheduler, &one("p", "rdt", "gold"));
    let Outcome::Unschedulable(failure) = &explained.attempt.outcome else { panic!() };
    assert_eq!(
        failure.message,
        "0/3 nodes are available: 1 node(s) had no QoS class k8s.io/rdt=gold, 2 Insufficient QoS \
         class k8s.io/rdt=gold. preemption: 0/3 nodes are available: 1 Preemption is not helpful \
         for scheduling, 2 No preemption victims found for incoming pod."
    );
    assert_eq!(failure.plugins, [Plugin::QosResources]);
}

#[test]
fn preemption_frees_classes_with_the_fewest_victims() {
    let mut scheduler = scheduler(true);
    let offered = offer("rdt", &[("gold", 2), ("silver", 1)]);
    scheduler.cluster_mut().apply_node(&node("n", Value::Null, offered)).unwrap();
    for (name, class, priority) in [("a", "gold", 1), ("b", "gold", 2), ("s", "silver", 0)] {
        let mut there = on(one(name, "rdt", class), "n");
        there["spec"]["priority"] = priority.into();
        scheduler.cluster_mut().apply_pod(&there).unwrap();
    }
    let mut urgent = one("p", "rdt", "gold");
    urgent["spec"]["priority"] = 10.into();
    let explained = explain(&mut scheduler, &urgent);
    let Outcome::Unschedulable(failure) = &explained.attempt.outcome else { panic!() };
    assert_eq!(failure.preemption.as_ref().unwrap().victims, ["default/a"]);
    scheduler.adopt(&explained.attempt);
    scheduler.cluster_mut().remove_pod("default/a");
    // Its nomination reserves the class.
    assert!(explain(&mut scheduler, &one("q", "rdt", "gold")).feasible.is_empty());
    let again = scheduler.explain("default/p", Tie::FirstByName).unwrap();
    assert!(matches!(&again.attempt.outcome, Outcome::Scheduled(c) if c.via_nominated_node));
}

#[test]
fn capacity_returns_with_removed_pods_and_changed_nodes() {
    let mut scheduler = scheduler(true);
    let with = |capacity| node("n", Value::Null, offer("rdt", &[("gold", capacity)]));
    scheduler.cluster_mut().apply_node(&with(1)).unwrap();
    scheduler.cluster_mut().apply_pod(&on(one("a", "rdt", "gold"), "n")).unwrap();
    let pod = one("p", "rdt", "gold");
    assert!(explain(&mut scheduler, &pod).feasible.is_empty());
    scheduler.cluster_mut().apply_node(&with(2)).unwrap();
    assert_eq!(explain(&mut scheduler, &pod).feasible, ["n"]);
    scheduler.cluster_mut().apply_node(&with(1)).unwrap();
    assert!(explain(&mut scheduler, &pod).feasible.is_empty());
    scheduler.cluster_mut().remove_pod("default/a");
    assert_eq!(explain(&mut scheduler, &pod).feasible, ["n"]);
}

#[test]
fn free_class_capacity_can_be_scored() {
    let settings = Settings { qos_resources: true, class_score_weight: 5, ..Settings::default() };
    let mut scheduler = Scheduler::new(&settings).unwrap();
    for (name, capacity) in [("n1", 2), ("n2", 10), ("n3", 0)] {
        let offered = offer("rdt", &[("gold", capacity)]);
        scheduler.cluster_mut().apply_node(&node(name, Value::Null, offered)).unwrap();
    }
    let explained = explain(&mut scheduler, &one("p", "rdt", "gold"));
    let scores = |node: &str| explained.scores[node].plugins[&Plugin::QosResources];
    assert_eq!((scores("n1"), scores("n2")), ([50, 50, 250], [90, 90, 450]));
    assert_eq!((scores("n3"), &explained.best), ([100, 100, 500], &vec!["n3".to_owned()]));
    // A pod without classes is not affected.
    let plain = pod("q", &[container("c", None)], Value::Null);
    let explained = explain(&mut scheduler, &plain);
    assert!(!explained.scores["n1"].plugins.contains_key(&Plugin::QosResources));
}
