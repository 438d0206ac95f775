//! QoS-class resources (KEP-3008) in the form that a runtime understands: [`ClassSupport`].
//!
//! Fields of the extension go only to a runtime that has filled in `RuntimeStatus.resources`: another
//! one may have, or come to have, a different field of the same number. For those, classes of RDT and
//! block I/O become the annotations that containerd and CRI-O have known all along. What can be said
//! in neither form comes back as [`Unsupported`], and what to make of it is the caller's.
//!
//! Pure: it changes messages and sends none. Which classes exist, and how many of each are left, is not
//! looked at; a runtime refuses what it does not have, and admission does so before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::v1;

/// The resources that have a name without prefix, and annotations from before the extension.
const OFFICIAL: &[Official] = &[
    Official {
        name: "k8s.io/rdt",
        short: "rdt",
        container_annotation: "io.kubernetes.cri.rdt-class",
        pod_annotation: "rdt.resources.beta.kubernetes.io/pod",
    },
    Official {
        name: "k8s.io/blockio",
        short: "blockio",
        container_annotation: "io.kubernetes.cri.blockio-class",
        pod_annotation: "blockio.resources.beta.kubernetes.io/pod",
    },
];

struct Official {
    name: &'static str,
    short: &'static str,
    container_annotation: &'static str,
    pod_annotation: &'static str,
}

impl Official {
    fn find(name: &str) -> Option<&'static Self> {
        OFFICIAL.iter().find(|official| official.name == name || official.short == name)
    }

    /// The other spelling of the same name.
    fn alias(&self, name: &str) -> &'static str {
        if name == self.name { self.short } else { self.name }
    }
}

/// Which form of QoS-class resources a runtime understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClassSupport {
    /// It knows nothing of the extension; annotations are all there is.
    #[default]
    Annotations,
    /// It knows the extension, and these resources.
    Fields { pod: BTreeSet<String>, container: BTreeSet<String> },
}

/// Whose class it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Pod,
    Container,
}

/// A class that cannot be made known to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub level: Level,
    pub name: String,
    pub class: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Pod => "pod",
            Level::Container => "container",
        };
        write!(
            f,
            "the runtime cannot be told class {:?} of QoS-class resource {:?} for a {level}",
            self.class, self.name
        )
    }
}

impl ClassSupport {
    /// As the runtime advertises it.
    pub fn of(status: &v1::RuntimeStatus) -> Self {
        let names = |resources: &[v1::QosResourceInfo]| {
            resources.iter().map(|resource| resource.name.clone()).collect()
        };
        match &status.resources {
            None => Self::Annotations,
            Some(resources) => Self::Fields {
                pod: names(&resources.pod_qos_resources),
                container: names(&resources.container_qos_resources),
            },
        }
    }

    /// Makes a sandbox's configuration fit for the runtime.
    #[must_use = "what could not be said to the runtime is not in force"]
    pub fn fit_sandbox(&self, config: &mut v1::PodSandboxConfig) -> Vec<Unsupported> {
        self.fit(&mut config.qos_resources, Some(&mut config.annotations))
    }

    /// Makes a request for a container fit for the runtime, with the sandbox's configuration in it.
    #[must_use = "what could not be said to the runtime is not in force"]
    pub fn fit_create(&self, request: &mut v1::CreateContainerRequest) -> Vec<Unsupported> {
        let mut unsupported = Vec::new();
        if let Some(sandbox) = &mut request.sandbox_config {
            unsupported.extend(self.fit_sandbox(sandbox));
        }
        if let Some(config) = &mut request.config {
            unsupported.extend(self.fit(&mut config.qos_resources, Some(&mut config.annotations)));
        }
        unsupported
    }

    /// Makes a request for an image fit for the runtime: it holds the sandbox's configuration too.
    #[must_use = "what could not be said to the runtime is not in force"]
    pub fn fit_pull(&self, request: &mut v1::PullImageRequest) -> Vec<Unsupported> {
        request.sandbox_config.as_mut().map_or_else(Vec::new, |sandbox| self.fit_sandbox(sandbox))
    }

    /// Makes a change of a container fit for the runtime. Annotations are read when a container is
    /// made, and never again.
    #[must_use = "what could not be said to the runtime is not in force"]
    pub fn fit_update(
        &self,
        request: &mut v1::UpdateContainerResourcesRequest,
    ) -> Vec<Unsupported> {
        self.fit(&mut request.qos_resources, None)
    }

    /// Makes a change of a sandbox fit for the runtime. Annotations are read when containers are
    /// made, and never again.
    #[must_use = "what could not be said to the runtime is not in force"]
    pub fn fit_sandbox_update(
        &self,
        request: &mut v1::UpdatePodSandboxResourcesRequest,
    ) -> Vec<Unsupported> {
        self.fit(&mut request.qos_resources, None)
    }

    fn fit<A: Assignment>(
        &self,
        assignments: &mut Vec<A>,
        annotations: Option<&mut BTreeMap<String, String>>,
    ) -> Vec<Unsupported> {
        match self {
            Self::Fields { pod, container } => {
                let advertised = match A::LEVEL {
                    Level::Pod => pod,
                    Level::Container => container,
                };
                for assignment in assignments {
                    respell(assignment.name(), advertised);
                }
                Vec::new()
            }
            Self::Annotations => annotate(std::mem::take(assignments), annotations),
        }
    }
}

/// Takes the spelling of an official name that the runtime uses.
fn respell(name: &mut String, advertised: &BTreeSet<String>) {
    if !advertised.contains(name)
        && let Some(alias) = Official::find(name).map(|official| official.alias(name))
        && advertised.contains(alias)
    {
        alias.clone_into(name);
    }
}

/// Turns classes into annotations, where there are any to write to and one for the resource.
fn annotate<A: Assignment>(
    assignments: Vec<A>,
    mut annotations: Option<&mut BTreeMap<String, String>>,
) -> Vec<Unsupported> {
    let mut unsupported = Vec::new();
    for assignment in assignments {
        let (name, class) = assignment.into_parts();
        // The system's default needs no saying.
        if class.is_empty() {
            continue;
        }
        let key = Official::find(&name).map(|official| match A::LEVEL {
            Level::Pod => official.pod_annotation,
            Level::Container => official.container_annotation,
        });
        match (&mut annotations, key) {
            (Some(annotations), Some(key)) => {
                annotations.insert(key.to_owned(), class);
            }
            _ => unsupported.push(Unsupported { level: A::LEVEL, name, class }),
        }
    }
    unsupported
}

/// The two messages that give a class.
trait Assignment {
    const LEVEL: Level;

    fn name(&mut self) -> &mut String;

    /// Name and class.
    fn into_parts(self) -> (String, String);
}

impl Assignment for v1::PodQosResource {
    const LEVEL: Level = Level::Pod;

    fn name(&mut self) -> &mut String {
        &mut self.name
    }

    fn into_parts(self) -> (String, String) {
        (self.name, self.class)
    }
}

impl Assignment for v1::ContainerQosResource {
    const LEVEL: Level = Level::Container;

    fn name(&mut self) -> &mut String {
        &mut self.name
    }

    fn into_parts(self) -> (String, String) {
        (self.name, self.class)
    }
}

#[cfg(test)]
mod tests;
