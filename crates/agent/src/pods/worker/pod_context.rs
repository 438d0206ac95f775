//! The inputs of one sync of a pod: [`PodContext`] computes or fetches each of them at most once.
//!
//! A worker makes one per sync. A long wait within the sync, as for an image, ends the validity of the fetched
//! objects ([`PodContext::forget_fetched`]). Starts and changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use client::Error;
use placement::demand::Demand;

use crate::node_state::NodeState;
use crate::pods::dependencies::{Dependencies, PodDependencies};
use crate::runtime::images::credentials::SecretData;
use crate::runtime::lower::{
    self, ContainerAffinity, LowerError, NodeEnvironment, PodInput, PodSource, Sandbox, Service,
};
use crate::volumes::{self, Contents, References};
use lifecycle::placement_demand;
use lifecycle::spec::Pod;

/// The inputs of one sync.
#[derive(Debug)]
pub(super) struct PodContext {
    /// The pod with the last reported status.
    pub(super) pod: Arc<Pod>,
    pub(super) source: PodSource,
    pub(super) node_env: Arc<NodeEnvironment>,
    pub(super) affinities: BTreeMap<String, ContainerAffinity>,
    demand: OnceLock<Demand>,
    references: OnceLock<References>,
    dependencies: Option<Arc<Dependencies>>,
    pull_secrets: Option<Arc<Vec<SecretData>>>,
    services: Option<Arc<Vec<Service>>>,
    /// The configuration of the sandbox with this attempt number.
    sandbox: Option<(u32, Arc<Sandbox>)>,
}

impl PodContext {
    pub(super) fn new(pod: Pod, source: PodSource, state: &NodeState) -> PodContext {
        PodContext {
            affinities: state.affinities(&pod),
            node_env: state.node_env(),
            pod: Arc::new(pod),
            source,
            demand: OnceLock::new(),
            references: OnceLock::new(),
            dependencies: None,
            pull_secrets: None,
            services: None,
            sandbox: None,
        }
    }

    /// Reads the properties of the node and the pod's allocation again, after a wait.
    pub(super) fn refresh(&mut self, state: &NodeState) {
        let (node_env, affinities) = (state.node_env(), state.affinities(&self.pod));
        if *node_env != *self.node_env || affinities != self.affinities {
            self.sandbox = None;
        }
        (self.node_env, self.affinities) = (node_env, affinities);
    }

    /// Returns the inputs of the pod's CRI requests.
    pub(super) fn input(&self) -> PodInput<'_> {
        PodInput::new(&self.pod, &self.node_env, &self.source, &self.affinities)
    }

    pub(super) fn demand(&self) -> &Demand {
        self.demand.get_or_init(|| placement_demand(&self.pod))
    }

    pub(super) fn references(&self) -> &References {
        self.references.get_or_init(|| volumes::references(&self.pod))
    }

    /// Returns the objects that the pod refers to.
    pub(super) async fn dependencies(
        &mut self,
        from: &PodDependencies,
    ) -> Result<Arc<Dependencies>, Error> {
        if let Some(fetched) = &self.dependencies {
            return Ok(Arc::clone(fetched));
        }
        let fetched = Arc::new(from.fetch(&self.pod, self.references()).await?);
        Ok(Arc::clone(self.dependencies.insert(fetched)))
    }

    pub(super) async fn pull_secrets(&mut self, from: &PodDependencies) -> Arc<Vec<SecretData>> {
        if let Some(fetched) = &self.pull_secrets {
            return Arc::clone(fetched);
        }
        let fetched = Arc::new(from.pull_secrets(&self.pod).await);
        Arc::clone(self.pull_secrets.insert(fetched))
    }

    /// Returns the services of all namespaces.
    pub(super) async fn services(&mut self, from: &PodDependencies) -> Arc<Vec<Service>> {
        if let Some(known) = &self.services {
            return Arc::clone(known);
        }
        let known = Arc::new(from.services().await);
        Arc::clone(self.services.insert(known))
    }

    /// Returns the configuration of the pod's sandbox with this attempt number.
    pub(super) fn sandbox(&mut self, attempt: u32) -> Result<Arc<Sandbox>, LowerError> {
        if let Some((of, sandbox)) = &self.sandbox
            && *of == attempt
        {
            return Ok(Arc::clone(sandbox));
        }
        let sandbox = Arc::new(lower::sandbox(&self.input(), attempt)?);
        self.sandbox = Some((attempt, Arc::clone(&sandbox)));
        Ok(sandbox)
    }

    /// Returns the contents of the pod's volumes.
    pub(super) fn volume_contents(&self, dependencies: &Dependencies) -> Contents {
        let Dependencies { configs, tokens, claims } = dependencies;
        volumes::contents(&self.input(), &volumes::VolumeInputs { configs, tokens, claims })
    }

    /// Makes the next use of an object of the API fetch it again.
    pub(super) fn forget_fetched(&mut self) {
        (self.dependencies, self.pull_secrets, self.services) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use client::{Body, BoxFuture, Client, Request, Response, Transport, TransportError};
    use objects::pod::OsName;
    use placement::configured::Configured;
    use serde_json::json;

    use super::*;
    use crate::ledger::allocations::Allocations;
    use crate::ledger::file::LedgerFile;
    use crate::observability::metrics::AgentMetrics;
    use crate::runtime::lower::ConfigSource;
    use crate::runtime::lower::tests::node_env;
    use crate::test_machine::machine;
    use client::clock::SystemClock;

    /// Counts requests by path. Every object exists and is empty.
    #[derive(Debug, Default)]
    struct CountingApi(Mutex<BTreeMap<String, u32>>);

    impl Transport for CountingApi {
        fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
            *self.0.lock().unwrap().entry(request.path).or_default() += 1;
            let body = Body::Whole("{}".into());
            Box::pin(async move { Ok(Response { status: 200, retry_after: None, body }) })
        }
    }

    fn state(directory: &std::path::Path) -> NodeState {
        let machine = machine(OsName::Linux, 4, &[1 << 32]);
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
        });
        let (config, _) = objects::kubelet_config::read(&config.to_string()).unwrap();
        let node = Configured::new(&machine, &config).unwrap().node;
        let (ledger, _) = LedgerFile::open(directory, node).unwrap();
        let (allocations, _) = Allocations::open(directory).unwrap();
        NodeState::new(ledger, allocations, node_env(), false, Arc::new(AgentMetrics::new()))
    }

    fn pod() -> Pod {
        let container = |name: &str| {
            json!({
                "name": name,
                "image": "busybox",
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
            })
        };
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "containers": [container("a"), container("b")],
                "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
                "imagePullSecrets": [{"name": "registry"}],
            },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[tokio::test]
    async fn a_sync_reads_each_object_once() {
        let directory = tempfile::tempdir().unwrap();
        let (state, api) = (state(directory.path()), Arc::new(CountingApi::default()));
        let client = Client::new(Arc::clone(&api) as Arc<dyn Transport>, "kubelet");
        let from = PodDependencies::new(client, Arc::new(SystemClock), None);
        let source = PodSource { origin: ConfigSource::Api, seen: String::new() };
        let mut sync = PodContext::new(pod(), source, &state);
        let counts = |api: &CountingApi| {
            let counts = std::mem::take(&mut *api.0.lock().unwrap());
            counts.into_iter().collect::<Vec<_>>()
        };
        // The volumes, then each of two containers.
        for _ in 0..3 {
            sync.dependencies(&from).await.unwrap();
        }
        let fetched = |path: &str| (format!("/api/v1/namespaces/n/{path}"), 1);
        let once =
            [fetched("configmaps/settings"), fetched("secrets/keys"), fetched("secrets/registry")];
        assert_eq!(counts(&api), once);
        for _ in 0..2 {
            sync.pull_secrets(&from).await;
        }
        assert_eq!(counts(&api), [fetched("secrets/registry")]);
        // After a pull the objects are read again.
        sync.forget_fetched();
        sync.dependencies(&from).await.unwrap();
        assert_eq!(counts(&api), once);
    }

    #[test]
    fn the_sandbox_is_lowered_once_per_attempt() {
        let directory = tempfile::tempdir().unwrap();
        let state = state(directory.path());
        let source = PodSource { origin: ConfigSource::Api, seen: String::new() };
        let mut sync = PodContext::new(pod(), source, &state);
        let first = sync.sandbox(0).unwrap();
        sync.refresh(&state);
        assert!(Arc::ptr_eq(&first, &sync.sandbox(0).unwrap()));
        assert!(!Arc::ptr_eq(&first, &sync.sandbox(1).unwrap()));
        let first = sync.sandbox(1).unwrap();
        state.update_node_env(|node_env| node_env.ips.push("192.0.2.8".to_owned()));
        sync.refresh(&state);
        assert!(!Arc::ptr_eq(&first, &sync.sandbox(1).unwrap()));
    }
}
