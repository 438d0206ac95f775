//! Users, privileges and namespaces of a pod's processes, as security contexts of the CRI.
//!
//! A container's own settings override the pod's. [`verify_run_as_non_root`] checks `runAsNonRoot`.

use cri::v1;
use cri::v1::security_profile::ProfileType;
use objects::pod::OsName;
use thiserror::Error;

use super::input::{ImageUser, PodInput};
use super::{LowerError, path};
use lifecycle::observed::RuntimeId;
use lifecycle::spec::{
    AppArmorProfile, Container, Pod, SeLinuxOptions, SeccompProfile, WindowsOptions,
};

/// The paths in /proc and /sys that are hidden in containers.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// The paths that are read-only in containers.
const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The prefix of the annotation that preceded the field.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The administrator account of Windows containers.
const WINDOWS_ROOT: &str = "ContainerAdministrator";

/// A container with `runAsNonRoot` that would or may run as root.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RootError {
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUser { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: \
         {container})"
    )]
    Image { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user \
         is non-root (pod: {pod:?}, container: {container})"
    )]
    NonNumeric { user: String, pod: String, container: String },
    #[error(
        "container's runAsUser ({user}) which will be regarded as root identity and breaks \
         non-root policy (pod: {pod:?}, container: {container})"
    )]
    Administrator { user: String, pod: String, container: String },
}

/// Formats `name_namespace(uid)`, as messages name a pod.
#[must_use]
pub fn describe(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    format!("{}_{}({})", metadata.name, metadata.namespace, metadata.uid)
}

/// Checks `runAsNonRoot` with the information that is available before the container starts.
pub fn verify_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    os: OsName,
) -> Result<(), RootError> {
    let (own, whole) = (&container.security_context, &pod.spec.security_context);
    if own.run_as_non_root.or(whole.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod_name, container_name) = (describe(pod), container.name.clone());
    if os == OsName::Windows {
        let wanted = windows_options(pod, container).run_as_user_name;
        let user = wanted.unwrap_or_else(|| image.name.clone());
        return match user.eq_ignore_ascii_case(WINDOWS_ROOT) {
            true => {
                Err(RootError::Administrator { user, pod: pod_name, container: container_name })
            }
            false => Ok(()),
        };
    }
    match (own.run_as_user.or(whole.run_as_user), image.uid) {
        (Some(0), _) => Err(RootError::RunAsUser { pod: pod_name, container: container_name }),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(RootError::Image { pod: pod_name, container: container_name }),
        (None, None) if !image.name.is_empty() => Err(RootError::NonNumeric {
            user: image.name.clone(),
            pod: pod_name,
            container: container_name,
        }),
        (None, _) => Ok(()),
    }
}

/// Returns the namespaces that a pod shares with the node.
pub(super) fn namespaces(input: &PodInput<'_>) -> Result<v1::NamespaceOption, LowerError> {
    let spec = &input.pod.spec;
    let of_node = |node, otherwise| if node { v1::NamespaceMode::Node } else { otherwise } as i32;
    let pid = match spec.share_process_namespace {
        Some(true) => v1::NamespaceMode::Pod,
        _ => v1::NamespaceMode::Container,
    };
    Ok(v1::NamespaceOption {
        network: of_node(spec.host_network, v1::NamespaceMode::Pod),
        pid: of_node(spec.host_pid, pid),
        ipc: of_node(spec.host_ipc, v1::NamespaceMode::Pod),
        target_id: String::new(),
        userns_options: Some(user_namespace(input)?),
    })
}

fn user_namespace(input: &PodInput<'_>) -> Result<v1::UserNamespace, LowerError> {
    if input.pod.spec.host_users != Some(false) {
        let mode = v1::NamespaceMode::Node as i32;
        return Ok(v1::UserNamespace { mode, ..Default::default() });
    }
    let range = input.user_namespace.ok_or(LowerError::NoUserNamespace)?;
    let mapping = v1::IdMapping { host_id: range.host_id, container_id: 0, length: range.length };
    Ok(v1::UserNamespace {
        mode: v1::NamespaceMode::Pod as i32,
        uids: vec![mapping],
        gids: vec![mapping],
    })
}

fn selinux(options: Option<&SeLinuxOptions>) -> Option<v1::SeLinuxOption> {
    options.map(|options| v1::SeLinuxOption {
        user: options.user.clone(),
        role: options.role.clone(),
        r#type: options.kind.clone(),
        level: options.level.clone(),
    })
}

fn int(value: Option<i64>) -> Option<v1::Int64Value> {
    value.map(|value| v1::Int64Value { value })
}

fn groups_policy(pod: &Pod) -> Result<i32, LowerError> {
    match pod.spec.security_context.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(v1::SupplementalGroupsPolicy::Merge as i32),
        Some("Strict") => Ok(v1::SupplementalGroupsPolicy::Strict as i32),
        Some(other) => Err(LowerError::GroupsPolicy(other.to_owned())),
    }
}

/// Returns the context of the sandbox. It gets the runtime's default seccomp profile whatever the pod's is:
/// only the runtime's own process runs in it, and the pod's profile may be too narrow for that.
pub(super) fn of_sandbox(
    input: &PodInput<'_>,
) -> Result<v1::LinuxSandboxSecurityContext, LowerError> {
    let whole = &input.pod.spec.security_context;
    let privileged = input
        .pod
        .containers()
        .any(|(_, container)| container.security_context.privileged == Some(true));
    let groups = whole.fs_group.iter().chain(input.volume_groups).chain(&whole.supplemental_groups);
    Ok(v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(input)?),
        selinux_options: selinux(whole.se_linux_options.as_ref()),
        run_as_user: int(whole.run_as_user),
        run_as_group: int(whole.run_as_group),
        supplemental_groups: groups.copied().collect(),
        supplemental_groups_policy: groups_policy(input.pod)?,
        privileged,
        seccomp: Some(profile(ProfileType::RuntimeDefault, String::new())),
        ..Default::default()
    })
}

/// Returns the context of a container.
pub(super) fn of_container(
    input: &PodInput<'_>,
    container: &Container,
    image: &ImageUser,
    target: Option<&RuntimeId>,
) -> Result<v1::LinuxContainerSecurityContext, LowerError> {
    let (own, whole) = (&container.security_context, &input.pod.spec.security_context);
    let mut namespace_options = namespaces(input)?;
    // If processes are visible in the whole pod or node, no target container is needed.
    if let Some(target) = target
        && namespace_options.pid == v1::NamespaceMode::Container as i32
    {
        namespace_options.pid = v1::NamespaceMode::Target as i32;
        namespace_options.target_id = target.clone();
    }
    let run_as_user = own.run_as_user.or(whole.run_as_user);
    let (masked_paths, readonly_paths) = match own.proc_mount.as_deref() {
        Some("Unmasked") => (Vec::new(), Vec::new()),
        _ => (
            MASKED
                .iter()
                .map(|&path| path.to_owned())
                .chain(input.node_env.masked_paths.clone())
                .collect(),
            READ_ONLY.iter().map(|&path| path.to_owned()).collect(),
        ),
    };
    let groups = whole.fs_group.iter().chain(&whole.supplemental_groups).chain(input.volume_groups);
    let apparmor = apparmor(input.pod, container)?;
    #[allow(deprecated, reason = "runtimes from before the field `apparmor` read this one")]
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|capabilities| v1::Capability {
            add_capabilities: capabilities.add.clone(),
            drop_capabilities: capabilities.drop.clone(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: own.privileged == Some(true),
        namespace_options: Some(namespace_options),
        selinux_options: selinux(own.se_linux_options.as_ref().or(whole.se_linux_options.as_ref())),
        run_as_user: int(run_as_user.or(image.uid)),
        run_as_username: match run_as_user {
            Some(_) => String::new(),
            None => image.name.clone(),
        },
        run_as_group: int(own.run_as_group.or(whole.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups.copied().collect(),
        supplemental_groups_policy: groups_policy(input.pod)?,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp(input, container)?),
        apparmor_profile: apparmor.as_ref().map(apparmor_text).unwrap_or_default(),
        apparmor,
        ..Default::default()
    })
}

fn profile(kind: ProfileType, localhost_ref: String) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind as i32, localhost_ref }
}

fn seccomp(input: &PodInput<'_>, container: &Container) -> Result<v1::SecurityProfile, LowerError> {
    let own = container.security_context.seccomp_profile.as_ref();
    let wanted = own.or(input.pod.spec.security_context.seccomp_profile.as_ref());
    let node_env = input.node_env;
    let kind = match wanted.map(|wanted| wanted.kind.as_str()) {
        Some("Localhost") => {
            let file = wanted.and_then(|SeccompProfile { localhost_profile, .. }| {
                localhost_profile.as_deref().filter(|file| !file.is_empty())
            });
            let file = file.ok_or(LowerError::SeccompProfile)?;
            let file = path::join(node_env.os, &[&node_env.root_dir, "seccomp", file]);
            return Ok(profile(ProfileType::Localhost, file));
        }
        Some("RuntimeDefault") => ProfileType::RuntimeDefault,
        Some("Unconfined") => ProfileType::Unconfined,
        _ if node_env.seccomp_default => ProfileType::RuntimeDefault,
        _ => ProfileType::Unconfined,
    };
    Ok(profile(kind, String::new()))
}

fn apparmor(pod: &Pod, container: &Container) -> Result<Option<v1::SecurityProfile>, LowerError> {
    let of_field = |wanted: &AppArmorProfile| match wanted.kind.as_str() {
        "RuntimeDefault" => Ok(Some(profile(ProfileType::RuntimeDefault, String::new()))),
        "Unconfined" => Ok(Some(profile(ProfileType::Unconfined, String::new()))),
        "Localhost" => {
            let name = wanted.localhost_profile.clone().filter(|name| !name.is_empty());
            let name = name.ok_or(LowerError::AppArmorProfile)?;
            Ok(Some(profile(ProfileType::Localhost, name)))
        }
        _ => Ok(None),
    };
    if let Some(own) = &container.security_context.app_armor_profile {
        return of_field(own);
    }
    // Static pods may still use the annotation.
    let annotation = format!("{APPARMOR_ANNOTATION}{}", container.name);
    if let Some(text) = pod.metadata.annotations.get(&annotation) {
        return Ok(match (text.as_str(), text.strip_prefix("localhost/")) {
            ("runtime/default", _) => Some(profile(ProfileType::RuntimeDefault, String::new())),
            ("unconfined", _) => Some(profile(ProfileType::Unconfined, String::new())),
            (_, Some(name)) if !name.is_empty() => {
                Some(profile(ProfileType::Localhost, name.to_owned()))
            }
            _ => None,
        });
    }
    pod.spec.security_context.app_armor_profile.as_ref().map_or(Ok(None), of_field)
}

/// Formats a profile as in the annotation.
fn apparmor_text(profile: &v1::SecurityProfile) -> String {
    match profile.profile_type() {
        ProfileType::RuntimeDefault => "runtime/default".to_owned(),
        ProfileType::Unconfined => "unconfined".to_owned(),
        ProfileType::Localhost => format!("localhost/{}", profile.localhost_ref),
    }
}

/// Merges the Windows options of a container and its pod, field by field.
fn windows_options(pod: &Pod, container: &Container) -> WindowsOptions {
    let own = container.security_context.windows_options.clone().unwrap_or_default();
    let whole = pod.spec.security_context.windows_options.clone().unwrap_or_default();
    WindowsOptions {
        gmsa_credential_spec_name: own
            .gmsa_credential_spec_name
            .or(whole.gmsa_credential_spec_name),
        gmsa_credential_spec: own.gmsa_credential_spec.or(whole.gmsa_credential_spec),
        run_as_user_name: own.run_as_user_name.or(whole.run_as_user_name),
        host_process: own.host_process.or(whole.host_process),
    }
}

/// Returns true if a container is a host-process container (Windows).
#[must_use]
pub fn is_host_process(pod: &Pod, container: &Container) -> bool {
    windows_options(pod, container).host_process == Some(true)
}

/// Returns the context of a Windows sandbox: either all or none of its containers are host processes.
pub(super) fn of_windows_sandbox(
    pod: &Pod,
) -> Result<v1::WindowsSandboxSecurityContext, LowerError> {
    let of_host = pod.containers().filter(|(_, container)| is_host_process(pod, container)).count();
    let host_process = of_host > 0;
    if host_process && of_host < pod.containers().count() {
        return Err(LowerError::MixedHostProcess);
    }
    if host_process && !pod.spec.host_network {
        return Err(LowerError::HostProcessNetwork);
    }
    let options = pod.spec.security_context.windows_options.clone().unwrap_or_default();
    Ok(v1::WindowsSandboxSecurityContext {
        run_as_username: options.run_as_user_name.unwrap_or_default(),
        credential_spec: options.gmsa_credential_spec.unwrap_or_default(),
        host_process,
        namespace_options: None,
    })
}

/// Returns the context of a Windows container.
pub(super) fn of_windows_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
) -> v1::WindowsContainerSecurityContext {
    let options = windows_options(pod, container);
    v1::WindowsContainerSecurityContext {
        run_as_username: options.run_as_user_name.unwrap_or_else(|| image.name.clone()),
        credential_spec: options.gmsa_credential_spec.unwrap_or_default(),
        host_process: options.host_process == Some(true),
    }
}
