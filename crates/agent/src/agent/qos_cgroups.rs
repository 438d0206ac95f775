//! Cgroups above the pods: [`keep`] makes the one of all pods and the one of each QoS class, and updates
//! their limits when pods come and go.

use std::sync::Arc;

use objects::resources::{CPU, MEMORY};
use objects::{KubeletConfig, Quantity};
use placement::Machine;
use placement::configured::total_memory;
use placement::demand::MemoryKind;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::node_state::NodeState;
use crate::publications::ActivePods;
use crate::runtime::cgroups::{self, PodCgroups};
use client::ErrorLog;
use lifecycle::spec::ResourceList;

/// Returns the resources of the machine without the reserved ones. Memory held back for eviction is
/// included, because pods use it until they are evicted. `milli_cpus` comes from placement, which knows
/// the list of reserved CPUs.
pub(super) fn of_pods(machine: &Machine, config: &KubeletConfig, milli_cpus: u64) -> ResourceList {
    let topology = &machine.topology;
    let mut amounts = ResourceList::from([
        (CPU.to_owned(), Quantity::from_milli(i64::try_from(milli_cpus).unwrap_or(i64::MAX))),
        (MEMORY.to_owned(), Quantity::from_bytes(total_memory(topology))),
    ]);
    for node in topology.nodes() {
        for pages in &node.huge_pages {
            let name = MemoryKind::HugePages(pages.page_size).to_string();
            let bytes = Quantity::from_bytes(pages.page_size.0.saturating_mul(pages.count));
            let sum = amounts.get(&name).and_then(|before| before.checked_add(&bytes));
            amounts.insert(name, sum.unwrap_or(bytes));
        }
    }
    for (name, reserved) in config.reserved().into_iter().filter(|(name, _)| name != CPU) {
        if let Some(amount) = amounts.get_mut(&name) {
            let left = amount.checked_sub(&reserved).filter(|left| !left.is_negative());
            *amount = left.unwrap_or_else(Quantity::zero);
        }
    }
    amounts
}

/// Keeps the cgroups up to date as long as it is polled.
pub(super) async fn run(
    state: Arc<NodeState>,
    mut active: watch::Receiver<ActivePods>,
    cgroups: PodCgroups,
    amounts: ResourceList,
) {
    let mut errors = ErrorLog::default();
    loop {
        let pods = Arc::clone(&active.borrow_and_update());
        let (cgroups, node_env, amounts) = (cgroups.clone(), state.node_env(), amounts.clone());
        let done = tokio::task::spawn_blocking(move || {
            // The limit of the machine: pods have limits of their own.
            let pids = host::os::system::process_ids().ok().flatten().map(|of| of.max);
            let all = cgroups::of_all_pods(&node_env, &amounts, pids);
            cgroups.ensure_classes(&node_env, &all, pods.iter().map(AsRef::as_ref))
        });
        let failure = match done.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        match failure {
            None => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "updated the QoS cgroups again");
                }
            }
            Some(error) => {
                if errors.failed(&error) {
                    warn!(error, "failed to update the QoS cgroups; retrying when pods change");
                }
            }
        }
        if active.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use objects::pod::OsName;
    use serde_json::json;

    use super::*;
    use crate::test_machine::machine;

    #[test]
    fn a_list_of_reserved_cpus_goes_before_amounts() {
        let machine = machine(OsName::Linux, 2, &[1 << 32]);
        let check = |config: serde_json::Value, cpu: &str| {
            let mut written = config;
            written["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
            written["kind"] = "KubeletConfiguration".into();
            let (config, _) = objects::kubelet_config::read(&written.to_string()).unwrap();
            let configured = placement::configured::Configured::new(&machine, &config).unwrap();
            let amounts = of_pods(&machine, &config, configured.allocatable.milli_cpus);
            assert_eq!(amounts[CPU], cpu.parse().unwrap(), "{written}");
        };
        check(json!({"systemReserved": {"cpu": "100m"}, "kubeReserved": {"cpu": "200m"}}), "1700m");
        check(json!({"reservedSystemCPUs": "0", "kubeReserved": {"cpu": "200m"}}), "1");
        check(json!({}), "2");
    }
}
