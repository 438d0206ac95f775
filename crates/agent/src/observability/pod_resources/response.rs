//! The responses about pods and the node. Pure: from the ledger.

use std::sync::Arc;

use placement::demand::{MemoryKind, PodUid};
use placement::memory::{Block, Blocks};
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::{CpuSet, Ledger, Node, NumaId};
use tonic::Status;

use super::v1;
use lifecycle::spec::{Pod, Role};

/// Returns the resources of a pod.
#[must_use]
pub fn pod(pod: &Pod, node: &Node, ledger: &Ledger) -> v1::PodResources {
    let uid = PodUid::new(&pod.metadata.uid);
    let runs = pod.containers().filter(|(role, _)| matches!(role, Role::Sidecar | Role::App));
    let containers = runs.map(|(_, container)| v1::ContainerResources {
        name: container.name.clone(),
        cpu_ids: ledger.cpu.assigned(&uid, &container.name).map(ids).unwrap_or_default(),
        memory: ledger
            .memory
            .blocks(&uid, &container.name)
            .map(|blocks| memory(node, blocks))
            .unwrap_or_default(),
        ..v1::ContainerResources::default()
    });
    v1::PodResources {
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        containers: containers.collect(),
        ..v1::PodResources::default()
    }
}

/// Returns what could be allocated on an empty node; nothing if no policy allocates.
#[must_use]
pub fn allocatable(node: &Node, ledger: &Ledger) -> v1::AllocatableResourcesResponse {
    let cpu_ids = match &node.cpu {
        CpuPolicy::Static(policy) => ids(&policy.allocatable(&node.topology)),
        CpuPolicy::None => Vec::new(),
    };
    let mut memory = Vec::new();
    if let MemoryPolicy::Static(_) = &node.memory {
        for (state, of) in ledger.memory.nodes.iter().zip(node.topology.nodes()) {
            let tables = state.tables.iter().filter(|(_, table)| table.allocatable > 0);
            memory.extend(tables.map(|(kind, table)| block(*kind, table.allocatable, [of.id])));
        }
    }
    v1::AllocatableResourcesResponse { cpu_ids, memory, ..Default::default() }
}

/// Returns the requested pod, or upstream's error.
pub fn find<'a>(
    pods: &'a [Arc<Pod>],
    request: &v1::GetPodResourcesRequest,
) -> Result<&'a Pod, Status> {
    let (name, namespace) = (&request.pod_name, &request.pod_namespace);
    let is_it =
        |pod: &&Arc<Pod>| (&pod.metadata.name, &pod.metadata.namespace) == (name, namespace);
    let found = pods.iter().find(is_it).map(AsRef::as_ref);
    found.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {namespace} not found")))
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(|cpu| i64::from(cpu.0)).collect()
}

fn memory(node: &Node, blocks: &Blocks) -> Vec<v1::ContainerMemory> {
    let of = |of: &Block| block(of.kind, of.size, node.topology.node_ids(of.nodes));
    blocks.iter().map(of).collect()
}

fn block(
    kind: MemoryKind,
    size: u64,
    nodes: impl IntoIterator<Item = NumaId>,
) -> v1::ContainerMemory {
    let nodes = nodes.into_iter().map(|id| v1::NumaNode { id: i64::from(id.0) }).collect();
    let topology = Some(v1::TopologyInfo { nodes });
    v1::ContainerMemory { memory_type: kind.to_string(), size, topology }
}
