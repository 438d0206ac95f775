//! Writes queued events to the API: [`write_events`].

use std::collections::HashMap;

use https::ErrorLog;
use tokio::task::{Id, JoinError, JoinSet};
use tracing::{info, warn};

use super::object::{create_body, patch_body};
use super::{Correlator, Event, EventQueue, EventRecord, EventSource, Occurrence, Outcome};
use crate::client::{Client, Error, PatchKind};
use crate::kind::EVENTS;

/// The most events that are read from the queue at once.
const BATCH: usize = 64;

/// Writes events until all recorders are gone, at most `concurrent` at a time. A failure is not retried: the
/// namespace of the event may be terminating.
pub async fn write_events(queue: EventQueue, client: Client, concurrent: usize) {
    let mut queue = queue.0.lock().await;
    let mut correlator = Correlator::default();
    let mut writes = Writes::default();
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        for Occurrence { source, event, at } in batch.drain(..) {
            let outcome = correlator.observe(source.component, &event, at);
            let (record, is_new) = match outcome {
                Outcome::Skip => continue,
                Outcome::Create(record) => (record, true),
                Outcome::Update(record) => (record, false),
            };
            // A patch that overtakes the creation of its event would fail.
            while writes.tasks.len() >= concurrent.max(1) || writes.has(&record.name) {
                writes.finish_one().await;
            }
            let (client, name) = (client.named(source.component), record.name.clone());
            let task = writes.tasks.spawn(async move {
                if is_new {
                    create(&client, &source, &event, &record).await
                } else {
                    update(&client, &source, &event, &record).await
                }
            });
            writes.names.insert(task.id(), name);
        }
        while let Some(ended) = writes.tasks.try_join_next_with_id() {
            writes.finished(ended);
        }
    }
    while !writes.tasks.is_empty() {
        writes.finish_one().await;
    }
}

/// The writes that have not finished.
#[derive(Default)]
struct Writes {
    tasks: JoinSet<Result<(), Error>>,
    /// The names of the event objects.
    names: HashMap<Id, String>,
    errors: ErrorLog,
}

impl Writes {
    fn has(&self, name: &str) -> bool {
        self.names.values().any(|written| written == name)
    }

    async fn finish_one(&mut self) {
        if let Some(ended) = self.tasks.join_next_with_id().await {
            self.finished(ended);
        }
    }

    /// Logs the result of a write if it changed.
    fn finished(&mut self, ended: Result<(Id, Result<(), Error>), JoinError>) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result.map_err(|error| (cause(&error), error.to_string()))),
            Err(panicked) => (panicked.id(), Err((panicked.to_string(), panicked.to_string()))),
        };
        let name = self.names.remove(&id).unwrap_or_default();
        match result {
            Ok(()) => {
                if let Some(failures) = self.errors.recovered() {
                    info!(failures, "wrote events to the API again");
                }
            }
            Err((cause, error)) => {
                if self.errors.failed(&cause) {
                    warn!(error, event = name, "failed to write an event; it is dropped");
                }
            }
        }
    }
}

/// Returns the part of an error that is the same for all events: a refusal's message names the event.
fn cause(error: &Error) -> String {
    match error {
        Error::Refused(refused) => format!("{} {}", refused.status, refused.reason),
        other => https::error_chain(other),
    }
}

async fn create(
    client: &Client,
    source: &EventSource,
    event: &Event,
    record: &EventRecord,
) -> Result<(), Error> {
    let (kind, body) = create_body(source, event, record);
    client.create(kind, event.object.event_namespace(), &body).await.map(|_| ())
}

async fn update(
    client: &Client,
    source: &EventSource,
    event: &Event,
    record: &EventRecord,
) -> Result<(), Error> {
    let (namespace, patch) = (event.object.event_namespace(), patch_body(event, record));
    let patched =
        client.patch(EVENTS, namespace, &record.name, PatchKind::StrategicMerge, &patch).await;
    match patched {
        // Events expire before the objects that they are about.
        Err(error) if error.is_not_found() => create(client, source, event, record).await,
        patched => patched.map(|_| ()),
    }
}
