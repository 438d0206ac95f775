//! Processor records of Windows: a machine or an error.

#![no_main]

use std::collections::BTreeMap;

use host::windows_topology::Processors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // The first byte gives the offset of the second buffer.
    let cut = bytes.first().map_or(0, |byte| usize::from(*byte) * 8).min(bytes.len());
    let (all, full_nodes) = bytes.split_at(cut);
    for full_nodes in [None, Some(full_nodes)] {
        if let Ok(processors) = Processors::parse(all, full_nodes) {
            let _ = processors.topology(&BTreeMap::new());
        }
    }
});
