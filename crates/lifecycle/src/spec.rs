//! Pods as the agent reads them from the API: [`Pod`], with every field it acts on.
//!
//! Read from objects an API server has defaulted and checked, so that a field that is missing has its
//! zero value and nothing is checked again. `demand` sums requests and limits and gives the QoS class.

use std::collections::BTreeMap;

use objects::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod container;
pub mod demand;
mod probe;
mod security;
mod volume;

pub use container::{
    Container, ContainerPort, ContainerResizePolicy, EnvFromSource, EnvVar, EnvVarSource,
    ExitCodes, FileKeySelector, LocalSource, QosResourceRequest, Requirements, RestartRule,
    VolumeDevice, VolumeMount,
};
pub use probe::{
    ExecAction, GrpcAction, Handler, HttpGetAction, HttpHeader, IntOrString, Lifecycle, Probe,
    SleepAction, TcpSocketAction,
};
pub use security::{
    AppArmorProfile, Capabilities, PodSecurityContext, SeLinuxOptions, SeccompProfile,
    SecurityContext, Sysctl, WindowsOptions,
};
pub use volume::{
    ClaimSource, ConfigMapSource, CsiSource, DownwardApiFile, DownwardApiSource, EmptyDirSource,
    EphemeralSource, FieldRef, HostPathSource, ImageSource, KeyToPath, ProjectedSource, Projection,
    ResourceFieldRef, SecretSource, ServiceAccountTokenProjection, Volume,
};

pub type Labels = BTreeMap<String, String>;
pub type ResourceList = BTreeMap<String, Quantity>;

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    /// The status as last written by any client.
    pub status: Value,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub labels: Labels,
    pub annotations: Labels,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub owner_references: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub volumes: Vec<Volume>,
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    pub ephemeral_containers: Vec<Container>,
    pub restart_policy: RestartPolicy,
    pub termination_grace_period_seconds: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    pub dns_policy: DnsPolicy,
    pub dns_config: Option<DnsConfig>,
    pub node_selector: Labels,
    pub affinity: Option<Value>,
    pub tolerations: Vec<Value>,
    pub service_account_name: String,
    pub node_name: String,
    pub host_network: bool,
    #[serde(rename = "hostPID")]
    pub host_pid: bool,
    #[serde(rename = "hostIPC")]
    pub host_ipc: bool,
    pub host_users: Option<bool>,
    pub share_process_namespace: Option<bool>,
    pub security_context: PodSecurityContext,
    pub image_pull_secrets: Vec<NameOnly>,
    pub hostname: String,
    pub subdomain: String,
    pub hostname_override: Option<String>,
    #[serde(rename = "setHostnameAsFQDN")]
    pub set_hostname_as_fqdn: Option<bool>,
    pub host_aliases: Vec<HostAlias>,
    pub priority_class_name: String,
    pub priority: Option<i32>,
    pub readiness_gates: Vec<ReadinessGate>,
    pub runtime_class_name: Option<String>,
    pub enable_service_links: Option<bool>,
    pub overhead: ResourceList,
    pub os: Option<NameOnly>,
    pub resources: Option<Requirements>,
    pub resource_claims: Vec<PodResourceClaim>,
    pub qos_resources: Vec<QosResourceRequest>,
}

/// When containers that exited are restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// Source of the DNS configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum DnsPolicy {
    #[default]
    ClusterFirst,
    ClusterFirstWithHostNet,
    Default,
    None,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DnsConfig {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<DnsOption>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DnsOption {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NameOnly {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostAlias {
    pub ip: String,
    pub hostnames: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReadinessGate {
    pub condition_type: String,
}

/// A claim of dynamic resources: an existing one, or one that is created for the pod.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResourceClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

/// The list of the pod that a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Init,
    /// An init container that keeps running.
    Sidecar,
    App,
    Ephemeral,
}

impl objects::types::Object for Pod {
    fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Pod {
    /// Removes all requests for classes of QoS resources.
    pub fn forget_classes(&mut self) {
        let spec = &mut self.spec;
        spec.qos_resources.clear();
        let containers = spec.init_containers.iter_mut().chain(&mut spec.containers);
        for container in containers.chain(&mut spec.ephemeral_containers) {
            container.resources.qos_resources.clear();
        }
    }

    /// Returns all containers with their roles: init containers first, each list in its order.
    pub fn containers(&self) -> impl Iterator<Item = (Role, &Container)> {
        let init = self.spec.init_containers.iter().map(|container| {
            let role = if container.is_sidecar() { Role::Sidecar } else { Role::Init };
            (role, container)
        });
        let app = self.spec.containers.iter().map(|container| (Role::App, container));
        let ephemeral = self.spec.ephemeral_containers.iter().map(|c| (Role::Ephemeral, c));
        init.chain(app).chain(ephemeral)
    }

    #[must_use]
    pub fn container(&self, name: &str) -> Option<(Role, &Container)> {
        self.containers().find(|(_, container)| container.name == name)
    }

    /// `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the seconds between the termination signal and the kill.
    #[must_use]
    pub fn grace_seconds(&self) -> i64 {
        let requested = self.metadata.deletion_grace_period_seconds;
        requested.or(self.spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE)
    }
}

/// The API server's default. Static pods have no default.
const DEFAULT_GRACE: i64 = 30;

#[cfg(test)]
mod tests;
