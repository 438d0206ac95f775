//! Events about objects: [`Recorder`] queues them, [`write_events`] writes them.
//!
//! Delivery is best effort: if events arrive faster than they can be written, they are counted and
//! dropped. A repetition within ten minutes raises the count of the existing event.

use std::collections::HashMap;
use std::sync::Arc;

use client::kind::{EVENTS, Kind, NEW_EVENTS};
use client::{Client, Error, PatchKind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use crate::clock::{Clock, Millis};
use crate::counters::{Counters, count};
use client::{ErrorLog, error_chain};

/// The most events that may wait to be written.
const QUEUE_CAPACITY: usize = 20_000;
/// The most concurrent writes.
const MAX_WRITES: usize = 32;
/// The time within which a repetition counts as the same event. Upstream's figure.
const AGGREGATION_WINDOW: Millis = 600_000;
/// The most events that are cached. Upstream's figure.
const MAX_CACHED: usize = 4_096;

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Subject {
    pub(crate) fn of(kind: Kind, object: &Value) -> Subject {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Subject { kind, namespace: text("namespace"), name: text("name"), uid: text("uid") }
    }

    fn reference(&self) -> Value {
        let mut reference = json!({
            "kind": self.kind.kind, "apiVersion": self.kind.api_version(),
            "name": self.name, "uid": self.uid,
        });
        if !self.namespace.is_empty() {
            reference["namespace"] = self.namespace.as_str().into();
        }
        reference
    }

    /// Returns the namespace of its events: `default` for objects without one.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

/// An event to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub(crate) subject: Subject,
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The action; only for events of `events.k8s.io`.
    pub(crate) action: &'static str,
}

impl Occurrence {
    pub(crate) fn normal(subject: &Subject, reason: &'static str, message: String) -> Occurrence {
        Occurrence { subject: subject.clone(), warning: false, reason, message, action: "" }
    }

    pub(crate) fn warning(subject: &Subject, reason: &'static str, message: String) -> Occurrence {
        Occurrence { warning: true, ..Occurrence::normal(subject, reason, message) }
    }
}

/// Queues events in the name of one component.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    component: &'static str,
    sender: mpsc::Sender<(&'static str, Occurrence)>,
    counters: Arc<Counters>,
}

impl Recorder {
    pub(crate) fn new(
        counters: Arc<Counters>,
    ) -> (Recorder, mpsc::Receiver<(&'static str, Occurrence)>) {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        (Recorder { component: "", sender, counters }, receiver)
    }

    pub(crate) fn named(&self, component: &'static str) -> Recorder {
        Recorder { component, ..self.clone() }
    }

    pub(crate) fn record(&self, occurrence: Occurrence) {
        if self.sender.try_send((self.component, occurrence)).is_err() {
            count(&self.counters.events_dropped);
        }
    }
}

/// A written event that a repetition would update.
#[derive(Debug, Clone)]
struct RecentEvent {
    name: String,
    times: u64,
    at: Millis,
}

/// Recently written events.
#[derive(Debug, Default)]
struct EventCache {
    recent: HashMap<(String, &'static str, String), RecentEvent>,
}

/// The write that records an occurrence.
#[derive(Debug, PartialEq)]
enum EventWrite {
    Create(Kind, String, Box<Value>),
    Increment { namespace: String, name: String, patch: Box<Value> },
}

impl EventCache {
    fn plan(
        &mut self,
        component: &'static str,
        occurrence: &Occurrence,
        now: Timestamp,
        at: Millis,
    ) -> EventWrite {
        let namespace = occurrence.subject.event_namespace().to_owned();
        let same = (occurrence.subject.uid.clone(), occurrence.reason, occurrence.message.clone());
        let core = occurrence.action.is_empty();
        if let Some(recent) =
            self.recent.get_mut(&same).filter(|recent| at - recent.at < AGGREGATION_WINDOW)
        {
            recent.times += 1;
            recent.at = at;
            let patch = if core {
                json!({"count": recent.times, "lastTimestamp": now.to_seconds_text()})
            } else {
                json!({"series": {
                    "count": recent.times, "lastObservedTime": now.to_micros_text(),
                }})
            };
            return EventWrite::Increment {
                namespace,
                name: recent.name.clone(),
                patch: Box::new(patch),
            };
        }
        if self.recent.len() >= MAX_CACHED {
            self.recent.retain(|_, recent| at - recent.at < AGGREGATION_WINDOW);
            if self.recent.len() >= MAX_CACHED {
                self.recent.clear();
            }
        }
        let unique =
            now.seconds().unsigned_abs().wrapping_mul(1_000_000_000) + u64::from(now.nanos());
        let name = format!("{}.{unique:x}", occurrence.subject.name);
        self.recent.insert(same, RecentEvent { name: name.clone(), times: 1, at });
        let event_type = if occurrence.warning { "Warning" } else { "Normal" };
        let metadata = json!({"name": name, "namespace": namespace});
        if core {
            let event = json!({
                "kind": "Event", "apiVersion": "v1", "metadata": metadata,
                "involvedObject": occurrence.subject.reference(), "reason": occurrence.reason,
                "message": occurrence.message, "type": event_type, "count": 1,
                "firstTimestamp": now.to_seconds_text(), "lastTimestamp": now.to_seconds_text(),
                "source": {"component": component}, "reportingComponent": component,
            });
            return EventWrite::Create(EVENTS, namespace, Box::new(event));
        }
        let event = json!({
            "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": metadata,
            "eventTime": now.to_micros_text(), "regarding": occurrence.subject.reference(),
            "reason": occurrence.reason, "note": occurrence.message, "type": event_type,
            "action": occurrence.action, "reportingController": component,
            "reportingInstance": format!("{component}-berth"),
        });
        EventWrite::Create(NEW_EVENTS, namespace, Box::new(event))
    }
}

/// Writes events as they arrive, until all recorders are dropped.
pub(crate) async fn write_events(
    client: Client,
    clock: Clock,
    occurrences: Arc<Mutex<mpsc::Receiver<(&'static str, Occurrence)>>>,
) {
    let mut occurrences = occurrences.lock().await;
    let mut cache = EventCache::default();
    let mut writes = JoinSet::new();
    let mut batch = Vec::new();
    let mut errors = ErrorLog::default();
    while occurrences.recv_many(&mut batch, 64).await > 0 {
        for (component, occurrence) in batch.drain(..) {
            let write = cache.plan(component, &occurrence, clock.now(), clock.millis());
            while writes.len() >= MAX_WRITES {
                log_write(writes.join_next().await, &mut errors);
            }
            let client = client.named(component);
            writes.spawn(async move {
                match write {
                    EventWrite::Create(kind, namespace, event) => {
                        client.create(kind, &namespace, &event).await
                    }
                    EventWrite::Increment { namespace, name, patch } => {
                        client.patch(EVENTS, &namespace, &name, PatchKind::Merge, &patch).await
                    }
                }
            });
        }
        while let Some(written) = writes.try_join_next() {
            log_write(Some(written), &mut errors);
        }
    }
    while let Some(written) = writes.join_next().await {
        log_write(Some(written), &mut errors);
    }
}

/// Logs the result of a write if it changed. Failed writes of events are not retried.
fn log_write(written: Option<Result<Result<Value, Error>, JoinError>>, errors: &mut ErrorLog) {
    let error = match written {
        None => return,
        Some(Ok(Ok(_))) => {
            if errors.recovered().is_some() {
                info!("events are written again");
            }
            return;
        }
        Some(Ok(Err(error))) => error_chain(&error),
        Some(Err(ended)) => ended.to_string(),
    };
    if errors.failed(&error) {
        warn!(error, "failed to write an event; dropping it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::kind::PODS;

    #[test]
    fn repeated_event_raises_the_count() {
        let pod = json!({"metadata": {"namespace": "a", "name": "p", "uid": "u"}});
        let subject = Subject::of(PODS, &pod);
        let occurrence =
            || Occurrence::normal(&subject, "SuccessfulCreate", "Created pod: x".to_owned());
        let mut cache = EventCache::default();
        let now = Timestamp::new(1_700_000_000, 5);
        let EventWrite::Create(kind, namespace, event) = cache.plan("c", &occurrence(), now, 0)
        else {
            panic!("an event that is new is created")
        };
        assert_eq!((kind, namespace.as_str()), (EVENTS, "a"));
        assert_eq!(event["involvedObject"]["uid"], "u");
        let name = event["metadata"]["name"].as_str().unwrap().to_owned();
        let again = cache.plan("c", &occurrence(), now.plus_seconds(1), 1_000);
        let patch = json!({"count": 2, "lastTimestamp": "2023-11-14T22:13:21Z"});
        assert_eq!(again, EventWrite::Increment { namespace, name, patch: Box::new(patch) });
        assert!(matches!(cache.plan("c", &occurrence(), now, 700_000), EventWrite::Create(..)));
    }
}
