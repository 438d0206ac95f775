//! The meaning of a pod, which every component computes alike.
//!
//! Main type: [`resources::PodResources`], with the QoS class and the effective requests and limits of a
//! pod. [`Role`], [`is_static`], [`is_mirror`] and [`is_critical`] classify containers and pods. The fields
//! of a pod are in [`crate::types`], their rules in [`crate::rules`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::resources::{ContainerResources, PodResources, Requirements};
use crate::types;

pub mod resources;

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

    /// Returns the operating system of `os`.
    #[must_use]
    pub fn declared_os(&self) -> Option<OsName> {
        OsName::parse(&self.os.as_ref()?.name)
    }

    /// Returns the operating system that the pod requires, by `os` or by the node label.
    #[must_use]
    pub fn required_os(&self) -> Option<OsName> {
        let label = || OsName::parse(self.node_selector.get("kubernetes.io/os")?);
        self.declared_os().or_else(label)
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

impl OsName {
    /// Parses `linux` or `windows`.
    #[must_use]
    pub fn parse(text: &str) -> Option<OsName> {
        match text {
            "linux" => Some(OsName::Linux),
            "windows" => Some(OsName::Windows),
            _ => None,
        }
    }
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

#[cfg(test)]
mod tests;
