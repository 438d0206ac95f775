//! Measures what is available: [`measure`] reads this machine, and [`left_of_share`] computes what is left of the
//! share of all pods.
//!
//! A value that cannot be read is left out and so evicts no pod. The usage of single pods is not measured here.

use std::path::Path;

use host::cgroups::{Bound, Usage};
use host::os::system;
use host::system::FileSystem;
use objects::kubelet_config::EvictionSignal;

use lifecycle::eviction::{SignalObservation, SignalObservations};

/// Measures memory and process ids of the machine, the file system of `root` (the pods' directory) and
/// that of `images` (the runtime's directory).
#[must_use]
pub fn measure(root: &Path, images: &Path) -> SignalObservations {
    let mut amounts = SignalObservations::new();
    if let Ok(memory) = system::memory() {
        let available = memory.outside_working_set();
        let amount = SignalObservation { available, capacity: memory.total };
        amounts.insert(EvictionSignal::MemoryAvailable, amount);
    }
    if let Ok(Some(ids)) = system::process_ids() {
        let amount =
            SignalObservation { available: ids.max.saturating_sub(ids.used), capacity: ids.max };
        amounts.insert(EvictionSignal::PidAvailable, amount);
    }
    let mut disk = |path: &Path, bytes: EvictionSignal, inodes: EvictionSignal| {
        let Ok(FileSystem { capacity, available, inodes: counted }) = system::file_system(path)
        else {
            return;
        };
        amounts.insert(bytes, SignalObservation { available, capacity });
        if let Some(counted) = counted {
            amounts.insert(
                inodes,
                SignalObservation { available: counted.free, capacity: counted.total },
            );
        }
    };
    disk(root, EvictionSignal::NodefsAvailable, EvictionSignal::NodefsInodesFree);
    disk(images, EvictionSignal::ImagefsAvailable, EvictionSignal::ImagefsInodesFree);
    amounts
}

/// Returns the memory that is left of the share of all pods. Without a limit on the share it is the
/// machine's available memory.
#[must_use]
pub fn left_of_share(all: &Usage) -> SignalObservations {
    let (Some(Bound::At(capacity)), Some(used)) = (all.memory_limit, all.working_set) else {
        return SignalObservations::new();
    };
    let amount = SignalObservation { available: capacity.saturating_sub(used), capacity };
    SignalObservations::from([(EvictionSignal::AllocatableMemoryAvailable, amount)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_share_is_the_limit_minus_the_working_set() {
        let check = |memory_limit, working_set, left: Option<u64>| {
            let all = Usage { memory_limit, working_set, ..Usage::default() };
            let found = left_of_share(&all);
            let found = found.get(&EvictionSignal::AllocatableMemoryAvailable);
            assert_eq!(found.map(|amount| amount.available), left, "{memory_limit:?}");
        };
        check(Some(Bound::At(100)), Some(30), Some(70));
        check(Some(Bound::At(100)), Some(130), Some(0));
        check(Some(Bound::Max), Some(30), None);
        check(Some(Bound::At(100)), None, None);
    }

    #[test]
    fn this_machine_has_something_left() {
        let here = std::env::temp_dir();
        let amounts = measure(&here, Path::new("no such directory"));
        for signal in [EvictionSignal::MemoryAvailable, EvictionSignal::NodefsAvailable] {
            let amount = amounts[&signal];
            assert!(amount.available <= amount.capacity && amount.capacity > 0, "{signal}");
        }
        assert!(!amounts.contains_key(&EvictionSignal::ImagefsAvailable));
    }
}
