//! Removes leftovers of pods: [`Leftovers`] lists them, [`Housekeeping`] removes those of pods that are
//! neither known nor running.
//!
//! Pods clean up after themselves. Leftovers are of pods that ended while no agent ran, or of an agent that was killed.
//! The machine is listed before the known pods: a pod is known before anything is made for it. A cgroup with processes
//! that the runtime does not know may belong to another agent, so it is reported and left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use host::cgroups::CgroupError;
use host::file_kind::remove_tree;
use placement::demand::PodUid;
use thiserror::Error;
use tracing::{info, warn};

use crate::blocking::{self, BlockingError};
use crate::node_state::NodeState;
use crate::publications::Publications;
use crate::runtime::cgroups::PodCgroups;
use crate::runtime::{Runtime, relist};
use crate::supervisor::millis;
use client::ErrorLog;
use metrics::Counter;

/// Upstream checks every two seconds. Leftovers do no harm for a minute.
const EVERY: Duration = Duration::from_secs(60);

/// The traces of pods on the machine, by UID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// With their paths.
    pub cgroups: BTreeMap<String, String>,
    pub directories: BTreeSet<String>,
    pub logs: BTreeMap<String, PathBuf>,
    /// Pods that are in the ledger.
    pub ledger_pods: BTreeSet<String>,
}

impl Leftovers {
    /// Returns the traces of pods that are neither known nor running.
    #[must_use]
    pub fn beyond(mut self, is_known: impl Fn(&str) -> bool) -> Leftovers {
        self.cgroups.retain(|uid, _| !is_known(uid));
        self.directories.retain(|uid| !is_known(uid));
        self.logs.retain(|uid, _| !is_known(uid));
        self.ledger_pods.retain(|uid| !is_known(uid));
        self
    }

    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Leftovers::default()
    }
}

/// The reason why a cgroup was not removed.
#[derive(Debug, Error)]
enum RemoveCgroupError {
    #[error("processes run in it that the runtime does not know: {0}")]
    InUse(String),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Removes leftovers of pods.
#[derive(Debug)]
pub struct Housekeeping {
    runtime: Arc<Runtime>,
    state: Arc<NodeState>,
    publications: Arc<Publications>,
    /// Counts removed leftovers by kind.
    removed: Counter,
}

impl Housekeeping {
    #[must_use]
    pub fn new(
        runtime: Arc<Runtime>,
        state: Arc<NodeState>,
        publications: Arc<Publications>,
        removed: Counter,
    ) -> Housekeeping {
        Housekeeping { runtime, state, publications, removed }
    }

    /// Lists the traces of pods that are neither known nor running. Returns `None` while the pods or the
    /// containers are unknown.
    pub async fn left(&self) -> Option<Leftovers> {
        let there = self.observe().await;
        let summaries = relist::relist(&self.runtime.cri).await.ok()?;
        let known = self.publications.known_pods.borrow().clone()?;
        Some(there.beyond(|uid| known.contains(uid) || summaries.contains_key(uid)))
    }

    async fn observe(&self) -> Leftovers {
        let ledger_pods = self.state.ledger().contents().pods().map(ToString::to_string).collect();
        let (cgroups, volumes) = (self.runtime.cgroups.clone(), self.runtime.volumes.clone());
        let logs = PathBuf::from(&self.state.node_env().log_dir);
        let listed = tokio::task::spawn_blocking(move || {
            let cgroups = cgroups.map(|of| of.pods()).transpose().unwrap_or_else(|error| {
                warn!(%error, "failed to list the cgroups of pods");
                None
            });
            let directories = volumes.pods().unwrap_or_else(|error| {
                warn!(%error, "failed to list the directories of pods");
                Vec::new()
            });
            let logs = log_directories(&logs);
            (cgroups.unwrap_or_default(), directories.into_iter().collect(), logs)
        });
        let (cgroups, directories, logs) = listed.await.unwrap_or_default();
        Leftovers { cgroups, directories, logs, ledger_pods }
    }

    /// Removes leftovers once all pods are known, and then periodically as long as it is polled.
    pub async fn run(&self) {
        let mut known = self.publications.known_pods.subscribe();
        if known.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut timer = tokio::time::interval(EVERY);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut errors = RemovalErrors::new();
        loop {
            timer.tick().await;
            self.sweep_logged(&mut errors).await;
        }
    }

    /// Removes leftovers now.
    pub async fn sweep(&self) {
        self.sweep_logged(&mut RemovalErrors::new()).await;
    }

    async fn sweep_logged(&self, errors: &mut RemovalErrors) {
        let Some(left) = self.left().await else { return };
        if left.is_nothing() {
            return;
        }
        self.release(&left.ledger_pods, errors).await;
        if let Some(cgroups) = &self.runtime.cgroups {
            for (uid, path) in left.cgroups.iter().filter(|(uid, _)| self.is_free(uid)) {
                let done = remove_cgroup(cgroups.clone(), uid, path).await;
                self.note(errors, "cgroup", path, done);
            }
        }
        for uid in left.directories.iter().filter(|uid| self.is_free(uid)) {
            let (volumes, of) = (self.runtime.volumes.clone(), uid.clone());
            let done = blocking::run(move || volumes.remove(&of)).await;
            self.note(errors, "directory", uid, done);
        }
        for (uid, path) in &left.logs {
            if self.is_free(uid) {
                let of = path.clone();
                let done = blocking::run(move || remove_tree(&of)).await;
                self.note(errors, "logs", &path.display().to_string(), done);
            }
        }
    }

    /// Returns true if no pod with this UID has appeared in the meantime.
    fn is_free(&self, uid: &str) -> bool {
        let known = self.publications.known_pods.borrow();
        known.as_ref().is_some_and(|known| !known.contains(uid))
    }

    /// Releases the allocations of pods that are gone.
    async fn release(&self, pods: &BTreeSet<String>, errors: &mut RemovalErrors) {
        let mut any = false;
        for uid in pods.iter().filter(|uid| self.is_free(uid)) {
            let released = self.state.ledger().release(&PodUid::new(uid));
            self.note(errors, "book", uid, released.map(|released| any |= released));
        }
        if any {
            self.state.share_released_cpus(&self.runtime.cri).await;
        }
    }

    /// Counts and logs the removal of one trace.
    fn note<E: Display>(
        &self,
        errors: &mut RemovalErrors,
        what: &'static str,
        of: &str,
        done: Result<(), E>,
    ) {
        let key = (what, of.to_owned());
        match done {
            Ok(()) => {
                self.removed.increment(&[what]);
                errors.remove(&key);
                info!(what, of, "removed leftovers of a deleted pod");
            }
            Err(error) => {
                if errors.entry(key).or_default().failed(&error) {
                    let retry_in_ms = millis(EVERY);
                    warn!(what, of, %error, retry_in_ms, "failed to remove leftovers of a deleted pod");
                }
            }
        }
    }
}

async fn remove_cgroup(
    cgroups: PodCgroups,
    uid: &str,
    path: &str,
) -> Result<(), BlockingError<RemoveCgroupError>> {
    let (uid, path) = (uid.to_owned(), path.to_owned());
    blocking::run(move || {
        let processes = cgroups.host().processes(&path)?;
        if !processes.is_empty() {
            let pids: Vec<String> = processes.iter().map(ToString::to_string).collect();
            return Err(RemoveCgroupError::InUse(pids.join(", ")));
        }
        Ok(cgroups.remove_pod(&uid)?)
    })
    .await
}

/// Finds directories named `namespace_name_uid`. Others are not the agent's.
fn log_directories(logs: &Path) -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let mut parts = name.split('_');
            let (_, _, uid) = (parts.next()?, parts.next()?, parts.next()?);
            let is_one = parts.next().is_none() && !uid.is_empty();
            is_one.then(|| (uid.to_owned(), entry.path()))
        })
        .collect()
}

/// The errors of leftovers that could not be removed, by kind and name.
type RemovalErrors = BTreeMap<(&'static str, String), ErrorLog>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_traces_without_a_pod_are_leftovers() {
        let set = |uids: &[&str]| uids.iter().map(|&uid| uid.to_owned()).collect();
        let all = Leftovers {
            cgroups: [("a", "/kubepods/poda"), ("b", "/kubepods/burstable/podb")]
                .map(|(uid, path)| (uid.to_owned(), path.to_owned()))
                .into(),
            directories: set(&["a", "b"]),
            logs: [("a".to_owned(), "x_y_a".into()), ("c".to_owned(), "x_y_c".into())].into(),
            ledger_pods: set(&["b"]),
        };
        let left = all.clone().beyond(|uid| uid == "a");
        let cgroups: Vec<&str> = left.cgroups.values().map(String::as_str).collect();
        assert_eq!(cgroups, ["/kubepods/burstable/podb"]);
        assert_eq!(left.directories, set(&["b"]));
        assert_eq!(left.logs.keys().collect::<Vec<_>>(), ["c"]);
        assert_eq!(left.ledger_pods, set(&["b"]));
        assert!(all.beyond(|_| true).is_nothing());
    }

    #[test]
    fn directories_of_logs_are_known_by_their_names() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["ns_pod_u-1", "ns_pod", "ns_pod_", "a_b_c_d", "other"] {
            std::fs::create_dir(logs.path().join(name)).unwrap();
        }
        std::fs::write(logs.path().join("ns_pod_file"), "").unwrap();
        let found = log_directories(logs.path());
        assert_eq!(found, [("u-1".to_owned(), logs.path().join("ns_pod_u-1"))].into());
        assert_eq!(log_directories(&logs.path().join("none")), BTreeMap::new());
    }
}
