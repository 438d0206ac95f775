//! QoS-class resources (KEP-3008) in the form that a runtime understands: [`ClassSupport`].
//!
//! Fields of the extension are sent only to a runtime that has filled in `RuntimeStatus.resources`:
//! another runtime may use the same field number for something else, now or later. For such
//! runtimes, classes of RDT and block I/O become the annotations that containerd and CRI-O already
//! support. A class that neither form can express is returned as [`Unsupported`]; the caller
//! decides what to do.
//!
//! Pure: it changes messages and sends none. It does not check which classes exist or how many of
//! each are free; admission checks that, and the runtime rejects unknown classes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::v1;

/// The resources that have a name without prefix and an annotation that predates the extension.
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

    /// Returns the other spelling of the same name.
    fn alias(&self, name: &str) -> &'static str {
        if name == self.name { self.short } else { self.name }
    }
}

/// Returns the full name of a QoS-class resource, for example `k8s.io/rdt` for `rdt`.
#[must_use]
pub fn full_resource_name(name: &str) -> &str {
    Official::find(name).map_or(name, |official| official.name)
}

/// The form of QoS-class resources that a runtime understands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClassSupport {
    /// The runtime does not know the extension; only annotations work.
    #[default]
    Annotations,
    /// The runtime knows the extension and these resources.
    Fields { pod: BTreeSet<String>, container: BTreeSet<String> },
}

/// The level that a class applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Pod,
    Container,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Pod => "pod",
            Level::Container => "container",
        })
    }
}

/// A class that cannot be sent to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    pub level: Level,
    pub name: String,
    pub class: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsupported { level, name, class } = self;
        write!(
            f,
            "the runtime does not support class {class:?} of QoS-class resource {name:?} for a {level}"
        )
    }
}

impl ClassSupport {
    /// Reads the support from the status that the runtime reports.
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

    /// Converts a sandbox configuration to the runtime's form.
    #[must_use = "unsupported classes are not applied by the runtime"]
    pub fn fit_sandbox(&self, config: &mut v1::PodSandboxConfig) -> Vec<Unsupported> {
        self.fit(&mut config.qos_resources, Some(&mut config.annotations))
    }

    /// Converts a create request, with the sandbox configuration in it, to the runtime's form.
    #[must_use = "unsupported classes are not applied by the runtime"]
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

    /// Converts a pull request to the runtime's form; it contains the sandbox configuration too.
    #[must_use = "unsupported classes are not applied by the runtime"]
    pub fn fit_pull(&self, request: &mut v1::PullImageRequest) -> Vec<Unsupported> {
        request.sandbox_config.as_mut().map_or_else(Vec::new, |sandbox| self.fit_sandbox(sandbox))
    }

    /// Converts a container update to the runtime's form. Runtimes read annotations only when a
    /// container is created.
    #[must_use = "unsupported classes are not applied by the runtime"]
    pub fn fit_update(
        &self,
        request: &mut v1::UpdateContainerResourcesRequest,
    ) -> Vec<Unsupported> {
        self.fit(&mut request.qos_resources, None)
    }

    /// Converts a sandbox update to the runtime's form. Runtimes read annotations only when
    /// containers are created.
    #[must_use = "unsupported classes are not applied by the runtime"]
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

/// Replaces an official name by the spelling that the runtime advertises.
fn respell(name: &mut String, advertised: &BTreeSet<String>) {
    if !advertised.contains(name)
        && let Some(alias) = Official::find(name).map(|official| official.alias(name))
        && advertised.contains(alias)
    {
        alias.clone_into(name);
    }
}

/// Converts classes to annotations, if there is an annotation map and an annotation for the
/// resource.
fn annotate<A: Assignment>(
    assignments: Vec<A>,
    mut annotations: Option<&mut BTreeMap<String, String>>,
) -> Vec<Unsupported> {
    let mut unsupported = Vec::new();
    for assignment in assignments {
        let (name, class) = assignment.into_parts();
        // The default class needs no annotation.
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

/// The two messages that assign a class.
trait Assignment {
    const LEVEL: Level;

    fn name(&mut self) -> &mut String;

    /// Returns the name and the class.
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
