//! The parts of the agent that pod workers use: [`WorkerContext`].
//!
//! The pod set holds it as well, because it starts the workers and reports the pods that it rejects. Other
//! tasks take only the parts that they use.

use std::sync::Arc;

use client::Client;

use crate::node_state::NodeState;
use crate::observability::metrics::AgentMetrics;
use crate::observability::recorder::Recorder;
use crate::pods::dependencies::PodDependencies;
use crate::publications::Publications;
use crate::runtime::Runtime;
use crate::status::writer::Subject;
use client::clock::Clock;
use lifecycle::spec::Pod;
use lifecycle::status::{self, PodStatus, StatusInputs};

/// The parts of the agent that workers share.
#[derive(Debug)]
pub struct WorkerContext {
    pub runtime: Arc<Runtime>,
    pub state: Arc<NodeState>,
    pub publications: Arc<Publications>,
    pub dependencies: Arc<PodDependencies>,
    pub api: Client,
    pub recorder: Recorder,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<AgentMetrics>,
}

impl WorkerContext {
    /// Returns the part of the inputs of a status that all pods share.
    #[must_use]
    pub fn status_inputs(&self) -> StatusInputs {
        StatusInputs {
            runtime: self.runtime.name(),
            recursive_read_only: self.runtime.recursive_read_only(),
            host_ips: self.state.node_env().ips.clone(),
            ..StatusInputs::default()
        }
    }

    /// Returns the last reported address of a pod, or that of the node.
    #[must_use]
    pub fn reported_ip(&self, pod: &Pod) -> String {
        match PodStatus::read(&pod.status).pod_ip {
            ip if ip.is_empty() => self.state.node_env().ips.first().cloned().unwrap_or_default(),
            ip => ip,
        }
    }

    /// Returns the target of the pod's status: the pod itself, or the mirror of a static pod.
    #[must_use]
    pub fn subject(&self, pod: &Pod) -> Subject {
        let mirrors = status::is_static(pod).then(|| self.publications.mirrors.subscribe());
        let metadata = pod.metadata.clone();
        let work = Some(self.metrics.sync.clone());
        Subject {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            mirrors,
            work,
        }
    }
}
