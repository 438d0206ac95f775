//! The part of a pod that decides where it can run: its [`PodShape`].
//!
//! Pods of one template have the same shape, which is stored once: fifty thousand pods are a few
//! hundred shapes and small entries that point to them, and results for one pod of a shape hold for
//! the next. A pod's name, node and age are not part of its shape.

use std::collections::BTreeMap;

use objects::ResourceList;
use objects::pod::resources::peak;
use objects::resources::{self, is_pod_level};
use objects::types;
use placement::demand::{Demand, PodUid, QosClass};

use crate::classes::ClassDemand;
use crate::interner::{Interner, Symbol};
use crate::labels::{Labels, NodeTerm, NodeTerms, Selector};
use crate::resources::{Resource, ResourceVector};
use crate::taints::{self, Toleration};
use crate::volumes::VolumeDemand;

/// The default requests of a container in scores: a tenth of a CPU and 200 MiB.
const SCORED_MILLI_CPU: i64 = 100;
const SCORED_MEMORY: i64 = 200 << 20;

/// The part of a pod that decides where it can run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodShape {
    pub(crate) namespace: Symbol,
    pub(crate) labels: Labels,
    pub(crate) priority: i32,
    /// False with `preemptionPolicy: Never`.
    pub(crate) preempts: bool,
    pub(crate) requests: ResourceVector,
    /// CPU and memory as the fit score counts them once the pod runs: every container counts for
    /// something.
    pub(crate) scored: ResourceVector,
    /// The same while the pod is being scheduled: without pod-level requests, as upstream.
    pub(crate) scored_as_new: ResourceVector,
    pub(crate) tolerations: Box<[Toleration]>,
    pub(crate) node_selector: Box<[(Symbol, Symbol)]>,
    pub(crate) node_required: Option<NodeTerms>,
    pub(crate) node_preferred: Box<[(i64, NodeTerm)]>,
    pub(crate) affinity: Box<[PodTerm]>,
    pub(crate) anti_affinity: Box<[PodTerm]>,
    pub(crate) preferred_affinity: Box<[(i64, PodTerm)]>,
    pub(crate) preferred_anti_affinity: Box<[(i64, PodTerm)]>,
    pub(crate) spread: Box<[Spread]>,
    pub(crate) ports: Box<[HostPort]>,
    pub(crate) images: Box<[Symbol]>,
    pub(crate) volumes: VolumeDemand,
    /// Features that a node must have declared.
    pub(crate) features: Box<[&'static str]>,
    /// Kind and name of the controller.
    pub(crate) owner: Option<(Symbol, Symbol)>,
    pub(crate) classes: ClassDemand,
    pub(crate) machine: Option<MachineDemand>,
}

/// One term of a pod affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodTerm {
    pub(crate) selector: Selector,
    pub(crate) namespaces: Box<[Symbol]>,
    pub(crate) namespace_selector: Option<Selector>,
    pub(crate) key: Symbol,
}

/// One topology spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Spread {
    pub(crate) key: Symbol,
    pub(crate) max_skew: i64,
    pub(crate) hard: bool,
    pub(crate) selector: Selector,
    pub(crate) min_domains: i64,
    pub(crate) honor_affinity: bool,
    pub(crate) honor_taints: bool,
}

/// A host port of a pod. An empty address means every address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) address: Option<Symbol>,
    pub(crate) protocol: Symbol,
    pub(crate) port: i32,
}

impl HostPort {
    pub(crate) fn conflicts_with(self, other: HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address.is_none() || other.address.is_none() || self.address == other.address)
    }
}

/// The exclusive CPUs and memory nodes that a Guaranteed pod demands; other pods share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineDemand(Demand);

impl std::hash::Hash for MachineDemand {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for container in &self.0.containers {
            container.name.hash(state);
            container.milli_cpus.hash(state);
        }
    }
}

impl MachineDemand {
    pub(crate) fn of(&self, uid: &str) -> Demand {
        self.0.with_uid(PodUid::new(uid))
    }
}

impl PodShape {
    pub(crate) fn new(pod: &types::Pod, symbols: &mut Interner) -> PodShape {
        let spec = &pod.spec;
        let namespace = symbols.intern(&pod.metadata.namespace);
        let labels = Labels::new(&pod.metadata.labels, symbols);
        let mut requests = |how: CountingMode| requests(pod, how, symbols);
        let (true_requests, scored, scored_as_new) = (
            requests(CountingMode { missing_count: false, pod_level: true }),
            requests(CountingMode { missing_count: true, pod_level: true }),
            requests(CountingMode { missing_count: true, pod_level: false }),
        );
        let affinity = spec.affinity.as_deref();
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_deref());
        let pod_affinity = affinity.and_then(|affinity| affinity.pod_affinity.as_deref());
        let pod_anti_affinity = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_deref());
        let (own_affinity, preferred_affinity) =
            pod_terms(pod_affinity, namespace, &labels, symbols);
        let (anti_affinity, preferred_anti_affinity) =
            pod_terms(pod_anti_affinity, namespace, &labels, symbols);
        let (node_required, node_preferred) = node_terms(node_affinity, symbols);
        let spread = spec.topology_spread_constraints.iter();
        let spread = spread.map(|c| Spread::new(c, &labels, symbols)).collect();
        let owner = pod.metadata.owner_references.iter().find(|o| o.controller == Some(true));
        PodShape {
            namespace,
            priority: spec.priority.unwrap_or(0),
            preempts: spec.preemption_policy.as_deref() != Some("Never"),
            requests: true_requests,
            scored,
            scored_as_new,
            tolerations: spec.tolerations.iter().map(|t| taints::toleration(t, symbols)).collect(),
            node_selector: pairs(&spec.node_selector, symbols).into(),
            node_required,
            node_preferred,
            affinity: own_affinity,
            anti_affinity,
            preferred_affinity,
            preferred_anti_affinity,
            spread,
            ports: ports(spec, symbols),
            images: images(spec, symbols),
            volumes: VolumeDemand::new(pod, symbols),
            features: features(spec),
            owner: owner.map(|o| (symbols.intern(&o.kind), symbols.intern(&o.name))),
            classes: ClassDemand::new(spec, symbols),
            machine: machine_demand(pod),
            labels,
        }
    }

    /// Returns true if the pod has affinity or anti-affinity terms.
    pub(crate) fn has_pod_terms(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }
}

type WeightedPodTerms = Box<[(i64, PodTerm)]>;
type WeightedNodeTerms = Box<[(i64, NodeTerm)]>;

/// Returns the required and the preferred terms of a pod affinity or anti-affinity.
fn pod_terms(
    affinity: Option<&types::PodAffinity>,
    namespace: Symbol,
    labels: &Labels,
    symbols: &mut Interner,
) -> (Box<[PodTerm]>, WeightedPodTerms) {
    let Some(affinity) = affinity else { return (Box::default(), Box::default()) };
    let mut term = |term: &types::PodAffinityTerm| PodTerm::new(term, namespace, labels, symbols);
    let required = affinity.required_during_scheduling_ignored_during_execution.iter();
    let required = required.map(&mut term).collect();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter();
    let preferred = preferred.map(|t| (weight(t.weight.into()), term(&t.pod_affinity_term)));
    (required, preferred.collect())
}

/// Returns the required and the preferred terms of a node affinity.
pub(crate) fn node_terms(
    affinity: Option<&types::NodeAffinity>,
    symbols: &mut Interner,
) -> (Option<NodeTerms>, WeightedNodeTerms) {
    let Some(affinity) = affinity else { return (None, Box::default()) };
    let required = affinity.required_during_scheduling_ignored_during_execution.as_deref();
    let required = required.map(|selector| NodeTerms::new(selector, symbols));
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter();
    let preferred =
        preferred.map(|t| (weight(t.weight.into()), NodeTerm::new(&t.preference, symbols)));
    (required, preferred.collect())
}

/// Bounds the weight of a preference as validation does, so that sums do not overflow.
pub(crate) fn weight(given: i64) -> i64 {
    given.clamp(-100, 100)
}

/// Interns labels.
pub(crate) fn pairs(
    labels: &BTreeMap<String, String>,
    symbols: &mut Interner,
) -> Vec<(Symbol, Symbol)> {
    labels.iter().map(|(k, v)| (symbols.intern(k), symbols.intern(v))).collect()
}

/// Returns the pod's own values of these keys, without keys that it lacks.
fn own_values(keys: &[String], labels: &Labels, symbols: &mut Interner) -> Vec<(Symbol, Symbol)> {
    let value = |key: &String| {
        let key = symbols.intern(key);
        Some((key, labels.get(key)?))
    };
    keys.iter().filter_map(value).collect()
}

impl PodTerm {
    fn new(
        term: &types::PodAffinityTerm,
        own_namespace: Symbol,
        labels: &Labels,
        symbols: &mut Interner,
    ) -> PodTerm {
        let nowhere_named = term.namespaces.is_empty() && term.namespace_selector.is_none();
        let namespaces = if nowhere_named {
            Box::from([own_namespace])
        } else {
            term.namespaces.iter().map(|n| symbols.intern(n)).collect()
        };
        // An API server has already merged these keys into the selector; merging again has no
        // effect.
        let same = own_values(&term.match_label_keys, labels, symbols);
        let other = own_values(&term.mismatch_label_keys, labels, symbols);
        let namespace_selector =
            term.namespace_selector.as_deref().map(|s| Selector::new(Some(s), symbols));
        PodTerm {
            selector: Selector::new(term.label_selector.as_deref(), symbols)
                .and_labels(&same)
                .and_not_labels(&other),
            namespaces,
            namespace_selector,
            key: symbols.intern(&term.topology_key),
        }
    }
}

impl Spread {
    pub(crate) fn new(
        constraint: &types::TopologySpreadConstraint,
        labels: &Labels,
        symbols: &mut Interner,
    ) -> Spread {
        let same = own_values(&constraint.match_label_keys, labels, symbols);
        Spread {
            key: symbols.intern(&constraint.topology_key),
            max_skew: constraint.max_skew.max(0).into(),
            hard: constraint.when_unsatisfiable != "ScheduleAnyway",
            selector: Selector::new(constraint.label_selector.as_deref(), symbols)
                .and_labels(&same),
            min_domains: constraint.min_domains.unwrap_or(1).into(),
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        }
    }

    /// Returns a constraint of the profile; its selector is set later.
    pub(crate) fn default_constraint(
        key: &str,
        max_skew: i64,
        hard: bool,
        symbols: &mut Interner,
    ) -> Spread {
        Spread {
            key: symbols.intern(key),
            max_skew,
            hard,
            selector: Selector::everything(),
            min_domains: 1,
            honor_affinity: true,
            honor_taints: false,
        }
    }
}

/// The source of a sum.
#[derive(Clone, Copy)]
struct CountingMode {
    /// A container without a request for cpu or memory counts for a little.
    missing_count: bool,
    /// Requests of the pod as a whole replace those of its containers.
    pod_level: bool,
}

/// Whose source is taken for what a container has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResourceSource {
    Wanted,
    Allocated,
    Actual,
}

/// Returns the amount of a container from this source, if it counts.
fn requests_of<'a>(
    container: &'a types::Container,
    pod: &'a types::Pod,
    source: ResourceSource,
    infeasible: bool,
) -> Option<&'a ResourceList> {
    let wanted = Some(&container.resources.requests);
    if source == ResourceSource::Wanted {
        return wanted;
    }
    let status = &pod.status;
    let mut statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let reported = statuses.find(|s| s.name == container.name);
    let allocated = reported.map(|s| &s.allocated_resources).filter(|list| !list.is_empty());
    let actual = reported.and_then(|s| s.resources.as_deref()).map(|r| &r.requests);
    let actual = actual.filter(|list| source == ResourceSource::Actual && !list.is_empty());
    // What a node cannot do does not count.
    actual.or(allocated).or(wanted.filter(|_| !infeasible))
}

/// Returns the total of a pod's containers from this source.
fn of_containers(
    pod: &types::Pod,
    how: CountingMode,
    source: ResourceSource,
    infeasible: bool,
    symbols: &mut Interner,
) -> ResourceVector {
    let missing = |name| counts_missing(pod, how, name);
    let missing = (missing(resources::CPU), missing(resources::MEMORY));
    let mut of = |container: &types::Container| {
        let list = requests_of(container, pod, source, infeasible);
        let mut amounts = list.map(|list| read(list, symbols)).unwrap_or_default();
        let lacks = |name| !list.is_some_and(|list| list.contains_key(name));
        if missing.0 && lacks(resources::CPU) {
            amounts.milli_cpu = SCORED_MILLI_CPU;
        }
        if missing.1 && lacks(resources::MEMORY) {
            amounts.memory = SCORED_MEMORY;
        }
        amounts
    };
    peak(pod.spec.containers().map(|(role, container)| (role, of(container))))
}

fn requests(pod: &types::Pod, how: CountingMode, symbols: &mut Interner) -> ResourceVector {
    let spec = &pod.spec;
    let resize = pod.status.conditions.iter().find(|c| c.kind == "PodResizePending");
    let infeasible = resize.is_some_and(|c| c.reason == "Infeasible");
    let mut of = |source| of_containers(pod, how, source, infeasible, symbols);
    let status = &pod.status;
    let told = !(status.container_statuses.is_empty() && status.init_container_statuses.is_empty());
    // A resize is done for all containers of a pod at once, so sums are compared and not their parts.
    let mut running =
        if told && infeasible { of(ResourceSource::Allocated) } else { of(ResourceSource::Wanted) };
    if told {
        running.raise(&of(ResourceSource::Allocated));
        running.raise(&of(ResourceSource::Actual));
    }
    if let (true, Some(pod_level)) = (how.pod_level, &spec.resources) {
        let reported = pod.status.resources.as_ref();
        let reported = reported.map(|r| [&r.requests, &pod.status.allocated_resources]);
        for (name, wanted) in pod_level.requests.iter().filter(|(name, _)| is_pod_level(name)) {
            let Some(resource) = Resource::new(name, symbols) else { continue };
            let reported = reported.iter().flatten().filter_map(|list| list.get(name));
            // A resize may be under way.
            let held = reported.map(|quantity| resource.units(quantity)).max();
            let wanted = resource.units(wanted);
            let amount =
                held.map_or(wanted, |held| if infeasible { held } else { held.max(wanted) });
            running.set(resource, amount);
        }
    }
    running.add(&read(&spec.overhead, symbols));
    running
}

/// Returns true if a container without a request counts with a small default. Where the pod as a whole
/// has requests, only a resource that is not asked for anywhere is missing.
fn counts_missing(pod: &types::Pod, how: CountingMode, name: &str) -> bool {
    let spec = &pod.spec;
    let pod_level = spec.resources.as_ref().filter(|_| how.pod_level).map(|r| &r.requests);
    let asked_for = || {
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let mut lists = containers.map(|c| &c.resources.requests).chain([&spec.overhead]);
        lists.any(|list| list.contains_key(name))
    };
    how.missing_count
        && !pod_level.is_some_and(|requests| {
            requests.keys().any(|name| is_pod_level(name))
                && (requests.contains_key(name) || asked_for())
        })
}

/// The counted resources of a list.
pub(crate) fn read(list: &ResourceList, symbols: &mut Interner) -> ResourceVector {
    let mut amounts = ResourceVector::default();
    for (name, quantity) in list {
        if let Some(resource) = Resource::new(name, symbols) {
            amounts.set(resource, resource.units(quantity));
        }
    }
    amounts
}

fn ports(spec: &types::PodSpec, symbols: &mut Interner) -> Box<[HostPort]> {
    let sidecars = spec.init_containers.iter().filter(|c| c.is_sidecar());
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    ports
        .filter(|p| p.host_port > 0)
        .map(|p| HostPort {
            address: match p.host_ip.as_str() {
                "" | "0.0.0.0" => None,
                address => Some(symbols.intern(address)),
            },
            protocol: symbols.intern(if p.protocol.is_empty() { "TCP" } else { &p.protocol }),
            port: p.host_port,
        })
        .collect()
}

fn images(spec: &types::PodSpec, symbols: &mut Interner) -> Box<[Symbol]> {
    let containers = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.image);
    let volumes = spec.volumes.iter().filter_map(|v| Some(&v.image.as_ref()?.reference));
    containers.chain(volumes).map(|name| symbols.intern(&with_tag(name))).collect()
}

/// An image's name as nodes report it: with a tag.
fn with_tag(name: &str) -> String {
    // A colon before the last slash belongs to the registry's port.
    if name.rfind(':') <= name.rfind('/') { format!("{name}:latest") } else { name.to_owned() }
}

/// Features that a node must have declared for this pod to work there.
fn features(spec: &types::PodSpec) -> Box<[&'static str]> {
    let mut features = Vec::new();
    let containers = || spec.containers.iter().chain(&spec.init_containers);
    if containers()
        .any(|c| c.restart_policy_rules.iter().any(|r| r.action == "RestartAllContainers"))
    {
        features.push("RestartAllContainersOnContainerExits");
    }
    if spec.host_network && spec.host_users == Some(false) {
        features.push("UserNamespacesHostNetworkSupport");
    }
    features.into()
}

fn machine_demand(pod: &types::Pod) -> Option<MachineDemand> {
    let spec = &pod.spec;
    // Almost no pod sets limits for everything; asking first is cheap.
    let limited = |c: &types::Container| !c.resources.limits.is_empty();
    if spec.resources.is_none() && !spec.containers.iter().all(limited) {
        return None;
    }
    let demand = Demand::new(&PodUid::new(""), &pod.resources());
    (demand.qos == QosClass::Guaranteed).then_some(MachineDemand(demand))
}

#[cfg(test)]
mod tests {
    use super::with_tag;

    #[test]
    fn registry_port_is_not_taken_for_a_tag() {
        assert_eq!(with_tag("app"), "app:latest");
        assert_eq!(with_tag("app:1"), "app:1");
        assert_eq!(with_tag("r.example:5000/app"), "r.example:5000/app:latest");
        assert_eq!(with_tag("r.example:5000/app:2"), "r.example:5000/app:2");
    }
}
