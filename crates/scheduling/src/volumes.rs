//! Volumes: restricts a pod to the nodes where its volumes are available.
//!
//! Main types: [`VolumeDemand`] (the volumes of a pod), [`Volumes`] (volumes, claims and classes of
//! the cluster) and [`VolumeState`] (the PreFilter results of one attempt). Nothing is bound here;
//! for a claim that waits for its first consumer it is only checked whether it could be.

use std::collections::HashMap;

use objects::types;
use smallvec::SmallVec;

use crate::interner::{Interner, Symbol};
use crate::labels::{Labels, NodeTerms, Selector};
use crate::object::{PersistentVolume, PersistentVolumeClaim, StorageClass, TopologyExpression};
use crate::score::at_utilisation;
use crate::verdict::{Code, Plugin, Reason, Rejection};

/// The volumes of a pod that scheduling checks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct VolumeDemand {
    /// `namespace/name`, and true if the claim is created for the pod.
    pub(crate) claims: Box<[(Symbol, bool)]>,
    pub(crate) disks: Box<[Disk]>,
}

/// A disk that a node can attach only once, or only read-only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    kind: &'static str,
    identity: Symbol,
    /// Two disks with one of these in common are the same; if empty, the identity alone decides.
    monitors: Box<[Symbol]>,
    shareable: bool,
}

impl Disk {
    pub(crate) fn conflicts_with(&self, other: &Disk) -> bool {
        self.kind == other.kind
            && self.identity == other.identity
            && (self.monitors.is_empty()
                || self.monitors.iter().any(|m| other.monitors.contains(m)))
            && !(self.shareable && other.shareable)
    }
}

impl VolumeDemand {
    pub(crate) fn new(pod: &types::Pod, symbols: &mut Interner) -> VolumeDemand {
        let mut claims = Vec::new();
        let mut disks = Vec::new();
        for volume in &pod.spec.volumes {
            let namespace = &pod.metadata.namespace;
            if let Some(claim) = &volume.persistent_volume_claim {
                claims.push((symbols.intern(&format!("{namespace}/{}", claim.claim_name)), false));
            } else if volume.ephemeral.is_some() {
                let name = format!("{namespace}/{}-{}", pod.metadata.name, volume.name);
                claims.push((symbols.intern(&name), true));
            }
            let mut disk = |kind, identity: &str, monitors: &[String], shareable| {
                let monitors = monitors.iter().map(|m| symbols.intern(m)).collect();
                let identity = symbols.intern(identity);
                disks.push(Disk { kind, identity, monitors, shareable });
            };
            if let Some(gce) = &volume.gce_persistent_disk {
                disk("gce", &gce.pd_name, &[], gce.read_only);
            }
            if let Some(aws) = &volume.aws_elastic_block_store {
                disk("aws", &aws.volume_id, &[], false);
            }
            if let Some(iscsi) = &volume.iscsi {
                disk("iscsi", &iscsi.iqn, &[], iscsi.read_only);
            }
            if let Some(rbd) = &volume.rbd {
                let identity = format!("{}/{}", rbd.pool, rbd.image);
                disk("rbd", &identity, &rbd.monitors, rbd.read_only);
            }
        }
        VolumeDemand { claims: claims.into(), disks: disks.into() }
    }
}

/// Labels of a volume that name its zone or region.
const ZONE_LABELS: [&str; 4] = [
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// Returns the current name of a beta label.
fn current_label(label: &str) -> &str {
    match label {
        "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
        other => other,
    }
}

#[derive(Debug)]
struct Volume {
    nodes: Option<NodeTerms>,
    /// Label key, its current name, and the zones or regions in its value.
    zones: Vec<(Symbol, Symbol, Vec<Symbol>)>,
    labels: Labels,
    class: String,
    modes: Vec<String>,
    storage: i64,
    mode: String,
    available: bool,
    being_deleted: bool,
    /// The claim it is reserved for: `namespace/name`.
    claim: Option<Symbol>,
}

impl Volume {
    /// Returns true if a node can reach the volume.
    fn is_at(&self, name: Symbol, labels: &Labels, symbols: &Interner) -> bool {
        self.nodes.as_ref().is_none_or(|terms| terms.match_any(name, labels, symbols))
    }
}

#[derive(Debug)]
struct Claim {
    name: String,
    volume: Option<Symbol>,
    bind_completed: bool,
    class: String,
    modes: Vec<String>,
    storage: i64,
    mode: String,
    selector: Option<Selector>,
    /// The node for which a volume is already being provisioned.
    selected_node: Option<Symbol>,
    lost: bool,
    being_deleted: bool,
}

impl Claim {
    fn is_for_one_pod(&self) -> bool {
        self.modes.iter().any(|m| m == "ReadWriteOncePod")
    }
}

#[derive(Debug)]
struct Class {
    waits: bool,
    provisions: bool,
    /// Alternatives, each a list of labels with their allowed values.
    topologies: Vec<Vec<(Symbol, Vec<Symbol>)>>,
}

/// The volumes, claims and storage classes of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    volumes: HashMap<Symbol, Volume>,
    claims: HashMap<Symbol, Claim>,
    classes: HashMap<Symbol, Class>,
    zone_labels: Vec<Symbol>,
}

fn mode(mode: &str) -> String {
    if mode.is_empty() { "Filesystem".to_owned() } else { mode.to_owned() }
}

impl Volumes {
    pub(crate) fn new(symbols: &mut Interner) -> Volumes {
        let zone_labels = ZONE_LABELS.iter().map(|label| symbols.intern(label)).collect();
        Volumes { zone_labels, ..Volumes::default() }
    }

    pub(crate) fn apply_volume(&mut self, object: &PersistentVolume, symbols: &mut Interner) {
        let labels = &object.metadata.labels;
        let zones = ZONE_LABELS.iter().filter_map(|label| {
            let value = labels.get(*label)?;
            let parts: Vec<&str> = value.split("__").map(str::trim).collect();
            // Upstream skips a label with an empty part.
            parts.iter().all(|part| !part.is_empty()).then(|| {
                let zones = parts.iter().map(|part| symbols.intern(part)).collect();
                (symbols.intern(label), symbols.intern(current_label(label)), zones)
            })
        });
        let zones = zones.collect();
        let spec = &object.spec;
        let claim = spec.claim_ref.as_ref();
        let volume = Volume {
            nodes: spec.node_affinity.required.as_ref().map(|n| NodeTerms::new(n, symbols)),
            zones,
            labels: Labels::new(labels, symbols),
            class: spec.storage_class_name.clone(),
            modes: spec.access_modes.clone(),
            storage: spec.capacity.get("storage").map_or(0, objects::Quantity::value),
            mode: mode(&spec.volume_mode),
            available: object.status.phase == "Available",
            being_deleted: object.metadata.deletion_timestamp.is_some(),
            claim: claim.map(|c| symbols.intern(&format!("{}/{}", c.namespace, c.name))),
        };
        self.volumes.insert(symbols.intern(&object.metadata.name), volume);
    }

    pub(crate) fn apply_claim(&mut self, object: &PersistentVolumeClaim, symbols: &mut Interner) {
        let spec = &object.spec;
        let meta = &object.metadata;
        let selector = spec.selector.as_deref().map(|s| Selector::new(Some(s), symbols));
        let volume = Some(&spec.volume_name).filter(|name| !name.is_empty());
        let selected_node = meta.annotations.get("volume.kubernetes.io/selected-node");
        let claim = Claim {
            name: meta.name.clone(),
            volume: volume.map(|name| symbols.intern(name)),
            bind_completed: meta.annotations.contains_key("pv.kubernetes.io/bind-completed"),
            class: spec.storage_class_name.clone().unwrap_or_default(),
            modes: spec.access_modes.clone(),
            storage: spec.resources.requests.get("storage").map_or(0, objects::Quantity::value),
            mode: mode(spec.volume_mode.as_deref().unwrap_or_default()),
            selector,
            selected_node: selected_node.map(|name| symbols.intern(name)),
            lost: object.status.phase == "Lost",
            being_deleted: meta.deletion_timestamp.is_some(),
        };
        self.claims.insert(symbols.intern(&format!("{}/{}", meta.namespace, meta.name)), claim);
    }

    pub(crate) fn apply_class(&mut self, object: &StorageClass, symbols: &mut Interner) {
        let mut expression = |e: &TopologyExpression| {
            let values = e.values.iter().map(|v| symbols.intern(v)).collect();
            (symbols.intern(&e.key), values)
        };
        let topologies = object.allowed_topologies.iter();
        let topologies = topologies
            .map(|t| t.match_label_expressions.iter().map(&mut expression).collect())
            .collect();
        let class = Class {
            waits: object.volume_binding_mode == "WaitForFirstConsumer",
            provisions: !matches!(object.provisioner.as_str(), "" | "kubernetes.io/no-provisioner"),
            topologies,
        };
        self.classes.insert(symbols.intern(&object.metadata.name), class);
    }

    pub(crate) fn remove_volume(&mut self, name: Symbol) {
        self.volumes.remove(&name);
    }

    pub(crate) fn remove_claim(&mut self, key: Symbol) {
        self.claims.remove(&key);
    }

    pub(crate) fn remove_class(&mut self, name: Symbol) {
        self.classes.remove(&name);
    }

    fn waits(&self, claim: &Claim, symbols: &Interner) -> bool {
        let class = symbols.find(&claim.class).and_then(|name| self.classes.get(&name));
        class.is_some_and(|class| class.waits)
    }
}

/// The requirements of a pod's claims on nodes.
#[derive(Debug, Default)]
pub(crate) struct VolumeState {
    /// Claims that only one pod may use.
    pub(crate) for_one_pod: SmallVec<[Symbol; 1]>,
    /// The number of them that are in use.
    pub(crate) in_use: i64,
    /// The volumes of bound claims; `None` if the volume does not exist.
    bound: Vec<Option<Symbol>>,
    /// Claims that wait for their first consumer.
    waiting: Vec<Symbol>,
    /// The volumes whose zones count.
    zoned: Vec<Symbol>,
}

/// Checks a pod's claims at PreFilter.
pub(crate) fn prepare(
    demand: &VolumeDemand,
    volumes: &Volumes,
    in_use: impl Fn(Symbol) -> bool,
    symbols: &Interner,
) -> Result<VolumeState, Rejection> {
    let mut state = VolumeState::default();
    let bare = |key: Symbol| {
        let key = symbols.text(key);
        key.split_once('/').map_or(key, |(_, name)| name)
    };
    let no = |plugin, text: String| {
        let reason = Reason::Text(text.into());
        Rejection::new(plugin, Code::UnschedulableAndUnresolvable, reason)
    };
    let missing =
        |plugin, key| no(plugin, format!("persistentvolumeclaim {:?} not found", bare(key)));
    for (key, _) in demand.claims.iter().filter(|(_, ephemeral)| !ephemeral) {
        let Some(claim) = volumes.claims.get(key) else {
            return Err(missing(Plugin::VolumeRestrictions, *key));
        };
        if claim.is_for_one_pod() {
            state.for_one_pod.push(*key);
            state.in_use += i64::from(in_use(*key));
        }
    }
    for (key, ephemeral) in &demand.claims {
        let plugin = Plugin::VolumeBinding;
        let Some(claim) = volumes.claims.get(key) else {
            let text =
                "waiting for ephemeral volume controller to create the persistentvolumeclaim";
            return Err(if *ephemeral {
                no(plugin, format!("{text} {:?}", bare(*key)))
            } else {
                missing(plugin, *key)
            });
        };
        if claim.lost {
            let volume = claim.volume.map_or("", |v| symbols.text(v));
            let name = &claim.name;
            return Err(no(
                plugin,
                format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ),
            ));
        }
        if claim.being_deleted {
            return Err(no(
                plugin,
                format!("persistentvolumeclaim {:?} is being deleted", claim.name),
            ));
        }
    }
    for (key, _) in &demand.claims {
        let Some(claim) = volumes.claims.get(key) else { continue };
        match claim.volume {
            Some(volume) if claim.bind_completed => {
                state.bound.push(volumes.volumes.contains_key(&volume).then_some(volume));
            }
            None if volumes.waits(claim, symbols) => state.waiting.push(*key),
            _ => {
                let text = "pod has unbound immediate PersistentVolumeClaims";
                return Err(no(Plugin::VolumeBinding, text.to_owned()));
            }
        }
    }
    // The smallest claims choose first.
    state.waiting.sort_by_key(|key| volumes.claims.get(key).map_or(0, |claim| claim.storage));
    // Zones are checked only for claims that the pod names.
    for (key, _) in demand.claims.iter().filter(|(_, ephemeral)| !ephemeral) {
        let Some(claim) = volumes.claims.get(key) else { continue };
        let plugin = Plugin::VolumeZone;
        let Some(volume) = claim.volume else {
            if claim.class.is_empty() {
                let text = "PersistentVolumeClaim had no pv name and storageClass name";
                return Err(no(plugin, text.to_owned()));
            }
            // The claim waits for its consumer; otherwise it was rejected above.
            continue;
        };
        if !volumes.volumes.contains_key(&volume) {
            let name = symbols.text(volume);
            return Err(no(plugin, format!("persistentvolume {name:?} not found")));
        }
        state.zoned.push(volume);
    }
    Ok(state)
}

/// Returns the volumes that waiting claims would be bound to on a node, each with its claim,
/// without claims that would be provisioned. `None` if a claim can have no volume there.
fn to_bind<'a>(
    state: &VolumeState,
    volumes: &'a Volumes,
    name: Symbol,
    labels: &Labels,
    symbols: &Interner,
) -> Option<Vec<(&'a Claim, &'a Volume)>> {
    let mut taken: Vec<Symbol> = Vec::new();
    let mut bound = Vec::new();
    for key in &state.waiting {
        let claim = volumes.claims.get(key)?;
        if claim.selected_node.is_some_and(|node| node != name) {
            return None;
        }
        let suits = |(volume_name, volume): &(&Symbol, &Volume)| {
            !taken.contains(volume_name)
                && volume.class == claim.class
                && volume.mode == claim.mode
                && volume.storage >= claim.storage
                && !volume.being_deleted
        };
        let suiting = volumes.volumes.iter().filter(suits);
        let suiting = || suiting.clone().filter(|_| claim.selected_node.is_none());
        let is_here = |(_, volume): &(&Symbol, &Volume)| volume.is_at(name, labels, symbols);
        let is_open = |(_, volume): &(&Symbol, &Volume)| {
            volume.claim.is_none()
                && volume.available
                && claim.modes.iter().all(|m| volume.modes.contains(m))
                && claim.selector.as_ref().is_none_or(|s| s.matches(&volume.labels, symbols))
        };
        // A volume reserved for the claim is used without further checks; if it is not reachable
        // from the node, no other is.
        let chosen = match suiting().find(|(_, volume)| volume.claim == Some(*key)) {
            Some(kept) => Some(kept).filter(is_here),
            None => suiting()
                .filter(is_open)
                .filter(is_here)
                .min_by_key(|(volume_name, volume)| (volume.storage, **volume_name)),
        };
        if let Some((volume_name, volume)) = chosen {
            taken.push(*volume_name);
            bound.push((claim, volume));
            continue;
        }
        let class = symbols.find(&claim.class).and_then(|name| volumes.classes.get(&name));
        let allowed = |topology: &Vec<(Symbol, Vec<Symbol>)>| {
            topology
                .iter()
                .all(|(key, values)| labels.get(*key).is_some_and(|value| values.contains(&value)))
        };
        let made = class.is_some_and(|class| {
            class.provisions
                && (class.topologies.is_empty() || class.topologies.iter().any(allowed))
        });
        if !made {
            return None;
        }
    }
    Some(bound)
}

/// Scores the use of the volumes that would be bound on a node: per class, the requested share of
/// the volumes' capacity, mapped by these points; the mean over the classes.
pub(crate) fn score(
    state: &VolumeState,
    volumes: &Volumes,
    name: Symbol,
    labels: &Labels,
    symbols: &Interner,
    points: &[(i64, i64)],
) -> i64 {
    let bound = to_bind(state, volumes, name, labels, symbols).unwrap_or_default();
    let mut by_class: HashMap<&str, (i64, i64)> = HashMap::new();
    for (claim, volume) in bound {
        let (asked, there) = by_class.entry(&volume.class).or_default();
        *asked = asked.saturating_add(claim.storage);
        *there = there.saturating_add(volume.storage);
    }
    if by_class.is_empty() {
        return 0;
    }
    let sum: i64 =
        by_class.values().map(|(asked, there)| at_utilisation(*asked, *there, points)).sum();
    (sum as f64 / by_class.len() as f64).round() as i64
}

/// Returns the rejection if a volume of the pod is not available on a node, bound or to be bound.
pub(crate) fn binding(
    state: &VolumeState,
    volumes: &Volumes,
    name: Symbol,
    labels: &Labels,
    symbols: &Interner,
) -> Option<Rejection> {
    let mut reasons = SmallVec::new();
    // The first missing volume decides.
    let missed = state.bound.iter().find_map(|bound| {
        match bound.and_then(|volume| volumes.volumes.get(&volume)) {
            None => Some(Reason::LostVolume),
            Some(volume) if volume.is_at(name, labels, symbols) => None,
            Some(_) => Some(Reason::VolumeElsewhere),
        }
    });
    reasons.extend(missed);
    let served = to_bind(state, volumes, name, labels, symbols).is_some();
    if !served {
        reasons.push(Reason::NoVolume);
    }
    (!reasons.is_empty()).then(|| Rejection {
        plugin: Some(Plugin::VolumeBinding),
        code: Code::UnschedulableAndUnresolvable,
        reasons,
    })
}

/// Returns the rejection if a node is outside the zones of the volumes. A node without zone labels
/// is in all zones.
pub(crate) fn zone(state: &VolumeState, volumes: &Volumes, labels: &Labels) -> Option<Rejection> {
    if !volumes.zone_labels.iter().any(|label| labels.get(*label).is_some()) {
        return None;
    }
    let zones = state.zoned.iter().filter_map(|v| volumes.volumes.get(v)).flat_map(|v| &v.zones);
    let elsewhere = |(key, today, zones): &(Symbol, Symbol, Vec<Symbol>)| {
        let here = labels.get(*key).or_else(|| labels.get(*today));
        !here.is_some_and(|zone| zones.contains(&zone))
    };
    zones.into_iter().any(elsewhere).then(|| {
        Rejection::new(Plugin::VolumeZone, Code::UnschedulableAndUnresolvable, Reason::Zone)
    })
}
