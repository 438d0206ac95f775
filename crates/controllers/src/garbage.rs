//! Garbage collection: deletes objects whose owners are gone, and completes foreground and orphan
//! deletion.
//!
//! [`graph`] holds the ownership graph and decides. This file follows every kind by its metadata
//! and executes the decisions. An owner that is missing from the graph is looked up in the API
//! before it counts as gone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use client::kind::Kind;
use client::{
    BoxFuture, Change, DeleteOptions, Error, Key, PatchKind, Propagation, Reflector, Scope,
    ignore_not_found,
};
use objects::catalog::{self, Verb};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use crate::context::{ControllerContext, text};
use crate::supervise::Start;
use crate::workqueue::Reconcile;

mod graph;

use graph::{FOREGROUND, Graph, Item, ORPHAN, Verdict};
use objects::types::OwnerReference;

/// Returns the kinds whose objects can own or be owned: all that can be deleted, except events.
fn kinds() -> Vec<Kind> {
    let needed = [Verb::Delete, Verb::List, Verb::Watch];
    let served = catalog::RESOURCES.iter();
    let fit =
        served.filter(|r| needed.iter().all(|verb| r.verbs.contains(verb)) && r.kind != "Event");
    fit.map(Kind::of).collect()
}

#[derive(Debug)]
pub(crate) struct Garbage {
    context: Arc<ControllerContext>,
    graph: Mutex<Graph>,
    /// Kinds that have not been listed yet. No object is processed before all are.
    missing: Mutex<HashSet<Kind>>,
}

impl Garbage {
    pub(crate) fn new(context: Arc<ControllerContext>) -> Garbage {
        let missing = Mutex::new(kinds().into_iter().collect());
        Garbage { context, graph: Mutex::default(), missing }
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock()
    }

    /// Returns the informers that keep the graph up to date. An informer runs until it is dropped.
    pub(crate) fn informers(self: &Arc<Garbage>, keys: &mpsc::UnboundedSender<Key>) -> Vec<Start> {
        let all = kinds().into_iter().map(|kind| {
            let (garbage, keys) = (self.clone(), keys.clone());
            Box::new(move || {
                let scope = Scope { metadata_only: true, ..Scope::default() };
                let client = garbage.context.client.clone();
                let reflector = Reflector::new(client, kind, scope, graph::ownership);
                let (garbage, keys) = (garbage.clone(), keys.clone());
                let run = reflector.run(move |change| {
                    for uid in garbage.observe(kind, change) {
                        if keys.send(Key::new("", &uid)).is_err() {
                            return false;
                        }
                    }
                    true
                });
                Box::pin(run) as BoxFuture<'static, ()>
            }) as Start
        });
        all.collect()
    }

    fn observe(&self, kind: Kind, change: Change<graph::OwnershipMetadata>) -> Vec<String> {
        let mut graph = self.graph();
        match change {
            Change::Replaced { all, .. } => {
                let mut affected = Vec::new();
                let stay: HashSet<Key> = all.iter().map(|(key, ..)| key.clone()).collect();
                for key in graph.names(kind) {
                    if !stay.contains(&key) {
                        affected.extend(graph.remove(kind, &key));
                    }
                }
                for (key, _, metadata) in all {
                    affected.extend(graph.apply(Item::new(kind, key, metadata)));
                }
                self.missing.lock().remove(&kind);
                affected
            }
            Change::Applied { key, object, .. } => graph.apply(Item::new(kind, key, object)),
            Change::Removed { key, .. } => graph.remove(kind, &key),
            Change::Bookmark { .. } => Vec::new(),
        }
    }

    fn is_ready(&self) -> bool {
        self.missing.lock().is_empty()
    }

    /// Asks the API whether an owner that is missing from the graph is gone.
    async fn is_gone(&self, namespace: &str, owner: &OwnerReference) -> Result<bool, Error> {
        let Some(resource) = catalog::of_kind(&owner.api_version, &owner.kind) else {
            // The owner's kind is not served, so its absence cannot be verified.
            return Ok(false);
        };
        let found =
            self.context.client.get::<Value>(Kind::of(resource), namespace, &owner.name).await;
        match found {
            Ok(object) => Ok(text(&object["metadata"]["uid"]) != owner.uid),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn process(&self, uid: &str) -> Result<Option<Duration>, Error> {
        if !self.is_ready() {
            return Ok(Some(Duration::from_millis(50)));
        }
        let (Some(item), unknown) = ({
            let graph = self.graph();
            (graph.get(uid).cloned(), graph.unknown_owners(uid))
        }) else {
            return Ok(None);
        };
        let mut gone = HashSet::new();
        for owner in &unknown {
            if self.is_gone(item.key.namespace(), owner).await? {
                gone.insert(owner.uid.clone());
            }
        }
        let verdict = self.graph().judge(uid, &|owner| gone.contains(&owner.uid));
        match verdict {
            Verdict::Keep => {}
            Verdict::Disown(owners) => self.disown(&item, &owners).await?,
            Verdict::Delete { foreground, unblock } => {
                if unblock {
                    self.unblock(&item).await?;
                }
                let propagation = if foreground || item.has(FOREGROUND) {
                    Propagation::Foreground
                } else if item.has(ORPHAN) {
                    Propagation::Orphan
                } else {
                    Propagation::Background
                };
                let options = DeleteOptions {
                    propagation: Some(propagation),
                    ..DeleteOptions::of_uid(&item.uid)
                };
                debug!(
                    kind = item.kind.plural, key = %item.key, ?propagation,
                    "deleting an object whose owners are gone"
                );
                let (namespace, name) = (item.key.namespace(), item.key.name());
                ignore_not_found(
                    self.context.client.delete(item.kind, namespace, name, &options).await,
                )?;
            }
            Verdict::Orphan(dependents) => {
                debug!(
                    kind = item.kind.plural, key = %item.key, dependents = dependents.len(),
                    "orphaning the dependents of an object"
                );
                for dependent in dependents {
                    let dependent = self.graph().get(&dependent).cloned();
                    if let Some(dependent) = dependent {
                        self.disown(&dependent, std::slice::from_ref(&item.uid)).await?;
                    }
                }
                self.finish(&item, ORPHAN).await?;
            }
            // Its dependents were queued when it started to wait; each deletion queues it again.
            Verdict::Wait => {}
            Verdict::Unblock => self.unblock(&item).await?,
            Verdict::Finish => self.finish(&item, FOREGROUND).await?,
        }
        Ok(None)
    }

    /// Removes owner references from an object.
    async fn disown(&self, item: &Item, owners: &[String]) -> Result<(), Error> {
        let gone: Vec<Value> =
            owners.iter().map(|uid| json!({"$patch": "delete", "uid": uid})).collect();
        self.patch(item, json!({"ownerReferences": gone})).await
    }

    /// Clears `blockOwnerDeletion` in all owner references of an object.
    async fn unblock(&self, item: &Item) -> Result<(), Error> {
        let blocking = item.owners.iter().filter(|owner| owner.block_owner_deletion == Some(true));
        let free: Vec<Value> =
            blocking.map(|owner| json!({"uid": owner.uid, "blockOwnerDeletion": false})).collect();
        self.patch(item, json!({"ownerReferences": free})).await
    }

    /// Removes a finalizer from an object.
    async fn finish(&self, item: &Item, finalizer: &str) -> Result<(), Error> {
        self.patch(item, json!({"$deleteFromPrimitiveList/finalizers": [finalizer]})).await
    }

    /// Patches the metadata of an object if it still has the same uid.
    async fn patch(&self, item: &Item, mut metadata: Value) -> Result<(), Error> {
        metadata["uid"] = item.uid.as_str().into();
        let (namespace, name) = (item.key.namespace(), item.key.name());
        let (kind, patch) = (PatchKind::StrategicMerge, json!({"metadata": metadata}));
        let done = self.context.client.patch(item.kind, namespace, name, kind, &patch).await;
        ignore_not_found(done.map(|_| ()))
    }
}

impl Reconcile for Garbage {
    const NAME: &'static str = "garbage_collector_attempt_to_delete";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move { self.process(key.name()).await })
    }
}
