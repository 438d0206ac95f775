//! A node on machines unlike the test machine: NUMA nodes, hyper-threads, huge pages, CPU hotplug,
//! cgroup v2. Each test runs in its own guest, emulated by QEMU; assertions read the guest's
//! `/proc`, `/sys` and cgroup files.
//!
//! Needs the feature `guest`, Debian's packages, and the directory that `tools/guest-kernel` makes
//! in `BERTH_GUEST_KERNEL`; see crates/rig. The tests cover effects, not the decisions of the core.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod come_and_go;
mod cores;
mod four;
mod memory;
mod pressure;
mod support;
