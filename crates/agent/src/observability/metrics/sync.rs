//! Durations and kinds of the agent's own work: [`SyncMetrics`].

use std::time::Duration;

use objects::QosClass;

use crate::runtime::lower::qos;
use lifecycle::spec::{Pod, Requirements};
use metrics::{Counter, Histogram, Registry};

/// Upper bounds in seconds: Prometheus' defaults, as upstream.
const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Upper bounds in seconds of the delay of a status: upstream's.
const STATUS_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// The kind of a sync of a pod worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncType {
    /// The first one.
    Create,
    /// The pod changed.
    Update,
    /// Something else changed, or nothing.
    Sync,
}

/// An operation on a pod's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupOperation {
    Create,
    Update,
    Destroy,
}

#[derive(Debug, Clone)]
pub struct SyncMetrics {
    syncs: Histogram,
    starts: Histogram,
    statuses: Histogram,
    cgroups: Histogram,
    sandboxes: Histogram,
    admitted: Counter,
    orphans: Counter,
    image_volumes: Counter,
    image_volumes_mounted: Counter,
    image_volumes_failed: Counter,
}

impl SyncMetrics {
    pub(super) fn new(registry: &Registry) -> SyncMetrics {
        let counter = |name, help| registry.counter(name, help, &[]);
        SyncMetrics {
            syncs: registry.histogram(
                "kubelet_pod_worker_duration_seconds",
                "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: \
                 create, update, or sync",
                &["operation_type"],
                BOUNDS,
            ),
            starts: registry.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
                &[],
                BOUNDS,
            ),
            statuses: registry.histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection \
                 of a change to pod status until the API is successfully updated for that pod, even if \
                 multiple intevening changes to pod status occur.",
                &[],
                STATUS_BOUNDS,
            ),
            cgroups: registry.histogram(
                "kubelet_cgroup_manager_duration_seconds",
                "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
                &["operation_type"],
                BOUNDS,
            ),
            sandboxes: registry.histogram(
                "kubelet_run_podsandbox_duration_seconds",
                "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by \
                 RuntimeClass.Handler.",
                &["runtime_handler"],
                BOUNDS,
            ),
            admitted: registry.counter(
                "kubelet_pod_level_resources_admission_total",
                "[ALPHA] Total number of pods admitted during Kubelet admission, categorized by \
                 resource configuration mode (pod_and_container_level, pod_level, container_level, or \
                 empty for unconfigured/BestEffort) and QoS class.",
                &["config_mode", "qos_class"],
            ),
            orphans: counter(
                "kubelet_orphaned_runtime_pods_total",
                "[ALPHA] Number of pods that have been detected in the container runtime without being \
                 already known to the pod worker. This typically indicates the kubelet was restarted \
                 while a pod was force deleted in the API or in the local configuration, which is \
                 unusual.",
            ),
            image_volumes: counter(
                "kubelet_image_volume_requested_total",
                "[BETA] Number of requested image volumes.",
            ),
            image_volumes_mounted: counter(
                "kubelet_image_volume_mounted_succeed_total",
                "[BETA] Number of successful image volume mounts.",
            ),
            image_volumes_failed: counter(
                "kubelet_image_volume_mounted_errors_total",
                "[BETA] Number of failed image volume mounts.",
            ),
        }
    }

    /// Counts a finished sync.
    pub fn synced(&self, sync_type: SyncType, took: Duration) {
        let operation = match sync_type {
            SyncType::Create => "create",
            SyncType::Update => "update",
            SyncType::Sync => "sync",
        };
        self.syncs.observe(&[operation], took.as_secs_f64());
    }

    /// Counts the start of a worker, with the time since the pod was seen.
    pub fn worker_starts(&self, after: Duration) {
        self.starts.observe(&[], after.as_secs_f64());
    }

    /// Counts a written status, with the time since it changed.
    pub fn status_written(&self, after: Duration) {
        self.statuses.observe(&[], after.as_secs_f64());
    }

    pub fn cgroup(&self, metrics: CgroupOperation, took: Duration) {
        let operation = match metrics {
            CgroupOperation::Create => "create",
            CgroupOperation::Update => "update",
            CgroupOperation::Destroy => "destroy",
        };
        self.cgroups.observe(&[operation], took.as_secs_f64());
    }

    /// Counts a created sandbox of a handler; the default one has an empty name.
    pub fn sandbox(&self, handler: &str, took: Duration) {
        self.sandboxes.observe(&[handler], took.as_secs_f64());
    }

    /// Counts an admitted pod that was not on the node before.
    pub fn admitted_pod(&self, pod: &Pod) {
        let class = match qos::class(pod) {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        };
        self.admitted.increment(&[mode(pod), class]);
    }

    /// Counts a pod in the runtime that is not known.
    pub fn orphan(&self) {
        self.orphans.increment(&[]);
    }

    /// Counts a container with this number of image volumes, created or failed.
    pub fn image_volumes(&self, count: usize, made: bool) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let became = if made { &self.image_volumes_mounted } else { &self.image_volumes_failed };
        self.image_volumes.add(&[], count);
        became.add(&[], count);
    }
}

/// Returns upstream's name of where a pod sets its resources.
fn mode(pod: &Pod) -> &'static str {
    let has_resources =
        |resources: &Requirements| !resources.requests.is_empty() || !resources.limits.is_empty();
    let whole = qos::pod_level(pod).is_some_and(has_resources);
    let parts = pod.containers().any(|(_, container)| has_resources(&container.resources));
    match (whole, parts) {
        (true, true) => "pod_and_container_level",
        (true, false) => "pod_level",
        (false, true) => "container_level",
        (false, false) => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_counted_by_where_their_resources_are_set() {
        let pod = |whole: bool, part: bool| -> Pod {
            let needs = json!({"requests": {"cpu": "1"}});
            let resources =
                |has_resources: bool| if has_resources { needs.clone() } else { json!({}) };
            let spec = json!({
                "resources": resources(whole),
                "containers": [{"name": "c", "resources": resources(part)}],
            });
            serde_json::from_value(json!({"spec": spec})).unwrap()
        };
        let registry = Registry::default();
        let metrics = SyncMetrics::new(&registry);
        for (whole, part) in [(true, true), (true, false), (false, true), (false, false)] {
            metrics.admitted_pod(&pod(whole, part));
        }
        let text = registry.render();
        for (mode, class) in [
            ("pod_and_container_level", "Burstable"),
            ("pod_level", "Burstable"),
            ("container_level", "Burstable"),
            ("", "BestEffort"),
        ] {
            let line = format!(
                "kubelet_pod_level_resources_admission_total{{config_mode=\"{mode}\",\
                 qos_class=\"{class}\"}} 1"
            );
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn work_is_measured_by_what_it_is_about() {
        let registry = Registry::default();
        let metrics = SyncMetrics::new(&registry);
        metrics.synced(SyncType::Create, Duration::from_millis(300));
        metrics.synced(SyncType::Sync, Duration::from_millis(1));
        metrics.cgroup(CgroupOperation::Destroy, Duration::from_millis(2));
        metrics.image_volumes(2, true);
        metrics.image_volumes(1, false);
        let text = registry.render();
        for line in [
            "kubelet_pod_worker_duration_seconds_bucket{operation_type=\"create\",le=\"0.5\"} 1",
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"} 1",
            "kubelet_cgroup_manager_duration_seconds_count{operation_type=\"destroy\"} 1",
            "kubelet_image_volume_requested_total 3",
            "kubelet_image_volume_mounted_succeed_total 2",
            "kubelet_image_volume_mounted_errors_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
