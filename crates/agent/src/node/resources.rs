//! The resources of the machine and the part for pods: [`capacity`] and [`allocatable`], with upstream's arithmetic and
//! format.
//!
//! Allocatable is capacity minus reservations and hard eviction thresholds, at least zero. CPUs come from placement, which
//! knows the list of reserved CPUs.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::kubelet_config::EvictionSignal;
use objects::quantity::Format;
use objects::resources::{self, EPHEMERAL_STORAGE, ResourceList};
use placement::Bytes;

use super::{Description, Observation};

/// Returns the resources of the machine.
#[must_use]
pub fn capacity(description: &Description, now: &Observation) -> ResourceList {
    let configured = now.report.configured();
    let mut capacity = ResourceList::new();
    let mut put = |name: &str, amount: Quantity| capacity.insert(name.to_owned(), amount);
    put(resources::CPU, count(configured.node.topology.cpus().len() as u64));
    put(resources::MEMORY, Quantity::from_bytes(now.memory.total));
    put("pods", count(configured.allocatable.pods));
    if description.settings.local_storage_isolation {
        put(EPHEMERAL_STORAGE, count(now.storage));
    }
    for (name, bytes) in huge_pages(description, now) {
        put(&name, Quantity::from_bytes(bytes));
    }
    for (name, devices) in &now.devices {
        put(name, count(devices.all));
    }
    capacity
}

/// Returns the resources for pods.
#[must_use]
pub fn allocatable(description: &Description, now: &Observation) -> ResourceList {
    let mut left = capacity(description, now);
    let milli = i64::try_from(now.report.configured().allocatable.milli_cpus).unwrap_or(i64::MAX);
    left.insert(resources::CPU.to_owned(), Quantity::from_milli(milli));
    let reserved = description.config.reserved();
    let thresholds = description.config.hard_eviction(description.os);
    let threshold = |signal, capacity| thresholds.get(signal).map_or(0, |t| t.of(capacity));
    let eviction: [(&str, u64); 2] = [
        (resources::MEMORY, threshold(&EvictionSignal::MemoryAvailable, now.memory.total)),
        (EPHEMERAL_STORAGE, threshold(&EvictionSignal::NodefsAvailable, now.storage)),
    ];
    for (name, amount) in &mut left {
        if name == resources::CPU {
            continue;
        }
        if let Some(reserved) = reserved.get(name) {
            *amount = without(amount, reserved);
        }
        for (_, kept) in eviction.iter().filter(|(resource, _)| resource == name) {
            *amount = without(amount, &Quantity::from_bytes(*kept));
        }
    }
    for (name, devices) in &now.devices {
        left.insert(name.clone(), count(devices.healthy));
    }
    // Huge pages are taken from the memory when they are reserved.
    let huge: u64 = huge_pages(description, now).values().sum();
    if let Some(memory) = left.get_mut(resources::MEMORY) {
        *memory = without(memory, &Quantity::from_bytes(huge));
    }
    left
}

fn count(number: u64) -> Quantity {
    Quantity::from_i64(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi)
}

/// Subtracts, with zero as the minimum.
fn without(amount: &Quantity, other: &Quantity) -> Quantity {
    match amount.checked_sub(other) {
        Some(left) if !left.is_negative() => left,
        _ => Quantity::from_i64(0, amount.format()),
    }
}

/// Returns the bytes of huge pages by resource, with zero for sizes without pages.
fn huge_pages(description: &Description, now: &Observation) -> BTreeMap<String, u64> {
    let name = |size: u64| format!("{}{}", resources::HUGEPAGES_PREFIX, Bytes(size));
    let mut all: BTreeMap<String, u64> =
        description.huge_page_sizes.iter().map(|size| (name(*size), 0)).collect();
    for node in now.report.configured().node.topology.nodes() {
        for pages in &node.huge_pages {
            let bytes = pages.page_size.0.saturating_mul(pages.count);
            let sum = all.entry(name(pages.page_size.0)).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    all
}
