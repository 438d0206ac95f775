//! Mirror pods, which represent static pods in the API. [`object`] renders one, [`plan`] decides the changes
//! of all of them, [`keep`] applies them.
//!
//! Changes of a mirror have no effect on its static pod, which follows its manifest. A deleted mirror is
//! created again, and a mirror of an older manifest is replaced. As upstream, a pod that was not admitted
//! gets no mirror.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::kind::PODS;
use client::{Backoff, Client, DeleteOptions, ignore_not_found};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::pods::pod_set::PodWithManifest;
use crate::supervisor::millis;
use client::ErrorLog;
use lifecycle::spec::Pod;

/// The annotation with the hash of the mirror's static pod.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The wait between two attempts.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Namespace and name.
pub type Name = (String, String);

#[must_use]
pub fn name(pod: &Pod) -> Name {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}

/// A mirror pod as the API has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    pub uid: String,
    /// The UID of its static pod.
    pub shows: String,
    pub is_terminating: bool,
}

impl Mirror {
    /// Returns `None` if the pod is not a mirror.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Mirror> {
        Some(Mirror {
            uid: pod.metadata.uid.clone(),
            shows: pod.metadata.annotations.get(CONFIG_MIRROR)?.clone(),
            is_terminating: pod.is_terminating(),
        })
    }
}

/// The wanted mirrors and the existing ones.
#[derive(Debug, Clone, Default)]
pub struct Mirrors {
    /// True if all static pods and all existing mirrors are known.
    pub complete: bool,
    pub wanted: BTreeMap<Name, PodWithManifest>,
    pub there: BTreeMap<Name, Mirror>,
}

impl Mirrors {
    /// Returns the UID of the mirror of a static pod, if it exists.
    #[must_use]
    pub fn showing(&self, uid: &str) -> Option<&str> {
        let shows = |mirror: &&Mirror| mirror.shows == uid && !mirror.is_terminating;
        self.there.values().find(shows).map(|mirror| mirror.uid.as_str())
    }
}

/// A change of one mirror.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// By UID, so that no other pod of that name is deleted.
    Delete {
        name: Name,
        uid: String,
    },
    Create(Name),
}

/// Plans the next changes. A deleted mirror is created again when the API no longer has it.
#[must_use]
pub fn plan(mirrors: &Mirrors) -> Vec<Action> {
    if !mirrors.complete {
        return Vec::new();
    }
    let mut actions = Vec::new();
    for (name, mirror) in &mirrors.there {
        let shows = |read: &PodWithManifest| read.pod.metadata.uid == mirror.shows;
        if mirror.is_terminating || !mirrors.wanted.get(name).is_some_and(shows) {
            actions.push(Action::Delete { name: name.clone(), uid: mirror.uid.clone() });
        }
    }
    let missing = mirrors.wanted.keys().filter(|name| !mirrors.there.contains_key(*name));
    actions.extend(missing.map(|name| Action::Create(name.clone())));
    actions
}

/// Renders the mirror of a static pod, owned by the node so that it is deleted with the node.
pub fn object(
    read: &PodWithManifest,
    node: &str,
    node_uid: &str,
) -> Result<Value, serde_json::Error> {
    let mut pod: Value = serde_json::from_str(&read.text)?;
    let uid = read.pod.metadata.uid.as_str();
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    let metadata = &mut pod["metadata"];
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("uid");
        fields.remove("creationTimestamp");
    }
    metadata["annotations"][CONFIG_MIRROR] = uid.into();
    metadata["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true,
    }]);
    Ok(pod)
}

/// Reconciles mirrors for as long as it is polled. `node` is the Node object in the API.
pub async fn run(
    api: Client,
    name: String,
    mut node: watch::Receiver<Option<Arc<Value>>>,
    mut mirrors: watch::Receiver<Arc<Mirrors>>,
) {
    let mut wait = RETRY.first;
    let mut errors: BTreeMap<Name, ErrorLog> = BTreeMap::new();
    loop {
        let now = Arc::clone(&mirrors.borrow_and_update());
        let uid = node
            .borrow_and_update()
            .as_ref()
            .and_then(|node| node["metadata"]["uid"].as_str().map(str::to_owned));
        let mut failed = false;
        for action in plan(&now) {
            let (Action::Create(of) | Action::Delete { name: of, .. }) = &action;
            let (log, pod) = (errors.entry(of.clone()).or_default(), full_name(of));
            match act(&api, &now, &action, &name, uid.as_deref()).await {
                Ok(()) => {
                    if let Some(failures) = log.recovered() {
                        info!(pod, failures, "updated the mirror pod after failures");
                    }
                }
                Err(error) => {
                    failed = true;
                    if log.failed(&error) {
                        let retry_in_ms = millis(wait);
                        warn!(pod, %error, retry_in_ms, "failed to update a mirror pod");
                    }
                }
            }
        }
        errors.retain(|of, _| now.wanted.contains_key(of) || now.there.contains_key(of));
        let again = async {
            if failed {
                tokio::time::sleep(wait).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let gone = tokio::select! {
            changed = mirrors.changed() => changed.is_err(),
            // A node that is registered again gets its mirrors again.
            changed = node.changed(), if uid.is_none() => changed.is_err(),
            () = again => false,
        };
        if gone {
            return;
        }
        wait = if failed { RETRY.next(wait) } else { RETRY.first };
    }
}

fn full_name((namespace, name): &Name) -> String {
    format!("{namespace}/{name}")
}

/// The reason why a change of a mirror pod was not applied.
#[derive(Debug, Error)]
enum MirrorError {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Render(#[from] serde_json::Error),
    #[error(
        "the API has a pod {namespace}/{name} that is not a mirror; delete it so that the mirror of \
         the static pod can be created"
    )]
    NotAMirror { namespace: String, name: String },
}

async fn act(
    api: &Client,
    mirrors: &Mirrors,
    action: &Action,
    node: &str,
    node_uid: Option<&str>,
) -> Result<(), MirrorError> {
    match action {
        Action::Delete { name: (namespace, name), uid } => {
            let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(uid) };
            let done = api.delete(PODS, namespace, name, &options).await;
            Ok(ignore_not_found(done)?)
        }
        Action::Create(name) => {
            // Without a Node object it would have no owner.
            let (Some(read), Some(node_uid)) = (mirrors.wanted.get(name), node_uid) else {
                return Ok(());
            };
            let pod = object(read, node, node_uid)?;
            match api.create(PODS, &name.0, &pod).await {
                Ok(_) => {
                    info!(pod = full_name(name), "created a mirror pod");
                    Ok(())
                }
                Err(error) if error.is_already_there() => theirs(api, name).await,
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Returns an error if the pod that has the name of a mirror is not a mirror.
async fn theirs(api: &Client, (namespace, name): &Name) -> Result<(), MirrorError> {
    let pod: Value = api.get(PODS, namespace, name).await?;
    match pod["metadata"]["annotations"][CONFIG_MIRROR].is_string() {
        true => Ok(()),
        false => {
            let (namespace, name) = (namespace.clone(), name.clone());
            Err(MirrorError::NotAMirror { namespace, name })
        }
    }
}

#[cfg(test)]
mod tests;
