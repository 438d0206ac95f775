//! What all pods have together, and each class of them: [`keep`] makes their cgroups, and gives them new
//! limits when pods come and go.

use std::sync::Arc;

use objects::quantity::Format;
use objects::resources::{CPU, MEMORY};
use objects::{KubeletConfig, Quantity};
use placement::Machine;
use placement::configured::total_memory;
use placement::demand::MemoryKind;
use tracing::warn;

use crate::cgroups;
use crate::hands::Hands;
use crate::spec::Amounts;

/// What the machine has without what is reserved for others. What is kept back for eviction is in it: it
/// is pods that are evicted.
pub(super) fn of_pods(machine: &Machine, config: &KubeletConfig) -> Amounts {
    let topology = &machine.topology;
    let cpus = i64::try_from(topology.all_cpus().len()).unwrap_or(i64::MAX);
    let mut amounts = Amounts::from([
        (CPU.to_owned(), Quantity::from_i64(cpus, Format::DecimalSi)),
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
    for (name, reserved) in config.reserved() {
        if let Some(amount) = amounts.get_mut(&name) {
            let left = amount.checked_sub(&reserved).filter(|left| !left.is_negative());
            *amount = left.unwrap_or_else(Quantity::zero);
        }
    }
    amounts
}

/// Keeps the cgroups true for as long as it is polled.
pub(super) async fn keep(hands: Arc<Hands>, amounts: Amounts) {
    let mut active = hands.active.subscribe();
    loop {
        let pods = Arc::clone(&active.borrow_and_update());
        let Some(cgroups) = hands.cgroups.clone() else { return };
        let (facts, amounts) = (hands.facts(), amounts.clone());
        let done = tokio::task::spawn_blocking(move || {
            // As many as the machine allows: pods have limits of their own.
            let pids = host::os::facts::process_ids().ok().flatten().map(|of| of.max);
            let all = cgroups::of_all_pods(&facts, &amounts, pids);
            cgroups.ensure_classes(&facts, &all, pods.iter().map(AsRef::as_ref))
        });
        match done.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "cgroups of pods"),
            Err(error) => warn!(%error, "cgroups of pods"),
        }
        if active.changed().await.is_err() {
            return;
        }
    }
}
