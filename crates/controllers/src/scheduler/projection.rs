//! The fields of pods and nodes that the scheduler reads in addition to those of `scheduling`.

use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write;

use objects::types::{Node, Pod, PodCondition};
use scheduling::ANNOTATIONS;
use serde::Serialize;

/// A pod as the informer delivers it.
#[derive(Debug)]
pub(crate) struct ObservedPod {
    pub(crate) state: PodState,
    pub(crate) object: Pod,
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
    pub(crate) rejected_condition: Option<PodCondition>,
    /// A hash of labels and resources: the fields of a bound pod whose changes matter to other
    /// pods.
    pub(crate) fingerprint: u64,
}

/// The scheduler of pods without a `schedulerName`.
const OUR_NAME: &str = "default-scheduler";

pub(crate) fn pod(pod: Pod) -> ObservedPod {
    let containers = pod.spec.containers.iter();
    let resources: Vec<_> = containers.map(|container| &container.resources).collect();
    let is_rejection =
        |condition: &&PodCondition| condition.kind == "PodScheduled" && condition.status == "False";
    let state = PodState {
        uid: pod.metadata.uid.as_str().into(),
        generation: pod.metadata.generation,
        priority: pod.spec.priority.unwrap_or(0),
        gated: !pod.spec.scheduling_gates.is_empty(),
        bound: !pod.spec.node_name.is_empty(),
        ended: matches!(pod.status.phase.as_str(), "Succeeded" | "Failed"),
        ending: pod.metadata.deletion_timestamp.is_some(),
        ours: matches!(pod.spec.scheduler_name.as_str(), "" | OUR_NAME),
        nominated: pod.status.nominated_node_name.as_str().into(),
        rejected_condition: pod.status.conditions.iter().find(is_rejection).cloned(),
        fingerprint: hash(&(&pod.metadata.labels, &pod.spec.qos_resources, resources)),
    };
    ObservedPod { state, object: pod }
}

/// Returns a hash of the JSON text of a value.
fn hash(value: &impl Serialize) -> u64 {
    struct HashWriter(DefaultHasher);

    impl Write for HashWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut writer = HashWriter(DefaultHasher::new());
    // Structures with text keys always serialize.
    let _ = serde_json::to_writer(&mut writer, value);
    writer.0.finish()
}

/// A node as the informer delivers it.
#[derive(Debug)]
pub(crate) struct ObservedNode {
    pub(crate) fingerprint: NodeFingerprint,
    pub(crate) object: Node,
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

pub(crate) fn node(node: Node) -> ObservedNode {
    let (spec, status) = (&node.spec, &node.status);
    let annotations = &node.metadata.annotations;
    let report: Vec<_> = ANNOTATIONS.iter().map(|name| annotations.get(*name)).collect();
    let fingerprint = NodeFingerprint {
        machine: report.iter().any(Option::is_some).then(|| hash(&report)),
        resources: hash(&(&status.allocatable, &status.qos_resources)),
        labels: hash(&node.metadata.labels),
        taints: hash(&(&spec.taints, spec.unschedulable)),
        other: hash(&(&status.declared_features, &status.images)),
    };
    ObservedNode { fingerprint, object: node }
}
