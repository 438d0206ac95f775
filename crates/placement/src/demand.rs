//! The resources that a pod requests from a machine, reduced to those that placement depends on.
//!
//! Main type: [`Demand`]. It is made from a pod once, by [`Demand::new`], and carries no decision.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use objects::pod::resources::{ContainerResources, PodResources, Side, peak};
use objects::{Quantity, resources};
use smallvec::SmallVec;

pub use objects::QosClass;
pub use objects::pod::Role;

use crate::ids::Bytes;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            #[must_use]
            pub fn new(text: &str) -> $name {
                $name(text.into())
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// A pod's unique id; cheap to clone.
    PodUid
}
name! {
    /// A container's name within its pod; cheap to clone.
    ContainerName
}

/// Ordinary memory or huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    // Huge pages before memory, as their resource names sort.
    HugePages(Bytes),
    Memory,
}

impl MemoryKind {
    /// Reads a resource name; `None` if it is neither memory nor huge pages of a sensible size.
    #[must_use]
    pub fn parse(resource: &str) -> Option<MemoryKind> {
        if resource == "memory" {
            return Some(MemoryKind::Memory);
        }
        let size = Quantity::parse(resource.strip_prefix("hugepages-")?).ok()?.as_i64()?;
        u64::try_from(size).ok().filter(|size| *size > 0).map(|s| MemoryKind::HugePages(Bytes(s)))
    }
}

impl fmt::Display for MemoryKind {
    /// The resource name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryKind::Memory => f.write_str("memory"),
            MemoryKind::HugePages(size) => write!(f, "hugepages-{size}"),
        }
    }
}

/// Amounts by kind, in order of kind, each kind once.
pub type MemoryAmounts = SmallVec<[(MemoryKind, Bytes); 2]>;

/// The request of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerDemand {
    pub name: ContainerName,
    pub role: Role,
    /// Thousandths of a CPU requested.
    pub milli_cpus: i64,
    /// Memory and huge pages requested; `None` if an amount is not a whole number of bytes.
    pub memory: Option<MemoryAmounts>,
}

impl ContainerDemand {
    fn new(container: &ContainerResources<'_>) -> ContainerDemand {
        let requests = container.requirements.get(Side::Requests);
        let exact = |amount: &Quantity| amount.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
        let memory: Option<MemoryAmounts> = requests
            .iter()
            .filter_map(|(name, amount)| Some((MemoryKind::parse(name)?, amount)))
            .map(|(kind, amount)| Some((kind, Bytes(exact(amount)?))))
            .collect();
        ContainerDemand {
            name: ContainerName::new(container.name),
            role: container.role,
            milli_cpus: requests.get(resources::CPU).map_or(0, Quantity::milli_value),
            memory: memory.map(|mut amounts| {
                amounts.sort_by_key(|(kind, _)| *kind);
                amounts
            }),
        }
    }
}

/// The request of a pod. Containers are in the order in which they start. Other crates make one with
/// [`Demand::new`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    pub uid: PodUid,
    pub qos: QosClass,
    /// Resources are set for the pod as a whole, which no manager places yet.
    pub pod_level: bool,
    pub containers: Vec<ContainerDemand>,
}

impl Demand {
    /// Makes the demand of a pod: the only way to a demand, so that every caller of [`crate::plan`] asks
    /// the same of the same pod. `uid` distinguishes it from others; a manifest often has none of its own.
    #[must_use]
    pub fn new(uid: &PodUid, pod: &PodResources<'_>) -> Demand {
        Demand {
            uid: uid.clone(),
            qos: pod.qos_class(),
            pod_level: pod.pod_level().is_some(),
            containers: pod.containers().iter().map(ContainerDemand::new).collect(),
        }
    }

    /// Returns the same demand for another pod.
    #[must_use]
    pub fn with_uid(&self, uid: PodUid) -> Demand {
        Demand { uid, ..self.clone() }
    }

    /// The CPUs a container gets to itself; `None` if it shares.
    #[must_use]
    pub fn exclusive_cpus(&self, container: usize) -> Option<usize> {
        let milli = self.containers[container].milli_cpus;
        let exclusive = self.qos == QosClass::Guaranteed && !self.pod_level && milli % 1000 == 0;
        usize::try_from(milli / 1000).ok().filter(|cpus| exclusive && *cpus > 0)
    }

    /// The CPUs the pod needs to itself at any one time; `None` if it shares.
    #[must_use]
    pub fn pod_exclusive_cpus(&self) -> Option<usize> {
        let own =
            |(at, of): (usize, &ContainerDemand)| (of.role, self.exclusive_cpus(at).unwrap_or(0));
        Some(peak(self.containers.iter().enumerate().map(own))).filter(|cpus| *cpus > 0)
    }

    /// The memory the pod needs at any one time, of the kinds its app containers ask for; `None`
    /// if an amount is not a whole number of bytes.
    #[must_use]
    pub fn pod_memory(&self) -> Option<MemoryAmounts> {
        let mut kinds: SmallVec<[MemoryKind; 2]> = SmallVec::new();
        for container in &self.containers {
            let amounts = container.memory.as_ref()?;
            if container.role == Role::App {
                kinds.extend(amounts.iter().map(|(kind, _)| *kind));
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        let of = |container: &ContainerDemand, kind: MemoryKind| {
            let mut amounts = container.memory.iter().flatten();
            amounts.find(|(k, _)| *k == kind).map_or(0, |(_, bytes)| bytes.0)
        };
        let peak = |kind| peak(self.containers.iter().map(|c| (c.role, of(c, kind))));
        Some(kinds.into_iter().map(|kind| (kind, Bytes(peak(kind)))).collect())
    }
}
