//! Records all pods and Events of an API watch: [`Trace`].
//!
//! Each distinct state of a pod is kept in the form of the recording's snapshots. Nothing is
//! compared here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use client::kind::{EVENTS, Kind, PODS};
use client::{Client, Scope, WatchEvent};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Duration of one watch in seconds; it is repeated when it ends.
const WATCH: u64 = 3600;

/// Our additional Events, which follow upstream's and explain a placement.
const OURS: [&str; 2] = ["Placed", "NotPlaced"];

/// The record so far. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    state: Arc<Mutex<TraceState>>,
    /// Counts changes, to wait for the next one.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct TraceState {
    began: Instant,
    /// By namespace and name, each state with its time.
    pods: BTreeMap<(String, String), Vec<Snapshot>>,
    /// By namespace and name of the Event.
    events: BTreeMap<(String, String), Value>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    t: f64,
    pod: Value,
    removed: bool,
}

impl Trace {
    /// Starts the watches; they end with the API server.
    pub(super) fn start(api: &Client) -> (Trace, Vec<JoinHandle<()>>) {
        let state =
            TraceState { began: Instant::now(), pods: BTreeMap::new(), events: BTreeMap::new() };
        let trace = Trace { state: Arc::new(Mutex::new(state)), changes: watch::Sender::new(0) };
        let tasks = [PODS, EVENTS]
            .map(|kind| tokio::spawn(watch_kind(api.clone(), kind, trace.clone())))
            .into();
        (trace, tasks)
    }

    fn with<T>(&self, read: impl FnOnce(&mut TraceState) -> T) -> T {
        read(&mut self.state.lock())
    }

    /// Returns the seconds since the start.
    pub(super) fn now(&self) -> f64 {
        self.with(|state| state.began.elapsed().as_secs_f64())
    }

    /// Returns a channel that changes with every new record.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the snapshots of a pod since `zero` in the form of the recording.
    pub(super) fn snapshots(&self, namespace: &str, name: &str, zero: f64) -> Vec<Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.with(|state| {
            let snapshots = state.pods.get(&key).map(Vec::as_slice).unwrap_or_default();
            snapshots.iter().map(|snapshot| snapshot.as_recorded(zero)).collect()
        })
    }

    /// Returns the last state of a pod, whole, and whether it is gone.
    pub(super) fn last(&self, namespace: &str, name: &str) -> Option<(Value, bool)> {
        let key = (namespace.to_owned(), name.to_owned());
        self.with(|state| {
            let last = state.pods.get(&key)?.last()?;
            Some((last.pod.clone(), last.removed))
        })
    }

    /// Returns every state of a pod, whole.
    pub(super) fn whole(&self, namespace: &str, name: &str) -> Vec<Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.with(|state| {
            let snapshots = state.pods.get(&key).map(Vec::as_slice).unwrap_or_default();
            snapshots.iter().map(|snapshot| snapshot.pod.clone()).collect()
        })
    }

    /// Returns the Events of a pod without our additional ones.
    pub(super) fn events(&self, namespace: &str, name: &str) -> Vec<Value> {
        self.with(|state| {
            let events = state.events.values().filter(|event| {
                let about = &event["involvedObject"];
                let is_ours = event["reason"].as_str().is_some_and(|it| OURS.contains(&it));
                let is_of = |field: &str, text: &str| about[field] == text;
                let of_pod = is_of("kind", "Pod") && is_of("namespace", namespace);
                of_pod && is_of("name", name) && !is_ours
            });
            events.cloned().collect()
        })
    }

    /// Returns the Events of a node.
    pub(super) fn node_events(&self, name: &str) -> Vec<Value> {
        self.with(|state| {
            let events = state.events.values().filter(|event| {
                let about = &event["involvedObject"];
                about["kind"] == "Node" && about["name"] == name
            });
            events.cloned().collect()
        })
    }

    /// Returns every recorded pod by namespace and name, and whether it is gone.
    pub(super) fn all_pods(&self) -> Vec<((String, String), bool)> {
        self.with(|state| {
            let pods = state.pods.iter();
            let gone = |snapshots: &[Snapshot]| snapshots.last().is_some_and(|last| last.removed);
            pods.map(|(key, snapshots)| (key.clone(), gone(snapshots))).collect()
        })
    }

    /// Reports whether any running pod fulfils a condition.
    pub(super) fn any_running(&self, is: impl Fn(&Value) -> bool) -> bool {
        self.with(|state| {
            let last = state.pods.values().filter_map(|snapshots| snapshots.last());
            let mut running =
                last.filter(|last| !last.removed && last.pod["status"]["phase"] == "Running");
            running.any(|last| is(&last.pod))
        })
    }

    /// Returns the uids of all recorded pods, also of static ones, by which runtimes know them.
    pub(super) fn uids(&self) -> BTreeSet<String> {
        self.with(|state| {
            let all = state.pods.values().flatten().map(|snapshot| &snapshot.pod["metadata"]);
            let ids = all.flat_map(|metadata| {
                [&metadata["uid"], &metadata["annotations"]["kubernetes.io/config.hash"]]
            });
            ids.filter_map(Value::as_str).map(str::to_owned).collect()
        })
    }

    fn take(&self, kind: Kind, object: Value, removed: bool) {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let key = (text("namespace"), text("name"));
        self.with(|state| {
            if kind == EVENTS {
                if !removed {
                    state.events.insert(key, object);
                }
            } else {
                let t = state.began.elapsed().as_secs_f64();
                state.pods.entry(key).or_default().push(Snapshot { t, pod: object, removed });
            }
        });
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Snapshot {
    fn as_recorded(&self, zero: f64) -> Value {
        let metadata = &self.pod["metadata"];
        let mut snapshot = json!({"t": self.t - zero, "status": self.pod["status"]});
        if metadata["deletionTimestamp"].is_string() {
            let seconds = metadata["deletionGracePeriodSeconds"].clone();
            snapshot["deleting"] = json!({"gracePeriodSeconds": seconds});
        }
        if metadata["generation"].as_i64().is_some_and(|generation| generation != 1) {
            snapshot["generation"] = metadata["generation"].clone();
        }
        if self.removed {
            snapshot["removed"] = true.into();
        }
        snapshot
    }
}

async fn watch_kind(api: Client, kind: Kind, trace: Trace) {
    let mut revision = "0".to_owned();
    loop {
        let Ok(mut watch) = api.watch(kind, &Scope::default(), &revision, WATCH).await else {
            // The server is shutting down.
            return;
        };
        loop {
            let mut lines = watch.next().await;
            if lines.is_empty() {
                break;
            }
            while let Some(read) = lines.read(|event| {
                Ok(match event {
                    WatchEvent::Applied(raw) => {
                        (serde_json::from_str::<Value>(raw.get())?, Some(false))
                    }
                    WatchEvent::Removed(raw) => (serde_json::from_str(raw.get())?, Some(true)),
                    WatchEvent::Bookmark(raw) => (serde_json::from_str(raw.get())?, None),
                })
            }) {
                let Ok((object, change)) = read else { return };
                if let Some(at) = object["metadata"]["resourceVersion"].as_str() {
                    at.clone_into(&mut revision);
                }
                if let Some(removed) = change {
                    trace.take(kind, object, removed);
                }
            }
        }
    }
}
