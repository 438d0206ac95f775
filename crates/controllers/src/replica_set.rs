//! Replica sets: keep the desired number of pods.
//!
//! [`plan`] decides how many pods are created and which are deleted; the rest of the file executes
//! it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::events::InvolvedObject;
use client::kind::REPLICA_SETS;
use client::{BoxFuture, Error, Key};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use crate::context::ControllerContext;
use crate::observe::{Pod, Seconds};
use crate::workload::{
    claimed_pods, conditions, create_pods, delete_pods, int, is_deleting, pod_from_template,
    replicas, selector, set_condition, write_status,
};
use crate::workqueue::Reconcile;

/// The most pods created or deleted in one sync. Upstream's figure.
const BURST: usize = 500;

/// The change of the number of pods.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

fn plan(wanted: i64, active: &[Arc<Pod>]) -> Plan {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    match active.len() {
        current if current < wanted => Plan::Create((wanted - current).min(BURST)),
        current if current > wanted => {
            let mut ranked = active.to_vec();
            rank(&mut ranked);
            ranked.truncate((current - wanted).min(BURST));
            Plan::Delete(ranked)
        }
        _ => Plan::Nothing,
    }
}

/// Sorts pods by preference for deletion: without a node, not running, not ready, low deletion
/// cost, many on the same node, ready for the shortest time, most restarts, youngest.
fn rank(pods: &mut [Arc<Pod>]) {
    let mut crowd: HashMap<String, usize> = HashMap::new();
    for pod in pods.iter().filter(|pod| !pod.node.is_empty()) {
        *crowd.entry(pod.node.clone()).or_default() += 1;
    }
    pods.sort_by_key(|pod| {
        let crowded = crowd.get(&pod.node).copied().unwrap_or(0);
        (
            pod.progress(),
            pod.deletion_cost,
            std::cmp::Reverse(crowded),
            std::cmp::Reverse(pod.ready),
            std::cmp::Reverse(pod.restarts),
            std::cmp::Reverse(pod.created),
            pod.name.clone(),
        )
    });
}

/// Returns the status, and the time until it may change without an event.
fn status(
    set: &Value,
    pods: &[Arc<Pod>],
    failure: Option<(&str, &str)>,
    now: Timestamp,
) -> (Value, Option<Seconds>) {
    let min_ready = int(&set["spec"]["minReadySeconds"]);
    let template = set["spec"]["template"]["metadata"]["labels"].as_object();
    let labelled = |pod: &&Arc<Pod>| {
        let mut labels = template.into_iter().flatten();
        labels.all(|(key, value)| pod.labels.get(key).map(String::as_str) == value.as_str())
    };
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let ready: Vec<_> = active.iter().filter(|pod| pod.is_ready()).collect();
    let available = ready.iter().filter(|pod| pod.is_available(min_ready, now.seconds())).count();
    let mut status = json!({
        "replicas": active.len(), "observedGeneration": set["metadata"]["generation"],
    });
    for (field, count) in [
        ("fullyLabeledReplicas", active.iter().copied().filter(labelled).count()),
        ("readyReplicas", ready.len()),
        ("availableReplicas", available),
    ] {
        if count > 0 {
            status[field] = count.into();
        }
    }
    let mut conditions = conditions(set);
    match failure {
        Some((reason, message)) => {
            set_condition(&mut conditions, ("ReplicaFailure", true), (reason, message), now, false);
        }
        None => conditions.retain(|condition| condition["type"] != "ReplicaFailure"),
    }
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    let due = ready.iter().filter_map(|pod| Some(pod.ready? + min_ready - now.seconds()));
    (status, due.filter(|wait| *wait > 0).min())
}

#[derive(Debug)]
pub(crate) struct ReplicaSets(pub(crate) Arc<ControllerContext>);

impl Reconcile for ReplicaSets {
    const NAME: &'static str = "replicaset";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

impl ReplicaSets {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        let Some(set) = context.replica_sets.get(&key) else { return Ok(None) };
        let Some(selector) = selector(&set) else { return Ok(None) };
        let recorder = context.recorder.named("replicaset-controller");
        let subject = InvolvedObject::of(REPLICA_SETS, &set);
        let mut pods = claimed_pods(context, REPLICA_SETS, &set, &selector).await?;
        let mut failed = None;
        if !is_deleting(&set) {
            let active: Vec<_> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
            match plan(replicas(&set), &active) {
                Plan::Nothing => {}
                Plan::Create(count) => {
                    let pod = pod_from_template(REPLICA_SETS, &set, &set["spec"]["template"]);
                    let made = create_pods(context, &recorder, &subject, vec![pod; count]).await;
                    failed = made.error.map(|error| ("FailedCreate", error));
                }
                Plan::Delete(pods) => {
                    let done = delete_pods(context, &recorder, &subject, &pods).await;
                    failed = done.err().map(|error| ("FailedDelete", error));
                }
            }
            pods = claimed_pods(context, REPLICA_SETS, &set, &selector).await?;
        }
        let failure = failed.as_ref().map(|(reason, error)| (*reason, error.to_string()));
        let failure = failure.as_ref().map(|(reason, message)| (*reason, message.as_str()));
        let (status, due) = status(&set, &pods, failure, context.clock.now());
        write_status(context, REPLICA_SETS, &context.replica_sets, &set, status).await?;
        match failed {
            Some((_, error)) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(due.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Phase;

    fn pod(name: &str, edit: impl FnOnce(&mut Pod)) -> Arc<Pod> {
        let mut pod = Pod {
            name: name.to_owned(),
            node: "n".to_owned(),
            phase: Phase::Running,
            ready: Some(100),
            created: 50,
            ..Pod::default()
        };
        edit(&mut pod);
        Arc::new(pod)
    }

    #[test]
    fn deletion_order_matches_upstream() {
        let mut pods = vec![
            pod("old", |_| {}),
            pod("young", |p| p.created = 60),
            pod("ready-later", |p| p.ready = Some(150)),
            pod("restarted", |p| p.restarts = 2),
            pod("cheap", |p| p.deletion_cost = -1),
            pod("unready", |p| p.ready = None),
            pod("pending", |p| p.phase = Phase::Pending),
            pod("homeless", |p| p.node = String::new()),
            pod("alone", |p| p.node = "m".to_owned()),
        ];
        rank(&mut pods);
        let names: Vec<_> = pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "homeless",
                "pending",
                "unready",
                "cheap",
                "ready-later",
                "restarted",
                "young",
                "old",
                "alone"
            ]
        );
    }

    #[test]
    fn plan_creates_missing_and_deletes_excess_pods() {
        let three = [pod("a", |_| {}), pod("b", |p| p.created = 70), pod("c", |_| {})];
        assert_eq!(plan(3, &three), Plan::Nothing);
        assert_eq!(plan(5, &three), Plan::Create(2));
        assert_eq!(plan(2_000, &three), Plan::Create(BURST));
        assert_eq!(plan(2, &three), Plan::Delete(vec![three[1].clone()]));
    }

    #[test]
    fn status_counts_ready_and_available_pods() {
        let set = json!({
            "metadata": {"generation": 3},
            "spec": {"minReadySeconds": 10, "template": {"metadata": {"labels": {"a": "b"}}}},
        });
        let pods = [
            pod("x", |p| p.ready = Some(95)),
            pod("y", |p| p.ready = Some(80)),
            pod("z", |p| p.deleting = Some(1)),
        ];
        let (failure, due) = status(&set, &pods, None, Timestamp::new(100, 0));
        assert_eq!(
            failure,
            json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 1, "observedGeneration": 3})
        );
        assert_eq!(due, Some(5));
        let (failure, _) = status(&set, &[], Some(("FailedCreate", "no")), Timestamp::new(100, 0));
        assert_eq!(failure["conditions"][0]["reason"], "FailedCreate");
    }
}
