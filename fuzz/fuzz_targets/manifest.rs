//! Manifests of pods and workloads: workloads or errors with their places.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = objects::workload::read(text);
});
