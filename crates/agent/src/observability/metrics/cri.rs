//! Number and duration of calls to the runtime: [`CriMetrics`], updated by the client after every call.

use std::time::Duration;

use metrics::{Counter, Histogram, Registry};

/// Upper bounds in seconds: upstream's, from 5 ms by a factor of 2.5.
const BOUNDS: &[f64] = &[
    0.005,
    0.0125,
    0.031_25,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781_25,
    298.023_223_876_953_1,
    745.058_059_692_382_8,
];

#[derive(Debug, Clone)]
pub struct CriMetrics {
    total: Counter,
    errors: Counter,
    seconds: Histogram,
    started_pods: Counter,
    started_pods_errors: Counter,
}

impl CriMetrics {
    pub(super) fn new(registry: &Registry) -> CriMetrics {
        const BY: &[&str] = &["operation_type"];
        CriMetrics {
            total: registry.counter(
                "kubelet_runtime_operations_total",
                "[ALPHA] Cumulative number of runtime operations by operation type.",
                BY,
            ),
            errors: registry.counter(
                "kubelet_runtime_operations_errors_total",
                "[ALPHA] Cumulative number of runtime operation errors by operation type.",
                BY,
            ),
            seconds: registry.histogram(
                "kubelet_runtime_operations_duration_seconds",
                "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
                BY,
                BOUNDS,
            ),
            started_pods: registry.counter(
                "kubelet_started_pods_total",
                "[ALPHA] Cumulative number of pods started",
                &[],
            ),
            started_pods_errors: registry.counter(
                "kubelet_started_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods",
                &[],
            ),
        }
    }

    /// Counts a finished call.
    pub fn observe(&self, method: &str, took: Duration, failed: bool) {
        let operation = [operation(method)];
        self.total.increment(&operation);
        self.seconds.observe(&operation, took.as_secs_f64());
        if failed {
            self.errors.increment(&operation);
        }
        if method == "RunPodSandbox" {
            self.started_pods.increment(&[]);
            if failed {
                self.started_pods_errors.increment(&[]);
            }
        }
    }
}

/// Returns upstream's name of a call.
fn operation(method: &str) -> &'static str {
    match method {
        "Version" => "version",
        "Status" => "status",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "ListPodSandbox" => "list_podsandbox",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "UpdateContainerResources" => "update_container",
        "ReopenContainerLog" => "reopen_container_log",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "PortForward" => "port_forward",
        "ContainerStats" => "container_stats",
        "ListContainerStats" => "list_container_stats",
        "PodSandboxStats" => "podsandbox_stats",
        "ListPodSandboxStats" => "list_podsandbox_stats",
        "UpdateRuntimeConfig" => "update_runtime_config",
        "RuntimeConfig" => "runtime_config",
        "UpdatePodSandboxResources" => "update_podsandbox_resources",
        "ListImages" => "list_images",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "RemoveImage" => "remove_image",
        "ImageFsInfo" => "image_fs_info",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_upstreams_words() {
        let registry = Registry::default();
        let calls = CriMetrics::new(&registry);
        calls.observe("RunPodSandbox", Duration::from_millis(10), false);
        calls.observe("RunPodSandbox", Duration::from_millis(400), true);
        calls.observe("ListContainers", Duration::from_millis(1), false);
        let text = registry.render();
        for line in [
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 2",
            "kubelet_runtime_operations_total{operation_type=\"list_containers\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"run_podsandbox\",\
             le=\"0.0125\"} 1",
            "kubelet_started_pods_total 2",
            "kubelet_started_pods_errors_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
