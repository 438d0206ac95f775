//! Objects as controllers use them, reduced to the fields they need.
//!
//! Main types: [`Pod`] and [`Node`], of which there are many and which are kept small. Kinds with
//! few objects are kept as JSON ([`untyped`]) without `managedFields`.

use std::collections::BTreeMap;

use objects::timestamp::Timestamp;
use objects::types::{
    self, Affinity, ContainerStatus, MicroTime, NodeCondition, ObjectMeta, OwnerReference,
    PodCondition, PodStatus, Taint, Time, Toleration,
};
use serde_json::Value;

/// Seconds since 1970.
pub(crate) type Seconds = i64;

pub(crate) fn seconds(text: &str) -> Option<Seconds> {
    Timestamp::parse(text).ok().map(Timestamp::seconds)
}

/// Returns an object without `managedFields`.
pub(crate) fn untyped(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

fn created(metadata: &ObjectMeta) -> Seconds {
    metadata.creation_timestamp.map_or(0, Time::seconds)
}

fn deleting(metadata: &ObjectMeta) -> Option<Seconds> {
    metadata.deletion_timestamp.map(Time::seconds)
}

/// Returns the time of the delete request: `deletionTimestamp` is later by the grace period.
fn deletion_requested(metadata: &ObjectMeta) -> Option<Seconds> {
    Some(deleting(metadata)? - metadata.deletion_grace_period_seconds.unwrap_or(0))
}

fn controller(metadata: &mut ObjectMeta) -> Option<OwnerReference> {
    let is_controller = |owner: &OwnerReference| owner.controller == Some(true);
    let at = metadata.owner_references.iter().position(is_controller)?;
    Some(metadata.owner_references.swap_remove(at))
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

/// A container that exited with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) container: String,
    pub(crate) code: i32,
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
    pub(crate) owner: Option<OwnerReference>,
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
    pub(crate) restarts: i32,
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

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

/// Returns the time of the last change of a condition with this status.
fn since(condition: Option<&PodCondition>, status: &str) -> Option<Option<Seconds>> {
    let condition = condition.filter(|condition| condition.status == status)?;
    Some(condition.last_transition_time.map(Time::seconds))
}

/// Returns the containers in the order in which a cause of failure is searched.
fn all_containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.container_statuses.iter().chain(&status.init_container_statuses)
}

/// Returns the end of the last container; `None` while one may run.
fn containers_ended(status: &PodStatus) -> Option<Seconds> {
    let ended = |container: &ContainerStatus| {
        container.state.terminated.as_ref()?.finished_at.map(Time::seconds)
    };
    status.container_statuses.iter().map(ended).collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn exits(status: &PodStatus) -> Vec<Exit> {
    let exit = |container: &ContainerStatus| {
        let code = container.state.terminated.as_ref()?.exit_code;
        (code != 0).then(|| Exit { container: container.name.clone(), code })
    };
    all_containers(status).filter_map(exit).collect()
}

/// Returns the node name that the required affinity selects by field.
fn pinned(affinity: Option<&Affinity>) -> Option<String> {
    let required = &affinity?.node_affinity.as_ref()?;
    let required = required.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.iter().flat_map(|term| &term.match_fields);
    let names = fields.filter(|field| field.key == "metadata.name");
    names.filter_map(|field| field.values.last()).next_back().cloned()
}

pub(crate) fn pod(pod: types::Pod) -> Pod {
    let types::Pod { mut metadata, spec, status } = pod;
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
    let ready = condition(&status, "Ready");
    let bound = since(condition(&status, "PodScheduled"), "True").flatten();
    let ended = containers_ended(&status)
        .or_else(|| since(ready, "False").flatten())
        .or_else(|| deletion_requested(&metadata))
        .unwrap_or_else(|| created(&metadata));
    let owner = controller(&mut metadata);
    let of_job = owner.as_ref().is_some_and(|owner| owner.kind == "Job");
    let mut tolerations = spec.tolerations;
    tolerations.retain(|t| matches!(t.effect.as_str(), "" | "NoExecute"));
    Pod {
        created: created(&metadata),
        bound: bound.unwrap_or_else(|| created(&metadata)),
        deleting: deleting(&metadata),
        owner,
        revision: metadata.resource_version.parse().unwrap_or(0),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        labels: metadata.labels,
        finalizers: metadata.finalizers,
        node: spec.node_name,
        pinned: pinned(spec.affinity.as_deref()),
        phase: match status.phase.as_str() {
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            "Unknown" => Phase::Unknown,
            _ => Phase::Pending,
        },
        ready: since(ready, "True").map(|time| time.unwrap_or(0)),
        ready_condition: ready.is_some(),
        restarts: status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0),
        all_restarts: all_containers(&status).map(|c| i64::from(c.restart_count)).sum(),
        deletion_cost,
        completion_index,
        index_failures,
        tolerations,
        disruption_target: since(condition(&status, "DisruptionTarget"), "True").is_some(),
        scheduling_gates: !spec.scheduling_gates.is_empty(),
        has_deadline: spec.active_deadline_seconds.is_some(),
        ended,
        exits: if of_job { exits(&status) } else { Vec::new() },
        conditions: if of_job {
            status.conditions.into_iter().map(|c| (c.kind, c.status)).collect()
        } else {
            Vec::new()
        },
    }
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
    pub(crate) conditions: Vec<NodeCondition>,
}

impl Node {
    pub(crate) fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }
}

pub(crate) fn node(node: types::Node) -> Node {
    let types::Node { metadata, spec, status } = node;
    Node {
        created: created(&metadata),
        deleting: deleting(&metadata),
        name: metadata.name,
        uid: metadata.uid,
        labels: metadata.labels,
        unschedulable: spec.unschedulable,
        taints: spec.taints,
        conditions: status.conditions,
    }
}

/// The last renewal of a node's lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lease {
    pub(crate) renewed: Option<MicroTime>,
}

pub(crate) fn lease(types::Lease { spec, .. }: types::Lease) -> Lease {
    Lease { renewed: spec.renew_time }
}

/// The time at which an event was last observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventAge {
    pub(crate) last: Seconds,
}

pub(crate) fn event_age(event: types::Event) -> EventAge {
    let observed = event.series.and_then(|series| series.last_observed_time);
    let times = [event.last_timestamp, event.metadata.creation_timestamp];
    let times = times.into_iter().flatten().map(Time::seconds);
    EventAge { last: times.chain(observed.map(MicroTime::seconds)).max().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(object: &Value) -> Pod {
        super::pod(serde_json::from_value(object.clone()).unwrap())
    }

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
        let pod = read(&object);
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
            super::tests::read(&object)
        };
        let exit = |name: &str, code: i32, at: &str| {
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
