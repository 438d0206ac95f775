//! Node lifecycle: detects unresponsive nodes, and sets taints for that and for other node
//! conditions.
//!
//! [`NodeMonitor`] records when the heartbeat of each node last changed, by our clock and not by
//! the node's. [`taints`] and [`unknown_status`] derive the consequences. If most nodes are
//! NotReady, either this process cannot reach them or no other node could take their pods: then no
//! pod is evicted ([`Disruption`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::{LEASES, NODES, PODS};
use client::{Cache, Error, Key, PatchKind, Reflector, Scope, ignore_not_found};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::context::{BY_NODE, ControllerContext};
use crate::observe::{self, Lease, Node, Taint};
use crate::supervise::catch_panic;
use client::{ErrorLog, error_chain};

/// The name of the controller in logs and counters.
pub(crate) const NAME: &str = "node_lifecycle";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions of a node with the taints that keep new pods away while they are true.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// The conditions that become Unknown when a node is unresponsive.
const UNKNOWN: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The share of nodes that are NotReady. Upstream counts by zone; here all nodes are one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disruption {
    /// Few enough that other nodes can take their pods.
    Ordinary,
    /// So many that no further nodes are drained.
    Partial,
    /// Every node is NotReady: stop all evictions. A single-node cluster is always `Ordinary` or
    /// `Full`.
    Full,
}

impl Disruption {
    /// Upstream's figures: the share of NotReady nodes, their least number, and the largest cluster
    /// in which evictions stop. In larger clusters they continue slowly.
    const THRESHOLD: f64 = 0.55;
    const FEW: usize = 2;
    const LARGE: usize = 50;

    fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Disruption {
        let (mut all, mut unready) = (0_usize, 0_usize);
        for node in nodes {
            all += 1;
            unready += usize::from(!is_ready(node));
        }
        if all > 0 && unready == all {
            return Disruption::Full;
        }
        let is_most = unready as f64 >= all as f64 * Disruption::THRESHOLD;
        match unready > Disruption::FEW && is_most && all <= Disruption::LARGE {
            true => Disruption::Partial,
            false => Disruption::Ordinary,
        }
    }
}

fn is_ready(node: &Node) -> bool {
    node.condition("Ready").is_some_and(|ready| ready.status == "True")
}

/// The last heartbeat of each node, and its last readiness.
#[derive(Debug, Default)]
struct NodeMonitor {
    heartbeats: HashMap<String, (String, Duration)>,
    /// True if the node was ready; false once its pods have been marked NotReady.
    ready: HashMap<String, bool>,
}

impl NodeMonitor {
    /// Returns true if the heartbeat of a node has not changed for longer than `grace`.
    fn is_unresponsive(
        &mut self,
        node: &Node,
        lease: Option<&Lease>,
        grace: Duration,
        now: Duration,
    ) -> bool {
        let heartbeat =
            node.condition("Ready").and_then(|ready| ready.last_heartbeat_time.as_deref());
        let heartbeat_key = format!(
            "{} {} {}",
            node.uid,
            lease.map_or("", |lease| &lease.renewed),
            heartbeat.unwrap_or_default()
        );
        match self.heartbeats.get(&node.name) {
            Some((old, at)) if *old == heartbeat_key => now.saturating_sub(*at) > grace,
            _ => {
                self.heartbeats.insert(node.name.clone(), (heartbeat_key, now));
                false
            }
        }
    }
}

impl NodeMonitor {
    /// Returns true if the pods of a node must be marked NotReady. It is done once, or it would
    /// conflict with an agent that still runs. A node that was never ready has marked its pods
    /// itself.
    fn must_mark_pods(&mut self, node: &Node) -> bool {
        let Some(ready) = node.condition("Ready") else { return false };
        let before = self.ready.get(&node.name).copied();
        match ready.status.as_str() {
            "True" => {
                self.ready.insert(node.name.clone(), true);
                false
            }
            "False" => before == Some(true),
            _ => before != Some(false),
        }
    }

    fn mark_reported(&mut self, node: &Node) {
        self.ready.insert(node.name.clone(), false);
    }

    fn forget(&mut self, name: &str) {
        self.heartbeats.remove(name);
        self.ready.remove(name);
    }
}

/// Returns the status of an unresponsive node; `None` if it is already recorded.
fn unknown_status(node: &Value, now: Timestamp) -> Option<Value> {
    let mut conditions = crate::workload::conditions(node);
    let time = now.to_seconds_text();
    let mut changed = false;
    for kind in UNKNOWN {
        match conditions.iter_mut().find(|condition| condition["type"] == kind) {
            Some(condition) if condition["status"] == "Unknown" => {}
            Some(condition) => {
                condition["status"] = "Unknown".into();
                condition["reason"] = "NodeStatusUnknown".into();
                condition["message"] = "Kubelet stopped posting node status.".into();
                condition["lastTransitionTime"] = time.as_str().into();
                changed = true;
            }
            None => {
                conditions.push(json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
                    "lastTransitionTime": time,
                }));
                changed = true;
            }
        }
    }
    let mut status = node["status"].clone();
    status["conditions"] = conditions.into();
    changed.then_some(status)
}

/// Returns the desired taints of a node: those of other writers, and those for its conditions.
fn taints(node: &Node, disruption: Disruption, now: Timestamp) -> Vec<Value> {
    let ready = node.condition("Ready").map_or("Unknown", |ready| ready.status.as_str());
    let taint_key = match ready {
        "True" => None,
        "False" => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    };
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    wanted.extend(taint_key.map(|key| (key, "NoSchedule")));
    let is_emptied =
        |key: &str| node.taints.iter().any(|taint| taint.key == key && taint.effect == "NoExecute");
    wanted.extend(taint_key.map(|key| (key, "NoExecute")).filter(|(key, _)| match disruption {
        Disruption::Ordinary => true,
        Disruption::Partial => is_emptied(key),
        Disruption::Full => false,
    }));
    for (condition, key) in PRESSURES {
        if node.condition(condition).is_some_and(|c| c.status == "True") {
            wanted.push((key, "NoSchedule"));
        }
    }
    if node.unschedulable {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let ours = |taint: &Taint| {
        [NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&taint.key.as_str())
            || PRESSURES.iter().any(|(_, key)| *key == taint.key)
    };
    let is = |taint: &Taint, key: &str, effect: &str| taint.key == key && taint.effect == effect;
    let mut all = Vec::new();
    for taint in &node.taints {
        if !ours(taint) || wanted.iter().any(|(key, effect)| is(taint, key, effect)) {
            all.push(render_taint(taint));
        }
    }
    for (key, effect) in wanted {
        if !node.taints.iter().any(|taint| is(taint, key, effect)) {
            let mut taint = json!({"key": key, "effect": effect});
            if effect == "NoExecute" || taint_key == Some(key) {
                taint["timeAdded"] = now.to_seconds_text().into();
            }
            all.push(taint);
        }
    }
    all
}

fn render_taint(taint: &Taint) -> Value {
    let mut out = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        out["value"] = taint.value.as_str().into();
    }
    if let Some(time) = &taint.time_added {
        out["timeAdded"] = time.as_str().into();
    }
    out
}

pub(crate) async fn run(context: Arc<ControllerContext>, stop: watch::Receiver<bool>) {
    context.synced().await;
    let leases = Arc::new(Cache::new(&[]));
    let scope = Scope { namespace: "kube-node-lease".to_owned(), ..Scope::default() };
    let reflector = Reflector::new(context.client.clone(), LEASES, scope, observe::lease);
    let cache = leases.clone();
    let informer = reflector.run(move |change| {
        cache.apply(change);
        true
    });
    // A panic of the informer is one of this controller.
    tokio::select! {
        () = informer => {}
        () = monitor_nodes(&context, &leases, stop) => {}
    }
}

async fn monitor_nodes(
    context: &ControllerContext,
    leases: &Cache<Lease>,
    mut stop: watch::Receiver<bool>,
) {
    leases.synced().await;
    let mut errors = ErrorLog::default();
    let mut last_disruption = Disruption::Ordinary;
    let mut monitor = NodeMonitor::default();
    let mut updates = context.nodes.subscribe();
    let grace = context.options.node_monitor_grace;
    let mut tick = tokio::time::interval(context.options.node_monitor_period);
    loop {
        let names: Vec<Key> = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => context.nodes.all().into_iter().map(|(key, _)| key).collect(),
            Some(update) = updates.recv() => vec![update.key],
        };
        let disruption = {
            let nodes: Vec<_> = context.nodes.all().into_iter().map(|(_, node)| node).collect();
            Disruption::of(nodes.iter().map(|node| &**node))
        };
        if disruption != last_disruption {
            debug!(from = ?last_disruption, to = ?disruption, "the share of unready nodes changed");
            last_disruption = disruption;
        }
        let mut failed = false;
        for key in names {
            let Some(node) = context.nodes.get(&key) else {
                monitor.forget(key.name());
                continue;
            };
            let lease = leases.get(&Key::new("kube-node-lease", key.name()));
            let now = context.clock.elapsed();
            let unresponsive = monitor.is_unresponsive(&node, lease.as_deref(), grace, now);
            match catch_panic(sync(context, &mut monitor, &node, unresponsive, disruption)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    failed = true;
                    context.counters.failed(NAME, &key, &error);
                    let error = error_chain(&error);
                    if errors.failed(&error) {
                        warn!(
                            node = key.name(),
                            error, "failed to update a node; the next check retries"
                        );
                    }
                }
                Err(panicked) => context.counters.panicked(NAME, &key, &panicked),
            }
        }
        if !failed && errors.recovered().is_some() {
            info!("nodes are updated again");
        }
    }
}

async fn sync(
    context: &ControllerContext,
    monitor: &mut NodeMonitor,
    node: &Node,
    unresponsive: bool,
    disruption: Disruption,
) -> Result<(), Error> {
    let known = |node: &Node| node.condition("Ready").is_some_and(|c| c.status != "Unknown");
    if unresponsive && (known(node) || node.condition("Ready").is_none()) {
        let mut object: Value = match context.client.get(NODES, "", &node.name).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        if let Some(status) = unknown_status(&object, context.clock.now()) {
            object["status"] = status;
            info!(node = node.name, "the node is unresponsive; setting its conditions to Unknown");
            context.client.update_subresource(NODES, "status", &object).await?;
            let message = format!("Node {} status is now: NodeNotReady", node.name);
            let subject = InvolvedObject::of(NODES, &object);
            let recorder = context.recorder.named("node-controller");
            recorder.record(Event::normal(&subject, "NodeNotReady", message));
        }
        return Ok(());
    }
    if monitor.must_mark_pods(node) {
        info!(node = node.name, "the node is not ready; marking its pods NotReady");
        mark_pods(context, node).await?;
        monitor.mark_reported(node);
    }
    let wanted = taints(node, disruption, context.clock.now());
    let current: Vec<Value> = node.taints.iter().map(render_taint).collect();
    if wanted == current || (node.condition("Ready").is_none() && !unresponsive) {
        return Ok(());
    }
    let object: Value = match context.client.get(NODES, "", &node.name).await {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?,
    };
    let now_there = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    if now_there != current {
        // Another writer changed them; that update queues the node again.
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
        "spec": {"taints": wanted},
    });
    info!(node = node.name, taints = %patch["spec"]["taints"], "updating the taints of the node");
    let done = context.client.patch(NODES, "", &node.name, PatchKind::Merge, &patch).await;
    ignore_not_found(done.map(|_| ()))
}

/// Marks the pods of a NotReady node as NotReady.
async fn mark_pods(context: &ControllerContext, node: &Node) -> Result<(), Error> {
    for (key, pod) in context.pods.find(BY_NODE, &node.name) {
        if !pod.is_ready() || pod.is_finished() {
            continue;
        }
        let condition = json!({
            "type": "Ready", "status": "False",
            "lastTransitionTime": context.clock.now().to_seconds_text(),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let (namespace, name) = (key.namespace(), key.name());
        let kind = PatchKind::StrategicMerge;
        let done =
            context.client.patch_subresource(PODS, namespace, name, "status", kind, &patch).await;
        ignore_not_found(done.map(|_| ()))?;
        let subject = InvolvedObject::new(PODS, namespace, name, &pod.uid);
        let message = "Node is not ready".to_owned();
        let recorder = context.recorder.named("node-controller");
        recorder.record(Event::warning(&subject, "NodeNotReady", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::text;
    use crate::observe::Condition;

    fn node(ready: &str, taints: &[(&str, &str)]) -> Node {
        let condition = |kind: &str, status: &str| Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            ..Condition::default()
        };
        Node {
            name: "n".to_owned(),
            conditions: vec![condition("Ready", ready)],
            taints: taints
                .iter()
                .map(|(key, effect)| Taint {
                    key: (*key).to_owned(),
                    effect: (*effect).to_owned(),
                    ..Taint::default()
                })
                .collect(),
            ..Node::default()
        }
    }

    #[test]
    fn pods_are_marked_once_when_their_node_becomes_unready() {
        let mut monitor = NodeMonitor::default();
        // An agent that is NotReady from the start marks its pods itself.
        assert!(!monitor.must_mark_pods(&node("False", &[])));
        assert!(!monitor.must_mark_pods(&node("True", &[])));
        for status in ["False", "Unknown"] {
            // It is repeated until the pods have been marked.
            assert!(
                monitor.must_mark_pods(&node(status, &[]))
                    && monitor.must_mark_pods(&node(status, &[]))
            );
            monitor.mark_reported(&node(status, &[]));
            assert!(!monitor.must_mark_pods(&node(status, &[])));
            assert!(!monitor.must_mark_pods(&node("True", &[])));
        }
        monitor.forget("n");
        assert!(monitor.must_mark_pods(&node("Unknown", &[])), "no agent marks them");
    }

    #[test]
    fn node_without_heartbeat_becomes_unresponsive() {
        let mut monitor = NodeMonitor::default();
        let lease = |text: &str| Lease { renewed: text.to_owned() };
        let node = node("True", &[]);
        for (renewal, seconds, expected) in
            [("1", 0, false), ("1", 40, false), ("1", 41, true), ("2", 50, false), ("2", 90, false)]
        {
            let (grace, now) = (Duration::from_secs(40), Duration::from_secs(seconds));
            let unresponsive = monitor.is_unresponsive(&node, Some(&lease(renewal)), grace, now);
            assert_eq!(unresponsive, expected, "lease {renewal} after {seconds} s");
        }
    }

    #[test]
    fn taints_follow_conditions_and_keep_foreign_ones() {
        let check_in = |disruption, node: Node, expected: &[(&str, &str)]| {
            let found = taints(&node, disruption, Timestamp::new(0, 0));
            let found: Vec<_> =
                found.iter().map(|t| (text(&t["key"]), text(&t["effect"]))).collect();
            assert_eq!(found, expected, "{node:?}");
        };
        let check = |node, expected: &[_]| check_in(Disruption::Ordinary, node, expected);
        check(node("True", &[]), &[]);
        check(
            node("True", &[("mine", "NoSchedule"), (NOT_READY, "NoExecute")]),
            &[("mine", "NoSchedule")],
        );
        check(node("False", &[]), &[(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]);
        check(
            node("Unknown", &[(NOT_READY, "NoSchedule"), (UNREACHABLE, "NoSchedule")]),
            &[(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
        );
        let both = [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")];
        check_in(Disruption::Full, node("False", &both), &both[..1]);
        check_in(Disruption::Partial, node("False", &both), &both);
        check_in(Disruption::Partial, node("False", &[]), &both[..1]);
        let cordoned = Node { unschedulable: true, ..node("True", &[]) };
        check(cordoned, &[(UNSCHEDULABLE, "NoSchedule")]);
    }

    #[test]
    fn evictions_stop_while_most_nodes_are_unready() {
        let check = |well: usize, unready: usize, expected: Disruption| {
            let nodes: Vec<Node> = (0..well)
                .map(|_| node("True", &[]))
                .chain((0..unready).map(|_| node("Unknown", &[])))
                .collect();
            assert_eq!(Disruption::of(&nodes), expected, "{well} {unready}");
        };
        check(0, 0, Disruption::Ordinary);
        check(0, 1, Disruption::Full);
        check(0, 9, Disruption::Full);
        check(1, 1, Disruption::Ordinary);
        check(1, 2, Disruption::Ordinary);
        check(1, 3, Disruption::Partial);
        check(4, 3, Disruption::Ordinary);
        check(22, 29, Disruption::Ordinary);
        check(20, 30, Disruption::Partial);
    }

    #[test]
    fn unknown_status_is_written_once() {
        let object = json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let status = unknown_status(&object, Timestamp::new(0, 0)).unwrap();
        assert_eq!(status["conditions"][0]["message"], "Kubelet stopped posting node status.");
        assert_eq!(status["conditions"][1]["reason"], "NodeStatusNeverUpdated");
        let again = json!({"metadata": {}, "status": status});
        assert_eq!(unknown_status(&again, Timestamp::new(9, 0)), None);
    }
}
