//! Tests of the crate's public interface: discovery on artificial, captured and hostile machines.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod captures;
mod detected;
mod fake;
mod live;
mod sysfs;
mod windows_buffers;
