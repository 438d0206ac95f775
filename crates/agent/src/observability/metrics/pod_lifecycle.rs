//! Metrics of pod lifecycles, from the pods in the cache: [`PodLifecycleMetrics`].
//!
//! A pod is counted when its status changes, so that changes seen by an earlier agent are not counted again.
//! Decides nothing.

use std::time::Duration;

use objects::timestamp::Timestamp;
use serde_json::Value;

use metrics::{Counter, Histogram, Registry};

/// Upper bounds in seconds of the startup time of pods: upstream's.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The start of the message of a rejected pod.
const REJECTED: &str = "Pod was rejected: ";

/// Durations that are not in a status.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartTiming {
    /// Time since the pod arrived.
    pub known: Duration,
    /// Time from the first image pull to the end of the last one.
    pub pulling: Duration,
}

#[derive(Debug, Clone)]
pub struct PodLifecycleMetrics {
    containers: Histogram,
    start: Histogram,
    start_total: Histogram,
    start_sli: Histogram,
    rejections: Counter,
    ends: Counter,
}

impl PodLifecycleMetrics {
    pub(super) fn new(registry: &Registry) -> PodLifecycleMetrics {
        let seconds = |name, help| registry.histogram(name, help, &[], STARTS);
        PodLifecycleMetrics {
            containers: registry.histogram(
                "kubelet_containers_per_pod_count",
                "[ALPHA] The number of containers per pod.",
                &[],
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            ),
            start: seconds(
                "kubelet_pod_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod \
                 starting to run",
            ),
            start_total: seconds(
                "kubelet_pod_start_total_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod since creation, including time to pull \
                 images and run init containers, measured from pod creation timestamp to when all \
                 its containers are reported as started and observed via watch",
            ),
            start_sli: seconds(
                "kubelet_pod_start_sli_duration_seconds",
                "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run \
                 init containers, measured from pod creation timestamp to when all its containers are \
                 reported as started and observed via watch",
            ),
            rejections: registry.counter(
                "kubelet_admission_rejections_total",
                "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
                &["reason"],
            ),
            ends: registry.counter(
                "kubelet_terminated_containers_total",
                "[ALPHA] Cumulative number of container terminations.",
                &["container_type", "exit_code", "reason"],
            ),
        }
    }

    /// Counts a pod that arrived.
    pub fn came(&self, pod: &Value) {
        let containers = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
        self.containers.observe(&[], containers as f64);
    }

    /// Counts a change of its status at `now`.
    pub fn changed(&self, pod: &Value, after: &Value, took: StartTiming, now: Timestamp) {
        let before = &pod["status"];
        if after["phase"] == "Running" && before["phase"] != "Running" {
            self.start.observe(&[], took.known.as_secs_f64());
            let created = pod["metadata"]["creationTimestamp"].as_str();
            if let Some(created) = created.and_then(|text| Timestamp::parse(text).ok()) {
                let nanos = now.unix_nanos().saturating_sub(created.unix_nanos());
                let total = nanos.max(0) as f64 / 1e9;
                self.start_total.observe(&[], total);
                let others = took.pulling.as_secs_f64() + initializing(after);
                self.start_sli.observe(&[], (total - others).max(0.0));
            }
        }
        let rejected = |status: &Value| {
            status["message"].as_str().is_some_and(|message| message.starts_with(REJECTED))
        };
        if rejected(after) && !rejected(before) {
            self.rejections.increment(&[after["reason"].as_str().unwrap_or_default()]);
        }
        for (list, kind) in [
            ("initContainerStatuses", "init_container"),
            ("containerStatuses", "container"),
            ("ephemeralContainerStatuses", "ephemeral_container"),
        ] {
            let known: Vec<&Value> = ends(&before[list]).map(|end| &end["containerID"]).collect();
            for end in ends(&after[list]) {
                // A container that never existed has not exited.
                if end["containerID"].is_string() && !known.contains(&&end["containerID"]) {
                    let code = end["exitCode"].to_string();
                    let reason = end["reason"].as_str().unwrap_or_default();
                    self.ends.increment(&[kind, &code, reason]);
                }
            }
        }
    }
}

/// Returns the seconds that exited init containers ran.
fn initializing(status: &Value) -> f64 {
    let time = |field: &Value| field.as_str().and_then(|text| Timestamp::parse(text).ok());
    let lasted = |end: &Value| {
        let (from, to) = (time(&end["startedAt"])?, time(&end["finishedAt"])?);
        Some(to.unix_nanos().saturating_sub(from.unix_nanos()).max(0) as f64 / 1e9)
    };
    ends(&status["initContainerStatuses"]).filter_map(lasted).sum()
}

/// Returns the terminated states of container statuses, current and last.
fn ends(statuses: &Value) -> impl Iterator<Item = &Value> {
    let statuses = statuses.as_array().map(Vec::as_slice).unwrap_or_default();
    let ends = |status| {
        let status: &Value = status;
        [&status["lastState"]["terminated"], &status["state"]["terminated"]]
    };
    statuses.iter().flat_map(ends).filter(|end| end.is_object())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_life_is_counted_once_however_often_it_is_shown() {
        let registry = Registry::default();
        let metrics = PodLifecycleMetrics::new(&registry);
        let mut pod = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{}, {}]},
            "status": {"phase": "Pending"},
        });
        metrics.came(&pod);
        let at = Timestamp::parse("2026-01-01T00:00:03Z").unwrap();
        let ended = json!({"containerID": "x://1", "exitCode": 3, "reason": "Error"});
        let status = json!({
            "phase": "Running",
            "initContainerStatuses": [{"state": {"terminated": {
                "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:02Z",
            }}}],
            "containerStatuses": [{"state": {"terminated": ended}}],
        });
        let took =
            StartTiming { known: Duration::from_secs(1), pulling: Duration::from_millis(500) };
        metrics.changed(&pod, &status, took, at);
        pod["status"] = status;
        let again = json!({
            "phase": "Running",
            "containerStatuses": [{"state": {"running": {}}, "lastState": {"terminated": ended}}],
        });
        metrics.changed(&pod, &again, StartTiming { known: Duration::from_secs(9), ..took }, at);
        let text = registry.render();
        for line in [
            "kubelet_containers_per_pod_count_sum 2",
            "kubelet_pod_start_duration_seconds_count 1",
            "kubelet_pod_start_duration_seconds_sum 1",
            "kubelet_pod_start_total_duration_seconds_sum 3",
            "kubelet_pod_start_sli_duration_seconds_sum 1.5",
            "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"3\",\
             reason=\"Error\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(!text.contains("rejections"), "{text}");
    }

    #[test]
    fn refused_pods_are_counted_by_reason() {
        let registry = Registry::default();
        let metrics = PodLifecycleMetrics::new(&registry);
        let status = json!({
            "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: too little",
        });
        let mut pod = json!({"status": {"phase": "Pending"}});
        metrics.changed(&pod, &status, StartTiming::default(), Timestamp::new(0, 0));
        pod["status"] = status.clone();
        metrics.changed(&pod, &status, StartTiming::default(), Timestamp::new(0, 0));
        let text = registry.render();
        assert!(text.contains("rejections_total{reason=\"OutOfcpu\"} 1\n"), "{text}");
    }
}
