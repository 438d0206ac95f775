//! Periodic clean-up: expired events, finished pods beyond the limit, pods of deleted nodes, and
//! terminating pods without a node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::kind::{EVENTS, NODES, PODS};
use client::{Cache, DeleteOptions, Error, Key, PatchKind, Reflector, Scope, ignore_not_found};
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::context::ControllerContext;
use crate::observe::{self, EventAge, Pod, Seconds};
use crate::supervise::catch_panic;
use client::{ErrorLog, error_chain};

/// The names of the controllers in logs and counters.
pub(crate) const EVENT_EXPIRY: &str = "event_expiry";
pub(crate) const POD_GC: &str = "pod_gc";

/// The interval at which events are checked.
const EVENTS_EVERY: Duration = Duration::from_secs(30);
/// The interval at which pods are checked. Upstream's figure.
const PODS_EVERY: Duration = Duration::from_secs(20);

/// Returns the events whose lifetime is over.
fn expired(events: &[(Key, Arc<EventAge>)], ttl: Seconds, now: Seconds) -> Vec<Key> {
    let old = events.iter().filter(|(_, event)| event.last + ttl <= now);
    old.map(|(key, _)| key.clone()).collect()
}

pub(crate) async fn events(context: Arc<ControllerContext>, stop: watch::Receiver<bool>) {
    let ages: Arc<Cache<EventAge>> = Arc::new(Cache::new(&[]));
    let reflector =
        Reflector::new(context.client.clone(), EVENTS, Scope::default(), observe::event_age);
    let cache = ages.clone();
    let informer = reflector.run(move |change| {
        cache.apply(change);
        true
    });
    // A panic of the informer is one of this controller.
    tokio::select! {
        () = informer => {}
        () = expire_events(&context, &ages, stop) => {}
    }
}

async fn expire_events(
    context: &ControllerContext,
    ages: &Cache<EventAge>,
    mut stop: watch::Receiver<bool>,
) {
    ages.synced().await;
    let mut errors = ErrorLog::default();
    let ttl = i64::try_from(context.options.event_ttl.as_secs()).unwrap_or(i64::MAX);
    let mut tick = tokio::time::interval(EVENTS_EVERY.min(context.options.event_ttl));
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => {}
        }
        let mut failed = false;
        let expired = expired(&ages.all(), ttl, context.clock.now().seconds());
        if !expired.is_empty() {
            debug!(events = expired.len(), "deleting expired events");
        }
        for key in expired {
            let options = DeleteOptions::default();
            let done = context.client.delete(EVENTS, key.namespace(), key.name(), &options).await;
            if let Err(error) = ignore_not_found(done) {
                failed = true;
                context.counters.failed(EVENT_EXPIRY, &key, &error);
                let error = error_chain(&error);
                if errors.failed(&error) {
                    warn!(%key, error, "failed to delete an expired event; the next sweep retries");
                }
            }
        }
        if !failed && errors.recovered().is_some() {
            info!("expired events are deleted again");
        }
    }
}

/// The reason for which a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    OverLimit,
    NodeGone,
    /// It was deleted before it had a node.
    Unscheduled,
}

/// Returns the pods to remove. `lost` has the nodes that have been gone for long enough.
fn pods_to_remove(
    pods: &[(Key, Arc<Pod>)],
    lost: &HashSet<String>,
    keep: usize,
) -> Vec<(Key, Reason)> {
    let mut all = Vec::new();
    let mut ended: Vec<&(Key, Arc<Pod>)> = pods.iter().filter(|(_, p)| p.is_finished()).collect();
    ended.sort_by_key(|(key, pod)| (!pod.node.is_empty(), pod.created, key.clone()));
    if keep > 0 && ended.len() > keep {
        let excess = ended.len() - keep;
        all.extend(ended.iter().take(excess).map(|(key, _)| (key.clone(), Reason::OverLimit)));
    }
    for (key, pod) in pods {
        if all.iter().any(|(known, _)| known == key) {
            continue;
        }
        if !pod.node.is_empty() && lost.contains(&pod.node) {
            all.push((key.clone(), Reason::NodeGone));
        } else if pod.node.is_empty() && pod.deleting.is_some() {
            all.push((key.clone(), Reason::Unscheduled));
        }
    }
    all
}

pub(crate) async fn pods(context: Arc<ControllerContext>, mut stop: watch::Receiver<bool>) {
    context.synced().await;
    let mut missing: HashMap<String, Duration> = HashMap::new();
    let mut errors = ErrorLog::default();
    let mut tick = tokio::time::interval(PODS_EVERY.min(context.options.orphaned_pods / 2));
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = tick.tick() => {}
        }
        let now = context.clock.elapsed();
        let all = context.pods.all();
        let nodes: HashSet<&str> =
            all.iter().map(|(_, pod)| pod.node.as_str()).filter(|node| !node.is_empty()).collect();
        missing.retain(|node, _| nodes.contains(node.as_str()));
        let mut lost = HashSet::new();
        for node in nodes {
            if context.nodes.get(&Key::new("", node)).is_some() {
                missing.remove(node);
                continue;
            }
            let since = *missing.entry(node.to_owned()).or_insert(now);
            if now.saturating_sub(since) >= context.options.orphaned_pods {
                lost.insert(node.to_owned());
            }
        }
        let mut failed = false;
        for (key, reason) in pods_to_remove(&all, &lost, context.options.terminated_pods) {
            let Some(pod) = context.pods.get(&key) else { continue };
            match catch_panic(remove(&context, &pod, reason)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    failed = true;
                    context.counters.failed(POD_GC, &key, &error);
                    let error = error_chain(&error);
                    if errors.failed(&error) {
                        warn!(pod = %key, error, "failed to remove a pod; the next sweep retries");
                    }
                }
                Err(panicked) => context.counters.panicked(POD_GC, &key, &panicked),
            }
        }
        if !failed && errors.recovered().is_some() {
            info!("pods are removed again");
        }
    }
}

async fn remove(context: &ControllerContext, pod: &Pod, reason: Reason) -> Result<(), Error> {
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    if reason == Reason::NodeGone {
        // Ask the API: the cache may be behind.
        match context.client.get::<serde_json::Value>(NODES, "", &pod.node).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    if reason != Reason::OverLimit && !pod.is_finished() {
        let mut patch = json!({"metadata": {"uid": pod.uid}, "status": {"phase": "Failed"}});
        if reason == Reason::NodeGone {
            patch["status"]["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists",
                "lastTransitionTime": context.clock.now().to_seconds_text(),
            }]);
        }
        let kind = PatchKind::StrategicMerge;
        let done =
            context.client.patch_subresource(PODS, namespace, name, "status", kind, &patch).await;
        ignore_not_found(done.map(|_| ()))?;
    }
    info!(pod = %pod.key(), node = pod.node, ?reason, "removing a pod");
    let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(&pod.uid) };
    ignore_not_found(context.client.delete(PODS, namespace, name, &options).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Phase;

    #[test]
    fn events_are_kept_for_their_lifetime() {
        let event = |name: &str, last| (Key::new("a", name), Arc::new(EventAge { last }));
        let events = [event("old", 10), event("young", 50)];
        assert_eq!(expired(&events, 60, 75), [Key::new("a", "old")]);
        assert_eq!(expired(&events, 60, 69), []);
    }

    #[test]
    fn orphaned_unscheduled_and_excess_pods_are_removed() {
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
        let found = pods_to_remove(&pods, &lost, 1);
        let found: Vec<_> = found.iter().map(|(key, reason)| (key.name(), *reason)).collect();
        assert_eq!(
            found,
            [
                ("ended-first", Reason::OverLimit),
                ("lost", Reason::NodeGone),
                ("going", Reason::Unscheduled),
            ]
        );
        assert_eq!(pods_to_remove(&pods[..1], &lost, 0), []);
    }
}
