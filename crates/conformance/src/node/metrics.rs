//! Recorded metrics (kind `metrics`), compared with the agent's: [`check`].
//!
//! A metric is compared by name, type, label names and help where the recording has them. A metric
//! that the agent does not serve is a difference. Metrics of upstream's libraries about themselves
//! have no counterpart; [`NOT_APPLICABLE`] lists them with the reasons.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::Difference;
use super::text;

/// Prefixes of metrics that the agent deliberately does not serve, or not always, and the reason;
/// docs/reference/differences.md has the same list.
#[rustfmt::skip] // One a line.
pub(super) const NOT_APPLICABLE: &[(&str, &str)] = &[
    ("go_", "there is no Go runtime"),
    ("aggregator_", "there is no aggregated API in an agent"),
    ("apiserver_", "the agent does not contain the API server's libraries"),
    ("cardinality_enforcement_", "there is no registry that drops labels"),
    ("disabled_metrics_", "there is no registry that hides metrics"),
    ("hidden_metrics_", "there is no registry that hides metrics"),
    ("registered_metrics_", "there is no registry that hides metrics"),
    ("kubernetes_build_info", "Berth is another program with its own version"),
    ("rest_client_", "Berth has its own API client"),
    ("workqueue_", "there are no work queues"),
    ("process_max_fds", "the service manager sets limits of the process"),
    ("process_network_", "the kernel has no network statistics per process"),
    ("process_virtual_memory_max_bytes", "the service manager sets limits of the process"),
    ("dra_", "dynamic resources are not served"),
    ("csi_", "storage plugins are not served"),
    ("storage_operation_", "storage plugins are not served"),
    ("volume_", "storage plugins are not served"),
    ("force_cleaned_failed_volume_", "storage plugins are not served"),
    ("reconstruct_volume_", "volumes are found by their directories and not reconstructed"),
    ("kubelet_volume_metric_collection_", "storage plugins are not served"),
    ("kubelet_orphan_pod_cleaned_volumes", "counted in berth_left_behind_total"),
    ("kubelet_evented_pleg_", "the agent does not use the runtime's events"),
    ("kubelet_pleg_discard_events", "there is no channel that could drop events"),
    ("kubelet_pleg_pod_relist_duration_seconds", "each pod worker inspects its own pod"),
    ("kubelet_pod_watch_events_dropped_total", "the Pods API is not served"),
    ("kubelet_imagemanager_", "no record of pulled images is kept"),
    ("kubelet_image_manager_ensure_image_", "no record of pulled images is kept"),
    ("kubelet_graceful_shutdown_", "graceful shutdown of the node is not served"),
    ("kubelet_memory_qos_", "memory.min of the cgroups is not summed up"),
    ("kubelet_started_user_namespaced_pods_", "user namespaces are not served"),
    ("kubelet_node_startup_", "the agent does not know when the machine was requested"),
    ("kubelet_first_network_pod_", "the first pod is not distinguished from others"),
    ("kubelet_restarted_pods_total", "a restarted static pod is a new pod"),
    ("kubelet_container_log_filesystem_used_bytes", "reported in /stats/summary"),
    ("kubelet_cri_losing_support", "upstream decides which runtime versions Kubernetes supports"),
    ("kubelet_metrics_provider", "there is one provider"),
    ("kubelet_lifecycle_handler_http_fallbacks_total", "not counted"),
    ("kubelet_sleep_action_terminated_early_total", "not counted"),
    ("cadvisor_", "there is no cAdvisor"),
    ("container_blkio_", "reported for containers that have used a disk"),
    ("container_fs_reads_bytes_total", "reported for containers that have used a disk"),
    ("container_fs_reads_total", "reported for containers that have used a disk"),
    ("container_fs_writes_bytes_total", "reported for containers that have used a disk"),
    ("container_fs_writes_total", "reported for containers that have used a disk"),
    ("container_memory_events_", "cgroup v2 only"),
    ("container_memory_pg", "cgroup v2 only"),
    ("container_fs_inodes_", "reported in /stats/summary"),
    ("container_fs_io_", "the kernel does not count this per cgroup"),
    ("container_fs_limit_bytes", "reported in /stats/summary"),
    ("container_fs_read_seconds_total", "the kernel does not count this per cgroup"),
    ("container_fs_reads_merged_total", "the kernel does not count this per cgroup"),
    ("container_fs_sector_", "counted in container_fs_reads_bytes_total and container_fs_writes_bytes_total"),
    ("container_fs_usage_bytes", "reported in /stats/summary"),
    ("container_fs_write_seconds_total", "the kernel does not count this per cgroup"),
    ("container_fs_writes_merged_total", "the kernel does not count this per cgroup"),
    ("container_file_descriptors", "the agent does not inspect processes in containers"),
    ("container_sockets", "the agent does not inspect processes in containers"),
    ("container_ulimits_", "the agent does not inspect processes in containers"),
    ("container_health_state", "the runtime has no health checks; probes are in prober_probe_total"),
    ("container_creation_time_seconds", "see container_start_time_seconds"),
    ("container_spec_memory_reservation_limit_bytes", "no component sets this limit"),
    ("machine_cpu_books", "mainframe hardware"),
    ("machine_cpu_drawers", "mainframe hardware"),
    ("machine_nvm_", "persistent memory is not supported"),
];

/// A metric of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Parses the Prometheus text format, by metric name.
pub(super) fn read(text: &str) -> BTreeMap<String, Served> {
    let mut found: BTreeMap<String, Served> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            found.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            found.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            let sample = &line[..end];
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| sample.strip_suffix(suffix))
                .find(|name| found.get(*name).is_some_and(|metric| metric.kind == "histogram"));
            let Some(served) = found.get_mut(family.unwrap_or(sample)) else { continue };
            served.labels.extend(labels(&line[end..]).into_iter().filter(|name| name != "le"));
        }
    }
    found
}

/// Returns the label names in `{a="b",c="d"} 1`.
fn labels(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return names };
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut escaped = false;
        let end = after.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        let Some(end) = end else { break };
        rest = &after[end + 1..];
        if rest.starts_with('}') {
            break;
        }
    }
    names
}

/// Returns the differences between served and recorded metrics. Deliberately unserved ones begin
/// with [`NOT_SERVED`].
pub(super) fn check(line: &Value, served: &BTreeMap<String, Served>) -> Vec<Difference> {
    let mut found = Vec::new();
    for recorded in line["metrics"].as_array().into_iter().flatten() {
        let name = text(recorded, "name");
        let Some(ours) = served.get(name) else {
            found.push(Difference {
                what: format!("metric {name}"),
                expected: text(recorded, "type").to_owned(),
                got: match NOT_APPLICABLE.iter().find(|(begin, _)| name.starts_with(begin)) {
                    Some((_, why)) => format!("{NOT_SERVED}{why}"),
                    None => "none of that name".to_owned(),
                },
            });
            continue;
        };
        let mut differ = |what: &str, expected: String, got: String| {
            if expected != got {
                found.push(Difference { what: format!("{what} of {name}"), expected, got });
            }
        };
        differ("type", text(recorded, "type").to_owned(), ours.kind.clone());
        if let Some(help) = recorded["help"].as_str() {
            differ("help", help.to_owned(), ours.help.clone());
        }
        if let Some(labels) = recorded["labels"].as_array() {
            let labels: BTreeSet<String> =
                labels.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            differ("labels", format!("{labels:?}"), format!("{:?}", ours.labels));
        }
    }
    found
}

/// Prefix of a deliberately unserved metric.
pub(super) const NOT_SERVED: &str = "not served: ";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "\
# HELP a_total A.
# TYPE a_total counter
a_total{x=\"say \\\"}\\\"\",y=\"\"} 1
# HELP b_seconds B.
# TYPE b_seconds histogram
b_seconds_bucket{op=\"run\",le=\"0.5\"} 1
b_seconds_sum{op=\"run\"} 3
b_seconds_count{op=\"run\"} 3
";

    #[test]
    fn metrics_are_parsed_with_their_labels() {
        let found = read(TEXT);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a_total", "b_seconds"]);
        assert_eq!(found["a_total"].labels, BTreeSet::from(["x".to_owned(), "y".to_owned()]));
        assert_eq!(found["b_seconds"].labels, BTreeSet::from(["op".to_owned()]));
        assert_eq!(
            (found["b_seconds"].kind.as_str(), found["a_total"].help.as_str()),
            ("histogram", "A.")
        );
    }

    #[test]
    fn every_kind_of_difference_is_reported() {
        let served = read(TEXT);
        let check = |metric: Value, wanted: &[&str]| {
            let found = check(&json!({"metrics": [metric]}), &served);
            let differing: Vec<String> =
                found.iter().map(|d| format!("{}: {}", d.what, d.got)).collect();
            assert_eq!(differing, wanted);
        };
        check(
            json!({"name": "a_total", "type": "counter", "help": "A.", "labels": ["y", "x"]}),
            &[],
        );
        check(json!({"name": "a_total", "type": "counter"}), &[]);
        check(json!({"name": "a_total", "type": "gauge"}), &["type of a_total: counter"]);
        let labels = "labels of b_seconds: {\"op\"}";
        check(json!({"name": "b_seconds", "type": "histogram", "labels": []}), &[labels]);
        check(json!({"name": "c", "type": "gauge"}), &["metric c: none of that name"]);
        let of_go = "metric go_x: not served: there is no Go runtime";
        check(json!({"name": "go_x", "type": "gauge"}), &[of_go]);
    }

    #[test]
    fn unserved_metrics_are_documented() {
        let written = include_str!("../../../../docs/reference/differences.md");
        for (name, why) in NOT_APPLICABLE {
            assert!(written.contains(&format!("`{name}")), "{name} is not among the differences");
            assert!(written.contains(why), "{why} is not among the differences");
        }
    }
}
