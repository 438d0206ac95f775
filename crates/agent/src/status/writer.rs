//! Writes a pod's status: [`StatusWriter`] retries until the API has the newest one.
//!
//! Callers do not wait. A status that is superseded is never written. Only differences are sent, so that conditions of
//! other writers stay. The status itself is computed elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Client, Error, PatchKind};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::observability::metrics::SyncMetrics;
use crate::pods::static_pods::mirror::Mirrors;

mod merge_patch;

use merge_patch::difference;

/// Minimum and maximum time between two attempts.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

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
        let (newest, told) = watch::channel(PendingStatus::default());
        let (done, written) = watch::channel(WriteProgress::UpTo(0));
        let mut subject = subject;
        match subject.mirrors.take() {
            None => tokio::spawn(write(client, subject, before, told, done)),
            Some(mirrors) => tokio::spawn(show(client, subject, mirrors, told, done)),
        };
        StatusWriter { newest, written }
    }

    /// Writes this status, unless a newer one replaces it first.
    pub fn tell(&self, status: Value) {
        let written = *self.written.borrow();
        self.newest.send_modify(|told| {
            if told.status != status {
                let waits = told.number > 0 && written != WriteProgress::UpTo(told.number);
                let since = told.since.filter(|_| waits).or_else(|| Some(Instant::now()));
                *told = PendingStatus { number: told.number + 1, status, since, found: None };
            }
        });
    }

    /// Another writer changed the status: the last status is written again. While a write is pending, the
    /// observed status is most likely only older.
    pub fn found(&self, found: Value) {
        let written = *self.written.borrow();
        self.newest.send_if_modified(|told| {
            let is_news = told.number > 0 && written == WriteProgress::UpTo(told.number);
            if is_news {
                told.number += 1;
                told.since = Some(Instant::now());
                told.found = Some(found);
            }
            is_news
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

async fn write(
    client: Client,
    subject: Subject,
    mut before: Value,
    mut told: watch::Receiver<PendingStatus>,
    done: watch::Sender<WriteProgress>,
) {
    let (mut wait, mut tried) = (WAITS.0, 0);
    while told.changed().await.is_ok() {
        loop {
            let PendingStatus { number, status, since, found } = told.borrow_and_update().clone();
            // Only at the first attempt: later ones read the status again.
            if let Some(found) = found.filter(|_| number != tried) {
                before = found;
            }
            tried = number;
            match patch(&client, &subject, &before, &status).await {
                Ok(()) => {
                    (before, wait) = (status, WAITS.0);
                    subject.count(since);
                    done.send_replace(WriteProgress::UpTo(number));
                    break;
                }
                Err(error) if is_final(&error) => {
                    done.send_replace(WriteProgress::Gone);
                    return;
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(WAITS.1);
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
    mut told: watch::Receiver<PendingStatus>,
    done: watch::Sender<WriteProgress>,
) {
    let (mut wait, mut written) = (WAITS.0, 0);
    // The last mirror pod, and its status.
    let mut last: Option<(Subject, Value)> = None;
    loop {
        let PendingStatus { number, status, since, .. } = told.borrow_and_update().clone();
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
                    mirror.count(since.filter(|_| written != number));
                    written = number;
                    (last, wait) = (Some((mirror, status)), WAITS.0);
                    done.send_replace(WriteProgress::UpTo(number));
                }
                // The next mirror pod arrives over the channel.
                Err(error) if is_final(&error) => {}
                Err(_) => failed = true,
            }
        }
        let again = async {
            match failed {
                true => tokio::time::sleep(wait).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = told.changed() => if changed.is_err() { return },
            changed = mirrors.changed() => if changed.is_err() { return },
            () = again => wait = (wait * 2).min(WAITS.1),
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
    let changes = difference(old, new);
    if changes.is_empty() {
        return Ok(());
    }
    let body = json!({"metadata": {"uid": subject.uid}, "status": changes});
    let (namespace, name) = (&subject.namespace, &subject.name);
    let kind = PatchKind::StrategicMerge;
    client.patch_part(PODS, namespace, name, "status", kind, &body).await.map(|_| ())
}

/// Returns the status in the API; `None` if the pod is another one.
async fn current(client: &Client, subject: &Subject) -> Result<Option<Value>, Error> {
    let mut pod: Value = client.get(PODS, &subject.namespace, &subject.name).await?;
    let same = pod["metadata"]["uid"] == subject.uid.as_str();
    Ok(same.then(|| pod["status"].take()))
}
