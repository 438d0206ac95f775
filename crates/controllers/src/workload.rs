//! Functions of the workload controllers: owners, pods from templates, claims, conditions, hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::events::{Event, InvolvedObject};
use client::kind::{Kind, PODS};
use client::{CacheState, DeleteOptions, Error, Key, PatchKind, ignore_not_found};
use objects::selector::LabelSelector;
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::error;

use crate::context::{ControllerContext, text};
use crate::observe::Pod;
use crate::record::Recorder;

pub(crate) fn int(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// Returns `spec.replicas`, which defaults to one.
pub(crate) fn replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(1)
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Returns the selector, unless it is absent, unreadable or empty.
pub(crate) fn selector(object: &Value) -> Option<LabelSelector> {
    let selector = &object["spec"]["selector"];
    let read = LabelSelector::from_value(selector).ok()?;
    (selector.is_object() && !read.is_empty()).then_some(read)
}

pub(crate) fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    labels.map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
}

pub(crate) fn owner_reference(kind: Kind, owner: &Value) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.kind,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Returns a pod built from the owner's template.
pub(crate) fn pod_from_template(kind: Kind, owner: &Value, template: &Value) -> Value {
    let mut metadata = json!({
        "generateName": format!("{}-", text(&owner["metadata"]["name"])),
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": [owner_reference(kind, owner)],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": template["spec"]})
}

/// The claim of an owner to an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Own,
    /// Selected, and without a controller.
    Adopt,
    /// Owned, but no longer selected.
    Release,
    Leave,
}

/// Decides the claim to an object; `owner` is the uid of the object's controller.
pub(crate) fn claim(
    (uid, owner_deleting): (&str, bool),
    selected: bool,
    owner: Option<&str>,
    deleting: bool,
) -> Claim {
    match owner {
        Some(owner) if owner != uid => Claim::Leave,
        Some(_) if selected => Claim::Own,
        Some(_) if owner_deleting => Claim::Leave,
        Some(_) => Claim::Release,
        None if selected && !owner_deleting && !deleting => Claim::Adopt,
        None => Claim::Leave,
    }
}

/// Adds or removes the owner reference.
pub(crate) async fn settle_claim(
    context: &ControllerContext,
    kind: Kind,
    (namespace, name, uid): (&str, &str, &str),
    owner: (Kind, &Value),
    adopt: bool,
) -> Result<(), Error> {
    let patch = if adopt {
        json!({"metadata": {"uid": uid, "ownerReferences": [owner_reference(owner.0, owner.1)]}})
    } else {
        let gone = json!({"$patch": "delete", "uid": owner.1["metadata"]["uid"]});
        json!({"metadata": {"uid": uid, "ownerReferences": [gone]}})
    };
    let patched =
        context.client.patch(kind, namespace, name, PatchKind::StrategicMerge, &patch).await;
    ignore_not_found(patched.map(|_| ()))
}

/// Returns the owner's pods, after adoption and release.
pub(crate) async fn claimed_pods(
    context: &ControllerContext,
    kind: Kind,
    owner: &Value,
    selector: &LabelSelector,
) -> Result<Vec<Arc<Pod>>, Error> {
    let uid = text(&owner["metadata"]["uid"]);
    let namespace = text(&owner["metadata"]["namespace"]);
    let mut own = Vec::new();
    for (key, pod) in context.pods.find(crate::context::BY_NAMESPACE, namespace) {
        let current = pod.owner.as_ref().map(|owner| owner.uid.as_str());
        let selected = selector.matches_map(&pod.labels);
        let claimant = (uid, is_deleting(owner));
        match claim(claimant, selected, current, pod.deleting.is_some() || pod.is_finished()) {
            Claim::Own => own.push(pod),
            Claim::Leave => {}
            settle => {
                let adopt = settle == Claim::Adopt;
                let name = (namespace, key.name(), pod.uid.as_str());
                settle_claim(context, PODS, name, (kind, owner), adopt).await?;
                if adopt {
                    own.push(pod);
                }
            }
        }
    }
    Ok(own)
}

/// The result of creating pods.
#[derive(Debug, Default)]
pub(crate) struct Creation {
    pub(crate) made: usize,
    pub(crate) error: Option<Error>,
}

/// Creates pods in batches of one, two, four and so on, so that an error stops the rest. Waits
/// until the cache shows them.
pub(crate) async fn create_pods(
    context: &ControllerContext,
    recorder: &Recorder,
    owner: &InvolvedObject,
    pods: Vec<Value>,
) -> Creation {
    let mut done = Creation::default();
    let mut newest = 0;
    let mut rest = pods.into_iter();
    let mut batch = 1;
    while done.error.is_none() {
        let mut under_way = JoinSet::new();
        for pod in rest.by_ref().take(batch) {
            let (client, namespace) = (context.client.clone(), owner.namespace.clone());
            under_way.spawn(async move { client.create(PODS, &namespace, &pod).await });
        }
        if under_way.is_empty() {
            break;
        }
        batch *= 2;
        while let Some(joined) = under_way.join_next().await {
            match joined {
                Ok(Ok(pod)) => {
                    done.made += 1;
                    newest = newest.max(revision(&pod));
                    let message = format!("Created pod: {}", text(&pod["metadata"]["name"]));
                    recorder.record(Event::normal(owner, "SuccessfulCreate", message));
                }
                Ok(Err(error)) => {
                    // The owner is deleted together with its namespace; an event would only be
                    // noise.
                    if !error.is_namespace_terminating() {
                        let message = format!("Error creating: {error}");
                        recorder.record(Event::warning(owner, "FailedCreate", message));
                    }
                    done.error = Some(error);
                }
                Err(ended) => error!(error = %ended, "a task that creates a pod ended early"),
            }
        }
    }
    if newest > 0
        && let Err(error) = context.pods.caught_up(&CacheState::Revision(newest)).await
    {
        done.error = done.error.or(Some(error));
    }
    done
}

pub(crate) fn revision(object: &Value) -> u64 {
    text(&object["metadata"]["resourceVersion"]).parse().unwrap_or(0)
}

/// Deletes pods and waits until the cache shows it.
pub(crate) async fn delete_pods(
    context: &ControllerContext,
    recorder: &Recorder,
    owner: &InvolvedObject,
    pods: &[Arc<Pod>],
) -> Result<(), Error> {
    for pod in pods {
        let options = DeleteOptions::of_uid(&pod.uid);
        match context.client.delete(PODS, &pod.namespace, &pod.name, &options).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.name);
                recorder.record(Event::normal(owner, "SuccessfulDelete", message));
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                let message = format!("Error deleting: {error}");
                recorder.record(Event::warning(owner, "FailedDelete", message));
                return Err(error);
            }
        }
    }
    for pod in pods {
        context
            .pods
            .caught_up(&CacheState::Deleting(&pod.key(), &|now: &Pod| {
                now.uid != pod.uid || now.deleting.is_some()
            }))
            .await?;
    }
    Ok(())
}

/// Writes a status if it differs from the current one.
pub(crate) async fn write_status(
    context: &ControllerContext,
    kind: Kind,
    cache: &client::Cache<Value>,
    object: &Value,
    status: Value,
) -> Result<(), Error> {
    if object["status"] == status {
        return Ok(());
    }
    let mut new = object.clone();
    new["status"] = status;
    new["kind"] = kind.kind.into();
    new["apiVersion"] = kind.api_version().into();
    match context.client.update_subresource(kind, "status", &new).await {
        Ok(written) => cache.caught_up(&CacheState::Revision(revision(&written))).await,
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sets a condition and returns true if it changed. The transition time changes only with the
/// status.
pub(crate) fn set_condition(
    conditions: &mut Vec<Value>,
    (kind, holds): (&str, bool),
    (reason, message): (&str, &str),
    now: Timestamp,
    updates: bool,
) -> bool {
    let status = if holds { "True" } else { "False" };
    let time = now.to_seconds_text();
    let found = conditions.iter().position(|condition| condition["type"] == kind);
    let mut new = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time,
    });
    if updates {
        new["lastUpdateTime"] = time.into();
    }
    match found {
        Some(at) => {
            let old = &conditions[at];
            if old["status"] == status
                && old["reason"] == reason
                && (old["message"] == message || !updates)
            {
                return false;
            }
            if old["status"] == status {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            conditions[at] = new;
        }
        None => conditions.push(new),
    }
    true
}

pub(crate) fn conditions(object: &Value) -> Vec<Value> {
    object["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

/// Returns a hash of a template, at most ten characters of the alphabet that upstream uses in
/// names.
pub(crate) fn template_hash(template: &Value, collisions: i64) -> String {
    let mut hash: u32 = 2_166_136_261;
    let text = template.to_string();
    for byte in text.bytes().chain(collisions.to_le_bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    }
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    let digits = hash.to_string();
    digits.bytes().map(|digit| char::from(alphabet[usize::from(digit) % alphabet.len()])).collect()
}

/// Returns the keys of the controllers of one kind that a change of a pod concerns: its owner, or
/// those whose selector matches a pod without one.
pub(crate) fn keys_of_owners(
    update: &client::Update<Pod>,
    kind: Kind,
    owners: &client::Cache<Value>,
) -> Vec<Key> {
    let mut keys = BTreeSet::new();
    let api_version = kind.api_version();
    for pod in [&update.old, &update.new].into_iter().flatten() {
        match &pod.owner {
            Some(owner) if owner.kind == kind.kind && owner.api_version == api_version => {
                keys.insert(Key::new(&pod.namespace, &owner.name));
            }
            Some(_) => {}
            None => {
                for (key, owner) in
                    owners.find(crate::context::UNTYPED_BY_NAMESPACE, &pod.namespace)
                {
                    if selector(&owner).is_some_and(|s| s.matches_map(&pod.labels)) {
                        keys.insert(key);
                    }
                }
            }
        }
    }
    keys.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_follow_selector_and_owner() {
        for (selected, owner, owner_deleting, deleting, expected) in [
            (true, Some("me"), false, false, Claim::Own),
            (true, Some("me"), true, true, Claim::Own),
            (false, Some("me"), false, false, Claim::Release),
            (false, Some("me"), true, false, Claim::Leave),
            (true, Some("you"), false, false, Claim::Leave),
            (true, None, false, false, Claim::Adopt),
            (true, None, true, false, Claim::Leave),
            (true, None, false, true, Claim::Leave),
            (false, None, false, false, Claim::Leave),
        ] {
            let found = claim(("me", owner_deleting), selected, owner, deleting);
            assert_eq!(found, expected, "{selected} {owner:?} {owner_deleting} {deleting}");
        }
    }

    #[test]
    fn hashes_differ_by_template_and_collision_count() {
        let (a, b) = (json!({"a": 1}), json!({"a": 2}));
        assert_eq!(template_hash(&a, 0), template_hash(&a, 0));
        assert_ne!(template_hash(&a, 0), template_hash(&b, 0));
        assert_ne!(template_hash(&a, 0), template_hash(&a, 1));
    }

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        let at = |seconds| Timestamp::new(seconds, 0);
        assert!(set_condition(&mut conditions, ("A", true), ("R", "m"), at(0), true));
        assert!(!set_condition(&mut conditions, ("A", true), ("R", "m"), at(5), true));
        assert!(set_condition(&mut conditions, ("A", true), ("R", "n"), at(6), true));
        assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(conditions[0]["lastUpdateTime"], "1970-01-01T00:00:06Z");
        assert!(set_condition(&mut conditions, ("A", false), ("R", "n"), at(9), true));
        assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    }
}
