//! Disruption budgets: the number of pods that may be evicted now.

use std::sync::Arc;
use std::time::Duration;

use client::kind::BUDGETS;
use client::{BoxFuture, Error, Key, Update};
use objects::selector::LabelSelector;
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use crate::context::{BY_NAMESPACE, ControllerContext, UNTYPED_BY_NAMESPACE, controller_of, text};
use crate::int_or_percent::scaled_value;
use crate::observe::{Pod, seconds};
use crate::workload::{conditions, is_deleting, replicas, set_condition, write_status};
use crate::workqueue::Reconcile;

/// The time for which a pod with an allowed eviction counts as disrupted although it is not being
/// deleted. Upstream's figure.
const EVICTION_TIME: i64 = 120;

/// Returns the budgets that a change of a pod concerns.
pub(crate) fn keys_for_pod(context: &ControllerContext, update: &Update<Pod>) -> Vec<Key> {
    let mut keys = Vec::new();
    for pod in [&update.old, &update.new].into_iter().flatten() {
        for (key, budget) in context.budgets.find(UNTYPED_BY_NAMESPACE, &pod.namespace) {
            if selected(&budget).is_some_and(|s| s.matches_map(&pod.labels)) {
                keys.push(key);
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Returns all budgets of the namespace if a deployment or replica set was resized.
pub(crate) fn keys_for_owner(context: &ControllerContext, update: &Update<Value>) -> Vec<Key> {
    let size = |object: &Option<Arc<Value>>| object.as_ref().map(|o| replicas(o));
    if size(&update.old) == size(&update.new) {
        return Vec::new();
    }
    let budgets = context.budgets.find(UNTYPED_BY_NAMESPACE, update.key.namespace());
    budgets.into_iter().map(|(key, _)| key).collect()
}

/// Returns the selector of a budget. An empty one selects all pods of the namespace, an absent one
/// none.
fn selected(budget: &Value) -> Option<LabelSelector> {
    let selector = &budget["spec"]["selector"];
    if selector.is_object() { LabelSelector::from_value(selector).ok() } else { None }
}

/// Returns the status, and the time until it may change without an event. `scale` is the number of
/// pods that the controllers want.
fn status(budget: &Value, pods: &[Arc<Pod>], scale: i64, now: Timestamp) -> (Value, Option<i64>) {
    let spec = &budget["spec"];
    let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let (expected, desired) = if !spec["maxUnavailable"].is_null() {
        (scale, (scale - scaled_value(&spec["maxUnavailable"], scale, true)).max(0))
    } else if spec["minAvailable"].is_string() {
        (scale, scaled_value(&spec["minAvailable"], scale, true))
    } else {
        (count, spec["minAvailable"].as_i64().unwrap_or(0))
    };
    let mut disrupted = serde_json::Map::new();
    let mut due: Option<i64> = None;
    let recorded = budget["status"]["disruptedPods"].as_object().into_iter().flatten();
    for (name, since) in recorded {
        let left = seconds(text(since)).unwrap_or(0) + EVICTION_TIME - now.seconds();
        let exists = pods.iter().any(|pod| pod.name == *name && pod.deleting.is_none());
        if exists && left > 0 {
            disrupted.insert(name.clone(), since.clone());
            due = Some(due.map_or(left, |due| due.min(left)));
        }
    }
    let healthy = pods.iter().filter(|pod| {
        pod.deleting.is_none() && !disrupted.contains_key(&pod.name) && pod.is_ready()
    });
    let healthy = i64::try_from(healthy.count()).unwrap_or(i64::MAX);
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let mut status = json!({
        "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected,
        "disruptionsAllowed": allowed, "observedGeneration": budget["metadata"]["generation"],
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = disrupted.into();
    }
    let mut conditions = conditions(budget);
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    set_condition(&mut conditions, ("DisruptionAllowed", allowed > 0), (reason, ""), now, false);
    for condition in &mut conditions {
        condition["observedGeneration"] = budget["metadata"]["generation"].clone();
    }
    status["conditions"] = conditions.into();
    (status, due)
}

#[derive(Debug)]
pub(crate) struct Budgets(pub(crate) Arc<ControllerContext>);

impl Reconcile for Budgets {
    const NAME: &'static str = "disruption";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let context = &*self.0;
            let Some(budget) = context.budgets.get(&key) else { return Ok(None) };
            if is_deleting(&budget) {
                return Ok(None);
            }
            let selector = selected(&budget);
            let all = context.pods.find(BY_NAMESPACE, key.namespace());
            let pods: Vec<Arc<Pod>> = all
                .into_iter()
                .map(|(_, pod)| pod)
                .filter(|pod| selector.as_ref().is_some_and(|s| s.matches_map(&pod.labels)))
                .filter(|pod| !pod.is_finished())
                .collect();
            let scale = self.scale(key.namespace(), &pods);
            let (status, due) = status(&budget, &pods, scale, context.clock.now());
            write_status(context, BUDGETS, &context.budgets, &budget, status).await?;
            Ok(due.map(|wait| Duration::from_secs(wait.unsigned_abs())))
        })
    }
}

impl Budgets {
    /// Returns the number of pods that the controllers of these pods want. A pod without a
    /// controller counts as one.
    fn scale(&self, namespace: &str, pods: &[Arc<Pod>]) -> i64 {
        let mut controllers: std::collections::BTreeMap<String, i64> = Default::default();
        let mut alone = 0;
        for pod in pods {
            let owner = pod.owner.as_ref().filter(|owner| owner.kind == "ReplicaSet");
            let set = owner.and_then(|o| self.0.replica_sets.get(&Key::new(namespace, &o.name)));
            let Some(set) = set else {
                alone += 1;
                continue;
            };
            let deployment = controller_of(&set).filter(|owner| owner["kind"] == "Deployment");
            let deployment = deployment.and_then(|owner| {
                self.0.deployments.get(&Key::new(namespace, text(&owner["name"])))
            });
            let top = deployment.unwrap_or(set);
            controllers.insert(text(&top["metadata"]["uid"]).to_owned(), replicas(&top));
        }
        controllers.values().sum::<i64>() + alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_disruptions_follow_the_budget() {
        let check = |spec: Value, ready: usize, pods: usize, scale: i64, expected: [i64; 4]| {
            let pods: Vec<Arc<Pod>> = (0..pods)
                .map(|i| {
                    let ready = (i < ready).then_some(1);
                    Arc::new(Pod { name: i.to_string(), ready, ..Pod::default() })
                })
                .collect();
            let budget = json!({"metadata": {"generation": 1}, "spec": spec});
            let (status, _) = status(&budget, &pods, scale, Timestamp::new(0, 0));
            let found = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"]
                .map(|field| status[field].as_i64().unwrap());
            assert_eq!(found, expected, "{spec}");
        };
        check(json!({"minAvailable": 2}), 3, 3, 3, [3, 2, 3, 1]);
        check(json!({"minAvailable": "50%"}), 3, 3, 5, [5, 3, 3, 0]);
        check(json!({"maxUnavailable": 1}), 3, 3, 3, [3, 2, 3, 1]);
        check(json!({"maxUnavailable": 1}), 2, 3, 3, [3, 2, 2, 0]);
        check(json!({"maxUnavailable": "30%"}), 10, 10, 10, [10, 7, 10, 3]);
        check(json!({"minAvailable": 0}), 0, 0, 0, [0, 0, 0, 0]);
    }

    #[test]
    fn disrupted_pod_is_not_healthy() {
        let pods = [
            Arc::new(Pod { name: "a".into(), ready: Some(1), ..Pod::default() }),
            Arc::new(Pod { name: "b".into(), ready: Some(1), ..Pod::default() }),
        ];
        let budget = json!({
            "metadata": {"generation": 1}, "spec": {"minAvailable": 1},
            "status": {"disruptedPods": {"a": "1970-01-01T00:00:10Z", "z": "1970-01-01T00:00:10Z"}},
        });
        let (written, due) = status(&budget, &pods, 2, Timestamp::new(30, 0));
        assert_eq!(
            (&written["currentHealthy"], &written["disruptionsAllowed"]),
            (&json!(1), &json!(0))
        );
        assert_eq!((written["disruptedPods"].as_object().unwrap().len(), due), (1, Some(100)));
        let (written, _) = status(&budget, &pods, 2, Timestamp::new(200, 0));
        assert_eq!(written["currentHealthy"], 2);
    }
}
