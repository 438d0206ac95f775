//! Manifests of pods and workloads: workloads, or errors with their locations.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = objects::workload::read(text);
});
