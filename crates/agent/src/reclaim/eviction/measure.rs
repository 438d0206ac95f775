//! What is left: [`measure`] asks this machine for what eviction goes by, and [`left_of_share`] reckons what
//! all pods have left of theirs.
//!
//! What cannot be read is left out, and so evicts nobody. What single pods use is not measured here.

use std::path::Path;

use host::cgroups::{Bound, Usage};
use host::facts::FileSystem;
use host::os::facts;
use objects::kubelet_config::EvictionSignal;

use super::{Amount, Amounts};

/// The machine's memory and process ids, the file system of `root`, where pods are kept, and that of
/// `images`, where the runtime keeps its own.
#[must_use]
pub fn measure(root: &Path, images: &Path) -> Amounts {
    let mut amounts = Amounts::new();
    if let Ok(memory) = facts::memory() {
        let available = memory.outside_working_set();
        let amount = Amount { available, capacity: memory.total };
        amounts.insert(EvictionSignal::MemoryAvailable, amount);
    }
    if let Ok(Some(ids)) = facts::process_ids() {
        let amount = Amount { available: ids.max.saturating_sub(ids.used), capacity: ids.max };
        amounts.insert(EvictionSignal::PidAvailable, amount);
    }
    let mut disk = |path: &Path, bytes: EvictionSignal, inodes: EvictionSignal| {
        let Ok(FileSystem { capacity, available, inodes: counted }) = facts::file_system(path)
        else {
            return;
        };
        amounts.insert(bytes, Amount { available, capacity });
        if let Some(counted) = counted {
            amounts.insert(inodes, Amount { available: counted.free, capacity: counted.total });
        }
    };
    disk(root, EvictionSignal::NodefsAvailable, EvictionSignal::NodefsInodesFree);
    disk(images, EvictionSignal::ImagefsAvailable, EvictionSignal::ImagefsInodesFree);
    amounts
}

/// What pods have left of the memory they may use together. Where there is no limit to that, the machine's
/// own memory is all there is to go by.
#[must_use]
pub fn left_of_share(all: &Usage) -> Amounts {
    let (Some(Bound::At(capacity)), Some(used)) = (all.memory_limit, all.working_set) else {
        return Amounts::new();
    };
    let amount = Amount { available: capacity.saturating_sub(used), capacity };
    Amounts::from([(EvictionSignal::AllocatableMemoryAvailable, amount)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_left_what_their_working_set_leaves_of_their_limit() {
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
