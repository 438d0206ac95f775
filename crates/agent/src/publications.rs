//! The state of pods that the pod set and its workers publish for the other tasks: [`Publications`].
//!
//! Readers see the latest value and never wait for a worker. Nothing here is read back by the pod set.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::observability::metrics::PodLifecycleMetrics;
use crate::pods::static_pods::mirror::Mirrors;
use crate::status::pod_cache::PodCache;
use crate::supervisor::RestartBackoff;
use lifecycle::spec::Pod;

/// The pods of the node that hold resources.
pub type ActivePods = Arc<Vec<Arc<Pod>>>;
/// The UIDs of the node's pods.
pub type PodUids = Arc<BTreeSet<String>>;

/// The published state of all pods.
#[derive(Debug)]
pub struct Publications {
    /// The pods that hold resources of the node.
    pub active: watch::Sender<ActivePods>,
    /// UIDs of the agent's pods; `None` until the initial list is complete.
    pub known_pods: watch::Sender<Option<PodUids>>,
    /// Wanted and existing mirror pods of static pods.
    pub mirrors: watch::Sender<Arc<Mirrors>>,
    /// Pods with their newest status, for the agent's server.
    pub pod_cache: PodCache,
    /// Reports of workers to the agent.
    pub reports: mpsc::UnboundedSender<WorkerReport>,
}

/// A report of a worker to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerReport {
    /// The pod with this UID has released its resources.
    ResourcesReleased(String),
    /// The pod is gone.
    Removed(String),
    /// The worker of the pod with this UID panicked, and its back-off is over.
    Panicked(String, RestartBackoff),
}

impl Publications {
    /// Returns empty publications, and the receiver of the workers' reports.
    #[must_use]
    pub fn new(
        metrics: PodLifecycleMetrics,
    ) -> (Publications, mpsc::UnboundedReceiver<WorkerReport>) {
        let (reports, received) = mpsc::unbounded_channel();
        let publications = Publications {
            active: watch::Sender::default(),
            known_pods: watch::Sender::default(),
            mirrors: watch::Sender::default(),
            pod_cache: PodCache::with_metrics(metrics),
            reports,
        };
        (publications, received)
    }

    #[must_use]
    pub fn active(&self) -> ActivePods {
        Arc::clone(&self.active.borrow())
    }
}
