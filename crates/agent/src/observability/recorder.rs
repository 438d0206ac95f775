//! Writes events: [`Recorder`] accepts them, [`deliver`] writes them to the API.
//!
//! Events are best effort: callers do not wait, and when events arrive faster than they can be written the newest are
//! dropped. The [`Correlator`] limits repeated events.

use std::sync::Arc;

use client::kind::EVENTS;
use client::{Client, Error, PatchKind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::observability::events::{
    AgentEvent, Correlator, EventRecord, InvolvedObject, Outcome, field_path,
};
use client::ErrorLog;
use lifecycle::spec::{Pod, Role};

/// Maximum number of events that wait to be written.
const WAITING: usize = 4_096;
/// Tools and people look for the events of a node's agent under this name.
const COMPONENT: &str = "kubelet";

/// Accepts events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    sender: mpsc::Sender<(InvolvedObject, AgentEvent, Timestamp)>,
    clock: Arc<dyn Clock>,
}

impl Recorder {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> (Recorder, Queue) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Recorder { sender, clock }, Queue(Arc::new(Mutex::new(receiver))))
    }

    /// Records an event of a pod.
    pub fn pod(&self, pod: &Pod, event: AgentEvent) {
        self.record(involved_object(pod, String::new()), event);
    }

    /// Records an event of one of its containers.
    pub fn container(&self, pod: &Pod, role: Role, name: &str, event: AgentEvent) {
        self.record(involved_object(pod, field_path(role, name)), event);
    }

    /// Records an event of the node.
    pub fn node(&self, name: &str, event: AgentEvent) {
        let (kind, uid) = ("Node".to_owned(), name.to_owned());
        let name = name.to_owned();
        let object =
            InvolvedObject { kind, name, uid, namespace: String::new(), field_path: String::new() };
        self.record(object, event);
    }

    fn record(&self, object: InvolvedObject, event: AgentEvent) {
        let (kind, name, uid) = (object.kind.clone(), object.full_name(), object.uid.clone());
        let (field, reason) = (&object.field_path, event.reason());
        debug!(kind, object = name, uid, field, reason, "{event}");
        let time = self.clock.now();
        if let Err(TrySendError::Full((_, event, _))) = self.sender.try_send((object, event, time))
        {
            let reason = event.reason();
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

fn involved_object(pod: &Pod, field_path: String) -> InvolvedObject {
    let metadata = &pod.metadata;
    InvolvedObject {
        kind: "Pod".to_owned(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        field_path,
    }
}

/// Events that wait to be written. One [`deliver`] at a time reads them.
#[derive(Debug, Clone)]
pub struct Queue(Arc<Mutex<mpsc::Receiver<(InvolvedObject, AgentEvent, Timestamp)>>>);

/// Writes events until all recorders are gone. A failure is not retried: the namespace of the event may be
/// terminating.
pub async fn deliver(queue: Queue, client: Client, node: String) {
    let mut queue = queue.0.lock().await;
    let (mut correlator, mut errors) = (Correlator::default(), ErrorLog::default());
    while let Some((object, event, at)) = queue.recv().await {
        let done = match correlator.observe(&object, &event, at) {
            Outcome::Skip => continue,
            Outcome::Create(written) => create(&client, &object, &written, &node).await,
            Outcome::Update(written) => update(&client, &object, &written, &node).await,
        };
        match done {
            Ok(()) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "wrote events to the API again");
                }
            }
            Err(error) => {
                if errors.failed(&cause(&error)) {
                    let reason = event.reason();
                    warn!(%error, reason, "failed to write an event; it is dropped");
                }
            }
        }
    }
}

/// Returns the part of an error that is the same for all events: a refusal's message names the event.
fn cause(error: &Error) -> String {
    match error {
        Error::Refused(refused) => format!("{} {}", refused.status, refused.reason),
        other => other.to_string(),
    }
}

fn namespace(object: &InvolvedObject) -> &str {
    if object.namespace.is_empty() { "default" } else { &object.namespace }
}

async fn create(
    client: &Client,
    object: &InvolvedObject,
    written: &EventRecord,
    node: &str,
) -> Result<(), Error> {
    let event = event_object(object, written, node);
    client.create(EVENTS, namespace(object), &event).await.map(|_| ())
}

async fn update(
    client: &Client,
    object: &InvolvedObject,
    written: &EventRecord,
    node: &str,
) -> Result<(), Error> {
    let patch = json!({
        "count": written.count,
        "lastTimestamp": written.last.to_seconds_text(),
        "message": written.message,
    });
    let kind = PatchKind::StrategicMerge;
    let done = client.patch(EVENTS, namespace(object), &written.name, kind, &patch).await;
    match done {
        // Events expire before the objects that they are about.
        Err(error) if error.is_not_found() => create(client, object, written, node).await,
        done => done.map(|_| ()),
    }
}

fn event_object(object: &InvolvedObject, written: &EventRecord, node: &str) -> Value {
    let mut involved = json!({"kind": object.kind, "name": object.name, "uid": object.uid});
    if object.kind == "Pod" {
        involved["apiVersion"] = "v1".into();
        involved["namespace"] = object.namespace.as_str().into();
    }
    if !object.field_path.is_empty() {
        involved["fieldPath"] = object.field_path.as_str().into();
    }
    json!({
        "metadata": {"name": written.name, "namespace": namespace(object)},
        "involvedObject": involved,
        "type": written.severity.name(),
        "reason": written.reason,
        "message": written.message,
        "count": written.count,
        "firstTimestamp": written.first.to_seconds_text(),
        "lastTimestamp": written.last.to_seconds_text(),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    })
}
