//! What this machine has left: [`measure`] asks it for what eviction goes by.
//!
//! What cannot be read is left out, and so evicts nobody. What pods use, each of them and together, is
//! not measured here.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

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
