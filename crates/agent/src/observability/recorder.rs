//! Writing events: [`Recorder`] takes them, [`deliver`] brings them to the API.
//!
//! Events are told, not promised: whoever tells one does not wait, and when they come faster than they can
//! be written the newest are dropped. What is told too often is kept back by the [`Correlator`].

use std::sync::Arc;

use client::kind::EVENTS;
use client::{Client, PatchKind};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::observability::events::{About, Correlator, Outcome, Told, Written, field_path};
use crate::spec::{Pod, Role};

/// How many events may wait to be written.
const WAITING: usize = 4_096;
/// Tools and people look for the events of a node's agent under this name.
const COMPONENT: &str = "kubelet";

/// Takes what is to be told. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder {
    sender: mpsc::Sender<(About, Told, Timestamp)>,
    clock: Arc<dyn Clock>,
}

impl Recorder {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> (Recorder, Queue) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Recorder { sender, clock }, Queue(receiver))
    }

    /// Tells of a pod as a whole.
    pub fn pod(&self, pod: &Pod, told: Told) {
        self.tell(about(pod, String::new()), told);
    }

    /// Tells of one of its containers.
    pub fn container(&self, pod: &Pod, role: Role, name: &str, told: Told) {
        self.tell(about(pod, field_path(role, name)), told);
    }

    /// Tells of the node.
    pub fn node(&self, name: &str, told: Told) {
        let (kind, uid) = ("Node".to_owned(), name.to_owned());
        let name = name.to_owned();
        let about = About { kind, name, uid, namespace: String::new(), field_path: String::new() };
        self.tell(about, told);
    }

    fn tell(&self, about: About, told: Told) {
        // Nobody waits for events.
        let _ = self.sender.try_send((about, told, self.clock.now()));
    }
}

fn about(pod: &Pod, field_path: String) -> About {
    let of = &pod.metadata;
    About {
        kind: "Pod".to_owned(),
        namespace: of.namespace.clone(),
        name: of.name.clone(),
        uid: of.uid.clone(),
        field_path,
    }
}

/// What waits to be written.
#[derive(Debug)]
pub struct Queue(mpsc::Receiver<(About, Told, Timestamp)>);

/// Writes events until nobody tells any.
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

fn namespace(about: &About) -> &str {
    if about.namespace.is_empty() { "default" } else { &about.namespace }
}

/// A failure is not tried again: the event may be of a namespace that is going.
async fn create(client: &Client, about: &About, written: &Written, node: &str) {
    let _ = client.create(EVENTS, namespace(about), &object(about, written, node)).await;
}

async fn update(client: &Client, about: &About, written: &Written, node: &str) {
    let patch = json!({
        "count": written.count,
        "lastTimestamp": written.last.to_seconds_text(),
        "message": written.message,
    });
    let kind = PatchKind::StrategicMerge;
    let done = client.patch(EVENTS, namespace(about), &written.name, kind, &patch).await;
    // Events do not last as long as what they tell of.
    if done.is_err_and(|error| error.is_not_found()) {
        create(client, about, written, node).await;
    }
}

fn object(about: &About, written: &Written, node: &str) -> Value {
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
