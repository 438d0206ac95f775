//! Daemon sets: one pod on every eligible node.
//!
//! [`nodes`] selects the nodes. [`plan`] finds missing, excess and outdated pods. Pods are pinned
//! to their nodes and bound by the scheduler like other pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::{CONTROLLER_REVISIONS, DAEMON_SETS};
use client::{BoxFuture, CacheState, Error, Key, PatchKind, Update, ignore_not_found};
use serde_json::{Value, json};

use crate::context::{ControllerContext, UNTYPED_BY_CONTROLLER, text};
use crate::observe::{Node, Pod};
use crate::workload::{
    claimed_pods, create_pods, delete_pods, int, is_deleting, owner_reference, pod_from_template,
    revision, selector, template_hash, write_status,
};
use crate::workqueue::Reconcile;

mod nodes;
mod plan;

pub(crate) const HASH: &str = "controller-revision-hash";

/// The most pods created or deleted in one sync. Upstream's figure.
const BURST: usize = 250;

#[derive(Debug)]
pub(crate) struct DaemonSets(pub(crate) Arc<ControllerContext>);

impl Reconcile for DaemonSets {
    const NAME: &'static str = "daemonset";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

/// Returns all daemon sets if a node was added or removed, or if its labels or taints changed.
pub(crate) fn keys_for_node(context: &ControllerContext, update: &Update<Node>) -> Vec<Key> {
    let relevant =
        |node: &Option<Arc<Node>>| node.as_ref().map(|n| (n.labels.clone(), n.taints.clone()));
    if relevant(&update.old) == relevant(&update.new) {
        return Vec::new();
    }
    context.daemon_sets.all().into_iter().map(|(key, _)| key).collect()
}

impl DaemonSets {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        let Some(set) = context.daemon_sets.get(&key) else { return Ok(None) };
        let Some(selector) = selector(&set) else { return Ok(None) };
        if is_deleting(&set) {
            return Ok(None);
        }
        let recorder = context.recorder.named("daemonset-controller");
        let subject = InvolvedObject::of(DAEMON_SETS, &set);
        let hash = self.keep_history(&set).await?;
        let all: BTreeMap<String, Arc<Node>> = context
            .nodes
            .all()
            .into_iter()
            .map(|(key, node)| (key.name().to_owned(), node))
            .collect();
        let pods = claimed_pods(context, DAEMON_SETS, &set, &selector).await?;
        let should_run = nodes::should_run(&set, &all, context.options.scheduling.compare_taints);
        let now = context.clock.now().seconds();
        let plan = plan::plan(&set, &should_run, &pods, &hash, now);
        for pod in &plan.failed {
            let message = format!(
                "Found failed daemon pod {} on node {}, will try to kill it",
                pod.key(),
                pod.node
            );
            recorder.record(Event::warning(&subject, "FailedDaemonPod", message));
        }
        let mut gone = plan.delete.clone();
        gone.truncate(BURST);
        delete_pods(context, &recorder, &subject, &gone).await?;
        let made = plan.create.iter().take(BURST).map(|node| pod_for(&set, node, &hash)).collect();
        let created = create_pods(context, &recorder, &subject, made).await;
        let pods = claimed_pods(context, DAEMON_SETS, &set, &selector).await?;
        let (status, due) = plan::status(&set, &should_run, &pods, &hash, now);
        write_status(context, DAEMON_SETS, &context.daemon_sets, &set, status).await?;
        match created.error {
            Some(error) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(due.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }

    /// Stores a new template as a `ControllerRevision` and deletes the oldest revisions beyond the
    /// limit. Returns the hash that labels the pods of the template.
    async fn keep_history(&self, set: &Value) -> Result<String, Error> {
        let context = &*self.0;
        let uid = text(&set["metadata"]["uid"]);
        let namespace = text(&set["metadata"]["namespace"]);
        let mut own: Vec<Arc<Value>> = context
            .revisions
            .find(UNTYPED_BY_CONTROLLER, uid)
            .into_iter()
            .map(|(_, r)| r)
            .collect();
        own.sort_by_key(|revision| int(&revision["revision"]));
        let mut template = set["spec"]["template"].clone();
        template["$patch"] = "replace".into();
        let data = json!({"spec": {"template": template}});
        let last = own.last().map_or(0, |revision| int(&revision["revision"]));
        if let Some(same) = own.iter().find(|revision| revision["data"] == data) {
            let number = int(&same["revision"]);
            if number < last {
                let patch = json!({"revision": last + 1});
                let name = text(&same["metadata"]["name"]);
                let kind = PatchKind::Merge;
                let done =
                    context.client.patch(CONTROLLER_REVISIONS, namespace, name, kind, &patch);
                context.revisions.caught_up(&CacheState::Revision(revision(&done.await?))).await?;
            }
            let hash = text(&same["metadata"]["labels"][HASH]).to_owned();
            self.forget(set, &own, &hash).await?;
            return Ok(hash);
        }
        let hash = template_hash(&set["spec"]["template"], int(&set["status"]["collisionCount"]));
        let mut labels = set["spec"]["template"]["metadata"]["labels"].clone();
        labels[HASH] = hash.as_str().into();
        let made = json!({
            "kind": "ControllerRevision", "apiVersion": "apps/v1",
            "metadata": {
                "name": format!("{}-{hash}", text(&set["metadata"]["name"])),
                "namespace": namespace, "labels": labels,
                "ownerReferences": [owner_reference(DAEMON_SETS, set)],
            },
            "data": data, "revision": last + 1,
        });
        match context.client.create(CONTROLLER_REVISIONS, namespace, &made).await {
            Ok(made) => context.revisions.caught_up(&CacheState::Revision(revision(&made))).await?,
            Err(error) if error.is_already_there() => {
                // The name belongs to another owner or to a template with the same hash: raise the
                // collision count and retry.
                let count = int(&set["status"]["collisionCount"]) + 1;
                let patch = json!({"status": {"collisionCount": count}});
                let name = text(&set["metadata"]["name"]);
                let kind = PatchKind::Merge;
                context
                    .client
                    .patch_subresource(DAEMON_SETS, namespace, name, "status", kind, &patch)
                    .await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        Ok(hash)
    }

    async fn forget(&self, set: &Value, own: &[Arc<Value>], hash: &str) -> Result<(), Error> {
        let context = &*self.0;
        let keep = set["spec"]["revisionHistoryLimit"].as_i64().unwrap_or(10);
        let uid = text(&set["metadata"]["uid"]);
        let pods = context.pods.find(crate::context::BY_CONTROLLER, uid);
        let is_live = |revision: &Value| {
            let own = text(&revision["metadata"]["labels"][HASH]);
            own == hash || pods.iter().any(|(_, p)| p.labels.get(HASH).is_some_and(|h| h == own))
        };
        let idle: Vec<_> = own.iter().filter(|revision| !is_live(revision)).collect();
        let excess = idle.len().saturating_sub(usize::try_from(keep).unwrap_or(0));
        for old in idle.into_iter().take(excess) {
            let (namespace, name) =
                (text(&old["metadata"]["namespace"]), text(&old["metadata"]["name"]));
            let uid = client::DeleteOptions::of_uid(text(&old["metadata"]["uid"]));
            let done = context.client.delete(CONTROLLER_REVISIONS, namespace, name, &uid).await;
            ignore_not_found(done)?;
        }
        Ok(())
    }
}

/// Returns the daemon set's pod for a node.
fn pod_for(set: &Value, node: &str, hash: &str) -> Value {
    let mut pod = pod_from_template(DAEMON_SETS, set, &set["spec"]["template"]);
    pod["metadata"]["labels"][HASH] = hash.into();
    let generation = &set["metadata"]["annotations"]["deprecated.daemonset.template.generation"];
    if generation.is_string() {
        pod["metadata"]["labels"]["pod-template-generation"] = generation.clone();
    }
    nodes::pin(&mut pod["spec"], node);
    pod["spec"]["tolerations"] = nodes::tolerations(&pod["spec"]);
    pod
}

/// Returns the node that a pod is bound or pinned to.
fn node_of(pod: &Pod) -> &str {
    if pod.node.is_empty() { pod.pinned.as_deref().unwrap_or_default() } else { &pod.node }
}
