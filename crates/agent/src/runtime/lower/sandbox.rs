//! The configuration of a pod's sandbox: [`sandbox`], the common settings of its containers.
//!
//! The caller chooses the runtime handler.

use std::collections::BTreeSet;

use cri::v1;
use thiserror::Error;

use super::dns::{self, DnsNotice};
use super::input::{NodeEnvironment, PodInput};
use super::{LowerError, annotations, cgroup, hostname, path, qos, resources, security};
use lifecycle::spec::{Container, ContainerPort, Metadata, Pod, QosResourceRequest};

/// A sandbox's configuration, and notices for the pod's owner.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub config: v1::PodSandboxConfig,
    pub notices: Vec<DnsNotice>,
}

/// Returns the sandbox of a pod, with its attempt number.
pub fn sandbox(input: &PodInput<'_>, attempt: u32) -> Result<Sandbox, LowerError> {
    let (pod, node_env) = (input.pod, input.node_env);
    let metadata = &pod.metadata;
    let (dns_config, notices) = dns::config(pod, node_env);
    let hostname = match pod.spec.host_network {
        true => String::new(),
        false => hostname::hostname(pod, &node_env.dns.cluster_domain)?,
    };
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            namespace: metadata.namespace.clone(),
            attempt,
        }),
        hostname,
        log_directory: log_directory(input),
        dns_config: Some(dns_config),
        port_mappings: pod.spec.containers.iter().flat_map(port_mappings).collect(),
        labels: annotations::labels_of_pod(pod),
        annotations: annotations::of_pod(input),
        linux: if input.is_windows() { None } else { Some(linux(input)?) },
        windows: match input.is_windows() {
            true => Some(v1::WindowsPodSandboxConfig {
                security_context: Some(security::of_windows_sandbox(pod)?),
            }),
            false => None,
        },
        qos_resources: classes(pod),
    };
    Ok(Sandbox { config, notices })
}

/// The reason why a sandbox of host processes cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostProcessError {
    #[error("the name and version of the container runtime are not known yet")]
    UnknownRuntime,
    #[error(transparent)]
    Unsupported(#[from] cri::NoHostProcesses),
}

/// Checks that a runtime, by name and version, supports host processes if they are requested. Some runtimes
/// silently start plain containers instead. An unknown runtime is rejected.
pub fn check_runtime(
    config: &v1::PodSandboxConfig,
    runtime: Option<(&str, &str)>,
) -> Result<(), HostProcessError> {
    let context = config.windows.as_ref().and_then(|windows| windows.security_context.as_ref());
    match (context.is_some_and(|context| context.host_process), runtime) {
        (false, _) => Ok(()),
        (true, None) => Err(HostProcessError::UnknownRuntime),
        (true, Some((name, version))) => Ok(cri::check_host_processes(name, version)?),
    }
}

/// Returns the directory of the logs of a pod's containers.
#[must_use]
pub fn log_directory(input: &PodInput<'_>) -> String {
    log_directory_of(input.node_env, &input.pod.metadata)
}

/// Returns the same directory from a pod's metadata.
#[must_use]
pub fn log_directory_of(node_env: &NodeEnvironment, metadata: &Metadata) -> String {
    let own = format!("{}_{}_{}", metadata.namespace, metadata.name, metadata.uid);
    path::join(node_env.os, &[&node_env.log_dir, &own])
}

fn linux(input: &PodInput<'_>) -> Result<v1::LinuxPodSandboxConfig, LowerError> {
    let pod = input.pod;
    let sysctls = &pod.spec.security_context.sysctls;
    Ok(v1::LinuxPodSandboxConfig {
        cgroup_parent: cgroup::parent(&input.node_env.cgroups, qos::class(pod), &pod.metadata.uid),
        security_context: Some(security::of_sandbox(input)?),
        sysctls: sysctls.iter().map(|one| (one.name.clone(), one.value.clone())).collect(),
        overhead: Some(resources::of_overhead(input)),
        resources: Some(resources::of_sandbox(input)),
    })
}

/// Returns the ports of a container without duplicates.
fn port_mappings(container: &Container) -> Vec<v1::PortMapping> {
    let mut seen = BTreeSet::new();
    let mut ports: Vec<&ContainerPort> = container.ports.iter().collect();
    ports.retain(|port| {
        seen.insert((&port.host_ip, &port.protocol, port.host_port, port.container_port))
    });
    let mapping = |port: &ContainerPort| v1::PortMapping {
        protocol: match port.protocol.as_str() {
            "UDP" => v1::Protocol::Udp,
            "SCTP" => v1::Protocol::Sctp,
            _ => v1::Protocol::Tcp,
        } as i32,
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    };
    ports.into_iter().map(mapping).collect()
}

fn classes(pod: &Pod) -> Vec<v1::PodQosResource> {
    let class = |wanted: &QosResourceRequest| v1::PodQosResource {
        name: wanted.name.clone(),
        class: wanted.class.clone(),
    };
    pod.spec.qos_resources.iter().map(class).collect()
}
