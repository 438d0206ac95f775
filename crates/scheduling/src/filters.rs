//! The filters that decide whether a pod can run on a node, in upstream's order with ours among
//! them.
//!
//! Main types: [`Cycle`], one pod with its PreFilter results, and [`SimulatedNode`], one node with
//! pods added or removed. A cycle changes nothing.

use placement::demand::Demand;
use smallvec::SmallVec;

use crate::cluster::{Cluster, PodEntry, PodId};
use crate::inter_pod_affinity::{AffinityDelta, InterPodAffinity};
use crate::interner::Symbol;
use crate::machine::Machine;
use crate::node::{NodeState, Occupancy};
use crate::profile::Profile;
use crate::resources::Resource;
use crate::shape::PodShape;
use crate::spread::{self, SpreadDelta, TopologySpread};
use crate::taints;
use crate::topology::Tables;
use crate::verdict::{Code, Plugin, Reason, Rejection};
use crate::volumes::{self, VolumeState};

/// The pod of a scheduling cycle, with the results that hold for all nodes.
pub(crate) struct Cycle<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) profile: &'a Profile,
    pub(crate) id: PodId,
    pub(crate) entry: &'a PodEntry,
    pub(crate) shape: &'a PodShape,
    spread_constraints: Option<TopologySpread>,
    pod_affinity: Option<InterPodAffinity>,
    volumes: Option<VolumeState>,
    demand: Option<Demand>,
    /// Cluster-wide filters that apply to this pod.
    cluster_wide: SmallVec<[Filter; 4]>,
}

/// A node or a simulated one. Constructing it reads no field of the node.
#[derive(Clone, Copy)]
pub(crate) struct FilterTarget<'a> {
    slot: u32,
    node: &'a NodeState,
    occupancy: &'a Occupancy,
    pods: &'a Vec<PodId>,
    machine: &'a Option<Machine>,
    delta: Option<&'a Delta>,
}

impl<'a> FilterTarget<'a> {
    pub(crate) fn new(slot: u32, node: &'a NodeState) -> FilterTarget<'a> {
        FilterTarget {
            slot,
            node,
            occupancy: &node.occupancy,
            pods: &node.pods,
            machine: &node.machine,
            delta: None,
        }
    }
}

/// Changes beyond the node itself when pods are added to or removed from it.
#[derive(Debug, Clone, Default)]
struct Delta {
    spread: SpreadDelta,
    pod_affinity: AffinityDelta,
    claims: i64,
}

/// A node with pods added or removed.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedNode<'a> {
    slot: u32,
    node: &'a NodeState,
    occupancy: Occupancy,
    pods: Vec<PodId>,
    machine: Option<Machine>,
    delta: Delta,
}

impl<'a> SimulatedNode<'a> {
    pub(crate) fn new(slot: u32, node: &'a NodeState) -> SimulatedNode<'a> {
        SimulatedNode {
            slot,
            node,
            occupancy: node.occupancy.clone(),
            pods: node.pods.clone(),
            machine: node.machine.clone(),
            delta: Delta::default(),
        }
    }

    pub(crate) fn add(&mut self, cycle: &Cycle<'_>, id: PodId) {
        let Some((entry, other)) = cycle.cluster.pod_with_shape(id) else { return };
        self.occupancy.add(other, &self.node.view);
        self.pods.push(id);
        if let (Some(machine), Some(demand)) = (&mut self.machine, &other.machine) {
            machine.add(&demand.of(entry.machine_uid()));
        }
        self.change(cycle, other, 1);
    }

    pub(crate) fn remove(&mut self, cycle: &Cycle<'_>, id: PodId) {
        let Some((entry, other)) = cycle.cluster.pod_with_shape(id) else { return };
        self.occupancy.remove(other, &self.node.view);
        self.pods.retain(|pod| *pod != id);
        if let (Some(machine), Some(_)) = (&mut self.machine, &other.machine) {
            machine.remove(entry.machine_uid());
        }
        self.change(cycle, other, -1);
    }

    fn change(&mut self, cycle: &Cycle<'_>, other: &PodShape, by: i64) {
        let (shape, cluster) = (cycle.shape, cycle.cluster);
        if let Some(spread_constraints) = &cycle.spread_constraints {
            spread_constraints.change(&mut self.delta.spread, shape, self.slot, other, by, cluster);
        }
        if let Some(pod_affinity) = &cycle.pod_affinity {
            pod_affinity.change(&mut self.delta.pod_affinity, shape, other, by, cluster);
        }
        if let Some(volumes) = &cycle.volumes {
            let shared = |(claim, _): &&(Symbol, bool)| volumes.for_one_pod.contains(claim);
            let shared = other.volumes.claims.iter().filter(shared).count();
            self.delta.claims += by * i64::try_from(shared).unwrap_or(i64::MAX);
        }
    }

    fn target(&self) -> FilterTarget<'_> {
        FilterTarget {
            slot: self.slot,
            node: self.node,
            occupancy: &self.occupancy,
            pods: &self.pods,
            machine: &self.machine,
            delta: Some(&self.delta),
        }
    }
}

/// A filter of one plugin.
type Filter = fn(&Cycle<'_>, &FilterTarget<'_>) -> Option<Rejection>;

/// Filters that depend only on the node and its own pods, in order.
const LOCAL: &[(Plugin, Filter)] = &[
    (Plugin::NodeUnschedulable, unschedulable),
    (Plugin::TaintToleration, taint_toleration),
    (Plugin::NodeAffinity, node_affinity),
    (Plugin::NodePorts, ports),
    (Plugin::NodeResourcesFit, fit),
    (Plugin::QosResources, classes),
];

/// Filters that depend on other nodes or volumes, in order. They run after the local ones; the
/// machine filter, which costs most, runs last.
const CLUSTER_WIDE: &[(Plugin, Filter)] = &[
    (Plugin::VolumeRestrictions, volume_restrictions),
    (Plugin::VolumeBinding, volume_binding),
    (Plugin::VolumeZone, volume_zone),
    (Plugin::PodTopologySpread, topology_spread),
    (Plugin::InterPodAffinity, pod_affinity),
    (Plugin::NodeDeclaredFeatures, declared_features),
];

impl<'a> Cycle<'a> {
    /// Runs the PreFilter step for a pod, which may reject it for all nodes.
    pub(crate) fn new(
        cluster: &'a Cluster,
        profile: &'a Profile,
        tables: &mut Tables,
        id: PodId,
        entry: &'a PodEntry,
        shape: &'a PodShape,
    ) -> Result<Cycle<'a>, Rejection> {
        let mut cycle = Cycle {
            cluster,
            profile,
            id,
            entry,
            shape,
            spread_constraints: None,
            pod_affinity: None,
            volumes: None,
            demand: shape.machine.as_ref().map(|demand| demand.of(entry.machine_uid())),
            cluster_wide: SmallVec::new(),
        };
        if cycle.pinned().is_some_and(|names| names.is_empty()) {
            let reason = Reason::Text("pod affinity terms conflict".into());
            let code = Code::UnschedulableAndUnresolvable;
            return Err(Rejection::new(Plugin::NodeAffinity, code, reason));
        }
        if !shape.volumes.claims.is_empty() && profile.filters_by(Plugin::VolumeBinding) {
            let in_use = |claim| cluster.is_claim_used(claim);
            let state =
                volumes::prepare(&shape.volumes, &cluster.volumes, in_use, &cluster.symbols)?;
            cycle.volumes = Some(state);
        }
        if profile.filters_by(Plugin::PodTopologySpread) {
            cycle.spread_constraints = TopologySpread::new(shape, cluster, profile, tables);
        }
        if profile.filters_by(Plugin::InterPodAffinity) {
            cycle.pod_affinity = InterPodAffinity::new(shape, cluster, tables);
        }
        let cluster_wide = CLUSTER_WIDE.iter().filter(|(plugin, _)| cycle.is_needed(*plugin));
        cycle.cluster_wide = cluster_wide.map(|(_, filter)| *filter).collect();
        Ok(cycle)
    }

    /// Returns the only node names that the pod's affinity allows; `None` if one of its terms names
    /// no node.
    pub(crate) fn pinned(&self) -> Option<SmallVec<[Symbol; 1]>> {
        let terms = &self.shape.node_required.as_ref()?.0;
        if terms.is_empty() || !self.profile.pre_filters_by(Plugin::NodeAffinity) {
            return None;
        }
        let mut names = SmallVec::new();
        for term in terms {
            names.extend(term.pinned()?);
        }
        Some(names)
    }

    /// Returns true if a cluster-wide plugin applies to this pod.
    fn is_needed(&self, plugin: Plugin) -> bool {
        self.profile.filters_by(plugin)
            && match plugin {
                // As upstream, claims that are not in use at PreFilter are not checked again,
                // whatever pods are nominated.
                Plugin::VolumeRestrictions => {
                    self.volumes.as_ref().is_some_and(|state| state.in_use > 0)
                        || !self.shape.volumes.disks.is_empty()
                }
                Plugin::VolumeBinding | Plugin::VolumeZone => self.volumes.is_some(),
                Plugin::PodTopologySpread => self.spread_constraints.is_some(),
                Plugin::InterPodAffinity => self.pod_affinity.is_some(),
                Plugin::NodeDeclaredFeatures => !self.shape.features.is_empty(),
                _ => true,
            }
    }

    /// Runs the filters that depend on the node and its own pods.
    pub(crate) fn local(&self, target: &FilterTarget<'_>) -> Option<Rejection> {
        let wanted = LOCAL.iter().filter(|(plugin, _)| self.profile.filters_by(*plugin));
        wanted.into_iter().find_map(|(_, filter)| filter(self, target))
    }

    /// Runs the cluster-wide filters.
    pub(crate) fn cluster_wide(&self, target: &FilterTarget<'_>) -> Option<Rejection> {
        self.cluster_wide.iter().find_map(|filter| filter(self, target))
    }

    /// Returns true if the machine filter applies to this pod.
    pub(crate) fn needs_machine(&self) -> bool {
        self.demand.is_some() && self.profile.filters_by(Plugin::MachinePlacement)
    }

    /// Runs the machine filter: rejects a node whose agent would refuse the pod.
    pub(crate) fn machine(&self, target: &FilterTarget<'_>) -> Option<Rejection> {
        let demand = self.demand.as_ref().filter(|_| self.needs_machine())?;
        let (refusal, could) = target.machine.as_ref()?.try_place(demand).err()?;
        let code = if could { Code::Unschedulable } else { NEVER };
        let mut text = format!("{}: {refusal}", refusal.reason());
        if let Some(shortage) = refusal.shortage() {
            text = format!("{text} ({shortage})");
        }
        let reason = Reason::Refused(text.into());
        Some(Rejection::new(Plugin::MachinePlacement, code, reason))
    }

    /// Returns the scores of these nodes by the use of the volumes that would be bound; `None` if
    /// all are zero.
    pub(crate) fn volume_scores(&self, nodes: &[u32]) -> Option<Vec<i64>> {
        let state = self.volumes.as_ref()?;
        let (volumes, symbols) = (&self.cluster.volumes, &self.cluster.symbols);
        let score = |slot: &u32| {
            let Some(node) = self.cluster.node(*slot) else { return 0 };
            let (name, labels) = (node.view.name, &node.view.labels);
            volumes::score(state, volumes, name, labels, symbols, &self.profile.volume_points)
        };
        let scores: Vec<i64> = nodes.iter().map(score).collect();
        scores.iter().any(|score| *score != 0).then_some(scores)
    }

    fn filter(&self, target: &FilterTarget<'_>) -> Option<Rejection> {
        self.local(target).or_else(|| self.cluster_wide(target)).or_else(|| self.machine(target))
    }

    /// Returns the pods nominated to this node with at least the pod's priority.
    pub(crate) fn nominated(&self, node: &NodeState) -> SmallVec<[PodId; 2]> {
        let counts = |id: &PodId| {
            *id != self.id
                && self
                    .cluster
                    .pod_with_shape(*id)
                    .is_some_and(|(_, other)| other.priority >= self.shape.priority)
        };
        node.nominated.iter().copied().filter(counts).collect()
    }

    /// Runs all filters, both with and without the nominated pods.
    pub(crate) fn check(&self, slot: u32, node: &NodeState) -> Option<Rejection> {
        let nominated = self.nominated(node);
        if !nominated.is_empty() {
            let simulated = SimulatedNode::new(slot, node);
            return self.check_with_nominated(&simulated, &nominated);
        }
        self.filter(&FilterTarget::new(slot, node))
    }

    /// Runs all filters on a simulated node.
    pub(crate) fn check_simulated(&self, simulated: &SimulatedNode<'_>) -> Option<Rejection> {
        self.check_with_nominated(simulated, &self.nominated(simulated.node))
    }

    fn check_with_nominated(
        &self,
        simulated: &SimulatedNode<'_>,
        nominated: &[PodId],
    ) -> Option<Rejection> {
        if !nominated.is_empty() {
            let mut with = simulated.clone();
            for id in nominated {
                with.add(self, *id);
            }
            if let Some(rejection) = self.filter(&with.target()) {
                return Some(rejection);
            }
        }
        self.filter(&simulated.target())
    }

    /// Returns the rejections of every filter, without stopping at the first. Nominated pods do not
    /// count.
    pub(crate) fn all_failures(&self, slot: u32, node: &NodeState) -> Vec<Rejection> {
        let target = FilterTarget::new(slot, node);
        let wanted =
            LOCAL.iter().chain(CLUSTER_WIDE).filter(|(plugin, _)| self.profile.filters_by(*plugin));
        let rejections = wanted.into_iter().filter_map(|(_, filter)| filter(self, &target));
        rejections.chain(self.machine(&target)).collect()
    }
}

const NEVER: Code = Code::UnschedulableAndUnresolvable;

fn unschedulable(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    if !target.node.view.unschedulable {
        return None;
    }
    let taint = cycle.cluster.known.unschedulable;
    taints::untolerated(&[taint], &cycle.shape.tolerations, cycle.profile.compare_taints)
        .then(|| Rejection::new(Plugin::NodeUnschedulable, NEVER, Reason::Unschedulable))
}

fn taint_toleration(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let (taints, tolerations) = (&target.node.view.taints, &cycle.shape.tolerations);
    taints::untolerated(taints, tolerations, cycle.profile.compare_taints)
        .then(|| Rejection::new(Plugin::TaintToleration, NEVER, Reason::Taints))
}

fn node_affinity(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let (view, symbols) = (&target.node.view, &cycle.cluster.symbols);
    let enforced = cycle.profile.added_required.as_ref();
    let reason = if enforced.is_some_and(|t| !t.match_any(view.name, &view.labels, symbols)) {
        Reason::EnforcedAffinity
    } else if spread::wants_node(cycle.shape, view, cycle.cluster) {
        return None;
    } else {
        Reason::Affinity
    };
    Some(Rejection::new(Plugin::NodeAffinity, NEVER, reason))
}

fn ports(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let taken = &target.occupancy.ports;
    let conflicts = cycle.shape.ports.iter().any(|p| taken.iter().any(|t| p.conflicts_with(*t)));
    conflicts.then(|| Rejection::new(Plugin::NodePorts, Code::Unschedulable, Reason::Ports))
}

fn fit(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let (view, used) = (&target.node.view, &target.occupancy.requested);
    let wanted = &cycle.shape.requests;
    let mut reasons = SmallVec::new();
    let mut never = false;
    if target.occupancy.pods + 1 > view.most_pods {
        reasons.push(Reason::TooManyPods);
    }
    if !wanted.is_empty_request() {
        let mut check = |resource: Resource, wanted: i64| {
            let there = view.allocatable.get(resource);
            if wanted > 0 && wanted > there.saturating_sub(used.get(resource)) {
                reasons.push(Reason::Insufficient(resource));
                never |= wanted > there;
            }
        };
        check(Resource::Cpu, wanted.milli_cpu);
        check(Resource::FilterCache, wanted.memory);
        check(Resource::EphemeralStorage, wanted.ephemeral_storage);
        for (name, amount) in &wanted.scalars {
            if !is_ignored(cycle, *name) {
                check(Resource::Scalar(*name), *amount);
            }
        }
    }
    (!reasons.is_empty()).then(|| Rejection {
        plugin: Some(Plugin::NodeResourcesFit),
        code: if never { NEVER } else { Code::Unschedulable },
        reasons,
    })
}

/// Returns true if the profile ignores an extended resource.
fn is_ignored(cycle: &Cycle<'_>, name: Symbol) -> bool {
    let profile = cycle.profile;
    if profile.ignored.is_empty() && profile.ignored_groups.is_empty() {
        return false;
    }
    let text = cycle.cluster.symbols.text(name);
    let group = text.split('/').next().unwrap_or_default();
    objects::resources::is_extended(text)
        && (profile.ignored.contains(&name) || profile.ignored_groups.iter().any(|g| g == group))
}

fn classes(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    if cycle.shape.classes.is_empty() {
        return None;
    }
    let offered = &target.node.view.classes;
    let mut reasons = SmallVec::new();
    let mut never = false;
    for (class, count) in cycle.shape.classes.on(offered) {
        match offered.capacity(class) {
            None => {
                reasons.push(Reason::NoClass(class));
                never = true;
            }
            Some(0) => {}
            Some(capacity) => {
                let count = u64::from(count);
                if target.occupancy.classes.of(class) + count > capacity {
                    reasons.push(Reason::ClassFull(class));
                    never |= count > capacity;
                }
            }
        }
    }
    (!reasons.is_empty()).then(|| Rejection {
        plugin: Some(Plugin::QosResources),
        code: if never { NEVER } else { Code::Unschedulable },
        reasons,
    })
}

fn volume_restrictions(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let no = |reason| Some(Rejection::new(Plugin::VolumeRestrictions, Code::Unschedulable, reason));
    let disks = &cycle.shape.volumes.disks;
    if !disks.is_empty() {
        let mut others = target.pods.iter().filter_map(|id| cycle.cluster.pod_with_shape(*id));
        let taken = |(_, other): (_, &PodShape)| {
            disks.iter().any(|d| other.volumes.disks.iter().any(|o| d.conflicts_with(o)))
        };
        if others.any(taken) {
            return no(Reason::Disk);
        }
    }
    let state = cycle.volumes.as_ref()?;
    if state.in_use + target.delta.map_or(0, |d| d.claims) > 0 {
        return no(Reason::ClaimInUse);
    }
    None
}

fn volume_binding(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let state = cycle.volumes.as_ref()?;
    let (view, cluster) = (&target.node.view, cycle.cluster);
    volumes::binding(state, &cluster.volumes, view.name, &view.labels, &cluster.symbols)
}

fn volume_zone(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    volumes::zone(cycle.volumes.as_ref()?, &cycle.cluster.volumes, &target.node.view.labels)
}

fn topology_spread(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    cycle.spread_constraints.as_ref()?.filter(target.slot, target.delta.map(|d| &d.spread))
}

fn pod_affinity(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let delta = target.delta.map(|d| &d.pod_affinity);
    cycle.pod_affinity.as_ref()?.filter(target.slot, &target.node.view.labels, delta)
}

fn declared_features(cycle: &Cycle<'_>, target: &FilterTarget<'_>) -> Option<Rejection> {
    let declared = &target.node.view.features;
    let mut needed = cycle.shape.features.iter();
    let missing = needed.any(|feature| !declared.iter().any(|d| **d == **feature));
    missing.then(|| Rejection::new(Plugin::NodeDeclaredFeatures, NEVER, Reason::Features))
}
