//! Deployments: one replica set per template, and the rollout from one to the next.
//!
//! [`plan`] decides; this file reads its inputs and executes its actions. A deployment is synced in
//! small steps: each step makes one change and waits until the cache shows it, and that change
//! queues the deployment again.

use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::{DEPLOYMENTS, REPLICA_SETS};
use client::{
    BoxFuture, CacheState, DeleteOptions, Error, Key, PatchKind, Propagation, Update,
    ignore_not_found,
};
use serde_json::{Value, json};

use crate::context::{
    ControllerContext, UNTYPED_BY_CONTROLLER, UNTYPED_BY_NAMESPACE, controller_of, text,
};
use crate::observe::Pod;
use crate::workload::{
    Claim, claim, is_deleting, labels, revision, selector, settle_claim, write_status,
};
use crate::workqueue::Reconcile;

mod plan;
mod rollout;
mod status;

use plan::Action;

#[derive(Debug)]
pub(crate) struct Deployments(pub(crate) Arc<ControllerContext>);

impl Reconcile for Deployments {
    const NAME: &'static str = "deployment";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

/// Returns the deployments that a change of a replica set concerns.
pub(crate) fn keys_for_set(context: &ControllerContext, update: &Update<Value>) -> Vec<Key> {
    let mut keys = Vec::new();
    for set in [&update.old, &update.new].into_iter().flatten() {
        let namespace = text(&set["metadata"]["namespace"]);
        match controller_of(set) {
            Some(owner) if owner["kind"] == "Deployment" => {
                keys.push(Key::new(namespace, text(&owner["name"])));
            }
            Some(_) => {}
            None => {
                for (key, owner) in context.deployments.find(UNTYPED_BY_NAMESPACE, namespace) {
                    if selector(&owner).is_some_and(|s| s.matches_object(set)) {
                        keys.push(key);
                    }
                }
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Returns the deployments that a change of a pod concerns: those with strategy `Recreate`, when a
/// pod of theirs is gone.
pub(crate) fn keys_for_pod(context: &ControllerContext, update: &Update<Pod>) -> Vec<Key> {
    let (Some(pod), None) = (&update.old, &update.new) else { return Vec::new() };
    let owner = pod.owner.as_ref().filter(|owner| owner.kind == "ReplicaSet");
    let set = owner.and_then(|o| context.replica_sets.get(&Key::new(&pod.namespace, &o.name)));
    let top = set.and_then(|set| {
        let owner = controller_of(&set).filter(|owner| owner["kind"] == "Deployment")?;
        Some(Key::new(&pod.namespace, text(&owner["name"])))
    });
    let recreates = |key: &Key| {
        context.deployments.get(key).is_some_and(|d| d["spec"]["strategy"]["type"] == "Recreate")
    };
    top.filter(recreates).into_iter().collect()
}

impl Deployments {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        let Some(deployment) = context.deployments.get(&key) else { return Ok(None) };
        let sets = self.claimed(&deployment).await?;
        let now = context.clock.now();
        let pods = |set: &Value| {
            let uid = text(&set["metadata"]["uid"]);
            context
                .pods
                .find(crate::context::BY_CONTROLLER, uid)
                .iter()
                .any(|(_, p)| !p.is_finished())
        };
        let plan = plan::plan(&deployment, &sets, &pods, now);
        let mut failed = None;
        for action in &plan.actions {
            if let Err(error) = self.act(&deployment, action).await {
                failed = Some(error);
                break;
            }
        }
        let failure = failed.as_ref().map(ToString::to_string);
        // The actions above are not visible in `sets` yet; the next sync reports them.
        let status = status::status(&deployment, &sets, &plan, failure.as_deref(), now);
        write_status(context, DEPLOYMENTS, &context.deployments, &deployment, status).await?;
        match failed {
            Some(error) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(plan.again.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }

    /// Returns the deployment's replica sets, after adoption and release.
    async fn claimed(&self, deployment: &Value) -> Result<Vec<Arc<Value>>, Error> {
        let context = &*self.0;
        let uid = text(&deployment["metadata"]["uid"]);
        let namespace = text(&deployment["metadata"]["namespace"]);
        let Some(selector) = selector(deployment) else {
            let own = context.replica_sets.find(UNTYPED_BY_CONTROLLER, uid);
            return Ok(own.into_iter().map(|(_, set)| set).collect());
        };
        let mut own = Vec::new();
        for (key, set) in context.replica_sets.find(UNTYPED_BY_NAMESPACE, namespace) {
            let owner = controller_of(&set).map(|owner| text(&owner["uid"]));
            let selected = selector.matches_map(&labels(&set));
            match claim((uid, is_deleting(deployment)), selected, owner, is_deleting(&set)) {
                Claim::Own => own.push(set),
                Claim::Leave => {}
                settle => {
                    let adopt = settle == Claim::Adopt;
                    let name = (namespace, key.name(), text(&set["metadata"]["uid"]));
                    settle_claim(context, REPLICA_SETS, name, (DEPLOYMENTS, deployment), adopt)
                        .await?;
                    if adopt {
                        own.push(set);
                    }
                }
            }
        }
        Ok(own)
    }

    async fn act(&self, deployment: &Value, action: &Action) -> Result<(), Error> {
        let context = &*self.0;
        let client = &context.client;
        let namespace = text(&deployment["metadata"]["namespace"]);
        let subject = InvolvedObject::of(DEPLOYMENTS, deployment);
        let recorder = context.recorder.named("deployment-controller");
        let written = match action {
            Action::Create(set) => match client.create(REPLICA_SETS, namespace, set).await {
                Err(error) if error.is_already_there() => {
                    // Another template has the same hash: the next sync uses another one.
                    let name = text(&set["metadata"]["name"]);
                    let existing: Value = client.get(REPLICA_SETS, namespace, name).await?;
                    let ours = controller_of(&existing)
                        .is_some_and(|owner| owner["uid"] == deployment["metadata"]["uid"]);
                    if ours && plan::same_template(&existing, &deployment["spec"]["template"]) {
                        Ok(existing)
                    } else {
                        let count = deployment["status"]["collisionCount"].as_i64().unwrap_or(0);
                        let patch = json!({"status": {"collisionCount": count + 1}});
                        let name = text(&deployment["metadata"]["name"]);
                        let kind = PatchKind::Merge;
                        client
                            .patch_subresource(DEPLOYMENTS, namespace, name, "status", kind, &patch)
                            .await?;
                        Err(error)
                    }
                }
                created => created.inspect(|set| {
                    let count = crate::workload::replicas(set);
                    if count > 0 {
                        recorder.record(scaled(&subject, text(&set["metadata"]["name"]), 0, count));
                    }
                }),
            },
            Action::Scale { name, from, to, annotations } => {
                let patch =
                    json!({"metadata": {"annotations": annotations}, "spec": {"replicas": to}});
                let kind = PatchKind::Merge;
                let done = client.patch(REPLICA_SETS, namespace, name, kind, &patch).await;
                done.inspect(|_| {
                    if from != to {
                        recorder.record(scaled(&subject, name, *from, *to));
                    }
                })
            }
            Action::Annotate { name, patch } => {
                client.patch(REPLICA_SETS, namespace, name, PatchKind::Merge, patch).await
            }
            Action::Delete { name, uid } => {
                let options = DeleteOptions {
                    propagation: Some(Propagation::Background),
                    ..DeleteOptions::of_uid(uid)
                };
                ignore_not_found(client.delete(REPLICA_SETS, namespace, name, &options).await)?;
                let key = Key::new(namespace, name);
                return context
                    .replica_sets
                    .caught_up(&CacheState::Deleting(&key, &is_deleting))
                    .await;
            }
            Action::Own(patch) => {
                let name = text(&deployment["metadata"]["name"]);
                let kind = PatchKind::Merge;
                let done = client.patch(DEPLOYMENTS, namespace, name, kind, patch).await?;
                return context.deployments.caught_up(&CacheState::Revision(revision(&done))).await;
            }
        }?;
        context.replica_sets.caught_up(&CacheState::Revision(revision(&written))).await
    }
}

fn scaled(deployment: &InvolvedObject, set: &str, from: i64, to: i64) -> Event {
    let direction = if to > from { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
    Event::normal(deployment, "ScalingReplicaSet", message)
}
