//! What a pod wants of a machine, reduced to what placing it depends on.
//!
//! Main type: [`Demand`]. It is made from a pod once ([`crate::demand`] does not read YAML) and
//! carries no decision.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use objects::pod::{Container, Pod};
use objects::{Quantity, resources};
use smallvec::SmallVec;

pub use objects::QosClass;

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

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next container starts.
    Init,
    /// An init container that keeps running beside the others.
    Sidecar,
    App,
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

/// What one container wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDemand {
    pub name: ContainerName,
    pub role: Role,
    /// Thousandths of a CPU requested.
    pub milli_cpus: i64,
    /// Memory and huge pages requested; `None` if an amount cannot be told exactly in bytes.
    pub memory: Option<MemoryAmounts>,
}

impl ContainerDemand {
    fn of(container: &Container, role: Role) -> ContainerDemand {
        let requests = &container.resources.requests;
        let exact = |amount: &Quantity| amount.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
        let memory: Option<MemoryAmounts> = requests
            .iter()
            .filter_map(|(name, amount)| Some((MemoryKind::parse(name)?, amount)))
            .map(|(kind, amount)| Some((kind, Bytes(exact(amount)?))))
            .collect();
        ContainerDemand {
            name: ContainerName::new(&container.name),
            role,
            milli_cpus: requests.get(resources::CPU).map_or(0, Quantity::milli_value),
            memory: memory.map(|mut amounts| {
                amounts.sort_by_key(|(kind, _)| *kind);
                amounts
            }),
        }
    }
}

/// What a pod wants. Containers are in the order in which they start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub uid: PodUid,
    pub qos: QosClass,
    /// Resources are stated for the whole pod, which no manager places yet.
    pub pod_level: bool,
    pub containers: Vec<ContainerDemand>,
}

impl Demand {
    /// What a pod wants. `uid` tells it apart from others; a manifest often has none of its own.
    #[must_use]
    pub fn of(pod: &Pod, uid: &PodUid) -> Demand {
        let init = pod.spec.init_containers.iter().map(|container| {
            let role = if container.is_sidecar() { Role::Sidecar } else { Role::Init };
            ContainerDemand::of(container, role)
        });
        let apps = pod.spec.containers.iter().map(|c| ContainerDemand::of(c, Role::App));
        Demand {
            uid: uid.clone(),
            qos: pod.spec.qos_class(),
            pod_level: pod.spec.resources.is_some(),
            containers: init.chain(apps).collect(),
        }
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
        let (mut starting, mut sidecars, mut apps) = (0usize, 0usize, 0usize);
        for (index, container) in self.containers.iter().enumerate() {
            let cpus = self.exclusive_cpus(index).unwrap_or(0);
            match container.role {
                Role::Init => starting = starting.max(sidecars.saturating_add(cpus)),
                Role::Sidecar => sidecars = sidecars.saturating_add(cpus),
                Role::App => apps = apps.saturating_add(cpus),
            }
        }
        Some(starting.max(apps.saturating_add(sidecars))).filter(|cpus| *cpus > 0)
    }

    /// The memory the pod needs at any one time, of the kinds its app containers ask for; `None`
    /// if an amount cannot be told exactly.
    #[must_use]
    pub fn pod_memory(&self) -> Option<MemoryAmounts> {
        let mut totals: SmallVec<[(MemoryKind, Total); 4]> = SmallVec::new();
        for container in &self.containers {
            for (kind, bytes) in container.memory.as_ref()? {
                let at = match totals.binary_search_by_key(kind, |(k, _)| *k) {
                    Ok(at) => at,
                    Err(at) => {
                        totals.insert(at, (*kind, Total::default()));
                        at
                    }
                };
                totals[at].1.add(container.role, bytes.0);
            }
        }
        Some(
            totals
                .into_iter()
                .filter(|(_, total)| total.by_app)
                .map(|(kind, total)| (kind, Bytes(total.peak())))
                .collect(),
        )
    }
}

/// The most of one kind of memory a pod uses at any one time.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    starting: u64,
    sidecars: u64,
    apps: u64,
    by_app: bool,
}

impl Total {
    fn add(&mut self, role: Role, bytes: u64) {
        match role {
            Role::Init => self.starting = self.starting.max(self.sidecars.saturating_add(bytes)),
            Role::Sidecar => self.sidecars = self.sidecars.saturating_add(bytes),
            Role::App => {
                self.apps = self.apps.saturating_add(bytes);
                self.by_app = true;
            }
        }
    }

    fn peak(self) -> u64 {
        self.starting.max(self.apps.saturating_add(self.sidecars))
    }
}
