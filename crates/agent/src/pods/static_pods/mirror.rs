//! Mirror pods: what the API shows of static pods. [`object`] is one, [`plan`] says what is to be done about
//! all of them, [`keep`] does it.
//!
//! A mirror changes nothing: the pod lives by its file. One that somebody deletes comes back, one of an
//! older file gives way. The first mirror of a pod that is not let in is never made, as upstream has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::kind::PODS;
use client::{Client, DeleteOptions, Error, gone_is_fine};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::pods::pod_set::Read;
use crate::spec::Pod;

/// The hash of the static pod that a mirror shows.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Between two attempts, at least and at most.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

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
    /// The uid of the static pod that it shows.
    pub shows: String,
    pub is_terminating: bool,
}

impl Mirror {
    /// `None` of a pod that is no mirror.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Mirror> {
        Some(Mirror {
            uid: pod.metadata.uid.clone(),
            shows: pod.metadata.annotations.get(CONFIG_MIRROR)?.clone(),
            is_terminating: pod.is_terminating(),
        })
    }
}

/// What is to be shown, and what is.
#[derive(Debug, Clone, Default)]
pub struct Mirrors {
    /// Whether all static pods and all mirrors that there are have been told of.
    pub complete: bool,
    pub wanted: BTreeMap<Name, Read>,
    pub there: BTreeMap<Name, Mirror>,
}

impl Mirrors {
    /// The uid of the mirror that shows a static pod, if one does.
    #[must_use]
    pub fn showing(&self, uid: &str) -> Option<&str> {
        let shows = |mirror: &&Mirror| mirror.shows == uid && !mirror.is_terminating;
        self.there.values().find(shows).map(|mirror| mirror.uid.as_str())
    }
}

/// What is to be done about one mirror.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// By uid, so that no other pod of the name goes.
    Delete {
        name: Name,
        uid: String,
    },
    Create(Name),
}

/// The next steps. What is deleted is made again when the API no longer has it.
#[must_use]
pub fn plan(mirrors: &Mirrors) -> Vec<Action> {
    if !mirrors.complete {
        return Vec::new();
    }
    let mut actions = Vec::new();
    for (name, mirror) in &mirrors.there {
        let shows = |read: &Read| read.pod.metadata.uid == mirror.shows;
        if mirror.is_terminating || !mirrors.wanted.get(name).is_some_and(shows) {
            actions.push(Action::Delete { name: name.clone(), uid: mirror.uid.clone() });
        }
    }
    let missing = mirrors.wanted.keys().filter(|name| !mirrors.there.contains_key(*name));
    actions.extend(missing.map(|name| Action::Create(name.clone())));
    actions
}

/// The mirror of a static pod, owned by the node so that it goes when the node does.
pub fn object(read: &Read, node: &str, node_uid: &str) -> Result<Value, serde_json::Error> {
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

/// Keeps mirrors true for as long as it is polled. `node` is the Node object as the API has it.
pub async fn keep(
    api: Client,
    name: String,
    mut node: watch::Receiver<Option<Arc<Value>>>,
    mut mirrors: watch::Receiver<Arc<Mirrors>>,
) {
    let mut wait = WAITS.0;
    // Why a mirror could not be made is said once.
    let mut said: BTreeMap<Name, String> = BTreeMap::new();
    loop {
        let now = Arc::clone(&mirrors.borrow_and_update());
        let uid = node
            .borrow_and_update()
            .as_ref()
            .and_then(|node| node["metadata"]["uid"].as_str().map(str::to_owned));
        let mut failed = false;
        for action in plan(&now) {
            match act(&api, &now, &action, &name, uid.as_deref()).await {
                Ok(()) => {}
                Err(why) => {
                    failed = true;
                    let (Action::Create(of) | Action::Delete { name: of, .. }) = &action;
                    if said.insert(of.clone(), why.clone()).as_ref() != Some(&why) {
                        warn!(namespace = of.0, pod = of.1, why, "mirror pod");
                    }
                }
            }
        }
        said.retain(|of, _| now.wanted.contains_key(of) || now.there.contains_key(of));
        let again = async {
            if failed {
                tokio::time::sleep(wait).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let gone = tokio::select! {
            changed = mirrors.changed() => changed.is_err(),
            // A node that comes back gets its mirrors back.
            changed = node.changed(), if uid.is_none() => changed.is_err(),
            () = again => false,
        };
        if gone {
            return;
        }
        wait = if failed { (wait * 2).min(WAITS.1) } else { WAITS.0 };
    }
}

async fn act(
    api: &Client,
    mirrors: &Mirrors,
    action: &Action,
    node: &str,
    node_uid: Option<&str>,
) -> Result<(), String> {
    let words = |error: Error| error.to_string();
    match action {
        Action::Delete { name: (namespace, name), uid } => {
            let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(uid) };
            let done = api.delete(PODS, namespace, name, &options).await;
            gone_is_fine(done).map_err(words)
        }
        Action::Create(name) => {
            // Nobody owns it before there is a node.
            let (Some(read), Some(node_uid)) = (mirrors.wanted.get(name), node_uid) else {
                return Ok(());
            };
            let pod = object(read, node, node_uid).map_err(|error| error.to_string())?;
            match api.create(PODS, &name.0, &pod).await {
                Ok(_) => {
                    info!(namespace = name.0, pod = name.1, "mirror pod made");
                    Ok(())
                }
                Err(error) if error.is_already_there() => theirs(api, name).await,
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

/// Whether the pod that has the name of a mirror is one, told of soon, or somebody's own.
async fn theirs(api: &Client, (namespace, name): &Name) -> Result<(), String> {
    let pod: Value = api.get(PODS, namespace, name).await.map_err(|error| error.to_string())?;
    match pod["metadata"]["annotations"][CONFIG_MIRROR].is_string() {
        true => Ok(()),
        false => Err(format!(
            "the API has a pod {namespace}/{name} that is no mirror; delete it, and the static pod \
             will be shown"
        )),
    }
}

#[cfg(test)]
mod tests;
