//! What loops share: [`World`], the caches of what they look at and the way to what they do.

use std::sync::Arc;

use client::kind::{self, Kind};
use client::{Cache, Client, Project, Reflector, Scope};
use objects::rules::pod::accounts::ROOT_CA;
use serde_json::Value;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::observe::{self, Node, Pod};
use crate::options::Options;
use crate::record::Recorder;
use crate::supervise::Start;

/// Numbers of the indices of pods.
pub(crate) const BY_CONTROLLER: usize = 0;
pub(crate) const BY_NODE: usize = 1;
pub(crate) const BY_NAMESPACE: usize = 2;

/// Numbers of the indices of trees.
pub(crate) const TREE_BY_CONTROLLER: usize = 0;
pub(crate) const TREE_BY_NAMESPACE: usize = 1;

#[derive(Debug)]
pub(crate) struct World {
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
    /// The config maps with the authority of the API.
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

/// The reference of an object to its controller.
pub(crate) fn controller_of(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn trees() -> Cache<Value> {
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

impl World {
    pub(crate) fn new(
        client: Client,
        clock: Clock,
        recorder: Recorder,
        options: Options,
        counters: Arc<Counters>,
    ) -> World {
        World {
            client,
            clock,
            recorder,
            options,
            counters,
            pods: Cache::new(&[pod_owner, pod_node, pod_namespace]),
            nodes: Cache::new(&[]),
            deployments: trees(),
            replica_sets: trees(),
            daemon_sets: trees(),
            revisions: trees(),
            jobs: trees(),
            namespaces: trees(),
            accounts: trees(),
            root_cas: trees(),
            budgets: trees(),
            quotas: trees(),
        }
    }

    /// Returns what keeps the caches up to date, each with its name; it runs until it is dropped.
    pub(crate) fn informers(self: &Arc<World>) -> Vec<(&'static str, Start)> {
        let root_cas =
            Scope { field_selector: format!("metadata.name={ROOT_CA}"), ..Scope::default() };
        vec![
            self.keep(kind::PODS, observe::pod, |world| &world.pods),
            self.keep(kind::NODES, observe::node, |world| &world.nodes),
            self.keep(kind::DEPLOYMENTS, observe::tree, |world| &world.deployments),
            self.keep(kind::REPLICA_SETS, observe::tree, |world| &world.replica_sets),
            self.keep(kind::DAEMON_SETS, observe::tree, |world| &world.daemon_sets),
            self.keep(kind::CONTROLLER_REVISIONS, observe::tree, |world| &world.revisions),
            self.keep(kind::JOBS, observe::tree, |world| &world.jobs),
            self.keep(kind::NAMESPACES, observe::tree, |world| &world.namespaces),
            self.keep(kind::SERVICE_ACCOUNTS, observe::tree, |world| &world.accounts),
            self.keep_some(kind::CONFIG_MAPS, root_cas, observe::tree, |world| &world.root_cas),
            self.keep(kind::BUDGETS, observe::tree, |world| &world.budgets),
            self.keep(kind::QUOTAS, observe::tree, |world| &world.quotas),
        ]
    }

    fn keep<T: Send + Sync + 'static>(
        self: &Arc<World>,
        kind: Kind,
        project: Project<T>,
        cache: fn(&World) -> &Cache<T>,
    ) -> (&'static str, Start) {
        self.keep_some(kind, Scope::default(), project, cache)
    }

    fn keep_some<T: Send + Sync + 'static>(
        self: &Arc<World>,
        kind: Kind,
        scope: Scope,
        project: Project<T>,
        cache: fn(&World) -> &Cache<T>,
    ) -> (&'static str, Start) {
        let world = self.clone();
        let start: Start = Box::new(move || {
            let world = world.clone();
            let reflector = Reflector::new(world.client.clone(), kind, scope.clone(), project);
            Box::pin(reflector.run(move |change| {
                cache(&world).apply(change);
                true
            }))
        });
        (kind.plural, start)
    }

    /// Until every cache has been filled once.
    pub(crate) async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        for trees in [
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
            trees.synced().await;
        }
    }
}
