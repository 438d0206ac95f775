//! A node on machines that this one is not: NUMA nodes, hyper-threads, huge pages, CPUs that come and go,
//! cgroup v2. Each test is a guest of its own, emulated by QEMU; what it asserts was read from the guest's
//! `/proc`, `/sys` and cgroup files.
//!
//! Needs the feature `guest`, Debian's packages, and the directory that `tools/guest-kernel` makes in
//! `BERTH_GUEST_KERNEL`; see crates/rig. What the core decides is not tried here, but that it is so then.

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
