//! The mounts of a container: [`mounts`], in upstream's order.
//!
//! The order is: mounts of device plugins, `volumeMounts`, the hosts file, the termination message file.
//! Nothing is mounted or created here: the paths already exist.

use cri::v1;
use objects::pod::OsName;

use super::input::{ContainerInput, MountedVolume, PodInput};
use super::{LowerError, path, security};
use lifecycle::spec::VolumeMount;

/// Returns the path of the hosts file in containers.
#[must_use]
pub fn hosts_file(os: OsName) -> &'static str {
    match os {
        OsName::Linux => "/etc/hosts",
        OsName::Windows => r"C:\Windows\System32\drivers\etc\hosts",
    }
}

/// Returns the path on the host of the hosts file that a pod's containers share.
#[must_use]
pub fn hosts_file_of_pod(input: &PodInput<'_>) -> String {
    let node_env = input.node_env;
    path::join(node_env.os, &[&node_env.root_dir, "pods", &input.pod.metadata.uid, "etc-hosts"])
}

/// Returns the mounts of a container.
pub fn mounts(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
) -> Result<Vec<v1::Mount>, LowerError> {
    let os = input.node_env.os;
    let mut mounts = container_input.attached.mounts.clone();
    for (position, mount) in container_input.container.volume_mounts.iter().enumerate() {
        mounts.push(volume(input, container_input, position, mount)?);
    }
    let hosts = hosts_file(os);
    let has_own =
        container_input.container.volume_mounts.iter().any(|mount| mount.mount_path == hosts);
    // Host processes use the host's file.
    let is_host =
        input.is_windows() && security::is_host_process(input.pod, container_input.container);
    if !container_input.pod_ips.is_empty() && !has_own && !is_host {
        mounts.push(v1::Mount {
            container_path: hosts.to_owned(),
            host_path: hosts_file_of_pod(input),
            selinux_relabel: input.node_env.selinux,
            ..Default::default()
        });
    }
    let message_path = &container_input.container.termination_message_path;
    if let Some(file) = container_input.termination_log.filter(|_| !message_path.is_empty()) {
        mounts.push(v1::Mount {
            container_path: path::absolute(os, message_path),
            host_path: path::absolute(os, file),
            selinux_relabel: input.node_env.selinux,
            ..Default::default()
        });
    }
    Ok(mounts)
}

fn volume(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
    position: usize,
    mount: &VolumeMount,
) -> Result<v1::Mount, LowerError> {
    let os = input.node_env.os;
    let names = || (mount.name.clone(), container_input.container.name.clone());
    let volume = container_input.mounted.volumes.get(&mount.name).ok_or_else(|| {
        let (volume, container) = names();
        LowerError::NoVolume { volume, container }
    })?;
    let container_path = path::absolute(os, &mount.mount_path);
    let (host_path, read_only, relabel) = match volume {
        MountedVolume::Image(image) => {
            return Ok(v1::Mount {
                container_path,
                image: Some(image.clone()),
                image_sub_path: mount.sub_path.clone(),
                ..Default::default()
            });
        }
        MountedVolume::Path { host_path, read_only, relabel } => (host_path, *read_only, *relabel),
    };
    let has_sub_path = !mount.sub_path.is_empty() || !mount.sub_path_expr.is_empty();
    let host_path = match has_sub_path {
        false => host_path,
        true => container_input.mounted.sub_paths.get(&position).ok_or_else(|| {
            let (volume, container) = names();
            LowerError::NoSubPath { volume, container }
        })?,
    };
    Ok(v1::Mount {
        container_path,
        host_path: path::absolute(os, host_path),
        readonly: mount.read_only || read_only,
        selinux_relabel: relabel && input.node_env.selinux,
        propagation: propagation(mount)? as i32,
        recursive_read_only: is_recursive_read_only(mount, container_input.recursive_read_only)?,
        ..Default::default()
    })
}

fn propagation(mount: &VolumeMount) -> Result<v1::MountPropagation, LowerError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(v1::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(v1::MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(v1::MountPropagation::PropagationBidirectional),
        Some(other) => Err(LowerError::Propagation(other.to_owned())),
    }
}

fn is_recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, LowerError> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let volume = || mount.name.clone();
    if !mount.read_only {
        return Err(LowerError::RecursiveNotReadOnly(volume()));
    }
    if let Some(propagation) = mount.mount_propagation.as_ref().filter(|mode| *mode != "None") {
        let propagation = propagation.clone();
        return Err(LowerError::RecursivePropagation { volume: volume(), propagation });
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(LowerError::RecursiveUnsupported(volume())),
        other => Err(LowerError::RecursiveMode(other.to_owned())),
    }
}
