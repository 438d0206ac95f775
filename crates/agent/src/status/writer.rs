//! Writing a pod's status: [`Teller`], which brings the newest to the API however long that takes.
//!
//! Whoever tells does not wait; what is overtaken by something newer is never written. Only differences
//! are sent, so that conditions others have set stay as they are. What is to be said is decided elsewhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Client, Error, PatchKind};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::observability::metrics::Work;
use crate::pods::static_pods::mirror::Mirrors;

mod merge_patch;

use merge_patch::difference;

/// Between two attempts, at least and at most.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Whose status it is.
#[derive(Debug, Clone)]
pub struct Subject {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Where the mirrors of static pods are told of, if it is one of them.
    pub mirrors: Option<watch::Receiver<Arc<Mirrors>>>,
    /// Where it is counted how long a status is on its way.
    pub work: Option<Work>,
}

impl Subject {
    /// A status that has waited since then is written.
    fn count(&self, since: Option<Instant>) {
        if let (Some(work), Some(since)) = (&self.work, since) {
            work.status_written(since.elapsed());
        }
    }
}

/// Takes statuses of one pod.
#[derive(Debug)]
pub struct Teller {
    newest: watch::Sender<Told>,
    written: watch::Receiver<Written>,
}

#[derive(Debug, Clone, Default)]
struct Told {
    number: u64,
    status: Value,
    /// Since when the API does not have what is to be written.
    since: Option<Instant>,
    /// What the API has, if it is not what was last written.
    found: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    UpTo(u64),
    /// The pod is not there any more.
    Gone,
}

impl Teller {
    /// `before` is the status as the API has it.
    #[must_use]
    pub fn start(client: Client, subject: Subject, before: Value) -> Teller {
        let (newest, told) = watch::channel(Told::default());
        let (done, written) = watch::channel(Written::UpTo(0));
        let mut subject = subject;
        match subject.mirrors.take() {
            None => tokio::spawn(write(client, subject, before, told, done)),
            Some(mirrors) => tokio::spawn(show(client, subject, mirrors, told, done)),
        };
        Teller { newest, written }
    }

    /// Has this written, unless something newer comes first.
    pub fn tell(&self, status: Value) {
        let written = *self.written.borrow();
        self.newest.send_modify(|told| {
            if told.status != status {
                let waits = told.number > 0 && written != Written::UpTo(told.number);
                let since = told.since.filter(|_| waits).or_else(|| Some(Instant::now()));
                *told = Told { number: told.number + 1, status, since, found: None };
            }
        });
    }

    /// Somebody else wrote something into the status: what was last told is written over it. While
    /// something is still to be written, what was found is most likely only older.
    pub fn found(&self, found: Value) {
        let written = *self.written.borrow();
        self.newest.send_if_modified(|told| {
            let is_news = told.number > 0 && written == Written::UpTo(told.number);
            if is_news {
                told.number += 1;
                told.since = Some(Instant::now());
                told.found = Some(found);
            }
            is_news
        });
    }

    /// Waits until everything told so far is written, or the pod is gone.
    pub async fn written(&self) {
        let number = self.newest.borrow().number;
        let mut written = self.written.clone();
        let done = |written: &Written| match written {
            Written::UpTo(reached) => *reached >= number,
            Written::Gone => true,
        };
        // An error means that the writer has ended, and it ends only when the pod is gone.
        let _ = written.wait_for(done).await;
    }
}

async fn write(
    client: Client,
    subject: Subject,
    mut before: Value,
    mut told: watch::Receiver<Told>,
    done: watch::Sender<Written>,
) {
    let (mut wait, mut tried) = (WAITS.0, 0);
    while told.changed().await.is_ok() {
        loop {
            let Told { number, status, since, found } = told.borrow_and_update().clone();
            // Only at the first attempt: by the next one it is known better.
            if let Some(found) = found.filter(|_| number != tried) {
                before = found;
            }
            tried = number;
            match patch(&client, &subject, &before, &status).await {
                Ok(()) => {
                    (before, wait) = (status, WAITS.0);
                    subject.count(since);
                    done.send_replace(Written::UpTo(number));
                    break;
                }
                Err(error) if is_final(&error) => {
                    done.send_replace(Written::Gone);
                    return;
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(WAITS.1);
                    // What the API has by now may be something else, or another pod of the name.
                    match current(&client, &subject).await {
                        Ok(Some(status)) => before = status,
                        Ok(None) => {
                            done.send_replace(Written::Gone);
                            return;
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

/// Writes the status of a static pod to its mirror, to every one that there is in the course of time.
async fn show(
    client: Client,
    subject: Subject,
    mut mirrors: watch::Receiver<Arc<Mirrors>>,
    mut told: watch::Receiver<Told>,
    done: watch::Sender<Written>,
) {
    let (mut wait, mut written) = (WAITS.0, 0);
    // The mirror that was last written to, and the status it has.
    let mut last: Option<(Subject, Value)> = None;
    loop {
        let Told { number, status, since, .. } = told.borrow_and_update().clone();
        let uid = mirrors.borrow_and_update().showing(&subject.uid).map(str::to_owned);
        let mut failed = false;
        if let Some(uid) = uid.filter(|_| number > 0) {
            let (mirror, before) = match last.take() {
                Some(last) if last.0.uid == uid => last,
                _ => {
                    let mirror = Subject { uid, ..subject.clone() };
                    // One that is there already may say something of an older life.
                    let has = current(&client, &mirror).await.ok().flatten();
                    (mirror, has.unwrap_or_default())
                }
            };
            match patch(&client, &mirror, &before, &status).await {
                Ok(()) => {
                    mirror.count(since.filter(|_| written != number));
                    written = number;
                    (last, wait) = (Some((mirror, status)), WAITS.0);
                    done.send_replace(Written::UpTo(number));
                }
                // The next one is told of.
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

/// Whether there is nothing to write to: the pod is gone, or another one has its name.
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

/// The status the API has; `None` if the pod is another one.
async fn current(client: &Client, subject: &Subject) -> Result<Option<Value>, Error> {
    let mut pod: Value = client.get(PODS, &subject.namespace, &subject.name).await?;
    let same = pod["metadata"]["uid"] == subject.uid.as_str();
    Ok(same.then(|| pod["status"].take()))
}
