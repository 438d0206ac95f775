//! What the agent counts: [`Counters`], under upstream's names where it has some.

use std::sync::Arc;

use crate::metrics::{Counter, Gauge, Histogram, Registry};

/// All of the agent's metrics.
#[derive(Debug, Clone)]
pub struct Counters {
    pub registry: Arc<Registry>,
    pub cpu_pinning_requests: Counter,
    pub cpu_pinning_errors: Counter,
    pub shared_pool: Gauge,
    pub exclusive_cpus: Gauge,
    pub memory_pinning_requests: Counter,
    pub memory_pinning_errors: Counter,
    pub alignment_requests: Counter,
    pub alignment_errors: Counter,
    pub alignment_duration: Histogram,
    pub repaired: Counter,
    pub moved: Counter,
    pub left_behind: Counter,
    pub infeasible_resizes: Counter,
}

/// Bounds of the time an admission takes, in milliseconds: upstream's, from 50 µs doubling.
const ADMISSION_MILLIS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

impl Counters {
    #[must_use]
    pub fn new() -> Counters {
        let registry = Arc::new(Registry::default());
        let counter = |name: &'static str, help: &'static str| registry.counter(name, help, &[]);
        let gauge = |name: &'static str, help: &'static str| registry.gauge(name, help, &[]);
        Counters {
            cpu_pinning_requests: counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "[ALPHA] The number of cpu core allocations which required pinning.",
            ),
            cpu_pinning_errors: counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "[ALPHA] The number of cpu core allocations which required pinning failed.",
            ),
            shared_pool: gauge(
                "kubelet_cpu_manager_shared_pool_size_millicores",
                "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            ),
            exclusive_cpus: gauge(
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "[ALPHA] The total number of CPUs exclusively allocated to containers running on this \
                 node",
            ),
            memory_pinning_requests: counter(
                "kubelet_memory_manager_pinning_requests_total",
                "[ALPHA] The number of memory pages allocations which required pinning.",
            ),
            memory_pinning_errors: counter(
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
            repaired: registry.counter(
                "berth_repaired_containers_total",
                "Containers that were found elsewhere than where they were put, and put back.",
                &["what"],
            ),
            moved: counter(
                "berth_moved_containers_total",
                "Containers that were moved because the shared pool changed.",
            ),
            left_behind: registry.counter(
                "berth_left_behind_total",
                "Things that pods had left behind which are gone, and that were taken away.",
                &["what"],
            ),
            infeasible_resizes: registry.counter(
                "kubelet_pod_infeasible_resizes_total",
                "[ALPHA] Number of infeasible resizes for pods, by reason.",
                &["reason_detail"],
            ),
            registry,
        }
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::new()
    }
}
