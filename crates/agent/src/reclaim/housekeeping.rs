//! Nothing is left behind: [`Left`], what the machine has of pods, and [`keep`], which takes away what
//! belongs to none that is known or runs.
//!
//! Pods clean up after themselves; what is found here is of those that ended while no agent was there, or
//! an agent that was killed. First it is listed what there is, and only then who is known: a pod is known
//! before anything of it is made. A cgroup that has processes nobody told of may be another agent's, so it
//! is left alone and said.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use host::file_kind::remove_tree;
use placement::demand::PodUid;
use tracing::{info, warn};

use crate::context::Hands;
use crate::runtime::relist;

/// Upstream looks every two seconds; what is left here hurts nobody that soon.
const EVERY: Duration = Duration::from_secs(60);

/// What there is of pods on the machine, by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    /// With its path.
    pub cgroups: BTreeMap<String, String>,
    pub directories: BTreeSet<String>,
    pub logs: BTreeMap<String, PathBuf>,
    /// Pods that the book has something for.
    pub booked: BTreeSet<String>,
}

impl Left {
    /// What of it belongs to no pod that is known or runs.
    #[must_use]
    pub fn beyond(mut self, is_known: impl Fn(&str) -> bool) -> Left {
        self.cgroups.retain(|uid, _| !is_known(uid));
        self.directories.retain(|uid| !is_known(uid));
        self.logs.retain(|uid, _| !is_known(uid));
        self.booked.retain(|uid| !is_known(uid));
        self
    }

    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Left::default()
    }
}

/// Lists what there is and belongs to no pod that is known or runs. `None` while that cannot be said.
pub async fn left(hands: &Hands) -> Option<Left> {
    let there = observe(hands).await;
    let briefs = relist::briefly(&hands.runtime).await.ok()?;
    let known = hands.known_pods.borrow().clone()?;
    Some(there.beyond(|uid| known.contains(uid) || briefs.contains_key(uid)))
}

async fn observe(hands: &Hands) -> Left {
    let booked = hands.book().ledger().pods().map(ToString::to_string).collect();
    let (cgroups, volumes) = (hands.cgroups.clone(), hands.volumes.clone());
    let logs = PathBuf::from(&hands.facts().log_dir);
    let listed = tokio::task::spawn_blocking(move || {
        let cgroups = cgroups.map(|of| of.pods()).transpose().unwrap_or_else(|error| {
            warn!(%error, "cgroups of pods cannot be listed");
            None
        });
        let directories = volumes.pods().unwrap_or_else(|error| {
            warn!(%error, "directories of pods cannot be listed");
            Vec::new()
        });
        let logs = log_directories(&logs);
        (cgroups.unwrap_or_default(), directories.into_iter().collect(), logs)
    });
    let (cgroups, directories, logs) = listed.await.unwrap_or_default();
    Left { cgroups, directories, logs, booked }
}

/// Directories such as `namespace_name_uid`. What is called otherwise is not ours.
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

/// Takes away what is left, once all pods are known and then from time to time, for as long as it is
/// polled.
pub async fn keep(hands: Arc<Hands>) {
    let mut known = hands.known_pods.subscribe();
    if known.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut timer = tokio::time::interval(EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        sweep(&hands).await;
    }
}

/// Takes away what is left, now.
pub async fn sweep(hands: &Hands) {
    let Some(left) = left(hands).await else { return };
    if left.is_nothing() {
        return;
    }
    release(hands, &left.booked).await;
    for (uid, path) in &left.cgroups {
        if is_free(hands, uid) {
            take(hands, "cgroup", path, remove_cgroup(hands, uid, path).await);
        }
    }
    for uid in left.directories.iter().filter(|uid| is_free(hands, uid)) {
        let (volumes, of) = (hands.volumes.clone(), uid.clone());
        take(hands, "directory", uid, blocking(move || volumes.remove(&of)).await);
    }
    for (uid, path) in &left.logs {
        if is_free(hands, uid) {
            let of = path.clone();
            let done = blocking(move || remove_tree(&of)).await;
            take(hands, "logs", &path.display().to_string(), done);
        }
    }
}

/// Whether nobody of that uid came meanwhile.
fn is_free(hands: &Hands, uid: &str) -> bool {
    hands.known_pods.borrow().as_ref().is_some_and(|known| !known.contains(uid))
}

/// Gives back what the book has for pods that are no more.
async fn release(hands: &Hands, pods: &BTreeSet<String>) {
    let mut any = false;
    for uid in pods.iter().filter(|uid| is_free(hands, uid)) {
        let released = hands.book().release(&PodUid::new(uid));
        let done = released.map(|released| any |= released).map_err(|error| error.to_string());
        take(hands, "book", uid, done);
    }
    if any {
        hands.note_booked();
        // Nothing depends on a larger pool.
        let _ = hands.follow_pool().await;
    }
}

async fn remove_cgroup(hands: &Hands, uid: &str, path: &str) -> Result<(), String> {
    let Some(cgroups) = hands.cgroups.clone() else { return Ok(()) };
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

fn take(hands: &Hands, what: &'static str, of: &str, done: Result<(), String>) {
    match done {
        Ok(()) => {
            hands.counters.left_behind.increment(&[what]);
            info!(what, of, "removed what a pod that is gone had left");
        }
        Err(error) => warn!(what, of, error, "what a pod that is gone left cannot be removed"),
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
    fn only_what_belongs_to_nobody_is_left() {
        let set = |uids: &[&str]| uids.iter().map(|&uid| uid.to_owned()).collect();
        let all = Left {
            cgroups: [("a", "/kubepods/poda"), ("b", "/kubepods/burstable/podb")]
                .map(|(uid, path)| (uid.to_owned(), path.to_owned()))
                .into(),
            directories: set(&["a", "b"]),
            logs: [("a".to_owned(), "x_y_a".into()), ("c".to_owned(), "x_y_c".into())].into(),
            booked: set(&["b"]),
        };
        let left = all.clone().beyond(|uid| uid == "a");
        let cgroups: Vec<&str> = left.cgroups.values().map(String::as_str).collect();
        assert_eq!(cgroups, ["/kubepods/burstable/podb"]);
        assert_eq!(left.directories, set(&["b"]));
        assert_eq!(left.logs.keys().collect::<Vec<_>>(), ["c"]);
        assert_eq!(left.booked, set(&["b"]));
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
