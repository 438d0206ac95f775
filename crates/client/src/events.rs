//! Events about objects: [`Recorder`] queues them, [`write_events`] writes them to the API.
//!
//! ```text
//!   Recorder ──▶ EventQueue ──▶ Correlator ──▶ API
//!   (any task)                  (counts, combines, limits)
//! ```
//!
//! Delivery is best effort: a caller does not wait, and when events arrive faster than they can be written the
//! newest are refused. [`Correlator`] limits repeated events as upstream's clients do. Events have no texts
//! here: reasons and messages are those of the callers.

use std::borrow::Cow;
use std::sync::Arc;

use objects::timestamp::Timestamp;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use crate::kind::Kind;

mod correlate;
mod object;
mod write;

pub use correlate::{Correlator, EventRecord, Outcome};
pub use write::write_events;

/// The type of an event in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvolvedObject {
    pub kind: String,
    /// Empty if the reference has none, as that of a node in a kubelet's events.
    pub api_version: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The container, as `spec.containers{c}`.
    pub field_path: String,
}

impl InvolvedObject {
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str, uid: &str) -> InvolvedObject {
        InvolvedObject {
            kind: kind.kind.to_owned(),
            api_version: kind.api_version(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            field_path: String::new(),
        }
    }

    /// Refers to an object of the API.
    #[must_use]
    pub fn of(kind: Kind, object: &Value) -> InvolvedObject {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        InvolvedObject::new(kind, text("namespace"), text("name"), text("uid"))
    }

    /// Returns `namespace/name`, or the name of an object without a namespace.
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }

    /// Returns the namespace of its events: `default` for objects without one.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

/// The API group that an event is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventApi {
    /// `v1`. Similar events are combined, and their rate is limited.
    Core,
    /// `events.k8s.io/v1`, with the action of the reporting controller. Only equal events are counted.
    Events { action: &'static str },
}

/// An event to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub object: InvolvedObject,
    pub severity: Severity,
    pub reason: Cow<'static, str>,
    pub message: String,
    pub api: EventApi,
}

impl Event {
    #[must_use]
    pub fn normal(object: &InvolvedObject, reason: &'static str, message: String) -> Event {
        Event {
            object: object.clone(),
            severity: Severity::Normal,
            reason: reason.into(),
            message,
            api: EventApi::Core,
        }
    }

    #[must_use]
    pub fn warning(object: &InvolvedObject, reason: &'static str, message: String) -> Event {
        Event { severity: Severity::Warning, ..Event::normal(object, reason, message) }
    }

    /// Returns the event for `events.k8s.io` with the action of its controller.
    #[must_use]
    pub fn with_action(self, action: &'static str) -> Event {
        Event { api: EventApi::Events { action }, ..self }
    }
}

/// The reporter of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSource {
    pub component: &'static str,
    /// The node, for components that run on each node.
    pub host: Option<Arc<str>>,
}

/// An event with its source and time.
#[derive(Debug)]
struct Occurrence {
    source: EventSource,
    event: Event,
    at: Timestamp,
}

/// Queues events in the name of one component. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    source: EventSource,
    sender: mpsc::Sender<Occurrence>,
}

/// Events that wait to be written. One [`write_events`] at a time reads them.
#[derive(Debug, Clone)]
pub struct EventQueue(Arc<Mutex<mpsc::Receiver<Occurrence>>>);

/// The event was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("too many events wait to be written")]
    Full,
    /// The process ends.
    #[error("events are no longer written")]
    Closed,
}

impl Recorder {
    /// Creates a queue for at most `capacity` events.
    #[must_use]
    pub fn new(source: EventSource, capacity: usize) -> (Recorder, EventQueue) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Recorder { source, sender }, EventQueue(Arc::new(Mutex::new(receiver))))
    }

    /// Returns a recorder of another component for the same queue.
    #[must_use]
    pub fn named(&self, component: &'static str) -> Recorder {
        let source = EventSource { component, ..self.source.clone() };
        Recorder { source, sender: self.sender.clone() }
    }

    /// Queues an event that occurred at the given time.
    pub fn record(&self, event: Event, at: Timestamp) -> Result<(), RecordError> {
        let occurrence = Occurrence { source: self.source.clone(), event, at };
        self.sender.try_send(occurrence).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => RecordError::Full,
            mpsc::error::TrySendError::Closed(_) => RecordError::Closed,
        })
    }
}
