//! Resource quotas: recounts the usage of a namespace.
//!
//! The API server charges every request as it arrives. This controller handles changes that the API
//! server does not charge: deleted objects, finished pods and new quotas. It updates the quota only
//! at the version that it read, so that a concurrent charge is not lost.

use std::sync::Arc;
use std::time::Duration;

use client::kind::{Kind, QUOTAS};
use client::{BoxFuture, Error, Key, Scope, Update};
use objects::catalog::{self, Resource, Verb};
use objects::quota::recompute;
use serde_json::Value;

use crate::context::{ControllerContext, UNTYPED_BY_NAMESPACE};
use crate::observe::Pod;
use crate::workload::is_deleting;
use crate::workqueue::Reconcile;

/// The interval at which every quota is recounted without an event. Upstream's figure.
const RESYNC: Duration = Duration::from_secs(300);

/// Returns the quotas of a pod's namespace if the pod is new, deleted or finished, or if its scope
/// changed.
pub(crate) fn keys_for_pod(context: &ControllerContext, update: &Update<Pod>) -> Vec<Key> {
    let counted_state =
        |pod: &Arc<Pod>| (pod.is_finished(), pod.deleting.is_some(), pod.has_deadline);
    if update.old.as_ref().map(counted_state) == update.new.as_ref().map(counted_state) {
        return Vec::new();
    }
    keys_in_namespace(context, update.key.namespace())
}

pub(crate) fn keys_in_namespace(context: &ControllerContext, namespace: &str) -> Vec<Key> {
    let quotas = context.quotas.find(UNTYPED_BY_NAMESPACE, namespace);
    quotas.into_iter().map(|(key, _)| key).collect()
}

/// Returns the kinds that a quota counts.
fn counted_resources(quota: &Value) -> Vec<&'static Resource> {
    let hard = quota["spec"]["hard"].as_object();
    let named = |resource: &Resource| {
        let count = match resource.group {
            "" => format!("count/{}", resource.plural),
            group => format!("count/{}.{group}", resource.plural),
        };
        let of_services = resource.plural == "services";
        hard.into_iter().flatten().any(|(name, _)| {
            *name == count
                || name == resource.plural
                || (of_services && name.starts_with("services."))
        })
    };
    let served = catalog::RESOURCES.iter();
    let namespaced = served.filter(|r| r.namespaced && r.verbs.contains(&Verb::List));
    namespaced.filter(|r| (r.group.is_empty() && r.kind == "Pod") || named(r)).collect()
}

#[derive(Debug)]
pub(crate) struct Quotas(pub(crate) Arc<ControllerContext>);

impl Reconcile for Quotas {
    const NAME: &'static str = "resourcequota";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

impl Quotas {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        if context.quotas.get(&key).is_none() {
            return Ok(None);
        }
        // Read the current quota: objects counted below were charged to it, or are charged after
        // this write.
        let mut quota: Value = match context.client.get(QUOTAS, key.namespace(), key.name()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        if is_deleting(&quota) {
            return Ok(None);
        }
        let mut objects = Vec::new();
        for resource in counted_resources(&quota) {
            let scope = Scope { namespace: key.namespace().to_owned(), ..Scope::default() };
            let found = context.client.list_values(Kind::of(resource), &scope).await?;
            objects.extend(found.into_iter().map(|object| (resource, object)));
        }
        let all = objects.iter().map(|(resource, object)| (*resource, object));
        let status = recompute(&quota, all, context.clock.now());
        if quota["status"] != status {
            quota["status"] = status;
            match context.client.update_subresource(QUOTAS, "status", &quota).await {
                Err(error) if error.is_not_found() => return Ok(None),
                done => done?,
            };
        }
        Ok(Some(RESYNC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_resources_in_the_quota_are_counted() {
        let check = |hard: Value, expected: &[&str]| {
            let found = counted_resources(&json!({"spec": {"hard": hard}}));
            let found: Vec<_> = found.iter().map(|resource| resource.plural).collect();
            assert_eq!(found, expected);
        };
        check(json!({"cpu": "1"}), &["pods"]);
        check(
            json!({"configmaps": "1", "services.nodeports": "2"}),
            &["configmaps", "pods", "services"],
        );
        check(json!({"count/jobs.batch": "1"}), &["pods", "jobs"]);
    }
}
