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
const AGE: Column = text("Age", "How long ago the object was created.");
const CONTAINERS: Column = wide(text("Containers", "The names of the template's containers."));
const IMAGES: Column = wide(text("Images", "The images of the template's containers."));
const SELECTOR: Column = wide(text("Selector", "The labels by which the object's pods are found."));

/// The columns of a kind without any of its own.
const PLAIN: &[Column] = &[NAME, column("Created At", "date", "When the object was created.")];

const POD: &[Column] = &[
    NAME,
    text("Ready", "How many of the pod's containers are ready."),
    text("Status", "What the pod is doing, as its containers tell."),
    text("Restarts", "How often containers of the pod were restarted, and how long ago last."),
    AGE,
    wide(text("IP", "The pod's first address.")),
    wide(text("Node", "The node the pod is bound to.")),
    wide(text("Nominated Node", "The node where the pod waits for others to make room.")),
    wide(text("Readiness Gates", "How many of the pod's readiness gates are open.")),
];

const NODE: &[Column] = &[
    NAME,
    text("Status", "Whether the node is ready, and whether it takes pods."),
    text("Roles", "The roles the node's labels give it."),
    AGE,
    text("Version", "The version of the node's agent."),
    wide(text("Internal-IP", "The node's address inside the cluster.")),
    wide(text("External-IP", "The node's address for the world outside.")),
    wide(text("OS-Image", "The operating system, as it calls itself.")),
    wide(text("Kernel-Version", "The kernel's version, and the machine's architecture.")),
    wide(text("Container-Runtime", "The container runtime and its version.")),
];

const EVENT: &[Column] = &[
    text("Last Seen", "How long ago the event was last reported."),
    text("Type", "Normal or Warning."),
    text("Reason", "Why it happened, in one word."),
    text("Object", "What the event is about."),
    wide(text("Subobject", "The part of the object the event is about.")),
    wide(text("Source", "Who reported the event.")),
    text("Message", "What happened."),
    wide(text("First Seen", "How long ago the event was first reported.")),
    wide(text("Count", "How often the event was reported.")),
    wide(NAME),
];

const SERVICE: &[Column] = &[
    NAME,
    text("Type", "How the service is reached."),
    text("Cluster-IP", "The service's address inside the cluster."),
    text("External-IP", "The service's addresses for the world outside."),
    text("Port(s)", "The service's ports, with the nodes' ports that lead to them."),
    AGE,
    SELECTOR,
];

const DAEMON_SET: &[Column] = &[
    NAME,
    number("Desired", "How many nodes should run the pod."),
    number("Current", "How many of them run it."),
    number("Ready", "How many of them run it and have it ready."),
    number("Up-to-date", "How many of them run it by the newest template."),
    number("Available", "How many of them have had it ready for long enough."),
    text("Node Selector", "The labels a node needs."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const DEPLOYMENT: &[Column] = &[
    NAME,
    text("Ready", "How many of the wanted pods are ready."),
    text("Up-to-date", "How many pods are made by the newest template."),
    text("Available", "How many pods have been ready for long enough."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const REPLICA_SET: &[Column] = &[
    NAME,
    number("Desired", "How many pods there should be."),
    number("Current", "How many pods there are."),
    number("Ready", "How many pods are ready."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const JOB: &[Column] = &[
    NAME,
    text("Status", "How the job is getting on."),
    text("Completions", "How many pods succeeded, of how many."),
    text("Duration", "How long the job took, or has been running."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const BUDGET: &[Column] = &[
    NAME,
    text("Min Available", "How many pods must stay available."),
    text("Max Unavailable", "How many pods may be unavailable."),
    number("Allowed Disruptions", "How many pods may be evicted now."),
    AGE,
];

const PRIORITY_CLASS: &[Column] = &[
    NAME,
    number("Value", "The priority pods of the class get."),
    column("Global-Default", "boolean", "Whether pods that name no class get this one."),
    AGE,
    text("PreemptionPolicy", "Whether pods of the class may push out others."),
];

const CONTROLLER_REVISION: &[Column] = &[
    NAME,
    text("Controller", "The object this is a state of."),
    text("Revision", "The number of the state, counting up."),
    AGE,
];

const QUOTA: &[Column] = &[
    NAME,
    text("Request", "What is used and allowed of requests and counts."),
    text("Limit", "What is used and allowed of limits."),
    AGE,
];

/// The columns of the `scale` of a workload.
pub(super) const SCALE: &[Column] = &[
    NAME,
    number("Desired", "How many pods there should be."),
    number("Available", "How many pods there are."),
    AGE,
];

const NAMESPACE: &[Column] =
    &[NAME, text("Status", "Whether the namespace is in use or going away."), AGE];
const CONFIG_MAP: &[Column] = &[NAME, text("Data", "How many entries there are."), AGE];
const SECRET: &[Column] = &[
    NAME,
    text("Type", "What the secret is for."),
    text("Data", "How many entries there are."),
    AGE,
];
const SERVICE_ACCOUNT: &[Column] = &[NAME, AGE];
const LEASE: &[Column] = &[NAME, text("Holder", "Who holds the lease."), AGE];
const RUNTIME_CLASS: &[Column] =
    &[NAME, text("Handler", "What the node's runtime calls this way to run pods."), AGE];

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
