//! Updates of running containers: all [`resources`], only [`cpus`] or [`classes`], and the [`sandbox`].
//!
//! The runtime keeps the values of fields that are not set. The caller orders the updates: limits grow before
//! requests, and a pool shrinks before its CPUs are assigned.

use cri::v1;
use objects::pod::OsName;

use super::input::{ContainerAffinity, PodInput};
use lifecycle::observed::RuntimeId;
use lifecycle::spec::{Container, Role};

/// Returns the update to the pod's current amounts. CPUs and memory nodes stay.
#[must_use]
pub fn resources(
    input: &PodInput<'_>,
    container: &Container,
    role: Role,
    id: &RuntimeId,
) -> v1::UpdateContainerResourcesRequest {
    let mut request = of(id);
    if input.is_windows() {
        request.windows = Some(super::resources::of_windows_container(input.node_env, container));
    } else {
        request.linux = Some(super::resources::of_container(input, container, role));
    }
    request
}

/// Returns the update to the pod's current classes. All else stays.
#[must_use]
pub fn classes(container: &Container, id: &RuntimeId) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest {
        qos_resources: super::container::classes(container),
        ..of(id)
    }
}

/// Returns the update to other CPUs and memory nodes. Amounts stay.
#[must_use]
pub fn cpus(
    os: OsName,
    affinity: &ContainerAffinity,
    id: &RuntimeId,
) -> v1::UpdateContainerResourcesRequest {
    let mut request = of(id);
    match os {
        OsName::Linux => {
            let mut resources = v1::LinuxContainerResources::default();
            super::resources::set_cpuset(&mut resources, affinity);
            request.linux = Some(resources);
        }
        OsName::Windows => {
            request.windows = Some(v1::WindowsContainerResources {
                affinity_cpus: super::resources::affinity(affinity),
                ..Default::default()
            });
        }
    }
    request
}

fn of(id: &RuntimeId) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest { container_id: id.clone(), ..Default::default() }
}

/// Returns the update of the sandbox to the pod's current amounts, for Linux runtimes that support it.
#[must_use]
pub fn sandbox(input: &PodInput<'_>, id: &RuntimeId) -> v1::UpdatePodSandboxResourcesRequest {
    v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.clone(),
        overhead: Some(super::resources::of_overhead(input)),
        resources: Some(super::resources::of_sandbox(input)),
        qos_resources: Vec::new(),
    }
}
