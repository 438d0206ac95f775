//! Taints that push pods out: each goes when its patience with the node's NoExecute taints is over.

use std::sync::Arc;
use std::time::Duration;

use client::kind::PODS;
use client::{BoxFuture, DeleteOptions, Error, Key, PatchKind, Update, gone_is_fine};
use serde_json::json;

use crate::observe::{Node, Pod, Seconds, Taint, seconds};
use crate::record::{Occurrence, Subject};
use crate::work::Reconcile;
use crate::world::{BY_NODE, World};

/// The pods a change of a node concerns: all of its own, if its taints changed.
pub(crate) fn of_node(world: &World, update: &Update<Node>) -> Vec<Key> {
    let taints = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.taints.clone());
    if taints(&update.old) == taints(&update.new) {
        return Vec::new();
    }
    world.pods.find(BY_NODE, update.key.name()).into_iter().map(|(key, _)| key).collect()
}

/// A pod that was given a node may have to leave it.
pub(crate) fn of_pod(_: &World, update: &Update<Pod>) -> Vec<Key> {
    let sight = |pod: &Option<Arc<Pod>>| {
        pod.as_ref().map(|pod| (pod.node.clone(), pod.tolerations.clone()))
    };
    let bound = update.new.as_ref().is_some_and(|pod| !pod.node.is_empty());
    let changed = sight(&update.old) != sight(&update.new);
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
        let since = taint.time_added.as_deref().and_then(seconds).unwrap_or(now);
        let patience = tolerating.iter().filter_map(|t| t.toleration_seconds).min();
        if let Some(patience) = patience {
            let at = since.max(pod.bound).saturating_add(patience.max(0));
            earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
        }
    }
    earliest
}

#[derive(Debug)]
pub(crate) struct TaintEvictions(pub(crate) Arc<World>);

impl Reconcile for TaintEvictions {
    const NAME: &'static str = "noexec_taint_pod";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let world = &*self.0;
            let Some(pod) = world.pods.get(&key) else { return Ok(None) };
            if pod.node.is_empty() || pod.deleting.is_some() || pod.is_finished() {
                return Ok(None);
            }
            let Some(node) = world.nodes.get(&Key::new("", &pod.node)) else { return Ok(None) };
            let now = world.clock.now().seconds();
            let compare = world.options.scheduling.compare_taints;
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
        let world = &*self.0;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": world.clock.now().to_seconds_text(),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
        let kind = PatchKind::StrategicMerge;
        let marked = world.client.patch_part(PODS, namespace, name, "status", kind, &patch).await;
        gone_is_fine(marked.map(|_| ()))?;
        let options = DeleteOptions::of_uid(&pod.uid);
        gone_is_fine(world.client.delete(PODS, namespace, name, &options).await)?;
        let subject = Subject {
            kind: PODS,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: pod.uid.clone(),
        };
        let message = format!("Marking for deletion Pod {}", pod.key());
        let recorder = world.recorder.named("taint-eviction-controller");
        recorder.record(Occurrence::normal(&subject, "TaintManagerEviction", message));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Toleration;

    #[test]
    fn pods_leave_when_their_patience_is_over() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            time_added: Some("1970-01-01T00:01:40Z".to_owned()),
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
        let pushing = [taint("a", "NoExecute")];
        check(&[], &pushing, Some(120));
        check(&[], &[taint("a", "NoSchedule")], None);
        check(&[tolerates("a", None)], &pushing, None);
        check(&[tolerates("a", Some(300))], &pushing, Some(400));
        check_of(110, &[tolerates("a", Some(300))], &pushing, Some(410));
        check(&[tolerates("a", Some(300)), tolerates("", Some(10))], &pushing, Some(110));
        check(&[tolerates("a", Some(-5))], &pushing, Some(100));
        check(
            &[tolerates("a", None)],
            &[taint("a", "NoExecute"), taint("b", "NoExecute")],
            Some(120),
        );
    }
}
