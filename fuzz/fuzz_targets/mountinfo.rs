//! Mounts and cgroup hierarchies: a layout or an error.

#![no_main]

use host::cgroups::Layout;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = host::mounts::parse(text);
    let _ = Layout::parse(text);
});
