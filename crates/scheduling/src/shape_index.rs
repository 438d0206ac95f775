//! All shapes of a cluster's pods, each once, with the nodes of their pods.
//!
//! Main type: [`ShapeIndex`]. Counting pods by label and zone iterates over shapes and their nodes
//! instead of over all pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::interner::Symbol;
use crate::shape::PodShape;

/// A shape, by its number. Numbers of shapes without pods are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShapeId(pub(crate) u32);

/// The pods of one shape on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PodCounts {
    pub(crate) all: u32,
    /// Those of them that are being deleted.
    pub(crate) ending: u32,
}

impl PodCounts {
    /// Returns the number of pods that are not being deleted.
    pub(crate) fn staying(self) -> i64 {
        i64::from(self.all - self.ending)
    }
}

#[derive(Debug)]
pub(crate) struct ShapeEntry {
    pub(crate) shape: Arc<PodShape>,
    /// Distinguishes shapes that had the same number at different times.
    pub(crate) serial: u64,
    pods: u32,
    /// By slot of the node.
    pub(crate) placed: BTreeMap<u32, PodCounts>,
}

#[derive(Debug, Default)]
pub(crate) struct ShapeIndex {
    entries: Vec<Option<ShapeEntry>>,
    numbers: HashMap<Arc<PodShape>, ShapeId>,
    free: Vec<ShapeId>,
    serial: u64,
    /// Shapes with pods on nodes, by namespace.
    by_namespace: HashMap<Symbol, BTreeSet<ShapeId>>,
    /// Those of them with affinity or anti-affinity terms.
    with_terms: BTreeSet<ShapeId>,
    with_anti_affinity: BTreeSet<ShapeId>,
}

impl ShapeIndex {
    /// Returns the number of a shape and counts one more pod of it.
    pub(crate) fn take(&mut self, shape: PodShape) -> ShapeId {
        if let Some(id) = self.numbers.get(&shape) {
            if let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) {
                entry.pods += 1;
            }
            return *id;
        }
        let shape = Arc::new(shape);
        self.serial += 1;
        let entry = ShapeEntry {
            shape: shape.clone(),
            serial: self.serial,
            pods: 1,
            placed: BTreeMap::new(),
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id.0 as usize] = Some(entry);
                id
            }
            None => {
                self.entries.push(Some(entry));
                ShapeId(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.numbers.insert(shape, id);
        id
    }

    /// Counts one pod of the shape less.
    pub(crate) fn release(&mut self, id: ShapeId) {
        let Some(slot) = self.entries.get_mut(id.0 as usize) else { return };
        let Some(entry) = slot else { return };
        entry.pods -= 1;
        if entry.pods == 0 {
            self.numbers.remove(&entry.shape);
            *slot = None;
            self.free.push(id);
        }
    }

    pub(crate) fn entry(&self, id: ShapeId) -> Option<&ShapeEntry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    /// Counts a pod of the shape on a node.
    pub(crate) fn place(&mut self, id: ShapeId, slot: u32, ending: bool) {
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        let placed = entry.placed.entry(slot).or_default();
        placed.all += 1;
        placed.ending += u32::from(ending);
        if entry.placed.len() == 1 && entry.placed.values().all(|p| p.all == 1) {
            self.by_namespace.entry(entry.shape.namespace).or_default().insert(id);
            if entry.shape.has_pod_terms() {
                self.with_terms.insert(id);
            }
            if !entry.shape.anti_affinity.is_empty() {
                self.with_anti_affinity.insert(id);
            }
        }
    }

    /// Stops counting a pod of the shape on a node.
    pub(crate) fn unplace(&mut self, id: ShapeId, slot: u32, ending: bool) {
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        if let Some(placed) = entry.placed.get_mut(&slot) {
            placed.all -= 1;
            placed.ending -= u32::from(ending);
            if placed.all == 0 {
                entry.placed.remove(&slot);
            }
        }
        if entry.placed.is_empty() {
            let namespace = entry.shape.namespace;
            if let Some(shapes) = self.by_namespace.get_mut(&namespace) {
                shapes.remove(&id);
                if shapes.is_empty() {
                    self.by_namespace.remove(&namespace);
                }
            }
            self.with_terms.remove(&id);
            self.with_anti_affinity.remove(&id);
        }
    }

    /// Returns the shapes of one namespace with pods on nodes.
    pub(crate) fn in_namespace(&self, namespace: Symbol) -> impl Iterator<Item = &ShapeEntry> {
        self.by_namespace.get(&namespace).into_iter().flatten().filter_map(|id| self.entry(*id))
    }

    /// Returns all shapes with pods on nodes.
    pub(crate) fn on_nodes(&self) -> impl Iterator<Item = &ShapeEntry> {
        self.by_namespace.values().flatten().filter_map(|id| self.entry(*id))
    }

    pub(crate) fn with_terms(&self) -> impl Iterator<Item = &ShapeEntry> {
        self.with_terms.iter().filter_map(|id| self.entry(*id))
    }

    pub(crate) fn with_anti_affinity(&self) -> impl Iterator<Item = &ShapeEntry> {
        self.with_anti_affinity.iter().filter_map(|id| self.entry(*id))
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}
