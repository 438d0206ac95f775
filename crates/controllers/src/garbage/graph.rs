//! The ownership graph: [`Graph`], and the decision about each object.

use std::collections::{BTreeSet, HashMap, HashSet};

use client::Key;
use client::kind::Kind;
use objects::types::{OwnerReference, PartialObjectMetadata};

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The ownership data of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) deleting: bool,
}

/// The metadata fields that the graph reads.
#[derive(Debug)]
pub(super) struct OwnershipMetadata {
    uid: String,
    owners: Vec<OwnerReference>,
    finalizers: Vec<String>,
    deleting: bool,
}

pub(super) fn ownership(object: PartialObjectMetadata) -> OwnershipMetadata {
    let metadata = object.metadata;
    OwnershipMetadata {
        uid: metadata.uid,
        owners: metadata.owner_references,
        finalizers: metadata.finalizers,
        deleting: metadata.deletion_timestamp.is_some(),
    }
}

impl Item {
    pub(super) fn new(kind: Kind, key: Key, metadata: OwnershipMetadata) -> Item {
        let OwnershipMetadata { uid, owners, finalizers, deleting } = metadata;
        Item { kind, key, uid, owners, finalizers, deleting }
    }

    pub(super) fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|own| own == finalizer)
    }

    fn is_waiting(&self) -> bool {
        self.deleting && self.has(FOREGROUND)
    }
}

/// All objects by uid, and their dependents. Clients write owner references, so there may be cycles
/// and chains of any length: traversals are loops, not recursion.
#[derive(Debug, Default)]
pub(super) struct Graph {
    items: HashMap<String, Item>,
    by_name: HashMap<(Kind, Key), String>,
    dependents: HashMap<String, BTreeSet<String>>,
    /// Results of [`Graph::is_on_cycle`] for waiting objects. It is cleared when they may have
    /// changed.
    walked: HashMap<String, bool>,
}

/// The decision about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// Owners with these uids are gone or waiting for deletion; others exist.
    Disown(Vec<String>),
    /// All of its owners are gone or waiting for deletion.
    Delete {
        /// Its own dependents are deleted first.
        foreground: bool,
        /// It may be part of a cycle of objects that wait for each other, so it must not block its
        /// owners.
        unblock: bool,
    },
    /// Its dependents lose it as an owner, then it is deleted.
    Orphan(Vec<String>),
    /// It waits for its dependents.
    Wait,
    /// It is part of a cycle in which each object waits for the next. It must not block its owners.
    Unblock,
    /// No blocking dependent is left.
    Finish,
}

impl Graph {
    pub(super) fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    pub(super) fn names(&self, kind: Kind) -> Vec<Key> {
        let of_kind = self.by_name.keys().filter(|(other, _)| *other == kind);
        of_kind.map(|(_, key)| key.clone()).collect()
    }

    fn dependents(&self, uid: &str) -> impl Iterator<Item = &Item> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.items.get(uid))
    }

    /// Returns the first dependent, in order of uid, that blocks the deletion of an object.
    fn blocking(&self, uid: &str) -> Option<&Item> {
        let blocks = |dependent: &&Item| {
            dependent
                .owners
                .iter()
                .any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
        };
        self.dependents(uid).find(blocks)
    }

    /// Reports whether a waiting object is on a cycle in which each object waits for the next.
    ///
    /// Follows only the first blocking dependent of each object. If no object can proceed, each has
    /// one, so these form a cycle too. Each object is visited once until the graph changes.
    fn is_on_cycle(&mut self, start: &str) -> bool {
        if let Some(is_cycle) = self.walked.get(start) {
            return *is_cycle;
        }
        let mut path = vec![start.to_owned()];
        let mut on_path = HashSet::from([start.to_owned()]);
        let is_cycle = loop {
            let Some(next) = path.last().and_then(|uid| self.blocking(uid)) else { break false };
            if !next.is_waiting() || self.walked.contains_key(&next.uid) {
                break false;
            }
            if next.uid == start {
                break true;
            }
            if !on_path.insert(next.uid.clone()) {
                // A cycle that does not include `start`; it is found from its own objects.
                let entry = path.iter().position(|uid| *uid == next.uid).unwrap_or(path.len());
                path.truncate(entry);
                break false;
            }
            path.push(next.uid.clone());
        };
        self.walked.extend(path.into_iter().map(|uid| (uid, is_cycle)));
        is_cycle
    }

    /// Adds or updates an object. Returns the uids that must be processed because of it.
    pub(super) fn apply(&mut self, item: Item) -> Vec<String> {
        let mut affected = Vec::new();
        let name = (item.kind, item.key.clone());
        let freed = match self.by_name.get(&name) {
            Some(uid) if *uid != item.uid => self.remove(item.kind, &item.key),
            _ => Vec::new(),
        };
        self.by_name.insert(name, item.uid.clone());
        let old = self.items.get(&item.uid);
        let begins_to_wait = item.is_waiting() && !old.is_some_and(Item::is_waiting);
        if begins_to_wait {
            affected.extend(self.dependents.get(&item.uid).into_iter().flatten().cloned());
        }
        // A cycle needs an object that waits, or one that blocks another.
        if item.is_waiting() || old.is_some_and(|old| old.owners != item.owners) {
            self.walked.clear();
        }
        if let Some(old) = old {
            for owner in &old.owners {
                if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                    dependents.remove(&item.uid);
                }
                // The owner may have waited for this object.
                if self.items.get(&owner.uid).is_some_and(Item::is_waiting) {
                    affected.push(owner.uid.clone());
                }
            }
        }
        for owner in &item.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(item.uid.clone());
        }
        if !item.owners.is_empty() || item.deleting {
            affected.push(item.uid.clone());
        }
        affected.extend(freed);
        self.items.insert(item.uid.clone(), item);
        affected
    }

    /// Removes an object. Returns the uids that must be processed because of it.
    pub(super) fn remove(&mut self, kind: Kind, key: &Key) -> Vec<String> {
        let Some(uid) = self.by_name.remove(&(kind, key.clone())) else { return Vec::new() };
        let Some(item) = self.items.remove(&uid) else { return Vec::new() };
        let mut affected: Vec<String> =
            self.dependents.remove(&uid).into_iter().flatten().collect();
        if !item.owners.is_empty() {
            // An owner may now wait for another dependent, and so be on a cycle.
            self.walked.clear();
        }
        for owner in &item.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            affected.push(owner.uid.clone());
        }
        affected
    }

    /// Decides about an object. `is_gone` reports whether an owner that is missing from the graph
    /// is gone.
    pub(super) fn judge(
        &mut self,
        uid: &str,
        is_gone: &dyn Fn(&OwnerReference) -> bool,
    ) -> Verdict {
        let Some(item) = self.items.get(uid) else { return Verdict::Keep };
        if item.deleting {
            if item.has(ORPHAN) {
                return Verdict::Orphan(self.dependents(uid).map(|d| d.uid.clone()).collect());
            }
            if !item.has(FOREGROUND) {
                return Verdict::Keep;
            }
            return match self.blocking(uid).is_some() {
                false => Verdict::Finish,
                true if self.is_on_cycle(uid) => Verdict::Unblock,
                true => Verdict::Wait,
            };
        }
        let (mut solid, mut waiting, mut dangling) = (0, Vec::new(), Vec::new());
        for owner in &item.owners {
            match self.items.get(&owner.uid) {
                Some(known) if known.is_waiting() => waiting.push(owner.uid.clone()),
                Some(_) => solid += 1,
                None if is_gone(owner) => dangling.push(owner.uid.clone()),
                None => solid += 1,
            }
        }
        if waiting.is_empty() && dangling.is_empty() {
            return Verdict::Keep;
        }
        if solid > 0 {
            dangling.extend(waiting);
            return Verdict::Disown(dangling);
        }
        let foreground = !waiting.is_empty() && self.dependents(uid).next().is_some();
        // As upstream: a dependent that waits may be waiting for its own owner.
        let unblock = foreground && self.dependents(uid).any(Item::is_waiting);
        Verdict::Delete { foreground, unblock }
    }

    /// Returns the owners of an object that are missing from the graph.
    pub(super) fn unknown_owners(&self, uid: &str) -> Vec<OwnerReference> {
        let owners = self.items.get(uid).into_iter().flat_map(|item| &item.owners);
        owners.filter(|owner| !self.items.contains_key(&owner.uid)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::kind::{PODS, REPLICA_SETS};

    fn item(uid: &str, owners: &[(&str, bool)]) -> Item {
        let owners = owners.iter().map(|(uid, block)| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(*block),
            ..OwnerReference::default()
        });
        Item {
            kind: if uid.starts_with('r') { REPLICA_SETS } else { PODS },
            key: Key::new("a", uid),
            uid: uid.to_owned(),
            owners: owners.collect(),
            finalizers: Vec::new(),
            deleting: false,
        }
    }

    fn terminating(mut item: Item, finalizer: &str) -> Item {
        item.deleting = true;
        item.finalizers.push(finalizer.to_owned());
        item
    }

    fn gone(_: &OwnerReference) -> bool {
        true
    }

    fn delete(foreground: bool, unblock: bool) -> Verdict {
        Verdict::Delete { foreground, unblock }
    }

    #[test]
    fn dependents_of_a_gone_owner_are_deleted() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        assert_eq!(graph.apply(item("p1", &[("r1", true)])), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), Verdict::Keep);
        assert_eq!(graph.remove(REPLICA_SETS, &Key::new("a", "r1")), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), delete(false, false));
        assert_eq!(graph.judge("p1", &|_| false), Verdict::Keep, "it may be too new to be known");
    }

    #[test]
    fn remaining_owner_keeps_its_dependents() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        graph.apply(item("p1", &[("r1", true), ("r2", false)]));
        assert_eq!(graph.judge("p1", &gone), Verdict::Disown(vec!["r2".to_owned()]));
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut graph = Graph::default();
        graph.apply(terminating(item("r1", &[]), FOREGROUND));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Wait);
        assert_eq!(graph.judge("p1", &gone), delete(false, false));
        assert_eq!(graph.remove(PODS, &Key::new("a", "p1")), ["r1"]);
        assert_eq!(graph.judge("r1", &gone), Verdict::Finish);
        graph.apply(item("p2", &[("r1", false)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Finish);
    }

    #[test]
    fn foreground_deletion_descends_the_tree() {
        let mut graph = Graph::default();
        graph.apply(terminating(item("d", &[]), FOREGROUND));
        graph.apply(item("r1", &[("d", true)]));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), delete(true, false));
    }

    #[test]
    fn orphans_lose_their_owner_and_stay() {
        let mut graph = Graph::default();
        graph.apply(terminating(item("r1", &[]), ORPHAN));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Orphan(vec!["p1".to_owned()]));
        assert_eq!(graph.judge("p1", &gone), Verdict::Keep);
    }

    #[test]
    fn new_object_with_the_same_name_is_another_owner() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        graph.apply(item("p1", &[("r1", true)]));
        let again = Item { key: Key::new("a", "r1"), ..item("r9", &[]) };
        assert_eq!(graph.apply(again), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), delete(false, false));
    }

    #[test]
    fn waiting_object_queues_its_dependents() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        graph.apply(item("p1", &[("r1", true)]));
        graph.apply(item("p2", &[("r1", false)]));
        assert_eq!(graph.apply(terminating(item("r1", &[]), FOREGROUND)), ["p1", "p2", "r1"]);
        assert_eq!(graph.apply(terminating(item("r1", &[]), FOREGROUND)), ["r1"]);
    }

    /// Returns a cycle of objects in which each owns the next.
    fn cycle(length: usize) -> Vec<Item> {
        let uid = |number: usize| format!("p{number:06}");
        let one =
            |number: usize| item(&uid(number), &[(&uid((number + length - 1) % length), true)]);
        (0..length).map(one).collect()
    }

    /// Executes decisions until none is left, and returns the number of remaining objects.
    fn collect(graph: &mut Graph, mut affected: Vec<String>) -> usize {
        let mut rounds = 0;
        while let Some(uid) = affected.pop() {
            rounds += 1;
            assert!(rounds < 1_000_000, "it does not come to an end");
            let Some(mut item) = graph.get(&uid).cloned() else { continue };
            match graph.judge(&uid, &gone) {
                Verdict::Keep | Verdict::Wait => continue,
                Verdict::Unblock => {
                    item.owners.iter_mut().for_each(|owner| owner.block_owner_deletion = None);
                }
                Verdict::Delete { foreground: false, .. } => {
                    affected.extend(graph.remove(item.kind, &item.key));
                    continue;
                }
                Verdict::Delete { unblock, .. } => {
                    if unblock {
                        item.owners.iter_mut().for_each(|owner| owner.block_owner_deletion = None);
                    }
                    item = terminating(item, FOREGROUND);
                }
                Verdict::Finish => {
                    affected.extend(graph.remove(item.kind, &item.key));
                    continue;
                }
                Verdict::Disown(_) | Verdict::Orphan(_) => panic!("nothing is kept here"),
            }
            affected.extend(graph.apply(item));
        }
        graph.items.len()
    }

    #[test]
    fn deleting_one_object_deletes_its_whole_cycle() {
        for length in [1, 2, 3, 10, 1_000] {
            let mut graph = Graph::default();
            let all = cycle(length);
            all.iter().for_each(|item| drop(graph.apply(item.clone())));
            let affected = graph.apply(terminating(all[length / 2].clone(), FOREGROUND));
            assert_eq!(collect(&mut graph, affected), 0, "{length}");
        }
    }

    #[test]
    fn cycles_of_waiting_objects_are_broken() {
        for length in [1, 2, 3, 20_000] {
            let mut graph = Graph::default();
            let mut affected = Vec::new();
            for one in cycle(length) {
                affected.extend(graph.apply(terminating(one, FOREGROUND)));
            }
            assert_eq!(graph.judge(&affected[0], &gone), Verdict::Unblock);
            assert_eq!(collect(&mut graph, affected), 0, "{length}");
        }
    }

    #[test]
    fn object_behind_a_cycle_waits_until_the_cycle_is_gone() {
        let mut graph = Graph::default();
        graph.apply(terminating(item("r1", &[]), FOREGROUND));
        let both = [terminating(item("p1", &[("p2", true), ("r1", true)]), FOREGROUND), {
            terminating(item("p2", &[("p1", true)]), FOREGROUND)
        }];
        let mut affected: Vec<String> =
            both.map(|one| graph.apply(one)).into_iter().flatten().collect();
        assert_eq!(graph.judge("r1", &gone), Verdict::Wait);
        assert_eq!(graph.judge("p1", &gone), Verdict::Unblock);
        affected.push("r1".to_owned());
        assert_eq!(collect(&mut graph, affected), 0);
    }

    #[test]
    fn cycle_is_found_after_its_first_blocker_is_gone() {
        let mut graph = Graph::default();
        // The first of the two that r1 waits for can proceed; the other one waits for r1.
        graph.apply(terminating(item("r1", &[("r2", true)]), FOREGROUND));
        graph.apply(terminating(item("r2", &[("r1", true)]), FOREGROUND));
        graph.apply(terminating(item("p0", &[("r1", true)]), "someone.else/holds-it"));
        assert_eq!(graph.judge("r2", &gone), Verdict::Wait);
        assert_eq!(graph.judge("r1", &gone), Verdict::Wait);
        let affected = graph.remove(PODS, &Key::new("a", "p0"));
        assert_eq!(affected, ["r1"]);
        assert_eq!(collect(&mut graph, affected), 0);
    }

    #[test]
    fn chain_of_waiting_objects_is_visited_once() {
        let length = 20_000;
        let mut graph = Graph::default();
        let mut chain = cycle(length);
        chain[0].owners.clear();
        chain[length - 1].finalizers.push("someone.else/holds-it".to_owned());
        // Only the last object of the chain can proceed.
        for one in &chain {
            graph.apply(terminating(one.clone(), FOREGROUND));
        }
        for one in &chain[..length - 1] {
            assert_eq!(graph.judge(&one.uid, &gone), Verdict::Wait);
        }
        assert_eq!(graph.walked.len(), length);
        assert_eq!(graph.judge(&chain[length - 1].uid, &gone), Verdict::Finish);
    }
}
