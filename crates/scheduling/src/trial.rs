//! Whether a pod can go to a node: the filters, in upstream's order with ours among them.
//!
//! Main types: [`Trial`], one pod with all that was found out about it before looking at nodes, and
//! [`WhatIf`], one node with pods thought away or added. A trial changes nothing.

use placement::demand::Demand;
use smallvec::SmallVec;

use crate::amounts::Resource;
use crate::cluster::{Cluster, PodEntry, PodId};
use crate::neighbours::{NeighbourDelta, Neighbours};
use crate::node::{NodeState, Occupancy};
use crate::placing::Machine;
use crate::profile::Profile;
use crate::shape::PodShape;
use crate::spread::{self, SpreadDelta, Spreading};
use crate::symbols::Symbol;
use crate::taints;
use crate::topology::Tables;
use crate::verdict::{Code, Plugin, Reason, Rejection};
use crate::volumes::{self, VolumeState};

/// A pod on its way, with what holds for all nodes.
pub(crate) struct Trial<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) profile: &'a Profile,
    pub(crate) id: PodId,
    pub(crate) entry: &'a PodEntry,
    pub(crate) shape: &'a PodShape,
    spreading: Option<Spreading>,
    neighbours: Option<Neighbours>,
    volumes: Option<VolumeState>,
    demand: Option<Demand>,
    /// Filters beyond the local ones that have anything to ask.
    wide: SmallVec<[Filter; 4]>,
}

/// A node, or what it would be. Making one reads nothing of the node.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    slot: u32,
    node: &'a NodeState,
    occupancy: &'a Occupancy,
    pods: &'a Vec<PodId>,
    machine: &'a Option<Machine>,
    delta: Option<&'a Delta>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(slot: u32, node: &'a NodeState) -> Place<'a> {
        Place {
            slot,
            node,
            occupancy: &node.occupancy,
            pods: &node.pods,
            machine: &node.machine,
            delta: None,
        }
    }
}

/// What changes beyond the node itself when pods come and go on it.
#[derive(Debug, Clone, Default)]
struct Delta {
    spread: SpreadDelta,
    neighbours: NeighbourDelta,
    claims: i64,
}

/// A node with pods thought away or added.
#[derive(Debug, Clone)]
pub(crate) struct WhatIf<'a> {
    slot: u32,
    node: &'a NodeState,
    occupancy: Occupancy,
    pods: Vec<PodId>,
    machine: Option<Machine>,
    delta: Delta,
}

impl<'a> WhatIf<'a> {
    pub(crate) fn new(slot: u32, node: &'a NodeState) -> WhatIf<'a> {
        WhatIf {
            slot,
            node,
            occupancy: node.occupancy.clone(),
            pods: node.pods.clone(),
            machine: node.machine.clone(),
            delta: Delta::default(),
        }
    }

    pub(crate) fn add(&mut self, trial: &Trial<'_>, id: PodId) {
        let Some((entry, other)) = trial.cluster.shaped(id) else { return };
        self.occupancy.add(other, &self.node.view);
        self.pods.push(id);
        if let (Some(machine), Some(demand)) = (&mut self.machine, &other.machine) {
            machine.add(&demand.of(entry.machine_uid()));
        }
        self.change(trial, other, 1);
    }

    pub(crate) fn remove(&mut self, trial: &Trial<'_>, id: PodId) {
        let Some((entry, other)) = trial.cluster.shaped(id) else { return };
        self.occupancy.remove(other, &self.node.view);
        self.pods.retain(|pod| *pod != id);
        if let (Some(machine), Some(_)) = (&mut self.machine, &other.machine) {
            machine.remove(entry.machine_uid());
        }
        self.change(trial, other, -1);
    }

    fn change(&mut self, trial: &Trial<'_>, other: &PodShape, by: i64) {
        let (shape, cluster) = (trial.shape, trial.cluster);
        if let Some(spreading) = &trial.spreading {
            spreading.change(&mut self.delta.spread, shape, self.slot, other, by, cluster);
        }
        if let Some(neighbours) = &trial.neighbours {
            neighbours.change(&mut self.delta.neighbours, shape, other, by, cluster);
        }
        if let Some(volumes) = &trial.volumes {
            let shared = |(claim, _): &&(Symbol, bool)| volumes.for_one_pod.contains(claim);
            let shared = other.volumes.claims.iter().filter(shared).count();
            self.delta.claims += by * i64::try_from(shared).unwrap_or(i64::MAX);
        }
    }

    fn place(&self) -> Place<'_> {
        Place {
            slot: self.slot,
            node: self.node,
            occupancy: &self.occupancy,
            pods: &self.pods,
            machine: &self.machine,
            delta: Some(&self.delta),
        }
    }
}

/// What filters may ask of.
type Filter = fn(&Trial<'_>, &Place<'_>) -> Option<Rejection>;

/// Filters that ask only the node and its own pods, in order.
const LOCAL: &[(Plugin, Filter)] = &[
    (Plugin::NodeUnschedulable, unschedulable),
    (Plugin::TaintToleration, taint_toleration),
    (Plugin::NodeAffinity, node_affinity),
    (Plugin::NodePorts, ports),
    (Plugin::NodeResourcesFit, fit),
    (Plugin::QosResources, classes),
];

/// Filters that ask other nodes or volumes, in order. They come after the local ones; the machine, which
/// costs most, is asked last of all.
const WIDE: &[(Plugin, Filter)] = &[
    (Plugin::VolumeRestrictions, volume_restrictions),
    (Plugin::VolumeBinding, volume_binding),
    (Plugin::VolumeZone, volume_zone),
    (Plugin::PodTopologySpread, topology_spread),
    (Plugin::InterPodAffinity, pod_affinity),
    (Plugin::NodeDeclaredFeatures, declared_features),
];

impl<'a> Trial<'a> {
    /// Looks at a pod before any node. It may be turned away for all of them.
    pub(crate) fn new(
        cluster: &'a Cluster,
        profile: &'a Profile,
        tables: &mut Tables,
        id: PodId,
        entry: &'a PodEntry,
        shape: &'a PodShape,
    ) -> Result<Trial<'a>, Rejection> {
        let mut trial = Trial {
            cluster,
            profile,
            id,
            entry,
            shape,
            spreading: None,
            neighbours: None,
            volumes: None,
            demand: shape.machine.as_ref().map(|demand| demand.of(entry.machine_uid())),
            wide: SmallVec::new(),
        };
        if trial.pinned().is_some_and(|names| names.is_empty()) {
            let reason = Reason::Text("pod affinity terms conflict".into());
            let code = Code::UnschedulableAndUnresolvable;
            return Err(Rejection::new(Plugin::NodeAffinity, code, reason));
        }
        if !shape.volumes.claims.is_empty() && profile.filters_by(Plugin::VolumeBinding) {
            let in_use = |claim| cluster.is_claim_used(claim);
            let state =
                volumes::prepare(&shape.volumes, &cluster.volumes, in_use, &cluster.symbols)?;
            trial.volumes = Some(state);
        }
        if profile.filters_by(Plugin::PodTopologySpread) {
            trial.spreading = Spreading::new(shape, cluster, profile, tables);
        }
        if profile.filters_by(Plugin::InterPodAffinity) {
            trial.neighbours = Neighbours::new(shape, cluster, tables);
        }
        let wide = WIDE.iter().filter(|(plugin, _)| trial.asks(*plugin));
        trial.wide = wide.map(|(_, filter)| *filter).collect();
        Ok(trial)
    }

    /// The names of the only nodes that the pod's affinity lets it go to; `None` if there is a term that
    /// names none.
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

    /// Whether a plugin beyond the local ones has anything to ask.
    fn asks(&self, plugin: Plugin) -> bool {
        self.profile.filters_by(plugin)
            && match plugin {
                // Claims that nobody uses now are not asked after again, whoever waits for the node.
                Plugin::VolumeRestrictions => {
                    self.volumes.as_ref().is_some_and(|state| state.in_use > 0)
                        || !self.shape.volumes.disks.is_empty()
                }
                Plugin::VolumeBinding | Plugin::VolumeZone => self.volumes.is_some(),
                Plugin::PodTopologySpread => self.spreading.is_some(),
                Plugin::InterPodAffinity => self.neighbours.is_some(),
                Plugin::NodeDeclaredFeatures => !self.shape.features.is_empty(),
                _ => true,
            }
    }

    /// What the node and its own pods say.
    pub(crate) fn local(&self, place: &Place<'_>) -> Option<Rejection> {
        let wanted = LOCAL.iter().filter(|(plugin, _)| self.profile.filters_by(*plugin));
        wanted.into_iter().find_map(|(_, filter)| filter(self, place))
    }

    /// What everything else says.
    pub(crate) fn wide(&self, place: &Place<'_>) -> Option<Rejection> {
        self.wide.iter().find_map(|filter| filter(self, place))
    }

    /// Whether the machine has anything to say about this pod.
    pub(crate) fn asks_machine(&self) -> bool {
        self.demand.is_some() && self.profile.filters_by(Plugin::MachinePlacement)
    }

    /// What the machine says: whether its agent would refuse the pod.
    pub(crate) fn machine(&self, place: &Place<'_>) -> Option<Rejection> {
        let demand = self.demand.as_ref().filter(|_| self.asks_machine())?;
        let (refusal, could) = place.machine.as_ref()?.try_place(demand).err()?;
        let code = if could { Code::Unschedulable } else { NEVER };
        let mut text = format!("{}: {refusal}", refusal.reason());
        if let Some(shortage) = refusal.shortage() {
            text = format!("{text} ({shortage})");
        }
        let reason = Reason::Refused(text.into());
        Some(Rejection::new(Plugin::MachinePlacement, code, reason))
    }

    /// How well the volumes that would be bound on these nodes are used; none if they do not tell the
    /// nodes apart.
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

    fn filter(&self, place: &Place<'_>) -> Option<Rejection> {
        self.local(place).or_else(|| self.wide(place)).or_else(|| self.machine(place))
    }

    /// Pods that wait for this node and are at least as important.
    pub(crate) fn nominated(&self, node: &NodeState) -> SmallVec<[PodId; 2]> {
        let counts = |id: &PodId| {
            *id != self.id
                && self
                    .cluster
                    .shaped(*id)
                    .is_some_and(|(_, other)| other.priority >= self.shape.priority)
        };
        node.nominated.iter().copied().filter(counts).collect()
    }

    /// Whether the pod can go to a node: both with and without the pods that wait for it.
    pub(crate) fn judge(&self, slot: u32, node: &NodeState) -> Option<Rejection> {
        let nominated = self.nominated(node);
        if !nominated.is_empty() {
            let what_if = WhatIf::new(slot, node);
            return self.judge_with(&what_if, &nominated);
        }
        self.filter(&Place::new(slot, node))
    }

    /// Whether the pod could go to a node as it would be.
    pub(crate) fn judge_what_if(&self, what_if: &WhatIf<'_>) -> Option<Rejection> {
        self.judge_with(what_if, &self.nominated(what_if.node))
    }

    fn judge_with(&self, what_if: &WhatIf<'_>, nominated: &[PodId]) -> Option<Rejection> {
        if !nominated.is_empty() {
            let mut with = what_if.clone();
            for id in nominated {
                with.add(self, *id);
            }
            if let Some(rejection) = self.filter(&with.place()) {
                return Some(rejection);
            }
        }
        self.filter(&what_if.place())
    }

    /// Every filter that would turn the node down, if each were asked. Pods that only wait for the node
    /// do not count.
    pub(crate) fn all_failures(&self, slot: u32, node: &NodeState) -> Vec<Rejection> {
        let place = Place::new(slot, node);
        let wanted =
            LOCAL.iter().chain(WIDE).filter(|(plugin, _)| self.profile.filters_by(*plugin));
        let said = wanted.into_iter().filter_map(|(_, filter)| filter(self, &place));
        said.chain(self.machine(&place)).collect()
    }
}

const NEVER: Code = Code::UnschedulableAndUnresolvable;

fn unschedulable(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    if !place.node.view.unschedulable {
        return None;
    }
    let taint = trial.cluster.known.unschedulable;
    taints::untolerated(&[taint], &trial.shape.tolerations, trial.profile.compare_taints)
        .then(|| Rejection::new(Plugin::NodeUnschedulable, NEVER, Reason::Unschedulable))
}

fn taint_toleration(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let (taints, tolerations) = (&place.node.view.taints, &trial.shape.tolerations);
    taints::untolerated(taints, tolerations, trial.profile.compare_taints)
        .then(|| Rejection::new(Plugin::TaintToleration, NEVER, Reason::Taints))
}

fn node_affinity(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let (view, symbols) = (&place.node.view, &trial.cluster.symbols);
    let enforced = trial.profile.added_required.as_ref();
    let reason = if enforced.is_some_and(|t| !t.match_any(view.name, &view.labels, symbols)) {
        Reason::EnforcedAffinity
    } else if spread::wants_node(trial.shape, view, trial.cluster) {
        return None;
    } else {
        Reason::Affinity
    };
    Some(Rejection::new(Plugin::NodeAffinity, NEVER, reason))
}

fn ports(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let taken = &place.occupancy.ports;
    let conflicts = trial.shape.ports.iter().any(|p| taken.iter().any(|t| p.conflicts_with(*t)));
    conflicts.then(|| Rejection::new(Plugin::NodePorts, Code::Unschedulable, Reason::Ports))
}

fn fit(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let (view, used) = (&place.node.view, &place.occupancy.requested);
    let wanted = &trial.shape.requests;
    let mut reasons = SmallVec::new();
    let mut never = false;
    if place.occupancy.pods + 1 > view.most_pods {
        reasons.push(Reason::TooManyPods);
    }
    if !wanted.asks_for_nothing() {
        let mut check = |resource: Resource, wanted: i64| {
            let there = view.allocatable.get(resource);
            if wanted > 0 && wanted > there.saturating_sub(used.get(resource)) {
                reasons.push(Reason::Insufficient(resource));
                never |= wanted > there;
            }
        };
        check(Resource::Cpu, wanted.milli_cpu);
        check(Resource::Memory, wanted.memory);
        check(Resource::EphemeralStorage, wanted.ephemeral_storage);
        for (name, amount) in &wanted.scalars {
            if !is_ignored(trial, *name) {
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

/// Whether the profile says not to look at a vendor's resource.
fn is_ignored(trial: &Trial<'_>, name: Symbol) -> bool {
    let profile = trial.profile;
    if profile.ignored.is_empty() && profile.ignored_groups.is_empty() {
        return false;
    }
    let text = trial.cluster.symbols.text(name);
    let group = text.split('/').next().unwrap_or_default();
    objects::resources::is_extended(text)
        && (profile.ignored.contains(&name) || profile.ignored_groups.iter().any(|g| g == group))
}

fn classes(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    if trial.shape.classes.is_empty() {
        return None;
    }
    let offered = &place.node.view.classes;
    let mut reasons = SmallVec::new();
    let mut never = false;
    for (class, count) in trial.shape.classes.on(offered) {
        match offered.capacity(class) {
            None => {
                reasons.push(Reason::NoClass(class));
                never = true;
            }
            Some(0) => {}
            Some(capacity) => {
                let count = u64::from(count);
                if place.occupancy.classes.of(class) + count > capacity {
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

fn volume_restrictions(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let no = |reason| Some(Rejection::new(Plugin::VolumeRestrictions, Code::Unschedulable, reason));
    let disks = &trial.shape.volumes.disks;
    if !disks.is_empty() {
        let mut others = place.pods.iter().filter_map(|id| trial.cluster.shaped(*id));
        let taken = |(_, other): (_, &PodShape)| {
            disks.iter().any(|d| other.volumes.disks.iter().any(|o| d.conflicts_with(o)))
        };
        if others.any(taken) {
            return no(Reason::Disk);
        }
    }
    let state = trial.volumes.as_ref()?;
    if state.in_use + place.delta.map_or(0, |d| d.claims) > 0 {
        return no(Reason::ClaimInUse);
    }
    None
}

fn volume_binding(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let state = trial.volumes.as_ref()?;
    let (view, cluster) = (&place.node.view, trial.cluster);
    volumes::binding(state, &cluster.volumes, view.name, &view.labels, &cluster.symbols)
}

fn volume_zone(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    volumes::zone(trial.volumes.as_ref()?, &trial.cluster.volumes, &place.node.view.labels)
}

fn topology_spread(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    trial.spreading.as_ref()?.filter(place.slot, place.delta.map(|d| &d.spread))
}

fn pod_affinity(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let delta = place.delta.map(|d| &d.neighbours);
    trial.neighbours.as_ref()?.filter(place.slot, &place.node.view.labels, delta)
}

fn declared_features(trial: &Trial<'_>, place: &Place<'_>) -> Option<Rejection> {
    let declared = &place.node.view.features;
    let mut needed = trial.shape.features.iter();
    let missing = needed.any(|feature| !declared.iter().any(|d| **d == **feature));
    missing.then(|| Rejection::new(Plugin::NodeDeclaredFeatures, NEVER, Reason::Features))
}
