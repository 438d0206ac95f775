//! Containers: image, command, environment, resources and mounts.

use serde::{Deserialize, Serialize};

use super::{
    FieldRef, Lifecycle, NameOnly, Probe, ResourceFieldRef, ResourceList, RestartPolicy,
    SecurityContext,
};

/// An init, sidecar, app or ephemeral container.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub working_dir: String,
    pub ports: Vec<ContainerPort>,
    pub env_from: Vec<EnvFromSource>,
    pub env: Vec<EnvVar>,
    pub resources: Requirements,
    pub resize_policy: Vec<ContainerResizePolicy>,
    /// Set only on containers with a policy of their own.
    pub restart_policy: Option<RestartPolicy>,
    pub restart_policy_rules: Vec<RestartRule>,
    pub volume_mounts: Vec<VolumeMount>,
    pub volume_devices: Vec<VolumeDevice>,
    pub liveness_probe: Option<Probe>,
    pub readiness_probe: Option<Probe>,
    pub startup_probe: Option<Probe>,
    pub lifecycle: Lifecycle,
    pub termination_message_path: String,
    pub termination_message_policy: String,
    pub image_pull_policy: String,
    pub security_context: SecurityContext,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    /// Ephemeral containers: the container whose process namespace is shared.
    pub target_container_name: String,
}

impl Container {
    /// Returns true for an init container that keeps running.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: String,
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: String,
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvFromSource {
    pub prefix: String,
    pub config_map_ref: Option<LocalSource>,
    pub secret_ref: Option<LocalSource>,
}

/// A config map or secret of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LocalSource {
    pub name: String,
    /// Set only if one value is selected.
    pub key: String,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvVar {
    pub name: String,
    pub value: String,
    pub value_from: Option<EnvVarSource>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvVarSource {
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceFieldRef>,
    pub config_map_key_ref: Option<LocalSource>,
    pub secret_key_ref: Option<LocalSource>,
    pub file_key_ref: Option<FileKeySelector>,
}

/// A variable in a file of one of the pod's volumes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FileKeySelector {
    pub volume_name: String,
    pub path: String,
    pub key: String,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Requirements {
    pub limits: ResourceList,
    pub requests: ResourceList,
    pub claims: Vec<NameOnly>,
    pub qos_resources: Vec<QosResourceRequest>,
}

/// A class of a QoS-class resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QosResourceRequest {
    pub name: String,
    pub class: String,
}

/// The restart that a change of a resource needs.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerResizePolicy {
    pub resource_name: String,
    pub restart_policy: String,
}

/// The action for certain exit codes of the container.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartRule {
    pub action: String,
    pub exit_codes: Option<ExitCodes>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExitCodes {
    /// `In` or `NotIn`.
    pub operator: String,
    pub values: Vec<i32>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeMount {
    pub name: String,
    pub read_only: bool,
    pub recursive_read_only: Option<String>,
    pub mount_path: String,
    pub sub_path: String,
    pub sub_path_expr: String,
    pub mount_propagation: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeDevice {
    pub name: String,
    pub device_path: String,
}
