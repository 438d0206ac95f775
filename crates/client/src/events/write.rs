//! Writes queued events to the API: [`write_events`].

use std::collections::HashSet;

use https::ErrorLog;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::object::{create_body, patch_body};
use super::{Correlator, EventQueue, EventRecord, Occurrence, Outcome};
use crate::client::{Client, Error, PatchKind};
use crate::kind::EVENTS;

/// The most events that are read from the queue at once.
const BATCH: usize = 64;

/// Writes events until all recorders are gone, at most `concurrent` at a time. A failure is not retried: the
/// namespace of the event may be terminating.
pub async fn write_events(queue: EventQueue, client: Client, concurrent: usize) {
    let mut queue = queue.0.lock().await;
    let (mut correlator, mut errors) = (Correlator::default(), ErrorLog::default());
    let (mut writes, mut names) = (JoinSet::new(), HashSet::new());
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        for occurrence in batch.drain(..) {
            let Occurrence { source, event, at } = &occurrence;
            let (record, is_new) = match correlator.observe(source.component, event, *at) {
                Outcome::Skip => continue,
                Outcome::Create(record) => (record, true),
                Outcome::Update(record) => (record, false),
            };
            // A patch that overtakes the creation of its event would fail.
            if writes.len() >= concurrent || names.contains(&record.name) {
                finish(&mut writes, &mut errors).await;
                names.clear();
            }
            names.insert(record.name.clone());
            let client = client.named(source.component);
            writes.spawn(async move {
                if is_new {
                    create(&client, &occurrence, &record).await
                } else {
                    update(&client, &occurrence, &record).await
                }
            });
        }
        finish(&mut writes, &mut errors).await;
        names.clear();
    }
}

/// Waits for all writes, and logs a result that differs from the one before it.
async fn finish(writes: &mut JoinSet<Result<(), Error>>, errors: &mut ErrorLog) {
    while let Some(ended) = writes.join_next().await {
        let (cause, error) = match ended {
            Ok(Ok(())) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "wrote events to the API again");
                }
                continue;
            }
            Ok(Err(error)) => {
                let text = https::error_chain(&error);
                let cause = match error {
                    // The message of a refusal names the event, its status and reason do not.
                    Error::Refused(refused) => format!("{} {}", refused.status, refused.reason),
                    _ => text.clone(),
                };
                (cause, text)
            }
            Err(panicked) => (panicked.to_string(), panicked.to_string()),
        };
        if errors.failed(&cause) {
            warn!(error, "failed to write an event; it is dropped");
        }
    }
}

async fn create(client: &Client, new: &Occurrence, record: &EventRecord) -> Result<(), Error> {
    let (kind, body) = create_body(&new.source, &new.event, record);
    client.create(kind, new.event.object.event_namespace(), &body).await.map(|_| ())
}

async fn update(client: &Client, again: &Occurrence, record: &EventRecord) -> Result<(), Error> {
    let (namespace, patch) =
        (again.event.object.event_namespace(), patch_body(&again.event, record));
    let kind = PatchKind::StrategicMerge;
    match client.patch(EVENTS, namespace, &record.name, kind, &patch).await {
        // Events expire before the objects that they are about.
        Err(error) if error.is_not_found() => create(client, again, record).await,
        patched => patched.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::Method;
    use objects::timestamp::Timestamp;
    use serde_json::Value;

    use super::*;
    use crate::client::{Body, BoxFuture, Request, Response, Transport, TransportError};
    use crate::events::{Event, EventSource, InvolvedObject, Recorder};
    use crate::kind::PODS;

    /// Serves event objects. Requests overlap: a creation takes longer than a patch.
    #[derive(Debug, Default)]
    struct Events {
        objects: Mutex<Vec<Value>>,
        requests: Mutex<Vec<String>>,
    }

    impl Transport for Events {
        fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
            Box::pin(async move {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let count = body["count"].as_u64().unwrap();
                self.requests.lock().unwrap().push(format!("{} {count}", request.method));
                let (status, text) = if request.method == Method::POST {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    self.objects.lock().unwrap().push(body.clone());
                    (201, body.to_string())
                } else {
                    let name = request.path.rsplit('/').next().unwrap();
                    let mut objects = self.objects.lock().unwrap();
                    match objects.iter_mut().find(|event| event["metadata"]["name"] == name) {
                        Some(event) => {
                            event["count"] = count.into();
                            (200, event.to_string())
                        }
                        None => (404, r#"{"reason":"NotFound","message":"none"}"#.to_owned()),
                    }
                };
                Ok(Response { status, retry_after: None, body: Body::Whole(text.into()) })
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repetition_is_written_after_its_event_was_created() {
        let events = Arc::new(Events::default());
        let client = Client::new(events.clone(), "test");
        let source = EventSource { component: "kubelet", host: None };
        let (recorder, queue) = Recorder::new(source, 10);
        let written = tokio::spawn(write_events(queue, client, 8));
        let pod = InvolvedObject::new(PODS, "a", "p", "u");
        let record = |seconds, reason| {
            let event = Event::normal(&pod, reason, "m".to_owned());
            recorder.record(event, Timestamp::new(seconds, 0)).unwrap();
        };
        record(1, "Created");
        record(2, "Started");
        record(3, "Created");
        tokio::time::sleep(std::time::Duration::from_secs(10)).await;
        let requests = std::mem::take(&mut *events.requests.lock().unwrap());
        assert_eq!(requests, ["POST 1", "POST 1", "PATCH 2"]);
        // The objects expire.
        events.objects.lock().unwrap().clear();
        record(4, "Created");
        drop(recorder);
        written.await.unwrap();
        assert_eq!(*events.requests.lock().unwrap(), ["PATCH 3", "POST 3"]);
        assert_eq!(events.objects.lock().unwrap()[0]["count"], 3);
    }

    #[tokio::test]
    async fn events_beyond_the_capacity_are_refused() {
        let source = EventSource { component: "kubelet", host: None };
        let (recorder, queue) = Recorder::new(source, 1);
        let event = Event::normal(&InvolvedObject::new(PODS, "a", "p", "u"), "R", String::new());
        let record = || recorder.named("other").record(event.clone(), Timestamp::new(0, 0));
        assert_eq!((record(), record()), (Ok(()), Err(crate::events::RecordError::Full)));
        drop(queue);
        assert_eq!(record(), Err(crate::events::RecordError::Closed));
    }
}
