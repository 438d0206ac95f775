//! Plans the next step of a deployment: [`plan`], a function of the deployment and its replica
//! sets.

use std::sync::Arc;

use client::kind::DEPLOYMENTS;
use objects::timestamp::Timestamp;
use serde_json::{Map, Value, json};

use super::rollout::{self, Bounds};
use crate::context::text;
use crate::observe::{Seconds, seconds};
use crate::workload::{int, is_deleting, owner_reference, replicas, template_hash};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const HASH: &str = "pod-template-hash";

/// Annotations of a deployment that are not copied to its replica sets.
const NOT_COPIED: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    "deployment.kubernetes.io/revision-history",
    DESIRED,
    MAXIMUM,
];

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Create(Box<Value>),
    Scale {
        name: String,
        from: i64,
        to: i64,
        annotations: Value,
    },
    Annotate {
        name: String,
        patch: Value,
    },
    Delete {
        name: String,
        uid: String,
    },
    /// A patch of the deployment's own metadata.
    Own(Value),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    /// The name of the replica set with the deployment's template, which may be created by this
    /// plan.
    pub(super) new: Option<String>,
    pub(super) created: bool,
    /// The time after which the deployment is synced again even without an event.
    pub(super) again: Option<Seconds>,
}

/// Returns true if a replica set has this template, ignoring the hash label.
pub(super) fn same_template(set: &Value, template: &Value) -> bool {
    let mut own = set["spec"]["template"].clone();
    if let Some(labels) = own["metadata"]["labels"].as_object_mut() {
        labels.remove(HASH);
    }
    own == *template
}

fn number(set: &Value, annotation: &str) -> Option<i64> {
    text(&set["metadata"]["annotations"][annotation]).parse().ok()
}

pub(super) fn revision_of(set: &Value) -> i64 {
    number(set, REVISION).unwrap_or(0)
}

/// Returns the oldest replica set with the deployment's template.
pub(super) fn newest<'a>(deployment: &Value, sets: &'a [Arc<Value>]) -> Option<&'a Arc<Value>> {
    let template = &deployment["spec"]["template"];
    let same = sets.iter().filter(|set| same_template(set, template));
    same.min_by_key(|set| {
        (text(&set["metadata"]["creationTimestamp"]), text(&set["metadata"]["name"]))
    })
}

pub(super) fn plan(
    deployment: &Value,
    sets: &[Arc<Value>],
    has_pods: &dyn Fn(&Value) -> bool,
    now: Timestamp,
) -> Plan {
    let new = newest(deployment, sets);
    let mut plan = Plan {
        new: new.map(|set| text(&set["metadata"]["name"]).to_owned()),
        again: deadline(deployment, now),
        ..Plan::default()
    };
    if is_deleting(deployment) {
        return plan;
    }
    let bounds = Bounds::of(deployment);
    let mut old: Vec<&Arc<Value>> =
        sets.iter().filter(|set| new.is_none_or(|new| !Arc::ptr_eq(set, new))).collect();
    old.sort_by_key(|set| {
        (text(&set["metadata"]["creationTimestamp"]), text(&set["metadata"]["name"]))
    });
    let paused = deployment["spec"]["paused"] == true;
    if paused || is_scaling(deployment, sets) {
        if let Some(new) = new {
            annotate(deployment, new, &old, &bounds, &mut plan);
        }
        rollout::scale(deployment, new, &old, &bounds, &mut plan);
        clean_up(deployment, &old, paused, &mut plan);
        return plan;
    }
    if deployment["spec"]["strategy"]["type"] == "Recreate" {
        let down = old.iter().filter(|set| replicas(set) > 0);
        plan.actions.extend(down.map(|set| rollout::scaled(set, 0, &bounds)));
        if !plan.actions.is_empty() || old.iter().any(|set| has_pods(set)) {
            return plan;
        }
        match new {
            None => create(deployment, &old, bounds.wanted, &bounds, &mut plan),
            Some(new) => {
                annotate(deployment, new, &old, &bounds, &mut plan);
                if replicas(new) != bounds.wanted {
                    plan.actions.push(rollout::scaled(new, bounds.wanted, &bounds));
                }
            }
        }
    } else {
        let Some(new) = new else {
            let count = rollout::for_new(&bounds, None, sets);
            create(deployment, &old, count, &bounds, &mut plan);
            return plan;
        };
        annotate(deployment, new, &old, &bounds, &mut plan);
        rollout::roll(new, &old, sets, &bounds, &mut plan);
    }
    clean_up(deployment, &old, false, &mut plan);
    plan
}

/// Returns true if the deployment was resized since its replica sets were last scaled.
fn is_scaling(deployment: &Value, sets: &[Arc<Value>]) -> bool {
    let wanted = replicas(deployment);
    let active = sets.iter().filter(|set| replicas(set) > 0);
    active.filter_map(|set| number(set, DESIRED)).any(|desired| desired != wanted)
}

/// Returns the time until `progressDeadlineSeconds` has passed.
fn deadline(deployment: &Value, now: Timestamp) -> Option<Seconds> {
    let allowed = deployment["spec"]["progressDeadlineSeconds"].as_i64()?;
    let conditions = deployment["status"]["conditions"].as_array()?;
    let progressing = conditions.iter().find(|c| c["type"] == "Progressing")?;
    if progressing["reason"] == "NewReplicaSetAvailable" || progressing["status"] != "True" {
        return None;
    }
    let since = seconds(text(&progressing["lastUpdateTime"]))?;
    Some((since + allowed - now.seconds() + 1).max(1))
}

fn next_revision(old: &[&Arc<Value>]) -> i64 {
    old.iter().map(|set| revision_of(set)).max().unwrap_or(0) + 1
}

fn copied(deployment: &Value) -> Map<String, Value> {
    let annotations = deployment["metadata"]["annotations"].as_object().into_iter().flatten();
    let ours = annotations.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    ours.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn create(deployment: &Value, old: &[&Arc<Value>], count: i64, bounds: &Bounds, plan: &mut Plan) {
    let mut template = deployment["spec"]["template"].clone();
    let hash = template_hash(&template, int(&deployment["status"]["collisionCount"]));
    template["metadata"]["labels"][HASH] = hash.as_str().into();
    let mut selector = deployment["spec"]["selector"].clone();
    selector["matchLabels"][HASH] = hash.as_str().into();
    let revision = next_revision(old).to_string();
    let mut annotations = copied(deployment);
    annotations.insert(REVISION.to_owned(), revision.as_str().into());
    annotations.extend(bounds.annotations());
    let name = format!("{}-{hash}", text(&deployment["metadata"]["name"]));
    let mut spec = json!({"replicas": count, "selector": selector, "template": template});
    if int(&deployment["spec"]["minReadySeconds"]) > 0 {
        spec["minReadySeconds"] = deployment["spec"]["minReadySeconds"].clone();
    }
    plan.actions.push(Action::Create(Box::new(json!({
        "kind": "ReplicaSet", "apiVersion": "apps/v1",
        "metadata": {
            "name": name, "namespace": deployment["metadata"]["namespace"],
            "labels": spec["template"]["metadata"]["labels"], "annotations": annotations,
            "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
        },
        "spec": spec,
    }))));
    plan.new = Some(name);
    plan.created = true;
    own_revision(deployment, &revision, plan);
}

fn own_revision(deployment: &Value, revision: &str, plan: &mut Plan) {
    if deployment["metadata"]["annotations"][REVISION] != revision {
        let patch = json!({"metadata": {"annotations": {REVISION: revision}}});
        plan.actions.push(Action::Own(patch));
    }
}

/// Updates the annotations of the new replica set: a revision above those of the old ones, the
/// deployment's own annotations and the desired size.
fn annotate(
    deployment: &Value,
    new: &Value,
    old: &[&Arc<Value>],
    bounds: &Bounds,
    plan: &mut Plan,
) {
    let revision = next_revision(old).max(revision_of(new)).to_string();
    let mut wanted = copied(deployment);
    wanted.insert(REVISION.to_owned(), revision.as_str().into());
    if replicas(new) == bounds.wanted {
        wanted.extend(bounds.annotations());
    }
    let current = &new["metadata"]["annotations"];
    wanted.retain(|key, value| current[key.as_str()] != *value);
    let mut patch = json!({});
    if !wanted.is_empty() {
        patch["metadata"]["annotations"] = wanted.into();
    }
    let min_ready = int(&deployment["spec"]["minReadySeconds"]);
    if int(&new["spec"]["minReadySeconds"]) != min_ready {
        patch["spec"]["minReadySeconds"] = min_ready.into();
    }
    if patch != json!({}) {
        let name = text(&new["metadata"]["name"]).to_owned();
        plan.actions.push(Action::Annotate { name, patch });
    }
    own_revision(deployment, &revision, plan);
}

/// Deletes empty old replica sets beyond `revisionHistoryLimit`.
fn clean_up(deployment: &Value, old: &[&Arc<Value>], paused: bool, plan: &mut Plan) {
    let complete = super::status::is_complete(deployment);
    let Some(keep) = deployment["spec"]["revisionHistoryLimit"].as_i64() else { return };
    if !complete && !paused {
        return;
    }
    let mut empty: Vec<&&Arc<Value>> = old.iter().filter(|set| !is_deleting(set)).collect();
    let excess = empty.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
    empty.sort_by_key(|set| revision_of(set));
    for set in empty.into_iter().take(excess) {
        let idle = replicas(set) == 0
            && int(&set["status"]["replicas"]) == 0
            && int(&set["metadata"]["generation"]) <= int(&set["status"]["observedGeneration"]);
        if idle {
            let of = |field: &str| text(&set["metadata"][field]).to_owned();
            plan.actions.push(Action::Delete { name: of("name"), uid: of("uid") });
        }
    }
}

impl Bounds {
    /// Returns the annotations in which replica sets record the deployment's size.
    pub(super) fn annotations(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert(DESIRED.to_owned(), self.wanted.to_string().into());
        map.insert(MAXIMUM.to_owned(), (self.wanted + self.surge).to_string().into());
        map
    }
}

#[cfg(test)]
mod tests;
