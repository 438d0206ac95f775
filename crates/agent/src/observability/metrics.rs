//! The agent's metrics: [`AgentMetrics`], with upstream's names where they exist.

use std::sync::Arc;

use objects::feature_gates::{FeatureGates, Gate, Stage};

mod cri;
mod gauges;
mod placement;
mod pod_lifecycle;
mod pod_resources;
mod sync;

pub use cri::CriMetrics;
pub use gauges::PodGauges;
pub use placement::PlacementMetrics;
pub use pod_lifecycle::{PodLifecycleMetrics, StartTiming};
pub use pod_resources::{PodResourcesCall, PodResourcesMetrics};
pub use sync::{CgroupOperation, SyncMetrics, SyncType};

use lifecycle::spec::Role;
use metrics::{Counter, Gauge, Registry};

/// All of the agent's metrics.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    pub registry: Arc<Registry>,
    /// Metrics of probes, on an endpoint of their own as upstream.
    pub probes: Arc<Registry>,
    pub cri: CriMetrics,
    pub pod_lifecycle: PodLifecycleMetrics,
    pub gauges: PodGauges,
    pub node_name: Gauge,
    pub cgroup_version: Gauge,
    features: Gauge,
    /// Resources of this process.
    pub process: Process,
    pub placement: PlacementMetrics,
    pub sync: SyncMetrics,
    /// Requests to the Pod Resources API.
    pub pod_resources: PodResourcesMetrics,
    pub shared_pool: Gauge,
    pub exclusive_cpus: Gauge,
    pub exclusive_cpus_by_node: Gauge,
    pub repaired: Counter,
    pub moved: Counter,
    pub left_behind: Counter,
    pub infeasible_resizes: Counter,
    pub started_containers: Counter,
    pub started_containers_errors: Counter,
    pub started_host_processes: Counter,
    pub started_host_processes_errors: Counter,
}

impl AgentMetrics {
    #[must_use]
    pub fn new() -> AgentMetrics {
        let registry = Arc::new(Registry::default());
        let counter = |name: &'static str, help: &'static str| registry.counter(name, help, &[]);
        let gauge = |name: &'static str, help: &'static str| registry.gauge(name, help, &[]);
        AgentMetrics {
            placement: PlacementMetrics::new(&registry),
            sync: SyncMetrics::new(&registry),
            pod_resources: PodResourcesMetrics::new(&registry),
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
            cri: CriMetrics::new(&registry),
            pod_lifecycle: PodLifecycleMetrics::new(&registry),
            gauges: PodGauges::new(&registry),
            node_name: registry.gauge(
                "kubelet_node_name",
                "[ALPHA] The node's name. The count is always 1.",
                &["node"],
            ),
            // Without cgroups there is no version.
            cgroup_version: registry
                .gauge_when_set("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts."),
            features: registry.gauge(
                "kubernetes_feature_enabled",
                "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
                &["name", "stage"],
            ),
            process: Process::new(&registry),
            registry,
        }
    }

    /// Sets which gates are on.
    pub fn gates(&self, gates: &FeatureGates) {
        for gate in Gate::ALL {
            let stage = match gate.stage() {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Ga => "",
                Stage::Deprecated => "DEPRECATED",
            };
            self.features.set(&[gate.name(), stage], f64::from(u8::from(gates.enabled(*gate))));
        }
    }

    /// Counts a container that is about to start.
    pub fn starting(&self, role: Role, host_process: bool) {
        self.started_containers.increment(&[kind(role)]);
        if host_process {
            self.started_host_processes.increment(&[kind(role)]);
        }
    }

    /// Counts a failed start, with the reason in its status.
    pub fn not_started(&self, role: Role, host_process: bool, reason: &str) {
        self.started_containers_errors.increment(&[kind(role), reason]);
        if host_process {
            self.started_host_processes_errors.increment(&[kind(role), reason]);
        }
    }
}

/// Resources of this process, with the usual names.
#[derive(Debug, Clone)]
pub struct Process {
    cpu: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    open_files: Gauge,
}

impl Process {
    fn new(registry: &Registry) -> Process {
        // A series exists only where the system provides the value.
        let gauge = |name, help| registry.gauge_when_set(name, help);
        Process {
            cpu: registry.counter_when_set(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            ),
            resident: gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
            virtual_memory: gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
            open_files: gauge("process_open_fds", "Number of open file descriptors."),
        }
    }

    pub fn observe(&self, usage: host::system::ProcessUsage) {
        self.cpu.set(&[], usage.cpu as f64 / 1e9);
        self.resident.set(&[], usage.resident as f64);
        self.virtual_memory.set(&[], usage.virtual_memory as f64);
        self.open_files.set(&[], usage.open_files as f64);
    }
}

/// Returns upstream's name of a kind of containers.
fn kind(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::App => "container",
        Role::Ephemeral => "ephemeral_container",
    }
}

impl Default for AgentMetrics {
    fn default() -> AgentMetrics {
        AgentMetrics::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_reported_with_their_stage() {
        let metrics = AgentMetrics::new();
        metrics.gates(&FeatureGates::default());
        let text = metrics.registry.render();
        for line in [
            "kubernetes_feature_enabled{name=\"WindowsCPUAndMemoryAffinity\",stage=\"ALPHA\"} 0",
            "kubernetes_feature_enabled{name=\"InPlacePodVerticalScaling\",stage=\"\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn host_processes_are_also_counted_as_containers() {
        let metrics = AgentMetrics::new();
        metrics.starting(Role::App, true);
        metrics.starting(Role::Sidecar, false);
        metrics.not_started(Role::App, true, "CreateContainerError");
        let text = metrics.registry.render();
        for line in [
            "kubelet_started_containers_total{container_type=\"container\"} 1",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_host_process_containers_total{container_type=\"container\"} 1",
            "kubelet_started_host_process_containers_errors_total{container_type=\"container\",\
             code=\"CreateContainerError\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
