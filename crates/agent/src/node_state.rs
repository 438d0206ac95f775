//! The state of the node that its tasks share: [`NodeState`] with the ledger, the allocated resources, the
//! cpusets of running containers, and the properties of the node.
//!
//! Every change of the ledger is followed by [`NodeState::note_ledger_change`], which publishes it. Decides
//! nothing about pods, and creates nothing on the machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use placement::demand::{Demand, PodUid};
use tokio::sync::watch;

use crate::cpusets::tracker::{CpusetTracker, RebalanceError, TrackedContainer};
use crate::ledger::allocations::Allocations;
use crate::ledger::file::{LedgerError, LedgerFile};
use crate::observability::metrics::AgentMetrics;
use crate::runtime::lower::{ContainerAffinity, NodeEnvironment};
use lifecycle::spec::Pod;

/// The shared state of the node.
#[derive(Debug)]
pub struct NodeState {
    ledger: Mutex<LedgerFile>,
    /// Allocated resources of pods that can be resized.
    allocations: Mutex<Allocations>,
    pub cpuset_tracker: CpusetTracker,
    /// Gate `InPlacePodVerticalScalingExclusiveCPUs`.
    pub change_static_cpus: bool,
    /// Incremented with every commit and release of the ledger.
    ledger_changed: watch::Sender<u64>,
    node_env: RwLock<Arc<NodeEnvironment>>,
    metrics: Arc<AgentMetrics>,
}

impl NodeState {
    #[must_use]
    pub fn new(
        ledger: LedgerFile,
        allocations: Allocations,
        node_env: NodeEnvironment,
        change_static_cpus: bool,
        metrics: Arc<AgentMetrics>,
    ) -> NodeState {
        NodeState {
            ledger: Mutex::new(ledger),
            allocations: Mutex::new(allocations),
            cpuset_tracker: CpusetTracker::default(),
            change_static_cpus,
            ledger_changed: watch::Sender::new(0),
            node_env: RwLock::new(Arc::new(node_env)),
            metrics,
        }
    }

    pub fn ledger(&self) -> MutexGuard<'_, LedgerFile> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn node_env(&self) -> Arc<NodeEnvironment> {
        Arc::clone(&self.node_env.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the properties of the node.
    pub fn update_node_env(&self, change: impl FnOnce(&mut NodeEnvironment)) {
        let mut node_env = self.node_env.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut node_env));
    }

    /// Returns a receiver that is notified of every change of the ledger.
    #[must_use]
    pub fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.ledger_changed.subscribe()
    }

    /// Publishes that the ledger changed.
    pub fn note_ledger_change(&self) {
        let (shared, exclusive, by_node) = {
            let ledger = self.ledger();
            let exclusive = ledger.contents().cpu.exclusive(None);
            let by_node: Vec<(String, usize)> = ledger
                .node()
                .topology
                .nodes()
                .iter()
                .map(|node| (node.id.0.to_string(), node.cpus.count_common(&exclusive)))
                .collect();
            (ledger.shared().len(), exclusive.len(), by_node)
        };
        for (node, count) in by_node {
            self.metrics.exclusive_cpus_by_node.set(&[&node], count as f64);
        }
        self.metrics.shared_pool.set(&[], (shared * 1000) as f64);
        self.metrics.exclusive_cpus.set(&[], exclusive as f64);
        self.ledger_changed.send_modify(|count| *count += 1);
    }

    /// Returns the current allocations of the containers of a pod.
    #[must_use]
    pub fn affinities(&self, pod: &Pod) -> BTreeMap<String, ContainerAffinity> {
        self.ledger().affinities(pod)
    }

    /// Returns the current allocation of a tracked container.
    #[must_use]
    pub fn affinity(&self, entry: &TrackedContainer) -> ContainerAffinity {
        self.ledger().affinity(&PodUid::new(&entry.pod_uid), &entry.container)
    }

    /// Marks a container as about to start.
    pub fn starting(&self, demand: &Demand, container: &str) -> Result<(), LedgerError> {
        self.ledger().starting(demand, container)
    }

    /// Moves every container without exclusive CPUs off the CPUs that are exclusive now.
    pub async fn rebalance(&self, runtime: &cri::Client) -> Result<usize, RebalanceError> {
        let place = |entry: &TrackedContainer| self.affinity(entry);
        let moved = self.cpuset_tracker.rebalance(runtime, self.node_env().os, place).await?;
        self.metrics.moved.add(&[], u64::try_from(moved).unwrap_or(0));
        Ok(moved)
    }

    /// Publishes that the ledger has released CPUs, and gives them to the containers on shared CPUs.
    pub async fn share_released_cpus(&self, runtime: &cri::Client) {
        self.note_ledger_change();
        // Nothing depends on a larger shared pool. A container that could not be moved is found by the
        // next check.
        let _ = self.rebalance(runtime).await;
    }

    /// Moves running containers of a pod to their allocation.
    pub async fn move_containers(
        &self,
        runtime: &cri::Client,
        pod: &Pod,
        affinities: &BTreeMap<String, ContainerAffinity>,
    ) -> Result<(), RebalanceError> {
        let _still = self.cpuset_tracker.lock().await;
        for (id, entry) in self.cpuset_tracker.all() {
            if entry.pod_uid != pod.metadata.uid {
                continue;
            }
            let to = affinities.get(&entry.container).filter(|to| **to != entry.affinity);
            if let Some(to) = to {
                let os = self.node_env().os;
                self.cpuset_tracker.set_cpuset(runtime, os, id, to.clone()).await?;
            }
        }
        Ok(())
    }
}
