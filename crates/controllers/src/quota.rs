//! Resource quotas: what a namespace uses, counted from scratch.
//!
//! The API server charges every request as it comes; here is what it cannot see: objects that are gone,
//! pods that have ended, quotas that are new. The count is written only over the quota it was made for,
//! so that a charge in between is not lost.

use std::sync::Arc;
use std::time::Duration;

use client::kind::{Kind, QUOTAS};
use client::{BoxFuture, Error, Key, Scope, Update};
use objects::catalog::{self, Resource, Verb};
use objects::quota::recompute;
use serde_json::Value;

use crate::observe::Pod;
use crate::work::Reconcile;
use crate::workload::is_deleting;
use crate::world::{TREE_BY_NAMESPACE, World};

/// How often every quota is counted although nothing was seen to happen. Upstream's figure.
const RESYNC: Duration = Duration::from_secs(300);

/// The quotas a change of a pod concerns: those of its namespace, if it is new, gone or has ended, or
/// came into another scope.
pub(crate) fn of_pod(world: &World, update: &Update<Pod>) -> Vec<Key> {
    let stage = |pod: &Arc<Pod>| (pod.is_finished(), pod.deleting.is_some(), pod.has_deadline);
    if update.old.as_ref().map(stage) == update.new.as_ref().map(stage) {
        return Vec::new();
    }
    of_namespace(world, update.key.namespace())
}

pub(crate) fn of_namespace(world: &World, namespace: &str) -> Vec<Key> {
    let quotas = world.quotas.find(TREE_BY_NAMESPACE, namespace);
    quotas.into_iter().map(|(key, _)| key).collect()
}

/// The kinds a quota counts.
fn counted(quota: &Value) -> Vec<&'static Resource> {
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
pub(crate) struct Quotas(pub(crate) Arc<World>);

impl Reconcile for Quotas {
    const NAME: &'static str = "resourcequota";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.bring(key))
    }
}

impl Quotas {
    async fn bring(&self, key: Key) -> Result<Option<Duration>, Error> {
        let world = &*self.0;
        if world.quotas.get(&key).is_none() {
            return Ok(None);
        }
        // As it is now: what is counted afterwards was charged to it, or comes after this write.
        let mut quota: Value = match world.client.get(QUOTAS, key.namespace(), key.name()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        if is_deleting(&quota) {
            return Ok(None);
        }
        let mut objects = Vec::new();
        for resource in counted(&quota) {
            let scope = Scope { namespace: key.namespace().to_owned(), ..Scope::default() };
            let found = world.client.list_values(Kind::of(resource), &scope).await?;
            objects.extend(found.into_iter().map(|object| (resource, object)));
        }
        let all = objects.iter().map(|(resource, object)| (*resource, object));
        let status = recompute(&quota, all, world.clock.now());
        if quota["status"] != status {
            quota["status"] = status;
            match world.client.update_subresource(QUOTAS, "status", &quota).await {
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
    fn only_what_a_quota_bounds_is_counted() {
        let check = |hard: Value, expected: &[&str]| {
            let found = counted(&json!({"spec": {"hard": hard}}));
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
