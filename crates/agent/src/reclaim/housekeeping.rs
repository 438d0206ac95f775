//! Removes leftovers of pods: [`Leftovers`] lists them, [`keep`] removes those of pods that are neither known nor running.
//!
//! Pods clean up after themselves. Leftovers are of pods that ended while no agent ran, or of an agent that was killed.
//! The machine is listed before the known pods: a pod is known before anything is made for it. A cgroup with processes
//! that the runtime does not know may belong to another agent, so it is reported and left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use host::file_kind::remove_tree;
use placement::demand::PodUid;
use tracing::{info, warn};

use crate::context::AgentContext;
use crate::runtime::relist;
use crate::supervisor::millis;
use client::ErrorLog;

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

/// Lists the traces of pods that are neither known nor running. Returns `None` while the pods or the
/// containers are unknown.
pub async fn left(context: &AgentContext) -> Option<Leftovers> {
    let there = observe(context).await;
    let summaries = relist::relist(&context.runtime).await.ok()?;
    let known = context.known_pods.borrow().clone()?;
    Some(there.beyond(|uid| known.contains(uid) || summaries.contains_key(uid)))
}

async fn observe(context: &AgentContext) -> Leftovers {
    let ledger_pods = context.ledger().contents().pods().map(ToString::to_string).collect();
    let (cgroups, volumes) = (context.cgroups.clone(), context.volumes.clone());
    let logs = PathBuf::from(&context.node_env().log_dir);
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

/// Removes leftovers once all pods are known, and then periodically as long as it is polled.
pub async fn run(context: Arc<AgentContext>) {
    let mut known = context.known_pods.subscribe();
    if known.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut timer = tokio::time::interval(EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut errors = RemovalErrors::new();
    loop {
        timer.tick().await;
        sweep_logged(&context, &mut errors).await;
    }
}

/// The errors of leftovers that could not be removed, by kind and name.
type RemovalErrors = BTreeMap<(&'static str, String), ErrorLog>;

/// Removes leftovers now.
pub async fn sweep(context: &AgentContext) {
    sweep_logged(context, &mut RemovalErrors::new()).await;
}

async fn sweep_logged(context: &AgentContext, errors: &mut RemovalErrors) {
    let Some(left) = left(context).await else { return };
    if left.is_nothing() {
        return;
    }
    release(context, &left.ledger_pods, errors).await;
    for (uid, path) in &left.cgroups {
        if is_free(context, uid) {
            let done = remove_cgroup(context, uid, path).await;
            take(context, errors, "cgroup", path, done);
        }
    }
    for uid in left.directories.iter().filter(|uid| is_free(context, uid)) {
        let (volumes, of) = (context.volumes.clone(), uid.clone());
        let done = blocking(move || volumes.remove(&of)).await;
        take(context, errors, "directory", uid, done);
    }
    for (uid, path) in &left.logs {
        if is_free(context, uid) {
            let of = path.clone();
            let done = blocking(move || remove_tree(&of)).await;
            take(context, errors, "logs", &path.display().to_string(), done);
        }
    }
}

/// Returns true if no pod with this UID has appeared in the meantime.
fn is_free(context: &AgentContext, uid: &str) -> bool {
    context.known_pods.borrow().as_ref().is_some_and(|known| !known.contains(uid))
}

/// Releases the allocations of pods that are gone.
async fn release(context: &AgentContext, pods: &BTreeSet<String>, errors: &mut RemovalErrors) {
    let mut any = false;
    for uid in pods.iter().filter(|uid| is_free(context, uid)) {
        let released = context.ledger().release(&PodUid::new(uid));
        let done = released.map(|released| any |= released).map_err(|error| error.to_string());
        take(context, errors, "book", uid, done);
    }
    if any {
        context.note_ledger_change();
        // Nothing depends on a larger shared pool.
        let _ = context.rebalance().await;
    }
}

async fn remove_cgroup(context: &AgentContext, uid: &str, path: &str) -> Result<(), String> {
    let Some(cgroups) = context.cgroups.clone() else { return Ok(()) };
    let (uid, path) = (uid.to_owned(), path.to_owned());
    blocking(move || -> Result<(), String> {
        let processes = cgroups.host().processes(&path).map_err(|error| error.to_string())?;
        if !processes.is_empty() {
            let pids: Vec<String> = processes.iter().map(ToString::to_string).collect();
            let pids = pids.join(", ");
            return Err(format!("processes run in it that the runtime does not know: {pids}"));
        }
        cgroups.remove_pod(&uid).map_err(|error| error.to_string())
    })
    .await
}

fn take(
    context: &AgentContext,
    errors: &mut RemovalErrors,
    what: &'static str,
    of: &str,
    done: Result<(), String>,
) {
    let key = (what, of.to_owned());
    match done {
        Ok(()) => {
            context.metrics.left_behind.increment(&[what]);
            errors.remove(&key);
            info!(what, of, "removed leftovers of a deleted pod");
        }
        Err(error) => {
            if errors.entry(key).or_default().failed(&error) {
                let retry_in_ms = millis(EVERY);
                warn!(what, of, error, retry_in_ms, "failed to remove leftovers of a deleted pod");
            }
        }
    }
}

async fn blocking<E: ToString + Send + 'static>(
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

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
