//! Pods with their newest status, for the agent's server: [`PodCache`].
//!
//! Written by the pod workers and read by the agent's server, without waiting. The API gets the same statuses later.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use objects::timestamp::Timestamp;
use serde_json::{Map, Value, json};

use crate::observability::metrics::{PodLifecycleMetrics, StartTiming};
use client::clock::{Clock as _, SystemClock};
use lifecycle::observed::RuntimeId;
use lifecycle::spec::Metadata;

#[derive(Debug, Clone, Default)]
struct CachedPod {
    namespace: String,
    name: String,
    created: Option<String>,
    /// The pod as received.
    text: Arc<str>,
    /// The last reported status.
    status: Option<Value>,
    /// The sandbox that is ready, if there is one.
    sandbox: Option<RuntimeId>,
    /// Time of arrival, by both clocks.
    since: Option<(Instant, Timestamp)>,
    /// Times at which the first pull began and the last one ended.
    pulled: Option<(Instant, Instant)>,
}

/// Annotation with the time at which the agent received the pod. Static pods have it from their file.
const SEEN: &str = "kubernetes.io/config.seen";
const SOURCE: &str = "kubernetes.io/config.source";

/// All pods of the node, by UID.
#[derive(Debug, Default)]
pub struct PodCache {
    pods: RwLock<BTreeMap<String, CachedPod>>,
    pod_lifecycle: Option<PodLifecycleMetrics>,
}

impl PodCache {
    /// Returns a cache that updates the metrics.
    #[must_use]
    pub fn with_metrics(pod_lifecycle: PodLifecycleMetrics) -> PodCache {
        PodCache { pod_lifecycle: Some(pod_lifecycle), ..PodCache::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, CachedPod>> {
        self.pods.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, CachedPod>> {
        self.pods.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts or replaces a pod.
    pub fn insert(&self, metadata: &Metadata, text: Arc<str>) {
        let mut pods = self.write();
        let shown = pods.entry(metadata.uid.clone()).or_default();
        shown.namespace.clone_from(&metadata.namespace);
        shown.name.clone_from(&metadata.name);
        shown.created.clone_from(&metadata.creation_timestamp);
        shown.text = text;
        if shown.since.is_none() {
            shown.since = Some((Instant::now(), SystemClock.now()));
            if let (Some(pod_lifecycle), Some(pod)) = (&self.pod_lifecycle, shown.with_status()) {
                pod_lifecycle.came(&pod);
            }
        }
    }

    /// Sets the status of a pod.
    pub fn set_status(&self, uid: &str, status: Value, sandbox: Option<RuntimeId>) {
        if let Some(shown) = self.write().get_mut(uid) {
            if let (Some(pod_lifecycle), Some(pod)) = (&self.pod_lifecycle, shown.before()) {
                let known = shown.since.map(|(since, _)| since.elapsed()).unwrap_or_default();
                let pulling = shown.pulled.map(|(from, to)| to.saturating_duration_since(from));
                let took = StartTiming { known, pulling: pulling.unwrap_or_default() };
                pod_lifecycle.changed(&pod, &status, took, SystemClock.now());
            }
            (shown.status, shown.sandbox) = (Some(status), sandbox);
        }
    }

    /// Records the pull of an image.
    pub fn pulled(&self, uid: &str, from: Instant, to: Instant) {
        if let Some(shown) = self.write().get_mut(uid) {
            let first = shown.pulled.map_or(from, |(first, _)| first.min(from));
            shown.pulled = Some((first, to));
        }
    }

    /// Returns how long a pod has been known.
    #[must_use]
    pub fn age(&self, uid: &str) -> Option<Duration> {
        self.read().get(uid)?.since.map(|(since, _)| since.elapsed())
    }

    pub fn forget(&self, uid: &str) {
        self.write().remove(uid);
    }

    /// Returns the pods, each with its newest status.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        self.read().values().filter_map(CachedPod::with_status).collect()
    }

    /// Returns one pod by name. The texts of other pods are not parsed.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let pods = self.read();
        let mut named = pods.values().filter(|pod| pod.namespace == namespace && pod.name == name);
        named.find_map(CachedPod::with_status)
    }

    /// Returns the ready sandbox of a pod, if it has one.
    #[must_use]
    pub fn sandbox(&self, uid: &str) -> Option<RuntimeId> {
        self.read().get(uid)?.sandbox.clone()
    }
}

impl CachedPod {
    /// Returns the fields that a change of the status is compared with. The text is parsed only for the first
    /// change.
    fn before(&self) -> Option<Value> {
        match &self.status {
            Some(status) => {
                Some(json!({"metadata": {"creationTimestamp": self.created}, "status": status}))
            }
            None => self.with_status(),
        }
    }

    fn with_status(&self) -> Option<Value> {
        let mut pod: Value = serde_json::from_str(&self.text).ok()?;
        if let Some(status) = &self.status {
            pod["status"] = status.clone();
        }
        // Items of a list have the kind that the list names.
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
    use super::*;

    #[test]
    fn pods_are_shown_with_their_newest_status() {
        let pod_cache = PodCache::default();
        let pod = json!({"metadata": {"namespace": "a", "name": "b"}, "status": {"phase": "Old"}});
        pod_cache.set_status("u", json!({}), None);
        assert_eq!(pod_cache.pods(), [] as [Value; 0]);
        let metadata = Metadata {
            namespace: "a".to_owned(),
            name: "b".to_owned(),
            uid: "u".to_owned(),
            ..Metadata::default()
        };
        pod_cache.insert(&metadata, pod.to_string().into());
        // The text of another pod is not parsed.
        let other = Metadata { name: "c".to_owned(), uid: "v".to_owned(), ..metadata };
        pod_cache.insert(&other, "not JSON".into());
        assert_eq!(pod_cache.pod("a", "b").unwrap()["status"]["phase"], "Old");
        pod_cache.set_status("u", json!({"phase": "New"}), Some("sandbox".to_owned()));
        assert_eq!(pod_cache.pod("a", "b").unwrap()["status"]["phase"], "New");
        assert_eq!(pod_cache.sandbox("u").as_deref(), Some("sandbox"));
        assert_eq!(pod_cache.pod("a", "c"), None);
        let annotations = pod_cache.pod("a", "b").unwrap()["metadata"]["annotations"].clone();
        assert_eq!(annotations[SOURCE], "api");
        assert!(Timestamp::parse(annotations[SEEN].as_str().unwrap()).is_ok(), "{annotations}");
        pod_cache.forget("u");
        assert_eq!(pod_cache.sandbox("u"), None);
    }
}
