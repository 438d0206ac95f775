//! The columns of every kind, with upstream's names and order and our own descriptions.

use super::Column;
use crate::catalog::Resource;

const fn column(name: &'static str, shape: &'static str, description: &'static str) -> Column {
    Column { name, shape, format: "", priority: 0, description }
}

const fn text(name: &'static str, description: &'static str) -> Column {
    column(name, "string", description)
}

const fn number(name: &'static str, description: &'static str) -> Column {
    column(name, "integer", description)
}

/// Shown with `-o wide` only.
const fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

const NAME: Column = Column {
    format: "name",
    ..text("Name", "The object's name, unique for its kind in its namespace.")
};
const AGE: Column = text("Age", "Time since the creation of the object.");
const CONTAINERS: Column = wide(text("Containers", "The names of the template's containers."));
const IMAGES: Column = wide(text("Images", "The images of the template's containers."));
const SELECTOR: Column = wide(text("Selector", "The selector of the object's pods."));

/// The columns of a kind without any of its own.
const PLAIN: &[Column] = &[NAME, column("Created At", "date", "The creation time of the object.")];

const POD: &[Column] = &[
    NAME,
    text("Ready", "The number of ready containers and of all containers."),
    text("Status", "The state of the pod, from its phase and its containers."),
    text("Restarts", "The number of container restarts, and the time since the last one."),
    AGE,
    wide(text("IP", "The pod's first address.")),
    wide(text("Node", "The node that the pod is bound to.")),
    wide(text("Nominated Node", "The node on which pods are preempted for this pod.")),
    wide(text("Readiness Gates", "The number of readiness gates that are true and of all gates.")),
];

const NODE: &[Column] = &[
    NAME,
    text("Status", "The readiness and schedulability of the node."),
    text("Roles", "The roles of the node, from its labels."),
    AGE,
    text("Version", "The version of the kubelet."),
    wide(text("Internal-IP", "The node's address inside the cluster.")),
    wide(text("External-IP", "The node's external address.")),
    wide(text("OS-Image", "The name of the operating system.")),
    wide(text("Kernel-Version", "The kernel version and the architecture.")),
    wide(text("Container-Runtime", "The container runtime and its version.")),
];

const EVENT: &[Column] = &[
    text("Last Seen", "Time since the last occurrence of the event."),
    text("Type", "Normal or Warning."),
    text("Reason", "The machine-readable reason of the event."),
    text("Object", "The object of the event."),
    wide(text("Subobject", "The part of the object that the event refers to.")),
    wide(text("Source", "The component that reported the event.")),
    text("Message", "The human-readable message."),
    wide(text("First Seen", "Time since the first occurrence of the event.")),
    wide(text("Count", "The number of occurrences.")),
    wide(NAME),
];

const SERVICE: &[Column] = &[
    NAME,
    text("Type", "The type of the service."),
    text("Cluster-IP", "The service's address inside the cluster."),
    text("External-IP", "The service's external addresses."),
    text("Port(s)", "The service's ports and node ports."),
    AGE,
    SELECTOR,
];

const DAEMON_SET: &[Column] = &[
    NAME,
    number("Desired", "The number of nodes that should run the pod."),
    number("Current", "The number of these nodes that run the pod."),
    number("Ready", "The number of these nodes with a ready pod."),
    number("Up-to-date", "The number of these nodes with a pod of the current template."),
    number("Available", "The number of these nodes with an available pod."),
    text("Node Selector", "The node selector of the pods."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const DEPLOYMENT: &[Column] = &[
    NAME,
    text("Ready", "The number of ready pods and of desired pods."),
    text("Up-to-date", "The number of pods with the current template."),
    text("Available", "The number of available pods."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const REPLICA_SET: &[Column] = &[
    NAME,
    number("Desired", "The desired number of pods."),
    number("Current", "The current number of pods."),
    number("Ready", "The number of ready pods."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const JOB: &[Column] = &[
    NAME,
    text("Status", "The state of the job."),
    text("Completions", "The number of succeeded pods and of required completions."),
    text("Duration", "The running time of the job."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const BUDGET: &[Column] = &[
    NAME,
    text("Min Available", "The minimum number of available pods."),
    text("Max Unavailable", "The maximum number of unavailable pods."),
    number("Allowed Disruptions", "The number of evictions that are currently allowed."),
    AGE,
];

const PRIORITY_CLASS: &[Column] = &[
    NAME,
    number("Value", "The priority of pods of this class."),
    column("Global-Default", "boolean", "True if this is the default class."),
    AGE,
    text("PreemptionPolicy", "The preemption policy of pods of this class."),
];

const CONTROLLER_REVISION: &[Column] = &[
    NAME,
    text("Controller", "The controller of the revision."),
    text("Revision", "The revision number."),
    AGE,
];

const QUOTA: &[Column] = &[
    NAME,
    text("Request", "Usage and hard limits of requests and object counts."),
    text("Limit", "Usage and hard limits of limits."),
    AGE,
];

/// The columns of the `scale` of a workload.
pub(super) const SCALE: &[Column] = &[
    NAME,
    number("Desired", "The desired number of pods."),
    number("Available", "The current number of pods."),
    AGE,
];

const NAMESPACE: &[Column] = &[NAME, text("Status", "The phase of the namespace."), AGE];
const CONFIG_MAP: &[Column] = &[NAME, text("Data", "The number of entries."), AGE];
const SECRET: &[Column] =
    &[NAME, text("Type", "The type of the secret."), text("Data", "The number of entries."), AGE];
const SERVICE_ACCOUNT: &[Column] = &[NAME, AGE];
const LEASE: &[Column] = &[NAME, text("Holder", "The holder of the lease."), AGE];
const RUNTIME_CLASS: &[Column] = &[NAME, text("Handler", "The name of the runtime handler."), AGE];

pub(super) fn of(resource: &Resource) -> &'static [Column] {
    match (resource.group, resource.kind) {
        ("", "Pod") => POD,
        ("", "Node") => NODE,
        ("" | "events.k8s.io", "Event") => EVENT,
        ("", "Service") => SERVICE,
        ("", "Namespace") => NAMESPACE,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "ServiceAccount") => SERVICE_ACCOUNT,
        ("", "ResourceQuota") => QUOTA,
        ("apps", "DaemonSet") => DAEMON_SET,
        ("apps", "Deployment") => DEPLOYMENT,
        ("apps", "ReplicaSet") => REPLICA_SET,
        ("apps", "ControllerRevision") => CONTROLLER_REVISION,
        ("batch", "Job") => JOB,
        ("policy", "PodDisruptionBudget") => BUDGET,
        ("scheduling.k8s.io", "PriorityClass") => PRIORITY_CLASS,
        ("node.k8s.io", "RuntimeClass") => RUNTIME_CLASS,
        ("coordination.k8s.io", "Lease") => LEASE,
        _ => PLAIN,
    }
}
