//! Requests for CPUs and memory nodes, and their results: [`PlacementMetrics`].

use std::time::Duration;

use placement::alignment::{AlignmentPolicy, Scope};
use placement::node::{CpuPolicy, Node};
use placement::rationale::Refusal;
use placement::topology::Topology;
use placement::{CpuSet, Placement};

use metrics::{Counter, Histogram, Registry};

/// Upper bounds in milliseconds of the duration of an admission: upstream's, from 50 µs doubling.
const ADMISSION_MILLIS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

/// Exclusive CPUs of a container come from the node, not from a share of its pod.
const OF_NODE: &str = "node";
const EXCLUSIVE: &str = "node_exclusive";

#[derive(Debug, Clone)]
pub struct PlacementMetrics {
    cpu_requests: Counter,
    cpu_errors: Counter,
    memory_requests: Counter,
    memory_errors: Counter,
    alignment_requests: Counter,
    alignment_errors: Counter,
    alignment_duration: Histogram,
    aligned: Counter,
    not_aligned: Counter,
    allocations: Counter,
    allocation_errors: Counter,
    assignments: Counter,
}

impl PlacementMetrics {
    pub(super) fn new(registry: &Registry) -> PlacementMetrics {
        let counter = |name, help| registry.counter(name, help, &[]);
        let by_boundary = |name, help| registry.counter(name, help, &["boundary", "scope"]);
        let by_source = |name, help| registry.counter(name, help, &["resource_name", "source"]);
        let placements = PlacementMetrics {
            cpu_requests: counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "[ALPHA] The number of cpu core allocations which required pinning.",
            ),
            cpu_errors: counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "[ALPHA] The number of cpu core allocations which required pinning failed.",
            ),
            memory_requests: counter(
                "kubelet_memory_manager_pinning_requests_total",
                "[ALPHA] The number of memory pages allocations which required pinning.",
            ),
            memory_errors: counter(
                "kubelet_memory_manager_pinning_errors_total",
                "[ALPHA] The number of memory pages allocations which required pinning that failed.",
            ),
            alignment_requests: counter(
                "kubelet_topology_manager_admission_requests_total",
                "[ALPHA] The number of admission requests where resources have to be aligned.",
            ),
            alignment_errors: counter(
                "kubelet_topology_manager_admission_errors_total",
                "[ALPHA] The number of admission request failures where resources could not be aligned.",
            ),
            alignment_duration: registry.histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "[ALPHA] Duration in milliseconds to serve a pod admission request.",
                &[],
                &ADMISSION_MILLIS,
            ),
            aligned: by_boundary(
                "kubelet_container_aligned_compute_resources_count",
                "[ALPHA] Cumulative number of aligned compute resources allocated to containers by \
                 alignment type.",
            ),
            not_aligned: by_boundary(
                "kubelet_container_aligned_compute_resources_failure_count",
                "[ALPHA] Cumulative number of failures to allocate aligned compute resources to \
                 containers by alignment type.",
            ),
            allocations: by_source(
                "kubelet_resource_manager_allocations_total",
                "[ALPHA] Cumulative number of exclusive resource allocations by resource and source.",
            ),
            allocation_errors: by_source(
                "kubelet_resource_manager_allocation_errors_total",
                "[ALPHA] Cumulative number of exclusive resource allocations that failed, by resource \
                 and source.",
            ),
            assignments: registry.counter(
                "kubelet_resource_manager_container_assignments_total",
                "[ALPHA] Cumulative number of containers that were assigned a resource, by type of \
                 assignment.",
                &["resource_name", "assignment_type"],
            ),
        };
        // Present from the start, as upstream.
        for scope in [Scope::Container, Scope::Pod] {
            placements.aligned.add(&boundary("numa_node", scope), 0);
            placements.not_aligned.add(&boundary("numa_node", scope), 0);
        }
        placements.aligned.add(&boundary("physical_cpu", Scope::Container), 0);
        placements.not_aligned.add(&boundary("physical_cpu", Scope::Container), 0);
        placements.aligned.add(&boundary("uncore_cache", Scope::Container), 0);
        placements
    }

    /// Counts a placement that took this long.
    pub fn observe(&self, node: &Node, planned: Result<&Placement, &Refusal>, took: Duration) {
        if node.alignment.policy != AlignmentPolicy::None {
            self.alignment_requests.increment(&[]);
            self.alignment_duration.observe(&[], took.as_secs_f64() * 1000.0);
        }
        match planned {
            Ok(placement) => self.observe_placement(node, placement),
            Err(refusal) => self.observe_refusal(node, refusal),
        }
    }

    fn observe_placement(&self, node: &Node, placement: &Placement) {
        for cpus in placement.containers.iter().filter_map(|container| container.cpus.as_ref()) {
            self.cpu_requests.increment(&[]);
            self.allocations.increment(&["cpu", OF_NODE]);
            self.assignments.increment(&["cpu", EXCLUSIVE]);
            if has_whole_cores(node) {
                self.aligned.increment(&boundary("physical_cpu", Scope::Container));
            }
            if is_in_one_cache(&node.topology, cpus) {
                self.aligned.increment(&boundary("uncore_cache", Scope::Container));
            }
        }
        for _ in placement.containers.iter().filter(|container| container.memory.is_some()) {
            self.memory_requests.increment(&[]);
            self.allocations.increment(&["memory", OF_NODE]);
            self.assignments.increment(&["memory", EXCLUSIVE]);
        }
        if is_guaranteed(node) {
            let times = match node.alignment.scope {
                Scope::Pod => 1,
                Scope::Container => u64::try_from(placement.containers.len()).unwrap_or(0),
            };
            self.aligned.add(&boundary("numa_node", node.alignment.scope), times);
        }
    }

    fn observe_refusal(&self, node: &Node, refusal: &Refusal) {
        match refusal {
            Refusal::NotAligned { .. } => {
                if is_guaranteed(node) {
                    self.not_aligned.increment(&boundary("numa_node", node.alignment.scope));
                }
            }
            Refusal::WholeCores { .. } | Refusal::Cpus { .. } => {
                self.cpu_requests.increment(&[]);
                self.cpu_errors.increment(&[]);
                self.allocation_errors.increment(&["cpu", OF_NODE]);
                if has_whole_cores(node) {
                    self.not_aligned.increment(&boundary("physical_cpu", Scope::Container));
                }
            }
            Refusal::Memory { .. } => {
                self.memory_requests.increment(&[]);
                self.memory_errors.increment(&[]);
                self.allocation_errors.increment(&["memory", OF_NODE]);
            }
        }
        if node.alignment.policy != AlignmentPolicy::None {
            self.alignment_errors.increment(&[]);
        }
    }
}

fn boundary(boundary: &'static str, scope: Scope) -> [&'static str; 2] {
    let scope = match scope {
        Scope::Container => "container",
        Scope::Pod => "pod",
    };
    [boundary, scope]
}

fn has_whole_cores(node: &Node) -> bool {
    matches!(&node.cpu, CpuPolicy::Static(cpus) if cpus.options().full_cores)
}

/// Returns true if every admitted pod is on one NUMA node.
fn is_guaranteed(node: &Node) -> bool {
    node.alignment.policy == AlignmentPolicy::SingleNumaNode
}

fn is_in_one_cache(topology: &Topology, cpus: &CpuSet) -> bool {
    topology.caches().iter().any(|cache| cpus.is_subset(&cache.cpus))
}

#[cfg(test)]
mod tests {
    use objects::KubeletConfig;
    use objects::kubelet_config::{CpuManagerPolicy, TopologyManagerPolicy};
    use objects::pod::OsName;
    use placement::configured::Configured;

    use super::*;
    use crate::test_machine::machine;
    use lifecycle::placement_demand;

    /// Two NUMA nodes of four cores each, the first core for the system.
    fn node(config: KubeletConfig) -> Node {
        let machine = machine(OsName::Linux, 4, &[4 << 30, 4 << 30]);
        let config = KubeletConfig {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: Some("0".to_owned()),
            ..config
        };
        Configured::new(&machine, &config).unwrap().node
    }

    /// Returns the metrics after admitting a pod with one exclusive and one shared container.
    fn rendered(node: &Node, cpus: u32) -> String {
        let resources = serde_json::json!({"cpu": cpus.to_string(), "memory": "1Mi"});
        let shares = serde_json::json!({"cpu": "100m", "memory": "1Mi"});
        let pod = serde_json::json!({
            "metadata": {"uid": "u"},
            "spec": {"containers": [
                {"name": "c", "resources": {"requests": resources, "limits": resources}},
                {"name": "d", "resources": {"requests": shares, "limits": shares}},
            ]},
        });
        let demand = placement_demand(&serde_json::from_value(pod).unwrap());
        let ledger = node.empty_ledger();
        let planned = placement::plan(node, &ledger, &demand);
        let registry = Registry::default();
        PlacementMetrics::new(&registry).observe(node, planned.as_ref(), Duration::from_millis(1));
        registry.render()
    }

    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is not in {text}");
        }
    }

    #[test]
    fn allocations_on_one_node_and_cache_count_as_aligned() {
        let single = KubeletConfig {
            topology_manager_policy: TopologyManagerPolicy::SingleNumaNode,
            ..KubeletConfig::default()
        };
        let node = node(single);
        check(
            &rendered(&node, 4),
            &[
                "kubelet_cpu_manager_pinning_requests_total 1",
                "kubelet_container_aligned_compute_resources_count{boundary=\"numa_node\",\
                 scope=\"container\"} 2",
                "kubelet_container_aligned_compute_resources_count{boundary=\"uncore_cache\",\
                 scope=\"container\"} 1",
                "kubelet_container_aligned_compute_resources_count{boundary=\"physical_cpu\",\
                 scope=\"container\"} 0",
                "kubelet_resource_manager_allocations_total{resource_name=\"cpu\",source=\"node\"} 1",
                "kubelet_resource_manager_container_assignments_total{resource_name=\"cpu\",\
                 assignment_type=\"node_exclusive\"} 1",
            ],
        );
        check(
            &rendered(&node, 5),
            &[
                "kubelet_topology_manager_admission_errors_total 1",
                "kubelet_cpu_manager_pinning_requests_total 0",
                "kubelet_container_aligned_compute_resources_failure_count{boundary=\"numa_node\",\
                 scope=\"container\"} 1",
            ],
        );
    }

    #[test]
    fn failed_cpu_allocations_are_not_counted_as_memory() {
        let whole = KubeletConfig {
            cpu_manager_policy_options: [("full-pcpus-only".to_owned(), "true".to_owned())].into(),
            ..KubeletConfig::default()
        };
        let node = node(whole);
        check(
            &rendered(&node, 3),
            &[
                "kubelet_topology_manager_admission_requests_total 0",
                "kubelet_container_aligned_compute_resources_count{boundary=\"physical_cpu\",\
                 scope=\"container\"} 1",
            ],
        );
        check(
            &rendered(&node, 8),
            &[
                "kubelet_cpu_manager_pinning_errors_total 1",
                "kubelet_memory_manager_pinning_errors_total 0",
                "kubelet_container_aligned_compute_resources_failure_count{boundary=\"physical_cpu\",\
                 scope=\"container\"} 1",
                "kubelet_resource_manager_allocation_errors_total{resource_name=\"cpu\",\
                 source=\"node\"} 1",
            ],
        );
    }
}
