//! [`ControllerContext`]: the informer caches, the client and the options that controllers share.

use std::sync::Arc;

use client::kind::{self, Kind};
use client::{Cache, Client, Project, Reflector, Scope};
use objects::rules::pod::accounts::ROOT_CA;
use objects::types::Object;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::observe::{self, Node, Pod};
use crate::options::Options;
use crate::record::Recorder;
use crate::supervise::Start;

/// Indices of the pod cache.
pub(crate) const BY_CONTROLLER: usize = 0;
pub(crate) const BY_NODE: usize = 1;
pub(crate) const BY_NAMESPACE: usize = 2;

/// Indices of the untyped caches.
pub(crate) const UNTYPED_BY_CONTROLLER: usize = 0;
pub(crate) const UNTYPED_BY_NAMESPACE: usize = 1;

#[derive(Debug)]
pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) options: Options,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) deployments: Cache<Value>,
    pub(crate) replica_sets: Cache<Value>,
    pub(crate) daemon_sets: Cache<Value>,
    pub(crate) revisions: Cache<Value>,
    pub(crate) jobs: Cache<Value>,
    pub(crate) namespaces: Cache<Value>,
    pub(crate) accounts: Cache<Value>,
    /// The config maps with the API server's CA certificates.
    pub(crate) root_cas: Cache<Value>,
    pub(crate) budgets: Cache<Value>,
    pub(crate) quotas: Cache<Value>,
}

fn controller_uid(object: &Value) -> Vec<String> {
    controller_of(object).map(|owner| text(&owner["uid"]).to_owned()).into_iter().collect()
}

fn namespace_of(object: &Value) -> Vec<String> {
    vec![text(&object["metadata"]["namespace"]).to_owned()]
}

/// Returns the reference of an object to its controller.
pub(crate) fn controller_of(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn untyped() -> Cache<Value> {
    Cache::new(&[controller_uid, namespace_of])
}

fn pod_owner(pod: &Pod) -> Vec<String> {
    pod.owner.iter().map(|owner| owner.uid.clone()).collect()
}

fn pod_node(pod: &Pod) -> Vec<String> {
    Some(pod.node.clone()).filter(|node| !node.is_empty()).into_iter().collect()
}

fn pod_namespace(pod: &Pod) -> Vec<String> {
    vec![pod.namespace.clone()]
}

impl ControllerContext {
    pub(crate) fn new(
        client: Client,
        clock: Clock,
        recorder: Recorder,
        options: Options,
        counters: Arc<Counters>,
    ) -> ControllerContext {
        ControllerContext {
            client,
            clock,
            recorder,
            options,
            counters,
            pods: Cache::new(&[pod_owner, pod_node, pod_namespace]),
            nodes: Cache::new(&[]),
            deployments: untyped(),
            replica_sets: untyped(),
            daemon_sets: untyped(),
            revisions: untyped(),
            jobs: untyped(),
            namespaces: untyped(),
            accounts: untyped(),
            root_cas: untyped(),
            budgets: untyped(),
            quotas: untyped(),
        }
    }

    /// Returns the informers that fill the caches, each with its name. An informer runs until it is
    /// dropped.
    pub(crate) fn informers(self: &Arc<ControllerContext>) -> Vec<(&'static str, Start)> {
        let root_cas =
            Scope { field_selector: format!("metadata.name={ROOT_CA}"), ..Scope::default() };
        vec![
            self.keep(kind::PODS, observe::pod, |context| &context.pods),
            self.keep(kind::NODES, observe::node, |context| &context.nodes),
            self.keep(kind::DEPLOYMENTS, observe::untyped, |context| &context.deployments),
            self.keep(kind::REPLICA_SETS, observe::untyped, |context| &context.replica_sets),
            self.keep(kind::DAEMON_SETS, observe::untyped, |context| &context.daemon_sets),
            self.keep(kind::CONTROLLER_REVISIONS, observe::untyped, |context| &context.revisions),
            self.keep(kind::JOBS, observe::untyped, |context| &context.jobs),
            self.keep(kind::NAMESPACES, observe::untyped, |context| &context.namespaces),
            self.keep(kind::SERVICE_ACCOUNTS, observe::untyped, |context| &context.accounts),
            self.keep_some(kind::CONFIG_MAPS, root_cas, observe::untyped, |context| {
                &context.root_cas
            }),
            self.keep(kind::BUDGETS, observe::untyped, |context| &context.budgets),
            self.keep(kind::QUOTAS, observe::untyped, |context| &context.quotas),
        ]
    }

    fn keep<P, T>(
        self: &Arc<ControllerContext>,
        kind: Kind,
        project: Project<P, T>,
        cache: fn(&ControllerContext) -> &Cache<T>,
    ) -> (&'static str, Start)
    where
        P: Object + DeserializeOwned + 'static,
        T: Send + Sync + 'static,
    {
        self.keep_some(kind, Scope::default(), project, cache)
    }

    fn keep_some<P, T>(
        self: &Arc<ControllerContext>,
        kind: Kind,
        scope: Scope,
        project: Project<P, T>,
        cache: fn(&ControllerContext) -> &Cache<T>,
    ) -> (&'static str, Start)
    where
        P: Object + DeserializeOwned + 'static,
        T: Send + Sync + 'static,
    {
        let context = self.clone();
        let start: Start = Box::new(move || {
            let context = context.clone();
            let reflector = Reflector::new(context.client.clone(), kind, scope.clone(), project);
            Box::pin(reflector.run(move |change| {
                cache(&context).apply(change);
                true
            }))
        });
        (kind.plural, start)
    }

    /// Waits until every cache has been filled once.
    pub(crate) async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        for untyped in [
            &self.deployments,
            &self.replica_sets,
            &self.daemon_sets,
            &self.revisions,
            &self.jobs,
            &self.namespaces,
            &self.accounts,
            &self.root_cas,
            &self.budgets,
            &self.quotas,
        ] {
            untyped.synced().await;
        }
    }
}
