//! Pods, as far as planning acts on them.
//!
//! Main type: [`Pod`]. Fields that nothing here acts on are known by name and kept as they are in
//! `untyped`, so that a real manifest passes and a misspelt field does not. Reading, defaulting,
//! validation, the QoS class and the effective demand are submodules; where a pod goes is decided
//! elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resources::{ClassRequest, ResourceList, ResourceRequirements};

mod defaults;
mod demand;
pub(crate) mod names;
mod qos;
pub(crate) mod read;
mod validate;

/// Fields that are known and valid but not acted on.
pub type Untyped = BTreeMap<String, serde_json::Value>;

/// A pod, or the template of many: a template's metadata has no name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    pub name: String,
    pub generate_name: String,
    pub namespace: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub untyped: Untyped,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSpec {
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    /// Pod-level resources: the pod as a whole, whatever its containers ask for.
    pub resources: Option<ResourceRequirements>,
    /// Class resources of the pod as a whole.
    pub qos_resources: Vec<ClassRequest>,
    pub overhead: ResourceList,
    pub node_name: Option<String>,
    pub node_selector: BTreeMap<String, String>,
    pub os: Option<OsName>,
    pub host_network: bool,
    /// `securityContext.windowsOptions.hostProcess`.
    pub host_process: Option<bool>,
    pub priority: Option<i32>,
    pub priority_class_name: Option<String>,
    pub untyped: Untyped,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    pub name: String,
    pub resources: ResourceRequirements,
    pub restart_policy: Option<RestartPolicy>,
    /// `securityContext.windowsOptions.hostProcess`; where given it must agree with the pod's.
    pub host_process: Option<bool>,
    pub untyped: Untyped,
}

impl Container {
    /// Whether an init container keeps running beside the others.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

/// When a container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// `spec.os.name`, and the operating system of a machine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum OsName {
    #[default]
    Linux,
    Windows,
}

impl fmt::Display for OsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OsName::Linux => "linux",
            OsName::Windows => "windows",
        })
    }
}

/// How firmly a pod's requests are promised to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl PodSpec {
    /// Whether a container runs as a process of the host (Windows).
    #[must_use]
    pub fn is_host_process(&self, container: &Container) -> bool {
        container.host_process.or(self.host_process).unwrap_or(false)
    }

    /// The operating system the pod says it needs, by `os` or by the usual node label.
    #[must_use]
    pub fn wanted_os(&self) -> Option<OsName> {
        self.os.or_else(|| match self.node_selector.get("kubernetes.io/os")?.as_str() {
            "linux" => Some(OsName::Linux),
            "windows" => Some(OsName::Windows),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
