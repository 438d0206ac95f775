//! The reasons against a pod on a node: every scheduler filter and the agent's admission.
//!
//! Main type: [`ClusterObjects`], the API objects that both decide on. `scheduling` and `lifecycle::admission`
//! decide; this module only prepares their input. `planner::live` checks free CPUs and memory.

use std::collections::BTreeMap;

use agent::node::qos_resources::offer_of_status;
use anyhow::Context as _;
use client::kind::{
    BUDGETS, CLAIMS, Kind, NAMESPACES, NODES, PODS, REPLICA_SETS, RESOURCE_CLAIMS, SERVICES,
};
use client::{Client, Error, Scope};
use lifecycle::admission::{self, Admission, AdmittedPod};
use lifecycle::resource_claims;
use lifecycle::spec::Pod;
use objects::pod::OsName;
use planner::live::RefusalReport;
use scheduling::{Cluster, GATED_MESSAGE, MachineView, Outcome, Plugin, Scheduler, Tie};
use serde::Deserialize as _;
use serde_json::{Value, json};

const VOLUMES: Kind = Kind {
    group: "",
    version: "v1",
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    namespaced: false,
};

const STORAGE_CLASSES: Kind = Kind {
    group: "storage.k8s.io",
    version: "v1",
    kind: "StorageClass",
    plural: "storageclasses",
    namespaced: false,
};

/// The API objects that determine where a pod may run.
#[derive(Debug)]
pub(super) struct ClusterObjects {
    pub(super) nodes: Vec<Value>,
    pub(super) pods: Vec<Value>,
    namespaces: Vec<Value>,
    services: Vec<Value>,
    budgets: Vec<Value>,
    replica_sets: Vec<Value>,
    claims: Vec<Value>,
    volumes: Vec<Value>,
    storage_classes: Vec<Value>,
    resource_claims: Vec<Value>,
}

impl ClusterObjects {
    pub(super) async fn read(api: &Client) -> Result<ClusterObjects, Error> {
        let all = async |kind: Kind| api.list_values(kind, &Scope::default()).await;
        // An API server that does not serve a kind has no objects of it.
        let optional = async |kind: Kind| match all(kind).await {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            other => other,
        };
        Ok(ClusterObjects {
            nodes: all(NODES).await?,
            pods: all(PODS).await?,
            namespaces: all(NAMESPACES).await?,
            services: optional(SERVICES).await?,
            budgets: optional(BUDGETS).await?,
            replica_sets: optional(REPLICA_SETS).await?,
            claims: optional(CLAIMS).await?,
            volumes: optional(VOLUMES).await?,
            storage_classes: optional(STORAGE_CLASSES).await?,
            resource_claims: optional(RESOURCE_CLAIMS).await?,
        })
    }

    /// Returns pods that have not ended: those on `node`, or all if it is `None`.
    pub(super) fn active_pods(&self, node: Option<&str>) -> impl Iterator<Item = &Value> {
        let ended =
            |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        self.pods
            .iter()
            .filter(move |pod| node.is_none_or(|node| pod["spec"]["nodeName"] == node))
            .filter(move |pod| !ended(pod))
    }
}

/// The scheduler's result for an unbound pod.
#[derive(Debug, Default)]
pub(super) struct Scheduling {
    /// A reason that applies to every node.
    pub(super) everywhere: Option<RefusalReport>,
    by_node: BTreeMap<String, Vec<RefusalReport>>,
    /// The preemption by which the scheduler would make room.
    pub(super) preemption: Option<String>,
}

impl Scheduling {
    /// Runs every filter on every node.
    pub(super) fn of(cluster_objects: &ClusterObjects, pod: &Value) -> anyhow::Result<Scheduling> {
        let settings = controllers::Options::default().scheduling;
        let mut scheduler = Scheduler::new(&settings).context("the scheduler cannot be set up")?;
        fill(scheduler.cluster_mut(), cluster_objects).context("an object cannot be read")?;
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        let key = format!("{}/{}", text("namespace"), text("name"));
        let explained = scheduler.explain(&key, Tie::FirstByName)?;
        let mut found = Scheduling::default();
        match explained.attempt.outcome {
            Outcome::Scheduled(_) => {}
            Outcome::Gated => {
                let gates = Plugin::SchedulingGates.name();
                found.everywhere = Some(RefusalReport::new(gates, GATED_MESSAGE));
            }
            Outcome::Unschedulable(failure) => {
                found.everywhere = match &failure.pre_filter {
                    Some(verdict) => {
                        let plugin = verdict.plugin.map_or("Scheduler", Plugin::name);
                        Some(RefusalReport::new(plugin, verdict.reasons.join("; ")))
                    }
                    None if cluster_objects.nodes.is_empty() => {
                        Some(RefusalReport::new("Scheduler", failure.message.clone()))
                    }
                    None => None,
                };
                let made = failure.preemption.filter(|made| made.nominated.is_some());
                found.preemption = made.map(|made| {
                    let node = made.nominated.unwrap_or_default();
                    format!("the scheduler would preempt {} on {node}", made.victims.join(", "))
                });
            }
        }
        for (node, plugins) in explained.all_failures {
            let refusals = plugins
                .into_iter()
                .map(|(plugin, reasons)| RefusalReport::new(plugin.name(), reasons.join("; ")));
            found.by_node.insert(node, refusals.collect());
        }
        for (node, verdict) in explained.filtered {
            let plugin = verdict.plugin.map_or("Scheduler", Plugin::name);
            let refusal = RefusalReport::new(plugin, verdict.reasons.join("; "));
            found.by_node.entry(node).or_insert_with(|| vec![refusal]);
        }
        Ok(found)
    }

    pub(super) fn refusals(&self, node: &str) -> impl Iterator<Item = &RefusalReport> {
        self.everywhere.iter().chain(self.by_node.get(node).into_iter().flatten())
    }
}

/// Returns true for the filter whose rejection `planner::live` explains with numbers and remedies.
pub(super) fn is_about_room(refusal: &RefusalReport) -> bool {
    refusal.reason == Plugin::MachinePlacement.name()
}

fn fill(
    cluster: &mut Cluster,
    cluster_objects: &ClusterObjects,
) -> Result<(), scheduling::ObjectError> {
    for node in &cluster_objects.nodes {
        cluster.apply_node(&as_tainted_soon(node))?;
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(node["metadata"]["annotations"].clone()).unwrap_or_default();
        if let Ok(Some(machine)) = MachineView::parse(&annotations) {
            cluster.set_machine(super::name_of(node), Some(machine));
        }
    }
    for pod in cluster_objects.active_pods(None) {
        cluster.apply_pod(pod)?;
    }
    for object in &cluster_objects.namespaces {
        cluster.apply_namespace(object)?;
    }
    for object in &cluster_objects.services {
        cluster.apply_service(object)?;
    }
    for object in &cluster_objects.budgets {
        cluster.apply_budget(object)?;
    }
    for object in &cluster_objects.replica_sets {
        cluster.apply_controller("ReplicaSet", object)?;
    }
    for object in &cluster_objects.claims {
        cluster.apply_claim(object)?;
    }
    for object in &cluster_objects.volumes {
        cluster.apply_volume(object)?;
    }
    for object in &cluster_objects.storage_classes {
        cluster.apply_class(object)?;
    }
    Ok(())
}

/// Returns the Ready condition of a node as a reason if it is not true.
pub(super) fn not_ready(node: &Value) -> Option<RefusalReport> {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    if ready.is_some_and(|ready| ready["status"] == "True") {
        return None;
    }
    let text = |field: &str| ready.and_then(|ready| ready[field].as_str()).unwrap_or_default();
    let message = match text("message") {
        "" => "the node is not ready".to_owned(),
        message => format!("the node is not ready: {message}"),
    };
    Some(RefusalReport::new("NodeNotReady", message))
}

/// Adds the taint that the node lifecycle controller will set on a node that is not ready.
fn as_tainted_soon(node: &Value) -> Value {
    const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    let mut node = node.clone();
    if not_ready(&node).is_none() {
        return node;
    }
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_there = |taint: &Value| TAINTS.iter().any(|key| taint["key"] == *key);
    if !taints.iter().any(is_there) {
        let taint = json!({"key": TAINTS[0], "effect": "NoSchedule"});
        node["spec"]["taints"] = taints.into_iter().chain([taint]).collect();
    }
    node
}

/// Returns the reasons of the agent's admission on a node, except for CPUs and memory. Settings
/// that the agent does not report to the API, such as allowed unsafe sysctls, are assumed in the
/// pod's favour.
pub(super) fn admission(
    cluster_objects: &ClusterObjects,
    node: &Value,
    pod: &Value,
) -> anyhow::Result<Vec<RefusalReport>> {
    let wanted = Pod::deserialize(pod).context("the pod cannot be read")?;
    let others = cluster_objects.active_pods(Some(super::name_of(node)));
    let others = others.filter(|other| other["metadata"]["uid"] != pod["metadata"]["uid"]);
    let others: Vec<Pod> = others.map(Pod::deserialize).collect::<Result<_, _>>()?;
    let others: Vec<AdmittedPod<'_>> = others.iter().map(AdmittedPod::new).collect();
    let mut refusals = Vec::new();
    if let Admission::Rejected(rejection) =
        admission::admit(&wanted, &admission_node(node), &others, || Ok(()))
    {
        refusals.push(RefusalReport::new(rejection.reason(), rejection.to_string()));
    }
    for claim in &wanted.spec.resource_claims {
        let problem = match resource_claims::name_of(&wanted, claim) {
            Ok(None) => continue,
            Ok(Some(name)) => {
                let namespace = &wanted.metadata.namespace;
                let found = cluster_objects.resource_claims.iter().find(|found| {
                    found["metadata"]["name"] == name.as_str()
                        && found["metadata"]["namespace"] == namespace.as_str()
                });
                resource_claims::problem(&name, found)
            }
            Err(problem) => problem,
        };
        refusals.push(RefusalReport::new("FailedPrepareDynamicResources", problem.to_string()));
    }
    Ok(refusals)
}

/// Builds admission's view of a node from its object.
fn admission_node(node: &Value) -> admission::Node {
    const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];
    let status = &node["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let pressures = conditions
        .filter(|condition| condition["status"] == "True")
        .filter_map(|condition| condition["type"].as_str())
        .filter(|kind| PRESSURES.contains(kind));
    let mut observed = admission::Node {
        name: super::name_of(node).to_owned(),
        os: match status["nodeInfo"]["operatingSystem"].as_str() {
            Some("linux") => Some(OsName::Linux),
            Some("windows") => Some(OsName::Windows),
            _ => None,
        },
        pressures: pressures.map(str::to_owned).collect(),
        allowed_sysctls: vec!["*".to_owned()],
        supplemental_groups_policy: status["features"]["supplementalGroupsPolicy"] == true,
        host_process: true,
        classes: offer_of_status(&status["qosResources"]),
        ..admission::Node::default()
    };
    observed.observe(node);
    observed
}
