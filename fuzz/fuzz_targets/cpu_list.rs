//! CPU lists: a parsed list survives a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::CpuSet;

fuzz_target!(|text: &str| {
    if let Ok(cpus) = CpuSet::parse(text) {
        assert_eq!(CpuSet::parse(&cpus.to_string()).as_ref(), Ok(&cpus));
    }
});
