//! Records events of the agent: [`Recorder`]. The crate `client` correlates and writes them.

use std::sync::Arc;

use client::events::{Event, EventApi, EventQueue, EventSource, InvolvedObject, RecordError};
use client::kind::PODS;
use tracing::{debug, warn};

use crate::observability::events::{AgentEvent, field_path};
use client::clock::Clock;
use lifecycle::spec::{Pod, Role};

/// Maximum number of events that wait to be written.
const WAITING: usize = 4_096;
/// Events are written one after the other: a node has few of them.
pub const EVENT_WRITES: usize = 1;
/// Tools and people look for the events of a node's agent under this name.
const COMPONENT: &str = "kubelet";

/// Accepts events. A caller does not wait; events that do not fit into the queue are logged and dropped. Cheap
/// to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    events: client::events::Recorder,
    clock: Arc<dyn Clock>,
}

#[allow(clippy::needless_pass_by_value, reason = "callers create an event to record it")]
impl Recorder {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, node: &str) -> (Recorder, EventQueue) {
        let source = EventSource { component: COMPONENT, host: Some(node.into()) };
        let (events, queue) = client::events::Recorder::new(source, WAITING);
        (Recorder { events, clock }, queue)
    }

    /// Records an event of a pod.
    pub fn pod(&self, pod: &Pod, event: AgentEvent) {
        self.record(involved_object(pod), &event);
    }

    /// Records an event of one of its containers.
    pub fn container(&self, pod: &Pod, role: Role, name: &str, event: AgentEvent) {
        let field_path = field_path(role, name);
        self.record(InvolvedObject { field_path, ..involved_object(pod) }, &event);
    }

    /// Records an event of the node.
    pub fn node(&self, name: &str, event: AgentEvent) {
        let object = InvolvedObject {
            kind: "Node".to_owned(),
            api_version: String::new(),
            namespace: String::new(),
            name: name.to_owned(),
            // The kubelet refers to its node by name.
            uid: name.to_owned(),
            field_path: String::new(),
        };
        self.record(object, &event);
    }

    fn record(&self, object: InvolvedObject, event: &AgentEvent) {
        let (kind, name, uid) = (object.kind.clone(), object.full_name(), object.uid.clone());
        let (field, reason) = (&object.field_path, event.reason());
        debug!(kind, object = name, uid, field, reason, "{event}");
        let recorded = Event {
            object,
            severity: event.severity(),
            reason: reason.to_owned().into(),
            message: event.to_string(),
            api: EventApi::Core,
        };
        if self.events.record(recorded, self.clock.now()) == Err(RecordError::Full) {
            warn!(
                kind,
                object = name,
                uid,
                reason,
                "dropped an event: too many wait to be written"
            );
        }
    }
}

fn involved_object(pod: &Pod) -> InvolvedObject {
    let metadata = &pod.metadata;
    InvolvedObject::new(PODS, &metadata.namespace, &metadata.name, &metadata.uid)
}
