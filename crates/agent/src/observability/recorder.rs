//! Writes events: [`Recorder`] accepts them, [`deliver`] writes them to the API.
//!
//! Events are best effort: callers do not wait, and when events arrive faster than they can be written the newest are
//! dropped. The [`Correlator`] limits repeated events.

use std::sync::Arc;

use client::kind::EVENTS;
use client::{Client, PatchKind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::observability::events::{
    AgentEvent, Correlator, EventRecord, InvolvedObject, Outcome, field_path,
};
use crate::spec::{Pod, Role};

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
        (Recorder { sender, clock }, Queue(receiver))
    }

    /// Records an event of a pod.
    pub fn pod(&self, pod: &Pod, told: AgentEvent) {
        self.tell(about(pod, String::new()), told);
    }

    /// Records an event of one of its containers.
    pub fn container(&self, pod: &Pod, role: Role, name: &str, told: AgentEvent) {
        self.tell(about(pod, field_path(role, name)), told);
    }

    /// Records an event of the node.
    pub fn node(&self, name: &str, told: AgentEvent) {
        let (kind, uid) = ("Node".to_owned(), name.to_owned());
        let name = name.to_owned();
        let about =
            InvolvedObject { kind, name, uid, namespace: String::new(), field_path: String::new() };
        self.tell(about, told);
    }

    fn tell(&self, about: InvolvedObject, told: AgentEvent) {
        // Events are dropped when the queue is full.
        let _ = self.sender.try_send((about, told, self.clock.now()));
    }
}

fn about(pod: &Pod, field_path: String) -> InvolvedObject {
    let of = &pod.metadata;
    InvolvedObject {
        kind: "Pod".to_owned(),
        namespace: of.namespace.clone(),
        name: of.name.clone(),
        uid: of.uid.clone(),
        field_path,
    }
}

/// Events that wait to be written.
#[derive(Debug)]
pub struct Queue(mpsc::Receiver<(InvolvedObject, AgentEvent, Timestamp)>);

/// Writes events until all recorders are gone.
pub async fn deliver(mut queue: Queue, client: Client, node: String) {
    let mut correlator = Correlator::default();
    while let Some((about, told, at)) = queue.0.recv().await {
        match correlator.observe(&about, &told, at) {
            Outcome::Skip => {}
            Outcome::Create(written) => create(&client, &about, &written, &node).await,
            Outcome::Update(written) => update(&client, &about, &written, &node).await,
        }
    }
}

fn namespace(about: &InvolvedObject) -> &str {
    if about.namespace.is_empty() { "default" } else { &about.namespace }
}

/// A failure is not retried: the namespace of the event may be terminating.
async fn create(client: &Client, about: &InvolvedObject, written: &EventRecord, node: &str) {
    let _ = client.create(EVENTS, namespace(about), &object(about, written, node)).await;
}

async fn update(client: &Client, about: &InvolvedObject, written: &EventRecord, node: &str) {
    let patch = json!({
        "count": written.count,
        "lastTimestamp": written.last.to_seconds_text(),
        "message": written.message,
    });
    let kind = PatchKind::StrategicMerge;
    let done = client.patch(EVENTS, namespace(about), &written.name, kind, &patch).await;
    // Events expire before the objects that they are about.
    if done.is_err_and(|error| error.is_not_found()) {
        create(client, about, written, node).await;
    }
}

fn object(about: &InvolvedObject, written: &EventRecord, node: &str) -> Value {
    let mut involved = json!({"kind": about.kind, "name": about.name, "uid": about.uid});
    if about.kind == "Pod" {
        involved["apiVersion"] = "v1".into();
        involved["namespace"] = about.namespace.as_str().into();
    }
    if !about.field_path.is_empty() {
        involved["fieldPath"] = about.field_path.as_str().into();
    }
    json!({
        "metadata": {"name": written.name, "namespace": namespace(about)},
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
