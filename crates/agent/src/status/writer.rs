//! Writes a pod's status: [`StatusWriter`] retries until the API has the newest one.
//!
//! Callers do not wait. A status that is superseded is never written. Only differences are sent, so that conditions of
//! other writers stay. The status itself is computed elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Backoff, Client, Error, PatchKind};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::observability::metrics::SyncMetrics;
use crate::pods::static_pods::mirror::Mirrors;
use crate::supervisor::{millis, restart_on_panic};
use client::ErrorLog;

mod merge_patch;

use merge_patch::merge_patch;

/// The time between two attempts.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The pod of a status.
#[derive(Debug, Clone)]
pub struct Subject {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Receives the mirror pods, if the pod is static.
    pub mirrors: Option<watch::Receiver<Arc<Mirrors>>>,
    /// Metrics of the time until a status is written.
    pub work: Option<SyncMetrics>,
}

impl Subject {
    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Logs an error if it differs from that of the attempt before.
    fn failed(&self, errors: &mut ErrorLog, error: &Error, wait: Duration) {
        if errors.failed(error) {
            let (pod, uid, retry_in_ms) = (self.full_name(), &self.uid, millis(wait));
            warn!(pod, uid, %error, retry_in_ms, "failed to write the pod's status");
        }
    }

    fn written(&self, errors: &mut ErrorLog) {
        if let Some(failures) = errors.recovered() {
            let (pod, uid) = (self.full_name(), &self.uid);
            info!(pod, uid, failures, "wrote the pod's status again");
        }
    }

    /// Records that a status which waited since then was written.
    fn count(&self, since: Option<Instant>) {
        if let (Some(work), Some(since)) = (&self.work, since) {
            work.status_written(since.elapsed());
        }
    }
}

/// Accepts statuses of one pod.
#[derive(Debug)]
pub struct StatusWriter {
    newest: watch::Sender<PendingStatus>,
    written: watch::Receiver<WriteProgress>,
}

#[derive(Debug, Clone, Default)]
struct PendingStatus {
    number: u64,
    status: Value,
    /// Start of the time in which the API is out of date.
    since: Option<Instant>,
    /// The status in the API, if it is not the last written one.
    found: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteProgress {
    UpTo(u64),
    /// The pod is gone.
    Gone,
}

impl StatusWriter {
    /// `before` is the status in the API.
    #[must_use]
    pub fn start(client: Client, subject: Subject, before: Value) -> StatusWriter {
        let (newest, pending) = watch::channel(PendingStatus::default());
        let (done, written) = watch::channel(WriteProgress::UpTo(0));
        let mut subject = subject;
        let task = format!("status writer of {}", subject.full_name());
        match subject.mirrors.take() {
            None => {
                let mut before = Some(before);
                tokio::spawn(restart_on_panic(task, move || {
                    let (client, subject, before) =
                        (client.clone(), subject.clone(), before.take());
                    write(client, subject, before, pending.clone(), done.clone())
                }));
            }
            Some(mirrors) => {
                tokio::spawn(restart_on_panic(task, move || {
                    let (client, subject) = (client.clone(), subject.clone());
                    show(client, subject, mirrors.clone(), pending.clone(), done.clone())
                }));
            }
        }
        StatusWriter { newest, written }
    }

    /// Writes this status, unless a newer one replaces it first.
    pub fn set(&self, status: Value) {
        let written = *self.written.borrow();
        self.newest.send_modify(|pending| {
            if pending.status != status {
                let waits = pending.number > 0 && written != WriteProgress::UpTo(pending.number);
                let since = pending.since.filter(|_| waits).or_else(|| Some(Instant::now()));
                *pending = PendingStatus { number: pending.number + 1, status, since, found: None };
            }
        });
    }

    /// Another writer changed the status: the last status is written again. While a write is pending, the
    /// observed status is most likely only older.
    pub fn overwritten_by_other(&self, found: Value) {
        let written = *self.written.borrow();
        self.newest.send_if_modified(|pending| {
            let is_new = pending.number > 0 && written == WriteProgress::UpTo(pending.number);
            if is_new {
                pending.number += 1;
                pending.since = Some(Instant::now());
                pending.found = Some(found);
            }
            is_new
        });
    }

    /// Waits until every status so far is written, or the pod is gone.
    pub async fn written(&self) {
        let number = self.newest.borrow().number;
        let mut written = self.written.clone();
        let done = |written: &WriteProgress| match written {
            WriteProgress::UpTo(reached) => *reached >= number,
            WriteProgress::Gone => true,
        };
        // An error means that the writer task has ended, which it does only when the pod is gone.
        let _ = written.wait_for(done).await;
    }
}

/// Writes the status of a pod. `before` is the status in the API, which is read if `None`.
async fn write(
    client: Client,
    subject: Subject,
    before: Option<Value>,
    mut pending: watch::Receiver<PendingStatus>,
    done: watch::Sender<WriteProgress>,
) {
    let mut before = match before {
        Some(before) => before,
        None => current(&client, &subject).await.ok().flatten().unwrap_or_default(),
    };
    let (mut wait, mut tried, mut errors) = (RETRY.first, 0, ErrorLog::default());
    while pending.changed().await.is_ok() {
        loop {
            let PendingStatus { number, status, since, found } =
                pending.borrow_and_update().clone();
            // Only at the first attempt: later ones read the status again.
            if let Some(found) = found.filter(|_| number != tried) {
                before = found;
            }
            tried = number;
            match patch(&client, &subject, &before, &status).await {
                Ok(()) => {
                    subject.written(&mut errors);
                    (before, wait) = (status, RETRY.first);
                    subject.count(since);
                    done.send_replace(WriteProgress::UpTo(number));
                    break;
                }
                Err(error) if is_final(&error) => {
                    done.send_replace(WriteProgress::Gone);
                    return;
                }
                Err(error) => {
                    subject.failed(&mut errors, &error, wait);
                    tokio::time::sleep(wait).await;
                    wait = RETRY.next(wait);
                    // The API may have another status, or another pod of the same name.
                    match current(&client, &subject).await {
                        Ok(Some(status)) => before = status,
                        Ok(None) => {
                            done.send_replace(WriteProgress::Gone);
                            return;
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

/// Writes the status of a static pod to its mirror pod, and to every later one.
async fn show(
    client: Client,
    subject: Subject,
    mut mirrors: watch::Receiver<Arc<Mirrors>>,
    mut pending: watch::Receiver<PendingStatus>,
    done: watch::Sender<WriteProgress>,
) {
    let (mut wait, mut written, mut errors) = (RETRY.first, 0, ErrorLog::default());
    // The last mirror pod, and its status.
    let mut last: Option<(Subject, Value)> = None;
    loop {
        let PendingStatus { number, status, since, .. } = pending.borrow_and_update().clone();
        let uid = mirrors.borrow_and_update().showing(&subject.uid).map(str::to_owned);
        let mut failed = false;
        if let Some(uid) = uid.filter(|_| number > 0) {
            let (mirror, before) = match last.take() {
                Some(last) if last.0.uid == uid => last,
                _ => {
                    let mirror = Subject { uid, ..subject.clone() };
                    // An existing mirror pod may have a status of an earlier run.
                    let has = current(&client, &mirror).await.ok().flatten();
                    (mirror, has.unwrap_or_default())
                }
            };
            match patch(&client, &mirror, &before, &status).await {
                Ok(()) => {
                    mirror.written(&mut errors);
                    mirror.count(since.filter(|_| written != number));
                    written = number;
                    (last, wait) = (Some((mirror, status)), RETRY.first);
                    done.send_replace(WriteProgress::UpTo(number));
                }
                // The next mirror pod arrives over the channel.
                Err(error) if is_final(&error) => {}
                Err(error) => {
                    mirror.failed(&mut errors, &error, wait);
                    failed = true;
                }
            }
        }
        let again = async {
            match failed {
                true => tokio::time::sleep(wait).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = pending.changed() => if changed.is_err() { return },
            changed = mirrors.changed() => if changed.is_err() { return },
            () = again => wait = RETRY.next(wait),
        }
    }
}

/// Returns true if there is nothing to write to: the pod is gone, or another one has its name.
fn is_final(error: &Error) -> bool {
    error.is_not_found() || error.is_conflict()
}

async fn patch(
    client: &Client,
    subject: &Subject,
    before: &Value,
    status: &Value,
) -> Result<(), Error> {
    let empty = Map::new();
    let (old, new) = (before.as_object().unwrap_or(&empty), status.as_object().unwrap_or(&empty));
    let changes = merge_patch(old, new);
    if changes.is_empty() {
        return Ok(());
    }
    let body = json!({"metadata": {"uid": subject.uid}, "status": changes});
    let (namespace, name) = (&subject.namespace, &subject.name);
    let kind = PatchKind::StrategicMerge;
    client.patch_subresource(PODS, namespace, name, "status", kind, &body).await.map(|_| ())
}

/// Returns the status in the API; `None` if the pod is another one.
async fn current(client: &Client, subject: &Subject) -> Result<Option<Value>, Error> {
    let mut pod: Value = client.get(PODS, &subject.namespace, &subject.name).await?;
    let same = pod["metadata"]["uid"] == subject.uid.as_str();
    Ok(same.then(|| pod["status"].take()))
}
