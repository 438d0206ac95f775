//! A live node: where its pods are placed and why, and whether it would take another pod.
//!
//! Main type: [`LiveNode`], a node's report with its pods. The reason of a placement is found by
//! releasing the pod and planning it again with the same function. Circumstances at the time of the
//! placement are not known, so a different result is reported as the placement of today. [`text`]
//! renders for a terminal.

use std::collections::BTreeMap;

use objects::types::Pod;
use placement::configured::{Capacity, Configured, total_memory};
use placement::demand::{Demand, PodUid};
use placement::plan::{ContainerPlacement, Placement};
use placement::report::NodeReport;
use placement::{Bytes, Ledger, plan};
use serde::Serialize;

use crate::picture::Picture;
use crate::remedy::{OtherPod, on_machine};
use crate::report::picture::picture_with_owners;
use crate::report::{
    API_VERSION, ContainerReport, MachineReport, PodReport, RemainingOnNode, RemedyReport,
    container_report, detail, left,
};
use crate::simulate::{Class, Rejection, precheck};

pub mod text;

/// A pod that is, or could be, on a node.
#[derive(Clone, Debug)]
pub struct LivePod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Its owner, such as `ReplicaSet/web`.
    pub workload: String,
    pub pod: Pod,
}

impl LivePod {
    /// Returns the name, with its namespace unless that is the default one.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// A node and its pods.
#[derive(Clone, Debug)]
pub struct LiveNode {
    name: String,
    report: NodeReport,
    /// As reported, with the devices.
    configured: Configured,
    pods: Vec<LivePod>,
}

/// The explanation of a pod's placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub qos_class: String,
    pub phase: String,
    /// Its conditions, and events about its placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
    pub nodes: Vec<NodeExplanation>,
}

impl Explanation {
    pub const KIND: &'static str = "Explanation";

    #[must_use]
    pub fn new(
        of: &LivePod,
        phase: String,
        messages: Vec<String>,
        nodes: Vec<NodeExplanation>,
    ) -> Self {
        Explanation {
            api_version: API_VERSION,
            kind: Self::KIND,
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            qos_class: Class::of(&of.pod).demand.qos.to_string(),
            phase,
            messages,
            nodes,
        }
    }
}

/// The explanation of a pod on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    pub node: String,
    pub verdict: Verdict,
    /// Its placement, or the one it would get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerReport>,
    /// The placement it would get today, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub today: Option<String>,
    /// Every reason for which the scheduler or the agent would refuse the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalReport>,
    /// The remaining capacity of each NUMA node without this pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<RemainingOnNode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The pod is placed there.
    Has,
    /// The pod is not placed there, but could be.
    WouldTake,
    Refuses,
    /// The node has no report.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalReport {
    pub reason: String,
    pub message: String,
    /// The shortage in numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Changes, each of which alone would make the pod fit.
    pub remedies: Vec<RemedyReport>,
}

impl RefusalReport {
    /// Returns a refusal without remedies.
    #[must_use]
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> RefusalReport {
        RefusalReport {
            reason: reason.into(),
            message: message.into(),
            detail: None,
            remedies: Vec::new(),
        }
    }
}

impl NodeExplanation {
    /// Adds a refusal, which overrides that the node would take the pod. A reason is listed once.
    pub fn refuse(&mut self, refusal: RefusalReport) {
        self.verdict = Verdict::Refuses;
        self.containers.clear();
        if !self.refusals.iter().any(|known| known.reason == refusal.reason) {
            self.refusals.push(refusal);
        }
    }

    /// Returns the explanation for a node without a report.
    #[must_use]
    pub fn unknown(node: &str, why: String) -> NodeExplanation {
        NodeExplanation {
            node: node.to_owned(),
            verdict: Verdict::Unknown,
            containers: Vec::new(),
            today: Some(why),
            refusals: Vec::new(),
            numa_nodes: Vec::new(),
        }
    }
}

impl LiveNode {
    /// Creates a node from its report, its pods, and the resources that the report does not count,
    /// such as devices of plug-ins.
    #[must_use]
    pub fn new(
        name: &str,
        report: NodeReport,
        pods: Vec<LivePod>,
        devices: &BTreeMap<String, u64>,
    ) -> LiveNode {
        let configured = report.configured().clone().with_devices(devices);
        LiveNode { name: name.to_owned(), report, configured, pods }
    }

    /// Returns all pods of the node in the form of a plan.
    #[must_use]
    pub fn machine_report(&self, explain: bool) -> MachineReport {
        let configured = &self.configured;
        let topology = &configured.node.topology;
        let pods = self.pods.iter().map(|pod| {
            let (containers, today) = self.containers_of(pod, explain);
            PodReport {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                workload: pod.workload.clone(),
                qos_class: Class::of(&pod.pod).demand.qos.to_string(),
                why: today.unwrap_or_else(|| "it would be placed the same today".to_owned()),
                containers,
            }
        });
        MachineReport {
            name: self.name.clone(),
            shape: self.name.clone(),
            os: configured.node.os,
            configuration: String::new(),
            cpus: topology.cpus().len(),
            numa_nodes: topology.nodes().len(),
            memory: Bytes(total_memory(topology)).to_string(),
            pods: pods.collect(),
            left: left(configured, &self.used(None), self.report.ledger()),
        }
    }

    /// Returns the picture of the machine with its pods.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let node = &self.configured.node;
        picture_with_owners(node, self.report.ledger(), &self.machine_report(false)).0
    }

    /// Explains a pod on this node: its placement, or whether the node would take it.
    #[must_use]
    pub fn explain(&self, pod: &LivePod) -> NodeExplanation {
        let is_here = self.pods.iter().any(|one| one.uid == pod.uid);
        let (used, ledger) = self.without(&pod.uid);
        let configured = &self.configured;
        let mut explanation = NodeExplanation {
            node: self.name.clone(),
            verdict: Verdict::Has,
            containers: Vec::new(),
            today: None,
            refusals: Vec::new(),
            numa_nodes: left(configured, &used, &ledger).numa_nodes,
        };
        if is_here {
            (explanation.containers, explanation.today) = self.containers_of(pod, true);
            return explanation;
        }
        match place(configured, &used, &ledger, pod) {
            Ok(placement) => {
                let mut after = ledger;
                after.commit(&placement);
                explanation.verdict = Verdict::WouldTake;
                explanation.containers = reports(configured, &after, &placement.containers, true);
            }
            Err(rejection) => explanation.refuse(self.refusal(pod, &rejection, &used, &ledger)),
        }
        explanation
    }

    fn refusal(
        &self,
        pod: &LivePod,
        rejection: &Rejection,
        used: &Capacity,
        ledger: &Ledger,
    ) -> RefusalReport {
        let configured = &self.configured;
        let others = self.pods.iter().filter(|other| other.uid != pod.uid);
        let others = others.map(|other| OtherPod {
            name: other.full_name(),
            uid: other.uid.clone(),
            need: Capacity::of(&other.pod),
        });
        let others: Vec<OtherPod> = others.collect();
        let found = on_machine(configured, (used, ledger), &pod.pod, rejection, others, &self.name);
        RefusalReport {
            reason: rejection.reason(),
            message: rejection.to_string(),
            detail: detail(rejection, &configured.node.topology),
            remedies: found
                .into_iter()
                .map(|remedy| RemedyReport { text: remedy.to_string(), remedy })
                .collect(),
        }
    }

    /// Returns the placements of a pod's containers, and the ones they would get today if these
    /// differ.
    fn containers_of(
        &self,
        pod: &LivePod,
        explain: bool,
    ) -> (Vec<ContainerReport>, Option<String>) {
        let (configured, ledger) = (&self.configured, self.report.ledger());
        let demand = Demand::new(&pod.uid, &pod.pod.spec.resources());
        // A pod that has its place is given the same again, whatever else there is.
        let has = plan(&configured.node, ledger, &demand);
        let (used, without) = self.without(&pod.uid);
        let anew = place(configured, &used, &without, pod);
        let (shown, today) = match (has, anew) {
            (Ok(has), Ok(anew)) if places(&has) == places(&anew) => (anew.containers, None),
            (Ok(has), Ok(anew)) => {
                let other = anew.summary(&configured.node);
                let other = other.unwrap_or_else(|| "nothing of its own".to_owned());
                (has.containers, Some(format!("if placed today: {other}")))
            }
            (Ok(has), Err(rejection)) => {
                (has.containers, Some(format!("if placed today it would be refused: {rejection}")))
            }
            (Err(refusal), _) => {
                (Vec::new(), Some(format!("it has no place in the node's report: {refusal}")))
            }
        };
        (reports(configured, ledger, &shown, explain), today)
    }

    /// Returns the requests and the ledger of the node without one of its pods.
    fn without(&self, uid: &PodUid) -> (Capacity, Ledger) {
        let mut ledger = self.report.ledger().clone();
        ledger.release(uid);
        (self.used(Some(uid)), ledger)
    }

    fn used(&self, except: Option<&PodUid>) -> Capacity {
        let others = self.pods.iter().filter(|other| Some(&other.uid) != except);
        others.fold(Capacity::default(), |used, other| used.plus(&Capacity::of(&other.pod)))
    }
}

fn place(
    configured: &Configured,
    used: &Capacity,
    ledger: &Ledger,
    pod: &LivePod,
) -> Result<Placement, Rejection> {
    let class = Class::of(&pod.pod);
    if let Some(rejection) = precheck(&class, configured, used) {
        return Err(rejection);
    }
    let demand = class.demand.with_uid(pod.uid.clone());
    plan(&configured.node, ledger, &demand).map_err(Rejection::Placement)
}

/// Returns the CPUs and memory nodes of a placement, for comparison.
fn places(placement: &Placement) -> Vec<(&Option<placement::CpuSet>, Option<placement::NumaMask>)> {
    let containers = placement.containers.iter();
    containers.map(|container| (&container.cpus, container.memory_nodes())).collect()
}

fn reports(
    configured: &Configured,
    ledger: &Ledger,
    containers: &[ContainerPlacement],
    explain: bool,
) -> Vec<ContainerReport> {
    let containers = containers.iter();
    containers.map(|one| container_report(one, &configured.node, ledger, explain)).collect()
}

#[cfg(test)]
mod tests;
