//! Lowers a pod with its placement to CRI requests: [`sandbox()`], [`container()`], [`update`].
//!
//! ```text
//!   Pod, NodeEnvironment, ContainerAffinity ──▶ sandbox   ──▶ PodSandboxConfig
//!     + image, volumes, configs, services   ──▶ container ──▶ ContainerConfig
//!     + a change                            ──▶ update    ──▶ Update…ResourcesRequest
//! ```
//!
//! The requests equal the kubelet's, including their order, so that runtimes and readers of labels see no
//! difference. Pure: values of the machine and the API are arguments ([`NodeEnvironment`], [`Configs`],
//! [`MountedVolumes`]). It creates no directories, generates no random names, sends nothing, and does not
//! choose the runtime handler. Classes of QoS resources are set in the fields of the extension;
//! `cri::ClassSupport` converts them into the form that a runtime understands.

use cri::v1;
use thiserror::Error;

pub mod annotations;
pub mod cgroup;
pub mod container;
pub mod dns;
pub mod downward;
pub mod env;
mod env_file;
pub mod expansion;
pub mod hash;
pub mod hostname;
pub mod input;
pub mod mounts;
mod path;
pub mod qos;
pub mod resources;
pub mod sandbox;
pub mod security;
pub mod service_links;
pub mod update;

pub use container::container;
pub use dns::DnsNotice;
pub use hash::hash;
pub use input::{
    CgroupDriver, CgroupVersion, Cgroups, ConfigSource, Configs, ContainerAffinity, ContainerInput,
    DeviceAttachments, Dns, EnvFile, IdRange, ImageUser, MountedVolume, MountedVolumes,
    NodeEnvironment, PodInput, PodSource, SwapBehavior,
};
pub use sandbox::{Sandbox, sandbox};
pub use security::verify_run_as_non_root;
pub use service_links::{Service, ServicePort};

/// The reason why a pod cannot be lowered. The texts are upstream's: they appear in Events and in the waiting
/// message of containers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LowerError {
    #[error("configmap {name:?} not found")]
    NoConfigMap { name: String },
    #[error("secret {name:?} not found")]
    NoSecret { name: String },
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    NoConfigMapKey { key: String, namespace: String, name: String },
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    NoSecretKey { key: String, namespace: String, name: String },
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoFileVolume(String),
    #[error("couldn't parse env file")]
    EnvFile,
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NoFileKey { key: String, path: String },
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    #[error("Unsupported container resource : {0}")]
    ResourceField(String),
    #[error("container {0} not found")]
    NoContainer(String),
    #[error("pod Hostname {name:?} is not a valid DNS label: {problems}")]
    Hostname { name: String, problems: String },
    #[error("pod Subdomain {name:?} is not a valid DNS label: {problems}")]
    Subdomain { name: String, problems: String },
    #[error("pod HostnameOverride {name:?} is not a valid DNS subdomain: {problems}")]
    HostnameOverride { name: String, problems: String },
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    EmptyHostname { pod: String, hostname: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         ({max} characters is the max, {} characters requested)", fqdn.len()
    )]
    FqdnTooLong { fqdn: String, max: usize },
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume { volume: String, container: String },
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    NoSubPath { volume: String, container: String },
    #[error("missing value for {}", .0.join(", "))]
    SubPathExpr(Vec<String>),
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    #[error("volume {0:?} requested recursive read-only mode, but it is not read-only")]
    RecursiveNotReadOnly(String),
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not compatible with \
         propagation {propagation:?}"
    )]
    RecursivePropagation { volume: String, propagation: String },
    #[error(
        "volume {0:?} requested recursive read-only mode, but it is not supported by the runtime"
    )]
    RecursiveUnsupported(String),
    #[error("unknown recursive read-only mode {0:?}")]
    RecursiveMode(String),
    #[error(transparent)]
    Root(#[from] security::RootError),
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfile,
    #[error("localhostProfile must be set if appArmorProfile type is Localhost.")]
    AppArmorProfile,
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    GroupsPolicy(String),
    #[error("unknown stop signal {0:?}, want one such as SIGTERM or SIGRTMIN+1")]
    StopSignal(String),
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    NoUserNamespace,
    #[error("pod must not contain both HostProcess and non-HostProcess containers")]
    MixedHostProcess,
    #[error("hostNetwork is required if Pod contains HostProcess containers")]
    HostProcessNetwork,
}

/// Returns the request to pull an image of a container. The caller adds credentials.
#[must_use]
pub fn pull(
    input: &PodInput<'_>,
    image: &str,
    sandbox: &v1::PodSandboxConfig,
) -> v1::PullImageRequest {
    v1::PullImageRequest {
        image: Some(v1::ImageSpec {
            image: image.to_owned(),
            annotations: annotations::of_pod(input),
            ..Default::default()
        }),
        auth: None,
        sandbox_config: Some(sandbox.clone()),
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
pub(crate) mod tests;
