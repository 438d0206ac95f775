//! What is removed because of its age or because nobody else will: events after their time, pods that
//! have ended and are too many, pods of nodes that are no more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::kind::{EVENTS, NODES, PODS};
use client::{Cache, DeleteOptions, Error, Key, PatchKind, Reflector, Scope, ignore_not_found};
use serde_json::json;
use tokio::sync::watch;

use crate::clock::Millis;
use crate::observe::{self, EventAge, Pod, Seconds};
use crate::supervise::caught;
use crate::world::World;

/// The names of the loops in logs and counters.
pub(crate) const EVENT_EXPIRY: &str = "event_expiry";
pub(crate) const POD_GC: &str = "pod_gc";

/// How often events are looked through.
const EVENTS_EVERY: Duration = Duration::from_secs(30);
/// How often pods are looked through. Upstream's figure.
const PODS_EVERY: Duration = Duration::from_secs(20);

/// Events that have outlived their time.
fn expired(events: &[(Key, Arc<EventAge>)], kept: Seconds, now: Seconds) -> Vec<Key> {
    let old = events.iter().filter(|(_, event)| event.last + kept <= now);
    old.map(|(key, _)| key.clone()).collect()
}

pub(crate) async fn events(world: Arc<World>, mut stop: watch::Receiver<bool>) {
    let ages: Arc<Cache<EventAge>> = Arc::new(Cache::new(&[]));
    let reflector =
        Reflector::new(world.client.clone(), EVENTS, Scope::default(), observe::event_age);
    let kept = ages.clone();
    let mut informer = tokio::task::JoinSet::new();
    informer.spawn(reflector.run(move |change| {
        kept.apply(change);
        true
    }));
    ages.synced().await;
    let ttl = i64::try_from(world.options.event_ttl.as_secs()).unwrap_or(i64::MAX);
    let mut tick = tokio::time::interval(EVENTS_EVERY.min(world.options.event_ttl));
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => {}
        }
        for key in expired(&ages.all(), ttl, world.clock.now().seconds()) {
            let options = DeleteOptions::default();
            let done = world.client.delete(EVENTS, key.namespace(), key.name(), &options).await;
            if let Err(error) = ignore_not_found(done) {
                world.counters.failed(EVENT_EXPIRY, &key, &error);
            }
        }
    }
}

/// Why a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    TooMany,
    NoNode,
    /// It was told to go before it had a node.
    NeverStarted,
}

/// Pods that are to be removed; `lost` are nodes that have been gone for long enough.
fn superfluous(
    pods: &[(Key, Arc<Pod>)],
    lost: &HashSet<String>,
    keep: usize,
) -> Vec<(Key, Reason)> {
    let mut all = Vec::new();
    let mut ended: Vec<&(Key, Arc<Pod>)> = pods.iter().filter(|(_, p)| p.is_finished()).collect();
    ended.sort_by_key(|(key, pod)| (!pod.node.is_empty(), pod.created, key.clone()));
    if keep > 0 && ended.len() > keep {
        let excess = ended.len() - keep;
        all.extend(ended.iter().take(excess).map(|(key, _)| (key.clone(), Reason::TooMany)));
    }
    for (key, pod) in pods {
        if all.iter().any(|(known, _)| known == key) {
            continue;
        }
        if !pod.node.is_empty() && lost.contains(&pod.node) {
            all.push((key.clone(), Reason::NoNode));
        } else if pod.node.is_empty() && pod.deleting.is_some() {
            all.push((key.clone(), Reason::NeverStarted));
        }
    }
    all
}

pub(crate) async fn pods(world: Arc<World>, mut stop: watch::Receiver<bool>) {
    world.synced().await;
    let quarantine = i64::try_from(world.options.orphaned_pods.as_millis()).unwrap_or(i64::MAX);
    let mut missing: HashMap<String, Millis> = HashMap::new();
    let mut tick = tokio::time::interval(PODS_EVERY.min(world.options.orphaned_pods / 2));
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => {}
        }
        let now = world.clock.millis();
        let all = world.pods.all();
        let nodes: HashSet<&str> =
            all.iter().map(|(_, pod)| pod.node.as_str()).filter(|node| !node.is_empty()).collect();
        missing.retain(|node, _| nodes.contains(node.as_str()));
        let mut lost = HashSet::new();
        for node in nodes {
            if world.nodes.get(&Key::new("", node)).is_some() {
                missing.remove(node);
            } else if now - *missing.entry(node.to_owned()).or_insert(now) >= quarantine {
                lost.insert(node.to_owned());
            }
        }
        for (key, reason) in superfluous(&all, &lost, world.options.terminated_pods) {
            let Some(pod) = world.pods.get(&key) else { continue };
            match caught(remove(&world, &pod, reason)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => world.counters.failed(POD_GC, &key, &error),
                Err(panicked) => world.counters.panicked(POD_GC, &key, &panicked),
            }
        }
    }
}

async fn remove(world: &World, pod: &Pod, reason: Reason) -> Result<(), Error> {
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    if reason == Reason::NoNode {
        // Asked once more: what is gone here may only be late.
        match world.client.get::<serde_json::Value>(NODES, "", &pod.node).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    if reason != Reason::TooMany && !pod.is_finished() {
        let mut patch = json!({"metadata": {"uid": pod.uid}, "status": {"phase": "Failed"}});
        if reason == Reason::NoNode {
            patch["status"]["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastTransitionTime": world.clock.now().to_seconds_text(),
            }]);
        }
        let kind = PatchKind::StrategicMerge;
        let done =
            world.client.patch_subresource(PODS, namespace, name, "status", kind, &patch).await;
        ignore_not_found(done.map(|_| ()))?;
    }
    let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(&pod.uid) };
    ignore_not_found(world.client.delete(PODS, namespace, name, &options).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Phase;

    #[test]
    fn events_are_kept_for_their_time() {
        let event = |name: &str, last| (Key::new("a", name), Arc::new(EventAge { last }));
        let events = [event("old", 10), event("young", 50)];
        assert_eq!(expired(&events, 60, 75), [Key::new("a", "old")]);
        assert_eq!(expired(&events, 60, 69), []);
    }

    #[test]
    fn pods_are_removed_that_nobody_else_removes() {
        let pod = |name: &str, edit: &dyn Fn(&mut Pod)| {
            let mut pod = Pod { name: name.to_owned(), node: "n".to_owned(), ..Pod::default() };
            edit(&mut pod);
            (Key::new("a", name), Arc::new(pod))
        };
        let pods = [
            pod("runs", &|_| {}),
            pod("lost", &|p| p.node = "gone".to_owned()),
            pod("going", &|p| {
                p.node = String::new();
                p.deleting = Some(1);
            }),
            pod("ended-first", &|p| {
                p.phase = Phase::Failed;
                p.created = 1;
            }),
            pod("ended-last", &|p| {
                p.phase = Phase::Succeeded;
                p.created = 2;
            }),
        ];
        let lost = HashSet::from(["gone".to_owned()]);
        let found = superfluous(&pods, &lost, 1);
        let found: Vec<_> = found.iter().map(|(key, reason)| (key.name(), *reason)).collect();
        assert_eq!(
            found,
            [
                ("ended-first", Reason::TooMany),
                ("lost", Reason::NoNode),
                ("going", Reason::NeverStarted),
            ]
        );
        assert_eq!(superfluous(&pods[..1], &lost, 0), []);
    }
}
