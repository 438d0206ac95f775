//! The configuration of one container: [`container`].
//!
//! Also checks `runAsNonRoot`. As upstream, this is done after all references are resolved.

use cri::v1;
use objects::pod::OsName;

use super::env::Environment;
use super::input::{ContainerInput, PodInput};
use super::{LowerError, annotations, expansion, mounts, path, resources, security};
use lifecycle::spec::{Container, QosResourceRequest};

/// Returns the configuration of a container with the variables that [`super::env::variables`] returned.
pub fn container(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
    environment: Environment,
) -> Result<v1::ContainerConfig, LowerError> {
    let (pod, container) = (input.pod, container_input.container);
    let mounts = mounts::mounts(input, container_input)?;
    security::verify_run_as_non_root(
        pod,
        container,
        container_input.image_user,
        input.node_env.os,
    )?;
    let expand = |words: &[String]| -> Vec<String> {
        let expand = |word: &String| expansion::expand_text(word, |name| environment.get(name));
        words.iter().map(expand).collect()
    };
    let mut config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: container_input.attempt,
        }),
        image: Some(v1::ImageSpec {
            image: container_input.image.to_owned(),
            user_specified_image: container.image.clone(),
            ..Default::default()
        }),
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone(),
        mounts,
        devices: container_input.attached.devices.clone(),
        labels: annotations::labels_of_container(pod, &container.name),
        annotations: annotations::of_container(input, container_input),
        log_path: log_path(input.node_env.os, &container.name, container_input.attempt),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        cdi_devices: container_input
            .attached
            .cdi_devices
            .iter()
            .map(|name| v1::CdiDevice { name: name.clone() })
            .collect(),
        stop_signal: stop_signal(container)? as i32,
        qos_resources: classes(container),
        ..Default::default()
    };
    if input.is_windows() {
        config.windows = Some(windows(input, container_input));
    } else {
        let linux = linux(input, container_input)?;
        map_ids(&mut config.mounts, &linux);
        config.linux = Some(linux);
    }
    config.envs = key_values(environment);
    Ok(config)
}

/// Returns the path of a container's log, relative to the pod's directory.
#[must_use]
pub fn log_path(os: OsName, container: &str, attempt: u32) -> String {
    path::join(os, &[container, &format!("{attempt}.log")])
}

fn key_values(environment: Environment) -> Vec<v1::KeyValue> {
    environment.0.into_iter().map(|(key, value)| v1::KeyValue { key, value }).collect()
}

fn linux(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
) -> Result<v1::LinuxContainerConfig, LowerError> {
    let mut resources =
        resources::of_container(input, container_input.container, container_input.role);
    if let Some(affinity) = input.affinities.get(&container_input.container.name) {
        resources::set_cpuset(&mut resources, affinity);
    }
    let security = security::of_container(
        input,
        container_input.container,
        container_input.image_user,
        container_input.target,
    )?;
    Ok(v1::LinuxContainerConfig { resources: Some(resources), security_context: Some(security) })
}

fn windows(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
) -> v1::WindowsContainerConfig {
    let mut resources = resources::of_windows_container(input.node_env, container_input.container);
    if let Some(affinity) = input.affinities.get(&container_input.container.name) {
        resources.affinity_cpus = resources::affinity(affinity);
    }
    let security = security::of_windows_container(
        input.pod,
        container_input.container,
        container_input.image_user,
    );
    v1::WindowsContainerConfig { resources: Some(resources), security_context: Some(security) }
}

/// Maps IDs, so that the host's files have the same owners inside a user namespace as outside.
fn map_ids(mounts: &mut [v1::Mount], linux: &v1::LinuxContainerConfig) {
    let namespace = linux
        .security_context
        .as_ref()
        .and_then(|security| security.namespace_options.as_ref()?.userns_options.as_ref());
    let Some(namespace) = namespace else { return };
    for mount in mounts {
        mount.uid_mappings.clone_from(&namespace.uids);
        mount.gid_mappings.clone_from(&namespace.gids);
    }
}

fn stop_signal(container: &Container) -> Result<v1::Signal, LowerError> {
    let Some(name) = &container.lifecycle.stop_signal else {
        return Ok(v1::Signal::RuntimeDefault);
    };
    let spelt = name.replace('+', "PLUS").replace('-', "MINUS");
    v1::Signal::from_str_name(&spelt).ok_or_else(|| LowerError::StopSignal(name.clone()))
}

pub(super) fn classes(container: &Container) -> Vec<v1::ContainerQosResource> {
    let class = |wanted: &QosResourceRequest| v1::ContainerQosResource {
        name: wanted.name.clone(),
        class: wanted.class.clone(),
    };
    container.resources.qos_resources.iter().map(class).collect()
}
