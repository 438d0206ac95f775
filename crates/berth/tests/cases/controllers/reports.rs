//! Nodes with reports of their machine, and a scheduler that uses them. An agent is a report that
//! the test changes by hand, because these tests depend on when it is published.

use objects::kubelet_config;
use objects::pod::resources::PodResources;
use placement::demand::{Demand, PodUid};
use placement::machine::file;
use placement::report::{MACHINE, NodeReport};
use placement::{Ledger, plan};

use super::*;

/// Two NUMA nodes of four CPUs.
const MACHINE_FILE: &str = "
apiVersion: berth.dev/v1alpha1
kind: Machine
nodes: [{id: 0, cpus: 0-3, memory: 8Gi}, {id: 1, cpus: 4-7, memory: 8Gi}]
";
const CONFIG_FILE: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: \"0\"
topologyManagerPolicy: single-numa-node
";

/// An agent with three CPUs for pods on its first NUMA node and four on the second.
struct Agent {
    node: &'static str,
    report: NodeReport,
}

impl Agent {
    fn new(node: &'static str) -> Agent {
        let machine = file::parse(MACHINE_FILE).unwrap();
        let (config, _) = kubelet_config::read(CONFIG_FILE).unwrap();
        let report = NodeReport::new(&machine, &config, Ledger::default()).unwrap();
        Agent { node, report }
    }

    /// Allocates CPUs to a pod.
    fn admit(&mut self, uid: &str, cpus: i64) {
        let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
        let resources = json!({"requests": amounts, "limits": amounts});
        let spec = json!({"containers": [{"name": "c", "resources": resources}]});
        let demand = Demand::new(&PodUid::new(uid), &PodResources::of_spec(&spec));
        let mut ledger = self.report.ledger().clone();
        ledger.commit(&plan(&self.report.configured().node, &ledger, &demand).unwrap());
        self.report.set_ledger(ledger).unwrap();
    }

    fn release(&mut self, uid: &str) {
        let mut ledger = self.report.ledger().clone();
        ledger.release(&PodUid::new(uid));
        self.report.set_ledger(ledger).unwrap();
    }

    /// Creates the node's object.
    async fn join(&self, cluster: &Cluster) {
        let extra = json!({
            "metadata": {"annotations": self.report.render()},
            "status": {"allocatable": {"cpu": "7"}},
        });
        cluster.node_with(self.node, &extra).await;
    }

    async fn tell(&self, cluster: &Cluster) {
        let patch = json!({"metadata": {"annotations": self.report.render()}});
        cluster.merge(NODES, "", self.node, &patch).await;
    }
}

fn exclusive(name: &str, cpus: u32) -> Value {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    pod(
        name,
        &json!({"spec": {"containers": [{
            "name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts},
        }]}}),
    )
}

impl Cluster {
    /// Creates a pod with CPUs on a node, and returns its uid once it is bound.
    async fn settle(&self, name: &str, cpus: u32, node: &str) -> String {
        let mut pod = exclusive(name, cpus);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        let made = self.create(PODS, "a", &pod).await;
        self.runs_on(name, node).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn runs_on(&self, name: &str, node: &str) {
        let runs = |p: &Value| p["spec"]["nodeName"] == node && p["status"]["phase"] == "Running";
        self.wait("it runs", PODS, "a", name, runs).await;
    }

    async fn is_told(&self, name: &str, expected: &str) {
        let says = |p: &Value| {
            let message = &condition(p, "PodScheduled")["message"];
            message.as_str().is_some_and(|message| message.starts_with(expected))
        };
        self.wait("the pod has the reason", PODS, "a", name, says).await;
    }
}

const SHORTAGE: &str = "node(s) would refuse the pod: TopologyAffinityError: Resources cannot be \
                        allocated with Topology locality (CPUs need 2 NUMA nodes now, 1 on an \
                        empty machine).";

#[test]
fn pod_waits_for_a_report_with_free_cpus() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        let (mut first, mut second) = (Agent::new("n1"), Agent::new("n2"));
        // A deleted pod whose containers have not ended.
        first.admit("ghost", 2);
        first.join(&cluster).await;
        second.join(&cluster).await;
        first.admit(&cluster.settle("a", 2, "n1").await, 2);
        second.admit(&cluster.settle("b", 2, "n2").await, 2);
        second.admit(&cluster.settle("c", 2, "n2").await, 2);
        first.tell(&cluster).await;
        second.tell(&cluster).await;
        // Each node has three free CPUs, one on one NUMA node and two on the other.
        cluster.create(PODS, "a", &exclusive("late", 3)).await;
        cluster.is_told("late", &format!("0/2 nodes are available: 2 {SHORTAGE}")).await;
        first.release("ghost");
        first.tell(&cluster).await;
        cluster.runs_on("late", "n1").await;
        cluster.stop().await;
    });
}

#[test]
fn reported_allocations_override_the_schedulers_assumption() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        let mut agent = Agent::new("n1");
        agent.join(&cluster).await;
        let (a, b) = (cluster.settle("a", 2, "n1").await, cluster.settle("b", 2, "n1").await);
        cluster.create(PODS, "a", &exclusive("late", 3)).await;
        // The scheduler assumes one pod on each NUMA node.
        cluster.is_told("late", &format!("0/1 nodes are available: 1 {SHORTAGE}")).await;
        // In fact another pod held the first NUMA node when both were admitted.
        agent.admit("earlier", 3);
        agent.admit(&a, 2);
        agent.admit(&b, 2);
        agent.release("earlier");
        agent.tell(&cluster).await;
        cluster.runs_on("late", "n1").await;
        cluster.stop().await;
    });
}

#[test]
fn nodes_without_a_valid_report_are_scheduled_normally() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        let agent = Agent::new("n1");
        agent.join(&cluster).await;
        cluster.create(PODS, "a", &exclusive("first", 5)).await;
        let never = "0/1 nodes are available: 1 node(s) would refuse the pod: \
                     TopologyAffinityError: Resources cannot be allocated with Topology locality \
                     (CPUs need 2 NUMA nodes).";
        cluster.is_told("first", never).await;
        cluster.node("plain").await;
        cluster.runs_on("first", "plain").await;
        cluster.create(PODS, "a", &exclusive("second", 5)).await;
        cluster
            .is_told("second", "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) would")
            .await;
        let nonsense = json!({"metadata": {"annotations": {MACHINE: "a machine"}}});
        cluster.merge(NODES, "", "n1", &nonsense).await;
        cluster.runs_on("second", "n1").await;
        let is_expected = |event: &Value| {
            event["reason"] == "InvalidNodeReport" && event["involvedObject"]["name"] == "n1"
        };
        let events = cluster
            .wait_all("the node has an event", EVENTS, "default", |events| {
                events.iter().any(is_expected)
            })
            .await;
        let event = events.iter().find(|event| is_expected(event)).unwrap();
        assert_eq!(event["type"], "Warning");
        let message = event["message"].as_str().unwrap();
        let expected = "annotation berth.dev/machine is not a machine file: ";
        assert!(message.starts_with(expected), "{message}");
        let counters = cluster.handle.as_ref().unwrap().counters();
        let text = metrics::text::render(&counters.families());
        assert!(text.contains("\nberth_invalid_node_reports_total 1\n"), "{text}");
        cluster.stop().await;
    });
}
