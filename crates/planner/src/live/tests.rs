//! What a node says of its pods, on a machine of two NUMA nodes with four CPUs each.

use objects::workload;
use objects::{KubeletConfig, kubelet_config};
use placement::Machine;

use super::*;
use crate::report::text::{Look, render_machine};

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

fn pod(name: &str, cpus: u32) -> Occupant {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: app, \
         image: i, resources: {{limits: {{cpu: {cpus}, memory: 64Mi}}}}}}]}}}}"
    );
    let workload = workload::read(&text).expect("a pod").workloads.remove(0);
    Occupant {
        uid: PodUid::new(name),
        namespace: workload.namespace.clone(),
        name: workload.name.clone(),
        workload: format!("Pod/{name}"),
        pod: Pod::clone(&workload.template),
    }
}

/// A node that took these pods one after the other, as it is without those that `left`.
fn node(pods: &[Occupant], left: &[&str]) -> LiveNode {
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
    let stay = |one: &&Occupant| !left.contains(&one.name.as_str());
    LiveNode::new("n1", report, pods.iter().filter(stay).cloned().collect(), &BTreeMap::new())
}

fn empty(machine: &Machine) -> Ledger {
    let configured = Configured::new(machine, &config()).expect("it suits the machine");
    configured.node.empty_ledger()
}

#[test]
fn a_pod_is_told_what_it_has_and_what_else_there_was() {
    let pods = [pod("db", 2), pod("web", 1)];
    let answer = node(&pods, &[]).answer(&pods[0]);
    assert_eq!(answer.verdict, Verdict::Has);
    assert_eq!(answer.containers[0].cpus.as_ref().expect("its own").to_string(), "1-2");
    assert_eq!(answer.today, None, "{answer:?}");
    let agreed = &answer.containers[0].explanation;
    assert!(agreed.iter().any(|line| line.contains("CPUs fit nodes 0,1 alone")), "{agreed:?}");
    // The node it is on with what it has itself, and the other one.
    let free: Vec<_> = answer.numa_nodes.iter().map(|node| node.exclusive_cpus).collect();
    assert_eq!(free, [Some(2), Some(4)]);
}

#[test]
fn what_it_would_get_today_is_told_where_it_is_something_else() {
    let pods = [pod("first", 3), pod("db", 2)];
    // What made it go to the second node is gone.
    let answer = node(&pods, &["first"]).answer(&pods[1]);
    assert_eq!(answer.containers[0].cpus.as_ref().expect("its own").to_string(), "4-5");
    let today = answer.today.expect("something else");
    assert!(today.starts_with("if it came today: container app has CPUs 1-2"), "{today}");
}

#[test]
fn a_pod_that_is_refused_is_told_what_would_let_it_in() {
    let pods = [pod("a", 3), pod("b", 2)];
    let answer = node(&pods, &[]).answer(&pod("c", 3));
    assert_eq!(answer.verdict, Verdict::Refuses);
    let refusal = answer.refusals.first().expect("a refusal");
    assert_eq!(refusal.reason, "OutOfcpu");
    let texts: Vec<&str> = refusal.remedies.iter().map(|remedy| remedy.text.as_str()).collect();
    assert!(texts.contains(&"at most 2 CPUs instead of 3 for app"), "{texts:?}");
    assert!(texts.contains(&"without b on that machine"), "{texts:?}");
}

#[test]
fn a_pod_that_would_fit_now_is_told_where() {
    let pods = [pod("a", 3)];
    let answer = node(&pods, &[]).answer(&pod("c", 4));
    assert_eq!(answer.verdict, Verdict::WouldTake);
    assert_eq!(answer.containers[0].cpus.as_ref().expect("its own").to_string(), "4-7");
}

#[test]
fn a_refusal_of_others_overrules_that_there_is_room() {
    let mut answer = node(&[], &[]).answer(&pod("c", 1));
    assert_eq!(answer.verdict, Verdict::WouldTake);
    for message in ["node(s) had untolerated taint(s)", "the same again"] {
        answer.refuse(RefusalReport::new("TaintToleration", message));
    }
    assert_eq!((answer.verdict, answer.refusals.len()), (Verdict::Refuses, 1));
    let explanation = Explanation::new(&pod("c", 1), "Pending".to_owned(), vec![], vec![answer]);
    let text = text::render(&explanation, Look::default());
    assert!(text.contains("n1 would refuse it now"), "{text}");
    assert!(text.contains("TaintToleration: node(s) had untolerated taint(s)"), "{text}");
}

#[test]
fn devices_that_the_report_does_not_count_are_there_to_be_asked_for() {
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: gpu}, spec: {containers: [{name: app, image: \
                i, resources: {limits: {cpu: 1, memory: 64Mi, example.com/gpu: 1}}}]}}";
    let wanted = Occupant {
        pod: Pod::clone(&workload::read(text).expect("a pod").workloads.remove(0).template),
        ..pod("gpu", 1)
    };
    let machine = machine();
    let report = NodeReport::new(&machine, &config(), empty(&machine)).expect("a report");
    let without = LiveNode::new("n1", report.clone(), Vec::new(), &BTreeMap::new());
    assert_eq!(without.answer(&wanted).refusals[0].reason, "OutOfexample.com/gpu");
    let devices = BTreeMap::from([("example.com/gpu".to_owned(), 1)]);
    let with = LiveNode::new("n1", report, Vec::new(), &devices);
    assert_eq!(with.answer(&wanted).verdict, Verdict::WouldTake);
}

#[test]
fn a_node_shows_everybody_and_what_is_left() {
    let pods = [pod("db", 2), pod("web", 1)];
    let node = node(&pods, &[]);
    let text =
        render_machine(&node.machine_report(true), Look { explain: true, ..Look::default() });
    for part in ["n1", "db", "1-2", "web", "shared CPUs: 0,4-7", "it would be placed the same"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let said = vec!["Placed: here".to_owned()];
    let answers = vec![node.answer(&pods[0])];
    let explanation = Explanation::new(&pods[0], "Running".to_owned(), said, answers);
    let text = text::render(&explanation, Look::default());
    for part in ["db  Guaranteed · Running", "Placed: here", "n1 has it", "1-2", "node 1: 4 CPUs"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
