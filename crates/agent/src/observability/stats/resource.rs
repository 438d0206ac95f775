//! `/metrics/resource`: CPU, memory and swap of the node, its pods and their containers, for
//! metrics-server: [`families`]. Each value has its time.

use host::cgroups::Usage;
use metrics::{Family, Kind};
use objects::timestamp::Timestamp;

use super::summary::swap_limit;
use super::{ContainerUsage, PodUsage, Snapshot, known};

const SECOND: f64 = 1e9;

pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let node = &snapshot.node;
    let at = Some(snapshot.at);
    let seconds = |nanos: u64| nanos as f64 / SECOND;
    let bytes = |value: Option<u64>| value.map(|bytes| bytes as f64);
    let per_container = |kind, name, help, at, value: &dyn Fn(&ContainerUsage) -> Option<f64>| {
        let running = snapshot.pods.iter().flat_map(|pod| {
            pod.containers.iter().map(move |container| {
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", pod.namespace.as_str()),
                    ("pod", pod.name.as_str()),
                ];
                (labels, value(container))
            })
        });
        known(kind, name, help, at, running)
    };
    let per_pod = |kind, name, help, value: &dyn Fn(&Usage) -> Option<f64>| {
        let pods = snapshot.pods.iter().map(|pod: &PodUsage| {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", pod.name.as_str())];
            (labels, pod.group.as_ref().and_then(|group| value(&group.usage)))
        });
        known(kind, name, help, at, pods)
    };
    let single = |kind, name, help, at, value| known(kind, name, help, at, [([], value)]);
    let used = node.memory.map(|memory| memory.total.saturating_sub(memory.outside_working_set()));
    let swapped = node.memory.map(|memory| memory.swap_total.saturating_sub(memory.swap_free));
    let error = Some(if snapshot.failed { 1.0 } else { 0.0 });
    vec![
        per_container(
            Kind::Counter,
            "container_cpu_usage_seconds_total",
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            at,
            &|container| container.group.usage.cpu.map(seconds),
        ),
        per_container(
            Kind::Gauge,
            "container_memory_working_set_bytes",
            "[STABLE] Current working set of the container in bytes",
            at,
            &|container| bytes(container.group.usage.working_set),
        ),
        per_container(
            Kind::Gauge,
            "container_start_time_seconds",
            "[STABLE] Start time of the container since unix epoch in seconds",
            None,
            &|container| container.started.map(since_1970),
        ),
        per_container(
            Kind::Gauge,
            "container_swap_limit_bytes",
            "[ALPHA] Current amount of the container swap limit in bytes. Reported only on \
             non-windows systems",
            at,
            &|container| bytes(swap_limit(&container.group.usage, node)),
        ),
        per_container(
            Kind::Gauge,
            "container_swap_usage_bytes",
            "[ALPHA] Current amount of the container swap usage in bytes. Reported only on \
             non-windows systems",
            at,
            &|container| bytes(container.group.usage.swap),
        ),
        single(
            Kind::Counter,
            "node_cpu_usage_seconds_total",
            "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
            at,
            node.cpu.map(seconds),
        ),
        single(
            Kind::Gauge,
            "node_memory_working_set_bytes",
            "[STABLE] Current working set of the node in bytes",
            at,
            bytes(used),
        ),
        single(
            Kind::Gauge,
            "node_swap_usage_bytes",
            "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
            at,
            bytes(swapped),
        ),
        per_pod(
            Kind::Counter,
            "pod_cpu_usage_seconds_total",
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            &|usage| usage.cpu.map(seconds),
        ),
        per_pod(
            Kind::Gauge,
            "pod_memory_working_set_bytes",
            "[STABLE] Current working set of the pod in bytes",
            &|usage| bytes(usage.working_set),
        ),
        per_pod(
            Kind::Gauge,
            "pod_swap_usage_bytes",
            "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows \
             systems",
            &|usage| bytes(usage.swap),
        ),
        single(
            Kind::Gauge,
            "resource_scrape_error",
            "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
            None,
            error,
        ),
        single(
            Kind::Gauge,
            "scrape_error",
            "[ALPHA] 1 if there was an error while getting container metrics, 0 otherwise",
            None,
            error,
        ),
    ]
}

pub(super) fn since_1970(at: Timestamp) -> f64 {
    at.unix_nanos() as f64 / SECOND
}
