//! State files: a state or an error; a parsed state survives a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::state_file::{CpuState, Gates, MemoryState};

fuzz_target!(|bytes: &[u8]| {
    let gates = Gates::default();
    if let Ok(state) = CpuState::parse(bytes, "static", gates) {
        assert_eq!(CpuState::parse(state.render().as_bytes(), "static", gates).as_ref(), Ok(&state));
    }
    if let Ok(state) = MemoryState::parse(bytes, "Static", gates) {
        let again = MemoryState::parse(state.render().as_bytes(), "Static", gates);
        assert_eq!(again.as_ref(), Ok(&state));
    }
});
