//! What the agent knows of its pods, for whoever asks it: [`Board`].
//!
//! Written by those who know, read by the agent's own server; nobody waits. The API has the same, later.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use objects::timestamp::Timestamp;
use serde_json::{Map, Value};

use crate::clock::{Clock as _, SystemClock};
use crate::observability::metrics::{Lives, Took};
use crate::runtime::observed::RuntimeId;

#[derive(Debug, Clone, Default)]
struct Shown {
    /// The pod as it came.
    text: Arc<str>,
    /// What was last told of it.
    status: Option<Value>,
    /// The sandbox that is ready, if one is.
    sandbox: Option<RuntimeId>,
    /// When it came, by both clocks.
    since: Option<(Instant, Timestamp)>,
    /// When the first of its images was asked for, and the last was there.
    pulled: Option<(Instant, Instant)>,
}

/// When and where from the agent has a pod. Those of files have it from there.
const SEEN: &str = "kubernetes.io/config.seen";
const SOURCE: &str = "kubernetes.io/config.source";

/// All pods of the node, by uid.
#[derive(Debug, Default)]
pub struct Board {
    pods: RwLock<BTreeMap<String, Shown>>,
    lives: Option<Lives>,
}

impl Board {
    /// One that counts what happens on it.
    #[must_use]
    pub fn counted(lives: Lives) -> Board {
        Board { lives: Some(lives), ..Board::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Shown>> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Shown>> {
        self.pods.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a pod as it is wanted.
    pub fn show(&self, uid: &str, text: Arc<str>) {
        let mut pods = self.write();
        let shown = pods.entry(uid.to_owned()).or_default();
        shown.text = text;
        if shown.since.is_none() {
            shown.since = Some((Instant::now(), SystemClock.now()));
            if let (Some(lives), Some(pod)) = (&self.lives, shown.whole()) {
                lives.came(&pod);
            }
        }
    }

    /// Shows how it is.
    pub fn show_status(&self, uid: &str, status: Value, sandbox: Option<RuntimeId>) {
        if let Some(shown) = self.write().get_mut(uid) {
            if let (Some(lives), Some(pod)) = (&self.lives, shown.whole()) {
                let known = shown.since.map(|(since, _)| since.elapsed()).unwrap_or_default();
                let pulling = shown.pulled.map(|(from, to)| to.saturating_duration_since(from));
                let took = Took { known, pulling: pulling.unwrap_or_default() };
                lives.changed(&pod, &status, took, SystemClock.now());
            }
            (shown.status, shown.sandbox) = (Some(status), sandbox);
        }
    }

    /// An image of a pod was pulled.
    pub fn pulled(&self, uid: &str, from: Instant, to: Instant) {
        if let Some(shown) = self.write().get_mut(uid) {
            let first = shown.pulled.map_or(from, |(first, _)| first.min(from));
            shown.pulled = Some((first, to));
        }
    }

    /// How long a pod has been known.
    #[must_use]
    pub fn known_for(&self, uid: &str) -> Option<Duration> {
        self.read().get(uid)?.since.map(|(since, _)| since.elapsed())
    }

    pub fn forget(&self, uid: &str) {
        self.write().remove(uid);
    }

    /// The pods, each with its newest status.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        self.read().values().filter_map(Shown::whole).collect()
    }

    /// One of them by name.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let is_it = |pod: &Value| {
            pod["metadata"]["namespace"] == namespace && pod["metadata"]["name"] == name
        };
        self.read().values().filter_map(Shown::whole).find(is_it)
    }

    /// The sandbox of a pod that is ready, if it has one.
    #[must_use]
    pub fn sandbox(&self, uid: &str) -> Option<RuntimeId> {
        self.read().get(uid)?.sandbox.clone()
    }
}

impl Shown {
    fn whole(&self) -> Option<Value> {
        let mut pod: Value = serde_json::from_str(&self.text).ok()?;
        if let Some(status) = &self.status {
            pod["status"] = status.clone();
        }
        // In a list every item has the kind that the list says.
        if let Some(pod) = pod.as_object_mut() {
            pod.remove("kind");
            pod.remove("apiVersion");
        }
        let metadata = pod["metadata"].as_object_mut()?;
        let annotations = metadata.entry("annotations").or_insert_with(|| Map::new().into());
        if let Some(annotations) = annotations.as_object_mut()
            && !annotations.contains_key(SOURCE)
        {
            annotations.insert(SOURCE.to_owned(), "api".into());
            if let Some((_, at)) = self.since {
                annotations.insert(SEEN.to_owned(), at.to_string().into());
            }
        }
        Some(pod)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_shown_with_their_newest_status() {
        let board = Board::default();
        let pod = json!({"metadata": {"namespace": "a", "name": "b"}, "status": {"phase": "Old"}});
        board.show_status("u", json!({}), None);
        assert_eq!(board.pods(), [] as [Value; 0]);
        board.show("u", pod.to_string().into());
        assert_eq!(board.pod("a", "b").unwrap()["status"]["phase"], "Old");
        board.show_status("u", json!({"phase": "New"}), Some("sandbox".to_owned()));
        assert_eq!(board.pod("a", "b").unwrap()["status"]["phase"], "New");
        assert_eq!(board.sandbox("u").as_deref(), Some("sandbox"));
        assert_eq!(board.pod("a", "c"), None);
        let annotations = board.pod("a", "b").unwrap()["metadata"]["annotations"].clone();
        assert_eq!(annotations[SOURCE], "api");
        assert!(Timestamp::parse(annotations[SEEN].as_str().unwrap()).is_ok(), "{annotations}");
        board.forget("u");
        assert_eq!(board.sandbox("u"), None);
    }
}
