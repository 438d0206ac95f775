//! Static pods among all pods: [`PodSet::handle_static_pods`] starts and ends them as their manifests are
//! added and removed, and publishes the wanted mirror pods.
//!
//! A pod whose manifest was removed has its own grace period. A pod that replaces it waits until it is gone,
//! because both may use the same port.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use client::{Change, Key};

use super::{PodSet, PodWithManifest, State};
use crate::pods::static_pods::Identities;
use crate::pods::static_pods::mirror::{self, Mirror, Mirrors, Name};
use crate::pods::worker::WorkerMessage;
use crate::runtime::lower::ConfigSource;
use crate::runtime::relist::PodSummary;
use lifecycle::spec::Pod;

/// The state of manifests and mirror pods.
#[derive(Debug)]
pub(super) struct StaticPods {
    identities: Identities,
    /// The pods of the manifests, by UID; `None` before the manifests were read.
    wanted: Option<BTreeMap<String, PodWithManifest>>,
    /// Pods that were asked to terminate.
    leaving: BTreeSet<String>,
    mirrors: BTreeMap<Name, Mirror>,
}

impl StaticPods {
    /// Reads the UIDs that static pods run under.
    pub(super) fn open(root: &Path) -> StaticPods {
        StaticPods {
            identities: Identities::open(root),
            wanted: None,
            leaving: BTreeSet::new(),
            mirrors: BTreeMap::new(),
        }
    }

    /// Returns the pods of the manifests.
    pub(super) fn wanted(&self) -> Vec<PodWithManifest> {
        self.wanted.iter().flat_map(BTreeMap::values).cloned().collect()
    }

    pub(super) fn are_read(&self) -> bool {
        self.wanted.is_some()
    }

    /// Updates the mirrors, which are pods of the API that are not run.
    pub(super) fn note(&mut self, change: &Change<PodWithManifest>) {
        let name = |key: &Key| (key.namespace().to_owned(), key.name().to_owned());
        let mut put = |key: &Key, parsed: &PodWithManifest| {
            match Mirror::of(&parsed.pod) {
                Some(mirror) => self.mirrors.insert(name(key), mirror),
                None => self.mirrors.remove(&name(key)),
            };
        };
        match change {
            Change::Replaced { all, .. } => {
                let there: BTreeSet<Name> = all.iter().map(|(key, ..)| name(key)).collect();
                for (key, _, parsed) in all {
                    put(key, parsed);
                }
                self.mirrors.retain(|name, _| there.contains(name));
            }
            Change::Applied { key, object, .. } => put(key, object),
            Change::Removed { key, .. } => {
                self.mirrors.remove(&name(key));
            }
            Change::Bookmark { .. } => {}
        }
    }
}

impl PodSet {
    /// Handles the complete list of pods of the manifests.
    pub fn handle_static_pods(&mut self, wanted: Vec<PodWithManifest>) {
        // Only pods that ran before the agent started can be adopted.
        let running = match self.files.are_read() {
            true => BTreeMap::new(),
            false => running_static_pods(&self.summaries),
        };
        let wanted = self.files.identities.resolve(wanted, &running);
        let by_uid = |parsed: PodWithManifest| (parsed.pod.metadata.uid.clone(), parsed);
        let wanted: BTreeMap<String, PodWithManifest> = wanted.into_iter().map(by_uid).collect();
        if !self.complete {
            self.files.wanted = Some(wanted);
            self.add_all();
            return;
        }
        let unwanted: Vec<String> = self
            .entries
            .iter()
            .filter(|(uid, entry)| entry.origin == ConfigSource::File && !wanted.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in unwanted {
            self.terminate_static(&uid);
        }
        let news: Vec<PodWithManifest> = wanted.values().cloned().collect();
        self.files.wanted = Some(wanted);
        for parsed in news {
            self.add_static(parsed);
        }
        self.publish();
        self.terminate_orphans();
    }

    /// Starts a static pod. One that is still terminating is started when it is gone.
    pub(super) fn add_static(&mut self, parsed: PodWithManifest) {
        let uid = parsed.pod.metadata.uid.clone();
        if !self.entries.contains_key(&uid) {
            self.context
                .publications
                .pod_cache
                .insert(&parsed.pod.metadata, Arc::clone(&parsed.text));
            self.add(parsed, ConfigSource::File);
        }
    }

    fn terminate_static(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let State::Working(messages, _) = &entry.state else {
            self.terminate_deleted(uid);
            return;
        };
        if self.files.leaving.insert(uid.to_owned()) {
            // Like a deleted pod of the API, with its own grace period. Later updates of the pod also have
            // the deletion timestamp.
            let now = self.context.clock.now().to_seconds_text();
            for pod in [&mut entry.parsed.pod, &mut entry.allocated] {
                Arc::make_mut(pod).metadata.deletion_timestamp = Some(now.clone());
            }
            let _ = messages.send(WorkerMessage::PodChanged(Arc::clone(&entry.allocated)));
        }
    }

    /// Starts a static pod again whose manifest was restored while it was terminating.
    pub(super) fn static_pod_removed(&mut self, uid: &str) {
        if self.files.leaving.remove(uid)
            && let Some(parsed) = self.files.wanted.as_ref().and_then(|wanted| wanted.get(uid))
        {
            self.add_static(parsed.clone());
        }
    }

    /// Returns true if a static pod must wait for the one that it replaces.
    pub(super) fn waits_for_namesake(&self, pod: &Pod) -> bool {
        let name = mirror::name(pod);
        let is_static = |origin: ConfigSource| origin == ConfigSource::File;
        let own = self.entries.get(&pod.metadata.uid);
        own.is_some_and(|own| is_static(own.origin))
            && self.entries.iter().any(|(uid, entry)| {
                *uid != pod.metadata.uid
                    && is_static(entry.origin)
                    && matches!(entry.state, State::Working(..))
                    && mirror::name(&entry.parsed.pod) == name
            })
    }

    /// Publishes the wanted mirror pods: those of admitted pods.
    pub(super) fn publish_mirrors(&self) {
        let shown = self.entries.values().filter(|entry| {
            entry.origin == ConfigSource::File && matches!(entry.state, State::Working(..))
        });
        let wanted: BTreeMap<Name, PodWithManifest> =
            shown.map(|entry| (mirror::name(&entry.parsed.pod), entry.parsed.clone())).collect();
        let there = self.files.mirrors.clone();
        let complete = self.complete;
        self.context.publications.mirrors.send_if_modified(|now| {
            let changed = now.complete != complete || now.wanted != wanted || now.there != there;
            if changed {
                *now = Arc::new(Mirrors { complete, wanted, there });
            }
            changed
        });
    }
}

/// Returns the UIDs of the static pods in the runtime, by namespace and name. Of two pods of one name, the
/// one with the newer container counts.
fn running_static_pods(summaries: &BTreeMap<String, PodSummary>) -> BTreeMap<Name, String> {
    let mut found: BTreeMap<Name, (i64, &String)> = BTreeMap::new();
    for (uid, summary) in
        summaries.iter().filter(|(_, summary)| summary.from_file && summary.is_alive())
    {
        let newest = summary.containers.values().map(|container| container.created_at).max();
        let this = (newest.unwrap_or_default(), uid);
        let name = (summary.namespace.clone(), summary.name.clone());
        let best = found.entry(name).or_insert(this);
        *best = this.max(*best);
    }
    found.into_iter().map(|(name, (_, uid))| (name, uid.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::relist::ContainerSummary;
    use lifecycle::observed::ContainerState;

    #[test]
    fn the_newest_running_pod_of_a_manifest_counts() {
        let summary = |name: &str, from_file: bool, state: ContainerState, created_at: i64| {
            let container = ContainerSummary {
                name: "c".to_owned(),
                sandbox: "s".to_owned(),
                attempt: 0,
                state,
                created_at,
            };
            PodSummary {
                name: name.to_owned(),
                namespace: "default".to_owned(),
                from_file,
                containers: [("1".to_owned(), container)].into(),
                ..PodSummary::default()
            }
        };
        let running = ContainerState::Running;
        let summaries = [
            ("u-1", summary("web", true, running, 7)),
            ("u-2", summary("web", true, running, 9)),
            ("u-3", summary("web", true, running, 8)),
            ("u-4", summary("api", false, running, 1)),
            ("u-5", summary("dead", true, ContainerState::Exited, 1)),
        ];
        let summaries = summaries.map(|(uid, summary)| (uid.to_owned(), summary)).into();
        let name = ("default".to_owned(), "web".to_owned());
        assert_eq!(running_static_pods(&summaries), [(name, "u-2".to_owned())].into());
    }
}
