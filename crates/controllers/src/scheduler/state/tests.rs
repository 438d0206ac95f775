//! Decisions of the scheduler's state machine for sequences of informer events.

use super::*;
use crate::scheduler::projection;
use serde_json::json;

fn state() -> SchedulerState {
    let settings = Settings { qos_resources: true, ..Settings::default() };
    let mut state = SchedulerState::new(&settings, BackoffConfig::default()).unwrap();
    assert!(!state.is_ready());
    state.observe(InformerEvent::Pods(Change::Replaced { all: Vec::new(), revision: 1 }), 0);
    state.observe(InformerEvent::Nodes(Change::Replaced { all: Vec::new(), revision: 1 }), 0);
    for other in GroupingKind::ALL {
        let nothing = Change::Replaced { all: Vec::new(), revision: 1 };
        state.observe(InformerEvent::Groupings(other, nothing), 0);
    }
    assert!(state.is_ready());
    state
}

fn apply_pod(state: &mut SchedulerState, object: &Value, now: Milliseconds) {
    let key = Key::new("a", object["metadata"]["name"].as_str().unwrap());
    let object = projection::pod(serde_json::from_value(object.clone()).unwrap());
    state.observe(InformerEvent::Pods(Change::Applied { key, revision: 2, object }), now);
}

fn node(name: &str, cpus: u32) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("u-{name}"), "labels": {"kubernetes.io/hostname": name},
        },
        "status": {"allocatable": {"cpu": cpus.to_string(), "memory": "8Gi", "pods": "10"}},
    })
}

fn apply_node(state: &mut SchedulerState, name: &str, cpus: u32, now: Milliseconds) {
    apply_node_object(state, &node(name, cpus), now);
}

fn apply_node_object(state: &mut SchedulerState, node: &Value, now: Milliseconds) {
    let object = projection::node(serde_json::from_value(node.clone()).unwrap());
    let key = Key::new("", node["metadata"]["name"].as_str().unwrap());
    state.observe(InformerEvent::Nodes(Change::Applied { key, revision: 2, object }), now);
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
fn decision_takes_effect_before_the_informer_delivers_it() {
    let mut state = state();
    apply_node(&mut state, "n1", 2, 0);
    apply_pod(&mut state, &pod("p1", 2, 0), 0);
    apply_pod(&mut state, &pod("p2", 2, 0), 0);
    assert_eq!(bound_node(state.decide(0)), ("a/p1".to_owned(), "n1".to_owned()));
    let rejection = refusal(state.decide(0));
    assert_eq!(rejection.pod.key.as_str(), "a/p2");
    assert!(
        rejection.message.starts_with("0/1 nodes are available: 1 Insufficient cpu."),
        "{}",
        rejection.message
    );
    assert!(rejection.is_news && rejection.victims.is_empty());
    assert_eq!(state.decide(0), None);
    assert_eq!(state.pending().unschedulable, 1);
}

#[test]
fn failed_binding_releases_the_node() {
    let mut state = state();
    apply_node(&mut state, "n1", 2, 0);
    apply_pod(&mut state, &pod("p1", 2, 0), 0);
    bound_node(state.decide(0));
    let node_ref = ObjectRef { key: Key::new("a", "p1"), uid: "u-p1".to_owned() };
    state.binding_failed(&node_ref, 100);
    assert_eq!(state.decide(100), None, "it backs off first");
    assert_eq!(state.next_due(), Some(1_100));
    assert_eq!(bound_node(state.decide(1_100)).1, "n1");
}

#[test]
fn new_node_helps_a_waiting_pod() {
    let mut state = state();
    apply_pod(&mut state, &pod("p1", 2, 0), 0);
    let rejection = refusal(state.decide(0));
    assert_eq!(rejection.message, "no nodes available to schedule pods");
    apply_node(&mut state, "n1", 4, 10);
    assert_eq!(state.decide(10), None);
    assert_eq!(bound_node(state.decide(1_000)).1, "n1");
}

#[test]
fn unchanged_condition_is_not_written_again() {
    let mut state = state();
    apply_node(&mut state, "n1", 1, 0);
    let mut waiting = pod("p1", 2, 0);
    waiting["metadata"]["generation"] = 3.into();
    apply_pod(&mut state, &waiting, 0);
    let rejection = refusal(state.decide(0));
    assert!(rejection.is_news);
    assert_eq!(rejection.generation, 3);
    waiting["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": rejection.message, "observedGeneration": rejection.generation,
    }]);
    apply_pod(&mut state, &waiting, 1);
    assert_eq!(state.decide(1), None, "its own condition is no reason to try again");
    assert!(!refusal(state.decide(300_000)).is_news);
    // The condition of a newer generation is written again, because it reports the generation.
    waiting["metadata"]["generation"] = 4.into();
    apply_pod(&mut state, &waiting, 300_001);
    let again = refusal(state.decide(900_000));
    assert!(again.is_news && again.generation == 4, "{again:?}");
}

#[test]
fn pod_with_higher_priority_preempts_and_is_nominated() {
    let mut state = state();
    apply_node(&mut state, "n1", 2, 0);
    let mut low = pod("low", 2, 0);
    low["spec"]["nodeName"] = "n1".into();
    low["status"]["phase"] = "Running".into();
    apply_pod(&mut state, &low, 0);
    apply_pod(&mut state, &pod("high", 2, 1_000), 0);
    let rejection = refusal(state.decide(0));
    let victims: Vec<_> = rejection.victims.iter().map(|v| v.key.as_str()).collect();
    assert_eq!((victims, rejection.nominated.as_deref()), (vec!["a/low"], Some("n1")));
    assert_eq!(rejection.victims_on, "n1");
    let gone = Change::Removed { key: Key::new("a", "low"), revision: 3 };
    state.observe(InformerEvent::Pods(gone), 50);
    assert_eq!(bound_node(state.decide(1_000)), ("a/high".to_owned(), "n1".to_owned()));
}

#[test]
fn foreign_gated_terminating_and_finished_pods_are_ignored() {
    let mut state = state();
    apply_node(&mut state, "n1", 8, 0);
    let mut other = pod("other", 1, 0);
    other["spec"]["schedulerName"] = "mine".into();
    let mut ending = pod("ending", 1, 0);
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut ended = pod("ended", 1, 0);
    ended["status"]["phase"] = "Failed".into();
    let mut gated = pod("gated", 1, 0);
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    for object in [&other, &ending, &ended, &gated] {
        apply_pod(&mut state, object, 0);
    }
    assert_eq!(state.decide(0), None);
    assert_eq!(state.pending().gated, 1);
    gated["spec"]["schedulingGates"] = json!([]);
    apply_pod(&mut state, &gated, 5);
    assert_eq!(bound_node(state.decide(5)).0, "a/gated");
}

#[test]
fn relist_removes_missing_pods() {
    let mut state = state();
    apply_node(&mut state, "n1", 2, 0);
    apply_pod(&mut state, &pod("p1", 2, 0), 0);
    bound_node(state.decide(0));
    state.observe(InformerEvent::Pods(Change::Replaced { all: Vec::new(), revision: 9 }), 1);
    apply_pod(&mut state, &pod("p2", 2, 0), 2);
    assert_eq!(bound_node(state.decide(2)).0, "a/p2");
}

/// Returns a node with seven allocatable CPUs that reports a machine with these NUMA nodes.
fn node_with_report(numa_nodes: &Value) -> Value {
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
    node_with_report(&json!([{"id": 0, "cpus": "0-3"}, {"id": 1, "cpus": "4-7"}]))
}

fn guaranteed(name: &str, cpus: u32) -> Value {
    let mut pod = pod(name, cpus, 0);
    let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    pod
}

#[test]
fn pod_waits_until_the_machine_report_changes() {
    let mut state = state();
    apply_node_object(&mut state, &two_numa_nodes(), 0);
    apply_pod(&mut state, &guaranteed("p1", 5), 0);
    let rejection = refusal(state.decide(0));
    let text = "0/1 nodes are available: 1 node(s) would refuse the pod: TopologyAffinityError: \
                Resources cannot be allocated with Topology locality (CPUs need 2 NUMA nodes).";
    assert!(rejection.message.starts_with(text), "{}", rejection.message);
    // A change of another annotation does not trigger a retry.
    let mut same = two_numa_nodes();
    same["metadata"]["annotations"]["example.com/other"] = "2".into();
    apply_node_object(&mut state, &same, 10);
    assert_eq!(state.decide(5_000), None);
    apply_node_object(&mut state, &node_with_report(&json!([{"id": 0, "cpus": "0-7"}])), 6_000);
    assert_eq!(bound_node(state.decide(6_000)).1, "n1");
    assert_eq!(state.take_invalid_reports(), []);
}

#[test]
fn invalid_report_is_ignored_and_reported_once() {
    let mut state = state();
    apply_node_object(&mut state, &two_numa_nodes(), 0);
    apply_pod(&mut state, &guaranteed("p1", 5), 0);
    refusal(state.decide(0));
    let mut broken = two_numa_nodes();
    broken["metadata"]["annotations"]["berth.dev/machine"] = "{}".into();
    apply_node_object(&mut state, &broken, 10);
    broken["metadata"]["labels"]["zone"] = "a".into();
    apply_node_object(&mut state, &broken, 20);
    let invalid_reports = state.take_invalid_reports();
    let [report] = invalid_reports.as_slice() else { panic!("{invalid_reports:?}") };
    assert_eq!(report.node, ObjectRef { key: Key::new("", "n1"), uid: "u-n1".to_owned() });
    let text = "annotation berth.dev/machine is not a machine file: ";
    assert!(report.message.starts_with(text), "{}", report.message);
    assert_eq!(bound_node(state.decide(1_000)).1, "n1");
    // A node that stops reporting is scheduled to like one without a report.
    apply_node(&mut state, "n1", 7, 2_000);
    assert_eq!(state.take_invalid_reports(), []);
}
