//! Who owns whom: [`Graph`], and what is to become of an object because of it.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::key::Key;
use crate::kind::Kind;

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// An object as far as ownership goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) uid: String,
    pub(super) owners: Vec<OwnerRef>,
    pub(super) finalizers: Vec<String>,
    pub(super) deleting: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OwnerRef {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) block_owner_deletion: bool,
}

/// What a watch tells of an object.
#[derive(Debug)]
pub(super) struct Seen {
    uid: String,
    owners: Vec<OwnerRef>,
    finalizers: Vec<String>,
    deleting: bool,
}

#[derive(Deserialize)]
struct Text {
    metadata: TextMetadata,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct TextMetadata {
    uid: String,
    owner_references: Vec<OwnerRef>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
}

pub(super) fn seen(raw: &RawValue) -> Result<Seen, serde_json::Error> {
    let Text { metadata } = serde_json::from_str(raw.get())?;
    Ok(Seen {
        uid: metadata.uid,
        owners: metadata.owner_references,
        finalizers: metadata.finalizers,
        deleting: metadata.deletion_timestamp.is_some(),
    })
}

impl Item {
    pub(super) fn new(kind: Kind, key: Key, seen: Seen) -> Item {
        let Seen { uid, owners, finalizers, deleting } = seen;
        Item { kind, key, uid, owners, finalizers, deleting }
    }

    pub(super) fn has(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|own| own == finalizer)
    }

    fn is_waiting(&self) -> bool {
        self.deleting && self.has(FOREGROUND)
    }
}

/// All objects, by uid, and who depends on whom.
#[derive(Debug, Default)]
pub(super) struct Graph {
    items: HashMap<String, Item>,
    by_name: HashMap<(Kind, Key), String>,
    dependents: HashMap<String, HashSet<String>>,
}

/// What is to be done about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// Owners with these uids are gone or going, and others are not.
    Disown(Vec<String>),
    /// All of its owners are gone or going; whether its own dependents have to go first.
    Delete {
        foreground: bool,
    },
    /// Its dependents lose it as an owner, then it goes.
    Orphan(Vec<String>),
    /// It waits for these.
    Wait(Vec<String>),
    /// Nothing it waited for is left.
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

    fn dependents(&self, uid: &str) -> Vec<&Item> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        let mut all: Vec<&Item> = uids.filter_map(|uid| self.items.get(uid)).collect();
        all.sort_by(|a, b| a.uid.cmp(&b.uid));
        all
    }

    /// Takes an object in; gives the uids that are to be looked at because of it.
    pub(super) fn apply(&mut self, item: Item) -> Vec<String> {
        let mut look = Vec::new();
        let name = (item.kind, item.key.clone());
        let freed = match self.by_name.get(&name) {
            Some(uid) if *uid != item.uid => self.remove(item.kind, &item.key),
            _ => Vec::new(),
        };
        self.by_name.insert(name, item.uid.clone());
        if let Some(old) = self.items.get(&item.uid) {
            for owner in &old.owners {
                if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                    dependents.remove(&item.uid);
                }
                // One that no longer depends may have been waited for.
                look.push(owner.uid.clone());
            }
        }
        for owner in &item.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(item.uid.clone());
        }
        if !item.owners.is_empty() || item.deleting {
            look.push(item.uid.clone());
        }
        look.retain(|uid| *uid == item.uid || self.items.get(uid).is_some_and(Item::is_waiting));
        look.extend(freed);
        self.items.insert(item.uid.clone(), item);
        look
    }

    /// Forgets an object; gives the uids that are to be looked at because of it.
    pub(super) fn remove(&mut self, kind: Kind, key: &Key) -> Vec<String> {
        let Some(uid) = self.by_name.remove(&(kind, key.clone())) else { return Vec::new() };
        let Some(item) = self.items.remove(&uid) else { return Vec::new() };
        let mut look: Vec<String> = self.dependents.remove(&uid).into_iter().flatten().collect();
        for owner in &item.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            look.push(owner.uid.clone());
        }
        look
    }

    /// What becomes of an object; `is_gone` is whether an owner that is not known is really gone.
    pub(super) fn judge(&self, uid: &str, is_gone: &dyn Fn(&OwnerRef) -> bool) -> Verdict {
        let Some(item) = self.items.get(uid) else { return Verdict::Keep };
        if item.deleting {
            let dependents = self.dependents(uid);
            if item.has(ORPHAN) {
                return Verdict::Orphan(dependents.iter().map(|d| d.uid.clone()).collect());
            }
            if item.has(FOREGROUND) {
                let blocks = |d: &&&Item| {
                    d.owners.iter().any(|owner| owner.uid == uid && owner.block_owner_deletion)
                };
                if dependents.iter().filter(blocks).count() == 0 {
                    return Verdict::Finish;
                }
                return Verdict::Wait(dependents.iter().map(|d| d.uid.clone()).collect());
            }
            return Verdict::Keep;
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
        let foreground =
            !waiting.is_empty() && self.dependents.get(uid).is_some_and(|d| !d.is_empty());
        Verdict::Delete { foreground }
    }

    /// Owners of an object that are not known here.
    pub(super) fn unknown_owners(&self, uid: &str) -> Vec<OwnerRef> {
        let owners = self.items.get(uid).into_iter().flat_map(|item| &item.owners);
        owners.filter(|owner| !self.items.contains_key(&owner.uid)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{PODS, REPLICA_SETS};

    fn item(uid: &str, owners: &[(&str, bool)]) -> Item {
        let owners = owners.iter().map(|(uid, block)| OwnerRef {
            uid: (*uid).to_owned(),
            block_owner_deletion: *block,
            ..OwnerRef::default()
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

    fn going(mut item: Item, finalizer: &str) -> Item {
        item.deleting = true;
        item.finalizers.push(finalizer.to_owned());
        item
    }

    fn gone(_: &OwnerRef) -> bool {
        true
    }

    #[test]
    fn dependents_go_after_an_owner_that_is_gone() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        assert_eq!(graph.apply(item("p1", &[("r1", true)])), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), Verdict::Keep);
        assert_eq!(graph.remove(REPLICA_SETS, &Key::new("a", "r1")), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), Verdict::Delete { foreground: false });
        assert_eq!(graph.judge("p1", &|_| false), Verdict::Keep, "it may be too new to be known");
    }

    #[test]
    fn an_owner_that_stays_keeps_its_dependents() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        graph.apply(item("p1", &[("r1", true), ("r2", false)]));
        assert_eq!(graph.judge("p1", &gone), Verdict::Disown(vec!["r2".to_owned()]));
    }

    #[test]
    fn a_foreground_deletion_waits_for_those_that_block_it() {
        let mut graph = Graph::default();
        graph.apply(going(item("r1", &[]), FOREGROUND));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Wait(vec!["p1".to_owned()]));
        assert_eq!(graph.judge("p1", &gone), Verdict::Delete { foreground: false });
        assert_eq!(graph.remove(PODS, &Key::new("a", "p1")), ["r1"]);
        assert_eq!(graph.judge("r1", &gone), Verdict::Finish);
        graph.apply(item("p2", &[("r1", false)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Finish);
    }

    #[test]
    fn a_foreground_deletion_goes_down_the_tree() {
        let mut graph = Graph::default();
        graph.apply(going(item("d", &[]), FOREGROUND));
        graph.apply(item("r1", &[("d", true)]));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Delete { foreground: true });
    }

    #[test]
    fn orphans_lose_their_owner_and_stay() {
        let mut graph = Graph::default();
        graph.apply(going(item("r1", &[]), ORPHAN));
        graph.apply(item("p1", &[("r1", true)]));
        assert_eq!(graph.judge("r1", &gone), Verdict::Orphan(vec!["p1".to_owned()]));
        assert_eq!(graph.judge("p1", &gone), Verdict::Keep);
    }

    #[test]
    fn an_object_of_the_same_name_is_another() {
        let mut graph = Graph::default();
        graph.apply(item("r1", &[]));
        graph.apply(item("p1", &[("r1", true)]));
        let again = Item { key: Key::new("a", "r1"), ..item("r9", &[]) };
        assert_eq!(graph.apply(again), ["p1"]);
        assert_eq!(graph.judge("p1", &gone), Verdict::Delete { foreground: false });
    }
}
