//! Plans which pods of a daemon set are created and deleted, and computes its status.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::nodes::ShouldRun;
use super::{HASH, node_of};
use crate::int_or_percent::scaled_value;
use crate::observe::{Phase, Pod, Seconds};
use crate::workload::int;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// The pods in `delete` that have failed.
    pub(super) failed: Vec<Arc<Pod>>,
}

fn is_new(pod: &Pod, hash: &str) -> bool {
    pod.labels.get(HASH).is_some_and(|own| own == hash)
}

pub(super) fn plan(
    set: &Value,
    should_run: &BTreeMap<String, ShouldRun>,
    pods: &[Arc<Pod>],
    hash: &str,
    now: Seconds,
) -> Plan {
    let mut plan = Plan::default();
    let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        by_node.entry(node_of(pod)).or_default().push(pod);
    }
    let update = &set["spec"]["updateStrategy"];
    let rolling = update["type"] != "OnDelete";
    let desired =
        should_run.values().filter(|should_run_on| **should_run_on == ShouldRun::Yes).count();
    let desired = i64::try_from(desired).unwrap_or(i64::MAX);
    let surge =
        if rolling { scaled_value(&update["rollingUpdate"]["maxSurge"], desired, true) } else { 0 };
    let mut unavailable = scaled_value(&update["rollingUpdate"]["maxUnavailable"], desired, true);
    if surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    let min_ready = int(&set["spec"]["minReadySeconds"]);
    // Nodes without an available pod count against `maxUnavailable`.
    let mut missing = 0;
    let mut outdated: Vec<&Arc<Pod>> = Vec::new();
    let mut surging = 0;
    let mut surge_candidates: Vec<&str> = Vec::new();
    for (node, should_run_on) in should_run {
        let on_node = by_node.get(node.as_str()).map(Vec::as_slice).unwrap_or_default();
        let (failed, alive): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = on_node
            .iter()
            .filter(|pod| pod.deleting.is_none())
            .partition(|pod| pod.phase == Phase::Failed);
        let leaving = on_node.iter().any(|pod| pod.deleting.is_some());
        match should_run_on {
            ShouldRun::No => {
                plan.delete.extend(failed.iter().chain(&alive).map(|pod| (*pod).clone()));
            }
            ShouldRun::ContinueOnly => plan.delete.extend(failed.iter().map(|pod| (*pod).clone())),
            ShouldRun::Yes => {
                plan.failed.extend(failed.iter().map(|pod| (*pod).clone()));
                plan.delete.extend(failed.iter().map(|pod| (*pod).clone()));
                if alive.is_empty() {
                    missing += 1;
                    // The old pod's name and resources are free only after it is gone.
                    if !leaving && failed.is_empty() {
                        plan.create.push(node.clone());
                    }
                    continue;
                }
                let available = |pod: &&Arc<Pod>| pod.is_available(min_ready, now);
                let mut news: Vec<&Arc<Pod>> =
                    alive.iter().copied().filter(|pod| is_new(pod, hash)).collect();
                let mut olds: Vec<&Arc<Pod>> =
                    alive.iter().copied().filter(|pod| !is_new(pod, hash)).collect();
                // The oldest of several pods stays.
                for group in [&mut news, &mut olds] {
                    group.sort_by_key(|pod| (pod.node.is_empty(), pod.created, pod.name.clone()));
                    for extra in group.iter().skip(1) {
                        plan.delete.push((*extra).clone());
                    }
                    group.truncate(1);
                }
                match (news.first(), olds.first()) {
                    (Some(new), Some(old)) => {
                        if available(new) {
                            plan.delete.push((*old).clone());
                        } else {
                            surging += 1;
                        }
                    }
                    (Some(new), None) => missing += i64::from(!available(new)),
                    (None, Some(old)) if rolling => {
                        if !available(old) {
                            missing += 1;
                            if surge == 0 {
                                plan.delete.push((*old).clone());
                            } else {
                                surge_candidates.insert(0, node);
                            }
                        } else if surge > 0 {
                            surge_candidates.push(node);
                        } else {
                            outdated.push(old);
                        }
                    }
                    (None, Some(old)) => missing += i64::from(!available(old)),
                    (None, None) => {}
                }
            }
        }
    }
    for (node, on_node) in &by_node {
        if !should_run.contains_key(*node) {
            let alive = on_node.iter().filter(|pod| pod.deleting.is_none() && !node.is_empty());
            plan.delete.extend(alive.map(|pod| (*pod).clone()));
        }
    }
    let may_go = usize::try_from(unavailable - missing).unwrap_or(0);
    plan.delete.extend(outdated.into_iter().take(may_go).cloned());
    let may_come = usize::try_from(surge - surging).unwrap_or(0);
    plan.create.extend(surge_candidates.into_iter().take(may_come).map(str::to_owned));
    plan
}

/// Returns the status, and the time until it may change without an event.
pub(super) fn status(
    set: &Value,
    should_run: &BTreeMap<String, ShouldRun>,
    pods: &[Arc<Pod>],
    hash: &str,
    now: Seconds,
) -> (Value, Option<Seconds>) {
    let min_ready = int(&set["spec"]["minReadySeconds"]);
    let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        by_node.entry(node_of(pod)).or_default().push(pod);
    }
    let [mut desired, mut current, mut misplaced, mut ready, mut available, mut updated] =
        [0_i64; 6];
    let mut due: Option<Seconds> = None;
    for (node, should_run_on) in should_run {
        let on_node = by_node.get(node.as_str()).map(Vec::as_slice).unwrap_or_default();
        if *should_run_on != ShouldRun::Yes {
            misplaced += i64::from(*should_run_on == ShouldRun::No && !on_node.is_empty());
            continue;
        }
        desired += 1;
        let oldest = on_node.iter().min_by_key(|pod| (!pod.is_ready(), pod.created));
        let Some(pod) = oldest else { continue };
        current += 1;
        ready += i64::from(pod.is_ready());
        available += i64::from(pod.is_available(min_ready, now));
        updated += i64::from(on_node.iter().any(|pod| is_new(pod, hash)));
        if let Some(wait) = pod.ready.map(|since| since + min_ready - now).filter(|wait| *wait > 0)
        {
            due = Some(due.map_or(wait, |due| due.min(wait)));
        }
    }
    let mut status = json!({
        "currentNumberScheduled": current, "numberMisscheduled": misplaced,
        "desiredNumberScheduled": desired, "numberReady": ready,
        "observedGeneration": set["metadata"]["generation"],
    });
    for (field, count) in [
        ("updatedNumberScheduled", updated),
        ("numberAvailable", available),
        ("numberUnavailable", desired - available),
    ] {
        if count > 0 {
            status[field] = count.into();
        }
    }
    let collisions = &set["status"]["collisionCount"];
    if !collisions.is_null() {
        status["collisionCount"] = collisions.clone();
    }
    (status, due)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, hash: &str, ready: bool) -> Arc<Pod> {
        Arc::new(Pod {
            name: name.to_owned(),
            node: node.to_owned(),
            labels: BTreeMap::from([(HASH.to_owned(), hash.to_owned())]),
            phase: Phase::Running,
            ready: ready.then_some(1),
            ..Pod::default()
        })
    }

    fn should_run(nodes: &[(&str, ShouldRun)]) -> BTreeMap<String, ShouldRun> {
        nodes.iter().map(|(name, should_run_on)| ((*name).to_owned(), *should_run_on)).collect()
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn every_eligible_node_gets_one_pod() {
        let set = json!({"spec": {}});
        let should_run = should_run(&[
            ("a", ShouldRun::Yes),
            ("b", ShouldRun::Yes),
            ("c", ShouldRun::ContinueOnly),
            ("d", ShouldRun::No),
        ]);
        let pods = [
            pod("b1", "b", "h", true),
            pod("b2", "b", "h", true),
            pod("c1", "c", "h", true),
            pod("d1", "d", "h", true),
            pod("e1", "e", "h", true),
        ];
        let plan = plan(&set, &should_run, &pods, "h", 10);
        assert_eq!(plan.create, ["a"]);
        assert_eq!(names(&plan.delete), ["b2", "d1", "e1"]);
    }

    #[test]
    fn failed_pod_is_deleted_before_its_replacement_is_created() {
        let failed = Arc::new(Pod { phase: Phase::Failed, ..(*pod("x", "a", "h", false)).clone() });
        let set = json!({"spec": {}});
        let first = plan(
            &set,
            &should_run(&[("a", ShouldRun::Yes)]),
            std::slice::from_ref(&failed),
            "h",
            10,
        );
        assert_eq!((names(&first.delete), first.create.len()), (vec!["x"], 0));
        let leaving = Arc::new(Pod { deleting: Some(5), ..(*failed).clone() });
        assert_eq!(
            plan(&set, &should_run(&[("a", ShouldRun::Yes)]), &[leaving], "h", 10),
            Plan::default()
        );
    }

    #[test]
    fn rollout_respects_max_unavailable_and_max_surge() {
        let check = |strategy: Value, ready: [bool; 3], delete: &[&str], create: &[&str]| {
            let set = json!({"spec": {"updateStrategy": strategy}});
            let should_run =
                should_run(&[("a", ShouldRun::Yes), ("b", ShouldRun::Yes), ("c", ShouldRun::Yes)]);
            let pods = [
                pod("a1", "a", "old", ready[0]),
                pod("b1", "b", "old", ready[1]),
                pod("c1", "c", "new", ready[2]),
            ];
            let plan = plan(&set, &should_run, &pods, "new", 10);
            assert_eq!(
                (names(&plan.delete), plan.create),
                (delete.to_vec(), create.iter().map(|s| (*s).to_owned()).collect()),
                "{strategy}"
            );
        };
        let rolling = |unavailable: i64, surge: i64| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
        check(rolling(1, 0), [true, true, true], &["a1"], &[]);
        check(rolling(1, 0), [true, true, false], &[], &[]);
        check(rolling(2, 0), [true, true, true], &["a1", "b1"], &[]);
        check(rolling(1, 0), [true, false, true], &["b1"], &[]);
        check(rolling(0, 1), [true, true, true], &[], &["a"]);
        check(json!({"type": "OnDelete"}), [true, true, true], &[], &[]);
    }

    #[test]
    fn status_matches_what_kubectl_rollout_status_reads() {
        let set = json!({"metadata": {"generation": 2}, "spec": {}});
        let should_run =
            should_run(&[("a", ShouldRun::Yes), ("b", ShouldRun::Yes), ("c", ShouldRun::No)]);
        let pods = [
            pod("a1", "a", "new", true),
            pod("b1", "b", "old", false),
            pod("c1", "c", "old", true),
        ];
        let (status, _) = status(&set, &should_run, &pods, "new", 10);
        assert_eq!(
            status,
            json!({
                "currentNumberScheduled": 2, "numberMisscheduled": 1, "desiredNumberScheduled": 2,
                "numberReady": 1, "observedGeneration": 2, "updatedNumberScheduled": 1,
                "numberAvailable": 1, "numberUnavailable": 1,
            })
        );
    }
}
