//! The scheduler loop's decisions, told by what it is shown.

use super::*;
use crate::scheduler::observed;
use serde_json::{json, value::to_raw_value};

fn brain() -> Brain {
    let settings = Settings { qos_resources: true, ..Settings::default() };
    let mut brain = Brain::new(&settings, Patience::default()).unwrap();
    assert!(!brain.is_ready());
    brain.observe(Observed::Pods(Change::Replaced { all: Vec::new(), revision: 1 }), 0);
    brain.observe(Observed::Nodes(Change::Replaced { all: Vec::new(), revision: 1 }), 0);
    for other in Other::ALL {
        let nothing = Change::Replaced { all: Vec::new(), revision: 1 };
        brain.observe(Observed::Others(other, nothing), 0);
    }
    assert!(brain.is_ready());
    brain
}

fn show_pod(brain: &mut Brain, object: &Value, now: Milliseconds) {
    let key = Key::new("a", object["metadata"]["name"].as_str().unwrap());
    let object = observed::pod(&to_raw_value(object).unwrap()).unwrap();
    brain.observe(Observed::Pods(Change::Applied { key, revision: 2, object }), now);
}

fn node(name: &str, cpus: u32) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("u-{name}"), "labels": {"kubernetes.io/hostname": name},
        },
        "status": {"allocatable": {"cpu": cpus.to_string(), "memory": "8Gi", "pods": "10"}},
    })
}

fn show_node(brain: &mut Brain, name: &str, cpus: u32, now: Milliseconds) {
    show_node_as(brain, &node(name, cpus), now);
}

fn show_node_as(brain: &mut Brain, node: &Value, now: Milliseconds) {
    let object = observed::node(&to_raw_value(node).unwrap()).unwrap();
    let key = Key::new("", node["metadata"]["name"].as_str().unwrap());
    brain.observe(Observed::Nodes(Change::Applied { key, revision: 2, object }), now);
}

fn pod(name: &str, cpus: u32, priority: i32) -> Value {
    json!({
        "metadata": {"namespace": "a", "name": name, "uid": format!("u-{name}")},
        "spec": {
            "schedulerName": "default-scheduler", "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpus.to_string()}}}],
        },
        "status": {"phase": "Pending"},
    })
}

fn bound_node(action: Option<Action>) -> (String, String) {
    match action {
        Some(Action::Bind { pod, node }) => (pod.key.to_string(), node),
        other => panic!("no binding: {other:?}"),
    }
}

fn refusal(action: Option<Action>) -> Refusal {
    match action {
        Some(Action::Refuse(refusal)) => *refusal,
        other => panic!("no refusal: {other:?}"),
    }
}

#[test]
fn what_is_decided_counts_before_the_api_says_so() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 2, 0);
    show_pod(&mut brain, &pod("p1", 2, 0), 0);
    show_pod(&mut brain, &pod("p2", 2, 0), 0);
    assert_eq!(bound_node(brain.decide(0)), ("a/p1".to_owned(), "n1".to_owned()));
    let refused = refusal(brain.decide(0));
    assert_eq!(refused.pod.key.as_str(), "a/p2");
    assert!(
        refused.message.starts_with("0/1 nodes are available: 1 Insufficient cpu."),
        "{}",
        refused.message
    );
    assert!(refused.is_news && refused.victims.is_empty());
    assert_eq!(brain.decide(0), None);
    assert_eq!(brain.pending().unschedulable, 1);
}

#[test]
fn a_binding_that_fails_gives_the_node_back() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 2, 0);
    show_pod(&mut brain, &pod("p1", 2, 0), 0);
    bound_node(brain.decide(0));
    let who = Who { key: Key::new("a", "p1"), uid: "u-p1".to_owned() };
    brain.not_bound(&who, 100);
    assert_eq!(brain.decide(100), None, "it backs off first");
    assert_eq!(brain.next_due(), Some(1_100));
    assert_eq!(bound_node(brain.decide(1_100)).1, "n1");
}

#[test]
fn a_node_that_comes_helps_a_pod_that_waits() {
    let mut brain = brain();
    show_pod(&mut brain, &pod("p1", 2, 0), 0);
    let refused = refusal(brain.decide(0));
    assert_eq!(refused.message, "no nodes available to schedule pods");
    show_node(&mut brain, "n1", 4, 10);
    assert_eq!(brain.decide(10), None);
    assert_eq!(bound_node(brain.decide(1_000)).1, "n1");
}

#[test]
fn the_same_refusal_is_not_written_twice() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 1, 0);
    let mut waiting = pod("p1", 2, 0);
    waiting["metadata"]["generation"] = 3.into();
    show_pod(&mut brain, &waiting, 0);
    let refused = refusal(brain.decide(0));
    assert!(refused.is_news);
    assert_eq!(refused.generation, 3);
    waiting["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": refused.message, "observedGeneration": refused.generation,
    }]);
    show_pod(&mut brain, &waiting, 1);
    assert_eq!(brain.decide(1), None, "its own condition is no reason to try again");
    assert!(!refusal(brain.decide(300_000)).is_news);
    // A newer pod that is refused for the same reason is news: the generation is reported.
    waiting["metadata"]["generation"] = 4.into();
    show_pod(&mut brain, &waiting, 300_001);
    let again = refusal(brain.decide(900_000));
    assert!(again.is_news && again.generation == 4, "{again:?}");
}

#[test]
fn a_more_important_pod_pushes_another_out_and_waits_for_its_node() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 2, 0);
    let mut low = pod("low", 2, 0);
    low["spec"]["nodeName"] = "n1".into();
    low["status"]["phase"] = "Running".into();
    show_pod(&mut brain, &low, 0);
    show_pod(&mut brain, &pod("high", 2, 1_000), 0);
    let refused = refusal(brain.decide(0));
    let victims: Vec<_> = refused.victims.iter().map(|v| v.key.as_str()).collect();
    assert_eq!((victims, refused.nominated.as_deref()), (vec!["a/low"], Some("n1")));
    assert_eq!(refused.victims_on, "n1");
    let gone = Change::Removed { key: Key::new("a", "low"), revision: 3 };
    brain.observe(Observed::Pods(gone), 50);
    assert_eq!(bound_node(brain.decide(1_000)), ("a/high".to_owned(), "n1".to_owned()));
}

#[test]
fn pods_of_others_gated_ending_and_ended_pods_are_left_alone() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 8, 0);
    let mut other = pod("other", 1, 0);
    other["spec"]["schedulerName"] = "mine".into();
    let mut ending = pod("ending", 1, 0);
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut ended = pod("ended", 1, 0);
    ended["status"]["phase"] = "Failed".into();
    let mut gated = pod("gated", 1, 0);
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    for object in [&other, &ending, &ended, &gated] {
        show_pod(&mut brain, object, 0);
    }
    assert_eq!(brain.decide(0), None);
    assert_eq!(brain.pending().gated, 1);
    gated["spec"]["schedulingGates"] = json!([]);
    show_pod(&mut brain, &gated, 5);
    assert_eq!(bound_node(brain.decide(5)).0, "a/gated");
}

#[test]
fn a_list_tells_what_is_gone() {
    let mut brain = brain();
    show_node(&mut brain, "n1", 2, 0);
    show_pod(&mut brain, &pod("p1", 2, 0), 0);
    bound_node(brain.decide(0));
    brain.observe(Observed::Pods(Change::Replaced { all: Vec::new(), revision: 9 }), 1);
    show_pod(&mut brain, &pod("p2", 2, 0), 2);
    assert_eq!(bound_node(brain.decide(2)).0, "a/p2");
}

/// A node of seven CPUs for pods, which tells of a machine with these NUMA nodes.
fn telling(numa_nodes: &Value) -> Value {
    let machine = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Machine", "nodes": numa_nodes,
    });
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
        "topologyManagerPolicy": "single-numa-node",
    });
    let mut node = node("n1", 7);
    node["metadata"]["annotations"] = json!({
        "berth.dev/machine": machine.to_string(),
        "berth.dev/kubelet-configuration": config.to_string(),
        "example.com/other": "1",
    });
    node
}

fn two_numa_nodes() -> Value {
    telling(&json!([{"id": 0, "cpus": "0-3"}, {"id": 1, "cpus": "4-7"}]))
}

fn guaranteed(name: &str, cpus: u32) -> Value {
    let mut pod = pod(name, cpus, 0);
    let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    pod
}

#[test]
fn a_pod_its_agent_would_refuse_waits_until_the_node_tells_something_else() {
    let mut brain = brain();
    show_node_as(&mut brain, &two_numa_nodes(), 0);
    show_pod(&mut brain, &guaranteed("p1", 5), 0);
    let refused = refusal(brain.decide(0));
    let text = "0/1 nodes are available: 1 node(s) would refuse the pod: TopologyAffinityError: \
                Resources cannot be allocated with Topology locality (CPUs need 2 NUMA nodes).";
    assert!(refused.message.starts_with(text), "{}", refused.message);
    // Something else about the node is not worth another attempt.
    let mut same = two_numa_nodes();
    same["metadata"]["annotations"]["example.com/other"] = "2".into();
    show_node_as(&mut brain, &same, 10);
    assert_eq!(brain.decide(5_000), None);
    show_node_as(&mut brain, &telling(&json!([{"id": 0, "cpus": "0-7"}])), 6_000);
    assert_eq!(bound_node(brain.decide(6_000)).1, "n1");
    assert_eq!(brain.take_complaints(), []);
}

#[test]
fn a_report_that_cannot_be_used_counts_for_nothing_and_is_told_once() {
    let mut brain = brain();
    show_node_as(&mut brain, &two_numa_nodes(), 0);
    show_pod(&mut brain, &guaranteed("p1", 5), 0);
    refusal(brain.decide(0));
    let mut broken = two_numa_nodes();
    broken["metadata"]["annotations"]["berth.dev/machine"] = "{}".into();
    show_node_as(&mut brain, &broken, 10);
    broken["metadata"]["labels"]["zone"] = "a".into();
    show_node_as(&mut brain, &broken, 20);
    let complaints = brain.take_complaints();
    let [complaint] = complaints.as_slice() else { panic!("{complaints:?}") };
    assert_eq!(complaint.node, Who { key: Key::new("", "n1"), uid: "u-n1".to_owned() });
    let text = "annotation berth.dev/machine is not a machine file: ";
    assert!(complaint.message.starts_with(text), "{}", complaint.message);
    assert_eq!(bound_node(brain.decide(1_000)).1, "n1");
    // A node that stops to tell is as one that never did.
    show_node(&mut brain, "n1", 7, 2_000);
    assert_eq!(brain.take_complaints(), []);
}
