//! Objects as loops see them: as much as they need and no more.
//!
//! Main types: [`Pod`] and [`Node`], of which there are many and which are kept small. Kinds of which
//! there are few are kept as trees of JSON ([`tree`]), without the record of who wrote which field.

use std::collections::BTreeMap;

use objects::timestamp::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Seconds since 1970.
pub(crate) type Seconds = i64;

pub(crate) fn seconds(text: &str) -> Option<Seconds> {
    Timestamp::parse(text).ok().map(Timestamp::seconds)
}

/// An object as it is, without `managedFields`.
pub(crate) fn tree(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let mut object: Value = serde_json::from_str(raw.get())?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    Ok(object)
}

/// Who an object belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) controller: bool,
    pub(crate) block_owner_deletion: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    pub(crate) owner_references: Vec<Owner>,
    pub(crate) finalizers: Vec<String>,
}

impl Metadata {
    fn created(&self) -> Seconds {
        self.creation_timestamp.as_deref().and_then(seconds).unwrap_or(0)
    }

    fn deleting(&self) -> Option<Seconds> {
        self.deletion_timestamp.as_deref().and_then(seconds)
    }

    fn controller(&mut self) -> Option<Owner> {
        let at = self.owner_references.iter().position(|owner| owner.controller)?;
        Some(self.owner_references.swap_remove(at))
    }
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Phase {
    #[default]
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Toleration {
    pub(crate) key: String,
    pub(crate) operator: String,
    pub(crate) value: String,
    pub(crate) effect: String,
    pub(crate) toleration_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) effect: String,
    pub(crate) time_added: Option<String>,
}

impl Toleration {
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        if !self.effect.is_empty() && self.effect != taint.effect {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match self.operator.as_str() {
            "" | "Equal" => !self.key.is_empty() && self.value == taint.value,
            "Exists" => true,
            _ => false,
        }
    }
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) revision: u64,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) owner: Option<Owner>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) created: Seconds,
    pub(crate) deleting: Option<Seconds>,
    pub(crate) node: String,
    /// Names of nodes its required affinity asks for by field; what a daemon set pins its pods by.
    pub(crate) pinned: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) ready: Option<Seconds>,
    pub(crate) restarts: i64,
    pub(crate) deletion_cost: i64,
    pub(crate) completion_index: Option<i64>,
    /// Those that speak of NoExecute taints.
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) disruption_target: bool,
    pub(crate) ready_condition: bool,
    pub(crate) scheduling_gates: bool,
    /// When it ended, as far as its containers or its readiness tell.
    pub(crate) finished: Option<Seconds>,
}

impl Pod {
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Neither finished nor told to go.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_finished() && self.deleting.is_none()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Ready for at least this long; also when it will be.
    pub(crate) fn is_available(&self, min_ready: Seconds, now: Seconds) -> bool {
        self.ready.is_some_and(|since| min_ready == 0 || since + min_ready <= now)
    }

    pub(crate) fn key(&self) -> crate::key::Key {
        crate::key::Key::new(&self.namespace, &self.name)
    }
}

#[derive(Deserialize)]
struct PodText {
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
    tolerations: Vec<Toleration>,
    affinity: Affinity,
    scheduling_gates: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Terms,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Terms {
    node_selector_terms: Vec<Term>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Term {
    match_fields: Vec<FieldTerm>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FieldTerm {
    key: String,
    values: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    restart_count: i64,
    state: ContainerState,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    terminated: Terminated,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) last_transition_time: Option<String>,
    pub(crate) last_heartbeat_time: Option<String>,
}

pub(crate) fn pod(raw: &RawValue) -> Result<Pod, serde_json::Error> {
    let PodText { mut metadata, spec, status } = serde_json::from_str(raw.get())?;
    let condition = |kind: &str| status.conditions.iter().find(|c| c.kind == kind);
    let ready = condition("Ready").filter(|ready| ready.status == "True");
    let ready_since =
        ready.map(|ready| ready.last_transition_time.as_deref().and_then(seconds).unwrap_or(0));
    let number = |name: &str| metadata.annotations.get(name).and_then(|text| text.parse().ok());
    let deletion_cost = number("controller.kubernetes.io/pod-deletion-cost").unwrap_or(0);
    let completion_index = number("batch.kubernetes.io/job-completion-index");
    let ended = status.container_statuses.iter();
    let ended = ended.filter_map(|c| c.state.terminated.finished_at.as_deref().and_then(seconds));
    let unready = || condition("Ready")?.last_transition_time.as_deref().and_then(seconds);
    let finished = match status.phase.as_str() {
        "Succeeded" | "Failed" => ended.max().or_else(unready),
        _ => None,
    };
    let mut pinned = None;
    for term in spec.affinity.node_affinity.required.node_selector_terms {
        for mut field in term.match_fields {
            if field.key == "metadata.name" {
                pinned = field.values.pop().or(pinned);
            }
        }
    }
    let mut tolerations = spec.tolerations;
    tolerations.retain(|t| matches!(t.effect.as_str(), "" | "NoExecute"));
    Ok(Pod {
        created: metadata.created(),
        deleting: metadata.deleting(),
        owner: metadata.controller(),
        revision: metadata.resource_version.parse().unwrap_or(0),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        labels: metadata.labels,
        finalizers: metadata.finalizers,
        node: spec.node_name,
        pinned,
        phase: match status.phase.as_str() {
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            "Unknown" => Phase::Unknown,
            _ => Phase::Pending,
        },
        ready: ready_since,
        ready_condition: condition("Ready").is_some(),
        restarts: status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0),
        deletion_cost,
        completion_index,
        tolerations,
        disruption_target: condition("DisruptionTarget").is_some_and(|c| c.status == "True"),
        scheduling_gates: !spec.scheduling_gates.is_empty(),
        finished,
    })
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) created: Seconds,
    pub(crate) deleting: Option<Seconds>,
    pub(crate) unschedulable: bool,
    pub(crate) taints: Vec<Taint>,
    pub(crate) conditions: Vec<Condition>,
}

impl Node {
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

#[derive(Deserialize)]
struct NodeText {
    metadata: Metadata,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeStatus {
    conditions: Vec<Condition>,
}

pub(crate) fn node(raw: &RawValue) -> Result<Node, serde_json::Error> {
    let NodeText { metadata, spec, status } = serde_json::from_str(raw.get())?;
    Ok(Node {
        created: metadata.created(),
        deleting: metadata.deleting(),
        name: metadata.name,
        uid: metadata.uid,
        labels: metadata.labels,
        unschedulable: spec.unschedulable,
        taints: spec.taints,
        conditions: status.conditions,
    })
}

/// When somebody last said that a node lives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lease {
    pub(crate) renewed: String,
}

#[derive(Deserialize)]
struct LeaseText {
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    renew_time: Option<String>,
}

pub(crate) fn lease(raw: &RawValue) -> Result<Lease, serde_json::Error> {
    let text: LeaseText = serde_json::from_str(raw.get())?;
    Ok(Lease { renewed: text.spec.renew_time.unwrap_or_default() })
}

/// When an event was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventAge {
    pub(crate) last: Seconds,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventText {
    metadata: Metadata,
    #[serde(default)]
    last_timestamp: Option<String>,
    #[serde(default)]
    series: Option<Series>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Series {
    last_observed_time: Option<String>,
}

pub(crate) fn event_age(raw: &RawValue) -> Result<EventAge, serde_json::Error> {
    let event: EventText = serde_json::from_str(raw.get())?;
    let observed = event.series.and_then(|series| series.last_observed_time);
    let times = [event.last_timestamp, observed, event.metadata.creation_timestamp];
    let last = times.iter().flatten().filter_map(|text| seconds(text)).max();
    Ok(EventAge { last: last.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use serde_json::value::to_raw_value;

    #[test]
    fn a_pod_is_read_as_far_as_loops_need() {
        let object = json!({
            "metadata": {
                "name": "p", "namespace": "a", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "1970-01-01T00:01:00Z", "labels": {"x": "y"},
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-5"},
                "ownerReferences": [{"kind": "ReplicaSet", "uid": "r", "controller": true}],
            },
            "spec": {"nodeName": "n", "tolerations": [
                {"key": "a", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ]},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:02:00Z"},
            ], "containerStatuses": [{"restartCount": 3}]},
        });
        let pod = pod(&to_raw_value(&object).unwrap()).unwrap();
        assert_eq!((pod.created, pod.ready, pod.restarts, pod.revision), (60, Some(120), 3, 7));
        assert_eq!((pod.deletion_cost, pod.tolerations.len()), (-5, 1));
        assert!(pod.is_active() && pod.owner.as_ref().is_some_and(|owner| owner.uid == "r"));
        assert!(pod.is_available(0, 0) && pod.is_available(10, 130) && !pod.is_available(10, 129));
    }

    #[test]
    fn tolerations_match_by_key_value_and_effect() {
        let taint = Taint {
            key: "k".into(),
            value: "v".into(),
            effect: "NoExecute".into(),
            time_added: None,
        };
        for (key, operator, value, effect, tolerates) in [
            ("k", "", "v", "", true),
            ("k", "Equal", "v", "NoExecute", true),
            ("k", "Equal", "w", "", false),
            ("k", "Exists", "", "NoSchedule", false),
            ("", "Exists", "", "", true),
            ("", "Equal", "v", "", false),
            ("k", "Whatever", "v", "", false),
        ] {
            let toleration = Toleration {
                key: key.into(),
                operator: operator.into(),
                value: value.into(),
                effect: effect.into(),
                toleration_seconds: None,
            };
            assert_eq!(toleration.tolerates(&taint), tolerates, "{toleration:?}");
        }
    }
}
