//! What the agent counts: [`Counters`], under upstream's names where it has some.

use std::sync::Arc;

mod calls;
mod lives;
mod now;

pub use calls::Calls;
pub use lives::Lives;
pub use now::Now;

use crate::metrics::{Counter, Gauge, Histogram, Registry};
use crate::spec::Role;

/// All of the agent's metrics.
#[derive(Debug, Clone)]
pub struct Counters {
    pub registry: Arc<Registry>,
    /// What is told of probes, apart from the rest as upstream does.
    pub probes: Arc<Registry>,
    pub calls: Calls,
    pub lives: Lives,
    pub now: Now,
    pub node_name: Gauge,
    pub cgroup_version: Gauge,
    /// What this process uses.
    pub process: Process,
    pub cpu_pinning_requests: Counter,
    pub cpu_pinning_errors: Counter,
    pub shared_pool: Gauge,
    pub exclusive_cpus: Gauge,
    pub exclusive_cpus_by_node: Gauge,
    pub memory_pinning_requests: Counter,
    pub memory_pinning_errors: Counter,
    pub alignment_requests: Counter,
    pub alignment_errors: Counter,
    pub alignment_duration: Histogram,
    pub repaired: Counter,
    pub moved: Counter,
    pub left_behind: Counter,
    pub infeasible_resizes: Counter,
    pub started_containers: Counter,
    pub started_containers_errors: Counter,
    pub started_host_processes: Counter,
    pub started_host_processes_errors: Counter,
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
            exclusive_cpus_by_node: registry.gauge(
                "kubelet_cpu_manager_allocation_per_numa",
                "[ALPHA] Number of CPUs allocated per NUMA node",
                &["numa_node"],
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
            started_containers: registry.counter(
                "kubelet_started_containers_total",
                "[ALPHA] Cumulative number of containers started",
                &["container_type"],
            ),
            started_containers_errors: registry.counter(
                "kubelet_started_containers_errors_total",
                "[ALPHA] Cumulative number of errors when starting containers",
                &["container_type", "code"],
            ),
            started_host_processes: registry.counter(
                "kubelet_started_host_process_containers_total",
                "[ALPHA] Cumulative number of hostprocess containers started. This metric will only be \
                 collected on Windows.",
                &["container_type"],
            ),
            started_host_processes_errors: registry.counter(
                "kubelet_started_host_process_containers_errors_total",
                "[ALPHA] Cumulative number of errors when starting hostprocess containers. This metric \
                 will only be collected on Windows.",
                &["container_type", "code"],
            ),
            probes: Arc::default(),
            calls: Calls::new(&registry),
            lives: Lives::new(&registry),
            now: Now::new(&registry),
            node_name: registry.gauge(
                "kubelet_node_name",
                "[ALPHA] The node's name. The count is always 1.",
                &["node"],
            ),
            // Where there are no cgroups there is no version to tell.
            cgroup_version: registry
                .looked_up("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts."),
            process: Process::new(&registry),
            registry,
        }
    }

    /// A container is about to be started.
    pub fn starting(&self, role: Role, host_process: bool) {
        self.started_containers.increment(&[kind(role)]);
        if host_process {
            self.started_host_processes.increment(&[kind(role)]);
        }
    }

    /// It could not be, for the reason that its status gives.
    pub fn not_started(&self, role: Role, host_process: bool, reason: &str) {
        self.started_containers_errors.increment(&[kind(role), reason]);
        if host_process {
            self.started_host_processes_errors.increment(&[kind(role), reason]);
        }
    }
}

/// What this process uses, by the usual names.
#[derive(Debug, Clone)]
pub struct Process {
    cpu: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    open_files: Gauge,
}

impl Process {
    fn new(registry: &Registry) -> Process {
        // Told only where the system says it, hence with a series only then.
        let gauge = |name, help| registry.looked_up(name, help);
        Process {
            cpu: registry.looked_up_counter(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            ),
            resident: gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
            virtual_memory: gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
            open_files: gauge("process_open_fds", "Number of open file descriptors."),
        }
    }

    pub fn tell(&self, usage: host::facts::ProcessUsage) {
        self.cpu.set(&[], usage.cpu as f64 / 1e9);
        self.resident.set(&[], usage.resident as f64);
        self.virtual_memory.set(&[], usage.virtual_memory as f64);
        self.open_files.set(&[], usage.open_files as f64);
    }
}

/// How upstream names the kinds of containers.
fn kind(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::App => "container",
        Role::Ephemeral => "ephemeral_container",
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_processes_are_counted_beside_all_containers() {
        let counters = Counters::new();
        counters.starting(Role::App, true);
        counters.starting(Role::Sidecar, false);
        counters.not_started(Role::App, true, "CreateContainerError");
        let told = counters.registry.render();
        for line in [
            "kubelet_started_containers_total{container_type=\"container\"} 1",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_host_process_containers_total{container_type=\"container\"} 1",
            "kubelet_started_host_process_containers_errors_total{container_type=\"container\",\
             code=\"CreateContainerError\"} 1",
        ] {
            assert!(told.lines().any(|told| told == line), "{line} is not in {told}");
        }
    }
}
