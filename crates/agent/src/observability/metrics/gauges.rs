//! Values at the time of the request: [`PodGauges`], from the pods in the cache and the runtime's lists.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::runtime::relist::PodSummary;
use lifecycle::observed::ContainerState;
use metrics::{Gauge, Histogram, Registry};

/// Upper bounds in seconds: Prometheus' defaults, as upstream.
const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const SOURCE: &str = "kubernetes.io/config.source";

#[derive(Debug, Clone)]
pub struct PodGauges {
    running_pods: Gauge,
    running_containers: Gauge,
    looks: Histogram,
    between_looks: Histogram,
    last_look: Gauge,
    desired: Gauge,
    active: Gauge,
    working: Gauge,
    mirrors: Gauge,
    ephemeral: Gauge,
    resizes: Gauge,
}

impl PodGauges {
    pub(super) fn new(registry: &Registry) -> PodGauges {
        let seconds = |name, help| registry.histogram(name, help, &[], BOUNDS);
        PodGauges {
            running_pods: registry.gauge(
                "kubelet_running_pods",
                "[ALPHA] Number of pods that have a running pod sandbox",
                &[],
            ),
            running_containers: registry.gauge(
                "kubelet_running_containers",
                "[ALPHA] Number of containers currently running",
                &["container_state"],
            ),
            looks: seconds(
                "kubelet_pleg_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting pods in PLEG.",
            ),
            between_looks: seconds(
                "kubelet_pleg_relist_interval_seconds",
                "[ALPHA] Interval in seconds between relisting in PLEG.",
            ),
            last_look: registry.gauge(
                "kubelet_pleg_last_seen_seconds",
                "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
                &[],
            ),
            desired: registry.gauge(
                "kubelet_desired_pods",
                "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if \
                 the pod is not from the apiserver.",
                &["static"],
            ),
            active: registry.gauge(
                "kubelet_active_pods",
                "[ALPHA] The number of pods the kubelet considers active and which are being considered \
                 when admitting new pods. static is true if the pod is not from the apiserver.",
                &["static"],
            ),
            working: registry.gauge(
                "kubelet_working_pods",
                "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, \
                 whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the \
                 pod is static. An orphaned pod has been removed from local configuration or force \
                 deleted in the API and consumes resources that are not otherwise visible.",
                &["config", "lifecycle", "static"],
            ),
            mirrors: registry.gauge(
                "kubelet_mirror_pods",
                "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted \
                 static pod)",
                &[],
            ),
            ephemeral: registry.gauge(
                "kubelet_managed_ephemeral_containers",
                "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
                &[],
            ),
            resizes: registry.gauge(
                "kubelet_pod_in_progress_resizes",
                "[ALPHA] Number of in-progress resizes for pods.",
                &[],
            ),
        }
    }

    /// Counts a relist: its duration, the time since the last one, and its time.
    pub fn relisted(
        &self,
        summaries: &BTreeMap<String, PodSummary>,
        took: f64,
        since_last: Option<f64>,
        at: f64,
    ) {
        self.looks.observe(&[], took);
        if let Some(since_last) = since_last {
            self.between_looks.observe(&[], since_last);
        }
        self.last_look.set(&[], at);
        let ready = |pod: &&PodSummary| pod.sandboxes.values().any(|ready| *ready);
        self.running_pods.set(&[], summaries.values().filter(ready).count() as f64);
        let mut states = BTreeMap::new();
        for container in summaries.values().flat_map(|pod| pod.containers.values()) {
            let state = match container.state {
                ContainerState::Created => "created",
                ContainerState::Running => "running",
                ContainerState::Exited => "exited",
                ContainerState::Unknown => "unknown",
            };
            *states.entry(state).or_insert(0.0) += 1.0;
        }
        self.running_containers
            .set_all(states.into_iter().map(|(state, count)| (vec![state], count)));
    }

    /// Sets the counts of pods: those in the cache, the active static and other ones, and the wanted
    /// mirror pods.
    pub fn pods(&self, pods: &[Value], active: (usize, usize), mirrors: usize) {
        let mut desired = BTreeMap::from([("true", 0.0), ("", 0.0)]);
        let mut working = BTreeMap::new();
        for lifecycle in ["sync", "terminating", "terminated"] {
            for of_file in ["true", ""] {
                working.insert((lifecycle, of_file), 0.0);
            }
        }
        let (mut ephemeral, mut resizes) = (0, 0);
        for pod in pods {
            let from = pod["metadata"]["annotations"][SOURCE].as_str().unwrap_or("api");
            let of_file = if from == "api" { "" } else { "true" };
            *desired.entry(of_file).or_insert(0.0) += 1.0;
            let lifecycle = match pod["status"]["phase"].as_str() {
                Some("Succeeded" | "Failed") => "terminated",
                _ if pod["metadata"]["deletionTimestamp"].is_string() => "terminating",
                _ => "sync",
            };
            *working.entry((lifecycle, of_file)).or_insert(0.0) += 1.0;
            ephemeral += pod["spec"]["ephemeralContainers"].as_array().map_or(0, Vec::len);
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            resizes += conditions.filter(|of| of["type"] == "PodResizeInProgress").count();
        }
        self.desired.set_all(desired.into_iter().map(|(of_file, count)| (vec![of_file], count)));
        self.active.set_all([(vec!["true"], active.0 as f64), (vec![""], active.1 as f64)]);
        self.working.set_all(
            working
                .into_iter()
                .map(|((lifecycle, of_file), count)| (vec!["desired", lifecycle, of_file], count)),
        );
        self.mirrors.set(&[], mirrors as f64);
        self.ephemeral.set(&[], ephemeral as f64);
        self.resizes.set(&[], resizes as f64);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_counted_by_source_and_phase() {
        let registry = Registry::default();
        let now = PodGauges::new(&registry);
        let pods = [
            json!({"metadata": {"annotations": {SOURCE: "file"}}, "status": {"phase": "Running"}}),
            json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"ephemeralContainers": [{}]}}),
            json!({"status": {
                "phase": "Failed", "conditions": [{"type": "PodResizeInProgress"}],
            }}),
        ];
        now.pods(&pods, (1, 1), 4);
        let text = registry.render();
        for line in [
            "kubelet_desired_pods{static=\"true\"} 1",
            "kubelet_desired_pods{static=\"\"} 2",
            "kubelet_active_pods{static=\"true\"} 1",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"true\"} 1",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"terminating\",static=\"\"} 1",
            "kubelet_working_pods{config=\"desired\",lifecycle=\"terminated\",static=\"\"} 1",
            "kubelet_mirror_pods 4",
            "kubelet_managed_ephemeral_containers 1",
            "kubelet_pod_in_progress_resizes 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn containers_of_the_runtime_are_counted_by_state() {
        let registry = Registry::default();
        let now = PodGauges::new(&registry);
        let container = |state| crate::runtime::relist::ContainerSummary {
            name: "c".to_owned(),
            sandbox: "s".to_owned(),
            attempt: 0,
            state,
            created_at: 0,
        };
        let pod = PodSummary {
            sandboxes: BTreeMap::from([("s".to_owned(), true)]),
            containers: BTreeMap::from([
                ("1".to_owned(), container(ContainerState::Running)),
                ("2".to_owned(), container(ContainerState::Exited)),
            ]),
            ..PodSummary::default()
        };
        now.relisted(&BTreeMap::from([("u".to_owned(), pod)]), 0.2, None, 5.0);
        now.relisted(&BTreeMap::new(), 0.2, Some(1.0), 6.0);
        let text = registry.render();
        for line in [
            "kubelet_running_pods 0",
            "kubelet_pleg_last_seen_seconds 6",
            "kubelet_pleg_relist_duration_seconds_count 2",
            "kubelet_pleg_relist_interval_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(!text.contains("kubelet_running_containers"), "{text}");
    }
}
