//! Memory QoS is written and read back; knobs of the other version are refused.

use host::cgroups::{Bound, Limits, MemoryError, MemoryKnob, MemoryKnobs, Version};

use crate::Own;

const SOME: u64 = 32 << 20;

#[test]
fn memory_qos_is_in_force() {
    let own = Own::new();
    let (cgroups, path) = (&own.cgroups, &own.path);
    let limits = Limits { memory: Some(Bound::At(4 * SOME)), ..Limits::default() };
    cgroups.update(path, &limits).unwrap();
    let low = MemoryKnobs { low: Some(Bound::At(SOME + 5)), ..MemoryKnobs::default() };
    cgroups.set_memory(path, &low).unwrap();
    cgroups.set_memory(path, &MemoryKnobs { low: Some(Bound::Max), ..low }).unwrap();
    let all = MemoryKnobs {
        min: Some(Bound::At(SOME)),
        high: Some(Bound::At(3 * SOME)),
        oom_group: Some(true),
        ..low
    };
    match (cgroups.version(), cgroups.set_memory(path, &all)) {
        (Version::V2, done) => done.unwrap(),
        (Version::V1, Err(MemoryError::NotInVersion1(knob))) => assert_eq!(knob, MemoryKnob::High),
        (Version::V1, done) => panic!("{done:?}"),
    }
    if cgroups.counts_swap() {
        let swap = MemoryKnobs { swap_max: Some(Bound::At(SOME)), ..MemoryKnobs::default() };
        cgroups.set_memory(path, &swap).unwrap();
    }
}
