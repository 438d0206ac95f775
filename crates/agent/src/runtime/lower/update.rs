//! Changes of what runs: [`resources`] of a container, its CPUs or classes alone ([`cpus`],
//! [`classes`]), the [`sandbox`].
//!
//! A field that is not set stays as it is in the runtime. In which order changes are made (limits up
//! before requests, a pool smaller before its CPUs are given away) is the caller's.

use cri::v1;
use objects::pod::OsName;

use super::input::{Placed, PodInput};
use crate::runtime::observed::RuntimeId;
use crate::spec::{Container, Role};

/// A container with the amounts it has in the pod now. Where it runs stays.
#[must_use]
pub fn resources(
    input: &PodInput<'_>,
    container: &Container,
    role: Role,
    id: &RuntimeId,
) -> v1::UpdateContainerResourcesRequest {
    let mut request = of(id);
    if input.is_windows() {
        request.windows = Some(super::resources::of_windows_container(input.facts, container));
    } else {
        request.linux = Some(super::resources::of_container(input, container, role));
    }
    request
}

/// A container in the classes it has in the pod now. Everything else stays.
#[must_use]
pub fn classes(container: &Container, id: &RuntimeId) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest {
        qos_resources: super::container::classes(container),
        ..of(id)
    }
}

/// A container on other CPUs and memory nodes. How much it gets stays.
#[must_use]
pub fn cpus(os: OsName, placed: &Placed, id: &RuntimeId) -> v1::UpdateContainerResourcesRequest {
    let mut request = of(id);
    match os {
        OsName::Linux => {
            let mut resources = v1::LinuxContainerResources::default();
            super::resources::set_cpuset(&mut resources, placed);
            request.linux = Some(resources);
        }
        OsName::Windows => {
            request.windows = Some(v1::WindowsContainerResources {
                affinity_cpus: super::resources::affinity(placed),
                ..Default::default()
            });
        }
    }
    request
}

fn of(id: &RuntimeId) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest { container_id: id.clone(), ..Default::default() }
}

/// The sandbox with the amounts its pod has now; for runtimes of Linux that want to know.
#[must_use]
pub fn sandbox(input: &PodInput<'_>, id: &RuntimeId) -> v1::UpdatePodSandboxResourcesRequest {
    v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.clone(),
        overhead: Some(super::resources::of_overhead(input)),
        resources: Some(super::resources::of_sandbox(input)),
        qos_resources: Vec::new(),
    }
}
