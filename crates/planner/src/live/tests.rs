//! Explanations of pods on a machine of two NUMA nodes with four CPUs each.

use objects::workload;
use objects::{KubeletConfig, kubelet_config};
use placement::Machine;

use super::*;
use crate::report::text::{TextStyle, render_machine};

fn machine() -> Machine {
    crate::machine::shape::parse("1x2x4x1").expect("one socket, two nodes, four cores")
}

fn config() -> KubeletConfig {
    let text = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: '0'
topologyManagerPolicy: single-numa-node
";
    kubelet_config::read(text).expect("a configuration").0
}

fn pod(name: &str, cpus: u32) -> LivePod {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: app, \
         image: i, resources: {{limits: {{cpu: {cpus}, memory: 64Mi}}}}}}]}}}}"
    );
    let workload = workload::read(&text).expect("a pod").workloads.remove(0);
    LivePod {
        uid: PodUid::new(name),
        namespace: workload.namespace.clone(),
        name: workload.name.clone(),
        workload: format!("Pod/{name}"),
        pod: Pod::clone(&workload.template),
    }
}

/// Returns a node that took these pods in order, without those in `left`.
fn node(pods: &[LivePod], left: &[&str]) -> LiveNode {
    let machine = machine();
    let mut report = NodeReport::new(&machine, &config(), empty(&machine)).expect("a report");
    let mut ledger = report.ledger().clone();
    for one in pods {
        let demand = Demand::new(&one.uid, &one.pod.spec.resources());
        let placement = plan(&report.configured().node, &ledger, &demand).expect("room");
        ledger.commit(&placement);
    }
    for uid in left {
        ledger.release(&PodUid::new(uid));
    }
    report.set_ledger(ledger).expect("a ledger that fits");
    let stay = |one: &&LivePod| !left.contains(&one.name.as_str());
    LiveNode::new("n1", report, pods.iter().filter(stay).cloned().collect(), &BTreeMap::new())
}

fn empty(machine: &Machine) -> Ledger {
    let configured = Configured::new(machine, &config()).expect("it suits the machine");
    configured.node.empty_ledger()
}

#[test]
fn explanation_has_the_placement_and_the_alternatives() {
    let pods = [pod("db", 2), pod("web", 1)];
    let explanation = node(&pods, &[]).explain(&pods[0]);
    assert_eq!(explanation.verdict, Verdict::Has);
    assert_eq!(explanation.containers[0].cpus.as_ref().expect("its own").to_string(), "1-2");
    assert_eq!(explanation.today, None, "{explanation:?}");
    let agreed = &explanation.containers[0].explanation;
    assert!(agreed.iter().any(|line| line.contains("CPUs fit nodes 0,1 alone")), "{agreed:?}");
    // Its own node including its own CPUs, and the other one.
    let free: Vec<_> = explanation.numa_nodes.iter().map(|node| node.exclusive_cpus).collect();
    assert_eq!(free, [Some(2), Some(4)]);
}

#[test]
fn different_placement_of_today_is_reported() {
    let pods = [pod("first", 3), pod("db", 2)];
    // The pod that forced it to the second node is gone.
    let explanation = node(&pods, &["first"]).explain(&pods[1]);
    assert_eq!(explanation.containers[0].cpus.as_ref().expect("its own").to_string(), "4-5");
    let today = explanation.today.expect("something else");
    assert!(today.starts_with("if placed today: container app has CPUs 1-2"), "{today}");
}

#[test]
fn refused_pod_gets_remedies() {
    let pods = [pod("a", 3), pod("b", 2)];
    let explanation = node(&pods, &[]).explain(&pod("c", 3));
    assert_eq!(explanation.verdict, Verdict::Refuses);
    let refusal = explanation.refusals.first().expect("a refusal");
    assert_eq!(refusal.reason, "OutOfcpu");
    let texts: Vec<&str> = refusal.remedies.iter().map(|remedy| remedy.text.as_str()).collect();
    assert!(texts.contains(&"at most 2 CPUs instead of 3 for app"), "{texts:?}");
    assert!(texts.contains(&"without b on that machine"), "{texts:?}");
}

#[test]
fn fitting_pod_gets_its_placement() {
    let pods = [pod("a", 3)];
    let explanation = node(&pods, &[]).explain(&pod("c", 4));
    assert_eq!(explanation.verdict, Verdict::WouldTake);
    assert_eq!(explanation.containers[0].cpus.as_ref().expect("its own").to_string(), "4-7");
}

#[test]
fn external_refusal_overrides_a_fitting_node() {
    let mut explanation = node(&[], &[]).explain(&pod("c", 1));
    assert_eq!(explanation.verdict, Verdict::WouldTake);
    for message in ["node(s) had untolerated taint(s)", "the same again"] {
        explanation.refuse(RefusalReport::new("TaintToleration", message));
    }
    assert_eq!((explanation.verdict, explanation.refusals.len()), (Verdict::Refuses, 1));
    let explanation =
        Explanation::new(&pod("c", 1), "Pending".to_owned(), vec![], vec![explanation]);
    let text = text::render(&explanation, TextStyle::default());
    assert!(text.contains("n1 would refuse it now"), "{text}");
    assert!(text.contains("TaintToleration: node(s) had untolerated taint(s)"), "{text}");
}

#[test]
fn devices_outside_the_report_can_be_requested() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: gpu}, spec: {containers: [{name: app, image: \
                i, resources: {limits: {cpu: 1, memory: 64Mi, example.com/gpu: 1}}}]}}";
    let wanted = LivePod {
        pod: Pod::clone(&workload::read(text).expect("a pod").workloads.remove(0).template),
        ..pod("gpu", 1)
    };
    let machine = machine();
    let report = NodeReport::new(&machine, &config(), empty(&machine)).expect("a report");
    let without = LiveNode::new("n1", report.clone(), Vec::new(), &BTreeMap::new());
    assert_eq!(without.explain(&wanted).refusals[0].reason, "OutOfexample.com/gpu");
    let devices = BTreeMap::from([("example.com/gpu".to_owned(), 1)]);
    let with = LiveNode::new("n1", report, Vec::new(), &devices);
    assert_eq!(with.explain(&wanted).verdict, Verdict::WouldTake);
}

#[test]
fn node_shows_all_pods_and_remaining_capacity() {
    let pods = [pod("db", 2), pod("web", 1)];
    let node = node(&pods, &[]);
    let text = render_machine(
        &node.machine_report(true),
        TextStyle { explain: true, ..TextStyle::default() },
    );
    for part in ["n1", "db", "1-2", "web", "shared CPUs: 0,4-7", "it would be placed the same"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let messages = vec!["Placed: here".to_owned()];
    let answers = vec![node.explain(&pods[0])];
    let explanation = Explanation::new(&pods[0], "Running".to_owned(), messages, answers);
    let text = text::render(&explanation, TextStyle::default());
    for part in ["db  Guaranteed · Running", "Placed: here", "n1 has it", "1-2", "node 1: 4 CPUs"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
