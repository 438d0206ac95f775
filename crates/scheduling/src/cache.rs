//! Results of the local filters and scores by pod shape and node, cached until the node changes.
//!
//! Main type: [`FilterCache`]. Only results that depend on a node and its own pods are cached;
//! those that depend on other nodes are computed for every attempt. Nodes with nominated pods are
//! not cached, because their result depends on the pod's priority.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::cluster::Cluster;
use crate::filters::{Cycle, FilterTarget};
use crate::score::LocalScores;
use crate::shape_index::ShapeId;
use crate::verdict::Rejection;

/// The most cached shapes. At 5,000 nodes a shape takes about 200 KiB.
const MAX_SHAPES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct FilterCache {
    shapes: HashMap<ShapeId, ShapeCache>,
    uses: u64,
}

/// The index of a rejection plus one; zero means that the node fits.
type Number = u16;

#[derive(Debug, Clone, Copy)]
struct CachedResult {
    /// The node's last change when the result was computed; zero if it never was.
    as_of: u64,
    rejection: Number,
    scores: LocalScores,
}

const NOTHING: CachedResult = CachedResult { as_of: 0, rejection: 0, scores: LocalScores::NONE };

/// The cached results of one shape.
#[derive(Debug)]
pub(crate) struct ShapeCache {
    serial: u64,
    /// Image scores depend on the images of all nodes.
    nodes_epoch: u64,
    used: u64,
    nodes: Vec<CachedResult>,
    /// Results of the machine filter with the node's last change; empty if it never ran.
    machines: Vec<(u64, Number)>,
    rejections: Vec<Rejection>,
}

impl FilterCache {
    /// Returns the cache of a pod's shape.
    pub(crate) fn of(&mut self, cycle: &Cycle<'_>) -> &mut ShapeCache {
        let cluster = cycle.cluster;
        let id = cycle.entry.shape;
        let serial = cluster.shapes.entry(id).map_or(0, |entry| entry.serial);
        self.uses += 1;
        if self.shapes.len() >= MAX_SHAPES && !self.shapes.contains_key(&id) {
            let oldest = self.shapes.iter().min_by_key(|(_, m)| m.used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.shapes.remove(&oldest);
            }
        }
        let fresh = || ShapeCache {
            serial,
            nodes_epoch: cluster.nodes_epoch,
            used: 0,
            nodes: Vec::new(),
            machines: Vec::new(),
            rejections: Vec::new(),
        };
        let memory = self.shapes.entry(id).or_insert_with(fresh);
        if memory.serial != serial || memory.nodes_epoch != cluster.nodes_epoch {
            *memory = fresh();
        }
        memory.used = self.uses;
        memory.nodes.resize(cluster.slot_count(), NOTHING);
        memory
    }
}

impl ShapeCache {
    /// Returns the rejection of the pod by a node; `None` if it fits.
    pub(crate) fn check(&mut self, cycle: &Cycle<'_>, slot: u32) -> Option<Cow<'_, Rejection>> {
        let cluster = cycle.cluster;
        let changed = cluster.changed.get(slot as usize).copied().unwrap_or(0);
        let cached = self.nodes.get(slot as usize).copied().unwrap_or(NOTHING);
        let number = if cached.as_of == changed {
            cached.rejection
        } else {
            self.evaluate(cycle, slot, changed)
        };
        let node = cluster.node(slot)?;
        let awaited = cluster.awaited.get(slot as usize).is_some_and(|a| *a);
        if awaited && !cycle.nominated(node).is_empty() {
            return cycle.check(slot, node).map(Cow::Owned);
        }
        if number > 0 {
            return self.rejections.get(usize::from(number) - 1).map(Cow::Borrowed);
        }
        let place = FilterTarget::new(slot, node);
        if let Some(rejection) = cycle.cluster_wide(&place) {
            return Some(Cow::Owned(rejection));
        }
        if !cycle.needs_machine() {
            return None;
        }
        self.machines.resize(self.nodes.len(), (0, 0));
        let (as_of, mut number) = self.machines.get(slot as usize).copied().unwrap_or((0, 0));
        if as_of != changed {
            number = self.number(cycle.machine(&place));
            if let Some(cached) = self.machines.get_mut(slot as usize) {
                *cached = (changed, number);
            }
        }
        self.rejections.get(usize::from(number).checked_sub(1)?).map(Cow::Borrowed)
    }

    fn number(&mut self, rejection: Option<Rejection>) -> Number {
        let Some(rejection) = rejection else { return 0 };
        let at = self.rejections.iter().position(|r| *r == rejection);
        let at = at.unwrap_or_else(|| {
            self.rejections.push(rejection);
            self.rejections.len() - 1
        });
        Number::try_from(at + 1).unwrap_or(Number::MAX)
    }

    fn evaluate(&mut self, cycle: &Cycle<'_>, slot: u32, changed: u64) -> Number {
        let Some(node) = cycle.cluster.node(slot) else { return 0 };
        let rejection = self.number(cycle.local(&FilterTarget::new(slot, node)));
        let scores = scores(cycle, slot, cycle.cluster);
        if let Some(cached) = self.nodes.get_mut(slot as usize) {
            *cached = CachedResult { as_of: changed, rejection, scores };
        }
        rejection
    }

    /// Returns the scores of an evaluated node.
    pub(crate) fn scores(&self, slot: u32) -> LocalScores {
        self.nodes.get(slot as usize).map_or(LocalScores::NONE, |cached| cached.scores)
    }
}

fn scores(cycle: &Cycle<'_>, slot: u32, cluster: &Cluster) -> LocalScores {
    cluster.node(slot).map_or(LocalScores::NONE, |node| {
        LocalScores::new(cycle.shape, &node.view, &node.occupancy, cluster, cycle.profile)
    })
}
