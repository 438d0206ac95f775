//! `/metrics/resource`: CPU, memory and swap of the node, its pods and their containers, for
//! metrics-server: [`render`]. Each value has its time.

use host::cgroups::Usage;
use objects::timestamp::Timestamp;

use super::summary::swap_limit;
use super::{PodUsage, Snapshot};
use crate::observability::prometheus::Text;

const SECOND: f64 = 1e9;

pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let node = &snapshot.node;
    let at = Some(snapshot.at);
    let seconds = |nanos: u64| nanos as f64 / SECOND;
    let per_container = |text: &mut Text, at, name, value: &dyn Fn(&Usage) -> Option<f64>| {
        each(snapshot, |pod, container| {
            let labels = [
                ("container", container.name.as_str()),
                ("namespace", pod.namespace.as_str()),
                ("pod", pod.name.as_str()),
            ];
            text.sample(name, &labels, value(&container.group.usage), at);
        });
    };
    let bytes = |value: Option<u64>| value.map(|bytes| bytes as f64);

    let name = "container_cpu_usage_seconds_total";
    let help = "[STABLE] Cumulative cpu time consumed by the container in core-seconds";
    text.family(name, help, "counter");
    per_container(&mut text, at, name, &|usage| usage.cpu.map(seconds));
    let name = "container_memory_working_set_bytes";
    text.family(name, "[STABLE] Current working set of the container in bytes", "gauge");
    per_container(&mut text, at, name, &|usage| bytes(usage.working_set));
    let name = "container_start_time_seconds";
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    text.family(name, help, "gauge");
    each(snapshot, |pod, container| {
        let labels = [
            ("container", container.name.as_str()),
            ("namespace", pod.namespace.as_str()),
            ("pod", pod.name.as_str()),
        ];
        text.sample(name, &labels, container.started.map(since_1970), None);
    });
    let name = "container_swap_limit_bytes";
    let help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on \
                non-windows systems";
    text.family(name, help, "gauge");
    per_container(&mut text, at, name, &|usage| bytes(swap_limit(usage, node)));
    let name = "container_swap_usage_bytes";
    let help = "[ALPHA] Current amount of the container swap usage in bytes. Reported only on \
                non-windows systems";
    text.family(name, help, "gauge");
    per_container(&mut text, at, name, &|usage| bytes(usage.swap));

    let name = "node_cpu_usage_seconds_total";
    text.family(
        name,
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        "counter",
    );
    text.sample(name, &[], node.cpu.map(seconds), at);
    let name = "node_memory_working_set_bytes";
    text.family(name, "[STABLE] Current working set of the node in bytes", "gauge");
    let used = node.memory.map(|memory| memory.total.saturating_sub(memory.outside_working_set()));
    text.sample(name, &[], bytes(used), at);
    let name = "node_swap_usage_bytes";
    let help =
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems";
    text.family(name, help, "gauge");
    let swapped = node.memory.map(|memory| memory.swap_total.saturating_sub(memory.swap_free));
    text.sample(name, &[], bytes(swapped), at);

    let per_pod = |text: &mut Text, name, value: &dyn Fn(&Usage) -> Option<f64>| {
        for pod in &snapshot.pods {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", pod.name.as_str())];
            text.sample(name, &labels, pod.group.as_ref().and_then(|of| value(&of.usage)), at);
        }
    };
    let name = "pod_cpu_usage_seconds_total";
    text.family(
        name,
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        "counter",
    );
    per_pod(&mut text, name, &|usage| usage.cpu.map(seconds));
    let name = "pod_memory_working_set_bytes";
    text.family(name, "[STABLE] Current working set of the pod in bytes", "gauge");
    per_pod(&mut text, name, &|usage| bytes(usage.working_set));
    let name = "pod_swap_usage_bytes";
    let help = "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows \
                systems";
    text.family(name, help, "gauge");
    per_pod(&mut text, name, &|usage| bytes(usage.swap));

    let error = Some(if snapshot.failed { 1.0 } else { 0.0 });
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    text.family("resource_scrape_error", &format!("[STABLE] {help}"), "gauge");
    text.sample("resource_scrape_error", &[], error, None);
    text.family("scrape_error", &format!("[ALPHA] {help}"), "gauge");
    text.sample("scrape_error", &[], error, None);
    text.into_string()
}

pub(super) fn since_1970(at: Timestamp) -> f64 {
    crate::clock::nanos(at) as f64 / SECOND
}

/// Returns every running container with its pod.
pub(super) fn each<'a>(
    snapshot: &'a Snapshot,
    mut take: impl FnMut(&'a PodUsage, &'a super::ContainerUsage),
) {
    for pod in &snapshot.pods {
        for container in &pod.containers {
            take(pod, container);
        }
    }
}
