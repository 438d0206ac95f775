//! Deployments: replica sets by template, and the way from one to the next.
//!
//! [`plan`] decides; here is what it looks at and what is done. A deployment is worked on in small
//! steps: each changes a little, waits until that is seen, and the change brings it back.

use std::sync::Arc;
use std::time::Duration;

use client::kind::{DEPLOYMENTS, REPLICA_SETS};
use client::{
    BoxFuture, DeleteOptions, Error, Key, PatchKind, Propagation, Until, Update, ignore_not_found,
};
use serde_json::{Value, json};

use crate::observe::Pod;
use crate::record::{Occurrence, Subject};
use crate::work::Reconcile;
use crate::workload::{
    Claim, claim, is_deleting, labels, revision, selector, settle_claim, write_status,
};
use crate::world::{TREE_BY_CONTROLLER, TREE_BY_NAMESPACE, World, controller_of, text};

mod plan;
mod rollout;
mod status;

use plan::Action;

#[derive(Debug)]
pub(crate) struct Deployments(pub(crate) Arc<World>);

impl Reconcile for Deployments {
    const NAME: &'static str = "deployment";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.bring(key))
    }
}

/// The deployments a change of a replica set concerns.
pub(crate) fn of_set(world: &World, update: &Update<Value>) -> Vec<Key> {
    let mut keys = Vec::new();
    for set in [&update.old, &update.new].into_iter().flatten() {
        let namespace = text(&set["metadata"]["namespace"]);
        match controller_of(set) {
            Some(owner) if owner["kind"] == "Deployment" => {
                keys.push(Key::new(namespace, text(&owner["name"])));
            }
            Some(_) => {}
            None => {
                for (key, owner) in world.deployments.find(TREE_BY_NAMESPACE, namespace) {
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

/// The deployments a change of a pod concerns: one that recreates, when a pod of its sets is gone.
pub(crate) fn of_pod(world: &World, update: &Update<Pod>) -> Vec<Key> {
    let (Some(pod), None) = (&update.old, &update.new) else { return Vec::new() };
    let owner = pod.owner.as_ref().filter(|owner| owner.kind == "ReplicaSet");
    let set = owner.and_then(|o| world.replica_sets.get(&Key::new(&pod.namespace, &o.name)));
    let top = set.and_then(|set| {
        let owner = controller_of(&set).filter(|owner| owner["kind"] == "Deployment")?;
        Some(Key::new(&pod.namespace, text(&owner["name"])))
    });
    let recreates = |key: &Key| {
        world.deployments.get(key).is_some_and(|d| d["spec"]["strategy"]["type"] == "Recreate")
    };
    top.filter(recreates).into_iter().collect()
}

impl Deployments {
    async fn bring(&self, key: Key) -> Result<Option<Duration>, Error> {
        let world = &*self.0;
        let Some(deployment) = world.deployments.get(&key) else { return Ok(None) };
        let sets = self.claimed(&deployment).await?;
        let now = world.clock.now();
        let pods = |set: &Value| {
            let uid = text(&set["metadata"]["uid"]);
            world.pods.find(crate::world::BY_CONTROLLER, uid).iter().any(|(_, p)| !p.is_finished())
        };
        let plan = plan::plan(&deployment, &sets, &pods, now);
        let mut failed = None;
        for action in &plan.actions {
            if let Err(error) = self.act(&deployment, action).await {
                failed = Some(error);
                break;
            }
        }
        let told = failed.as_ref().map(ToString::to_string);
        // What was just done is not in what was seen; the next round tells of it.
        let status = status::status(&deployment, &sets, &plan, told.as_deref(), now);
        write_status(world, DEPLOYMENTS, &world.deployments, &deployment, status).await?;
        match failed {
            Some(error) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(plan.again.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }

    /// The deployment's replica sets.
    async fn claimed(&self, deployment: &Value) -> Result<Vec<Arc<Value>>, Error> {
        let world = &*self.0;
        let uid = text(&deployment["metadata"]["uid"]);
        let namespace = text(&deployment["metadata"]["namespace"]);
        let Some(selector) = selector(deployment) else {
            let own = world.replica_sets.find(TREE_BY_CONTROLLER, uid);
            return Ok(own.into_iter().map(|(_, set)| set).collect());
        };
        let mut own = Vec::new();
        for (key, set) in world.replica_sets.find(TREE_BY_NAMESPACE, namespace) {
            let owner = controller_of(&set).map(|owner| text(&owner["uid"]));
            let selected = selector.matches_map(&labels(&set));
            match claim((uid, is_deleting(deployment)), selected, owner, is_deleting(&set)) {
                Claim::Own => own.push(set),
                Claim::Leave => {}
                settle => {
                    let adopt = settle == Claim::Adopt;
                    let name = (namespace, key.name(), text(&set["metadata"]["uid"]));
                    settle_claim(world, REPLICA_SETS, name, (DEPLOYMENTS, deployment), adopt)
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
        let world = &*self.0;
        let client = &world.client;
        let namespace = text(&deployment["metadata"]["namespace"]);
        let subject = Subject::of(DEPLOYMENTS, deployment);
        let recorder = world.recorder.named("deployment-controller");
        let written = match action {
            Action::Create(set) => match client.create(REPLICA_SETS, namespace, set).await {
                Err(error) if error.is_already_there() => {
                    // Another template with the same hash: the next one is tried under another.
                    let name = text(&set["metadata"]["name"]);
                    let there: Value = client.get(REPLICA_SETS, namespace, name).await?;
                    let ours = controller_of(&there)
                        .is_some_and(|owner| owner["uid"] == deployment["metadata"]["uid"]);
                    if ours && plan::same_template(&there, &deployment["spec"]["template"]) {
                        Ok(there)
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
                return world.replica_sets.caught_up(&Until::Going(&key, &is_deleting)).await;
            }
            Action::Own(patch) => {
                let name = text(&deployment["metadata"]["name"]);
                let kind = PatchKind::Merge;
                let done = client.patch(DEPLOYMENTS, namespace, name, kind, patch).await?;
                return world.deployments.caught_up(&Until::Revision(revision(&done))).await;
            }
        }?;
        world.replica_sets.caught_up(&Until::Revision(revision(&written))).await
    }
}

fn scaled(deployment: &Subject, set: &str, from: i64, to: i64) -> Occurrence {
    let direction = if to > from { "up" } else { "down" };
    let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
    Occurrence::normal(deployment, "ScalingReplicaSet", message)
}
