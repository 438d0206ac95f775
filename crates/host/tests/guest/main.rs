//! Resctrl of a real kernel, in a guest whose kernel believes that its CPU has Intel RDT. The
//! program `resctrl` runs in the guest; assertions read the guest's resctrl.
//!
//! Needs the feature `guest`, Debian's packages, and the directory that `tools/rdt-kernel` makes in
//! `BERTH_RDT_KERNEL`; see crates/rig. The emulated CPU divides nothing and its counters stay 0, so
//! the tests cover the rules of the file system, not the effect on caches.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod classes;
mod killed;
mod support;
