//! Kubelet configurations: a configuration, or all its errors.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = objects::kubelet_config::read(text);
});
