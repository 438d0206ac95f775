//! Static pods among all pods: [`Pods::take_files`] begins and ends them as their files come and go, and
//! says which mirrors there are to be.
//!
//! A pod whose file is gone has the time to end that it asked for. One that takes its place waits until
//! it is over, for both may want the same port.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use client::{Change, Key};

use super::{Pods, Read, State};
use crate::pods::static_pods::Identities;
use crate::pods::static_pods::mirror::{self, Mirror, Mirrors, Name};
use crate::pods::worker::Order;
use crate::runtime::lower::Origin;
use crate::runtime::relist::Brief;
use crate::spec::Pod;

/// What is known of files and of mirrors.
#[derive(Debug)]
pub(super) struct Files {
    identities: Identities,
    /// What files want, by uid; `None` before they have been looked at.
    wanted: Option<BTreeMap<String, Read>>,
    /// Pods that were told to end.
    leaving: BTreeSet<String>,
    mirrors: BTreeMap<Name, Mirror>,
}

impl Files {
    /// Reads the UIDs that static pods run under.
    pub(super) fn open(root: &Path) -> Files {
        Files {
            identities: Identities::open(root),
            wanted: None,
            leaving: BTreeSet::new(),
            mirrors: BTreeMap::new(),
        }
    }

    /// Returns the pods that files want.
    pub(super) fn wanted(&self) -> Vec<Read> {
        self.wanted.iter().flat_map(BTreeMap::values).cloned().collect()
    }

    pub(super) fn are_read(&self) -> bool {
        self.wanted.is_some()
    }

    /// Takes note of mirrors, which are pods of the API that nobody runs.
    pub(super) fn note(&mut self, change: &Change<Read>) {
        let name = |key: &Key| (key.namespace().to_owned(), key.name().to_owned());
        let mut put = |key: &Key, read: &Read| {
            match Mirror::of(&read.pod) {
                Some(mirror) => self.mirrors.insert(name(key), mirror),
                None => self.mirrors.remove(&name(key)),
            };
        };
        match change {
            Change::Replaced { all, .. } => {
                let there: BTreeSet<Name> = all.iter().map(|(key, ..)| name(key)).collect();
                for (key, _, read) in all {
                    put(key, read);
                }
                self.mirrors.retain(|name, _| there.contains(name));
            }
            Change::Applied { key, object, .. } => put(key, object),
            Change::Removed { key, .. } => {
                self.mirrors.remove(&name(key));
            }
            Change::UpTo { .. } => {}
        }
    }
}

impl Pods {
    /// Takes the pods that files want: all of them, every time.
    pub fn take_files(&mut self, wanted: Vec<Read>) {
        // Only what ran before the agent was started can be adopted.
        let running = match self.files.are_read() {
            true => BTreeMap::new(),
            false => running_static_pods(&self.briefs),
        };
        let wanted = self.files.identities.resolve(wanted, &running);
        let by_uid = |read: Read| (read.pod.metadata.uid.clone(), read);
        let wanted: BTreeMap<String, Read> = wanted.into_iter().map(by_uid).collect();
        if !self.complete {
            self.files.wanted = Some(wanted);
            self.begin_all();
            return;
        }
        let unwanted: Vec<String> = self
            .entries
            .iter()
            .filter(|(uid, entry)| entry.origin == Origin::File && !wanted.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in unwanted {
            self.end_static(&uid);
        }
        let news: Vec<Read> = wanted.values().cloned().collect();
        self.files.wanted = Some(wanted);
        for read in news {
            self.begin_static(read);
        }
        self.publish();
        self.end_unwanted();
    }

    /// One that still ends is begun when it is over.
    pub(super) fn begin_static(&mut self, read: Read) {
        let uid = read.pod.metadata.uid.clone();
        if !self.entries.contains_key(&uid) {
            self.hands.board.show(&uid, Arc::clone(&read.text));
            self.begin(read, Origin::File);
        }
    }

    fn end_static(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let State::Working(orders, _) = &entry.state else {
            self.end_gone(uid);
            return;
        };
        if self.files.leaving.insert(uid.to_owned()) {
            // As a pod of the API that is deleted, with its own time to end. Whatever else is said of it
            // from now on says so too.
            let now = self.hands.clock.now().to_seconds_text();
            for pod in [&mut entry.read.pod, &mut entry.given] {
                Arc::make_mut(pod).metadata.deletion_timestamp = Some(now.clone());
            }
            let _ = orders.send(Order::Pod(Arc::clone(&entry.given)));
        }
    }

    /// A static pod that was ended and is wanted again, by a file that came back.
    pub(super) fn static_is_over(&mut self, uid: &str) {
        if self.files.leaving.remove(uid)
            && let Some(read) = self.files.wanted.as_ref().and_then(|wanted| wanted.get(uid))
        {
            self.begin_static(read.clone());
        }
    }

    /// Whether a static pod has to wait for the one whose place it takes.
    pub(super) fn waits_for_namesake(&self, pod: &Pod) -> bool {
        let name = mirror::name(pod);
        let is_static = |origin: Origin| origin == Origin::File;
        let own = self.entries.get(&pod.metadata.uid);
        own.is_some_and(|own| is_static(own.origin))
            && self.entries.iter().any(|(uid, entry)| {
                *uid != pod.metadata.uid
                    && is_static(entry.origin)
                    && matches!(entry.state, State::Working(..))
                    && mirror::name(&entry.read.pod) == name
            })
    }

    /// Says which mirrors are to be there: those of the pods that were let in.
    pub(super) fn publish_mirrors(&self) {
        let shown = self.entries.values().filter(|entry| {
            entry.origin == Origin::File && matches!(entry.state, State::Working(..))
        });
        let wanted: BTreeMap<Name, Read> =
            shown.map(|entry| (mirror::name(&entry.read.pod), entry.read.clone())).collect();
        let there = self.files.mirrors.clone();
        let complete = self.complete;
        self.hands.mirrors.send_if_modified(|now| {
            let changed = now.complete != complete || now.wanted != wanted || now.there != there;
            if changed {
                *now = Arc::new(Mirrors { complete, wanted, there });
            }
            changed
        });
    }
}

/// Returns the UIDs of the static pods that the runtime has, by namespace and name. Of two pods of one name
/// the one with the newer container counts.
fn running_static_pods(briefs: &BTreeMap<String, Brief>) -> BTreeMap<Name, String> {
    let mut found: BTreeMap<Name, (i64, &String)> = BTreeMap::new();
    for (uid, brief) in briefs.iter().filter(|(_, brief)| brief.from_file && brief.is_alive()) {
        let newest = brief.containers.values().map(|container| container.created_at).max();
        let this = (newest.unwrap_or_default(), uid);
        let name = (brief.namespace.clone(), brief.name.clone());
        let best = found.entry(name).or_insert(this);
        *best = this.max(*best);
    }
    found.into_iter().map(|(name, (_, uid))| (name, uid.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::observed::ContainerState;
    use crate::runtime::relist::ContainerBrief;

    #[test]
    fn the_newest_running_pod_of_a_manifest_counts() {
        let brief = |name: &str, from_file: bool, state: ContainerState, created_at: i64| {
            let container = ContainerBrief {
                name: "c".to_owned(),
                sandbox: "s".to_owned(),
                attempt: 0,
                state,
                created_at,
            };
            Brief {
                name: name.to_owned(),
                namespace: "default".to_owned(),
                from_file,
                containers: [("1".to_owned(), container)].into(),
                ..Brief::default()
            }
        };
        let running = ContainerState::Running;
        let briefs = [
            ("u-1", brief("web", true, running, 7)),
            ("u-2", brief("web", true, running, 9)),
            ("u-3", brief("web", true, running, 8)),
            ("u-4", brief("api", false, running, 1)),
            ("u-5", brief("dead", true, ContainerState::Exited, 1)),
        ];
        let briefs = briefs.map(|(uid, brief)| (uid.to_owned(), brief)).into();
        let name = ("default".to_owned(), "web".to_owned());
        assert_eq!(running_static_pods(&briefs), [(name, "u-2".to_owned())].into());
    }
}
