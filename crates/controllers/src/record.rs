//! Events about objects: [`Recorder`] hands them over, [`deliver`] writes them.
//!
//! Events are told, not promised: when they come faster than they can be written, they are counted and
//! dropped. The same thing said again within ten minutes raises the count of the event that is there.

use std::collections::HashMap;
use std::sync::Arc;

use client::kind::{EVENTS, Kind, NEW_EVENTS};
use client::{Client, PatchKind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::clock::{Clock, Millis};
use crate::counters::{Counters, count};

/// How many events may wait to be written.
const WAITING: usize = 20_000;
/// How many are written at a time.
const AT_A_TIME: usize = 32;
/// How long the same thing said again is the same event. Upstream's figure.
const SAME_FOR: Millis = 600_000;
/// How many different events are remembered. Upstream's figure.
const REMEMBERED: usize = 4_096;

/// The object an event is about.
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

    /// Where its events are: objects without a namespace have theirs in `default`.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub(crate) subject: Subject,
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// What was being done; only in events of the newer form.
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

/// Takes what happened in the name of one loop.
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
        let (sender, receiver) = mpsc::channel(WAITING);
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

/// An event that was written, as far as saying it again needs.
#[derive(Debug, Clone)]
struct Said {
    name: String,
    times: u64,
    at: Millis,
}

/// Which events are there already.
#[derive(Debug, Default)]
struct Memory {
    said: HashMap<(String, &'static str, String), Said>,
}

/// What to write for an occurrence.
#[derive(Debug, PartialEq)]
enum Writing {
    Create(Kind, String, Box<Value>),
    Raise { namespace: String, name: String, patch: Box<Value> },
}

impl Memory {
    fn plan(
        &mut self,
        component: &'static str,
        what: &Occurrence,
        now: Timestamp,
        at: Millis,
    ) -> Writing {
        let namespace = what.subject.event_namespace().to_owned();
        let same = (what.subject.uid.clone(), what.reason, what.message.clone());
        let core = what.action.is_empty();
        if let Some(said) = self.said.get_mut(&same).filter(|said| at - said.at < SAME_FOR) {
            said.times += 1;
            said.at = at;
            let patch = if core {
                json!({"count": said.times, "lastTimestamp": now.to_seconds_text()})
            } else {
                json!({"series": {
                    "count": said.times, "lastObservedTime": now.to_micros_text(),
                }})
            };
            return Writing::Raise { namespace, name: said.name.clone(), patch: Box::new(patch) };
        }
        if self.said.len() >= REMEMBERED {
            self.said.retain(|_, said| at - said.at < SAME_FOR);
            if self.said.len() >= REMEMBERED {
                self.said.clear();
            }
        }
        let unique =
            now.seconds().unsigned_abs().wrapping_mul(1_000_000_000) + u64::from(now.nanos());
        let name = format!("{}.{unique:x}", what.subject.name);
        self.said.insert(same, Said { name: name.clone(), times: 1, at });
        let event_type = if what.warning { "Warning" } else { "Normal" };
        let metadata = json!({"name": name, "namespace": namespace});
        if core {
            let event = json!({
                "kind": "Event", "apiVersion": "v1", "metadata": metadata,
                "involvedObject": what.subject.reference(), "reason": what.reason,
                "message": what.message, "type": event_type, "count": 1,
                "firstTimestamp": now.to_seconds_text(), "lastTimestamp": now.to_seconds_text(),
                "source": {"component": component}, "reportingComponent": component,
            });
            return Writing::Create(EVENTS, namespace, Box::new(event));
        }
        let event = json!({
            "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": metadata,
            "eventTime": now.to_micros_text(), "regarding": what.subject.reference(),
            "reason": what.reason, "note": what.message, "type": event_type,
            "action": what.action, "reportingController": component,
            "reportingInstance": format!("{component}-berth"),
        });
        Writing::Create(NEW_EVENTS, namespace, Box::new(event))
    }
}

/// Writes events as they come, until nobody is left who could tell any.
pub(crate) async fn deliver(
    client: Client,
    clock: Clock,
    occurrences: Arc<Mutex<mpsc::Receiver<(&'static str, Occurrence)>>>,
) {
    let mut occurrences = occurrences.lock().await;
    let mut memory = Memory::default();
    let mut under_way = JoinSet::new();
    let mut batch = Vec::new();
    while occurrences.recv_many(&mut batch, 64).await > 0 {
        for (component, occurrence) in batch.drain(..) {
            let writing = memory.plan(component, &occurrence, clock.now(), clock.millis());
            while under_way.len() >= AT_A_TIME {
                under_way.join_next().await;
            }
            let client = client.named(component);
            under_way.spawn(async move {
                // An event that cannot be written is not worth another try.
                let _ = match writing {
                    Writing::Create(kind, namespace, event) => {
                        client.create(kind, &namespace, &event).await
                    }
                    Writing::Raise { namespace, name, patch } => {
                        client.patch(EVENTS, &namespace, &name, PatchKind::Merge, &patch).await
                    }
                };
            });
        }
    }
    while under_way.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::kind::PODS;

    #[test]
    fn the_same_thing_said_again_raises_the_count() {
        let pod = json!({"metadata": {"namespace": "a", "name": "p", "uid": "u"}});
        let subject = Subject::of(PODS, &pod);
        let what = || Occurrence::normal(&subject, "SuccessfulCreate", "Created pod: x".to_owned());
        let mut memory = Memory::default();
        let now = Timestamp::new(1_700_000_000, 5);
        let Writing::Create(kind, namespace, event) = memory.plan("c", &what(), now, 0) else {
            panic!("an event that is new is created")
        };
        assert_eq!((kind, namespace.as_str()), (EVENTS, "a"));
        assert_eq!(event["involvedObject"]["uid"], "u");
        let name = event["metadata"]["name"].as_str().unwrap().to_owned();
        let again = memory.plan("c", &what(), now.plus_seconds(1), 1_000);
        let patch = json!({"count": 2, "lastTimestamp": "2023-11-14T22:13:21Z"});
        assert_eq!(again, Writing::Raise { namespace, name, patch: Box::new(patch) });
        assert!(matches!(memory.plan("c", &what(), now, 700_000), Writing::Create(..)));
    }
}
