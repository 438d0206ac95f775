//! Topology domains: nodes with the same value of a label, such as a zone.
//!
//! Main type: [`Domains`], one per label key, built on first use and kept until a node's object
//! changes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::interner::Symbol;

/// The domain of a node without the label.
pub(crate) const NO_DOMAIN: u32 = u32::MAX;

/// The values of one label over all nodes, numbered.
#[derive(Debug)]
pub(crate) struct Domains {
    by_slot: Vec<u32>,
    pub(crate) count: usize,
}

impl Domains {
    fn new(cluster: &Cluster, key: Symbol) -> Domains {
        let mut by_slot = vec![NO_DOMAIN; cluster.slot_count()];
        let mut numbers: HashMap<Symbol, u32> = HashMap::new();
        for slot in &cluster.order {
            let value = cluster.node(*slot).and_then(|node| node.view.labels.get(key));
            if let Some(value) = value {
                let next = numbers.len() as u32;
                by_slot[*slot as usize] = *numbers.entry(value).or_insert(next);
            }
        }
        Domains { by_slot, count: numbers.len() }
    }

    pub(crate) fn of(&self, slot: u32) -> Option<usize> {
        self.by_slot.get(slot as usize).filter(|d| **d != NO_DOMAIN).map(|d| *d as usize)
    }
}

/// The domains of all keys in use.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    epoch: u64,
    by_key: HashMap<Symbol, Arc<Domains>>,
}

impl Tables {
    pub(crate) fn domains(&mut self, cluster: &Cluster, key: Symbol) -> Arc<Domains> {
        if self.epoch != cluster.nodes_epoch {
            self.epoch = cluster.nodes_epoch;
            self.by_key.clear();
        }
        self.by_key.entry(key).or_insert_with(|| Arc::new(Domains::new(cluster, key))).clone()
    }
}
