//! Annotations of pods and containers that request classes, as containerd and CRI-O know them.
//!
//! Main type: [`AnnotationKeys`]; entry: [`requested`]. Whether an RDT class may be used is decided
//! by [`rdt_class`]; block I/O classes are checked where they are looked up.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::go_text::quoted;
use crate::rdt::config::Kubernetes;
use crate::rdt::names::{self, LookupError, Prefix};
use crate::rdt::{Tree, names::lookup};

/// The annotations that request a class of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnotationKeys<'a> {
    /// The key in the annotations of the container, which the CRI carries.
    pub container: &'a str,
    /// The key in the annotations of the pod, for all containers.
    pub pod: &'a str,
    /// The key in the annotations of the pod for one container, up to the container's name.
    pub pod_container_prefix: &'a str,
}

pub const RDT: AnnotationKeys<'static> = AnnotationKeys {
    container: "io.kubernetes.cri.rdt-class",
    pod: "rdt.resources.beta.kubernetes.io/pod",
    pod_container_prefix: "rdt.resources.beta.kubernetes.io/container.",
};

pub const BLOCKIO: AnnotationKeys<'static> = AnnotationKeys {
    container: "io.kubernetes.cri.blockio-class",
    pod: "blockio.resources.beta.kubernetes.io/pod",
    pod_container_prefix: "blockio.resources.beta.kubernetes.io/container.",
};

/// The annotations that a class comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Container,
    Pod,
}

/// A container with its annotations and those of its pod.
#[derive(Clone, Copy, Debug)]
pub struct Annotated<'a> {
    pub container: &'a str,
    pub container_annotations: &'a BTreeMap<String, String>,
    pub pod_annotations: &'a BTreeMap<String, String>,
}

/// Returns the class that annotations request. The container's own come first, then the pod's for
/// this container, then the pod's for all.
#[must_use]
pub fn requested<'a>(keys: AnnotationKeys<'_>, of: Annotated<'a>) -> Option<(&'a str, Origin)> {
    let pod = |key: &str| of.pod_annotations.get(key).map(|class| (class.as_str(), Origin::Pod));
    let own = of.container_annotations.get(keys.container);
    own.map(|class| (class.as_str(), Origin::Container))
        .or_else(|| pod(&format!("{}{}", keys.pod_container_prefix, of.container)))
        .or_else(|| pod(keys.pod))
}

/// The reason why a requested RDT class cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RdtClassError {
    #[error("RDT not initialized, class {} not available", quoted(.0))]
    NotInitialized(String),
    #[error("unqualified RDT class name {}", quoted(.0))]
    Unqualified(String),
    #[error("RDT class not found: {0}")]
    NotFound(#[from] LookupError),
    #[error("RDT class {} not allowed from Pod annotations", quoted(.0))]
    DeniedToPods(String),
    #[error("RDT class {} not allowed from Container annotation", quoted(.0))]
    DeniedToContainers(String),
}

/// A machine's classes as annotations see them.
#[derive(Clone, Copy, Debug)]
pub struct RdtClasses<'a> {
    pub tree: &'a Tree,
    pub prefix: &'a Prefix,
    /// The mount point of resctrl.
    pub mount: &'a str,
    /// The classes of the file in effect, by name.
    pub configured: &'a BTreeMap<String, Kubernetes>,
}

/// Returns the RDT class of a container; the empty one if no annotation requests any. A class
/// exists if its control group does, whichever program created it. `classes` is absent on a
/// machine without resctrl.
pub fn rdt_class<'a>(
    of: Annotated<'a>,
    classes: Option<RdtClasses<'_>>,
) -> Result<&'a str, RdtClassError> {
    let Some((class, origin)) = requested(RDT, of) else { return Ok("") };
    let Some(classes) = classes else {
        return Err(RdtClassError::NotInitialized(class.to_owned()));
    };
    if !names::is_qualified(class) {
        return Err(RdtClassError::Unqualified(class.to_owned()));
    }
    lookup(class, classes.prefix, classes.tree, classes.mount)?;
    let denied = classes.configured.get(names::canonical(class)).copied().unwrap_or_default();
    match origin {
        Origin::Pod if denied.deny_pod_annotation => {
            Err(RdtClassError::DeniedToPods(class.to_owned()))
        }
        Origin::Container if denied.deny_container_annotation => {
            Err(RdtClassError::DeniedToContainers(class.to_owned()))
        }
        _ => Ok(class),
    }
}
