//! A node as it stands: who sits where and why, and what it says to a pod that has no place.
//!
//! Main type: [`LiveNode`], a node's report with the pods that are on it. Why a pod has what it has is
//! found by taking it away and placing it again: the brain that decided is the one that is asked. What
//! was true when it came and is no longer cannot be found that way, and is said as what it would get
//! today. Words for a terminal are in [`text`].

use std::collections::BTreeMap;

use objects::Pod;
use placement::configured::{Amounts, Configured, total_memory};
use placement::demand::{Demand, PodUid};
use placement::plan::{ContainerPlacement, Placement};
use placement::report::NodeReport;
use placement::{Bytes, Ledger, plan};
use serde::Serialize;

use crate::picture::Picture;
use crate::remedy::{Other, on_machine};
use crate::report::picture::seated;
use crate::report::{
    API_VERSION, ContainerReport, MachineReport, NodeLeft, PodReport, RemedyReport,
    container_report, detail, left,
};
use crate::simulate::{Class, Obstacle, without_placing};

pub mod text;

/// A pod that is, or could be, on a node.
#[derive(Clone, Debug)]
pub struct Occupant {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// Whose it is, such as `ReplicaSet/web`.
    pub workload: String,
    pub pod: Pod,
}

impl Occupant {
    /// The name, with its namespace unless that is the default one.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// A node and the pods that have something of it.
#[derive(Clone, Debug)]
pub struct LiveNode {
    name: String,
    report: NodeReport,
    /// As reported, with the devices.
    configured: Configured,
    pods: Vec<Occupant>,
}

/// What is known of a pod's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub qos_class: String,
    pub phase: String,
    /// What was said of it: its conditions, and events about its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<String>,
    pub nodes: Vec<NodeAnswer>,
}

impl Explanation {
    pub const KIND: &'static str = "Explanation";

    #[must_use]
    pub fn new(of: &Occupant, phase: String, said: Vec<String>, nodes: Vec<NodeAnswer>) -> Self {
        Explanation {
            api_version: API_VERSION,
            kind: Self::KIND,
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            qos_class: Class::of(&of.pod).demand.qos.to_string(),
            phase,
            said,
            nodes,
        }
    }
}

/// What one node says to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnswer {
    pub node: String,
    pub verdict: Verdict,
    /// What it has, or would get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerReport>,
    /// What it would get if it came today, where that is something else than it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub today: Option<String>,
    /// Every reason for which the scheduler or the agent would not take the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalReport>,
    /// What there is to choose from: each NUMA node without this pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<NodeLeft>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It has its place there.
    Has,
    /// It has none, and could have one.
    WouldTake,
    Refuses,
    /// The node tells nothing of itself.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalReport {
    pub reason: String,
    pub message: String,
    /// What was in the way, with numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Changes of which each alone would let it in.
    pub remedies: Vec<RemedyReport>,
}

impl RefusalReport {
    /// A refusal for which no remedies are known.
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

impl NodeAnswer {
    /// Adds a refusal, which overrules that the node would take the pod. One reason is listed once.
    pub fn refuse(&mut self, refusal: RefusalReport) {
        self.verdict = Verdict::Refuses;
        self.containers.clear();
        if !self.refusals.iter().any(|known| known.reason == refusal.reason) {
            self.refusals.push(refusal);
        }
    }

    /// A node that tells nothing of itself, and why.
    #[must_use]
    pub fn unknown(node: &str, why: String) -> NodeAnswer {
        NodeAnswer {
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
    /// A node by what it reports, with the pods on it and how many it has of each resource that its report
    /// does not count, such as devices of plug-ins.
    #[must_use]
    pub fn new(
        name: &str,
        report: NodeReport,
        pods: Vec<Occupant>,
        devices: &BTreeMap<String, u64>,
    ) -> LiveNode {
        let configured = report.configured().clone().with_devices(devices);
        LiveNode { name: name.to_owned(), report, configured, pods }
    }

    /// Everybody on the node, as a plan has it.
    #[must_use]
    pub fn machine_report(&self, explain: bool) -> MachineReport {
        let configured = &self.configured;
        let topology = &configured.node.topology;
        let pods = self.pods.iter().map(|occupant| {
            let (containers, today) = self.containers_of(occupant, explain);
            PodReport {
                namespace: occupant.namespace.clone(),
                name: occupant.name.clone(),
                workload: occupant.workload.clone(),
                qos_class: Class::of(&occupant.pod).demand.qos.to_string(),
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

    /// The machine, drawn with everybody on it.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let node = &self.configured.node;
        seated(node, self.report.ledger(), &self.machine_report(false)).0
    }

    /// What the node says to a pod: what it has, if it is one of its own, or whether it would take it.
    #[must_use]
    pub fn answer(&self, occupant: &Occupant) -> NodeAnswer {
        let is_here = self.pods.iter().any(|one| one.uid == occupant.uid);
        let (used, ledger) = self.without(&occupant.uid);
        let configured = &self.configured;
        let mut answer = NodeAnswer {
            node: self.name.clone(),
            verdict: Verdict::Has,
            containers: Vec::new(),
            today: None,
            refusals: Vec::new(),
            numa_nodes: left(configured, &used, &ledger).numa_nodes,
        };
        if is_here {
            (answer.containers, answer.today) = self.containers_of(occupant, true);
            return answer;
        }
        match place(configured, &used, &ledger, occupant) {
            Ok(placement) => {
                let mut after = ledger;
                after.commit(&placement);
                answer.verdict = Verdict::WouldTake;
                answer.containers = reports(configured, &after, &placement.containers, true);
            }
            Err(obstacle) => answer.refuse(self.refusal(occupant, &obstacle, &used, &ledger)),
        }
        answer
    }

    fn refusal(
        &self,
        occupant: &Occupant,
        obstacle: &Obstacle,
        used: &Amounts,
        ledger: &Ledger,
    ) -> RefusalReport {
        let configured = &self.configured;
        let others = self.pods.iter().filter(|other| other.uid != occupant.uid);
        let others = others.map(|other| Other {
            name: other.full_name(),
            uid: other.uid.clone(),
            need: Amounts::of(&other.pod),
        });
        let others: Vec<Other> = others.collect();
        let found =
            on_machine(configured, (used, ledger), &occupant.pod, obstacle, others, &self.name);
        RefusalReport {
            reason: obstacle.reason(),
            message: obstacle.to_string(),
            detail: detail(obstacle, &configured.node.topology),
            remedies: found
                .into_iter()
                .map(|remedy| RemedyReport { text: remedy.to_string(), remedy })
                .collect(),
        }
    }

    /// What the containers of one of its pods have, and what they would get today if that is different.
    fn containers_of(
        &self,
        occupant: &Occupant,
        explain: bool,
    ) -> (Vec<ContainerReport>, Option<String>) {
        let (configured, ledger) = (&self.configured, self.report.ledger());
        let demand = Demand::new(&occupant.uid, &occupant.pod.spec.resources());
        // A pod that has its place is given the same again, whatever else there is.
        let has = plan(&configured.node, ledger, &demand);
        let (used, without) = self.without(&occupant.uid);
        let anew = place(configured, &used, &without, occupant);
        let (shown, today) = match (has, anew) {
            (Ok(has), Ok(anew)) if places(&has) == places(&anew) => (anew.containers, None),
            (Ok(has), Ok(anew)) => {
                let other = anew.summary(&configured.node);
                let other = other.unwrap_or_else(|| "nothing of its own".to_owned());
                (has.containers, Some(format!("if it came today: {other}")))
            }
            (Ok(has), Err(obstacle)) => {
                (has.containers, Some(format!("if it came today it would be refused: {obstacle}")))
            }
            (Err(refusal), _) => {
                (Vec::new(), Some(format!("it has no place in the node's report: {refusal}")))
            }
        };
        (reports(configured, ledger, &shown, explain), today)
    }

    /// The node without one of its pods: what is asked for, and what is handed out.
    fn without(&self, uid: &PodUid) -> (Amounts, Ledger) {
        let mut ledger = self.report.ledger().clone();
        ledger.release(uid);
        (self.used(Some(uid)), ledger)
    }

    fn used(&self, except: Option<&PodUid>) -> Amounts {
        let others = self.pods.iter().filter(|other| Some(&other.uid) != except);
        others.fold(Amounts::default(), |used, other| used.plus(&Amounts::of(&other.pod)))
    }
}

fn place(
    configured: &Configured,
    used: &Amounts,
    ledger: &Ledger,
    occupant: &Occupant,
) -> Result<Placement, Obstacle> {
    let class = Class::of(&occupant.pod);
    if let Some(obstacle) = without_placing(&class, configured, used) {
        return Err(obstacle);
    }
    let demand = class.demand.with_uid(occupant.uid.clone());
    plan(&configured.node, ledger, &demand).map_err(Obstacle::Placement)
}

/// What of a placement others could tell.
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
