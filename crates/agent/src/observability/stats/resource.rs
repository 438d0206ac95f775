//! `/metrics/resource`: CPU, memory and swap of the node, its pods and their containers, for
//! metrics-server: [`families`]. Each value has its time, except times and errors.

use metrics::{Family, Kind};
use objects::timestamp::Timestamp;

use super::summary::swap_limit;
use super::{ContainerUsage, NodeUsage, PodUsage, Snapshot, known};

const SECOND: f64 = 1e9;

/// One metric: its kind, name, help and reader.
type Figure<T> = (Kind, &'static str, &'static str, fn(&T, &NodeUsage) -> Option<f64>);

#[rustfmt::skip] // One a line.
const CONTAINERS: &[Figure<ContainerUsage>] = &[
    (Kind::Counter, "container_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the container in core-seconds", |c, _| seconds(c.group.usage.cpu)),
    (Kind::Gauge, "container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes", |c, _| bytes(c.group.usage.working_set)),
    (Kind::Gauge, STARTED, "[STABLE] Start time of the container since unix epoch in seconds", |c, _| c.started.map(since_1970)),
    (Kind::Gauge, "container_swap_limit_bytes", "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems", |c, node| bytes(swap_limit(&c.group.usage, node))),
    (Kind::Gauge, "container_swap_usage_bytes", "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems", |c, _| bytes(c.group.usage.swap)),
];

/// A time itself, which has none.
const STARTED: &str = "container_start_time_seconds";

#[rustfmt::skip] // One a line.
const NODE: &[Figure<NodeUsage>] = &[
    (Kind::Counter, "node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds", |node, _| seconds(node.cpu)),
    (Kind::Gauge, "node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes", |node, _| bytes(node.memory.map(|memory| memory.total.saturating_sub(memory.outside_working_set())))),
    (Kind::Gauge, "node_swap_usage_bytes", "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems", |node, _| bytes(node.memory.map(|memory| memory.swap_total.saturating_sub(memory.swap_free)))),
];

#[rustfmt::skip] // One a line.
const PODS: &[Figure<PodUsage>] = &[
    (Kind::Counter, "pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds", |pod, _| seconds(pod.group.as_ref()?.usage.cpu)),
    (Kind::Gauge, "pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", |pod, _| bytes(pod.group.as_ref()?.usage.working_set)),
    (Kind::Gauge, "pod_swap_usage_bytes", "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", |pod, _| bytes(pod.group.as_ref()?.usage.swap)),
];

#[rustfmt::skip] // One a line.
const ERRORS: &[(&str, &str)] = &[
    ("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise"),
    ("scrape_error", "[ALPHA] 1 if there was an error while getting container metrics, 0 otherwise"),
];

fn seconds(nanos: Option<u64>) -> Option<f64> {
    nanos.map(|nanos| nanos as f64 / SECOND)
}

fn bytes(value: Option<u64>) -> Option<f64> {
    value.map(|bytes| bytes as f64)
}

pub(super) fn since_1970(at: Timestamp) -> f64 {
    at.unix_nanos() as f64 / SECOND
}

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let Snapshot { at, node, pods, failed } = snapshot;
    let error = Some(if *failed { 1.0 } else { 0.0 });
    let mut families = Vec::new();
    for (kind, name, help, value) in CONTAINERS {
        let samples = pods.iter().flat_map(|pod| {
            pod.containers.iter().map(move |container| {
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", pod.namespace.as_str()),
                    ("pod", pod.name.as_str()),
                ];
                (labels, value(container, node))
            })
        });
        let at = Some(*at).filter(|_| *name != STARTED);
        families.push(known(*kind, *name, *help, at, samples));
    }
    for (kind, name, help, value) in NODE {
        families.push(known(*kind, *name, *help, Some(*at), [([], value(node, node))]));
    }
    for (kind, name, help, value) in PODS {
        let samples = pods.iter().map(|pod| {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", pod.name.as_str())];
            (labels, value(pod, node))
        });
        families.push(known(*kind, *name, *help, Some(*at), samples));
    }
    for (name, help) in ERRORS {
        families.push(known(Kind::Gauge, *name, *help, None, [([], error)]));
    }
    families
}
