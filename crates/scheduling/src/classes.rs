//! QoS-class resources (KEP-3008) in scheduling: the classes that a node offers, their capacities,
//! and the classes that a pod needs.
//!
//! Main types: [`NodeClasses`], [`ClassDemand`] and [`ClassUse`]. A class resource is assigned
//! either to pods or to containers; the node defines which. Every container that uses a class
//! counts as one, at the pod's peak: init containers that run in sequence do not add up, like their
//! requests.

use objects::pod::Role;
use objects::pod::resources::peak;
use objects::types;
use smallvec::SmallVec;

use crate::interner::{Interner, Symbol};

/// A class of a class resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Class {
    pub(crate) resource: Symbol,
    pub(crate) class: Symbol,
}

/// Returns the official name of a resource; the short form is accepted too.
fn official(name: &str) -> &str {
    match name {
        "rdt" => "k8s.io/rdt",
        "blockio" => "k8s.io/blockio",
        other => other,
    }
}

/// The classes that a node offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeClasses {
    pub(crate) pod: Offer,
    pub(crate) container: Offer,
}

/// Classes with their capacities; zero is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Offer {
    resources: Box<[Symbol]>,
    classes: Box<[(Class, u64)]>,
}

impl Offer {
    fn new(resources: &[types::QOSResourceInfo], symbols: &mut Interner) -> Offer {
        let mut classes = Vec::new();
        let mut names = Vec::new();
        for offered in resources {
            let resource = symbols.intern(official(&offered.name));
            names.push(resource);
            for class in &offered.classes {
                let class_name = symbols.intern(&class.name);
                let capacity = u64::try_from(class.capacity).unwrap_or(0);
                classes.push((Class { resource, class: class_name }, capacity));
            }
        }
        Offer { resources: names.into(), classes: classes.into() }
    }

    fn has(&self, resource: Symbol) -> bool {
        self.resources.contains(&resource)
    }

    pub(crate) fn capacity(&self, class: Class) -> Option<u64> {
        self.classes.iter().find(|(c, _)| *c == class).map(|(_, capacity)| *capacity)
    }
}

impl NodeClasses {
    pub(crate) fn new(
        classes: Option<&types::QOSResourceStatus>,
        symbols: &mut Interner,
    ) -> NodeClasses {
        let Some(classes) = classes else { return NodeClasses::default() };
        NodeClasses {
            pod: Offer::new(&classes.pod_qos_resources, symbols),
            container: Offer::new(&classes.container_qos_resources, symbols),
        }
    }

    /// Returns the capacity of a class, if the node offers it. Names are unique across pod and
    /// container resources.
    pub(crate) fn capacity(&self, class: Class) -> Option<u64> {
        self.container.capacity(class).or_else(|| self.pod.capacity(class))
    }
}

/// The classes that a pod requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ClassDemand {
    /// Classes requested by the pod, with the number of containers that use each at the peak if the
    /// resource turns out to be for containers: those that name the class and those that name no
    /// class of the resource.
    pod: Box<[(Class, u32)]>,
    /// Classes requested by containers, with the number of containers at the peak.
    containers: Box<[(Class, u32)]>,
}

/// The needs of a pod on one node: class and number of users.
pub(crate) type Needs = SmallVec<[(Class, u32); 4]>;

impl ClassDemand {
    pub(crate) fn new(spec: &types::PodSpec, symbols: &mut Interner) -> ClassDemand {
        let mut class = |entry: &types::QOSResourceRequest| Class {
            resource: symbols.intern(official(&entry.name)),
            class: symbols.intern(&entry.class),
        };
        let mut named = |c: &types::Container| -> Vec<Class> {
            c.resources.qos_resources.iter().map(&mut class).collect()
        };
        let users: Vec<(Role, Vec<Class>)> =
            spec.containers().map(|(role, container)| (role, named(container))).collect();
        let mut pod: Vec<Class> = spec.qos_resources.iter().map(class).collect();
        pod.dedup_by_key(|c| c.resource);
        let mut all: Vec<Class> = users.iter().flat_map(|(_, named)| named).copied().collect();
        all.sort_unstable();
        all.dedup();
        let at_once = |uses: &dyn Fn(&[Class]) -> bool| {
            peak(users.iter().map(|(role, named)| (*role, u32::from(uses(named)))))
        };
        let containers = all.iter().map(|c| (*c, at_once(&|named| named.contains(c)))).collect();
        let pod = pod.iter().map(|c| {
            let by_default = |named: &[Class]| {
                named.contains(c) || !named.iter().any(|other| other.resource == c.resource)
            };
            (*c, at_once(&by_default))
        });
        ClassDemand { pod: pod.collect(), containers }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pod.is_empty() && self.containers.is_empty()
    }

    /// Returns the needs of the pod on a node that offers these classes.
    pub(crate) fn on(&self, node: &NodeClasses) -> Needs {
        let mut needs = Needs::new();
        for (class, containers) in &self.pod {
            match (node.container.has(class.resource), containers) {
                // Every container names a class, so the pod's default applies to none.
                (true, 0) => {}
                (true, containers) => needs.push((*class, *containers)),
                (false, _) => needs.push((*class, 1)),
            }
        }
        for (class, count) in &self.containers {
            // If the pod's default is the same class, its count includes these containers.
            let counted = self.pod.iter().any(|(default, _)| default == class)
                && node.container.has(class.resource);
            if !counted {
                needs.push((*class, *count));
            }
        }
        needs
    }
}

/// How many use each class of a node that not any number may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ClassUse(SmallVec<[(Class, u64); 3]>);

impl ClassUse {
    pub(crate) fn of(&self, class: Class) -> u64 {
        self.0.iter().find(|(c, _)| *c == class).map_or(0, |(_, used)| *used)
    }

    pub(crate) fn add(&mut self, needs: &Needs, offered: &NodeClasses) {
        for (class, count) in needs {
            if offered.capacity(*class).unwrap_or(0) == 0 {
                continue;
            }
            match self.0.iter_mut().find(|(c, _)| c == class) {
                Some((_, used)) => *used += u64::from(*count),
                None => self.0.push((*class, u64::from(*count))),
            }
        }
    }

    pub(crate) fn subtract(&mut self, needs: &Needs) {
        for (class, count) in needs {
            if let Some((_, used)) = self.0.iter_mut().find(|(c, _)| c == class) {
                *used = used.saturating_sub(u64::from(*count));
            }
        }
        self.0.retain(|(_, used)| *used > 0);
    }
}
