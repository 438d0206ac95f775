//! Objects as controllers use them, reduced to the fields they need.
//!
//! Main types: [`Pod`] and [`Node`], of which there are many and which are kept small. Kinds with
//! few objects are kept as JSON ([`untyped`]) without `managedFields`.

use std::collections::BTreeMap;

use objects::taint;
use objects::timestamp::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Seconds since 1970.
pub(crate) type Seconds = i64;

pub(crate) fn seconds(text: &str) -> Option<Seconds> {
    Timestamp::parse(text).ok().map(Timestamp::seconds)
}

/// Returns an object without `managedFields`.
pub(crate) fn untyped(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let mut object: Value = serde_json::from_str(raw.get())?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    Ok(object)
}

/// An owner reference.
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
    deletion_grace_period_seconds: Option<i64>,
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

    /// Returns the time of the delete request: `deletionTimestamp` is later by the grace period.
    fn deletion_requested(&self) -> Option<Seconds> {
        Some(self.deleting()? - self.deletion_grace_period_seconds.unwrap_or(0))
    }

    fn controller(&mut self) -> Option<Owner> {
        let at = self.owner_references.iter().position(|owner| owner.controller)?;
        Some(self.owner_references.swap_remove(at))
    }
}

/// The phase of a pod.
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
    /// Reports whether the taint is tolerated; `compare` is the gate of the operators `Gt` and `Lt`.
    pub(crate) fn tolerates(&self, taint: &Taint, compare: bool) -> bool {
        let taint = taint::Taint::new(&taint.key, &taint.value, &taint.effect, |text| text);
        taint::Toleration::new(&self.key, &self.operator, &self.value, &self.effect, |text| text)
            .tolerates(&taint, compare)
    }
}

/// A container that exited with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) container: String,
    pub(crate) code: i64,
}

/// The number of pods of the same index of a job that failed before this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IndexFailures {
    pub(crate) counted: i64,
    pub(crate) ignored: i64,
}

impl IndexFailures {
    pub(crate) const COUNTED: &str = "batch.kubernetes.io/job-index-failure-count";
    pub(crate) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

    pub(crate) fn all(self) -> i64 {
        self.counted + self.ignored
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
    /// The time at which the pod was bound, or created if it was never bound.
    pub(crate) bound: Seconds,
    /// The node name that its required affinity selects by field, as daemon sets do.
    pub(crate) pinned: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) ready: Option<Seconds>,
    /// Restarts of the container with the most restarts, and of all containers.
    pub(crate) restarts: i64,
    pub(crate) all_restarts: i64,
    pub(crate) deletion_cost: i64,
    pub(crate) completion_index: Option<i64>,
    pub(crate) index_failures: IndexFailures,
    /// Those that speak of NoExecute taints.
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) disruption_target: bool,
    pub(crate) ready_condition: bool,
    pub(crate) scheduling_gates: bool,
    /// It has `activeDeadlineSeconds`, which decides the scope of quotas it is in.
    pub(crate) has_deadline: bool,
    /// The end time of a finished pod, taken from its containers, its readiness or its deletion.
    pub(crate) ended: Seconds,
    /// Exit codes of failed containers, and types and statuses of conditions. Only pods of jobs
    /// have them.
    pub(crate) exits: Vec<Exit>,
    pub(crate) conditions: Vec<(String, String)>,
}

impl Pod {
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Returns true if the pod is neither finished nor being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_finished() && self.deleting.is_none()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Ranks a pod by its progress: bound, running, ready.
    pub(crate) fn progress(&self) -> (bool, u8, bool) {
        let stage = match self.phase {
            Phase::Pending => 0,
            Phase::Unknown => 1,
            _ => 2,
        };
        (!self.node.is_empty(), stage, self.is_ready())
    }

    /// Returns true if the pod has been ready for at least `min_ready`.
    pub(crate) fn is_available(&self, min_ready: Seconds, now: Seconds) -> bool {
        self.ready.is_some_and(|since| min_ready == 0 || since + min_ready <= now)
    }

    pub(crate) fn key(&self) -> client::Key {
        client::Key::new(&self.namespace, &self.name)
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
    active_deadline_seconds: Option<i64>,
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
    init_container_statuses: Vec<ContainerStatus>,
}

impl PodStatus {
    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Returns the containers in the order in which a cause of failure is searched.
    fn all_containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.container_statuses.iter().chain(&self.init_container_statuses)
    }

    /// Returns the end of the last container; `None` while one may run.
    fn containers_ended(&self) -> Option<Seconds> {
        let ends = self.container_statuses.iter().map(ContainerStatus::ended);
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn became_unready(&self) -> Option<Seconds> {
        let ready = self.condition("Ready").filter(|ready| ready.status == "False")?;
        ready.last_transition_time.as_deref().and_then(seconds)
    }

    fn exits(&self) -> Vec<Exit> {
        let exit = |status: &ContainerStatus| {
            let code = status.state.terminated.as_ref()?.exit_code;
            (code != 0).then(|| Exit { container: status.name.clone(), code })
        };
        self.all_containers().filter_map(exit).collect()
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    restart_count: i64,
    state: ContainerState,
}

impl ContainerStatus {
    fn ended(&self) -> Option<Seconds> {
        self.state.terminated.as_ref()?.finished_at.as_deref().and_then(seconds)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    finished_at: Option<String>,
    exit_code: i64,
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
    let ready = status.condition("Ready").filter(|ready| ready.status == "True");
    let ready_since =
        ready.map(|ready| ready.last_transition_time.as_deref().and_then(seconds).unwrap_or(0));
    let number = |name: &str| metadata.annotations.get(name).and_then(|text| text.parse().ok());
    let deletion_cost = number("controller.kubernetes.io/pod-deletion-cost").unwrap_or(0);
    let completion_index = number("batch.kubernetes.io/job-completion-index");
    let failures = |name: &str| {
        let count = number(name).filter(|count| (0..=i64::from(i32::MAX)).contains(count));
        count.unwrap_or(0)
    };
    let index_failures = IndexFailures {
        counted: failures(IndexFailures::COUNTED),
        ignored: failures(IndexFailures::IGNORED),
    };
    let scheduled = status.condition("PodScheduled").filter(|scheduled| scheduled.status == "True");
    let bound = scheduled.and_then(|scheduled| scheduled.last_transition_time.as_deref());
    let ended = status.containers_ended().or_else(|| status.became_unready());
    let ended =
        ended.or_else(|| metadata.deletion_requested()).unwrap_or_else(|| metadata.created());
    let owner = metadata.controller();
    let of_job = owner.as_ref().is_some_and(|owner| owner.kind == "Job");
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
        bound: bound.and_then(seconds).unwrap_or_else(|| metadata.created()),
        deleting: metadata.deleting(),
        owner,
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
        ready_condition: status.condition("Ready").is_some(),
        restarts: status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0),
        all_restarts: status.all_containers().map(|c| c.restart_count).sum(),
        deletion_cost,
        completion_index,
        index_failures,
        tolerations,
        disruption_target: status.condition("DisruptionTarget").is_some_and(|c| c.status == "True"),
        scheduling_gates: !spec.scheduling_gates.is_empty(),
        has_deadline: spec.active_deadline_seconds.is_some(),
        ended,
        exits: if of_job { status.exits() } else { Vec::new() },
        conditions: if of_job {
            status.conditions.into_iter().map(|c| (c.kind, c.status)).collect()
        } else {
            Vec::new()
        },
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

/// The last renewal of a node's lease.
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

/// The time at which an event was last observed.
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
    fn pod_is_reduced_to_the_needed_fields() {
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
                {"type": "PodScheduled", "status": "True",
                    "lastTransitionTime": "1970-01-01T00:01:30Z"},
            ], "containerStatuses": [{"restartCount": 3}]},
        });
        let pod = pod(&to_raw_value(&object).unwrap()).unwrap();
        assert_eq!(pod.bound, 90);
        assert_eq!((pod.created, pod.ready, pod.restarts, pod.revision), (60, Some(120), 3, 7));
        assert_eq!((pod.deletion_cost, pod.tolerations.len()), (-5, 1));
        assert!(pod.is_active() && pod.owner.as_ref().is_some_and(|owner| owner.uid == "r"));
        assert!(pod.is_available(0, 0) && pod.is_available(10, 130) && !pod.is_available(10, 129));
    }

    #[test]
    fn job_pod_has_end_time_and_exit_codes() {
        let read = |status: Value, metadata: Value| {
            let mut object = json!({
                "metadata": {
                    "creationTimestamp": "1970-01-01T00:00:05Z",
                    "annotations": {IndexFailures::COUNTED: "2", IndexFailures::IGNORED: "-1"},
                    "ownerReferences": [{"kind": "Job", "uid": "j", "controller": true}],
                },
                "status": status,
            });
            for (key, value) in metadata.as_object().into_iter().flatten() {
                object["metadata"][key] = value.clone();
            }
            pod(&to_raw_value(&object).unwrap()).unwrap()
        };
        let exit = |name: &str, code: i64, at: &str| {
            json!({"name": name, "restartCount": 2, "state": {"terminated": {
                "exitCode": code, "finishedAt": format!("1970-01-01T00:01:{at}Z"),
            }}})
        };
        let unready = json!({
            "type": "Ready", "status": "False", "lastTransitionTime": "1970-01-01T00:02:00Z",
        });
        let deleted = json!({
            "deletionTimestamp": "1970-01-01T00:03:00Z", "deletionGracePeriodSeconds": 30,
        });
        let ended = read(
            json!({
                "containerStatuses": [exit("a", 3, "10"), exit("b", 0, "20")],
                "initContainerStatuses": [exit("i", 4, "00")],
                "conditions": [unready],
            }),
            json!({}),
        );
        let codes: Vec<_> = ended.exits.iter().map(|e| (e.container.as_str(), e.code)).collect();
        assert_eq!((codes, ended.ended), (vec![("a", 3), ("i", 4)], 80));
        assert_eq!((ended.restarts, ended.all_restarts), (2, 6));
        assert_eq!(ended.conditions, [("Ready".to_owned(), "False".to_owned())]);
        assert_eq!(ended.index_failures, IndexFailures { counted: 2, ignored: 0 });
        let runs = json!([exit("a", 0, "10"), {"name": "b", "state": {"running": {}}}]);
        let half = json!({"containerStatuses": runs, "conditions": [unready]});
        assert_eq!(read(half, deleted.clone()).ended, 120);
        assert_eq!(read(json!({}), deleted).ended, 150);
        let pending = read(json!({}), json!({}));
        assert_eq!((pending.ended, pending.bound), (5, 5));
        let other = json!({"ownerReferences": []});
        assert!(read(json!({"conditions": [unready]}), other).conditions.is_empty());
    }
}
