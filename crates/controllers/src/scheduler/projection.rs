//! The fields of pods and nodes that the scheduler reads in addition to those of `scheduling`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use scheduling::{ANNOTATIONS, NodeObject, PodObject};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A pod as the informer delivers it.
#[derive(Debug)]
pub(crate) struct ObservedPod {
    pub(crate) state: PodState,
    pub(crate) object: PodObject,
}

/// The fields of a pod that are kept between attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) uid: Box<str>,
    pub(crate) priority: i32,
    pub(crate) gated: bool,
    /// It has a node.
    pub(crate) bound: bool,
    /// It has ended, or it is being deleted.
    pub(crate) ended: bool,
    pub(crate) ending: bool,
    /// Its `schedulerName` selects this scheduler.
    pub(crate) ours: bool,
    pub(crate) nominated: Box<str>,
    pub(crate) generation: i64,
    /// The PodScheduled condition if its status is False.
    pub(crate) rejected_condition: Option<Condition>,
    /// A hash of labels and resources: the fields of a bound pod whose changes matter to other
    /// pods.
    pub(crate) fingerprint: u64,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(default, borrow)]
    spec: Spec<'a>,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(default)]
    uid: Box<str>,
    #[serde(default)]
    generation: i64,
    #[serde(default)]
    deletion_timestamp: Option<Box<str>>,
    #[serde(default, borrow)]
    labels: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec<'a> {
    node_name: String,
    scheduler_name: String,
    priority: i32,
    #[serde(borrow)]
    scheduling_gates: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    containers: Vec<ContainerResources<'a>>,
    #[serde(borrow)]
    qos_resources: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerResources<'a> {
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    nominated_node_name: Box<str>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    pub(crate) reason: Box<str>,
    pub(crate) message: Box<str>,
    pub(crate) observed_generation: i64,
}

/// The scheduler of pods without a `schedulerName`.
const OUR_NAME: &str = "default-scheduler";

pub(crate) fn pod(raw: &RawValue) -> Result<ObservedPod, serde_json::Error> {
    let pod: Pod<'_> = serde_json::from_str(raw.get())?;
    let text = |raw: Option<&RawValue>| raw.map_or("", RawValue::get).to_owned();
    let mut hasher = DefaultHasher::new();
    text(pod.metadata.labels).hash(&mut hasher);
    text(pod.spec.qos_resources).hash(&mut hasher);
    for container in &pod.spec.containers {
        text(container.resources).hash(&mut hasher);
    }
    let mut conditions = pod.status.conditions.into_iter().flatten();
    let rejected_condition = conditions
        .find(|condition| condition.kind == "PodScheduled" && condition.status == "False");
    let state = PodState {
        uid: pod.metadata.uid,
        generation: pod.metadata.generation,
        priority: pod.spec.priority,
        gated: pod.spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
        bound: !pod.spec.node_name.is_empty(),
        ended: matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"),
        ending: pod.metadata.deletion_timestamp.is_some(),
        ours: matches!(pod.spec.scheduler_name.as_str(), "" | OUR_NAME),
        nominated: pod.status.nominated_node_name,
        rejected_condition,
        fingerprint: hasher.finish(),
    };
    Ok(ObservedPod { state, object: serde_json::from_str(raw.get())? })
}

/// A node as the informer delivers it.
#[derive(Debug)]
pub(crate) struct ObservedNode {
    pub(crate) uid: Box<str>,
    pub(crate) fingerprint: NodeFingerprint,
    pub(crate) object: NodeObject,
    pub(crate) report: Report,
}

/// The annotations with a node's machine report, unparsed: they are long, and most updates of a
/// node do not change them.
#[derive(Debug, Default)]
pub(crate) struct Report(BTreeMap<&'static str, Box<RawValue>>);

impl Report {
    /// Returns the annotations as strings.
    pub(crate) fn texts(&self) -> BTreeMap<String, String> {
        // The API server accepts only strings as annotations.
        let text = |raw: &RawValue| serde_json::from_str(raw.get()).ok();
        self.0.iter().filter_map(|(name, raw)| Some(((*name).to_owned(), text(raw)?))).collect()
    }
}

/// Hashes of the parts of a node. A change of each part may help different pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeFingerprint {
    pub(crate) resources: u64,
    pub(crate) labels: u64,
    pub(crate) taints: u64,
    pub(crate) other: u64,
    /// The machine report; `None` if the node has none.
    pub(crate) machine: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Node<'a> {
    #[serde(borrow)]
    metadata: NodeMetadata<'a>,
    #[serde(borrow)]
    spec: NodeSpec<'a>,
    #[serde(borrow)]
    status: NodeStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeMetadata<'a> {
    uid: Box<str>,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
    #[serde(borrow)]
    annotations: Option<BTreeMap<Cow<'a, str>, &'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeSpec<'a> {
    unschedulable: bool,
    #[serde(borrow)]
    taints: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus<'a> {
    #[serde(borrow)]
    allocatable: Option<&'a RawValue>,
    #[serde(borrow)]
    qos_resources: Option<&'a RawValue>,
    #[serde(borrow)]
    declared_features: Option<&'a RawValue>,
    #[serde(borrow)]
    images: Option<&'a RawValue>,
}

pub(crate) fn node(raw: &RawValue) -> Result<ObservedNode, serde_json::Error> {
    let node: Node<'_> = serde_json::from_str(raw.get())?;
    let number = |parts: &[Option<&RawValue>], flag: bool| {
        let mut hasher = DefaultHasher::new();
        for part in parts {
            part.map(RawValue::get).hash(&mut hasher);
        }
        flag.hash(&mut hasher);
        hasher.finish()
    };
    let annotations = node.metadata.annotations.unwrap_or_default();
    let report = ANNOTATIONS.into_iter().filter_map(|name| Some((name, *annotations.get(name)?)));
    let report: BTreeMap<&str, &RawValue> = report.collect();
    let machine = (!report.is_empty()).then(|| {
        let mut hasher = DefaultHasher::new();
        for (name, text) in &report {
            (name, text.get()).hash(&mut hasher);
        }
        hasher.finish()
    });
    let fingerprint = NodeFingerprint {
        machine,
        resources: number(&[node.status.allocatable, node.status.qos_resources], false),
        labels: number(&[node.metadata.labels], false),
        taints: number(&[node.spec.taints], node.spec.unschedulable),
        other: number(&[node.status.declared_features, node.status.images], false),
    };
    Ok(ObservedNode {
        uid: node.metadata.uid,
        fingerprint,
        object: serde_json::from_str(raw.get())?,
        report: Report(report.into_iter().map(|(name, raw)| (name, raw.to_owned())).collect()),
    })
}
