//! Nodes: which of them have gone silent, and what that and their other troubles keep away from them.
//!
//! [`Watchman`] remembers when a node was last heard of, by our clock and not by the node's; [`taints`]
//! and [`silenced`] say what follows from it. Where most nodes are in trouble it is rather we who cannot
//! see them, or nobody could take their pods: then no pod has to leave its node ([`Disruption`]).

use std::collections::HashMap;
use std::sync::Arc;

use client::kind::{LEASES, NODES, PODS};
use client::{Cache, Error, Key, PatchKind, Reflector, Scope, ignore_not_found};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock::Millis;
use crate::observe::{self, Lease, Node, Taint};
use crate::record::{Occurrence, Subject};
use crate::supervise::caught;
use crate::world::{BY_NODE, World};

/// The name of the loop in logs and counters.
pub(crate) const NAME: &str = "node_lifecycle";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Conditions of a node that keep new pods away while they have this status.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// The conditions that are not known of a node that is silent.
const UNKNOWN: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// How many of the nodes are in trouble. Upstream reckons by zone; here all nodes are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disruption {
    /// Few enough that others can take their pods.
    Ordinary,
    /// So many that no more nodes are emptied.
    Partial,
    /// All of them: nobody has to leave, and who was to leave may stay. One machine alone is always either
    /// well or here.
    Full,
}

impl Disruption {
    /// Upstream's figures: the part of nodes, how many there are at least, and up to how many nodes there
    /// have to be for it to stop altogether; in larger clusters it goes on, slowly.
    const THRESHOLD: f64 = 0.55;
    const FEW: usize = 2;
    const LARGE: usize = 50;

    fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Disruption {
        let (mut all, mut troubled) = (0_usize, 0_usize);
        for node in nodes {
            all += 1;
            troubled += usize::from(!is_ready(node));
        }
        if all > 0 && troubled == all {
            return Disruption::Full;
        }
        let is_most = troubled as f64 >= all as f64 * Disruption::THRESHOLD;
        match troubled > Disruption::FEW && is_most && all <= Disruption::LARGE {
            true => Disruption::Partial,
            false => Disruption::Ordinary,
        }
    }
}

fn is_ready(node: &Node) -> bool {
    node.condition("Ready").is_some_and(|ready| ready.status == "True")
}

/// When nodes were last heard of, and how they were.
#[derive(Debug, Default)]
struct Watchman {
    heard: HashMap<String, (String, Millis)>,
    /// Whether a node was ready, or its pods have been told that it is not.
    ready: HashMap<String, bool>,
}

impl Watchman {
    /// Whether a node has been silent for longer than it may.
    fn is_silent(
        &mut self,
        node: &Node,
        lease: Option<&Lease>,
        grace: Millis,
        now: Millis,
    ) -> bool {
        let heartbeat =
            node.condition("Ready").and_then(|ready| ready.last_heartbeat_time.as_deref());
        let sign = format!(
            "{} {} {}",
            node.uid,
            lease.map_or("", |lease| &lease.renewed),
            heartbeat.unwrap_or_default()
        );
        match self.heard.get(&node.name) {
            Some((old, at)) if *old == sign => now - at > grace,
            _ => {
                self.heard.insert(node.name.clone(), (sign, now));
                false
            }
        }
    }
}

impl Watchman {
    /// Whether pods of a node have to be told that it is not ready any more: once, or an agent that is there
    /// and knows better would say so again and again. What one says of itself from the start is no news.
    fn has_gone(&mut self, node: &Node) -> bool {
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

    fn is_told(&mut self, node: &Node) {
        self.ready.insert(node.name.clone(), false);
    }

    fn forget(&mut self, name: &str) {
        self.heard.remove(name);
        self.ready.remove(name);
    }
}

/// The status of a node that is silent; `None` if it says so already.
fn silenced(node: &Value, now: Timestamp) -> Option<Value> {
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

/// The taints a node should have: those that are not ours, and those its state asks for.
fn taints(node: &Node, disruption: Disruption, now: Timestamp) -> Vec<Value> {
    let ready = node.condition("Ready").map_or("Unknown", |ready| ready.status.as_str());
    let trouble = match ready {
        "True" => None,
        "False" => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    };
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    wanted.extend(trouble.map(|key| (key, "NoSchedule")));
    let is_emptied =
        |key: &str| node.taints.iter().any(|taint| taint.key == key && taint.effect == "NoExecute");
    wanted.extend(trouble.map(|key| (key, "NoExecute")).filter(|(key, _)| match disruption {
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
            all.push(rendered(taint));
        }
    }
    for (key, effect) in wanted {
        if !node.taints.iter().any(|taint| is(taint, key, effect)) {
            let mut taint = json!({"key": key, "effect": effect});
            if effect == "NoExecute" || trouble == Some(key) {
                taint["timeAdded"] = now.to_seconds_text().into();
            }
            all.push(taint);
        }
    }
    all
}

fn rendered(taint: &Taint) -> Value {
    let mut out = json!({"key": taint.key, "effect": taint.effect});
    if !taint.value.is_empty() {
        out["value"] = taint.value.as_str().into();
    }
    if let Some(time) = &taint.time_added {
        out["timeAdded"] = time.as_str().into();
    }
    out
}

pub(crate) async fn run(world: Arc<World>, mut stop: watch::Receiver<bool>) {
    world.synced().await;
    let leases = Arc::new(Cache::new(&[]));
    let scope = Scope { namespace: "kube-node-lease".to_owned(), ..Scope::default() };
    let reflector = Reflector::new(world.client.clone(), LEASES, scope, observe::lease);
    let kept = leases.clone();
    let mut informer = tokio::task::JoinSet::new();
    informer.spawn(reflector.run(move |change| {
        kept.apply(change);
        true
    }));
    leases.synced().await;
    let mut watchman = Watchman::default();
    let mut updates = world.nodes.subscribe();
    let grace = i64::try_from(world.options.node_monitor_grace.as_millis()).unwrap_or(i64::MAX);
    let mut tick = tokio::time::interval(world.options.node_monitor_period);
    loop {
        let names: Vec<Key> = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => world.nodes.all().into_iter().map(|(key, _)| key).collect(),
            Some(update) = updates.recv() => vec![update.key],
        };
        let disruption = {
            let nodes: Vec<_> = world.nodes.all().into_iter().map(|(_, node)| node).collect();
            Disruption::of(nodes.iter().map(|node| &**node))
        };
        for key in names {
            let Some(node) = world.nodes.get(&key) else {
                watchman.forget(key.name());
                continue;
            };
            let lease = leases.get(&Key::new("kube-node-lease", key.name()));
            let now = world.clock.millis();
            let silent = watchman.is_silent(&node, lease.as_deref(), grace, now);
            match caught(bring(&world, &mut watchman, &node, silent, disruption)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => world.counters.failed(NAME, &key, &error),
                Err(panicked) => world.counters.panicked(NAME, &key, &panicked),
            }
        }
    }
}

async fn bring(
    world: &World,
    watchman: &mut Watchman,
    node: &Node,
    silent: bool,
    disruption: Disruption,
) -> Result<(), Error> {
    let known = |node: &Node| node.condition("Ready").is_some_and(|c| c.status != "Unknown");
    if silent && (known(node) || node.condition("Ready").is_none()) {
        let mut object: Value = match world.client.get(NODES, "", &node.name).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        if let Some(status) = silenced(&object, world.clock.now()) {
            object["status"] = status;
            world.client.update_subresource(NODES, "status", &object).await?;
            let message = format!("Node {} status is now: NodeNotReady", node.name);
            let subject = Subject::of(NODES, &object);
            let recorder = world.recorder.named("node-controller");
            recorder.record(Occurrence::normal(&subject, "NodeNotReady", message));
        }
        return Ok(());
    }
    if watchman.has_gone(node) {
        mark_pods(world, node).await?;
        watchman.is_told(node);
    }
    let wanted = taints(node, disruption, world.clock.now());
    let current: Vec<Value> = node.taints.iter().map(rendered).collect();
    if wanted == current || (node.condition("Ready").is_none() && !silent) {
        return Ok(());
    }
    let object: Value = match world.client.get(NODES, "", &node.name).await {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?,
    };
    let now_there = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    if now_there != current {
        // Somebody else changed them; the change will come.
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
        "spec": {"taints": wanted},
    });
    let done = world.client.patch(NODES, "", &node.name, PatchKind::Merge, &patch).await;
    ignore_not_found(done.map(|_| ()))
}

/// Pods of a node that is not ready are not ready either.
async fn mark_pods(world: &World, node: &Node) -> Result<(), Error> {
    for (key, pod) in world.pods.find(BY_NODE, &node.name) {
        if !pod.is_ready() || pod.is_finished() {
            continue;
        }
        let condition = json!({
            "type": "Ready", "status": "False",
            "lastTransitionTime": world.clock.now().to_seconds_text(),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let (namespace, name) = (key.namespace(), key.name());
        let kind = PatchKind::StrategicMerge;
        let done =
            world.client.patch_subresource(PODS, namespace, name, "status", kind, &patch).await;
        ignore_not_found(done.map(|_| ()))?;
        let subject = Subject {
            kind: PODS,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: pod.uid.clone(),
        };
        let message = "Node is not ready".to_owned();
        let recorder = world.recorder.named("node-controller");
        recorder.record(Occurrence::warning(&subject, "NodeNotReady", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Condition;
    use crate::world::text;

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
    fn pods_are_told_once_that_their_node_is_not_ready() {
        let mut watchman = Watchman::default();
        // An agent that says so from the start tells its pods itself.
        assert!(!watchman.has_gone(&node("False", &[])));
        assert!(!watchman.has_gone(&node("True", &[])));
        for status in ["False", "Unknown"] {
            // Again as long as nobody could be told.
            assert!(watchman.has_gone(&node(status, &[])) && watchman.has_gone(&node(status, &[])));
            watchman.is_told(&node(status, &[]));
            assert!(!watchman.has_gone(&node(status, &[])));
            assert!(!watchman.has_gone(&node("True", &[])));
        }
        watchman.forget("n");
        assert!(watchman.has_gone(&node("Unknown", &[])), "nobody is there to tell them");
    }

    #[test]
    fn a_node_is_silent_when_neither_lease_nor_status_move() {
        let mut watchman = Watchman::default();
        let lease = |text: &str| Lease { renewed: text.to_owned() };
        let node = node("True", &[]);
        assert!(!watchman.is_silent(&node, Some(&lease("1")), 40, 0));
        assert!(!watchman.is_silent(&node, Some(&lease("1")), 40, 40));
        assert!(watchman.is_silent(&node, Some(&lease("1")), 40, 41));
        assert!(!watchman.is_silent(&node, Some(&lease("2")), 40, 50));
        assert!(!watchman.is_silent(&node, Some(&lease("2")), 40, 90));
    }

    #[test]
    fn taints_follow_the_state_and_leave_others_alone() {
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
    fn where_most_nodes_are_in_trouble_none_is_emptied() {
        let check = |well: usize, troubled: usize, expected: Disruption| {
            let nodes: Vec<Node> = (0..well)
                .map(|_| node("True", &[]))
                .chain((0..troubled).map(|_| node("Unknown", &[])))
                .collect();
            assert_eq!(Disruption::of(&nodes), expected, "{well} {troubled}");
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
    fn a_silent_node_says_so_once() {
        let object = json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let status = silenced(&object, Timestamp::new(0, 0)).unwrap();
        assert_eq!(status["conditions"][0]["message"], "Kubelet stopped posting node status.");
        assert_eq!(status["conditions"][1]["reason"], "NodeStatusNeverUpdated");
        let again = json!({"metadata": {}, "status": status});
        assert_eq!(silenced(&again, Timestamp::new(9, 0)), None);
    }
}
