//! What nodes said about pods of a shape, kept until the node changes.
//!
//! Main type: [`Memory`]. Only what depends on a node and its own pods is remembered; what depends on
//! other nodes is found out anew. A node for which pods wait is asked every time, since the answer then
//! depends on who asks.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::cluster::Cluster;
use crate::score::LocalScores;
use crate::shapes::ShapeId;
use crate::trial::{Place, Trial};
use crate::verdict::Rejection;

/// How many shapes are remembered. At 5,000 nodes one takes some 200 KiB.
const MOST_SHAPES: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Memory {
    shapes: HashMap<ShapeId, ShapeMemory>,
    uses: u64,
}

/// A rejection, by its number; zero is none.
type Number = u16;

#[derive(Debug, Clone, Copy)]
struct Said {
    /// When the node had last changed; zero if it was never asked.
    as_of: u64,
    rejection: Number,
    scores: LocalScores,
}

const NOTHING: Said = Said { as_of: 0, rejection: 0, scores: LocalScores::NONE };

/// What nodes said about one shape.
#[derive(Debug)]
pub(crate) struct ShapeMemory {
    serial: u64,
    /// Scores by images depend on which nodes have them.
    nodes_epoch: u64,
    used: u64,
    nodes: Vec<Said>,
    /// What machines said, and as of when; empty if none was ever asked.
    machines: Vec<(u64, Number)>,
    rejections: Vec<Rejection>,
}

impl Memory {
    /// What is remembered of a pod's shape.
    pub(crate) fn of(&mut self, trial: &Trial<'_>) -> &mut ShapeMemory {
        let cluster = trial.cluster;
        let id = trial.entry.shape;
        let serial = cluster.shapes.entry(id).map_or(0, |entry| entry.serial);
        self.uses += 1;
        if self.shapes.len() >= MOST_SHAPES && !self.shapes.contains_key(&id) {
            let oldest = self.shapes.iter().min_by_key(|(_, m)| m.used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.shapes.remove(&oldest);
            }
        }
        let fresh = || ShapeMemory {
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

impl ShapeMemory {
    /// Whether the pod can go to a node.
    pub(crate) fn judge(&mut self, trial: &Trial<'_>, slot: u32) -> Option<Cow<'_, Rejection>> {
        let cluster = trial.cluster;
        let changed = cluster.changed.get(slot as usize).copied().unwrap_or(0);
        let said = self.nodes.get(slot as usize).copied().unwrap_or(NOTHING);
        let number =
            if said.as_of == changed { said.rejection } else { self.ask(trial, slot, changed) };
        let node = cluster.node(slot)?;
        let awaited = cluster.awaited.get(slot as usize).is_some_and(|a| *a);
        if awaited && !trial.nominated(node).is_empty() {
            return trial.judge(slot, node).map(Cow::Owned);
        }
        if number > 0 {
            return self.rejections.get(usize::from(number) - 1).map(Cow::Borrowed);
        }
        let place = Place::new(slot, node);
        if let Some(rejection) = trial.wide(&place) {
            return Some(Cow::Owned(rejection));
        }
        if !trial.asks_machine() {
            return None;
        }
        self.machines.resize(self.nodes.len(), (0, 0));
        let (as_of, mut number) = self.machines.get(slot as usize).copied().unwrap_or((0, 0));
        if as_of != changed {
            number = self.number(trial.machine(&place));
            if let Some(said) = self.machines.get_mut(slot as usize) {
                *said = (changed, number);
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

    fn ask(&mut self, trial: &Trial<'_>, slot: u32, changed: u64) -> Number {
        let Some(node) = trial.cluster.node(slot) else { return 0 };
        let rejection = self.number(trial.local(&Place::new(slot, node)));
        let scores = scores(trial, slot, trial.cluster);
        if let Some(said) = self.nodes.get_mut(slot as usize) {
            *said = Said { as_of: changed, rejection, scores };
        }
        rejection
    }

    /// The scores of a node that was asked.
    pub(crate) fn scores(&self, slot: u32) -> LocalScores {
        self.nodes.get(slot as usize).map_or(LocalScores::NONE, |said| said.scores)
    }
}

fn scores(trial: &Trial<'_>, slot: u32, cluster: &Cluster) -> LocalScores {
    cluster.node(slot).map_or(LocalScores::NONE, |node| {
        LocalScores::new(trial.shape, &node.view, &node.occupancy, cluster, trial.profile)
    })
}
