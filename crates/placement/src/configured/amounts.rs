//! How much of what: [`Amounts`] that pods ask for and machines offer. Sums stop at the largest number
//! instead of going over it; whether something fits is decided elsewhere.

use std::collections::BTreeMap;

use objects::pod::resources::Side;
use objects::{Pod, resources};

use crate::demand::MemoryKind;

/// Amounts of what pods ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub milli_cpus: u64,
    pub memory: u64,
    pub pods: u64,
    /// Huge pages in bytes and extended resources in units, by resource name.
    pub others: BTreeMap<String, u64>,
}

impl Amounts {
    /// What a pod asks of a machine. Disk space is not counted: machines do not tell theirs.
    #[must_use]
    pub fn of(pod: &Pod) -> Amounts {
        let mut amounts = Amounts { pods: 1, ..Amounts::default() };
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
    pub fn plus(&self, other: &Amounts) -> Amounts {
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
    pub fn minus(&self, other: &Amounts) -> Amounts {
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
