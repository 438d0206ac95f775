//! Capacity of resources that pods request and machines offer: [`Capacity`]. Sums saturate. Fitting
//! is decided elsewhere.

use std::collections::BTreeMap;

use objects::pod::resources::Side;
use objects::resources;
use objects::types::Pod;

use crate::demand::MemoryKind;

/// Capacity of resources that are counted per machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub milli_cpus: u64,
    pub memory: u64,
    pub pods: u64,
    /// Huge pages in bytes and extended resources in units, by resource name.
    pub others: BTreeMap<String, u64>,
}

impl Capacity {
    /// Returns the requests of a pod. Disk space is not counted, because machine descriptions have
    /// none.
    #[must_use]
    pub fn of(pod: &Pod) -> Capacity {
        let mut amounts = Capacity { pods: 1, ..Capacity::default() };
        for (name, amount) in pod.spec.resources().effective(Side::Requests) {
            let units = |value: Option<i64>| {
                value.map_or(u64::MAX, |value| u64::try_from(value).unwrap_or(0))
            };
            match name.as_str() {
                resources::CPU => amounts.milli_cpus = units(amount.checked_milli_value()),
                resources::MEMORY => amounts.memory = units(amount.checked_value()),
                resources::EPHEMERAL_STORAGE => {}
                _ => {
                    let units = units(amount.checked_value());
                    if units > 0 {
                        amounts.others.insert(canonical(&name), units);
                    }
                }
            }
        }
        amounts
    }

    #[must_use]
    pub fn plus(&self, other: &Capacity) -> Capacity {
        let mut sum = self.clone();
        sum.milli_cpus = sum.milli_cpus.saturating_add(other.milli_cpus);
        sum.memory = sum.memory.saturating_add(other.memory);
        sum.pods = sum.pods.saturating_add(other.pods);
        for (name, amount) in &other.others {
            let have = sum.others.entry(name.clone()).or_default();
            *have = have.saturating_add(*amount);
        }
        sum
    }

    #[must_use]
    pub fn minus(&self, other: &Capacity) -> Capacity {
        let mut rest = self.clone();
        rest.milli_cpus = rest.milli_cpus.saturating_sub(other.milli_cpus);
        rest.memory = rest.memory.saturating_sub(other.memory);
        rest.pods = rest.pods.saturating_sub(other.pods);
        for (name, amount) in &other.others {
            if let Some(have) = rest.others.get_mut(name) {
                *have = have.saturating_sub(*amount);
            }
        }
        rest
    }
}

/// Huge pages have one size and many spellings: `hugepages-1024Mi` is `hugepages-1Gi`.
fn canonical(name: &str) -> String {
    match MemoryKind::parse(name) {
        Some(kind) => kind.to_string(),
        None => name.to_owned(),
    }
}
