//! Taint eviction: deletes pods that do not, or no longer, tolerate the NoExecute taints of their
//! node.

use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::PODS;
use client::{BoxFuture, DeleteOptions, Error, Key, PatchKind, Update, ignore_not_found};
use serde_json::json;
use tracing::info;

use crate::context::{BY_NODE, ControllerContext};
use objects::types::{Taint, Time};

use crate::observe::{Node, Pod, Seconds};
use crate::workqueue::Reconcile;

/// Returns all pods of a node if its taints changed.
pub(crate) fn keys_for_node(context: &ControllerContext, update: &Update<Node>) -> Vec<Key> {
    let taints = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.taints.clone());
    if taints(&update.old) == taints(&update.new) {
        return Vec::new();
    }
    context.pods.find(BY_NODE, update.key.name()).into_iter().map(|(key, _)| key).collect()
}

/// Returns a pod if its node or its tolerations changed.
pub(crate) fn keys_for_pod(_: &ControllerContext, update: &Update<Pod>) -> Vec<Key> {
    let relevant = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().map(|pod| (pod.node.clone(), pod.tolerations.clone()))
    };
    let bound = update.new.as_ref().is_some_and(|pod| !pod.node.is_empty());
    let changed = relevant(&update.old) != relevant(&update.new);
    if bound && changed { vec![update.key.clone()] } else { Vec::new() }
}

/// When a pod has to leave a node with these taints; `None` if it may stay. Its patience begins with the
/// taint, or with its own coming if the taint was there before it.
fn leaves_at(pod: &Pod, taints: &[Taint], compare: bool, now: Seconds) -> Option<Seconds> {
    let pushing: Vec<&Taint> = taints.iter().filter(|taint| taint.effect == "NoExecute").collect();
    let mut earliest: Option<Seconds> = None;
    for taint in pushing {
        let tolerating: Vec<_> =
            pod.tolerations.iter().filter(|t| t.tolerates(taint, compare)).collect();
        if tolerating.is_empty() {
            return Some(now);
        }
        let since = taint.time_added.map_or(now, Time::seconds);
        let grace = tolerating.iter().filter_map(|t| t.toleration_seconds).min();
        if let Some(grace) = grace {
            let at = since.max(pod.bound).saturating_add(grace.max(0));
            earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
        }
    }
    earliest
}

#[derive(Debug)]
pub(crate) struct TaintEvictions(pub(crate) Arc<ControllerContext>);

impl Reconcile for TaintEvictions {
    const NAME: &'static str = "noexec_taint_pod";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let context = &*self.0;
            let Some(pod) = context.pods.get(&key) else { return Ok(None) };
            if pod.node.is_empty() || pod.deleting.is_some() || pod.is_finished() {
                return Ok(None);
            }
            let Some(node) = context.nodes.get(&Key::new("", &pod.node)) else { return Ok(None) };
            let now = context.clock.now().seconds();
            let compare = context.options.scheduling.compare_taints;
            match leaves_at(&pod, &node.taints, compare, now) {
                None => Ok(None),
                Some(at) if at > now => Ok(Some(Duration::from_secs((at - now).unsigned_abs()))),
                Some(_) => self.evict(&pod).await.map(|()| None),
            }
        })
    }
}

impl TaintEvictions {
    async fn evict(&self, pod: &Pod) -> Result<(), Error> {
        let context = &*self.0;
        info!(pod = %pod.key(), node = pod.node, "evicting a pod because of a NoExecute taint");
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": context.clock.now().to_seconds_text(),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
        let kind = PatchKind::StrategicMerge;
        let marked =
            context.client.patch_subresource(PODS, namespace, name, "status", kind, &patch).await;
        ignore_not_found(marked.map(|_| ()))?;
        let options = DeleteOptions::of_uid(&pod.uid);
        ignore_not_found(context.client.delete(PODS, namespace, name, &options).await)?;
        let subject = InvolvedObject::new(PODS, namespace, name, &pod.uid);
        let message = format!("Marking for deletion Pod {}", pod.key());
        let recorder = context.recorder.named("taint-eviction-controller");
        recorder.record(Event::normal(&subject, "TaintManagerEviction", message));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::timestamp::Timestamp;
    use objects::types::Toleration;

    #[test]
    fn pods_are_evicted_after_toleration_seconds() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            time_added: Some(Time(Timestamp::new(100, 0))),
            ..Taint::default()
        };
        let tolerates = |key: &str, seconds: Option<i64>| Toleration {
            key: key.to_owned(),
            operator: "Exists".to_owned(),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        let check_of = |bound, tolerations: &[Toleration], taints: &[Taint], expected| {
            let pod = Pod { tolerations: tolerations.to_vec(), bound, ..Pod::default() };
            assert_eq!(leaves_at(&pod, taints, true, 120), expected, "{tolerations:?} {taints:?}");
        };
        let check = |tolerations: &[Toleration], taints: &[Taint], expected: Option<Seconds>| {
            check_of(50, tolerations, taints, expected);
        };
        let no_execute = [taint("a", "NoExecute")];
        check(&[], &no_execute, Some(120));
        check(&[], &[taint("a", "NoSchedule")], None);
        check(&[tolerates("a", None)], &no_execute, None);
        check(&[tolerates("a", Some(300))], &no_execute, Some(400));
        check_of(110, &[tolerates("a", Some(300))], &no_execute, Some(410));
        check(&[tolerates("a", Some(300)), tolerates("", Some(10))], &no_execute, Some(110));
        check(&[tolerates("a", Some(-5))], &no_execute, Some(100));
        check(
            &[tolerates("a", None)],
            &[taint("a", "NoExecute"), taint("b", "NoExecute")],
            Some(120),
        );
    }
}
