//! Pods with the fields that planning uses.
//!
//! Main type: [`Pod`]. Fields that nothing here acts on are known by name and kept as they are in
//! `untyped`, so that a real manifest passes and a misspelt field does not. Reading, defaulting and
//! validation are submodules. The meaning of fields that every component has to read alike is here as
//! well, over any form of a pod: [`resources`], [`Role`], [`is_static`], [`is_mirror`], [`is_critical`].
//! Where a pod goes is decided elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::resources::{ContainerResources, PodResources, Requirements};
use crate::resources::{ClassRequest, ResourceList, ResourceRequirements};
use crate::types;

mod defaults;
pub(crate) mod names;
pub(crate) mod read;
pub mod resources;
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
    /// Returns true for an init container that keeps running.
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

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next container starts.
    Init,
    /// An init container that keeps running with the others.
    Sidecar,
    App,
}

impl types::Pod {
    /// Returns the resources of the pod, whose defaults must be set. The class in its status takes
    /// precedence over its amounts.
    #[must_use]
    pub fn resources(&self) -> PodResources<'_> {
        self.spec.resources().with_reported_class(QosClass::parse(&self.status.qos_class))
    }
}

impl types::PodSpec {
    /// Returns init containers and app containers with their roles, in the order in which they start.
    pub fn containers(&self) -> impl Iterator<Item = (Role, &types::Container)> {
        let init = self.init_containers.iter().map(|container| {
            let role = if container.is_sidecar() { Role::Sidecar } else { Role::Init };
            (role, container)
        });
        init.chain(self.containers.iter().map(|container| (Role::App, container)))
    }

    /// Returns the resources of the pod, whose defaults must be set.
    #[must_use]
    pub fn resources(&self) -> PodResources<'_> {
        fn of(of: &types::ResourceRequirements) -> Requirements<'_> {
            Requirements::new(&of.requests, &of.limits)
        }
        let containers = self.containers().map(|(role, container)| ContainerResources {
            name: &container.name,
            role,
            requirements: of(&container.resources),
        });
        PodResources::new(containers)
            .with_pod_level(self.resources.as_deref().map(of))
            .with_overhead(&self.overhead)
    }
}

impl types::Container {
    /// Returns true for an init container that keeps running.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

impl Role {
    /// Returns the role of a container in `initContainers`.
    #[must_use]
    pub fn of_init_container(container: &Value) -> Role {
        if is_sidecar(container) { Role::Sidecar } else { Role::Init }
    }
}

/// Reports whether a container in `initContainers` keeps running with the others.
pub(crate) fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// The annotation that the agent sets on the API's copy of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The annotation with the source of a pod: `api`, `file` or `http`.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Pods of this priority or a higher one are critical.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Reports whether a pod with these annotations comes from a file or URL rather than from the API.
#[must_use]
pub fn is_static(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Reports whether a pod with these annotations is the API's copy of a static pod.
#[must_use]
pub fn is_mirror(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(MIRROR_ANNOTATION)
}

/// Reports whether a pod is critical: static, a mirror pod, or of the highest priorities.
#[must_use]
pub fn is_critical(annotations: &BTreeMap<String, String>, priority: Option<i32>) -> bool {
    is_static(annotations)
        || is_mirror(annotations)
        || priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
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

impl QosClass {
    /// Reads `status.qosClass`; `None` if it is empty or unknown.
    #[must_use]
    pub fn parse(text: &str) -> Option<QosClass> {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
            .into_iter()
            .find(|class| class.as_str() == text)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PodSpec {
    /// Returns the resources of the pod. Defaults must have been set.
    #[must_use]
    pub fn resources<'a>(&'a self) -> PodResources<'a> {
        let of = |of: &'a ResourceRequirements| Requirements::new(&of.requests, &of.limits);
        let container = |role: Role, container: &'a Container| ContainerResources {
            name: &container.name,
            role,
            requirements: of(&container.resources),
        };
        let init = self.init_containers.iter().map(|c| {
            let role = if c.is_sidecar() { Role::Sidecar } else { Role::Init };
            container(role, c)
        });
        let apps = self.containers.iter().map(|c| container(Role::App, c));
        PodResources::new(init.chain(apps))
            .with_pod_level(self.resources.as_ref().map(of))
            .with_overhead(&self.overhead)
    }

    /// Returns true if a container runs as a host process (Windows).
    #[must_use]
    pub fn is_host_process(&self, container: &Container) -> bool {
        container.host_process.or(self.host_process).unwrap_or(false)
    }

    /// Returns the operating system that the pod requires, by `os` or by the node label.
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
