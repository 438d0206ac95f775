//! Converts the resources of a pod to kernel terms: shares, quota, limits, OOM score; and to those of
//! Windows.
//!
//! [`of_container`] and [`of_sandbox`] for Linux, [`of_windows_container`] for Windows. Allocation is decided
//! elsewhere.

use cri::v1;
use objects::resources::{CPU, MEMORY, huge_page_size};
use objects::{QosClass, Quantity};

use super::input::{CgroupVersion, ContainerAffinity, NodeEnvironment, PodInput, SwapBehavior};
use super::qos;
use lifecycle::spec::{Container, Pod, Requirements, ResourceList, Role};

/// The shares of one CPU, and the smallest and largest value that the kernel accepts.
const SHARES_PER_CPU: i64 = 1024;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// The smallest quota in a period that the kernel accepts, in microseconds.
const MIN_QUOTA: i64 = 1000;
/// The value for no quota.
const NO_QUOTA: i64 = -1;

/// OOM scores: Guaranteed containers are killed last, BestEffort first.
const GUARANTEED_OOM: i64 = -997;
const BEST_EFFORT_OOM: i64 = 1000;

/// All processors together, in the unit of `CpuMaximum`.
const WHOLE_MACHINE: i64 = 10_000;

/// Converts a CPU request in millicores to shares.
#[must_use]
pub fn cpu_shares(milli: i64) -> i64 {
    let shares = i128::from(milli) * i128::from(SHARES_PER_CPU) / 1000;
    shares.clamp(MIN_SHARES.into(), MAX_SHARES.into()) as i64
}

/// Returns the microseconds in each `period` for a CPU limit in millicores; 0 means unlimited.
#[must_use]
pub fn cpu_quota(milli: i64, period: i64) -> i64 {
    if milli == 0 {
        return 0;
    }
    let quota = i128::from(milli) * i128::from(period) / 1000;
    quota.clamp(MIN_QUOTA.into(), i64::MAX.into()) as i64
}

fn basic(
    node_env: &NodeEnvironment,
    cpu_request: Option<i64>,
    cpu_limit: i64,
    memory_limit: i64,
    exclusive: bool,
) -> v1::LinuxContainerResources {
    let mut resources = v1::LinuxContainerResources {
        // A limit without a request is also a request, also in pods that were not defaulted.
        cpu_shares: cpu_shares(cpu_request.unwrap_or(cpu_limit)),
        memory_limit_in_bytes: memory_limit,
        ..Default::default()
    };
    if let Some(period) = node_env.cpu_quota_period {
        resources.cpu_period = period;
        // With exclusive CPUs a quota is not needed, and would only cost latency.
        resources.cpu_quota = if exclusive { NO_QUOTA } else { cpu_quota(cpu_limit, period) };
    }
    if is_v2(node_env) && !node_env.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    resources
}

fn is_v2(node_env: &NodeEnvironment) -> bool {
    node_env.cgroups.version == CgroupVersion::V2
}

fn milli(amounts: &ResourceList, name: &str) -> Option<i64> {
    amounts.get(name).map(Quantity::milli_value)
}

fn bytes(amounts: &ResourceList, name: &str) -> i64 {
    amounts.get(name).map_or(0, Quantity::value)
}

/// Returns the resources of the pod as a whole, without its overhead.
#[must_use]
pub fn of_sandbox(input: &PodInput<'_>) -> v1::LinuxContainerResources {
    let (requests, limits) = (qos::requests(input.pod), qos::limits(input.pod));
    let exclusive = input
        .pod
        .containers()
        .filter_map(|(_, container)| input.affinities.get(&container.name))
        .any(|affinity| affinity.exclusive);
    basic(
        input.node_env,
        milli(&requests, CPU),
        milli(&limits, CPU).unwrap_or_default(),
        bytes(&limits, MEMORY),
        exclusive,
    )
}

/// Returns the overhead of the runtime for the pod; request and limit are equal.
#[must_use]
pub fn of_overhead(input: &PodInput<'_>) -> v1::LinuxContainerResources {
    let overhead = &input.pod.spec.overhead;
    if overhead.is_empty() {
        return v1::LinuxContainerResources::default();
    }
    let cpu = milli(overhead, CPU).unwrap_or_default();
    basic(input.node_env, Some(cpu), cpu, bytes(overhead, MEMORY), false)
}

/// Returns the resources of a container, without its cpuset.
#[must_use]
pub fn of_container(
    input: &PodInput<'_>,
    container: &Container,
    role: Role,
) -> v1::LinuxContainerResources {
    let (pod, node_env) = (input.pod, input.node_env);
    let requests = &container.resources.requests;
    let exclusive =
        input.affinities.get(&container.name).is_some_and(|affinity| affinity.exclusive);
    let mut resources = basic(
        node_env,
        milli(requests, CPU),
        limit(pod, container, CPU).map_or(0, Quantity::milli_value),
        limit(pod, container, MEMORY).map_or(0, Quantity::value),
        exclusive,
    );
    resources.oom_score_adj = oom_score(input, container, role);
    resources.hugepage_limits = huge_pages(pod, container, node_env);
    set_swap(&mut resources, input, container);
    set_memory_protection(&mut resources, &container.resources, node_env);
    resources
}

/// Returns the container's own limit, or the pod-level one.
fn limit<'a>(pod: &'a Pod, container: &'a Container, name: &str) -> Option<&'a Quantity> {
    let own = container.resources.limits.get(name).filter(|limit| !limit.is_zero());
    own.or_else(|| qos::pod_level(pod)?.limits.get(name))
}

/// Returns the OOM score: the less memory a container requests, the earlier it is killed.
#[must_use]
pub fn oom_score(input: &PodInput<'_>, container: &Container, role: Role) -> i64 {
    let (pod, capacity) = (input.pod, input.node_env.memory_capacity);
    if qos::is_node_critical(input) {
        return GUARANTEED_OOM;
    }
    match qos::class(pod) {
        QosClass::Guaranteed => return GUARANTEED_OOM,
        QosClass::BestEffort => return BEST_EFFORT_OOM,
        QosClass::Burstable => {}
    }
    let request = |container: &Container| bytes(&container.resources.requests, MEMORY);
    let spare = spare_memory(pod);
    let score = |request: i64| {
        let share = 1000 * i128::from(request.saturating_add(spare)) / i128::from(capacity.max(1));
        1000 - i64::try_from(share).unwrap_or(i64::MAX)
    };
    let mut adjust = score(request(container));
    if role == Role::Sidecar {
        // A sidecar is not killed before the containers that it serves.
        let least = pod.spec.containers.iter().map(request).min().unwrap_or_default();
        adjust = adjust.min(score(least));
    }
    // Before any Guaranteed container, and after any BestEffort one.
    adjust.clamp(1000 + GUARANTEED_OOM, BEST_EFFORT_OOM - 1)
}

/// Returns each container's part of the pod-level memory request that no container requests.
fn spare_memory(pod: &Pod) -> i64 {
    let whole = qos::pod_level(pod).map_or(0, |resources| bytes(&resources.requests, MEMORY));
    let count = pod.spec.containers.len() + pod.spec.init_containers.len();
    if whole == 0 || count == 0 {
        return 0;
    }
    let of_containers = bytes(&qos::requests_of_containers(pod), MEMORY);
    whole.saturating_sub(of_containers) / count as i64
}

/// Returns a limit for every huge page size of the kernel; 0 without a request.
fn huge_pages(
    pod: &Pod,
    container: &Container,
    node_env: &NodeEnvironment,
) -> Vec<v1::HugepageLimit> {
    let find = |limits: &ResourceList, size: i64| {
        limits
            .iter()
            .find(|(name, _)| huge_page_size(name) == Some(size))
            .map(|(_, limit)| limit.value())
    };
    let of_size = |size: &i64| {
        let own = find(&container.resources.limits, *size);
        let limit = own.or_else(|| find(&qos::pod_level(pod)?.limits, *size)).unwrap_or_default();
        v1::HugepageLimit {
            page_size: page_size_name(*size),
            limit: u64::try_from(limit).unwrap_or_default(),
        }
    };
    node_env.huge_page_sizes.iter().map(of_size).collect()
}

/// Formats a size such as `2MB`, as in the names of cgroup files.
pub(crate) fn page_size_name(bytes: i64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1024 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", units[unit])
}

/// Sets the swap limit of the container: zero, or its part of the machine's swap.
fn set_swap(
    resources: &mut v1::LinuxContainerResources,
    input: &PodInput<'_>,
    container: &Container,
) {
    let node_env = input.node_env;
    if !node_env.cgroups.swap_controller {
        return;
    }
    if !is_v2(node_env) {
        // The limit of memory and swap together equals that of memory.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        return;
    }
    let request = bytes(&container.resources.requests, MEMORY);
    let may_swap = node_env.swap == SwapBehavior::LimitedSwap
        && qos::class(input.pod) == QosClass::Burstable
        && !qos::is_critical(input)
        && request != bytes(&container.resources.limits, MEMORY);
    let swap = match may_swap && (0..=node_env.memory_capacity).contains(&request) {
        true => {
            (request as f64 / node_env.memory_capacity.max(1) as f64
                * node_env.swap_capacity as f64) as i64
        }
        false => 0,
    };
    resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
}

/// Gate `MemoryQoS`: protects the requested memory, and throttles above a point below the limit.
fn set_memory_protection(
    resources: &mut v1::LinuxContainerResources,
    requirements: &Requirements,
    node_env: &NodeEnvironment,
) {
    let Some(factor) = node_env.memory_throttling.filter(|_| is_v2(node_env)) else { return };
    let (request, limit) =
        (bytes(&requirements.requests, MEMORY), bytes(&requirements.limits, MEMORY));
    if request != 0 {
        resources.unified.insert("memory.min".to_owned(), request.to_string());
    }
    if request == limit {
        return;
    }
    let ceiling = if limit != 0 { limit } else { bytes(&node_env.allocatable, MEMORY) };
    if ceiling <= 0 {
        return;
    }
    let page = node_env.page_size.max(1);
    let high = request as f64 + (ceiling as f64 - request as f64) * factor;
    let high = (high / page as f64).floor() as i64 * page;
    if high > request {
        resources.unified.insert("memory.high".to_owned(), high.to_string());
    }
}

/// Sets the CPUs and memory nodes of a container.
pub(super) fn set_cpuset(
    resources: &mut v1::LinuxContainerResources,
    affinity: &ContainerAffinity,
) {
    resources.cpuset_cpus = affinity.cpus.to_string();
    let mems: Vec<String> = affinity.mems.iter().map(ToString::to_string).collect();
    resources.cpuset_mems = mems.join(",");
}

/// Returns the resources of a Windows container, without its affinity.
#[must_use]
pub fn of_windows_container(
    node_env: &NodeEnvironment,
    container: &Container,
) -> v1::WindowsContainerResources {
    let limits = &container.resources.limits;
    let mut resources = v1::WindowsContainerResources {
        memory_limit_in_bytes: bytes(limits, MEMORY),
        ..Default::default()
    };
    // A limit on the time of all processors, without a weight: with both, the limit has no effect.
    if let Some(milli) = milli(limits, CPU).filter(|milli| *milli != 0) {
        let part = i128::from(milli) * 10 / i128::from(node_env.cpu_count.max(1));
        resources.cpu_maximum = part.clamp(1, WHOLE_MACHINE.into()) as i64;
    }
    resources
}

/// Returns the processor groups of a placement in the CRI's form.
#[must_use]
pub fn affinity(affinity: &ContainerAffinity) -> Vec<v1::WindowsCpuGroupAffinity> {
    let of_group = |group: &placement::windows::GroupAffinity| v1::WindowsCpuGroupAffinity {
        cpu_mask: group.mask,
        cpu_group: group.group.get().into(),
    };
    affinity.groups.iter().map(of_group).collect()
}
