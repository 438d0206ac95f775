//! Backend of the agent's server: pods from the cache, configuration, metrics, and statistics that are
//! measured on request.

use std::sync::Arc;

use futures::future::BoxFuture;
use metrics::{Family, Kind, Registry};
use objects::timestamp::Timestamp;
use serde_json::Value;

use crate::observability::metrics::AgentMetrics;
use crate::observability::stats::Stats;
use crate::publications::Publications;
use crate::runtime::Runtime;
use crate::server::{self, Document, configz};
use lifecycle::status;

/// Answers the requests of the agent's server.
#[derive(Debug)]
pub(super) struct AgentBackend {
    runtime: Arc<Runtime>,
    publications: Arc<Publications>,
    metrics: Arc<AgentMetrics>,
    configuration: Value,
    stats: Stats,
    began: Timestamp,
}

impl AgentBackend {
    pub(super) fn new(
        runtime: Arc<Runtime>,
        publications: Arc<Publications>,
        metrics: Arc<AgentMetrics>,
        configuration: Value,
        stats: Stats,
    ) -> AgentBackend {
        let (began, configuration) = (stats.began(), configz::in_force(configuration));
        AgentBackend { runtime, publications, metrics, configuration, stats, began }
    }

    /// Returns the metrics of a registry with the start time of the agent.
    fn with_start(&self, registry: &Registry) -> Vec<Family> {
        let name = "process_start_time_seconds";
        let help = "[ALPHA] Start time of the process since unix epoch in seconds.";
        let seconds = self.began.unix_nanos() as f64 / 1e9;
        let mut families = registry.families();
        families.push(Family::single(Kind::Gauge, name, help, seconds));
        families
    }
}

impl server::ServerBackend for AgentBackend {
    fn pods(&self) -> Vec<Value> {
        self.publications.pod_cache.pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.publications.pod_cache.pod(namespace, name)
    }

    fn sandbox(&self, uid: &str) -> Option<String> {
        self.publications.pod_cache.sandbox(uid)
    }

    fn configuration(&self) -> Value {
        self.configuration.clone()
    }

    fn metrics(&self) -> Vec<Family> {
        let metrics = &self.metrics;
        let active = self.publications.active();
        let of_files = active.iter().filter(|pod| status::is_static(pod)).count();
        let mirrors = self.publications.mirrors.borrow().wanted.len();
        let active = (of_files, active.len() - of_files);
        metrics.gauges.pods(&self.publications.pod_cache.pods(), active, mirrors);
        if let Ok(usage) = host::os::system::this_process() {
            metrics.process.observe(usage);
        }
        self.with_start(&metrics.registry)
    }

    fn complaint(&self) -> Option<String> {
        let silent = self.runtime.capabilities.borrow().is_none();
        silent.then(|| "the container runtime has not answered yet".to_owned())
    }

    fn document<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<Document>> {
        if path == "/metrics/probes" {
            let families = self.with_start(&self.metrics.probes);
            return Box::pin(std::future::ready(Some(Document::Metrics(families))));
        }
        Box::pin(self.stats.document(path))
    }
}
