//! Remedies for refused pods.
//!
//! Main type: [`Remedy`]; [`remedies`] finds them by changing one thing at a time and planning the
//! pod again: every remedy has been tried. It uses one machine, the one with the most free
//! capacity, in the state after everything else has been placed.

use std::fmt;

use objects::types::{Container, Pod};
use objects::{Quantity, resources};
use placement::alignment::{Alignment, AlignmentPolicy, Scope};
use placement::configured::{Capacity, Configured};
use placement::demand::{PodUid, QosClass};
use placement::node::CpuPolicy;
use placement::{Bytes, Ledger, Node, plan};
use serde::Serialize;

use crate::simulate::{Class, PodRef, RefusedPods, Rejection, Simulation, precheck};

/// One change that would make a pod fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Remedy {
    /// CPUs in multiples of a core's.
    WholeCores {
        container: String,
        from: u64,
        to: u64,
    },
    FewerCpus {
        container: String,
        from: u64,
        to: u64,
    },
    LessMemory {
        container: String,
        resource: String,
        from: String,
        to: String,
    },
    /// No CPUs of its own.
    SharedCpus {
        container: String,
    },
    TopologyManagerPolicy {
        to: String,
    },
    TopologyManagerScope {
        to: String,
    },
    /// Without one other pod.
    WithoutPod {
        pod: String,
    },
    EmptyMachine {
        shape: String,
    },
    MaxPods {
        to: u64,
    },
    /// On a machine with this many devices.
    Devices {
        resource: String,
        to: u64,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::WholeCores { container, from, to } => {
                write!(f, "{to} CPUs instead of {from} for {container}: whole cores")
            }
            Remedy::FewerCpus { container, from, to } => {
                write!(f, "at most {to} CPUs instead of {from} for {container}")
            }
            Remedy::LessMemory { container, resource, from, to } => {
                write!(f, "at most {to} of {resource} instead of {from} for {container}")
            }
            Remedy::SharedCpus { container } => {
                write!(
                    f,
                    "shared CPUs and memory from any node (Burstable): leave out the CPU limit of \
                     {container}"
                )
            }
            Remedy::TopologyManagerPolicy { to } => write!(f, "topologyManagerPolicy: {to}"),
            Remedy::TopologyManagerScope { to } => write!(f, "topologyManagerScope: {to}"),
            Remedy::WithoutPod { pod } => write!(f, "without {pod} on that machine"),
            Remedy::EmptyMachine { shape } => write!(f, "one more machine like {shape}"),
            Remedy::MaxPods { to } => write!(f, "maxPods: {to}"),
            Remedy::Devices { resource, to } => {
                write!(f, "a machine with {to} of {resource} (--resource {resource}={to})")
            }
        }
    }
}

/// Finds remedies for refused pods; `name` returns a pod's name.
pub fn remedies(
    simulation: &mut Simulation<'_>,
    refused: &RefusedPods,
    name: impl Fn(PodRef) -> String,
) -> (Option<usize>, Vec<Remedy>) {
    let Some((rejection, ..)) = refused.rejections.first() else { return (None, Vec::new()) };
    let workloads = simulation.workloads;
    let template = &workloads[refused.workload as usize].template;
    let machine = match (refused.only, refused.spare) {
        (Some(only), _) => Some(only),
        (None, Some(_)) => None,
        (None, None) => emptiest(simulation, simulation.class(refused.class)),
    };
    let shape = match (machine, refused.spare) {
        (Some(machine), _) => simulation.shape_of(machine),
        (None, Some(spare)) => &simulation.shapes[spare],
        (None, None) => return (None, Vec::new()),
    };
    let Some(machine) = machine else {
        let empty = TrialMachine::empty(&shape.configured);
        return (None, empty.changes(template, rejection));
    };
    let trial = TrialMachine {
        used: simulation.used(machine).clone(),
        ledger: simulation.ledger(machine).clone(),
        ..TrialMachine::empty(&shape.configured)
    };
    let others = simulation.placed_pods(machine).into_iter();
    let others = others.filter(|other| other.class != refused.class).map(|other| OtherPod {
        name: name(other.pod),
        uid: other.uid,
        need: simulation.class(other.class).need.clone(),
    });
    let mut found = trial.changes(template, rejection);
    found.extend(trial.without_a_pod(template, others.collect()));
    if !simulation.machines[machine].pods.is_empty() {
        found.extend(trial.elsewhere(template, &shape.name));
    }
    (Some(machine), found)
}

/// A pod that is placed on a machine.
#[derive(Clone, Debug)]
pub(crate) struct OtherPod {
    pub name: String,
    pub uid: PodUid,
    pub need: Capacity,
}

/// Finds remedies for a pod on one machine in its current state.
pub(crate) fn on_machine(
    configured: &Configured,
    (used, ledger): (&Capacity, &Ledger),
    pod: &Pod,
    rejection: &Rejection,
    others: Vec<OtherPod>,
    machine: &str,
) -> Vec<Remedy> {
    let trial = TrialMachine {
        used: used.clone(),
        ledger: ledger.clone(),
        ..TrialMachine::empty(configured)
    };
    let is_used = !others.is_empty();
    let mut found = trial.changes(pod, rejection);
    found.extend(trial.without_a_pod(pod, others));
    if is_used {
        found.extend(trial.elsewhere(pod, machine));
    }
    found
}

/// Returns the least loaded machine that is suitable for the pod.
fn emptiest(simulation: &Simulation<'_>, class: &Class) -> Option<usize> {
    let suitable = |machine: &usize| {
        let os = simulation.shape_of(*machine).configured.node.os;
        let named = class.node_name.as_ref();
        class.os.is_none_or(|(wanted, _)| wanted == os)
            && named.is_none_or(|name| *name == simulation.machines[*machine].name)
    };
    let machines = (0..simulation.machines.len()).filter(suitable);
    machines.min_by_key(|machine| simulation.load(*machine))
}

/// The state of a machine, for trial placements.
#[derive(Clone)]
struct TrialMachine<'a> {
    configured: &'a Configured,
    node: &'a Node,
    used: Capacity,
    ledger: Ledger,
}

impl<'a> TrialMachine<'a> {
    fn empty(configured: &'a Configured) -> TrialMachine<'a> {
        let node = &configured.node;
        TrialMachine { configured, node, used: Capacity::default(), ledger: node.empty_ledger() }
    }

    /// Finds changes of the pod or of the machine's configuration.
    fn changes(&self, pod: &Pod, rejection: &Rejection) -> Vec<Remedy> {
        let mut found = Vec::new();
        self.sizes(pod, rejection, &mut found);
        self.policies(pod, &mut found);
        self.capacities(pod, &mut found);
        found
    }

    /// Checks an empty machine of the same shape.
    fn elsewhere(&self, pod: &Pod, shape: &str) -> Option<Remedy> {
        let empty = TrialMachine::empty(self.configured);
        empty.takes(pod).then(|| Remedy::EmptyMachine { shape: shape.to_owned() })
    }

    fn takes(&self, pod: &Pod) -> bool {
        let class = Class::of(pod);
        let demand = class.demand.with_uid(PodUid::new("trial"));
        precheck(&class, self.configured, &self.used).is_none()
            && plan(self.node, &self.ledger, &demand).is_ok()
    }

    /// Finds other amounts for the container that did not fit, or for the largest one.
    fn sizes(&self, pod: &Pod, rejection: &Rejection, found: &mut Vec<Remedy>) {
        let named = match rejection {
            Rejection::Placement(refusal) => refusal.container().map(|name| name.to_string()),
            _ => None,
        };
        for resource in requested(pod) {
            let Some((name, from)) = largest(pod, named.as_deref(), &resource) else { continue };
            let with = |units: u64| changed(pod, &name, &resource, units);
            let fits = |units: u64| self.takes(&with(units));
            if resource == resources::CPU {
                self.cpus(pod, &name, from, &fits, found);
                continue;
            }
            // Whole pages, or whole mebibytes.
            let unit = resources::huge_page_size(&resource);
            let unit = unit.and_then(|size| u64::try_from(size).ok()).unwrap_or(1 << 20);
            let most = most_that_fits(from.div_ceil(unit).saturating_sub(1), |n| fits(n * unit));
            if let Some(most) = most {
                let (from, to) = (Bytes(from).to_string(), Bytes(most * unit).to_string());
                found.push(Remedy::LessMemory { container: name, resource, from, to });
            }
        }
    }

    fn cpus(
        &self,
        pod: &Pod,
        name: &str,
        milli: u64,
        fits: &dyn Fn(u64) -> bool,
        found: &mut Vec<Remedy>,
    ) {
        let container = || name.to_owned();
        let exclusive = match &self.node.cpu {
            CpuPolicy::Static(policy) => (Class::of(pod).demand.qos == QosClass::Guaranteed
                && milli.is_multiple_of(1000))
            .then_some(policy),
            CpuPolicy::None => None,
        };
        let from = milli.div_ceil(1000);
        let step = match exclusive {
            Some(policy) if policy.options().full_cores => {
                self.node.topology.cpus_per_core().max(1) as u64
            }
            _ => 1,
        };
        let whole = from.next_multiple_of(step);
        if whole != from && fits(whole * 1000) {
            found.push(Remedy::WholeCores { container: container(), from, to: whole });
        }
        let most = most_that_fits(from.div_ceil(step).saturating_sub(1), |n| fits(n * step * 1000));
        if let Some(most) = most {
            let to = most * step;
            found.push(Remedy::FewerCpus { container: container(), from, to });
        }
        if exclusive.is_some() {
            let mut shared = pod.clone();
            for container in containers_mut(&mut shared).filter(|c| c.name == name) {
                container.resources.limits.remove(resources::CPU);
            }
            if self.takes(&shared) {
                found.push(Remedy::SharedCpus { container: container() });
            }
        }
    }

    /// Finds a less strict alignment, or another alignment scope.
    fn policies(&self, pod: &Pod, found: &mut Vec<Remedy>) {
        let Alignment { policy, scope, .. } = self.node.alignment;
        let with = |alignment: Alignment| {
            let node = Node { alignment, ..self.node.clone() };
            TrialMachine { node: &node, ..self.clone() }.takes(pod)
        };
        let softer: &[AlignmentPolicy] = match policy {
            AlignmentPolicy::SingleNumaNode => {
                &[AlignmentPolicy::Restricted, AlignmentPolicy::BestEffort]
            }
            AlignmentPolicy::Restricted => &[AlignmentPolicy::BestEffort],
            AlignmentPolicy::BestEffort | AlignmentPolicy::None => &[],
        };
        let softer =
            softer.iter().find(|to| with(Alignment { policy: **to, ..self.node.alignment }));
        if let Some(to) = softer {
            found.push(Remedy::TopologyManagerPolicy { to: to.name().to_owned() });
        }
        if scope == Scope::Pod && with(Alignment { scope: Scope::Container, ..self.node.alignment })
        {
            found.push(Remedy::TopologyManagerScope { to: Scope::Container.name().to_owned() });
        }
    }

    /// Finds larger capacities of counted resources.
    fn capacities(&self, pod: &Pod, found: &mut Vec<Remedy>) {
        let need = Capacity::of(pod);
        let with = |change: &dyn Fn(&mut Capacity)| {
            let mut configured = self.configured.clone();
            change(&mut configured.allocatable);
            TrialMachine { configured: &configured, ..self.clone() }.takes(pod)
        };
        let pods = self.used.pods + 1;
        if pods > self.configured.allocatable.pods && with(&|all| all.pods = pods) {
            found.push(Remedy::MaxPods { to: pods });
        }
        for (name, amount) in need.others.iter().filter(|(name, _)| resources::is_extended(name)) {
            let to = self.used.others.get(name).copied().unwrap_or(0).saturating_add(*amount);
            let has = self.configured.allocatable.others.get(name).copied().unwrap_or(0);
            let add = |all: &mut Capacity| {
                all.others.insert(name.clone(), to);
            };
            if to > has && with(&add) {
                found.push(Remedy::Devices { resource: name.clone(), to });
            }
        }
    }

    /// Finds the smallest other pod whose removal would make the pod fit.
    fn without_a_pod(&self, pod: &Pod, mut others: Vec<OtherPod>) -> Option<Remedy> {
        others.sort_by_key(|other| (other.need.milli_cpus, other.need.memory));
        let gone = others.into_iter().find(|other| {
            let mut trial = self.clone();
            trial.ledger.release(&other.uid);
            trial.used = trial.used.minus(&other.need);
            trial.takes(pod)
        })?;
        Some(Remedy::WithoutPod { pod: gone.name })
    }
}

/// Returns the largest number from 1 to `most` that fits, assuming that smaller numbers fit too.
/// The result always fits.
fn most_that_fits(most: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high, mut best) = (1, most, None);
    while low <= high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            best = Some(middle);
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    best
}

/// Returns the resources that a pod's containers request, of CPU, memory and huge pages.
fn requested(pod: &Pod) -> Vec<String> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let names = containers.flat_map(|container| container.resources.requests.keys());
    let mut names: Vec<String> =
        names.filter(|name| resources::is_pod_level(name)).cloned().collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the container with the largest request of a resource, and the amount in thousandths of
/// CPUs or bytes.
fn largest(pod: &Pod, named: Option<&str>, resource: &str) -> Option<(String, u64)> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let amounts = containers.filter(|c| named.is_none_or(|name| c.name == name)).filter_map(|c| {
        let amount = c.resources.requests.get(resource)?;
        let units = match resource {
            resources::CPU => amount.checked_milli_value(),
            _ => amount.checked_value(),
        };
        Some((c.name.clone(), u64::try_from(units?).ok().filter(|units| *units > 0)?))
    });
    amounts.max_by_key(|(_, units)| *units)
}

/// Returns the pod with another amount; a limit that was equal to the request stays equal.
fn changed(pod: &Pod, name: &str, resource: &str, units: u64) -> Pod {
    let mut pod = pod.clone();
    let amount = match resource {
        resources::CPU => Quantity::from_milli(i64::try_from(units).unwrap_or(i64::MAX)),
        _ => Quantity::from_bytes(units),
    };
    for container in containers_mut(&mut pod).filter(|container| container.name == name) {
        let lists = &mut container.resources;
        if lists.limits.get(resource) == lists.requests.get(resource) {
            lists.limits.insert(resource.to_owned(), amount.clone());
        }
        lists.requests.insert(resource.to_owned(), amount.clone());
    }
    pod
}

fn containers_mut(pod: &mut Pod) -> impl Iterator<Item = &mut Container> {
    pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers)
}
